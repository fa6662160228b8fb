/* t/kernels/kernel_rows.c - norms, and sums over rows. */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"

/* ---- norms ---- */

static const struct {
	int64_t rows, cols;
} norm_shapes[] = {
	{ 1, 1 },     { 3, 7 },	   { 65, 63 },	 { 64, 64 },   { 5, 768 },   { 67, 1000 },
	{ 9, 1023 },  { 2, 1024 }, { 3, 1025 },	 { 6, 1032 },  { 17, 4096 }, { 3, 5120 },
	{ 2, 8200 },  { 2, 16384 }, { 2, 16385 }, { 1, 33000 }, { 2, 16640 }, { 128, 384 },
	{ 70, 1280 },
	/* for GPUs: rows for each of many blocks. The host has one variant for all shapes */
	{ 80, 2048 }, { 48, 5120 }, { 257, 520 }, { 66, 8192 }, { 112, 768 }, { 48, 4096 },
	/* more blocks of 64 rows than multiprocessors */
	{ 8464, 8 },
};

static size_t nnorm_shapes(void)
{
	return kl_count(TT_LEN(norm_shapes), 5);
}

/*
 * The longest chain of FP32 additions in the sum of a row: a tree of eight elements, the vectors of
 * a thread serially (at least 32 threads), lanes, up to 16 warps.
 */
static double depth_of(int64_t cols)
{
	return 28.0 + (double)cols / 256.0;
}

static double gain_of(const float *gamma, int zero_centered, int64_t c)
{
	return zero_centered ? 1.0 + (double)gamma[c] : (double)gamma[c];
}

/*
 * With A the mean of |x - mean|, and d the depth, the GPU's mean has an error of (d + 4) U A and
 * two roundings at |mean|; host: one rounding. rstd: half the variance's (d + 4) U, and roundings
 * of the sum with eps, root and quotient. y: four operations after these.
 */
static void check_norm_fwd(const struct te_k_norm_fwd *a, const void *x)
{
	const double d = depth_of(a->cols);

	for (int64_t r = 0; r < a->rows; r++) {
		const double mean = a->mean ? (double)a->mean[r] : 0.0, rstd = a->rstd[r];
		double spread = 0.0, tol_mean, tol_rstd;

		for (int64_t c = 0; c < a->cols; c++)
			spread += fabs((double)tt_get(a->dtype, x, r * a->cols + c) - mean);
		spread /= (double)a->cols;
		tol_mean = a->mean ? (d + 4.0) * U32 * spread + 3.0 * U32 * fabs(mean) : 0.0;
		tol_rstd = (0.5 * (d + 4.0) + 4.0) * U32 * rstd;
		if (a->mean)
			kc_near(a->mean, r, tol_mean);
		kc_near(a->rstd, r, tol_rstd);
		for (int64_t c = 0; c < a->cols && a->y; c++) {
			const double dx = (double)tt_get(a->dtype, x, r * a->cols + c) - mean;
			const double gain = gain_of(a->gamma, a->zero_centered, c);
			const double size = fabs(dx * rstd * gain);
			const double want = tt_get(a->dtype, a->y, r * a->cols + c);
			const double beta = a->beta ? fabs((double)a->beta[c]) : 0.0;

			kc_near(a->y, r * a->cols + c,
				fabs(rstd * gain) * tol_mean + size * (tol_rstd / rstd) +
					8.0 * U32 * (size + beta) +
					2.0 * tt_unit(a->dtype) * fabs(want));
		}
	}
}

KL_CASE(norm);

TEST_EACH(norm, norm_fwd, 16)
{
	const int32_t dtype = kl_types[_i & 1];
	const int ln = _i >> 1 & 1, zero_centered = _i >> 2 & 1, blocks = _i >> 3 & 1;

	for (size_t k = kl_first(nnorm_shapes()); k < nnorm_shapes(); k += kl_every()) {
		const int64_t rows = norm_shapes[k].rows, cols = norm_shapes[k].cols;
		const int64_t n = rows * cols;
		/* side: none; row; row and col; col. y or not */
		const int side = (int)tt_rand_int(blocks, 3);
		void *x = kc_normal(dtype, n, 2.0f), *was;
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = ln ? kc_normal(TE_DTYPE_FP32, cols, 1.0f) : NULL,
			.y = kc_poison(dtype, n),
			.mean = ln ? kc_poison(TE_DTYPE_FP32, rows) : NULL,
			.rstd = kc_poison(TE_DTYPE_FP32, rows),
			.rows = rows,
			.cols = cols,
			.eps = 1e-5f,
			.zero_centered = zero_centered,
			.dtype = dtype,
		};
		struct te_k_q q;

		for (int64_t i = 0; i < n; i++)
			tt_set(dtype, x, i, tt_get(dtype, x, i) + (float)(i / cols % 5));
		if (side && blocks)
			a.q = kc_q_blocks(kl_fp8[k & 1], (int32_t)tt_rand_int(1, 2), rows, cols,
					  kc_word(0.0f));
		else if (side)
			a.q = kc_q(kl_fp8[k & 1], n, 40.0f, kc_word(0.0f));
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		q = a.q;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		kc_defer_q(&a.q);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_check_q(&q, dtype, kc_got(a.y), rows, cols);

		/* the codes do not depend on whether y is NULL, nor y on being x */
		was = malloc((size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
		ck_assert_ptr_nonnull(was);
		memcpy(was, kc_got(a.y), (size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
		if (side && !kc_is_unaligned()) { /* y's address chooses the variant */
			a.y = NULL;
			*q.amax = 0.0f;
			kc_defer(a.mean);
			kc_defer(a.rstd);
			kc_defer_q(&a.q);
			KC_RUN(NORM_FWD, &a);
			kc_check_q(&q, dtype, was, rows, cols);
			/* noop: the codes are not written */
			*(float *)a.q.noop = 1.0f;
			*(float *)a.q.scale = 7.0f;
			KC_RUN(NORM_FWD, &a);
		}
		a.q = (struct te_k_q){ 0 };
		a.y = x;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		KC_RUN(NORM_FWD, &a);
		if (side < 2 && !blocks && !kc_is_unaligned()) /* the same variant of the kernel */
			ck_assert(!memcmp(kc_got(x), was,
					  (size_t)n * te_dtype_nbytes((enum te_dtype)dtype)));
		free(was);
		kc_reset();
	}
}

TEST_ALSO(odd, norm_fwd, 16);

/* 64 rows at a time, and tiles of 128 columns shared out among blocks; 16 where both are few */
TEST_EACH(norm, norm_fwd_transposed, 2)
{
	static const struct {
		int64_t rows, cols;
	} sizes[] = {
		{ 64, 128 },   { 65, 256 },   { 130, 384 },  { 16, 512 },    { 127, 768 },
		{ 80, 1024 },  { 33, 1536 },  { 64, 1608 },  { 70, 2048 },   { 3, 2560 },
		{ 128, 3072 }, { 48, 4096 },  { 16, 5120 },  { 17, 6144 },   { 32, 8192 },
		{ 5, 8200 },   { 64, 40 },    { 1, 8 },	     { 8451, 1024 }, { 1025, 128 },
		{ 1030, 256 }, { 1040, 384 }, { 1026, 512 }, { 1100, 768 },  { 1024, 1024 },
	};
	const int ln = _i & 1;

	const size_t n = kl_count(TT_LEN(sizes), 7);
	for (size_t k = kl_first(n); k < n; k += kl_every()) {
		const int64_t rows = sizes[k].rows, cols = sizes[k].cols, n = rows * cols;
		void *x = kc_normal(TE_DTYPE_BF16, n, 2.0f);
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = ln ? kc_normal(TE_DTYPE_FP32, cols, 1.0f) : NULL,
			.y = kc_poison(TE_DTYPE_BF16, n),
			.mean = ln ? kc_poison(TE_DTYPE_FP32, rows) : NULL,
			.rstd = kc_poison(TE_DTYPE_FP32, rows),
			.rows = rows,
			.cols = cols,
			.eps = 1e-5f,
			.dtype = TE_DTYPE_BF16,
			.q = kc_q(kl_fp8[k & 1], n, 40.0f, NULL),
		};

		for (int64_t i = 0; i < n && ln; i++)
			tt_set(TE_DTYPE_BF16, x, i,
			       tt_get(TE_DTYPE_BF16, x, i) + (float)(i / cols % 7));
		if (k & 1)
			a.q.row = NULL;
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		kc_defer_q(&a.q);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_check_q(&a.q, TE_DTYPE_BF16, kc_got(a.y), rows, cols);
		kc_reset();
	}
}

TEST_ALSO(odd, norm_fwd_transposed, 2);

TEST_EACH(norm, norm_fwd_of_numbers_that_are_not, 4)
{
	const int32_t dtype = kl_types[_i & 1];

	for (int64_t cols = 40; cols < 3000; cols *= 8) {
		void *x = kc_normal(dtype, 4 * cols, 1.0f);
		struct te_k_norm_fwd a = {
			.x = x,
			.gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.beta = kc_normal(TE_DTYPE_FP32, cols, 1.0f),
			.y = kc_poison(dtype, 4 * cols),
			.mean = kc_poison(TE_DTYPE_FP32, 4),
			.rstd = kc_poison(TE_DTYPE_FP32, 4),
			.rows = 4,
			.cols = cols,
			.eps = 1e-5f,
			.dtype = dtype,
		};

		if (_i & 2)
			a.q = kc_q(TE_DTYPE_E4M3, 4 * cols, 1.0f, NULL);
		kc_defer_q(&a.q);
		for (int64_t c = 0; c < cols; c++)
			tt_set(dtype, x, cols + c, 100.0f);
		tt_set(dtype, x, 3, NAN);
		tt_set(dtype, x, 2 * cols + cols - 1, INFINITY);
		kc_defer(a.y);
		kc_defer(a.mean);
		kc_defer(a.rstd);
		KC_RUN(NORM_FWD, &a);
		check_norm_fwd(&a, x);
		kc_reset();
	}
}

/* with all side outputs, or without one of them */
static void both_casts(struct te_k_norm_both *both, size_t k)
{
	const int64_t n = both->rows * both->cols;

	both->part_dx = kc_poison(TE_DTYPE_FP32, TE_K_NPARTS(both->rows) * both->cols);
	both->q = kc_q(kl_fp8[k & 1], n, 40.0f, kc_word(0.0f));
	switch (tt_rand_int(0, 4)) {
	case 0:
		both->q.row = NULL;
		break;
	case 1:
		both->q.col = NULL;
		break;
	case 2:
		both->part_dx = NULL;
	}
}

/* the sums of the device are those of its dx */
static void check_part_dx(const struct te_k_norm_both *both)
{
	const float *part = kc_got(both->part_dx);

	for (int64_t p = 0; p < TE_K_NPARTS(both->rows); p++)
		for (int64_t c = 0; c < both->cols; c++) {
			float sum = 0.0f;

			for (int64_t r = p * TE_K_PART_ROWS;
			     r < both->rows && r < (p + 1) * TE_K_PART_ROWS; r++)
				sum += tt_get(both->dtype, kc_got(both->dx), r * both->cols + c);
			ck_assert_float_eq(part[p * both->cols + c], sum);
		}
}

TEST_EACH(norm, norm_bwd_and_dw, 8)
{
	const int32_t dtype = kl_types[_i & 1];
	const int ln = _i >> 1 & 1, zero_centered = _i >> 2 & 1;

	for (size_t k = kl_first(nnorm_shapes()); k < nnorm_shapes(); k += kl_every()) {
		const int64_t rows = norm_shapes[k].rows, cols = norm_shapes[k].cols;
		const int64_t n = rows * cols, nparts = TE_K_NPARTS(rows);
		const double depth = depth_of(cols);
		const int place = (int)tt_rand_int(0, 2);
		void *x = kc_normal(dtype, n, 1.0f), *dy = kc_normal(dtype, n, 1.0f);
		void *dres = k & 1 ? kc_normal(dtype, n, 1.0f) : NULL;
		float *gamma = kc_normal(TE_DTYPE_FP32, cols, 1.0f);
		float *mean = ln ? kc_normal(TE_DTYPE_FP32, rows, 0.3f) : NULL;
		float *rstd = kc_normal(TE_DTYPE_FP32, rows, 0.2f);
		struct te_k_norm_dw w = { dy,
					  x,
					  mean,
					  rstd,
					  kc_poison(TE_DTYPE_FP32, nparts * cols),
					  ln ? kc_poison(TE_DTYPE_FP32, nparts * cols) : NULL,
					  rows,
					  cols,
					  dtype,
					  0 };
		struct te_k_norm_bwd b = {
			dy,   x,    gamma,	   mean, rstd, dres, kc_poison(dtype, n),
			rows, cols, zero_centered, dtype, { 0 }
		};
		struct te_k_norm_both both = { dy,
					       x,
					       gamma,
					       mean,
					       rstd,
					       dres,
					       kc_poison(dtype, n),
					       kc_poison(TE_DTYPE_FP32, nparts * cols),
					       ln ? kc_poison(TE_DTYPE_FP32, nparts * cols) : NULL,
					       rows,
					       cols,
					       zero_centered,
					       dtype,
					       NULL,
					       { 0 } };
		const int casts = TE_K_NORM_BOTH_CASTS(dtype, rows, cols) &&
				  !kc_is_unaligned() && kc_block_smem() >=
							TE_K_NORM_BOTH_CAST_NBYTES;
		struct te_k_q q;
		double *tol = malloc((size_t)n * sizeof(*tol));

		ck_assert_ptr_nonnull(tol);
		for (int64_t r = 0; r < rows; r++)
			rstd[r] = 1.0f + fabsf(rstd[r]);
		KC_RUN(NORM_DW, &w);
		/*
		 * Each mean is off by depth U of the mean of absolute values on a GPU, and the
		 * rest is 8 operations on a side.
		 */
		for (int64_t r = 0; r < rows; r++) {
			const double m = mean ? (double)mean[r] : 0.0;
			double ag = 0.0, agx = 0.0;

			for (int64_t pass = 0; pass < 2; pass++)
				for (int64_t c = 0; c < cols; c++) {
					const int64_t i = r * cols + c;
					const double g = fabs((double)tt_get(dtype, dy, i)) *
							 (fabs((double)gamma[c]) + 1.0);
					const double xh = fabs((double)tt_get(dtype, x, i) - m) *
							  (double)rstd[r];
					const double res =
						dres ? fabs((double)tt_get(dtype, dres, i)) : 0.0;

					if (!pass) {
						ag += ln ? g / (double)cols : 0.0;
						agx += g * xh / (double)cols;
						continue;
					}
					tol[i] = U32 * (double)rstd[r] *
							 ((depth + 8.0) * (ag + xh * agx) +
							  16.0 * (g + ag + xh * agx)) +
						 4.0 * U32 * res;
				}
		}
		for (int again = 0; cols <= TE_K_NORM_BOTH_COLS(dtype) && again < 2; again++) {
			void *was = malloc((size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
			void *over = dres && place ? dres : dy;

			ck_assert_ptr_nonnull(was);
			memcpy(was, over, (size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
			if (again)
				both.dx = over;
			else if (casts)
				both_casts(&both, k);
			q = both.q;
			kc_defer(both.dx);
			kc_defer_q(&both.q);
			if (both.part_dx)
				kc_defer(both.part_dx);
			KC_RUN(NORM_BOTH, &both);
			kc_check_q(&q, dtype, kc_got(both.dx), rows, cols);
			if (both.part_dx)
				check_part_dx(&both);
			both.part_dx = NULL;
			both.q = (struct te_k_q){ 0 };
			for (int64_t i = 0; i < n; i++)
				kc_near(both.dx, i,
					tol[i] + 2.0 * tt_unit(dtype) *
							 fabs((double)tt_get(dtype, both.dx, i)));
			if (again)
				memcpy(over, was,
				       (size_t)n * te_dtype_nbytes((enum te_dtype)dtype));
			free(was);
		}
		/* a row of the host's answer is read after its arrays may be overwritten */
		if (place == 1)
			b.dx = dy;
		if (place == 2 && dres)
			b.dx = dres;
		/* with one side output or both, or only the amax */
		if (!place && k % 4)
			b.q = kc_q(kl_fp8[k & 1], n, 40.0f, kc_word(0.0f));
		if (k % 4 == 1)
			b.q.col = NULL;
		if (k % 4 == 2 && tt_rand_int(0, 1))
			b.q.row = tt_rand_int(0, 1) ? b.q.col = NULL : NULL;
		q = b.q;
		kc_defer(b.dx);
		kc_defer_q(&b.q);
		KC_RUN(NORM_BWD, &b);
		kc_check_q(&q, dtype, kc_got(b.dx), rows, cols);
		for (int64_t i = 0; i < n; i++)
			kc_near(b.dx, i,
				tol[i] + 2.0 * tt_unit(dtype) *
						 fabs((double)tt_get(dtype, b.dx, i)));
		free(tol);
		kc_reset();
	}
}

TEST_ALSO(odd, norm_bwd_and_dw, 8);

/* ---- norms of queries and keys ---- */

/* tolerances of y or, with dy, of dx, and of rstd, which has the host's values */
static void near_qk(const struct te_k_qk_norm_fwd *a, const void *x, const void *dy, void *out)
{
	const int64_t cols = TE_K_QK_COLS(a);

	for (int64_t r = 0, at = 0; r < a->rows; r++, at = r * cols) {
		for (int64_t g = 0; g < a->nq + a->nk; g++) {
			const int64_t n = g < a->nq ? a->qcols : a->kcols;
			const float *gamma = g < a->nq ? a->gamma_q : a->gamma_k;
			/* elements that a lane adds, lanes, up to 8 warps */
			const double d = 16.0 + (double)n / 32.0;
			const double rstd = a->rstd[r * (a->nq + a->nk) + g];
			double mean = 0.0;

			for (int64_t c = 0; c < n && dy; c++)
				mean += fabs((double)tt_get(a->dtype, dy, at + c) *
					     (fabs((double)gamma[c]) + 1.0) *
					     (double)tt_get(a->dtype, x, at + c) * rstd) /
					(double)n;
			for (int64_t c = 0; c < n; c++, at++) {
				const double xhat = fabs((double)tt_get(a->dtype, x, at) * rstd);
				const double gain = fabs((double)gamma[c]) + 1.0;
				const double g1 =
					dy ? fabs((double)tt_get(a->dtype, dy, at)) * gain : 0.0;
				const double size = dy ? rstd * (g1 + xhat * mean) : xhat * gain;

				kc_near(out, at,
					(d + 12.0) * U32 * size +
						2.0 * tt_unit(a->dtype) *
							fabs((double)tt_get(a->dtype, out, at)));
			}
			if (!dy)
				kc_near(a->rstd, r * (a->nq + a->nk) + g,
					(0.5 * (d + 4.0) + 4.0) * U32 * rstd);
		}
		for (int64_t c = at; c < (r + 1) * cols; c++)
			kc_near(out, c, 0.0);
	}
}

/* forward, in place too, and partial sums and dx of the same rows */
TEST_EACH(norm, qk_norm, 4)
{
	static const struct {
		int64_t rows, qcols, kcols;
		int32_t nq, nk;
	} shapes[] = {
		{ 1, 1, 1, 1, 1 },	{ 3, 7, 7, 3, 1 },    { 65, 64, 64, 4, 2 },
		{ 130, 128, 128, 2, 2 }, { 5, 1000, 250, 1, 1 }, { 67, 1025, 41, 1, 1 },
		{ 9, 2048, 512, 1, 1 },	{ 2, 5120, 1024, 1, 1 }, { 4, 1024, 1500, 1, 1 },
	};
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(shapes)); k < TT_LEN(shapes); k += kl_every()) {
		struct te_k_qk_norm_fwd a = {
			.gamma_q = kc_normal(TE_DTYPE_FP32, shapes[k].qcols, 1.0f),
			.gamma_k = kc_normal(TE_DTYPE_FP32, shapes[k].kcols, 1.0f),
			.rows = shapes[k].rows,
			.qcols = shapes[k].qcols,
			.kcols = shapes[k].kcols,
			.nq = shapes[k].nq,
			.nk = shapes[k].nk,
			.eps = 1e-5f,
			.zero_centered = _i >> 1,
			.dtype = dtype,
		};
		const int64_t rows = a.rows, nparts = TE_K_NPARTS(rows);
		const int64_t n = rows * TE_K_QK_COLS(&a);
		const int64_t nnorms = rows * (a.nq + a.nk);
		const size_t nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)dtype);
		void *x = kc_normal(dtype, n, 2.0f), *dy = kc_normal(dtype, n, 1.0f);
		void *was = malloc(nbytes);
		float *rstd = kc_normal(TE_DTYPE_FP32, nnorms, 0.2f);
		struct te_k_qk_norm_dw w = {
			dy, x, rstd, kc_poison(TE_DTYPE_FP32, nparts * a.qcols),
			kc_poison(TE_DTYPE_FP32, nparts * a.kcols), rows, a.qcols, a.kcols, a.nq,
			a.nk, dtype, 0
		};
		struct te_k_qk_norm_bwd b = {
			dy,   x,       a.gamma_q, a.gamma_k, rstd, kc_poison(dtype, n),
			rows, a.qcols, a.kcols,	  a.nq,	     a.nk, a.zero_centered, dtype
		};

		for (int64_t i = 0; i < nnorms; i++)
			rstd[i] = 1.0f + fabsf(rstd[i]);
		KC_RUN(QK_NORM_DW, &w);
		if (k & 1)
			b.dx = dy;
		kc_defer(b.dx);
		a.rstd = rstd;
		ck_assert_ptr_nonnull(was);
		memcpy(was, dy, nbytes);
		KC_RUN(QK_NORM_BWD, &b);
		near_qk(&a, x, was, b.dx);
		memcpy(was, x, nbytes);
		a.x = x;
		a.y = k & 1 ? x : kc_poison(dtype, n);
		a.rstd = kc_poison(TE_DTYPE_FP32, nnorms);
		kc_defer(a.y);
		kc_defer(a.rstd);
		KC_RUN(QK_NORM_FWD, &a);
		near_qk(&a, was, NULL, a.y);
		free(was);
		kc_reset();
	}
}

TEST_ALSO(odd, qk_norm, 4);

/* ---- sums over rows ---- */

KL_CASE(reduce);

TEST_EACH(reduce, colsum_and_part_sum, 2)
{
	static const int64_t heights[] = { 1, 63, 64, 65, 1000, 8192, 8193, 20000 };
	static const int64_t widths[] = { 1, 3, 31, 32, 33, 100, 520, 1024 };
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(heights)); k < TT_LEN(heights); k += kl_every()) {
		const int64_t rows = heights[k], cols = widths[TT_LEN(widths) - 1 - k];
		const int64_t nparts = TE_K_NPARTS(rows);
		float *part = kc_poison(TE_DTYPE_FP32, nparts * cols);
		struct te_k_colsum a = {
			kc_normal(dtype, rows * cols, 1.0f), part, rows, cols, dtype, 0
		};
		const int32_t to = kl_types[k & 1];
		struct te_k_part_sum b = {
			part, kc_normal(to, cols, 1.0f), nparts, cols, to, 0, NULL, NULL
		};

		if (k & 2) {
			b.part_b = kc_normal(TE_DTYPE_FP32, nparts * cols, 1.0f);
			b.out_b = kc_normal(to, cols, 1.0f);
		}
		KC_RUN(COLSUM, &a);
		KC_RUN(PART_SUM, &b);
		kc_reset();
	}
	for (size_t k = 0; k < TT_LEN(widths); k++) {
		const int64_t rows = 130, cols = widths[k];
		struct te_k_colsum a = { kc_normal(dtype, rows * cols, 1.0f),
					 kc_poison(TE_DTYPE_FP32, 3 * cols),
					 rows,
					 cols,
					 dtype,
					 0 };

		KC_RUN(COLSUM, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, colsum_and_part_sum, 2);

/* keys of parts, and that the largest one is of the first of the largest elements */
TEST(reduce, argmax)
{
	static const int64_t widths[] = { 1, 7, 8, 500, 513, 4096, 5003, 70000 };

	for (size_t k = 0; k < TT_LEN(widths); k++) {
		const int64_t n = widths[k], rows = tt_rand_int(1, 4);
		const int64_t ld = n + tt_rand_int(0, 1) * 8;
		uint16_t *x = kc_poison(TE_DTYPE_BF16, rows * ld);
		struct te_k_argmax a = { x, kc_poison(TE_DTYPE_UINT8,
						      8 * rows * TE_K_ARGMAX_PARTS),
					 rows, ld, n };
		const int finite = tt_rand_int(0, 3), most = (int)tt_rand_int(0, 3);

		for (int64_t i = 0; i < rows * ld; i++) /* many are equal, and some 0 or -0 */
			x[i] = (uint16_t)(tt_rand_int(0, 1) << 15 |
					  (most ? 0x4000 + tt_rand_int(0, most) : 0));
		if (!finite)
			x[tt_rand_int(0, n - 1)] = tt_rand_int(0, 1) ? 0x7f80 : 0xffc1;
		KC_RUN(ARGMAX, &a);
		for (int64_t r = 0; r < rows; r++) {
			uint64_t key = 0;
			int64_t best = 0;

			for (int p = 0; p < TE_K_ARGMAX_PARTS; p++)
				key = a.part[r * TE_K_ARGMAX_PARTS + p] > key ?
					      a.part[r * TE_K_ARGMAX_PARTS + p] : key;
			for (int64_t i = 1; i < n; i++)
				if (te_bf16_decode(x[r * ld + i]) >
				    te_bf16_decode(x[r * ld + best]))
					best = i;
			ck_assert_int_eq(!(key & TE_K_ARGMAX_NOT_FINITE), finite || r);
			if (finite)
				ck_assert_int_eq(te_k_argmax_column(key), best);
		}
		kc_reset();
	}
}
