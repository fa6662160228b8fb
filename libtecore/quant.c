/* quant.c - FP8 recipes, the device state of their quantizers, casts, and saved state. */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include <te/quant.h>
#include "libtecore/backend/backend.h"
#include "libtecore/ctx_internal.h"
#include "libtecore/dtype_inline.h"
#include "libtecore/internal.h"
#include "libtecore/quant_internal.h"

#define MARGIN_MOST 32
#define HISTORY_MOST 65536
#define RECIPE_FLAGS (TE_RECIPE_POW2 | TE_RECIPE_E4M3_ONLY)

struct te_quant {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	struct te_recipe recipe;
	int nslots;
	int64_t window; /* floats a slot in history: history_len, or 1 for the amax of current */
	/* device memory, one allocation; scale and history are neighbours */
	float *fmt_max; /* [nslots] */
	float *scale;	/* [nslots] */
	float *history; /* [nslots, window] */
	enum te_dtype dtype[];
};

/* ---- recipes ---- */

static const struct {
	const char *name;
	enum te_recipe_kind kind;
	enum te_dtype compute;
} recipes[] = {
	{ "fp32", TE_RECIPE_NONE, TE_DTYPE_FP32 },
	{ "bf16", TE_RECIPE_NONE, TE_DTYPE_BF16 },
	{ "fp8-delayed", TE_RECIPE_DELAYED, TE_DTYPE_BF16 },
	{ "fp8-current", TE_RECIPE_CURRENT, TE_DTYPE_BF16 },
};

int te_recipe_from_name(const char *name, struct te_recipe *ret_recipe)
{
	for (size_t i = 0; name && i < sizeof(recipes) / sizeof(recipes[0]); i++)
		if (!strcmp(name, recipes[i].name)) {
			*ret_recipe = (struct te_recipe)TE_RECIPE_INIT;
			ret_recipe->kind = recipes[i].kind;
			ret_recipe->compute = recipes[i].compute;
			return 0;
		}
	return te__fail(-EINVAL, "there is no recipe \"%s\": fp32, bf16, fp8-delayed, fp8-current",
			name ? name : "(null)");
}

const char *te_recipe_name(const struct te_recipe *recipe)
{
	/* the compute dtype names a recipe only where nothing else does */
	for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++)
		if (recipe->kind == recipes[i].kind &&
		    (recipe->kind != TE_RECIPE_NONE || recipe->compute == recipes[i].compute))
			return recipes[i].name;
	return "?";
}

/* a caller's recipe of any size, whole and checked */
static int take_recipe(const struct te_recipe *recipe, struct te_recipe *r)
{
	const unsigned char *p = (const unsigned char *)recipe;

	*r = (struct te_recipe)TE_RECIPE_INIT;
	if (recipe->size < sizeof(recipe->size) + sizeof(recipe->kind))
		return te__fail(-EINVAL, "recipe: size is %zu; start from TE_RECIPE_INIT",
				recipe->size);
	for (size_t i = sizeof(*r); i < recipe->size; i++)
		if (p[i])
			return te__fail(-EINVAL, "recipe: byte %zu is set, this library knows %zu",
					i, sizeof(*r));
	memcpy(r, recipe, recipe->size < sizeof(*r) ? recipe->size : sizeof(*r));
	r->size = sizeof(*r);
	if (r->kind != TE_RECIPE_DELAYED && r->kind != TE_RECIPE_CURRENT)
		return te__fail(-EINVAL, "recipe: kind %d has no quantizers", (int)r->kind);
	if (r->compute != TE_DTYPE_BF16 && r->compute != TE_DTYPE_FP32)
		return te__fail(-EINVAL, "recipe: compute dtype %s is neither bf16 nor fp32",
				te_dtype_name(r->compute));
	if (r->margin < -MARGIN_MOST || r->margin > MARGIN_MOST)
		return te__fail(-EINVAL, "recipe: margin %d is outside -%d..%d", (int)r->margin,
				MARGIN_MOST, MARGIN_MOST);
	if (r->history_len < 1 || r->history_len > HISTORY_MOST)
		return te__fail(-EINVAL, "recipe: history_len %d is outside 1..%d",
				(int)r->history_len, HISTORY_MOST);
	if (r->algo != TE_AMAX_MAX && r->algo != TE_AMAX_MOST_RECENT)
		return te__fail(-EINVAL, "recipe: there is no amax algorithm %d", (int)r->algo);
	if (!(r->amax_epsilon >= 0.0f) || isinf(r->amax_epsilon))
		return te__fail(-EINVAL, "recipe: amax_epsilon %g is not a number from 0 up",
				(double)r->amax_epsilon);
	if (r->flags & ~RECIPE_FLAGS)
		return te__fail(-EINVAL, "recipe: unknown flags 0x%x", r->flags & ~RECIPE_FLAGS);
	return 0;
}

/* ---- objects ---- */

/* scale and history from and to the host; everything queued on the context has run */
static int copy_state(struct te_quant *q, float *dst, const float *src, size_t nfloats)
{
	struct te_stream *stream = te_ctx_stream(q->ctx);
	int r = te_ctx_sync(q->ctx);

	if (r >= 0)
		r = te_copy(stream, dst, src, nfloats * sizeof(*dst));
	return r < 0 ? r : te_stream_sync(stream);
}

static size_t state_nfloats(const struct te_quant *q)
{
	return (size_t)q->nslots * (size_t)(1 + q->window);
}

int te_quant_create(struct te_ctx *ctx, const struct te_recipe *recipe, int nslots,
		    const enum te_dtype *dtypes, struct te_quant **ret_q)
{
	struct te_recipe taken;
	struct te_quant *q;
	float *start = NULL;
	size_t nfloats;
	int r;

	if (!ctx || !recipe || !dtypes || !ret_q)
		return te__fail(-EINVAL, "te_quant_create: an argument is NULL");
	if (nslots < 1)
		return te__fail(-EINVAL, "te_quant_create: %d slots", nslots);
	r = take_recipe(recipe, &taken);
	if (r < 0)
		return r;
	for (int i = 0; i < nslots; i++)
		if (dtypes[i] != TE_DTYPE_E4M3 && dtypes[i] != TE_DTYPE_E5M2)
			return te__fail(-EINVAL, "te_quant_create: slot %d is %s, not e4m3 or e5m2",
					i, te_dtype_name(dtypes[i]));
	q = te__calloc(1, sizeof(*q) + (size_t)nslots * sizeof(q->dtype[0]));
	if (!q)
		return te__fail(-ENOMEM, "te_quant_create: no memory for %d slots", nslots);
	atomic_init(&q->refs, 1);
	q->ctx = te_ctx_ref(ctx);
	q->recipe = taken;
	q->nslots = nslots;
	q->window = taken.kind == TE_RECIPE_DELAYED ? taken.history_len : 1;
	memcpy(q->dtype, dtypes, (size_t)nslots * sizeof(q->dtype[0]));

	nfloats = (size_t)nslots + state_nfloats(q);
	start = te__calloc(nfloats, sizeof(*start));
	if (!start) {
		r = te__fail(-ENOMEM, "te_quant_create: no memory for %d slots", nslots);
		goto fail;
	}
	for (int i = 0; i < nslots; i++) {
		start[i] = te_dtype_max(dtypes[i]);
		start[nslots + i] = 1.0f;
	}
	r = te__mem_get(ctx, nfloats * sizeof(*start), (void **)&q->fmt_max);
	if (r < 0)
		goto fail;
	q->scale = q->fmt_max + nslots;
	q->history = q->scale + nslots;
	r = copy_state(q, q->fmt_max, start, nfloats);
	if (r < 0)
		goto fail;
	te__free(start);
	*ret_q = q;
	return 0;
fail:
	te__free(start);
	te_quant_unref(q);
	return r;
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
	if (q->fmt_max)
		te__mem_put(q->ctx, q->fmt_max);
	te_ctx_unref(q->ctx);
	te__free(q);
	return NULL;
}

int te_quant_nslots(const struct te_quant *q)
{
	return q->nslots;
}

const struct te_recipe *te_quant_recipe(const struct te_quant *q)
{
	return &q->recipe;
}

static int has_slot(const struct te_quant *q, int slot)
{
	return slot >= 0 && slot < q->nslots;
}

float *te_quant_scale_ptr(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) ? q->scale + slot : NULL;
}

float *te_quant_amax_ptr(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) ? q->history + slot * q->window : NULL;
}

enum te_dtype te_quant_dtype(const struct te_quant *q, int slot)
{
	return has_slot(q, slot) ? q->dtype[slot] : TE_DTYPE_COUNT;
}

/* ---- casts ---- */

/* the scale of a slot from x's own amax */
static int current_scale(struct te_stream *stream, struct te_quant *q, int slot,
			 const struct te_tensor *x, const float *noop)
{
	const struct te_k_clear clear = { .word = te_quant_amax_ptr(q, slot), .noop = noop };
	const struct te_k_amax amax = {
		.x = te_tensor_data(x),
		.n = te_tensor_nelems(x),
		.amax = clear.word,
		.noop = noop,
		.dtype = (int32_t)te_tensor_dtype(x),
	};
	const struct te_k_scale_current scale = {
		.amax = clear.word,
		.scale = te_quant_scale_ptr(q, slot),
		.noop = noop,
		.fmt_max = te_dtype_max(q->dtype[slot]),
		.epsilon = q->recipe.amax_epsilon,
		.pow2 = !!(q->recipe.flags & TE_RECIPE_POW2),
	};
	int r = TE__LAUNCH(stream, CLEAR, &clear);

	if (r >= 0)
		r = TE__LAUNCH(stream, AMAX, &amax);
	return r < 0 ? r : TE__LAUNCH(stream, SCALE_CURRENT, &scale);
}

static int same_ctx(const char *fn, const struct te_stream *stream, const struct te_tensor *x,
		    const struct te_tensor *y)
{
	if (te_tensor_ctx(x) != te_stream_ctx(stream) || te_tensor_ctx(y) != te_stream_ctx(stream))
		return te__fail(-EINVAL, "%s: x, y and the stream are not of one context", fn);
	if (te_tensor_nelems(x) != te_tensor_nelems(y))
		return te__fail(-TE_ESHAPE, "%s: x has %lld elements, y %lld", fn,
				(long long)te_tensor_nelems(x), (long long)te_tensor_nelems(y));
	return 0;
}

static int is_compute(enum te_dtype dtype)
{
	return dtype == TE_DTYPE_FP32 || dtype == TE_DTYPE_BF16;
}

static int quantize(struct te_stream *stream, struct te_quant *q, int slot,
		    const struct te_tensor *x, struct te_tensor *y, const float *noop,
		    uint32_t flags)
{
	const int delayed = q->recipe.kind == TE_RECIPE_DELAYED;
	struct te_k_quantize k;
	int r;

	if (!has_slot(q, slot))
		return te__fail(-EINVAL, "te_quantize: slot %d of %d", slot, q->nslots);
	if (flags & ~TE_QUANTIZE_NO_AMAX)
		return te__fail(-EINVAL, "te_quantize: unknown flags 0x%x",
				flags & ~TE_QUANTIZE_NO_AMAX);
	if (q->ctx != te_stream_ctx(stream))
		return te__fail(-EINVAL, "te_quantize: the quantizers are of another context");
	r = same_ctx("te_quantize", stream, x, y);
	if (r < 0)
		return r;
	if (!is_compute(te_tensor_dtype(x)))
		return te__fail(-TE_EDTYPE, "te_quantize: x is %s, not fp32 or bf16",
				te_dtype_name(te_tensor_dtype(x)));
	if (te_tensor_dtype(y) != q->dtype[slot])
		return te__fail(-TE_EDTYPE, "te_quantize: y is %s, slot %d makes %s",
				te_dtype_name(te_tensor_dtype(y)), slot,
				te_dtype_name(q->dtype[slot]));
	if (!delayed) {
		r = current_scale(stream, q, slot, x, noop);
		if (r < 0)
			return r;
	}
	k = (struct te_k_quantize){
		.x = te_tensor_data(x),
		.rows = te_tensor_rows(y),
		.cols = te_tensor_cols(y),
		.q = {
			.row = te_tensor_data(y),
			.col = te_tensor_coldata(y),
			.scale = te_quant_scale_ptr(q, slot),
			.scale_inv = te_tensor_scale_inv(y),
			.noop = noop,
			.dtype = (int32_t)q->dtype[slot],
		},
		.dtype = (int32_t)te_tensor_dtype(x),
	};
	if (delayed && !(flags & TE_QUANTIZE_NO_AMAX))
		k.q.amax = te_quant_amax_ptr(q, slot);
	return TE__LAUNCH(stream, QUANTIZE, &k);
}

int te_quantize(struct te_stream *stream, struct te_quant *q, int slot, const struct te_tensor *x,
		struct te_tensor *y, const float *noop, uint32_t flags)
{
	if (!stream || !q || !x || !y)
		return te__fail(-EINVAL, "te_quantize: an argument is NULL");
	return te__stream_queued(stream, quantize(stream, q, slot, x, y, noop, flags));
}

static int dequantize(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y)
{
	struct te_k_dequantize k;
	int r = same_ctx("te_dequantize", stream, x, y);

	if (r < 0)
		return r;
	if (te_tensor_dtype(x) != TE_DTYPE_E4M3 && te_tensor_dtype(x) != TE_DTYPE_E5M2)
		return te__fail(-TE_EDTYPE, "te_dequantize: x is %s, not e4m3 or e5m2",
				te_dtype_name(te_tensor_dtype(x)));
	if (!is_compute(te_tensor_dtype(y)))
		return te__fail(-TE_EDTYPE, "te_dequantize: y is %s, not fp32 or bf16",
				te_dtype_name(te_tensor_dtype(y)));
	if (!te_tensor_data(x))
		return te__fail(-EINVAL, "te_dequantize: x has no row-wise copy");
	k = (struct te_k_dequantize){
		.x = te_tensor_data(x),
		.y = te_tensor_data(y),
		.scale_inv = te_tensor_scale_inv(x),
		.n = te_tensor_nelems(x),
		.xdtype = (int32_t)te_tensor_dtype(x),
		.ydtype = (int32_t)te_tensor_dtype(y),
	};
	return TE__LAUNCH(stream, DEQUANTIZE, &k);
}

int te_dequantize(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y)
{
	if (!stream || !x || !y)
		return te__fail(-EINVAL, "te_dequantize: an argument is NULL");
	return te__stream_queued(stream, dequantize(stream, x, y));
}

static int update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	const struct te_k_scale_delayed k = {
		.history = q->history,
		.scale = q->scale,
		.fmt_max = q->fmt_max,
		.first = first,
		.count = count,
		.history_len = q->recipe.history_len,
		.most_recent = q->recipe.algo == TE_AMAX_MOST_RECENT,
		.margin_factor = ldexpf(1.0f, -q->recipe.margin),
	};

	if (q->ctx != te_stream_ctx(stream))
		return te__fail(-EINVAL, "te_quant_update: the quantizers are of another context");
	if (first < 0 || count < 0 || first > q->nslots - count)
		return te__fail(-EINVAL, "te_quant_update: %d slots from %d on, of %d", count,
				first, q->nslots);
	if (q->recipe.kind != TE_RECIPE_DELAYED || !count)
		return 0;
	return TE__LAUNCH(stream, SCALE_DELAYED, &k);
}

int te_quant_update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	if (!stream || !q)
		return te__fail(-EINVAL, "te_quant_update: an argument is NULL");
	return te__stream_queued(stream, update(stream, q, first, count));
}

int te_quant_peek(struct te_quant *q, int slot, float *ret_scale, float *ret_history)
{
	float scale;
	int r;

	if (!q || !has_slot(q, slot))
		return te__fail(-EINVAL, "te_quant_peek: slot %d of %d", slot, q ? q->nslots : 0);
	r = copy_state(q, &scale, q->scale + slot, 1);
	if (r >= 0 && ret_history)
		r = copy_state(q, ret_history, q->history + slot * q->window, (size_t)q->window);
	if (r >= 0 && ret_scale)
		*ret_scale = scale;
	return r;
}

/* ---- saved state ---- */

#define MAGIC "te-quant"
#define MAGIC_NBYTES 8
#define BLOB_VERSION 1u

/* words behind the magic; then nslots dtypes, the state's floats, and the CRC-32 of all before */
enum {
	H_VERSION,
	H_KIND,
	H_COMPUTE,
	H_MARGIN,
	H_HISTORY_LEN,
	H_ALGO,
	H_EPSILON,
	H_FLAGS,
	H_NSLOTS,
	H_COUNT
};
#define HEAD_NBYTES (MAGIC_NBYTES + 4 * H_COUNT)

static void put_u32(uint8_t *p, uint32_t u)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(u >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* CRC-32 of IEEE 802.3, as zlib's, half a byte a step */
static uint32_t crc32_of(const uint8_t *p, size_t nbytes)
{
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
		0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
	};
	uint32_t crc = 0xffffffffu;

	for (size_t i = 0; i < nbytes; i++) {
		crc ^= p[i];
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

/* current keeps no history: its amax lives from one launch to the next */
static size_t saved_nfloats(const struct te_quant *q)
{
	return q->recipe.kind == TE_RECIPE_DELAYED ? state_nfloats(q) : (size_t)q->nslots;
}

static void put_head(const struct te_quant *q, uint8_t *p)
{
	const uint32_t head[H_COUNT] = {
		[H_VERSION] = BLOB_VERSION,
		[H_KIND] = (uint32_t)q->recipe.kind,
		[H_COMPUTE] = (uint32_t)q->recipe.compute,
		[H_MARGIN] = (uint32_t)q->recipe.margin,
		[H_HISTORY_LEN] = (uint32_t)q->recipe.history_len,
		[H_ALGO] = (uint32_t)q->recipe.algo,
		[H_EPSILON] = te__f32_bits(q->recipe.amax_epsilon),
		[H_FLAGS] = q->recipe.flags,
		[H_NSLOTS] = (uint32_t)q->nslots,
	};

	memcpy(p, MAGIC, MAGIC_NBYTES);
	for (int i = 0; i < H_COUNT; i++)
		put_u32(p + MAGIC_NBYTES + 4 * i, head[i]);
	for (int i = 0; i < q->nslots; i++)
		put_u32(p + HEAD_NBYTES + 4 * i, (uint32_t)q->dtype[i]);
}

size_t te_quant_nbytes(const struct te_quant *q)
{
	return HEAD_NBYTES + 4 * ((size_t)q->nslots + saved_nfloats(q) + 1);
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
		return te__fail(-EINVAL, "te_quant_save: %zu bytes, the state takes %zu", nbytes,
				te_quant_nbytes(q));
	state = te__malloc(n * sizeof(*state));
	if (!state)
		return te__fail(-ENOMEM, "te_quant_save: no memory for %zu floats", n);
	r = copy_state(q, state, q->scale, n);
	if (r >= 0) {
		put_head(q, p);
		p += HEAD_NBYTES + 4 * (size_t)q->nslots;
		for (size_t i = 0; i < n; i++, p += 4)
			put_u32(p, te__f32_bits(state[i]));
		put_u32(p, crc32_of(dst, nbytes - 4));
	}
	te__free(state);
	return r;
}

/* 0, or why these bytes are no whole blob of ours */
static int check_blob(const uint8_t *p, size_t nbytes)
{
	const size_t known = nbytes < MAGIC_NBYTES ? nbytes : MAGIC_NBYTES;
	uint64_t nslots, window, want;

	if (memcmp(p, MAGIC, known))
		return te__fail(-TE_EFORMAT, "te_quant_load: these are not quantizer states");
	if (nbytes < HEAD_NBYTES)
		return te__fail(-TE_ECORRUPT, "te_quant_load: cut short at %zu bytes", nbytes);
	p += MAGIC_NBYTES;
	if (get_u32(p + 4 * H_VERSION) != BLOB_VERSION)
		return te__fail(-TE_EFORMAT, "te_quant_load: version %u, this library knows %u",
				get_u32(p + 4 * H_VERSION), BLOB_VERSION);
	nslots = get_u32(p + 4 * H_NSLOTS);
	window = get_u32(p + 4 * H_KIND) == TE_RECIPE_DELAYED ? get_u32(p + 4 * H_HISTORY_LEN) : 0;
	want = window > HISTORY_MOST ? 0 : HEAD_NBYTES + 4 * (nslots * (2 + window) + 1);
	if (nbytes != want)
		return te__fail(-TE_ECORRUPT, "te_quant_load: %zu bytes where %llu belong", nbytes,
				(unsigned long long)want);
	p -= MAGIC_NBYTES;
	if (crc32_of(p, nbytes - 4) != get_u32(p + nbytes - 4))
		return te__fail(-TE_ECORRUPT, "te_quant_load: the checksum does not fit");
	return 0;
}

int te_quant_load(struct te_quant *q, const void *src, size_t nbytes)
{
	const size_t n = q ? saved_nfloats(q) : 0;
	const uint8_t *p = src;
	size_t head_nbytes;
	uint8_t *head;
	float *state;
	int r;

	if (!q || !src)
		return te__fail(-EINVAL, "te_quant_load: an argument is NULL");
	r = check_blob(p, nbytes);
	if (r < 0)
		return r;
	head_nbytes = HEAD_NBYTES + 4 * (size_t)q->nslots;
	head = te__malloc(head_nbytes);
	state = te__malloc(n * sizeof(*state));
	if (!head || !state) {
		r = te__fail(-ENOMEM, "te_quant_load: no memory for %zu floats", n);
		goto free;
	}
	put_head(q, head);
	if (nbytes != te_quant_nbytes(q) || memcmp(head, p, head_nbytes)) {
		r = te__fail(-EINVAL, "te_quant_load: saved with another recipe or other slots");
		goto free;
	}
	p += head_nbytes;
	for (size_t i = 0; i < n; i++)
		state[i] = te__f32_from_bits(get_u32(p + 4 * i));
	r = copy_state(q, q->scale, state, n);
free:
	te__free(state);
	te__free(head);
	return r;
}

size_t te__quant_device_nbytes(const struct te_quant *q)
{
	return ((size_t)q->nslots + state_nfloats(q)) * sizeof(float);
}

int te__quant_regions(const struct te_quant *q, te_region_fn fn, void *arg)
{
	const struct te_region state = { "quantizers", TE_REGION_DEVICE, q->fmt_max,
					 te__quant_device_nbytes(q) };

	return fn(arg, &state);
}
