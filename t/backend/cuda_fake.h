/*
 * t/backend/cuda_fake.h - a driver for tests: neither libcuda nor a GPU is needed. It has the
 * functions fake_cuX() that the program defines. Without one, cuInit, cuGetErrorName and the
 * choice of a context succeed, and other functions fail.
 */
#ifndef CUDA_FAKE_H
#define CUDA_FAKE_H

#include <string.h>

#include "libtecore/backend/cuda/driver.h"

#define FAKE_UNKNOWN 999

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TE__CU(name, version, args)                \
	int fake_##name args __attribute__((weak)); \
	static int no_##name args                  \
	{                                          \
		return FAKE_UNKNOWN;               \
	}
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU

static int works_cuInit(unsigned flags)
{
	return 0;
}

static int works_cuGetErrorName(int result, const char **ret_name)
{
	*ret_name = "CUDA_ERROR_FAKE";
	return 0;
}

static int works_cuCtxPushCurrent(void *ctx)
{
	return 0;
}

static int works_cuCtxPopCurrent(void **ret_ctx)
{
	*ret_ctx = NULL;
	return 0;
}

static int works_cuThreadExchangeStreamCaptureMode(int *mode)
{
	return 0;
}
#pragma GCC diagnostic pop

static inline struct te__cuda_driver fake_driver(void)
{
	struct te__cuda_driver d = {
#define TE__CU(name, version, args) .name = fake_##name ? fake_##name : no_##name,
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
	};

#define WORKS(name) d.name = fake_##name ? fake_##name : works_##name
	WORKS(cuInit);
	WORKS(cuGetErrorName);
	WORKS(cuCtxPushCurrent);
	WORKS(cuCtxPopCurrent);
	WORKS(cuThreadExchangeStreamCaptureMode);
#undef WORKS
	return d;
}

/* the function of that name and version; NULL: it is in no row */
static inline void *fake_proc(const char *symbol, int version)
{
	static const struct {
		const char *name;
		int version;
		size_t offset;
	} row[] = {
#define TE__CU(name, version, args) { #name, version, offsetof(struct te__cuda_driver, name) },
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
	};
	const struct te__cuda_driver d = fake_driver();
	void *fn = NULL;

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (!strcmp(row[i].name, symbol) && row[i].version == version)
			memcpy(&fn, (const char *)&d + row[i].offset, sizeof(fn));
	return fn;
}

#endif
