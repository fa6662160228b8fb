/*
 * head_loss.c - the GEMM of a head with its loss, for a chunk of rows at a time: the logits of a
 * chunk become their own gradient, from which the gradients of the head's input and weight follow
 * before the next chunk takes their memory. Capped logits, c tanh(x / c), need two such buffers:
 * the gradient of the tanh reads its input.
 *
 * The rows of a GEMM's result do not depend on each other, nor does the loss of rows, so the loss
 * and dx have the bits of separate ops. The gradient of the weight is a sum over all rows: each
 * chunk adds its product to it, in order.
 */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

/*
 * A head with its loss. cap: NULL, or the calls of scale, tanh and scale between them. Scratch:
 * logits, with cap the input of the tanh, max and sum of a chunk; row losses; their count.
 */
struct head {
	const struct te_op_call *linear;
	const struct te_op_call *const *cap;
	struct te_stream *stream;
	int64_t in, out;
	int32_t dtype;
	size_t nbytes; /* size of an element */
	const char *x;
	void *w;
	char *logits, *tanh_x, *dx; /* tanh_x is logits without cap */
};

static size_t logits_nbytes(const struct te_op_call *linear, int64_t chunk)
{
	const struct te_linear_attrs *a = linear->op->attrs;

	return te__ops_round_up((size_t)(chunk * a->out) *
				te_dtype_nbytes(te_tensor_dtype(linear->x.hp)));
}

size_t te__ops_head_ws(const struct te_op_call *linear, int capped, int64_t chunk)
{
	const int64_t rows = te_tensor_rows(linear->x.hp);

	return (size_t)(1 + capped) * logits_nbytes(linear, chunk) +
	       (size_t)(2 * chunk + rows + 1) * sizeof(float);
}

/* tanh_x = x w^T */
static int forward_gemm(const struct head *h, size_t at, int64_t n)
{
	return TE__LAUNCH(h->stream, GEMM, (&(const struct te_k_gemm){
		.a = h->x + at,
		.b = h->w,
		.d = h->tanh_x,
		.m = n,
		.n = h->out,
		.k = h->in,
		.alpha = 1.0f,
		.adtype = h->dtype,
		.bdtype = h->dtype,
		.cdtype = h->dtype,
		.ddtype = h->dtype,
	}));
}

/* dx = dlogits w, dw += dlogits^T x; dx may be x */
static int backward_gemms(const struct head *h, size_t at, int64_t n)
{
	const struct te_tensor *grad = h->linear->grad[0];
	int r = 0;

	if (grad)
		r = TE__LAUNCH(h->stream, GEMM, (&(const struct te_k_gemm){
			.a = h->logits,
			.b = h->x + at,
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
		}));
	return r < 0 ? r : TE__LAUNCH(h->stream, GEMM, (&(const struct te_k_gemm){
		.a = h->logits,
		.b = h->w,
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
	}));
}

/* n values of x, in place */
static int scale(const struct head *h, const struct te_op_call *c, void *x, int64_t n)
{
	return TE__LAUNCH(h->stream, SCALED, (&(const struct te_k_scaled){
		.x = x,
		.y = x,
		.n = n,
		.factor = te__ops_factor(c),
		.dtype = h->dtype,
	}));
}

static int cap_forward(const struct head *h, int64_t n)
{
	const struct te_k_act_fwd k = {
		.x = h->tanh_x,
		.y = h->logits,
		.rows = n,
		.cols = h->out,
		.act = TE_ACT_TANH,
		.dtype = h->dtype,
	};
	int r = scale(h, h->cap[0], h->tanh_x, n * h->out);

	if (r >= 0)
		r = TE__LAUNCH(h->stream, ACT_FWD, &k);
	return r < 0 ? r : scale(h, h->cap[2], h->logits, n * h->out);
}

/* logits: their gradient, which becomes the gradient of the GEMM's result */
static int cap_backward(const struct head *h, int64_t n)
{
	const struct te_k_act_bwd k = {
		.dy = h->logits,
		.x = h->tanh_x,
		.dx = h->logits,
		.rows = n,
		.cols = h->out,
		.act = TE_ACT_TANH,
		.dtype = h->dtype,
	};
	int r = scale(h, h->cap[2], h->logits, n * h->out);

	if (r >= 0)
		r = TE__LAUNCH(h->stream, ACT_BWD, &k);
	return r < 0 ? r : scale(h, h->cap[0], h->logits, n * h->out);
}

/* e: the rows of the chunk, from first on */
static int run_chunk(const struct head *h, const struct te__ce *e, int64_t first)
{
	const int once = h->dx && te__gradients_once(h->stream->ctx, e->rows * e->cols);
	const size_t at = (size_t)(first * h->in) * h->nbytes;
	int r = forward_gemm(h, at, e->rows);

	if (r >= 0 && h->cap)
		r = cap_forward(h, e->rows);
	if (r >= 0)
		r = once ? te__ce_grad(h->stream, e, h->logits) : te__ce_fwd(h->stream, e);
	if (r >= 0 && h->dx && !once)
		r = te__ce_bwd(h->stream, e, h->logits);
	if (r >= 0 && h->dx && h->cap)
		r = cap_backward(h, e->rows);
	return r < 0 || !h->dx ? r : backward_gemms(h, at, e->rows);
}

int te__ops_head_loss(const struct te_op_call *const *part, int nparts, void *dx, int64_t chunk,
		      void *ws)
{
	const struct te_op_call *linear = part[0], *loss = part[nparts - 1];
	const struct te_linear_attrs *a = linear->op->attrs;
	const int capped = nparts > 2;
	const size_t nbytes = logits_nbytes(linear, chunk);
	const struct head h = {
		.linear = linear,
		.cap = capped ? part + 1 : NULL,
		.stream = linear->stream,
		.in = a->in,
		.out = a->out,
		.dtype = (int32_t)te_tensor_dtype(linear->x.hp),
		.nbytes = te_dtype_nbytes(te_tensor_dtype(linear->x.hp)),
		.x = te_tensor_data(linear->x.hp),
		.w = te_tensor_data(te__ops_weight(linear)),
		.logits = ws,
		.tanh_x = (char *)ws + (capped ? nbytes : 0),
		.dx = dx,
	};
	struct te__ce all = te__ops_cross_entropy(loss), e;
	int r = 0;

	all.logits = h.logits;
	all.rows = te_tensor_rows(linear->x.hp);
	all.cols = h.out;
	all.dtype = h.dtype;
	all.max_sum = (float *)(void *)(h.tanh_x + nbytes);
	all.row_loss = all.max_sum + 2 * chunk;
	all.count = all.row_loss + all.rows;
	e = all;
	if (dx)
		r = te__ce_count(h.stream, &all);
	for (int64_t first = 0; first < all.rows && r >= 0; first += chunk) {
		e.targets = all.targets + first;
		e.row_loss = all.row_loss + first;
		e.rows = all.rows - first < chunk ? all.rows - first : chunk;
		r = run_chunk(&h, &e, first);
	}
	return r < 0 ? r : te__ce_reduce(h.stream, &all);
}
