/*
 * attn.c - te_perftest attn: causal attention, compared with a large GEMM of the same type, and
 * with the peak rate of the type.
 */
#include "config.h"

#include <math.h>

#include <te/kernel.h>

#include "call.h"
#include "tools/lib/say.h"

static struct {
	char *cache;
	uint32_t pass, types;
	int64_t batch, seq_len, heads, kv_heads, head_dim, window, document;
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
	{ "head-dim", OPTION_COUNT, AT(head_dim), "64", 1, 256, 0, "N",
	  "channels of a head; in FP32 on a GPU, at most 128" },
	{ "window", OPTION_COUNT, AT(window), "0", 0, 1 << 16, 0, "N",
	  "tokens that one attends to, its own included; 0: all" },
	{ "document", OPTION_COUNT, AT(document), "0", 0, 1 << 16, 0, "N",
	  "tokens of each document of a sequence; 0: one document" },
	{ 0 },
};

/* first: of the documents */
static struct te_kernel_attention_opts attention_opts(const struct te_tensor *first)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;

	o.first = opt.document ? first : NULL;
	o.nheads = (int32_t)opt.heads;
	o.nkv = (int32_t)(opt.kv_heads ? opt.kv_heads : opt.heads);
	o.head_dim = (int32_t)opt.head_dim;
	o.window = (int32_t)opt.window;
	return o;
}

static int forward(const struct call *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(t[3]);

	return te_kernel_attention_forward(c->b->stream, t[0], t[1], t[2], &o);
}

static int both(const struct call *c, struct te_tensor *const *t)
{
	const struct te_kernel_attention_opts o = attention_opts(t[3]);
	int r = forward(c, t);

	return r < 0 ? r :
		       te_kernel_attention_backward(c->b->stream, t[4], t[0], t[1], t[2], t[5],
						    te_tensor_data(t[6]), te_tensor_nbytes(t[6]),
						    &o);
}

static size_t ws_nbytes(const struct call *c)
{
	return te_kernel_attention_ws_nbytes(c->row.field[0].dtype, c->batch, c->extent[ROWS],
					     (int32_t)opt.heads, (int32_t)opt.head_dim);
}

#define FIELD(type, rows, cols, fill, times)                        \
	{                                                           \
		type, rows, cols, fill, times, TE_SCALING_TENSOR, 0 \
	}
/* x, y, lse, first tokens of documents, dy, dx */
#define FORWARD(type)                                                           \
	FIELD(type, ROWS, QKV, NORMAL, 1), FIELD(type, ROWS, HEADED, ZEROS, 1), \
		FIELD(TE_DTYPE_FP32, HEADS, ROWS, ZEROS, 0),                    \
		FIELD(TE_DTYPE_INT32, ROWS, ONE, DOCUMENTS, 0)
#define BOTH(type)                                                                             \
	FORWARD(type), FIELD(type, ROWS, HEADED, NORMAL, 1), FIELD(type, ROWS, QKV, ZEROS, 1), \
		FIELD(TE_DTYPE_UINT8, ONE, WS, ZEROS, 0)
/* choices of --types and --pass, in their order */
static const struct call_row rows[] = {
	{ "fp32", forward, { FORWARD(TE_DTYPE_FP32) }, NULL, NULL, check_attn },
	{ "fp32", both, { BOTH(TE_DTYPE_FP32) }, ws_nbytes, NULL, check_attn },
	{ "bf16", forward, { FORWARD(TE_DTYPE_BF16) }, NULL, NULL, check_attn },
	{ "bf16", both, { BOTH(TE_DTYPE_BF16) }, ws_nbytes, NULL, check_attn },
};
#define NROWS ((int)(sizeof(rows) / sizeof(rows[0])))

/* pairs of a query and a key that attention multiplies, of a document of n tokens */
static double pairs_of(int64_t n)
{
	const double w = (double)(opt.window && opt.window < n ? opt.window : n);

	return w * (w + 1) / 2 + ((double)n - w) * w;
}

/* products of the scores that are not masked: two GEMMs, and five more in backward */
static double flops(const struct call *c, int both_passes)
{
	const int64_t n = c->extent[ROWS];
	const int64_t each = opt.document && opt.document < n ? opt.document : n;
	const double pairs = (double)(n / each) * pairs_of(each) + pairs_of(n % each);

	return (both_passes ? 14.0 : 4.0) * (double)(c->batch * c->extent[HEADED]) * pairs;
}

static void report(const struct call *c, int both_passes, const struct stats *us)
{
	const double n = (double)c->other->extent[ROWS];
	const double rate = us[0].n ? flops(c, both_passes) / us[0].median * 1e6 : NAN;

	bench_text(c->b, "types", c->row.name);
	bench_text(c->b, "pass", both_passes ? "both" : "forward");
	bench_int(c->b, "batch", c->batch);
	bench_int(c->b, "seq_len", c->extent[ROWS]);
	bench_int(c->b, "heads", opt.heads);
	bench_int(c->b, "kv_heads", attention_opts(NULL).nkv);
	bench_int(c->b, "head_dim", opt.head_dim);
	bench_int(c->b, "window", opt.window);
	bench_int(c->b, "document", opt.document);
	bench_int(c->b, "plans", c->nsets);
	bench_stats(c->b, "device_us", &us[0]);
	bench_stats(c->b, "gemm_us", &us[1]);
	bench_num(c->b, "gemm_ratio", rate / (2 * n * n * n / us[1].median * 1e6));
	call_rate(c, rate);
}

static int measure(struct bench *b, int i, int rows_left)
{
	const int64_t nkv = attention_opts(NULL).nkv;
	struct call c = {
		.b = b,
		.row = rows[i],
		.batch = opt.batch,
		.variant = (int)opt.window,
		.document = opt.document,
		.extent = { [ROWS] = bench_extent(b, opt.seq_len, 256, 2048),
			    [HEADS] = opt.heads,
			    [QKV] = (opt.heads + 2 * nkv) * opt.head_dim,
			    [HEADED] = opt.heads * opt.head_dim },
	};
	struct call g = { .b = b };
	struct stats us[2];
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = call_open(&c);
	if (!r)
		r = gemm_open(&g, b, c.row.field[0].dtype, bench_extent(b, 0, 512, 4096));
	c.other = &g;
	if (!r)
		r = call_measure(&c, us);
	if (!r)
		report(&c, i % 2, us);
	call_close(&c);
	call_close(&g);
	return r;
}

static int run(struct bench *b)
{
	int left = __builtin_popcount(opt.types) * __builtin_popcount(opt.pass), r = STATUS_OK;

	b->cache = opt.cache;
	if (opt.kv_heads && opt.heads % opt.kv_heads)
		return say_bad("--kv-heads: %lld: %lld heads are not a multiple",
			       (long long)opt.kv_heads, (long long)opt.heads);
	for (int i = 0; i < NROWS && !r; i++)
		if (opt.types & 1u << i / 2 && opt.pass & 1u << i % 2)
			r = measure(b, i, left--);
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
