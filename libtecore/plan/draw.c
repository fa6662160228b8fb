/*
 * draw.c - initial values of weights, drawn on the host by as many threads as it has processors.
 *
 * A value depends on the seed and on its index among the sequence's weights only, so neither the
 * number of threads nor the backend changes it.
 */
#define TE_LOG_CATEGORY "core/seq"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>

#include "kernels/philox.h"
#include "libtecore/base/private.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

#define DRAW_THREADS 32		/* at most */
#define DRAW_GRAIN (256 * 1024) /* elements that are worth a thread; even */

struct part {
	const struct te__weight *w;
	uint64_t seed;
	float *buf;
	int64_t first; /* element of the weight that buf begins with */
	int64_t begin, end; /* range of the weight's elements; begin is even */
};

/* two independent normal numbers from one draw: Box and Muller, Ann. Math. Stat. 29 (1958) */
static void normal_pair(uint64_t seed, uint64_t pair, double ret[2])
{
	struct te_philox r = te_philox(seed, (uint32_t)pair, (uint32_t)(pair >> 32), 0, 0x696e6974);
	double u = ((double)r.w[0] + 0.5) / 4294967296.0;
	double a = 6.283185307179586 * ((double)r.w[1] / 4294967296.0);
	double s = sqrt(-2.0 * log(u));

	ret[0] = s * cos(a);
	ret[1] = s * sin(a);
}

static void *draw_part(void *arg)
{
	const struct part *p = arg;
	const struct te_weight_decl *d = &p->w->decl;
	double z[2];

	for (int64_t i = p->begin; i < p->end; i++) {
		if (d->init == TE_INIT_NORMAL) {
			/* places are multiples of 64, so pairs never straddle weights */
			if (!(i & 1))
				normal_pair(p->seed, (uint64_t)(p->w->order_nelems + i) / 2, z);
			p->buf[i - p->first] = (float)(z[i & 1] * d->init_std);
		} else {
			p->buf[i - p->first] = d->init == TE_INIT_ONE ? 1.0f : 0.0f;
		}
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

/* the parts of threads that cannot be created are drawn by this one */
void te__draw_weight(const struct te__weight *w, uint64_t seed, int64_t first, int64_t n,
		     float *ret_values)
{
	const int64_t nparts = nthreads_for(n), per_part = (n / nparts + 2) & ~(int64_t)1;
	struct part part[DRAW_THREADS];
	pthread_t thread[DRAW_THREADS];
	int64_t nstarted = 1;

	for (int64_t k = 0; k < nparts; k++) {
		const int64_t begin = k * per_part < n ? k * per_part : n;

		part[k] = (struct part){ w, seed, ret_values, first, first + begin,
					 first + (n - begin < per_part ? n : begin + per_part) };
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

