/* reduce.c - reference kernels: sums over rows, in two launches, in a fixed order. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

/* begin is the first row of a partial sum */
static void colsum_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_colsum *a = arg;
	float x[TE__H_CHUNK];

	for (int64_t r = begin; r < end; r++) {
		float *part = a->part + r / TE_K_PART_ROWS * a->cols;

		if (r % TE_K_PART_ROWS == 0)
			memset(part, 0, (size_t)a->cols * sizeof(*part));
		TE__H_CHUNKS(c, len, a->cols) {
			te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
			te__h_add_to(part + c, x, len);
		}
	}
}

void te__h_colsum(const struct te_k_colsum *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, TE_K_PART_ROWS), colsum_part,
		  (void *)(uintptr_t)a);
}

static void part_sum_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_part_sum *a = arg;
	float sum[TE__H_CHUNK], group[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, end - begin) {
		memset(sum, 0, (size_t)len * sizeof(*sum));
		for (int64_t p = 0; p < a->nparts; p++) {
			if (p % TE_K_PART_GROUP == 0)
				memset(group, 0, (size_t)len * sizeof(*group));
			te__h_add_to(group, a->part + p * a->cols + begin + c, len);
			if (p % TE_K_PART_GROUP == TE_K_PART_GROUP - 1 || p == a->nparts - 1)
				te__h_add_to(sum, group, len);
		}
		te__h_add_at(a->dtype, a->out, begin + c, len, sum);
	}
}

void te__h_part_sum(const struct te_k_part_sum *a)
{
	struct te_k_part_sum b = *a;

	te__k_for(a->cols, te__h_rows_grain(a->nparts, 64), part_sum_part, (void *)(uintptr_t)a);
	if (!a->out_b)
		return;
	b.part = a->part_b;
	b.out = a->out_b;
	te__k_for(b.cols, te__h_rows_grain(b.nparts, 64), part_sum_part, &b);
}

static void argmax_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_argmax *a = arg;
	const int64_t ncols = TE_K_ARGMAX_COLS(a->n);

	for (int64_t i = begin; i < end; i++) {
		const int64_t c0 = i % TE_K_ARGMAX_PARTS * ncols;
		const uint16_t *x = (const uint16_t *)a->x + i / TE_K_ARGMAX_PARTS * a->ld;
		uint64_t most = 0;

		for (int64_t c = c0; c < te__h_min(c0 + ncols, a->n); c++) {
			const uint64_t key = te_k_argmax_key(x[c], c);

			most = key > most ? key : most;
		}
		a->part[i] = most;
	}
}

void te__h_argmax(const struct te_k_argmax *a)
{
	te__k_for(a->rows * TE_K_ARGMAX_PARTS, te__h_rows_grain(TE_K_ARGMAX_COLS(a->n), 1),
		  argmax_part, (void *)(uintptr_t)a);
}
