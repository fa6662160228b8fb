/*
 * op.c - te_perftest norm and act: norms and activations of BF16 rows as plans of one op,
 * compared with a copy that moves as many bytes.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/op.h>
#include <te/plan.h>
#include <te/tensor.h>

#include "copy.h"
#include "tools/lib/say.h"

#define EPS 1e-5f
/* rows of a tensor that --verify computes */
#define NVERIFIED 100

/* choices of --op of norm, then of act, and of --pass, in their order */
enum { LAYERNORM, RMSNORM, NNORMS, GELU = NNORMS, SILU, NOPS };
enum { FORWARD, BOTH, NPASSES };

static const char *const op_names[NOPS] = { "layernorm", "rmsnorm", "gelu", "silu" };
static const char *const pass_names[NPASSES] = { "forward", "both" };

static struct {
	char *cache;
	int64_t rows, cols;
	uint32_t op, pass;
} opt;

static const struct option_field norm_options[] = {
	CACHE_OPTION,
	{ "rows", OPTION_COUNT, AT(rows), "4096", 1, 1 << 24, 0, "N", "rows of a tensor" },
	{ "cols", OPTION_COUNT, AT(cols), "4096", 1, 1 << 24, 0, "N", "columns of a tensor" },
	{ "op", OPTION_WORDS, AT(op), "layernorm,rmsnorm", 0, 0, 0, "layernorm|rmsnorm",
	  "operation" },
	{ "pass", OPTION_WORDS, AT(pass), "forward,both", 0, 0, 0, "forward|both",
	  "forward for evaluation, or forward and backward" },
	{ 0 },
};

static const struct option_field act_options[] = {
	CACHE_OPTION,
	{ "rows", OPTION_COUNT, AT(rows), "4096", 1, 1 << 24, 0, "N", "rows of a tensor" },
	{ "cols", OPTION_COUNT, AT(cols), "4096", 1, 1 << 24, 0, "N", "columns of a tensor" },
	{ "op", OPTION_WORDS, AT(op), "gelu,silu", 0, 0, 0, "gelu|silu", "operation" },
	{ "pass", OPTION_WORDS, AT(pass), "forward,both", 0, 0, 0, "forward|both",
	  "forward for evaluation, or forward and backward" },
	{ 0 },
};

/* nsets plans of one sequence, each with its own memory; each call takes the next */
struct op_bench {
	struct bench *b;
	int op, pass;
	int64_t rows, cols;
	double traffic; /* bytes that one call has to read and to write */
	int nsets, at, batch;
	struct te_seq *seq;
	struct te_plan **plan;
	uint16_t *x, *dy;   /* rows times cols, BF16 */
	float *gain, *bias; /* cols; of norms */
	struct copy copy;   /* moves as many bytes */
};

static int work(void *arg)
{
	struct op_bench *n = arg;
	struct te_plan *p = n->plan[n->at];
	int r = te_plan_forward(p, n->b->stream, 0);

	n->at = (n->at + 1) % n->nsets;
	return r < 0 || n->pass == FORWARD ? r : te_plan_backward(p, n->b->stream);
}

static int device_us(void *arg, double *ret_us)
{
	struct op_bench *n = arg;
	int r = bench_device_us(n->b, work, n, n->batch, &ret_us[0]);

	/* alternately, so that clock drift affects both */
	return r ? r : bench_device_us(n->b, copy_work, &n->copy, n->copy.batch, &ret_us[1]);
}

static uint16_t *normal_bf16(struct bench *b, size_t n)
{
	uint16_t *p = malloc(n * sizeof(*p));
	float x[256];

	for (size_t i = 0; i < n && p; i++) {
		if (i % 256 == 0)
			bench_normal(b, x, 256);
		p[i] = te_bf16_encode(x[i % 256]);
	}
	return p;
}

static int make_op(const struct op_bench *n, struct te_op **ret)
{
	const struct te_norm_attrs norm = TE_ATTRS(norm, .width = n->cols, .eps = EPS);
	const struct te_act_attrs act = TE_ATTRS(act,
						 .act = n->op == GELU ? TE_ACT_GELU : TE_ACT_SILU);

	switch (n->op) {
	case LAYERNORM:
		return te_op_layernorm(&norm, "norm", ret);
	case RMSNORM:
		return te_op_rmsnorm(&norm, "norm", ret);
	default:
		return te_op_activation(&act, "act", ret);
	}
}

static int make_seq(struct op_bench *n)
{
	struct te_op *op = NULL;
	int r = te_seq_create(n->b->ctx, &n->seq);

	if (r >= 0)
		r = make_op(n, &op);
	if (r >= 0)
		r = te_seq_append(n->seq, op);
	te_op_unref(op);
	if (r >= 0)
		r = te_seq_init(n->seq, 1);
	for (int i = 0; r >= 0 && i < te_seq_nweights(n->seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		r = te_seq_weight(n->seq, i, &w);
		if (r >= 0)
			r = te_tensor_write(w.master, i ? n->bias : n->gain,
					    te_tensor_nbytes(w.master));
	}
	return r;
}

static int make_plan(struct op_bench *n, struct te_plan **ret)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_tensor *t;
	int r;

	po.x = (struct te_spec){ TE_DTYPE_BF16, 2, { n->rows, n->cols } };
	po.flags = n->pass == BOTH ? TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD : 0;
	r = te_plan_create(n->seq, &po, ret);
	if (r < 0)
		return r;
	t = te_plan_input(*ret, "x");
	r = te_tensor_write(t, n->x, te_tensor_nbytes(t));
	if (r < 0 || n->pass == FORWARD)
		return r;
	t = te_plan_output_grad(*ret);
	return te_tensor_write(t, n->dy, te_tensor_nbytes(t));
}

static int op_alloc(struct op_bench *n)
{
	struct bench *b = n->b;
	size_t nelems = (size_t)(n->rows * n->cols);
	int r;

	/* x and y; backward reads x and dy and writes dx */
	n->traffic = 2.0 * (n->pass == BOTH ? 5 : 2) * (double)nelems;
	n->nsets = bench_nsets(b, n->traffic);
	n->plan = calloc((size_t)n->nsets, sizeof(struct te_plan *));
	n->x = normal_bf16(b, nelems);
	n->dy = normal_bf16(b, nelems);
	n->gain = malloc((size_t)n->cols * sizeof(float));
	n->bias = malloc((size_t)n->cols * sizeof(float));
	if (!n->plan || !n->x || !n->dy || !n->gain || !n->bias)
		return say_bad("--rows, --cols: no memory for %zu elements", nelems);
	bench_normal(b, n->gain, (size_t)n->cols);
	bench_normal(b, n->bias, (size_t)n->cols);
	n->copy.b = b;
	n->copy.nbytes = (size_t)(n->traffic / 2);
	r = copy_alloc(&n->copy);
	if (r)
		return r;
	r = make_seq(n);
	for (int i = 0; i < n->nsets && r >= 0; i++)
		r = make_plan(n, &n->plan[i]);
	return r < 0 ? say_te(r, "%s", op_names[n->op]) : STATUS_OK;
}

static void op_free(struct op_bench *n)
{
	te_stream_sync(n->b->stream);
	copy_free(&n->copy);
	for (int i = 0; n->plan && i < n->nsets; i++)
		te_plan_unref(n->plan[i]);
	te_seq_unref(n->seq);
	free(n->plan);
	free(n->x);
	free(n->dy);
	free(n->gain);
	free(n->bias);
}

static int near(const struct op_bench *n, const char *what, int64_t row, int64_t col, uint16_t code,
		double want, double size)
{
	double got = te_bf16_decode(code);
	/*
	 * Rounded once to BF16. In FP32 each of the few sums of cols terms is off by
	 * at most cols 2^-24 of its size, and so is the result.
	 */
	double bound = 0x1p-8 * fabs(want) + 4 * (double)(n->cols + 8) * 0x1p-24 * size;

	if (fabs(got - want) <= bound)
		return STATUS_OK;
	return say_failed("verify: %s %s, %lld, %lld: %g, want %g within %g", op_names[n->op], what,
			  (long long)row, (long long)col, got, want, bound);
}

/*
 * The reference, in FP64. With c = x less its mean (RMSNorm: x) and h = c / rms(c):
 * y = h gain + bias, and with g = gain dy, dx = (g - mean(g) - h mean(g h)) / rms(c)
 * where RMSNorm has no mean(g). Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019.
 */
static int verify_norm(const struct op_bench *n, int64_t row, const uint16_t *y, const uint16_t *dx)
{
	const uint16_t *x = n->x + row * n->cols, *dy = n->dy + row * n->cols;
	double mean = 0, square = 0, rstd, mean_g = 0, mean_gh = 0, most = 0, most_g = 0;
	const double cols = (double)n->cols;
	int r = STATUS_OK;

	for (int64_t i = 0; i < n->cols; i++) {
		mean += te_bf16_decode(x[i]) / cols;
		most = fmax(most, fabs(te_bf16_decode(x[i])));
	}
	if (n->op == RMSNORM)
		mean = 0;
	for (int64_t i = 0; i < n->cols; i++)
		square += pow(te_bf16_decode(x[i]) - mean, 2) / cols;
	rstd = 1 / sqrt(square + (double)EPS);
	most = 2 * most * rstd; /* no h is larger */
	for (int64_t i = 0; i < n->cols; i++) {
		double h = (te_bf16_decode(x[i]) - mean) * rstd;
		double g = (double)n->gain[i] * te_bf16_decode(dy[i]);

		mean_g += n->op == LAYERNORM ? g / cols : 0;
		mean_gh += g * h / cols;
		most_g = fmax(most_g, fabs(g));
	}
	for (int64_t i = 0; i < n->cols && !r; i++) {
		double h = (te_bf16_decode(x[i]) - mean) * rstd, gain = n->gain[i];
		double bias = n->op == LAYERNORM ? n->bias[i] : 0;
		double g = gain * te_bf16_decode(dy[i]);

		r = near(n, "y", row, i, y[row * n->cols + i], h * gain + bias,
			 most * fabs(gain) + fabs(bias));
		if (!r && dx)
			r = near(n, "dx", row, i, dx[row * n->cols + i],
				 (g - mean_g - h * mean_gh) * rstd,
				 rstd * most_g * (2 + most * most));
	}
	return r;
}

/*
 * In FP64: y = x s(t), s(t) = 1 / (1 + exp(-t)), t = x for SiLU; for GELU t = 2 sqrt(2 / pi) (x +
 * 0.044715 x^3), the tanh form of Hendrycks and Gimpel 2016. dx = dy (s + x s (1 - s) t').
 */
static int verify_act(const struct op_bench *n, int64_t row, const uint16_t *y, const uint16_t *dx)
{
	int r = STATUS_OK;

	for (int64_t i = row * n->cols; i < (row + 1) * n->cols && !r; i++) {
		const double x = te_bf16_decode(n->x[i]), dy = te_bf16_decode(n->dy[i]);
		const double k = n->op == GELU ? 1.5957691216057308 : 1;
		const double cube = n->op == GELU ? 0.044715 : 0;
		const double s = 1 / (1 + exp(-k * (x + cube * x * x * x)));
		const double slope = k * (1 + 3 * cube * x * x);

		r = near(n, "y", row, i % n->cols, y[i], x * s, fabs(x));
		if (!r && dx)
			r = near(n, "dx", row, i % n->cols, dx[i],
				 dy * (s + x * s * (1 - s) * slope),
				 fabs(dy) * (1 + fabs(x) * slope));
	}
	return r;
}

static int verify_row(const struct op_bench *n, int64_t row, const uint16_t *y, const uint16_t *dx)
{
	return n->op < NNORMS ? verify_norm(n, row, y, dx) : verify_act(n, row, y, dx);
}

/* the first rows and the last row of the last plan */
static int verify(struct op_bench *n)
{
	struct te_plan *p = n->plan[n->nsets - 1];
	size_t nbytes = (size_t)(n->rows * n->cols) * sizeof(uint16_t);
	uint16_t *y = malloc(nbytes), *dx = n->pass == BOTH ? malloc(nbytes) : NULL;
	int r = 0;

	if (!y || (n->pass == BOTH && !dx))
		r = -ENOMEM;
	/* bytes of all ones are NaN */
	if (r >= 0)
		r = te_fill(n->b->stream, te_tensor_data(te_plan_output(p)), 0xff, nbytes);
	if (r >= 0 && dx)
		r = te_fill(n->b->stream, te_tensor_data(te_plan_input_grad(p)), 0xff, nbytes);
	n->at = n->nsets - 1;
	if (r >= 0)
		r = work(n);
	r = bench_idle(n->b, r);
	if (r >= 0)
		r = te_tensor_read(te_plan_output(p), y, nbytes);
	if (r >= 0 && dx)
		r = te_tensor_read(te_plan_input_grad(p), dx, nbytes);
	if (r < 0)
		r = say_te(r, "verify");
	for (int64_t i = 0; i < n->rows && i < NVERIFIED && !r; i++)
		r = verify_row(n, i, y, dx);
	if (!r)
		r = verify_row(n, n->rows - 1, y, dx);
	free(y);
	free(dx);
	return r;
}

static int measure(struct op_bench *n, int rows_left)
{
	struct bench *b = n->b;
	struct stats us[2];
	int r;

	b->cache = opt.cache;
	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = op_alloc(n);
	if (!r && b->o->verify)
		r = verify(n);
	if (!r)
		r = bench_batch(b, work, n, 1000, 1, 16, &n->batch);
	if (!r)
		r = bench_batch(b, copy_work, &n->copy, 1000, 1, 16, &n->copy.batch);
	if (!r)
		r = bench_series(b, device_us, n, 2, us);
	if (r)
		return r;
	bench_text(b, "op", op_names[n->op]);
	bench_text(b, "pass", pass_names[n->pass]);
	bench_int(b, "rows", n->rows);
	bench_int(b, "cols", n->cols);
	bench_int(b, "plans", n->nsets);
	copy_compare(b, n->traffic, us);
	return STATUS_OK;
}

/* the ops from first to end - 1 that are in the set, which begins with the first */
static int run(struct bench *b, int first, int end, uint32_t ops)
{
	int rows = __builtin_popcount(ops) * __builtin_popcount(opt.pass);
	int r = STATUS_OK;

	for (int i = first * NPASSES; i < end * NPASSES && !r; i++) {
		struct op_bench n = { .b = b, .op = i / NPASSES, .pass = i % NPASSES };

		if (!(ops & 1u << (n.op - first)) || !(opt.pass & 1u << n.pass))
			continue;
		n.rows = opt.rows;
		n.cols = opt.cols;
		r = measure(&n, rows--);
		op_free(&n);
	}
	return r;
}

static int run_norm(struct bench *b)
{
	return run(b, LAYERNORM, NNORMS, opt.op);
}

static int run_act(struct bench *b)
{
	return run(b, GELU, NOPS, opt.op);
}

const struct test test_norm = {
	.name = "norm",
	.text = "LayerNorm and RMSNorm of BF16, compared with a copy of as many bytes",
	.options = norm_options,
	.values = &opt,
	.columns = copy_columns,
	.run = run_norm,
};

const struct test test_act = {
	.name = "act",
	.text = "GELU and SiLU of BF16, compared with a copy of as many bytes",
	.options = act_options,
	.values = &opt,
	.columns = copy_columns,
	.run = run_act,
};
