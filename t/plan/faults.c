/*
 * t/plan/faults.c - public constructors and a whole training step, with each allocation and driver
 * call failing in turn: an error code with a message, no leak, and a retry that works. Tensors,
 * quantizers and sequences are tested in their own programs.
 */
#include "config.h"

#include <te/ctx.h>
#include <te/errno.h>
#include <te/op.h>
#include <te/optim.h>
#include <te/plan.h>
#include "libtecore/base/private.h"
#include <te/quant.h>
#include <te/seq.h>
#include <te/capture.h>
#include <te/stream.h>

#include "tt_ctx.h"

static int poison; /* an output that was not written points to it */
#define POISON ((void *)&poison)

/* outputs are written on success only */
#define CREATE(r, obj, call)                                            \
	do {                                                            \
		(obj) = POISON;                                         \
		(r) = (call);                                           \
		ck_assert_int_eq((void *)(obj) == POISON, (r) < 0);     \
		if ((r) < 0)                                            \
			(obj) = NULL;                                   \
	} while (0)

static int context(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	struct te_backend_info b = TE_BACKEND_INFO_INIT;
	struct te_ctx *c;
	int r;

	CREATE(r, c, tt_ctx_new(&c));
	if (!r)
		r = te_ctx_device_info(c, &d);
	if (!r)
		r = te_ctx_mem_info(c, &m);
	if (!r)
		r = te_ctx_sync(c);
	if (!r)
		r = te_device_info("host", 0, &d);
	if (!r)
		r = te_backend_info(1, &b);
	te_ctx_unref(c);
	return r;
}

static int stream(void)
{
	struct te_stream *s;
	int r;

	CREATE(r, s, te_stream_create(ctx, &s));
	if (!r)
		r = te_stream_sync(s);
	if (!r)
		r = te_stream_query(s);
	te_stream_unref(s);
	return r < 0 ? r : 0;
}

static int event(void)
{
	struct te_event *e;
	double ms;
	int r;

	CREATE(r, e, te_event_create(ctx, &e));
	if (!r)
		r = te_event_record(e, st);
	if (!r)
		r = te_event_wait(e, st);
	if (!r)
		r = te_event_sync(e);
	if (!r)
		r = te_event_query(e);
	if (r >= 0)
		r = te_event_elapsed_ms(e, e, &ms);
	te_event_unref(e);
	/* queued work holds a reference to the event */
	if (te_stream_sync(st)) {
		ck_assert_int_ge(r, 0);
		r = -ENOMEM;
		ck_assert_int_eq(te_stream_sync(st), 0);
	}
	return r;
}

/* freeing must not fail */
static int memory(void)
{
	void *d, *p = NULL;
	int r;

	CREATE(r, d, te_mem_alloc(st, 1000, &d));
	if (!r)
		CREATE(r, p, te_pinned_alloc(ctx, 1000, &p));
	if (!r)
		r = te_fill(st, d, 1, 1000);
	if (!r)
		r = te_fill_u32(st, d, 1, 1000);
	if (!r)
		r = te_copy(st, p, d, 1000);
	if (!r)
		r = te_stream_sync(st);
	ck_assert_int_eq(te_mem_free(st, d), 0);
	/* the free is queued, and counted once it ran */
	if (te_stream_sync(st)) {
		r = r ? r : -ENOMEM;
		ck_assert_int_eq(te_stream_sync(st), 0);
	}
	ck_assert_int_eq(te_pinned_free(ctx, p), 0);
	return r;
}

static void count(void *arg)
{
	++**(int **)arg;
}

/* te_capture_end() returns the code of the call that failed in the capture */
static int recording(void)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_recording *rec = NULL;
	struct te_stream *side = NULL;
	struct te_event *e = NULL;
	int n = 0, *at = &n;
	unsigned char big[900] = { 0 }; /* too large to be stored in the node itself */
	char d[100];
	int r, q;

	memcpy(big, &at, sizeof(at));
	r = te_stream_create(ctx, &side);
	if (!r)
		r = te_event_create(ctx, &e);
	if (!r)
		r = te_capture_begin(st);
	if (!r) {
		q = te_fill(st, d, 1, sizeof(d));
		if (!q)
			q = te_event_record(e, st);
		if (!q)
			q = te_event_wait(e, side);
		if (!q)
			q = te_host_call(side, count, big, sizeof(big));
		if (!q)
			q = te_event_record(e, side);
		if (!q)
			q = te_event_wait(e, st);
		CREATE(r, rec, te_capture_end(st, &rec));
		ck_assert_int_le(r, q ? -1 : 0);
		ck_assert(!q || r == q);
	}
	if (!r)
		r = te_recording_info(rec, &i);
	if (!r)
		r = te_recording_launch(rec, st);
	if (!r)
		r = te_stream_sync(st);
	if (!r && (n != 1 || i.nnodes != 2))
		r = te__fail(-EPROTO, "%d calls, %d nodes", n, (int)i.nnodes);
	/* after a failed sync the launch may still use variables of this function */
	if (r)
		ck_assert_int_eq(te_stream_sync(st), 0);
	te_recording_unref(rec);
	te_event_unref(e);
	te_stream_unref(side);
	/* the stream is still usable */
	q = te_stream_query(st);
	if (q < 0) {
		ck_assert_int_eq(r, 0);
		r = q;
		q = te_stream_query(st);
	}
	ck_assert_int_ge(q, 0);
	return r;
}

/* ---- ops ---- */

static int forward_nothing(const struct te_op_call *c)
{
	return 0;
}

static int infer_nothing(struct te_op_infer *inf)
{
	return 0;
}

static const struct te_op_ops mine = {
	.size = sizeof(mine),
	.name = "mine",
	.attrs_nbytes = 12,
	.nextra_in = 1,
	.nextra_out = 1,
	.infer = infer_nothing,
	.forward = forward_nothing,
};

static int make_op(int which, struct te_op **ret)
{
	static const struct te_embedding_attrs emb = TE_ATTRS(embedding, 8, 4, 3, 0.1f, 0);
	static const struct te_linear_attrs lin = TE_ATTRS(linear, 4, 8, 0.1f, 0, NULL);
	static const struct te_bias_attrs bias = TE_ATTRS(bias, 4);
	static const struct te_norm_attrs norm = TE_ATTRS(norm, 4, 1e-5f, 0);
	static const struct te_act_attrs act = TE_ATTRS(act, TE_ACT_SILU, 1);
	static const float freq[2] = { 1, 0.01f };
	static const struct te_rope_attrs rope = TE_ATTRS(rope, 2, 1, 4, 10000.0f, freq);
	static const struct te_attention_attrs attn = TE_ATTRS(attention, 2, 1, 4, 0, 0.1f,
									0, 0, 0);
	static const struct te_dropout_attrs drop = TE_ATTRS(dropout, .p = 0.1f);
	static const struct te_cross_entropy_attrs ce = TE_ATTRS(cross_entropy, 8, -100, 1.0f);

	switch (which) {
	case 0:
		return te_op_embedding(&emb, "op", ret);
	case 1:
		return te_op_linear(&lin, "op", ret);
	case 2:
		return te_op_bias(&bias, "op", ret);
	case 3:
		return te_op_layernorm(&norm, "op", ret);
	case 4:
		return te_op_rmsnorm(&norm, "op", ret);
	case 5:
		return te_op_activation(&act, "op", ret);
	case 6:
		return te_op_rope(&rope, "op", ret);
	case 7:
		return te_op_attention(&attn, "op", ret);
	case 8:
		return te_op_dropout(&drop, "op", ret);
	case 9:
		return te_op_cross_entropy(&ce, "op", ret);
	case 10:
		return te_op_create(&mine, "twelve bytes", "op", ret);
	case 11:
		return te_op_fork("op", ret);
	default:
		return te_op_add("op", ret);
	}
}
#define NOPS 13
#define TAKES(which) ((which) == 9 || (which) == 10 || (which) == 12)
#define GIVES(which) ((which) == 10 || (which) == 11)

static int which;

static int op(void)
{
	struct te_op *o;
	int r;

	CREATE(r, o, make_op(which, &o));
	if (!r && TAKES(which))
		r = te_op_take(o, 0, "in");
	if (!r && GIVES(which))
		r = te_op_give(o, 0, "out");
	te_op_unref(o);
	return r;
}

CTX_CASE(objects, "host");

TEST_EACH(objects, an_op_fails_cleanly, NOPS)
{
	which = _i;
	ck_assert_int_ge(tt_fault_each(op), 2);
	ck_assert_int_eq(op(), 0);
}

/* ---- a sequence that is planned, run, trained and saved ---- */

static int never(const struct te_fused *f)
{
	return 0;
}

static const struct te_fusion fusion = {
	.size = sizeof(fusion),
	.name = "never",
	.pattern = "linear bias",
	.applies = never,
	.run = never,
};

struct job {
	struct te_ctx *ctx;
	struct te_stream *st;
	struct te_op *op[4];
	struct te_seq *seq;
	struct te_plan *plan;
	struct te_adamw *opt;
	char *text[2];
	void *state, *blob;
};

static int build(struct job *j)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 16, 16, 0, 1, 0);
	struct te_linear_attrs la = TE_ATTRS(linear, 16, 16, 1, 0, NULL);
	struct te_bias_attrs ba = TE_ATTRS(bias, 16);
	struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, 16, -100, 1.0f);
	int r = tt_ctx_new(&j->ctx);

	if (!r) {
		j->st = te_ctx_stream(j->ctx);
		r = te_seq_create(j->ctx, &j->seq);
	}
	if (!r)
		r = te_op_embedding(&ea, "emb", &j->op[0]);
	if (!r)
		r = te_op_linear(&la, "lin", &j->op[1]);
	if (!r)
		r = te_op_bias(&ba, "bias", &j->op[2]);
	if (!r)
		r = te_op_cross_entropy(&ca, "ce", &j->op[3]);
	if (!r)
		r = te_op_take(j->op[3], 0, "targets");
	if (!r)
		r = te_seq_input(j->seq, "targets", TE_DTYPE_INT32, 0, NULL);
	for (int i = 0; !r && i < 4; i++)
		r = te_seq_append(j->seq, j->op[i]);
	if (!r)
		r = te_seq_init(j->seq, 1);
	return r ? r : te_seq_add_fusion(j->seq, &fusion);
}

static int plan(struct job *j)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 16 } };
	r = te_recipe_from_name("fp8-delayed", &recipe);
	if (!r)
		r = te_plan_create(j->seq, &o, &j->plan);
	if (!r)
		r = te_plan_print(j->plan, TE_PLAN_TEXT, &j->text[0]);
	if (!r)
		r = te_plan_print(j->plan, TE_PLAN_DOT, &j->text[1]);
	return r ? r : te_adamw_create(j->seq, NULL, &j->opt);
}

static int train(struct job *j)
{
	int32_t token[16];
	int r;

	for (int i = 0; i < 16; i++)
		token[i] = i;
	r = te_tensor_write(te_plan_input(j->plan, "x"), token, sizeof(token));
	if (!r)
		r = te_tensor_write(te_plan_input(j->plan, "targets"), token, sizeof(token));
	if (!r)
		r = te_seq_zero_grads(j->seq, j->st);
	if (!r)
		r = te_plan_forward(j->plan, j->st, 0);
	if (!r)
		r = te_plan_backward(j->plan, j->st);
	if (!r)
		r = te_adamw_set_lr(j->opt, j->st, 0.01f);
	return r ? r : te_adamw_step(j->opt, j->st);
}

static int save(struct job *j)
{
	struct te_adamw_stats s = TE_ADAMW_STATS_INIT;
	struct te_quant *q = te_seq_quant(j->seq);
	uint64_t seed, offset;
	float loss = -1;
	int r = te_tensor_read(te_plan_output(j->plan), &loss, sizeof(loss));

	if (!r)
		r = te_adamw_stats(j->opt, &s);
	if (!r && (s.nsteps != 1 || !(loss > 0)))
		r = te__fail(-EPROTO, "%d steps, a loss of %g", (int)s.nsteps, (double)loss);
	j->state = malloc(te_adamw_state_nbytes());
	j->blob = malloc(te_quant_nbytes(q));
	if (!r)
		r = te_adamw_state_get(j->opt, j->state, te_adamw_state_nbytes());
	if (!r)
		r = te_adamw_state_set(j->opt, j->state, te_adamw_state_nbytes());
	if (!r)
		r = te_quant_save(q, j->blob, te_quant_nbytes(q));
	if (!r)
		r = te_quant_load(q, j->blob, te_quant_nbytes(q));
	if (!r)
		r = te_seq_rng_get(j->seq, &seed, &offset);
	return r ? r : te_seq_rng_set(j->seq, seed, offset);
}

/* in a separate context, because the stream's worker keeps GEMM memory until it ends */
static int job(void)
{
	struct job j = { 0 };
	int r = build(&j);

	if (!r)
		r = plan(&j);
	if (!r)
		r = train(&j);
	if (!r)
		r = save(&j);
	free(j.state);
	free(j.blob);
	free(j.text[0]);
	free(j.text[1]);
	te_adamw_unref(j.opt);
	tt_drop(j.plan, j.seq);
	for (int i = 0; i < 4; i++)
		te_op_unref(j.op[i]);
	te_ctx_unref(j.ctx);
	return r;
}

static const struct {
	const char *name;
	int (*fn)(void);
	int least; /* minimum number of faults */
} sweep[] = {
	{ "context", context, 8 },   { "stream", stream, 5 },	     { "event", event, 7 },
	{ "memory", memory, 9 },     { "recording", recording, 15 }, { "job", job, 150 },
};

TEST_EACH(objects, fails_cleanly, TT_LEN(sweep))
{
	int n = tt_fault_each(sweep[_i].fn);

	ck_assert_msg(n >= sweep[_i].least, "%s: %d faults", sweep[_i].name, n);
	ck_assert_int_eq(sweep[_i].fn(), 0);
}

TT_MAIN("plan/faults", TT_ONE_PROCESS)
