/* t/kernels/host_kernels_train.c - embedding tables, loss and AdamW. */
#include "config.h"

#include <float.h>
#include <math.h>

#include <te/dtype.h>

#include "host_kernels_lib.h"
#include "kernels/optim/round.h"
#include "libtecore/base/dtype_inline.h"

/* ---- tables ---- */

CASE(embed, "host numeric");

TEST_EACH(embed, embedding_forward_and_backward, 4)
{
	const int32_t dtype = hk_types[_i & 1];
	const int with_pos = _i >> 1;
	const int64_t batch = 3, seqlen = 23, rows = batch * seqlen, vocab = 11;
	static const int64_t widths[] = { 1, 7, 2050 };
	static const int32_t firsts[] = { 0, 7, INT32_MAX - 11 }; /* tokens of row 0 */

	for (size_t k = 0; k < TT_LEN(widths); k++) {
		const int64_t w = widths[k];
		const int32_t first = firsts[k];
		float *table = hk_normal(TE_DTYPE_FP32, vocab * w, 1.0f);
		float *pos = hk_normal(TE_DTYPE_FP32, seqlen * w, 1.0f);
		const int32_t to = hk_types[(k + (size_t)_i) & 1]; /* type of gradients */
		void *dtable = hk_normal(to, vocab * w, 1.0f);
		void *dpos = hk_normal(to, seqlen * w, 1.0f);
		void *dtable_was = hk_copy(to, dtable, vocab * w);
		void *dpos_was = hk_copy(to, dpos, seqlen * w);
		void *y = hk_fresh(dtype, rows * w), *dy = hk_normal(dtype, rows * w, 1.0f);
		int32_t tokens[3 * 23];
		uint32_t noutside = 40;
		struct te_k_embed_fwd f = {
			tokens, table, with_pos ? pos : NULL, y, &noutside, rows, seqlen, vocab, w,
			NULL, 0, first + vocab + 1, dtype, first, NULL, NULL, 0, 0
		};
		struct te_k_embed_bwd b = {
			tokens, dy, dtable, rows, vocab, w, dtype, first, to, 0
		};
		struct te_k_pos_bwd p = { dy, dpos, batch, seqlen, w, dtype, to };

		for (int64_t r = 0; r < rows; r++) /* token 2 does not occur: its row stays */
			tokens[r] = first +
				    (int32_t)(tt_rand_int(0, 3) ? tt_rand_int(3, vocab - 1) : 1);
		tokens[5] = first - 1;
		tokens[6] = first + (int32_t)vocab;
		tokens[7] = INT32_MAX;
		tokens[8] = INT32_MIN;
		te__h_embed_fwd(&f);
		/* first - 1 may be -1, and INT32_MAX the last token of another table */
		ck_assert_uint_eq(noutside, 41 + !first + (first < 8));
		te__h_embed_bwd(&b);
		te__h_pos_bwd(&p);
		for (int64_t i = 0; i < rows * w; i++) {
			const int64_t t = (int64_t)tokens[i / w] - first;
			float v = t >= 0 && t < vocab ? table[t * w + i % w] : 0.0f;

			if (with_pos)
				v += pos[i / w % seqlen * w + i % w];
			ck_assert_float_eq(tt_get(dtype, y, i), tt_round(dtype, v));
		}
		for (int64_t i = 0; i < vocab * w; i++) {
			float sum = 0.0f;

			for (int64_t r = 0; r < rows; r++)
				if (tokens[r] - (int64_t)first == i / w)
					sum += tt_get(dtype, dy, r * w + i % w);
			ck_assert_float_eq(tt_get(to, dtable, i),
					   tt_round(to, tt_get(to, dtable_was, i) + sum));
		}
		for (int64_t i = 0; i < seqlen * w; i++) {
			float sum = 0.0f;

			for (int64_t q = 0; q < batch; q++)
				sum += tt_get(dtype, dy, (q * seqlen + i / w) * w + i % w);
			ck_assert_float_eq(tt_get(to, dpos, i),
					   tt_round(to, tt_get(to, dpos_was, i) + sum));
		}
		hk_check_end(dtype, y, rows * w);
		hk_check_end(to, dtable, vocab * w);
		hk_check_end(to, dpos, seqlen * w);
		free(table);
		free(pos);
		free(dtable);
		free(dpos);
		free(dtable_was);
		free(dpos_was);
		free(y);
		free(dy);
	}
}

/* ---- loss ---- */

/* max and sum of n logits from i on, in FP64 */
static void softmax_of(int32_t dtype, const void *x, int64_t i, int64_t n, double *ret_most,
		       double *ret_sum)
{
	double most = -INFINITY, sum = 0.0;

	for (int64_t k = i; k < i + n; k++)
		most = fmax(most, (double)tt_get(dtype, x, k));
	for (int64_t k = i; k < i + n; k++)
		sum += exp((double)tt_get(dtype, x, k) - most);
	*ret_most = most;
	*ret_sum = sum;
}

/*
 * Relative to the sum of exp(x - max), where the largest term is 1: exp has 2.4 U32 and the
 * rounding of its argument, U32 |x - max|, which its value times |x - max| < 0.37 bounds; then the
 * sum is rounded once.
 */
#define SUM_BOUND (4 * U32)

/* element i of a row that counts: scale (p - onehot); p in FP64 from the logits of the whole row */
static void check_gradient(const struct te_k_ce_bwd *b, int64_t i, double scale)
{
	const int64_t r = i / b->cols;
	const int hit = b->targets[r] == i % b->cols;
	const double x = tt_get(b->dtype, b->logits, i);
	double most, sum, p, g;

	softmax_of(b->dtype, b->logits, r * b->cols, b->nclasses, &most, &sum);
	p = exp(x - most) / sum;
	g = (p - hit) * scale;
	/* exp as above, the sum, its inverse and the product; the difference; the factor and the
	 * product with it */
	hk_check_near(tt_get(b->dtype, b->dlogits, i), g,
		      ((2.4 + fmin(most - x, 104) + 2) * U32 + SUM_BOUND) * p * scale +
			      (hit * U32 + 3 * U32 + tt_unit(b->dtype)) * fabs(g) + 1e-37,
		      "dx", i);
}

/* ce_grad has the bits of two passes, in separate memory and in place */
static void check_both(const struct te_k_ce_bwd *b, const float *row_loss)
{
	const int64_t rows = b->rows, n = rows * b->cols;
	const size_t nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)b->dtype);
	float *max_sum = hk_fresh(TE_DTYPE_FP32, 2 * rows), *row = hk_fresh(TE_DTYPE_FP32, rows);
	void *dx = hk_fresh(b->dtype, n), *x = hk_fresh(b->dtype, n);
	float count = -1.0f;
	struct te_k_ce_reduce d = { NULL, b->targets,  NULL, &count,
				    NULL, rows,	       b->nclasses, b->ignore_index, 0 };
	struct te_k_ce_grad g = { x,	   b->targets, &count,	    dx,
				  max_sum, row,	       rows,	    b->cols,
				  b->nclasses, b->ignore_index, b->grad_scale, b->dtype, 0 };

	memcpy(x, b->logits, nbytes);
	te__h_ce_count(&d);
	ck_assert_float_eq(count, *b->count);
	for (int place = 0; place < 2; place++) {
		te__h_ce_grad(&g);
		for (int64_t r = 0; r < rows; r++) {
			const int on = b->targets[r] >= 0 && b->targets[r] < b->nclasses;

			ck_assert_float_eq(max_sum[r], on ? b->max_sum[r] : 0.0f);
			ck_assert_float_eq(max_sum[rows + r], on ? b->max_sum[rows + r] : 0.0f);
			ck_assert_float_eq(row[r], row_loss[r]);
		}
		hk_check_same(b->dtype, g.dlogits, b->dlogits, n);
		hk_check_end(b->dtype, dx, n);
		hk_check_end(b->dtype, x, n);
		g.dlogits = x;
	}
	hk_check_end(TE_DTYPE_FP32, max_sum, 2 * rows);
	hk_check_end(TE_DTYPE_FP32, row, rows);
	free(max_sum);
	free(row);
	free(dx);
	free(x);
}

CASE(loss, "host numeric");

TEST_EACH(loss, cross_entropy, 2)
{
	const int32_t dtype = hk_types[_i];
	static const struct {
		int64_t rows, cols, nclasses;
		float scale;
	} cases[] = {
		{ 9, 5, 5, 1.0f },
		{ 9, 64, 50, 3.0f },
		{ 7, 5000, 4099, 10.0f },
		{ 12, 2, 1, 1.0f },
	};

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols, nc = cases[k].nclasses;
		void *x = hk_normal(dtype, rows * cols, cases[k].scale);
		void *dx = hk_fresh(dtype, rows * cols);
		float *max_sum = hk_fresh(TE_DTYPE_FP32, 2 * rows);
		float *row_loss = hk_fresh(TE_DTYPE_FP32, rows);
		float loss = -1.0f, count = -1.0f;
		uint32_t noutside = UINT32_MAX;
		int32_t targets[16];
		struct te_k_ce_fwd f = { x,  targets, max_sum, row_loss, rows, cols,
					 nc, -100,    dtype,   0,	 0,    0 };
		struct te_k_ce_reduce d = {
			row_loss, targets, &loss, &count, &noutside, rows, nc, -100, 0
		};
		struct te_k_ce_bwd b = { x,    targets, max_sum, &count, dx,	rows,
					 cols, nc,	-100,	 0.25f,	 dtype, 0,
					 0 };
		double want = 0.0;
		int64_t n = 0;

		for (int64_t r = 0; r < rows; r++) {
			targets[r] = (int32_t)tt_rand_int(0, nc - 1);
			for (int64_t c = nc; c < cols; c++) /* padding must not be read */
				tt_set(dtype, x, r * cols + c, NAN);
		}
		targets[1] = -100;
		targets[2] = -1;
		targets[3] = (int32_t)nc;
		tt_set(dtype, x, 4 * cols, 1e4f); /* exp of it overflows */
		tt_set(dtype, x, 5 * cols, -1e4f);
		tt_set(dtype, x, 6 * cols, nc > 1 ? -INFINITY : 0.0f); /* a masked class */
		if (nc > 1)
			targets[6] = 1;
		te__h_ce_fwd(&f);
		te__h_ce_reduce(&d);
		ck_assert_uint_eq(noutside, 1); /* of two more */
		te__h_ce_bwd(&b);
		for (int64_t r = 0; r < rows; r++) {
			const int on = targets[r] >= 0 && targets[r] < nc;
			double most, sum;

			n += on;
			softmax_of(dtype, x, r * cols, nc, &most, &sum);
			ck_assert_float_eq(max_sum[r], (float)most);
			hk_check_near(max_sum[rows + r], sum, SUM_BOUND * sum, "sum", r);
			if (!on) {
				ck_assert_float_eq(row_loss[r], 0.0f);
			} else {
				const double t = log(sum) + most -
						 (double)tt_get(dtype, x, r * cols + targets[r]);

				hk_check_near(row_loss[r], t, 4 * U32 + 2 * U32 * fabs(t),
					      "row_loss", r);
				want += t;
			}
		}
		ck_assert_float_eq(count, (float)n);
		want /= (double)n;
		hk_check_near(loss, want, 4 * U32 + 4 * U32 * fabs(want), "loss", 0);
		for (int64_t i = 0; i < rows * cols; i++) {
			const int64_t r = i / cols, c = i % cols;
			const int on = targets[r] >= 0 && targets[r] < nc;

			if (!on || c >= nc)
				ck_assert_uint_eq(te__f32_bits(tt_get(dtype, dx, i)), 0);
			else
				check_gradient(&b, i, 0.25 / (double)n);
		}
		hk_check_end(dtype, dx, rows * cols);
		check_both(&b, row_loss);
		b.dlogits = x; /* in place */
		te__h_ce_bwd(&b);
		hk_check_same(dtype, x, dx, rows * cols);

		/* no row counts */
		for (int64_t r = 0; r < rows; r++)
			targets[r] = -100;
		te__h_ce_reduce(&d);
		ck_assert_float_eq(loss, 0.0f);
		ck_assert_float_eq(count, 0.0f);
		te__h_ce_bwd(&b);
		for (int64_t i = 0; i < rows * cols; i++)
			ck_assert_float_eq(tt_get(dtype, x, i), 0.0f);
		free(x);
		free(dx);
		free(max_sum);
		free(row_loss);
	}
}

/* part k of the columns */
static void *columns_of(int32_t dtype, const void *x, int64_t rows, int64_t cols, int64_t width,
			int64_t k)
{
	void *part = hk_fresh(dtype, rows * width);

	for (int64_t i = 0; i < rows * width; i++)
		tt_set(dtype, part, i,
		       tt_get(dtype, x, i / width * cols + k * width + i % width));
	return part;
}

/*
 * Columns in parts, of which the last has padding, or nothing else: the joined results are those of
 * the definition bit for bit, and those of all columns at once but for the rounding of each sum.
 */
TEST_EACH(loss, cross_entropy_of_parts, 2)
{
	const int32_t dtype = hk_types[_i];
	static const struct {
		int64_t nparts, width, nclasses;
	} cases[] = { { 1, 9, 7 }, { 2, 64, 128 }, { 3, 1500, 4001 }, { 4, 5, 11 }, { 5, 3, 14 } };
	enum { ROWS = 9 };

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int64_t n = cases[k].nparts, width = cases[k].width, cols = n * width;
		const int64_t nc = cases[k].nclasses;
		void *x = hk_normal(dtype, ROWS * cols, 4.0f), *dx = hk_fresh(dtype, ROWS * cols);
		float *parts = hk_fresh(TE_DTYPE_FP32, 3 * n * ROWS);
		float got[2 * ROWS], row[ROWS], want[2 * ROWS], all_row[ROWS];
		float loss, count, was, nwas;
		int32_t targets[ROWS];
		struct te_k_ce_fwd all = { x,  targets, want,  all_row, ROWS, cols,
					   nc, -100,	dtype, 0,	0,    0 };
		struct te_k_ce_reduce d = {
			all_row, targets, &was, &nwas, NULL, ROWS, nc, -100, 0
		};
		struct te_k_ce_bwd b = { x,  targets, want,  &nwas, dx, ROWS, cols,
					 nc, -100,    0.25f, dtype, 0,	0 };
		struct te_k_ce_join j = { parts, targets, got, row, ROWS, nc, (int32_t)n, -100 };

		for (int r = 0; r < ROWS; r++)
			targets[r] = (int32_t)tt_rand_int(0, nc - 1);
		targets[1] = -100;
		targets[2] = (int32_t)nc;
		targets[3] = 0;
		targets[4] = (int32_t)nc - 1;
		te__h_ce_fwd(&all);
		te__h_ce_reduce(&d);
		te__h_ce_bwd(&b);
		for (int64_t p = 0; p < n; p++) {
			void *px = columns_of(dtype, x, ROWS, cols, width, p);
			struct te_k_ce_fwd f = { px,	   targets, parts + 3 * p * ROWS,
						 parts + (3 * p + 2) * ROWS, ROWS, width,
						 nc,	   -100,    dtype,
						 p * width, 1,	    0 };

			te__h_ce_fwd(&f);
			for (int r = 0; r < ROWS; r++) {
				const int64_t c = targets[r] - p * width;
				const int own = c >= 0 && c < width && targets[r] < nc;

				ck_assert_float_eq(f.row_loss[r],
						   own ? tt_get(dtype, px, r * width + c) : 0.0f);
				ck_assert(p * width < nc || (f.max_sum[r] == -INFINITY &&
							     f.max_sum[ROWS + r] == 0));
			}
			free(px);
		}
		hk_check_end(TE_DTYPE_FP32, parts, 3 * n * ROWS);
		te__h_ce_join(&j);
		for (int r = 0; r < ROWS; r++) {
			const int on = targets[r] >= 0 && targets[r] < nc;
			double most = -INFINITY, sum = 0.0, hit = 0.0;

			for (int64_t p = 0; p < n; p++)
				most = fmax(most, (double)parts[3 * p * ROWS + r]);
			for (int64_t p = 0; p < n; p++) {
				sum += (double)parts[(3 * p + 1) * ROWS + r] *
				       exp((double)parts[3 * p * ROWS + r] - most);
				hit += (double)parts[(3 * p + 2) * ROWS + r];
			}
			ck_assert_float_eq(got[r], (float)most);
			ck_assert_float_eq(got[ROWS + r], (float)sum);
			ck_assert_float_eq(row[r], on ? (float)(most - hit + log(sum)) : 0.0f);
			ck_assert_float_eq(got[r], want[r]);
			hk_check_near(got[ROWS + r], (double)want[ROWS + r], 2 * SUM_BOUND * sum,
				      "sum", r);
			hk_check_near(row[r], (double)all_row[r],
				      2 * SUM_BOUND + 2 * U32 * fabs((double)row[r]), "row_loss",
				      r);
		}
		d = (struct te_k_ce_reduce){
			row, targets, &loss, &count, NULL, ROWS, nc, -100, 0
		};
		te__h_ce_reduce(&d);
		ck_assert_float_eq(count, nwas);
		for (int64_t p = 0; p < n; p++) {
			void *px = columns_of(dtype, x, ROWS, cols, width, p);
			struct te_k_ce_bwd g = { px,	 targets, want, &count, px,	ROWS,
						 width, nc,	  -100, 0.25f,	dtype, 0,
						 p * width };

			/* with the same max and sum, the gradients are the same */
			te__h_ce_bwd(&g);
			for (int64_t i = 0; i < ROWS * width; i++)
				ck_assert_float_eq(tt_get(dtype, px, i),
						   tt_get(dtype, dx, i / width * cols + p * width +
									     i % width));
			free(px);
		}
		free(x);
		free(dx);
		free(parts);
	}
}

/*
 * Logits that a number is added to without rounding keep the bits of their loss and gradient, whole
 * and in parts; others the bounds of logits near 0.
 */
TEST_EACH(loss, cross_entropy_of_far_logits, 2)
{
	static const float by[] = { 0, 100, -200, 1e4f, 1e7f, -8e6f };
	const int32_t dtype = hk_types[_i];
	enum { ROWS = 6, COLS = 1000, HALF = COLS / 2 };
	float *max_sum = hk_fresh(TE_DTYPE_FP32, 2 * ROWS), *loss = hk_fresh(TE_DTYPE_FP32, ROWS);
	float *parts = hk_fresh(TE_DTYPE_FP32, 6 * ROWS), *joined = hk_fresh(TE_DTYPE_FP32, ROWS);
	void *near = hk_normal(dtype, ROWS * COLS, 5.0f), *x = hk_fresh(dtype, ROWS * COLS);
	void *dx = hk_fresh(dtype, ROWS * COLS), *first = NULL;
	float first_loss[2][ROWS], count = ROWS;
	int32_t targets[ROWS];

	for (int i = 0; i < ROWS * COLS; i++)
		tt_set(dtype, near, i, roundf(tt_get(dtype, near, i)));
	for (int r = 0; r < ROWS; r++)
		targets[r] = (int32_t)tt_rand_int(0, COLS - 1);
	for (size_t k = 0; k < 2 * TT_LEN(by); k++) {
		/* without rounding: whole numbers, up to 256 in BF16 */
		const int exact = k < TT_LEN(by);
		const float off = by[k % TT_LEN(by)];
		struct te_k_ce_fwd f = { x,    targets, max_sum, loss, ROWS, COLS,
					 COLS, -100,	dtype,	 0,    0,    0 };
		struct te_k_ce_bwd b = { x,    targets, max_sum, &count, dx,	ROWS, COLS,
					 COLS, -100,	1.0f,	 dtype,	 0,	0 };
		struct te_k_ce_join j = { parts, targets, max_sum, joined, ROWS, COLS, 2, -100 };

		if (exact && dtype == TE_DTYPE_BF16 && fabsf(off) > 200)
			continue;
		for (int i = 0; i < ROWS * COLS; i++)
			tt_set(dtype, x, i,
			       tt_get(dtype, near, i) + off +
				       (exact ? 0.0f : tt_rand_float(-0.5f, 0.5f)));
		te__h_ce_fwd(&f);
		te__h_ce_bwd(&b);
		for (int i = 0; i < ROWS * COLS; i++)
			check_gradient(&b, i, 1.0 / ROWS);
		for (int p = 0; p < 2; p++) {
			void *px = columns_of(dtype, x, ROWS, COLS, HALF, p);
			struct te_k_ce_fwd h = { px,	   targets, parts + 3 * p * ROWS,
						 parts + (3 * p + 2) * ROWS, ROWS, HALF,
						 COLS,	   -100,    dtype,
						 p * HALF, 1,	    0 };

			te__h_ce_fwd(&h);
			free(px);
		}
		te__h_ce_join(&j);
		for (int r = 0; r < ROWS; r++) {
			double most, sum, t;

			softmax_of(dtype, x, r * COLS, COLS, &most, &sum);
			t = most - (double)tt_get(dtype, x, r * COLS + targets[r]) + log(sum);
			hk_check_near(loss[r], t, SUM_BOUND + U32 * fabs(t), "loss", r);
			hk_check_near(joined[r], t, 2 * SUM_BOUND + U32 * fabs(t), "joined", r);
		}
		if (!k) {
			first = hk_copy(dtype, dx, ROWS * COLS);
			memcpy(first_loss[0], loss, sizeof(first_loss[0]));
			memcpy(first_loss[1], joined, sizeof(first_loss[1]));
		} else if (exact) {
			hk_check_same(dtype, dx, first, ROWS * COLS);
			ck_assert_mem_eq(loss, first_loss[0], sizeof(first_loss[0]));
			ck_assert_mem_eq(joined, first_loss[1], sizeof(first_loss[1]));
		}
	}
	free(max_sum);
	free(loss);
	free(parts);
	free(joined);
	free(near);
	free(x);
	free(dx);
	free(first);
}

/* all logits of the first part are masked; the target is in the second */
TEST(loss, cross_entropy_of_a_masked_part)
{
	const float x[2] = { -INFINITY, -INFINITY }, y[2] = { 1, 1 };
	const int32_t target = 3;
	float parts[6], max_sum[2], loss;
	struct te_k_ce_fwd f = { x, &target, parts, parts + 2, 1, 2, 4, -100, TE_DTYPE_FP32,
				 0, 1, 0 };
	struct te_k_ce_join j = { parts, &target, max_sum, &loss, 1, 4, 2, -100 };

	te__h_ce_fwd(&f);
	f = (struct te_k_ce_fwd){ y, &target, parts + 3, parts + 5, 1, 2, 4, -100, TE_DTYPE_FP32,
				  2, 1, 0 };
	te__h_ce_fwd(&f);
	te__h_ce_join(&j);
	ck_assert_float_eq(max_sum[0], 1);
	ck_assert_float_eq(max_sum[1], 2);
	ck_assert_float_eq(loss, (float)log(2));
}

TEST(loss, cross_entropy_propagates_nan)
{
	float x[6] = { 1, NAN, 2, 1, INFINITY, 2 }, max_sum[4], row_loss[2], loss, count, dx[6];
	int32_t targets[2] = { 0, 0 };
	struct te_k_ce_fwd f = {
		x, targets, max_sum, row_loss, 2, 3, 3, -100, TE_DTYPE_FP32, 0, 0, 0
	};
	struct te_k_ce_reduce d = {
		row_loss, targets, &loss, &count, NULL, 2, 3, -100, 0
	};
	struct te_k_ce_bwd b = {
		x, targets, max_sum, &count, dx, 2, 3, 3, -100, 1.0f, TE_DTYPE_FP32, 0, 0
	};

	te__h_ce_fwd(&f);
	te__h_ce_reduce(&d);
	te__h_ce_bwd(&b);
	ck_assert(isnan(max_sum[2]) && isnan(max_sum[3]) && isnan(row_loss[0]) && isnan(loss));
	ck_assert(isnan(dx[0]) && isnan(dx[1]));
}

/* ---- AdamW ---- */

CASE(optim, "host numeric");

TEST_EACH(optim, sum_of_squares_by_runs, 2)
{
	static const int64_t sizes[] = { 1, 1023, 1024, 1025, 5000, 70001 };

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t n = sizes[k], run = (n + 1023) / 1024;
		const int32_t type = hk_types[_i];
		void *x = hk_normal(type, n, 1e3f);
		double part[TE_K_SUMSQ_PARTS];
		struct te_k_sumsq a = { x, part, n, NULL, type, 0 };
		uint8_t *skip;

		if (type) /* its square overflows FP32 */
			*(uint16_t *)x = 0x7f60;
		else
			*(float *)x = 3e38f;
		te__h_sumsq(&a);
		for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
			double sum = 0.0;

			for (int64_t i = p * run; i < n && i < (p + 1) * run; i++)
				sum += (double)tt_get(type, x, i) * (double)tt_get(type, x, i);
			hk_check_near(part[p], sum, 1e-13 * sum, "part", p);
		}
		/* without blocks of 64, however the runs divide them */
		skip = hk_fresh(TE_DTYPE_UINT8, (n + 63) / 64);
		a.skip = skip;
		for (int64_t i = 0; i < (n + 63) / 64; i++)
			skip[i] = (uint8_t)tt_rand_int(0, 1);
		te__h_sumsq(&a);
		for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
			double sum = 0.0;

			for (int64_t i = p * run; i < n && i < (p + 1) * run; i++)
				sum += skip[i / 64] ? 0.0 : pow(tt_get(type, x, i), 2);
			hk_check_near(part[p], sum, 1e-13 * sum, "part", p);
		}
		free(skip);
		free(x);
	}
}

TEST(optim, adamw_begin_adds_up_shards)
{
	double part[3][TE_K_SUMSQ_PARTS] = {
		{ [0] = 9.0, [7] = 1.0 }, { [7] = 3.0 }, { [9] = 12.0 }
	};
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, 0.5f, 0.0f, 0.0f, 7 };
	uint64_t version = 7;
	struct te_k_adamw_begin a = { part[0], &s, &version, 0.9f, 0.95f, 0.0f, 2 };

	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.grad_norm, 5.0f);
	part[2][1000] = INFINITY;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 1);
}

TEST(optim, adamw_begin_clips_and_skips)
{
	double part[TE_K_SUMSQ_PARTS] = { [0] = 9.0, [1023] = 16.0 };
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, 0.5f, 0.0f, 0.0f, 7 };
	uint64_t version = 7;
	struct te_k_adamw_begin a = { part, &s, &version, 0.9f, 0.95f, 10.0f, 0 };

	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.grad_norm, 5.0f);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.skip, 0);
	a.max_norm = 2.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 0.4f);
	a.max_norm = 0.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	part[5] = NAN;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 1);
	ck_assert(isnan(s.grad_norm));
	part[5] = 1e77; /* finite, but not its root in FP32 */
	part[6] = INFINITY;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.nskipped, 2);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	ck_assert_float_eq(s.lr, 0.5f);
	part[6] = 0.0;
	part[5] = 0.0;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 0);
	ck_assert_uint_eq(s.nsteps, 4);
	ck_assert_uint_eq(version, 7 + 4); /* steps that were not skipped */
}

TEST(optim, adamw_follows_the_paper)
{
	const int64_t n = 5 * TE_K_ALIGN_WEIGHT;
	const float b1 = 0.9f, b2 = 0.95f, eps = 1e-8f, wd = 0.1f, lr = 1e-2f;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *g = hk_fresh(TE_DTYPE_FP32, n);
	float *m = calloc((size_t)n, sizeof(float)), *v = calloc((size_t)n, sizeof(float));
	double *wr = malloc((size_t)n * 8), *mr = calloc((size_t)n, 8), *vr = calloc((size_t)n, 8);
	const uint8_t decay[5] = { 1, 0, 1, 0, 0 };
	double part[TE_K_SUMSQ_PARTS];
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, lr, 0.0f, 0.0f, 0 };
	struct te_k_sumsq q = { g, part, n, NULL, TE_DTYPE_FP32, 0 };
	uint64_t version = 0;
	struct te_k_adamw_begin begin = { part, &s, &version, b1, b2, 3.0f, 0 };
	struct te_k_adamw a = { w,  m,   v,  g,    decay, &s,	 n, b1,
				b2, eps, wd, NULL, NULL,  NULL, 0, 0, 0, 0, 0 };
	float *was;

	for (int64_t i = 0; i < n; i++)
		wr[i] = w[i];
	for (int step = 1; step <= 10; step++) {
		double norm = 0.0, clip;

		for (int64_t i = 0; i < n; i++) {
			/* away from 0, where m^ / sqrt(v^) magnifies the rounding errors of m */
			g[i] = tt_rand_float(0.5f, 1.0f) * (i % 3 ? 1.0f : -1.0f);
			norm += (double)g[i] * (double)g[i];
		}
		norm = sqrt(norm);
		clip = norm > 3.0 ? 3.0 / norm : 1.0;
		te__h_sumsq(&q);
		te__h_adamw_begin(&begin);
		te__h_adamw(&a);
		for (int64_t i = 0; i < n; i++) {
			const double gc = g[i] * clip, r1 = b1, r2 = b2;
			double u;

			mr[i] = r1 * mr[i] + (1 - r1) * gc;
			vr[i] = r2 * vr[i] + (1 - r2) * gc * gc;
			u = mr[i] / (1 - pow(r1, step)) /
			    (sqrt(vr[i] / (1 - pow(r2, step))) + (double)eps);
			if (decay[i / TE_K_ALIGN_WEIGHT])
				u += (double)wd * wr[i];
			wr[i] -= (double)lr * u;
			/* moments: 4 roundings per step and that of clip, all terms of one sign */
			hk_check_near(m[i], mr[i], 8 * step * U32 * fabs(mr[i]), "m", i);
			hk_check_near(v[i], vr[i], 10 * step * U32 * vr[i], "v", i);
			/* u within 20 step U32 |u| and |u| < 2; w rounds once per step */
			hk_check_near(w[i], wr[i],
				      step * U32 * (40 * step * (double)lr + 2 * fabs(wr[i]) + 2),
				      "w", i);
		}
	}
	hk_check_end(TE_DTYPE_FP32, w, n);

	/* with a gradient that is not finite, nothing changes */
	was = hk_copy(TE_DTYPE_FP32, w, n);
	g[17] = INFINITY;
	te__h_sumsq(&q);
	te__h_adamw_begin(&begin);
	te__h_adamw(&a);
	hk_check_same(TE_DTYPE_FP32, w, was, n);
	ck_assert_uint_eq(s.nskipped, 1);
	for (int64_t i = 0; i < n; i++)
		ck_assert(isfinite(m[i]) && isfinite(v[i]));
	free(was);
	free(w);
	free(g);
	free(m);
	free(v);
	free(wr);
	free(mr);
	free(vr);
}

/* _i: moments, masters */
TEST_EACH(optim, adamw_reads_bf16_gradients, 9)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 3 + 5;
	const int32_t moments = _i % 3, masters = _i / 3;
	const int32_t mtype = moments ? TE_DTYPE_BF16 : TE_DTYPE_FP32; /* FP8: fewer bytes */
	const int32_t wtype = masters ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	void *w = hk_normal(wtype, n, 1.0f), *rest = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	void *m = calloc((size_t)n, 4), *v = calloc((size_t)n, 4), *g = hk_normal(1, n, 1.0f);
	float *g32 = hk_fresh(TE_DTYPE_FP32, n);
	uint8_t exps[4][4] = { { 0 } };
	const struct te_k_adamw_state s = { 3, 0, 0.729, 0.857, 1e-3f, 0.0f, 0.37f, 0 };
	struct te_k_adamw a = {
		.w = w, .m = m, .v = v, .g = g, .state = &s, .n = n, .beta1 = 0.9f, .beta2 = 0.95f,
		.eps = 1e-8f, .weight_decay = 0.1f, .m_exp = exps[0], .v_exp = exps[1],
		.rest = rest, .moments = moments, .masters = masters, .bf16_grads = 1,
	}, b = a;

	b.w = hk_copy(wtype, w, n);
	b.rest = hk_copy(TE_DTYPE_BF16, rest, n);
	b.m = calloc((size_t)n, 4);
	b.v = calloc((size_t)n, 4);
	b.g = g32;
	b.m_exp = exps[2];
	b.v_exp = exps[3];
	b.bf16_grads = 0;
	for (int64_t i = 0; i < n; i++)
		g32[i] = tt_get(TE_DTYPE_BF16, g, i);
	for (int t = 0; t < 2; t++) {
		te__h_adamw(&a);
		te__h_adamw(&b);
	}
	hk_check_same(wtype, w, b.w, n);
	hk_check_same(TE_DTYPE_BF16, rest, b.rest, n);
	hk_check_same(mtype, m, b.m, moments == TE_K_MOMENTS_FP8 ? n / 2 : n);
	hk_check_same(mtype, v, b.v, moments == TE_K_MOMENTS_FP8 ? n / 2 : n);
	free(w);
	free(rest);
	free(m);
	free(v);
	free(g);
	free(g32);
	free(b.w);
	free(b.rest);
	free(b.m);
	free(b.v);
}

/* the order of operations of optim.h, which a GPU matches bit for bit */
TEST(optim, adamw_in_the_specified_order)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 3;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *m = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float *v = hk_normal(TE_DTYPE_FP32, n, 1.0f), *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	const uint8_t decay[3] = { 0, 1, 0 };
	struct te_k_adamw_state s = { 3, 0, 0.729, 0.857375, 0.01f, 1.0f, 0.37f, 0 };
	struct te_k_adamw a = { w,	m,    v,     g,	   decay, &s,	n, 0.9f,
				0.95f, 1e-8f, 0.1f, NULL, NULL, NULL, 0, 0, 0, 0, 0 };
	const float c1 = (float)(1.0 - 0.729), c2 = (float)(1.0 - 0.857375);
	float *wa, *ma, *va;

	for (int64_t i = 0; i < n; i++)
		v[i] = fabsf(v[i]);
	g[0] = 0.0f;
	m[0] = v[0] = 0.0f; /* 0 / (0 + eps) */
	v[1] = 1e-42f;
	wa = hk_copy(TE_DTYPE_FP32, w, n);
	ma = hk_copy(TE_DTYPE_FP32, m, n);
	va = hk_copy(TE_DTYPE_FP32, v, n);
	te__h_adamw(&a);
	for (int64_t i = 0; i < n; i++) {
		volatile float gc = g[i] * 0.37f, t, u;

		t = (1.0f - 0.9f) * gc;
		ma[i] = 0.9f * ma[i];
		ma[i] = ma[i] + t;
		t = (1.0f - 0.95f) * gc;
		t = t * gc;
		va[i] = 0.95f * va[i];
		va[i] = va[i] + t;
		t = sqrtf(va[i] / c2);
		t = t + 1e-8f;
		u = ma[i] / c1;
		u = u / t;
		if (decay[i / TE_K_ALIGN_WEIGHT]) {
			t = 0.1f * wa[i];
			u = u + t;
		}
		t = 0.01f * u;
		wa[i] = wa[i] - t;
	}
	hk_check_same(TE_DTYPE_FP32, m, ma, n);
	hk_check_same(TE_DTYPE_FP32, v, va, n);
	hk_check_same(TE_DTYPE_FP32, w, wa, n);
	free(w);
	free(m);
	free(v);
	free(g);
	free(wa);
	free(ma);
	free(va);
}

static uint32_t draw_of(uint64_t step, int which, int64_t i)
{
	const struct te_philox r = te_round_draw(step, (uint32_t)which, i / TE_ROUND_GROUP);

	return te_philox_lane(&r, (int)(i % TE_ROUND_GROUP));
}

/* exponent of the block of element i */
static uint32_t exponent_of(int which, const float *x, int64_t i, int64_t n)
{
	const int64_t first = i / TE_K_ALIGN_WEIGHT * TE_K_ALIGN_WEIGHT;
	uint32_t most = 0;

	for (int64_t k = first; k < n && k < first + TE_K_ALIGN_WEIGHT; k++)
		most = te_round_magnitude(x[k]) > most ? te_round_magnitude(x[k]) : most;
	return te_round_exponent(te_round_format(which), most);
}

/* a step from moments of 0 stores those of FP32, rounded by the draws of optim.h; _i: how */
TEST_EACH(optim, moments_are_rounded_by_draws, TE_K_MOMENTS_FP8 + 1, .from = TE_K_MOMENTS_BF16)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 2 + 9;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *w32 = hk_copy(TE_DTYPE_FP32, w, n);
	float *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float x[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } };
	uint16_t bf16[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } };
	uint8_t code[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } }, exps[2][3] = { { 0 } };
	const int fp8 = _i == TE_K_MOMENTS_FP8;
	struct te_k_adamw_state s = { 7, 0, 0.9, 0.95, 0.01f, 1.0f, 1.0f, 0 };
	struct te_k_adamw a = { w32,   x[0],  x[1], g,	  NULL, &s, n, 0.9f,
				0.95f, 1e-8f, 0.1f, NULL, NULL, NULL, 0, 0, 0, 0, 0 };

	te__h_adamw(&a);
	a.w = w;
	a.m = fp8 ? (void *)code[0] : bf16[0];
	a.v = fp8 ? (void *)code[1] : bf16[1];
	a.m_exp = exps[0];
	a.v_exp = exps[1];
	a.moments = _i;
	te__h_adamw(&a);
	hk_check_same(TE_DTYPE_FP32, w, w32, n);
	for (int which = 0; which < 2; which++)
		for (int64_t i = 0; i < n; i++) {
			const uint32_t r = draw_of(s.nsteps, which, i);
			const uint32_t e = exponent_of(which, x[which], i, n);

			if (!fp8) {
				ck_assert_uint_eq(bf16[which][i], te_round_bf16(x[which][i], r));
				continue;
			}
			ck_assert_uint_eq(exps[which][i / TE_K_ALIGN_WEIGHT], e);
			ck_assert_uint_eq(code[which][i],
					  which ? te_round_second(x[which][i], e, r) :
						  te_round_first(x[which][i], e, r));
		}
	free(w);
	free(w32);
	free(g);
}

/* every code of a moment is read and rounded to itself, at the ends of the exponents too */
TEST(optim, moments_round_to_themselves)
{
	static const uint32_t exps[] = { 3, 100, 127, 200, 236 };

	for (size_t e = 0; e < TT_LEN(exps); e++)
		for (uint32_t code = 0; code < 256; code++) {
			const uint32_t s = exps[e];
			const float m = te_round_first_value(code, s);
			const float v = te_round_second_value(code, s);

			if ((code & 0x7f) < 0x7f && code != 0x80)
				ck_assert_uint_eq(te_round_first(m, s, TE_ROUND_NEAREST), code);
			if (code < 0xf8)
				ck_assert_uint_eq(te_round_second(v, s, TE_ROUND_NEAREST), code);
			if ((code & 0x7f) < 0x7f)
				ck_assert_float_eq(m * ldexpf(1.0f, 127 - (int)s),
						   te_fp8_decode(TE_DTYPE_E4M3, (uint8_t)code));
			/* FP16 without its sign and its last 7 bits: 5 bits of exponent, bias 15 */
			ck_assert_float_eq(v, ldexpf(code < 8 ? (float)code : (float)(8 + code % 8),
						     (int)s - 127 - 17 +
							     (code < 8 ? 0 : (int)code / 8 - 1)));
		}
}

static float moment_value(int which, uint32_t code, uint32_t s)
{
	return which ? te_round_second_value(code, s) : te_round_first_value(code, s);
}

/* the mean over all random numbers is the value, but for what 16 bits cannot express */
TEST_EACH(optim, moments_round_without_bias, 2)
{
	for (int k = 0; k < TT_FEWER(40); k++) {
		const float x = tt_rand_float(0.5f, 1.0f) * ldexpf(1.0f, -(k % 20));
		const uint32_t s = te_round_exponent(te_round_format(_i), te_round_bits(1.0f));
		const double bf16_step = ldexp(1.0, ilogbf(x) - 7);
		const uint32_t below = _i ? te_round_second(x, s, 0) : te_round_first(x, s, 0);
		const double lo = (double)moment_value(_i, below, s);
		const double step = (double)moment_value(_i, below + 1, s) - lo;
		double sum = 0.0, bf16 = 0.0;

		for (uint32_t r = 0; r < 65536; r++) {
			const uint32_t code = _i ? te_round_second(x, s, r) :
						   te_round_first(x, s, r);

			ck_assert(code == below || code == below + 1);
			sum += (double)moment_value(_i, code, s);
			bf16 += (double)te_round_float(te_round_bf16(-x, r) << 16);
		}
		ck_assert_double_le(fabs(sum / 65536 - (double)x), step / 65536);
		ck_assert_double_le(fabs(bf16 / 65536 + (double)x), bf16_step / 65536);
	}
}

/* values that are not finite saturate in FP8 and remain in BF16; a block's largest fits */
TEST(optim, moments_of_extreme_values)
{
	static const float odd[] = { INFINITY, NAN, FLT_MAX, 1.0f, 1.99f, 448.0f, 449.0f, 1.875f,
				     1.9f, 0x1p-126f, 0x1p-149f, 0.0f };

	for (size_t i = 0; i < TT_LEN(odd); i++)
		for (int which = 0; which < 2; which++) {
			const struct te_round_fp8 f = te_round_format(which);
			const uint32_t mag = te_round_magnitude(odd[i]);
			const uint32_t s = te_round_exponent(f, mag);
			const uint32_t code = which ? te_round_second(odd[i], s, 0xffff) :
						      te_round_first(odd[i], s, 0xffff);

			ck_assert_uint_ge(s, 1);
			ck_assert_uint_le(s, 247);
			ck_assert_uint_le(code, which ? 0xf7 : 0x7e);
			/* the next smaller scale would saturate */
			if (s > 1)
				ck_assert_float_gt(
					te_round_float(mag) * ldexpf(1.0f, 128 - (int)s),
					which ? 0x1.ep15f : 448.0f);
			if (which)
				ck_assert_int_eq(code > 0, mag > 0);
		}
	/* far below a block's largest: never to zero, unless it is zero */
	ck_assert_uint_eq(te_round_second(0x1p-140f, 127, 0), 1);
	ck_assert_uint_eq(te_round_second(0.0f, 127, 0xffff), 0);
	ck_assert_uint_eq(te_round_first(-0x1p-140f, 127, 0), 0);
	ck_assert_float_eq(te_round_second_value(0xf7, 0), 0.0f);
	ck_assert_uint_eq(te_round_bf16(INFINITY, 0xffff), 0x7f80);
	ck_assert_uint_eq(te_round_bf16(-INFINITY, 0), 0xff80);
	ck_assert_uint_eq(te_round_bf16(FLT_MAX, 0xffff), 0x7f7f);
	ck_assert_uint_eq(te_round_bf16(-0.0f, 0xffff), 0x8000);
	ck_assert_uint_gt(te_round_bf16(NAN, 0xffff) & 0x7fff, 0x7f80);
	ck_assert_uint_gt(te_round_bf16(te_round_float(0x7f800001), 0) & 0x7fff, 0x7f80);
}

/* a weight is restored from its halves, of which the upper is a nearest BF16 number */
TEST(optim, weights_are_split_without_loss)
{
	static const uint32_t ends[] = { 0,	     0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff,
					 0xff7fffff, 1,		 0x00008000, 0x00017fff, 0x3f808000,
					 0x3f818000, 0x3f807fff };

	for (int i = 0; i < 100000; i++) {
		const uint32_t bits = i < (int)TT_LEN(ends) ? ends[i] : (uint32_t)tt_rand_u64();
		const float w = te_round_float(bits);
		const uint32_t upper = te_round_upper(w), lower = te_round_lower(w);
		const float back = te_round_join(upper, lower);

		ck_assert_uint_le(upper, 0xffff);
		ck_assert_uint_le(lower, 0xffff);
		if (isnan(w)) {
			ck_assert(isnan(back) && isnan(te_round_float(upper << 16)));
			continue;
		}
		ck_assert_uint_eq(te_round_bits(back), bits);
		if (isfinite(w) && isfinite(te_round_float(upper << 16)))
			ck_assert_double_le(
				fabs((double)te_round_float(upper << 16) - (double)w),
				fabs((double)te_bf16_decode(te_bf16_encode(w)) - (double)w));
	}
}

/* 100 steps on weights and their halves, with values that no run has; the bits agree in each */
TEST(optim, split_weights_step_as_whole_ones)
{
	static const uint32_t ends[] = { 0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff, 0x7fc00001,
					 1,	     0x807fffff, 0x00008000, 0x3f808000 };
	const int64_t n = TE_K_ALIGN_WEIGHT * 3 + 5;
	float *w = hk_normal(TE_DTYPE_FP32, n, 0.02f), *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float *m = hk_normal(TE_DTYPE_FP32, n, 0.0f), *m2 = hk_copy(TE_DTYPE_FP32, m, n);
	float *v = hk_copy(TE_DTYPE_FP32, m, n), *v2 = hk_copy(TE_DTYPE_FP32, m, n);
	uint16_t *upper = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	uint16_t *lower = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	struct te_k_adamw_state s = { .beta1_t = 1, .beta2_t = 1, .lr = 1e-4f, .clip = 1 };

	for (int64_t i = 0; i < n; i++) {
		if (i < (int64_t)TT_LEN(ends))
			w[i] = te_round_float(ends[i]);
		upper[i] = (uint16_t)te_round_upper(w[i]);
		lower[i] = (uint16_t)te_round_lower(w[i]);
	}
	for (int t = 0; t < 100; t++) {
		struct te_k_adamw a = { .w = w, .m = m, .v = v, .g = g, .state = &s, .n = n,
					.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
					.weight_decay = t & 1 ? 0.1f : 0.0f };

		s.nsteps++;
		s.beta1_t *= 0.9;
		s.beta2_t *= 0.95;
		for (int64_t i = 0; i < n; i++) /* some weights stay what they are */
			g[i] = i < (int64_t)TT_LEN(ends) ? 0.0f : tt_rand_normal();
		te__h_adamw(&a);
		a.w = upper;
		a.m = m2;
		a.v = v2;
		a.rest = lower;
		a.masters = TE_K_MASTERS_SPLIT;
		te__h_adamw(&a);
		for (int64_t i = 0; i < n; i++) {
			const float whole = te_round_join(upper[i], lower[i]);

			if (isnan(w[i]))
				ck_assert(isnan(whole) && te_round_upper(w[i]) == upper[i]);
			else
				ck_assert_uint_eq(te_round_bits(whole), te_round_bits(w[i]));
		}
	}
	free(w);
	free(g);
	free(m);
	free(m2);
	free(v);
	free(v2);
	free(upper);
	free(lower);
}
