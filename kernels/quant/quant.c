/* quant.c - reference kernels: amax, FP8 casts both ways, casts of T. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"
#include "libtecore/base/base.h"

void te__h_clear(const struct te_k_clear *a)
{
	if (!te__h_noop(a->noop))
		*a->word = 0.0f;
}

/* words begin to end - 1; of single bytes, all of them */
static void fill_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_fill *a = arg;

	if (a->elem == 1) {
		memset((uint8_t *)a->dst + begin, (int)(a->value & 0xff), (size_t)(end - begin));
		return;
	}
	for (int64_t i = begin; i < end; i++)
		((uint32_t *)a->dst)[i] = a->value;
}

void te__h_fill(const struct te_k_fill *a)
{
	te__k_for(a->n, 4 * TE__H_GRAIN, fill_part, (void *)(uintptr_t)a);
}

static void amax_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_amax *a = arg;
	float v[TE__H_CHUNK];
	uint32_t m = 0;

	TE__H_CHUNKS(c, len, end - begin) {
		te__h_load(a->dtype, a->x, begin + c, len, v);
		m = te__h_amax_bits(v, len, m);
	}
	te__h_amax_fold(a->amax, m);
}

void te__h_amax(const struct te_k_amax *a)
{
	if (!te__h_noop(a->noop))
		te__k_for(a->n, TE__H_GRAIN, amax_part, (void *)(uintptr_t)a);
}

void te__h_quantize(const struct te_k_quantize *a)
{
	if (te__h_noop(a->q.noop))
		return;
	if (a->q.dtype == TE_DTYPE_E2M1)
		te__h_quantize_nvfp4(a);
	else
		te__h_q_run(&a->q, a->rows, a->cols, te__h_quantize_chunk, a);
}

void te__h_quantize_alone(const struct te_k_quantize *a)
{
	if (a->q.dtype == TE_DTYPE_E2M1) {
		te__h_nvfp4_begin(a);
		te__h_nvfp4_amax(a);
	}
	te__h_quantize(a);
}

static void dequantize_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_dequantize *a = arg;
	const uint8_t *x = a->x;
	float v[TE__H_CHUNK];

	const int64_t width = a->cols - a->pad_cols;

	for (int64_t r = begin; r < end; r++)
		for (int64_t c = 0, n; c < width; c += n) {
			/* block with one scale */
			const float scale_inv = te__h_scale_get(
				a->scale_inv, a->scaling,
				te_k_scale_index(a->scaling, a->rows, a->cols, r, c));

			n = te__h_min(width - c, a->scaling ? te_k_scale_width(a->scaling) :
							      TE__H_CHUNK);
			te__h_decode(a->xdtype, x + te__nbytes_of(a->xdtype, r * a->cols + c),
				     scale_inv, n, v);
			te__h_store(a->ydtype, a->y, r * width + c, n, v);
		}
}

void te__h_dequantize(const struct te_k_dequantize *a)
{
	te__k_for(a->rows - a->pad_rows, te__h_rows_grain(a->cols, 1), dequantize_part,
		  (void *)(uintptr_t)a);
}

static void cast_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_cast *a = arg;
	float v[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, end - begin) {
		te__h_load(a->xdtype, a->x, begin + c, len, v);
		te__h_store(a->ydtype, a->y, begin + c, len, v);
	}
}

void te__h_cast(const struct te_k_cast *a)
{
	if (!te__h_noop(a->noop))
		te__k_for(a->n, TE__H_GRAIN, cast_part, (void *)(uintptr_t)a);
}
