/*
 * t/kernels/simd.c - the loops of reference kernels give the bits of their scalar definitions, and
 * kernels the same bits with every instruction set and number of threads.
 */
#include "config.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/op.h>

#include "kernels/ref.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const char *const levels[] = { "none", "avx2", "avx512" };
#define NLEVELS 3

static void use_level(const char *name)
{
	setenv("TE_HOST_SIMD", name, 1);
}

CASE(loops, "host numeric");

TEST_EACH(loops, the_level_is_at_most_the_one_asked_for, NLEVELS)
{
	use_level(levels[_i]);
	ck_assert_int_le(te__simd(), _i);
}

/* ---- conversions ---- */

/* of 2^32 floats, those BITS_STEP apart, and all that end in 16 zeros or 16 ones */
#define BITS_STEP 4093
#define NBITS 1000 /* not a multiple of a vector */

static uint32_t next_bits(uint64_t *u, int i)
{
	*u += BITS_STEP;
	return i % 8 == 0 ? (uint32_t)*u << 16 :
	       i % 8 == 1 ? (uint32_t)*u << 16 | 0xffff :
			    (uint32_t)*u;
}

static void check_narrow(const float *x)
{
	uint16_t bf16[NBITS], fp16[NBITS];
	uint8_t e4m3[NBITS], e5m2[NBITS];
	float v[NBITS], w[NBITS];

	memcpy(v, x, sizeof(v));
	te__h_store(TE_DTYPE_BF16, bf16, 0, NBITS, v);
	memcpy(w, x, sizeof(w));
	te__h_round(TE_DTYPE_BF16, NBITS, w);
	ck_assert_int_eq(memcmp(v, w, sizeof(v)), 0);
	te__h_load(TE_DTYPE_BF16, bf16, 0, NBITS, w);
	ck_assert_int_eq(memcmp(v, w, sizeof(v)), 0);
	memcpy(v, x, sizeof(v));
	te__h_store(TE_DTYPE_FP16, fp16, 0, NBITS, v);
	memcpy(w, x, sizeof(w));
	te__h_round(TE_DTYPE_FP16, NBITS, w);
	ck_assert_int_eq(memcmp(v, w, sizeof(v)), 0);
	te__h_encode(TE_DTYPE_E4M3, x, 1.0f, NBITS, e4m3);
	te__h_encode(TE_DTYPE_E5M2, x, 1.0f, NBITS, e5m2);
	for (int i = 0; i < NBITS; i++) {
		const uint16_t b = te_bf16_encode(x[i]), h = te_fp16_encode(x[i]);
		const uint8_t e4 = te_fp8_encode(TE_DTYPE_E4M3, x[i]);
		const uint8_t e5 = te_fp8_encode(TE_DTYPE_E5M2, x[i]);

		ck_assert_msg(bf16[i] == b && fp16[i] == h && e4m3[i] == e4 && e5m2[i] == e5,
			      "0x%08x: bf16 0x%04x, fp16 0x%04x, e4m3 0x%02x, e5m2 0x%02x, not "
			      "0x%04x, 0x%04x, 0x%02x, 0x%02x",
			      te__f32_bits(x[i]), bf16[i], fp16[i], e4m3[i], e5m2[i], b, h, e4, e5);
	}
}

TEST_EACH(loops, narrow_floats_as_the_scalar_definition, NLEVELS)
{
	float x[NBITS];

	use_level(levels[_i]);
	for (uint64_t u = (uint64_t)tt_rand_int(0, BITS_STEP - 1); u < UINT64_C(1) << 32;) {
		for (int i = 0; i < NBITS; i++)
			x[i] = te__f32_from_bits(next_bits(&u, i));
		check_narrow(x);
	}
}

/* FP8 by the tables, FP16 by its fields */
TEST_EACH(loops, widen_every_code, NLEVELS)
{
	uint16_t h[0x10000];
	uint8_t code[256];
	static float v[0x10000];

	use_level(levels[_i]);
	for (int i = 0; i < 256; i++)
		code[i] = (uint8_t)i;
	te__h_decode(TE_DTYPE_E4M3, code, 1.0f, 256, v);
	ck_assert_int_eq(memcmp(v, te__e4m3_values, sizeof(te__e4m3_values)), 0);
	te__h_decode(TE_DTYPE_E5M2, code, 1.0f, 256, v);
	ck_assert_int_eq(memcmp(v, te__e5m2_values, sizeof(te__e5m2_values)), 0);
	for (int i = 0; i < 0x10000; i++)
		h[i] = (uint16_t)i;
	te__h_load(TE_DTYPE_FP16, h, 0, 0x10000, v);
	for (int i = 0; i < 0x10000; i++) {
		const int e = i >> 10 & 31, m = i & 1023;
		const float a = e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
		const float x = e < 31 ? a : m ? NAN : INFINITY;

		ck_assert_int_eq(!!signbit(v[i]), i >> 15);
		ck_assert(isnan(x) ? isnan(v[i]) : fabsf(v[i]) == x);
	}
}

/* ---- e^x ---- */

/* 1.2 units in the last place (exp.h), and half of the smallest subnormal where one is rounded */
static void check_exp(float x, float got)
{
	const double want = exp((double)x);
	int e;

	if (isnan(x)) {
		ck_assert(isnan(got));
		return;
	}
	if (want > 0x1.ffffffp127) { /* rounds to infinity */
		ck_assert(isinf(got) || fabs((double)got - want) <= 1.2 * 0x1p104);
		return;
	}
	frexp(want, &e);
	ck_assert_msg(fabs((double)got - want) <= 1.2 * ldexp(1.0, e - 24) + 0x1p-150,
		      "e^%a: %a, want %a", (double)x, (double)got, want);
}

TEST_EACH(loops, exp_within_its_bound, NLEVELS)
{
	static const float edge[] = { 0.0f,	 -0.0f,	   1e-40f,    -1e-40f,	 88.72283f,
				      88.7229f,	 89.0f,	   100.0f,    3e38f,	 INFINITY,
				      -87.3365f, -87.337f, -103.97f,  -103.973f, -104.0f,
				      -105.0f,	 -3e38f,   -INFINITY, NAN,	 -NAN };
	float x[NBITS], v[NBITS];

	use_level(levels[_i]);
	memcpy(v, edge, sizeof(edge));
	te__h_exp(v, 0.0f, TT_LEN(edge));
	for (size_t i = 0; i < TT_LEN(edge); i++)
		check_exp(edge[i], v[i]);
	ck_assert(v[0] == 1.0f && v[1] == 1.0f && isinf(v[9]) && v[17] == 0.0f);
	/* of floats up to 128 in size */
	for (uint32_t u = (uint32_t)tt_rand_int(0, 999); u < 0x43000000;) {
		for (int i = 0; i < NBITS; i++, u += 1999)
			x[i] = te__f32_from_bits(u | (uint32_t)i << 31);
		memcpy(v, x, sizeof(v));
		te__h_exp(v, 0.0f, NBITS);
		for (int i = 0; i < NBITS; i++)
			check_exp(x[i], v[i]);
	}
}

/* ---- sums ---- */

TEST_EACH(loops, sums_add_in_lanes, NLEVELS)
{
	use_level(levels[_i]);
	for (int n = 0; n < 100; n++) {
		float a[100], b[100], most = -1.0f;
		double sum[16] = { 0 }, dot[16] = { 0 }, sq[16] = { 0 };

		tt_fill_normal(a, 100, 1.0f);
		tt_fill_normal(b, 100, 1.0f);
		for (int i = 0; i < n; i++) {
			volatile double d = (double)a[i] - 0.25, p = d * d;

			sum[i % 16] += (double)a[i];
			dot[i % 16] += (double)a[i] * (double)b[i];
			sq[i % 16] += p;
			most = a[i] > most ? a[i] : most;
		}
		for (int k = 1; k < 16; k *= 2)
			for (int i = 0; i < 16; i += 2 * k) {
				sum[i] += sum[i + k];
				dot[i] += dot[i + k];
				sq[i] += sq[i + k];
			}
		ck_assert_double_eq(te__h_sum(a, n), sum[0]);
		ck_assert_double_eq(te__h_dot(a, b, n), dot[0]);
		ck_assert_double_eq(te__h_sumsq_about(a, 0.25, n), sq[0]);
		ck_assert_float_eq(te__h_max(a, n, -1.0f), most);
	}
}

/* ---- kernels ---- */

#define ROWS 300
#define COLS 700
#define N (ROWS * COLS) /* several parts of a team (TE__H_GRAIN) */
#define ROOM ((size_t)128 << 20)

/* inputs, and the outputs of all kernels one after the other */
struct all {
	float *f, *g, *positive;
	uint16_t *x, *dy;
	int32_t *target;
	char *out;
	size_t used;
};

/* nbytes for an output; filled, because padding is not written */
static void *take(struct all *s, size_t nbytes)
{
	void *p = s->out + s->used;

	s->used += (nbytes + 63) & ~(size_t)63;
	ck_assert_uint_le(s->used, ROOM);
	memset(p, 0x55, nbytes);
	return p;
}

static void *copy_of(struct all *s, const void *from, size_t nbytes)
{
	return memcpy(take(s, nbytes), from, nbytes);
}

/* a side output of rows and cols with both copies */
static struct te_k_q side(struct all *s, int32_t scaling, int64_t rows, int64_t cols)
{
	static const float scale = 20.0f;
	struct te_k_q q = { .scale = &scale, .dtype = TE_DTYPE_E4M3, .scaling = scaling };

	q.row = take(s, (size_t)(rows * cols));
	q.col = take(s, (size_t)(rows * cols));
	q.scale_inv = take(s, 4 * (size_t)te_k_scale_nfloats(scaling, rows, cols));
	q.col_scale_inv = take(s, 4 * (size_t)te_k_scale_nfloats(scaling, cols, rows));
	q.amax = take(s, 4);
	*q.amax = 0.0f;
	return q;
}

static void quantizers(struct all *s)
{
	for (int k = 0; k < 12; k++) {
		struct te_k_quantize q = { s->x,	  ROWS, COLS, side(s, k % 3, ROWS, COLS),
					   TE_DTYPE_BF16, 0, 0, 0, 0 };
		struct te_k_dequantize d = {
			q.q.row,       take(s, 4 * N), q.q.scale_inv,
			ROWS,	       COLS,	       k & 1 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3,
			TE_DTYPE_FP32, k % 3,	       0, 0
		};

		q.q.dtype = d.xdtype;
		q.q.row = k / 4 == 1 ? NULL : q.q.row;
		q.q.col = k / 4 == 2 ? NULL : q.q.col;
		te__h_quantize(&q);
		if (q.q.row)
			te__h_dequantize(&d);
	}
	for (int k = 0; k < 4; k++) {
		struct te_k_cast c = { s->f, take(s, 4 * N), N, TE_DTYPE_FP32, k % 3, NULL };
		struct te_k_amax a = { s->f, N, take(s, 4), NULL, TE_DTYPE_FP32, 0 };

		*a.amax = 0.0f;
		te__h_cast(&c);
		te__h_amax(&a);
	}
}

static void activations(struct all *s)
{
	for (int k = 0; k < 4 * TE_ACT_COUNT; k++) {
		const int act = k / 4, gated = k & 1, scaling = k >> 1 & 1;
		struct te_k_act_fwd f = { s->x, take(s, 2 * N), ROWS / 2,      COLS, { 0 },
					  act,	gated,		TE_DTYPE_BF16, 0 };
		struct te_k_act_bwd b = {
			s->dy, s->x, take(s, 2 * N), take(s, 8 * 6 * COLS), ROWS / 2, COLS,
			{ 0 }, act,  gated,	     TE_DTYPE_BF16,	    0
		};

		f.q = side(s, scaling, ROWS / 2, COLS);
		b.q = side(s, scaling, ROWS / 2, COLS << gated);
		te__h_act_fwd(&f);
		te__h_act_bwd(&b);
	}
}

static void norms(struct all *s)
{
	for (int k = 0; k < 2; k++) {
		float *mean = k ? take(s, 4 * ROWS) : NULL, *rstd = take(s, 4 * ROWS);
		struct te_k_norm_fwd f = { .x = s->x,
					   .gamma = s->f,
					   .beta = k ? s->g : NULL,
					   .y = take(s, 2 * N),
					   .mean = mean,
					   .rstd = rstd,
					   .rows = ROWS,
					   .cols = COLS,
					   .eps = 1e-5f,
					   .zero_centered = k,
					   .dtype = TE_DTYPE_BF16 };
		struct te_k_norm_bwd b = { s->dy,	    s->x,	    s->f, mean, rstd,
					   k ? s->x : NULL, take(s, 2 * N), ROWS, COLS, k,
					   TE_DTYPE_BF16, { 0 } };
		struct te_k_norm_dw w = { s->dy,
					  s->x,
					  mean,
					  rstd,
					  take(s, 20 * COLS),
					  k ? take(s, 20 * COLS) : NULL,
					  ROWS,
					  COLS,
					  TE_DTYPE_BF16,
					  0 };

		struct te_k_norm_both both = { .dy = s->dy,
					       .x = s->x,
					       .gamma = s->f,
					       .mean = mean,
					       .rstd = rstd,
					       .dx = take(s, 2 * N),
					       .part_gamma = take(s, 20 * COLS),
					       .rows = ROWS,
					       .cols = COLS,
					       .dtype = TE_DTYPE_BF16 };

		f.q = side(s, 2 * k, ROWS, COLS);
		te__h_norm_fwd(&f);
		te__h_norm_bwd(&b);
		te__h_norm_dw(&w);
		te__h_norm_both(&both);
	}
}

static void losses_and_sums(struct all *s)
{
	float *max_sum = take(s, 8 * ROWS), *row = take(s, 4 * ROWS), *count = take(s, 4);
	float *part = take(s, 20 * COLS);
	struct te_k_ce_fwd f = {
		s->x, s->target, max_sum, row, ROWS, COLS, COLS - 3, -1, TE_DTYPE_BF16, 0, 0, 0
	};
	struct te_k_ce_reduce r = {
		row, s->target, take(s, 4), count, take(s, 4), ROWS, COLS - 3, -1, 0
	};
	struct te_k_ce_bwd b = { s->x, s->target, max_sum, count, take(s, 2 * N), ROWS,
				 COLS, COLS - 3,  -1,  1.0f,  TE_DTYPE_BF16,  0, 0 };
	struct te_k_ce_grad g = { .logits = s->x,
				  .targets = s->target,
				  .count = count,
				  .dlogits = take(s, 2 * N),
				  .max_sum = take(s, 8 * ROWS),
				  .row_loss = take(s, 4 * ROWS),
				  .rows = ROWS,
				  .cols = COLS,
				  .nclasses = COLS - 3,
				  .ignore_index = -1,
				  .grad_scale = 1.0f,
				  .dtype = TE_DTYPE_BF16 };
	struct te_k_colsum c = { s->x, part, ROWS, COLS, TE_DTYPE_BF16, 0 };
	struct te_k_part_sum p = { .part = part, .out = copy_of(s, s->f, 4 * COLS), .nparts = 5,
				   .cols = COLS, .dtype = TE_DTYPE_FP32 };

	te__h_ce_fwd(&f);
	te__h_ce_reduce(&r);
	te__h_ce_bwd(&b);
	te__h_ce_count(&r);
	te__h_ce_grad(&g);
	te__h_colsum(&c);
	te__h_part_sum(&p);
}

static void elementwise(struct all *s)
{
	const uint64_t seed = 7, offset = 9;
	struct te_k_bias_fwd b = { s->x, s->dy, take(s, 2 * N), ROWS, COLS, TE_DTYPE_BF16, 0 };
	struct te_k_add a = { s->x, s->dy, take(s, 2 * N), N, TE_DTYPE_BF16, 0 };
	struct te_k_dropout d = { s->x, take(s, 2 * N), &seed, &offset, N - 5, 6554,
				  3,	TE_DTYPE_BF16,	0,     0,	0,	 0 };
	struct te_k_rope r = { .x = s->x,
			       .y = take(s, 2 * N),
			       .rows = ROWS,
			       .seqlen = 150,
			       .nheads = 7,
			       .nrot = 5,
			       .head_dim = 100,
			       .dtype = TE_DTYPE_BF16 };
	struct te_k_embed_fwd e = { s->target, s->f, s->g, take(s, 2 * N), take(s, 4), ROWS,
				    60, ROWS - 1, COLS, NULL, 0, ROWS - 1, TE_DTYPE_BF16, 0,
				    NULL, NULL, 0, 0 };
	struct te_k_embed_bwd w = { s->target, s->dy, copy_of(s, s->f, 4 * N), ROWS,
				    ROWS - 1,  COLS,  TE_DTYPE_BF16,	       0,
				    TE_DTYPE_FP32, 0 };
	struct te_k_pos_bwd p = { s->dy, copy_of(s, s->f, 4 * N), 2, ROWS / 2,
				  COLS,	 TE_DTYPE_BF16,		  TE_DTYPE_FP32 };

	for (int i = 0; i < 50; i++)
		r.inv_freq[i] = 1.0f / (float)(1 + i);
	te__h_bias_fwd(&b);
	te__h_add(&a);
	te__h_dropout(&d);
	te__h_rope(&r);
	te__h_embed_fwd(&e);
	te__h_embed_bwd(&w);
	te__h_pos_bwd(&p);
}

static void optimizer(struct all *s)
{
	const struct te_k_adamw_state state = { 3, 0, 0.7, 0.8, 0.01f, 1.0f, 0.37f, 0 };
	uint8_t decay[N / TE_K_ALIGN_WEIGHT + 1];
	struct te_k_sumsq q = { s->f, take(s, 8 * TE_K_SUMSQ_PARTS), N - 11, NULL,
				TE_DTYPE_FP32, 0 };
	struct te_k_adamw a = { copy_of(s, s->f, 4 * N),
				copy_of(s, s->g, 4 * N),
				copy_of(s, s->positive, 4 * N),
				s->g,
				decay,
				&state,
				N - 7,
				0.9f,
				0.95f,
				1e-8f,
				0.1f,
				NULL,
				NULL,
				NULL,
				TE_K_MOMENTS_FP32,
				TE_K_MASTERS_FP32,
				0,
				0,
				0 };

	for (size_t i = 0; i < sizeof(decay); i++)
		decay[i] = (uint8_t)(i & 1);
	te__h_sumsq(&q);
	te__h_adamw(&a);
	for (int i = 1; i < 9; i++) {
		a.w = copy_of(s, s->f, 4 * N);
		a.m = copy_of(s, s->g, 4 * N);
		a.v = copy_of(s, s->f, 4 * N);
		a.rest = copy_of(s, s->g, 4 * N);
		a.moments = i % 3;
		a.masters = i / 3;
		a.m_exp = copy_of(s, s->g, N / TE_K_ALIGN_WEIGHT + 1);
		a.v_exp = copy_of(s, s->f, N / TE_K_ALIGN_WEIGHT + 1);
		te__h_adamw(&a);
	}
}

/* on the stream's worker, so that the kernels have its team */
static void gemms(struct all *s)
{
	struct te_k_quantize q = { s->dy, ROWS, COLS, side(s, 0, ROWS, COLS), TE_DTYPE_BF16,
				   0, 0, 0, 0 };
	struct te_k_gemm a = { .m = ROWS, .n = ROWS, .k = COLS, .alpha = 0.5f };

	te__h_quantize(&q);
	for (int k = 0; k < 3; k++) {
		a.a = k == 0 ? (void *)s->f : k == 1 ? (void *)s->x : q.q.row;
		a.b = k == 0 ? (void *)s->g : k == 1 ? (void *)s->dy : q.q.row;
		a.adtype = a.bdtype = k == 0 ? TE_DTYPE_FP32 :
				      k == 1 ? TE_DTYPE_BF16 :
					       TE_DTYPE_E4M3;
		a.ddtype = a.cdtype = k == 1 ? TE_DTYPE_FP32 : TE_DTYPE_BF16;
		a.bias = k == 1 ? (void *)s->g : (void *)s->dy;
		a.sa = a.sb = k == 2 ? q.q.scale_inv : NULL;
		a.d = take(s, 4 * ROWS * ROWS);
		te__h_gemm(&a);
	}
}

static void attention(struct all *s)
{
	static const uint64_t word[] = { 77, 3 };

	for (int k = 0; k < 4; k++) {
		struct te_k_attn_fwd f = {
			.qkv = k & 1 ? (void *)s->dy : (void *)s->g,
			.seed = word,
			.offset = word + 1,
			.batch = 2,
			.seqlen = 150,
			.nheads = 4,
			.nkv = 2,
			.head_dim = 40,
			.scale = 0.2f,
			.threshold = k & 2 ? 9000 : 0,
			.dtype = k & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
		};
		struct te_k_attn_bwd b = {
			.qkv = f.qkv,
			.dout = f.qkv,
			.seed = word,
			.offset = word + 1,
			.batch = 2,
			.seqlen = 150,
			.nheads = 4,
			.nkv = 2,
			.head_dim = 40,
			.scale = 0.2f,
			.threshold = f.threshold,
			.dtype = f.dtype,
		};

		b.out = f.out = take(s, 4 * 2 * 150 * 4 * 40);
		b.lse = f.lse = take(s, 4 * 2 * 150 * 4);
		b.delta = take(s, 4 * 2 * 150 * 4);
		b.dqkv = take(s, 4 * 2 * 150 * 8 * 40);
		te__h_attn_fwd(&f);
		te__h_attn_bwd_pre(&b);
		te__h_attn_bwd_dkv(&b);
		te__h_attn_bwd_dq(&b);
	}
}

static void run_all(void *arg)
{
	struct all *s = *(struct all **)arg;

	s->used = 0;
	activations(s);
	quantizers(s);
	norms(s);
	gemms(s);
	attention(s);
	losses_and_sums(s);
	elementwise(s);
	optimizer(s);
}

static const struct {
	const char *simd, *threads;
} ways[] = {
	{ "none", "1" }, { "avx2", "1" }, { "avx512", "1" },
	{ "auto", "2" }, { "auto", "3" }, { "none", "8" },
};

/* in a child, because variables are read once */
static void run_child(struct all *s, int way)
{
	const pid_t pid = fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		use_level(ways[way].simd);
		setenv("TE_HOST_THREADS", ways[way].threads, 1);
		tt_setup();
		DO(te_host_call(st, run_all, &s, sizeof(s)));
		DO(te_stream_sync(st));
		*(size_t *)(s->out + ROOM) = s->used;
		tt_teardown();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	s->used = *(size_t *)(s->out + ROOM);
}

static void *shared(void)
{
	void *p = mmap(NULL, ROOM + sizeof(size_t), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert(p != MAP_FAILED);
	return p;
}

static void make_inputs(struct all *s)
{
	static const float odd[] = { 0.0f, -0.0f, 1e-40f, -1e-40f, 80.0f, -90.0f, 1e10f };

	s->f = malloc(4 * N);
	s->g = malloc(4 * N);
	s->positive = malloc(4 * N);
	s->x = malloc(2 * N);
	s->dy = malloc(2 * N);
	s->target = malloc(4 * ROWS);
	ck_assert(s->f && s->g && s->positive && s->x && s->dy && s->target);
	tt_fill_normal(s->f, N, 3.0f);
	tt_fill_normal(s->g, N, 1.0f);
	for (int i = 0; i < N; i++) {
		s->f[i] = i % 37 ? s->f[i] : odd[i / 37 % TT_LEN(odd)];
		s->positive[i] = s->g[i] * s->g[i];
		s->x[i] = te_bf16_encode(s->f[i]);
		s->dy[i] = te_bf16_encode(s->g[i]);
	}
	for (int i = 0; i < ROWS; i++)
		s->target[i] = (int32_t)tt_rand_int(-1, ROWS / 2);
}

CASE(kernels, "host numeric");

TEST(kernels, same_bits_with_every_instruction_set_and_team)
{
	struct all s = { .out = NULL };
	char *first = shared(), *other = shared();

	make_inputs(&s);
	s.out = first;
	run_child(&s, 0);
	for (int way = 1; way < (int)TT_LEN(ways); way++) {
		const size_t used = s.used;
		size_t at = 0;

		s.out = other;
		run_child(&s, way);
		ck_assert_uint_eq(s.used, used);
		while (at < used && first[at] == other[at])
			at++;
		ck_assert_msg(at == used, "TE_HOST_SIMD=%s TE_HOST_THREADS=%s: byte %zu of %zu",
			      ways[way].simd, ways[way].threads, at, used);
	}
	munmap(first, ROOM + sizeof(size_t));
	munmap(other, ROOM + sizeof(size_t));
	free(s.f);
	free(s.g);
	free(s.positive);
	free(s.x);
	free(s.dy);
	free(s.target);
}

TT_MAIN("kernels/simd", TT_ONE_PROCESS)
