/* kernel_rope.c - launches of rotary position embedding, and te_kernel_rope_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>

#include "libtecore/ops/common.h"

/* elements of a head that are not left as they are */
static int nturning(const struct te_rope_attrs *a)
{
	int n = 0;

	for (int i = 0; i < a->head_dim / 2; i++)
		n += !a->inv_freq || a->inv_freq[i] != 0.0f;
	return 2 * n;
}

int te__rope_check(const char *kind, const char *name, const struct te_rope_attrs *a)
{
	if (a->nheads < 1)
		return te__fail(-EINVAL, "%s%s: nheads is %d", kind, name, a->nheads);
	if (a->nkv < 1)
		return te__fail(-EINVAL, "%s%s: nkv is %d", kind, name, a->nkv);
	if (a->head_dim < 2 || a->head_dim % 2 || a->head_dim > 2 * TE_K_ROPE_MAX_HALF)
		return te__fail(-EINVAL, "%s%s: head_dim is %d, not an even number of 2 to %d",
				kind, name, a->head_dim, 2 * TE_K_ROPE_MAX_HALF);
	if (!a->inv_freq && (!(a->theta > 0.0f) || !isfinite(a->theta)))
		return te__fail(-EINVAL, "%s%s: theta is %g", kind, name, (double)a->theta);
	for (int i = 0; a->inv_freq && i < a->head_dim / 2; i++)
		if (!isfinite(a->inv_freq[i]))
			return te__fail(-EINVAL, "%s%s: inv_freq %d is %g", kind, name, i,
					(double)a->inv_freq[i]);
	if (a->dynamic_positions < 0)
		return te__fail(-EINVAL, "%s%s: dynamic_positions is %lld", kind, name,
				(long long)a->dynamic_positions);
	if (a->dynamic_positions && (!(a->dynamic_factor > 0.0f) || !isfinite(a->dynamic_factor)))
		return te__fail(-EINVAL, "%s%s: dynamic_factor is %g", kind, name,
				(double)a->dynamic_factor);
	if (a->dynamic_positions && nturning(a) < 4)
		return te__fail(-EINVAL, "%s%s: %d elements of a head turn, too few for "
				"dynamic_positions", kind, name, nturning(a));
	return te__ops_check_flag(kind, name, "interleaved", a->interleaved);
}

/*
 * "dynamic" scaling, as _compute_dynamic_ntk_parameters() of transformers' modeling_rope_utils.py
 * computes it: theta is multiplied by s^(n/(n-2)) for n elements that turn.
 */
static void scale_for(const struct te_rope_attrs *a, int64_t seqlen, float *inv_freq)
{
	const double f = (double)a->dynamic_factor, n = nturning(a);
	const double s = f * (double)seqlen / (double)a->dynamic_positions - f + 1.0;

	for (int i = 0; i < a->head_dim / 2; i++)
		inv_freq[i] = (float)((double)inv_freq[i] * pow(s, -2.0 * i / (n - 2.0)));
}

static void inverse_frequencies(struct te_ctx *ctx, float theta, int32_t head_dim, float *ret)
{
	struct te__rope_freq *f = &ctx->rope_freq;

	pthread_mutex_lock(&ctx->lock);
	if (f->head_dim != head_dim || f->theta != theta) {
		for (int i = 0; i < head_dim / 2; i++)
			f->inv_freq[i] = (float)pow((double)theta, -2.0 * i / head_dim);
		f->theta = theta;
		f->head_dim = head_dim;
	}
	memcpy(ret, f->inv_freq, (size_t)head_dim / 2 * sizeof(*ret));
	pthread_mutex_unlock(&ctx->lock);
}

void te__rope_args(const struct te_tensor *x, struct te_tensor *y, const struct te_rope_attrs *a,
		   int inverse, struct te_k_rope *ret)
{
	*ret = (struct te_k_rope){
		.x = te_tensor_data(x),
		.y = te__ops_ptr(y),
		.rows = te_tensor_rows(x),
		.seqlen = te_tensor_extent(x, -2),
		.nheads = a->nheads + 2 * a->nkv,
		.nrot = a->nheads + a->nkv,
		.head_dim = a->head_dim,
		.inverse = inverse,
		.dtype = te_tensor_dtype(x),
		.interleaved = a->interleaved,
	};
	if (a->inv_freq)
		memcpy(ret->inv_freq, a->inv_freq, (size_t)a->head_dim / 2 * sizeof(*a->inv_freq));
	else
		inverse_frequencies(te_tensor_ctx(x), a->theta, a->head_dim, ret->inv_freq);
	if (a->dynamic_positions && ret->seqlen > a->dynamic_positions)
		scale_for(a, ret->seqlen, ret->inv_freq);
}

static int call(const char *fn, struct te_stream *stream, const char *const names[2],
		const struct te_tensor *x, struct te_tensor *y,
		const struct te_kernel_rope_opts *opts, int inverse)
{
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;
	int r = te__sized_in(fn, te_kernel_rope_opts, opts, &o);
	const struct te__quantize z = TE__QUANTIZE_OF(stream, &o); /* casts are not in place */
	const struct te_rope_attrs a =
		TE_ATTRS(rope, o.nheads, o.nkv, o.head_dim, o.theta, o.inv_freq,
			 .interleaved = o.interleaved);
	struct te_k_rope k;
	struct te__main m;
	int64_t cols;

	if (!r)
		r = te__rope_check(fn, "", &a);
	if (!r)
		r = te__arg_main(fn, stream, names[0], x, &m);
	if (!r)
		r = te__arg_seq(fn, names[0], x);
	if (r < 0)
		return r;
	cols = ((int64_t)o.nheads + 2 * (int64_t)o.nkv) * o.head_dim;
	r = te__args(fn, stream, (const struct te__arg[]){
		{ names[0], x, m.dtype, m.rows, cols, 0, 0 },
		{ names[1], y, m.dtype, m.rows, cols, TE__ARG_OUT | TE__ARG_NULL,
		  o.q ? 0 : 1u << 0 },
		{ "position", o.position, TE_DTYPE_INT32, 0, m.rows, TE__ARG_NULL, 0 },
	}, 3);
	if (!r)
		r = te__arg_q_tensor(fn, &z, names[1], y, m.rows, cols);
	if (r < 0)
		return r;
	te__rope_args(x, y, &a, inverse, &k);
	k.position = o.position ? te_tensor_data(o.position) : NULL;
	return TE__LAUNCH_CAST(stream, ROPE, &k, r ? &z : NULL, k.y);
}

int te_kernel_rope_forward(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
			   const struct te_kernel_rope_opts *opts)
{
	static const char *const names[2] = { "x", "y" };

	return TE__KERNELS(stream, call("te_kernel_rope_forward", stream, names, x, y, opts, 0));
}

int te_kernel_rope_backward(struct te_stream *stream, const struct te_tensor *dy,
			    struct te_tensor *dx, const struct te_kernel_rope_opts *opts)
{
	static const char *const names[2] = { "dy", "dx" };

	return TE__KERNELS(stream,
			   call("te_kernel_rope_backward", stream, names, dy, dx, opts, 1));
}
