/* t/kernels/kernel_train.c - embedding tables, loss, GEMM and AdamW. */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"
#include "tt_ctx.h"

/* ---- embedding ---- */

KL_CASE(embed);

TEST_EACH(embed, embedding, 2)
{
	/* the last fill lists of any length: long ones of wide rows on GPUs only */
	static const struct {
		int64_t batch, seqlen, vocab, width;
	} cases[] = {
		{ 1, 1, 1, 1 },	      { 2, 9, 5, 7 },	     { 3, 65, 33, 64 },
		{ 2, 100, 50, 1000 }, { 1, 40, 70000, 24 },  { 4, 513, 300, 40 },
		{ 2, 3000, 3, 16 },   { 1, 300, 20, 2056 },  { 5, 1000, 9000, 12 },
		{ 1, 5000, 20, 2056 },
	};
	const int32_t dtype = kl_types[_i & 1];
	const size_t n = kl_count(TT_LEN(cases), 1);

	for (size_t k = kl_first(n); k < n; k += kl_every()) {
		const int64_t batch = cases[k].batch, seqlen = cases[k].seqlen;
		const int64_t vocab = cases[k].vocab, width = cases[k].width, rows = batch * seqlen;
		const int32_t first = (int32_t)k % 3 * 1000; /* the token of row 0 */
		int32_t *tokens = kc_poison(TE_DTYPE_INT32, rows);
		float *table = kc_normal(TE_DTYPE_FP32, vocab * width, 1.0f);
		float *pos = k & 1 ? NULL : kc_normal(TE_DTYPE_FP32, (seqlen + 3) * width, 1.0f);
		void *dy = kc_normal(dtype, rows * width, 1.0f);
		struct te_k_embed_fwd f = {
			tokens, table, pos, kc_poison(dtype, rows * width),
			(uint32_t *)(void *)kc_word(0.0f), rows, seqlen,
			vocab, width, NULL, 0, first + vocab, dtype, first, NULL, NULL, 0, 0
		};
		struct te_k_embed_fwd split = f;
		struct te_k_embed_bwd b = { tokens, dy, table, rows, vocab, width, dtype, first,
					    TE_DTYPE_FP32, 0 };
		struct te_k_pos_bwd p = { dy, pos, batch, seqlen, width, dtype, TE_DTYPE_FP32 };

		for (int64_t i = 0; i < rows; i++)
			tokens[i] = (int32_t)tt_rand_int(0, vocab - 1);
		for (int64_t i = 0; i < rows; i += 11)
			tokens[i] = (int32_t)(i & 1 ? vocab : -1 - i % 3);
		for (int64_t i = 5; i < rows; i += 17)
			tokens[i] = (int32_t)(vocab / 2);
		for (int64_t i = 0; i < rows; i++)
			tokens[i] += first;
		if (tt_rand_int(0, 1)) {
			int32_t *position = kc_poison(TE_DTYPE_INT32, rows);

			/* some are outside */
			for (int64_t i = 0; i < rows; i++)
				position[i] = (int32_t)tt_rand_int(-2, seqlen + 5);
			f.position = split.position = position;
			f.npos = split.npos = seqlen + 3;
		}
		KC_RUN(EMBED_FWD, &f);
		split.table = kc_split(table, vocab * width, &split.table_rest);
		split.pos = pos ? kc_split(pos, (seqlen + 3) * width, &split.pos_rest) : NULL;
		split.y = kc_poison(dtype, rows * width);
		split.noutside = NULL;
		split.split = 1;
		KC_RUN(EMBED_FWD, &split);
		ck_assert_mem_eq(split.y, f.y, (size_t)(rows * width) * (dtype ? 2 : 4));
		KC_RUN(EMBED_BWD, &b);
		if (pos)
			KC_RUN(POS_BWD, &p);
		b.table_dtype = p.table_dtype = TE_DTYPE_BF16;
		b.dtable = kc_normal(TE_DTYPE_BF16, vocab * width, 1.0f);
		p.dpos = kc_normal(TE_DTYPE_BF16, seqlen * width, 1.0f);
		KC_RUN(EMBED_BWD, &b);
		KC_RUN(POS_BWD, &p);
		kc_reset();
	}
}

TEST_ALSO(odd, embedding, 2);

/* ---- loss ---- */

KL_CASE(loss);

TEST_EACH(loss, cross_entropy, 2)
{
	static const struct {
		int64_t rows, cols, nclasses;
	} cases[] = {
		{ 1, 1, 1 },	   { 3, 7, 5 },		{ 5, 64, 64 },	     { 4, 1000, 990 },
		{ 2, 4104, 4099 }, { 3, 50304, 50257 }, { 2, 50257, 50257 }, { 70, 128, 100 },
	};
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(cases)); k < TT_LEN(cases); k += kl_every()) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols, ncl = cases[k].nclasses;
		void *x = kc_normal(dtype, rows * cols, 3.0f);
		int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
		float *max_sum = kc_poison(TE_DTYPE_FP32, 2 * rows), *sum = max_sum + rows;
		float *loss = kc_poison(TE_DTYPE_FP32, rows);
		float *mean = kc_word(-1.0f), *count = kc_word(-1.0f);
		struct te_k_ce_fwd f = { x,   targets, max_sum, loss, rows, cols,
					 ncl, -100,    dtype,	0,    0,    0 };
		struct te_k_ce_reduce r = {
			loss, targets, mean, count, (uint32_t *)(void *)kc_word(0.0f), rows, ncl,
			-100, 0
		};
		struct te_k_ce_bwd b = { x,	targets, max_sum, count,
					 kc_poison(dtype, rows * cols),
					 rows,	cols,	 ncl,	  -100,	 0.7f,
					 dtype, 0,	 0 };
		/* exp and its argument in each term, and a chain of additions on a GPU */
		const double depth = 64.0 + (double)cols / 256.0;
		float *got;

		for (int64_t i = 0; i < rows; i++)
			targets[i] = (int32_t)tt_rand_int(0, ncl - 1);
		if (rows > 2) {
			targets[0] = -100;
			targets[2] = (int32_t)ncl;
		}
		for (int64_t i = 0; i < rows * cols; i++)
			if (i % cols >= ncl)
				tt_set(dtype, x, i, i & 1 ? NAN : 1e30f); /* padding */
			else if (i % 13 == 0 && ncl > 5)
				tt_set(dtype, x, i, -INFINITY);
		for (int64_t i = 0; i < rows; i++)
			tt_set(dtype, x,
			       i * cols + (targets[i] >= 0 && targets[i] < ncl ? targets[i] : 0),
			       1.5f);
		kc_defer(max_sum);
		kc_defer(loss);
		KC_RUN(CE_FWD, &f);
		for (int64_t i = 0; i < rows; i++) {
			kc_near(max_sum, i, 0.0);
			kc_near(max_sum, rows + i, 2.0 * U32 * depth * (double)sum[i]);
			kc_near(loss, i, 2.0 * U32 * (depth + fabs((double)loss[i])));
		}
		/* FP64 in another order, one rounding to FP32 */
		kc_defer(mean);
		KC_RUN(CE_REDUCE, &r);
		kc_near(mean, 0, 2.0 * U32 * fabs((double)*mean));
		for (int place = 0; place < 2; place++) {
			if (place)
				b.dlogits = x;
			got = malloc((size_t)(rows * cols) * sizeof(*got));
			ck_assert_ptr_nonnull(got);
			for (int64_t i = 0; i < rows * cols; i++)
				got[i] = expf(tt_get(dtype, x, i) - max_sum[i / cols]) /
					 sum[i / cols];
			kc_defer(b.dlogits);
			KC_RUN(CE_BWD, &b);
			for (int64_t i = 0; i < rows * cols; i++) {
				const double want = tt_get(dtype, b.dlogits, i);
				const double p = i % cols < ncl ? (double)got[i] : 0.0;

				/* exp within 4 ulp and 1.2 ulp, then four operations on each */
				kc_near(b.dlogits, i,
					(16.0 * U32 * p + 2.0 * U32) * 0.7 / fmax(*count, 1.0) *
							(want != 0.0) +
						2.0 * tt_unit(dtype) * fabs(want) + 1e-37);
			}
			free(got);
		}
		kc_reset();
	}
}

TEST_ALSO(odd, cross_entropy, 2);

/* rows in shared memory, also in registers, and read twice: too long, or of odd length */
TEST_EACH(loss, cross_entropy_at_once, 2)
{
	static const struct {
		int64_t rows, cols, nclasses;
	} cases[] = {
		{ 1, 8, 1 },	     { 3, 7, 5 },	   { 5, 64, 64 },
		{ 70, 128, 100 },    { 4, 1000, 990 },	   { 2, 4104, 4099 },
		{ 3, 50304, 50257 }, { 2, 50257, 50257 },  { 1, 110600, 110600 },
		{ 2, 128256, 128256 }, { 2, 152064, 151643 }, { 1, 159744, 159740 },
		{ 1, 159800, 159800 },
	};
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(cases)); k < TT_LEN(cases); k += kl_every()) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols, ncl = cases[k].nclasses;
		const int64_t first = rows > 2 ? 1 : 0; /* the first row that counts */
		void *x = kc_normal(dtype, rows * cols, 3.0f);
		int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
		float *max_sum = kc_poison(TE_DTYPE_FP32, 2 * rows), *sum = max_sum + rows;
		float *loss = kc_poison(TE_DTYPE_FP32, rows), *count = kc_word(-1.0f);
		struct te_k_ce_reduce r = { NULL, targets, NULL, count, NULL, rows, ncl, -100, 0 };
		struct te_k_ce_grad g = {
			x,    targets, count, kc_poison(dtype, rows * cols), max_sum, loss,
			rows, cols,    ncl,   -100, 0.7f, dtype, 0
		};
		/* as in cross_entropy */
		const double depth = 64.0 + (double)cols / 256.0;
		double *p = malloc((size_t)(rows * cols) * sizeof(*p));

		ck_assert_ptr_nonnull(p);
		for (int64_t i = 0; i < rows; i++)
			targets[i] = (int32_t)tt_rand_int(0, ncl - 1);
		targets[rows - 1] = (int32_t)ncl - 1;
		if (rows > 2) {
			targets[0] = -100;
			targets[2] = (int32_t)(rows > 3 ? ncl : 0);
		}
		for (int64_t i = 0; i < rows * cols; i++)
			if (i % cols >= ncl || i < first * cols)
				tt_set(dtype, x, i, i & 1 ? NAN : 1e30f); /* is not read */
			else if (i % 13 == 0 && ncl > 5)
				tt_set(dtype, x, i, -INFINITY);
		for (int64_t i = first; i < rows; i++)
			tt_set(dtype, x,
			       i * cols + (targets[i] >= 0 && targets[i] < ncl ? targets[i] : 0),
			       1.5f);
		KC_RUN(CE_COUNT, &r);
		for (int place = 0; place < 2; place++) {
			for (int64_t i = 0; i < rows * cols; i++)
				p[i] = tt_get(dtype, x, i);
			if (place)
				g.dlogits = x;
			kc_defer(max_sum);
			kc_defer(loss);
			kc_defer(g.dlogits);
			KC_RUN(CE_GRAD, &g);
			for (int64_t i = 0; i < rows; i++) {
				kc_near(max_sum, i, 0.0);
				kc_near(max_sum, rows + i, 2.0 * U32 * depth * (double)sum[i]);
				kc_near(loss, i, 2.0 * U32 * (depth + fabs((double)loss[i])));
			}
			for (int64_t i = 0; i < rows * cols; i++) {
				const double want = tt_get(dtype, g.dlogits, i);
				const int64_t row = i / cols;
				const double e = exp(p[i] - (double)max_sum[row]);
				const int on = i % cols < ncl && sum[row] > 0.0f;
				const double share = on ? e / (double)sum[row] : 0.0;

				/* as in cross_entropy, and the sum's difference */
				kc_near(g.dlogits, i,
					((16.0 + 2.0 * depth) * U32 * share + 2.0 * U32) * 0.7 /
							fmax(*count, 1.0) * (want != 0.0) +
						2.0 * tt_unit(dtype) * fabs(want) + 1e-37);
			}
		}
		free(p);
		kc_reset();
	}
}

TEST_ALSO(odd, cross_entropy_at_once, 2);

/* the columns of the last part have classes and padding, padding only, or no padding */
TEST_EACH(loss, cross_entropy_of_parts, 2)
{
	static const struct {
		int64_t rows, cols, nclasses, first;
		int32_t nparts;
	} cases[] = {
		{ 3, 7, 19, 14, 3 },	 { 5, 64, 64, 64, 2 },	    { 4, 1000, 2000, 1000, 2 },
		{ 2, 4104, 8203, 4104, 2 }, { 130, 128, 900, 768, 8 }, { 3, 12564, 50257, 0, 4 },
	};
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(cases)); k < TT_LEN(cases); k += kl_every()) {
		const int64_t rows = cases[k].rows, cols = cases[k].cols;
		const int64_t first = cases[k].first, nc = cases[k].nclasses;
		const int32_t n = cases[k].nparts;
		const double depth = 64.0 + (double)cols / 256.0;
		void *x = kc_normal(dtype, rows * cols, 3.0f);
		int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
		float *parts = kc_normal(TE_DTYPE_FP32, 3 * n * rows, 3.0f);
		float *max_sum = kc_poison(TE_DTYPE_FP32, 2 * rows), *sum = max_sum + rows;
		float *part = kc_poison(TE_DTYPE_FP32, 2 * rows);
		float *loss = kc_poison(TE_DTYPE_FP32, rows), *hit = kc_poison(TE_DTYPE_FP32, rows);
		struct te_k_ce_fwd f = { x,  targets, part,  hit,   rows, cols,
					 nc, -100,    dtype, first, 1,	  0 };
		struct te_k_ce_join j = { parts, targets, max_sum, loss, rows, nc, n, -100 };
		struct te_k_ce_bwd b = { x,	targets, max_sum, kc_word(3.0f),
					 kc_poison(dtype, rows * cols),
					 rows,	cols,	 nc,  -100,  0.7f,
					 dtype, 0,	 first };

		for (int64_t i = 0; i < rows; i++)
			targets[i] = (int32_t)tt_rand_int(0, nc - 1);
		targets[0] = (int32_t)first;
		targets[1] = (int32_t)(first + cols < nc ? first + cols : nc);
		for (int64_t i = 0; i < 3 * n * rows; i++)
			if (i / rows % 3 == 1)
				parts[i] = 1.0f + fabsf(parts[i]);
		parts[0] = -INFINITY;
		parts[rows] = 0.0f;
		kc_defer(part);
		kc_defer(hit);
		KC_RUN(CE_FWD, &f);
		for (int64_t i = 0; i < rows; i++) {
			kc_near(part, i, 0.0);
			kc_near(part, rows + i, 2.0 * U32 * depth * (double)part[rows + i]);
			kc_near(hit, i, 0.0);
		}
		/* FP64 exp and log within 2 ulp: the rounding to FP32 may differ by one */
		kc_defer(max_sum);
		kc_defer(loss);
		KC_RUN(CE_JOIN, &j);
		for (int64_t i = 0; i < rows; i++) {
			kc_near(max_sum, i, 0.0);
			kc_near(max_sum, rows + i, 2.0 * U32 * (double)sum[i]);
			kc_near(loss, i, 2.0 * U32 * fabs((double)loss[i]));
		}
		kc_defer(b.dlogits);
		KC_RUN(CE_BWD, &b);
		for (int64_t i = 0; i < rows * cols; i++) {
			const double want = tt_get(dtype, b.dlogits, i);
			const double most = max_sum[i / cols];
			const double p = exp((double)tt_get(dtype, x, i) - most) / sum[i / cols];

			/* as in cross_entropy */
			kc_near(b.dlogits, i,
				(16.0 * U32 * p + 2.0 * U32) * 0.7 / 3.0 * (want != 0.0) +
					2.0 * tt_unit(dtype) * fabs(want) + 1e-37);
		}
		kc_reset();
	}
}

TEST_ALSO(odd, cross_entropy_of_parts, 2);

TEST_EACH(loss, cross_entropy_of_inf_and_nan, 2)
{
	const int32_t dtype = kl_types[_i & 1];
	const int64_t rows = 5, cols = 600;
	void *x = kc_normal(dtype, rows * cols, 1.0f);
	int32_t *targets = kc_poison(TE_DTYPE_INT32, rows);
	float *max_sum = kc_poison(TE_DTYPE_FP32, 2 * rows);
	float *loss = kc_poison(TE_DTYPE_FP32, rows);
	struct te_k_ce_fwd f = {
		x, targets, max_sum, loss, rows, cols, cols, -1, dtype, 0, 0, 0
	};
	struct te_k_ce_reduce r = {
		loss, targets, kc_word(-1.0f), kc_word(-1.0f), NULL, rows, cols, -2, 0
	};

	for (int64_t i = 0; i < rows; i++)
		targets[i] = (int32_t)i;
	tt_set(dtype, x, 77, NAN);
	tt_set(dtype, x, cols + 99, INFINITY);
	for (int64_t c = 0; c < cols; c++)
		tt_set(dtype, x, 2 * cols + c, -INFINITY);
	for (int64_t c = 1; c < cols; c++)
		tt_set(dtype, x, 3 * cols + c, -INFINITY);
	kc_defer(max_sum);
	kc_defer(loss);
	KC_RUN(CE_FWD, &f);
	for (int64_t i = 0; i < rows; i++) {
		kc_near(max_sum, i, 0.0);
		kc_near(max_sum, rows + i, 256.0 * U32 * (double)max_sum[rows + i]);
		kc_near(loss, i, fabsf(loss[i]) < INFINITY ? 256.0 * U32 : 0.0);
	}
	KC_RUN(CE_REDUCE, &r);
	for (int64_t i = 0; i < rows; i++)
		targets[i] = -1; /* no row counts */
	KC_RUN(CE_REDUCE, &r);
	kc_reset();
}

/* ---- GEMM ---- */

static void *whole_numbers(int32_t dtype, int64_t n)
{
	void *p = kc_poison(dtype, n);

	for (int64_t i = 0; i < n; i++) {
		const float x = (float)tt_rand_int(-4, 4);

		if (dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2)
			((uint8_t *)p)[i] = te_fp8_encode((enum te_dtype)dtype, x);
		else
			tt_set(dtype, p, i, x);
	}
	return p;
}

KL_CASE(gemm);

/* on numbers whose products and sums are exact in any order */
/* on a GPU, cuBLASLt has fewer layouts: t/ops/gemm_exact_gpu.c */
TEST_EACH(gemm, gemm, ON_HOST ? 6 : 0)
{
	const int32_t types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_E4M3 };
	const int32_t type = types[_i % 3], out = _i & 1 ? TE_DTYPE_FP32 : TE_DTYPE_BF16;

	for (int k = 0; k < 16; k++) {
		const int64_t m = tt_rand_int(1, 70), n = tt_rand_int(1, 70);
		const int64_t depth = tt_rand_int(1, 40);
		struct te_k_gemm a = { .a = whole_numbers(type, m * depth),
				       .b = whole_numbers(type, n * depth),
				       .d = whole_numbers(out, m * n),
				       .m = m,
				       .n = n,
				       .k = depth,
				       .alpha = 1.0f,
				       .a_t = k & 1,
				       .b_t = k >> 1 & 1,
				       .adtype = type,
				       .bdtype = type,
				       .cdtype = out,
				       .ddtype = out };

		if (k & 4) {
			a.c = k & 8 ? a.d : whole_numbers(out, m * n);
			a.beta = 1.0f;
		}
		if (_i & 2)
			a.bias = whole_numbers(out, n);
		if (type == TE_DTYPE_E4M3) {
			a.sa = kc_word(2.0f);
			a.sb = kc_word(0.5f);
		}
		KC_RUN(GEMM, &a);
		kc_reset();
	}
}

TEST_EACH(gemm, gemm_grouped, 3)
{
	static const int32_t types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_E4M3 };
	const int32_t type = types[_i % 3], out = type == TE_DTYPE_FP32 ? type : TE_DTYPE_BF16;

	for (int i = 0; i < 12; i++) {
		const int by_k = i % 3 == 2, fp8 = type == TE_DTYPE_E4M3;
		const int64_t m = tt_rand_int(1, 50), n = fp8 ? 16 : tt_rand_int(1, 40), groups = 3;
		const int64_t depth = fp8 ? 48 : tt_rand_int(1, 40), rows = by_k ? depth : m;
		int32_t *offsets = kc_poison(TE_DTYPE_INT32, groups + 1);
		struct te_k_gemm_grouped a = {
			.a = whole_numbers(type, m * depth),
			.b = whole_numbers(type, n * depth * (by_k ? 1 : groups)),
			.d = whole_numbers(out, m * n * (by_k ? groups : 1)),
			.sa = fp8 ? kc_word(2.0f) : NULL,
			.sb = fp8 ? kc_normal(TE_DTYPE_FP32, groups, 1.0f) : NULL,
			.offsets = offsets,
			.status = kc_poison(TE_DTYPE_INT32, 1),
			.m = m,
			.n = n,
			.k = depth,
			.groups = groups,
			.alpha = 1.0f,
			.beta = i & 1 ? 1.0f : 0.0f,
			.by_k = by_k,
			.b_t = i % 3 == 1,
			.b_each = 1,
			.adtype = type,
			.bdtype = type,
			.ddtype = out,
		};

		offsets[0] = 0;
		for (int64_t g = 1; g <= groups; g++)
			offsets[g] = (int32_t)tt_rand_int(offsets[g - 1], rows);
		if (i > 8)
			offsets[tt_rand_int(0, groups)] = i == 9 ? -1 : (int32_t)rows + 1;
		KC_RUN(GEMM_GROUPED, &a);
		kc_reset();
	}
}

TEST_EACH(gemm, gemm_finish, 2)
{
	const int32_t dtype = kl_types[_i % 2];

	for (int k = 0; k < 12; k++) {
		const int64_t m = tt_rand_int(1, 90), n = k == 11 ? 5001 : tt_rand_int(1, 300);
		const int64_t ld = n + tt_rand_int(0, 15);
		struct te_k_gemm_finish a = { .sums = kc_normal(TE_DTYPE_FP32, m * ld, 1.0f),
					      .d = kc_normal(dtype, m * n, 1.0f),
					      .bias = k & 1 ? kc_normal(dtype, n, 1.0f) : NULL,
					      .m = m,
					      .n = n,
					      .ld = ld,
					      .beta = k & 2 ? tt_rand_float(-2, 2) : 0.0f,
					      .dtype = dtype };
		float *want = malloc((size_t)(m * n) * sizeof(*want));

		a.c = k & 4 ? a.d : kc_anything(dtype, m * n);
		for (int64_t i = 0; i < m * n; i++) {
			float v = a.sums[i / n * ld + i % n];

			if (a.beta != 0.0f) {
				const float c = a.beta * tt_get(dtype, a.c, i);

				v += c;
			}
			if (a.bias)
				v += tt_get(dtype, a.bias, i % n);
			want[i] = tt_round(dtype, v);
		}
		KC_RUN(GEMM_FINISH, &a);
		for (int64_t i = 0; i < m * n; i++) {
			const float got = tt_get(dtype, a.d, i);

			ck_assert_msg(got == want[i] || (isnan(got) && isnan(want[i])),
				      "[%d, %d] of %d columns: %g, not %g", (int)(i / n),
				      (int)(i % n), (int)n, (double)got, (double)want[i]);
		}
		free(want);
		kc_reset();
	}
}

/* ---- optimizer ---- */

KL_CASE(optim);

TEST_EACH(optim, sumsq_and_adamw, 2)
{
	static const int64_t sizes[] = { 1, 63, 64, 1000, 1024, 1025, 65536, 300001, 1000000 };

	for (size_t k = kl_first(TT_LEN(sizes)); k < TT_LEN(sizes); k += kl_every()) {
		const int64_t n = sizes[k];
		const int32_t type = kl_types[_i]; /* of gradients */
		void *g = kc_normal(type, n, 1.0f);
		float *v = kc_normal(TE_DTYPE_FP32, n, 0.1f);
		const int32_t nmore = (int32_t)k % 3; /* shards after the first */
		double *part = kc_poison(TE_DTYPE_UINT8, (1 + nmore) * TE_K_SUMSQ_PARTS * 8);
		struct te_k_adamw_state *s = kc_poison(TE_DTYPE_UINT8, sizeof(*s));
		uint8_t *decay = kc_poison(TE_DTYPE_UINT8, (n + 63) / 64);
		uint8_t *skip = kc_poison(TE_DTYPE_UINT8, (n + 63) / 64);
		struct te_k_sumsq q = { g, part, n, k & 1 ? skip : NULL, type, 0 };
		uint64_t *version = kc_poison(TE_DTYPE_UINT8, sizeof(*version));
		struct te_k_adamw_begin b = { part, s, version, 0.9f, 0.95f, 0.0f, nmore };
		struct te_k_adamw a = { kc_normal(TE_DTYPE_FP32, n, 1.0f),
					kc_normal(TE_DTYPE_FP32, n, 0.1f),
					v,
					g,
					decay,
					s,
					n,
					0.9f,
					0.95f,
					1e-8f,
					0.1f,
					NULL,
					NULL,
					NULL,
					TE_K_MOMENTS_FP32,
					TE_K_MASTERS_FP32,
					type == TE_DTYPE_BF16,
					0,
					0 };

		for (int64_t i = 0; i < n; i++)
			v[i] = v[i] * v[i];
		for (int64_t i = 0; i < (n + 63) / 64; i++)
			decay[i] = (uint8_t)(tt_rand_u64() & 1);
		for (int64_t i = 0; i < (n + 63) / 64; i++)
			skip[i] = (uint8_t)(tt_rand_u64() & 1);
		for (int64_t i = TE_K_SUMSQ_PARTS; i < (1 + nmore) * TE_K_SUMSQ_PARTS; i++)
			part[i] = (double)tt_rand_float(0.0f, 1.0f);
		*s = (struct te_k_adamw_state){
			.nsteps = 3, .beta1_t = 0.729, .beta2_t = 0.857, .lr = 1e-3f
		};
		/* FP64 in another order */
		kc_defer(part);
		KC_RUN(SUMSQ, &q);
		for (int p = 0; p < TE_K_SUMSQ_PARTS; p++)
			ck_assert_double_le(fabs(((const double *)kc_got(part))[p] - part[p]),
					    (double)(n + 8) * 0x1p-53 * part[p]);
		if (k & 1)
			b.max_norm = k & 2 ? 0.5f : 1e9f;
		if (k & 4)
			a.decay = NULL;
		for (int step = 0; step < 2; step++) {
			KC_RUN(ADAMW_BEGIN, &b);
			KC_RUN(ADAMW, &a);
		}
		part[17] = k & 1 ? (double)INFINITY : (double)NAN;
		KC_RUN(ADAMW_BEGIN, &b);
		KC_RUN(ADAMW, &a); /* skipped */
		kc_reset();
	}
}

TEST_ALSO(odd, sumsq_and_adamw, 1);

/* a stored moment of n elements: of any value, or as runs have them */
static void *stored_moment(int32_t moments, int64_t n, int any)
{
	uint8_t *code;

	if (moments != TE_K_MOMENTS_FP8) {
		const int32_t type = moments ? TE_DTYPE_BF16 : TE_DTYPE_FP32;

		return any ? kc_anything(type, n) : kc_normal(type, n, 0.1f);
	}
	code = kc_poison(TE_DTYPE_UINT8, n);
	for (int64_t i = 0; i < n; i++)
		code[i] = (uint8_t)tt_rand_u64();
	return code;
}

/* the bits that BF16 weights lack */
static uint16_t *other_halves(int64_t n)
{
	uint8_t *p = kc_poison(TE_DTYPE_UINT8, 2 * n);

	for (int64_t i = 0; i < 2 * n; i++)
		p[i] = (uint8_t)tt_rand_u64();
	return (uint16_t *)(void *)p;
}

/*
 * States that are not all FP32, from 9 on also of values that no run has: NaN, infinite, subnormal,
 * other codes. _i: moments, masters, values.
 */
TEST_EACH(optim, adamw_of_small_states, 18)
{
	static const int64_t sizes[] = { 1, 7, 8, 63, 64, 65, 1000, 2048, 2049, 20001 };
	const int32_t type = _i / 3 % 3 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const int32_t moments = _i % 3, masters = _i / 3 % 3, any = _i / 9;

	for (size_t k = kl_first(TT_LEN(sizes)); k < TT_LEN(sizes); k += kl_every()) {
		const int64_t n = sizes[k], nruns = (n + 63) / 64;
		struct te_k_adamw_state *s = kc_poison(TE_DTYPE_UINT8, sizeof(*s));
		uint8_t *decay = kc_poison(TE_DTYPE_UINT8, nruns);
		struct te_k_adamw a = {
			.w = any ? kc_anything(type, n) : kc_normal(type, n, 1.0f),
			.m = stored_moment(moments, n, any),
			.v = stored_moment(moments, n, any),
			.g = any ? kc_anything(kl_types[k & 1], n) :
				   kc_normal(kl_types[k & 1], n, 1.0f),
			.bf16_grads = k & 1,
			.decay = k & 1 ? decay : NULL,
			.state = s,
			.n = n,
			.first = (int64_t)k * 3 * TE_K_ALIGN_WEIGHT,
			.beta1 = 0.9f,
			.beta2 = 0.95f,
			.eps = 1e-8f,
			.weight_decay = 0.1f,
			.moments = moments,
			.masters = masters,
		};

		if (masters == TE_K_MASTERS_SPLIT)
			a.rest = other_halves(n);
		if (moments == TE_K_MOMENTS_FP8) {
			a.m_exp = kc_poison(TE_DTYPE_UINT8, nruns);
			a.v_exp = kc_poison(TE_DTYPE_UINT8, nruns);
		}
		for (int64_t i = 0; i < nruns; i++) {
			decay[i] = (uint8_t)(tt_rand_u64() & 1);
			if (a.m_exp) {
				a.m_exp[i] = (uint8_t)(any ? tt_rand_u64() :
							     110 + (uint64_t)i % 8);
				a.v_exp[i] = (uint8_t)(any ? tt_rand_u64() :
							     100 + (uint64_t)i % 8);
			}
		}
		for (int64_t i = 0; i < n && !any; i++) { /* second moments have no sign */
			if (moments == TE_K_MOMENTS_BF16)
				((uint16_t *)a.v)[i] &= 0x7fff;
			else if (moments == TE_K_MOMENTS_FP32)
				((float *)a.v)[i] = fabsf(((float *)a.v)[i]);
		}
		*s = (struct te_k_adamw_state){ .nsteps = 3 + ((uint64_t)k << 33),
						.beta1_t = 0.729,
						.beta2_t = 0.857,
						.lr = 1e-3f,
						.clip = 0.5f };
		for (int step = 0; step < 2; step++) {
			KC_RUN(ADAMW, &a);
			s->nsteps++;
		}
		s->skip = 1;
		KC_RUN(ADAMW, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, adamw_of_small_states, 18);
