/* weights.c - reference kernels: the compute copies of a set of weights, and of one weight. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

void te__h_weights_changed(const struct te_k_weights_changed *a)
{
	++*a->version;
}

/* the master of an entry, for te__h_load(): ret_x, which is *split for split masters */
static int32_t master_of(const struct te_k_weights *a, const struct te_k_weight *w,
			 struct te_k_split *split, const void **ret_x)
{
	if (!a->split) {
		*ret_x = (const float *)a->masters + w->master;
		return TE_DTYPE_FP32;
	}
	split->upper = (const uint16_t *)a->masters + w->master;
	split->rest = a->rest ? a->rest + w->master : NULL;
	*ret_x = split;
	return TE_K_DTYPE_SPLIT;
}

/* NVFP4: what te__h_nvfp4_amax() leaves in the head of each copy's scales */
static void put_heads(const struct te_k_weights *a, const struct te_k_weight *w, float amax)
{
	for (int i = 0; i < 2; i++) {
		char *scales = (char *)a->copies + (i ? w->col_scale_inv : w->scale_inv);
		float *head = (float *)(void *)scales;

		if ((i ? w->col : w->row) < 0)
			continue;
		head[TE_K_NV_AMAX] = head[TE_K_NV_AMAX_X] = amax;
		head[TE_K_NV_SUM] = 0.0f;
	}
}

void te__h_weights_amax(const struct te_k_weights *a)
{
	if (te_k_weights_current(a))
		return;
	for (int32_t i = 0; i < a->n; i++) {
		const struct te_k_weight *w = &a->table[i];
		struct te_k_amax amax = {
			.n = (w->rows - w->pad_rows) * (w->cols - w->pad_cols),
		};
		struct te_k_split split;
		struct te_k_scale_current scale = {
			.fmt_max = a->fmt_max[w->dtype == TE_DTYPE_E5M2],
			.epsilon = a->epsilon,
			.pow2 = a->pow2,
		};

		if (w->hp >= 0)
			continue;
		amax.dtype = master_of(a, w, &split, &amax.x);
		if (w->scaling >= TE_K_SCALING_1X16) {
			float most = 0.0f;

			amax.amax = &most;
			te__h_amax(&amax);
			put_heads(a, w, most);
			continue;
		}
		amax.amax = a->amax + (int64_t)w->slot * a->window;
		scale.amax = amax.amax;
		scale.scale = a->scale + w->slot;
		*amax.amax = 0.0f;
		te__h_amax(&amax);
		te__h_scale_current(&scale);
	}
}

static void copy_codes(const struct te_k_weights *a, const struct te_k_weight *w)
{
	struct te_k_quantize k = {
		.rows = w->rows,
		.cols = w->cols,
		.q = te_k_weight_q(a, w),
		.pad_rows = w->pad_rows,
		.pad_cols = w->pad_cols,
	};
	struct te_k_split split;

	k.dtype = master_of(a, w, &split, &k.x);
	te__h_quantize_alone(&k);
}

static void copy_values(const struct te_k_weights *a, const struct te_k_weight *w)
{
	struct te_k_cast k = {
		.y = (char *)a->copies + w->hp,
		.n = w->rows * w->cols,
		.ydtype = a->split ? TE_DTYPE_FP32 : TE_DTYPE_BF16,
	};
	struct te_k_split split;

	k.xdtype = master_of(a, w, &split, &k.x);
	te__h_cast(&k);
}

void te__h_weights_cast(const struct te_k_weights *a)
{
	if (te_k_weights_current(a))
		return;
	for (int32_t i = 0; i < a->n; i++) {
		if (a->table[i].hp >= 0)
			copy_values(a, &a->table[i]);
		else
			copy_codes(a, &a->table[i]);
	}
	a->done->copies = *a->version;
	if (a->record)
		a->done->amax = *a->version;
}

/* the scales of squares, transposed with them */
static void transpose_scales(const struct te_k_weight_transpose *a)
{
	const int64_t n = te_k_scale_nfloats(a->scaling, a->cols, a->rows);

	for (int64_t i = 0; i < n; i++)
		a->col_scale_inv[i] = 0.0f;
	for (int64_t r = 0; r < a->rows; r += TE_K_BLOCK)
		for (int64_t c = 0; c < a->cols; c += TE_K_BLOCK)
			a->col_scale_inv[te_k_scale_index(a->scaling, a->cols, a->rows, c, r)] =
				a->scale_inv[te_k_scale_index(a->scaling, a->rows, a->cols, r, c)];
}

#define SQUARE 64 /* rows and columns whose lines stay in the cache */

/* bands of SQUARE columns of row */
static void transpose_bands(void *arg, int64_t first, int64_t last)
{
	const struct te_k_weight_transpose *a = arg;
	const uint8_t *row = a->row;
	uint8_t *col = a->col;
	const int64_t end = te__h_min(last * SQUARE, a->cols);

	for (int64_t r0 = 0; r0 < a->rows; r0 += SQUARE)
		for (int64_t c = first * SQUARE; c < end; c++)
			for (int64_t r = r0; r < te__h_min(r0 + SQUARE, a->rows); r++)
				col[c * a->rows + r] = row[r * a->cols + c];
}

void te__h_weight_transpose(const struct te_k_weight_transpose *a)
{
	if (a->done->copies == *a->version)
		return;
	if (a->scaling != TE_K_SCALING_TENSOR)
		transpose_scales(a);
	te__k_for((a->cols + SQUARE - 1) / SQUARE, te__h_rows_grain(a->rows * SQUARE, 1),
		  transpose_bands, (void *)(uintptr_t)a);
	a->done->copies = *a->version;
}
