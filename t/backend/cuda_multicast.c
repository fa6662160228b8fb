/*
 * t/backend/cuda_multicast.c - the switch before the driver's multicast: nothing of it is resolved
 * or called unless TE_COMM_NVLS is on and the environment does not refuse it. And the order of its
 * steps on both backends. The driver is a fake: neither libcuda nor a GPU is needed.
 */
#include "config.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cuda.h"
#include "tt.h"
#include "tt_ctx.h"

#define UNIT ((size_t)2 << 20)

static struct te__cuda_dev dev;

/* what exists, and how often the driver was asked for a function of multicast, or called one */
static struct {
	int resolved, called;
	int can, lacking;
	int handles, bound, added, mapped;
} fake;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuDeviceGetAttribute(int *ret_value, int attribute, int device)
{
	*ret_value = 1;
	return 0;
}

int fake_cuMemGetAllocationGranularity(size_t *ret_nbytes,
				       const struct te__cu_mem_props *props, int option)
{
	*ret_nbytes = UNIT;
	return 0;
}

int fake_cuMemCreate(uint64_t *ret_handle, size_t nbytes,
		     const struct te__cu_mem_props *props, uint64_t flags)
{
	fake.handles++;
	*ret_handle = 7;
	return 0;
}

int fake_cuMemRelease(uint64_t handle)
{
	fake.handles--;
	return 0;
}

int fake_cuMemExportToShareableHandle(void *ret, uint64_t handle, int type, uint64_t flags)
{
	*(int *)ret = open("/dev/null", O_RDWR);
	return 0;
}

int fake_cuMemImportFromShareableHandle(uint64_t *ret_handle, void *shareable, int type)
{
	fake.handles++;
	*ret_handle = 9;
	return 0;
}

int fake_cuMemMap(uint64_t ptr, size_t nbytes, size_t offset, uint64_t handle,
		  uint64_t flags)
{
	fake.mapped++;
	return 0;
}

int fake_cuMemUnmap(uint64_t ptr, size_t nbytes)
{
	fake.mapped--;
	return 0;
}

int fake_cuMemSetAccess(uint64_t ptr, size_t nbytes, const struct te__cu_mem_access *desc,
			size_t n)
{
	return 0;
}

static int fake_cuMulticastGetGranularity(size_t *ret_nbytes,
					  const struct te__cu_multicast_props *props, int option)
{
	fake.called++;
	ck_assert_uint_eq(props->ndevices, 2);
	ck_assert_uint_eq(props->handle_types, TE__CU_MEM_HANDLE_POSIX_FD);
	*ret_nbytes = UNIT;
	return 0;
}

static int fake_cuMulticastCreate(uint64_t *ret_handle, const struct te__cu_multicast_props *props)
{
	fake.called++;
	fake.handles++;
	ck_assert_uint_eq(props->nbytes, 3 * UNIT);
	*ret_handle = 9;
	return 0;
}

static int fake_cuMulticastAddDevice(uint64_t handle, int device)
{
	fake.called++;
	fake.added++;
	ck_assert_uint_eq(handle, 9);
	ck_assert_int_eq(device, 3);
	return 0;
}

static int fake_cuMulticastBindMem(uint64_t handle, size_t at, uint64_t memory, size_t memory_at,
				   size_t nbytes, uint64_t flags)
{
	fake.called++;
	fake.bound++;
	ck_assert_uint_eq(handle, 9);
	ck_assert_uint_eq(memory, 7);
	ck_assert_uint_eq(at + memory_at + flags, 0);
	ck_assert_uint_eq(nbytes, 3 * UNIT);
	return 0;
}

static int fake_cuMulticastUnbind(uint64_t handle, int device, size_t at, size_t nbytes)
{
	fake.called++;
	fake.bound--;
	return 0;
}
#pragma GCC diagnostic pop

static int get_proc(const char *name, void **ret_fn, int version, uint64_t flags, int *ret_status)
{
	static const struct {
		const char *name;
		void *fn;
	} multicast[] = {
#define TE__CU(name, version, args) { #name, (void *)(uintptr_t)fake_##name },
#include "libtecore/backend/cuda/multicast.def"
#undef TE__CU
	};

	*ret_status = 0;
	*ret_fn = fake_proc(name, version);
	for (size_t i = 0; i < TT_LEN(multicast); i++) {
		if (strcmp(multicast[i].name, name))
			continue;
		fake.resolved++;
		if (!fake.lacking || !strstr(name, "MulticastBind"))
			*ret_fn = multicast[i].fn;
	}
	return 0;
}

static const struct te__backend_ops *ops;
static void *device; /* of ops */
static int is_cuda;

static void use_cuda(void)
{
	is_cuda = 1;
	ops = &te__backend_cuda;
	device = &dev;
	te__cuda_driver_fake_lib(1, get_proc);
	memset(&fake, 0, sizeof(fake));
	memset(&dev, 0, sizeof(dev));
	dev.index = 2;
	dev.dev = 3;
	dev.ctx = &dev;
	dev.total_nbytes = 16 * UNIT;
	dev.target = te__target_of(90);
	strcpy(dev.name, "NVIDIA H100 80GB HBM3");
	te__devmem_init(&dev.mem, 0, NULL);
	te_error_clear();
}

static void use_host(void)
{
	const struct te__open how = { .limit_nbytes = 64 << 20 };

	is_cuda = 0;
	ops = &te__backend_host;
	DO(ops->open(&how, &device));
}

/* all that ranks 0 and 1 do; both are this process */
static int steps(void)
{
	void *memory = NULL, *object = NULL, *import = NULL;
	void *at = mmap(NULL, 3 * UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = -1, mapped = 0, r;
	size_t unit;

	r = ops->multicast_unit(device, 2, 3 * UNIT, &unit);
	if (!r)
		r = ops->share_create(device, 3 * UNIT, &memory);
	if (!r)
		r = ops->multicast_create(device, 2, 3 * UNIT, &object);
	if (!r)
		r = ops->share_export(object, &fd);
	if (!r)
		r = ops->multicast_import(device, fd, 3 * UNIT, &import);
	if (!r)
		r = ops->multicast_bind(object, memory);
	if (!r)
		r = ops->multicast_bind(import, memory);
	if (!r)
		r = ops->share_map(object, at);
	mapped = !r;
	if (object)
		ops->share_release(object);
	if (import)
		ops->share_release(import);
	if (mapped)
		ops->share_unmap(device, at, 3 * UNIT);
	if (memory)
		ops->share_release(memory);
	if (fd >= 0)
		close(fd);
	munmap(at, 3 * UNIT);
	ck_assert_int_eq(fake.handles, 0);
	ck_assert_int_eq(fake.bound, 0);
	ck_assert_int_eq(fake.mapped, 0);
	return r;
}

static const struct {
	const char *name, *value, *text;
} refusal[] = {
	{ "TE_COMM_NVLS", NULL, "multicast is off: TE_COMM_NVLS=on switches it on" },
	{ "TE_COMM_NVLS", "off", "multicast is off" },
	{ "TE_COMM_NVLS", "no", "multicast is off" },
	{ "NCCL_NVLS_ENABLE", "0", "refused: NCCL_NVLS_ENABLE=0 is in the environment" },
	{ "TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1 is" },
	{ "NVSHMEM_DISABLE_NVLS", "1", "NVSHMEM_DISABLE_NVLS=1 is in the environment" },
};

CASE(multicast, "host fast");

TEST_EACH(multicast, nothing_is_resolved_or_called_unless_switched_on, TT_LEN(refusal))
{
	void *memory, *p = &p;
	size_t unit = 1;

	setenv("TE_COMM_NVLS", "on", 1);
	if (refusal[_i].value)
		setenv(refusal[_i].name, refusal[_i].value, 1);
	else
		unsetenv(refusal[_i].name);
	use_cuda();
	DO(ops->share_create(device, UNIT, &memory));
	ck_assert_int_eq(ops->multicast_unit(device, 2, UNIT, &unit), -EOPNOTSUPP);
	tt_said(refusal[_i].text);
	te_error_clear();
	ck_assert_int_eq(ops->multicast_create(device, 2, UNIT, &p), -EOPNOTSUPP);
	tt_said(refusal[_i].text);
	ck_assert_int_eq(ops->multicast_import(device, 0, UNIT, &p), -EOPNOTSUPP);
	ck_assert_int_eq(ops->multicast_bind(memory, memory), -EOPNOTSUPP);
	ops->share_release(memory);
	ck_assert_ptr_eq(p, &p);
	ck_assert_uint_eq(unit, 1);
	ck_assert_int_eq(fake.resolved, 0);
	ck_assert_int_eq(fake.called, 0);
}

TEST(multicast, each_step_is_taken_and_undone)
{
	setenv("TE_COMM_NVLS", "on", 1);
	use_cuda();
	DO(steps());
	ck_assert_int_eq(fake.added, 2);
	ck_assert_int_eq(fake.resolved, 5);
	DO(steps());
	ck_assert_int_eq(fake.resolved, 5);
	ck_assert_int_ge(tt_fault_each(steps), 12);
	dev.target = te__target_of(89);
	te_error_clear();
	ck_assert_int_eq(steps(), -EOPNOTSUPP);
	tt_said("GPU 2, NVIDIA H100 80GB HBM3, does not support multicast");
}

TEST(multicast, a_driver_without_multicast_is_named)
{
	setenv("TE_COMM_NVLS", "on", 1);
	use_cuda();
	fake.lacking = 1;
	ck_assert_int_eq(steps(), -EOPNOTSUPP);
	tt_said("the NVIDIA driver has no cuMulticastBindMem");
	ck_assert_int_eq(fake.called, 0);
}

/* the simulation refuses steps in a wrong order, as the driver does */
TEST(multicast, the_host_checks_the_order)
{
	void *memory, *object, *import, *p = &p;
	void *at = mmap(NULL, UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd, plain;

	setenv("TE_COMM_NVLS", "on", 1);
	use_host();
	DO(steps());
	ck_assert_int_ge(tt_fault_each(steps), 10);
	DO(ops->share_create(device, UNIT, &memory));
	DO(ops->share_export(memory, &plain));
	DO(ops->multicast_create(device, 2, UNIT, &object));
	DO(ops->share_export(object, &fd));
	te_error_clear();
	ck_assert_int_eq(ops->multicast_bind(object, memory), -TE_ESTATE);
	tt_said("memory is bound when 1 of 2 devices have been added");
	ck_assert_int_eq(ops->multicast_import(device, plain, UNIT, &p), -EINVAL);
	DO(ops->multicast_import(device, fd, UNIT, &import));
	te_error_clear();
	ck_assert_int_eq(ops->multicast_import(device, fd, UNIT, &p), -EINVAL);
	tt_said("multicast of 2 devices: one more was added");
	DO(ops->multicast_bind(import, memory));
	ck_assert_int_eq(ops->multicast_bind(import, memory), -EINVAL);
	te_error_clear();
	ck_assert_int_eq(ops->share_map(object, at), -TE_ESTATE);
	tt_said("mapped when 1 of 2 devices have bound their memory");
	DO(ops->multicast_bind(object, memory));
	DO(ops->share_map(object, at));
	ck_assert_ptr_eq(p, &p);
	ops->share_unmap(device, at, UNIT);
	ops->share_release(object);
	ops->share_release(import);
	ops->share_release(memory);
	close(fd);
	close(plain);
	munmap(at, UNIT);
	ops->close(device);
}

TT_SUITE("backend/cuda_multicast", TT_NEED_NOTHING)
{
	unsetenv("NCCL_NVLS_ENABLE");
	unsetenv("TORCH_SYMM_MEM_DISABLE_MULTICAST");
	unsetenv("NVSHMEM_DISABLE_NVLS");
}
