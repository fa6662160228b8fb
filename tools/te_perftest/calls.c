/*
 * calls.c - te_perftest calls: single calls that compute: CPU time of a call, device time, and the
 * bytes that it has to move.
 *
 * The tensors of a call are at fixed offsets of one block of device memory, so that --verify
 * compares all bytes that a call writes.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/dtype.h>
#include <te/gemm.h>
#include <te/kernel.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "bench.h"
#include "copy.h"
#include "tools/lib/say.h"

#define VOCAB 4096
#define HEAD_DIM 64
#define FIELDS_MAX 8
#define PERIOD 4099 /* period of the numbers of a field: a prime, so that rows differ */
#define ALIGN 256

static struct {
	char *cache;
	uint32_t call; /* 0: all */
	int64_t rows, cols, depth;
} opt;

static const struct option_field options[] = {
	CACHE_OPTION,
	{ "call", OPTION_WORDS, AT(call), NULL, 0, 0, 0,
	  "transpose|embedding|embedding-bwd|bias|bias-bwd|add|dropout|rmsnorm|rmsnorm-bwd|"
	  "gelu|gelu-bwd|rope|attention|attention-bwd|cross-entropy|cross-entropy-bwd|"
	  "adamw|gemm|quantize",
	  "which calls (all)" },
	{ "rows", OPTION_COUNT, AT(rows), "0", 0, 1 << 20, 0, "N",
	  "rows of the main tensor; 0: 4096, or 256 on the host" },
	{ "cols", OPTION_COUNT, AT(cols), "0", 0, 1 << 20, 0, "N", "columns of it; 0: the same" },
	{ "depth", OPTION_COUNT, AT(depth), "64", 1, 128, 0, "N",
	  "calls that are queued back to back" },
	{ 0 },
};

enum fill { NORMAL, POSITIVE, TOKENS, ZEROS };

struct field {
	enum te_dtype dtype;
	int64_t rows, cols;
	enum fill fill;
	size_t at; /* offset in the block */
};

/* nsets blocks of memory; each call takes the next */
struct calls {
	struct bench *b;
	const struct row *row;
	int64_t rows, cols;
	int32_t heads;
	struct field field[FIELDS_MAX];
	int nfields;
	size_t nbytes;	/* bytes of a block */
	double traffic; /* bytes that one call has to read and to write */
	int nsets, at, depth;
	uint8_t *host; /* contents of a block before a call */
	uint8_t **block;
	struct te_tensor **tensor; /* [nsets][FIELDS_MAX] */
	struct te_quant *quant;	   /* for quantize */
	double *cpu_us;
	int64_t ncpu, cpu_most;
	struct copy copy; /* moves as many bytes */
};

struct row {
	const char *name;
	void (*fields)(struct calls *c);
	int (*queue)(const struct calls *c, struct te_tensor *const *t);
	int (*init)(const struct calls *c, struct te_tensor *const *t); /* fill the block */
};

static size_t round_up(size_t nbytes)
{
	return (nbytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* times: how often all of it is read or written */
static void field(struct calls *c, enum te_dtype dtype, int64_t rows, int64_t cols, enum fill fill,
		  double times)
{
	const size_t nbytes = (size_t)(rows * cols) * te_dtype_nbytes(dtype);

	c->field[c->nfields++] = (struct field){ dtype, rows, cols, fill, c->nbytes };
	c->nbytes += round_up(nbytes);
	if (dtype == TE_DTYPE_E4M3) /* its scale-inverse follows */
		c->nbytes += ALIGN;
	c->traffic += times * (double)nbytes;
}

/* BF16 of rows and cols */
static void main_field(struct calls *c)
{
	field(c, TE_DTYPE_BF16, c->rows, c->cols, NORMAL, 1);
}

static void ws_field(struct calls *c, size_t nbytes)
{
	field(c, TE_DTYPE_UINT8, 1, (int64_t)nbytes, ZEROS, 0);
}

#define WS(t) te_tensor_data(t), te_tensor_nbytes(t)

/* ---- the calls; fields are t[0], t[1] and so on ---- */

static void transpose_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_BF16, c->cols, c->rows, NORMAL, 1);
}

static int transpose(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_transpose(c->b->stream, t[0], t[1], NULL);
}

static void embedding_fields(struct calls *c)
{
	field(c, TE_DTYPE_INT32, 1, c->rows, TOKENS, 1);
	/* a row of the table for each token */
	field(c, TE_DTYPE_FP32, VOCAB, c->cols, NORMAL, (double)c->rows / VOCAB);
	main_field(c);
}

static int embedding(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_embedding_forward(c->b->stream, t[0], t[1], t[2], NULL);
}

static void embedding_bwd_fields(struct calls *c)
{
	field(c, TE_DTYPE_INT32, 1, c->rows, TOKENS, 1);
	/* added to once for each token in it */
	field(c, TE_DTYPE_FP32, VOCAB, c->cols, NORMAL, 2 * fmin(1, (double)c->rows / VOCAB));
	main_field(c);
}

static int embedding_bwd(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_embedding_backward(c->b->stream, t[2], t[0], t[1], NULL);
}

static void bias_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_BF16, 1, c->cols, NORMAL, 1);
	main_field(c);
}

static int bias(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_bias_forward(c->b->stream, t[0], t[1], t[2]);
}

static void bias_bwd_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_FP32, 1, c->cols, NORMAL, 2);
	ws_field(c, te_kernel_bias_ws_nbytes(c->rows, c->cols));
}

static int bias_bwd(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_bias_backward(c->b->stream, t[0], t[1], WS(t[2]));
}

static void add_fields(struct calls *c)
{
	for (int i = 0; i < 3; i++)
		main_field(c);
}

static int add(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_add(c->b->stream, t[0], t[1], t[2]);
}

static void dropout_fields(struct calls *c)
{
	main_field(c);
	main_field(c);
	field(c, TE_DTYPE_UINT8, 1, 2 * sizeof(uint64_t), ZEROS, 1);
}

static int dropout(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;

	o.p = 0.1f;
	o.rng.seed = te_tensor_data(t[2]);
	o.rng.offset = o.rng.seed + 1;
	return te_kernel_dropout_forward(c->b->stream, t[0], t[1], &o);
}

static void rmsnorm_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_FP32, 1, c->cols, NORMAL, 1);
	main_field(c);
	field(c, TE_DTYPE_FP32, 1, c->rows, POSITIVE, 1);
}

static int rmsnorm(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	return te_kernel_norm_forward(c->b->stream, t[0], t[1], NULL, t[2], NULL, t[3], &o);
}

static void rmsnorm_bwd_fields(struct calls *c)
{
	rmsnorm_fields(c);
	main_field(c);
	field(c, TE_DTYPE_FP32, 1, c->cols, NORMAL, 2);
	ws_field(c, te_kernel_norm_ws_nbytes(c->rows, c->cols, 1));
}

static int rmsnorm_bwd(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	return te_kernel_norm_backward(c->b->stream, t[2], t[0], t[1], NULL, t[3], t[4], t[5], NULL,
				       WS(t[6]), &o);
}

static void gelu_fields(struct calls *c)
{
	main_field(c);
	main_field(c);
}

static int gelu(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	return te_kernel_act_forward(c->b->stream, t[0], t[1], &o);
}

static int gelu_bwd(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	return te_kernel_act_backward(c->b->stream, t[0], t[1], t[2], NULL, NULL, 0, &o);
}

static void rope_fields(struct calls *c)
{
	field(c, TE_DTYPE_BF16, c->rows, 3 * c->heads * HEAD_DIM, NORMAL, 1);
	field(c, TE_DTYPE_BF16, c->rows, 3 * c->heads * HEAD_DIM, NORMAL, 1);
}

static int rope(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;

	o.nheads = o.nkv = c->heads;
	o.head_dim = HEAD_DIM;
	return te_kernel_rope_forward(c->b->stream, t[0], t[1], &o);
}

static void attention_fields(struct calls *c)
{
	field(c, TE_DTYPE_BF16, c->rows, 3 * c->heads * HEAD_DIM, NORMAL, 1);
	field(c, TE_DTYPE_BF16, c->rows, c->heads * HEAD_DIM, NORMAL, 1);
	field(c, TE_DTYPE_FP32, c->heads, c->rows, NORMAL, 1);
}

static struct te_kernel_attention_opts attention_opts(const struct calls *c)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;

	o.nheads = o.nkv = c->heads;
	o.head_dim = HEAD_DIM;
	return o;
}

static int attention(const struct calls *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(c);

	return te_kernel_attention_forward(c->b->stream, t[0], t[1], t[2], &o);
}

static void attention_bwd_fields(struct calls *c)
{
	attention_fields(c);
	field(c, TE_DTYPE_BF16, c->rows, c->heads * HEAD_DIM, NORMAL, 1);
	field(c, TE_DTYPE_BF16, c->rows, 3 * c->heads * HEAD_DIM, NORMAL, 1);
	ws_field(c, te_kernel_attention_ws_nbytes(c->rows, c->heads));
}

static int attention_bwd(const struct calls *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(c);

	return te_kernel_attention_backward(c->b->stream, t[3], t[0], t[1], t[2], t[4], WS(t[5]),
					    &o);
}

static void cross_entropy_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_INT32, 1, c->rows, TOKENS, 1);
	field(c, TE_DTYPE_FP32, 2, c->rows, POSITIVE, 1); /* max, sum */
	field(c, TE_DTYPE_FP32, 1, 1, POSITIVE, 1);
	field(c, TE_DTYPE_FP32, 1, 1, POSITIVE, 1);
	ws_field(c, te_kernel_cross_entropy_ws_nbytes(c->rows));
}

static int cross_entropy(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	return te_kernel_cross_entropy_forward(c->b->stream, t[0], t[1], t[4], t[2], t[3], WS(t[5]),
					       &o);
}

static void cross_entropy_bwd_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_INT32, 1, c->rows, TOKENS, 1);
	field(c, TE_DTYPE_FP32, 2, c->rows, POSITIVE, 1); /* max, sum */
	field(c, TE_DTYPE_FP32, 1, 1, POSITIVE, 1);
	main_field(c);
}

static int cross_entropy_bwd(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	return te_kernel_cross_entropy_backward(c->b->stream, t[0], t[1], t[2], t[3], t[4], &o);
}

static void adamw_fields(struct calls *c)
{
	field(c, TE_DTYPE_FP32, c->rows, c->cols, NORMAL, 2); /* for the norm, and for the step */
	for (int i = 0; i < 2; i++)
		field(c, TE_DTYPE_FP32, c->rows, c->cols, NORMAL, 2);
	field(c, TE_DTYPE_FP32, c->rows, c->cols, POSITIVE, 2);
	ws_field(c, te_kernel_adamw_state_nbytes());
	ws_field(c, te_kernel_adamw_ws_nbytes());
}

static int adamw_init(const struct calls *c, struct te_tensor *const *t)
{
	return te_kernel_adamw_init(c->b->stream, te_tensor_data(t[4]), 1e-3f);
}

static int adamw(const struct calls *c, struct te_tensor *const *t)
{
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;

	return te_kernel_adamw_step(c->b->stream, t[0], t[1], t[2], t[3], te_tensor_data(t[4]),
				    WS(t[5]), &o);
}

static void gemm_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_BF16, c->cols, c->cols, NORMAL, 1);
	main_field(c);
}

static int gemm(const struct calls *c, struct te_tensor *const *t)
{
	return te_gemm(c->b->stream, t[0], t[1], t[2], NULL);
}

static void quantize_fields(struct calls *c)
{
	main_field(c);
	field(c, TE_DTYPE_E4M3, c->rows, c->cols, ZEROS, 1);
}

static int quantize(const struct calls *c, struct te_tensor *const *t)
{
	return te_quantize(c->b->stream, c->quant, 0, t[0], t[1], NULL, 0);
}

/* the choices of --call, in their order */
static const struct row rows[] = {
	{ "transpose", transpose_fields, transpose, NULL },
	{ "embedding", embedding_fields, embedding, NULL },
	{ "embedding-bwd", embedding_bwd_fields, embedding_bwd, NULL },
	{ "bias", bias_fields, bias, NULL },
	{ "bias-bwd", bias_bwd_fields, bias_bwd, NULL },
	{ "add", add_fields, add, NULL },
	{ "dropout", dropout_fields, dropout, NULL },
	{ "rmsnorm", rmsnorm_fields, rmsnorm, NULL },
	{ "rmsnorm-bwd", rmsnorm_bwd_fields, rmsnorm_bwd, NULL },
	{ "gelu", gelu_fields, gelu, NULL },
	{ "gelu-bwd", add_fields, gelu_bwd, NULL },
	{ "rope", rope_fields, rope, NULL },
	{ "attention", attention_fields, attention, NULL },
	{ "attention-bwd", attention_bwd_fields, attention_bwd, NULL },
	{ "cross-entropy", cross_entropy_fields, cross_entropy, NULL },
	{ "cross-entropy-bwd", cross_entropy_bwd_fields, cross_entropy_bwd, NULL },
	{ "adamw", adamw_fields, adamw, adamw_init },
	{ "gemm", gemm_fields, gemm, NULL },
	{ "quantize", quantize_fields, quantize, NULL },
};
#define NROWS ((int)(sizeof(rows) / sizeof(rows[0])))

/* ---- memory ---- */

static void fill(struct calls *c, const struct field *f)
{
	const int64_t n = f->rows * f->cols;
	uint8_t *p = c->host + f->at;
	float x[PERIOD];

	if (f->fill == ZEROS)
		return;
	bench_normal(c->b, x, PERIOD);
	for (int64_t i = 0; i < n; i++) {
		const float v = f->fill == NORMAL ? x[i % PERIOD] : fabsf(x[i % PERIOD]);
		/* tokens select classes too, of which there are cols */
		const int32_t token = (int32_t)(v * 1e6f) % (int32_t)fmin(VOCAB, (double)c->cols);
		const uint16_t half = te_bf16_encode(v);

		if (f->fill == TOKENS)
			memcpy(p + 4 * i, &token, 4);
		else if (f->dtype == TE_DTYPE_FP32)
			memcpy(p + 4 * i, &v, 4);
		else
			memcpy(p + 2 * i, &half, 2);
	}
}

static struct te_tensor *const *tensors(const struct calls *c, int set)
{
	return c->tensor + (size_t)set * FIELDS_MAX;
}

/* the block as it is before the first call */
static int reset(struct calls *c, int set)
{
	int r = te_copy(c->b->stream, c->block[set], c->host, c->nbytes);

	r = bench_idle(c->b, r);
	return r < 0 || !c->row->init ? r : c->row->init(c, tensors(c, set));
}

static int make_set(struct calls *c, int set)
{
	int r = te_mem_alloc(c->b->stream, c->nbytes, (void **)&c->block[set]);

	for (int i = 0; i < c->nfields && r >= 0; i++) {
		const struct field *f = &c->field[i];
		const int64_t shape[] = { f->rows, f->cols };
		uint8_t *p = c->block[set] + f->at;
		float *scale_inv = NULL;

		if (f->dtype == TE_DTYPE_E4M3)
			scale_inv = (float *)(void *)(p + round_up((size_t)(f->rows * f->cols)));
		r = te_tensor_wrap(c->b->ctx, f->dtype, 2, shape, p, NULL, scale_inv,
				   &c->tensor[set * FIELDS_MAX + i]);
	}
	return r < 0 ? r : reset(c, set);
}

static int make_quant(struct calls *c)
{
	const enum te_dtype type = TE_DTYPE_E4M3;
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r = te_recipe_from_name("fp8-delayed", &recipe);

	return r < 0 ? r : te_quant_create(c->b->ctx, &recipe, 1, &type, &c->quant);
}

static int calls_alloc(struct calls *c)
{
	struct bench *b = c->b;
	int r;

	c->row->fields(c);
	c->nsets = bench_nsets(b, c->traffic);
	c->cpu_most = b->o->iters * c->depth;
	c->host = calloc(c->nbytes, 1);
	c->block = calloc((size_t)c->nsets, sizeof(*c->block));
	c->tensor = calloc((size_t)c->nsets * FIELDS_MAX, sizeof(*c->tensor));
	c->cpu_us = malloc((size_t)(c->cpu_most + c->depth) * sizeof(*c->cpu_us));
	if (!c->host || !c->block || !c->tensor || !c->cpu_us)
		return say_bad("--rows, --cols: no memory for %zu bytes", c->nbytes);
	for (int i = 0; i < c->nfields; i++)
		fill(c, &c->field[i]);
	c->copy.b = b;
	c->copy.nbytes = (size_t)ceil(c->traffic / 2);
	r = copy_alloc(&c->copy);
	if (r)
		return r;
	r = make_quant(c);
	for (int i = 0; i < c->nsets && r >= 0; i++)
		r = make_set(c, i);
	return r < 0 ? say_te(r, "%s", c->row->name) : STATUS_OK;
}

static void calls_free(struct calls *c)
{
	te_stream_sync(c->b->stream);
	copy_free(&c->copy);
	for (int i = 0; c->tensor && i < c->nsets * FIELDS_MAX; i++)
		te_tensor_unref(c->tensor[i]);
	for (int i = 0; c->block && i < c->nsets; i++)
		if (c->block[i])
			te_mem_free(c->b->stream, c->block[i]);
	te_quant_unref(c->quant);
	free(c->tensor);
	free(c->block);
	free(c->host);
	free(c->cpu_us);
}

/* ---- measuring ---- */

static int work(void *arg)
{
	struct calls *c = arg;
	struct te_tensor *const *t = tensors(c, c->at);

	c->at = (c->at + 1) % c->nsets;
	return c->row->queue(c, t);
}

/* a batch of calls, and a copy */
static int times(void *arg, double *ret_us)
{
	struct calls *c = arg;
	const int64_t at = c->ncpu < c->cpu_most ? c->ncpu : c->cpu_most;
	int r = bench_calls_us(c->b, work, c, c->depth, c->cpu_us + at, &ret_us[0]);

	if (r)
		return r;
	if (c->ncpu < c->cpu_most)
		c->ncpu += c->depth;
	/* alternately, so that clock drift affects both */
	return bench_device_us(c->b, copy_work, &c->copy, c->copy.batch, &ret_us[1]);
}

/* a call and a launch of its recording write the same bytes to a block, and some */
static int verify(struct calls *c)
{
	uint8_t *got[2] = { malloc(c->nbytes), malloc(c->nbytes) };
	struct te_recording *rec = NULL;
	int r = got[0] && got[1] ? 0 : -ENOMEM;

	for (int i = 0; i < 2 && r >= 0; i++) {
		r = reset(c, 0);
		if (r >= 0 && i)
			r = te_capture_begin(c->b->stream);
		if (r >= 0)
			r = c->row->queue(c, tensors(c, 0));
		if (r >= 0 && i)
			r = te_capture_end(c->b->stream, &rec);
		if (r >= 0 && i)
			r = te_recording_launch(rec, c->b->stream);
		if (r >= 0)
			r = te_copy(c->b->stream, got[i], c->block[0], c->nbytes);
		r = bench_idle(c->b, r);
	}
	te_recording_unref(rec);
	if (r < 0)
		r = say_te(r, "verify");
	else if (!memcmp(got[0], c->host, c->nbytes))
		r = say_failed("verify: %s wrote nothing", c->row->name);
	else
		r = bench_equal(c->row->name, got[1], got[0], c->nbytes);
	free(got[0]);
	free(got[1]);
	return r;
}

/* kernels, copies and fills that a call queues */
static int count(struct calls *c, int64_t *ret_n)
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec = NULL;
	int r = te_capture_begin(c->b->stream);

	if (r >= 0)
		r = c->row->queue(c, tensors(c, 0));
	if (r >= 0)
		r = te_capture_end(c->b->stream, &rec);
	if (r >= 0)
		r = te_recording_info(rec, &info);
	te_recording_unref(rec);
	*ret_n = (int64_t)(info.nkernels + info.ncopies + info.nfills);
	return r < 0 ? say_te(r, "%s", c->row->name) : STATUS_OK;
}

static int measure(struct calls *c, int rows_left)
{
	struct bench *b = c->b;
	struct stats us[2], cpu;
	int64_t nlaunches = 0;
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = calls_alloc(c);
	if (!r && b->o->verify)
		r = verify(c);
	if (!r)
		r = bench_batch(b, work, c, 1000, 1, 1, &c->copy.batch); /* loads the kernels */
	if (!r)
		r = count(c, &nlaunches);
	if (!r)
		r = bench_batch(b, copy_work, &c->copy, 1000, 1, 16, &c->copy.batch);
	if (!r)
		r = bench_series(b, times, c, 2, us);
	if (r)
		return r;
	stats_of(c->cpu_us, (size_t)c->ncpu, &cpu);
	bench_text(b, "call", c->row->name);
	bench_int(b, "rows", c->rows);
	bench_int(b, "cols", c->cols);
	bench_int(b, "blocks", c->nsets);
	bench_int(b, "depth", c->depth);
	bench_int(b, "launches", nlaunches);
	bench_stats(b, "cpu_us", &cpu);
	bench_num(b, "cpu_p99_us", cpu.n ? cpu.p99 : NAN);
	copy_compare(b, c->traffic, us);
	return STATUS_OK;
}

static int run(struct bench *b)
{
	const uint32_t which = opt.call ? opt.call : (1u << NROWS) - 1;
	int left = __builtin_popcount(which), r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < NROWS && !r; i++) {
		struct calls c = { .b = b, .row = &rows[i], .depth = (int)opt.depth };

		if (!(which & 1u << i))
			continue;
		c.rows = bench_extent(b, opt.rows, 256, 4096);
		c.cols = bench_extent(b, opt.cols, 256, 4096);
		c.heads = (int32_t)(c.cols / HEAD_DIM ? c.cols / HEAD_DIM : 1);
		r = measure(&c, left--);
		calls_free(&c);
	}
	return r;
}

const struct test test_calls = {
	.name = "calls",
	.text = "calls on tensors: CPU time, and device time compared with a copy",
	.options = options,
	.values = &opt,
	.columns = copy_columns,
	.run = run,
};
