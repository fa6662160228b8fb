/*
 * t/kernels/block.cc - kernels/gemm/block.cu, mx.cu and any.cu, run by fibers.h, with the instructions of
 * mma.cuh. Sums of small integers with scales that are powers of two are exact, so that plain loops
 * give the same bits. t0020-block.t compiles this and runs it with a seed.
 */
#include "fibers.h"

#include <deque>

#include <te/dtype.h>

#undef TE_ARCH
#define TE_ARCH 89
#undef __shared__
#define __shared__
#include "kernels/gemm/geometry.h"

static uint4 stages[BLOCK_GEMM_SMEM / sizeof(uint4)];

/* --- mma.cuh ------------------------------------------------------------------------ */

#define TE_MMA_CUH
#define MMA_ROWS 16
#define MMA_COLS 8

static uint8_t *shared(uint32_t at, uint32_t n)
{
	CHECK(at % n == 0 && at + n <= sizeof(stages), "shared memory at %u", at);
	return (uint8_t *)stages + at;
}

DEV uint32_t smem_addr(const void *)
{
	return 0;
}

/* a copy ends when its group is waited for, and not before */
struct copy {
	uint32_t to;
	const void *from;
	int n;
};
static std::deque<std::vector<copy>> groups[BLOCK_GEMM_THREADS];
static std::vector<copy> open_group[BLOCK_GEMM_THREADS];

DEV void cp_async16(uint32_t dst, const void *src, int n)
{
	memset(shared(dst, 16), 0xee, 16);
	open_group[self->thread].push_back({ dst, src, n });
}

DEV void cp_async_commit(void)
{
	groups[self->thread].push_back(open_group[self->thread]);
	open_group[self->thread].clear();
}

template <int N> DEV void cp_async_wait(void)
{
	while (groups[self->thread].size() > N) {
		for (const copy &c : groups[self->thread].front()) {
			memset(shared(c.to, 16), 0, 16);
			memcpy(shared(c.to, 16), c.from, (size_t)c.n);
		}
		groups[self->thread].pop_front();
	}
}

DEV void ldmatrix(uint32_t (&r)[4], uint32_t addr)
{
	const uint32_t lane = self->thread % 32;
	uint32_t at[32];

	exchange(addr, at);
	for (int i = 0; i < 4; i++)
		memcpy(&r[i], shared(at[8 * i + lane / 4], 16) + lane % 4 * 4, 4);
}

/* codes are of small integers: sign, and 0 to 7 */
static float value(int e4m3, uint8_t code)
{
	const int bits = e4m3 ? 3 : 2, exponent = code >> bits & (e4m3 ? 15 : 31);
	const float f = (float)(1 << bits | (code & ((1 << bits) - 1)));

	return code & 127 ? ldexpf(code & 128 ? -f : f, exponent - (e4m3 ? 7 : 15) - bits) : 0.0f;
}

static float bf16_value(uint32_t half)
{
	return __uint_as_float(half << 16);
}

static uint32_t fragment[BLOCK_GEMM_THREADS / 32][32][6];

/* types: 0 e5m2, 1 e4m3, 2 bf16 */
template <int A, int B> struct mma_of {
	DEV void mma(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
		     uint32_t b1)
	{
		const uint32_t lane = self->thread % 32, word[6] = { a0, a1, a2, a3, b0, b1 };
		const uint32_t warp = self->thread / 32;
		const uint32_t(&got)[32][6] = fragment[warp];

		memcpy(fragment[warp][lane], word, sizeof(word));
		meet(warps[warp], 32);
		for (uint32_t e = 0; e < 4; e++) {
			const uint32_t row = lane / 4, col = lane % 4 * 2 + e % 2;

			for (uint32_t k = 0; k < 32; k += A == 2 ? 2 : 1) {
				const uint32_t half = k / 16, from = k % 16 / 4, at = k % 4 * 8;
				const uint32_t x = got[4 * row + from][e / 2 + 2 * half] >> at;
				const uint32_t y = got[4 * col + from][4 + half] >> at;

				d[e] += A == 2 ? bf16_value(x) * bf16_value(y) :
						 value(A, (uint8_t)x) * value(B, (uint8_t)y);
			}
		}
		meet(warps[warp], 32);
	}
};
typedef mma_of<1, 1> e4m3_e4m3;
typedef mma_of<1, 0> e4m3_e5m2;
typedef mma_of<0, 1> e5m2_e4m3;
typedef mma_of<2, 2> bf16_bf16;

#include "kernels/gemm/any.cu"
#include "kernels/gemm/block.cu"
#include "kernels/gemm/mx.cu"

/* --- cases ---------------------------------------------------------------------------- */

#define ONE TE_K_SCALING_TENSOR
#define ROW TE_K_SCALING_1X128
#define SQUARE TE_K_SCALING_128X128
#define MX TE_K_SCALING_1X32
#define NV TE_K_SCALING_1X16
#define NV_SQUARE TE_K_SCALING_16X16

static te_k_gemm g;

static void body_of_block(void)
{
	g.asc == ONE		   ? te_k_gemm_any(g) :
	g.adtype == TE_DTYPE_E2M1  ? te_k_gemm_nvfp4(g) :
	g.asc == MX		   ? te_k_gemm_mxfp8(g) :
	g.adtype == TE_DTYPE_E5M2 ? te_k_gemm_block_e5m2_e4m3(g) :
	g.bdtype == TE_DTYPE_E5M2 ? te_k_gemm_block_e4m3_e5m2(g) :
				    te_k_gemm_block_e4m3_e4m3(g);
}

struct operand {
	std::vector<uint8_t> code;
	std::vector<float> scale, v; /* v: [rows, k] */
};

/* powers of two from 1/4 to 4; NV: a word for all, and E4M3 bytes from 1/2 to 2 */
static void make_scales(int scaling, operand &o)
{
	uint8_t *const byte = (uint8_t *)o.scale.data();
	const size_t head = scaling == MX ? 0 : TE_K_NV_HEAD;

	if (scaling < MX) {
		for (float &s : o.scale)
			s = ldexpf(1.0f, (int)rnd(5) - 2);
		return;
	}
	for (size_t i = head; i < 4 * o.scale.size(); i++)
		byte[i] = (uint8_t)(scaling == MX ? 125 + rnd(5) : 0x30 + rnd(3) * 8);
	if (head)
		o.scale[0] = ldexpf(1.0f, (int)rnd(3));
}

static float scale_at(int scaling, const operand &o, int64_t at)
{
	const uint8_t *const byte = (const uint8_t *)o.scale.data();

	return scaling < MX  ? o.scale[(size_t)at] :
	       scaling == MX ? ldexpf(1.0f, byte[at] - 127) :
			       o.scale[0] * value(1, byte[at]);
}

static operand make(int dtype, int scaling, int64_t rows, int64_t k)
{
	static const uint8_t code[2][8] = { { 0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47 },
					    { 0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e } };
	static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	const int e4m3 = dtype == TE_DTYPE_E4M3, fp4 = dtype == TE_DTYPE_E2M1;
	operand o;

	o.scale.resize((size_t)te_k_scale_nfloats(scaling, rows, k));
	make_scales(scaling, o);
	o.code.resize((size_t)(fp4 ? rows * k / 2 : rows * k));
	for (int64_t i = 0; i < rows * k; i++) {
		const uint32_t c = rnd(8), sign = rnd(2);
		const float v = fp4 ? (sign ? -e2m1[c] : e2m1[c]) :
				      value(e4m3, (uint8_t)(code[e4m3][c] | sign << 7));
		uint8_t *const to = &o.code[(size_t)(fp4 ? i / 2 : i)];

		*to = (uint8_t)(fp4 ? *to | (c | sign << 3) << i % 2 * 4 : code[e4m3][c] | sign << 7);
		o.v.push_back(v * scale_at(scaling, o,
					   te_k_scale_index(scaling, rows, k, i / k, i % k)));
	}
	return o;
}

static bool same(float x, float y)
{
	return x == y ? signbit(x) == signbit(y) : x != x && y != y;
}

/* every code and scale of mx.cu, as the host decodes it */
static void decode(void)
{
	for (uint32_t c = 0; c < 256; c++) {
		CHECK(same(fp8_value(c, false), te__e4m3_decode((uint8_t)c)), "E4M3 %u", c);
		CHECK(same(fp8_value(c, true), te__e5m2_decode((uint8_t)c)), "E5M2 %u", c);
		CHECK(same(e2m1_value(c), te__e2m1_decode(c)), "E2M1 %u", c);
		CHECK(same(mx_scale<false>(c), c == 255 ? NAN : ldexpf(1.0f, (int)c - 127)),
		      "E8M0 %u", c);
		CHECK(same(mx_scale<true>(c), te__e4m3_decode((uint8_t)c)), "scale %u", c);
	}
}

/* runs g, and compares d, of 3 before, with the sums of term(row, column, i) */
template <class T> static void check_product(const std::vector<float> &d, bool rest, T term)
{
	const int m = (int)g.m, n = (int)g.n, k = (int)g.k;

	launch(body_of_block, (uint32_t)((m + 127) / 128 * ((n + 127) / 128)), BLOCK_GEMM_THREADS);
	for (int i = 0; i < 8; i++)
		CHECK(d[(size_t)(m * n + i)] == 3.0f, "stored after d");
	for (int r = 0; r < m; r++)
		for (int c = 0; c < n; c++) {
			const float got = d[(size_t)(r * n + c)];
			float sum = 0.0f;

			for (int i = 0; i < k; i++)
				sum += term(r, c, i);
			sum = rest ? sum * 0.5f + 6.0f + 5.0f : sum;
			CHECK(got == sum, "d[%d,%d] of m %d n %d k %d: %g, not %g", r, c, m, n, k,
			      (double)got, (double)sum);
		}
}

/* a and b have more rows than d */
static void run(int m, int n, int k, int more, int asc, int bsc, int adtype, int bdtype, bool rest)
{
	const operand a = make(adtype, asc, m + more, k);
	const operand b = make(bdtype, bsc, n + more, k);
	std::vector<float> d((size_t)(m * n + 8), 3.0f), bias((size_t)n, 5.0f);

	g = te_k_gemm();
	g.a = a.code.data();
	g.b = b.code.data();
	g.c = g.d = d.data();
	g.sa = a.scale.data();
	g.sb = b.scale.data();
	g.m = m;
	g.n = n;
	g.k = k;
	g.alpha = rest ? 0.5f : 1.0f;
	g.beta = rest ? 2.0f : 0.0f;
	g.bias = rest ? bias.data() : NULL;
	g.adtype = adtype;
	g.bdtype = bdtype;
	g.cdtype = g.ddtype = TE_DTYPE_FP32;
	g.asc = asc;
	g.bsc = bsc;
	g.a_rows = m + more;
	g.b_rows = n + more;
	check_product(d, rest, [&](int r, int c, int i) {
		return a.v[(size_t)(r * k + i)] * b.v[(size_t)(c * k + i)];
	});
}

/* BF16 of small integers in both layouts; off: a and b are not aligned */
static void run_bf16(int m, int n, int k, bool a_t, bool b_t, bool off)
{
	std::vector<uint16_t> a((size_t)(m * k + 1)), b((size_t)(n * k + 1));
	std::vector<float> d((size_t)(m * n + 8), 3.0f);

	for (std::vector<uint16_t> *v : { &a, &b })
		for (uint16_t &e : *v)
			e = (uint16_t)(__float_as_uint((float)((int)rnd(15) - 7)) >> 16);
	g = te_k_gemm();
	g.a = a.data() + off;
	g.b = b.data() + off;
	g.c = g.d = d.data();
	g.m = m;
	g.n = n;
	g.k = k;
	g.alpha = 1.0f;
	g.a_t = a_t;
	g.b_t = b_t;
	g.adtype = g.bdtype = TE_DTYPE_BF16;
	g.cdtype = g.ddtype = TE_DTYPE_FP32;
	check_product(d, false, [&](int r, int c, int i) {
		return bf16_value(a[(size_t)(a_t ? i * m + r : r * k + i) + off]) *
		       bf16_value(b[(size_t)(b_t ? i * n + c : c * k + i) + off]);
	});
}

int main(int argc, char **argv)
{
	const int e4 = TE_DTYPE_E4M3, e5 = TE_DTYPE_E5M2, e2 = TE_DTYPE_E2M1;

	state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	run(16, 16, 16, 0, ROW, ROW, e4, e4, false);
	run(130, 131, 144, 13, ROW, SQUARE, e4, e4, true);   /* ragged in every extent */
	run(64, 24, 640, 0, SQUARE, ROW, e4, e5, false);     /* more steps than stages */
	run(1030, 129, 16, 0, ROW, SQUARE, e5, e4, false);  /* more tiles than a band has rows */
	run(5 + (int)rnd(140), 1 + (int)rnd(140), 16 * (1 + (int)rnd(40)), (int)rnd(20), ROW, ROW,
	    e4, e4, true);
	decode();
	run(16, 16, 16, 0, MX, MX, e4, e4, false);
	run(130, 131, 144, 13, MX, MX, e4, e5, true);
	run(24, 129, 336, 0, MX, MX, e5, e4, false);
	run(16, 16, 16, 0, NV, NV, e2, e2, false);
	run(130, 131, 144, 13, NV, NV_SQUARE, e2, e2, true);
	run(1030, 5, 16, 0, NV_SQUARE, NV, e2, e2, false);
	run(5 + (int)rnd(140), 1 + (int)rnd(140), 16 * (1 + (int)rnd(40)), (int)rnd(20), NV, NV,
	    e2, e2, true);
	run(16, 16, 16, 0, ONE, ONE, e4, e4, false);
	run(130, 131, 144, 13, ONE, ONE, e5, e4, true);
	run_bf16(1, 1, 1, false, false, false);
	run_bf16(130, 131, 65, false, false, false); /* rows that are not aligned */
	run_bf16(1030, 5, 72, false, true, true);
	run_bf16(16, 129, 200, true, false, false);
	run_bf16(5 + (int)rnd(140), 1 + (int)rnd(140), 1 + (int)rnd(300), true, true, rnd(2));
	printf("# right\n");
	return 0;
}
