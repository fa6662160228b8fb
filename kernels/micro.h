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

/*
 * c[r][i] = sum over ascending j < n of a(r, j) * b[j * bs + i], for TE__H_MR rows, cs apart, and
 * TE__H_NR columns. add: the sums begin with c instead of 0. FP32; a multiplication and its
 * addition round once, unless the processor has no instruction for it.
 */
void te__h_micro(int64_t n, struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs,
		 int add);

/*
 * With n = TE__H_MR and add, only the terms j <= r (lower) or j >= r. Other elements of a are 0,
 * and their factors may be NaN.
 */
void te__h_micro_lower(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs);
void te__h_micro_upper(struct te__h_rows a, const float *b, int64_t bs, float *c, int64_t cs);

/* to[k * TE__H_NR + r] = from[r * fs + k] for TE__H_NR rows r, and k < n */
void te__h_pack(int64_t n, const float *from, int64_t fs, float *to);

#endif
