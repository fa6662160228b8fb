/*
 * t/kernels/threads.c - kernels that split their work over threads give the bits of one thread,
 * for any number of threads.
 */
#include "config.h"

#include <math.h>

#include "kernel_check.h"
#include "tt_ctx.h"

/* kc_run() compares with the reference function on the program's thread, which has no helpers */
static const char *const nthreads[] = { "3", "1", "2", "8" };

static void open_with(int i)
{
	setenv("TE_HOST_THREADS", nthreads[i], 1);
	kc_open("host");
}

CASE(bits_of_one_thread, "host", .name = "bits of one thread");

TEST_EACH(bits_of_one_thread, add_gives_the_bits_of_one_thread, TT_FEWER((int)TT_LEN(nthreads)))
{
	open_with(_i);
	for (int64_t n = 100000; n < 700000; n = n * 2 + 77) {
		struct te_k_add a = { .n = n, .dtype = n & 1 ? TE_DTYPE_FP32 : TE_DTYPE_BF16 };

		a.a = kc_normal(a.dtype, n, 1.0f);
		a.b = kc_normal(a.dtype, n, 1.0f);
		a.y = kc_poison(a.dtype, n);
		KC_RUN(ADD, &a);
		kc_reset();
	}
	kc_close();
}

static const struct gemm {
	int64_t m, n, k;
	int32_t atype, btype, dtype, a_t, b_t, asc, bsc;
} gemms[] = {
	{ 300, 200, 100, TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32, 0, 0, 0, 0 },
	{ 131, 257, 700, TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32, 1, 0, 0, 0 },
	{ 64, 600, 513, TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 0, 1, 0, 0 },
	{ 400, 96, 256, TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 1, 1, 0, 0 },
	{ 256, 304, 528, TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_BF16, 0, 0, 0, 0 },
	{ 272, 144, 400, TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, 0, 0, TE_K_SCALING_1X128,
	  TE_K_SCALING_128X128 },
	{ 3, 4000, 200, TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 0, 0, 0, 0 },
	{ 8, 700, 1000, TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32, 0, 1, 0, 0 },
};

static void *operand(int32_t dtype, int64_t n)
{
	uint8_t *code;

	if (dtype == TE_DTYPE_FP32 || dtype == TE_DTYPE_BF16)
		return kc_normal(dtype, n, 1.0f);
	code = kc_poison(dtype, n);
	for (int64_t i = 0; i < n; i++)
		code[i] = te_fp8_encode((enum te_dtype)dtype, tt_rand_normal());
	return code;
}

static float *scales(int32_t scaling, int64_t rows, int64_t cols)
{
	const int64_t n = te_k_scale_nfloats(scaling, rows, cols);
	float *p = kc_poison(TE_DTYPE_FP32, n);

	for (int64_t i = 0; i < n; i++)
		p[i] = tt_rand_float(0.5f, 2.0f);
	return p;
}

TEST_EACH(bits_of_one_thread, gemm_gives_the_bits_of_one_thread, TT_FEWER((int)TT_LEN(nthreads)))
{
	open_with(_i);
	for (size_t i = 0; i < TT_LEN(gemms); i++) {
		const struct gemm *g = &gemms[i];
		struct te_k_gemm a = { .m = g->m, .n = g->n, .k = g->k, .alpha = 0.75f };

		a.adtype = g->atype;
		a.bdtype = g->btype;
		a.cdtype = a.ddtype = g->dtype;
		a.a_t = g->a_t;
		a.b_t = g->b_t;
		a.asc = g->asc;
		a.bsc = g->bsc;
		a.a = operand(g->atype, g->m * g->k);
		a.b = operand(g->btype, g->n * g->k);
		a.d = kc_poison(g->dtype, g->m * g->n);
		a.bias = kc_normal(g->dtype, g->n, 1.0f);
		if (i & 1) {
			a.c = kc_normal(g->dtype, g->m * g->n, 1.0f);
			a.beta = 0.5f;
		}
		if (te_dtype_nbytes((enum te_dtype)g->atype) == 1) {
			a.sa = scales(g->asc, g->m, g->k);
			a.sb = scales(g->bsc, g->n, g->k);
		}
		KC_RUN(GEMM, &a);
		kc_reset();
	}
	kc_close();
}

static const struct attn {
	int64_t batch, T;
	int nheads, nkv, d;
	uint32_t threshold;
} attns[] = {
	{ 2, 200, 4, 2, 32, 0 },
	{ 1, 513, 2, 1, 64, 9000 },
	{ 3, 65, 3, 3, 20, 0 },
	{ 1, 130, 2, 1, 200, 0 },
};

TEST_EACH(bits_of_one_thread, attention_gives_the_bits_of_one_thread,
	  TT_FEWER((int)TT_LEN(nthreads)))
{
	open_with(_i);
	for (size_t i = 0; i < TT_LEN(attns) * 2; i++) {
		const struct attn *t = &attns[i / 2];
		const int32_t dtype = i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
		const int64_t row = (int64_t)(t->nheads + 2 * t->nkv) * t->d;
		const int64_t nout = t->batch * t->T * t->nheads * t->d;
		uint64_t *words = kc_poison(TE_DTYPE_UINT8, 16);
		struct te_k_attn_fwd f = {
			.batch = t->batch,
			.seqlen = t->T,
			.nheads = t->nheads,
			.nkv = t->nkv,
			.head_dim = t->d,
			.scale = 1.0f / sqrtf((float)t->d),
			.threshold = t->threshold,
			.tag = 5,
			.dtype = dtype,
		};
		struct te_k_attn_bwd b = {
			.batch = f.batch,
			.seqlen = f.seqlen,
			.nheads = f.nheads,
			.nkv = f.nkv,
			.head_dim = f.head_dim,
			.scale = f.scale,
			.threshold = f.threshold,
			.tag = f.tag,
			.dtype = dtype,
		};

		words[0] = tt_rand_u64();
		words[1] = 3;
		f.qkv = b.qkv = kc_normal(dtype, t->batch * t->T * row, 1.0f);
		f.out = kc_poison(dtype, nout);
		f.lse = kc_poison(TE_DTYPE_FP32, t->batch * t->nheads * t->T);
		f.seed = b.seed = words;
		f.offset = b.offset = words + 1;
		KC_RUN(ATTN_FWD, &f);
		b.out = f.out;
		b.lse = f.lse;
		b.dout = kc_normal(dtype, nout, 1.0f);
		b.delta = kc_poison(TE_DTYPE_FP32, t->batch * t->nheads * t->T);
		b.dqkv = kc_poison(dtype, t->batch * t->T * row);
		KC_RUN(ATTN_BWD_PRE, &b);
		KC_RUN(ATTN_BWD_DKV, &b);
		KC_RUN(ATTN_BWD_DQ, &b);
		kc_reset();
	}
	kc_close();
}

TT_MAIN("kernels/threads", TT_NEED_NOTHING)
