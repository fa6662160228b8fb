/*
 * attn.c - te_perftest attn: causal attention as a plan of one op, compared with a large GEMM of
 * the same type, and with the peak rate of the type.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/gemm.h>
#include <te/op.h>
#include <te/plan.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "bench.h"
#include "blas.h"
#include "tools/lib/say.h"

/* rows of the output that --verify computes */
#define NVERIFIED 50

/* choices of --types and --pass, in their order */
static const struct type {
	const char *name;
	enum te_dtype dtype;
} types[] = { { "fp32", TE_DTYPE_FP32 }, { "bf16", TE_DTYPE_BF16 } };
static const char *const pass_names[] = { "forward", "both" };
#define NTYPES ((int)(sizeof(types) / sizeof(types[0])))
#define NPASSES 2

static struct {
	char *cache;
	uint32_t pass, types;
	int64_t batch, seq_len, heads, kv_heads, head_dim;
} opt;

static const struct option_field options[] = {
	CACHE_OPTION,
	{ "pass", OPTION_WORDS, AT(pass), "forward,both", 0, 0, 0, "forward|both",
	  "forward for evaluation, or forward and backward" },
	{ "types", OPTION_WORDS, AT(types), "bf16", 0, 0, 0, "fp32|bf16", "type of all tensors" },
	{ "batch", OPTION_COUNT, AT(batch), "4", 1, 1 << 16, 0, "N", "sequences" },
	{ "seq-len", OPTION_COUNT, AT(seq_len), "0", 0, 1 << 16, 0, "N",
	  "tokens of a sequence; 0: 2048, or 256 on the host" },
	{ "heads", OPTION_COUNT, AT(heads), "8", 1, 1024, 0, "N", "query heads" },
	{ "kv-heads", OPTION_COUNT, AT(kv_heads), "0", 0, 1024, 0, "N",
	  "key and value heads; 0: the same" },
	{ "head-dim", OPTION_COUNT, AT(head_dim), "64", 1, 128, 0, "N", "channels of a head" },
	{ 0 },
};

/* nsets plans of one sequence, each with its own memory; each call takes the next */
struct attn {
	struct bench *b;
	const struct type *type;
	int both; /* passes */
	int64_t batch, seq_len, heads, kv_heads, head_dim;
	float scale;
	int nsets, at, calls;
	struct te_seq *seq;
	struct te_plan **plan;
	uint8_t *qkv, *dy;
	/* the GEMM: d = a w^T, extents n */
	int64_t n;
	int gemm_calls;
	struct te_tensor *a, *w, *d;
	struct blas blas; /* the same extents */
};

static int64_t width(const struct attn *t)
{
	return (t->heads + 2 * t->kv_heads) * t->head_dim;
}

static int work(void *arg)
{
	struct attn *t = arg;
	struct te_plan *p = t->plan[t->at];
	int r = te_plan_forward(p, t->b->stream, 0);

	t->at = (t->at + 1) % t->nsets;
	return r < 0 || !t->both ? r : te_plan_backward(p, t->b->stream);
}

static int gemm_work(void *arg)
{
	struct attn *t = arg;

	return te_gemm(t->b->stream, t->a, t->w, t->d, NULL);
}

static int device_us(void *arg, double *ret_us)
{
	struct attn *t = arg;
	int r = bench_device_us(t->b, work, t, t->calls, &ret_us[0]);

	/* alternately, so that clock drift affects all */
	if (!r)
		r = bench_device_us(t->b, gemm_work, t, t->gemm_calls, &ret_us[1]);
	return r || !blas_there(t->b) ? r :
					bench_device_us(t->b, blas_work, &t->blas, t->blas.batch,
							&ret_us[2]);
}

/* random normal numbers as elements of the type */
static uint8_t *make_host(const struct attn *t, size_t n)
{
	const size_t size = te_dtype_nbytes(t->type->dtype);
	uint8_t *p = malloc(n * size);
	float x[256];

	for (size_t i = 0; i < n && p; i++) {
		uint16_t half;

		if (i % 256 == 0)
			bench_normal(t->b, x, 256);
		half = te_bf16_encode(x[i % 256]);
		memcpy(p + i * size, size == 2 ? (void *)&half : (void *)&x[i % 256], size);
	}
	return p;
}

static double element(const struct attn *t, const uint8_t *p, int64_t i)
{
	uint16_t half;
	float x;

	if (t->type->dtype == TE_DTYPE_FP32) {
		memcpy(&x, p + 4 * i, 4);
		return x;
	}
	memcpy(&half, p + 2 * i, 2);
	return te_bf16_decode(half);
}

static int make_seq(struct attn *t)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, .nheads = (int32_t)t->heads,
					      .nkv = (int32_t)t->kv_heads,
					      .head_dim = (int32_t)t->head_dim,
					      .scale = t->scale);
	struct te_op *op = NULL;
	int r = te_seq_create(t->b->ctx, &t->seq);

	if (r >= 0)
		r = te_op_attention(&a, "attn", &op);
	if (r >= 0)
		r = te_seq_append(t->seq, op);
	te_op_unref(op);
	return r < 0 ? r : te_seq_init(t->seq, 1);
}

static int make_plan(struct attn *t, struct te_plan **ret)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_tensor *x;
	int r = te_recipe_from_name(t->type->name, &recipe);

	if (r < 0)
		return r;
	po.recipe = &recipe;
	po.x = (struct te_spec){ t->type->dtype, 3, { t->batch, t->seq_len, width(t) } };
	po.flags = t->both ? TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD : 0;
	r = te_plan_create(t->seq, &po, ret);
	if (r < 0)
		return r;
	x = te_plan_input(*ret, "x");
	r = te_tensor_write(x, t->qkv, te_tensor_nbytes(x));
	if (r < 0 || !t->both)
		return r;
	x = te_plan_output_grad(*ret);
	return te_tensor_write(x, t->dy, te_tensor_nbytes(x));
}

static int make_gemm(struct attn *t)
{
	struct te_tensor **all[] = { &t->a, &t->w, &t->d };
	const int64_t shape[] = { t->n, t->n };
	uint8_t *host = make_host(t, (size_t)(t->n * t->n));
	int r = host ? 0 : -ENOMEM;

	for (int i = 0; i < 3 && r >= 0; i++) {
		r = te_tensor_create(t->b->ctx, t->type->dtype, 2, shape, NULL, all[i]);
		if (r >= 0)
			r = te_tensor_write(*all[i], host, te_tensor_nbytes(*all[i]));
	}
	free(host);
	return r;
}

static int attn_alloc(struct attn *t)
{
	const int64_t rows = t->batch * t->seq_len, nout = rows * t->heads * t->head_dim;
	const double size = (double)te_dtype_nbytes(t->type->dtype);
	int r;

	t->scale = 1.0f / sqrtf((float)t->head_dim);
	t->nsets = bench_nsets(t->b, size * (t->both ? 2.0 : 1.0) *
					     ((double)(rows * width(t)) + (double)nout));
	t->plan = calloc((size_t)t->nsets, sizeof(struct te_plan *));
	t->qkv = make_host(t, (size_t)(rows * width(t)));
	t->dy = make_host(t, (size_t)nout);
	if (!t->plan || !t->qkv || !t->dy)
		return say_bad("--batch, --seq-len, --heads: no memory for %lld elements",
			       (long long)(rows * width(t)));
	r = make_seq(t);
	for (int i = 0; i < t->nsets && r >= 0; i++)
		r = make_plan(t, &t->plan[i]);
	if (r >= 0)
		r = make_gemm(t);
	if (r < 0)
		return say_te(r, "attn");
	t->blas = (struct blas){ .b = t->b, .m = t->n, .n = t->n, .k = t->n };
	return blas_alloc(&t->blas);
}

static void attn_free(struct attn *t)
{
	te_stream_sync(t->b->stream);
	if (t->blas.b)
		blas_free(&t->blas);
	for (int i = 0; t->plan && i < t->nsets; i++)
		te_plan_unref(t->plan[i]);
	te_seq_unref(t->seq);
	te_tensor_unref(t->a);
	te_tensor_unref(t->w);
	te_tensor_unref(t->d);
	free(t->plan);
	free(t->qkv);
	free(t->dy);
}

/*
 * The reference: softmax(scale q k^T) v in FP64, of one row and channel. Its error, with
 * v = 2^-23: a score's error is v (d + 4) scale sum|q||k| + 8 v |s|, which a probability has
 * twice, since its sum has it too; probabilities and the result are rounded to BF16.
 * t/kernels/attn_cases.c, which tests the kernels, has the derivation.
 */
static int verify_element(const struct attn *t, int64_t b, int64_t q, int64_t h, int64_t c,
			  const uint8_t *y)
{
	const int64_t d = t->head_dim, row = width(t), g = h / (t->heads / t->kv_heads);
	const int64_t at = b * t->seq_len * row, kat = at + (t->heads + g) * d;
	const double v = 0x1p-23, w = t->type->dtype == TE_DTYPE_BF16 ? 0x1p-8 : 0;
	double *s = malloc((size_t)(q + 1) * sizeof(*s)), most = -INFINITY, l = 0, o = 0, size = 0;
	double err = 0, bound, got = element(t, y, ((b * t->seq_len + q) * t->heads + h) * d + c);

	if (!s)
		return say_bad("--verify: no memory for %lld scores", (long long)q);
	for (int64_t k = 0; k <= q; k++) {
		double sum = 0, mag = 0;

		for (int64_t i = 0; i < d; i++) {
			const double p = element(t, t->qkv, at + q * row + h * d + i) *
					 element(t, t->qkv, kat + k * row + i);

			sum += p;
			mag += fabs(p);
		}
		s[k] = sum * (double)t->scale;
		most = fmax(most, s[k]);
		err = fmax(err, v * ((double)(d + 4) * mag * (double)t->scale + 8 * fabs(s[k])));
	}
	for (int64_t k = 0; k <= q; k++) {
		const double p = exp(s[k] - most);
		const double x = element(t, t->qkv, kat + t->kv_heads * d + k * row + c);

		l += p;
		o += p * x;
		size += p * fabs(x);
	}
	free(s);
	o /= l;
	size /= l;
	bound = (2 * err + (double)(q + 32) * v + 0x1p-21 + w) * size + w * fabs(o) + 0x1p-126;
	if (fabs(got - o) <= bound)
		return STATUS_OK;
	return say_failed("verify: %s: sequence %lld, query %lld, head %lld, channel %lld is %g, "
			  "want %g within %g",
			  t->type->name, (long long)b, (long long)q, (long long)h, (long long)c,
			  got, o, bound);
}

/* elements of the last plan's output, at random places */
static int verify(struct attn *t)
{
	struct te_tensor *y = te_plan_output(t->plan[t->nsets - 1]);
	const size_t nbytes = te_tensor_nbytes(y);
	uint8_t *got = malloc(nbytes);
	uint64_t at[4];
	int r = got ? 0 : -ENOMEM;

	/* bytes of all ones are NaN */
	if (r >= 0)
		r = te_fill(t->b->stream, te_tensor_data(y), 0xff, nbytes);
	t->at = t->nsets - 1;
	if (r >= 0)
		r = work(t);
	r = bench_idle(t->b, r);
	if (r >= 0)
		r = te_tensor_read(y, got, nbytes);
	if (r < 0)
		r = say_te(r, "verify");
	for (int i = 0; i < NVERIFIED && !r; i++) {
		bench_random(t->b, at, sizeof(at));
		r = verify_element(t, (int64_t)(at[0] % (uint64_t)t->batch),
				   (int64_t)(at[1] % (uint64_t)t->seq_len),
				   (int64_t)(at[2] % (uint64_t)t->heads),
				   (int64_t)(at[3] % (uint64_t)t->head_dim), got);
	}
	free(got);
	return r;
}

/* products of the scores that are not masked: two GEMMs, and five more in backward */
static double flops(const struct attn *t)
{
	const double pairs = (double)t->seq_len * (double)(t->seq_len + 1) / 2;

	return (t->both ? 14.0 : 4.0) * (double)(t->batch * t->heads * t->head_dim) * pairs;
}

static void report(const struct attn *t, const struct stats *us)
{
	const struct te_device_info *dev = &t->b->dev;
	const double n = (double)t->n;
	const double peak =
		t->type->dtype == TE_DTYPE_FP32 ? dev->peak_fp32_flops : dev->peak_bf16_flops;
	const double rate = us[0].n ? flops(t) / us[0].median * 1e6 : NAN;

	bench_text(t->b, "types", t->type->name);
	bench_text(t->b, "pass", pass_names[t->both]);
	bench_int(t->b, "batch", t->batch);
	bench_int(t->b, "seq_len", t->seq_len);
	bench_int(t->b, "heads", t->heads);
	bench_int(t->b, "kv_heads", t->kv_heads);
	bench_int(t->b, "head_dim", t->head_dim);
	bench_int(t->b, "plans", t->nsets);
	bench_stats(t->b, "device_us", &us[0]);
	bench_stats(t->b, "gemm_us", &us[1]);
	bench_num(t->b, "gemm_ratio", rate / (2 * n * n * n / us[1].median * 1e6));
	rate_report(t->b, rate, peak, &t->blas, &us[2]);
}

static int measure(struct attn *t, int rows_left)
{
	struct bench *b = t->b;
	struct stats us[3];
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = attn_alloc(t);
	if (!r && b->o->verify)
		r = verify(t);
	if (!r)
		r = bench_batch(b, work, t, 1000, 1, 16, &t->calls);
	if (!r)
		r = bench_batch(b, gemm_work, t, 1000, 1, 16, &t->gemm_calls);
	if (!r)
		r = bench_series(b, device_us, t, 2 + blas_there(b), us);
	if (!r)
		report(t, us);
	return r;
}

static int run(struct bench *b)
{
	int rows = __builtin_popcount(opt.types) * __builtin_popcount(opt.pass);
	int r = STATUS_OK;

	b->cache = opt.cache;
	if (opt.kv_heads && opt.heads % opt.kv_heads)
		return say_bad("--kv-heads: %lld: %lld heads are not a multiple",
			       (long long)opt.kv_heads, (long long)opt.heads);
	for (int i = 0; i < NTYPES * NPASSES && !r; i++) {
		struct attn t = { .b = b, .type = &types[i / NPASSES], .both = i % NPASSES };

		if (!(opt.types & 1u << i / NPASSES) || !(opt.pass & 1u << t.both))
			continue;
		t.batch = opt.batch;
		t.seq_len = bench_extent(b, opt.seq_len, 256, 2048);
		t.heads = opt.heads;
		t.kv_heads = opt.kv_heads ? opt.kv_heads : t.heads;
		t.head_dim = opt.head_dim;
		t.n = bench_extent(b, 0, 512, 4096);
		r = measure(&t, rows--);
		attn_free(&t);
	}
	return r;
}

static const struct column columns[] = {
	{ "types", "\ntypes", 0, 0 },
	{ "pass", "\npass", 0, 0 },
	{ "batch", "\nbatch", 0, 0 },
	{ "seq_len", "\ntokens", 0, 0 },
	{ "heads", "\nheads", 0, 0 },
	{ "kv_heads", "kv\nheads", 0, 0 },
	{ "head_dim", "head\ndim", 0, 0 },
	{ "plans", "\nplans", 0, 0 },
	{ "device_us", "a call\nus", 0, 1 },
	{ "gemm_us", "GEMM\nus", 0, 1 },
	{ "gemm_ratio", "of GEMM\n%", 100, 0 },
	RATE_COLUMNS,
	{ NULL, NULL, 0, 0 },
};

const struct test test_attn = {
	.name = "attn",
	.text = "causal attention, compared with a large GEMM of its type",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
