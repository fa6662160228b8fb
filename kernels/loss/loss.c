/* loss.c - reference kernels: softmax cross-entropy. */
#include "config.h"

#include "kernels/ref.h"

static int counts(int32_t target, int64_t nclasses, int32_t ignore_index)
{
	return target != ignore_index && target >= 0 && target < nclasses;
}

void te__h_ce_fwd(const struct te_k_ce_fwd *a)
{
	float x[TE__H_CHUNK];

	for (int64_t r = 0; r < a->rows; r++) {
		const int32_t target = a->targets[r];
		const int64_t row = r * a->cols;
		float most = -INFINITY;
		double sum = 0.0, lse;

		TE__H_CHUNKS(c, len, a->nclasses) {
			te__h_load(a->dtype, a->logits, row + c, len, x);
			for (int64_t i = 0; i < len; i++)
				most = x[i] > most ? x[i] : most;
		}
		TE__H_CHUNKS(c, len, a->nclasses) {
			te__h_load(a->dtype, a->logits, row + c, len, x);
			for (int64_t i = 0; i < len; i++)
				x[i] = expf(x[i] - most);
			sum += te__h_sum(x, len);
		}
		lse = (double)most + log(sum);
		a->lse[r] = (float)lse;
		a->row_loss[r] = 0.0f;
		if (counts(target, a->nclasses, a->ignore_index)) {
			te__h_load(a->dtype, a->logits, row + target, 1, x);
			a->row_loss[r] = (float)(lse - (double)x[0]);
		}
	}
}

void te__h_ce_reduce(const struct te_k_ce_reduce *a)
{
	double sum = 0.0;
	int64_t n = 0;

	for (int64_t r = 0; r < a->rows; r++)
		if (counts(a->targets[r], a->nclasses, a->ignore_index)) {
			sum += (double)a->row_loss[r];
			n++;
		}
	*a->loss = n ? (float)(sum / (double)n) : 0.0f;
	*a->count = (float)n;
}

void te__h_ce_bwd(const struct te_k_ce_bwd *a)
{
	const float factor = a->grad_scale / *a->count;
	float x[TE__H_CHUNK];

	for (int64_t r = 0; r < a->rows; r++) {
		const int32_t target = a->targets[r];
		const int on = counts(target, a->nclasses, a->ignore_index);
		const float lse = a->lse[r];

		TE__H_CHUNKS(c, len, a->cols) {
			const int64_t n = on ? te__h_min(len, a->nclasses - c) : 0;

			te__h_load(a->dtype, a->logits, r * a->cols + c, len, x);
			for (int64_t i = 0; i < n; i++)
				x[i] = expf(x[i] - lse);
			if (on && target >= c && target < c + len)
				x[target - c] -= 1.0f;
			for (int64_t i = 0; i < n; i++)
				x[i] *= factor;
			for (int64_t i = n > 0 ? n : 0; i < len; i++)
				x[i] = 0.0f;
			te__h_store(a->dtype, a->dlogits, r * a->cols + c, len, x);
		}
	}
}
