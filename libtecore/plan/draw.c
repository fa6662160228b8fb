/*
 * draw.c - initial values of weights, drawn on the host by as many threads as it has processors.
 *
 * A value depends on the seed and on its index among the sequence's weights only, so neither the
 * number of threads nor the backend changes it. It is the FP32 number nearest to what libm's log(),
 * sqrt(), sin() and cos() give. Vectors of polynomials tell that number for all but one pair in
 * about three thousand, which are too near to the middle of two numbers: libm computes these.
 */
#define TE_LOG_CATEGORY "core/seq"
#include "config.h"

#include "kernels/simd.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "kernels/philox.h"
#include "libtecore/base/private.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

#define DRAW_THREADS 32		/* at most */
#define DRAW_GRAIN (256 * 1024) /* elements that are worth a thread; even */

struct part {
	const struct te__weight *w;
	uint64_t seed;
	float *buf;	       /* values; or NULL, and their halves */
	uint16_t *half, *rest; /* as te__split() makes them */
	int64_t first; /* element of the weight that these begin with */
	int64_t begin, end; /* range of the weight's elements; begin is even */
};

#define TAG 0x696e6974u /* stream of random numbers */
#define BLOCK 64	/* pairs of a vector loop */
#define BOUND 0x1p-40	/* error of a normal number, relative to its radius, with a margin */

/* two independent normal numbers from one draw: Box and Muller, Ann. Math. Stat. 29 (1958) */
static void normal_pair(uint64_t seed, uint64_t pair, double ret[2])
{
	struct te_philox r = te_philox(seed, (uint32_t)pair, (uint32_t)(pair >> 32), 0, TAG);
	double u = ((double)r.w[0] + 0.5) / 4294967296.0;
	double a = 6.283185307179586 * ((double)r.w[1] / 4294967296.0);
	double s = sqrt(-2.0 * log(u));

	ret[0] = s * cos(a);
	ret[1] = s * sin(a);
}

/* the first two words of te_philox() for BLOCK pairs */
TE__SIMD_BODY void draw_words(uint64_t seed, uint64_t pair, uint32_t *restrict w0,
			      uint32_t *restrict w1)
{
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), w2[BLOCK], w3[BLOCK];

	for (int i = 0; i < BLOCK; i++) {
		w0[i] = (uint32_t)(pair + (uint64_t)i);
		w1[i] = (uint32_t)((pair + (uint64_t)i) >> 32);
		w2[i] = 0;
		w3[i] = TAG;
	}
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < BLOCK; i++) {
			const uint64_t p0 = (uint64_t)TE_PHILOX_M0 * w0[i];
			const uint64_t p1 = (uint64_t)TE_PHILOX_M1 * w2[i];

			w0[i] = (uint32_t)(p1 >> 32) ^ w1[i] ^ k0;
			w2[i] = (uint32_t)(p0 >> 32) ^ w3[i] ^ k1;
			w1[i] = (uint32_t)p1;
			w3[i] = (uint32_t)p0;
		}
		k0 += TE_PHILOX_W0;
		k1 += TE_PHILOX_W1;
	}
}

/* sqrt(-2 log((w + 0.5) / 2^32)): log m = 2 atanh((m - 1) / (m + 1)) with m from sqrt(1/2) on */
TE__SIMD_BODY double radius(uint32_t w)
{
	const uint64_t bias = (uint64_t)64 << 52;
	const double u = ((double)(int32_t)(w ^ 0x80000000u) + 2147483648.5) * 0x1p-32;
	uint64_t bits, t, power;
	double m, e, f, g;

	memcpy(&bits, &u, sizeof(bits));
	t = bits - 0x3fe6a09e00000000u + bias;
	bits = bits - (t & 0xfff0000000000000u) + bias;
	memcpy(&m, &bits, sizeof(m));
	power = t >> 52 | 0x4330000000000000u;
	memcpy(&e, &power, sizeof(e));
	e -= 0x1p52 + 64;
	f = (m - 1) / (m + 1);
	g = f * f;
	m = 1.0 / 15 + g * (1.0 / 17 + g * (1.0 / 19));
	m = 1.0 / 7 + g * (1.0 / 9 + g * (1.0 / 11 + g * (1.0 / 13 + g * m)));
	m = 1 + g * (1.0 / 3 + g * (1.0 / 5 + g * m));
	return sqrt(-2 * (e * 0.69314718055994531 + 2 * f * m));
}

/* Taylor series up to pi / 4 */
TE__SIMD_BODY double sine(double x)
{
	const double y = x * x;
	const double high = 1.0 / 362880 - y * (1.0 / 39916800 - y * (1.0 / 6227020800.0 -
								       y / 1307674368000.0));

	return x * (1 - y * (1.0 / 6 - y * (1.0 / 120 - y * (1.0 / 5040 - y * high))));
}

TE__SIMD_BODY double cosine(double x)
{
	const double y = x * x;
	const double high = 1.0 / 40320 - y * (1.0 / 3628800 - y * (1.0 / 479001600 -
								     y / 87178291200.0));

	return 1 - y * (0.5 - y * (1.0 / 24 - y * (1.0 / 720 - y * high)));
}

/* 2 * BLOCK normal numbers times std; ret_bad[i] is not 0 if pair i may be rounded otherwise */
TE__SIMD_BODY void normal_block_body(uint64_t seed, uint64_t pair, double std,
				     float *restrict ret, uint8_t *restrict ret_bad)
{
	uint32_t w0[BLOCK], w1[BLOCK];
	double c[BLOCK], s[BLOCK], r[BLOCK];

	draw_words(seed, pair, w0, w1);
	for (int i = 0; i < BLOCK; i++)
		r[i] = radius(w0[i]) * std;
	for (int i = 0; i < BLOCK; i++) {
		/* the nearest quarter of a turn, and the rest */
		const uint32_t t = w1[i] + 0x20000000u, q = t >> 30;
		const int32_t rest = (int32_t)(t & 0x3fffffffu) - 0x20000000;
		const double x = (double)rest * (6.283185307179586 * 0x1p-32);
		const double sx = sine(x), cx = cosine(x);

		c[i] = (q & 1 ? sx : cx) * (double)(1 - (int32_t)((q + 1) & 2)) * r[i];
		s[i] = (q & 1 ? cx : sx) * (double)(1 - (int32_t)(q & 2)) * r[i];
	}
	for (int i = 0; i < BLOCK; i++) {
		const double e = r[i] * BOUND;
		const float c0 = (float)(c[i] - e), c1 = (float)(c[i] + e);
		const float s0 = (float)(s[i] - e), s1 = (float)(s[i] + e);

		ret[2 * i] = c0;
		ret[2 * i + 1] = s0;
		/* a zero has a sign */
		ret_bad[i] = c0 != c1 || s0 != s1 || c0 == 0 || s0 == 0;
	}
}
static TE__SIMD(void, normal_block,
		(uint64_t seed, uint64_t pair, double std, float *restrict ret,
		 uint8_t *restrict ret_bad),
		(seed, pair, std, ret, ret_bad))

static void normal_pairs(uint64_t seed, uint64_t pair, double std, int64_t n, float *ret)
{
	uint8_t bad[BLOCK];
	double z[2];

	for (int64_t i = 0, some; i < n; i += some) {
		const int whole = n - i >= BLOCK;

		some = whole ? BLOCK : n - i;
		if (whole)
			normal_block(seed, pair + (uint64_t)i, std, ret + 2 * i, bad);
		for (int64_t k = 0; k < some; k++) {
			if (whole && !bad[k])
				continue;
			normal_pair(seed, pair + (uint64_t)(i + k), z);
			ret[2 * (i + k)] = (float)(z[0] * std);
			ret[2 * (i + k) + 1] = (float)(z[1] * std);
		}
	}
}

/* n elements from `begin` on, an even number; places are multiples of 64, so that pairs never
 * straddle weights */
static void draw(const struct part *p, int64_t begin, int64_t n, float *ret)
{
	const struct te_weight_decl *d = &p->w->decl;
	const uint64_t pair = (uint64_t)(p->w->order_nelems + begin) / 2;
	double z[2];

	if (d->init != TE_INIT_NORMAL) {
		for (int64_t i = 0; i < n; i++)
			ret[i] = d->init == TE_INIT_ONE ? 1.0f : 0.0f;
		return;
	}
	normal_pairs(p->seed, pair, d->init_std, n / 2, ret);
	if (n & 1) {
		normal_pair(p->seed, pair + (uint64_t)n / 2, z);
		ret[n - 1] = (float)(z[0] * d->init_std);
	}
}

static void *draw_part(void *arg)
{
	const struct part *p = arg;
	float values[16 * BLOCK];
	const int64_t most = (int64_t)(sizeof(values) / sizeof(values[0]));

	if (p->buf) {
		draw(p, p->begin, p->end - p->begin, p->buf + (p->begin - p->first));
		return NULL;
	}
	for (int64_t at = p->begin; at < p->end; at += most) {
		const int64_t n = p->end - at < most ? p->end - at : most;

		draw(p, at, n, values);
		te__split(values, p->half + (at - p->first), p->rest + (at - p->first), n);
	}
	return NULL;
}

static int64_t nthreads_for(int64_t n)
{
	const int64_t most = (n + DRAW_GRAIN - 1) / DRAW_GRAIN;
	cpu_set_t mask;
	int ncpus = sched_getaffinity(0, sizeof(mask), &mask) ? 1 : CPU_COUNT(&mask);

	ncpus = ncpus < DRAW_THREADS ? ncpus : DRAW_THREADS;
	return most < ncpus ? most : ncpus;
}

/* n elements from the first one of `all` on; the parts of threads that cannot be created are drawn
 * by this one */
static void draw_parts(const struct part *all, int64_t n)
{
	const int64_t nparts = nthreads_for(n), per_part = (n / nparts + 2) & ~(int64_t)1;
	struct part part[DRAW_THREADS];
	pthread_t thread[DRAW_THREADS];
	int64_t nstarted = 1;

	for (int64_t k = 0; k < nparts; k++) {
		const int64_t begin = k * per_part < n ? k * per_part : n;

		part[k] = *all;
		part[k].begin = all->first + begin;
		part[k].end = all->first + (n - begin < per_part ? n : begin + per_part);
	}
	while (nstarted < nparts &&
	       !te__thread_create(&thread[nstarted], "te-draw", draw_part, &part[nstarted]))
		nstarted++;
	draw_part(&part[0]);
	for (int64_t k = nstarted; k < nparts; k++)
		draw_part(&part[k]);
	while (--nstarted > 0)
		pthread_join(thread[nstarted], NULL);
}

void te__draw_weight(const struct te__weight *w, uint64_t seed, int64_t first, int64_t n,
		     float *ret_values)
{
	draw_parts(&(struct part){ .w = w, .seed = seed, .buf = ret_values, .first = first }, n);
}

void te__draw_split(const struct te__weight *w, uint64_t seed, int64_t first, int64_t n,
		    uint16_t *ret_half, uint16_t *ret_rest)
{
	draw_parts(&(struct part){ .w = w, .seed = seed, .half = ret_half, .rest = ret_rest,
				   .first = first }, n);
}
