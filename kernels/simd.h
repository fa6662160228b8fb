/*
 * simd.h - functions compiled for several instruction sets; a call uses the widest one that the
 * processor has.
 *
 *	TE__SIMD_BODY void scale_body(float *v, float by, int64_t n)
 *	{
 *		for (int64_t i = 0; i < n; i++)
 *			v[i] *= by;
 *	}
 *	static TE__SIMD(void, scale, (float *v, float by, int64_t n), (v, by, n))
 *
 * defines scale(). The body is plain C in loops that compilers vectorize. All versions give the
 * same bits: nothing is contracted (configure.ac) and no sum is reordered, so a sum that is to be
 * vectorized adds in lanes, which are part of its definition. A version is called directly and
 * not through an ifunc, so that it works with every libc and sanitizer, and TE_HOST_SIMD can
 * select it. On processors other than x86-64 there is one version, for arm64 with NEON.
 */
#ifndef TE__SIMD_H
#define TE__SIMD_H

/*
 * Vectorize at -O2 too. This precedes all inline functions, which would not be inlined into
 * functions with another level.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include <stdatomic.h>

/* the choices of TE_HOST_SIMD after the first, auto */
enum te__simd { TE__SIMD_NONE, TE__SIMD_AVX2, TE__SIMD_AVX512 };

extern _Atomic int te__simd_known; /* 0, or the level that was chosen, and 1 */
enum te__simd te__simd_choose(void);

/* level that calls use; constant in a process */
static inline enum te__simd te__simd(void)
{
	const int known = atomic_load_explicit(&te__simd_known, memory_order_relaxed);

	return known ? (enum te__simd)(known - 1) : te__simd_choose();
}

#define TE__SIMD_BODY static inline __attribute__((always_inline))

#ifdef HAVE_TARGET_AVX512
/* the first declaration gives name its linkage: static TE__SIMD(...) defines a static function */
#define TE__SIMD(ret, name, params, args)                                                       \
	ret name params;                                                                        \
	__attribute__((target("avx2"))) static ret name##_avx2 params                           \
	{                                                                                       \
		return name##_body args;                                                        \
	}                                                                                       \
	__attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl"))) static ret           \
		name##_avx512 params                                                            \
	{                                                                                       \
		return name##_body args;                                                        \
	}                                                                                       \
	ret name params                                                                         \
	{                                                                                       \
		switch (te__simd()) {                                                           \
		case TE__SIMD_AVX512:                                                           \
			return name##_avx512 args;                                              \
		case TE__SIMD_AVX2:                                                             \
			return name##_avx2 args;                                                \
		default:                                                                        \
			return name##_body args;                                                \
		}                                                                               \
	}
#else
#define TE__SIMD(ret, name, params, args)                                                       \
	ret name params                                                                         \
	{                                                                                       \
		return name##_body args;                                                        \
	}
#endif

#endif
