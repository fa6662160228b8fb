/*
 * cublaslt_api.h - the part of cuBLASLt that libtecore uses, declared here so that building needs
 * no cublasLt.h. t/backend/cuda_abi.c compares it with the header where there is one.
 */
#ifndef TE__CUBLASLT_API_H
#define TE__CUBLASLT_API_H

#include <stddef.h>
#include <stdint.h>

enum {
	TE__LT_COMPUTE_32F = 68,
	TE__LT_COMPUTE_32F_FAST_TF32 = 77,
	TE__LT_R_32F = 0,
	TE__LT_R_16BF = 14,
	TE__LT_R_8F_E4M3 = 28,
	TE__LT_R_8F_E5M2 = 29,
	TE__LT_R_4F_E2M1 = 33,
	TE__LT_OP_N = 0,
	TE__LT_OP_T = 1,
	TE__LT_DESC_POINTER_MODE = 2,
	TE__LT_DESC_TRANSA = 3,
	TE__LT_DESC_TRANSB = 4,
	TE__LT_DESC_EPILOGUE = 7,
	TE__LT_DESC_BIAS_POINTER = 8,
	TE__LT_DESC_A_SCALE_POINTER = 17,
	TE__LT_DESC_B_SCALE_POINTER = 18,
	TE__LT_DESC_FAST_ACCUM = 25,
	TE__LT_DESC_BIAS_DATA_TYPE = 26,
	TE__LT_DESC_A_SCALE_MODE = 31,
	TE__LT_DESC_B_SCALE_MODE = 32,
	TE__LT_POINTER_MODE_DEVICE = 1,
	TE__LT_SCALE_VEC16_UE4M3 = 1,
	TE__LT_SCALE_VEC32_UE8M0 = 2,
	TE__LT_SCALE_VEC128_32F = 4,
	TE__LT_SCALE_BLK128X128_32F = 5,
	TE__LT_EPILOGUE_BIAS = 4,
	TE__LT_PREF_MAX_WORKSPACE_BYTES = 1,
	TE__LT_PREF_REDUCTION_SCHEME_MASK = 3,
	TE__LT_PREF_MIN_ALIGNMENT_A_BYTES = 5,
	TE__LT_PREF_MIN_ALIGNMENT_B_BYTES = 6,
	TE__LT_PREF_MIN_ALIGNMENT_C_BYTES = 7,
	TE__LT_PREF_MIN_ALIGNMENT_D_BYTES = 8,
	TE__LT_REDUCTION_COMPUTE_TYPE = 2,
};

#define TE__LT_NOT_SUPPORTED 15 /* a status */

struct te__lt_algo {
	uint64_t data[8];
};

struct te__lt_heuristic {
	struct te__lt_algo algo;
	size_t workspace_nbytes;
	int state;
	float waves;
	int reserved[4];
};

/* handles are void *, a cublasStatus_t is an int */
#define TE__LT_SYMS(X)                                                                          \
	X(cublasLtCreate, (void **handle))                                                      \
	X(cublasLtDestroy, (void *handle))                                                      \
	X(cublasLtMatmulDescCreate, (void **desc, int compute, int scale_type))                 \
	X(cublasLtMatmulDescDestroy, (void *desc))                                              \
	X(cublasLtMatmulDescSetAttribute, (void *desc, int attr, const void *value, size_t n))  \
	X(cublasLtMatrixLayoutCreate,                                                           \
	  (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                  \
	X(cublasLtMatrixLayoutDestroy, (void *layout))                                          \
	X(cublasLtMatmulPreferenceCreate, (void **pref))                                        \
	X(cublasLtMatmulPreferenceDestroy, (void *pref))                                        \
	X(cublasLtMatmulPreferenceSetAttribute, (void *pref, int attr, const void *v, size_t n)) \
	X(cublasLtMatmulAlgoGetHeuristic,                                                       \
	  (void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int want,  \
	   struct te__lt_heuristic *results, int *ret_n))                                       \
	X(cublasLtMatmulAlgoCheck,                                                              \
	  (void *handle, void *desc, void *a, void *b, void *c, void *d,                        \
	   const struct te__lt_algo *algo, struct te__lt_heuristic *result))                    \
	X(cublasLtMatmul,                                                                       \
	  (void *handle, void *desc, const void *alpha, const void *a, void *alayout,           \
	   const void *b, void *blayout, const void *beta, const void *c, void *clayout,        \
	   void *d, void *dlayout, const struct te__lt_algo *algo, void *workspace,             \
	   size_t workspace_nbytes, void *stream))

struct te__lt_api {
#define X(name, args) int(*name) args;
	TE__LT_SYMS(X)
#undef X
	size_t (*cublasLtGetVersion)(void);
};

/*
 * For tests, before the first GEMM on a device: functions to use instead of cuBLASLt, which is not
 * found if there is no cublasLtGetVersion; NULL: none.
 */
void te__cublaslt_fake(const struct te__lt_api *api);

#endif
