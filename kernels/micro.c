/*
 * micro.c - see micro.h. Vectors of the compiler. On x86-64 there are three widths: each call
 * chooses the one of the processor's registers. Elsewhere vectors have 128 bits, as in NEON.
 */
#include "config.h"

#ifdef HAVE_TARGET_AVX512
#include <immintrin.h>
#endif
#include <string.h>

#include <te/dtype.h>

#include "kernels/micro.h"
#include "kernels/simd.h"
#include "kernels/te_k.h"
#include "libtecore/base/dtype_inline.h"

/* sums here are not specified to the bit, so that multiplications and additions may be fused */
#ifdef __clang__
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "fp-contract=fast")
#endif

#define MR TE__H_MR
#define NR TE__H_NR
/* terms of a sum that are packed at a time, of codes more: whole vectors; and bytes of a row from
 * them to those fetched */
#define DEPTH 32
#define DEPTH_CODES 64
#define AHEAD 256

/* ---- transposition ---- */

/*
 * W rows of W words become columns, in stages: words, then pairs, then groups of four words (even,
 * odd) change places between two rows. Words are FP32, or two BF16 or four E4M3, of which the
 * first is the lowest.
 */
#define LOW_4 0, 4, 1, 5
#define HIGH_4 2, 6, 3, 7
#define LOW2_4 0, 1, 4, 5
#define HIGH2_4 2, 3, 6, 7
#define EVEN_4 LOW_4 /* not used: a vector of 4 words has one group */
#define ODD_4 HIGH_4
#define LOW_8 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_8 2, 10, 3, 11, 6, 14, 7, 15
#define LOW2_8 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH2_8 2, 3, 10, 11, 6, 7, 14, 15
#define EVEN_8 0, 1, 2, 3, 8, 9, 10, 11
#define ODD_8 4, 5, 6, 7, 12, 13, 14, 15
#define LOW_16 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_16 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW2_16 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH2_16 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define EVEN_16 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define ODD_16 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31

#ifdef __clang__
#define MIX(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define MIX(x, y, ...) __builtin_shuffle(x, y, (__typeof__(x)){ __VA_ARGS__ })
#endif
#define MIX_ROWS(x, i, j, W, A, B)                                                                 \
	do {                                                                                       \
		const __typeof__(*(x)) mixed = MIX((x)[i], (x)[j], A##_##W);                       \
                                                                                                   \
		(x)[j] = MIX((x)[i], (x)[j], B##_##W);                                             \
		(x)[i] = mixed;                                                                    \
	} while (0)

#define PACK(name, tgt, W)                                                                         \
	typedef uint32_t name##_u __attribute__((vector_size(4 * W), aligned(4), may_alias));      \
	typedef uint32_t name##_h __attribute__((vector_size(4 * W), aligned(1), may_alias));      \
	typedef int32_t name##_i __attribute__((vector_size(4 * W), aligned(4), may_alias));       \
	typedef float name##_f __attribute__((vector_size(4 * W), aligned(4), may_alias));         \
	tgt static inline __attribute__((always_inline)) void name##_turn(name##_u *x)             \
	{                                                                                          \
		for (int i = 0; i < W; i += 2)                                                     \
			MIX_ROWS(x, i, i + 1, W, LOW, HIGH);                                       \
		for (int i = 0; i < W; i += 4) {                                                   \
			name##_u two;                                                              \
                                                                                                   \
			MIX_ROWS(x, i, i + 2, W, LOW2, HIGH2);                                     \
			MIX_ROWS(x, i + 1, i + 3, W, LOW2, HIGH2);                                 \
			two = x[i + 1];                                                            \
			x[i + 1] = x[i + 2];                                                       \
			x[i + 2] = two;                                                            \
		}                                                                                  \
		for (int i = 0; i < 4 && W > 4; i++)                                               \
			MIX_ROWS(x, i, i + 4, W, EVEN, ODD);                                       \
		for (int i = 8; i < 12 && W > 8; i++)                                              \
			MIX_ROWS(x, i, i + 4, W, EVEN, ODD);                                       \
		for (int i = 0; i < 8 && W > 8; i++)                                               \
			MIX_ROWS(x, i, i + 8, W, EVEN, ODD);                                       \
	}                                                                                          \
	/* each: numbers in a word; codes are multiplied by f, 2^120 times their scale */          \
	tgt static inline __attribute__((always_inline)) void name##_put(                          \
		int each, float f, const name##_u *x, int64_t n, uint32_t *to)                     \
	{                                                                                          \
		for (int64_t k = 0; k < n; k++)                                                    \
			for (int i = 0; i < each; i++, to += NR) {                                 \
				const name##_u v = x[k] << (32 - 32 / each * (i + 1));             \
                                                                                                   \
				if (each == 4)                                                     \
					*(name##_f *)to = f * (name##_f)(                          \
						(name##_u)((name##_i)v >> 4) & 0x87f00000u);       \
				else if (each == 2)                                                \
					*(name##_u *)to = v & 0xffff0000u;                         \
				else                                                               \
					*(name##_u *)to = v;                                       \
			}                                                                          \
	}                                                                                          \
	tgt static inline __attribute__((always_inline)) uint32_t name##_body(                     \
		int each, float f, int64_t n, const char *from, int64_t fs, int64_t ahead,         \
		uint32_t *to)                                                                      \
	{                                                                                          \
		name##_u nan = { 0 };                                                              \
		uint32_t any = 0;                                                                  \
                                                                                                   \
		for (int r = 0; r < NR; r += W, from += W * fs, to += W) {                         \
			name##_u x[W];                                                             \
			int64_t k = 0;                                                             \
                                                                                                   \
			for (; k < n; k += each * W) {                                             \
				const char *at = from + k * 4 / each;                              \
				const int64_t rest = n - k < each * W ? n - k : each * W;          \
                                                                                                   \
				for (int i = 0; i < W; i++) {                                      \
					if (rest == each * W) {                                    \
						x[i] = *(const name##_h *)(at + i * fs);           \
						__builtin_prefetch(at + i * fs + ahead);           \
					} else {                                                   \
						x[i] = (name##_u){ 0 };                            \
						memcpy(&x[i], at + i * fs,                         \
						       (size_t)(rest * 4 / each));                 \
					}                                                          \
					if (each == 4)                                             \
						nan |= (x[i] & 0x7f7f7f7fu) + 0x01010101u;         \
				}                                                                  \
				name##_turn(x);                                                    \
				name##_put(each, f, x, (rest + each - 1) / each, to + k * NR);     \
			}                                                                          \
		}                                                                                  \
		for (int i = 0; i < W && each == 4; i++)                                           \
			any |= nan[i] & 0x80808080u;                                               \
		return any;                                                                        \
	}                                                                                          \
	/* returns 1 if there are codes of NaN, which become other numbers */                      \
	tgt static int name(int32_t dtype, float f, int64_t n, const char *from, int64_t fs,       \
			    int64_t ahead, float *to)                                              \
	{                                                                                          \
		uint32_t *words = (uint32_t *)(void *)to;                                          \
                                                                                                   \
		if (dtype == TE_DTYPE_BF16)                                                        \
			name##_body(2, 0, n, from, fs, ahead, words);                              \
		else if (dtype == TE_DTYPE_E4M3)                                                   \
			return name##_body(4, f, n, from, fs, ahead, words) != 0;                  \
		else                                                                               \
			name##_body(1, 0, n, from, fs, ahead, words);                              \
		return 0;                                                                          \
	}

/* ---- products ---- */

/*
 * Adds x times a vector to a sum. FMA is asked for where the processor has it, because clang 14
 * fuses only some of these operations at 512 bits.
 */
#define ADD_PRODUCT(sum, x, y) ((sum) += (x) * (y))
#ifdef HAVE_TARGET_AVX512
#define ADD_PRODUCT_4(sum, x, y) \
	((sum) = (__typeof__(sum))_mm_fmadd_ps(_mm_set1_ps(x), (__m128)(y), (__m128)(sum)))
#define ADD_PRODUCT_8(sum, x, y) \
	((sum) = (__typeof__(sum))_mm256_fmadd_ps(_mm256_set1_ps(x), (__m256)(y), (__m256)(sum)))
#define ADD_PRODUCT_16(sum, x, y) \
	((sum) = (__typeof__(sum))_mm512_fmadd_ps(_mm512_set1_ps(x), (__m512)(y), (__m512)(sum)))
#endif

/*
 * ROWS rows, R at a time, times V vectors of W floats are accumulated in registers. tri: 0, or the
 * triangle with j <= r (1) or j >= r (2) of n = MR terms.
 */
#define BODY(name, tgt, add_product, W, R, V, ROWS)                                                \
	typedef float name##_v __attribute__((vector_size(4 * W), aligned(4), may_alias));         \
	tgt static inline __attribute__((always_inline)) void name##_body(                         \
		int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs,  \
		int add, int tri)                                                                  \
	{                                                                                          \
		for (int r0 = 0; r0 < ROWS; r0 += R)                                               \
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
							add_product(acc[r][v], x, y[v]);           \
					}                                                          \
				}                                                                  \
				for (int r = 0; r < R; r++)                                        \
					for (int v = 0; v < V; v++)                                \
						*(name##_v *)(pc + r * cs + v * W) = acc[r][v];    \
			}                                                                          \
	}
#define FEW(name, tgt, add_product, W, R, V)                                                       \
	BODY(name, tgt, add_product, W, R, V, R)                                                   \
	tgt static void name(int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, \
			     int64_t cs, int add)                                                  \
	{                                                                                          \
		name##_body(n, a, b, bs, c, cs, add, 0);                                           \
	}
/* packs codes one by one: of NaN, or with scales that need care */
static void finish_codes(int64_t n, const uint8_t *from, int64_t fs, float scale, float *to)
{
	for (int64_t k = 0; k < n; k++)
		for (int r = 0; r < NR; r++)
			to[k * NR + r] = te__e4m3_decode(from[r * fs + k]) * scale;
}

/*
 * one row times columns of BF16, which do not leave the registers: the sums of name##_few. A cache
 * line of the next columns is fetched for each that is read.
 */
#define ONE_ROW(name, tgt, add_product, W)                                                         \
	tgt static void name##_one_row(int64_t n, struct te__h_rows a, const char *from,           \
				       int64_t fs, int64_t next, float *c, int add)                \
	{                                                                                          \
		name##_pack_f acc[NR / W];                                                         \
                                                                                                   \
		for (int v = 0; v < NR / W; v++)                                                   \
			acc[v] = add ? *(const name##_pack_f *)(c + v * W) :                       \
				       (name##_pack_f){ 0 };                                       \
		for (int64_t k = 0; k < n; k += 2 * W)                                             \
			for (int v = 0; v < NR / W; v++) {                                         \
				const char *at = from + v * W * fs + 2 * k;                        \
				name##_pack_u x[W];                                                \
                                                                                                   \
				for (int i = 0; i < W; i++, at += fs) {                            \
					x[i] = *(const name##_pack_h *)at;                         \
					__builtin_prefetch(at + next, 0, 2);                       \
				}                                                                  \
				name##_pack_turn(x);                                               \
				for (int i = 0; i < W; i++) {                                      \
					const float *y = a.p + (k + 2 * i) * a.cs;                 \
                                                                                                   \
					add_product(acc[v], y[0], (name##_pack_f)(x[i] << 16));    \
					add_product(acc[v], y[a.cs],                               \
						    (name##_pack_f)(x[i] & 0xffff0000u));          \
				}                                                                  \
			}                                                                          \
		for (int v = 0; v < NR / W; v++)                                                   \
			*(name##_pack_f *)(c + v * W) = acc[v];                                    \
	}

/* few: columns are packed, some terms at a time, and multiplied before they leave the L1 cache */
#define MICRO(name, tgt, add_product, W, R, V)                                                     \
	BODY(name##_all, tgt, add_product, W, R, V, MR)                                            \
	FEW(name##_one, tgt, add_product, W, 1, (NR / W))                                          \
	FEW(name##_two, tgt, add_product, W, 2, (W == 4 ? 4 : NR / W))                             \
	FEW(name##_four, tgt, add_product, W, 4, V)                                                \
	tgt static void name(int64_t m, int64_t n, struct te__h_rows a, const float *b,            \
			     int64_t bs, float *c, int64_t cs, int add)                            \
	{                                                                                          \
		if (m > 4 && add)                                                                  \
			name##_all_body(n, a, b, bs, c, cs, 1, 0);                                 \
		else if (m > 4)                                                                    \
			name##_all_body(n, a, b, bs, c, cs, 0, 0);                                 \
		else if (m > 2)                                                                    \
			name##_four(n, a, b, bs, c, cs, add);                                      \
		else if (m > 1)                                                                    \
			name##_two(n, a, b, bs, c, cs, add);                                       \
		else                                                                               \
			name##_one(n, a, b, bs, c, cs, add);                                       \
	}                                                                                          \
	tgt static void name##_few(int32_t dtype, int64_t m, int64_t n, struct te__h_rows a,       \
				   const void *from, int64_t fs, int64_t next,                     \
				   const float *scale, float *c, int64_t cs, int add)              \
	{                                                                                          \
		const int codes = dtype == TE_DTYPE_E4M3;                                          \
		const int64_t es = codes ? 1 : dtype == TE_DTYPE_BF16 ? 2 : 4, far = AHEAD / es;   \
		const int64_t depth = codes ? DEPTH_CODES : DEPTH;                                 \
		TE__H_ALIGNED float b[DEPTH_CODES * NR];                                           \
                                                                                                   \
		for (int64_t k = 0; k < n; k += depth) {                                           \
			const int64_t nk = n - k < depth ? n - k : depth;                          \
			const char *at = (const char *)from + k * es;                              \
			const float s = scale ? scale[k / TE_K_BLOCK] : 1;                         \
			const int fits = s > 0x1p-60f && s < 0x1p7f;                               \
                                                                                                   \
			if (name##_pack(dtype, fits ? s * 0x1p120f : 0x1p120f, nk, at, fs * es,    \
					(k + far < n ? far : next - n + far) * es, b) || !fits)    \
				finish_codes(nk, (const uint8_t *)at, fs, s, b);                   \
			name(m, nk, (struct te__h_rows){ a.p + k * a.cs, a.rs, a.cs }, b, NR, c,   \
			     cs, add || k);                                                        \
		}                                                                                  \
	}                                                                                          \
	tgt static void name##_lower(struct te__h_rows a, const float *b, int64_t bs, float *c,    \
				     int64_t cs)                                                   \
	{                                                                                          \
		name##_all_body(MR, a, b, bs, c, cs, 1, 1);                                        \
	}                                                                                          \
	tgt static void name##_upper(struct te__h_rows a, const float *b, int64_t bs, float *c,    \
				     int64_t cs)                                                   \
	{                                                                                          \
		name##_all_body(MR, a, b, bs, c, cs, 1, 2);                                        \
	}

PACK(micro_any_pack, , 4)
ONE_ROW(micro_any, , ADD_PRODUCT, 4)
#ifdef __aarch64__
/* 16 sums in 32 registers: they occupy four vector units that take four cycles for an addition */
MICRO(micro_any, , ADD_PRODUCT, 4, 4, 4)
#else
MICRO(micro_any, , ADD_PRODUCT, 4, 4, 2)
#endif

#ifdef HAVE_TARGET_AVX512
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma")))
#define FMA __attribute__((target("fma")))
PACK(micro_avx512_pack, AVX512, 16)
PACK(micro_avx2_pack, AVX2, 8)
PACK(micro_fma_pack, FMA, 4)
ONE_ROW(micro_avx2, AVX2, ADD_PRODUCT_8, 8)
ONE_ROW(micro_fma, FMA, ADD_PRODUCT_4, 4)
/* on Zen 4 1.4 times as fast as vectors of 512 bits, which take 16 rows at a time */
#define micro_avx512_one_row micro_avx2_one_row
MICRO(micro_avx512, AVX512, ADD_PRODUCT_16, 16, 8, 2)
MICRO(micro_avx2, AVX2, ADD_PRODUCT_8, 8, 4, 2)
MICRO(micro_fma, FMA, ADD_PRODUCT_4, 4, 4, 2)
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

void te__h_micro(int64_t m, int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c,
		 int64_t cs, int add)
{
	VERSIONS(, m, n, a, b, bs, c, cs, add);
}

void te__h_micro_lower(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs)
{
	VERSIONS(_lower, a, b, bs, c, cs);
}

void te__h_micro_upper(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs)
{
	VERSIONS(_upper, a, b, bs, c, cs);
}

void te__h_few(int32_t dtype, int64_t m, int64_t n, struct te__h_rows a, const void *from,
	       int64_t fs, int64_t next, const float *scale, float *c, int64_t cs, int add)
{
	/* whole vectors of 16 words, so that they are the same terms at each level */
	if (m == 1 && dtype == TE_DTYPE_BF16 && n % 32 == 0)
		VERSIONS(_one_row, n, a, from, 2 * fs, 2 * next, c, add);
	else
		VERSIONS(_few, dtype, m, n, a, from, fs, next, scale, c, cs, add);
}

void te__h_pack(int32_t dtype, int64_t n, const void *from, int64_t fs, int64_t ahead, float *to)
{
	const int64_t es = dtype == TE_DTYPE_BF16 ? 2 : 4;

	VERSIONS(_pack, dtype, 0, n, from, fs * es, ahead * es, to);
}
