/*
 * t/ops/kernel_calls_cached.c - attention to a cache of keys and values, against attention on whole
 * sequences.
 */
#include "config.h"

#include <math.h>

#include "kernel_calls_cases.h"
#include "tt_num.h"

#define NSEQS 4

static struct te_kernel_attention_cached_opts o;
static int64_t cols, width; /* of x, of y */
static int64_t len[NSEQS], page, npages, max_pages;
static struct te_tensor *whole[NSEQS], *want[NSEQS], *k, *v;
static int32_t table[4096];
static uint32_t *noutside;

static struct te_tensor *shaped(enum te_dtype dtype, int64_t a, int64_t b, int64_t c)
{
	const struct te_spec s = { dtype, 3, { a, b, c } };

	return kc_reshaped(kc_poison(dtype, a * b, c), &s);
}

static struct te_tensor *ints(const int32_t *p, int64_t rows, int64_t n)
{
	struct te_tensor *t = kc_zeros(TE_DTYPE_INT32, rows, n);

	DO(te_tensor_write(t, p, te_tensor_nbytes(t)));
	return t;
}

/* p [n] to numbers that E4M3 has times a power of two, the least with which none is above 448 */
static void round_head(float *p, int64_t n)
{
	double amax = 0;
	int e = -127;

	for (int64_t i = 0; i < n; i++)
		amax = fmax(amax, fabs((double)p[i]));
	while (ldexp(448.0, e) < amax)
		e++;
	for (int64_t i = 0; i < n; i++)
		p[i] = ldexpf(tt_round(TE_DTYPE_E4M3, ldexpf(p[i], -e)), e);
}

/* keys and values of x as a cache of this type has them */
static void round_kv(struct te_tensor *x, enum te_dtype cache)
{
	float *p;

	if (te_tensor_dtype(x) == cache)
		return;
	p = tt_tensor_get(x);
	for (int64_t i = 0; i < te_tensor_nelems(x); i++)
		if (i % cols >= width && cache == TE_DTYPE_BF16)
			p[i] = te_bf16_decode(te_bf16_encode(p[i]));
		else if (i % cols >= width && i % o.head_dim == 0)
			round_head(p + i, o.head_dim);
	tt_tensor_set(x, p);
	free(p);
}

static struct te_tensor *of_heads(float lo, float hi)
{
	struct te_tensor *t = kc_zeros(TE_DTYPE_FP32, 1, o.nheads);
	float *x = malloc((size_t)o.nheads * sizeof(*x));

	for (int32_t h = 0; h < o.nheads; h++)
		x[h] = tt_rand_float(lo, hi);
	tt_tensor_set(t, x);
	free(x);
	return t;
}

/* sequences, their attention as a whole, and a poisoned cache for them. scores: 1: slopes,
 * 2: sinks */
static void begin(enum te_dtype cache, int paged, int scores)
{
	struct te_kernel_attend_opts full = TE_KERNEL_ATTEND_OPTS_INIT;
	int64_t most = 1, free_page = 0;

	o = (struct te_kernel_attention_cached_opts)TE_KERNEL_ATTENTION_CACHED_OPTS_INIT;
	full.nkv = o.nkv = (int32_t)tt_rand_int(1, 3);
	full.nheads = o.nheads = o.nkv * (int32_t)tt_rand_int(1, 5);
	full.head_dim = o.head_dim = (int32_t)tt_rand_int(1, 256);
	full.scale = o.scale = tt_rand_int(0, 1) ? 0.0f : 0.3f;
	full.window = o.window = tt_rand_int(0, 1) ? 0 : (int32_t)tt_rand_int(1, 100);
	full.softcap = o.softcap = tt_rand_int(0, 2) ? 0.0f : 3.0f;
	if (scores & 1)
		full.slopes = o.slopes = of_heads(0.0f, 0.1f);
	if (scores & 2)
		full.sinks = o.sinks = of_heads(-3.0f, 6.0f);
	cols = ((int64_t)o.nheads + 2 * o.nkv) * o.head_dim;
	full.k_at = width = (int64_t)o.nheads * o.head_dim;
	full.v_at = full.k_at + (int64_t)o.nkv * o.head_dim;
	npages = 0;
	page = paged ? tt_rand_int(1, 70) : 0;
	for (int s = 0; s < NSEQS; s++) {
		struct te_spec spec = { kc_type, 3, { 1, 0, cols } };
		struct te_tensor *lse;

		spec.shape[1] = len[s] = tt_rand_int(1, 150);
		lse = kc_poison(TE_DTYPE_FP32, o.nheads, len[s]);
		whole[s] = kc_reshaped(kc_normal(kc_type, len[s], cols), &spec);
		round_kv(whole[s], cache);
		spec.shape[2] = width;
		want[s] = kc_reshaped(kc_poison(kc_type, len[s], width), &spec);
		DO(te_kernel_attend_forward(st, whole[s], whole[s], whole[s], want[s], lse, &full));
		most = len[s] > most ? len[s] : most;
		npages += paged ? (len[s] + page - 1) / page : 1;
	}
	if (!paged)
		page = most + tt_rand_int(0, 9);
	max_pages = (most + page - 1) / page;
	npages += paged ? 2 : 0;
	k = shaped(cache, npages, page, o.nkv * o.head_dim);
	v = shaped(cache, npages, page, o.nkv * o.head_dim);
	if (cache == TE_DTYPE_E4M3) {
		o.k_scale = kc_poison(TE_DTYPE_UINT8, npages * page, o.nkv);
		o.v_scale = kc_poison(TE_DTYPE_UINT8, npages, page * o.nkv);
	}
	noutside = kc_ws(sizeof(*noutside));
	DO(te_fill(st, noutside, 0, sizeof(*noutside)));
	o.noutside = noutside;
	if (!paged)
		return;
	/* pages in descending order, alternately of each sequence; no other entry is read */
	memset(table, 0x99, sizeof(table));
	for (int64_t i = 0; i < max_pages; i++)
		for (int s = 0; s < NSEQS; s++)
			if (i * page < len[s])
				table[s * max_pages + i] = (int32_t)(npages - 1 - free_page++);
	o.pages = ints(table, NSEQS, max_pages);
}

static uint32_t outside(void)
{
	uint32_t n;

	DO(te_copy(st, &n, noutside, sizeof(n)));
	DO(te_stream_sync(st));
	return n;
}

/* rows of a call, and y of them */
static struct te_tensor *run(const char *x, const int32_t *seq, const int32_t *pos, int64_t n,
			     int replay)
{
	struct te_tensor *tx = kc_poison(kc_type, n, cols), *y = kc_poison(kc_type, n, width);
	struct te_tensor *ts = ints(seq, 1, n), *tp = ints(pos, 1, n);

	DO(te_tensor_write(tx, x, te_tensor_nbytes(tx)));
	kc_begin(replay);
	DO(te_kernel_attention_cached(st, tx, ts, tp, k, v, y, &o));
	kc_end(replay);
	DO(te_stream_sync(st));
	return y;
}

/* each call has some tokens of some sequences, and rows of padding. most: tokens of a sequence */
static void feed(int64_t most, int replay)
{
	const size_t es = te_dtype_nbytes(kc_type), xrow = (size_t)cols * es;
	const size_t yrow = (size_t)width * es;
	int64_t done[NSEQS] = { 0 };
	const char *all[NSEQS], *right[NSEQS];
	int left = 1;

	for (int s = 0; s < NSEQS; s++) {
		all[s] = tt_bytes(te_tensor_data(whole[s]), te_tensor_nbytes(whole[s]));
		right[s] = tt_bytes(te_tensor_data(want[s]), te_tensor_nbytes(want[s]));
	}
	for (int call = 0; left && call < 20; call++) {
		const int64_t room = NSEQS * 160;
		char *x = malloc((size_t)room * xrow), *y;
		int32_t seq[NSEQS * 160], pos[NSEQS * 160];
		int64_t n = 0;

		left = 0;
		for (int s = 0; s < NSEQS; s++) {
			int64_t c = tt_rand_int(0, most);

			if (tt_rand_int(0, 1)) {
				tt_poison(x + (size_t)n * xrow, xrow);
				seq[n] = -(int32_t)tt_rand_int(1, 100);
				pos[n++] = (int32_t)tt_rand_int(-5, 1 << 20);
			}
			for (; c > 0 && done[s] < len[s]; c--, n++) {
				memcpy(x + (size_t)n * xrow, all[s] + (size_t)done[s] * xrow, xrow);
				seq[n] = s;
				pos[n] = (int32_t)done[s]++;
			}
			left |= done[s] < len[s];
		}
		if (!n) {
			free(x);
			continue;
		}
		y = tt_bytes(te_tensor_data(run(x, seq, pos, n, replay)), (size_t)n * yrow);
		for (int64_t i = 0; i < n; i++)
			for (size_t b = 0; b < yrow; b++) {
				const char w = seq[i] < 0 ? 0 :
						       right[seq[i]][(size_t)pos[i] * yrow + b];

				ck_assert_msg(y[(size_t)i * yrow + b] == w,
					      "heads %d of %d, kv %d, page %lld: byte %zu of "
					      "position %d of sequence %d is %02x, not %02x",
					      o.nheads, o.head_dim, o.nkv, (long long)page, b,
					      pos[i], seq[i], y[(size_t)i * yrow + b] & 0xff,
					      w & 0xff);
			}
		free(x);
		free(y);
	}
	for (int s = 0; s < NSEQS; s++) {
		free((void *)(uintptr_t)all[s]);
		free((void *)(uintptr_t)right[s]);
	}
	ck_assert_uint_eq(outside(), 0);
}

KC_CASE(cached);

/* _i: replay, type, paged, small parts, type of the cache */
TEST_EACH(cached, cached_equals_whole, ON_HOST ? 48 : 0, .parts = 5)
{
	const enum te_dtype cache = _i >> 5 ? TE_DTYPE_E4M3 : kc_types[_i >> 4];

	kc_type = kc_types[_i >> 1 & 1];
	if (kc_type == TE_DTYPE_BF16 && cache == TE_DTYPE_FP32)
		kc_type = TE_DTYPE_FP32;
	begin(cache, _i >> 2 & 1, _i % 3);
	feed(_i >> 3 & 1 ? 3 : 150, _i & 1);
}

/* one row each, with what is wrong; all of it is in device memory. _i: paged */
TEST_EACH(cached, outside_is_counted_and_not_accessed, ON_HOST ? 2 : 0)
{
	const struct {
		int32_t seq, pos;
	} bad[] = {
		{ NSEQS, 0 }, { INT32_MAX, 0 }, { 0, -1 }, { 0, INT32_MIN }, { 0, INT32_MAX },
		{ 1, (int32_t)(1 << 16) }, { 2, 5 },
	};
	int64_t n = (int64_t)TT_LEN(bad);
	int32_t seq[TT_LEN(bad)], pos[TT_LEN(bad)];
	char *was[2], *now[2], *x, *y;

	kc_type = kc_types[tt_rand_int(0, 1)];
	begin(kc_type, _i, 0);
	if (_i) { /* sequence 2 has an entry that is no page */
		table[2 * max_pages] = tt_rand_int(0, 1) ? (int32_t)npages : -1;
		o.pages = ints(table, NSEQS, max_pages);
	} else {
		n--;
	}
	was[0] = tt_bytes(te_tensor_data(k), te_tensor_nbytes(k));
	was[1] = tt_bytes(te_tensor_data(v), te_tensor_nbytes(v));
	for (int64_t i = 0; i < n; i++) {
		seq[i] = bad[i].seq;
		pos[i] = bad[i].pos;
	}
	x = calloc((size_t)(n * cols), 4);
	y = tt_bytes(te_tensor_data(run(x, seq, pos, n, 0)),
		     (size_t)(n * width) * te_dtype_nbytes(kc_type));
	for (size_t i = 0; i < (size_t)(n * width) * te_dtype_nbytes(kc_type); i++)
		ck_assert_int_eq(y[i], 0);
	ck_assert_int_eq(outside(), n);
	now[0] = tt_bytes(te_tensor_data(k), te_tensor_nbytes(k));
	now[1] = tt_bytes(te_tensor_data(v), te_tensor_nbytes(v));
	for (int i = 0; i < 2; i++) {
		ck_assert_mem_eq(was[i], now[i], te_tensor_nbytes(k));
		free(was[i]);
		free(now[i]);
	}
	free(x);
	free(y);
}

/* a cache of E4M3 without codes by rows; released by the caller */
static struct te_tensor *columnwise(void)
{
	const int64_t shape[3] = { npages, page, (int64_t)o.nkv * o.head_dim };
	struct te_tensor_opts with = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;

	with.flags = TE_TENSOR_COLWISE;
	DO(te_tensor_create(ctx, TE_DTYPE_E4M3, 3, shape, &with, &t));
	return t;
}

/* scores of -inf, whose sum of probabilities is 0: as in attention to whole sequences */
TEST_IF(cached, keys_that_are_not_seen_give_zeros, ON_HOST)
{
	const float row[3] = { -2e30f, 2e30f, 1.0f };
	int32_t zero[1] = { 0 };
	struct te_tensor *x, *y[2], *lse, *s;
	struct te_kernel_attention_opts of = TE_KERNEL_ATTENTION_OPTS_INIT;

	o = (struct te_kernel_attention_cached_opts)TE_KERNEL_ATTENTION_CACHED_OPTS_INIT;
	o.nheads = o.nkv = o.head_dim = of.nheads = of.nkv = of.head_dim = 1;
	x = kc_zeros(TE_DTYPE_FP32, 1, 3);
	DO(te_tensor_write(x, row, sizeof(row)));
	s = ints(zero, 1, 1);
	lse = kc_poison(TE_DTYPE_FP32, 1, 1);
	for (int i = 0; i < 2; i++)
		y[i] = kc_poison(TE_DTYPE_FP32, 1, 1);
	DO(te_kernel_attention_forward(st, x, y[0], lse, &of));
	DO(te_kernel_attention_cached(st, x, s, ints(zero, 1, 1), shaped(TE_DTYPE_FP32, 1, 4, 1),
				      shaped(TE_DTYPE_FP32, 1, 4, 1), y[1], &o));
	kc_same("y", y[1], y[0]);
}

TEST_IF(cached, cached_names_the_argument, ON_HOST)
{
	struct te_tensor *x, *y, *s, *p, *small, *other, *columns;
	int32_t zero[2] = { 0 };

	kc_type = TE_DTYPE_FP32;
	begin(kc_type, 1, 0);
	x = kc_normal(kc_type, 2, cols);
	y = kc_poison(kc_type, 2, width);
	s = ints(zero, 1, 2);
	p = ints(zero, 2, 1);
	small = ints(zero, 1, 1);
	other = shaped(TE_DTYPE_FP32, page, npages, o.nkv * o.head_dim);
#define CALL(code, text, ...)                                           \
	fails(te_kernel_attention_cached(st, __VA_ARGS__, &o), code, \
	      "te_kernel_attention_cached: " text)
	CALL(-EINVAL, "x is NULL", NULL, s, p, k, v, y);
	CALL(-EINVAL, "sequence is NULL", x, NULL, p, k, v, y);
	CALL(-EINVAL, "position is NULL", x, s, NULL, k, v, y);
	CALL(-EINVAL, "k is NULL", x, s, p, NULL, v, y);
	CALL(-EINVAL, "v is NULL", x, s, p, k, NULL, y);
	CALL(-EINVAL, "y is NULL", x, s, p, k, v, NULL);
	CALL(-TE_EDTYPE, "x is int32", s, s, p, k, v, y);
	CALL(-TE_EDTYPE, "sequence is fp32, not int32", x, x, p, k, v, y);
	CALL(-TE_ESHAPE, "position has 1 elements, not 2", x, s, small, k, v, y);
	CALL(-TE_ESHAPE, "k has 2 extents", x, s, p, y, v, y);
	CALL(-EINVAL, "k is the memory of v", x, s, p, k, k, y);
	if (page != npages)
		CALL(-TE_ESHAPE, "v has other extents than k", x, s, p, k, other, y);
	o.pages = x;
	CALL(-TE_EDTYPE, "pages is fp32, not int32", x, s, p, k, v, y);
	o.pages = NULL;
	o.k_scale = kc_zeros(TE_DTYPE_UINT8, npages * page, o.nkv);
	CALL(-EINVAL, "k_scale is given, but k is fp32, not e4m3", x, s, p, k, v, y);
	other = shaped(TE_DTYPE_E4M3, npages, page, o.nkv * o.head_dim);
	CALL(-TE_EDTYPE, "v is fp32, not e4m3", x, s, p, other, v, y);
	o.v_scale = o.k_scale;
	v = shaped(TE_DTYPE_E4M3, npages, page, o.nkv * o.head_dim);
	CALL(-EINVAL, "k_scale is the memory of v_scale", x, s, p, other, v, y);
	o.v_scale = NULL;
	CALL(-EINVAL, "v_scale is NULL", x, s, p, other, v, y);
	o.v_scale = kc_zeros(TE_DTYPE_UINT8, npages * page, o.nkv + 1);
	CALL(-TE_ESHAPE, "v_scale has ", x, s, p, other, v, y);
	o.v_scale = kc_zeros(TE_DTYPE_UINT8, npages * page, o.nkv);
	/* codes by columns only */
	columns = columnwise();
	CALL(-EINVAL, "k has no row-wise codes", x, s, p, columns, v, y);
	CALL(-EINVAL, "v has no row-wise codes", x, s, p, other, columns, y);
	te_tensor_unref(columns);
	o.sinks = x;
	CALL(-TE_ESHAPE, "sinks has ", x, s, p, other, v, y);
	o.sinks = NULL;
	o.slopes = s;
	CALL(-TE_EDTYPE, "slopes is int32, not fp32", x, s, p, other, v, y);
	o.slopes = NULL;
	o.window = -1;
	CALL(-EINVAL, "window is -1", x, s, p, k, v, y);
	o.window = 0;
	o.head_dim = 0;
	CALL(-EINVAL, "head_dim is 0", x, s, p, k, v, y);
	fails(te_kernel_attention_cached(NULL, x, s, p, k, v, y, NULL), -EINVAL,
	      "te_kernel_attention_cached");
#undef CALL
}
