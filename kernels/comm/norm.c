/*
 * norm.c - reference kernel of the all-reduce with residual, RMSNorm and FP8, for ranks that
 * are threads or processes. The norm and the codes are as in te__h_norm_fwd(), a row at a time.
 */
#include "config.h"

#include "kernels/comm/ref.h"
#include "kernels/team.h"

#define ROW_NBYTES (4 * TE_K_COMM_NORM_COLS)
#define MAX_SCALES (TE_K_COMM_NORM_COLS / TE_K_BLOCK)
#define MAX_WORDS (2 + MAX_SCALES)

struct fused {
	struct te__hc_op o;
	const struct te_k_comm_norm *a;
	int64_t row_nbytes; /* bytes of a row of T */
	int64_t most;	    /* two-shot: rows of rank 0 */
	uint8_t *row;	    /* two rows of ROW_NBYTES */
};

/* ---- a row ---- */

static uint8_t *row_of(void *array, int64_t row, int64_t nbytes)
{
	return array ? (uint8_t *)array + row * nbytes : NULL;
}

static void make_nans_equal(float *v, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (v[i] != v[i])
			v[i] = te__f32_from_bits(TE_K_COMM_NAN);
}

/* r of a row; packet p of a source's x is at index + source * each + p */
static int row_reduce(struct fused *f, int64_t row, int64_t index, int64_t each, uint8_t *r)
{
	const struct te_k_comm_norm *a = f->a;
	const int32_t dtype = a->comm.dtype;
	const int64_t es = f->row_nbytes / a->cols;
	float s[TE__H_CHUNK], v[TE__H_CHUNK];
	uint8_t x[4 * TE__H_CHUNK];

	TE__H_CHUNKS(c, n, a->cols) {
		const int64_t at = row * a->cols + c;

		for (int k = 0; k < a->comm.nranks; k++) {
			float *to = k ? v : s;

			if (k == a->comm.rank) {
				te__h_load(dtype, a->comm.in, at, n, to);
			} else {
				const int64_t from = te_k_comm_source(a->comm.rank, k) * each;

				if (te__hc_receive(&f->o, TE_K_COMM_DATA, k,
						  index + from + c * es / TE_K_COMM_PACKET, x,
						  n * es))
					return -1;
				te__h_load(dtype, x, 0, n, to);
			}
			if (k)
				te__h_add_to(s, v, n);
		}
		make_nans_equal(s, n);
		memcpy(v, s, sizeof(v));
		te__h_round(dtype, n, v);
		if (a->flags & TE_K_COMM_ROUND_SUM || a->x)
			memcpy(s, v, sizeof(s));
		te__h_store(dtype, r, c, n, v);
		if (a->residual && !a->x) {
			te__h_load(dtype, a->residual, at, n, v);
			te__h_add_to(s, v, n);
			make_nans_equal(s, n);
		}
		/* after the last use of in and residual, which out may be */
		if (a->comm.out && !a->x)
			memcpy(row_of(a->comm.out, row, f->row_nbytes) + c * es, r + c * es,
			       (size_t)(n * es));
		te__h_store(dtype, r, c, n, s);
	}
	return 0;
}

/* te_k_comm_norm_bwd: y of s, which is r */
static void row_norm_bwd(const struct fused *f, int64_t row, const uint8_t *r, uint8_t *y)
{
	const struct te_k_comm_norm *a = f->a;
	const struct te_k_norm_bwd norm = {
		.dy = r,
		.x = (const uint8_t *)a->x + row * f->row_nbytes,
		.gamma = a->gamma,
		.rstd = a->x_rstd + row,
		.dres = a->residual ? (const uint8_t *)a->residual + row * f->row_nbytes : NULL,
		.dx = y,
		.rows = 1,
		.cols = a->cols,
		.zero_centered = !!(a->flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = a->comm.dtype,
	};
	float v[TE__H_CHUNK];

	te__h_norm_bwd(&norm);
	TE__H_CHUNKS(c, n, a->cols) {
		te__h_load(a->comm.dtype, y, c, n, v);
		make_nans_equal(v, n);
		te__h_store(a->comm.dtype, y, c, n, v);
	}
}

/* y and words of r; codes are the codes of y without the signs of NaN */
static void row_norm(const struct fused *f, int64_t row, const uint8_t *r, uint8_t *y, float *word)
{
	const struct te_k_comm_norm *a = f->a;
	const int block = a->scaling == TE_K_COMM_SCALING_BLOCK;
	const int token = a->scaling == TE_K_COMM_SCALING_TOKEN;
	const int pow2 = !!(a->flags & TE_K_COMM_POW2);
	float inv[4 * MAX_SCALES], amax, scale, rstd, v[TE__H_CHUNK];
	const struct te_k_norm_fwd norm = {
		.x = r,
		.gamma = a->gamma,
		.y = y,
		.rstd = &rstd,
		.rows = 1,
		.cols = a->cols,
		.eps = a->eps,
		.zero_centered = !!(a->flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = a->comm.dtype,
	};
	const struct te_k_quantize quantize = {
		.x = y,
		.rows = 1,
		.cols = a->cols,
		.q = {
			.row = row_of(a->codes, row, a->cols),
			.scale = token ? &scale : a->scale,
			.scale_inv = inv,
			.epsilon = a->epsilon,
			.dtype = a->qdtype,
			.scaling = block ? TE_K_SCALING_1X128 : TE_K_SCALING_TENSOR,
			.pow2 = pow2,
		},
		.dtype = a->comm.dtype,
	};
	const int32_t nscales = te_k_comm_norm_nscales(a);
	uint32_t bits = 0;

	te__h_norm_fwd(&norm);
	make_nans_equal(&rstd, 1);
	TE__H_CHUNKS(c, n, a->cols) {
		te__h_load(a->comm.dtype, y, c, n, v);
		make_nans_equal(v, n);
		bits = te__h_amax_bits(v, n, bits);
		te__h_store(a->comm.dtype, y, c, n, v);
	}
	amax = te__f32_from_bits(bits);
	if (token)
		scale = te__h_scale(amax, a->qdtype == TE_DTYPE_E4M3 ? 448.0f : 57344.0f,
				    a->epsilon, pow2);
	if (a->codes)
		te__h_quantize(&quantize);
	if (a->rstd)
		*word++ = rstd;
	if (a->amax)
		*word++ = amax;
	for (int32_t k = 0; k < nscales; k++)
		*word++ = inv[k * te_k_scale_ld(quantize.q.scaling, 1, a->cols)];
}

/* the words of a row to their arrays */
static void words_store(const struct te_k_comm_norm *a, int64_t row, const float *word)
{
	const int32_t nscales = te_k_comm_norm_nscales(a);
	const int64_t ld = te_k_scale_ld(TE_K_SCALING_1X128, a->rows, a->cols);

	if (a->rstd)
		a->rstd[row] = *word++;
	if (a->amax)
		te__h_amax_fold(a->amax, te__f32_bits(*word++));
	for (int32_t k = 0; k < nscales; k++)
		a->scale_inv[k * ld + row] = *word++;
}

/* f(array of results of a row, its bytes) in the order of packets, words last */
#define EACH_RESULT(f, row, p, nbytes, ...)                                                     \
	do {                                                                                    \
		const struct te_k_comm_norm *a_ = (f)->a;                                       \
		uint8_t *const array[] = {                                                      \
			te_k_comm_norm_sends_s(a_) ?                                            \
				row_of(a_->comm.out, row, (f)->row_nbytes) :                    \
				NULL,                                                           \
			te_k_comm_norm_sends_r(a_) ?                                            \
				row_of(a_->residual_out, row, (f)->row_nbytes) :                \
				NULL,                                                           \
			row_of(a_->y, row, (f)->row_nbytes),                                    \
			row_of(a_->codes, row, a_->cols),                                       \
		};                                                                              \
		for (int k_ = 0; k_ < 4; k_++) {                                                \
			uint8_t *const p = array[k_];                                           \
			const int64_t nbytes = k_ < 3 ? (f)->row_nbytes : a_->cols;             \
			if (p) {                                                                \
				__VA_ARGS__;                                                    \
			}                                                                       \
		}                                                                               \
	} while (0)

/* all results of a row; to: also send them to the other ranks, to this index of source 0; or -1 */
static int row_compute(struct fused *f, int64_t row, int64_t index, int64_t each, int64_t to)
{
	const struct te_k_comm_norm *a = f->a;
	uint8_t *const r = f->row, *const y = f->row + ROW_NBYTES;
	float word[MAX_WORDS];

	if (row_reduce(f, row, index, each, r))
		return -1;
	if (a->x)
		row_norm_bwd(f, row, r, y);
	else
		row_norm(f, row, r, y, word);
	if (a->comm.out && a->x)
		memcpy(row_of(a->comm.out, row, f->row_nbytes), r, (size_t)f->row_nbytes);
	if (a->residual_out)
		memcpy(row_of(a->residual_out, row, f->row_nbytes), a->x ? y : r,
		       (size_t)f->row_nbytes);
	if (a->y)
		memcpy(row_of(a->y, row, f->row_nbytes), y, (size_t)f->row_nbytes);
	words_store(a, row, word);
	for (int k = 0; k < a->comm.nranks && to >= 0; k++) {
		int64_t at = to + te_k_comm_source(k, a->comm.rank) * f->most *
					  te_k_comm_norm_out_packets(a);

		if (k == a->comm.rank)
			continue;
		EACH_RESULT(f, row, p, nbytes, {
			te__hc_send(&f->o, k, at, p, nbytes);
			at += te_k_comm_packets(nbytes);
		});
		te__hc_send(&f->o, k, at, word, (int64_t)4 * te_k_comm_norm_nwords(a));
	}
	return 0;
}

/* all results of another rank's row */
static int row_receive(struct fused *f, int from, int64_t row, int64_t index)
{
	float word[MAX_WORDS];

	EACH_RESULT(f, row, p, nbytes, {
		if (te__hc_receive(&f->o, TE_K_COMM_RESULT, from, index, p, nbytes))
			return -1;
		index += te_k_comm_packets(nbytes);
	});
	if (te__hc_receive(&f->o, TE_K_COMM_RESULT, from, index, word,
			  (int64_t)4 * te_k_comm_norm_nwords(f->a)))
		return -1;
	words_store(f->a, row, word);
	return 0;
}

/* ---- algorithms ---- */

static const uint8_t *x_of(const struct fused *f, int64_t row)
{
	return (const uint8_t *)f->a->comm.in + row * f->row_nbytes;
}

static int one_shot(struct fused *f)
{
	const struct te_k_comm_norm *a = f->a;
	const int64_t p = te_k_comm_norm_in_packets(a), all = a->rows * p;

	for (int k = 0; k < a->comm.nranks; k++)
		if (k != a->comm.rank)
			te__hc_send(&f->o, k, te_k_comm_source(k, a->comm.rank) * all, a->comm.in,
				   a->rows * f->row_nbytes);
	te__hc_ring(&f->o);
	if (te__hc_headers(&f->o))
		return -1;
	for (int64_t row = 0; row < a->rows; row++)
		if (row_compute(f, row, row * p, all, -1))
			return -1;
	return 0;
}

static int two_shot(struct fused *f)
{
	const struct te_k_comm_norm *a = f->a;
	const int n = a->comm.nranks, me = a->comm.rank;
	const int64_t p = te_k_comm_norm_in_packets(a), each = f->most * p;
	const int64_t q = te_k_comm_norm_out_packets(a);
	const int64_t mine = te_k_comm_norm_first(a, me);
	const int64_t nmine = te_k_comm_norm_first(a, me + 1) - mine;

	for (int k = 0; k < n; k++) {
		const int64_t first = te_k_comm_norm_first(a, k);

		if (k != me)
			te__hc_send(&f->o, k, te_k_comm_source(k, me) * each, x_of(f, first),
				   (te_k_comm_norm_first(a, k + 1) - first) * f->row_nbytes);
	}
	te__hc_ring(&f->o);
	if (te__hc_headers(&f->o))
		return -1;
	for (int64_t i = 0; i < nmine; i++)
		if (row_compute(f, mine + i, i * p, each, (n - 1) * each + i * q))
			return -1;
	te__hc_ring(&f->o);
	for (int k = 0; k < n; k++) {
		const int64_t first = te_k_comm_norm_first(a, k);
		const int64_t count = te_k_comm_norm_first(a, k + 1) - first;

		for (int64_t i = 0; i < count && k != me; i++)
			if (row_receive(f, k, first + i, (n - 1) * each +
					(te_k_comm_source(me, k) * f->most + i) * q))
				return -1;
	}
	return 0;
}

/* write values common to all rows */
static void scale_words(const struct te_k_comm_norm *a)
{
	const int64_t ld = te_k_scale_ld(TE_K_SCALING_1X128, a->rows, a->cols);

	if (a->codes && a->scaling == TE_K_COMM_SCALING_TENSOR)
		*a->scale_inv = 1.0f / *a->scale;
	for (int32_t k = 0; a->scaling == TE_K_COMM_SCALING_BLOCK && k < te_k_comm_norm_nscales(a);
	     k++)
		for (int64_t row = a->rows; row < ld; row++)
			a->scale_inv[k * ld + row] = 0.0f;
}

static void run(const struct te_k_comm_norm *a)
{
	struct fused f = {
		.a = a,
		.most = te_k_comm_norm_first(a, 1),
		.row_nbytes = (int64_t)te_k_comm_norm_in_packets(a) * TE_K_COMM_PACKET,
	};

	int r;

	if (te__hc_begin(&f.o, &a->comm, te_k_comm_norm_signature(a)))
		return;
	f.row = te__k_take(2 * ROW_NBYTES);
	r = a->comm.algorithm == TE_K_COMM_ONE_SHOT ? one_shot(&f) : two_shot(&f);
	te__k_give(f.row);
	if (r)
		return;
	scale_words(a);
	te__hc_end(&f.o);
}

void te__h_comm_norm(const struct te_k_comm_norm *a)
{
	run(a);
}

void te__h_comm_norm_bwd(const struct te_k_comm_norm *a)
{
	run(a);
}
