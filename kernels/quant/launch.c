/* launch.c - device function and launch geometry of the quant kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <stdbool.h>

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/quant/geometry.h"

/* half of the threads of each multiprocessor, so that concurrent kernels of a graph can start */
#define FILL_MAX_BLOCKS (HOPPER_SMS * 4)
#define AMAX_MAX_BLOCKS (HOPPER_SMS * 8) /* all threads of each multiprocessor */

int te__geo_clear(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_clear", 1, 1);
}

int te__geo_fill(const void *args, struct te__geometry *k)
{
	const struct te_k_fill *a = args;
	const int64_t nbytes = a->n * a->elem;

	/* the first block fills the ends; an empty fill is launched as the root of a graph */
	return te__geo_launch(k, "te_k_fill",
			      clamp(ceil_div(nbytes, FILL_THREADS * FILL_UNROLL * 16), 1,
				    FILL_MAX_BLOCKS),
			      FILL_THREADS);
}

int te__geo_amax(const void *args, struct te__geometry *k)
{
	const struct te_k_amax *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_amax",
			clamp(ceil_div(a->n, AMAX_THREADS * AMAX_UNROLL * TE_V), 0,
			      AMAX_MAX_BLOCKS),
			AMAX_THREADS);
}

int te__geo_scale_current(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_scale_current", 1, 1);
}

int te__geo_scale_delayed(const void *args, struct te__geometry *k)
{
	const struct te_k_scale_delayed *a = args;

	return te__geo_launch(k, "te_k_scale_delayed", a->count, DELAYED_THREADS);
}

/* casts of mx.cu; nvfp4: a thread has 16 rows and 16 bytes of a tile */
static int geo_mx(struct te__geometry *k, const struct te_k_quantize *a, const char *fp32,
		  const char *bf16)
{
	const bool is_fp32 = a->dtype == TE_DTYPE_FP32;

	return te__geo_launch(k, is_fp32 ? fp32 : bf16,
			      ceil_div(a->rows, TE_K_BLOCK) * ceil_div(a->cols, TE_K_BLOCK),
			      a->q.dtype != TE_DTYPE_E2M1 ? BLOCK_THREADS :
			      is_fp32			  ? NVFP4_THREADS * 2 :
							    NVFP4_THREADS);
}

int te__geo_weights_mx(const struct te_k_weights *a, int64_t nblocks, struct te__geometry *k)
{
	static const char *const name[2][2] = {
		{ "te_k_weights_cast_mxfp8", "te_k_weights_cast_mxfp8_split" },
		{ "te_k_weights_cast_nvfp4", "te_k_weights_cast_nvfp4_split" },
	};

	return te__geo_launch(k, name[a->scaling >= TE_K_SCALING_1X16][a->split != 0], nblocks,
			      BLOCK_THREADS);
}

static int is_compute(const struct te_k_quantize *a)
{
	return a->dtype == TE_DTYPE_FP32 || a->dtype == TE_DTYPE_BF16;
}

int te__geo_nvfp4_begin(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_nvfp4_begin", 1, NVFP4_BEGIN_THREADS);
}

int te__geo_nvfp4_amax(const void *args, struct te__geometry *k)
{
	const struct te_k_quantize *a = args;

	if (!is_compute(a))
		return te__geo_no_type("te_k_nvfp4_amax", a->dtype);
	return geo_mx(k, a, "te_k_nvfp4_amax_fp32", "te_k_nvfp4_amax_bf16");
}

int te__geo_quantize(const void *args, struct te__geometry *k)
{
	static const char *const func[3][2][2] = {
		{ { "te_k_quantize_fp32_e4m3", "te_k_quantize_fp32_e5m2" },
		  { "te_k_quantize_bf16_e4m3", "te_k_quantize_bf16_e5m2" } },
		{ { "te_k_quantize_small_m_fp32_e4m3", "te_k_quantize_small_m_fp32_e5m2" },
		  { "te_k_quantize_small_m_bf16_e4m3", "te_k_quantize_small_m_bf16_e5m2" } },
		{ { "te_k_quantize_pad_fp32_e4m3", "te_k_quantize_pad_fp32_e5m2" },
		  { "te_k_quantize_pad_bf16_e4m3", "te_k_quantize_pad_bf16_e5m2" } },
	};
	static const char *const block[2][2][2] = {
		{ { "te_k_quantize_1x128_fp32", "te_k_quantize_1x128_bf16" },
		  { "te_k_quantize_128x128_fp32", "te_k_quantize_128x128_bf16" } },
		{ { "te_k_quantize_pad_1x128_fp32", "te_k_quantize_pad_1x128_bf16" },
		  { "te_k_quantize_pad_128x128_fp32", "te_k_quantize_pad_128x128_bf16" } },
	};
	const struct te_k_quantize *a = args;
	const bool pad = a->pad_rows || a->pad_cols;
	const bool vec = whole_vectors(a->cols, a->x, a->q.row, NULL, NULL);
	const bool small = !pad && small_tiles(a->rows, a->cols, vec);

	if (!is_compute(a))
		return te__geo_no_type("te_k_quantize", a->dtype);
	if (a->q.scaling == TE_K_SCALING_1X32)
		return geo_mx(k, a, "te_k_quantize_1x32_fp32", "te_k_quantize_1x32_bf16");
	if (a->q.scaling == TE_K_SCALING_16X16)
		return geo_mx(k, a, "te_k_quantize_16x16_fp32", "te_k_quantize_16x16_bf16");
	if (a->q.scaling == TE_K_SCALING_1X16)
		return a->stochastic ? geo_mx(k, a, "te_k_quantize_1x16_random_fp32",
					      "te_k_quantize_1x16_random_bf16") :
				       geo_mx(k, a, "te_k_quantize_1x16_fp32",
					      "te_k_quantize_1x16_bf16");
	if (is_block_scaled(&a->q))
		return te__geo_blocks(k,
				      block[pad][a->q.scaling == TE_K_SCALING_128X128]
					   [a->dtype == TE_DTYPE_BF16],
				      a->rows, a->cols);
	/* without codes, any type of codes computes the amax */
	return te__geo_tiles(k, func[pad ? 2 : small][a->dtype == TE_DTYPE_BF16]
				[a->q.dtype == TE_DTYPE_E5M2],
			    a->rows, a->cols, small);
}

int te__geo_dequantize(const void *args, struct te__geometry *k)
{
	static const char *const func[2][3] = {
		{ "te_k_dequantize_e4m3_fp32", "te_k_dequantize_e4m3_bf16",
		  "te_k_dequantize_e4m3_fp16" },
		{ "te_k_dequantize_e5m2_fp32", "te_k_dequantize_e5m2_bf16",
		  "te_k_dequantize_e5m2_fp16" },
	};
	static const char *const mx[3][2] = {
		{ "te_k_dequantize_mx_e4m3_fp32", "te_k_dequantize_mx_e4m3_bf16" },
		{ "te_k_dequantize_mx_e5m2_fp32", "te_k_dequantize_mx_e5m2_bf16" },
		{ "te_k_dequantize_mx_e2m1_fp32", "te_k_dequantize_mx_e2m1_bf16" },
	};
	const struct te_k_dequantize *a = args;

	if (a->scaling >= TE_K_SCALING_1X32 && a->ydtype >= 0 && a->ydtype <= TE_DTYPE_BF16)
		return te__geo_launch(k,
				      mx[a->xdtype == TE_DTYPE_E2M1   ? 2 :
					 a->xdtype == TE_DTYPE_E5M2]
					[a->ydtype == TE_DTYPE_BF16],
				      ceil_div(a->rows * a->cols, TE_FLAT_ELEMS),
				      TE_FLAT_THREADS);
	if (a->scaling >= TE_K_SCALING_1X32 || a->ydtype < 0 || a->ydtype > TE_DTYPE_FP16 ||
	    (a->xdtype != TE_DTYPE_E4M3 && a->xdtype != TE_DTYPE_E5M2))
		return te__geo_no_type("te_k_dequantize", a->ydtype);
	return te__geo_launch(k, func[a->xdtype == TE_DTYPE_E5M2][a->ydtype],
			      ceil_div(a->rows * a->cols, TE_FLAT_ELEMS), TE_FLAT_THREADS);
}

int te__geo_cast(const void *args, struct te__geometry *k)
{
	static const char *const func[3][3] = {
		{ "te_k_cast_fp32_fp32", "te_k_cast_fp32_bf16", "te_k_cast_fp32_fp16" },
		{ "te_k_cast_bf16_fp32", "te_k_cast_bf16_bf16", "te_k_cast_bf16_fp16" },
		{ "te_k_cast_fp16_fp32", "te_k_cast_fp16_bf16", "te_k_cast_fp16_fp16" },
	};
	const struct te_k_cast *a = args;

	if (a->xdtype < 0 || a->xdtype > TE_DTYPE_FP16 || a->ydtype < 0 ||
	    a->ydtype > TE_DTYPE_FP16)
		return te__geo_no_type("te_k_cast", a->xdtype);
	return te__geo_launch(k, func[a->xdtype][a->ydtype], ceil_div(a->n, TE_FLAT_ELEMS),
			      TE_FLAT_THREADS);
}
