/* device.c - the machine as a device: its description and its memory. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libtecore/backend/host/host.h"

#define MEM_ALIGN 256u

static int read_proc(const char *file, const char *key, char *ret, size_t nbytes)
{
	char line[256];
	FILE *f = fopen(file, "r");
	int found = 0;

	if (!f)
		return 0;
	while (!found && fgets(line, sizeof(line), f)) {
		char *s = strchr(line, ':');

		if (!s || strncmp(line, key, strlen(key)))
			continue;
		s++;
		s += strspn(s, " \t");
		s[strcspn(s, "\n")] = '\0';
		snprintf(ret, nbytes, "%s", s);
		found = 1;
	}
	fclose(f);
	return found;
}

static uint64_t machine_nbytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t machine_free_nbytes(void)
{
	const uint64_t group = te__cgroup_free(CGROUP_ROOT, CGROUP_MEMBERSHIP);
	uint64_t left = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char text[64];
	unsigned long long kib;

	if (read_proc("/proc/meminfo", "MemAvailable", text, sizeof(text)) &&
	    sscanf(text, "%llu", &kib) == 1)
		left = (uint64_t)kib * 1024;
	return left < group ? left : group;
}

int host_probe(struct te_backend_info *ret)
{
	if (host_fault("probe"))
		return -ENOMEM;
	ret->ndevices = 1;
	return 0;
}

int host_device_info(int index, struct te_device_info *ret)
{
	if (host_fault("device_info"))
		return -ENOMEM;
	if (index != 0)
		return te__fail(-EINVAL, "host: there is no device %d, only 0", index);
	ret->mem_total_nbytes = machine_nbytes();
	if (!read_proc("/proc/cpuinfo", "model name", ret->name, sizeof(ret->name)))
		snprintf(ret->name, sizeof(ret->name), "CPU");
	ret->usable = 1;
	ret->nprocs = (int32_t)host_ncores();
#ifdef _SC_LEVEL2_CACHE_SIZE
	if (sysconf(_SC_LEVEL2_CACHE_SIZE) > 0)
		ret->l2_nbytes = (uint64_t)sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
	return 0;
}

int host_free_nbytes(int index, uint64_t *ret_nbytes)
{
	if (host_fault("free_nbytes"))
		return -ENOMEM;
	if (index != 0)
		return te__fail(-EINVAL, "host: there is no device %d, only 0", index);
	*ret_nbytes = machine_free_nbytes();
	return 0;
}

int host_open(const struct te__open *how, void **ret_dev)
{
	const int64_t nthreads = te__param_int(TE_PARAM_HOST_THREADS);
	struct host_dev *dev;

	if (host_fault("open"))
		return -ENOMEM;
	if (how->device != 0)
		return te__fail(-ENODEV, "host: there is no device %d, only 0", how->device);
	if (how->native)
		return te__fail(-EOPNOTSUPP, "host: native %p: this backend has no CUcontext",
				how->native);
	if (nthreads < 0 || nthreads > HOST_THREADS_MAX)
		return te__fail(-EINVAL, "host: TE_HOST_THREADS=%lld in the environment: expected "
				"0 to %d", (long long)nthreads, HOST_THREADS_MAX);
	dev = te__calloc(1, sizeof(*dev));
	if (!dev)
		return te__fail(-ENOMEM, "host: no memory for a device");
	te__devmem_init(&dev->mem, how->limit_nbytes, how->alloc);
	if (dev->mem.limit_nbytes > machine_nbytes()) {
		dev->mem.limit_nbytes = machine_nbytes();
		dev->mem.limit_name = "the memory of the machine";
	}
	dev->poison = te__param_bool(TE_PARAM_HOST_POISON);
	dev->shuffle = (uint64_t)te__param_int(TE_PARAM_HOST_SHUFFLE);
	host_pool_place(dev);
	if (host_pool_init(dev)) {
		te__free(dev);
		return -ENOMEM;
	}
	dev->pool.help_nodes = host_replay_help;
	dev->pool.wake_nodes = host_replay_wake;
	*ret_dev = dev;
	return 0;
}

void host_close(void *dev)
{
	host_pool_destroy(dev);
	te__free(dev);
}

int host_dev_mem(void *dev, uint64_t *ret_free, uint64_t *ret_total)
{
	struct host_dev *d = dev;

	if (host_fault("dev_mem"))
		return -ENOMEM;
	*ret_free = machine_free_nbytes();
	*ret_total = machine_nbytes();
	te__devmem_clamp(&d->mem, ret_free, ret_total);
	return 0;
}

int host_mem_held(void *dev, struct te__mem_held *ret)
{
	struct host_dev *d = dev;

	if (host_fault("mem_held"))
		return -ENOMEM;
	ret->used_nbytes = atomic_load(&d->mem.used_nbytes);
	ret->peak_nbytes = atomic_load(&d->mem.peak_nbytes);
	ret->workspace_nbytes = 0;
	return 0;
}

static int take(struct host_dev *dev, size_t nbytes, void **ret_ptr)
{
	if (dev->mem.alloc.device_alloc)
		return te__devmem_device_alloc(&dev->mem, nbytes, NULL, ret_ptr);
	*ret_ptr = te__aligned_alloc(MEM_ALIGN, nbytes);
	return *ret_ptr ? 0 :
			  te__fail(-ENOMEM, "host: cannot allocate %zu bytes: %llu are free",
				   nbytes, (unsigned long long)machine_free_nbytes());
}

int host_mem_alloc(void *stream, size_t nbytes, void **ret_ptr)
{
	struct host_stream *s = stream;
	struct host_dev *dev = s->dev;
	void *ptr;
	int r;

	if (host_fault("mem_alloc"))
		return -ENOMEM;
	r = host_not_capturing(s, "allocate device memory");
	if (!r)
		r = host_sticky(s);
	if (r)
		return r;
	if (!te__devmem_take(&dev->mem, nbytes)) {
		/* the stream may have frees queued: wait for them and try again */
		r = te__backend_host.stream_sync(s);
		if (r)
			return r;
		if (!te__devmem_take(&dev->mem, nbytes))
			return te__devmem_full(&dev->mem, nbytes);
	}
	r = take(dev, nbytes, &ptr);
	if (r) {
		te__devmem_give(&dev->mem, nbytes);
		return r;
	}
	if (dev->poison)
		memset(ptr, 0xff, nbytes);
	*ret_ptr = ptr;
	return 0;
}

static void release(struct host_dev *dev, void *ptr, size_t nbytes)
{
	const struct te_alloc_ops *a = &dev->mem.alloc;

	te__devmem_give(&dev->mem, nbytes);
	if (a->device_free)
		a->device_free(a->user, ptr, nbytes, NULL);
	else
		te__free(ptr);
}

static int run_free(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	(void)pos;
	(void)failed;
	release(s->dev, cmd->op.dst, cmd->op.nbytes);
	return 0;
}

int host_mem_free(void *stream, void *ptr, size_t nbytes)
{
	const struct host_op op = {
		.kind = HOST_FREE, .run = run_free, .dst = ptr, .nbytes = nbytes,
	};
	int r = host_not_capturing(stream, "free device memory");

	return r ? r : host_push(stream, &op, NULL, 0, NULL);
}

/* copies are made by threads, so any host memory is as good as pinned memory */
int host_pinned_alloc(void *dev, size_t nbytes, void **ret_ptr)
{
	struct host_dev *d = dev;
	void *p;

	if (host_fault("pinned_alloc"))
		return -ENOMEM;
	if (d->mem.alloc.pinned_alloc)
		return te__devmem_pinned_alloc(&d->mem, nbytes, ret_ptr);
	p = te__aligned_alloc(4096, nbytes);
	if (!p)
		return te__fail(-ENOMEM, "host: cannot allocate %zu bytes of pinned memory",
				nbytes);
	*ret_ptr = p;
	return 0;
}

int host_pinned_free(void *dev, void *ptr, size_t nbytes)
{
	const struct te_alloc_ops *a = &((struct host_dev *)dev)->mem.alloc;

	if (a->pinned_free)
		a->pinned_free(a->user, ptr, nbytes);
	else
		te__free(ptr);
	return 0;
}
