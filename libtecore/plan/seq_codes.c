/* seq_codes.c - memory and values of weights that are stored as codes: see seq_store.c. */
#define TE_LOG_CATEGORY "core/seq"
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

int te__weight_alloc_codes(struct te_seq *seq, struct te__weight *w)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;
	int r;

	o.flags = TE_TENSOR_ROWWISE | (te_tensor_coldata(w->value) ? TE_TENSOR_COLWISE : 0);
	o.scaling = te_tensor_scaling(w->value);
	r = te_tensor_create(seq->ctx, te_tensor_dtype(w->value), w->decl.ndim, w->decl.shape, &o,
			     &t);
	if (r)
		return r;
	te_tensor_unref(w->value);
	w->value = t;
	r = te__ctx_fill_u32(seq->ctx, te_tensor_data(t), 0, te_tensor_nbytes(t));
	if (!r && te_tensor_coldata(t))
		r = te__ctx_fill_u32(seq->ctx, te_tensor_coldata(t), 0, te_tensor_nbytes(t));
	return r;
}

int te__weight_write_codes(const struct te__weight *w, const float *src)
{
	const enum te_dtype dtype = te_tensor_dtype(w->value);
	struct te_ctx *ctx = te_tensor_ctx(w->value);
	struct te_stream *st = te_ctx_stream(ctx);
	struct te_tensor *values = NULL;
	struct te_quant *quant = NULL;
	int r = te_tensor_create(ctx, TE_DTYPE_FP32, w->decl.ndim, w->decl.shape, NULL, &values);

	if (!r)
		r = te_quant_create(ctx, w->codes, 1, &dtype, &quant);
	if (!r)
		r = te_tensor_write(values, src, te_tensor_nbytes(values));
	if (!r)
		r = te_quantize(st, quant, 0, values, w->value, NULL, 0);
	if (!r)
		r = te_stream_sync(st);
	te_quant_unref(quant);
	te_tensor_unref(values);
	return r;
}
