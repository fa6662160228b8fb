/* optim.c - reference kernels: AdamW and the norm of gradients. */
#include "config.h"

#include "kernels/ref.h"

void te__h_sumsq(const struct te_k_sumsq *a)
{
	const int64_t run = (a->n + TE_K_SUMSQ_PARTS - 1) / TE_K_SUMSQ_PARTS;

	for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
		const int64_t begin = te__h_min(p * run, a->n);
		const int64_t end = te__h_min(begin + run, a->n);

		a->part[p] = te__h_dot(a->x + begin, a->x + begin, end - begin);
	}
}

void te__h_adamw_begin(const struct te_k_adamw_begin *a)
{
	struct te_k_adamw_state *s = a->state;
	double sum[TE_K_SUMSQ_PARTS], norm;

	memcpy(sum, a->part, sizeof(sum));
	for (int n = TE_K_SUMSQ_PARTS / 2; n; n /= 2)
		for (int p = 0; p < n; p++)
			sum[p] += sum[p + n];
	norm = sqrt(sum[0]);
	s->grad_norm = (float)norm;
	s->clip = 1.0f;
	s->skip = !isfinite(s->grad_norm);
	if (s->skip) {
		s->nskipped++;
		return;
	}
	if (a->max_norm > 0.0f && norm > (double)a->max_norm)
		s->clip = (float)((double)a->max_norm / norm);
	s->nsteps++;
	++*a->version;
	s->beta1_t *= (double)a->beta1;
	s->beta2_t *= (double)a->beta2;
}

void te__h_adamw(const struct te_k_adamw *a)
{
	const struct te_k_adamw_state *s = a->state;
	const float b1 = a->beta1, b2 = a->beta2, one_b1 = 1.0f - b1, one_b2 = 1.0f - b2;
	const float c1 = (float)(1.0 - s->beta1_t), c2 = (float)(1.0 - s->beta2_t);
	const float clip = s->clip, lr = s->lr, eps = a->eps, decay = a->weight_decay;
	float u[TE_K_ALIGN_WEIGHT];

	if (s->skip)
		return;
	for (int64_t i0 = 0; i0 < a->n; i0 += TE_K_ALIGN_WEIGHT) {
		const int n = (int)te__h_min(a->n - i0, TE_K_ALIGN_WEIGHT);
		float *w = a->w + i0, *m = a->m + i0, *v = a->v + i0;
		const float *grad = a->g + i0;

		for (int i = 0; i < n; i++) {
			const float g = grad[i] * clip;

			m[i] = b1 * m[i] + one_b1 * g;
			v[i] = b2 * v[i] + one_b2 * g * g;
			u[i] = m[i] / c1 / (sqrtf(v[i] / c2) + eps);
		}
		if (a->decay[i0 / TE_K_ALIGN_WEIGHT])
			for (int i = 0; i < n; i++)
				u[i] += decay * w[i];
		for (int i = 0; i < n; i++)
			w[i] -= lr * u[i];
	}
}
