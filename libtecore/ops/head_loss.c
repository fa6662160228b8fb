/*
 * head_loss.c - the GEMM of a head with its loss, for a chunk of rows at a time: the logits of a
 * chunk become their own gradient, from which the gradients of the head's input and weight follow
 * before the next chunk takes their memory.
 *
 * The rows of a GEMM's result do not depend on each other, nor does the loss of rows, so the loss
 * and dx have the bits of separate ops. The gradient of the weight is a sum over all rows: each
 * chunk adds its product to it, in order.
 */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

/* A head with its loss. Scratch: logits, max and sum of a chunk; row losses; their count. */
struct head {
	const struct te_op_call *linear, *loss;
	const struct te_tensor *x, *w;
	int64_t rows, in, out, chunk;
	int32_t dtype;
	size_t nbytes; /* size of an element */
	char *logits, *dx;
	float *max_sum, *row_loss, *count;
	struct te__cross_entropy e;
};

static size_t logits_nbytes(const struct te_op_call *linear, int64_t chunk)
{
	const struct te_linear_attrs *a = linear->op->attrs;

	return te__ops_round_up((size_t)(chunk * a->out) *
				te_dtype_nbytes(te_tensor_dtype(linear->x.hp)));
}

size_t te__ops_head_ws(const struct te_op_call *linear, int64_t chunk)
{
	const int64_t rows = te_tensor_rows(linear->x.hp);

	return logits_nbytes(linear, chunk) + (size_t)(2 * chunk + rows + 1) * sizeof(float);
}

static int gemm(struct te_stream *stream, const struct te_k_gemm *k)
{
	return TE__LAUNCH(stream, GEMM, k);
}

/* logits = x w^T */
static int forward_gemm(const struct head *h, int64_t first, int64_t n)
{
	return gemm(h->linear->stream, &(const struct te_k_gemm){
		.a = (const char *)te_tensor_data(h->x) + (size_t)(first * h->in) * h->nbytes,
		.b = te_tensor_data(h->w),
		.d = h->logits,
		.m = n,
		.n = h->out,
		.k = h->in,
		.alpha = 1.0f,
		.adtype = h->dtype,
		.bdtype = h->dtype,
		.cdtype = h->dtype,
		.ddtype = h->dtype,
	});
}

/* dx = dlogits w, dw += dlogits^T x; dx may be x */
static int backward_gemms(const struct head *h, int64_t first, int64_t n)
{
	const struct te_tensor *grad = h->linear->grad[0];
	const size_t at = (size_t)(first * h->in) * h->nbytes;
	int r = 0;

	if (grad)
		r = gemm(h->linear->stream, &(const struct te_k_gemm){
			.a = h->logits,
			.b = (const char *)te_tensor_data(h->x) + at,
			.c = te_tensor_data(grad),
			.d = te_tensor_data(grad),
			.m = h->out,
			.n = h->in,
			.k = n,
			.alpha = 1.0f,
			.beta = 1.0f,
			.a_t = 1,
			.b_t = 1,
			.adtype = h->dtype,
			.bdtype = h->dtype,
			.cdtype = te_tensor_dtype(grad),
			.ddtype = te_tensor_dtype(grad),
		});
	return r < 0 ? r : gemm(h->linear->stream, &(const struct te_k_gemm){
		.a = h->logits,
		.b = te_tensor_data(h->w),
		.d = h->dx + at,
		.m = n,
		.n = h->in,
		.k = h->out,
		.alpha = 1.0f,
		.b_t = 1,
		.adtype = h->dtype,
		.bdtype = h->dtype,
		.cdtype = h->dtype,
		.ddtype = h->dtype,
	});
}

static int loss_forward(const struct head *h, int64_t first, int64_t n)
{
	return TE__LAUNCH(h->loss->stream, CE_FWD, (&(struct te_k_ce_fwd){
		.logits = h->logits,
		.targets = (const int32_t *)te_tensor_data(h->e.targets) + first,
		.max_sum = h->max_sum,
		.row_loss = h->row_loss + first,
		.rows = n,
		.cols = h->out,
		.nclasses = h->e.nclasses,
		.ignore_index = h->e.ignore_index,
		.dtype = h->dtype,
	}));
}

static int loss_backward(const struct head *h, int64_t first, int64_t n)
{
	return TE__LAUNCH(h->loss->stream, CE_BWD, (&(struct te_k_ce_bwd){
		.logits = h->logits,
		.targets = (const int32_t *)te_tensor_data(h->e.targets) + first,
		.max_sum = h->max_sum,
		.count = h->count,
		.dlogits = h->logits,
		.rows = n,
		.cols = h->out,
		.nclasses = h->e.nclasses,
		.ignore_index = h->e.ignore_index,
		.grad_scale = h->e.grad_scale,
		.dtype = h->dtype,
	}));
}

static int loss_both(const struct head *h, int64_t first, int64_t n)
{
	return TE__LAUNCH(h->loss->stream, CE_GRAD, (&(struct te_k_ce_grad){
		.logits = h->logits,
		.targets = (const int32_t *)te_tensor_data(h->e.targets) + first,
		.count = h->count,
		.dlogits = h->logits,
		.max_sum = h->max_sum,
		.row_loss = h->row_loss + first,
		.rows = n,
		.cols = h->out,
		.nclasses = h->e.nclasses,
		.ignore_index = h->e.ignore_index,
		.grad_scale = h->e.grad_scale,
		.dtype = h->dtype,
	}));
}

static int run_chunk(const struct head *h, int64_t first, int64_t n)
{
	const int once = h->dx && te__gradients_once(te_tensor_ctx(h->x), n * h->out);
	int r = forward_gemm(h, first, n);

	if (r >= 0)
		r = once ? loss_both(h, first, n) : loss_forward(h, first, n);
	if (r >= 0 && h->dx && !once)
		r = loss_backward(h, first, n);
	return r < 0 || !h->dx ? r : backward_gemms(h, first, n);
}

int te__ops_head_loss(const struct te_op_call *linear, const struct te_op_call *loss, void *dx,
		      int64_t chunk, void *ws)
{
	const struct te_linear_attrs *a = linear->op->attrs;
	struct head h = {
		.linear = linear,
		.loss = loss,
		.x = linear->x.hp,
		.w = te__ops_weight(linear, 0),
		.rows = te_tensor_rows(linear->x.hp),
		.in = a->in,
		.out = a->out,
		.dtype = (int32_t)te_tensor_dtype(linear->x.hp),
		.nbytes = te_dtype_nbytes(te_tensor_dtype(linear->x.hp)),
		.logits = ws,
		.dx = dx,
		.e = te__ops_cross_entropy(loss),
	};
	struct te_k_ce_reduce reduce = {
		.targets = te_tensor_data(h.e.targets),
		.loss = te_tensor_data(loss->y.hp),
		.noutside = &loss->stream->ctx->device_outside->ntargets,
		.rows = h.rows,
		.nclasses = h.e.nclasses,
		.ignore_index = h.e.ignore_index,
	};
	int r = 0;

	h.max_sum = (float *)(void *)(h.logits + logits_nbytes(linear, chunk));
	reduce.row_loss = h.row_loss = h.max_sum + 2 * chunk;
	reduce.count = h.count = h.row_loss + h.rows;
	if (dx)
		r = TE__LAUNCH(loss->stream, CE_COUNT, &reduce);
	for (int64_t first = 0; first < h.rows && r >= 0; first += chunk)
		r = run_chunk(&h, first, h.rows - first < chunk ? h.rows - first : chunk);
	return r < 0 ? r : TE__LAUNCH(loss->stream, CE_REDUCE, &reduce);
}
