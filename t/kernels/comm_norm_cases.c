/*
 * t/kernels/comm_norm_cases.c - see comm_norm_cases.h. What is expected is a loop over elements;
 * rstd and y are also those of te_k_norm_fwd.
 */
#include "config.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/capture.h>

#include "comm_lib.h"
#include "comm_norm_cases.h"
#include "kernel_check.h"
#include "kernels/launch.h"
#include "libtecore/tensor/ctx.h"
#include "tt_num.h"

#define NONE (-1)
#define HEAP (1 << 20)
#define MAX_SCALES (TE_K_COMM_NORM_COLS / TE_K_BLOCK)

static const int32_t every_type[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16 };

/* an operation of all ranks: sizes and flags, and offsets of arrays in the heaps or NONE */
struct fused {
	struct te_k_comm_norm k; /* without pointers */
	int64_t in, residual, gamma, out, residual_out, y, rstd, codes, scale, scale_inv, amax;
	int64_t x, x_rstd; /* of te_k_comm_norm_bwd; NONE: te_k_comm_norm */
};

/* what all ranks get; of T but for the last ones */
struct expected {
	uint8_t *sum, *r, *y;
	float *rstd;
	uint8_t *codes;
	float *scale_inv;
	float amax;
};

static int on_host(void)
{
	return !strcmp(backend, "host");
}

static int64_t es_of(const struct fused *f)
{
	return (int64_t)te_dtype_nbytes((enum te_dtype)f->k.comm.dtype);
}

static int64_t count_of(const struct fused *f)
{
	return f->k.rows * f->k.cols;
}

/* te_k_norm_fwd takes this type here, and adds in the order of the fused kernel */
static int has_separate_norm(const struct fused *f)
{
	return on_host() || (f->k.comm.dtype != TE_DTYPE_FP16 && f->k.cols % TE_V == 0);
}

/* ---- inputs ---- */

static void fill_row(const struct fused *f, uint8_t *p)
{
	const int32_t dtype = f->k.comm.dtype;
	/* without te_k_norm_fwd, rstd has a bound for numbers only */
	const int kind = (int)tt_rand_int(0, has_separate_norm(f) ? 7 : 5);

	for (int64_t i = 0; i < f->k.cols; i++)
		switch (kind) {
		case 0: /* zeros */
			tt_set(dtype, p, i, tt_rand_int(0, 1) ? 0.0f : -0.0f);
			break;
		case 1: /* subnormal */
			tt_set(dtype, p, i,
			       tt_rand_normal() * (dtype == TE_DTYPE_FP16 ? 1e-6f : 1e-39f));
			break;
		case 2:
			tt_set(dtype, p, i, tt_rand_normal() * 1000.0f);
			break;
		case 6: /* some NaN and infinite */
			tt_set(dtype, p, i,
			       tt_rand_int(0, 31) ? tt_rand_normal() :
			       tt_rand_int(0, 1)  ? NAN :
						    -INFINITY);
			break;
		case 7: /* any bits, those of empty packets too */
			tt_fill_bytes(p + i * es_of(f), (size_t)es_of(f));
			if (tt_rand_int(0, 3) == 0)
				memset(p + i * es_of(f), 0xff, (size_t)es_of(f));
			break;
		default:
			tt_set(dtype, p, i, tt_rand_normal());
		}
}

static void put_float(int64_t at, int64_t i, float x)
{
	for (int r = 0; r < cl_n; r++)
		memcpy(cl_before(r) + at + 4 * i, &x, sizeof(x));
}

/* the rank that computes a row; -1: all */
static int owner_of(const struct fused *f, int64_t row)
{
	int r = 0;

	if (f->k.comm.algorithm == TE_K_COMM_P1)
		return -1;
	while (row >= te_k_comm_norm_first(&f->k, r + 1))
		r++;
	return r;
}

/* inputs of all ranks; of a residual, all ranks have the same rows, or each its own ones */
static void fill(const struct fused *f)
{
	const int64_t nbytes = f->k.cols * es_of(f);
	uint8_t *row = malloc((size_t)nbytes);

	for (int64_t i = 0; i < f->k.rows; i++) {
		for (int r = 0; r < cl_n; r++)
			fill_row(f, cl_before(r) + f->in + i * nbytes);
		fill_row(f, row);
		for (int r = 0; r < cl_n && f->residual != NONE; r++) {
			uint8_t *p = cl_before(r) + f->residual + i * nbytes;

			if (owner_of(f, i) < 0 || owner_of(f, i) == r)
				memcpy(p, row, (size_t)nbytes);
			else
				tt_fill_bytes(p, (size_t)nbytes);
		}
	}
	for (int64_t i = 0; i < f->k.rows && f->x != NONE; i++) {
		fill_row(f, row);
		for (int r = 0; r < cl_n; r++)
			memcpy(cl_before(r) + f->x + i * nbytes, row, (size_t)nbytes);
		put_float(f->x_rstd, i, tt_rand_float(0.1f, 3.0f));
	}
	for (int64_t i = 0; i < f->k.cols; i++)
		put_float(f->gamma, i, tt_rand_int(0, 63) ? tt_rand_normal() : 0.0f);
	if (f->scale != NONE)
		put_float(f->scale, 0, ldexpf(1.0f + tt_rand_float(0, 1), (int)tt_rand_int(-8, 8)));
	for (int r = 0; r < cl_n && f->amax != NONE; r++) {
		const float x = tt_rand_int(0, 3) ? 0.0f : tt_rand_float(0, 100);

		memcpy(cl_before(r) + f->amax, &x, sizeof(x));
	}
	free(row);
}

/* offsets of outputs, of which some are absent */
static int64_t maybe(int64_t nbytes)
{
	return tt_rand_int(0, 2) ? cl_room(nbytes, 16) : NONE;
}

static int64_t multiple(const struct fused *f)
{
	return TE_K_COMM_PACKET / es_of(f);
}

static struct fused fused_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols)
{
	struct fused f = {
		.k = {
			.comm = {
				.dtype = dtype,
				.op = TE_K_COMM_SUM,
				.algorithm = algorithm,
				.nranks = cl_n,
			},
			.rows = rows,
			.eps = tt_rand_int(0, 1) ? 1e-5f : 1e-6f,
			.epsilon = tt_rand_int(0, 1) ? 0.0f : 1e-3f,
			.qdtype = tt_rand_int(0, 1) ? TE_DTYPE_E4M3 : TE_DTYPE_E5M2,
			.scaling = (int32_t)tt_rand_int(0, TE_K_COMM_SCALINGS - 1),
			.flags = (uint32_t)tt_rand_int(0, 15),
		},
		.scale = NONE,
		.scale_inv = NONE,
		.amax = NONE,
		.x = NONE,
		.x_rstd = NONE,
	};
	int64_t nbytes;

	f.k.cols = (cols + multiple(&f) - 1) / multiple(&f) * multiple(&f);
	nbytes = count_of(&f) * es_of(&f);
	f.k.comm.count = count_of(&f);
	/* all blocks of all ranks are resident on a GPU of 132 multiprocessors */
	f.k.comm.max_blocks = (int32_t)tt_rand_int(1, 128 / cl_n < 24 ? 128 / cl_n : 24);
	if (algorithm == TE_K_COMM_P1)
		f.k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
	f.in = cl_room(nbytes, 16);
	f.residual = maybe(nbytes);
	f.gamma = cl_room(4 * f.k.cols, 16);
	f.out = maybe(nbytes);
	f.residual_out = f.residual != NONE && tt_rand_int(0, 1) ? f.residual : maybe(nbytes);
	f.y = tt_rand_int(0, 3) == 0 ? f.in : maybe(nbytes);
	f.rstd = has_separate_norm(&f) ? maybe(4 * rows) : cl_room(4 * rows, 4);
	f.codes = maybe(count_of(&f));
	if (f.codes != NONE)
		f.scale_inv = cl_room(4 * te_k_comm_norm_scale_inv_nfloats(&f.k), 4);
	if (f.k.scaling == TE_K_COMM_SCALING_TENSOR) {
		f.amax = maybe(4);
		f.scale = f.codes != NONE ? cl_room(4, 4) : NONE;
	}
	fill(&f);
	return f;
}

static struct fused bwd_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols)
{
	struct fused f = fused_new(algorithm, dtype, rows, cols);
	const int64_t nbytes = count_of(&f) * es_of(&f);

	f.residual_out = f.rstd = f.codes = f.scale = f.scale_inv = f.amax = NONE;
	f.x = cl_room(nbytes, 16);
	f.x_rstd = cl_room(4 * rows, 4);
	if (f.y == NONE && f.out == NONE)
		f.y = cl_room(nbytes, 16);
	fill(&f);
	return f;
}

/* ---- launches ---- */

static void *at(int rank, int64_t offset)
{
	return offset == NONE ? NULL : cl_heap(rank) + offset;
}

static struct te_k_comm_norm args_of(const struct fused *f, int rank)
{
	struct te_k_comm_norm k = f->k;

	k.comm = cl_comm(rank);
	k.comm.in = at(rank, f->in);
	k.comm.out = at(rank, f->out);
	k.comm.count = count_of(f);
	k.comm.dtype = f->k.comm.dtype;
	k.comm.op = f->k.comm.op;
	k.comm.algorithm = f->k.comm.algorithm;
	k.comm.max_blocks = f->k.comm.max_blocks;
	k.residual = at(rank, f->residual);
	k.gamma = at(rank, f->gamma);
	k.residual_out = at(rank, f->residual_out);
	k.y = at(rank, f->y);
	k.rstd = at(rank, f->rstd);
	k.codes = at(rank, f->codes);
	k.scale = at(rank, f->scale);
	k.scale_inv = at(rank, f->scale_inv);
	k.amax = at(rank, f->amax);
	k.x = at(rank, f->x);
	k.x_rstd = at(rank, f->x_rstd);
	return k;
}

static void launch(const struct fused *f, int rank)
{
	const struct te_k_comm_norm k = args_of(f, rank);

	if (k.x)
		DO(TE__LAUNCH(cl_stream[rank], COMM_NORM_BWD, &k));
	else
		DO(TE__LAUNCH(cl_stream[rank], COMM_NORM, &k));
}

static void launch_all(const struct fused *f)
{
	for (int r = 0; r < cl_n; r++)
		launch(f, r);
}

/* ---- what is expected ---- */

/* x rounded to the type, in element i; the NaN of comm.h */
static float put(int32_t dtype, uint8_t *p, int64_t i, float x)
{
	const uint32_t nan = TE_K_COMM_NAN;

	if (x != x)
		memcpy(&x, &nan, sizeof(x));
	tt_set(dtype, p, i, x);
	return tt_get(dtype, p, i);
}

/* s and r */
static void expect_r(const struct fused *f, const struct expected *e)
{
	const int32_t dtype = f->k.comm.dtype;

	for (int64_t i = 0; i < count_of(f); i++) {
		const int owner = owner_of(f, i / f->k.cols);
		float s = tt_get(dtype, cl_before(0) + f->in, i), t;

		for (int r = 1; r < cl_n; r++)
			s = s + tt_get(dtype, cl_before(r) + f->in, i);
		t = put(dtype, e->sum, i, s);
		if (f->k.flags & TE_K_COMM_ROUND_SUM)
			s = t;
		if (f->residual != NONE)
			s = s + tt_get(dtype, cl_before(owner < 0 ? 0 : owner) + f->residual, i);
		put(dtype, e->r, i, s);
	}
}

/*
 * rstd and y by te_k_norm_fwd, if it has the same definition here. Otherwise rstd is that of rank 0
 * and within a bound: a square is added up to 3 + 4 + 5 + 16 times, so that the sum is off by less
 * than 29 U, and rstd by half of that and by 4 operations more.
 */
static void expect_rstd(const struct fused *f, const struct expected *e)
{
	const size_t nbytes = (size_t)(count_of(f) * es_of(f));
	struct te_k_norm_fwd k = {
		.rows = f->k.rows,
		.cols = f->k.cols,
		.eps = f->k.eps,
		.zero_centered = !!(f->k.flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = f->k.comm.dtype,
	};
	void *x, *gamma;

	if (!has_separate_norm(f)) {
		memcpy(e->rstd, cl_got(0) + f->rstd, (size_t)f->k.rows * 4);
		for (int64_t row = 0; row < f->k.rows; row++) {
			double sum = 0.0, want;

			for (int64_t i = 0; i < f->k.cols; i++) {
				const double r =
					tt_get(k.dtype, e->r, row * f->k.cols + i);

				sum += r * r;
			}
			want = 1.0 / sqrt(sum / (double)f->k.cols + (double)f->k.eps);
			ck_assert_msg(fabs((double)e->rstd[row] - want) <= 20 * U32 * want,
				      "row %lld: rstd %g, want %g", (long long)row,
				      (double)e->rstd[row], want);
		}
		return;
	}
	DO(te_mem_alloc(st, nbytes, &x));
	DO(te_mem_alloc(st, (size_t)f->k.cols * 4, &gamma));
	DO(te_mem_alloc(st, nbytes, &k.y));
	DO(te_mem_alloc(st, (size_t)f->k.rows * 4, (void **)&k.rstd));
	DO(te_copy(st, x, e->r, nbytes));
	DO(te_copy(st, gamma, cl_before(0) + f->gamma, (size_t)f->k.cols * 4));
	k.x = x;
	k.gamma = gamma;
	DO(TE__LAUNCH(st, NORM_FWD, &k));
	DO(te_copy(st, e->y, k.y, nbytes));
	DO(te_copy(st, e->rstd, k.rstd, (size_t)f->k.rows * 4));
	DO(te_stream_sync(st));
	DO(te_mem_free(st, x));
	DO(te_mem_free(st, gamma));
	DO(te_mem_free(st, k.y));
	DO(te_mem_free(st, k.rstd));
	for (int64_t row = 0; row < f->k.rows; row++)
		put(TE_DTYPE_FP32, (uint8_t *)e->rstd, row, e->rstd[row]);
}

/* y from r and rstd, which must be the y that e has from te_k_norm_fwd */
static void expect_y(const struct fused *f, const struct expected *e)
{
	const int32_t dtype = f->k.comm.dtype;
	const float *gamma = (const float *)(const void *)(cl_before(0) + f->gamma);

	for (int64_t i = 0; i < count_of(f); i++) {
		const float g = gamma[i % f->k.cols], was = tt_get(dtype, e->y, i);
		const float gain = f->k.flags & TE_K_COMM_ZERO_CENTERED ? 1.0f + g : g;
		const float x = tt_get(dtype, e->r, i) * e->rstd[i / f->k.cols];
		const float y = put(dtype, e->y, i, x * gain);

		if (has_separate_norm(f))
			ck_assert_msg((y != y && was != was) || !memcmp(&y, &was, sizeof(y)),
				      "element %lld: %g, te_k_norm_fwd has %g", (long long)i,
				      (double)y, (double)was);
	}
}

static float scale_of(const struct fused *f, float amax)
{
	const float a = amax < f->k.epsilon ? f->k.epsilon : amax;
	float s = (f->k.qdtype == TE_DTYPE_E4M3 ? 448.0f : 57344.0f) / a;

	if (isinf(s))
		s = FLT_MAX;
	if (a == 0.0f || isinf(a))
		s = 1.0f;
	return f->k.flags & TE_K_COMM_POW2 ? ldexpf(1.0f, ilogbf(s)) : s;
}

/* codes and scale of n elements */
static float expect_codes(const struct fused *f, const struct expected *e, int64_t from, int64_t n)
{
	float amax = 0.0f, s;

	for (int64_t i = from; i < from + n; i++) {
		const float y = fabsf(tt_get(f->k.comm.dtype, e->y, i));

		if (y > amax)
			amax = y;
	}
	if (amax > e->amax)
		((struct expected *)(uintptr_t)e)->amax = amax;
	if (f->codes == NONE)
		return 0.0f;
	if (f->k.scaling == TE_K_COMM_SCALING_TENSOR)
		memcpy(&s, cl_before(0) + f->scale, sizeof(s));
	else
		s = scale_of(f, amax);
	for (int64_t i = from; i < from + n; i++)
		tt_set(f->k.qdtype, e->codes, i, tt_get(f->k.comm.dtype, e->y, i) * s);
	return 1.0f / s;
}

static void expect_quantized(const struct fused *f, struct expected *e)
{
	const int64_t cols = f->k.cols;

	e->amax = 0.0f;
	for (int64_t row = 0; row < f->k.rows; row++)
		for (int64_t c = 0, n; c < cols; c += n) {
			const int block = f->k.scaling == TE_K_COMM_SCALING_BLOCK;
			float inv;

			n = block && cols - c > TE_K_BLOCK ? TE_K_BLOCK : cols - c;
			inv = expect_codes(f, e, row * cols + c, n);
			e->scale_inv[block ? te_k_scale_index(TE_K_SCALING_1X128, f->k.rows, cols,
							      row, c) :
				     f->k.scaling == TE_K_COMM_SCALING_TOKEN ? row :
									       0] = inv;
		}
}

/* residual, of which ranks may have their own rows only, to e->r */
static void gather_residual(const struct fused *f, const struct expected *e)
{
	const int64_t nbytes = f->k.cols * es_of(f);

	for (int64_t i = 0; i < f->k.rows; i++) {
		const int o = owner_of(f, i) < 0 ? 0 : owner_of(f, i);

		memcpy(e->r + i * nbytes, cl_before(o) + f->residual + i * nbytes, (size_t)nbytes);
	}
}

/* e->y by te_k_norm_bwd of e->sum */
static void separate_bwd(const struct fused *f, const struct expected *e)
{
	const size_t nbytes = (size_t)(count_of(f) * es_of(f));
	struct te_k_norm_bwd k = {
		.rows = f->k.rows,
		.cols = f->k.cols,
		.zero_centered = !!(f->k.flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = f->k.comm.dtype,
	};
	void *p[5];

	for (int i = 0; i < 5; i++)
		DO(te_mem_alloc(st, nbytes + (size_t)(f->k.cols + f->k.rows) * 4, &p[i]));
	DO(te_copy(st, p[0], e->sum, nbytes));
	DO(te_copy(st, p[1], cl_before(0) + f->x, nbytes));
	DO(te_copy(st, p[2], cl_before(0) + f->gamma, (size_t)f->k.cols * 4));
	DO(te_copy(st, p[3], cl_before(0) + f->x_rstd, (size_t)f->k.rows * 4));
	if (f->residual != NONE) {
		gather_residual(f, e);
		DO(te_copy(st, p[4], e->r, nbytes));
		k.dres = p[4];
	}
	k.dy = k.dx = p[0];
	k.x = p[1];
	k.gamma = p[2];
	k.rstd = p[3];
	DO(TE__LAUNCH(st, NORM_BWD, &k));
	DO(te_copy(st, e->y, p[0], nbytes));
	DO(te_stream_sync(st));
	for (int i = 0; i < 5; i++)
		DO(te_mem_free(st, p[i]));
	for (int64_t i = 0; i < count_of(f); i++)
		put(k.dtype, e->y, i, tt_get(k.dtype, e->y, i));
}

/*
 * e->y is what rank 0 has, which is near a sum in FP64. A term is added up to 28 times, so that
 * the mean is off by less than 30 U times the mean of its terms' absolute values; dx has 6 more
 * operations.
 */
static void near_bwd(const struct fused *f, const struct expected *e)
{
	const int32_t dtype = f->k.comm.dtype;
	const float *gamma = (const float *)(const void *)(cl_before(0) + f->gamma);
	const int64_t cols = f->k.cols;

	if (f->residual != NONE)
		gather_residual(f, e);
	for (int64_t row = 0; row < f->k.rows && f->y != NONE; row++) {
		const double rstd = tt_get(TE_DTYPE_FP32, cl_before(0) + f->x_rstd, row);
		double mean = 0.0, most = 0.0;

		for (int pass = 0; pass < 2; pass++)
			for (int64_t i = 0; i < cols; i++) {
				const int64_t k = row * cols + i;
				const double one = f->k.flags & TE_K_COMM_ZERO_CENTERED ? 1 : 0;
				const double g = tt_get(dtype, e->sum, k) * (one + gamma[i]);
				const double xhat =
					tt_get(dtype, cl_before(0) + f->x, k) * rstd;
				const double res =
					f->residual == NONE ? 0.0 : tt_get(dtype, e->r, k);
				const double want = rstd * (g - xhat * mean) + res;
				const double got = tt_get(dtype, cl_got(0) + f->y, k);
				const double off = rstd * (fabs(g) + fabs(xhat) *
								     (fabs(mean) + 5 * most));

				if (pass == 0) {
					mean += g * xhat / (double)cols;
					most += fabs(g * xhat) / (double)cols;
					continue;
				}
				if (isinf(got) && dtype == TE_DTYPE_FP16 &&
				    fabs(want) + 8 * U32 * off > 65000)
					continue;
				ck_assert_msg(fabs(got - want) <=
						      tt_unit(dtype) * fabs(want) +
							      8 * U32 * (off + fabs(res)) +
							      0x1p-24,
					      "element %lld: dx %g, want %g", (long long)k, got,
					      want);
			}
	}
	if (f->y != NONE)
		memcpy(e->y, cl_got(0) + f->y, (size_t)(count_of(f) * es_of(f)));
}

static void expect_open(const struct fused *f, struct expected *e)
{
	const size_t n = (size_t)count_of(f), nbytes = n * (size_t)es_of(f);

	e->sum = malloc(nbytes);
	e->r = malloc(nbytes);
	e->y = malloc(nbytes);
	e->rstd = malloc((size_t)f->k.rows * 4);
	e->codes = malloc(n);
	e->scale_inv = calloc((size_t)te_k_comm_norm_scale_inv_nfloats(&f->k), 4);
	ck_assert(e->sum && e->r && e->y && e->rstd && e->codes && e->scale_inv);
	expect_r(f, e);
	if (f->x != NONE) {
		if (has_separate_norm(f))
			separate_bwd(f, e);
		else
			near_bwd(f, e);
		return;
	}
	expect_rstd(f, e);
	expect_y(f, e);
	expect_quantized(f, e);
}

static void expect_close(struct expected *e)
{
	free(e->sum);
	free(e->r);
	free(e->y);
	free(e->rstd);
	free(e->codes);
	free(e->scale_inv);
}

/* ---- comparison ---- */

static void want_bytes(uint8_t *want, int64_t offset, const void *p, int64_t nbytes)
{
	if (offset != NONE)
		memcpy(want + offset, p, (size_t)nbytes);
}

static void want_of(const struct fused *f, const struct expected *e, int rank, uint8_t *want)
{
	const int64_t n = count_of(f), row = f->k.cols * es_of(f);
	float amax;

	want_bytes(want, f->out, e->sum, n * es_of(f));
	for (int64_t i = 0; i < f->k.rows && f->residual_out != NONE; i++)
		if (!(f->k.flags & TE_K_COMM_RESIDUAL_SHARDED) || owner_of(f, i) == rank)
			memcpy(want + f->residual_out + i * row, e->r + i * row, (size_t)row);
	want_bytes(want, f->y, e->y, n * es_of(f));
	want_bytes(want, f->rstd, e->rstd, f->k.rows * 4);
	want_bytes(want, f->codes, e->codes, n);
	want_bytes(want, f->scale_inv, e->scale_inv,
		   4 * te_k_comm_norm_scale_inv_nfloats(&f->k));
	if (f->amax == NONE)
		return;
	memcpy(&amax, want + f->amax, sizeof(amax));
	if (e->amax > amax)
		memcpy(want + f->amax, &e->amax, sizeof(amax));
}

static void same_bytes(const struct fused *f, int rank, const char *what, int64_t offset,
		       int64_t es, int64_t n, const uint8_t *want)
{
	for (int64_t i = 0; i < n && offset != NONE; i++) {
		uint32_t w = 0, g = 0;

		memcpy(&w, want + offset + i * es, (size_t)es);
		memcpy(&g, cl_got(rank) + offset + i * es, (size_t)es);
		ck_assert_msg(w == g,
			      "%s: rank %d of %d, algorithm %d, %s, %lld x %lld, element %lld: got "
			      "%x, want %x, scaling %d, flags %x, %d blocks",
			      what, rank, cl_n, f->k.comm.algorithm,
			      te_dtype_name((enum te_dtype)f->k.comm.dtype), (long long)f->k.rows,
			      (long long)f->k.cols, (long long)i, g, w, f->k.scaling, f->k.flags,
			      f->k.comm.max_blocks);
	}
}

/* all outputs of these operations and of these calls; nothing else has changed */
static void same_heap(int rank, const uint8_t *want)
{
	const uint8_t *got = cl_got(rank);
	int64_t i = 0;

	if (!memcmp(want, got, (size_t)cl_heap_nbytes()))
		return;
	while (want[i] == got[i])
		i++;
	ck_abort_msg("rank %d: byte %lld of the heap is %x, want %x", rank, (long long)i, got[i],
		     want[i]);
}

static void check(const struct fused *f, int n, const struct cl_call *c, int ncalls)
{
	uint8_t *want[TE_K_COMM_RANKS];

	cl_read();
	for (int r = 0; r < cl_n; r++) {
		want[r] = malloc((size_t)cl_heap_nbytes());
		ck_assert_ptr_nonnull(want[r]);
		memcpy(want[r], cl_before(r), (size_t)cl_heap_nbytes());
	}
	for (int k = 0; k < n; k++) {
		struct expected e;

		expect_open(&f[k], &e);
		for (int r = 0; r < cl_n; r++) {
			want_of(&f[k], &e, r, want[r]);
			same_bytes(&f[k], r, "sum", f[k].out, es_of(&f[k]), count_of(&f[k]),
				   want[r]);
			same_bytes(&f[k], r, "r", f[k].residual_out, es_of(&f[k]),
				   count_of(&f[k]), want[r]);
			same_bytes(&f[k], r, "rstd", f[k].rstd, 4, f[k].k.rows, want[r]);
			same_bytes(&f[k], r, "y", f[k].y, es_of(&f[k]), count_of(&f[k]), want[r]);
			same_bytes(&f[k], r, "amax", f[k].amax, 4, 1, want[r]);
			same_bytes(&f[k], r, "scale_inv", f[k].scale_inv, 4,
				   te_k_comm_norm_scale_inv_nfloats(&f[k].k), want[r]);
			same_bytes(&f[k], r, "codes", f[k].codes, 1, count_of(&f[k]), want[r]);
		}
		expect_close(&e);
	}
	for (int r = 0; r < cl_n; r++) {
		for (int k = 0; k < ncalls; k++)
			for (int64_t i = 0; i < c[k].count; i++) {
				const size_t es = te_dtype_nbytes((enum te_dtype)c[k].dtype);
				const uint32_t bits = cl_expected(&c[k], 0, i);

				memcpy(want[r] + c[k].out + i * (int64_t)es, &bits, es);
			}
		same_heap(r, want[r]);
		free(want[r]);
	}
}

static void run(const struct fused *f)
{
	cl_upload();
	launch_all(f);
	check(f, 1, NULL, 0);
}

/* ---- results ---- */

static int any_algorithm(void)
{
	return tt_rand_int(0, 1) ? TE_K_COMM_P1 : TE_K_COMM_P2;
}

static int32_t any_type(void)
{
	return every_type[tt_rand_int(0, TT_LEN(every_type) - 1)];
}

static int64_t any_rows(void)
{
	return tt_rand_int(1, tt_rand_int(0, 1) ? 4 : 20);
}

static struct fused any(int64_t most_cols)
{
	return fused_new(any_algorithm(), any_type(), any_rows(), tt_rand_int(1, most_cols));
}

/* _i + 1 ranks; fewer rows than ranks, and rows that they share unevenly */
START_TEST(results_are_those_of_a_loop)
{
	cl_open(_i + 1, HEAP);
	for (size_t t = 0; t < TT_LEN(every_type); t++)
		for (int algorithm = TE_K_COMM_P1; algorithm <= TE_K_COMM_P2; algorithm++)
			for (int k = 0; k < TT_FEWER(8); k++) {
				struct fused f;

				cl_clear();
				f = fused_new(algorithm, every_type[t], any_rows(),
					      tt_rand_int(1, k % 2 ? 300 : 1500));
				run(&f);
			}
	cl_close();
}
END_TEST

/* each number of vectors that a thread has, and the longest rows */
START_TEST(long_rows)
{
	static const int64_t cols[] = { 1024, 1032, 4096,  4104,  5120, 6152,
					8192, 8200, 12288, 16376, 16384 };

	cl_open((int)tt_rand_int(1, 8), 2 * HEAP);
	for (size_t t = 0; t < TT_LEN(every_type); t++) {
		struct fused f;

		cl_clear();
		f = fused_new(any_algorithm(), every_type[t], tt_rand_int(1, 4), cols[_i]);
		run(&f);
	}
	cl_close();
}
END_TEST
#define NLONG 11

/* both algorithms from the same inputs: check() compares each with the same loop */
START_TEST(algorithms_agree)
{
	cl_open((int)tt_rand_int(2, 8), HEAP);
	for (int k = 0; k < TT_FEWER(10); k++) {
		struct fused f;

		cl_clear();
		f = fused_new(TE_K_COMM_P1, any_type(), any_rows(), tt_rand_int(1, 1000));
		run(&f);
		f.k.comm.algorithm = TE_K_COMM_P2;
		run(&f);
	}
	cl_close();
}
END_TEST

/* _i + 1 ranks: s, and dx of te_k_norm_bwd */
START_TEST(gradients_are_those_of_separate_kernels)
{
	cl_open(_i + 1, HEAP);
	for (size_t t = 0; t < TT_LEN(every_type); t++)
		for (int algorithm = TE_K_COMM_P1; algorithm <= TE_K_COMM_P2; algorithm++)
			for (int k = 0; k < TT_FEWER(5); k++) {
				struct fused f;

				cl_clear();
				f = bwd_new(algorithm, every_type[t], any_rows(),
					    tt_rand_int(1, k % 2 ? 300 : 1500));
				run(&f);
			}
	cl_close();
}
END_TEST

START_TEST(gradients_of_long_rows)
{
	cl_open((int)tt_rand_int(1, 8), 2 * HEAP);
	for (size_t t = 0; t < TT_LEN(every_type); t++) {
		static const int64_t cols[] = { 4096, 8200, 16384 };
		struct fused f;

		cl_clear();
		f = bwd_new(any_algorithm(), every_type[t], tt_rand_int(1, 4), cols[_i]);
		run(&f);
	}
	cl_close();
}
END_TEST

/* ---- the separate kernels ---- */

/* sum, r, y, rstd and codes of te_k_comm_allreduce, te_k_add, te_k_norm_fwd and te_k_quantize */
START_TEST(results_are_those_of_separate_kernels)
{
	const int32_t dtype = tt_rand_int(0, 1) ? TE_DTYPE_BF16 : TE_DTYPE_FP32;

	cl_open((int)tt_rand_int(2, 8), HEAP);
	for (int k = 0; k < TT_FEWER(10); k++) {
		const int64_t rows = any_rows(), cols = tt_rand_int(1, 96) * 8;
		const int64_t n = rows * cols, es = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
		int64_t sum, r, y, rstd, codes, inv;
		struct fused f;

		cl_clear();
		f = fused_new(_i, dtype, rows, cols);
		f.k.flags |= TE_K_COMM_ROUND_SUM;
		f.k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
		f.k.scaling = tt_rand_int(0, 1) ? TE_K_COMM_SCALING_TENSOR :
						  TE_K_COMM_SCALING_BLOCK;
		f.amax = NONE;
		/* all arrays, none of them in place */
		f.residual = cl_room(n * es, 16);
		f.out = cl_room(n * es, 16);
		f.residual_out = cl_room(n * es, 16);
		f.y = cl_room(n * es, 16);
		f.rstd = cl_room(rows * 4, 16);
		f.codes = cl_room(n, 16);
		f.scale = cl_room(4, 16);
		f.scale_inv = cl_room(4 * te_k_comm_norm_scale_inv_nfloats(&f.k), 16);
		sum = cl_room(n * es, 16);
		r = cl_room(n * es, 16);
		y = cl_room(n * es, 16);
		rstd = cl_room(rows * 4, 16);
		codes = cl_room(n, 16);
		inv = cl_room(4 * te_k_comm_norm_scale_inv_nfloats(&f.k), 16);
		fill(&f);
		/* all ranks have all rows of the residual */
		for (int k2 = 1; k2 < cl_n; k2++)
			for (int64_t i = 0; i < rows; i++) {
				const int64_t at_row = f.residual + i * cols * es;
				const int o = owner_of(&f, i) < 0 ? 0 : owner_of(&f, i);

				memcpy(cl_before(k2) + at_row, cl_before(o) + at_row,
				       (size_t)(cols * es));
				memcpy(cl_before(0) + at_row, cl_before(o) + at_row,
				       (size_t)(cols * es));
			}
		cl_upload();
		launch_all(&f);
		for (int rank = 0; rank < cl_n; rank++) {
			uint8_t *h = cl_heap(rank);
			struct te_k_comm c = args_of(&f, rank).comm;
			const struct te_k_add add = { h + sum, h + f.residual, h + r, n, dtype, 0 };
			const struct te_k_norm_fwd norm = {
				.x = h + r,
				.gamma = at(rank, f.gamma),
				.y = h + y,
				.rstd = (float *)(void *)(h + rstd),
				.rows = rows,
				.cols = cols,
				.eps = f.k.eps,
				.zero_centered = !!(f.k.flags & TE_K_COMM_ZERO_CENTERED),
				.dtype = dtype,
			};
			const struct te_k_quantize q = {
				.x = h + y,
				.rows = rows,
				.cols = cols,
				.q = {
					.row = h + codes,
					.scale = at(rank, f.scale),
					.scale_inv = (float *)(void *)(h + inv),
					.epsilon = f.k.epsilon,
					.dtype = f.k.qdtype,
					.scaling = f.k.scaling ? TE_K_SCALING_1X128 :
								 TE_K_SCALING_TENSOR,
					.pow2 = !!(f.k.flags & TE_K_COMM_POW2),
				},
				.dtype = dtype,
			};

			c.algorithm = TE_K_COMM_S;
			c.out = h + sum;
			DO(TE__LAUNCH(cl_stream[rank], COMM_ALLREDUCE, &c));
			DO(TE__LAUNCH(cl_stream[rank], ADD, &add));
			DO(TE__LAUNCH(cl_stream[rank], NORM_FWD, &norm));
			DO(TE__LAUNCH(cl_stream[rank], QUANTIZE, &q));
		}
		cl_read();
		for (int rank = 0; rank < cl_n; rank++) {
			const uint8_t *g = cl_got(rank);

			for (int64_t i = 0; i < n; i++) {
#define SAME(a, b, what)                                                                       \
	ck_assert_msg(tt_get(dtype, g + (a), i) == tt_get(dtype, g + (b), i) ||                \
			      (isnan(tt_get(dtype, g + (a), i)) &&                             \
			       isnan(tt_get(dtype, g + (b), i))),                              \
		      "%s, rank %d, element %lld: %g, and %g of separate kernels", what, rank, \
		      (long long)i, (double)tt_get(dtype, g + (a), i),                         \
		      (double)tt_get(dtype, g + (b), i))
				SAME(f.out, sum, "sum");
				SAME(f.residual_out, r, "r");
				SAME(f.y, y, "y");
#undef SAME
				/* NaN has a sign there */
				ck_assert_msg(g[f.codes + i] == g[codes + i] ||
						      (g[f.codes + i] == 0x7f &&
						       g[codes + i] == 0xff),
					      "code %lld: %x, %x", (long long)i, g[f.codes + i],
					      g[codes + i]);
			}
			for (int64_t i = 0; i < rows; i++) {
				const float a = tt_get(TE_DTYPE_FP32, g + f.rstd, i);
				const float b = tt_get(TE_DTYPE_FP32, g + rstd, i);

				ck_assert_msg(a == b || (a != a && b != b), "rstd: %g, %g",
					      (double)a, (double)b);
			}
			ck_assert_mem_eq(g + f.scale_inv, g + inv,
					 (size_t)(4 * te_k_comm_norm_scale_inv_nfloats(&f.k)));
		}
	}
	cl_close();
}
END_TEST

/* ---- many operations ---- */

static void delay(void *us)
{
	usleep(*(uint32_t *)us);
}

#define MANY 16

/* between all-reduces, on ranks that are late */
START_TEST(operations_in_a_row)
{
	cl_open(_i + 1, HEAP);
	for (int round = 0; round < TT_FEWER(4); round++) {
		struct cl_call c[MANY];
		struct fused f[MANY];

		cl_clear();
		for (int k = 0; k < MANY; k++) {
			f[k] = tt_rand_int(0, 3) ? any(100) :
						   bwd_new(any_algorithm(), any_type(), any_rows(),
							   tt_rand_int(1, 100));
			c[k] = cl_call_new(-1, TE_K_COMM_SUM, TE_DTYPE_BF16, tt_rand_int(1, 1000));
		}
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			for (int k = 0; k < MANY; k++) {
				const uint32_t us = (uint32_t)tt_rand_int(0, 2000);

				if (tt_rand_int(0, 7) == 0)
					DO(te_host_call(cl_stream[r], delay, &us, sizeof(us)));
				launch(&f[k], r);
				if (k % 3)
					cl_launch(&c[k], r);
			}
		for (int k = 0, n = 0; k < MANY; k++)
			if (k % 3)
				c[n++] = c[k];
		check(f, MANY, c, MANY - (MANY + 2) / 3);
	}
	cl_close();
}
END_TEST

/* r of one operation is the residual of the next one, sharded over the ranks */
START_TEST(a_sharded_residual_goes_through_layers)
{
	cl_open((int)tt_rand_int(2, 8), HEAP);
	for (int round = 0; round < TT_FEWER(8); round++) {
		const int64_t rows = any_rows(), cols = tt_rand_int(1, 100);
		const int32_t dtype = any_type();
		struct fused f[3];
		uint8_t *last;
		struct expected e;
		int64_t n;

		cl_clear();
		for (int k = 0; k < 3; k++) {
			f[k] = fused_new(TE_K_COMM_P2, dtype, rows, cols);
			n = count_of(&f[k]) * es_of(&f[k]);
			f[k].residual_out = cl_room(n, 16);
			f[k].y = cl_room(n, 16);
			f[k].residual = k ? f[k - 1].residual_out : cl_room(n, 16);
			f[k].k.flags |= TE_K_COMM_RESIDUAL_SHARDED;
			if (k == 2) /* the last one gives all rows to all ranks */
				f[k].k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
			if (!k)
				fill(&f[k]);
		}
		cl_upload();
		for (int k = 0; k < 3; k++)
			launch_all(&f[k]);
		cl_read();
		/* the residual of the next one is the expected r, on all ranks */
		for (int k = 0; k < 2; k++) {
			expect_open(&f[k], &e);
			for (int r = 0; r < cl_n; r++)
				memcpy(cl_before(r) + f[k].residual_out, e.r, (size_t)n);
			expect_close(&e);
		}
		expect_open(&f[2], &e);
		last = e.r;
		for (int r = 0; r < cl_n; r++) {
			ck_assert_mem_eq(cl_got(r) + f[2].residual_out, last, (size_t)n);
			ck_assert_mem_eq(cl_got(r) + f[2].y, e.y, (size_t)n);
		}
		expect_close(&e);
	}
	cl_close();
}
END_TEST

START_TEST(replays)
{
	static const uint32_t edges[] = { 0, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL };
	struct te_recording *rec[TE_K_COMM_RANKS];
	struct fused f[4];

	cl_open((int)tt_rand_int(2, 8), HEAP);
	for (int k = 0; k < 4; k++)
		f[k] = any(300);
	for (int r = 0; r < cl_n; r++) {
		DO(te_capture_begin(cl_stream[r]));
		DO(te_capture_edges(cl_stream[r], edges[_i]));
		for (int k = 0; k < 4; k++)
			launch(&f[k], r);
		DO(te_capture_end(cl_stream[r], &rec[r]));
	}
	for (int round = 0; round < TT_FEWER(10); round++) {
		for (int k = 0; k < 4; k++)
			fill(&f[k]);
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			DO(te_recording_launch(rec[r], cl_stream[r]));
		check(f, 4, NULL, 0);
	}
	for (int r = 0; r < cl_n; r++)
		te_recording_unref(rec[r]);
	cl_close();
}
END_TEST

START_TEST(no_rows_are_no_operation)
{
	struct fused none, f;

	cl_open(3, HEAP);
	none = f = any(100);
	none.k.rows = 0;
	cl_upload();
	launch(&none, 1); /* not on all ranks: none waits for it */
	launch_all(&f);
	check(&f, 1, NULL, 0);
	for (int r = 0; r < 3; r++)
		ck_assert_uint_eq(cl_epoch(r), 1);
	cl_close();
}
END_TEST

/* ---- failures ---- */

static void recovers(void)
{
	struct fused f;

	cl_reset();
	cl_clear();
	cl_deadline_ns = 60000000000u;
	f = any(300);
	run(&f);
}

START_TEST(a_rank_that_skips_an_operation_is_named)
{
	struct fused f;
	int who;

	cl_open((int)tt_rand_int(2, 8), HEAP);
	who = (int)tt_rand_int(0, cl_n - 1);
	f = fused_new(_i, any_type(), any_rows(), tt_rand_int(1, 600));
	cl_upload();
	cl_deadline_ns = 200000000;
	for (int r = 0; r < cl_n; r++)
		if (r != who)
			launch(&f, r);
	cl_sync();
	for (int r = 0; r < cl_n; r++) {
		const struct te_k_comm_status *s = cl_status(r);

		ck_assert_uint_eq(s->complete, r != who);
		if (r == who)
			continue;
		ck_assert_uint_eq(s->code, TE_K_COMM_TIMEOUT);
		ck_assert_int_eq(s->peer, who);
		ck_assert_uint_eq(cl_epoch(r), 0);
	}
	recovers();
	cl_close();
}
END_TEST

/* an all-reduce of the same array, and other outputs, sizes and types */
START_TEST(another_operation_is_a_mismatch)
{
	struct cl_call c;
	struct fused f, g;
	int who;

	cl_open((int)tt_rand_int(2, 8), HEAP);
	who = (int)tt_rand_int(0, cl_n - 1);
	f = fused_new(TE_K_COMM_P2, TE_DTYPE_BF16, 9, 64);
	f.codes = f.rstd = f.amax = f.scale_inv = NONE;
	g = f;
	c = cl_call_new(TE_K_COMM_P2, TE_K_COMM_SUM, TE_DTYPE_BF16, 9 * 64);
	switch (_i) {
	case 0:
		g.k.comm.algorithm = TE_K_COMM_P1;
		g.k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
		f.k.flags = g.k.flags;
		break;
	case 1:
		g.k.comm.dtype = TE_DTYPE_FP16;
		break;
	case 2:
		g.k.rows--;
		break;
	case 3:
		g.k.cols -= 8;
		break;
	case 4:
		g.rstd = cl_room(4 * 9, 4);
		break;
	case 5:
		g.k.flags ^= TE_K_COMM_RESIDUAL_SHARDED;
		break;
	case 6:
		g.k.comm.max_blocks = f.k.comm.max_blocks % 8 + 1;
		break;
	case 7: /* the gradient, with the same outputs */
		f.residual_out = g.residual_out = NONE;
		g.x = g.in;
		g.x_rstd = g.gamma;
		break;
	}
	cl_upload();
	for (int r = 0; r < cl_n; r++)
		if (r != who)
			launch(&f, r);
		else if (_i < 8)
			launch(&g, r);
		else
			cl_launch(&c, r);
	cl_sync();
	for (int r = 0; r < cl_n; r++) {
		const struct te_k_comm_status *s = cl_status(r);

		ck_assert_uint_eq(s->complete, 1);
		ck_assert_uint_eq(s->code, TE_K_COMM_MISMATCH);
		ck_assert_uint_eq(s->phase, TE_K_COMM_HEADER);
		if (r != who)
			ck_assert_int_eq(s->peer, who);
		ck_assert_uint_ne(s->expected, s->got);
	}
	recovers();
	cl_close();
}
END_TEST

START_TEST(an_abort_ends_all_waits)
{
	struct fused f;

	cl_open((int)tt_rand_int(2, 8), HEAP);
	f = fused_new(_i, any_type(), any_rows(), tt_rand_int(1, 600));
	cl_upload();
	cl_deadline_ns = 0; /* none */
	for (int r = 1; r < cl_n; r++)
		launch(&f, r);
	usleep((useconds_t)tt_rand_int(0, 50000));
	cl_abort();
	cl_sync();
	for (int r = 1; r < cl_n; r++)
		ck_assert_uint_eq(cl_status(r)->code, TE_K_COMM_ABORTED);
	recovers();
	cl_close();
}
END_TEST

/* ---- launches ---- */

static void setup_check(void)
{
	kc_open(backend);
}

/* of the memory that kernel_check.c sees; with one rank, there is no other */
START_TEST(memory_is_that_of_kernels_def)
{
	const int32_t dtype = every_type[_i];
	const int64_t rows = tt_rand_int(1, 40), cols = tt_rand_int(1, 60) * 8, n = rows * cols;
	struct te_k_comm_norm k = {
		.comm = {
			.ctl = kc_poison(TE_DTYPE_UINT8, sizeof(*k.comm.ctl)),
			.abort = kc_poison(TE_DTYPE_UINT8, 4),
			.status = kc_poison(TE_DTYPE_UINT8, sizeof(*k.comm.status)),
			.count = n,
			.nranks = 1,
			.dtype = dtype,
			.max_blocks = 7,
		},
		.rows = rows,
		.cols = cols,
		.eps = 1e-5f,
		.qdtype = TE_DTYPE_E4M3,
	};

	/* bits that are the same on both backends: FP16 has no exact rstd here */
	k.comm.in = kc_normal(dtype, n, 1.0f);
	k.comm.out = kc_poison(dtype, n);
	k.residual = kc_normal(dtype, n, 1.0f);
	k.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f);
	k.residual_out = kc_poison(dtype, n);
	k.y = kc_poison(dtype, n);
	k.rstd = kc_poison(TE_DTYPE_FP32, rows);
	k.codes = kc_poison(TE_DTYPE_UINT8, n);
	k.scale = kc_word(2.0f);
	k.amax = kc_word(0.0f);
	for (k.scaling = 0; k.scaling < TE_K_COMM_SCALINGS; k.scaling++)
		for (k.comm.algorithm = TE_K_COMM_P1; k.comm.algorithm <= TE_K_COMM_P2;
		     k.comm.algorithm++) {
			k.scale_inv =
				kc_poison(TE_DTYPE_FP32, te_k_comm_norm_scale_inv_nfloats(&k));
			k.comm.half_nbytes = te_k_comm_norm_half_nbytes(&k);
			k.comm.slots = kc_poison(TE_DTYPE_UINT8,
						 te_k_comm_region_nbytes(k.comm.half_nbytes));
			memset(k.comm.ctl, 0, sizeof(*k.comm.ctl));
			/* rstd is not the host's last bit on a GPU, nor what follows from it */
			kc_defer(k.rstd);
			kc_defer(k.y);
			kc_defer(k.codes);
			kc_defer(k.scale_inv);
			kc_defer(k.amax);
			KC_RUN(COMM_NORM, &k);
			for (int64_t i = 0; i < rows; i++)
				kc_near(k.rstd, i, 1e-5);
		}
	k.residual_out = k.rstd = k.codes = k.scale_inv = k.amax = NULL;
	k.scaling = TE_K_COMM_SCALING_TENSOR;
	k.x = kc_normal(dtype, n, 1.0f);
	k.x_rstd = kc_normal(TE_DTYPE_FP32, rows, 1.0f);
	for (k.comm.algorithm = TE_K_COMM_P1; k.comm.algorithm <= TE_K_COMM_P2;
	     k.comm.algorithm++) {
		memset(k.comm.ctl, 0, sizeof(*k.comm.ctl));
		kc_defer(k.y);
		KC_RUN(COMM_NORM_BWD, &k);
	}
}
END_TEST

static struct te_k_comm_norm some(void)
{
	static float word[4] __attribute__((aligned(16)));
	struct te_k_comm_norm k = {
		.comm = {
			.nranks = 8,
			.max_blocks = 16,
			.algorithm = TE_K_COMM_P2,
			.dtype = TE_DTYPE_BF16,
		},
		.gamma = word,
		.y = word,
		.codes = word,
		.scale = word,
		.scale_inv = word,
		.rows = 20,
		.cols = 1000,
		.qdtype = TE_DTYPE_E4M3,
	};

	k.comm.half_nbytes = te_k_comm_norm_half_nbytes(&k);
	return k;
}

START_TEST(geometry_is_the_same_on_all_ranks)
{
	struct te_k_comm_norm k = some();
	struct te__geometry g, other;

	k.comm.half_nbytes = 1 << 30;
	for (k.comm.algorithm = TE_K_COMM_P1; k.comm.algorithm <= TE_K_COMM_P2;
	     k.comm.algorithm++)
		for (k.rows = 1; k.rows < 1000; k.rows = k.rows * 3 / 2 + 1)
			for (k.cols = 8; k.cols <= TE_K_COMM_NORM_COLS; k.cols *= 2) {
				memset(&g, 0, sizeof(g));
				memset(&other, 0, sizeof(other));
				k.comm.rank = 0;
				k.residual = NULL;
				DO(te__geometry(TE_K_COMM_NORM, &k, &g));
				ck_assert_uint_ge(g.grid[0], 1);
				ck_assert_uint_le(g.grid[0], 16);
				k.comm.rank = 5;
				k.residual = k.y;
				DO(te__geometry(TE_K_COMM_NORM, &k, &other));
				ck_assert_mem_eq(&g, &other, sizeof(g));
			}
	k.comm.algorithm = TE_K_COMM_P1;
	k.cols = 8;
	k.rows = 0;
	DO(te__geometry(TE_K_COMM_NORM, &k, &g));
	ck_assert_uint_eq(g.grid[0], 0);
}
END_TEST

START_TEST(geometry_refuses_what_the_kernels_cannot_do)
{
	const struct te_k_comm_norm good = some();
	struct te_k_comm_norm k = good;
	struct te__geometry g;

	DO(te__geometry(TE_K_COMM_NORM, &k, &g));
#define REFUSES(change, code, text)                                              \
	do {                                                                     \
		k = good;                                                        \
		change;                                                          \
		fails(te__geometry(TE_K_COMM_NORM, &k, &g), code, text);         \
	} while (0)
	REFUSES(k.comm.nranks = 9, -EINVAL, "rank 0 of 9");
	REFUSES(k.comm.nranks = 0, -EINVAL, "rank 0 of 0");
	REFUSES(k.comm.rank = 8, -EINVAL, "rank 8 of 8");
	REFUSES(k.comm.algorithm = TE_K_COMM_S, -EINVAL, "no algorithm");
	REFUSES(k.comm.op = TE_K_COMM_AVG, -EINVAL, "no algorithm");
	REFUSES(k.comm.max_blocks = 0, -EINVAL, "0 blocks");
	REFUSES(k.comm.max_blocks = TE_K_COMM_CTAS + 1, -EINVAL, "129 blocks");
	REFUSES(k.comm.dtype = TE_DTYPE_E4M3, -TE_EDTYPE, "e4m3");
	REFUSES(k.cols = 1004, -TE_ESHAPE, "1004 elements of bf16, expected a multiple of 8");
	REFUSES(k.cols = TE_K_COMM_NORM_COLS + 8, -TE_ESHAPE, "at most 16384");
	REFUSES(k.rows = 1 << 24, -TE_ESHAPE, "16777216 rows");
	REFUSES(k.rows = 25, -TE_ESHAPE, "need packet memory of");
	REFUSES(k.gamma = NULL, -EINVAL, "missing");
	REFUSES(k.scale = NULL, -EINVAL, "missing");
	REFUSES(k.scale_inv = NULL, -EINVAL, "missing");
	REFUSES(k.y = (char *)k.y + 8, -EINVAL, "aligned to 16");
	REFUSES(k.scaling = TE_K_COMM_SCALINGS, -EINVAL, "scaling 3");
	REFUSES(k.qdtype = TE_DTYPE_BF16, -EINVAL, "no codes");
	REFUSES((k.comm.algorithm = TE_K_COMM_P1, k.flags = TE_K_COMM_RESIDUAL_SHARDED), -EINVAL,
		"two-shot");
	REFUSES(k.x = k.y, -EINVAL, "x is an argument of");
#undef REFUSES
	k = good;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "x_rstd are needed");
	k.x = k.y;
	k.x_rstd = k.gamma;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "no outputs but");
	k.codes = NULL;
	DO(te__geometry(TE_K_COMM_NORM_BWD, &k, &g));
}
END_TEST

/* ---- the suite ---- */

static TCase *one_case(Suite *s, const char *title, const char *tags)
{
	TCase *c = tt_case(s, title, tags);

	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	return c;
}

Suite *comm_norm_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c;

	backend = on;
	c = one_case(s, "results", "numeric");
	tcase_add_loop_test(c, results_are_those_of_a_loop, 0, TE_K_COMM_RANKS);
	TT_ADD_LOOP(c, long_rows, NLONG, 3);
	tcase_add_test(c, algorithms_agree);
	tcase_add_loop_test(c, gradients_are_those_of_separate_kernels, 0, TE_K_COMM_RANKS);
	TT_ADD_LOOP(c, gradients_of_long_rows, 3, 3);
	tcase_add_loop_test(c, results_are_those_of_separate_kernels, TE_K_COMM_P1,
			    TE_K_COMM_P2 + 1);
	c = one_case(s, "order", "protocol");
	tcase_add_loop_test(c, operations_in_a_row, 0, TE_K_COMM_RANKS);
	tcase_add_test(c, a_sharded_residual_goes_through_layers);
	tcase_add_loop_test(c, replays, 0, 2);
	tcase_add_test(c, no_rows_are_no_operation);
	c = one_case(s, "failures", "protocol");
	tcase_add_loop_test(c, a_rank_that_skips_an_operation_is_named, TE_K_COMM_P1,
			    TE_K_COMM_P2 + 1);
	tcase_add_loop_test(c, another_operation_is_a_mismatch, 0, 9);
	tcase_add_loop_test(c, an_abort_ends_all_waits, TE_K_COMM_P1, TE_K_COMM_P2 + 1);
	c = tt_case(s, "memory", "numeric");
	tcase_add_checked_fixture(c, setup_check, kc_close);
	tcase_add_loop_test(c, memory_is_that_of_kernels_def, 0, TT_LEN(every_type));
	c = tt_case(s, "launches", "host");
	tcase_add_test(c, geometry_is_the_same_on_all_ranks);
	tcase_add_test(c, geometry_refuses_what_the_kernels_cannot_do);
	return s;
}
