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

struct te__cuda_multicast te__cu_multicast;
static te__cuda_get_proc_fn *resolver; /* from the driver, or NULL */

struct sym {
	const char *name;
	int version;
	size_t offset;
};

static const struct sym sym[] = {
#define TE__CU(name, version, args) \
	{ #name, version, offsetof(struct te__cuda_driver, name) },
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
};

static const struct sym multicast_sym[] = {
#define TE__CU(name, version, args) \
	{ #name, version, offsetof(struct te__cuda_multicast, name) },
#include "libtecore/backend/cuda/multicast.def"
#undef TE__CU
};

/* NULL, or the first function that the driver does not have */
static const struct sym *resolve_all(te__cuda_get_proc_fn *get_proc, const struct sym *s, size_t n,
				     void *table)
{
	for (; n--; s++) {
		void *fn = NULL;
		int status = 0;

		if (get_proc(s->name, &fn, s->version, 0, &status) || !fn)
			return s;
		memcpy((char *)table + s->offset, &fn, sizeof(fn));
	}
	return NULL;
}

static int resolve(te__cuda_get_proc_fn *get_proc)
{
	const struct sym *s =
		resolve_all(get_proc, sym, sizeof(sym) / sizeof(sym[0]), &te__cu);

	if (!s)
		return 0;
	snprintf(reason, sizeof(reason),
		 "the NVIDIA driver has no %s of CUDA %d.%d: install driver 550 or later", s->name,
		 s->version / 1000, s->version % 1000 / 10);
	return -ENODEV;
}

int te__cuda_multicast_load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const struct sym *missing = multicast_sym;
	int r = te__multicast_check();

	if (r)
		return r;
	pthread_mutex_lock(&lock);
	if (te__cu_multicast.cuMulticastUnbind) /* the last one */
		missing = NULL;
	else if (resolver)
		missing = resolve_all(resolver, multicast_sym,
				      sizeof(multicast_sym) / sizeof(multicast_sym[0]),
				      &te__cu_multicast);
	pthread_mutex_unlock(&lock);
	return missing ? te__fail(-EOPNOTSUPP, "the NVIDIA driver has no %s", missing->name) : 0;
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
	resolver = get_proc;
	memset(&te__cu_multicast, 0, sizeof(te__cu_multicast));
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

int te__cuda_capture_check(int result, const char *call)
{
	switch (result) {
	case TE__CU_ERROR_CAPTURE_INVALIDATED:
	case TE__CU_ERROR_CAPTURE_MERGE:
	case TE__CU_ERROR_CAPTURE_UNJOINED:
	case TE__CU_ERROR_CAPTURE_ISOLATION:
	case TE__CU_ERROR_CAPTURED_EVENT:
		return te__fail(-TE_ESTATE, "%s: %s", call, te__cuda_error_name(result));
	default:
		return te__cuda_check(result, call);
	}
}
