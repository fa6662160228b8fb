/*
 * t/backend/cuda_fake.h - a driver whose functions all fail, for tests that replace some of
 * them: neither libcuda nor a GPU is needed.
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
#pragma GCC diagnostic pop

static inline struct te__cuda_driver fake_driver(void)
{
	return (struct te__cuda_driver){
#define TE__CU(name, version, args) .name = no_##name,
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
	};
}

#endif
