/* t/ops/kernel_calls.c - the suite, and what its cases share. */
#include "config.h"

#include "kernel_calls_cases.h"
#include "tt_num.h"

int64_t kc_rows, kc_cols;
const enum te_dtype kc_types[2] = { TE_DTYPE_FP32, TE_DTYPE_BF16 };
enum te_dtype kc_type;

static struct te_tensor *made[256];
static void *scratch[16];
static int nmade, nscratch;
static struct te_plan *plan;
static struct te_seq *seq;

void kc_setup(void)
{
	tt_setup();
	kc_rows = tt_rand_int(1, 150);
	kc_cols = tt_rand_int(1, 300);
}

void kc_teardown(void)
{
	plan = te_plan_unref(plan);
	seq = te_seq_unref(seq);
	while (nmade)
		te_tensor_unref(made[--nmade]);
	while (nscratch)
		DO(te_mem_free(st, scratch[--nscratch]));
	tt_teardown();
}

const char *kc_recipe(void)
{
	return kc_type == TE_DTYPE_BF16 ? "bf16" : "fp32";
}

static struct te_tensor *make(enum te_dtype dtype, int64_t rows, int64_t cols, uint32_t flags,
			      enum te_scaling scaling)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { rows, cols };

	ck_assert_int_lt(nmade, (int)TT_LEN(made));
	o.flags = flags;
	o.scaling = scaling;
	DO(te_tensor_create(ctx, dtype, 2, shape, &o, &made[nmade]));
	return made[nmade++];
}

struct te_tensor *kc_poison(enum te_dtype dtype, int64_t rows, int64_t cols)
{
	struct te_tensor *t = make(dtype, rows, cols, 0, TE_SCALING_TENSOR);
	void *p = malloc(te_tensor_nbytes(t));

	tt_poison(p, te_tensor_nbytes(t));
	DO(te_tensor_write(t, p, te_tensor_nbytes(t)));
	free(p);
	return t;
}

void kc_set_normal(struct te_tensor *t)
{
	const size_t n = (size_t)te_tensor_nelems(t);
	float *v = malloc(n * sizeof(*v));

	tt_fill_normal(v, n, 1.0f);
	tt_tensor_set(t, v);
	free(v);
}

struct te_tensor *kc_normal(enum te_dtype dtype, int64_t rows, int64_t cols)
{
	struct te_tensor *t = make(dtype, rows, cols, 0, TE_SCALING_TENSOR);

	kc_set_normal(t);
	return t;
}

struct te_tensor *kc_zeros(enum te_dtype dtype, int64_t rows, int64_t cols)
{
	struct te_tensor *t = make(dtype, rows, cols, 0, TE_SCALING_TENSOR);

	DO(te_fill(st, te_tensor_data(t), 0, te_tensor_nbytes(t)));
	return t;
}

struct te_tensor *kc_fp8(enum te_dtype dtype, int64_t rows, int64_t cols, enum te_scaling scaling)
{
	struct te_tensor *t =
		make(dtype, rows, cols, TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE, scaling);

	DO(te_fill(st, te_tensor_data(t), 0x55, te_tensor_nbytes(t)));
	DO(te_fill(st, te_tensor_coldata(t), 0x55, te_tensor_nbytes(t)));
	return t;
}

struct te_tensor *kc_copy(const struct te_tensor *t)
{
	struct te_tensor *c = make(te_tensor_dtype(t), te_tensor_rows(t), te_tensor_cols(t), 0,
				   TE_SCALING_TENSOR);

	DO(te_copy(st, te_tensor_data(c), te_tensor_data(t), te_tensor_nbytes(t)));
	return c;
}

struct te_tensor *kc_reshaped(struct te_tensor *t, const struct te_spec *s)
{
	ck_assert_int_lt(nmade, (int)TT_LEN(made));
	DO(te_tensor_view(t, 0, s->ndim, s->shape, &made[nmade]));
	return made[nmade++];
}

void *kc_ws(size_t nbytes)
{
	ck_assert_int_lt(nscratch, (int)TT_LEN(scratch));
	DO(te_mem_alloc(st, nbytes, &scratch[nscratch]));
	DO(te_fill(st, scratch[nscratch], 0xff, nbytes));
	return scratch[nscratch++];
}

void kc_op_init(struct op_run *r, struct te_op *op, const struct te_spec *in)
{
	const struct te_recipe recipe = op_run_recipe(kc_recipe());

	op_run_init(r, ctx, op, &recipe, in);
	if (te_tensor_dtype(r->call.x.hp) == kc_type)
		kc_set_normal(r->call.x.hp);
	if (te_tensor_dtype(r->call.dy.hp) == kc_type)
		kc_set_normal(r->call.dy.hp);
	for (int i = 0; i < op->nweights; i++)
		kc_set_normal(r->master[i]);
}

void kc_op_passes(struct op_run *r)
{
	op_run_forward(r);
	op_run_backward(r);
	op_run_dw(r);
}

void kc_op_fini(struct op_run *r)
{
	op_run_fini(r);
	te_op_unref(r->op);
}

struct te_plan *kc_plan(struct te_op *const *ops, const struct te_spec *x, uint32_t flags)
{
	const struct te_recipe recipe = op_run_recipe(kc_recipe());
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = *x;
	DO(te_seq_create(ctx, &seq));
	for (int i = 0; ops[i]; i++) {
		DO(te_seq_append(seq, ops[i]));
		te_op_unref(ops[i]);
	}
	DO(te_seq_init(seq, tt_seed()));
	DO(te_seq_zero_grads(seq, st));
	DO(te_plan_create(seq, &o, &plan));
	return plan;
}

struct te_weight_info kc_weight(int i)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(seq, i, &w));
	return w;
}

struct te_seq *kc_seq(void)
{
	return seq;
}

void kc_begin(int replay)
{
	if (replay)
		DO(te_capture_begin(st));
}

void kc_end(int replay)
{
	struct te_recording *rec;

	if (!replay)
		return;
	DO(te_capture_end(st, &rec));
	DO(te_recording_launch(rec, st));
	DO(te_stream_sync(st));
	te_recording_unref(rec);
}

static void same_bytes(const char *what, const void *got, const void *want, size_t nbytes)
{
	unsigned char *a = tt_bytes(got, nbytes), *b = tt_bytes(want, nbytes);

	for (size_t i = 0; i < nbytes; i++)
		ck_assert_msg(a[i] == b[i], "%s: byte %zu of %zu is %02x, not %02x", what, i,
			      nbytes, a[i], b[i]);
	free(a);
	free(b);
}

void kc_same(const char *what, const struct te_tensor *got, const struct te_tensor *want)
{
	const int64_t rows = te_tensor_rows(got), cols = te_tensor_cols(got);
	const enum te_scaling scaling = te_tensor_scaling(got);
	const size_t nbytes = te_tensor_nbytes(got);

	ck_assert_uint_eq(nbytes, te_tensor_nbytes(want));
	same_bytes(what, te_tensor_data(got), te_tensor_data(want), nbytes);
	if (!tt_is_fp8(te_tensor_dtype(got)))
		return;
	same_bytes(what, te_tensor_coldata(got), te_tensor_coldata(want), nbytes);
	same_bytes(what, te_tensor_scale_inv(got), te_tensor_scale_inv(want),
		   4 * (size_t)te_scaling_nfloats(scaling, rows, cols));
	same_bytes(what, te_tensor_col_scale_inv(got), te_tensor_col_scale_inv(want),
		   4 * (size_t)te_scaling_nfloats(scaling, cols, rows));
}

const char *const kc_quant_recipes[3] = { "fp8-delayed", "fp8-current", "fp8-block" };

struct kc_quants kc_quants(const char *recipe, int64_t rows, int64_t cols)
{
	static const enum te_dtype dtypes[2] = { TE_DTYPE_E4M3, TE_DTYPE_E5M2 };
	const struct te_recipe r = op_run_recipe(recipe);
	const enum te_scaling scaling =
		r.kind == TE_RECIPE_BLOCK ? TE_SCALING_1X128 : TE_SCALING_TENSOR;
	struct kc_quants z;

	for (int i = 0; i < 2; i++) {
		DO(te_quant_create(ctx, &r, 2, dtypes, &z.of[i]));
		z.q[i] = kc_fp8(TE_DTYPE_E5M2, rows, cols, scaling);
	}
	return z;
}

void kc_equals_quantize(struct kc_quants *z, const struct te_tensor *y, uint32_t flags)
{
	float scale[2], history[2][4] = { { 0 } };

	DO(te_quantize(st, z->of[1], 1, y, z->q[1], NULL, flags));
	DO(te_stream_sync(st));
	kc_same("q", z->q[0], z->q[1]);
	for (int i = 0; i < 2; i++)
		DO(te_quant_peek(z->of[i], 1, &scale[i], history[i]));
	ck_assert_mem_eq(&scale[0], &scale[1], sizeof(scale[0]));
	ck_assert_mem_eq(history[0], history[1], sizeof(history[0]));
}

void kc_quants_drop(struct kc_quants *z)
{
	te_quant_unref(z->of[0]);
	te_quant_unref(z->of[1]);
}

TT_PAIR("ops/kernel_calls", TT_ONE_PROCESS)
