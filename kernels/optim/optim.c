/* optim.c - reference kernels: AdamW and the norm of gradients. */
#include "config.h"

#include "kernels/optim/round.h"
#include "kernels/ref.h"
#include "kernels/team.h"

static double sumsq(const struct te_k_sumsq *a, int64_t begin, int64_t end)
{
	float buf[TE__H_CHUNK];
	double sum = 0.0;

	if (a->dtype == TE_DTYPE_FP32) {
		const float *x = (const float *)a->x + begin;

		return te__h_dot(x, x, end - begin);
	}
	TE__H_CHUNKS(i, len, end - begin) {
		te__h_load(a->dtype, a->x, begin + i, len, buf);
		sum += te__h_dot(buf, buf, len);
	}
	return sum;
}

/* without the blocks that are skipped */
static double sumsq_of(const struct te_k_sumsq *a, int64_t begin, int64_t end)
{
	double sum = 0.0;

	for (int64_t i = begin, to; i < end; i = to) {
		to = te__h_min(end, (i / TE_K_ALIGN_WEIGHT + 1) * TE_K_ALIGN_WEIGHT);
		if (!a->skip[i / TE_K_ALIGN_WEIGHT])
			sum += sumsq(a, i, to);
	}
	return sum;
}

static void sumsq_part(void *arg, int64_t first, int64_t last)
{
	const struct te_k_sumsq *a = arg;
	const int64_t run = (a->n + TE_K_SUMSQ_PARTS - 1) / TE_K_SUMSQ_PARTS;

	for (int64_t p = first; p < last; p++) {
		const int64_t begin = te__h_min(p * run, a->n);
		const int64_t end = te__h_min(begin + run, a->n);

		a->part[p] = a->skip ? sumsq_of(a, begin, end) : sumsq(a, begin, end);
	}
}

void te__h_sumsq(const struct te_k_sumsq *a)
{
	te__k_for(TE_K_SUMSQ_PARTS, te__h_rows_grain(a->n / TE_K_SUMSQ_PARTS + 1, 1), sumsq_part,
		  (void *)(uintptr_t)a);
}

void te__h_adamw_begin(const struct te_k_adamw_begin *a)
{
	struct te_k_adamw_state *s = a->state;
	double sum[TE_K_SUMSQ_PARTS], norm;

	memcpy(sum, a->part, sizeof(sum));
	for (int32_t k = 1; k <= a->nmore; k++)
		for (int p = 0; p < TE_K_SUMSQ_PARTS; p++)
			sum[p] += a->part[k * TE_K_SUMSQ_PARTS + p];
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

/* the numbers of a step */
struct step {
	float b1, b2, one_b1, one_b2, c1, c2, clip, lr, eps, decay;
};

TE__SIMD_BODY void update_body(const struct step *s, float *restrict w, float *restrict m,
			       float *restrict v, const float *restrict grad, int decays, int n)
{
	const struct step k = *s;
	float u[TE_K_ALIGN_WEIGHT];

	for (int i = 0; i < n; i++) {
		const float g = grad[i] * k.clip;

		m[i] = k.b1 * m[i] + k.one_b1 * g;
		v[i] = k.b2 * v[i] + k.one_b2 * g * g;
		u[i] = m[i] / k.c1 / (sqrtf(v[i] / k.c2) + k.eps);
	}
	if (decays)
		for (int i = 0; i < n; i++)
			u[i] += k.decay * w[i];
	for (int i = 0; i < n; i++)
		w[i] -= k.lr * u[i];
}

/* ---- states that are not all FP32: a block of n elements ---- */

struct block {
	float w[TE_K_ALIGN_WEIGHT], m[TE_K_ALIGN_WEIGHT], v[TE_K_ALIGN_WEIGHT];
};

/* the numbers that round a block */
TE__SIMD_BODY void draw_body(uint64_t step, uint32_t which, int64_t block,
			     uint32_t r[TE_K_ALIGN_WEIGHT])
{
	const int64_t group = block * (TE_K_ALIGN_WEIGHT / TE_ROUND_GROUP);

	for (int k = 0; k < TE_K_ALIGN_WEIGHT / TE_ROUND_GROUP; k++) {
		const struct te_philox d = te_round_draw(step, which, group + k);

		for (int i = 0; i < TE_ROUND_GROUP; i++)
			r[k * TE_ROUND_GROUP + i] = te_philox_lane(&d, i);
	}
}

TE__SIMD_BODY void load_body(const struct te_k_adamw *a, int64_t block, int n, struct block *x)
{
	const int64_t at = block * TE_K_ALIGN_WEIGHT;
	const uint16_t *w = (const uint16_t *)a->w + at;

	if (a->masters == TE_K_MASTERS_FP32)
		memcpy(x->w, (const float *)a->w + at, (size_t)n * sizeof(*x->w));
	else if (a->masters == TE_K_MASTERS_BF16)
		for (int i = 0; i < n; i++)
			x->w[i] = te_round_float((uint32_t)w[i] << 16);
	else
		for (int i = 0; i < n; i++)
			x->w[i] = te_round_join(w[i], a->rest[at + i]);
	if (a->moments == TE_K_MOMENTS_FP32) {
		memcpy(x->m, (const float *)a->m + at, (size_t)n * sizeof(*x->m));
		memcpy(x->v, (const float *)a->v + at, (size_t)n * sizeof(*x->v));
	} else if (a->moments == TE_K_MOMENTS_BF16) {
		const uint16_t *m = (const uint16_t *)a->m + at;
		const uint16_t *v = (const uint16_t *)a->v + at;

		for (int i = 0; i < n; i++) {
			x->m[i] = te_round_float((uint32_t)m[i] << 16);
			x->v[i] = te_round_float((uint32_t)v[i] << 16);
		}
	} else {
		const uint8_t *m = (const uint8_t *)a->m + at, *v = (const uint8_t *)a->v + at;
		const uint32_t ms = a->m_exp[block], vs = a->v_exp[block];

		for (int i = 0; i < n; i++) {
			x->m[i] = te_round_first_value(m[i], ms);
			x->v[i] = te_round_second_value(v[i], vs);
		}
	}
}

/* the exponent of a block */
TE__SIMD_BODY uint32_t exponent_body(int which, const float *x, int n)
{
	uint32_t most = 0;

	for (int i = 0; i < n; i++) {
		const uint32_t mag = te_round_magnitude(x[i]);

		most = mag > most ? mag : most;
	}
	return te_round_exponent(te_round_format(which), most);
}

TE__SIMD_BODY void store_body(const struct te_k_adamw *a, int64_t block, int n,
			      const struct block *x)
{
	const int64_t at = block * TE_K_ALIGN_WEIGHT;
	const int64_t drawn = block + a->first / TE_K_ALIGN_WEIGHT;
	uint32_t rm[TE_K_ALIGN_WEIGHT], rv[TE_K_ALIGN_WEIGHT];
	uint16_t *w = (uint16_t *)a->w + at;

	if (a->masters == TE_K_MASTERS_FP32) {
		memcpy((float *)a->w + at, x->w, (size_t)n * sizeof(*x->w));
	} else if (a->masters == TE_K_MASTERS_BF16) {
		draw_body(a->state->nsteps, TE_K_ROUNDED_W, drawn, rm);
		for (int i = 0; i < n; i++)
			w[i] = (uint16_t)te_round_bf16(x->w[i], rm[i]);
	} else {
		for (int i = 0; i < n; i++) {
			w[i] = (uint16_t)te_round_upper(x->w[i]);
			a->rest[at + i] = (uint16_t)te_round_lower(x->w[i]);
		}
	}
	if (a->moments == TE_K_MOMENTS_FP32) {
		memcpy((float *)a->m + at, x->m, (size_t)n * sizeof(*x->m));
		memcpy((float *)a->v + at, x->v, (size_t)n * sizeof(*x->v));
		return;
	}
	draw_body(a->state->nsteps, TE_K_ROUNDED_M, drawn, rm);
	draw_body(a->state->nsteps, TE_K_ROUNDED_V, drawn, rv);
	if (a->moments == TE_K_MOMENTS_BF16) {
		uint16_t *m = (uint16_t *)a->m + at, *v = (uint16_t *)a->v + at;

		for (int i = 0; i < n; i++) {
			m[i] = (uint16_t)te_round_bf16(x->m[i], rm[i]);
			v[i] = (uint16_t)te_round_bf16(x->v[i], rv[i]);
		}
	} else {
		uint8_t *m = (uint8_t *)a->m + at, *v = (uint8_t *)a->v + at;
		const uint32_t ms = exponent_body(0, x->m, n), vs = exponent_body(1, x->v, n);

		for (int i = 0; i < n; i++) {
			m[i] = (uint8_t)te_round_first(x->m[i], ms, rm[i]);
			v[i] = (uint8_t)te_round_second(x->v[i], vs, rv[i]);
		}
		a->m_exp[block] = (uint8_t)ms;
		a->v_exp[block] = (uint8_t)vs;
	}
}

/* blocks begin to end - 1 of TE_K_ALIGN_WEIGHT elements */
TE__SIMD_BODY void update_blocks_body(const struct te_k_adamw *a, const struct step *s,
				      int64_t begin, int64_t end)
{
	const int32_t grads = a->bf16_grads ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	float buf[TE_K_ALIGN_WEIGHT];
	struct block x;

	for (int64_t b = begin; b < end; b++) {
		const int64_t i = b * TE_K_ALIGN_WEIGHT;
		const int n = (int)te__h_min(a->n - i, TE_K_ALIGN_WEIGHT);
		const int decays = !a->decay || a->decay[b];
		const float *g = te__h_view(grads, a->g, i, n, buf);

		if (a->moments == TE_K_MOMENTS_FP32 && a->masters == TE_K_MASTERS_FP32) {
			update_body(s, (float *)a->w + i, (float *)a->m + i, (float *)a->v + i,
				    g, decays, n);
			continue;
		}
		load_body(a, b, n, &x);
		update_body(s, x.w, x.m, x.v, g, decays, n);
		store_body(a, b, n, &x);
	}
}
static TE__SIMD(void, update_blocks,
		(const struct te_k_adamw *a, const struct step *s, int64_t begin, int64_t end),
		(a, s, begin, end))

static void adamw_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_adamw *a = arg;
	const struct te_k_adamw_state *s = a->state;
	const struct step step = {
		.b1 = a->beta1,
		.b2 = a->beta2,
		.one_b1 = 1.0f - a->beta1,
		.one_b2 = 1.0f - a->beta2,
		.c1 = (float)(1.0 - s->beta1_t),
		.c2 = (float)(1.0 - s->beta2_t),
		.clip = s->clip,
		.lr = s->lr,
		.eps = a->eps,
		.decay = a->weight_decay,
	};

	update_blocks(a, &step, begin, end);
}

void te__h_adamw(const struct te_k_adamw *a)
{
	const int64_t nblocks = (a->n + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT;

	if (!a->state->skip)
		te__k_for(nblocks, TE__H_GRAIN / TE_K_ALIGN_WEIGHT / 4, adamw_part,
			  (void *)(uintptr_t)a);
}
