/* simd.c - which version of a function calls take, see simd.h. */
#include "config.h"

#include <stdatomic.h>

#include "kernels/simd.h"
#include "libtecore/base/base.h"

static _Atomic int known; /* a level + 1 */

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

enum te__simd te__simd(void)
{
	int level = atomic_load_explicit(&known, memory_order_relaxed);

	if (!level) { /* every thread chooses the same */
		level = (int)choose() + 1;
		atomic_store_explicit(&known, level, memory_order_relaxed);
	}
	return (enum te__simd)(level - 1);
}
