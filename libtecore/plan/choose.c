/*
 * choose.c - a token from logits.
 *
 * Candidates are taken from a heap, the most likely one first and equal ones by ascending token, so
 * that only those that are kept are sorted; with top_k the heap has no others. Sums are FP64 in
 * that order.
 */
#define TE_LOG_CATEGORY "core/decoder"
#include <errno.h>
#include <math.h>

#include "libtecore/base/private.h"
#include "libtecore/base/splitmix64.h"
#include "libtecore/plan/choose.h"

/* vectors that every x86-64 has: compilers divide longer ones with comparisons into elements */
#define SHORTS 8
typedef int16_t short_ints __attribute__((vector_size(2 * SHORTS), aligned(2), may_alias));
/* vectors for any instruction set */
#define LANES 16
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

int te__sampling_check(const char *fn, const struct te_sampling *how)
{
	if (!(how->temperature >= 0) || !isfinite(how->temperature))
		return te__fail(-EINVAL, "%s: temperature is %g, expected 0 or more", fn,
				how->temperature);
	if (!(how->top_p > 0 && how->top_p <= 1))
		return te__fail(-EINVAL, "%s: top_p is %g, expected more than 0, and 1 at most",
				fn, how->top_p);
	if (!(how->min_p >= 0 && how->min_p <= 1))
		return te__fail(-EINVAL, "%s: min_p is %g, expected 0 to 1", fn, how->min_p);
	if (!(how->repetition_penalty > 0) || !isfinite(how->repetition_penalty))
		return te__fail(-EINVAL, "%s: repetition_penalty is %g, expected more than 0", fn,
				how->repetition_penalty);
	if (how->top_k < 0)
		return te__fail(-EINVAL, "%s: top_k is %d, expected 0 or more", fn, how->top_k);
	return 0;
}

/* [0, 1) */
static double draw(uint64_t seed, uint64_t position)
{
	uint64_t state = seed;

	state = te__splitmix64(&state) ^ position;
	return (double)(te__splitmix64(&state) >> 11) * 0x1p-53;
}

static int is_before(const struct te__candidate *a, const struct te__candidate *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

/* element i of a heap of n, whose first element is the last one if from_last, moves to its place */
static void sink(struct te__candidate *c, int64_t n, int64_t i, int from_last)
{
	const struct te__candidate moved = c[i];

	for (int64_t k; (k = 2 * i + 1) < n; i = k) {
		if (k + 1 < n && is_before(&c[k + 1], &c[k]) != from_last)
			k++;
		if (is_before(&c[k], &moved) == from_last)
			break;
		c[i] = c[k];
	}
	c[i] = moved;
}

/* moves the first of a heap of n to its end */
static void pop(struct te__candidate *c, int64_t n)
{
	const struct te__candidate first = c[0];

	c[0] = c[n - 1];
	c[n - 1] = first;
	sink(c, n - 1, 0, 0);
}

static void make_heap(struct te__candidate *c, int64_t n, int from_last)
{
	for (int64_t i = n / 2 - 1; i >= 0; i--)
		sink(c, n, i, from_last);
}

/* moves the first k of n candidates, in their order, to the beginning */
static void keep_first(struct te__candidate *c, int64_t n, int64_t k)
{
	make_heap(c, k, 1);
	for (int64_t i = k; i < n; i++) {
		if (c[i].logit < c[0].logit || !is_before(&c[i], &c[0]))
			continue;
		c[0] = c[i];
		sink(c, k, 0, 1);
	}
}

static double weight(const struct te_sampling *how, const struct te__candidate *c, double top)
{
	return exp(((double)c->logit - top) / how->temperature);
}

/* sum of the candidates that are kept, if top_k and top_p are off */
static double sum_kept(const struct te_sampling *how, const struct te__candidate *c, int64_t n,
		       double top)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++) {
		const double w = weight(how, &c[i], top);

		sum += w >= how->min_p ? w : 0;
	}
	return sum;
}

/*
 * The same with top_k, whose candidates are all n, or top_p; the last n - *left are sorted, the
 * first one last.
 */
static double sort_kept(const struct te_sampling *how, struct te__candidate *c, int64_t n,
			double top, int64_t *left)
{
	double sum = 0, kept = 0;

	for (int64_t i = 0; i < n && !how->top_k; i++)
		sum += weight(how, &c[i], top);
	for (*left = n; how->top_k && *left; --*left) {
		sum += weight(how, &c[0], top);
		pop(c, *left);
	}
	for (int64_t k = 0; k < n && (!k || kept < how->top_p * sum); k++) {
		double w;

		if (*left == n - k)
			pop(c, (*left)--);
		w = weight(how, &c[n - 1 - k], top);
		if (w < how->min_p)
			break;
		kept += w;
	}
	return kept;
}

static int32_t pick(const struct te_sampling *how, struct te__candidate *c, int64_t n, double u)
{
	const int all = !how->top_k && how->top_p == 1;
	int64_t left = n;
	double top;

	make_heap(c, n, 0);
	top = (double)c[0].logit;
	u *= all ? sum_kept(how, c, n, top) : sort_kept(how, c, n, top, &left);
	for (int64_t k = 0; k < n; k++) {
		if (left == n - k)
			pop(c, left--);
		u -= weight(how, &c[n - 1 - k], top);
		if (u < 0)
			return c[n - 1 - k].token;
	}
	return c[n - 1].token;
}

static int not_finite(const char *fn, int64_t token, double logit)
{
	return te__fail(-TE_ENUMERIC, "%s: the logit of token %lld is %g, so there is no likely "
			"token", fn, (long long)token, logit);
}

int te__is_greedy(const struct te_sampling *how)
{
	return !(how->temperature > 0) && (float)how->repetition_penalty == 1.0f;
}

void te__decode_logits(const uint16_t *raw, int64_t n, float *ret_logits)
{
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
		*(words *)(ret_logits + i) =
			__builtin_convertvector(*(const halves *)(raw + i), words) << 16;
	for (; i < n; i++)
		ret_logits[i] = te_bf16_decode(raw[i]);
}

/* the larger elements of two vectors */
#define MOST(a, b) (((a) & ((a) > (b))) | ((b) & ~((a) > (b))))
/* BF16 as an integer with the same order, in which -0 is just before 0 */
#define ORDER(x) ((x) ^ (((x) >> 15) & 0x7fff))

int te__most_likely(const char *fn, const uint16_t *raw, int64_t n, int32_t *ret_token)
{
	const int16_t *x = (const int16_t *)raw;
	short_ints tops = { 0 }, sizes = { 0 };
	int16_t top = INT16_MIN, most = 0; /* most: of sizes, bits without the sign */
	int64_t i = 0;

	tops += INT16_MIN;
	for (; i + SHORTS <= n; i += SHORTS) {
		const short_ints v = *(const short_ints *)(x + i);

		tops = MOST(ORDER(v), tops);
		sizes = MOST(v & 0x7fff, sizes);
	}
	for (int k = 0; k < SHORTS; k++) {
		top = tops[k] > top ? tops[k] : top;
		most = sizes[k] > most ? sizes[k] : most;
	}
	for (; i < n; i++) {
		const int16_t order = (int16_t)ORDER(x[i]), size = x[i] & 0x7fff;

		top = order > top ? order : top;
		most = size > most ? size : most;
	}
	for (i = 0; most >= 0x7f80; i++)
		if ((x[i] & 0x7fff) >= 0x7f80)
			return not_finite(fn, i, (double)te_bf16_decode(raw[i]));
	for (i = 0; ORDER(x[i]) != top && (top || x[i] != INT16_MIN); i++)
		;
	*ret_token = (int32_t)i;
	return 0;
}

int te__choose(const char *fn, const struct te_sampling *how, const float *logits, int64_t n,
	       const int32_t *seen, int64_t nseen, struct te__candidate *room, uint8_t *marks,
	       int32_t *ret_token)
{
	const float penalty = (float)how->repetition_penalty;
	struct te__candidate best = { logits[0], 0 };

	for (int64_t i = 0; i < n; i++) {
		if (!isfinite(logits[i]))
			return not_finite(fn, i, (double)logits[i]);
		if (logits[i] > best.logit)
			best = (struct te__candidate){ logits[i], (int32_t)i };
	}
	*ret_token = best.token;
	if (te__is_greedy(how))
		return 0;
	for (int64_t i = 0; i < n; i++)
		room[i] = (struct te__candidate){ logits[i], (int32_t)i };
	for (int64_t i = 0; i < nseen && penalty != 1.0f; i++) {
		float *logit = &room[seen[i]].logit;

		if (!marks[seen[i]])
			*logit = *logit > 0 ? *logit / penalty : *logit * penalty;
		marks[seen[i]] = 1;
	}
	for (int64_t i = 0; i < nseen && penalty != 1.0f; i++)
		marks[seen[i]] = 0;
	if (how->temperature > 0) {
		const int64_t k = how->top_k && how->top_k < n ? how->top_k : n;

		if (k < n)
			keep_first(room, n, k);
		*ret_token = pick(how, room, k, draw(how->seed, (uint64_t)nseen));
		return 0;
	}
	best = room[0];
	for (int64_t i = 1; i < n; i++)
		if (is_before(&room[i], &best))
			best = room[i];
	*ret_token = best.token;
	return 0;
}
