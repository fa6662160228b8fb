/*
 * t/kernels/attn_sm90.cc - the attention kernels of sm90.cu, emulated by sm90.h, against a model in
 * FP64. t0017-sm90.t compiles this and runs it with a seed.
 */
#include "sm90.h"

#include "attn_sm90.h"

#include "kernels/attn/sm90.cu"

static te_attn_sm90_plan plan;

static void body(void)
{
	RUN_MASK(te_k_attn_fwd_sm90);
}

static const attn_case cases[] = {
	{ 64, 1, 1, 1, 1, 1, 0 },
	{ 64, 2, 63, 3, 1, 4, 0 },
	{ 64, 1, 65, 2, 2, 1, 0 },
	{ 64, 2, 200, 2, 1, 3, 0 },
	{ 64, 1, 450, 2, 1, 2, 1 },
	{ 64, 1, 385, 3, 3, 1, 2 },
	{ 128, 1, 2, 2, 1, 1, 0 },
	{ 128, 2, 64, 2, 1, 5, 0 },
	{ 128, 1, 129, 2, 2, 1, 0 },
	{ 128, 3, 190, 2, 1, 2, 4 },
	{ 128, 1, 449, 3, 1, 2, 2 },
	{ 64, 2, 450, 2, 1, 3, 0, 1 },	 { 64, 1, 600, 2, 2, 2, 0, 100 },
	{ 64, 1, 777, 2, 1, 3, 0, 129 }, { 64, 1, 300, 2, 1, 2, 0, 64 },
	{ 64, 2, 100, 1, 1, 2, 0, 100 }, { 128, 1, 513, 2, 1, 2, 0, 65 },
	{ 128, 1, 700, 3, 1, 2, 2, 256 }, { 128, 2, 200, 2, 2, 3, 0, 2 },
	{ 64, 2, 450, 2, 1, 2, 0, 0, 90 }, { 64, 1, 600, 2, 2, 1, 0, 0, 600 },
	{ 64, 1, 450, 2, 1, 2, 0, 0, -1 }, { 64, 1, 500, 1, 1, 2, 0, 70, 300 },
	{ 64, 1, 66, 1, 1, 1, 0, 0, 1 },
	{ 128, 2, 400, 2, 1, 2, 0, 0, 150 }, { 128, 1, 450, 2, 1, 2, 1, 0, -1 },
	{ 128, 1, 500, 1, 1, 2, 0, 130, 400 }, { 128, 1, 65, 2, 2, 1, 0, 0, 1 },
};

/* the bounds of t/kernels/attn_cases.c */
static void check_row(const attn_case &c, const std::vector<uint16_t> &qkv, double scale, int b,
		      int h, int q, const uint16_t *out, float lse)
{
	const double v = 0x1p-23, w = 0x1p-8;
	const int stride = (c.nheads + 2 * c.nkv) * c.d, kh = c.nheads + h / (c.nheads / c.nkv);
	const int64_t base = (int64_t)b * c.T * stride;
	std::vector<double> s((size_t)q + 1), o((size_t)c.d), err((size_t)c.d);
	double top = -INFINITY, sum = 0, e = 0, rel, want;

	for (int k = first_of(c, b, q); k <= q; k++) {
		double mag = 0, x = 0;

		for (int i = 0; i < c.d; i++) {
			const double y = value_at(qkv, base + q * stride + h * c.d + i) *
					 value_at(qkv, base + k * stride + kh * c.d + i);

			x += y;
			mag += fabs(y);
		}
		s[(size_t)k] = scale * x;
		top = fmax(top, scale * x);
		e = fmax(e, v * ((c.d + 4) * scale * mag + 4 * fabs(scale * x)));
	}
	e += 4 * v * fabs(top);
	for (int k = first_of(c, b, q); k <= q; k++)
		sum += exp(s[(size_t)k] - top);
	rel = 2 * e + (c.T + 32) * v + 0x1p-21 + w;
	for (int k = first_of(c, b, q); k <= q; k++)
		for (int i = 0; i < c.d; i++) {
			const double x = exp(s[(size_t)k] - top) / sum *
					 value_at(qkv, base + k * stride + (kh + c.nkv) * c.d + i);

			o[(size_t)i] += x;
			err[(size_t)i] += fabs(x) * rel;
		}
	for (int i = 0; i < c.d; i++) {
		const double got = from_bits((uint32_t)out[i] << 16);
		const double tol = err[(size_t)i] + w * (fabs(o[(size_t)i]) + err[(size_t)i]);

		CHECK(fabs(got - o[(size_t)i]) <= tol, "batch %d head %d row %d column %d: %g, not %g",
		      b, h, q, i, got, o[(size_t)i]);
	}
	want = top + log(sum);
	CHECK(fabs(lse - want) <= e + (c.T + 32) * v + 0x1p-21 + 2 * v * fabs(want),
	      "lse of batch %d head %d row %d: %g, not %g", b, h, q, (double)lse, want);
}

static void run(const attn_case &c, te_k_attn_fwd &a)
{
	const char *why = te__attn_sm90_plan(&a, c.nsms, &plan);

	CHECK(!why, "declined because %s", why);
	if (c.at_once)
		plan.args.at_once = c.at_once;
	plan.args.qkv = map_of(plan.qkv);
	if (a.out)
		plan.args.out = map_of(plan.out);
	launch(body, (uint32_t)plan.nblocks, ATTN_SM90_THREADS(c.d), 1, ATTN_SM90_SMEM(c.d));
}

/* copies of out, some or all, at addresses of some alignment; codes after the last are poison */
static void check_codes(const attn_case &c, te_k_attn_fwd a, const std::vector<uint16_t> &out)
{
	const size_t n = out.size(), cols = (size_t)c.nheads * c.d, rows = n / cols;
	const size_t row_at = rnd(2) * 8 + rnd(2), col_at = rnd(2) * 8 + rnd(2);
	std::vector<uint8_t> row(n + 32, 0xa5), col(n + 32, 0xa5);
	const float noop = (float)(rnd(4) == 0), scale = 0.5f + (float)rnd(200);
	const uint32_t want = 1 + rnd(7);
	float inv = 7.0f, amax = 0x1p-20f, top = amax;
	int codes = 0;

	a.q.row = want & 1 ? row.data() + row_at : NULL;
	a.q.col = want & 2 ? col.data() + col_at : NULL;
	a.q.amax = want & 4 ? &amax : NULL;
	a.q.scale = &scale;
	a.q.scale_inv = &inv;
	a.q.noop = &noop;
	a.q.dtype = rnd(2) ? TE_DTYPE_E4M3 : TE_DTYPE_E5M2;
	if (rnd(2))
		a.out = NULL;
	run(c, a);
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < cols; i++) {
			const float x = from_bits((uint32_t)out[r * cols + i] << 16);
			const int code = (int)(fp8x2(a.q.dtype, x * scale, 0) & 255);
			uint8_t *in_row = &row[row_at + r * cols + i];
			uint8_t *in_col = &col[col_at + i * rows + r];

			top = fmaxf(top, fabsf(x));
			CHECK(*in_row == (want & 1 && !noop ? code : 0xa5), "row %zu %zu", r, i);
			CHECK(*in_col == (want & 2 && !noop ? code : 0xa5), "column %zu %zu", r, i);
			*in_row = *in_col = 0xa5;
			codes |= code;
		}
	CHECK(codes, "only zeros");
	for (size_t i = 0; i < n + 32; i++)
		CHECK(row[i] == 0xa5 && col[i] == 0xa5, "outside, at %zu", i);
	CHECK(amax == (want & 4 && !noop ? top : 0x1p-20f), "amax %g", amax);
	CHECK(inv == (want & 3 && !noop ? 1.0f / scale : 7.0f), "scale_inv %g", inv);
}

static void run_case(const attn_case &c)
{
	const int64_t nrows = (int64_t)c.batch * c.T;
	const std::vector<uint16_t> qkv =
		random_of(nrows * (c.nheads + 2 * c.nkv) * c.d, 0.5f * (float)(1 + rnd(4)));
	std::vector<uint16_t> out((size_t)(nrows * c.nheads * c.d), 0xffff);
	std::vector<float> lse((size_t)(nrows * c.nheads), NAN);
	te_k_attn_fwd a = {};

	a.qkv = qkv.data();
	a.out = out.data();
	a.lse = lse.data();
	a.batch = c.batch;
	a.seqlen = c.T;
	a.nheads = c.nheads;
	a.nkv = c.nkv;
	a.head_dim = c.d;
	a.scale = (0.5f + (float)rnd(1024) / 1024) / sqrtf((float)c.d);
	a.dtype = TE_DTYPE_BF16;
	a.window = c.window;
	a.first = any_documents(c);
	run(c, a);
	for (int b = 0; b < c.batch; b++)
		for (int h = 0; h < c.nheads; h++)
			for (int q = 0; q < c.T; q++)
				check_row(c, qkv, a.scale, b, h, q,
					  &out[(((size_t)b * c.T + q) * c.nheads + h) * c.d],
					  lse[((size_t)b * c.nheads + h) * c.T + q]);
	check_codes(c, a, out);
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv, cases, (int)(sizeof(cases) / sizeof(*cases)), run_case);
}
