/*
 * nvml.c - which NVLink domain a GPU is in, as the management library (libnvidia-ml) knows it. The
 * constants are those of nvml.h, drivers 535 and later.
 */
#define TE_LOG_CATEGORY "core/cuda"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/nvml.h"

static struct te__nvml nvml;
static const char *missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	static const struct {
		const char *name;
		size_t at;
	} fn[] = {
		{ "nvmlInit_v2", offsetof(struct te__nvml, init) },
		{ "nvmlShutdown", offsetof(struct te__nvml, shutdown) },
		{ "nvmlErrorString", offsetof(struct te__nvml, error_string) },
		{ "nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct te__nvml, device) },
		{ "nvmlDeviceGetGpuFabricInfo", offsetof(struct te__nvml, fabric) },
	};
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		missing = "libnvidia-ml.so.1";
	for (size_t i = 0; lib && i < sizeof(fn) / sizeof(fn[0]); i++) {
		void *p = dlsym(lib, fn[i].name);

		memcpy((char *)&nvml + fn[i].at, &p, sizeof(p));
		if (!p)
			missing = fn[i].name;
	}
	/* never closed: te_info probes each device */
}

static void load_nothing(void)
{
}

void te__nvml_fake(const struct te__nvml *fake)
{
	pthread_once(&once, load_nothing);
	nvml = *fake;
}

static int failed(const char *call, int code)
{
	return te__fail(-EOPNOTSUPP, "no fabric handles: %s: %s", call, nvml.error_string(code));
}

static int check(const struct te__cuda_dev *d, const struct te__nvml_fabric *f)
{
	static const unsigned char none[sizeof(f->cluster)];

	if (f->state == TE__NVML_FABRIC_NOT_SUPPORTED)
		return te__fail(-EOPNOTSUPP, "no fabric handles: GPU %d, %s, is in no NVLink "
				"domain", d->index, d->name);
	if (f->state != TE__NVML_FABRIC_COMPLETED)
		return te__fail(-EOPNOTSUPP, "no fabric handles: GPU %d, %s, has not joined its "
				"NVLink domain: the fabric manager has not started or not ended "
				"that", d->index, d->name);
	if (f->status)
		return te__fail(-EOPNOTSUPP, "no fabric handles: GPU %d, %s, has failed to join "
				"its NVLink domain: %s", d->index, d->name,
				nvml.error_string(f->status));
	if (!memcmp(f->cluster, none, sizeof(none)))
		return te__fail(-EOPNOTSUPP, "no fabric handles: the NVLink domain of GPU %d, %s, "
				"is of this node only: its cluster UUID is 0", d->index, d->name);
	return 0;
}

int te__nvml_domain(const struct te__cuda_dev *d)
{
	struct te__nvml_fabric f;
	char address[32];
	void *dev;
	int r;

	pthread_once(&once, load);
	if (missing)
		return te__fail(-EOPNOTSUPP, "no fabric handles: there is no %s, which tells the "
				"NVLink domain of a GPU", missing);
	r = TE__CU_CALL(cuDeviceGetPCIBusId, address, (int)sizeof(address), d->dev);
	if (r)
		return r;
	r = nvml.init();
	if (r)
		return failed("nvmlInit", r);
	r = nvml.device(address, &dev);
	if (r) {
		r = failed("nvmlDeviceGetHandleByPciBusId", r);
		goto out;
	}
	memset(&f, 0, sizeof(f));
	r = nvml.fabric(dev, &f);
	r = r ? failed("nvmlDeviceGetGpuFabricInfo", r) : check(d, &f);
out:
	nvml.shutdown();
	return r;
}
