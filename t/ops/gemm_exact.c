/* t/ops/gemm_exact.c - te_gemm(3) on the host backend, by a BLAS and by plain loops. */
#include "config.h"

#include <te/errno.h>

#include "gemm_exact_cases.h"
#include "tt_ctx.h"

/* D of one case computed with TE_GEMM_HOST as given; in a child of its own each */
static void multiply(struct te_ctx *ctx, float (*fill)(void), struct gemm_run *r)
{
	struct gemm_case c = {
		TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, TE_GEMM_A_T, 1, 1, 37, 53, 301,
	};

	gemm_run_make(r, ctx, &c, fill);
	ck_assert_int_eq(gemm_run_queue(r, te_ctx_stream(ctx)), 0);
	gemm_run_read(r);
}

CASE(host, "host gemm");

/* by the definition: FP32, ascending k, each operation rounded */
TEST(host, loops_sum_by_ascending_k)
{
	struct te_ctx *ctx;
	struct gemm_run r;

	setenv("TE_GEMM_HOST", "ref", 1);
	ck_assert_int_eq(tt_ctx_new(&ctx), 0);
	multiply(ctx, tt_rand_normal, &r);
	for (int64_t i = 0; i < r.c.m; i++)
		for (int64_t j = 0; j < r.c.n; j++) {
			volatile float acc = 0, t;

			for (int64_t p = 0; p < r.c.k; p++) {
				t = r.va[i * r.c.k + p] * r.vb[j * r.c.k + p];
				acc = acc + t;
			}
			acc = acc * r.alpha;
			t = r.beta * r.vc[i * r.c.n + j];
			acc = acc + t;
			acc = acc + r.vbias[j];
			ck_assert_msg(acc == r.got[i * r.c.n + j], "%a, not %a",
				      r.got[i * r.c.n + j], acc);
		}
	gemm_run_free(&r);
	te_ctx_unref(ctx);
}

TEST(host, blas_is_refused_where_there_is_none)
{
	struct te_ctx *ctx;
	struct te_tensor *t[3];
	const int64_t shape[2] = { 2, 2 };
	int r;

	setenv("TE_GEMM_HOST", "blas", 1);
	ck_assert_int_eq(tt_ctx_new(&ctx), 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &t[i]), 0);
	r = te_gemm(te_ctx_stream(ctx), t[0], t[1], t[2], NULL);
#ifdef HAVE_CBLAS
	ck_assert_int_eq(r, 0);
#else
	ck_assert_int_eq(r, -TE_EBLAS);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "TE_GEMM_HOST"));
#endif
	ck_assert_int_eq(te_ctx_sync(ctx), 0);
	for (int i = 0; i < 3; i++)
		te_tensor_unref(t[i]);
	te_ctx_unref(ctx);
}

static int build_and_run(void)
{
	const int64_t shape[2] = { 8, 8 };
	struct te_tensor *t[3] = { NULL, NULL, NULL };
	struct te_ctx *ctx = NULL;
	int r, r2;

	r = tt_ctx_new(&ctx);
	for (int i = 0; !r && i < 3; i++)
		r = te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &t[i]);
	if (!r)
		r = te_gemm(te_ctx_stream(ctx), t[0], t[1], t[2], NULL);
	if (ctx) {
		r2 = te_ctx_sync(ctx);
		r = r ? r : r2;
	}
	for (int i = 0; i < 3; i++)
		te_tensor_unref(t[i]);
	te_ctx_unref(ctx);
	return r;
}

TEST(host, every_failure_is_reported)
{
	ck_assert_int_gt(tt_fault_each(build_and_run), 0);
}

TT_MAIN("ops/gemm_exact", TT_ONE_PROCESS)
