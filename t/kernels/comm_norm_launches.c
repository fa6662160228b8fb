/* t/kernels/comm_norm_launches.c - memory and launch geometry of the fused all-reduce and norm. */
#include "config.h"

#include "tt.h"
#include "comm_norm_lib.h"
#include "kernel_check.h"
#include "kernels/launch.h"
#include "libtecore/tensor/ctx.h"

static void setup_check(void)
{
	kc_open(backend);
}

CASE(memory, "numeric", .setup = setup_check, .teardown = kc_close);

/* of the memory that kernel_check.c sees; with one rank, there is no other */
TEST_EACH(memory, memory_is_that_of_kernels_def, CN_NTYPES)
{
	const int32_t dtype = cn_type[_i];
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
		for (k.comm.algorithm = TE_K_COMM_ONE_SHOT; k.comm.algorithm <= TE_K_COMM_TWO_SHOT;
		     k.comm.algorithm++) {
			k.scale_inv =
				kc_poison(TE_DTYPE_FP32, te_k_comm_norm_scale_inv_nfloats(&k));
			k.comm.buffer_nbytes = te_k_comm_norm_buffer_nbytes(&k);
			k.comm.slots = kc_poison(TE_DTYPE_UINT8,
						 te_k_comm_region_nbytes(k.comm.buffer_nbytes));
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
	k.rstd = k.codes = k.scale_inv = k.amax = NULL;
	k.scaling = TE_K_COMM_SCALING_TENSOR;
	k.x = kc_normal(dtype, n, 1.0f);
	k.x_rstd = kc_normal(TE_DTYPE_FP32, rows, 1.0f);
	for (k.comm.algorithm = TE_K_COMM_ONE_SHOT; k.comm.algorithm <= TE_K_COMM_TWO_SHOT;
	     k.comm.algorithm++) {
		memset(k.comm.ctl, 0, sizeof(*k.comm.ctl));
		kc_defer(k.y);
		kc_defer(k.residual_out);
		KC_RUN(COMM_NORM_BWD, &k);
	}
}

static struct te_k_comm_norm some(void)
{
	static float word[4] __attribute__((aligned(16)));
	struct te_k_comm_norm k = {
		.comm = {
			.nranks = 8,
			.max_blocks = 16,
			.algorithm = TE_K_COMM_TWO_SHOT,
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

	k.comm.buffer_nbytes = te_k_comm_norm_buffer_nbytes(&k);
	return k;
}

CASE(launches, "host");

TEST(launches, geometry_is_the_same_on_all_ranks)
{
	struct te_k_comm_norm k = some();
	struct te__geometry g, other;

	k.comm.buffer_nbytes = 1 << 30;
	for (k.comm.algorithm = TE_K_COMM_ONE_SHOT; k.comm.algorithm <= TE_K_COMM_TWO_SHOT;
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
	k.comm.algorithm = TE_K_COMM_ONE_SHOT;
	k.cols = 8;
	k.rows = 0;
	DO(te__geometry(TE_K_COMM_NORM, &k, &g));
	ck_assert_uint_eq(g.grid[0], 0);
}

TEST(launches, geometry_refuses_what_the_kernels_cannot_do)
{
	const struct te_k_comm_norm good = some();
	struct te_k_comm_norm k = good;
	struct te__geometry g;

	DO(te__geometry(TE_K_COMM_NORM, &k, &g));
#define REFUSES(change, code, text)                                      \
	do {                                                             \
		k = good;                                                \
		change;                                                  \
		fails(te__geometry(TE_K_COMM_NORM, &k, &g), code, text); \
	} while (0)
	REFUSES(k.comm.nranks = 9, -EINVAL, "rank 0 of 9");
	REFUSES(k.comm.nranks = 0, -EINVAL, "rank 0 of 0");
	REFUSES(k.comm.rank = 8, -EINVAL, "rank 8 of 8");
	REFUSES(k.comm.algorithm = TE_K_COMM_ZERO_COPY, -EINVAL, "no algorithm");
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
	REFUSES((k.comm.algorithm = TE_K_COMM_ONE_SHOT, k.flags = TE_K_COMM_RESIDUAL_SHARDED),
		-EINVAL, "two-shot");
	REFUSES(k.x = k.y, -EINVAL, "x is an argument of");
#undef REFUSES
	k = good;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "x_rstd are needed");
	k.x = k.y;
	k.x_rstd = k.gamma;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "no outputs but");
	k.codes = NULL;
	DO(te__geometry(TE_K_COMM_NORM_BWD, &k, &g));
	k.residual_out = k.y;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "needs a sharded residual");
	k.flags = TE_K_COMM_RESIDUAL_SHARDED;
	DO(te__geometry(TE_K_COMM_NORM_BWD, &k, &g));
	k.comm.algorithm = TE_K_COMM_ONE_SHOT;
	fails(te__geometry(TE_K_COMM_NORM_BWD, &k, &g), -EINVAL, "two-shot");
}
