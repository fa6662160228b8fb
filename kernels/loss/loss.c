/* loss.c - reference kernels: softmax cross-entropy. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

static int counts(int32_t target, int64_t nclasses, int32_t ignore_index)
{
	return target != ignore_index && target >= 0 && target < nclasses;
}

/* the columns that are classes */
static int64_t columns(int64_t cols, int64_t nclasses, int64_t first)
{
	const int64_t n = te__h_min(cols, nclasses - first);

	return n > 0 ? n : 0;
}

/* max, or 0 if all x are -inf, whose exp(x - 0) is 0 */
static float base_of(float max)
{
	return max == -INFINITY ? 0.0f : max;
}

static void fwd_row(const struct te_k_ce_fwd *a, int64_t r)
{
	const int64_t row = r * a->cols, n = columns(a->cols, a->nclasses, a->first);
	const int64_t hit = a->targets[r] - a->first;
	float x[TE__H_SPAN], most = -INFINITY;
	double sum = 0.0;

	TE__H_SPANS(c, len, n) {
		te__h_load(a->dtype, a->logits, row + c, len, x);
		most = te__h_max(x, len, most);
	}
	TE__H_SPANS(c, len, n) {
		te__h_load(a->dtype, a->logits, row + c, len, x);
		te__h_exp(x, base_of(most), len);
		sum += te__h_sum(x, len);
	}
	a->max_sum[r] = most;
	a->max_sum[a->rows + r] = (float)sum;
	a->row_loss[r] = 0.0f;
	if (counts(a->targets[r], a->nclasses, a->ignore_index) && hit >= 0 && hit < n) {
		te__h_load(a->dtype, a->logits, row + hit, 1, x);
		a->row_loss[r] = a->part ? x[0] :
					   (float)((double)most - (double)x[0] + log(sum));
	}
}

static void fwd_part(void *arg, int64_t begin, int64_t end)
{
	for (int64_t r = begin; r < end; r++)
		fwd_row(arg, r);
}

void te__h_ce_fwd(const struct te_k_ce_fwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, 1), fwd_part, (void *)(uintptr_t)a);
}

static void join_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_ce_join *a = arg;

	for (int64_t r = begin; r < end; r++) {
		const float *part = a->parts + r;
		double sum = 0.0, hit = 0.0;
		float most = -INFINITY;

		for (int32_t k = 0; k < a->nparts; k++)
			most = fmaxf(most, part[3 * k * a->rows]);
		for (int32_t k = 0; k < a->nparts; k++, part += 3 * a->rows) {
			sum += (double)part[a->rows] *
			       exp((double)part[0] - (double)base_of(most));
			hit += (double)part[2 * a->rows];
		}
		a->max_sum[r] = most;
		a->max_sum[a->rows + r] = (float)sum;
		a->row_loss[r] = 0.0f;
		if (counts(a->targets[r], a->nclasses, a->ignore_index))
			a->row_loss[r] = (float)((double)most - hit + log(sum));
	}
}

void te__h_ce_join(const struct te_k_ce_join *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->nparts, 16), join_part, (void *)(uintptr_t)a);
}

void te__h_ce_reduce(const struct te_k_ce_reduce *a)
{
	double sum = 0.0;
	int64_t n = 0, noutside = 0;

	for (int64_t r = 0; r < a->rows; r++)
		if (counts(a->targets[r], a->nclasses, a->ignore_index)) {
			sum += (double)a->row_loss[r];
			n++;
		} else if (a->targets[r] != a->ignore_index) {
			noutside++;
		}
	if (a->noutside && noutside)
		__atomic_fetch_add(a->noutside, (uint32_t)noutside, __ATOMIC_RELAXED);
	*a->loss = n ? (float)(sum / (double)n) : 0.0f;
	*a->count = (float)n;
}

static void bwd_row(const struct te_k_ce_bwd *a, float factor, int64_t r)
{
	const int on = counts(a->targets[r], a->nclasses, a->ignore_index);
	const int64_t hit = a->targets[r] - a->first;
	const int64_t nlocal = on ? columns(a->cols, a->nclasses, a->first) : 0;
	const float most = a->max_sum[r], inv = 1.0f / a->max_sum[a->rows + r];
	float x[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->cols) {
		int64_t n = te__h_min(len, nlocal - c);

		n = n < 0 ? 0 : n;
		te__h_load(a->dtype, a->logits, r * a->cols + c, n, x);
		te__h_exp(x, most, n);
		te__h_scale_by(x, inv, n);
		if (on && hit >= c && hit < c + len)
			x[hit - c] -= 1.0f;
		te__h_scale_by(x, factor, n);
		memset(x + n, 0, (size_t)(len - n) * sizeof(*x));
		te__h_store(a->dtype, a->dlogits, r * a->cols + c, len, x);
	}
}

static void bwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_ce_bwd *a = arg;
	const float factor = a->grad_scale / *a->count;

	for (int64_t r = begin; r < end; r++)
		bwd_row(a, factor, r);
}

void te__h_ce_bwd(const struct te_k_ce_bwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, 1), bwd_part, (void *)(uintptr_t)a);
}

void te__h_ce_count(const struct te_k_ce_reduce *a)
{
	int64_t n = 0;

	for (int64_t r = 0; r < a->rows; r++)
		n += counts(a->targets[r], a->nclasses, a->ignore_index);
	*a->count = (float)n;
}

static void grad_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_ce_grad *a = arg;
	const struct te_k_ce_fwd f = {
		.logits = a->logits,
		.targets = a->targets,
		.max_sum = a->max_sum,
		.row_loss = a->row_loss,
		.rows = a->rows,
		.cols = a->cols,
		.nclasses = a->nclasses,
		.ignore_index = a->ignore_index,
		.dtype = a->dtype,
	};
	const struct te_k_ce_bwd b = {
		.logits = a->logits,
		.targets = a->targets,
		.max_sum = a->max_sum,
		.dlogits = a->dlogits,
		.rows = a->rows,
		.cols = a->cols,
		.nclasses = a->nclasses,
		.ignore_index = a->ignore_index,
		.dtype = a->dtype,
	};
	const float factor = a->grad_scale / *a->count;

	for (int64_t r = begin; r < end; r++) {
		if (counts(a->targets[r], a->nclasses, a->ignore_index))
			fwd_row(&f, r);
		else
			a->max_sum[r] = a->max_sum[a->rows + r] = a->row_loss[r] = 0.0f;
		bwd_row(&b, factor, r);
	}
}

void te__h_ce_grad(const struct te_k_ce_grad *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, 2), grad_part, (void *)(uintptr_t)a);
}
