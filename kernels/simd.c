/* simd.c - choice of the instruction set of functions, see simd.h. */
#include "config.h"

#include "kernels/simd.h"
#include "libtecore/base/base.h"

_Atomic int te__simd_known;

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

static enum te__simd choose(void)
{
	const enum te__simd level = widest();
	const int most = te__param_enum(TE_PARAM_HOST_SIMD) - 1; /* below 0: auto */

	return most >= 0 && most < (int)level ? (enum te__simd)most : level;
}

/* every thread chooses the same */
enum te__simd te__simd_choose(void)
{
	const enum te__simd level = choose();

	atomic_store_explicit(&te__simd_known, (int)level + 1, memory_order_relaxed);
	return level;
}
