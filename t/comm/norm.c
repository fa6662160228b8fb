/*
 * t/comm/norm.c - te_comm_allreduce_norm(3) with threads as ranks, on either backend: all bytes of
 * memory are compared with those of a loop. Values are such that sums are exact: in FP64 on the
 * host, in FP32 on a GPU.
 */
#include "config.h"

#include <float.h>
#include <math.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecore/base/dtype_inline.h"
#include "threads.h"
#include "tt_num.h"

#define POOL ((uint64_t)4 << 20)
#define PACKETS "512k"
#define NONE ((size_t)-1)

/* ---- a call: arrays are at offsets of memory that has nothing else ---- */

struct call {
	int backward;
	enum te_dtype dtype, qdtype;
	int64_t rows, cols;
	enum te_comm_algorithm algorithm;
	int32_t max_blocks;
	enum te_comm_scaling scaling;
	uint32_t flags;
	float eps, amax_epsilon;
	uint64_t k; /* of value() */
	int symmetric, recorded, unaligned;
	int little; /* a rank's device has no shared memory for a row */
	size_t nbytes;
	size_t in, residual, gamma, x, x_rstd, scale; /* offsets; or NONE */
	size_t sum, residual_out, y, rstd, codes, scale_inv, amax, ws;
	size_t ws_nbytes;
};

static size_t es_of(const struct call *c)
{
	return te_dtype_nbytes(c->dtype);
}

static int64_t count_of(const struct call *c)
{
	return c->rows * c->cols;
}

static int is_packets(const struct call *c)
{
	return !c->unaligned && !c->little && (size_t)c->cols * es_of(c) % 16 == 0;
}

static size_t put(struct call *c, size_t nbytes, size_t align)
{
	const size_t at = (c->nbytes + align - 1) / align * align;

	c->nbytes = at + nbytes + 32; /* bytes that no array has */
	return at;
}

/* an array of T: aligned to packets, or to elements only */
static size_t put_t(struct call *c)
{
	const size_t n = (size_t)count_of(c) * es_of(c);

	return c->unaligned ? put(c, n + 16, 16) + es_of(c) : put(c, n, 16);
}

static size_t put_maybe(struct call *c, uint64_t *d)
{
	return threads_draw(d, 3) ? put_t(c) : NONE;
}

static int64_t scale_words(const struct call *c)
{
	if (c->scaling == TE_COMM_SCALING_BLOCK)
		return te_scaling_nfloats(TE_SCALING_1X128, c->rows, c->cols);
	return c->scaling == TE_COMM_SCALING_TENSOR ? 1 : c->rows;
}

static void place_forward(struct call *c, uint64_t *d)
{
	c->sum = threads_draw(d, 5) == 0 ? c->in : put_maybe(c, d);
	c->residual_out = c->residual != NONE && threads_draw(d, 2) ? c->residual : put_maybe(c, d);
	c->y = threads_draw(d, 5) == 0 && c->sum != c->in ? c->in : put_maybe(c, d);
	c->rstd = threads_draw(d, 2) ? put(c, (size_t)c->rows * 4, 4) : NONE;
	c->codes = threads_draw(d, 2) ? put(c, (size_t)count_of(c), 16) : NONE;
	c->amax = threads_draw(d, 2) ? put(c, 4, 4) : NONE;
	if (c->codes != NONE) {
		c->scale_inv = put(c, (size_t)scale_words(c) * 4, 4);
		c->scale = put(c, 4, 4);
	}
	if (c->y == NONE && c->codes == NONE && c->residual_out == NONE && c->sum == NONE)
		c->y = put_t(c);
}

static void place_backward(struct call *c, uint64_t *d)
{
	c->x = put_t(c);
	c->x_rstd = put(c, (size_t)c->rows * 4, 4);
	c->sum = threads_draw(d, 3) == 0 ? c->in : put_maybe(c, d);
	c->y = threads_draw(d, 3) == 0 && c->sum != c->in ? c->in :
	       threads_draw(d, 3) == 0 && c->residual != NONE ? c->residual :
							put_t(c);
	if (!(c->flags & TE_COMM_NORM_SHARDED))
		return;
	c->residual_out = threads_draw(d, 2) && c->residual != NONE && c->y != c->residual ?
				  c->residual :
				  put_maybe(c, d);
	if (c->residual_out != NONE && c->y != c->in && threads_draw(d, 3) == 0)
		c->y = NONE;
}

/*
 * On a GPU numbers are small, and those that a forward call normalizes are 8 or -8: the mean of
 * their squares and eps add up to a power of 4, and all that follows is exact as well. The up to
 * 2500 products of a backward call are multiples of 2^-9 of either sign, below 2^9.
 */
static int is_small(void)
{
	return strcmp(backend, "host") != 0;
}

static struct call call_draw(uint64_t *d, uint64_t k)
{
	struct call c = { .k = k };
	const uint64_t kind = threads_draw(d, 8);

	c.backward = (int)threads_draw(d, 3) == 0;
	c.dtype = (enum te_dtype)threads_draw(d, 3); /* FP32, BF16, FP16 */
	c.qdtype = threads_draw(d, 2) ? TE_DTYPE_E4M3 : TE_DTYPE_E5M2;
	c.rows = 1 + (int64_t)threads_draw(d, kind == 0 ? 200 : 12);
	c.cols = 1 + (int64_t)threads_draw(d, kind == 1 ? 2500 : 300);
	if (kind > 2)
		c.cols = (c.cols + 7) / 8 * 8;
	c.unaligned = kind == 3;
	c.little = kind == 4;
	c.algorithm = (enum te_comm_algorithm)threads_draw(d, TE_COMM_STAGED + 1);
	c.max_blocks = (int32_t)threads_draw(d, 4);
	c.scaling = (enum te_comm_scaling)threads_draw(d, 3);
	c.eps = is_small() ? (threads_draw(d, 2) ? 192 : 960) : threads_draw(d, 2) ? 1e-5f : 1e-3f;
	c.amax_epsilon = threads_draw(d, 2) ? 0.0f : 3.0f;
	c.flags = (uint32_t)(threads_draw(d, 2) ? TE_COMM_NORM_ZERO_CENTERED : 0);
	c.symmetric = c.algorithm == TE_COMM_ZERO_COPY || threads_draw(d, 2);
	c.recorded = threads_draw(d, 3) == 0;
	if (!c.backward)
		c.flags |= (uint32_t)(threads_draw(d, 2) ? TE_COMM_NORM_POW2 : 0);
	/* what only packets allow; refusals have a test of their own */
	if (!is_packets(&c) && c.dtype == TE_DTYPE_FP16)
		c.dtype = TE_DTYPE_BF16;
	if (!is_packets(&c) && c.scaling == TE_COMM_SCALING_TOKEN)
		c.scaling = TE_COMM_SCALING_BLOCK;
	if (threads_draw(d, 2))
		c.flags |= TE_COMM_NORM_SHARDED;
	if (c.flags & TE_COMM_NORM_SHARDED && c.dtype == TE_DTYPE_FP16 &&
	    c.scaling == TE_COMM_SCALING_BLOCK)
		c.scaling = TE_COMM_SCALING_TOKEN;
	c.residual = c.x = c.x_rstd = c.scale = c.sum = c.residual_out = NONE;
	c.y = c.rstd = c.codes = c.scale_inv = c.amax = NONE;
	put(&c, 0, 16);
	c.in = put_t(&c);
	c.residual = put_maybe(&c, d);
	c.gamma = put(&c, (size_t)c.cols * 4 + 16, 16) + (c.unaligned ? 4 : 0);
	if (c.backward)
		place_backward(&c, d);
	else
		place_forward(&c, d);
	c.ws_nbytes = te_comm_norm_ws_nbytes(c.rows, c.cols, c.dtype);
	c.ws = put(&c, c.ws_nbytes, 256);
	return c;
}

/* ---- values ---- */

enum { IN, RESIDUAL, GAMMA, X, RSTD };

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 29;
}

static uint64_t seed;

/* few bits, so that sums of products of them have no rounding in FP64; sums of T have */
static float value(const struct call *c, int rank, int what, int64_t i)
{
	static const int most[] = { [TE_DTYPE_FP32] = 32767, [TE_DTYPE_BF16] = 127,
				    [TE_DTYPE_FP16] = 1023 };
	const uint64_t x = mix(mix(seed + c->k * 64 + (uint64_t)(rank * 8 + what)) +
			       (uint64_t)i * 0x9e3779b97f4a7c15u);
	const int m = is_small() ? 15 : most[c->dtype];

	if (is_small() && !c->backward &&
	    (what == RESIDUAL || (what == IN && c->residual == NONE && rank == threads_n - 1))) {
		float r = x & 1 ? 8.0f : -8.0f;

		for (int q = 0; q < threads_n - (what == IN); q++)
			r -= value(c, q, IN, i);
		return r;
	}
	if (what == GAMMA || what == RSTD)
		return ldexpf(x & 1 && what == GAMMA ? -1.0f : 1.0f, (int)(x >> 8 & 3) - 2);
	if (what == X)
		return (float)((int)(x % 31) - 15) / 4;
	return (float)((int)(x % (uint64_t)(2 * m + 1)) - m) / 8;
}

/* whether the rank has the row of the residual */
static int owns(const struct call *c, int rank, int64_t row)
{
	const int64_t each = c->rows / threads_n, more = c->rows % threads_n;
	const int64_t first = rank * each + (rank < more ? rank : more);

	return !(c->flags & TE_COMM_NORM_SHARDED) ||
	       (row >= first && row < first + each + (rank < more));
}

/* the memory of a rank before the call: what is no input has any bytes */
static void fill(const struct call *c, int rank, unsigned char *m)
{
	const int64_t n = count_of(c);

	for (size_t i = 0; i < c->nbytes; i++)
		m[i] = (unsigned char)mix(seed + c->k +
					  (i * 8 + (size_t)rank) * 0x9e3779b97f4a7c15u);
	for (int64_t i = 0; i < n; i++) {
		tt_set(c->dtype, m + c->in, i, value(c, rank, IN, i));
		if (c->residual != NONE && owns(c, rank, i / c->cols))
			tt_set(c->dtype, m + c->residual, i, value(c, 0, RESIDUAL, i));
		if (c->x != NONE && owns(c, rank, i / c->cols))
			tt_set(c->dtype, m + c->x, i, value(c, 0, X, i));
	}
	for (int64_t i = 0; i < c->cols; i++)
		tt_set(TE_DTYPE_FP32, m + c->gamma, i, value(c, 0, GAMMA, i));
	for (int64_t i = 0; i < c->rows && c->x != NONE; i++)
		if (owns(c, rank, i))
			tt_set(TE_DTYPE_FP32, m + c->x_rstd, i, value(c, 0, RSTD, i));
	if (c->scale != NONE)
		tt_set(TE_DTYPE_FP32, m + c->scale, 0, 1.5f);
	if (c->amax != NONE)
		tt_set(TE_DTYPE_FP32, m + c->amax, 0, c->k % 2 ? 0.0f : 2.0f);
}

/* ---- what is expected, in the memory of the rank ---- */

static float sum_of(const struct call *c, int64_t i)
{
	float s = value(c, 0, IN, i);

	for (int r = 1; r < threads_n; r++)
		s += value(c, r, IN, i);
	return tt_round(c->dtype, s);
}

static float gain_of(const struct call *c, int64_t i)
{
	const float g = value(c, 0, GAMMA, i);

	return c->flags & TE_COMM_NORM_ZERO_CENTERED ? 1.0f + g : g;
}

static float scale_of(const struct call *c, float amax)
{
	const float a = amax < c->amax_epsilon ? c->amax_epsilon : amax;
	float s = te_dtype_max(c->qdtype) / a;

	if (isinf(s))
		s = FLT_MAX;
	if (a == 0.0f)
		s = 1.0f;
	return c->flags & TE_COMM_NORM_POW2 ? ldexpf(1.0f, ilogbf(s)) : s;
}

/* codes of n elements from column at of a row, and their scale */
static void encode(const struct call *c, unsigned char *m, const float *y, int64_t row, int64_t at,
		   int64_t n)
{
	float amax = 0.0f, scale;
	int64_t word = 0;

	for (int64_t i = at; i < at + n; i++)
		amax = fmaxf(amax, fabsf(y[i]));
	scale = c->scaling == TE_COMM_SCALING_TENSOR ? tt_get(TE_DTYPE_FP32, m + c->scale, 0) :
						       scale_of(c, amax);
	if (c->scaling == TE_COMM_SCALING_TOKEN)
		word = row;
	if (c->scaling == TE_COMM_SCALING_BLOCK)
		word = te_scaling_index(TE_SCALING_1X128, c->rows, c->cols, row, at);
	tt_set(TE_DTYPE_FP32, m + c->scale_inv, word, 1.0f / scale);
	for (int64_t i = at; i < at + n; i++)
		m[c->codes + (size_t)(row * c->cols + i)] =
			c->qdtype == TE_DTYPE_E4M3 ? te__e4m3_encode(y[i] * scale) :
						     te__e5m2_encode(y[i] * scale);
}

static void expect_row(const struct call *c, unsigned char *m, int rank, int64_t row, float *v)
{
	const int64_t group = c->scaling == TE_COMM_SCALING_BLOCK ? 128 : c->cols;
	float rstd, amax = 0.0f;
	double sum = 0.0;

	for (int64_t i = 0; i < c->cols; i++) {
		const int64_t at = row * c->cols + i;
		const float s = sum_of(c, at);

		v[i] = c->residual == NONE ? s : tt_round(c->dtype, s + value(c, 0, RESIDUAL, at));
		sum += (double)v[i] * (double)v[i];
		if (c->sum != NONE)
			tt_set(c->dtype, m + c->sum, at, s);
		if (c->residual_out != NONE && owns(c, rank, row))
			tt_set(c->dtype, m + c->residual_out, at, v[i]);
	}
	rstd = (float)(1.0 / sqrt(sum / (double)c->cols + (double)c->eps));
	for (int64_t i = 0; i < c->cols; i++) {
		v[i] = tt_round(c->dtype, v[i] * rstd * gain_of(c, i));
		amax = fmaxf(amax, fabsf(v[i]));
		if (c->y != NONE)
			tt_set(c->dtype, m + c->y, row * c->cols + i, v[i]);
	}
	if (c->rstd != NONE)
		tt_set(TE_DTYPE_FP32, m + c->rstd, row, rstd);
	if (c->amax != NONE && amax > tt_get(TE_DTYPE_FP32, m + c->amax, 0))
		tt_set(TE_DTYPE_FP32, m + c->amax, 0, amax);
	for (int64_t i = 0; i < c->cols && c->codes != NONE; i += group)
		encode(c, m, v, row, i, group < c->cols - i ? group : c->cols - i);
}

static void expect_row_backward(const struct call *c, unsigned char *m, int rank, int64_t row,
				float *v)
{
	const float rstd = value(c, 0, RSTD, row);
	double sum = 0.0;
	float mean;

	for (int64_t i = 0; i < c->cols; i++) {
		const int64_t at = row * c->cols + i;

		v[i] = sum_of(c, at);
		sum += (double)(v[i] * gain_of(c, i)) * (double)(value(c, 0, X, at) * rstd);
	}
	mean = (float)(sum / (double)c->cols);
	for (int64_t i = 0; i < c->cols; i++) {
		const int64_t at = row * c->cols + i;
		float dx = v[i] * gain_of(c, i) - value(c, 0, X, at) * rstd * mean;

		dx *= rstd;
		if (c->residual != NONE)
			dx += value(c, 0, RESIDUAL, at);
		if (c->sum != NONE && owns(c, rank, row))
			tt_set(c->dtype, m + c->sum, at, v[i]);
		if (c->residual_out != NONE && owns(c, rank, row))
			tt_set(c->dtype, m + c->residual_out, at, dx);
		if (c->y != NONE)
			tt_set(c->dtype, m + c->y, at, dx);
	}
}

static void expect(const struct call *c, unsigned char *m, int rank)
{
	float *v = malloc((size_t)c->cols * sizeof(*v));

	/* padding of the scales */
	if (c->codes != NONE && c->scaling == TE_COMM_SCALING_BLOCK)
		memset(m + c->scale_inv, 0, (size_t)scale_words(c) * 4);
	for (int64_t row = 0; row < c->rows; row++)
		if (c->backward)
			expect_row_backward(c, m, rank, row, v);
		else
			expect_row(c, m, rank, row, v);
	free(v);
}

/* ---- calls ---- */

static void *at(void *p, size_t offset)
{
	return offset == NONE ? NULL : (char *)p + offset;
}

static struct te_comm_norm_opts forward_opts(const struct call *c, void *p)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;

	o.algorithm = c->algorithm;
	o.max_blocks = c->max_blocks;
	o.flags = c->flags;
	o.eps = c->eps;
	o.gamma = at(p, c->gamma);
	o.residual = at(p, c->residual);
	o.sum = at(p, c->sum);
	o.residual_out = at(p, c->residual_out);
	o.y = at(p, c->y);
	o.rstd = at(p, c->rstd);
	o.codes = at(p, c->codes);
	o.qdtype = c->qdtype;
	o.scaling = c->scaling;
	o.scale = at(p, c->scale);
	o.scale_inv = at(p, c->scale_inv);
	o.amax = at(p, c->amax);
	o.amax_epsilon = c->amax_epsilon;
	o.ws = at(p, c->ws);
	o.ws_nbytes = c->ws_nbytes;
	return o;
}

static struct te_comm_norm_backward_opts backward_opts(const struct call *c, void *p)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;

	o.algorithm = c->algorithm;
	o.max_blocks = c->max_blocks;
	o.flags = c->flags;
	o.x = at(p, c->x);
	o.rstd = at(p, c->x_rstd);
	o.gamma = at(p, c->gamma);
	o.residual = at(p, c->residual);
	o.sum = at(p, c->sum);
	o.dx = at(p, c->y);
	o.residual_out = at(p, c->residual_out);
	o.ws = at(p, c->ws);
	o.ws_nbytes = c->ws_nbytes;
	return o;
}

static int queue(struct thread_rank *r, const struct call *c, void *p)
{
	const struct te_comm_norm_opts f = forward_opts(c, p);
	const struct te_comm_norm_backward_opts b = backward_opts(c, p);
	struct te_stream *s = te_ctx_stream(r->ctx);

	return c->backward ? te_comm_allreduce_norm_backward(r->comm, s, at(p, c->in), c->rows,
							     c->cols, c->dtype, &b) :
			     te_comm_allreduce_norm(r->comm, s, at(p, c->in), c->rows, c->cols,
						    c->dtype, &f);
}

/* what the library says it will do, where this is known here */
static int explained(struct thread_rank *r, const struct call *c, void *p)
{
	const struct te_comm_norm_opts f = forward_opts(c, p);
	const struct te_comm_norm_backward_opts b = backward_opts(c, p);
	struct te_comm_choice choice = TE_COMM_CHOICE_INIT;
	const int sharded = c->flags & TE_COMM_NORM_SHARDED && threads_n > 1;
	const int latency = c->algorithm == TE_COMM_AUTO || c->algorithm == TE_COMM_TWO_SHOT ||
			    (c->algorithm == TE_COMM_ONE_SHOT && !sharded);

	STEP(EXPLAIN(r->comm, &choice,
		     .function = c->backward ? TE_COMM_CALL_ALLREDUCE_NORM_BACKWARD :
					       TE_COMM_CALL_ALLREDUCE_NORM,
		     .in = at(p, c->in), .rows = c->rows, .cols = c->cols, .dtype = c->dtype,
		     .opts = c->backward ? (const void *)&b : &f));
	if (!is_packets(c) || (!latency && threads_n > 1))
		HOLDS(!choice.fused);
	else if (threads_n == 1 || count_of(c) < 2000)
		HOLDS(choice.fused);
	HOLDS(!choice.fused || choice.nlaunches == 1);
	/* a sum, a kernel for what rows there are, a gather */
	HOLDS(choice.fused || c->backward || c->y == NONE ||
	      choice.nlaunches >= 1 + sharded + (!sharded || r->rank < c->rows));
	HOLDS(strstr(choice.reason, choice.fused ? "fused: " : "not fused: "));
	if (choice.fused && c->algorithm == TE_COMM_ONE_SHOT)
		HOLDS(choice.nsent == (uint64_t)(threads_n - 1) * (size_t)count_of(c) * es_of(c));
	if (choice.fused && sharded)
		HOLDS(choice.algorithm == TE_COMM_TWO_SHOT);
	return 0;
}

static int compare(const struct call *c, const unsigned char *want, const unsigned char *got)
{
	static const char *const names[] = { "in", "residual", "gamma", "x", "x_rstd", "scale",
					     "sum", "residual_out", "y", "rstd", "codes",
					     "scale_inv", "amax" };
	const size_t offset[] = { c->in, c->residual, c->gamma, c->x, c->x_rstd, c->scale, c->sum,
				  c->residual_out, c->y, c->rstd, c->codes, c->scale_inv, c->amax };
	const char *name = "nothing";
	size_t i = 0, begin = 0;

	while (i < c->nbytes && want[i] == got[i])
		i++;
	if (i == c->nbytes)
		return 0;
	for (size_t k = 0; k < TT_LEN(names); k++)
		if (offset[k] != NONE && offset[k] <= i && offset[k] >= begin) {
			begin = offset[k];
			name = names[k];
		}
	return te_fail(-EPROTO, "case %llu%s: [%lld, %lld] %s, algorithm %d, flags %u, scaling %d: "
		       "byte %zu after the begin of %s", (unsigned long long)c->k,
		       c->backward ? " backward" : "", (long long)c->rows, (long long)c->cols,
		       te_dtype_name(c->dtype), (int)c->algorithm, c->flags, (int)c->scaling,
		       i - begin, name);
}

static int run_one(struct thread_rank *r, const struct call *c)
{
	unsigned char *want = malloc(c->nbytes), *got = malloc(c->nbytes);
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recording *rec = NULL;
	const uint64_t smem = r->comm->coll.terms.block_smem_nbytes;
	void *p;
	int err;

	if (c->little)
		r->comm->coll.terms.block_smem_nbytes = 16;
	fill(c, r->rank, want);
	if (c->symmetric)
		STEP(te_comm_alloc(r->comm, c->nbytes, &p));
	else
		STEP(te_mem_alloc(s, c->nbytes, &p));
	STEP(te_copy(s, p, want, c->nbytes));
	STEP(te_stream_sync(s));
	STEP(explained(r, c, p));
	if (c->recorded)
		STEP(te_capture_begin(s));
	STEP(queue(r, c, p));
	r->comm->coll.terms.block_smem_nbytes = smem;
	if (c->recorded) {
		STEP(te_capture_end(s, &rec));
		STEP(te_recording_launch(rec, s));
	}
	STEP(te_stream_sync(s));
	STEP(te_comm_error(r->comm));
	STEP(te_comm_barrier(r->comm, s)); /* of zero-copy */
	STEP(te_copy(s, got, p, c->nbytes));
	STEP(te_stream_sync(s));
	expect(c, want, r->rank);
	memcpy(want + c->ws, got + c->ws, c->ws_nbytes);
	for (int64_t row = 0; row < c->rows && c->rstd != NONE; row++)
		if (!owns(c, r->rank, row)) /* undefined */
			memcpy(want + c->rstd + 4 * row, got + c->rstd + 4 * row, 4);
	err = compare(c, want, got);
	te_recording_unref(rec);
	STEP(c->symmetric ? te_comm_free(r->comm, p) : te_mem_free(s, p));
	STEP(te_stream_sync(s));
	free(want);
	free(got);
	return err;
}

static int run_many(struct thread_rank *r)
{
	uint64_t d = seed;

	/* ranks without a core of their own wait long */
	for (uint64_t k = 0; k < TT_FEWER(80) / (uint64_t)threads_n; k++) {
		const struct call c = call_draw(&d, k);

		STEP(run_one(r, &c));
	}
	return 0;
}

CASE(norm, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(norm, results_are_those_of_a_loop, THREADS_MOST + 1, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, run_many, 0, NULL);
}

/* ---- what is wrong ---- */

static _Thread_local struct te_comm_norm_opts good;
static _Thread_local const char *base;

static int wrong(struct thread_rank *r, const struct te_comm_norm_opts *o, int64_t rows,
		 int64_t cols, int dtype, int code, const char *text)
{
	struct te_comm_choice choice = TE_COMM_CHOICE_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	char message[300];

	te_error_clear();
	if (te_comm_allreduce_norm(r->comm, s, base, rows, cols, (enum te_dtype)dtype, o) != code ||
	    !strstr(te_error_detail(), text))
		return te_fail(-EPROTO, "expected \"%s\", not \"%s\"", text, te_error_detail());
	snprintf(message, sizeof(message), "%s", te_error_detail());
	HOLDS(!strncmp(message, "te_comm_allreduce_norm: ", 24));
	if (strstr(text, "ws has"))
		return 0;
	/* the same sentence, of another function */
	HOLDS(EXPLAIN(r->comm, &choice, .function = TE_COMM_CALL_ALLREDUCE_NORM, .in = base,
		      .rows = rows, .cols = cols, .dtype = (enum te_dtype)dtype,
		      .opts = o) == code);
	HOLDS(!strcmp(strchr(te_error_detail(), ':'), strchr(message, ':')));
	return 0;
}

#define WRONG(code, text, rows, cols, dtype, ...)                      \
	do {                                                           \
		struct te_comm_norm_opts o = good;                     \
		__VA_ARGS__;                                           \
		STEP(wrong(r, &o, rows, cols, dtype, code, text));     \
	} while (0)

#define BF16 TE_DTYPE_BF16

static int bad_forward(struct thread_rank *r, char *p)
{
	struct te_stream *s = te_ctx_stream(r->ctx);

	good = (struct te_comm_norm_opts)TE_COMM_NORM_OPTS_INIT;
	good.gamma = (float *)(void *)(p + 4096);
	good.residual = p + 8192;
	good.y = p + 12288;
	base = p;
	WRONG(-TE_EDTYPE, "dtype is e4m3, not fp32, bf16 or fp16", 4, 64, TE_DTYPE_E4M3, );
	WRONG(-EINVAL, "[4, 0] elements", 4, 0, BF16, );
	WRONG(-EINVAL, "[-1, 64] elements", -1, 64, BF16, );
	WRONG(-EINVAL, "at most 2^40", (int64_t)1 << 40, 2, BF16, );
	WRONG(-EINVAL, "at most 2^40", INT64_MAX, INT64_MAX, BF16, );
	WRONG(-EINVAL, "unknown flags 0x8", 4, 64, BF16, o.flags = 8);
	WRONG(-EINVAL, "max_blocks is -1", 4, 64, BF16, o.max_blocks = -1);
	WRONG(-EINVAL, "algorithm 99 is unknown", 4, 64, BF16,
	      o.algorithm = (enum te_comm_algorithm)99);
	WRONG(-EINVAL, "eps is -1", 4, 64, BF16, o.eps = -1);
	WRONG(-EINVAL, "eps is inf", 4, 64, BF16, o.eps = INFINITY);
	WRONG(-EINVAL, "amax_epsilon is nan", 4, 64, BF16, o.amax_epsilon = NAN);
	WRONG(-EINVAL, "gamma is NULL", 4, 64, BF16, o.gamma = NULL);
	WRONG(-EINVAL, "all outputs are NULL", 4, 64, BF16, o.y = NULL);
	WRONG(-EINVAL, "not aligned to 2 bytes", 4, 64, BF16, o.y = p + 12289);
	WRONG(-EINVAL, "not aligned to 4 bytes", 4, 64, BF16, o.rstd = (float *)(void *)(p + 2));
	WRONG(-EINVAL, "y overlaps in", 4, 64, BF16, o.y = p + 16);
	WRONG(-EINVAL, "y overlaps residual", 4, 64, BF16, o.y = p + 8192 + 511 / 2 * 2);
	WRONG(-EINVAL, "sum is the memory of residual", 4, 64, BF16, o.sum = p + 8192);
	WRONG(-EINVAL, "y is the memory of sum", 4, 64, BF16, o.sum = o.y);
	WRONG(-EINVAL, "y is the memory of residual_out", 4, 64, BF16, o.residual_out = o.y);
	WRONG(-EINVAL, "y is the memory of gamma", 4, 64, BF16, o.y = p + 4096);
	WRONG(-EINVAL, "amax overlaps y", 4, 64, BF16, o.amax = (float *)(void *)(p + 12292));
	/* codes */
	good.codes = p + 16384;
	good.scale = (float *)(void *)(p + 20480);
	good.scale_inv = (float *)(void *)(p + 20484);
	WRONG(-TE_EDTYPE, "qdtype is bf16, not e4m3 or e5m2", 4, 64, BF16, o.qdtype = BF16);
	WRONG(-EINVAL, "scaling 3 is unknown", 4, 64, BF16,
	      o.scaling = (enum te_comm_scaling)3);
	WRONG(-EINVAL, "scale is NULL", 4, 64, BF16, o.scale = NULL);
	WRONG(-EINVAL, "scale_inv is NULL", 4, 64, BF16, o.scale_inv = NULL);
	WRONG(-EINVAL, "scale_inv is the memory of scale", 4, 64, BF16,
	      o.scale_inv = (float *)(void *)(p + 20480));
	WRONG(-EOPNOTSUPP, "codes have a scale for each row, but rows of 130 bytes", 4, 65, BF16,
	      o.scaling = TE_COMM_SCALING_TOKEN);
	WRONG(-EOPNOTSUPP, "dtype is fp16, but y is not aligned to 16 bytes", 4, 64,
	      TE_DTYPE_FP16, o.y = p + 12290);
	WRONG(-EOPNOTSUPP, "dtype is fp16, but more than 16384 columns", 1, 16392, TE_DTYPE_FP16,
	      o.y = p + 65536; o.codes = NULL; o.residual = NULL;
	      o.gamma = (float *)(void *)(p + 131072));
	WRONG(-EOPNOTSUPP, "dtype is fp16, and codes of blocks are cast from y: oneshot needs",
	      4, 64, TE_DTYPE_FP16, o.flags = TE_COMM_NORM_SHARDED;
	      o.algorithm = TE_COMM_ONE_SHOT; o.scaling = TE_COMM_SCALING_BLOCK;
	      o.ws = p + 24576; o.ws_nbytes = 4096);
	WRONG(-EINVAL, "ws has 0 bytes, but 768 are needed: oneshot needs all rows", 4, 64, BF16,
	      o.flags = TE_COMM_NORM_SHARDED; o.algorithm = TE_COMM_ONE_SHOT;
	      o.sum = p + 32768);
	WRONG(-EINVAL, "ws has 0 bytes, but 768 are needed: another algorithm is asked for", 4, 64,
	      BF16, o.algorithm = TE_COMM_STAGED);
	WRONG(-EINVAL, "ws has 256 bytes, but 1024 are needed: rows of 130", 4, 65, BF16,
	      o.ws = p + 24576; o.ws_nbytes = 256);
	WRONG(-EINVAL, "not aligned to 256 bytes", 4, 64, BF16, o.ws = p + 24640;
	      o.ws_nbytes = 4096);
	HOLDS(te_comm_allreduce_norm(NULL, s, p, 4, 64, BF16, &good) == -EINVAL);
	HOLDS(te_comm_allreduce_norm(r->comm, NULL, p, 4, 64, BF16, &good) == -EINVAL);
	HOLDS(te_comm_allreduce_norm(r->comm, s, NULL, 4, 64, BF16, &good) == -EINVAL);
	HOLDS(te_comm_allreduce_norm(r->comm, s, p, 4, 64, BF16, NULL) == -EINVAL);
	/* no rows: nothing is done, on one rank only too */
	if (r->rank)
		STEP(te_comm_allreduce_norm(r->comm, s, NULL, 0, 64, BF16, &good));
	return 0;
}

#define WRONG_BACKWARD(code, text, ...)                                                          \
	do {                                                                                     \
		struct te_comm_norm_backward_opts o = back;                                      \
		__VA_ARGS__;                                                                     \
		HOLDS(te_comm_allreduce_norm_backward(r->comm, s, p, 4, 64, BF16, &o) == (code)); \
		HOLDS(strstr(te_error_detail(), text));                                          \
	} while (0)

static int bad_backward(struct thread_rank *r, char *p)
{
	struct te_comm_norm_backward_opts back = TE_COMM_NORM_BACKWARD_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);

	back.x = p + 4096;
	back.rstd = (float *)(void *)(p + 8192);
	back.gamma = (float *)(void *)(p + 12288);
	back.residual = p + 16384;
	back.dx = p + 20480;
	WRONG_BACKWARD(-EINVAL, "x is NULL", o.x = NULL);
	WRONG_BACKWARD(-EINVAL, "rstd is NULL", o.rstd = NULL);
	WRONG_BACKWARD(-EINVAL, "gamma is NULL", o.gamma = NULL);
	WRONG_BACKWARD(-EINVAL, "all outputs are NULL", o.dx = NULL);
	WRONG_BACKWARD(-EINVAL, "dx is the memory of x", o.dx = p + 4096);
	WRONG_BACKWARD(-EINVAL, "sum is the memory of residual", o.sum = p + 16384);
	WRONG_BACKWARD(-EINVAL, "unknown flags 0x4", o.flags = TE_COMM_NORM_POW2);
	WRONG_BACKWARD(-EINVAL, "ws has 0 bytes", o.algorithm = TE_COMM_LL);
	WRONG_BACKWARD(-EINVAL, "residual_out is not NULL, but the residual is not sharded",
		       o.residual_out = p + 24576);
	back.flags = TE_COMM_NORM_SHARDED;
	WRONG_BACKWARD(-EINVAL, "dx is the memory of residual_out", o.residual_out = o.dx);
	WRONG_BACKWARD(-EINVAL, "ws has 0 bytes, but 768 are needed: oneshot needs all rows",
		       o.sum = p + 24576; o.algorithm = TE_COMM_ONE_SHOT);
	return 0;
}

static int bad(struct thread_rank *r)
{
	void *p;

	STEP(te_mem_alloc(te_ctx_stream(r->ctx), 6 << 20, &p));
	STEP(bad_forward(r, p));
	STEP(bad_backward(r, p));
	STEP(te_mem_free(te_ctx_stream(r->ctx), p));
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	HOLDS(te_comm_norm_ws_nbytes(4, 64, BF16) == 768);
	HOLDS(te_comm_norm_ws_nbytes(4, 0, BF16) == 0 && te_comm_norm_ws_nbytes(-1, 4, BF16) == 0);
	HOLDS(te_comm_norm_ws_nbytes(4, 4, (enum te_dtype)99) == 0);
	return te_comm_error(r->comm);
}

TEST(norm, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}

/* ranks want other outputs, or fewer rows */
static int differ_by;

static int differ(struct thread_rank *r)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	char *p;
	void *v;

	STEP(te_mem_alloc(s, 65536, &v));
	p = v;
	o.gamma = (float *)v;
	o.y = p + 4096;
	if (r->rank && differ_by == 1)
		o.sum = p + 8192;
	if (r->rank && differ_by == 2)
		o.y = p + 4098;
	o.ws = p + 16384;
	o.ws_nbytes = 8192;
	if (differ_by == 3) { /* results are gathered, and they are others */
		o.flags = TE_COMM_NORM_SHARDED;
		o.algorithm = TE_COMM_STAGED;
	}
	if (r->rank && differ_by == 3) {
		o.y = NULL;
		o.codes = p + 32768;
		o.scale = (float *)v;
		o.scale_inv = (float *)v + 1024;
	}
	STEP(te_comm_allreduce_norm(r->comm, s, p + 12288, r->rank && !differ_by ? 5 : 6, 64, BF16,
				    &o));
	STEP(te_stream_sync(s));
	HOLDS(te_comm_error(r->comm) == -TE_EMISMATCH);
	HOLDS(te_comm_allreduce_norm(r->comm, s, p + 12288, 6, 64, BF16, &o) == -TE_EMISMATCH);
	STEP(te_mem_free(s, v));
	return te_comm_error(r->comm);
}

TEST_EACH(norm, ranks_that_call_otherwise_are_told, threads_apart(2) == 2 ? 4 : 0)
{
	differ_by = _i;
	threads_run(2, differ, -TE_EMISMATCH, _i == 3 ? "all-gather" : "sum and norm");
}

TT_PAIR_SUITE("comm/norm")
{
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", PACKETS, 1);
}
