/*
 * t/backend/cuda_fake.h - a driver whose functions all fail, except cuInit and cuGetErrorName, for
 * tests that replace some of them: neither libcuda nor a GPU is needed.
 */
#ifndef CUDA_FAKE_H
#define CUDA_FAKE_H

#include "libtecore/backend/cuda/driver.h"

#define FAKE_UNKNOWN 999

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TE__CU(name, version, args)  \
	static int no_##name args    \
	{                            \
		return FAKE_UNKNOWN; \
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
#pragma GCC diagnostic pop

static inline struct te__cuda_driver fake_driver(void)
{
	struct te__cuda_driver d = {
#define TE__CU(name, version, args) .name = no_##name,
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
	};

	d.cuInit = works_cuInit;
	d.cuGetErrorName = works_cuGetErrorName;
	return d;
}

#endif
