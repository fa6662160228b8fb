/* t/backend/cublaslt_mx.c - MXFP8 and NVFP4 by cuBLASLt's block-scaled modes, on 10.x and 12.x. */
#include "config.h"

#include "gemm_lib.h"

static struct te_k_gemm mx(int32_t adtype, int32_t asc, int32_t bdtype, int32_t bsc)
{
	return (struct te_k_gemm){ .a = A,
				   .b = B,
				   .d = D,
				   .sa = SA,
				   .sb = SB,
				   .m = 160,
				   .n = 64,
				   .k = 96,
				   .alpha = 2,
				   .adtype = adtype,
				   .bdtype = bdtype,
				   .cdtype = TE_DTYPE_BF16,
				   .ddtype = TE_DTYPE_BF16,
				   .asc = asc,
				   .bsc = bsc };
}

static struct te_k_gemm mxfp8(void)
{
	return mx(TE_DTYPE_E5M2, TE_K_SCALING_1X32, TE_DTYPE_E4M3, TE_K_SCALING_1X32);
}

static struct te_k_gemm nvfp4(void)
{
	return mx(TE_DTYPE_E2M1, TE_K_SCALING_1X16, TE_DTYPE_E2M1, TE_K_SCALING_16X16);
}

static int launch(const struct te_k_gemm *g)
{
	fake.nevents = fake.ngemms = 0;
	return te__cuda_launch(&stream, &(struct te__launch){ TE_K_GEMM, g, sizeof(*g) });
}

/* is the only event this kernel? */
static int is_only(const char *func)
{
	return fake.nevents == 1 && !fake.event[0].is_gemm && !strcmp(fake.event[0].func, func);
}

static const int blackwell[] = { 100, 103, 120, 121 };

TEST_EACH(gemm, mxfp8_is_one_gemm, TT_LEN(blackwell))
{
	const struct event *e = fake.event;
	struct te_k_gemm g = mxfp8();

	dev.cc = blackwell[_i];
	g.bias = BIAS;
	g.c = C;
	g.beta = 0.5f;
	DO(launch(&g));
	ck_assert_int_eq(fake.nevents, 1);
	ck_assert_int_eq(e->is_gemm, 1);
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_VEC32_UE8M0);
	ck_assert_int_eq(fake.mode[1], TE__LT_SCALE_VEC32_UE8M0);
	ck_assert(e->a == A && e->b == B && e->d == D && e->sa == SA && e->sb == SB);
	ck_assert_int_eq(e->adtype, TE__LT_R_8F_E5M2);
	ck_assert_int_eq(e->bdtype, TE__LT_R_8F_E4M3);
	ck_assert_int_eq(e->ddtype, TE__LT_R_16BF);
	ck_assert_int_eq(e->pointers, 0);
	ck_assert(e->alpha == 2);
	ck_assert_int_eq(e->rows, 160);
}

/* alpha on the device has the words of both copies, whatever TE_GEMM_TF32 says */
TEST_EACH(gemm, nvfp4_has_its_words_in_alpha, TT_LEN(blackwell))
{
	const struct event *fill = &fake.event[0], *alpha = fill + 1, *e = fill + 2;
	struct te_k_gemm g = nvfp4();
	const char *ws;
	float beta;

	dev.cc = blackwell[_i];
	g.c = C;
	g.beta = 0.5f;
	setenv("TE_GEMM_TF32", "on", 1);
	DO(launch(&g));
	ws = stream.workspace;
	ck_assert_int_eq(fake.nevents, 3);
	ck_assert_str_eq(fill->func, "te_k_fill");
	ck_assert_ptr_eq(fill->fill.dst, ws + sizeof(float));
	ck_assert(fill->fill.n == 1 && fill->fill.elem == sizeof(float));
	memcpy(&beta, &fill->fill.value, sizeof(beta));
	ck_assert(beta == 0.5f);
	/* described last */
	ck_assert_int_eq(fake.compute, TE__LT_COMPUTE_32F);
	ck_assert(alpha->is_gemm && alpha->a == SA && alpha->b == SB && alpha->d == ws);
	ck_assert_int_eq(alpha->adtype, TE__LT_R_32F);
	ck_assert(alpha->pointers == 0 && alpha->alpha == 2 && alpha->rows == 1);
	ck_assert_int_eq(e->is_gemm, 1);
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_VEC16_UE4M3);
	ck_assert_int_eq(fake.mode[1], TE__LT_SCALE_VEC16_UE4M3);
	ck_assert(e->sa == SA + TE_K_NV_HEAD / 4 && e->sb == SB + TE_K_NV_HEAD / 4);
	ck_assert_int_eq(e->adtype, TE__LT_R_4F_E2M1);
	ck_assert_int_eq(e->bdtype, TE__LT_R_4F_E2M1);
	ck_assert_int_eq(e->pointers, TE__LT_POINTER_MODE_DEVICE);
	ck_assert_ptr_eq(e->words, ws);
	ck_assert(fake.ran && e->workspace >= ws + 2 * sizeof(float));
	ck_assert_ptr_null(stream.given);
}

/* the bias of a result in FP32 is added by a kernel, as after FP8 */
TEST_EACH(gemm, a_bias_in_fp32_is_added_after_it, 2)
{
	struct te_k_gemm g = _i ? nvfp4() : mxfp8();

	dev.cc = 100;
	g.cdtype = g.ddtype = TE_DTYPE_FP32;
	g.bias = BIAS;
	DO(launch(&g));
	ck_assert_int_eq(fake.nevents, _i ? 4 : 2);
	ck_assert_int_eq(fake.event[_i ? 2 : 0].ddtype, TE__LT_R_32F);
	ck_assert_str_eq(fake.event[_i ? 3 : 1].func, "te_k_bias_fwd_fp32");
}

/* cuBLASLt is asked once for a problem */
TEST_EACH(gemm, without_an_algorithm_mx_is_decoded, 4)
{
	const struct te_k_gemm g = _i % 2 ? nvfp4() : mxfp8();

	dev.cc = 120;
	fake.none = 1 + _i / 2;
	te_error_clear();
	for (int i = 0; i < 2; i++) {
		DO(launch(&g));
		ck_assert(is_only(_i % 2 ? "te_k_gemm_nvfp4" : "te_k_gemm_mxfp8"));
	}
	ck_assert_str_eq(te_error_detail(), "");
	ck_assert_int_eq(fake.nsearches, 1);
	/* other GEMMs say so */
	fake.none = 1;
	ck_assert_int_eq(te__cublaslt_gemm(&stream, &(struct te_k_gemm){
		.a = A, .b = B, .d = D, .m = 16, .n = 16, .k = 16 }), -TE_EBLAS);
	tt_said("cublasLtMatmulAlgoGetHeuristic: status 15");
}

/* shapes that cuBLASLt does not take, and versions that have no such modes */
TEST_EACH(gemm, other_mx_is_decoded, 8)
{
	struct te_k_gemm g = mxfp8();

	dev.cc = 100;
	switch (_i) {
	case 0:
		g.k = 80;
		break;
	case 1:
		g.n = 60;
		g.b_rows = 64;
		break;
	case 2:
		g.m = 150;
		g.a_rows = 160;
		break;
	case 3:
		g.d = D + 2;
		break;
	case 4:
		g.sb = SB + 1;
		break;
	case 5:
		fake.version = 120700;
		break;
	default:
		dev.cc = _i == 6 ? 90 : 89;
	}
	DO(launch(&g));
	ck_assert(is_only("te_k_gemm_mxfp8"));
	ck_assert_int_eq(fake.nsearches, 0);
}

TEST(gemm, each_call_of_nvfp4_may_fail)
{
	const struct te_k_gemm g = nvfp4();

	dev.cc = 100;
	lt_each_call_may_fail(launch, &g, 3, "launch of te_k_fill");
}
