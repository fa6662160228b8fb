/* kernel_adamw.c - launches of AdamW, and te_kernel_adamw_*(). */
#define TE_LOG_CATEGORY "core/kernel"
#include "config.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <te/capture.h>
#include "libtecore/ops/common.h"

/* the device state of te_kernel_adamw_init() */
struct state {
	struct te_k_adamw_state adamw;
	uint64_t version; /* the kernel increments it for copies of weights; not read here */
};

int te__adamw_check(const char *fn, float beta1, float beta2, float eps, float weight_decay,
		    float max_grad_norm)
{
	if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1))
		return te__fail(-EINVAL, "%s: beta1 %g and beta2 %g must lie in [0,1)", fn,
				(double)beta1, (double)beta2);
	if (!(eps >= 0) || !(weight_decay >= 0) || !(max_grad_norm >= 0) || isinf(eps) ||
	    isinf(weight_decay) || isinf(max_grad_norm))
		return te__fail(-EINVAL, "%s: eps, weight_decay and max_grad_norm are finite "
				"and not negative", fn);
	return 0;
}

int te__adamw_set_lr(const char *fn, struct te_stream *stream, struct te_k_adamw_state *state,
		     float lr)
{
	uint32_t bits;

	if (!(lr >= 0) || isinf(lr))
		return te__fail(-EINVAL, "%s: a learning rate of %g", fn, (double)lr);
	memcpy(&bits, &lr, sizeof(bits));
	return te_fill_u32(stream, &state->lr, bits, sizeof(bits));
}

enum te_moments te__adamw_moments(const struct te_tensor *t)
{
	const enum te_dtype dtype = te_tensor_dtype(t);

	return dtype == TE_DTYPE_BF16  ? TE_MOMENTS_BF16 :
	       dtype == TE_DTYPE_UINT8 ? TE_MOMENTS_FP8 :
					 TE_MOMENTS_FP32;
}

/* the sums of all shards, in place */
static int gather(struct te_stream *stream, const struct te_adamw_shards *s, double *part)
{
	const uint64_t nfails = te__nfails();
	const int r = s->gather(s->arg, stream, part, TE_K_SUMSQ_PARTS * sizeof(*part));

	return r < 0 ? te__callback_failed(nfails, r, "te_adamw_step: the gather of %d shards "
					   "returned %d", s->nshards, r) : 0;
}

int te__adamw_gather(const char *fn, struct te_stream *stream, const struct te__adamw_part *own,
		     void *all, size_t nbytes)
{
	const uint64_t nfails = te__nfails();
	const int r = nbytes ? own->gather(own->arg, stream, all, nbytes) : 0;

	return r < 0 ? te__callback_failed(nfails, r, "%s: the gather of parts returned %d", fn,
					   r) : 0;
}

/* addresses of weights, gradients, both moments, and remainders or NULL; exponents: FP8 only */
struct states {
	char *w, *g;
	char *m, *v;
	uint8_t *m_exp, *v_exp;
	uint16_t *rest;
};

/* bytes of a moment's elements, and of its exponents */
static size_t code_nbytes(enum te_moments moments, int64_t nelems)
{
	return moments == TE_MOMENTS_FP8 ? (size_t)nelems : te_moments_nbytes(moments, nelems);
}

static size_t exp_nbytes(enum te_moments moments, int64_t nelems)
{
	return te_moments_nbytes(moments, nelems) - code_nbytes(moments, nelems);
}

/* bytes of an element */
static int64_t element_nbytes(const struct te_tensor *t)
{
	return te_tensor_dtype(t) == TE_DTYPE_BF16 ? 2 : 4;
}

static struct states states_after(const struct te__adamw *a, const struct states *x,
				  int64_t nelems)
{
	const enum te_moments moments = te__adamw_moments(a->m);
	const size_t codes = code_nbytes(moments, nelems), exps = exp_nbytes(moments, nelems);

	return (struct states){
		x->w + nelems * element_nbytes(a->w), x->g + nelems * element_nbytes(a->g),
		x->m + codes, x->v + codes,
		x->m_exp ? x->m_exp + exps : NULL, x->v_exp ? x->v_exp + exps : NULL,
		x->rest ? x->rest + nelems : NULL,
	};
}

/* the moments from element `at` of nelems on, and gradients of a part likewise; weights, all
 * gradients and remainders from w_at on */
static struct states states_from(const struct te__adamw *a, int64_t at, int64_t nelems,
				 int64_t w_at)
{
	const enum te_moments kind = te__adamw_moments(a->m);
	struct states x = { te_tensor_data(a->w), te_tensor_data(a->g), te_tensor_data(a->m),
			    te_tensor_data(a->v), NULL, NULL, NULL };

	if (kind == TE_MOMENTS_FP8) {
		x.m_exp = (uint8_t *)x.m + nelems;
		x.v_exp = (uint8_t *)x.v + nelems;
	}
	x = states_after(a, &x, at);
	x.w = (char *)te_tensor_data(a->w) + (a->own_w ? at : w_at) * element_nbytes(a->w);
	x.g = (char *)te_tensor_data(a->g) + (a->own_g ? at : w_at) * element_nbytes(a->g);
	x.rest = a->remainder ? a->remainder + w_at : NULL;
	return x;
}

/* update n elements of the weights from `at` on, which are of one group */
static int launch_group(struct te_stream *stream, const struct te__adamw *a,
			const struct te__adamw_group *group, int64_t at, int64_t n,
			const struct states *x)
{
	const int bf16 = te_tensor_dtype(a->w) == TE_DTYPE_BF16;
	struct te_k_adamw k = {
		.w = x->w,
		.m = x->m,
		.v = x->v,
		.g = x->g,
		.decay = a->decay ? a->decay + at / TE_K_ALIGN_WEIGHT : NULL,
		.state = group->state,
		.n = n,
		.first = at,
		.beta1 = group->beta1,
		.beta2 = group->beta2,
		.eps = a->eps,
		.weight_decay = group->weight_decay,
		.m_exp = x->m_exp,
		.v_exp = x->v_exp,
		.moments = (int32_t)te__adamw_moments(a->m),
		.rest = x->rest,
		.bf16_grads = te_tensor_dtype(a->g) == TE_DTYPE_BF16,
	};

	if (bf16)
		k.masters = a->remainder ? TE_K_MASTERS_SPLIT : TE_K_MASTERS_BF16;
	return TE__LAUNCH(stream, ADAMW, &k);
}

/* update n elements of the weights from `at` on */
static int launch(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t n,
		  const struct states *x)
{
	const struct te__adamw_range *range = a->range;
	const int64_t end = at + n;
	struct states now = *x;
	int r = 0;

	if (!range)
		return launch_group(stream, a, a->group, at, n, x);
	for (; at < end && r >= 0; range++) {
		const int64_t len = (range->end < end ? range->end : end) - at;

		if (len <= 0)
			continue;
		r = launch_group(stream, a, &a->group[range->group], at, len, &now);
		now = states_after(a, &now, len);
		at += len;
	}
	return r;
}

/* ---- moments and more in host memory ---- */

static size_t aligned(size_t nbytes)
{
	return (nbytes + 255) / 256 * 256;
}

size_t te__adamw_buf_nbytes(enum te_moments moments, const struct te__adamw_chunks *c)
{
	const int64_t n = c->nelems;

	return 2 * (aligned(code_nbytes(moments, n)) + aligned(exp_nbytes(moments, n))) +
	       (c->rest ? aligned((size_t)n * sizeof(uint16_t)) : 0) +
	       aligned((size_t)(n * c->w)) + aligned((size_t)(n * c->g));
}

/* the states of a chunk in a buffer; those that are not in host memory stay where they are */
static struct states states_in(const struct te__adamw_chunks *c, char *buf,
			       enum te_moments moments, const struct states *host)
{
	const size_t codes = aligned(code_nbytes(moments, c->nelems));
	const size_t exps = aligned(exp_nbytes(moments, c->nelems));
	struct states x = { host->w, host->g, buf, buf + codes, NULL, NULL, host->rest };

	buf += 2 * codes;
	if (exps) {
		x.m_exp = (uint8_t *)buf;
		x.v_exp = x.m_exp + exps;
		buf += 2 * exps;
	}
	if (c->rest) {
		x.rest = (uint16_t *)(void *)buf;
		buf += aligned((size_t)c->nelems * sizeof(*x.rest));
	}
	if (c->w) {
		x.w = buf;
		buf += aligned((size_t)(c->nelems * c->w));
	}
	if (c->g)
		x.g = buf;
	return x;
}

/* all but gradients */
static int copy_states(struct te_stream *stream, const struct te__adamw *a, int64_t n,
		       const struct states *dst, const struct states *src)
{
	const enum te_moments moments = te__adamw_moments(a->m);
	const size_t codes = code_nbytes(moments, n), exps = exp_nbytes(moments, n);
	int r = te_copy(stream, dst->m, src->m, codes);

	if (!r && dst->w != src->w)
		r = te_copy(stream, dst->w, src->w, (size_t)(n * element_nbytes(a->w)));
	if (!r)
		r = te_copy(stream, dst->v, src->v, codes);
	if (!r && exps)
		r = te_copy(stream, dst->m_exp, src->m_exp, exps);
	if (!r && exps)
		r = te_copy(stream, dst->v_exp, src->v_exp, exps);
	if (!r && dst->rest != src->rest)
		r = te_copy(stream, dst->rest, src->rest, (size_t)n * sizeof(*src->rest));
	return r;
}

/*
 * A recording orders these by the memory that they access: a chunk is copied to a buffer once the
 * buffer's previous chunk has been copied back, while other buffers are in use. w: memory for the
 * weights, or NULL.
 */
static int update_chunk(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t n,
			const struct states *host, char *buf, char *w)
{
	const enum te_moments kind = te__adamw_moments(a->m);
	struct states device = states_in(a->chunks, buf, kind, host);
	int r;

	device.w = w ? w : device.w;
	r = copy_states(stream, a, n, &device, host);
	if (!r && device.g != host->g)
		r = te_copy(stream, device.g, host->g, (size_t)(n * element_nbytes(a->g)));
	if (!r)
		r = launch(stream, a, at, n, &device);
	return r < 0 ? r : copy_states(stream, a, n, host, &device);
}

/* states in tensors from the element at `at` on, and what a slot has of them */
static void find_states(const struct te__adamw *a, int64_t at, int64_t m_at,
			const struct te__adamw_chunks *kept, char *slot, struct states *ret_now,
			struct states *ret_kept)
{
	const int64_t nm = a->own ? a->own->nelems + a->own->ntail : a->n;

	*ret_now = states_from(a, m_at, nm, at);
	*ret_kept = states_in(kept, slot, te__adamw_moments(a->m), ret_now);
	ret_now->m = ret_kept->m;
	ret_now->v = ret_kept->v;
	ret_now->m_exp = ret_kept->m_exp;
	ret_now->v_exp = ret_kept->v_exp;
}

/* copy weights and remainders, to a slot or from it */
static int copy_weights(struct te_stream *stream, const struct te__adamw *a, int64_t n,
			const struct states *dst, const struct states *src)
{
	int r = te_copy(stream, dst->w, src->w, (size_t)(n * element_nbytes(a->w)));

	return r || !src->rest || !dst->rest ?
		       r :
		       te_copy(stream, dst->rest, src->rest, (size_t)n * sizeof(*src->rest));
}

int te__adamw_chunk(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t m_at,
		    int64_t n, const struct te__adamw_chunks *kept, char *slot)
{
	struct states now, old;

	find_states(a, at, m_at, kept, slot, &now, &old);
	return update_chunk(stream, a, at, n, &now, a->chunks->buf, NULL);
}

int te__adamw_keep(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t m_at,
		   int64_t n, const struct te__adamw_chunks *kept, char *slot, int back)
{
	struct states now, old;

	find_states(a, at, m_at, kept, slot, &now, &old);
	return copy_weights(stream, a, n, back ? &now : &old, back ? &old : &now);
}

char *te__adamw_slot_moment(const struct te__adamw_chunks *kept, enum te_moments moments,
			    char *slot, int second, int exponents)
{
	const struct states none = { 0 }, x = states_in(kept, slot, moments, &none);

	if (exponents)
		return (char *)(second ? x.v_exp : x.m_exp);
	return second ? x.v : x.m;
}

static int update_units(struct te_stream *stream, const struct te__adamw *a)
{
	const struct te__adamw_chunks *c = a->chunks;
	const size_t size = te__adamw_buf_nbytes(te__adamw_moments(a->m), c);
	const int64_t wsize = element_nbytes(a->w), nm = a->n;
	int64_t begin = 0, nchunks = 0, n;
	int r = 0;

	for (int u = 0; u < c->casts->nunits && r >= 0; u++) {
		const int64_t end = c->casts->unit[u].end;
		char *w = c->casts->buf + u % 2 * c->casts->nelems * wsize;

		for (int64_t at = begin; at < end && r >= 0; at += n, nchunks++) {
			const struct states x = states_from(a, at, nm, at);

			n = end - at < c->nelems ? end - at : c->nelems;
			r = update_chunk(stream, a, at, n, &x,
					 c->buf + (size_t)(nchunks % TE__ADAMW_NBUFS) * size,
					 w + (at - begin) * wsize);
		}
		if (r >= 0)
			r = c->casts->run(stream, c->casts, u, w);
		begin = end;
	}
	return r < 0 ? r : c->casts->end(stream, c->casts);
}

/* update n elements of the weights from `at` on, whose moments begin at m_at of nm elements */
static int update(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t n,
		  int64_t m_at, int64_t nm)
{
	const struct te__adamw_chunks *c = a->chunks;
	const size_t size =
		c ? te__adamw_buf_nbytes(te__adamw_moments(a->m), c) : 0;
	struct states x = states_from(a, m_at, nm, at);
	int r = 0;

	if (!c)
		return n ? launch(stream, a, at, n, &x) : 0;
	if (c->casts)
		return update_units(stream, a);
	for (int64_t i = 0; i < n && r >= 0; i += c->nelems) {
		x = states_from(a, m_at + i, nm, at + i);
		r = update_chunk(stream, a, at + i, n - i < c->nelems ? n - i : c->nelems, &x,
				 c->buf + (size_t)(i / c->nelems % TE__ADAMW_NBUFS) * size, NULL);
	}
	return r;
}

/* norm, clip factor and bias corrections of a group */
static int begin(struct te_stream *stream, const struct te__adamw *a,
		 const struct te__adamw_group *group)
{
	const struct te_k_adamw_begin k = {
		.part = a->part,
		.state = group->state,
		.version = group->version,
		.beta1 = group->beta1,
		.beta2 = group->beta2,
		.max_norm = a->max_grad_norm,
		.nmore = a->shards ? a->shards->nshards - 1 : a->own_g ? a->own->nparts - 1 : 0,
	};

	return TE__LAUNCH(stream, ADAMW_BEGIN, &k);
}

int te__adamw_update(struct te_stream *stream, const struct te__adamw *a)
{
	const struct te__adamw_part *own = a->own;
	const int64_t nm = own ? own->nelems + own->ntail : a->n;
	int r = 0;

	for (int32_t i = 0; i < a->ngroups && r >= 0; i++)
		r = begin(stream, a, &a->group[i]);
	if (r < 0)
		return r;
	if (a->update_file)
		return a->update_file(a->file, stream, a);
	if (!own)
		return update(stream, a, 0, nm, 0, nm);
	r = update(stream, a, own->first, own->nelems, 0, nm);
	return r < 0 ? r : update(stream, a, own->tail, own->ntail, own->nelems, nm);
}

/* gather the updated weights of all parts */
static int gather_part(struct te_stream *stream, const struct te__adamw *a)
{
	static const char fn[] = "te_adamw_step";
	const size_t n = (size_t)a->own->nelems;
	int r = te__adamw_gather(fn, stream, a->own, te_tensor_data(a->w),
				 n * te_dtype_nbytes(te_tensor_dtype(a->w)));

	if (r >= 0 && a->remainder)
		r = te__adamw_gather(fn, stream, a->own, a->remainder,
				     n * sizeof(*a->remainder));
	return r;
}

int te__adamw_step(struct te_stream *stream, const struct te__adamw *a)
{
	const int32_t set = a->shards ? a->shards->shard : a->own_g ? a->own->part : 0;
	const struct te_k_sumsq sumsq = {
		.x = te_tensor_data(a->g),
		.part = a->part + set * TE_K_SUMSQ_PARTS,
		/* what all parts have counts in the first one */
		.n = a->own_g && set ? a->own->nelems : te_tensor_nelems(a->g),
		.skip = a->skip,
		.dtype = te_tensor_dtype(a->g),
	};
	int r = TE__LAUNCH(stream, SUMSQ, &sumsq);

	if (r >= 0 && a->shards)
		r = gather(stream, a->shards, a->part);
	if (r >= 0 && a->own_g)
		r = te__adamw_gather("te_adamw_step", stream, a->own, a->part,
				     TE_K_SUMSQ_PARTS * sizeof(*a->part));
	if (r >= 0)
		r = a->update ? te_recording_launch(a->update, stream) :
				te__adamw_update(stream, a);
	return r >= 0 && a->own && !a->own_w ? gather_part(stream, a) : r;
}

static int check_state(const char *fn, const struct te_stream *stream, const void *state)
{
	if (!stream || !state)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, stream ? "state" : "stream");
	if ((uintptr_t)state % sizeof(uint64_t))
		return te__fail(-EINVAL, "%s: state at %p is not aligned to %zu bytes", fn, state,
				sizeof(uint64_t));
	return 0;
}

size_t te_kernel_adamw_state_nbytes(void)
{
	return sizeof(struct state);
}

size_t te_kernel_adamw_ws_nbytes(void)
{
	return TE_K_SUMSQ_PARTS * sizeof(double);
}

static int init(struct te_stream *stream, struct state *s, float lr)
{
	static const char fn[] = "te_kernel_adamw_init";
	const double one = 1.0;
	const float clip = 1.0f;
	uint32_t words[2], clip_bits;
	int r = check_state(fn, stream, s);

	memcpy(words, &one, sizeof(words));
	memcpy(&clip_bits, &clip, sizeof(clip_bits));
	if (!r)
		r = te_fill_u32(stream, s, 0, sizeof(*s));
	for (int i = 0; i < 2 && !r; i++) {
		r = te_fill_u32(stream, (uint32_t *)(void *)&s->adamw.beta1_t + i, words[i], 4);
		if (!r)
			r = te_fill_u32(stream, (uint32_t *)(void *)&s->adamw.beta2_t + i, words[i],
					4);
	}
	if (!r)
		r = te_fill_u32(stream, &s->adamw.clip, clip_bits, 4);
	return r ? r : te__adamw_set_lr(fn, stream, &s->adamw, lr);
}

int te_kernel_adamw_init(struct te_stream *stream, void *state, float lr)
{
	return te__stream_queued(stream, init(stream, state, lr));
}

int te_kernel_adamw_set_lr(struct te_stream *stream, void *state, float lr)
{
	static const char fn[] = "te_kernel_adamw_set_lr";
	struct state *s = state;
	int r = check_state(fn, stream, state);

	if (!r)
		r = te__adamw_set_lr(fn, stream, &s->adamw, lr);
	return te__stream_queued(stream, r);
}

static int step(struct te_stream *stream, struct te__adamw *a, struct state *s, void *ws,
		size_t ws_nbytes, const struct te_kernel_adamw_opts *opts)
{
	struct te__adamw_group group;
	static const char fn[] = "te_kernel_adamw_step";
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;
	int r = opts ? te__sized_in(fn, te_kernel_adamw_opts, opts, &o) : 0;
	enum te_dtype dtype = TE_DTYPE_FP32, wtype = TE_DTYPE_FP32;
	int64_t n, nm;

	if (!r)
		r = te__adamw_check(fn, o.beta1, o.beta2, o.eps, o.weight_decay, o.max_grad_norm);
	if (!r)
		r = check_state(fn, stream, s);
	if (!r && !a->w)
		r = te__fail(-EINVAL, "%s: w is NULL", fn);
	if (r < 0)
		return r;
	n = nm = a->n = te_tensor_nelems(a->w);
	if (te_tensor_dtype(a->w) == TE_DTYPE_BF16)
		wtype = TE_DTYPE_BF16;
	else if (o.remainder)
		return te__fail(-EINVAL, "%s: remainder, and w is %s, expected bf16", fn,
				te_dtype_name(te_tensor_dtype(a->w)));
	if (o.remainder && (uintptr_t)te_tensor_data(o.remainder) % sizeof(uint16_t))
		return te__fail(-EINVAL, "%s: remainder is not aligned to 2 bytes", fn);
	if (a->m && te__adamw_moments(a->m) != TE_MOMENTS_FP32)
		dtype = te_tensor_dtype(a->m);
	if (dtype == TE_DTYPE_UINT8)
		nm = te_k_moment_nbytes(TE_K_MOMENTS_FP8, n);
	r = te__args(fn, stream, (const struct te__arg[]){
		{ "g", a->g, TE_DTYPE_FP32, 0, n, TE__ARG_GRAD, 0 },
		{ "w", a->w, (int32_t)wtype, 0, n, TE__ARG_OUT, 0 },
		{ "m", a->m, (int32_t)dtype, 0, nm, TE__ARG_OUT, 0 },
		{ "v", a->v, (int32_t)dtype, 0, nm, TE__ARG_OUT, 0 },
		{ "decay", o.decay, TE_DTYPE_UINT8, 0,
		  (n + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT, TE__ARG_NULL, 0 },
		{ "remainder", o.remainder, TE_DTYPE_UINT8, 0, 2 * n,
		  TE__ARG_OUT | TE__ARG_NULL, 0 },
	}, 6);
	if (!r)
		r = te__arg_ws(fn, ws, ws_nbytes, te_kernel_adamw_ws_nbytes());
	if (r < 0)
		return r;
	a->part = ws;
	a->decay = te__ops_ptr(o.decay);
	a->remainder = te__ops_ptr(o.remainder);
	group = (struct te__adamw_group){ &s->adamw, &s->version, o.beta1, o.beta2,
					  o.weight_decay };
	a->group = &group;
	a->ngroups = 1;
	a->eps = o.eps;
	a->max_grad_norm = o.max_grad_norm;
	return te__adamw_step(stream, a);
}

int te_kernel_adamw_step(struct te_stream *stream, const struct te_tensor *g, struct te_tensor *w,
			 struct te_tensor *m, struct te_tensor *v, void *state, void *ws,
			 size_t ws_nbytes, const struct te_kernel_adamw_opts *opts)
{
	struct te__adamw a = { .g = g, .w = w, .m = m, .v = v };

	return TE__KERNELS(stream, step(stream, &a, state, ws, ws_nbytes, opts));
}
