/* simd.c - which version of a function calls take, see simd.h. */
#include "config.h"

#include <pthread.h>

#include "kernels/simd.h"
#include "libtecore/base/base.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum te__simd level;

static enum te__simd widest(void)
{
#ifdef HAVE_TARGET_AVX512
	if (!__builtin_cpu_supports("avx2"))
		return TE__SIMD_NONE;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
	    !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
		return TE__SIMD_AVX2;
	return TE__SIMD_AVX512;
#else
	return TE__SIMD_NONE;
#endif
}

static void init(void)
{
	const int most = te__param_enum(TE_PARAM_HOST_SIMD) - 1; /* below 0: auto */

	level = widest();
	if (most >= 0 && most < (int)level)
		level = (enum te__simd)most;
}

enum te__simd te__simd(void)
{
	pthread_once(&once, init);
	return level;
}
