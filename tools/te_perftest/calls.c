/*
 * calls.c - te_perftest calls, cast, quantize, norm and act: single calls that compute: CPU time of
 * a call, device time, and the bytes that it has to move, compared with a copy of the same size.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include <te/gemm.h>
#include <te/kernel.h>
#include <te/optim.h>

#include "call.h"
#include "copy.h"
#include "tools/lib/say.h"

#define HEAD_DIM 64

static struct {
	char *cache;
	uint32_t call; /* 0: all */
	uint32_t op, pass, recipe, copies;
	int64_t rows, cols, depth;
} opt;

static const struct option_field calls_options[] = {
	CACHE_OPTION,
	{ "call", OPTION_WORDS, AT(call), NULL, 0, 0, 0,
	  "transpose|embedding|embedding-bwd|bias|bias-bwd|add|dropout|rmsnorm|rmsnorm-bwd|"
	  "gelu|gelu-bwd|rope|attention|attention-bwd|cross-entropy|cross-entropy-bwd|"
	  "cross-entropy-both|adamw|adamw-bf16|adamw-fp8|adamw-fp8-bf16|adamw-fp8-split|"
	  "gemm|quantize",
	  "calls to measure; all by default" },
	{ "rows", OPTION_COUNT, AT(rows), "0", 0, 1 << 20, 0, "N",
	  "rows of the main tensor; 0: 4096, or 256 on the host" },
	{ "cols", OPTION_COUNT, AT(cols), "0", 0, 1 << 20, 0, "N", "columns of it; 0: the same" },
	{ "depth", OPTION_COUNT, AT(depth), "64", 1, 128, 0, "N",
	  "calls that are queued back to back" },
	{ 0 },
};

#define TENSOR_OPTIONS                                                                            \
	CACHE_OPTION, { "rows", OPTION_COUNT, AT(rows),		 "4096", 1, 1 << 24,              \
			0,	"N",	      "rows of a tensor" },                               \
	{                                                                                         \
		"cols", OPTION_COUNT, AT(cols), "4096", 1, 1 << 24, 0, "N", "columns of a tensor" \
	}
#define PASS_OPTION                                                                      \
	{                                                                                \
		"pass", OPTION_WORDS, AT(pass), "forward,both", 0, 0, 0, "forward|both", \
			"forward for evaluation, or forward and backward"                \
	}

static const struct option_field cast_options[] = { TENSOR_OPTIONS, { 0 } };
static const struct option_field quantize_options[] = {
	TENSOR_OPTIONS,
	{ "recipe", OPTION_WORDS, AT(recipe), "delayed,current", 0, 0, 0,
	  "delayed|current|block|block-weight|mxfp8|nvfp4|nvfp4-weight|nvfp4-grad",
	  "recipe that gives the scales" },
	{ "copies", OPTION_WORDS, AT(copies), "row,both", 0, 0, 0, "row|both",
	  "write the row-wise copy, or both copies" },
	{ 0 },
};
static const struct option_field norm_options[] = {
	TENSOR_OPTIONS,
	{ "op", OPTION_WORDS, AT(op), "layernorm,rmsnorm", 0, 0, 0, "layernorm|rmsnorm",
	  "operation" },
	PASS_OPTION,
	{ 0 },
};
static const struct option_field act_options[] = {
	TENSOR_OPTIONS,
	{ "op", OPTION_WORDS, AT(op), "gelu,silu", 0, 0, 0, "gelu|silu", "operation" },
	PASS_OPTION,
	{ 0 },
};

/* ---- the calls; fields are t[0], t[1] and so on ---- */

#define WORKSPACE(t) te_tensor_data(t), te_tensor_nbytes(t)

static int32_t heads(const struct call *c)
{
	return (int32_t)c->extent[HEADS];
}

static int transpose(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_transpose(c->b->stream, t[0], t[1], NULL);
}

static int embedding(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_embedding_forward(c->b->stream, t[0], t[1], t[2], NULL);
}

static int embedding_bwd(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_embedding_backward(c->b->stream, t[2], t[0], t[1], NULL);
}

static int bias(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_bias_forward(c->b->stream, t[0], t[1], t[2]);
}

static int bias_bwd(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_bias_backward(c->b->stream, t[0], t[1], WORKSPACE(t[2]));
}

static int add(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_add(c->b->stream, t[0], t[1], t[2]);
}

static int dropout(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;

	o.p = 0.1f;
	o.rng.seed = te_tensor_data(t[2]);
	o.rng.offset = o.rng.seed + 1;
	return te_kernel_dropout_forward(c->b->stream, t[0], t[1], &o);
}

static int rmsnorm(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	return te_kernel_norm_forward(c->b->stream, t[0], t[1], NULL, t[2], NULL, t[3], &o);
}

static int rmsnorm_bwd(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	return te_kernel_norm_backward(c->b->stream, t[2], t[0], t[1], NULL, t[3], t[4], t[5], NULL,
				       WORKSPACE(t[6]), &o);
}

static int gelu(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	return te_kernel_act_forward(c->b->stream, t[0], t[1], &o);
}

static int gelu_bwd(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	return te_kernel_act_backward(c->b->stream, t[0], t[1], t[2], NULL, NULL, 0, &o);
}

static int rope(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;

	o.nheads = o.nkv = heads(c);
	o.head_dim = HEAD_DIM;
	return te_kernel_rope_forward(c->b->stream, t[0], t[1], &o);
}

static struct te_kernel_attention_opts attention_opts(const struct call *c)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;

	o.nheads = o.nkv = heads(c);
	o.head_dim = HEAD_DIM;
	return o;
}

static int attention(const struct call *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(c);

	return te_kernel_attention_forward(c->b->stream, t[0], t[1], t[2], &o);
}

static int attention_bwd(const struct call *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(c);

	return te_kernel_attention_backward(c->b->stream, t[3], t[0], t[1], t[2], t[4],
					    WORKSPACE(t[5]), &o);
}

static int cross_entropy(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	return te_kernel_cross_entropy_forward(c->b->stream, t[0], t[1], t[4], t[2], t[3],
					       WORKSPACE(t[5]), &o);
}

static int cross_entropy_bwd(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	return te_kernel_cross_entropy_backward(c->b->stream, t[0], t[1], t[2], t[3], t[4], &o);
}

static int cross_entropy_both(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	return te_kernel_cross_entropy_both(c->b->stream, t[0], t[1], t[4], t[2], t[3], t[5],
					    WORKSPACE(t[6]), &o);
}

static int adamw_init(const struct call *c, struct te_tensor *const *t)
{
	return te_kernel_adamw_init(c->b->stream, te_tensor_data(t[4]), 1e-3f);
}

/* weights in FP32, or in BF16 without a remainder or with t[6] */
static int adamw(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;

	o.remainder = t[6];
	return te_kernel_adamw_step(c->b->stream, t[0], t[1], t[2], t[3], te_tensor_data(t[4]),
				    WORKSPACE(t[5]), &o);
}

static int gemm(const struct call *c, struct te_tensor *const *t)
{
	return te_gemm(c->b->stream, t[0], t[1], t[2], NULL);
}

static int quantize(const struct call *c, struct te_tensor *const *t)
{
	return te_quantize(c->b->stream, c->quant, 0, t[0], t[1], NULL,
			   c->variant ? TE_QUANTIZE_STOCHASTIC : 0);
}

static size_t bias_ws(const struct call *c)
{
	return te_kernel_bias_ws_nbytes(c->extent[ROWS], c->extent[COLS]);
}

static size_t rmsnorm_ws(const struct call *c)
{
	return te_kernel_norm_ws_nbytes(c->extent[ROWS], c->extent[COLS], 1);
}

static size_t norm_ws(const struct call *c)
{
	return te_kernel_norm_ws_nbytes(c->extent[ROWS], c->extent[COLS], 2);
}

static size_t attention_ws(const struct call *c)
{
	return te_kernel_attention_ws_nbytes(TE_DTYPE_BF16, 1, c->extent[ROWS], heads(c),
					     HEAD_DIM);
}

static size_t cross_entropy_ws(const struct call *c)
{
	return te_kernel_cross_entropy_ws_nbytes(c->extent[ROWS]);
}

static size_t adamw_ws(const struct call *c)
{
	(void)c;
	return te_kernel_adamw_ws_nbytes();
}

static int cast(const struct call *c, struct te_tensor *const *t)
{
	return te_cast(c->b->stream, t[0], t[1]);
}

/* variant: 1 for LayerNorm */
static int norm(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	return te_kernel_norm_forward(c->b->stream, t[0], t[1], c->variant ? t[2] : NULL, t[3],
				      c->variant ? t[4] : NULL, t[5], &o);
}

static int norm_both(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	int r = norm(c, t);

	return r < 0 ? r :
		       te_kernel_norm_backward(c->b->stream, t[6], t[0], t[1],
					       c->variant ? t[4] : NULL, t[5], t[7], t[8],
					       c->variant ? t[9] : NULL, WORKSPACE(t[10]), &o);
}

/* variant: enum te_act */
static int act(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	o.act = (enum te_act)c->variant;
	return te_kernel_act_forward(c->b->stream, t[0], t[1], &o);
}

static int act_both(const struct call *c, struct te_tensor *const *t)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	int r = act(c, t);

	o.act = (enum te_act)c->variant;
	return r < 0 ? r :
		       te_kernel_act_backward(c->b->stream, t[2], t[0], t[3], NULL, NULL, 0, &o);
}

#define FIELD(dtype, rows, cols, fill, times)                                   \
	{                                                                       \
		TE_DTYPE_##dtype, rows, cols, fill, times, TE_SCALING_TENSOR, 0 \
	}
#define BF16(rows, cols, times) FIELD(BF16, rows, cols, NORMAL, times)
#define FP32(rows, cols, times) FIELD(FP32, rows, cols, NORMAL, times)
#define STAT(rows, cols) FIELD(FP32, rows, cols, POSITIVE, 1)
#define MAIN BF16(ROWS, COLS, 1)
#define TOKEN FIELD(INT32, ONE, ROWS, TOKENS, 1)
#define SCRATCH(extent, times) FIELD(UINT8, ONE, extent, ZEROS, times)

/* clang-format off */
/* the choices of --call, in their order */
static const struct call_row rows[] = {
	{ "transpose", transpose, { MAIN, BF16(COLS, ROWS, 1) }, NULL, NULL, NULL },
	{ "embedding", embedding, { TOKEN, FP32(TABLE, COLS, 1), MAIN }, NULL, NULL, NULL },
	{ "embedding-bwd", embedding_bwd, { TOKEN, FP32(TABLE, COLS, 2), MAIN }, NULL, NULL, NULL },
	{ "bias", bias, { MAIN, BF16(ONE, COLS, 1), MAIN }, NULL, NULL, NULL },
	{ "bias-bwd", bias_bwd, { MAIN, FP32(ONE, COLS, 2), SCRATCH(WS, 0) }, bias_ws, NULL, NULL },
	{ "add", add, { MAIN, MAIN, MAIN }, NULL, NULL, NULL },
	{ "dropout", dropout, { MAIN, MAIN, SCRATCH(RNG, 1) }, NULL, NULL, NULL },
	{ "rmsnorm", rmsnorm, { MAIN, FP32(ONE, COLS, 1), MAIN, STAT(ONE, ROWS) }, NULL, NULL,
	  NULL },
	{ "rmsnorm-bwd", rmsnorm_bwd,
	  { MAIN, FP32(ONE, COLS, 1), MAIN, STAT(ONE, ROWS), MAIN, FP32(ONE, COLS, 2),
	    SCRATCH(WS, 0) }, rmsnorm_ws, NULL, NULL },
	{ "gelu", gelu, { MAIN, MAIN }, NULL, NULL, check_act },
	{ "gelu-bwd", gelu_bwd, { MAIN, MAIN, MAIN }, NULL, NULL, NULL },
	{ "rope", rope, { BF16(ROWS, QKV, 1), BF16(ROWS, QKV, 1) }, NULL, NULL, NULL },
	{ "attention", attention,
	  { BF16(ROWS, QKV, 1), BF16(ROWS, HEADED, 1), FP32(HEADS, ROWS, 1) }, NULL, NULL,
	  check_attn },
	{ "attention-bwd", attention_bwd,
	  { BF16(ROWS, QKV, 1), BF16(ROWS, HEADED, 1), FP32(HEADS, ROWS, 1),
	    BF16(ROWS, HEADED, 1), BF16(ROWS, QKV, 1), SCRATCH(WS, 0) }, attention_ws, NULL,
	  NULL },
	{ "cross-entropy", cross_entropy,
	  { MAIN, TOKEN, STAT(TWO, ROWS), STAT(ONE, ONE), STAT(ONE, ONE), SCRATCH(WS, 0) },
	  cross_entropy_ws, NULL, NULL },
	{ "cross-entropy-bwd", cross_entropy_bwd,
	  { MAIN, TOKEN, STAT(TWO, ROWS), STAT(ONE, ONE), MAIN }, NULL, NULL, NULL },
	{ "cross-entropy-both", cross_entropy_both,
	  { MAIN, TOKEN, STAT(TWO, ROWS), STAT(ONE, ONE), STAT(ONE, ONE), MAIN, SCRATCH(WS, 0) },
	  cross_entropy_ws, NULL, NULL },
	{ "adamw", adamw, /* reads g for the norm, and for the step */
	  { FP32(ROWS, COLS, 2), FP32(ROWS, COLS, 2), FP32(ROWS, COLS, 2),
	    FIELD(FP32, ROWS, COLS, POSITIVE, 2), SCRATCH(STATE, 0), SCRATCH(WS, 0) }, adamw_ws,
	  adamw_init, NULL },
	{ "adamw-bf16", adamw,
	  { FP32(ROWS, COLS, 2), FP32(ROWS, COLS, 2), BF16(ROWS, COLS, 2),
	    FIELD(BF16, ROWS, COLS, POSITIVE, 2), SCRATCH(STATE, 0), SCRATCH(WS, 0) }, adamw_ws,
	  adamw_init, NULL },
	{ "adamw-fp8", adamw,
	  { FP32(ROWS, COLS, 2), FP32(ROWS, COLS, 2), SCRATCH(MOMENT, 2), SCRATCH(MOMENT, 2),
	    SCRATCH(STATE, 0), SCRATCH(WS, 0) }, adamw_ws, adamw_init, NULL },
	{ "adamw-fp8-bf16", adamw,
	  { FP32(ROWS, COLS, 2), BF16(ROWS, COLS, 2), SCRATCH(MOMENT, 2), SCRATCH(MOMENT, 2),
	    SCRATCH(STATE, 0), SCRATCH(WS, 0) }, adamw_ws, adamw_init, NULL },
	{ "adamw-fp8-split", adamw,
	  { FP32(ROWS, COLS, 2), BF16(ROWS, COLS, 2), SCRATCH(MOMENT, 2), SCRATCH(MOMENT, 2),
	    SCRATCH(STATE, 0), SCRATCH(WS, 0), SCRATCH(REST, 2) }, adamw_ws, adamw_init, NULL },
	{ "gemm", gemm, { BF16(ROWS, INNER, 1), BF16(COLS, INNER, 1), MAIN }, NULL, NULL,
	  check_gemm },
	{ "quantize", quantize, { MAIN, FIELD(E4M3, ROWS, COLS, ZEROS, 1) }, NULL, NULL,
	  check_quantize },
};
#define NROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static const struct call_row cast_row = {
	"cast", cast, { FP32(ROWS, COLS, 1), MAIN }, NULL, NULL, check_cast
};

/* forward, and both passes: gain, bias and statistics are not counted */
static const struct call_row norm_rows[] = {
	{ "norm", norm,
	  { MAIN, FP32(ONE, COLS, 0), FP32(ONE, COLS, 0), MAIN, FP32(ONE, ROWS, 0),
	    FP32(ONE, ROWS, 0) }, NULL, NULL, check_norm },
	{ "norm", norm_both,
	  { BF16(ROWS, COLS, 2), FP32(ONE, COLS, 0), FP32(ONE, COLS, 0), MAIN, FP32(ONE, ROWS, 0),
	    FP32(ONE, ROWS, 0), MAIN, MAIN, FP32(ONE, COLS, 0), FP32(ONE, COLS, 0),
	    SCRATCH(WS, 0) }, norm_ws, NULL, check_norm },
};
static const struct call_row act_rows[] = {
	{ "act", act, { MAIN, MAIN }, NULL, NULL, check_act },
	{ "act", act_both, { BF16(ROWS, COLS, 2), MAIN, MAIN, MAIN }, NULL, NULL, check_act },
};
/* clang-format on */

/* ---- rows of the report ---- */

/* keys and values that identify the row; sets: key of the number of sets */
struct text {
	const char *key[2], *value[2], *sets;
	int per_set;
};

static int measure(struct call *c, const struct text *text, int rows_left)
{
	struct bench *b = c->b;
	struct call copy = { .b = b };
	struct stats us[2], cpu;
	int64_t nlaunches = 0;
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	c->batch = 1;
	c->extent[INNER] = c->extent[COLS];
	c->extent[HEADS] = c->extent[COLS] / HEAD_DIM ? c->extent[COLS] / HEAD_DIM : 1;
	c->extent[QKV] = 3 * c->extent[HEADS] * HEAD_DIM;
	c->extent[HEADED] = c->extent[HEADS] * HEAD_DIM;
	c->extent[RNG] = 2 * sizeof(uint64_t);
	c->extent[STATE] = (int64_t)te_kernel_adamw_state_nbytes();
	c->extent[REST] = 2 * c->extent[ROWS] * c->extent[COLS];
	c->extent[MOMENT] = (int64_t)te_moments_nbytes(TE_MOMENTS_FP8,
						       c->extent[ROWS] * c->extent[COLS]);
	r = call_open(c);
	if (!r)
		r = copy_open(&copy, b, c->traffic / 2);
	c->other = &copy;
	if (!r)
		r = call_measure(c, us);
	if (!r && c->cpu_us)
		r = call_count(c, &nlaunches);
	if (r)
		goto out;
	for (int i = 0; i < 2 && text->key[i]; i++)
		bench_text(b, text->key[i], text->value[i]);
	bench_int(b, "rows", c->extent[ROWS]);
	bench_int(b, "cols", c->extent[COLS]);
	bench_int(b, text->sets, (int64_t)c->nsets * text->per_set);
	if (c->cpu_us) {
		stats_of(c->cpu_us, (size_t)c->ncpu, &cpu);
		bench_int(b, "depth", c->depth);
		bench_int(b, "launches", nlaunches);
		bench_stats(b, "cpu_us", &cpu);
		bench_num(b, "cpu_p99_us", cpu.n ? cpu.p99 : NAN);
	}
	copy_compare(b, c->traffic, us);
out:
	call_close(c);
	call_close(&copy);
	return r;
}

static int run_calls(struct bench *b)
{
	const uint32_t which = opt.call ? opt.call : (1u << NROWS) - 1;
	int left = __builtin_popcount(which), r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < NROWS && !r; i++) {
		struct call c = {
			.b = b, .row = rows[i], .depth = (int)opt.depth, .recipe = "fp8-delayed"
		};
		const struct text text = { { "call" }, { rows[i].name }, "blocks", 1 };

		if (!(which & 1u << i))
			continue;
		c.extent[ROWS] = bench_extent(b, opt.rows, 256, 4096);
		c.extent[COLS] = bench_extent(b, opt.cols, 256, 4096);
		r = measure(&c, &text, left--);
	}
	return r;
}

static struct call call_of(struct bench *b, const struct call_row *row)
{
	b->cache = opt.cache;
	return (struct call){
		.b = b,
		.row = *row,
		.extent = { [ROWS] = opt.rows, [COLS] = opt.cols },
	};
}

static int run_cast(struct bench *b)
{
	struct call c = call_of(b, &cast_row);

	return measure(&c, &(struct text){ .sets = "buffers", .per_set = 2 }, 1);
}

static int run_quantize(struct bench *b)
{
	static const struct {
		const char *name, *recipe;
		enum te_scaling scaling;
	} recipe[] = {
		{ "delayed", "fp8-delayed", TE_SCALING_TENSOR },
		{ "current", "fp8-current", TE_SCALING_TENSOR },
		{ "block", "fp8-block", TE_SCALING_1X128 },
		{ "block-weight", "fp8-block", TE_SCALING_128X128 },
		{ "mxfp8", "mxfp8", TE_SCALING_1X32 },
		{ "nvfp4", "nvfp4", TE_SCALING_1X16 },
		{ "nvfp4-weight", "nvfp4", TE_SCALING_16X16 },
		{ "nvfp4-grad", "nvfp4", TE_SCALING_1X16 },
	};
	const int nrows = 2 * (int)(sizeof(recipe) / sizeof(*recipe));
	int left = __builtin_popcount(opt.recipe) * __builtin_popcount(opt.copies), r = STATUS_OK;

	for (int i = 0; i < nrows && !r; i++) {
		struct call c = call_of(b, &rows[NROWS - 1]);
		const int k = i / 2, both = i % 2;
		const int fp4 = recipe[k].scaling >= TE_SCALING_1X16;
		const struct text text = { { "recipe", "copies" },
					   { recipe[k].name, both ? "both" : "row" },
					   "buffers",
					   2 };

		if (!(opt.recipe & 1u << k) || !(opt.copies & 1u << both))
			continue;
		c.recipe = recipe[k].recipe;
		c.row.field[1].scaling = recipe[k].scaling;
		c.row.field[1].copies = both ? TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE : 0;
		/* the scale needs the amax of all elements: x is read twice */
		c.row.field[0].times = k == 1 || fp4 ? 2 : 1;
		if (fp4)
			c.row.field[1].dtype = TE_DTYPE_E2M1;
		c.variant = k == nrows / 2 - 1; /* nvfp4-grad */
		r = measure(&c, &text, left--);
	}
	return r;
}

/* two operations, with their variants, and two passes */
static int run_ops(struct bench *b, const struct call_row *pass, const char *const name[2],
		   const int variant[2])
{
	int left = __builtin_popcount(opt.op) * __builtin_popcount(opt.pass), r = STATUS_OK;

	for (int i = 0; i < 4 && !r; i++) {
		struct call c = call_of(b, &pass[i % 2]);
		const struct text text = {
			{ "op", "pass" }, { name[i / 2], i % 2 ? "both" : "forward" }, "plans", 1
		};

		if (!(opt.op & 1u << i / 2) || !(opt.pass & 1u << i % 2))
			continue;
		c.variant = variant[i / 2];
		c.row.name = name[i / 2];
		r = measure(&c, &text, left--);
	}
	return r;
}

static int run_norm(struct bench *b)
{
	static const char *const name[] = { "layernorm", "rmsnorm" };

	return run_ops(b, norm_rows, name, (const int[]){ 1, 0 });
}

static int run_act(struct bench *b)
{
	static const char *const name[] = { "gelu", "silu" };

	return run_ops(b, act_rows, name, (const int[]){ TE_ACT_GELU, TE_ACT_SILU });
}

#define TEST(name_, text_)                  \
	const struct test test_##name_ = {  \
		.name = #name_,             \
		.text = text_,              \
		.options = name_##_options, \
		.values = &opt,             \
		.columns = copy_columns,    \
		.run = run_##name_,         \
	}

TEST(calls, "calls on tensors: CPU time, and device time compared with a copy");
TEST(cast, "FP32 to BF16, compared with a copy of as many bytes");
TEST(quantize, "BF16 to codes by a recipe, compared with a copy of as many bytes");
TEST(norm, "LayerNorm and RMSNorm of BF16, compared with a copy of as many bytes");
TEST(act, "GELU and SiLU of BF16, compared with a copy of as many bytes");
