/*
 * t/plan/weights_hosted.c - TE_SEQ_HOST_MASTERS and TE_SEQ_HOST_GRADS: weights and gradients in
 * host memory have the bits of those in device memory, in each recipe and order of passes, and
 * plans take the memory of a few at a time.
 */
#include "config.h"

#include <stdlib.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>

#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"
#include "weights_pair.h"

static const struct model_shape llama = { 48, 160, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape gpt = { 48, 48, 2, 16, 4, 4, 2, 0, 0 }; /* its head is tied */
/* the last two on the host backend only */
static const char *const recipes[] = { "bf16", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8",
				       "nvfp4" };

#define MASTERS (TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_MASTERS)
#define BOTH (MASTERS | TE_SEQ_HOST_GRADS)
#define HOSTED (TE_SEQ_HOST_MASTERS | TE_SEQ_HOST_GRADS)

static int nrecipes(void)
{
	return (int)TT_LEN(recipes) - (strcmp(backend, "host") ? 2 : 0);
}

static struct te_seq *complete(const struct model_shape *m, uint32_t flags)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, m);

	b.flags = flags;
	DO(te_seq_complete(s));
	DO(te_seq_bind(s, &b));
	return s;
}

static void make_pair(struct pair *q, const struct model_shape *m, const char *recipe,
		      uint32_t seq_flags, uint32_t flags, int recompute, uint32_t adamw_flags)
{
	static const char *const again[] = { "h.*" };
	const struct te_recipe r = model_recipe(recipe);
	struct te_plan_opts o = pair_opts(m, &r, flags);
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;

	o.nrecompute = recompute;
	o.recompute = again;
	for (int i = 0; i < 2; i++) {
		q->s[i] = complete(m, i ? seq_flags : seq_flags & ~(uint32_t)HOSTED);
		DO(te_seq_init(q->s[i], 5));
		DO(te_plan_create(q->s[i], &o, &q->p[i]));
		ao.where = i ? TE_ADAMW_HOST : TE_ADAMW_DEVICE;
		/* chunks end within weights */
		ao.chunk_nelems = !i ? 0 : seq_flags == MASTERS ? 1024 : 4096;
		ao.flags = i ? adamw_flags : 0;
		DO(te_adamw_create(q->s[i], &ao, &q->opt[i]));
		DO(te_adamw_set_lr(q->opt[i], st, 1e-2f));
	}
	ck_assert_int_eq(q->p[0]->nhosted, 0);
	ck_assert_int_gt(q->p[1]->nhosted, 0);
}

static const struct {
	const struct model_shape *m;
	uint32_t seq_flags, flags;
	int recompute;
	uint32_t adamw_flags;
} ways[] = {
	{ &llama, BOTH | TE_SEQ_BF16_GRADS, 0, 0, 0 },
	{ &gpt, MASTERS | TE_SEQ_REMAINDERS, TE_PLAN_NO_FUSION, 0, 0 },
	{ &gpt, BOTH | TE_SEQ_RECOMPUTE_COLS, TE_PLAN_DELAY_DW, 0, TE_ADAMW_CAST },
	{ &llama, BOTH, TE_PLAN_RECOMPUTE_COSTLY, 1, 0 },
	{ &llama, MASTERS, 0, 0, TE_ADAMW_CAST }, /* some weights have more than 32 chunks */
};

/* every other step begins as a te_step's: what a gradient has is not read before it is written */
static void zero(const struct pair *q, int i, int step)
{
	for (int k = 0; k < te_seq_nweights(q->s[i]) && step % 2; k++) {
		const struct te_tensor *grad = weight(q->s[i], k).grad; /* without padding */

		DO(te_fill(st, te_tensor_data(grad), 0xff, te_tensor_nbytes(grad)));
	}
	DO(step % 2 ? te__plans_zero_grads(&q->p[i], 1, st) : te_seq_zero_grads(q->s[i], st));
}

CTX_CASE(hosted, "plan numeric");

TEST_EACH(hosted, host_memory_gives_the_bits_of_device_memory, (int)TT_LEN(ways) * nrecipes(),
	  .parts = 5)
{
	const int k = _i % (int)TT_LEN(ways);
	struct pair q;

	make_pair(&q, ways[k].m, recipes[_i / (int)TT_LEN(ways)], ways[k].seq_flags,
		  TE_PLAN_TRAIN | ways[k].flags, ways[k].recompute, ways[k].adamw_flags);
	for (int step = 0; step < 3; step++) {
		for (int i = 0; i < 2; i++)
			zero(&q, i, step);
		for (int micro = 0; micro < 2; micro++) {
			pair_feed(&q, ways[k].m);
			for (int i = 0; i < 2; i++)
				pair_queue_pass(q.p[i]);
			pair_same(&q);
		}
		for (int i = 0; i < 2; i++)
			DO(te_adamw_step(q.opt[i], st));
		pair_same(&q);
	}
	pair_free(&q);
}

/* an embedding, a linear op with its table, and larger ones after them */
static struct te_seq *tied(uint32_t flags)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 64, 32, 0, 0.5f, 0);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_op *op[4];
	struct te_seq *s;

	b.flags = flags;
	DO(te_seq_create(ctx, &s));
	DO(te_op_embedding(&ea, "emb", &op[0]));
	for (int i = 1; i < 4; i++) {
		const char *const name[] = { "tied", "up", "down" };
		const int64_t width[] = { 32, 64, 1024, 32 };
		struct te_linear_attrs a = TE_ATTRS(linear, width[i - 1], width[i], 0.1f, 0,
						    i == 1 ? op[0] : NULL);

		DO(te_op_linear(&a, name[i - 1], &op[i]));
	}
	for (int i = 0; i < 4; i++) {
		DO(te_seq_append(s, op[i]));
		te_op_unref(op[i]);
	}
	DO(te_seq_complete(s));
	DO(te_seq_bind(s, &b));
	DO(te_seq_init(s, 5));
	return s;
}

/* two groups add to one gradient: its buffer for the second is not filled before the first has
 * copied it back */
TEST(hosted, a_sum_is_copied_back_before_it_is_read_again)
{
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *s[2];

	o.recipe = &r;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	for (int i = 0; i < 2; i++) {
		int32_t x[32];
		float dy[32 * 32];
		struct te_plan *p;

		for (int k = 0; k < 32; k++)
			x[k] = k * 7 % 64;
		for (int k = 0; k < 32 * 32; k++)
			dy[k] = (float)(k * 37 % 64 - 32) / 32;
		s[i] = tied(i ? BOTH : TE_SEQ_BF16_MASTERS);
		DO(te_plan_create(s[i], &o, &p));
		DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
		DO(te_seq_zero_grads(s[i], st));
		DO(te_plan_forward(p, st, 0));
		DO(te_stream_sync(st));
		tt_tensor_set(te_plan_output_grad(p), dy);
		DO(te_plan_backward(p, st));
		DO(te_stream_sync(st));
		te_plan_unref(p);
	}
	model_same(te_seq_grads(s[0]), te_seq_grads(s[1]), "gradients");
	te_seq_unref(s[0]);
	te_seq_unref(s[1]);
}

/* copies that depend on the memory that they access only */
TEST_EACH(hosted, a_recorded_step_copies_each_time, 2 * 2)
{
	const int k = _i % 2;
	struct te_recording *rec;
	struct pair q;

	make_pair(&q, k ? &gpt : &llama, recipes[_i / 2], BOTH, TE_PLAN_TRAIN, 0,
		  k ? TE_ADAMW_CAST : 0);
	pair_feed(&q, k ? &gpt : &llama);
	for (int i = 0; i < 2; i++) /* GEMMs choose their algorithm outside the capture */
		pair_queue_step(&q, i);
	DO(te_stream_sync(st));
	DO(te_capture_begin(st));
	DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT));
	pair_queue_step(&q, 1);
	DO(te_capture_end(st, &rec));
	for (int step = 0; step < 3; step++) {
		pair_feed(&q, k ? &gpt : &llama);
		pair_queue_step(&q, 0);
		DO(te_recording_launch(rec, st));
		pair_same(&q);
	}
	te_recording_unref(rec);
	pair_free(&q);
}

/* a plan of the first layer: its gradients are as they were until it runs, others are zeros */
TEST(hosted, zeros_are_copied_for_what_no_plan_adds_to)
{
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	struct te_seq *s = complete(&llama, BOTH);
	struct te_tensor *grads;
	struct te_plan *p;
	float *value;

	DO(te_seq_init(s, 5));
	o.stop_before = "h.1.ln1";
	DO(te_plan_create(s, &o, &p));
	grads = te_seq_grads(s);
	DO(te_fill(st, te_tensor_data(grads), 0x3f, te_tensor_nbytes(grads)));
	DO(te__plans_zero_grads(&p, 1, st));
	DO(te_stream_sync(st));
	value = tt_tensor_get(grads);
	for (int k = 0; k < te_seq_nweights(s); k++) {
		const struct te_weight_info w = weight(s, k);
		const int adds = te__plan_adds(p, k);

		ck_assert_int_eq(adds, !strncmp(w.name, "h.0.", 4) || !strncmp(w.name, "emb", 3));
		for (int64_t i = 0; i < te_tensor_nelems(w.grad); i++)
			ck_assert_int_eq(value[w.offset_nelems + i] != 0, adds);
	}
	free(value);
	te_plan_unref(p);
	te_seq_unref(s);
}

/* a pass after the update finds the copies current: it neither reads masters nor writes copies */
TEST_EACH(hosted, an_update_casts_the_weights, nrecipes(), .parts = 5)
{
	const struct te__copies *set;
	struct te_k_weights_done done;
	uint64_t version;
	struct pair q;

	make_pair(&q, &llama, recipes[_i], MASTERS, TE_PLAN_TRAIN, 0, TE_ADAMW_CAST);
	pair_feed(&q, &llama);
	for (int step = 0; step < 2; step++)
		for (int i = 0; i < 2; i++)
			pair_queue_step(&q, i);
	DO(te_stream_sync(st));
	for (int i = 0; i < 2; i++) {
		DO(te_copy(st, &version, q.s[i]->version, sizeof(version)));
		for (set = q.s[i]->copies; set; set = set->next) {
			DO(te_copy(st, &done, set->args.done, sizeof(done)));
			DO(te_stream_sync(st));
			ck_assert_uint_eq(done.copies, version - !i);
			if (set->flags & TE__WEIGHTS_RECORD)
				ck_assert_uint_eq(done.amax, version - !i);
		}
	}
	/* unless the masters change otherwise */
	DO(te_seq_weights_changed(q.s[1], st));
	for (int i = 0; i < 2; i++)
		pair_queue_pass(q.p[i]);
	pair_same(&q);
	pair_free(&q);
}

/* ---- memory ---- */

TEST_EACH(hosted, a_few_are_in_device_memory_at_a_time, 2)
{
	const uint32_t flags[] = { TE_SEQ_BF16_MASTERS, BOTH };
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	const struct te_recipe r = model_recipe(recipes[_i]);
	uint64_t n = 0, most = 0;

	for (int i = 0; i < 2; i++) {
		struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
		struct te_seq *s = complete(&llama, flags[i]);
		struct te_plan *p;
		uint64_t before;

		DO(te_plan_create(s, &o, &p));
		DO(te_plan_memory(p, &mem[i]));
		te_plan_unref(p);
		before = pair_measured();
		DO(te_seq_init(s, 5));
		o.flags = TE_PLAN_TRAIN;
		DO(te_plan_create(s, &o, &p));
		ck_assert_uint_le(pair_measured() - before, mem[i].total_nbytes + 512 * 16);
		ck_assert_uint_ge(pair_measured() - before, mem[i].total_nbytes - 512 * 16);
		n = (uint64_t)te_seq_nelems(s);
		for (int k = 0; k < te_seq_nweights(s); k++)
			if (te_tensor_nbytes(weight(s, k).grad) > most)
				most = te_tensor_nbytes(weight(s, k).grad);
		te_plan_unref(p);
		te_seq_unref(s);
	}
	ck_assert_uint_eq(mem[0].weights_nbytes, n * 6);
	ck_assert_uint_eq(mem[1].weights_nbytes, n * 4); /* zeros, below 64 MiB */
	ck_assert_uint_ge(mem[1].copies_nbytes, mem[0].copies_nbytes);
	ck_assert_uint_gt(mem[1].arena_nbytes, mem[0].arena_nbytes);
	/* a gradient, half of the largest before and after it, and a master; but a GPU's plan gives
	 * no small buffer the memory of another (offsets.c) */
	if (!strcmp(backend, "host"))
		ck_assert_uint_le(mem[1].arena_nbytes, mem[0].arena_nbytes + 3 * most);
}

TEST(hosted, a_plan_lists_the_copies)
{
	const struct te_recipe r = model_recipe("bf16");
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	struct te_seq *s = complete(&llama, BOTH);
	struct te_plan *p;
	char *text, *line;
	int n = 0;

	DO(te_plan_create(s, &o, &p));
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	line = strstr(text, "weights and gradients in host memory, copied for a group:\n");
	ck_assert_ptr_nonnull(line);
	for (char *at = line; (at = strstr(at, "  h.1.proj.weight ")); at++, n++) {
		int group, first, last;
		const char *end = strchr(at, '\n');

		ck_assert_int_eq(sscanf(strchr(at, ']') + 1, "%*s %d", &group), 1);
		while (*end != '[')
			end--;
		ck_assert_int_eq(sscanf(end, "[%d,%d]", &first, &last), 2);
		ck_assert_int_le(first, group);
		ck_assert_int_ge(last, group);
		ck_assert_int_eq(first >= p->fwd_groups, group >= p->fwd_groups);
	}
	ck_assert_int_eq(n, 3); /* forward, the gradient of the input, and of the weight */
	free(text);
	te_plan_unref(p);
	te_seq_unref(s);
}

/* ---- a hook, and errors ---- */

static struct te_seq *hooked;
static float seen;

static int look(void *arg, struct te_plan *p, const struct te_plan_event *e)
{
	const struct te_tensor *grad = weight(hooked, e->weight).grad;
	float *value;

	(void)arg;
	(void)p;
	if (strcmp(weight(hooked, e->weight).name, "h.1.proj.weight"))
		return 0;
	DO(te_stream_sync(e->stream));
	value = tt_tensor_get(grad);
	for (int64_t k = 0; k < te_tensor_nelems(grad); k++)
		seen += value[k] * value[k];
	free(value);
	return 0;
}

/* a hook of gradients finds them in host memory */
TEST(hosted, a_hook_finds_the_gradient)
{
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	struct te_plan *p;

	o.hook = look;
	o.hooks = 1u << TE_PLAN_EVENT_GRAD;
	hooked = complete(&llama, BOTH);
	DO(te_seq_init(hooked, 5));
	DO(te_plan_create(hooked, &o, &p));
	model_feed(p, &llama);
	DO(te_seq_zero_grads(hooked, st));
	seen = 0;
	pair_queue_pass(p);
	DO(te_stream_sync(st));
	ck_assert_float_gt(seen, 0);
	te_plan_unref(p);
	te_seq_unref(hooked);
}

static int gather(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	(void)arg;
	(void)stream;
	(void)all;
	(void)nbytes;
	return 0;
}

TEST(hosted, what_cannot_be_in_host_memory_is_refused)
{
	struct te_seq *s = model_create_unbound(ctx, &llama);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_adamw_opts cast = TE_ADAMW_OPTS_INIT, two;
	struct te_adamw *opt;

	cast.where = TE_ADAMW_HOST;
	cast.flags = TE_ADAMW_CAST;
	two = cast;
	two.nparts = 2;
	two.gather = gather;
	DO(te_seq_complete(s));
	b.flags = TE_SEQ_HOST_MASTERS;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_HOST_MASTERS without TE_SEQ_BF16_MASTERS");
	b.flags = TE_SEQ_HOST_GRADS | TE_SEQ_NO_GRADS;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_HOST_GRADS, and TE_SEQ_NO_GRADS");
	b.flags = TE_SEQ_HOST_GRADS;
	b.grads = (void *)(uintptr_t)4096;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_HOST_GRADS, and grads");
	te_seq_unref(s);
	for (int i = 0; i < 2; i++) {
		s = complete(&llama, i ? MASTERS : TE_SEQ_HOST_GRADS);
		DO(te_seq_init(s, 5));
		fails(te_adamw_create(s, NULL, &opt), -EINVAL, "expected TE_ADAMW_HOST");
		fails(te_adamw_create(s, &two, &opt), -EINVAL,
		      "TE_ADAMW_CAST, expected masters of TE_SEQ_HOST_MASTERS without "
		      "TE_SEQ_REMAINDERS, and one part");
		te_seq_unref(s);
		s = complete(&llama, i ? MASTERS | TE_SEQ_REMAINDERS : TE_SEQ_BF16_MASTERS);
		DO(te_seq_init(s, 5));
		fails(te_adamw_create(s, &cast, &opt), -EINVAL, "without TE_SEQ_REMAINDERS");
		te_seq_unref(s);
	}
}

static int create(void)
{
	const struct te_recipe r = model_recipe("bf16");
	struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	struct te_linear_attrs a = TE_ATTRS(linear, 64, 32, 0.02f, 0, NULL);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_op *op = NULL;
	struct te_plan *p = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	int n = tt_ctx_new(&c);

	b.flags = BOTH;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 64 } };
	if (!n)
		n = te_seq_create(c, &s);
	if (!n)
		n = te_op_linear(&a, "l", &op);
	if (!n)
		n = te_seq_append(s, op);
	if (!n)
		n = te_seq_complete(s);
	if (!n)
		n = te_seq_bind(s, &b);
	if (!n)
		n = te_seq_init(s, 1);
	if (!n)
		n = te_plan_create(s, &o, &p);
	if (!n)
		tt_fault_end(); /* host memory is drained before it is released */
	te_plan_unref(p);
	te_seq_unref(s);
	te_op_unref(op);
	te_ctx_unref(c);
	return n;
}

CASE(faults_of_hosted, "host", .name = "faults of hosted");

TEST_IF(faults_of_hosted, survives_every_failed_allocation, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(create), 20);
}
