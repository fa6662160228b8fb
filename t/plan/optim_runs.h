/* t/plan/optim_runs.h - runs of AdamW with moments in different memory. */
#ifndef OPTIM_RUNS_H
#define OPTIM_RUNS_H

#include <math.h>

#include <te/capture.h>
#include <te/optim.h>
#include "kernels/te_k.h"

#include "tt_ctx.h"

#define NSTEPS 5

/* 1961 elements, padded to 1984, and 53, padded to 64: 32 blocks */
static const int32_t chunks[] = { 0, 64, 192, 1024, 1984, 1 << 20 };
static const uint32_t masters[] = { 0, TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS,
				    TE_SEQ_BF16_MASTERS };
#define HOST_MASTERS (TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS | TE_SEQ_HOST_REMAINDERS)

/* a sequence and its optimizer */
struct run {
	struct te_seq *seq;
	struct te_adamw *opt;
	size_t n; /* elements of the flat buffers */
};

static int build(struct te_ctx *c, uint32_t flags, struct te_seq **ret_seq)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 37, 53, 0, 0.5f, 0);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_bias_attrs ba = TE_ATTRS(bias, 53);
	struct te_op *emb = NULL, *bias = NULL;
	int r = te_seq_create(c, ret_seq);

	b.flags = flags;
	if (r >= 0)
		r = te_op_embedding(&ea, "emb", &emb);
	if (r >= 0)
		r = te_seq_append(*ret_seq, emb);
	if (r >= 0)
		r = te_op_bias(&ba, "b", &bias);
	if (r >= 0)
		r = te_seq_append(*ret_seq, bias);
	if (r >= 0)
		r = te_seq_complete(*ret_seq);
	if (r >= 0)
		r = te_seq_bind(*ret_seq, &b);
	if (r >= 0)
		r = te_seq_init(*ret_seq, 7);
	te_op_unref(emb);
	te_op_unref(bias);
	return r;
}

static struct run start(uint32_t flags, const struct te_adamw_opts *o)
{
	struct run r;

	DO(build(ctx, flags, &r.seq));
	r.n = (size_t)te_tensor_nelems(te_seq_grads(r.seq));
	DO(te_adamw_create(r.seq, o, &r.opt));
	DO(te_adamw_set_lr(r.opt, st, 0.02f));
	return r;
}

static void end(struct run *r)
{
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

/* gradients of a step: other ones in each, zero in one block and in the padding, and not finite in
 * step 2 */
static void put_grads(const struct run *r, int step)
{
	float *g = malloc(r->n * sizeof(*g));

	for (size_t i = 0; i < r->n; i++) {
		const uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)step * 40503u;

		g[i] = i / 64 == 3 || (i >= 1961 && i < 1984) || i >= 1984 + 53 ?
			       0 :
			       ((float)(x >> 8) * 0x1p-24f - 0.5f) * (float)(1 + i % 7);
	}
	if (step == 2)
		g[130] = NAN;
	DO(te_tensor_write(te_seq_grads(r->seq), g, r->n * sizeof(*g)));
	free(g);
}

/* how a step is queued */
enum how { EAGER, SERIAL, CONCURRENT };

static struct te_recording *record(const struct run *r, enum how how)
{
	struct te_recording *rec;

	DO(te_capture_begin(st));
	if (how == CONCURRENT)
		DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL));
	DO(te_adamw_step(r->opt, st));
	DO(te_capture_end(st, &rec));
	return rec;
}

static void train(const struct run *r, enum how how)
{
	struct te_recording *rec = how == EAGER ? NULL : record(r, how);

	for (int i = 0; i < NSTEPS; i++) {
		put_grads(r, i);
		if (rec)
			DO(te_recording_launch(rec, st));
		else
			DO(te_adamw_step(r->opt, st));
		DO(te_stream_sync(st));
	}
	te_recording_unref(rec);
}

static void same_bytes(const void *a, const void *b, size_t nbytes, const char *what)
{
	ck_assert_msg(!memcmp(a, b, nbytes), "%s differ", what);
}

/* one of three parts; the others have zeros */
struct part {
	int ncalls, part;
};

static int gather(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	struct part *own = arg;
	int r = 0;

	own->ncalls++;
	for (int i = 0; i < 3 && !r; i++)
		if (i != own->part)
			r = te_fill(stream, (char *)all + (size_t)i * nbytes, 0, nbytes);
	return r;
}

/* a moment of all elements, in memory of the caller */
static void *moment_of(const struct run *r, int second)
{
	void *p = malloc(te_moments_nbytes(te_adamw_moments(r->opt), (int64_t)r->n));

	DO(te_adamw_moments_get(r->opt, second, p));
	return p;
}

/* weights with remainders, moments, and state */
static void same(const struct run *a, const struct run *b)
{
	float *w[2] = { malloc(a->n * sizeof(**w)), malloc(a->n * sizeof(**w)) };
	struct te_k_adamw_state s[2];
	void *m[2];

	DO(te_seq_masters_get(a->seq, 0, (int64_t)a->n, w[0]));
	DO(te_seq_masters_get(b->seq, 0, (int64_t)b->n, w[1]));
	same_bytes(w[0], w[1], a->n * sizeof(**w), "weights");
	for (int second = 0; second < 2; second++) {
		m[0] = moment_of(a, second);
		m[1] = moment_of(b, second);
		same_bytes(m[0], m[1],
			   te_moments_nbytes(te_adamw_moments(a->opt), (int64_t)a->n),
			   second ? "second moments" : "first moments");
		free(m[0]);
		free(m[1]);
	}
	DO(te_adamw_state_get(a->opt, &s[0], sizeof(s[0])));
	DO(te_adamw_state_get(b->opt, &s[1], sizeof(s[1])));
	same_bytes(&s[0], &s[1], sizeof(s[0]), "states");
	ck_assert_uint_eq(s[0].nskipped, 1);
	free(w[0]);
	free(w[1]);
}

/* all that a step changes */
struct state {
	float *w;
	void *m, *v;
	struct te_k_adamw_state s;
};

static struct state state_of(const struct run *r)
{
	struct state x;

	x.w = malloc(r->n * sizeof(*x.w));
	DO(te_seq_masters_get(r->seq, 0, (int64_t)r->n, x.w));
	x.m = moment_of(r, 0);
	x.v = moment_of(r, 1);
	DO(te_adamw_state_get(r->opt, &x.s, sizeof(x.s)));
	return x;
}

static void state_free(struct state *x)
{
	free(x->w);
	free(x->m);
	free(x->v);
}

/* no call has changed anything */
static void same_state(const struct run *r, const struct state *before)
{
	const size_t nbytes = te_moments_nbytes(te_adamw_moments(r->opt), (int64_t)r->n);
	struct state now = state_of(r);

	same_bytes(before->w, now.w, r->n * sizeof(*now.w), "weights");
	same_bytes(before->m, now.m, nbytes, "m");
	same_bytes(before->v, now.v, nbytes, "v");
	same_bytes(&before->s, &now.s, sizeof(now.s), "states");
	state_free(&now);
}

#endif
