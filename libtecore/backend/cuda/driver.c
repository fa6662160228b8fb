/* driver.c - opens libcuda and fills the table of its functions. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/driver.h"
#include "libtecore/base/base.h"

struct te__cuda_driver te__cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int loaded; /* 0, or -ENODEV with the reason */
static char reason[256];

static const struct {
	const char *name;
	int version;
	size_t offset;
} sym[] = {
#define TE__CU(name, version, args) \
	{ #name, version, offsetof(struct te__cuda_driver, name) },
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
};

static int resolve(te__cuda_get_proc_fn *get_proc)
{
	for (size_t i = 0; i < sizeof(sym) / sizeof(sym[0]); i++) {
		void *fn = NULL;
		int status = 0;

		if (get_proc(sym[i].name, &fn, sym[i].version, 0, &status) || !fn) {
			snprintf(reason, sizeof(reason),
				 "the NVIDIA driver has no %s of CUDA %d.%d: "
				 "install driver 550 or later",
				 sym[i].name, sym[i].version / 1000, sym[i].version % 1000 / 10);
			return -ENODEV;
		}
		memcpy((char *)&te__cu + sym[i].offset, &fn, sizeof(fn));
	}
	return 0;
}

static int init(void)
{
	int r = te__cu.cuInit(0);

	if (!r)
		return 0;
	if (r == TE__CU_ERROR_NO_DEVICE)
		snprintf(reason, sizeof(reason), "cuInit: the driver sees no GPU");
	else
		snprintf(reason, sizeof(reason), "cuInit: %s", te__cuda_error_name(r));
	return -ENODEV;
}

static int bind(int found, te__cuda_get_proc_fn *get_proc)
{
	int r = -ENODEV;

	reason[0] = '\0';
	if (!found)
		snprintf(reason, sizeof(reason),
			 "libcuda.so.1 is not found: no NVIDIA driver is installed");
	else if (!get_proc)
		snprintf(reason, sizeof(reason),
			 "the NVIDIA driver has no cuGetProcAddress of CUDA 12.0: "
			 "install driver 550 or later");
	else
		r = resolve(get_proc);
	return r ? r : init();
}

static void load(void)
{
	te__cuda_get_proc_fn *get_proc = NULL;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	/* _v2: CUDA 12.0 and later */
	if (lib)
		*(void **)&get_proc = dlsym(lib, "cuGetProcAddress_v2");
	loaded = bind(lib != NULL, get_proc);
	/* never closed: the driver has threads and handlers that remain in use */
}

int te__cuda_driver_load(const char **ret_reason)
{
	pthread_once(&once, load);
	*ret_reason = reason;
	return loaded;
}

static void load_nothing(void)
{
}

void te__cuda_driver_fake(const struct te__cuda_driver *fake)
{
	pthread_once(&once, load_nothing);
	te__cu = *fake;
	reason[0] = '\0';
	loaded = init();
}

void te__cuda_driver_fake_lib(int found, te__cuda_get_proc_fn *get_proc)
{
	pthread_once(&once, load_nothing);
	loaded = bind(found, get_proc);
}

const char *te__cuda_error_name(int result)
{
	const char *name;

	if (te__cu.cuGetErrorName(result, &name))
		return "an unknown error";
	return name;
}

int te__cuda_check(int result, const char *call)
{
	if (!result)
		return 0;
	return te__fail_cuda(result, "%s: %s", call, te__cuda_error_name(result));
}
