/* t/kernels/comm_norm.c - see comm_norm_cases.h: results and the order of operations. */
#include "config.h"

#include <math.h>
#include <unistd.h>

#include <te/capture.h>

#include "tt.h"
#include "comm_norm_lib.h"
#include "kernel_check.h"
#include "kernels/launch.h"
#include "libtecore/tensor/ctx.h"
#include "tt_num.h"

/* ---- results ---- */

CTX_CASE(results, "numeric");

/* _i + 1 ranks; fewer rows than ranks, and rows that they share unevenly */
TEST_EACH(results, results_are_those_of_a_loop, TE_K_COMM_RANKS)
{
	cl_open(_i + 1, CN_HEAP);
	for (size_t t = 0; t < CN_NTYPES; t++)
		for (int a = TE_K_COMM_ONE_SHOT; a <= TE_K_COMM_TWO_SHOT; a++)
			for (int k = 0; k < TT_FEWER(8); k++) {
				struct cn_op f;

				cl_clear();
				f = cn_new(a, cn_type[t], cn_any_rows(),
					   tt_rand_int(1, k % 2 ? 300 : 1500));
				cn_run(&f);
			}
	cl_close();
}

#define NLONG 11
/* each number of vectors that a thread has, and the longest rows */
TEST_EACH(results, long_rows, NLONG, .parts = 3)
{
	static const int64_t cols[] = { 1024, 1032, 4096,  4104,  5120, 6152,
					8192, 8200, 12288, 16376, 16384 };

	cl_open((int)tt_rand_int(1, 8), 2 * CN_HEAP);
	for (size_t t = 0; t < CN_NTYPES; t++) {
		struct cn_op f;

		cl_clear();
		f = cn_new(cn_any_algorithm(), cn_type[t], tt_rand_int(1, 4), cols[_i]);
		cn_run(&f);
	}
	cl_close();
}

/* both algorithms from the same inputs: cn_check() compares each with the same loop */
TEST(results, algorithms_agree)
{
	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	for (int k = 0; k < TT_FEWER(10); k++) {
		struct cn_op f;

		cl_clear();
		f = cn_new(TE_K_COMM_ONE_SHOT, cn_any_type(), cn_any_rows(), tt_rand_int(1, 1000));
		cn_run(&f);
		f.k.comm.algorithm = TE_K_COMM_TWO_SHOT;
		cn_run(&f);
	}
	cl_close();
}

/* _i + 1 ranks: s, and dx of te_k_norm_bwd */
TEST_EACH(results, gradients_are_those_of_separate_kernels, TE_K_COMM_RANKS)
{
	cl_open(_i + 1, CN_HEAP);
	for (size_t t = 0; t < CN_NTYPES; t++)
		for (int a = TE_K_COMM_ONE_SHOT; a <= TE_K_COMM_TWO_SHOT; a++)
			for (int k = 0; k < TT_FEWER(5); k++) {
				struct cn_op f;

				cl_clear();
				f = cn_bwd_new(a, cn_type[t], cn_any_rows(),
					       tt_rand_int(1, k % 2 ? 300 : 1500));
				cn_run(&f);
			}
	cl_close();
}

TEST_EACH(results, gradients_of_long_rows, 3, .parts = 3)
{
	cl_open((int)tt_rand_int(1, 8), 2 * CN_HEAP);
	for (size_t t = 0; t < CN_NTYPES; t++) {
		static const int64_t cols[] = { 4096, 8200, 16384 };
		struct cn_op f;

		cl_clear();
		f = cn_bwd_new(cn_any_algorithm(), cn_type[t], tt_rand_int(1, 4), cols[_i]);
		cn_run(&f);
	}
	cl_close();
}

/* ---- the separate kernels ---- */

/* sum, r, y, rstd and codes of te_k_comm_allreduce, te_k_add, te_k_norm_fwd and te_k_quantize */
TEST_EACH(results, results_are_those_of_separate_kernels, TE_K_COMM_TWO_SHOT + 1,
	  .from = TE_K_COMM_ONE_SHOT)
{
	const int32_t dtype = tt_rand_int(0, 1) ? TE_DTYPE_BF16 : TE_DTYPE_FP32;

	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	for (int k = 0; k < TT_FEWER(10); k++) {
		const int64_t rows = cn_any_rows(), cols = tt_rand_int(1, 96) * 8;
		const int64_t n = rows * cols, es = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
		int64_t sum, r, y, rstd, codes, inv;
		struct cn_op f;

		cl_clear();
		f = cn_new(_i, dtype, rows, cols);
		f.k.flags |= TE_K_COMM_ROUND_SUM;
		f.k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
		f.k.scaling =
			tt_rand_int(0, 1) ? TE_K_COMM_SCALING_TENSOR : TE_K_COMM_SCALING_BLOCK;
		f.amax = CN_NONE;
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
		cn_fill(&f);
		/* all ranks have all rows of the residual */
		for (int k2 = 1; k2 < cl_n; k2++)
			for (int64_t i = 0; i < rows; i++) {
				const int64_t at_row = f.residual + i * cols * es;
				const int o = cn_owner(&f, i) < 0 ? 0 : cn_owner(&f, i);

				memcpy(cl_before(k2) + at_row, cl_before(o) + at_row,
				       (size_t)(cols * es));
				memcpy(cl_before(0) + at_row, cl_before(o) + at_row,
				       (size_t)(cols * es));
			}
		cl_upload();
		cn_launch_all(&f);
		for (int rank = 0; rank < cl_n; rank++) {
			uint8_t *h = cl_heap(rank);
			struct te_k_comm c = cn_args(&f, rank).comm;
			const struct te_k_add add = { h + sum, h + f.residual, h + r, n, dtype, 0 };
			const struct te_k_norm_fwd norm = {
				.x = h + r,
				.gamma = cn_at(rank, f.gamma),
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
					.scale = cn_at(rank, f.scale),
					.scale_inv = (float *)(void *)(h + inv),
					.epsilon = f.k.epsilon,
					.dtype = f.k.qdtype,
					.scaling = f.k.scaling ? TE_K_SCALING_1X128 :
								 TE_K_SCALING_TENSOR,
					.pow2 = !!(f.k.flags & TE_K_COMM_POW2),
				},
				.dtype = dtype,
			};

			c.algorithm = TE_K_COMM_ZERO_COPY;
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

/* ---- many operations ---- */

static void delay(void *us)
{
	usleep(*(uint32_t *)us);
}

#define MANY 16

CTX_CASE(order, "protocol");

/* between all-reduces, on ranks that are late */
TEST_EACH(order, operations_in_a_row, TE_K_COMM_RANKS)
{
	cl_open(_i + 1, CN_HEAP);
	for (int round = 0; round < TT_FEWER(4); round++) {
		struct cl_call c[MANY];
		struct cn_op f[MANY];

		cl_clear();
		for (int k = 0; k < MANY; k++) {
			f[k] = tt_rand_int(0, 3) ? cn_any(100) :
						   cn_bwd_new(cn_any_algorithm(), cn_any_type(),
							      cn_any_rows(), tt_rand_int(1, 100));
			c[k] = cl_call_new(-1, TE_K_COMM_SUM, TE_DTYPE_BF16, tt_rand_int(1, 1000));
		}
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			for (int k = 0; k < MANY; k++) {
				const uint32_t us = (uint32_t)tt_rand_int(0, 2000);

				if (tt_rand_int(0, 7) == 0)
					DO(te_host_call(cl_stream[r], delay, &us, sizeof(us)));
				cn_launch(&f[k], r);
				if (k % 3)
					cl_launch(&c[k], r);
			}
		for (int k = 0, n = 0; k < MANY; k++)
			if (k % 3)
				c[n++] = c[k];
		cn_check(f, MANY, c, MANY - (MANY + 2) / 3);
	}
	cl_close();
}

/* r of one operation is the residual of the next one, sharded over the ranks */
TEST(order, a_sharded_residual_goes_through_layers)
{
	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	for (int round = 0; round < TT_FEWER(8); round++) {
		const int64_t rows = cn_any_rows(), cols = tt_rand_int(1, 100);
		const int32_t dtype = cn_any_type();
		struct cn_op f[3];
		uint8_t *last;
		struct cn_expected e;
		int64_t n;

		cl_clear();
		for (int k = 0; k < 3; k++) {
			f[k] = cn_new(TE_K_COMM_TWO_SHOT, dtype, rows, cols);
			n = cn_count(&f[k]) * cn_es(&f[k]);
			f[k].residual_out = cl_room(n, 16);
			f[k].y = cl_room(n, 16);
			f[k].residual = k ? f[k - 1].residual_out : cl_room(n, 16);
			f[k].k.flags |= TE_K_COMM_RESIDUAL_SHARDED;
			if (k == 2) /* the last one gives all rows to all ranks */
				f[k].k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
			if (!k)
				cn_fill(&f[k]);
		}
		cl_upload();
		for (int k = 0; k < 3; k++)
			cn_launch_all(&f[k]);
		cl_read();
		/* the residual of the next one is the expected r, on all ranks */
		for (int k = 0; k < 2; k++) {
			cn_expect_open(&f[k], &e);
			for (int r = 0; r < cl_n; r++)
				memcpy(cl_before(r) + f[k].residual_out, e.r, (size_t)n);
			cn_expect_close(&e);
		}
		cn_expect_open(&f[2], &e);
		last = e.r;
		for (int r = 0; r < cl_n; r++) {
			ck_assert_mem_eq(cl_got(r) + f[2].residual_out, last, (size_t)n);
			ck_assert_mem_eq(cl_got(r) + f[2].y, e.y, (size_t)n);
		}
		cn_expect_close(&e);
	}
	cl_close();
}

TEST_EACH(order, replays, 2)
{
	static const uint32_t edges[] = { 0, TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL };
	struct te_recording *rec[TE_K_COMM_RANKS];
	struct cn_op f[4];

	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	for (int k = 0; k < 4; k++)
		f[k] = cn_any(300);
	for (int r = 0; r < cl_n; r++) {
		DO(te_capture_begin(cl_stream[r]));
		DO(te_capture_edges(cl_stream[r], edges[_i]));
		for (int k = 0; k < 4; k++)
			cn_launch(&f[k], r);
		DO(te_capture_end(cl_stream[r], &rec[r]));
	}
	for (int round = 0; round < TT_FEWER(10); round++) {
		for (int k = 0; k < 4; k++)
			cn_fill(&f[k]);
		cl_upload();
		for (int r = 0; r < cl_n; r++)
			DO(te_recording_launch(rec[r], cl_stream[r]));
		cn_check(f, 4, NULL, 0);
	}
	for (int r = 0; r < cl_n; r++)
		te_recording_unref(rec[r]);
	cl_close();
}

TEST(order, no_rows_are_no_operation)
{
	struct cn_op none, f;

	cl_open(3, CN_HEAP);
	none = f = cn_any(100);
	none.k.rows = 0;
	cl_upload();
	cn_launch(&none, 1); /* not on all ranks: none waits for it */
	cn_launch_all(&f);
	cn_check(&f, 1, NULL, 0);
	for (int r = 0; r < 3; r++)
		ck_assert_uint_eq(cl_epoch(r), 1);
	cl_close();
}

TT_PAIR_SUITE("kernels/comm_norm")
{
	/* by default, eight queues of a GPU: two of nine streams would share one */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}
