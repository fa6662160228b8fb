/*
 * micro.c - see micro.h. Vectors of the compiler. On x86-64 there are three widths: each call
 * chooses the one of the processor's registers. Elsewhere vectors have 128 bits, as in NEON.
 */
#include "config.h"

#include "kernels/micro.h"
#include "kernels/simd.h"

/* sums here are not specified to the bit, so that multiplications and additions may be fused */
#ifdef __clang__
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "fp-contract=fast")
#endif

#define MR TE__H_MR
#define NR TE__H_NR

/*
 * R rows times V vectors of W floats are accumulated in registers. tri: 0, or the triangle with
 * j <= r (1) or j >= r (2) of n = MR terms.
 */
#define MICRO(name, tgt, W, R, V)                                                                  \
	typedef float name##_v __attribute__((vector_size(4 * W), aligned(4), may_alias));         \
	tgt static inline __attribute__((always_inline)) void name##_body(                         \
		int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs,  \
		int add, int tri)                                                                  \
	{                                                                                          \
		for (int r0 = 0; r0 < MR; r0 += R)                                                 \
			for (int c0 = 0; c0 < NR; c0 += V * W) {                                   \
				const float *pa = a.p + r0 * a.rs, *pb = b + c0;                   \
				float *pc = c + r0 * cs + c0;                                      \
				name##_v acc[R][V];                                                \
                                                                                                   \
				for (int r = 0; r < R; r++)                                        \
					for (int v = 0; v < V; v++)                                \
						acc[r][v] =                                        \
							add ? *(name##_v *)(pc + r * cs + v * W) : \
							      (name##_v){ 0 };                     \
				for (int64_t j = 0; j < n; j++, pa += a.cs, pb += bs) {            \
					name##_v y[V];                                             \
                                                                                                   \
					for (int v = 0; v < V; v++)                                \
						y[v] = *(const name##_v *)(pb + v * W);            \
					for (int r = 0; r < R; r++) {                              \
						const float x = pa[r * a.rs];                      \
                                                                                                   \
						if ((tri == 1 && j > r0 + r) ||                    \
						    (tri == 2 && j < r0 + r))                      \
							continue;                                  \
						for (int v = 0; v < V; v++)                        \
							acc[r][v] += x * y[v];                     \
					}                                                          \
				}                                                                  \
				for (int r = 0; r < R; r++)                                        \
					for (int v = 0; v < V; v++)                                \
						*(name##_v *)(pc + r * cs + v * W) = acc[r][v];    \
			}                                                                          \
	}                                                                                          \
	tgt static void name(int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, \
			     int64_t cs, int add)                                                  \
	{                                                                                          \
		if (add)                                                                           \
			name##_body(n, a, b, bs, c, cs, 1, 0);                                     \
		else                                                                               \
			name##_body(n, a, b, bs, c, cs, 0, 0);                                     \
	}                                                                                          \
	tgt static void name##_lower(struct te__h_rows a, const float *b, int64_t bs, float *c,    \
				     int64_t cs)                                                   \
	{                                                                                          \
		name##_body(MR, a, b, bs, c, cs, 1, 1);                                            \
	}                                                                                          \
	tgt static void name##_upper(struct te__h_rows a, const float *b, int64_t bs, float *c,    \
				     int64_t cs)                                                   \
	{                                                                                          \
		name##_body(MR, a, b, bs, c, cs, 1, 2);                                            \
	}

#ifdef __aarch64__
/* 16 sums in 32 registers: they occupy four vector units that take four cycles for an addition */
MICRO(micro_any, , 4, 4, 4)
#else
MICRO(micro_any, , 4, 4, 2)
#endif

#ifdef HAVE_TARGET_AVX512
MICRO(micro_avx512, __attribute__((target("avx512f"))), 16, 8, 2)
MICRO(micro_avx2, __attribute__((target("avx2,fma"))), 8, 4, 2)
MICRO(micro_fma, __attribute__((target("fma"))), 4, 4, 2)
/* TE_HOST_SIMD changes no bit: a processor that has FMA uses it at every level */
#define VERSIONS(fn, ...)                              \
	do {                                           \
		if (!__builtin_cpu_supports("fma"))    \
			micro_any##fn(__VA_ARGS__);    \
		else if (te__simd() == TE__SIMD_NONE)  \
			micro_fma##fn(__VA_ARGS__);    \
		else if (te__simd() == TE__SIMD_AVX2)  \
			micro_avx2##fn(__VA_ARGS__);   \
		else                                   \
			micro_avx512##fn(__VA_ARGS__); \
	} while (0)
#else
#define VERSIONS(fn, ...) micro_any##fn(__VA_ARGS__)
#endif

void te__h_micro(int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs,
		 int add)
{
	VERSIONS(, n, a, b, bs, c, cs, add);
}

void te__h_micro_lower(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs)
{
	VERSIONS(_lower, a, b, bs, c, cs);
}

void te__h_micro_upper(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs)
{
	VERSIONS(_upper, a, b, bs, c, cs);
}

/* ---- transposition ---- */

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
#ifdef __clang__
#define MIX(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
typedef int32_t v4i __attribute__((vector_size(16)));
#define MIX(x, y, a, b, c, d) __builtin_shuffle(x, y, (v4i){ a, b, c, d })
#endif

/* 4 rows of 4 */
static inline void transpose4(const float *from, int64_t fs, float *to)
{
	const v4 r0 = *(const v4 *)from, r1 = *(const v4 *)(from + fs);
	const v4 r2 = *(const v4 *)(from + 2 * fs), r3 = *(const v4 *)(from + 3 * fs);
	const v4 a = MIX(r0, r1, 0, 4, 1, 5), b = MIX(r0, r1, 2, 6, 3, 7);
	const v4 c = MIX(r2, r3, 0, 4, 1, 5), d = MIX(r2, r3, 2, 6, 3, 7);

	*(v4 *)to = MIX(a, c, 0, 1, 4, 5);
	*(v4 *)(to + NR) = MIX(a, c, 2, 3, 6, 7);
	*(v4 *)(to + 2 * NR) = MIX(b, d, 0, 1, 4, 5);
	*(v4 *)(to + 3 * NR) = MIX(b, d, 2, 3, 6, 7);
}

void te__h_pack(int64_t n, const float *from, int64_t fs, float *to)
{
	int64_t k = 0;

	for (; k + 4 <= n; k += 4)
		for (int r = 0; r < NR; r += 4)
			transpose4(from + r * fs + k, fs, to + k * NR + r);
	for (; k < n; k++)
		for (int r = 0; r < NR; r++)
			to[k * NR + r] = from[r * fs + k];
}
