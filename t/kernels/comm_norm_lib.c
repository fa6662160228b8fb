/*
 * t/kernels/comm_norm_lib.c - see comm_norm_lib.h. What is expected is a loop over elements; rstd
 * and y are also those of te_k_norm_fwd.
 */
#include "config.h"

#include <float.h>
#include <math.h>

#include "comm_norm_lib.h"
#include "kernels/launch.h"
#include "libtecore/tensor/ctx.h"
#include "tt_num.h"

#define MAX_SCALES (TE_K_COMM_NORM_COLS / TE_K_BLOCK)

const int32_t cn_type[CN_NTYPES] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16 };

static int on_host(void)
{
	return !strcmp(backend, "host");
}

int64_t cn_es(const struct cn_op *f)
{
	return (int64_t)te_dtype_nbytes((enum te_dtype)f->k.comm.dtype);
}

int64_t cn_count(const struct cn_op *f)
{
	return f->k.rows * f->k.cols;
}

/* te_k_norm_fwd takes this type here, and adds in the order of the fused kernel */
static int has_separate_norm(const struct cn_op *f)
{
	return on_host() || (f->k.comm.dtype != TE_DTYPE_FP16 && f->k.cols % TE_V == 0);
}

/* ---- inputs ---- */

static void fill_row(const struct cn_op *f, uint8_t *p)
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
			tt_fill_bytes(p + i * cn_es(f), (size_t)cn_es(f));
			if (tt_rand_int(0, 3) == 0)
				memset(p + i * cn_es(f), 0xff, (size_t)cn_es(f));
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

int cn_owner(const struct cn_op *f, int64_t row)
{
	int r = 0;

	if (f->k.comm.algorithm == TE_K_COMM_ONE_SHOT)
		return -1;
	while (row >= te_k_comm_norm_first(&f->k, r + 1))
		r++;
	return r;
}

/* does the rank have this row of an array that a sharded residual divides? */
static int has_row(const struct cn_op *f, int rank, int64_t row)
{
	return !(f->k.flags & TE_K_COMM_RESIDUAL_SHARDED) || cn_owner(f, row) == rank;
}

void cn_fill(const struct cn_op *f)
{
	const int64_t nbytes = f->k.cols * cn_es(f);
	uint8_t *row = malloc((size_t)nbytes);

	for (int64_t i = 0; i < f->k.rows; i++) {
		for (int r = 0; r < cl_n; r++)
			fill_row(f, cl_before(r) + f->in + i * nbytes);
		fill_row(f, row);
		for (int r = 0; r < cl_n && f->residual != CN_NONE; r++) {
			uint8_t *p = cl_before(r) + f->residual + i * nbytes;

			if (cn_owner(f, i) < 0 || cn_owner(f, i) == r)
				memcpy(p, row, (size_t)nbytes);
			else
				tt_fill_bytes(p, (size_t)nbytes);
		}
	}
	for (int64_t i = 0; i < f->k.rows && f->x != CN_NONE; i++) {
		const float rstd = tt_rand_float(0.1f, 3.0f);

		fill_row(f, row);
		for (int r = 0; r < cl_n; r++) {
			uint8_t *x = cl_before(r) + f->x + i * nbytes;
			uint8_t *word = cl_before(r) + f->x_rstd + i * 4;

			if (has_row(f, r, i)) {
				memcpy(x, row, (size_t)nbytes);
				memcpy(word, &rstd, sizeof(rstd));
			} else {
				tt_fill_bytes(x, (size_t)nbytes);
				tt_fill_bytes(word, sizeof(rstd));
			}
		}
	}
	for (int64_t i = 0; i < f->k.cols; i++)
		put_float(f->gamma, i, tt_rand_int(0, 63) ? tt_rand_normal() : 0.0f);
	if (f->scale != CN_NONE)
		put_float(f->scale, 0, ldexpf(1.0f + tt_rand_float(0, 1), (int)tt_rand_int(-8, 8)));
	for (int r = 0; r < cl_n && f->amax != CN_NONE; r++) {
		const float x = tt_rand_int(0, 3) ? 0.0f : tt_rand_float(0, 100);

		memcpy(cl_before(r) + f->amax, &x, sizeof(x));
	}
	free(row);
}

/* offsets of outputs, of which some are absent */
static int64_t maybe(int64_t nbytes)
{
	return tt_rand_int(0, 2) ? cl_room(nbytes, 16) : CN_NONE;
}

static int64_t multiple(const struct cn_op *f)
{
	return TE_K_COMM_PACKET / cn_es(f);
}

struct cn_op cn_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols)
{
	struct cn_op f = {
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
		.scale = CN_NONE,
		.scale_inv = CN_NONE,
		.amax = CN_NONE,
		.x = CN_NONE,
		.x_rstd = CN_NONE,
	};
	int64_t nbytes;

	f.k.cols = (cols + multiple(&f) - 1) / multiple(&f) * multiple(&f);
	nbytes = cn_count(&f) * cn_es(&f);
	f.k.comm.count = cn_count(&f);
	/* all blocks of all ranks are resident on a GPU of 132 multiprocessors */
	f.k.comm.max_blocks = (int32_t)tt_rand_int(1, 128 / cl_n < 24 ? 128 / cl_n : 24);
	if (algorithm == TE_K_COMM_ONE_SHOT)
		f.k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
	f.in = cl_room(nbytes, 16);
	f.residual = maybe(nbytes);
	f.gamma = cl_room(4 * f.k.cols, 16);
	f.out = maybe(nbytes);
	f.residual_out = f.residual != CN_NONE && tt_rand_int(0, 1) ? f.residual : maybe(nbytes);
	f.y = tt_rand_int(0, 3) == 0 ? f.in : maybe(nbytes);
	f.rstd = has_separate_norm(&f) ? maybe(4 * rows) : cl_room(4 * rows, 4);
	f.codes = maybe(cn_count(&f));
	if (f.codes != CN_NONE)
		f.scale_inv = cl_room(4 * te_k_comm_norm_scale_inv_nfloats(&f.k), 4);
	if (f.k.scaling == TE_K_COMM_SCALING_TENSOR) {
		f.amax = maybe(4);
		f.scale = f.codes != CN_NONE ? cl_room(4, 4) : CN_NONE;
	}
	cn_fill(&f);
	return f;
}

struct cn_op cn_bwd_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols)
{
	struct cn_op f = cn_new(algorithm, dtype, rows, cols);
	const int64_t nbytes = cn_count(&f) * cn_es(&f);

	f.rstd = f.codes = f.scale = f.scale_inv = f.amax = CN_NONE;
	if (cl_n > 1 && !(f.k.flags & TE_K_COMM_RESIDUAL_SHARDED))
		f.residual_out = CN_NONE;
	f.x = cl_room(nbytes, 16);
	f.x_rstd = cl_room(4 * rows, 4);
	/* without te_k_norm_bwd, residual_out is compared with y */
	if (f.y == CN_NONE && (f.out == CN_NONE || f.residual_out != CN_NONE) &&
	    (f.residual_out == CN_NONE || !has_separate_norm(&f)))
		f.y = cl_room(nbytes, 16);
	cn_fill(&f);
	return f;
}

/* ---- launches ---- */

void *cn_at(int rank, int64_t offset)
{
	return offset == CN_NONE ? NULL : cl_heap(rank) + offset;
}

struct te_k_comm_norm cn_args(const struct cn_op *f, int rank)
{
	struct te_k_comm_norm k = f->k;

	k.comm = cl_comm(rank);
	k.comm.in = cn_at(rank, f->in);
	k.comm.out = cn_at(rank, f->out);
	k.comm.count = cn_count(f);
	k.comm.dtype = f->k.comm.dtype;
	k.comm.op = f->k.comm.op;
	k.comm.algorithm = f->k.comm.algorithm;
	k.comm.max_blocks = f->k.comm.max_blocks;
	k.residual = cn_at(rank, f->residual);
	k.gamma = cn_at(rank, f->gamma);
	k.residual_out = cn_at(rank, f->residual_out);
	k.y = cn_at(rank, f->y);
	k.rstd = cn_at(rank, f->rstd);
	k.codes = cn_at(rank, f->codes);
	k.scale = cn_at(rank, f->scale);
	k.scale_inv = cn_at(rank, f->scale_inv);
	k.amax = cn_at(rank, f->amax);
	k.x = cn_at(rank, f->x);
	k.x_rstd = cn_at(rank, f->x_rstd);
	return k;
}

void cn_launch(const struct cn_op *f, int rank)
{
	const struct te_k_comm_norm k = cn_args(f, rank);

	if (k.x)
		DO(TE__LAUNCH(cl_stream[rank], COMM_NORM_BWD, &k));
	else
		DO(TE__LAUNCH(cl_stream[rank], COMM_NORM, &k));
}

void cn_launch_all(const struct cn_op *f)
{
	for (int r = 0; r < cl_n; r++)
		cn_launch(f, r);
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
static void expect_r(const struct cn_op *f, const struct cn_expected *e)
{
	const int32_t dtype = f->k.comm.dtype;

	for (int64_t i = 0; i < cn_count(f); i++) {
		const int owner = cn_owner(f, i / f->k.cols);
		float s = tt_get(dtype, cl_before(0) + f->in, i), t;

		for (int r = 1; r < cl_n; r++)
			s = s + tt_get(dtype, cl_before(r) + f->in, i);
		t = put(dtype, e->sum, i, s);
		if (f->k.flags & TE_K_COMM_ROUND_SUM)
			s = t;
		if (f->residual != CN_NONE)
			s = s + tt_get(dtype, cl_before(owner < 0 ? 0 : owner) + f->residual, i);
		put(dtype, e->r, i, s);
	}
}

/*
 * rstd and y by te_k_norm_fwd, if it has the same definition here. Otherwise rstd is that of rank 0
 * and within a bound: a square is added up to 3 + 4 + 5 + 16 times, so that the sum is off by less
 * than 29 U, and rstd by half of that and by 4 operations more.
 */
static void expect_rstd(const struct cn_op *f, const struct cn_expected *e)
{
	const size_t nbytes = (size_t)(cn_count(f) * cn_es(f));
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
				const double r = tt_get(k.dtype, e->r, row * f->k.cols + i);

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
static void expect_y(const struct cn_op *f, const struct cn_expected *e)
{
	const int32_t dtype = f->k.comm.dtype;
	const float *gamma = (const float *)(const void *)(cl_before(0) + f->gamma);

	for (int64_t i = 0; i < cn_count(f); i++) {
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

static float scale_of(const struct cn_op *f, float amax)
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
static float expect_codes(const struct cn_op *f, const struct cn_expected *e, int64_t from,
			  int64_t n)
{
	float amax = 0.0f, s;

	for (int64_t i = from; i < from + n; i++) {
		const float y = fabsf(tt_get(f->k.comm.dtype, e->y, i));

		if (y > amax)
			amax = y;
	}
	if (amax > e->amax)
		((struct cn_expected *)(uintptr_t)e)->amax = amax;
	if (f->codes == CN_NONE)
		return 0.0f;
	if (f->k.scaling == TE_K_COMM_SCALING_TENSOR)
		memcpy(&s, cl_before(0) + f->scale, sizeof(s));
	else
		s = scale_of(f, amax);
	for (int64_t i = from; i < from + n; i++)
		tt_set(f->k.qdtype, e->codes, i, tt_get(f->k.comm.dtype, e->y, i) * s);
	return 1.0f / s;
}

static void expect_quantized(const struct cn_op *f, struct cn_expected *e)
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

/* rows of an array of which ranks may have their own ones only */
static void gather(const struct cn_op *f, int64_t offset, int64_t nbytes, void *to)
{
	for (int64_t i = 0; i < f->k.rows && offset != CN_NONE; i++) {
		const int o = cn_owner(f, i) < 0 ? 0 : cn_owner(f, i);

		memcpy((uint8_t *)to + i * nbytes, cl_before(o) + offset + i * nbytes,
		       (size_t)nbytes);
	}
}

/* e->y by te_k_norm_bwd of e->sum */
static void separate_bwd(const struct cn_op *f, const struct cn_expected *e)
{
	const size_t nbytes = (size_t)(cn_count(f) * cn_es(f));
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
	DO(te_copy(st, p[1], e->x, nbytes));
	DO(te_copy(st, p[2], cl_before(0) + f->gamma, (size_t)f->k.cols * 4));
	DO(te_copy(st, p[3], e->rstd, (size_t)f->k.rows * 4));
	if (f->residual != CN_NONE) {
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
	for (int64_t i = 0; i < cn_count(f); i++)
		put(k.dtype, e->y, i, tt_get(k.dtype, e->y, i));
}

/*
 * e->y is what rank 0 has, which is near a sum in FP64. A term is added up to 28 times, so that
 * the mean is off by less than 30 U times the mean of its terms' absolute values; dx has 6 more
 * operations.
 */
static void near_bwd(const struct cn_op *f, const struct cn_expected *e)
{
	const int32_t dtype = f->k.comm.dtype;
	const float *gamma = (const float *)(const void *)(cl_before(0) + f->gamma);
	const int64_t cols = f->k.cols;

	for (int64_t row = 0; row < f->k.rows && f->y != CN_NONE; row++) {
		const double rstd = e->rstd[row];
		double mean = 0.0, most = 0.0;

		for (int pass = 0; pass < 2; pass++)
			for (int64_t i = 0; i < cols; i++) {
				const int64_t k = row * cols + i;
				const double one = f->k.flags & TE_K_COMM_ZERO_CENTERED ? 1 : 0;
				const double g = tt_get(dtype, e->sum, k) * (one + gamma[i]);
				const double xhat = tt_get(dtype, e->x, k) * rstd;
				const double res =
					f->residual == CN_NONE ? 0.0 : tt_get(dtype, e->r, k);
				const double want = rstd * (g - xhat * mean) + res;
				const double got = tt_get(dtype, cl_got(0) + f->y, k);
				const double off =
					rstd * (fabs(g) + fabs(xhat) * (fabs(mean) + 5 * most));

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
							      8 * U32 * (off + fabs(res)) + 0x1p-24,
					      "element %lld: dx %g, want %g", (long long)k, got,
					      want);
			}
	}
	if (f->y != CN_NONE)
		memcpy(e->y, cl_got(0) + f->y, (size_t)(cn_count(f) * cn_es(f)));
}

void cn_expect_open(const struct cn_op *f, struct cn_expected *e)
{
	const size_t n = (size_t)cn_count(f), nbytes = n * (size_t)cn_es(f);

	e->sum = malloc(nbytes);
	e->r = malloc(nbytes);
	e->y = malloc(nbytes);
	e->x = malloc(nbytes);
	e->rstd = malloc((size_t)f->k.rows * 4);
	e->codes = malloc(n);
	e->scale_inv = calloc((size_t)te_k_comm_norm_scale_inv_nfloats(&f->k), 4);
	ck_assert(e->sum && e->r && e->y && e->x && e->rstd && e->codes && e->scale_inv);
	expect_r(f, e);
	if (f->x != CN_NONE) {
		gather(f, f->residual, f->k.cols * cn_es(f), e->r);
		gather(f, f->x, f->k.cols * cn_es(f), e->x);
		gather(f, f->x_rstd, 4, e->rstd);
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

void cn_expect_close(struct cn_expected *e)
{
	free(e->sum);
	free(e->r);
	free(e->y);
	free(e->x);
	free(e->rstd);
	free(e->codes);
	free(e->scale_inv);
}

/* ---- comparison ---- */

static void want_bytes(uint8_t *want, int64_t offset, const void *p, int64_t nbytes)
{
	if (offset != CN_NONE)
		memcpy(want + offset, p, (size_t)nbytes);
}

static void want_of(const struct cn_op *f, const struct cn_expected *e, int rank, uint8_t *want)
{
	const int64_t n = cn_count(f), row = f->k.cols * cn_es(f);
	const int back = f->x != CN_NONE;
	float amax;

	for (int64_t i = 0; i < f->k.rows; i++) {
		if (f->out != CN_NONE && (!back || has_row(f, rank, i)))
			memcpy(want + f->out + i * row, e->sum + i * row, (size_t)row);
		if (f->residual_out != CN_NONE && has_row(f, rank, i))
			memcpy(want + f->residual_out + i * row, (back ? e->y : e->r) + i * row,
			       (size_t)row);
	}
	want_bytes(want, f->y, e->y, n * cn_es(f));
	want_bytes(want, f->rstd, e->rstd, f->k.rows * 4);
	want_bytes(want, f->codes, e->codes, n);
	want_bytes(want, f->scale_inv, e->scale_inv, 4 * te_k_comm_norm_scale_inv_nfloats(&f->k));
	if (f->amax == CN_NONE)
		return;
	memcpy(&amax, want + f->amax, sizeof(amax));
	if (e->amax > amax)
		memcpy(want + f->amax, &e->amax, sizeof(amax));
}

static void same_bytes(const struct cn_op *f, int rank, const char *what, int64_t offset,
		       int64_t es, int64_t n, const uint8_t *want)
{
	for (int64_t i = 0; i < n && offset != CN_NONE; i++) {
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

void cn_check(const struct cn_op *f, int n, const struct cl_call *c, int ncalls)
{
	uint8_t *want[TE_K_COMM_RANKS];

	cl_read();
	for (int r = 0; r < cl_n; r++) {
		want[r] = malloc((size_t)cl_heap_nbytes());
		ck_assert_ptr_nonnull(want[r]);
		memcpy(want[r], cl_before(r), (size_t)cl_heap_nbytes());
	}
	for (int k = 0; k < n; k++) {
		struct cn_expected e;

		cn_expect_open(&f[k], &e);
		for (int r = 0; r < cl_n; r++) {
			want_of(&f[k], &e, r, want[r]);
			same_bytes(&f[k], r, "sum", f[k].out, cn_es(&f[k]), cn_count(&f[k]),
				   want[r]);
			same_bytes(&f[k], r, "r", f[k].residual_out, cn_es(&f[k]), cn_count(&f[k]),
				   want[r]);
			same_bytes(&f[k], r, "rstd", f[k].rstd, 4, f[k].k.rows, want[r]);
			same_bytes(&f[k], r, "y", f[k].y, cn_es(&f[k]), cn_count(&f[k]), want[r]);
			same_bytes(&f[k], r, "amax", f[k].amax, 4, 1, want[r]);
			same_bytes(&f[k], r, "scale_inv", f[k].scale_inv, 4,
				   te_k_comm_norm_scale_inv_nfloats(&f[k].k), want[r]);
			same_bytes(&f[k], r, "codes", f[k].codes, 1, cn_count(&f[k]), want[r]);
		}
		cn_expect_close(&e);
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

void cn_run(const struct cn_op *f)
{
	cl_upload();
	cn_launch_all(f);
	cn_check(f, 1, NULL, 0);
}

/* ---- any operation ---- */

int cn_any_algorithm(void)
{
	return tt_rand_int(0, 1) ? TE_K_COMM_ONE_SHOT : TE_K_COMM_TWO_SHOT;
}

int32_t cn_any_type(void)
{
	return cn_type[tt_rand_int(0, CN_NTYPES - 1)];
}

int64_t cn_any_rows(void)
{
	return tt_rand_int(1, tt_rand_int(0, 1) ? 4 : 20);
}

struct cn_op cn_any(int64_t most_cols)
{
	return cn_new(cn_any_algorithm(), cn_any_type(), cn_any_rows(), tt_rand_int(1, most_cols));
}
