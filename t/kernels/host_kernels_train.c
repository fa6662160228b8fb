/* t/kernels/host_kernels_train.c - embedding tables and loss. */
#include "config.h"

#include <math.h>

#include <te/dtype.h>

#include "host_kernels_lib.h"
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
