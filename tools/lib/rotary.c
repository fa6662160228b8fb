/*
 * rotary.c - reading descriptions of rotary positions, and their frequencies.
 *
 * Sources of the formulas: linear, Chen et al., arXiv:2306.15595; yarn, Peng et al.,
 * arXiv:2309.00071; longrope, Ding et al., arXiv:2402.13753; llama3, the model card of Llama 3.1,
 * as transformers' modeling_rope_utils.py computes them; dynamic: te_op_rope(3) scales.
 * t/tools/t8018-te_train-families.t compares models that use them.
 */
#include "config.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "rotary.h"
#include "say.h"

static const struct {
	const char *name;
	enum rotary_kind kind;
} kinds[] = {
	{ "default", ROTARY_DEFAULT },	 { "linear", ROTARY_LINEAR }, { "llama3", ROTARY_LLAMA3 },
	{ "longrope", ROTARY_LONGROPE }, { "yarn", ROTARY_YARN }, { "dynamic", ROTARY_DYNAMIC },
	{ "su", ROTARY_LONGROPE }, /* the first name of longrope */
};
#define NNAMES (sizeof(kinds) / sizeof(kinds[0]))

#define K(kind) (1u << ROTARY_##kind)
#define EVERY (~0u)

/* members of the object; needs: kinds that have no default for it */
static const struct key {
	const char *name;
	size_t offset;
	uint32_t kinds, needs;
} keys[] = {
	{ "rope_theta", offsetof(struct rotary, theta), EVERY, 0 },
	{ "partial_rotary_factor", offsetof(struct rotary, part), EVERY, 0 },
	{ "original_max_position_embeddings", offsetof(struct rotary, original), EVERY, 0 },
	{ "factor", offsetof(struct rotary, factor), EVERY & ~K(DEFAULT),
	  K(LINEAR) | K(LLAMA3) | K(YARN) | K(DYNAMIC) },
	{ "low_freq_factor", offsetof(struct rotary, low), K(LLAMA3), K(LLAMA3) },
	{ "high_freq_factor", offsetof(struct rotary, high), K(LLAMA3), K(LLAMA3) },
	{ "attention_factor", offsetof(struct rotary, attention), K(LONGROPE) | K(YARN), 0 },
	{ "beta_fast", offsetof(struct rotary, fast), K(YARN), 0 },
	{ "beta_slow", offsetof(struct rotary, slow), K(YARN), 0 },
	{ "mscale", offsetof(struct rotary, mscale), K(YARN), 0 },
	{ "mscale_all_dim", offsetof(struct rotary, mscale_all), K(YARN), 0 },
};
#define NKEYS (sizeof(keys) / sizeof(keys[0]))

static double *member(struct rotary *rot, size_t i)
{
	return (double *)(void *)((char *)rot + keys[i].offset);
}

static int read_kind(const json_t *v, const char *where, const char *name, int64_t *ret_kind)
{
	static const char *const fields[] = { "rope_type", "type" };
	int64_t kind = -1;

	for (size_t k = 0; k < 2; k++) {
		const json_t *x = json_object_get(v, fields[k]);
		const char *word = json_string_value(x);
		size_t i = 0;

		if (!x || json_is_null(x))
			continue;
		while (word && i < NNAMES && strcmp(kinds[i].name, word))
			i++;
		if (!word || i == NNAMES)
			return say_bad("%s: %s: %s \"%s\" is not implemented", where, name,
				       fields[k], word ? word : "?");
		if (kind >= 0 && kind != (int64_t)kinds[i].kind)
			return say_bad("%s: %s: rope_type and type differ", where, name);
		kind = kinds[i].kind;
	}
	*ret_kind = kind < 0 ? ROTARY_DEFAULT : kind;
	return STATUS_OK;
}

static int read_shorts(const json_t *v, const char *where, const char *name, struct rotary *rot)
{
	const size_t n = json_array_size(v);

	if (!json_is_array(v) || n > ROTARY_MOST_PAIRS)
		return say_bad("%s: %s: short_factor is not a list of at most %d numbers", where,
			       name, ROTARY_MOST_PAIRS);
	for (size_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(v, i);

		if (!json_is_number(x) || !(json_number_value(x) > 0))
			return say_bad("%s: %s: short_factor %zu is not a number above 0", where,
				       name, i);
		rot->shorts[i] = json_number_value(x);
	}
	rot->nshorts = (int64_t)n;
	return STATUS_OK;
}

static int read_key(const char *key, const json_t *v, const char *where, const char *name,
		    struct rotary *rot)
{
	const uint32_t kind = 1u << rot->kind;
	const double x = json_number_value(v);
	size_t i = 0;

	if (json_is_null(v) || !strcmp(key, "rope_type") || !strcmp(key, "type"))
		return STATUS_OK;
	if (kind == K(LONGROPE) && !strcmp(key, "short_factor"))
		return read_shorts(v, where, name, rot);
	if (kind == K(LONGROPE) && !strcmp(key, "long_factor"))
		return STATUS_OK; /* for more positions than are allowed */
	if (kind == K(YARN) && !strcmp(key, "truncate") && json_is_boolean(v)) {
		rot->truncate = json_is_true(v);
		return STATUS_OK;
	}
	while (i < NKEYS && strcmp(keys[i].name, key))
		i++;
	if (i == NKEYS && json_is_false(v))
		return STATUS_OK;
	/* 1 is what a factor is without it */
	if (i < NKEYS && !(keys[i].kinds & kind) && json_is_number(v) && x == 1)
		return STATUS_OK;
	if (i == NKEYS)
		return say_bad("%s: %s: unknown field \"%s\", which may change the model", where,
			       name, key);
	if (!(keys[i].kinds & kind))
		return say_bad("%s: %s: %s is not a field of rope_type \"%s\"", where, name, key,
			       kinds[rot->kind].name);
	if (!json_is_number(v) || !(x > 0) || isinf(x))
		return say_bad("%s: %s: %s is not a number above 0", where, name, key);
	*member(rot, i) = x;
	return STATUS_OK;
}

int rotary_read(const json_t *v, const char *where, const char *name, struct rotary *rot)
{
	const char *key;
	int64_t kind = ROTARY_DEFAULT;
	json_t *x;
	int r;

	if (!json_is_object(v))
		return say_bad("%s: %s is not an object", where, name);
	r = read_kind(v, where, name, &kind);
	if (r)
		return r;
	if (rot->kind && kind && rot->kind != kind)
		return say_bad("%s: %s: another field has another rope_type", where, name);
	if (kind)
		rot->kind = kind;
	json_object_foreach((json_t *)(uintptr_t)v, key, x)
	{
		r = read_key(key, x, where, name, rot);
		if (r)
			return r;
	}
	return STATUS_OK;
}

static double yarn_scale(double factor, double mscale)
{
	return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double attention_factor(const struct rotary *rot)
{
	if (rot->kind == ROTARY_YARN && rot->mscale > 0 && rot->mscale_all > 0)
		return yarn_scale(rot->factor, rot->mscale) /
		       yarn_scale(rot->factor, rot->mscale_all);
	if (rot->kind == ROTARY_YARN)
		return yarn_scale(rot->factor, 1);
	if (rot->kind == ROTARY_LONGROPE && rot->factor > 1)
		return sqrt(1 + log(rot->factor) / log(rot->original));
	return 1;
}

int rotary_check(struct rotary *rot, const char *where, int64_t head_dim, int64_t max_pos)
{
	const int64_t n = rotary_channels(rot, head_dim);

	if (!(rot->part > 0 && rot->part <= 1))
		return say_bad("%s: partial_rotary_factor is %g, not in (0, 1]", where, rot->part);
	if (n < 2 || n % 2)
		return say_bad("%s: partial_rotary_factor %g makes %lld channels of each head "
			       "turn, expected an even number", where, rot->part, (long long)n);
	for (size_t i = 0; i < NKEYS; i++)
		if (keys[i].needs & 1u << rot->kind && !(*member(rot, i) > 0))
			return say_bad("%s: rope_scaling: \"%s\" needs %s", where,
				       kinds[rot->kind].name, keys[i].name);
	if (!(rot->original > 0) && rot->kind != ROTARY_DEFAULT && rot->kind != ROTARY_LINEAR)
		rot->original = (double)max_pos;
	if (rot->kind == ROTARY_DYNAMIC)
		rot->original = (double)max_pos; /* as transformers, regardless of the file */
	if (rot->kind == ROTARY_DYNAMIC && n < 4)
		return say_bad("%s: rope_scaling: \"dynamic\" needs 4 channels of each head that "
			       "turn, not %lld", where, (long long)n);
	if (rot->kind == ROTARY_LONGROPE && rot->nshorts != n / 2)
		return say_bad("%s: rope_scaling: short_factor has %lld numbers, expected %lld",
			       where, (long long)rot->nshorts, (long long)(n / 2));
	if (rot->kind == ROTARY_LLAMA3 && !(rot->high > rot->low))
		return say_bad("%s: rope_scaling: high_freq_factor %g is not above low_freq_factor "
			       "%g", where, rot->high, rot->low);
	if (rot->kind == ROTARY_LONGROPE && !(rot->factor > 0))
		rot->factor = (double)max_pos / rot->original;
	if (!(rot->fast > 0))
		rot->fast = 32;
	if (!(rot->slow > 0))
		rot->slow = 1;
	if (!(rot->attention > 0))
		rot->attention = attention_factor(rot);
	/* scores are multiplied by its square, which is possible where all channels turn */
	if (rot->attention != 1 && n != head_dim)
		return say_bad("%s: partial_rotary_factor %g: not implemented for rope_type \"%s\"",
			       where, rot->part, kinds[rot->kind].name);
	return STATUS_OK;
}

int64_t rotary_channels(const struct rotary *rot, int64_t head_dim)
{
	return (int64_t)((double)head_dim * rot->part);
}

/* long wavelengths are divided by the factor, short ones are kept, others are interpolated */
static double llama3(const struct rotary *rot, double f)
{
	const double turns = rot->original * f / (2 * M_PI);
	const double keep = (turns - rot->low) / (rot->high - rot->low);

	if (turns < rot->low)
		return f / rot->factor;
	return turns > rot->high ? f : (1 - keep) * f / rot->factor + keep * f;
}

/* index of the pair, of n channels, that turns so many times in the original context */
static double yarn_pair(const struct rotary *rot, double turns, double n)
{
	return n * log(rot->original / (turns * 2 * M_PI)) / (2 * log(rot->theta));
}

static double yarn(const struct rotary *rot, double f, int64_t i, int64_t n)
{
	double low = yarn_pair(rot, rot->fast, (double)n);
	double high = yarn_pair(rot, rot->slow, (double)n), ramp;

	if (rot->truncate > 0) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, (double)n - 1);
	if (low == high)
		high += 0.001;
	ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
	return f / rot->factor * ramp + f * (1 - ramp);
}

void rotary_frequencies(const struct rotary *rot, int64_t head_dim,
			float ret_freq[ROTARY_MOST_PAIRS])
{
	const int64_t n = rotary_channels(rot, head_dim);

	for (int64_t i = 0; i < head_dim / 2; i++) {
		double f = pow(rot->theta, -2.0 * (double)i / (double)n);

		if (rot->kind == ROTARY_LINEAR)
			f /= rot->factor;
		else if (rot->kind == ROTARY_LLAMA3)
			f = llama3(rot, f);
		else if (rot->kind == ROTARY_LONGROPE && i < n / 2)
			f /= rot->shorts[i];
		else if (rot->kind == ROTARY_YARN)
			f = yarn(rot, f, i, n);
		ret_freq[i] = i < n / 2 ? (float)f : 0;
	}
}

int64_t rotary_file_channel(const struct rotary *rot, int64_t head_dim, int64_t j)
{
	const int64_t n = rotary_channels(rot, head_dim), half = head_dim / 2;

	if (j < half)
		return j < n / 2 ? j : j + n / 2;
	return j < half + n / 2 ? j - half + n / 2 : j;
}
