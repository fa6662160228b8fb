/*
 * micro.h - the inner loops of host GEMM and attention: TE__H_MR rows times TE__H_NR columns of a
 * result in registers.
 */
#ifndef TE__MICRO_H
#define TE__MICRO_H

#include <stdint.h>

#define TE__H_MR 8
#define TE__H_NR 32

/* alignment of arrays that loops access by vectors */
#define TE__H_ALIGNED _Alignas(64)
#define TE__H_ALIGNED_TO(p) __builtin_assume_aligned(p, 64)

/* element (r, j) is at p[r * rs + j * cs] */
struct te__h_rows {
	const float *p;
	int64_t rs, cs;
};

/* rows that are computed for m rows: 1, 2, 4, or a multiple of TE__H_MR */
static inline int64_t te__h_micro_rows(int64_t m)
{
	return m > 4 ? (m + TE__H_MR - 1) / TE__H_MR * TE__H_MR : m > 2 ? 4 : m;
}

/*
 * c[r][i] = sum over ascending j < n of a(r, j) * b[j * bs + i], for the first te__h_micro_rows(m)
 * of at most TE__H_MR rows, cs apart, and TE__H_NR columns. m above TE__H_MR counts as that. add:
 * the sums begin with c instead of 0. FP32; a multiplication and its addition round once, unless
 * the processor has no instruction for it.
 */
void te__h_micro(int64_t m, int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c,
		 int64_t cs, int add);

/*
 * With n = TE__H_MR and add, only the terms j <= r (lower) or j >= r. Other elements of a are 0,
 * and their factors may be NaN.
 */
void te__h_micro_lower(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs);
void te__h_micro_upper(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs);

/*
 * to[k * TE__H_NR + r] = from[r * fs + k] for TE__H_NR rows r, and k < n; from is FP32 or BF16.
 * ahead: elements from each to the one in its place in a later call, which is fetched into the
 * cache.
 */
void te__h_pack(int32_t dtype, int64_t n, const void *from, int64_t fs, int64_t ahead, float *to);

/*
 * te__h_micro() with b[j * TE__H_NR + i] = from[i * fs + j]: the same sums, to the bit. next:
 * elements from the first one to the first one of the next call, which is fetched into the cache.
 * from is FP32, BF16 or E4M3; scale: of E4M3, for each 128 terms, or NULL.
 */
void te__h_few(int32_t dtype, int64_t m, int64_t n, struct te__h_rows a, const void *from,
	       int64_t fs, int64_t next, const float *scale, float *c, int64_t cs, int add);

#endif
