/*
 * t/kernels/sm90.cc - the GEMM kernels of sm90.cu, emulated by sm90.h. t0017-sm90.t compiles this
 * and runs it with a seed.
 */
#include "sm90.h"

extern "C" {
#include "kernels/gemm/sm90.h"
}
#include "kernels/gemm/sm90.cu"

/* --- launches ------------------------------------------------------------------------ */

typedef void kernel_fn(const te_gemm_sm90);
static kernel_fn *const kernels[] = { te_k_gemm_sm90_bf16, te_k_gemm_sm90_bf16_bt,
				      te_k_gemm_sm90_bf16_tt, te_k_gemm_sm90_e4m3_e4m3,
				      te_k_gemm_sm90_e5m2_e4m3, te_k_gemm_sm90_e4m3_block };
static kernel_fn *kernel;
static const te_gemm_sm90 *kernel_args;

static void body(void)
{
	kernel(*kernel_args);
}

static void launch_gemm(const te_sm90_plan &p, const te_gemm_sm90 &g)
{
	kernel = kernels[p.kernel];
	kernel_args = &g;
	launch(body, (uint32_t)p.nclusters * SM90_CLUSTER, SM90_THREADS, SM90_CLUSTER,
	       SM90_SMEM(p.kernel));
}

/* --- cases ----------------------------------------------------------------------------- */

enum cut { PLAN, SLICES, LEVELS };

struct gemm_case {
	int adtype, bdtype, ddtype, a_t, b_t;
	int m, n, k, nclusters, bias, beta;
	enum cut cut; /* PLAN: as te__sm90_plan() has it, otherwise see below */
	int asc, bsc;
};

#define WORKSPACE ((uint64_t)32 << 20)
#define BF TE_DTYPE_BF16
#define FP TE_DTYPE_FP32
#define E4 TE_DTYPE_E4M3
#define E5 TE_DTYPE_E5M2
#define ROW TE_K_SCALING_1X128
#define SQUARE TE_K_SCALING_128X128
static const gemm_case cases[] = {
	{ BF, BF, BF, 0, 0, 128, 256, 64, 1, 0, 0, PLAN },
	{ BF, BF, FP, 0, 0, 300, 136, 328, 2, 1, 1, PLAN }, /* ragged in every extent */
	{ BF, BF, BF, 0, 0, 1, 8, 8, 2, 1, 0, PLAN },
	{ BF, BF, BF, 0, 0, 264, 520, 24, 2, 0, 0, PLAN }, /* several tiles for a cluster */
	{ BF, BF, BF, 0, 1, 200, 328, 328, 2, 0, 1, PLAN },
	{ BF, BF, FP, 1, 1, 264, 136, 328, 2, 0, 1, PLAN },
	{ BF, BF, FP, 1, 1, 136, 200, 312, 3, 0, 0, SLICES },
	{ BF, BF, BF, 0, 0, 400, 200, 384, 3, 1, 0, LEVELS },
	{ E4, E4, BF, 0, 0, 250, 264, 656, 2, 1, 0, PLAN },
	{ E4, E4, FP, 0, 0, 144, 272, 208, 1, 0, 1, PLAN },
	{ E4, E4, FP, 0, 0, 500, 112, 720, 3, 0, 0, LEVELS },
	{ E5, E4, BF, 0, 0, 160, 576, 128, 1, 0, 0, PLAN },
	{ E5, E4, FP, 0, 0, 144, 400, 336, 2, 1, 1, PLAN },
	{ E5, E4, FP, 0, 0, 144, 176, 640, 3, 0, 1, SLICES },
	{ BF, BF, FP, 0, 0, 64, 64, 1536, 4, 0, 0, PLAN }, /* the plan cuts it */
	/* tiles one after the other: held in registers for enough steps, and with c */
	{ BF, BF, BF, 0, 0, 200, 520, 328, 1, 1, 0, PLAN },
	{ BF, BF, BF, 0, 1, 200, 520, 328, 1, 0, 1, PLAN },
	{ BF, BF, FP, 1, 1, 200, 520, 264, 1, 1, 1, PLAN },
	{ E5, E4, BF, 0, 0, 200, 528, 336, 1, 1, 1, PLAN },
	/* block scaling: a linear layer's forward pass and gradients; scales of more rows */
	{ E4, E4, BF, 0, 0, 144, 272, 400, 1, 1, 0, PLAN, ROW, SQUARE },
	{ E4, E4, FP, 0, 0, 272, 400, 336, 2, 0, 1, PLAN, ROW, ROW },
	{ E4, E4, BF, 0, 0, 320, 576, 256, 1, 0, 0, PLAN, SQUARE, ROW },
	{ E4, E4, BF, 0, 0, 139, 200, 128, 1, 1, 1, PLAN, ROW, SQUARE },
	{ E4, E4, FP, 0, 0, 16, 16, 16, 2, 0, 0, PLAN, ROW, ROW },
	{ E4, E4, FP, 0, 0, 144, 176, 640, 3, 0, 1, SLICES, ROW, ROW },
	{ E4, E4, BF, 0, 0, 500, 112, 720, 3, 1, 0, LEVELS, ROW, SQUARE },
};

/*
 * One tile in two slices; or two tiles for three clusters, two of which begin at the first k step,
 * while the third computes the rest of both. Schedules of te__gemm_schedule() cut larger tiles.
 */
static void cut_as(enum cut how, int nsteps, te_sm90_plan *p)
{
	te_gemm_schedule *s = &p->args.schedule;
	const int step = how == SLICES ? (nsteps + 1) / 2 : (2 * nsteps + 2) / 3;

	CHECK(s->level[0].ntiles == (how == SLICES ? 1 : 2), "%d tiles", s->level[0].ntiles);
	memset(s, 0, sizeof(*s));
	if (how == SLICES) {
		s->nlevels = 1;
		s->nslots = 2;
		s->level[0] = { 0, 1, 0, step, nsteps, 2, 0, 2, 0 };
	} else {
		s->nlevels = 2;
		s->nslots = 4;
		s->level[0] = { 0, 2, 0, step, step, 1, 0, 2, 0 };
		s->level[1] = { 0, 2, step, nsteps - step, nsteps, 1, 2, 1, 2 };
	}
	p->sums_nbytes = (uint64_t)s->nslots * SM90_CLUSTER * SM90_ROWS * SM90_COLS * 4;
	p->ready_nbytes = 256;
	p->nclusters = how == SLICES ? 2 : 3;
}

/* elements whose products and sums are exact */
static std::vector<uint8_t> operand_of(int dtype, int64_t n, std::vector<float> &v)
{
	static const float of[] = { 0, 1, 2, 3, -1, -2, 0.5f, -0.5f };
	const int es = dtype == BF ? 2 : 1;
	std::vector<uint8_t> p((size_t)(n * es));

	v.resize((size_t)n);
	for (int64_t i = 0; i < n; i++) {
		const float x = v[(size_t)i] = of[rnd(8)];

		if (es == 2) {
			const uint32_t u = to_bf16(x);

			p[(size_t)(2 * i)] = (uint8_t)u;
			p[(size_t)(2 * i + 1)] = (uint8_t)(u >> 8);
			continue;
		}
		int c = 0;
		while (fp8_values[dtype == E5][c] != x)
			c++;
		p[(size_t)i] = (uint8_t)c;
	}
	return p;
}

static std::vector<uint8_t> store_of(int dtype, int64_t n)
{
	std::vector<uint8_t> p((size_t)n * (dtype == FP ? 4 : 2));

	for (int64_t i = 0; i < n; i++) {
		const float x = (float)rnd(17) - 8;
		const uint32_t u = dtype == FP ? bits_of(x) : to_bf16(x);

		memcpy(&p[(size_t)i * (dtype == FP ? 4 : 2)], &u, dtype == FP ? 4 : 2);
	}
	return p;
}

static float load_of(int dtype, const std::vector<uint8_t> &p, int64_t i)
{
	uint32_t u = 0;

	memcpy(&u, &p[(size_t)i * (dtype == FP ? 4 : 2)], dtype == FP ? 4 : 2);
	return from_bits(dtype == FP ? u : u << 16);
}

/* powers of two, and NaN after the extents */
static std::vector<float> scales_of(int scaling, int64_t rows, int64_t k)
{
	std::vector<float> s((size_t)te_k_scale_nfloats(scaling, rows, k), NAN);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < k; i++) {
			float &x = s[(size_t)te_k_scale_index(scaling, rows, k, r, i)];

			if (std::isnan(x))
				x = ldexpf(1, (int)rnd(4) - 2);
		}
	return s;
}

static void run_case(const gemm_case &c)
{
	const int a_rows = c.asc ? (c.m + 15) / 16 * 16 : c.m;
	const int b_rows = c.bsc ? (c.n + 15) / 16 * 16 : c.n;
	const std::vector<float> sa = c.asc ? scales_of(c.asc, a_rows, c.k) :
					      std::vector<float>(1, 0.5f);
	const std::vector<float> sb = c.bsc ? scales_of(c.bsc, b_rows, c.k) :
					      std::vector<float>(1, 4.0f);
	std::vector<float> a, b;
	std::vector<uint8_t> pa = operand_of(c.adtype, (int64_t)a_rows * c.k, a);
	std::vector<uint8_t> pb = operand_of(c.bdtype, (int64_t)b_rows * c.k, b);
	std::vector<uint8_t> pc = store_of(c.ddtype, (int64_t)c.m * c.n);
	std::vector<uint8_t> bias = store_of(c.ddtype, c.n), d = pc;
	te_k_gemm g = {};
	te_sm90_plan p;
	const char *why;

	memset(d.data(), 0xff, d.size());
	g.a = pa.data();
	g.b = pb.data();
	g.c = c.beta ? pc.data() : NULL;
	g.d = d.data();
	g.bias = c.bias ? bias.data() : NULL;
	g.sa = sa.data();
	g.sb = sb.data();
	g.asc = c.asc;
	g.bsc = c.bsc;
	g.a_rows = a_rows;
	g.b_rows = b_rows;
	g.m = c.m;
	g.n = c.n;
	g.k = c.k;
	g.alpha = 0.25f;
	g.beta = c.beta ? 2.0f : 0.0f;
	g.a_t = c.a_t;
	g.b_t = c.b_t;
	g.adtype = c.adtype;
	g.bdtype = c.bdtype;
	g.cdtype = g.ddtype = c.ddtype;
	why = te__sm90_plan(&g, c.nclusters, WORKSPACE, &p);
	CHECK(!why, "declined because %s", why);
	if (c.cut)
		cut_as(c.cut, (c.k * (c.adtype == BF ? 2 : 1) + SM90_STEP - 1) / SM90_STEP, &p);

	te_gemm_sm90 args = p.args;
	std::vector<float> sums(p.sums_nbytes / 4, NAN);
	std::vector<uint32_t> counters(p.ready_nbytes / 4, 0);

	CHECK(p.sums_nbytes + p.ready_nbytes <= WORKSPACE, "workspace");
	args.a = map_of(p.a);
	args.b = map_of(p.b);
	args.c = map_of(p.c);
	args.d = map_of(p.d);
	args.sums = sums.data();
	args.ready = counters.data();
	launch_gemm(p, args);
	for (int i = 0; i < c.m; i++)
		for (int j = 0; j < c.n; j++) {
			float s = 0, got = load_of(c.ddtype, d, (int64_t)i * c.n + j);

			for (int k = 0; k < c.k; k++)
				s += a[(size_t)(c.a_t ? k * c.m + i : i * c.k + k)] *
				     b[(size_t)(c.b_t ? k * c.n + j : j * c.k + k)] *
				     sa[(size_t)te_k_scale_index(c.asc, a_rows, c.k, i, k)] *
				     sb[(size_t)te_k_scale_index(c.bsc, b_rows, c.k, j, k)];
			s *= 0.25f;
			if (c.beta)
				s += 2.0f * load_of(c.ddtype, pc, (int64_t)i * c.n + j);
			if (c.bias)
				s += load_of(c.ddtype, bias, j);
			if (c.ddtype == BF)
				s = from_bits(to_bf16(s) << 16);
			CHECK(got == s, "row %d, column %d: %g, not %g", i, j, (double)got,
			      (double)s);
		}
	printf("# %d levels, %d slots\n", p.args.schedule.nlevels, p.args.schedule.nslots);
}

int main(int argc, char **argv)
{
	const int n = (int)(sizeof(cases) / sizeof(*cases));

	begin(argc, argv);
	printf("1..%d\n", n);
	for (int i = 0; i < n; i++) {
		const gemm_case &c = cases[i];

		run_case(c);
		printf("ok %d - %s x %s%s to %s%s%s, %d x %d x %d for %d clusters\n", i + 1,
		       c.adtype == BF ? "bf16" : c.adtype == E4 ? "e4m3" : "e5m2",
		       c.bdtype == BF ? "bf16" : "e4m3", c.asc ? ", block scaling," : "",
		       c.ddtype == BF ? "bf16" : "fp32",
		       c.a_t ? ", a transposed" : "", c.b_t ? ", b transposed" : "", c.m, c.n, c.k,
		       c.nclusters);
		fflush(stdout);
	}
	return 0;
}
