/* t/backend/cublaslt.c - GEMMs of the cuda backend, with failing calls of driver or cuBLASLt. */
#include "config.h"

#include "gemm_lib.h"

static int multiply_from(int32_t in, int32_t asc, int32_t bsc)
{
	static float a[16], b[16], d[16], bias[4];
	const int fp8 = in == TE_DTYPE_E4M3;
	const int32_t out = fp8 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const struct te_k_gemm g = { .a = a,
				     .b = b,
				     .d = d,
				     .bias = bias,
				     .m = 4,
				     .n = 4,
				     .k = 4,
				     .alpha = 1,
				     .sa = fp8 ? a : NULL,
				     .sb = fp8 ? b : NULL,
				     .adtype = in,
				     .bdtype = in,
				     .cdtype = out,
				     .ddtype = out,
				     .asc = asc,
				     .bsc = bsc };

	return te__cublaslt_gemm(&stream, &g);
}

static int multiply(void)
{
	return multiply_from(TE_DTYPE_FP32, TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR);
}

static int multiply_scaled(int32_t asc, int32_t bsc)
{
	return multiply_from(TE_DTYPE_E4M3, asc, bsc);
}

TEST(gemm, the_fastest_is_chosen_and_kept)
{
	int ncalls;

	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ncalls = fake.ncalls;
	fake.ncalls = 0;
	DO(multiply());
	ck_assert_int_eq(fake.ngemms, 2);
	ck_assert_int_lt(fake.ncalls, ncalls / 4);
	close_all();
	/* the next process reads it from the file */
	fake.ms[2] = 0.5f;
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
}

/* if candidates cannot be measured, the heuristic's first is used and not written to the file */
TEST_EACH(gemm, a_choice_without_measurement_is_not_kept, 6)
{
	static const char *const call[] = {
		"cuMemAllocFromPoolAsync",     "cuStreamBeginCapture", "cuStreamEndCapture",
		"cuGraphInstantiateWithFlags", "cuGraphLaunch",	       "cuEventElapsedTime"
	};

	fake.failed = call[_i];
	fake.fail_all = 1;
	DO(multiply());
	ck_assert_int_eq(fake.ran, 0);
	ck_assert_int_ne(access(choices, F_OK), 0);
	close_all();
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_int_eq(access(choices, F_OK), 0);
}

/* the first candidate needs no workspace, the fastest does */
TEST(gemm, workspaces_are_within_the_limit)
{
	char text[40];

	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES, NULL);
	DO(multiply()); /* without memory to time candidates in */
	ck_assert_int_eq(fake.ran, 0);
	ck_assert_uint_eq(dev.mem.used_nbytes, 0);
	close_all();
	te__devmem_init(&dev.mem, 0, NULL);
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	close_all();
	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES - 1, NULL);
	ck_assert_int_eq(multiply(), -ENOMEM);
	snprintf(text, sizeof(text), "no %zu bytes", TE__CUDA_WORKSPACE_NBYTES);
	tt_said(text);
	snprintf(text, sizeof(text), "the context is %zu", TE__CUDA_WORKSPACE_NBYTES - 1);
	tt_said(text);
	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES, NULL);
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_uint_eq(dev.mem.used_nbytes, TE__CUDA_WORKSPACE_NBYTES);
	close_all();
	ck_assert_uint_eq(dev.mem.used_nbytes, 0);
}

TEST_EACH(gemm, tf32_is_for_fp32_alone, 2)
{
	if (_i)
		setenv("TE_GEMM_TF32", "on", 1);
	DO(multiply());
	ck_assert_int_eq(fake.compute, _i ? TE__LT_COMPUTE_32F_FAST_TF32 : TE__LT_COMPUTE_32F);
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.compute, TE__LT_COMPUTE_32F);
}

/* kernels of sm90.cu, which could compute it, have not been measured */
TEST(gemm, the_provider_is_cublaslt)
{
	static uint16_t a[256], d[256];
	const struct te_k_gemm g = { .a = a, .b = a, .d = d, .m = 16, .n = 16, .k = 16, .alpha = 1,
				     .adtype = TE_DTYPE_BF16, .bdtype = TE_DTYPE_BF16,
				     .cdtype = TE_DTYPE_BF16, .ddtype = TE_DTYPE_BF16 };

	DO(te__cuda_launch(&stream, &(struct te__launch){ TE_K_GEMM, &g, sizeof(g) }));
	ck_assert_int_eq(fake.ngemms, 1);
}

/* cuBLASLt's A is the kernel's b */
TEST(gemm, blocks_choose_the_scale_modes)
{
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128));
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_BLK128X128_32F);
	ck_assert_int_eq(fake.mode[1], TE__LT_SCALE_VEC128_32F);
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_VEC128_32F);
}

TEST(gemm, blocks_need_a_new_library)
{
	fake.version = 120805;
	ck_assert_int_eq(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128), -TE_EBLAS);
	tt_said("needs cuBLASLt 12.9 or later, found 12.8");
	ck_assert_int_eq(fake.ngemms, 0);
	close_all();
	fake.version = 120900;
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128));
	lt_name_choices("120900"); /* for teardown */
}

/* the choice for a problem without blocks is not that for one with them, whose key begins alike */
TEST(gemm, blocks_have_choices_of_their_own)
{
	fake.ms[2] = 0.5f;
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.ran, 2);
	close_all();
	fake.ms[2] = 2;
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.ran, 1);
	close_all();
	fake.ms[1] = 4;
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.ran, 1);
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.ran, 2);
}

/* with and without a cache file: a failing call gives an error message or is not needed */
TEST_EACH(gemm, each_call_may_fail, 2)
{
	int nth = 1, ncodes = 0, fired = 1;

	for (; fired; nth++) {
		int r;

		close_all();
		unlink(choices);
		if (_i) {
			DO(multiply());
			close_all();
		}
		te_error_clear();
		fake.ncalls = 0;
		fake.failed = "none";
		fake.fail_at = nth;
		fake.ngemms = 0;
		r = multiply();
		fired = fake.ncalls >= nth;
		fake.fail_at = 0;
		for (int k = STREAM; k <= EXEC; k++)
			ck_assert_msg(!fake.live[k], "%s: %d of kind %d", fake.failed, fake.live[k],
				      k);
		ck_assert_int_eq(fake.live[PREF], 0);
		ck_assert_int_eq(fake.live[MEMORY], stream.workspace != NULL);
		ck_assert(!lt_is_capturing());
		if (r) {
			ck_assert_msg(r == -TE_EBLAS || r == -TE_ECUDA, "%s: %d", fake.failed, r);
			tt_said(fake.failed);
			ncodes++;
		} else {
			ck_assert_int_eq(fake.ngemms, 1);
			ck_assert_str_eq(te_error_detail(), "");
		}
		DO(multiply());
	}
	ck_assert_int_gt(nth, _i ? 15 : 80);
	ck_assert_int_gt(ncodes, 10);
}

/* ---- GEMMs in parts ---- */

/* FP8 operands whose rows are padded to multiples of 16 */
static struct te_k_gemm padded(int64_t m, int64_t n, int64_t k, int32_t out)
{
	return (struct te_k_gemm){ .a = A,
				   .b = B,
				   .d = D,
				   .sa = SA,
				   .sb = SA,
				   .m = m,
				   .n = n,
				   .k = k,
				   .alpha = 2,
				   .adtype = TE_DTYPE_E5M2,
				   .bdtype = TE_DTYPE_E4M3,
				   .cdtype = out,
				   .ddtype = out,
				   .a_rows = (m + 15) / 16 * 16,
				   .b_rows = (n + 15) / 16 * 16 };
}

static int run(const struct te_k_gemm *g)
{
	fake.nevents = fake.ngemms = 0;
	return te__cublaslt_gemm(&stream, g);
}

/* events from i on: a GEMM of rows r to r + n - 1 to the workspace, and D of those that it has */
static void check_rows(int i, const struct te_k_gemm *g, int64_t r, int64_t n, const void *sa)
{
	const struct event *e = &fake.event[i], *f = e + 1;
	const int64_t at = r * g->n * (int64_t)te_dtype_nbytes((enum te_dtype)g->ddtype);
	char *const ws = stream.workspace;

	ck_assert_int_gt(fake.nevents, i + 1);
	ck_assert(e->is_gemm && !f->is_gemm);
	ck_assert_ptr_eq(e->a, A + r * g->k);
	ck_assert_ptr_eq(e->sa, sa);
	ck_assert_ptr_eq(e->d, ws);
	ck_assert_int_eq(e->rows, n);
	if (e->workspace)
		ck_assert_uint_ge((size_t)(e->workspace - ws), (size_t)(n * g->b_rows) * 4);
	ck_assert_ptr_eq(f->f.sums, ws);
	ck_assert_ptr_eq(f->f.d, D + at);
	ck_assert_ptr_eq(f->f.c, g->c ? (const char *)g->c + at : D + at);
	ck_assert_ptr_eq(f->f.bias, g->bias);
	ck_assert_int_eq(f->f.m, g->m - r < n ? g->m - r : n);
	ck_assert_int_eq(f->f.n, g->n);
	ck_assert_int_eq(f->f.ld, g->b_rows);
	ck_assert_int_eq(f->f.dtype, g->ddtype);
	ck_assert(f->f.beta == g->beta);
}

TEST(gemm, narrower_results_are_finished_from_sums)
{
	struct te_k_gemm g = padded(1003, 20, 64, TE_DTYPE_BF16);

	g.bias = BIAS;
	g.c = C;
	g.beta = 0.5f;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 2);
	check_rows(0, &g, 0, 1008, SA);
	/* one row of sums takes 400,064 bytes */
	g = padded(150, 100001, 64, TE_DTYPE_FP32);
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(0, &g, 0, 64, SA);
	check_rows(2, &g, 64, 64, SA);
	check_rows(4, &g, 128, 32, SA);
	g = padded(700, 20001, 64, TE_DTYPE_FP32);
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(2, &g, 256, 256, SA);
	g = padded(16, 1 << 20, 64, TE_DTYPE_FP32);
	g.n--;
	ck_assert_int_eq(run(&g), -TE_ESHAPE);
	tt_said("n is 1048575, k 64: too large on a GPU");
	ck_assert_int_eq(fake.nevents, 0);
	ck_assert_ptr_null(stream.given);
}

/* only b's padding reaches D: cuBLASLt takes any number of rows of a, unless they have blocks */
TEST(gemm, whole_results_need_no_parts)
{
	struct te_k_gemm g = padded(150, 64, 64, TE_DTYPE_BF16);

	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 1);
	ck_assert_int_eq(fake.event[0].rows, 150);
	ck_assert_ptr_eq(fake.event[0].d, D);
	g.asc = g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 2);
	check_rows(0, &g, 0, 160, SA);
}

TEST(gemm, parts_of_blocks_have_scales_of_their_own)
{
	const int64_t k = 8192 * TE_K_BLOCK; /* scales of 64 rows fill their part */
	struct te_k_gemm g = padded(139, 203, k, TE_DTYPE_FP32);
	const struct te_k_gemm_finish *f = &fake.event[3].f;

	g.asc = g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 9);
	for (int i = 0; i < 3; i++)
		check_rows(3 * i + 1, &g, 64 * i, i < 2 ? 64 : 16, fake.event[0].f.d);
	ck_assert_ptr_eq(f->sums, SA + 64);
	ck_assert_int_eq(f->ld, 144);
	ck_assert_int_eq(f->n, 64);
	ck_assert_int_eq(f->m, 8192);
	ck_assert(!f->c && !f->bias && f->beta == 0.0f && f->dtype == TE_DTYPE_FP32);
	ck_assert_uint_ge((size_t)((char *)f->d - (char *)stream.workspace),
			  (size_t)(64 * g.b_rows) * 4);
	/* those of 128 x 128 are rows of the array of scales */
	g = padded(700, 20001, 256, TE_DTYPE_FP32);
	g.asc = TE_K_SCALING_128X128;
	g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(0, &g, 0, 256, SA);
	check_rows(4, &g, 512, 192,
		   SA + te_k_scale_index(TE_K_SCALING_128X128, 704, 256, 512, 0));
}

/* a part has less workspace than the same GEMM alone, and an algorithm of its own */
TEST(gemm, parts_have_choices_of_their_own)
{
	struct te_k_gemm part = padded(64, 60, 64, TE_DTYPE_FP32);
	struct te_k_gemm alone = padded(64, 64, 64, TE_DTYPE_FP32);

	fake.ms[2] = 0.5f;
	DO(run(&part));
	ck_assert_int_eq(fake.ran, 2);
	ck_assert_uint_lt(fake.limit, TE__CUDA_WORKSPACE_NBYTES / 8);
	fake.ms[2] = 2;
	DO(run(&alone));
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_uint_eq(fake.limit, TE__CUDA_WORKSPACE_NBYTES);
	close_all();
	/* read from the file */
	fake.ms[0] = 0;
	DO(run(&part));
	ck_assert_int_eq(fake.ran, 2);
	DO(run(&alone));
	ck_assert_int_eq(fake.ran, 1);
}

TEST(gemm, each_call_of_parts_may_fail)
{
	const struct te_k_gemm g = padded(150, 100001, 64, TE_DTYPE_FP32);

	lt_each_call_may_fail(run, &g, 6, "launch of te_k_gemm_finish");
}

TT_SUITE("backend/cublaslt", TT_NEED_NOTHING)
{
	lt_name_cache();
}
