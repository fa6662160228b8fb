/* t/kernels/comm_norm_failures.c - fused operations of ranks that differ or do not come. */
#include "config.h"

#include <unistd.h>

#include "tt.h"
#include "comm_norm_lib.h"

static void recovers(void)
{
	struct cn_op f;

	cl_reset();
	cl_clear();
	cl_deadline_ns = 60000000000u;
	f = cn_any(300);
	cn_run(&f);
}

CTX_CASE(failures, "protocol");

TEST_EACH(failures, a_rank_that_skips_an_operation_is_named, TE_K_COMM_TWO_SHOT + 1,
	  .from = TE_K_COMM_ONE_SHOT)
{
	struct cn_op f;
	int who;

	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	who = (int)tt_rand_int(0, cl_n - 1);
	f = cn_new(_i, cn_any_type(), cn_any_rows(), tt_rand_int(1, 600));
	cl_upload();
	cl_deadline_ns = 200000000;
	for (int r = 0; r < cl_n; r++)
		if (r != who)
			cn_launch(&f, r);
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

/* an all-reduce of the same array, and other outputs, sizes and types */
TEST_EACH(failures, another_operation_is_a_mismatch, 9)
{
	struct cl_call c;
	struct cn_op f, g;
	int who;

	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	who = (int)tt_rand_int(0, cl_n - 1);
	f = cn_new(TE_K_COMM_TWO_SHOT, TE_DTYPE_BF16, 9, 64);
	f.codes = f.rstd = f.amax = f.scale_inv = CN_NONE;
	g = f;
	c = cl_call_new(TE_K_COMM_TWO_SHOT, TE_K_COMM_SUM, TE_DTYPE_BF16, 9 * 64);
	switch (_i) {
	case 0:
		g.k.comm.algorithm = TE_K_COMM_ONE_SHOT;
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
		f.residual_out = g.residual_out = CN_NONE;
		g.x = g.in;
		g.x_rstd = g.gamma;
		break;
	}
	cl_upload();
	for (int r = 0; r < cl_n; r++)
		if (r != who)
			cn_launch(&f, r);
		else if (_i < 8)
			cn_launch(&g, r);
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

TEST_EACH(failures, an_abort_ends_all_waits, TE_K_COMM_TWO_SHOT + 1, .from = TE_K_COMM_ONE_SHOT)
{
	struct cn_op f;

	cl_open((int)tt_rand_int(2, 8), CN_HEAP);
	f = cn_new(_i, cn_any_type(), cn_any_rows(), tt_rand_int(1, 600));
	cl_upload();
	cl_deadline_ns = 0; /* none */
	for (int r = 1; r < cl_n; r++)
		cn_launch(&f, r);
	usleep((useconds_t)tt_rand_int(0, 50000));
	cl_abort();
	cl_sync();
	for (int r = 1; r < cl_n; r++)
		ck_assert_uint_eq(cl_status(r)->code, TE_K_COMM_ABORTED);
	recovers();
	cl_close();
}
