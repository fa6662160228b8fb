/*
 * t/plan/plan_bind.c - te_plan_bind(3): parts of a sequence, planned separately in memory of
 * the caller, give the bits of the whole; regions contain all that a step changes; cached weights.
 */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>

#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
#define NRECIPES ((int)TT_LEN(recipes))

static struct te_tensor *tensor_of(const struct te_plan *p, const char *name)
{
	struct te_spec s;
	struct te_tensor *t;

	if (te_plan_spec(p, name, &s))
		return NULL;
	DO(te_tensor_create(ctx, s.dtype, s.ndim, s.shape, NULL, &t));
	DO(te_fill(st, te_tensor_data(t), 0xff, te_tensor_nbytes(t)));
	return t;
}

/* ---- a chain of three plans over one sequence ---- */

#define NPARTS 3
#define GUARD 256

/* what parts are bound to: an arena each, or spans, of which all parts share the scratch */
enum mode { ARENA, SPANS, DELAYED_SPANS, NMODES };

struct chain {
	enum mode mode;
	struct te_plan *part[NPARTS];
	struct te_tensor *between[NPARTS + 1]; /* x, values between parts, loss */
	struct te_tensor *grad[NPARTS + 1];    /* of those */
	struct te_tensor *targets;
	void *arena[NPARTS];
	char *span[NPARTS][TE_SPAN_COUNT], *scratch;
	size_t span_nbytes[NPARTS][TE_SPAN_COUNT], scratch_nbytes;
};

static int saves(int span)
{
	return span >= TE_SPAN_FB;
}

static struct te_plan_opts part_opts(const struct te_plan *before, const struct model_shape *m,
				     const char *recipe, struct te_recipe *ret_recipe, int i,
				     enum mode mode)
{
	static const char *const cut[] = { NULL, "h.1.ln1", "norm", NULL };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	*ret_recipe = model_recipe(recipe);
	o.recipe = ret_recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | (i ? TE_PLAN_INPUT_GRAD : 0) |
		  (mode == DELAYED_SPANS ? TE_PLAN_DELAY_DW : 0);
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	if (before)
		DO(te_plan_spec(before, "out", &o.x));
	o.start_at = cut[i];
	o.stop_before = cut[i + 1];
	return o;
}

static void bind_part(struct chain *c, int i)
{
	const char *names[] = { "x", "targets" };
	struct te_tensor *in[] = { c->between[i], c->targets };
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct te_plan_binding b = TE_PLAN_BINDING_INIT;

	ck_assert_int_eq(te_plan_forward(c->part[i], st, 0), -TE_ESTATE);
	DO(te_plan_memory(c->part[i], &mem));
	if (c->mode == ARENA) {
		DO(te_mem_alloc(st, mem.arena_nbytes, &c->arena[i]));
		DO(te_fill(st, c->arena[i], 0xff, mem.arena_nbytes));
	}
	b.arena = c->arena[i];
	memcpy(b.span, c->span[i], sizeof(b.span));
	b.nin = i == NPARTS - 1 ? 2 : 1;
	b.in_name = names;
	b.in = in;
	b.out = c->between[i + 1];
	b.out_grad = c->grad[i + 1];
	b.in_grad = c->grad[i];
	DO(te_plan_bind(c->part[i], &b));
}

/* bytes before a guard; all of it is poison */
static char *poisoned(size_t nbytes)
{
	void *p;

	DO(te_mem_alloc(st, nbytes + GUARD, &p));
	DO(te_fill(st, p, 0xff, nbytes + GUARD));
	return p;
}

static void give_spans(struct chain *c)
{
	for (int i = 0; i < NPARTS; i++) {
		struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;

		DO(te_plan_memory(c->part[i], &mem));
		for (int s = 0; s < TE_SPAN_COUNT; s++) {
			const size_t n = c->span_nbytes[i][s] = mem.span_nbytes[s];

			if (saves(s) && n)
				c->span[i][s] = poisoned(n);
			else if (n > c->scratch_nbytes)
				c->scratch_nbytes = n;
		}
	}
	c->scratch = poisoned(c->scratch_nbytes);
	for (int i = 0; i < NPARTS; i++)
		for (int s = 0; s < TE_SPAN_COUNT; s++)
			if (!saves(s))
				c->span[i][s] = c->scratch;
}

/* the bytes of a span that te_plan_saved does not list */
static void poison_unlisted(struct chain *c, int i, enum te_span span)
{
	struct te_plan_saved_info info = TE_PLAN_SAVED_INFO_INIT;
	const size_t n = c->span_nbytes[i][span] / 256;
	char *listed = calloc(1, n + 1);

	for (int k = 0; !te_plan_saved(c->part[i], k, &info); k++) {
		if (info.span != span)
			continue;
		ck_assert_uint_le(info.span_offset + info.nbytes, c->span_nbytes[i][span]);
		memset(listed + info.span_offset / 256, 1, info.nbytes / 256);
	}
	for (size_t k = 0; k < n; k++)
		if (!listed[k])
			DO(te_fill(st, c->span[i][span] + 256 * k, 0xff, 256));
	free(listed);
}

/* All memory that the passes of a part up to this one leave to no later pass. 0: forward */
static void poison(struct chain *c, int i, int pass)
{
	const int last = c->mode == DELAYED_SPANS ? 2 : 1;

	if (c->mode == ARENA)
		return;
	DO(te_fill(st, c->scratch, 0xff, c->scratch_nbytes));
	for (int s = TE_SPAN_FB; s < TE_SPAN_COUNT; s++) {
		const int begins = s == TE_SPAN_BW, ends = s == TE_SPAN_FB ? 1 : last;

		if (pass < begins || pass >= ends)
			DO(te_fill(st, c->span[i][s], 0xff, c->span_nbytes[i][s]));
		else if (!pass)
			poison_unlisted(c, i, (enum te_span)s);
	}
}

static void still_poison(const char *at, size_t nbytes, const char *what, int part)
{
	unsigned char *byte = at ? tt_bytes(at, nbytes) : NULL;

	for (size_t k = 0; at && k < nbytes; k++)
		ck_assert_msg(byte[k] == 0xff, "part %d writes %s", part, what);
	free(byte);
}

/* a pass writes its own spans only: the others hold what poison() left there */
static void leaves_alone(const struct chain *c, int i, int span)
{
	if (c->mode != ARENA)
		still_poison(c->span[i][span], c->span_nbytes[i][span],
			     "a span that is not its own", i);
}

static void guards_hold(const struct chain *c)
{
	for (int i = 0; c->mode != ARENA && i < NPARTS; i++)
		for (int s = TE_SPAN_FB; s < TE_SPAN_COUNT; s++)
			if (c->span[i][s])
				still_poison(c->span[i][s] + c->span_nbytes[i][s], GUARD,
					     "after a span", i);
	if (c->scratch)
		still_poison(c->scratch + c->scratch_nbytes, GUARD, "after the scratch", NPARTS);
}

static void chain_create(struct chain *c, struct te_seq *seq, const struct model_shape *m,
			 const char *recipe, enum mode mode)
{
	memset(c, 0, sizeof(*c));
	c->mode = mode;
	for (int i = 0; i < NPARTS; i++) {
		struct te_recipe rec;
		struct te_plan_opts o =
			part_opts(i ? c->part[i - 1] : NULL, m, recipe, &rec, i, mode);

		DO(te_plan_create(seq, &o, &c->part[i]));
		ck_assert_str_eq(te_plan_input_name(c->part[i], 0), "x");
		c->between[i] = tensor_of(c->part[i], "x");
		c->grad[i] = tensor_of(c->part[i], "in_grad");
	}
	c->between[NPARTS] = tensor_of(c->part[NPARTS - 1], "out");
	c->targets = tensor_of(c->part[NPARTS - 1], "targets");
	ck_assert_str_eq(te_plan_input_name(c->part[NPARTS - 1], 1), "targets");
	ck_assert_ptr_null(te_plan_input_name(c->part[NPARTS - 1], 2));
	ck_assert_ptr_null(te_plan_input_name(c->part[0], 1));
	if (mode != ARENA)
		give_spans(c);
	for (int i = 0; i < NPARTS; i++)
		bind_part(c, i);
}

static void chain_step(struct chain *c)
{
	for (int i = 0; i < NPARTS; i++) {
		DO(te_plan_forward(c->part[i], st, 0));
		leaves_alone(c, i, TE_SPAN_BW);
		poison(c, i, 0);
	}
	for (int i = NPARTS - 1; i >= 0; i--) {
		DO(te_plan_backward(c->part[i], st));
		poison(c, i, 1);
	}
	for (int i = NPARTS - 1; i >= 0 && c->mode == DELAYED_SPANS; i--) {
		DO(te_plan_backward_dw(c->part[i], st));
		leaves_alone(c, i, TE_SPAN_FB);
		poison(c, i, 2);
	}
	guards_hold(c);
}

static void chain_destroy(struct chain *c)
{
	for (int i = 0; i < NPARTS; i++) {
		te_plan_unref(c->part[i]);
		DO(te_mem_free(st, c->arena[i]));
		for (int s = 0; s < TE_SPAN_COUNT; s++)
			if (saves(s))
				DO(te_mem_free(st, c->span[i][s]));
	}
	DO(te_mem_free(st, c->scratch));
	for (int i = 0; i <= NPARTS; i++) {
		te_tensor_unref(c->between[i]);
		te_tensor_unref(c->grad[i]);
	}
	te_tensor_unref(c->targets);
}

CTX_CASE(parts, "plan");

/* three steps of both with an optimizer between: every bit is the same, whatever the memory holds
 * that parts were not promised */
TEST_EACH(parts, parts_give_the_bits_of_the_whole, 2 * NRECIPES * NMODES)
{
	const struct model_shape *m = _i & 1 ? &llama : &gpt;
	const char *recipe = recipes[_i / 2 % NRECIPES];
	struct te_seq *whole = model_create(ctx, m, 3), *seq = model_create(ctx, m, 3);
	struct te_plan *p = model_plan(whole, m, recipe, TE_PLAN_TRAIN);
	struct te_adamw *opt[2];
	struct chain c;

	DO(te_adamw_create(whole, NULL, &opt[0]));
	DO(te_adamw_create(seq, NULL, &opt[1]));
	chain_create(&c, seq, m, recipe, (enum mode)(_i / 2 / NRECIPES));
	for (int i = 0; i < 2; i++)
		DO(te_adamw_set_lr(opt[i], st, 1e-2f));
	for (int step = 0; step < 3; step++) {
		model_feed(p, m);
		DO(te_copy(st, te_tensor_data(c.between[0]), te_tensor_data(te_plan_input(p, "x")),
			   te_tensor_nbytes(c.between[0])));
		DO(te_copy(st, te_tensor_data(c.targets),
			   te_tensor_data(te_plan_input(p, "targets")),
			   te_tensor_nbytes(c.targets)));
		DO(te_seq_zero_grads(whole, st));
		DO(te_seq_zero_grads(seq, st));
		DO(te_plan_forward(p, st, 0));
		DO(te_plan_backward(p, st));
		chain_step(&c);
		model_same(te_plan_output(p), c.between[NPARTS], "losses");
		model_same(te_seq_grads(whole), te_seq_grads(seq), "gradients");
		model_same_scales(te_seq_quant(whole), te_seq_quant(seq));
		DO(te_adamw_step(opt[0], st));
		DO(te_adamw_step(opt[1], st));
		model_same(te_seq_masters(whole), te_seq_masters(seq), "weights");
	}
	chain_destroy(&c);
	te_plan_unref(p);
	for (int i = 0; i < 2; i++)
		te_adamw_unref(opt[i]);
	te_seq_unref(whole);
	te_seq_unref(seq);
}

/* what forward saves takes its own bytes only, in the span that ends where it is last read */
TEST_EACH(parts, spans_hold_what_is_saved, 4 * NRECIPES)
{
	const struct model_shape *m = _i & 1 ? &llama : &gpt;
	const uint32_t dw = _i & 2 ? TE_PLAN_DELAY_DW : 0;
	struct te_seq *seq = model_create(ctx, m, 3);
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT, own = TE_PLAN_MEMORY_INIT;
	struct te_plan_saved_info info = TE_PLAN_SAVED_INFO_INIT;
	struct te_plan *p = model_plan(seq, m, recipes[_i / 4],
				       TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | TE_PLAN_NO_ALLOC | dw);
	struct te_plan *inside = model_plan(seq, m, recipes[_i / 4],
					    TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC | dw);
	uint64_t scratch = 0, saved = 0;
	char *used[TE_SPAN_COUNT];

	DO(te_plan_memory(p, &mem));
	DO(te_plan_memory(inside, &own));
	for (int s = 0; s < TE_SPAN_COUNT; s++) {
		ck_assert_uint_eq(own.span_nbytes[s], 0);
		if (saves(s))
			saved += mem.span_nbytes[s];
		else if (mem.span_nbytes[s] > scratch)
			scratch = mem.span_nbytes[s];
		used[s] = calloc(1, mem.span_nbytes[s] + 1);
	}
	ck_assert_uint_eq(mem.arena_nbytes, saved + scratch);
	ck_assert_int_eq(mem.span_nbytes[TE_SPAN_BW] > 0, dw != 0);
	if (!dw)
		ck_assert_uint_eq(mem.span_nbytes[TE_SPAN_W] + mem.span_nbytes[TE_SPAN_FW], 0);
	for (int i = 0; !te_plan_saved(p, i, &info); i++) {
		if (!dw)
			ck_assert_int_eq(info.span, TE_SPAN_FB);
		ck_assert(info.span == TE_SPAN_FB || info.span == TE_SPAN_FW);
		ck_assert_uint_le(info.span_offset + info.nbytes, mem.span_nbytes[info.span]);
		ck_assert_uint_eq(info.offset, info.span_offset + (info.span == TE_SPAN_FB ?
				  0 : mem.span_nbytes[TE_SPAN_FB]));
		memset(used[info.span] + info.span_offset, 1, info.nbytes);
	}
	for (int s = TE_SPAN_FB; s <= TE_SPAN_FW; s++)
		ck_assert_ptr_null(memchr(used[s], 0, mem.span_nbytes[s]));
	for (int s = 0; s < TE_SPAN_COUNT; s++)
		free(used[s]);
	te_plan_unref(p);
	tt_drop(inside, seq);
}

static void refused(struct te_plan *p, const struct te_plan_binding *b, int code, const char *text)
{
	int r = te_plan_bind(p, b);

	ck_assert_msg(r == code, "%s: %d, not %d: %s", text, r, code, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
}

TEST(parts, bindings_are_refused_by_name)
{
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	const char *names[] = { "x", "targets" }, *other[] = { "x", "mask" };
	const char *both[] = { "x", "targets", "mask" };
	struct te_plan *inside = model_plan(seq, &gpt, "bf16", TE_PLAN_TRAIN);
	struct te_plan_binding good = TE_PLAN_BINDING_INIT, b;
	struct te_tensor *in[3], *wrong, *same, *t;
	const int64_t shape[] = { 2, 15 };
	struct te_spec s;
	struct chain c;

	chain_create(&c, seq, &gpt, "bf16", ARENA);
	DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, shape, NULL, &wrong));
	same = tensor_of(c.part[1], "x");
	in[0] = c.between[2];
	in[1] = in[2] = c.targets;
	good.arena = c.arena[2];
	good.nin = 2;
	good.in_name = names;
	good.in = in;
	good.out = c.between[3];
	good.in_grad = c.grad[2];
	DO(te_plan_bind(c.part[2], &good));
	b = good;
	b.size = 0;
	refused(c.part[2], &b, -EINVAL, "TE_PLAN_BINDING_INIT");
	refused(NULL, &good, -EINVAL, "plan is NULL");
	refused(inside, &good, -TE_ESTATE, "TE_PLAN_EXTERNAL");
	b = good;
	b.arena = NULL;
	refused(c.part[2], &b, -EINVAL, "arena");
	b.arena = (char *)c.arena[2] + 64;
	refused(c.part[2], &b, -EINVAL, "aligned to 256");
	b.arena = c.arena[2];
	b.span[TE_SPAN_FB] = c.arena[1];
	refused(c.part[2], &b, -EINVAL, "both arena and span are set");
	b.arena = NULL;
	b.span[TE_SPAN_FB] = NULL;
	b.span[TE_SPAN_F] = b.span[TE_SPAN_B] = c.arena[0];
	refused(c.part[2], &b, -EINVAL, "span[TE_SPAN_FB] is (nil)");
	b.span[TE_SPAN_FB] = (char *)c.arena[1] + 128;
	refused(c.part[2], &b, -EINVAL, "aligned to 256");
	b.span[TE_SPAN_FB] = c.arena[1];
	DO(te_plan_bind(c.part[2], &b));
	b = good;
	b.nin = 1;
	refused(c.part[2], &b, -EINVAL, "targets is missing");
	b.nin = 2;
	b.in_name = other;
	refused(c.part[2], &b, -EINVAL, "targets is missing");
	b.nin = 3;
	b.in_name = both;
	refused(c.part[2], &b, -EINVAL, "no input mask");
	both[1] = NULL;
	refused(c.part[2], &b, -EINVAL, "te_plan_bind: in_name[1] is NULL");
	b.in_name = NULL;
	refused(c.part[2], &b, -EINVAL, "te_plan_bind: nin is 3, and in_name is NULL");
	b = good;
	b.in = NULL;
	refused(c.part[2], &b, -EINVAL, "te_plan_bind: nin is 2, and in is NULL");
	b = good;
	b.out = NULL;
	refused(c.part[2], &b, -EINVAL, "out is missing");
	b = good;
	b.out_grad = c.grad[1];
	refused(c.part[2], &b, -EINVAL, "the plan has no out_grad");
	b = good;
	t = in[1];
	in[1] = wrong;
	refused(c.part[2], &b, -TE_ESHAPE, "targets is [2,15] int32, the plan wants [2,16] int32");
	in[1] = c.between[1];
	refused(c.part[2], &b, -TE_EDTYPE, "targets is [2,16,32] bf16");
	in[1] = t;
	ck_assert_int_eq(te_plan_spec(c.part[0], "targets", &s), -ENOENT);
	ck_assert_int_eq(te_plan_spec(c.part[0], "in_grad", &s), -ENOENT);
	ck_assert_int_eq(te_plan_spec(c.part[2], "out_grad", &s), -ENOENT);
	ck_assert_int_eq(te_plan_spec(c.part[1], "out_grad", &s), 0);
	ck_assert_int_eq(s.dtype, TE_DTYPE_BF16);
	te_tensor_unref(wrong);
	te_tensor_unref(same);
	chain_destroy(&c);
	tt_drop(inside, seq);
}

static void not_planned(struct te_seq *seq, const char *from, const char *to, int code,
			const char *text)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = tt_recipe("fp32");
	struct te_plan *p = NULL;
	int r;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 3, { 2, 16, 32 } };
	o.start_at = from;
	o.stop_before = to;
	r = te_plan_create(seq, &o, &p);
	ck_assert_msg(r == code, "%s: %d, not %d: %s", text, r, code, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
	ck_assert_ptr_null(p);
}

TEST(parts, channels_do_not_cross_the_ends_of_a_part)
{
	struct te_seq *seq = model_create(ctx, &gpt, 3);

	not_planned(seq, "h.0.attn", "h.1.ln1", -TE_ECHANNEL,
		    "op h.0.add1 takes channel h.0.ln1 of op h.0.ln1, which lies before h.0.attn");
	not_planned(seq, "h.0.ln1", "h.0.attn", -TE_ECHANNEL,
		    "op h.0.ln1 gives channel h.0.ln1 to op h.0.add1");
	not_planned(seq, "nothing", NULL, -EINVAL, "no op is named nothing");
	not_planned(seq, "h.1.ln1", "h.1.ln1", -EINVAL, "nothing is left before h.1.ln1");
	not_planned(seq, "h.1.ln1", "h.0.ln1", -EINVAL, "nothing is left before h.0.ln1");
	te_seq_unref(seq);
}

/* the shape of targets, where x has other extents before the last than the tokens of the whole */
TEST(parts, channels_have_the_extents_of_the_whole_input)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = tt_recipe("fp32");
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *p = NULL;
	struct te_spec s;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { 21, 32 } };
	o.start_at = "head";
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	o.whole_x = (struct te_spec){ TE_DTYPE_INT32, 1, { 21 } };
	DO(te_plan_create(seq, &o, &p));
	DO(te_plan_spec(p, "targets", &s));
	ck_assert_int_eq(s.ndim, 1);
	ck_assert_int_eq(s.shape[0], 21);
	te_plan_unref(p);
	p = NULL;
	o.whole_x.shape[0] = -1;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "whole_x is"));
	o.whole_x.ndim = TE_MAX_DIMS + 1;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "whole_x has 9 extents"));
	ck_assert_ptr_null(p);
	te_seq_unref(seq);
}

/* ---- regions ---- */

struct kept {
	struct te_region region;
	void *copy;
};

struct shelf {
	struct kept *kept;
	int n;
	int differ; /* regions that changed */
};

static int keep(void *arg, const struct te_region *region)
{
	struct shelf *s = arg;
	struct kept *k;

	s->kept = realloc(s->kept, (size_t)(s->n + 1) * sizeof(*s->kept));
	k = &s->kept[s->n++];
	k->region = *region;
	k->copy = tt_bytes(region->ptr, region->nbytes);
	return 0;
}

/* restores all regions and counts those that had changed */
static int put_back(struct shelf *s)
{
	int changed = 0;

	for (int i = 0; i < s->n; i++) {
		struct kept *k = &s->kept[i];
		void *now = tt_bytes(k->region.ptr, k->region.nbytes);

		changed += memcmp(now, k->copy, k->region.nbytes) != 0;
		free(now);
		if (k->region.kind == TE_REGION_HOST)
			memcpy(k->region.ptr, k->copy, k->region.nbytes);
		else
			DO(te_copy(st, k->region.ptr, k->copy, k->region.nbytes));
		DO(te_stream_sync(st));
		free(k->copy);
	}
	free(s->kept);
	*s = (struct shelf){ NULL, 0, 0 };
	return changed;
}

static void train(struct te_seq *seq, struct te_plan *p, struct te_adamw *opt)
{
	DO(te_seq_zero_grads(seq, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	DO(te_adamw_step(opt, st));
}

/* after a trial of two steps is undone, the next steps give the bits of a run without it */
TEST_EACH(parts, regions_hold_all_that_a_step_changes, NRECIPES)
{
	const struct model_shape m = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
	struct te_seq *seq[2];
	struct te_plan *p[2];
	struct te_adamw *opt[2];
	struct shelf shelf = { NULL, 0, 0 };

	for (int i = 0; i < 2; i++) {
		seq[i] = model_create(ctx, &m, 3);
		p[i] = model_plan(seq[i], &m, recipes[_i], TE_PLAN_TRAIN);
		DO(te_adamw_create(seq[i], NULL, &opt[i]));
		DO(te_adamw_set_lr(opt[i], st, 1e-2f));
	}
	model_feed(p[0], &m);
	for (int k = 0; k < 2; k++) {
		struct te_tensor *a = te_plan_input(p[0], k ? "x" : "targets");
		struct te_tensor *b = te_plan_input(p[1], k ? "x" : "targets");

		DO(te_copy(st, te_tensor_data(b), te_tensor_data(a), te_tensor_nbytes(a)));
	}
	for (int round = 0; round < 2; round++) {
		DO(te_plan_regions(p[0], keep, &shelf));
		DO(te_adamw_regions(opt[0], keep, &shelf));
		for (int i = 0; i < 2; i++)
			train(seq[0], p[0], opt[0]);
		ck_assert_int_gt(put_back(&shelf), 5);
		for (int i = 0; i < 2; i++)
			train(seq[i], p[i], opt[i]);
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
		model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
		model_same(te_seq_masters(seq[0]), te_seq_masters(seq[1]), "weights");
		model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
	}
	for (int i = 0; i < 2; i++) {
		te_plan_unref(p[i]);
		te_adamw_unref(opt[i]);
		te_seq_unref(seq[i]);
	}
}

static int stop_at_second(void *arg, const struct te_region *region)
{
	return ++*(int *)arg == 2 ? 77 : 0;
}

TEST(parts, a_visitor_may_end_the_visit)
{
	struct te_seq *seq = model_create(ctx, &gpt, 3), *raw;
	struct te_plan *p = model_plan(seq, &gpt, "fp8-current", TE_PLAN_TRAIN);
	int n = 0;

	ck_assert_int_eq(te_plan_regions(p, stop_at_second, &n), 77);
	ck_assert_int_eq(n, 2);
	DO(te_seq_create(ctx, &raw));
	ck_assert_int_eq(te_seq_regions(raw, stop_at_second, &n), -TE_ESTATE);
	te_seq_unref(raw);
	tt_drop(p, seq);
}

/* ---- weight copies by a device word ---- */

TEST_EACH(parts, replays_keep_copies_until_weights_change, NRECIPES, .from = 1)
{
	struct te_seq *seq = model_create(ctx, &llama, 3);
	const char *names[] = { "x", "targets" };
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct te_plan_binding b = TE_PLAN_BINDING_INIT;
	struct te_tensor *in[2];
	struct te_recording *rec;
	struct te_plan *p;
	float loss[4];

	p = model_plan(seq, &llama, recipes[_i], TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
	DO(te_plan_memory(p, &mem));
	DO(te_mem_alloc(st, mem.arena_nbytes, &b.arena));
	for (int i = 0; i < 2; i++)
		in[i] = tensor_of(p, names[i]);
	b.nin = 2;
	b.in_name = names;
	b.in = in;
	b.out = tensor_of(p, "out");
	DO(te_plan_bind(p, &b));
	model_feed(p, &llama);
	DO(te_plan_forward(p, st, 0)); /* GEMMs choose their algorithm outside the capture */
	DO(te_capture_begin(st));
	DO(te_plan_forward(p, st, 0));
	DO(te_capture_end(st, &rec));
	for (int i = 0; i < 4; i++) {
		/* 0: as they were, 1: masters moved, 2: which is declared, 3: and used again */
		if (i == 2)
			DO(te_seq_weights_changed(seq, st));
		DO(te_recording_launch(rec, st));
		DO(te_stream_sync(st));
		loss[i] = model_loss(p);
		if (i == 0)
			for (int w = 0; w < te_seq_nweights(seq); w++) {
				struct te_weight_info info = TE_WEIGHT_INFO_INIT;

				DO(te_seq_weight(seq, w, &info));
				if (info.flags & TE_WEIGHT_GEMM)
					DO(te_fill(st, te_tensor_data(info.master), 0,
						   te_tensor_nbytes(info.master)));
			}
	}
	if (_i != 2) /* delayed: the scales of inputs move on */
		ck_assert(loss[0] == loss[1] && loss[2] == loss[3]);
	ck_assert_msg(loss[2] != loss[1] && loss[2] != loss[0], "%g %g %g %g", loss[0], loss[1],
		      loss[2], loss[3]);
	te_recording_unref(rec);
	tt_drop(p, seq);
	te_tensor_unref(b.out);
	for (int i = 0; i < 2; i++)
		te_tensor_unref(in[i]);
	DO(te_mem_free(st, b.arena));
}

/* ---- weights in the caller's memory ---- */

/* the same tokens and targets in every call */
static void feed(struct te_plan *p)
{
	static const char *const name[] = { "x", "targets" };

	for (int k = 0; k < 2; k++) {
		struct te_tensor *t = te_plan_input(p, name[k]);
		int32_t id[32];

		ck_assert_uint_eq(te_tensor_nbytes(t), sizeof(id));
		for (int i = 0; i < 32; i++)
			id[i] = (int32_t)((i * 29 + 7 * k + 5) % gpt.vocab);
		DO(te_tensor_write(t, id, sizeof(id)));
	}
}

/* three steps of AdamW; the masters afterwards */
static float *three_steps(struct te_seq *s)
{
	struct te_plan *p = model_plan(s, &gpt, "fp8-delayed", TE_PLAN_TRAIN);
	struct te_adamw *opt;
	float *w;

	feed(p);
	DO(te_adamw_create(s, NULL, &opt));
	DO(te_adamw_set_lr(opt, st, 1e-2f));
	for (int i = 0; i < 3; i++) {
		DO(te_seq_zero_grads(s, st));
		DO(te_plan_forward(p, st, 0));
		DO(te_plan_backward(p, st));
		DO(te_adamw_step(opt, st));
	}
	DO(te_stream_sync(st));
	w = tt_tensor_get(te_seq_masters(s));
	te_adamw_unref(opt);
	te_plan_unref(p);
	return w;
}

static struct te_seq *bound(const struct te_seq_binding *b)
{
	struct te_seq *s = model_create_unbound(ctx, &gpt);

	DO(te_seq_complete(s));
	DO(te_seq_bind(s, b));
	DO(te_seq_init(s, 5));
	return s;
}

/* masters, gradients, or both, with weights that are there: the bits of the library's memory */
TEST(parts, weights_live_in_the_callers_memory)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *own = model_create(ctx, &gpt, 5), *s;
	const size_t nbytes = te_tensor_nbytes(te_seq_masters(own));
	float *first = tt_tensor_get(te_seq_masters(own));
	float *want = three_steps(own), *got;
	uint64_t before, without = 0;
	void *m, *g;

	ck_assert_uint_eq(nbytes, (size_t)te_seq_nelems(own) * sizeof(float));
	te_seq_unref(own);
	DO(te_mem_alloc(st, nbytes, &m));
	DO(te_mem_alloc(st, nbytes, &g));
	for (int k = 0; k < 4; k++) {
		DO(te_fill(st, m, 0xff, nbytes));
		DO(te_fill(st, g, 0xff, nbytes));
		if (k == 3)
			DO(te_copy(st, m, first, nbytes));
		DO(te_stream_sync(st));
		b.masters = k & 1 ? m : NULL;
		b.grads = k & 2 ? g : NULL;
		b.flags = k == 3 ? TE_SEQ_KEEP_MASTERS : 0;
		before = tt_used();
		s = bound(&b);
		if (!k)
			without = tt_used() - before;
		else
			ck_assert_uint_eq(tt_used() - before,
					  without - (k == 3 ? 2 : 1) * (uint64_t)nbytes);
		ck_assert(!b.masters || te_tensor_data(te_seq_masters(s)) == m);
		ck_assert(!b.grads || te_tensor_data(te_seq_grads(s)) == g);
		got = three_steps(s);
		ck_assert_msg(!memcmp(got, want, nbytes), "other bits with memory %d", k);
		free(got);
		te_seq_unref(s);
	}
	DO(te_mem_free(st, m));
	DO(te_mem_free(st, g));
	free(first);
	free(want);
}

TEST(parts, inference_needs_no_gradients)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *with = model_create(ctx, &gpt, 5), *s;
	const uint64_t nbytes = te_tensor_nbytes(te_seq_grads(with));
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct te_plan *p[2];
	struct te_adamw *opt;
	uint64_t before;

	b.flags = TE_SEQ_NO_GRADS;
	before = tt_used();
	s = bound(&b);
	p[0] = model_plan(with, &gpt, "fp8-current", 0);
	p[1] = model_plan(s, &gpt, "fp8-current", 0);
	DO(te_plan_memory(p[1], &mem));
	ck_assert_uint_eq(mem.weights_nbytes, nbytes);
	for (int k = 0; k < 2; k++) {
		feed(p[k]);
		DO(te_plan_forward(p[k], st, 0));
	}
	DO(te_stream_sync(st));
	ck_assert_float_eq(model_loss(p[0]), model_loss(p[1]));
	DO(te_seq_weight(s, 0, &w));
	ck_assert_ptr_null(w.grad);
	ck_assert_ptr_null(te_seq_grads(s));
	fails(te_seq_zero_grads(s, st), -TE_ESTATE, "no gradients");
	fails(te_adamw_create(s, NULL, &opt), -TE_ESTATE, "no gradients");
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 16 } };
	te_plan_unref(p[1]);
	fails(te_plan_create(s, &o, &p[1]), -TE_ESTATE, "TE_SEQ_NO_GRADS");
	tt_drop(p[0], s);
	ck_assert_uint_le(before, tt_used());
	te_seq_unref(with);
}

/* also in the caller's memory, whatever it holds */
TEST_EACH(parts, weights_that_are_not_drawn_are_zero, 4)
{
	static const uint32_t flags[] = { 0, 0, TE_SEQ_BF16_MASTERS,
					  TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS };
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create(ctx, &gpt, 5);
	const int64_t n = te_seq_nelems(s);
	float *w = malloc((size_t)n * sizeof(*w));
	void *m;

	DO(te_seq_masters_get(s, 0, n, w));
	ck_assert(w[0] != 0.0f);
	te_seq_unref(s);
	DO(te_mem_alloc(st, (size_t)n * sizeof(*w), &m));
	DO(te_fill(st, m, 0xff, (size_t)n * sizeof(*w)));
	DO(te_stream_sync(st));
	b.masters = _i == 1 ? m : NULL;
	b.flags = TE_SEQ_NO_DRAW | flags[_i];
	s = bound(&b);
	DO(te_seq_masters_get(s, 0, n, w));
	for (int64_t i = 0; i < n; i++)
		ck_assert_float_eq(w[i], 0.0f);
	te_seq_unref(s);
	DO(te_mem_free(st, m));
	free(w);
}

TEST(parts, bad_memory_for_weights_is_refused)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, &gpt);
	void *m;

	DO(te_mem_alloc(st, 4096, &m));
	fails(te_seq_bind(s, &b), -TE_ESTATE, "te_seq_complete has not run");
	ck_assert_int_eq(te_seq_nelems(s), 0);
	DO(te_seq_complete(s));
	fails(te_seq_masters_get(s, 0, 1, m), -TE_ESTATE, "te_seq_init has not run");
	fails(te_seq_masters_set(s, 0, 1, m), -TE_ESTATE, "te_seq_init has not run");
	fails(te_seq_bind(NULL, &b), -EINVAL, "seq is NULL");
	b.flags = 4096;
	fails(te_seq_bind(s, &b), -EINVAL, "unknown flags 0x1000");
	b.flags = TE_SEQ_BF16_MASTERS | TE_SEQ_ROUND_FROZEN;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_ROUND_FROZEN without TE_SEQ_REMAINDERS");
	b.flags = TE_SEQ_KEEP_MASTERS;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_KEEP_MASTERS without masters");
	b.flags = TE_SEQ_REMAINDERS;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_REMAINDERS without TE_SEQ_BF16_MASTERS");
	b.flags = TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_REMAINDERS;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_HOST_REMAINDERS without TE_SEQ_REMAINDERS");
	b.flags = TE_SEQ_NO_GRADS;
	b.grads = m;
	fails(te_seq_bind(s, &b), -EINVAL, "grads, and TE_SEQ_NO_GRADS");
	b.flags = 0;
	b.grads = (float *)m + 1;
	fails(te_seq_bind(s, &b), -EINVAL, "grads is not aligned to 256 bytes");
	b.grads = b.masters = m;
	fails(te_seq_bind(s, &b), -EINVAL, "are the same memory");
	DO(te_seq_init(s, 1));
	b = (struct te_seq_binding)TE_SEQ_BINDING_INIT;
	fails(te_seq_bind(s, &b), -EBUSY, "has been initialised");
	te_seq_unref(s);
	DO(te_mem_free(st, m));
}

TT_PAIR("plan/plan_bind", TT_ONE_PROCESS)
