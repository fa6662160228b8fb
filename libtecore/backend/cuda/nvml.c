/*
 * nvml.c - the NVLink domain of a GPU, from the management library (libnvidia-ml). The constants
 * are from nvml.h, drivers 535 and later.
 */
#define TE_LOG_CATEGORY "core/cuda"
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/nvml.h"

static struct te__nvml nvml;
static const struct te__dl_sym sym[] = {
	{ "nvmlInit_v2", offsetof(struct te__nvml, init) },
	{ "nvmlShutdown", offsetof(struct te__nvml, shutdown) },
	{ "nvmlErrorString", offsetof(struct te__nvml, error_string) },
	{ "nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct te__nvml, device) },
	{ "nvmlDeviceGetGpuFabricInfo", offsetof(struct te__nvml, fabric) },
};
static struct te__dl dl = TE__DL(sym, &nvml, "libnvidia-ml.so.1");

void te__nvml_fake(const struct te__nvml *fake)
{
	nvml = *fake;
	dl.opened = 1;
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

int te__nvml_domain(const struct te__cuda_dev *d, struct te__fabric_domain *ret_domain)
{
	const char *missing = te__dl_open(&dl);
	struct te__nvml_fabric f;
	char address[32];
	void *dev;
	int r;

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
	memset(ret_domain, 0, sizeof(*ret_domain));
	memcpy(ret_domain->id, f.cluster, sizeof(f.cluster));
	memcpy(ret_domain->id + sizeof(f.cluster), &f.clique, sizeof(f.clique));
out:
	nvml.shutdown();
	return r;
}
