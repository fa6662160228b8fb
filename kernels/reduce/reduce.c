/* reduce.c - reference kernels: sums over rows, in two launches, in a fixed order. */
#include "config.h"

#include "kernels/ref.h"

void te__h_colsum(const struct te_k_colsum *a)
{
	float x[TE__H_CHUNK];

	for (int64_t p = 0; p < TE_K_NPARTS(a->rows); p++) {
		const int64_t end = te__h_min((p + 1) * TE_K_PART_ROWS, a->rows);
		float *part = a->part + p * a->cols;

		memset(part, 0, (size_t)a->cols * sizeof(*part));
		for (int64_t r = p * TE_K_PART_ROWS; r < end; r++)
			TE__H_CHUNKS(c, len, a->cols) {
				te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
				for (int64_t i = 0; i < len; i++)
					part[c + i] += x[i];
			}
	}
}

void te__h_part_sum(const struct te_k_part_sum *a)
{
	float sum[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->cols) {
		memset(sum, 0, (size_t)len * sizeof(*sum));
		for (int64_t p = 0; p < a->nparts; p++)
			for (int64_t i = 0; i < len; i++)
				sum[i] += a->part[p * a->cols + c + i];
		for (int64_t i = 0; i < len; i++)
			a->out[c + i] += sum[i];
	}
}
