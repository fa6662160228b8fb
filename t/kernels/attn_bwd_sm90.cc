/*
 * t/kernels/attn_bwd_sm90.cc - the kernels of sm90_bwd.cu, emulated by sm90.h, against a model in
 * FP64. t0017-sm90.t compiles this and runs it with a seed.
 */
#include "sm90.h"
#include "attn_sm90.h"

#include "kernels/attn/sm90_bwd.cu"
#include "kernels/attn/starts.cuh"

static te_attn_bwd_sm90_plan plan;

static void body(void)
{
	RUN_MASK(te_k_attn_bwd_sm90);
}

static const attn_case cases[] = {
	{ 64, 1, 1, 1, 1, 1, 0 },   { 64, 2, 65, 2, 1, 2, 0 },	{ 64, 1, 200, 2, 2, 1, 1 },
	{ 64, 1, 330, 4, 2, 3, 0 }, { 128, 1, 63, 1, 1, 1, 0 }, { 128, 2, 129, 2, 1, 1, 0 },
	{ 128, 1, 300, 3, 1, 2, 1 },
	{ 64, 2, 330, 2, 1, 3, 0, 1 },	{ 64, 1, 500, 4, 2, 3, 0, 129 },
	{ 64, 1, 300, 1, 1, 1, 0, 64 }, { 128, 1, 390, 3, 1, 2, 1, 100 },
	{ 128, 1, 300, 1, 1, 2, 0, 65 },
	{ 64, 2, 330, 2, 1, 3, 0, 0, 90 }, { 64, 1, 450, 2, 2, 2, 0, 0, 400 },
	{ 64, 1, 330, 2, 1, 3, 0, 0, -1 }, { 64, 1, 400, 1, 1, 2, 0, 70, 200 },
	{ 128, 2, 300, 2, 1, 2, 0, 0, 100 }, { 128, 1, 390, 3, 1, 2, 1, 0, -1 },
	{ 128, 1, 65, 1, 1, 1, 0, 0, 1 }, { 128, 1, 300, 1, 1, 2, 0, 130, 250 },
};

/* sums, and sums of magnitudes, of the terms of an element of dqkv */
struct sums {
	double sum, mag;
};

static void add(std::vector<sums> &to, int64_t at, double x)
{
	to[(size_t)at].sum += x;
	to[(size_t)at].mag += fabs(x);
}

/* the terms of one query, with its lse and delta */
static void model_row(const attn_case &c, const std::vector<uint16_t> &qkv,
		      const std::vector<uint16_t> &dout, double scale, int b, int h, int q,
		      std::vector<sums> &to, float *lse, float *delta)
{
	const int64_t w = (c.nheads + 2 * c.nkv) * c.d, base = (int64_t)b * c.T * w;
	const int64_t qat = base + q * w + h * c.d, v = (int64_t)c.nkv * c.d;
	const int64_t kat = base + (c.nheads + h / (c.nheads / c.nkv)) * c.d;
	const int64_t yat = (((int64_t)b * c.T + q) * c.nheads + h) * c.d;
	std::vector<double> s((size_t)q + 1), dp((size_t)q + 1);
	double top = -INFINITY, sum = 0, d = 0;

	for (int k = first_of(c, b, q); k <= q; k++) {
		double &x = s[(size_t)k], &y = dp[(size_t)k];

		for (int i = 0; i < c.d; i++) {
			x += scale * value_at(qkv, qat + i) * value_at(qkv, kat + k * w + i);
			y += value_at(dout, yat + i) * value_at(qkv, kat + k * w + v + i);
		}
		top = fmax(top, x);
	}
	for (int k = first_of(c, b, q); k <= q; k++)
		sum += exp(s[(size_t)k] - top);
	for (int k = first_of(c, b, q); k <= q; k++)
		d += exp(s[(size_t)k] - top) / sum * dp[(size_t)k];
	*lse = (float)(top + log(sum));
	*delta = (float)d;
	for (int k = first_of(c, b, q); k <= q; k++) {
		const double p = exp(s[(size_t)k] - top) / sum, ds = p * (dp[(size_t)k] - d);

		for (int i = 0; i < c.d; i++) {
			add(to, qat + i, scale * ds * value_at(qkv, kat + k * w + i));
			add(to, kat + k * w + i, scale * ds * value_at(qkv, qat + i));
			add(to, kat + k * w + v + i, p * value_at(dout, yat + i));
		}
	}
}

static te_k_attn_bwd pre;

static void starts_body(void)
{
	for (int64_t b = 0; b < pre.batch; b++)
		starts(pre, b);
}

/* the first keys of tiles, compared with a loop */
static void run_starts(const attn_case &c, const te_k_attn_bwd &a)
{
	const int ntiles = (c.T + 63) / 64;
	const uint32_t *got = a.sums + te_k_attn_starts_at(&a);

	pre = a;
	launch(starts_body, 1, 32, 1, 0);
	for (int b = 0; b < c.batch; b++)
		for (int q = c.T - 1, least = q; q >= 0; q--) {
			least = min(least, first_of(c, b, q));
			CHECK(q % 64 || (int)got[b * ntiles + q / 64] == least,
			      "batch %d, tile %d: %d, not %d", b, q / 64,
			      (int)got[b * ntiles + q / 64], least);
		}
}

/* more tiles than a warp has lanes */
static void run_long_starts(int most, int window)
{
	const attn_case c = { 64, 2, 4300, 1, 1, 1, 0, window, most };
	te_k_attn_bwd a = {};

	a.batch = c.batch;
	a.seqlen = c.T;
	a.nheads = 1;
	a.head_dim = c.d;
	a.window = window;
	a.first = any_documents(c);
	std::vector<uint32_t> sums((size_t)te_k_attn_counts(&a), 0xffffffff);
	a.sums = sums.data();
	run_starts(c, a);
	for (size_t i = 0; i < sums.size(); i++)
		CHECK((i >= (size_t)te_k_attn_starts_at(&a) &&
		       i < (size_t)te_k_attn_starts_at(&a) + 2 * 68) == (sums[i] != 0xffffffff),
		      "word %zu", i);
}

static void run_case(const attn_case &c)
{
	const int64_t nrows = (int64_t)c.batch * c.T, nout = nrows * c.nheads * c.d;
	const std::vector<uint16_t> qkv = random_of(nrows * (c.nheads + 2 * c.nkv) * c.d, 1.0f);
	const std::vector<uint16_t> dout = random_of(nout, 1.0f);
	std::vector<uint16_t> dqkv(qkv.size(), 0xffff);
	std::vector<float> lse((size_t)(nrows * c.nheads)), delta(lse.size());
	std::vector<sums> want(qkv.size());
	te_k_attn_bwd a = {};

	a.qkv = qkv.data();
	a.dout = dout.data();
	a.dqkv = dqkv.data();
	a.lse = lse.data();
	a.delta = delta.data();
	a.batch = c.batch;
	a.seqlen = c.T;
	a.nheads = c.nheads;
	a.nkv = c.nkv;
	a.head_dim = c.d;
	a.scale = 1.0f / sqrtf((float)c.d);
	a.dtype = TE_DTYPE_BF16;
	a.window = c.window;
	a.first = any_documents(c);
	for (int i = 0; i < c.batch * c.nheads * c.T; i++)
		model_row(c, qkv, dout, a.scale, i / c.T / c.nheads, i / c.T % c.nheads, i % c.T,
			  want, &lse[(size_t)i], &delta[(size_t)i]);
	std::vector<uint32_t> sums((size_t)te_k_attn_sums_nbytes(&a) / 4 + 3, 0xffffffff);

	a.sums = (uint32_t *)(((uintptr_t)sums.data() + 15) & ~(uintptr_t)15);
	const char *why = te__attn_bwd_sm90_plan(&a, c.nsms, &plan);

	CHECK(!why, "declined because %s", why);
	if (c.at_once)
		plan.args.at_once = c.at_once;
	plan.args.qkv = map_of(plan.qkv);
	plan.args.dout = map_of(plan.dout);
	plan.args.dqkv = map_of(plan.dqkv);
	for (int i = 0; i < 2; i++) {
		const std::vector<uint16_t> before = dqkv;

		memset(a.sums, 0, 4 * te_k_attn_starts_at(&a));
		if (a.first)
			run_starts(c, a);
		launch(body, (uint32_t)plan.nblocks, ATTN_SM90_BWD_THREADS(c.d), 1,
		       ATTN_SM90_BWD_SMEM(c.d));
		CHECK(!i || before == dqkv, "another launch, other bits");
		if (c.nsms == 1)
			break;
	}
	/* p and ds are rounded to BF16 before the sums, and these once more */
	for (size_t i = 0; i < dqkv.size(); i++) {
		const double x = value_at(dqkv, (int64_t)i);

		CHECK(fabs(x - want[i].sum) <=
			      0x1p-7 * want[i].mag + 0x1p-8 * fabs(want[i].sum) + 1e-5,
		      "element %zu: %g, not %g", i, x, want[i].sum);
	}
}

int main(int argc, char **argv)
{
	const int r = run_cases(argc, argv, cases, (int)(sizeof(cases) / sizeof(*cases)), run_case);

	run_long_starts(500, 0);
	run_long_starts(3000, 700);
	run_long_starts(-1, 0);
	return r;
}
