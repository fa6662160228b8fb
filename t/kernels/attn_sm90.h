/*
 * t/kernels/attn_sm90.h - common code of attn_sm90.cc and attn_bwd_sm90.cc: what attn/dev.cuh and
 * fp8.cuh have, cases and random values. Included after sm90.h.
 */
#ifndef TT_ATTN_SM90_H
#define TT_ATTN_SM90_H

extern "C" {
#include "kernels/attn/sm90.h"
#include "libtecore/base/dtype_inline.h"
}
#define LOG2E 1.4426950408889634f
#define LANE (threadIdx.x % 32)

static int min(int a, int b)
{
	return a < b ? a : b;
}
static int max(int a, int b)
{
	return a > b ? a : b;
}
DEV uint32_t pack_bf16(float lo, float hi)
{
	return pack_bf16x2(lo, hi);
}
DEV float exp2_approx(float x)
{
	return exp2f(x);
}

DEV float bf16_to_float(uint16_t x)
{
	return from_bits((uint32_t)x << 16);
}
DEV float __fmul_rn(float x, float y)
{
	return x * y;
}
DEV float __fdiv_rn(float x, float y)
{
	return x / y;
}
DEV bool noop_set(const float *noop)
{
	return noop && *noop == 1.0f;
}
DEV uint32_t fp8x2(int dtype, float lo, float hi)
{
	return dtype == TE_DTYPE_E4M3 ? te__e4m3_encode(lo) | te__e4m3_encode(hi) << 8 :
					te__e5m2_encode(lo) | te__e5m2_encode(hi) << 8;
}
DEV float amax_of(float m, float x)
{
	return fmaxf(m, fabsf(x));
}
DEV void atomic_amax(float *amax, float m)
{
	*amax = fmaxf(*amax, m);
}
DEV float warp_amax(float m)
{
	for (int by = 1; by < 32; by *= 2)
		m = fmaxf(m, __shfl_xor_sync(~0u, m, by));
	return m;
}

struct attn_case {
	int d, batch, T, nheads, nkv, nsms, at_once; /* at_once 0: as planned */
	int window;
	int most; /* tokens of a document, at most; 0: no documents, -1: any first[] */
};

static std::vector<int32_t> firsts; /* te_k_attn_fwd.first of the case, [batch, T] */

/* runs the kernel of the plan, one of six */
#define RUN_MASK(NAME)                                                                 \
	(plan.head_dim == 64 ? PICK_MASK(NAME##_d64) : PICK_MASK(NAME##_d128))(plan.args)
#define PICK_MASK(NAME)                                                                \
	(plan.args.first ? NAME##_documents : plan.args.window ? NAME##_window : NAME)

static double value_at(const std::vector<uint16_t> &v, int64_t i)
{
	return from_bits((uint32_t)v[(size_t)i] << 16);
}

/* te_k_attn_fwd.first of the case */
static const int32_t *any_documents(const attn_case &c)
{
	int begin = 0, end = 0;

	firsts.assign((size_t)(c.batch * c.T), 0);
	for (int i = 0; c.most && i < c.batch * c.T; i++) {
		if (i % c.T == 0 || i == end) {
			begin = i;
			end = i + 1 + (int)rnd((uint32_t)max(c.most, 1));
		}
		firsts[(size_t)i] = c.most > 0 ? begin % c.T : (int)rnd((uint32_t)c.T + 9) - 5;
	}
	return c.most ? firsts.data() : NULL;
}

/* the first key of a query */
static int first_of(const attn_case &c, int b, int q)
{
	const int document = min(max(firsts[(size_t)(b * c.T + q)], 0), q);

	return c.window ? max(q + 1 - c.window, document) : document;
}

/* rows of other lengths: about normal, of values that BF16 has */
static std::vector<uint16_t> random_of(int64_t n, float amplitude)
{
	std::vector<uint16_t> v((size_t)n);

	for (uint16_t &x : v) {
		float s = 0;

		for (int i = 0; i < 6; i++)
			s += (float)rnd(1 << 16) / 65536 - 0.5f;
		x = (uint16_t)to_bf16(amplitude * s * 1.41f);
	}
	return v;
}

static int run_cases(int argc, char **argv, const attn_case *cases, int n,
		     void (*run)(const attn_case &))
{
	begin(argc, argv);
	printf("1..%d\n", n);
	for (int i = 0; i < n; i++) {
		const attn_case &c = cases[i];

		run(c);
		printf("ok %d - head_dim %d, batch %d, T %d, heads %d/%d, window %d, documents of "
		       "%d, on at most %d blocks\n", i + 1, c.d, c.batch, c.T, c.nheads, c.nkv,
		       c.window, c.most, c.nsms);
		fflush(stdout);
	}
	return 0;
}

#endif
