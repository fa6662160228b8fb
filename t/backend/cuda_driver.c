/*
 * t/backend/cuda_driver.c - error messages if the cuda backend cannot be used, and failures while a
 * GPU is opened. This program fakes the driver: neither libcuda nor a GPU is needed.
 */
#include "config.h"

#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "kernels/kernels.h"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/images.h"
#include "libtecore/base/base.h"
#include "tt.h"

#define FAKE_MISMATCH 803

/* the machine that the fake driver describes */
static struct {
	int init;  /* result of cuInit */
	int count; /* result of cuDeviceGetCount */
	int ndevices;
	struct {
		const char *name;
		int major, minor;
	} dev[2];
	const char *missing; /* the function that the library lacks, or NULL */
	int status_only;     /* reports it by a NULL function, with CUDA_SUCCESS */
	int exclusive;	     /* another process uses the GPU: no context can be created */
	int ncontexts;	     /* retained so far */
	int current;	     /* contexts pushed */
	const void *top;     /* the latest */
	int nmodules;	     /* loaded so far */
	int live;	     /* contexts, pools, streams and modules that exist */
} fake;

static int handle; /* all handles point to it */
/* CUcontexts of the program: of GPU 1, and destroyed */
static int other_ctx, gone_ctx;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuInit(unsigned flags)
{
	return fake.init;
}

int fake_cuGetErrorName(int result, const char **ret_name)
{
	*ret_name = result == FAKE_MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" :
					      "CUDA_ERROR_UNKNOWN";
	return 0;
}

int fake_cuDriverGetVersion(int *ret_version)
{
	*ret_version = 12040;
	return 0;
}

int fake_cuDeviceGetCount(int *ret_count)
{
	*ret_count = fake.ndevices;
	return fake.count;
}

int fake_cuDeviceGet(int *ret_dev, int ordinal)
{
	*ret_dev = ordinal;
	return 0;
}

int fake_cuDeviceGetName(char *name, int len, int dev)
{
	snprintf(name, (size_t)len, "%s", fake.dev[dev].name);
	return 0;
}

int fake_cuDeviceGetPCIBusId(char *address, int len, int dev)
{
	snprintf(address, (size_t)len, "0000:%02x:00.0", 0x1a + dev);
	return 0;
}

int fake_cuDeviceGetAttribute(int *ret_value, int attribute, int dev)
{
	*ret_value = attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR ? fake.dev[dev].major :
		     attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR ? fake.dev[dev].minor :
									 232448;
	return 0;
}

int fake_cuDeviceTotalMem(size_t *ret_nbytes, int dev)
{
	*ret_nbytes = (size_t)80 << 30;
	return 0;
}

static int hold(void **ret)
{
	fake.live++;
	*ret = &handle;
	return 0;
}

static int drop(void)
{
	ck_assert_int_gt(fake.live, 0);
	fake.live--;
	return 0;
}

int fake_cuDevicePrimaryCtxRetain(void **ret_ctx, int dev)
{
	if (fake.exclusive)
		return FAKE_UNKNOWN;
	fake.ncontexts++;
	return hold(ret_ctx);
}

int fake_cuDevicePrimaryCtxRelease(int dev)
{
	return drop();
}

int fake_cuCtxPushCurrent(void *ctx)
{
	if (ctx == &gone_ctx)
		return FAKE_UNKNOWN;
	ck_assert(ctx == &handle || ctx == &other_ctx);
	fake.top = ctx;
	fake.current++;
	return 0;
}

int fake_cuCtxPopCurrent(void **ret_ctx)
{
	ck_assert_int_gt(fake.current, 0);
	fake.current--;
	*ret_ctx = &handle;
	return 0;
}

int fake_cuCtxGetDevice(int *ret_dev)
{
	ck_assert_int_gt(fake.current, 0);
	*ret_dev = fake.top == &other_ctx;
	return 0;
}

int fake_cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	ck_assert_int_gt(fake.current, 0);
	*ret_free = (size_t)60 << 30;
	*ret_total = (size_t)80 << 30;
	return 0;
}

int fake_cuMemPoolCreate(void **ret_pool, const struct te__cu_pool_props *props)
{
	return hold(ret_pool);
}

int fake_cuMemPoolDestroy(void *pool)
{
	return drop();
}

int fake_cuMemPoolSetAttribute(void *pool, int attribute, void *value)
{
	return 0;
}

int fake_cuStreamCreate(void **ret_stream, unsigned flags)
{
	return hold(ret_stream);
}

int fake_cuStreamDestroy(void *stream)
{
	return drop();
}

int fake_cuStreamSynchronize(void *stream)
{
	return 0;
}

int fake_cuEventCreate(void **ret_event, unsigned flags)
{
	return hold(ret_event);
}

int fake_cuEventDestroy(void *event)
{
	return drop();
}

int fake_cuModuleLoadData(void **ret_module, const void *image)
{
	fake.nmodules++;
	return hold(ret_module);
}

int fake_cuModuleUnload(void *module)
{
	return drop();
}

int fake_cuModuleGetFunctionCount(unsigned *ret_count, void *module)
{
	*ret_count = 2;
	return 0;
}

int fake_cuModuleEnumerateFunctions(void **ret_funcs, unsigned count, void *module)
{
	for (unsigned i = 0; i < count; i++)
		ret_funcs[i] = &handle;
	return 0;
}

int fake_cuFuncGetName(const char **ret_name, void *func)
{
	*ret_name = "te_k_clear";
	return 0;
}

int fake_cuFuncLoad(void *func)
{
	return 0;
}

int fake_cuFuncGetAttribute(int *ret_value, int attribute, void *func)
{
	*ret_value = 1024;
	return 0;
}

int fake_cuFuncSetAttribute(void *func, int attribute, int value)
{
	return 0;
}

int fake_cuMemHostRegister(void *ptr, size_t nbytes, unsigned flags)
{
	return hold(&ptr);
}

int fake_cuMemHostUnregister(void *ptr)
{
	return drop();
}

int fake_cuMemHostGetDevicePointer(uint64_t *ret_ptr, void *host, unsigned flags)
{
	*ret_ptr = (uintptr_t)host;
	return 0;
}
#pragma GCC diagnostic pop

/* the library's cuGetProcAddress */
static int get_proc(const char *symbol, void **ret_fn, int version, uint64_t flags,
		    int *ret_status)
{
	ck_assert_uint_eq(flags, 0);
	*ret_fn = fake_proc(symbol, version);
	*ret_status = 0;
	ck_assert_msg(*ret_fn != NULL, "%s is in no row", symbol);
	if (!fake.missing || strcmp(fake.missing, symbol))
		return 0;
	*ret_fn = NULL;
	*ret_status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
	return fake.status_only ? 0 : 500; /* CUDA_ERROR_NOT_FOUND */
}

static void install(void)
{
	static const short hopper[] = { 90, 0 }, none[] = { 0 };
	const struct te__cuda_driver d = fake_driver();

	te__cuda_driver_fake(&d);
	te__cuda_levels_fake(hopper, none);
}

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.ndevices = 1;
	fake.dev[0].name = "NVIDIA A100-SXM4-80GB";
	fake.dev[0].major = 8;
	fake.dev[1].name = "NVIDIA H100 80GB HBM3";
	fake.dev[1].major = 9;
}

static int create(const char *backend, int device, struct te_ctx **ret_ctx)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;

	o.backend = backend;
	o.device = device;
	te_error_clear();
	return te_ctx_create(&o, ret_ctx);
}

static void check_refused(int device, int code, const char *sentence)
{
	struct te_ctx *ctx = (void *)&handle;

	ck_assert_int_eq(create("cuda", device, &ctx), code);
	ck_assert_str_eq(te_error_detail(), sentence);
	ck_assert_ptr_eq(ctx, &handle);
	ck_assert_int_eq(fake.live, 0);
	/* "auto" chooses host instead, if it has a device of that index */
	if (device > 0)
		return;
	ck_assert_int_eq(create("auto", device, &ctx), 0);
	ck_assert_str_eq(te_ctx_backend(ctx), "host");
	te_ctx_unref(ctx);
	ck_assert_int_eq(fake.live, 0);
}

/* no device: the reason that te_info(1) prints, and the error message of a program */
static void check_absent(const char *reason)
{
	struct te_backend_info b = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	char want[400];

	ck_assert_int_eq(te_backend_info(0, &b), 0);
	ck_assert_str_eq(b.name, "cuda");
	ck_assert_int_eq(b.ndevices, 0);
	ck_assert_str_eq(b.reason, reason);
	snprintf(want, sizeof(want), "te_ctx_create: backend cuda: %s", reason);
	check_refused(0, -ENODEV, want);
	ck_assert_int_lt(te_device_info("cuda", 0, &d), 0);
	ck_assert_str_ne(te_error_detail(), "");
	ck_assert_str_eq(d.name, "");
}

CASE(absent, "host fast", .setup = setup);

TEST(absent, reports_a_missing_libcuda)
{
	te__cuda_driver_fake_lib(0, NULL);
	check_absent("libcuda.so.1 is not found: no NVIDIA driver is installed");
}

TEST(absent, reports_a_driver_that_is_too_old)
{
	te__cuda_driver_fake_lib(1, NULL);
	check_absent("the NVIDIA driver has no cuGetProcAddress of CUDA 12.0: "
		     "install driver 550 or later");
}

static const struct {
	const char *name;
	int version;
} entry[] = {
#define TE__CU(name, version, args) { #name, version },
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
};

TEST_EACH(absent, names_the_missing_driver_function, TT_LEN(entry))
{
	char want[200];

	fake.missing = entry[_i].name;
	fake.status_only = _i % 2;
	te__cuda_driver_fake_lib(1, get_proc);
	snprintf(want, sizeof(want),
		 "the NVIDIA driver has no %s of CUDA %d.%d: install driver 550 or later",
		 entry[_i].name, entry[_i].version / 1000, entry[_i].version % 1000 / 10);
	check_absent(want);
}

TEST(absent, reports_a_missing_gpu)
{
	fake.init = TE__CU_ERROR_NO_DEVICE;
	install();
	check_absent("cuInit: the driver sees no GPU");
}

TEST(absent, reports_why_init_failed)
{
	fake.init = FAKE_MISMATCH;
	te__cuda_driver_fake_lib(1, get_proc);
	check_absent("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

TEST(absent, reports_that_no_device_is_visible)
{
	fake.ndevices = 0;
	install();
	check_absent("the driver sees no GPU");
}

TEST(absent, reports_that_devices_cannot_be_counted)
{
	fake.count = FAKE_UNKNOWN;
	fake.ndevices = 0;
	install();
	check_absent("the driver sees no GPU");
}

static const struct {
	int major, minor;
} other_cc[] = { { 7, 0 }, { 8, 0 }, { 8, 9 }, { 9, 1 }, { 10, 0 }, { 12, 1 } };

TEST(absent, kernels_run_on_later_gpus)
{
	const short none[] = { 0 }, hopper[] = { 90, 0 }, cubins[] = { 80, 86, 89, 90, 0 };
	const short ampere[] = { 80, 0 }, ptx[] = { 80, 89, 90, 0 };
	const struct {
		const short *cubins, *ptx;
		int cc, want;
	} row[] = {
		{ hopper, none, 90, 90 },  { hopper, none, 89, 0 },    { hopper, none, 91, 0 },
		{ hopper, none, 100, 0 },  { cubins, none, 75, 0 },    { cubins, none, 80, 80 },
		{ cubins, none, 86, 86 },  { cubins, none, 87, 86 },   { cubins, none, 89, 89 },
		{ cubins, none, 90, 90 },  { cubins, none, 120, 0 },   { cubins, ptx, 80, 80 },
		{ cubins, ptx, 86, 86 },   { cubins, ptx, 89, 89 },    { cubins, ptx, 90, 90 },
		{ cubins, ptx, 100, 90 },  { cubins, ptx, 121, 89 },   { ampere, ampere, 86, 80 },
		{ ampere, ampere, 90, 80 }, { ampere, ampere, 120, 80 }, { ampere, none, 90, 0 },
	};

	for (size_t i = 0; i < TT_LEN(row); i++)
		ck_assert_msg(te__cuda_arch(row[i].cubins, row[i].ptx, row[i].cc) == row[i].want,
			      "row %zu", i);
}

TEST_EACH(absent, names_a_gpu_other_than_hopper, TT_LEN(other_cc))
{
	struct te_backend_info b = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	char why[200], want[300];

	fake.dev[0].major = other_cc[_i].major;
	fake.dev[0].minor = other_cc[_i].minor;
	install();
	snprintf(why, sizeof(why),
		 "compute capability %d.%d: the kernels of this build are for " TE_GPU_ARCHS,
		 other_cc[_i].major, other_cc[_i].minor);
	/* the backend is present, but its device is not usable */
	ck_assert_int_eq(te_backend_info(0, &b), 0);
	ck_assert_int_eq(b.ndevices, 1);
	ck_assert_str_eq(b.reason, "");
	ck_assert_str_eq(b.version, "CUDA 12.4");
	ck_assert_int_eq(te_device_info("cuda", 0, &d), 0);
	ck_assert_str_eq(d.name, "NVIDIA A100-SXM4-80GB");
	ck_assert_str_eq(d.backend, "cuda");
	ck_assert_int_eq(d.usable, 0);
	ck_assert_str_eq(d.reason, why);
	ck_assert_int_eq(d.cc_major, other_cc[_i].major);
	ck_assert_int_eq(d.cc_minor, other_cc[_i].minor);
	snprintf(want, sizeof(want), "GPU 0, NVIDIA A100-SXM4-80GB: %s", why);
	check_refused(0, -TE_EDEVICE, want);
}

TEST(absent, names_the_missing_device)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	fake.ndevices = 2;
	install();
	check_refused(5, -ENODEV, "te_ctx_create: backend cuda has no device 5, only 2");
	check_refused(2, -ENODEV, "te_ctx_create: backend cuda has no device 2, only 2");
	ck_assert_int_eq(te_device_info("cuda", 2, &d), -EINVAL);
	ck_assert_str_eq(te_error_detail(), "the cuda backend has no device 2: it has 2 devices");
	ck_assert_int_eq(te_device_info("cuda", -1, &d), -EINVAL);
	ck_assert_str_eq(te_error_detail(), "the cuda backend has no device -1: it has 2 devices");
}

TEST(absent, reports_free_memory_and_leaves_no_context)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	fake.ndevices = 2;
	install();
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(te_device_info("cuda", i, &d), 0);
		ck_assert_uint_eq(d.mem_free_nbytes, (uint64_t)60 << 30);
		ck_assert_int_eq(fake.current, 0);
		ck_assert_int_eq(fake.live, 0);
	}
}

TEST(absent, describes_a_gpu_without_a_context)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	fake.exclusive = 1;
	install();
	ck_assert_int_eq(te_device_info("cuda", 0, &d), 0);
	ck_assert_str_eq(d.name, "NVIDIA A100-SXM4-80GB");
	ck_assert_uint_eq(d.mem_free_nbytes, 0);
	ck_assert_int_eq(fake.live, 0);
}

/* creating one is slow, and would be done twice */
TEST(absent, choosing_a_backend_creates_no_context)
{
	struct te_ctx *ctx;

	install();
	ck_assert_int_eq(create("auto", 0, &ctx), 0);
	ck_assert_str_eq(te_ctx_backend(ctx), "host");
	ck_assert_int_eq(fake.ncontexts, 0);
	te_ctx_unref(ctx);
}

/* a Hopper GPU is opened if the build has kernels, else refused */

static void hopper(void)
{
	fake.dev[0] = fake.dev[1];
	install();
}

CASE(open, "host fast", .setup = setup);

TEST(open, opens_a_hopper_gpu_or_reports_missing_kernels)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	struct te_ctx *ctx;

	hopper();
	ck_assert_int_eq(te_device_info("cuda", 0, &d), 0);
	if (!te__kernel_images[0].name) {
		ck_assert_int_eq(d.usable, 0);
		ck_assert_str_eq(d.reason, "this libtecore has no device kernels: "
				 "it was built without nvcc");
		check_refused(0, -TE_EKERNEL, "GPU 0, NVIDIA H100 80GB HBM3: this libtecore has "
			      "no device kernels: it was built without nvcc");
		return;
	}
	ck_assert_int_eq(d.usable, 1);
	ck_assert_str_eq(d.reason, "");
	ck_assert_int_eq(create("auto", 0, &ctx), 0);
	ck_assert_str_eq(te_ctx_backend(ctx), "cuda");
	ck_assert_int_gt(fake.live, 4);
	te_ctx_unref(ctx);
	ck_assert_int_eq(fake.live, 0);
}

/* a CUcontext of the program */

static int create_in(void *native)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx = NULL;
	int r;

	o.backend = "cuda";
	o.native = native;
	te_error_clear();
	r = te_ctx_create(&o, &ctx);
	ck_assert_int_eq(ctx == NULL, r != 0);
	te_ctx_unref(ctx);
	/* it is neither retained nor released, and the current context is as before */
	ck_assert_int_eq(fake.ncontexts, 0);
	ck_assert_int_eq(fake.live, 0);
	ck_assert_int_eq(fake.current, 0);
	return te__kernel_images[0].name || r != -TE_EKERNEL ? r : 0;
}

TEST(open, opens_a_cucontext_of_the_program)
{
	hopper();
	ck_assert_int_eq(create_in(&handle), 0);
}

TEST(open, refuses_a_cucontext_that_it_cannot_use)
{
	hopper();
	fake.ndevices = 2;
	ck_assert_int_eq(create_in(&other_ctx), -EINVAL);
	ck_assert(strstr(te_error_detail(), "is a CUcontext of GPU 1, not of GPU 0") != NULL);
	ck_assert_int_eq(create_in(&gone_ctx), -EINVAL);
	ck_assert(strstr(te_error_detail(), "is no CUcontext that can be used: cuCtxPushCurrent: "
			 "CUDA_ERROR_UNKNOWN") != NULL);
}

static int create_in_handle(void)
{
	return create_in(&handle);
}

static int create_cuda(void)
{
	struct te_ctx *ctx = NULL;
	int r = create("cuda", 0, &ctx);

	ck_assert_int_eq(ctx == NULL, r != 0);
	te_ctx_unref(ctx);
	/* no object of the driver is left */
	ck_assert_int_eq(fake.live, 0);
	return te__kernel_images[0].name || r != -TE_EKERNEL ? r : 0;
}

TEST(open, contexts_of_a_gpu_load_kernels_once)
{
	struct te_ctx *a, *b;
	int loaded;

	hopper();
	if (create("cuda", 0, &a) == -TE_EKERNEL)
		return; /* a build without kernels */
	loaded = fake.nmodules;
	ck_assert_int_gt(loaded, 0);
	ck_assert_int_eq(create("cuda", 0, &b), 0);
	ck_assert_int_eq(fake.nmodules, loaded);
	te_ctx_unref(a);
	ck_assert_int_gt(fake.live, loaded);
	te_ctx_unref(b);
	ck_assert_int_eq(fake.live, 0);
}

/*
 * PTX for 8.0 and 8.9 by kernels/ptx.awk and xz --check=crc32, each text with a NUL at its end; the
 * texts are in the test.
 */
static const uint8_t packed[] = {
	0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00,
	0x21, 0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x00, 0xf9, 0x00,
	0x6f, 0x03, 0x00, 0x17, 0x1e, 0x75, 0xda, 0xcf, 0x32, 0x10, 0xb4, 0x1e, 0x81, 0x5e,
	0x7a, 0xed, 0xcb, 0x94, 0xf7, 0x00, 0x87, 0xb7, 0x65, 0x5d, 0x7f, 0x26, 0x48, 0x21,
	0x49, 0xfe, 0xe0, 0x20, 0x55, 0x1c, 0x47, 0x4b, 0x09, 0x7b, 0xa4, 0x94, 0x84, 0xcc,
	0x76, 0x05, 0x8a, 0x56, 0x93, 0x80, 0xfd, 0x94, 0xe4, 0x78, 0xfe, 0xed, 0x55, 0x90,
	0xe5, 0x6d, 0x1f, 0xd6, 0x11, 0x7f, 0x1f, 0x9e, 0x08, 0xb9, 0xce, 0xbf, 0x54, 0x77,
	0x01, 0x20, 0xb4, 0x7c, 0xfd, 0x15, 0x1f, 0xc0, 0xa0, 0x1a, 0xc1, 0xea, 0x1e, 0xe7,
	0x00, 0xb9, 0xa4, 0x14, 0xb9, 0x61, 0xe3, 0xa6, 0x02, 0x2f, 0x3b, 0x35, 0x3e, 0xae,
	0x3b, 0x72, 0x83, 0x66, 0x5c, 0x52, 0xae, 0xba, 0x7d, 0xc0, 0x74, 0x73, 0x42, 0xa2,
	0x3e, 0x00, 0x00, 0x00, 0xca, 0x57, 0xe8, 0x06, 0x00, 0x01, 0x87, 0x01, 0xfa, 0x01,
	0x00, 0x00, 0xf9, 0x45, 0x99, 0x15, 0x3e, 0x30, 0x0d, 0x8b, 0x02, 0x00, 0x00, 0x00,
	0x00, 0x01, 0x59, 0x5a,
};

static int unpack_ptx(size_t nbytes, const uint8_t *data, size_t cc, struct te__cuda_image *ret)
{
	const struct te__kernel_image image = { "a", data, data + nbytes, cc, cc };

	return te__cuda_image_unpack(&image, ret);
}

TEST(open, unpacks_ptx_and_refuses_what_is_damaged)
{
	static const char *const text = "mov.u32 %r1, %r100;\nadd.s64 %rd70, %rd40, %rd7;\n"
					"bra $L__BB0_7;\n$L__BB0_7:\n$L__BB11_3:\n// %ctaid\n";
	static const char plain[] = "a\n.target sm_80, debug\n%rQ";
	static const size_t level[] = { 80, 89 };
	struct te__cuda_image image;
	uint8_t bad[sizeof(packed)];
	char want[256];
	int r;

	if (unpack_ptx(sizeof(packed), packed, 80, &image) == -TE_EKERNEL)
		return; /* a build without liblzma */
	te__free(image.memory);
	for (size_t i = 0; i < TT_LEN(level); i++) {
		ck_assert_int_eq(unpack_ptx(sizeof(packed), packed, level[i], &image), 0);
		snprintf(want, sizeof(want), ".version 8.0\n.target sm_%zu\n%s", level[i], text);
		ck_assert_str_eq(image.data, want);
		te__free(image.memory);
	}
	ck_assert_int_eq(unpack_ptx(sizeof(packed), packed, 90, &image), -TE_EKERNEL);
	for (size_t i = 0; i < 8 * sizeof(packed); i++) {
		memcpy(bad, packed, sizeof(bad));
		bad[i / 8] ^= (uint8_t)(1u << i % 8);
		r = unpack_ptx(sizeof(bad), bad, 89, &image);
		ck_assert_int_eq(r, -TE_EKERNEL);
	}
	for (size_t n = 0; n < sizeof(packed); n++)
		ck_assert_int_eq(unpack_ptx(n, packed, 89, &image), -TE_EKERNEL);
	/* a text as a build without liblzma has it, first without its NUL */
	ck_assert_int_eq(unpack_ptx(sizeof(plain) - 1, (const uint8_t *)plain, 80, &image),
			 -TE_EKERNEL);
	ck_assert_int_eq(unpack_ptx(sizeof(plain), (const uint8_t *)plain, 80, &image), 0);
	ck_assert_str_eq(image.data, "a\n.target sm_80, debug\n%r1");
	te__free(image.memory);
}

/* without kernels the last run is the one in which the device is refused */
TEST(open, opening_handles_each_failing_driver_call)
{
	static const struct te__kernel_image few[] = {
		{ "a", packed, packed + sizeof(packed), 90, 0 },
		{ "b", packed, packed + sizeof(packed), 90, 0 },
		{ "c", packed, packed + sizeof(packed), 80, 0 },
		{ NULL, NULL, NULL, 0, 0 },
	};

	hopper();
	te__cuda_images_fake(few); /* unpacking all takes too long for each fault */
	ck_assert_int_gt(tt_fault_each(create_cuda), te__kernel_images[0].name ? 20 : 4);
	fake.ncontexts = 0; /* those were retained */
	ck_assert_int_gt(tt_fault_each(create_in_handle), te__kernel_images[0].name ? 20 : 6);
}

/* by the local rank, which launchers put into the environment */
TEST_EACH(absent, a_launcher_gives_each_rank_a_device, 3)
{
	static const char *const launcher[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
						"MPI_LOCALRANKID" };

	fake.dev[0] = fake.dev[1];
	fake.ndevices = 2;
	install();
	ck_assert_int_eq(te_comm_launch_device("cuda"), 0);
	setenv(launcher[_i], "5", 1);
	ck_assert_int_eq(te_comm_launch_device("cuda"), 1);
	ck_assert_int_eq(te_comm_launch_device(NULL), 1);
	ck_assert_int_eq(te_comm_launch_device("host"), 0);
	setenv(launcher[_i], "4", 1);
	ck_assert_int_eq(te_comm_launch_device("auto"), 0);
	/* te_run's is the nearest launcher */
	setenv("TE_COMM_DIR", "/nowhere", 1);
	ck_assert_int_eq(te_comm_launch_device("cuda"), 1);
}

TT_SUITE("backend/cuda_driver", TT_NEED_NOTHING)
{
	setenv("TE_COMM_RANK", "3", 1); /* before a parameter is used */
}
