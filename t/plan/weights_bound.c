/*
 * t/plan/weights_bound.c - te_seq_bind_weight(3): plans that read BF16 or FP8 weights of the caller
 * give the bits of plans whose masters have these copies; the memory of inference.
 */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>

#include "libtecore/quant/quant.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"

/* weights of more than one block of 128 x 128, not all of them whole */
static const struct model_shape llama = { 48, 160, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape odd = { 48, 40, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape gpt = { 48, 160, 2, 16, 4, 4, 1, 0, 0 };
/* the last two with both copies only */
static const char *const recipes[] = { "bf16",	   "fp8-delayed", "fp8-current",
				       "fp8-block", "mxfp8",	  "nvfp4" };
#define NRECIPES ((int)TT_LEN(recipes) - 2)

/* weights without masters, made from the masters of a sequence */
struct bound {
	struct te_quant *quant;
	struct te_tensor *t[64]; /* by weight; or NULL: not bound */
	int n;
};

static struct te_tensor *empty(const struct te_tensor *like, enum te_dtype dtype,
			       enum te_scaling scaling, uint32_t flags)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;
	int64_t shape[TE_MAX_DIMS];

	for (int d = 0; d < te_tensor_ndim(like); d++)
		shape[d] = te_tensor_extent(like, d);
	o.scaling = scaling;
	o.flags = flags;
	DO(te_tensor_create(ctx, dtype, te_tensor_ndim(like), shape, &o, &t));
	DO(te_fill(st, te_tensor_data(t), 0xff, te_tensor_nbytes(t)));
	return t;
}

/* the values of the masters, queued */
static void cast(const struct bound *b, const struct te_seq *from)
{
	for (int i = 0; i < b->n; i++) {
		if (!b->t[i])
			continue;
		if (te_tensor_dtype(b->t[i]) == TE_DTYPE_BF16)
			DO(te_cast(st, weight(from, i).master, b->t[i]));
		else
			DO(te_quantize(st, b->quant, i, weight(from, i).master, b->t[i], NULL, 0));
	}
}

/* the head is never FP8; norms and the embedding need masters; flags: of FP8 tensors */
static struct bound bind(struct te_seq *s, const struct te_seq *from, const char *recipe,
			 uint32_t flags)
{
	const struct te_recipe r = tt_recipe(recipe);
	struct bound b = { .n = te_seq_nweights(from) };
	enum te_dtype dtype[64];

	for (int i = 0; i < 64; i++)
		dtype[i] = te__recipe_operand(&r, TE__ROLE_WEIGHT).dtype;
	if (strcmp(recipe, "bf16") != 0)
		DO(te_quant_create(ctx, &r, b.n, dtype, &b.quant));
	for (int i = 0; i < b.n; i++) {
		const struct te_weight_info w = weight(from, i);
		const int fp8 = b.quant && !strstr(w.name, "head") && !strstr(w.name, ".b.");

		if (!(w.flags & TE_WEIGHT_COMPUTE))
			continue;
		b.t[i] = fp8 ? empty(w.master, dtype[0],
				     te__recipe_operand(&r, TE__ROLE_WEIGHT).scaling, flags) :
			       empty(w.master, TE_DTYPE_BF16, TE_SCALING_TENSOR, 0);
		DO(te_seq_bind_weight(s, w.name, b.t[i]));
	}
	cast(&b, from);
	return b;
}

static void release(struct bound *b)
{
	for (int i = 0; i < b->n; i++)
		te_tensor_unref(b->t[i]);
	te_quant_unref(b->quant);
}

static struct te_seq *with_bound(const struct te_seq *from, const struct model_shape *m,
				 const char *recipe, uint32_t seq_flags, uint32_t tensor_flags,
				 struct bound *ret_b)
{
	struct te_seq_binding binding = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, m);

	binding.flags = seq_flags;
	DO(te_seq_complete(s));
	*ret_b = bind(s, from, recipe, tensor_flags);
	DO(te_seq_bind(s, &binding));
	DO(te_seq_init(s, 5));
	return s;
}

static void same_inputs(struct te_plan *const p[2], const struct model_shape *m)
{
	model_feed(p[0], m);
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "targets" : "x";
		const struct te_tensor *t = te_plan_input(p[0], name);

		DO(te_copy(st, te_tensor_data(te_plan_input(p[1], name)), te_tensor_data(t),
			   te_tensor_nbytes(t)));
	}
}

static void queue_pass(struct te_seq *s, struct te_plan *p)
{
	if (!(te_plan_flags(p) & TE_PLAN_TRAIN)) {
		DO(te_plan_forward(p, st, 0));
		return;
	}
	DO(te_seq_zero_grads(s, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
}

static void same_results(struct te_seq *const s[2], struct te_plan *const p[2])
{
	DO(te_stream_sync(st));
	model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
	for (int i = 0; i < te_seq_nweights(s[0]) && te_plan_flags(p[0]) & TE_PLAN_TRAIN; i++)
		model_same(weight(s[0], i).grad, weight(s[1], i).grad, weight(s[0], i).name);
}

static void destroy(struct te_seq *const s[2], struct te_plan *const p[2], struct bound *b)
{
	tt_drop_both(p, s);
	release(b);
}

CTX_CASE(bound, "plan numeric");

/* each recipe, for training, without fusions, for inference, and with both copies given */
TEST_EACH(bound, bound_weights_give_the_bits_of_masters, 4 * NRECIPES)
{
	static const uint32_t flags[] = { TE_PLAN_TRAIN, TE_PLAN_TRAIN | TE_PLAN_NO_FUSION, 0,
					  TE_PLAN_TRAIN };
	const struct model_shape *m = _i % 2 ? &gpt : &llama;
	const char *recipe = recipes[_i / 4];
	const uint32_t both = _i % 4 == 3 ? TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE : 0;
	struct te_seq *s[2];
	struct te_plan *p[2];
	struct bound b;

	s[0] = model_create(ctx, m, 5);
	s[1] = with_bound(s[0], m, recipe, 0, both, &b);
	for (int i = 0; i < 2; i++)
		p[i] = model_plan(s[i], m, recipe, flags[_i % 4]);
	for (int i = 0; i < te_seq_nweights(s[1]); i++) {
		ck_assert_ptr_eq(weight(s[1], i).value, b.t[i]);
		ck_assert_int_eq(!weight(s[1], i).master, b.t[i] != NULL);
	}
	for (int k = 0; k < 2; k++) {
		same_inputs(p, m);
		for (int i = 0; i < 2; i++)
			queue_pass(s[i], p[i]);
		same_results(s, p);
	}
	destroy(s, p, &b);
}

TEST_ALSO(bound, bound_weights_give_the_bits_of_masters, 4 * NRECIPES + 4,
	  .from = 4 * NRECIPES + 2);
TEST_ALSO(bound, bound_weights_give_the_bits_of_masters, 4 * NRECIPES + 8,
	  .from = 4 * NRECIPES + 6);

/* a training plan and one for inference share the column-wise copies, made by either */
TEST_EACH(bound, plans_share_bound_weights, NRECIPES)
{
	struct te_plan *p[2], *eval[2];
	struct te_seq *s[2];
	struct bound b;

	s[0] = model_create(ctx, &llama, 5);
	s[1] = with_bound(s[0], &llama, recipes[_i], 0, 0, &b);
	for (int i = 0; i < 2; i++) {
		eval[i] = model_plan(s[i], &llama, recipes[_i], 0);
		p[i] = model_plan(s[i], &llama, recipes[_i], TE_PLAN_TRAIN);
	}
	same_inputs(eval, &llama);
	same_inputs(p, &llama);
	for (int i = 0; i < 2; i++) {
		queue_pass(s[i], eval[i]);
		queue_pass(s[i], p[i]);
	}
	same_results(s, eval);
	same_results(s, p);
	te_plan_unref(eval[0]);
	te_plan_unref(eval[1]);
	destroy(s, p, &b);
}

static struct te_recording *record_step(struct te_seq *const s[2], struct te_plan *p,
					const struct bound *b)
{
	struct te_recording *rec;

	DO(te_capture_begin(st));
	DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT));
	cast(b, s[0]);
	DO(te_seq_weights_changed(s[1], st));
	queue_pass(s[1], p);
	DO(te_capture_end(st, &rec));
	return rec;
}

/* an optimizer of the caller writes the weights, in a recording with concurrent nodes; the column-
 * wise copies are those of what it wrote */
/* delayed: a scale of its masters' history is not the quantizer's */
TEST_EACH(bound, the_callers_optimizer_owns_them, NRECIPES, .from = 2)
{
	const char *recipe = recipes[_i];
	struct te_recording *rec;
	struct te_seq *s[2];
	struct te_plan *p[2];
	struct bound b;

	s[0] = model_create(ctx, &llama, 5);
	s[1] = with_bound(s[0], &llama, recipe, 0, 0, &b);
	for (int i = 0; i < 2; i++)
		p[i] = model_plan(s[i], &llama, recipe, TE_PLAN_TRAIN);
	same_inputs(p, &llama);
	queue_pass(s[1], p[1]); /* GEMMs choose their algorithm outside the capture */
	DO(te_stream_sync(st));
	rec = record_step(s, p[1], &b);
	for (int k = 0; k < 4; k++) {
		for (int i = 0; i < te_seq_nweights(s[0]); i++) {
			struct te_tensor *w = weight(s[0], i).master;
			const size_t n = (size_t)te_tensor_nelems(w);
			float *x;

			if (!b.t[i])
				continue;
			x = malloc(n * sizeof(*x));
			tt_fill_normal(x, n, 0.1f);
			DO(te_tensor_write(w, x, n * sizeof(*x)));
			free(x);
		}
		same_inputs(p, &llama);
		DO(te_seq_weights_changed(s[0], st));
		queue_pass(s[0], p[0]);
		DO(te_recording_launch(rec, st));
		same_results(s, p);
	}
	te_recording_unref(rec);
	destroy(s, p, &b);
}

/* frozen FP8 weights, and an optimizer for the others */
TEST(bound, frozen_bound_weights_leave_adamw_the_others)
{
	struct te_seq_binding none = TE_SEQ_BINDING_INIT;
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct te_seq *s[2] = { NULL };
	struct te_adamw *opt[2];
	struct te_plan *p[2];
	struct bound b;

	s[0] = model_create(ctx, &llama, 5);
	s[1] = with_bound(s[0], &llama, "fp8-current", 0, 0, &b);
	fails(te_adamw_create(s[1], NULL, &opt[1]), -TE_ESTATE, "has no FP32 master: freeze it");
	te_seq_unref(s[1]);
	release(&b);
	/* the same frozen in both: one with masters, one without */
	for (int i = 0; i < 2; i++) {
		struct te_seq *f = model_create_unbound(ctx, &llama);

		DO(te_seq_complete(f));
		for (int k = 0; k < te_seq_nweights(f); k++)
			if (weight(f, k).flags & TE_WEIGHT_GEMM)
				ck_assert_int_eq(te_seq_freeze(f, weight(f, k).name, 1), 1);
		if (i)
			b = bind(f, s[0], "fp8-current", 0);
		DO(te_seq_bind(f, &none));
		DO(te_seq_init(f, 5));
		if (!i)
			te_seq_unref(s[0]);
		s[i] = f;
		p[i] = model_plan(f, &llama, "fp8-current", TE_PLAN_TRAIN);
		DO(te_adamw_create(f, NULL, &opt[i]));
		DO(te_adamw_set_lr(opt[i], st, 1e-2f));
	}
	DO(te_plan_memory(p[1], &mem));
	ck_assert_uint_eq(mem.weights_nbytes, 8 * (uint64_t)te_seq_grad_nelems(s[1]));
	for (int k = 0; k < 3; k++) {
		same_inputs(p, &llama);
		for (int i = 0; i < 2; i++) {
			queue_pass(s[i], p[i]);
			DO(te_adamw_step(opt[i], st));
		}
		DO(te_stream_sync(st));
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
	}
	for (int i = 0; i < te_seq_nweights(s[0]); i++)
		if (weight(s[0], i).grad)
			model_same(weight(s[0], i).master, weight(s[1], i).master,
				   weight(s[0], i).name);
	te_adamw_unref(opt[0]);
	te_adamw_unref(opt[1]);
	destroy(s, p, &b);
}

/* ---- memory ---- */

/* what the backend has allocated, without workspaces of GEMMs */
static uint64_t measured(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &m));
	return m.measured_nbytes - m.workspace_nbytes;
}

/*
 * Inference: a parameter of a linear layer takes 1 byte in FP8, with 4 bytes for one scale or for
 * each of 128 x 128, and 2 in BF16. The embedding, the norms and the plan's state are what
 * te_plan_memory() reports, and the backend counts both.
 */
TEST_EACH(bound, inference_takes_a_byte_for_each_parameter, NRECIPES)
{
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	const char *recipe = recipes[_i];
	uint64_t before, tensors, values = 0, scales = 0, masters = 0;
	struct te_seq *s[2];
	struct te_plan *p;
	struct bound b;

	s[0] = model_create(ctx, &llama, 5);
	s[1] = model_create_unbound(ctx, &llama);
	DO(te_seq_complete(s[1]));
	before = measured();
	b = bind(s[1], s[0], recipe, 0);
	DO(te_stream_sync(st));
	b.quant = te_quant_unref(b.quant);
	tensors = measured();
	DO(te_seq_bind(s[1], &(struct te_seq_binding){ sizeof(struct te_seq_binding),
						       .flags = TE_SEQ_NO_GRADS }));
	DO(te_seq_init(s[1], 5));
	p = model_plan(s[1], &llama, recipe, 0);
	DO(te_plan_memory(p, &mem));
	for (int i = 0; i < b.n; i++) {
		const struct te_tensor *w = weight(s[0], i).master;
		const uint64_t n = (uint64_t)te_tensor_nelems(w);
		const enum te_scaling by = b.t[i] ? te_tensor_scaling(b.t[i]) : TE_SCALING_TENSOR;

		if (!b.t[i]) {
			masters += 4 * ((n + 63) / 64 * 64);
		} else if (te_tensor_dtype(b.t[i]) == TE_DTYPE_BF16) {
			values += 2 * n;
		} else {
			values += n;
			scales += 4 * (uint64_t)te_scaling_nfloats(by, te_tensor_rows(w),
								   te_tensor_cols(w));
		}
	}
	ck_assert_uint_eq(mem.copies_nbytes, 0);
	ck_assert_uint_eq(mem.weights_nbytes, masters);
	ck_assert_uint_eq(mem.bound_nbytes, values + scales);
	/* allocations end at 512 bytes at most: codes, scales, masters, arena and state */
	ck_assert_uint_ge(tensors - before, values + scales);
	ck_assert_uint_le(tensors - before, values + scales + 1024 * (uint64_t)b.n);
	ck_assert_uint_le(measured() - tensors, mem.total_nbytes + 512 * 16);
	ck_assert_uint_ge(measured() - tensors, mem.total_nbytes - 512 * 16);
	tt_drop(p, s[0]);
	te_seq_unref(s[1]);
	release(&b);
}

/* with masters: no column-wise copies where nothing can train */
TEST_EACH(bound, inference_copies_are_row_wise, NRECIPES, .from = 1)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	struct te_seq *s[2] = { model_create(ctx, &llama, 5), model_create_unbound(ctx, &llama) };
	struct te_plan *p[2];
	uint64_t ncodes = 0, nscales = 0;

	DO(te_seq_complete(s[1]));
	b.flags = TE_SEQ_NO_GRADS;
	DO(te_seq_bind(s[1], &b));
	DO(te_seq_init(s[1], 5));
	for (int i = 0; i < 2; i++) {
		p[i] = model_plan(s[i], &llama, recipes[_i], 0);
		DO(te_plan_memory(p[i], &mem[i]));
	}
	for (int i = 0; i < te_seq_nweights(s[0]); i++) {
		const struct te_weight_info info = weight(s[0], i);
		const struct te_tensor *w = info.master;

		if (!(info.flags & TE_WEIGHT_GEMM) || strstr(info.name, "head"))
			continue;
		ncodes += ((uint64_t)te_tensor_nelems(w) + 255) / 256 * 256;
		nscales += strcmp(recipes[_i], "fp8-block") ?
				   0 :
				   (4 * (uint64_t)te_scaling_nfloats(TE_SCALING_128X128,
								     te_tensor_cols(w),
								     te_tensor_rows(w)) +
				    255) / 256 * 256;
	}
	ck_assert_uint_eq(mem[0].copies_nbytes - mem[1].copies_nbytes, ncodes + nscales);
	same_inputs(p, &llama);
	for (int i = 0; i < 2; i++)
		queue_pass(s[i], p[i]);
	same_results(s, p);
	tt_drop_both(p, s);
}

/* ---- codes of the library ---- */

/* frozen: weights of GEMMs; else the sequence is for inference */
static struct te_seq *untrained(const struct model_shape *m, int frozen)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, m);

	DO(te_seq_complete(s));
	for (int k = 0; k < te_seq_nweights(s) && frozen; k++)
		if (weight(s, k).flags & TE_WEIGHT_GEMM)
			ck_assert_int_eq(te_seq_freeze(s, weight(s, k).name, 1), 1);
	b.flags = frozen ? 0 : TE_SEQ_NO_GRADS;
	DO(te_seq_bind(s, &b));
	return s;
}

static int store(struct te_seq *s, const struct model_shape *m, const char *recipe, uint32_t flags)
{
	const struct te_recipe r = tt_recipe(recipe);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	o.recipe = &r;
	o.flags = flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	return te_seq_store_codes(s, &o);
}

static void set_weights(struct te_seq *const s[2])
{
	for (int k = 0; k < te_seq_nweights(s[0]); k++) {
		const size_t n = (size_t)te_tensor_nelems(weight(s[0], k).master);
		float *x = malloc(n * sizeof(*x));

		tt_fill_normal(x, n, 0.1f);
		for (int i = 0; i < 2; i++)
			DO(te_seq_weight_set(s[i], k, x));
		free(x);
	}
}

/* drawn and then set, each recipe but delayed, for training other weights and for inference */
TEST_EACH(bound, codes_give_the_bits_of_masters, 2 * ((int)TT_LEN(recipes) - 2))
{
	const char *recipe = recipes[2 + _i / 2];
	const uint32_t flags = _i % 2 ? 0 : TE_PLAN_TRAIN;
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	struct te_seq *s[2];
	struct te_plan *p[2];
	int n = 0;

	for (int i = 0; i < 2; i++) {
		s[i] = untrained(&llama, flags != 0);
		for (int k = 0; k < te_seq_nweights(s[i]) && i; k++)
			n += weight(s[i], k).flags & TE_WEIGHT_GEMM &&
			     !strstr(weight(s[i], k).name, "head");
		if (i)
			ck_assert_int_eq(store(s[i], &llama, recipe, flags), n);
		DO(te_seq_init(s[i], 5));
		p[i] = model_plan(s[i], &llama, recipe, flags);
		DO(te_plan_memory(p[i], &mem[i]));
	}
	ck_assert_uint_eq(mem[0].bound_nbytes, 0);
	ck_assert_uint_gt(mem[1].bound_nbytes, 0);
	ck_assert_uint_le(mem[1].bound_nbytes + mem[1].copies_nbytes, mem[0].copies_nbytes);
	ck_assert_uint_lt(mem[1].weights_nbytes + 3 * mem[1].bound_nbytes / (flags ? 2 : 1),
			  mem[0].weights_nbytes);
	for (int k = 0; k < 2; k++) {
		same_inputs(p, &llama);
		for (int i = 0; i < 2; i++)
			queue_pass(s[i], p[i]);
		DO(te_stream_sync(st));
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
		for (int i = 0; i < te_seq_nweights(s[0]) && flags; i++)
			if (weight(s[0], i).grad)
				model_same(weight(s[0], i).grad, weight(s[1], i).grad,
					   weight(s[0], i).name);
		set_weights(s);
	}
	tt_drop_both(p, s);
}

/* what is trained or read as values, or has other extents, keeps its master */
TEST(bound, only_codes_that_nothing_trains_are_stored)
{
	struct te_seq *s = untrained(&llama, 1), *all;
	struct te_tensor *t;
	const float x = 1;
	int n;

	ck_assert_int_eq(store(s, &llama, "bf16", TE_PLAN_TRAIN), 0);
	fails(te_seq_weight_set(s, 0, &x), -TE_ESTATE, "te_seq_init has not run");
	n = store(s, &llama, "fp8-delayed", TE_PLAN_TRAIN);
	ck_assert_msg(n > 0, "%d: %s", n, te_error_detail());
	t = empty(weight(s, 1).value ? weight(s, 1).value : weight(s, 2).value, TE_DTYPE_BF16,
		  TE_SCALING_TENSOR, 0);
	for (int k = 1; k < 3; k++)
		if (weight(s, k).value) {
			DO(te_seq_bind_weight(s, weight(s, k).name, t));
			DO(te_seq_init(s, 5));
			fails(te_seq_weight_set(s, k, &x), -TE_ESTATE, "is bound to a tensor");
			break;
		}
	te_tensor_unref(t);
	fails(store(s, &llama, "fp8-delayed", 0), -EBUSY, "has been initialised");
	fails(te_seq_weight_set(s, -1, &x), -EINVAL, "weight -1 of");
	fails(te_seq_weight_set(s, 0, NULL), -EINVAL, "src is NULL");
	te_seq_unref(s);
	all = model_create_unbound(ctx, &llama);
	fails(store(all, &llama, "fp8-block", 0), -TE_ESTATE, "te_seq_complete has not run");
	DO(te_seq_complete(all));
	ck_assert_int_eq(store(all, &llama, "fp8-block", 0), 0);
	te_seq_unref(all);
	s = untrained(&odd, 1);
	store(s, &odd, "fp8-block", 0);
	for (int k = 0; k < te_seq_nweights(s); k++)
		ck_assert(!weight(s, k).value ||
			  (te_tensor_rows(weight(s, k).value) % 16 == 0 &&
			   te_tensor_cols(weight(s, k).value) % 16 == 0));
	te_seq_unref(s);
}

/* ---- errors ---- */

static void not_planned(struct te_seq *s, const char *recipe, int code, const char *text)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe r = tt_recipe(recipe);
	struct te_plan *p = NULL;

	o.recipe = &r;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	fails(te_plan_create(s, &o, &p), code, text);
	ck_assert_ptr_null(p);
}

/* a column-wise copy has other blocks than a row-wise one; inference does not read it */
TEST(bound, blocks_of_32_are_not_transposed)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	const struct te_recipe r = tt_recipe("mxfp8");
	struct te_seq *from = model_create(ctx, &llama, 5), *s;
	struct te_plan *p = NULL;
	struct bound b;

	s = with_bound(from, &llama, "mxfp8", 0, 0, &b);
	o.recipe = &r;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	fails(te_plan_create(s, &o, &p), -TE_EDTYPE,
	      "op h.0.qkv: under recipe mxfp8 it reads a column-wise copy of weight "
	      "h.0.qkv.weight, and the bound tensor has none");
	ck_assert_ptr_null(p);
	te_seq_unref(s);
	te_seq_unref(from);
	release(&b);
}

TEST(bound, recipes_that_read_something_else_are_refused)
{
	struct te_seq *from = model_create(ctx, &llama, 5), *s;
	struct bound b;

	s = with_bound(from, &llama, "bf16", 0, 0, &b);
	not_planned(s, "fp8-current", -TE_EDTYPE,
		    "op h.0.qkv: under recipe fp8-current it reads e4m3 with one "
		    "scale of weight h.0.qkv.weight, which is bound as bf16");
	not_planned(s, "fp32", -TE_EDTYPE,
		    "op h.0.qkv: under recipe fp32 it reads the FP32 master of weight "
		    "h.0.qkv.weight, which is bound as bf16");
	te_seq_unref(s);
	release(&b);
	s = with_bound(from, &llama, "fp8-current", 0, 0, &b);
	not_planned(s, "fp8-block", -TE_EDTYPE,
		    "reads e4m3 scaled by 128x128 blocks of weight h.0.qkv.weight, "
		    "which is bound as e4m3 with one scale");
	not_planned(s, "bf16", -TE_EDTYPE,
		    "reads bf16 of weight h.0.qkv.weight, which is bound as e4m3 with "
		    "one scale");
	te_seq_unref(s);
	release(&b);
	te_seq_unref(from);
	/* codes that are bound have no padding */
	from = model_create(ctx, &odd, 5);
	s = with_bound(from, &odd, "fp8-current", 0, 0, &b);
	not_planned(s, "fp8-current", -TE_ESHAPE,
		    "op h.0.qkv: FP8 GEMMs read copies of weights with extents rounded up to "
		    "multiples of 16, but weight h.0.qkv.weight of [80,40] is bound");
	te_seq_unref(s);
	release(&b);
	te_seq_unref(from);
}

/* the embedding reads its master, also where the head is tied to it */
TEST_EACH(bound, ops_that_read_masters_refuse_bound_weights, 2)
{
	static const char *const name[] = { "emb.weight", "norm.weight" };
	struct te_seq *s = model_create_unbound(ctx, _i ? &llama : &gpt);
	struct te_tensor *t;

	DO(te_seq_complete(s));
	for (int i = 0; i < te_seq_nweights(s); i++)
		if (!strcmp(weight(s, i).name, name[_i])) {
			t = empty(weight(s, i).master, TE_DTYPE_BF16, TE_SCALING_TENSOR, 0);
			DO(te_seq_bind_weight(s, name[_i], t));
			te_tensor_unref(t);
		}
	DO(te_seq_init(s, 5));
	not_planned(s, "bf16", -TE_EDTYPE,
		    _i ? "op norm: under recipe bf16 it reads the FP32 master" :
			 "op emb: under recipe bf16 it reads the FP32 master");
	te_seq_unref(s);
}

TEST(bound, bad_weights_are_refused)
{
	const int64_t shape[] = { 96, 32 };
	struct te_seq *s = model_create_unbound(ctx, &llama);
	const char *name = "h.0.proj.weight"; /* [160,160] */
	const int64_t square[] = { 160, 160 };
	struct te_tensor *wrong, *t, *odd, *fp32, *fp8;
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;

	DO(te_tensor_create(ctx, TE_DTYPE_BF16, 2, shape, NULL, &wrong));
	DO(te_tensor_create(ctx, TE_DTYPE_BF16, 2, square, NULL, &t));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square, NULL, &fp32));
	o.flags = TE_TENSOR_COLWISE;
	DO(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, square, &o, &fp8));
	DO(te_tensor_wrap(ctx, TE_DTYPE_BF16, 2, square, (char *)te_tensor_data(fp32) + 64, NULL,
			  NULL, &odd));
	fails(te_seq_bind_weight(s, name, t), -TE_ESTATE, "te_seq_complete has not run");
	DO(te_seq_complete(s));
	fails(te_seq_bind_weight(NULL, name, t), -EINVAL, "seq is NULL");
	fails(te_seq_bind_weight(s, NULL, t), -EINVAL, "name is NULL");
	fails(te_seq_bind_weight(s, "h.0.proj", t), -ENOENT, "no weight is named h.0.proj");
	fails(te_seq_bind_weight(s, name, wrong), -TE_ESHAPE,
	      "h.0.proj.weight: the tensor is [96,32], the weight [160,160]");
	fails(te_seq_bind_weight(s, name, fp32), -TE_EDTYPE,
	      "the tensor is fp32, not bf16, e4m3 or e2m1");
	fails(te_seq_bind_weight(s, name, fp8), -EINVAL, "has no row-wise copy");
	fails(te_seq_bind_weight(s, name, odd), -EINVAL, "is not aligned to 256 bytes");
	DO(te_seq_bind_weight(s, name, t));
	/* and a master again */
	DO(te_seq_bind_weight(s, name, NULL));
	for (int i = 0; i < te_seq_nweights(s); i++)
		ck_assert_ptr_nonnull(weight(s, i).master);
	DO(te_seq_init(s, 5));
	fails(te_seq_bind_weight(s, name, t), -EBUSY, "has been initialised");
	te_seq_unref(s);
	te_tensor_unref(wrong);
	te_tensor_unref(t);
	te_tensor_unref(odd);
	te_tensor_unref(fp32);
	te_tensor_unref(fp8);
}

/* ---- faults ---- */

/* t: has the tensor that is bound; NULL: the library's codes */
static int build(struct te_ctx **c, struct te_seq **s, struct te_op **op, struct te_tensor **t,
		 struct te_plan **p)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_linear_attrs a = TE_ATTRS(linear, 144, 160, 0.02f, 0, NULL);
	struct te_tensor_opts to = TE_TENSOR_OPTS_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	const int64_t shape[] = { 160, 144 };
	int r = tt_ctx_new(c);

	if (!r)
		r = te_seq_create(*c, s);
	if (!r)
		r = te_op_linear(&a, "l", op);
	if (!r)
		r = te_seq_append(*s, *op);
	if (!r)
		r = te_seq_complete(*s);
	to.scaling = TE_SCALING_128X128;
	if (!r && t)
		r = te_tensor_create(*c, TE_DTYPE_E4M3, 2, shape, &to, t);
	if (!r && t)
		r = te_seq_bind_weight(*s, "l.weight", *t);
	if (!r)
		r = te_recipe_from_name("fp8-block", &recipe);
	o.recipe = &recipe;
	o.flags = t ? TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD : 0;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 144 } };
	b.flags = t ? 0 : TE_SEQ_NO_GRADS;
	if (!r)
		r = te_seq_bind(*s, &b);
	if (!r && !t)
		r = te_seq_store_codes(*s, &o);
	if (r >= 0)
		r = te_seq_init(*s, 1);
	return r ? r : te_plan_create(*s, &o, p);
}

static int create(int bind)
{
	struct te_tensor *t = NULL;
	struct te_plan *p = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	struct te_op *op = NULL;
	int r = build(&c, &s, &op, bind ? &t : NULL, &p);

	tt_drop(p, s);
	te_op_unref(op);
	te_tensor_unref(t);
	te_ctx_unref(c);
	return r;
}

static int create_bound(void)
{
	return create(1);
}

static int create_codes(void)
{
	return create(0);
}

CASE(faults, "host");

TEST_IF(faults, survives_every_failed_allocation, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(create_bound), 30);
	ck_assert_int_ge(tt_fault_each(create_codes), 30);
}
