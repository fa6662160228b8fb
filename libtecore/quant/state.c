/* state.c - quantizers: the device words of many slots, their update, and saved state. */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/backend/backend.h"
#include "libtecore/base/base.h"
#include "libtecore/base/dtype_inline.h"
#include "libtecore/quant/recipe.h"
#include "libtecore/tensor/ctx.h"

/* ---- objects ---- */

/* scales and amaxes from or to the host, after all that was queued on the context */
static int copy_state(struct te_quant *q, const char *fn, float *dst, const float *src,
		      size_t nfloats)
{
	int r = nfloats ? te__ctx_wait(q->ctx, fn) : 0;

	return r ? r : te__ctx_copy(q->ctx, dst, src, nfloats * sizeof(*dst));
}

/* FP32 words of the allocation, fmt_max included */
static size_t state_nfloats(const struct te_quant *q)
{
	return (size_t)q->nslots * (size_t)(2 * q->words.nscale + q->words.namax);
}

static void set_words(struct te_quant *q, float *words)
{
	q->fmt_max = words;
	q->scale = q->fmt_max + q->nslots * q->words.nscale;
	q->amax = q->scale + q->nslots * q->words.nscale;
}

static int make_state(struct te_quant *q)
{
	const size_t nfloats = state_nfloats(q);
	float *start;
	void *words;
	int r;

	if (!nfloats)
		return 0;
	start = te__calloc(nfloats, sizeof(*start));
	if (!start)
		return te__fail(-ENOMEM, "te_quant_create: no memory for %d slots", q->nslots);
	for (int i = 0; i < q->nslots && q->words.nscale; i++) {
		start[i] = te_dtype_max(q->dtype[i]);
		start[q->nslots + i] = 1.0f;
	}
	r = te__mem_get(q->ctx, nfloats * sizeof(*start), &words);
	if (r >= 0) {
		set_words(q, words);
		r = te__ctx_copy(q->ctx, q->fmt_max, start, nfloats * sizeof(*start));
	}
	te__free(start);
	return r;
}

int te__quant_describe(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
		       const enum te_dtype *dtypes, struct te_quant **ret_q)
{
	struct te_recipe copy = TE_RECIPE_INIT;
	struct te_quant *q;
	int fp4, r;

	if (!ctx || !recipe || !dtypes)
		return te__fail(-EINVAL, "te_quant_create: an argument is NULL");
	if (nslots < 1)
		return te__fail(-EINVAL, "te_quant_create: nslots is %d, not 1 or more", nslots);
	r = te__sized_in("te_quant_create", te_recipe, recipe, &copy);
	if (r >= 0)
		r = te__recipe_check("te_quant_create", &copy);
	if (r < 0)
		return r;
	if (!te__recipe_casts(&copy))
		return te__fail(-EINVAL, "te_quant_create: recipe %s has no quantizers",
				te_recipe_name(&copy));
	fp4 = te__recipe_operand(&copy, TE__ROLE_WEIGHT).dtype == TE_DTYPE_E2M1;
	for (int i = 0; i < nslots; i++)
		if (fp4 ? dtypes[i] != TE_DTYPE_E2M1 : !te__is_fp8(dtypes[i]))
			return te__fail(-EINVAL, "te_quant_create: slot %d is %s, not %s", i,
					te_dtype_name(dtypes[i]),
					fp4 ? "e2m1" : "e4m3 or e5m2");
	q = te__calloc(1, sizeof(*q) + (size_t)nslots * sizeof(q->dtype[0]));
	if (!q)
		return te__fail(-ENOMEM, "te_quant_create: no memory for %d slots", nslots);
	atomic_init(&q->refs, 1);
	q->ctx = te_ctx_ref(ctx);
	q->recipe = copy;
	q->row = te__recipe_row(&q->recipe);
	if (q->row->words)
		q->words = q->row->words(&q->recipe);
	q->nslots = nslots;
	memcpy(q->dtype, dtypes, (size_t)nslots * sizeof(q->dtype[0]));
	if (state_nfloats(q))
		set_words(q, (float *)TE__NOWHERE);
	*ret_q = q;
	return 0;
}

int te_quant_create(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
		    const enum te_dtype *dtypes, struct te_quant **ret_q)
{
	struct te_quant *q = NULL;
	int r;

	if (!ret_q)
		return te__fail(-EINVAL, "te_quant_create: an argument is NULL");
	r = te__quant_describe(ctx, recipe, nslots, dtypes, &q);
	if (r >= 0)
		r = make_state(q);
	if (r < 0) {
		te_quant_unref(q);
		return r;
	}
	*ret_q = q;
	return 0;
}

/* ---- casts ---- */

int te__quantize_blocks(const struct te__quantize *z, struct te_k_q *ret_q)
{
	const struct te_recipe *recipe = &z->quant->recipe;

	*ret_q = (struct te_k_q){
		.row = te_tensor_data(z->y),
		.col = te_tensor_coldata(z->y),
		.scale_inv = te_tensor_scale_inv(z->y),
		.col_scale_inv = te_tensor_col_scale_inv(z->y),
		.noop = z->noop,
		.epsilon = recipe->amax_epsilon,
		.dtype = (int32_t)te_tensor_dtype(z->y),
		.scaling = (int32_t)te_tensor_scaling(z->y),
		.pow2 = te__recipe_pow2(recipe),
	};
	return 0;
}

int te__quantize_later(const struct te__quantize *z, struct te_k_q *ret_q)
{
	(void)z;
	*ret_q = (struct te_k_q){ .row = NULL };
	return 0;
}

void te__quantize_by_slot(const struct te__quantize *z, struct te_k_q *ret_q)
{
	if (te_tensor_scaling(z->y)) {
		te__quantize_blocks(z, ret_q);
		return;
	}
	*ret_q = (struct te_k_q){
		.row = te_tensor_data(z->y),
		.col = te_tensor_coldata(z->y),
		.scale = te_quant_scale_ptr(z->quant, z->slot),
		.scale_inv = te_tensor_scale_inv(z->y),
		.noop = z->noop,
		.dtype = (int32_t)te_tensor_dtype(z->y),
	};
}

/* ---- casts that run again ---- */

static int repeat_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	te__quantize_by_slot(z, ret_q);
	return 0;
}

/*
 * The producer writes the copies if it did so the first time, and not otherwise: on a GPU the order
 * of its sums, and so the last bit of a norm, depends on what it writes.
 */
static const struct te__recipe_ops repeat_by_producer = {
	.name = "repeat",
	.begin = repeat_begin,
};
static const struct te__recipe_ops repeat_afterwards = {
	.name = "repeat",
	.begin = te__quantize_later,
	.keeps_x = 1,
};

int te__quant_repeat(struct te_quant *q, float *scale, int nslots, struct te_quant **ret_q)
{
	struct te_quant *n;

	if (!q->words.nscale) {
		*ret_q = te_quant_ref(q);
		return 0;
	}
	n = te__calloc(1, sizeof(*n) + (size_t)nslots * sizeof(n->dtype[0]));
	if (!n)
		return te__no_memory("plan");
	atomic_init(&n->refs, 1);
	n->ctx = te_ctx_ref(q->ctx);
	n->recipe = q->recipe;
	n->row = q->row->keeps_x ? &repeat_afterwards : &repeat_by_producer;
	n->words = (struct te__slot_words){ .nscale = 1 };
	n->nslots = nslots;
	n->scale = scale;
	memcpy(n->dtype, q->dtype, (size_t)nslots * sizeof(n->dtype[0]));
	*ret_q = n;
	return 0;
}

struct te_quant *te_quant_ref(struct te_quant *q)
{
	if (q)
		atomic_fetch_add(&q->refs, 1);
	return q;
}

struct te_quant *te_quant_unref(struct te_quant *q)
{
	if (!q || atomic_fetch_sub(&q->refs, 1) != 1)
		return NULL;
	if (q->fmt_max && q->fmt_max != (float *)TE__NOWHERE)
		te__mem_put(q->ctx, q->fmt_max);
	te_ctx_unref(q->ctx);
	te__free(q);
	return NULL;
}

int te_quant_nslots(const struct te_quant *q)
{
	return q ? q->nslots : 0;
}

const struct te_recipe *te_quant_recipe(const struct te_quant *q)
{
	return q ? &q->recipe : NULL;
}

static int has_slot(const struct te_quant *q, int slot)
{
	return slot >= 0 && slot < te_quant_nslots(q);
}

float *te_quant_scale_ptr(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) && q->words.nscale ? q->scale + slot : NULL;
}

float *te_quant_amax_ptr(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) && q->words.namax ? q->amax + (int64_t)slot * q->words.namax :
						     NULL;
}

enum te_dtype te_quant_dtype(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) ? q->dtype[slot] : TE_DTYPE_COUNT;
}

/* ---- scales ---- */

static int update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	if (!stream || !q)
		return te__fail(-EINVAL, "te_quant_update: an argument is NULL");
	if (q->ctx != te_stream_ctx(stream))
		return te__fail(-EINVAL, "te_quant_update: the quantizers belong to another "
				"context");
	if (first < 0 || count < 0 || first > q->nslots - count)
		return te__fail(-EINVAL, "te_quant_update: %d slots from %d on, but there are %d",
				count, first, q->nslots);
	return q->row->update && count ? q->row->update(stream, q, first, count) : 0;
}

int te_quant_update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	return te__stream_queued(stream, update(stream, q, first, count));
}

int te_quant_peek(struct te_quant *q, int slot, float *ret_scale, float *ret_history)
{
	float scale = 1.0f;
	int r = 0;

	if (!q || !has_slot(q, slot))
		return te__fail(-EINVAL, "te_quant_peek: slot %d of %d", slot, q ? q->nslots : 0);
	if (q->words.nscale)
		r = copy_state(q, "te_quant_peek", &scale, q->scale + slot, 1);
	if (r >= 0 && ret_history)
		r = copy_state(q, "te_quant_peek", ret_history, te_quant_amax_ptr(q, slot),
			       (size_t)q->words.namax);
	if (r >= 0 && ret_scale)
		*ret_scale = scale;
	return r;
}

/* ---- first scales ---- */

int te__quant_is_fresh(struct te_quant *q, const char *fn, int count)
{
	const size_t n = q ? (size_t)count * (size_t)q->words.namax : 0;
	int r, fresh = 1;
	float *h;

	if (!q || !q->words.saves_amax)
		return 0;
	h = te__malloc((n + 1) * sizeof(*h));
	if (!h)
		return te__no_memory(fn);
	r = copy_state(q, fn, h, q->amax, n);
	for (size_t i = 0; i < n && !r && fresh; i++)
		fresh = h[i] == 0.0f;
	te__free(h);
	return r ? r : fresh;
}

int te__quant_forget(struct te_quant *q, struct te_stream *stream)
{
	return te_fill(stream, q->amax, 0,
		       (size_t)q->nslots * (size_t)q->words.namax * sizeof(*q->amax));
}

/* ---- saved state ---- */

/*
 * Magic, version, the recipe, nslots, nslots dtypes, the state's floats, and the CRC-32 of all
 * before. Words are 32 bits, little-endian. A version fixes how many words a recipe has, in the
 * order of struct te_recipe. A field that struct te_recipe gains is one word more, in a version
 * that is written only for recipes which use it: the older versions stay readable and written.
 */
#define MAGIC "te-quant"
#define MAGIC_NBYTES 8
#define BLOB_VERSIONS 1
#define RECIPE_MOST 7

static const int recipe_nwords[1 + BLOB_VERSIONS] = { 0, 7 };

struct head {
	uint32_t version;
	struct te_recipe recipe;
	uint32_t nslots;
	size_t nbytes; /* bytes before the dtypes */
};

static void put_u32(uint8_t *p, uint32_t u)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(u >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/*
 * CRC-32 of IEEE 802.3, as zlib's, by four tables (Kounavis and Berry, 2005): a checkpoint that is
 * copied between two steps has megabytes of amaxes.
 */
static uint32_t crc32_of(const uint8_t *p, size_t nbytes)
{
	uint32_t table[4][256], crc = 0xffffffffu;

	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int bit = 0; bit < 8; bit++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
		table[0][i] = c;
	}
	for (int k = 1; k < 4; k++)
		for (int i = 0; i < 256; i++)
			table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
	for (; nbytes >= 4; nbytes -= 4, p += 4) {
		crc ^= get_u32(p);
		crc = table[3][crc & 255] ^ table[2][crc >> 8 & 255] ^ table[1][crc >> 16 & 255] ^
		      table[0][crc >> 24];
	}
	for (; nbytes; nbytes--, p++)
		crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
	return ~crc;
}

static void recipe_to_words(const struct te_recipe *r, uint32_t w[RECIPE_MOST])
{
	w[0] = (uint32_t)r->kind;
	w[1] = (uint32_t)r->compute;
	w[2] = (uint32_t)r->margin;
	w[3] = (uint32_t)r->history_len;
	w[4] = (uint32_t)r->algo;
	w[5] = te__f32_bits(r->amax_epsilon);
	w[6] = r->flags;
}

static void recipe_from_words(const uint32_t w[RECIPE_MOST], struct te_recipe *ret)
{
	*ret = (struct te_recipe)TE_RECIPE_INIT;
	ret->kind = (enum te_recipe_kind)w[0];
	ret->compute = (enum te_dtype)w[1];
	ret->margin = (int32_t)w[2];
	ret->history_len = (int32_t)w[3];
	ret->algo = (enum te_amax_algo)w[4];
	ret->amax_epsilon = te__f32_from_bits(w[5]);
	ret->flags = w[6];
}

static size_t head_nbytes(uint32_t version)
{
	return MAGIC_NBYTES + 4 * (2 + (size_t)recipe_nwords[version]);
}

/* the first version whose words are enough for this recipe */
static uint32_t version_of(const struct te_recipe *recipe)
{
	const struct te_recipe init = TE_RECIPE_INIT;
	uint32_t have[RECIPE_MOST], dflt[RECIPE_MOST], v = BLOB_VERSIONS;

	recipe_to_words(recipe, have);
	recipe_to_words(&init, dflt);
	while (v > 1 && !memcmp(have + recipe_nwords[v - 1], dflt + recipe_nwords[v - 1],
				4 * (size_t)(recipe_nwords[v] - recipe_nwords[v - 1])))
		v--;
	return v;
}

static void put_head(const struct te_quant *q, uint8_t *p)
{
	const uint32_t version = version_of(&q->recipe);
	uint32_t w[RECIPE_MOST];

	recipe_to_words(&q->recipe, w);
	memcpy(p, MAGIC, MAGIC_NBYTES);
	put_u32(p + MAGIC_NBYTES, version);
	p += MAGIC_NBYTES + 4;
	for (int i = 0; i < recipe_nwords[version]; i++, p += 4)
		put_u32(p, w[i]);
	put_u32(p, (uint32_t)q->nslots);
}

/* whole bytes of a known version: the magic and the CRC have been checked */
static void get_head(const uint8_t *p, struct head *ret)
{
	const struct te_recipe init = TE_RECIPE_INIT;
	uint32_t w[RECIPE_MOST];

	ret->version = get_u32(p + MAGIC_NBYTES);
	ret->nbytes = head_nbytes(ret->version);
	recipe_to_words(&init, w);
	for (int i = 0; i < recipe_nwords[ret->version]; i++)
		w[i] = get_u32(p + MAGIC_NBYTES + 4 * (1 + i));
	recipe_from_words(w, &ret->recipe);
	ret->nslots = get_u32(p + ret->nbytes - 4);
}

/* floats of a slot in the blob: its scale, and its amaxes where they are kept */
static size_t saved_of_slot(struct te__slot_words w)
{
	return (size_t)(w.nscale + (w.saves_amax ? w.namax : 0));
}

static size_t saved_nfloats(const struct te_quant *q)
{
	return (size_t)q->nslots * saved_of_slot(q->words);
}

size_t te_quant_nbytes(const struct te_quant *q)
{
	return q ? head_nbytes(version_of(&q->recipe)) +
			   4 * ((size_t)q->nslots + saved_nfloats(q) + 1) :
		   0;
}

int te_quant_save(struct te_quant *q, void *dst, size_t nbytes)
{
	const size_t n = q ? saved_nfloats(q) : 0;
	uint8_t *p = dst;
	float *state;
	int r;

	if (!q || !dst)
		return te__fail(-EINVAL, "te_quant_save: an argument is NULL");
	if (nbytes != te_quant_nbytes(q))
		return te__fail(-EINVAL, "te_quant_save: nbytes is %zu, but the state takes %zu",
				nbytes, te_quant_nbytes(q));
	state = te__malloc((n + 1) * sizeof(*state));
	if (!state)
		return te__fail(-ENOMEM, "te_quant_save: no memory for %zu floats", n);
	r = copy_state(q, "te_quant_save", state, q->scale, n);
	if (r >= 0) {
		put_head(q, p);
		p += head_nbytes(version_of(&q->recipe));
		for (int i = 0; i < q->nslots; i++, p += 4)
			put_u32(p, (uint32_t)q->dtype[i]);
		for (size_t i = 0; i < n; i++, p += 4)
			put_u32(p, te__f32_bits(state[i]));
		put_u32(p, crc32_of(dst, nbytes - 4));
	}
	te__free(state);
	return r;
}

/* 0, or why these bytes are not a whole blob */
static int check_blob(const uint8_t *p, size_t nbytes, struct head *ret_head)
{
	const size_t known = nbytes < MAGIC_NBYTES ? nbytes : MAGIC_NBYTES;
	const struct te__recipe_ops *row;
	struct te__slot_words words = { 0 };
	uint32_t version;
	uint64_t want;

	if (memcmp(p, MAGIC, known))
		return te__fail(-TE_EFORMAT, "te_quant_load: these are not quantizer states");
	if (nbytes < MAGIC_NBYTES + 4)
		return te__fail(-TE_ECORRUPT, "te_quant_load: cut short at %zu bytes", nbytes);
	version = get_u32(p + MAGIC_NBYTES);
	if (version < 1 || version > BLOB_VERSIONS)
		return te__fail(-TE_EFORMAT, "te_quant_load: version is %u, but this library knows "
				"1 to %u", version, BLOB_VERSIONS);
	if (nbytes < head_nbytes(version) + 4)
		return te__fail(-TE_ECORRUPT, "te_quant_load: cut short at %zu bytes", nbytes);
	if (crc32_of(p, nbytes - 4) != get_u32(p + nbytes - 4))
		return te__fail(-TE_ECORRUPT, "te_quant_load: the checksum of %zu bytes does not "
				"match: they are damaged or cut short", nbytes);
	get_head(p, ret_head);
	row = te__recipe_row(&ret_head->recipe);
	if (!row || !row->operand)
		return te__fail(-TE_EFORMAT, "te_quant_load: recipe kind %d is unknown",
				(int)ret_head->recipe.kind);
	if (te__recipe_check("te_quant_load", &ret_head->recipe) < 0)
		return te__fail(-TE_ECORRUPT,
				"te_quant_load: a field of the recipe is out of range");
	if (row->words)
		words = row->words(&ret_head->recipe);
	/* nslots has 32 bits, a slot 2^17 floats at most: no overflow */
	want = ret_head->nbytes + 4 * ((uint64_t)ret_head->nslots * (1 + saved_of_slot(words)) + 1);
	if (nbytes != want)
		return te__fail(-TE_ECORRUPT, "te_quant_load: there are %zu bytes, but the state "
				"takes %llu", nbytes, (unsigned long long)want);
	return 0;
}

/* 1: the blob is of this recipe, these slots and these dtypes */
static int blob_fits(const struct te_quant *q, const struct head *h, const uint8_t *p)
{
	if (!te__recipe_same(&h->recipe, &q->recipe) || h->recipe.compute != q->recipe.compute ||
	    h->nslots != (uint32_t)q->nslots)
		return 0;
	for (int i = 0; i < q->nslots; i++)
		if (get_u32(p + h->nbytes + 4 * (size_t)i) != (uint32_t)q->dtype[i])
			return 0;
	return 1;
}

int te_quant_load(struct te_quant *q, const void *src, size_t nbytes)
{
	const size_t n = q ? saved_nfloats(q) : 0;
	const uint8_t *p = src;
	struct head head;
	float *state;
	int r;

	if (!q || !src)
		return te__fail(-EINVAL, "te_quant_load: an argument is NULL");
	r = check_blob(p, nbytes, &head);
	if (r < 0)
		return r;
	if (!blob_fits(q, &head, p))
		return te__fail(-EINVAL,
				"te_quant_load: saved with recipe %s, %u slots: with another "
				"recipe, other options or other slots than the quantizers have",
				te_recipe_name(&head.recipe), head.nslots);
	state = te__malloc((n + 1) * sizeof(*state));
	if (!state)
		return te__fail(-ENOMEM, "te_quant_load: no memory for %zu floats", n);
	p += head.nbytes + 4 * (size_t)q->nslots;
	for (size_t i = 0; i < n; i++)
		state[i] = te__f32_from_bits(get_u32(p + 4 * i));
	r = copy_state(q, "te_quant_load", q->scale, state, n);
	te__free(state);
	return r;
}

/* ---- memory ---- */

size_t te__quant_device_nbytes(const struct te_quant *q)
{
	return state_nfloats(q) * sizeof(float);
}

uint32_t te__quant_weights(const struct te_quant *q, int first, int count,
			   struct te_k_weights *args)
{
	if (q->words.nscale) {
		args->scale = q->scale + first;
		args->nslots = count;
	}
	if (q->words.namax)
		args->amax = q->amax + (int64_t)first * q->words.namax;
	args->window = q->words.namax;
	args->fmt_max[0] = te_dtype_max(TE_DTYPE_E4M3);
	args->fmt_max[1] = te_dtype_max(TE_DTYPE_E5M2);
	args->epsilon = q->recipe.amax_epsilon;
	args->pow2 = te__recipe_pow2(&q->recipe);
	return q->row->weights;
}

int te__quant_regions(const struct te_quant *q, te_region_fn fn, void *arg)
{
	const struct te_region state = { "quantizers", TE_REGION_DEVICE, q->fmt_max,
					 te__quant_device_nbytes(q) };

	return state.nbytes ? fn(arg, &state) : 0;
}
