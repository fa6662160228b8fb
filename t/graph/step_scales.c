/* t/graph/step_scales.c - te_step_calibrate(3): the first scales of fp8-delayed. */
#include "config.h"

#include <math.h>

#include <te/quant.h>
#include <te/step.h>

#include "step_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

enum { N = 32, NROWS = 16, MICRO = 2 };

/*
 * At scales of 1 all weights of b would be 0, the inputs of a beyond the largest finite number, and
 * the gradients before c too small: their rows are of many.
 */
static struct te_seq *far_seq(void)
{
	const struct te_embedding_attrs e = TE_ATTRS(embedding, N, N, .init_std = 1000);
	const struct te_linear_attrs a = TE_ATTRS(linear, N, N, .init_std = 0.2f);
	const struct te_linear_attrs b = TE_ATTRS(linear, N, N, .init_std = 1e-4f);
	const struct te_linear_attrs c = TE_ATTRS(linear, N, N, .init_std = 0.2f);
	const struct te_cross_entropy_attrs l = TE_ATTRS(cross_entropy, N, .grad_scale = 1e-4f);
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&e, "e", &op));
	tt_append(seq, op);
	DO(te_op_linear(&a, "a", &op));
	tt_append(seq, op);
	DO(te_op_linear(&b, "b", &op));
	tt_append(seq, op);
	DO(te_op_linear(&c, "c", &op));
	tt_append(seq, op);
	DO(te_op_cross_entropy(&l, "loss", &op));
	DO(te_op_take(op, 0, "targets"));
	tt_append(seq, op);
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_seq_init(seq, 5));
	return seq;
}

struct far {
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_step *step;
};

static void put(const struct far *f, int nmicro)
{
	int32_t t[2][NROWS];

	for (int m = 0; m < nmicro; m++) {
		for (int i = 0; i < NROWS; i++) {
			t[0][i] = (i * 5 + m) % N;
			t[1][i] = (i * 11 + m) % N;
		}
		DO(te_tensor_write(te_step_input(f->step, 0, m, "x"), t[0], sizeof(t[0])));
		DO(te_tensor_write(te_step_input(f->step, 0, m, "targets"), t[1], sizeof(t[1])));
	}
}

/* a step of so many micro-batches, of MICRO in all */
static struct far far_create_some(const char *recipe, uint32_t flags, int nmicro)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct far f = { .seq = far_seq() };

	DO(te_adamw_create(f.seq, NULL, &f.opt));
	o.recipe = &rec;
	o.flags = flags;
	o.micro_batches = nmicro;
	o.total_micro_batches = MICRO;
	o.x = tokens(1, NROWS);
	DO(te_step_create(f.seq, f.opt, &o, &f.step));
	put(&f, nmicro);
	return f;
}

static struct far far_create(const char *recipe, uint32_t flags)
{
	return far_create_some(recipe, flags, MICRO);
}

static void far_destroy(struct far *f)
{
	te_step_unref(f->step);
	te_adamw_unref(f->opt);
	te_seq_unref(f->seq);
}

/* loss and gradients of the first step */
static float *first_step(const struct far *f, double *ret_loss)
{
	DO(te_step_run(f->step, 0, st));
	DO(te_step_loss(f->step, ret_loss));
	return tt_tensor_get(te_seq_grads(f->seq));
}

static double cosine(const float *a, const float *b, int64_t n)
{
	double ab = 0, aa = 0, bb = 0;

	for (int64_t i = 0; i < n; i++) {
		ab += (double)a[i] * (double)b[i];
		aa += (double)a[i] * (double)a[i];
		bb += (double)b[i] * (double)b[i];
	}
	return ab / sqrt(aa * bb);
}

CTX_CASE(scales, "graph step numeric");

/* E4M3 has a relative error of 2^-4 an element, E5M2 of 2^-3, which average out */
TEST_EACH(scales, first_scales_come_from_the_tensors, NMODES)
{
	struct far f = far_create("fp8-delayed", modes[_i]), exact = far_create("fp32", 0);
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	double loss, want;
	float *g = first_step(&f, &loss), *h = first_step(&exact, &want);

	ck_assert_msg(fabs(loss - want) < 0.02 * want, "loss %g, not %g", loss, want);
	for (int i = 0; i < te_seq_nweights(f.seq); i++) {
		double cos;

		DO(te_seq_weight(f.seq, i, &w));
		cos = cosine(g + w.offset_nelems, h + w.offset_nelems,
			     te_tensor_nelems(w.master));
		ck_assert_msg(cos > 0.98, "%s: cosine %g", w.name, cos);
	}
	free(g);
	free(h);
	far_destroy(&f);
	far_destroy(&exact);
}

static uint8_t *scales_of(const struct far *f)
{
	struct te_quant *q = te_seq_quant(f->seq);
	uint8_t *blob = malloc(te_quant_nbytes(q));

	DO(te_quant_save(q, blob, te_quant_nbytes(q)));
	return blob;
}

static void same_scales(const struct far *f, const uint8_t *want)
{
	uint8_t *have = scales_of(f);

	ck_assert_mem_eq(have, want, te_quant_nbytes(te_seq_quant(f->seq)));
	free(have);
}

/* calibrated before its first step, or by it: the same bits, and nothing but scales changes */
TEST_EACH(scales, calibration_changes_scales_only, NMODES)
{
	struct far f = far_create("fp8-delayed", modes[_i]), twin = far_create("fp8-delayed", 0);
	float *w[2] = { tt_tensor_get(te_seq_masters(f.seq)) };
	uint64_t seed[2], offset[2];
	double loss[2];
	uint8_t *scales;
	float *g[2];

	DO(te_seq_rng_get(f.seq, &seed[0], &offset[0]));
	DO(te_step_calibrate(f.step, 0, st));
	DO(te_seq_rng_get(f.seq, &seed[1], &offset[1]));
	ck_assert(seed[0] == seed[1] && offset[0] == offset[1]);
	w[1] = tt_tensor_get(te_seq_masters(f.seq));
	ck_assert_mem_eq(w[0], w[1], te_tensor_nbytes(te_seq_masters(f.seq)));
	model_same(te_adamw_m(f.opt), te_adamw_m(twin.opt), "moments");
	scales = scales_of(&f);
	DO(te_step_calibrate(f.step, 0, st)); /* has been done */
	same_scales(&f, scales);
	g[0] = first_step(&f, &loss[0]);
	g[1] = first_step(&twin, &loss[1]);
	ck_assert_double_eq(loss[0], loss[1]);
	ck_assert_mem_eq(g[0], g[1], te_tensor_nbytes(te_seq_grads(f.seq)));
	model_same(te_seq_masters(f.seq), te_seq_masters(twin.seq), "weights");
	for (int i = 0; i < 2; i++) {
		free(w[i]);
		free(g[i]);
	}
	free(scales);
	far_destroy(&f);
	far_destroy(&twin);
}

/* the other micro-batches of a step neither take time nor change the scales */
TEST_EACH(scales, calibration_runs_one_micro_batch, NMODES)
{
	struct far f = far_create("fp8-delayed", modes[_i]);
	struct far one = far_create_some("fp8-delayed", 0, 1);
	uint8_t *scales;

	DO(te_step_calibrate(f.step, 0, st));
	DO(te_step_calibrate(one.step, 0, st));
	scales = scales_of(&one);
	same_scales(&f, scales);
	free(scales);
	far_destroy(&f);
	far_destroy(&one);
}

TEST_EACH(scales, loaded_scales_stay, NMODES)
{
	struct far f = far_create("fp8-delayed", 0), g = far_create("fp8-delayed", modes[_i]);
	struct te_quant *q = te_seq_quant(g.seq);
	double loss;
	uint8_t *scales;

	free(first_step(&f, &loss));
	scales = scales_of(&f);
	DO(te_quant_load(q, scales, te_quant_nbytes(q)));
	DO(te_step_calibrate(g.step, 0, st));
	same_scales(&g, scales);
	free(scales);
	far_destroy(&f);
	far_destroy(&g);
}

/* recipes without earlier amaxes, and what cannot run */
TEST_EACH(scales, nothing_to_calibrate, 4)
{
	static const char *const recipe[] = { "fp32", "bf16", "fp8-current", "fp8-block" };
	struct far f = far_create(recipe[_i], 0);
	struct te_recording *rec;

	DO(te_step_calibrate(f.step, 0, st));
	ck_assert_int_eq(te_step_calibrate(NULL, 0, st), -EINVAL);
	ck_assert_int_eq(te_step_calibrate(f.step, 0, NULL), -EINVAL);
	ck_assert_int_eq(te_step_calibrate(f.step, 1, st), -EINVAL);
	tt_said("te_step_calibrate: shape 1 of 1");
	DO(te_capture_begin(st));
	ck_assert_int_eq(te_step_calibrate(f.step, 0, st), -EBUSY);
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	far_destroy(&f);
}
