/*
 * t/backend/sm90.c - TE_GEMM_PROVIDER=sm90 and TE_ATTENTION=sm90 on the cuda backend: which GEMMs
 * and attention are launched, with which tensor maps and arguments, and failing calls of the
 * driver. This program fakes it: no GPU is needed.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "kernels/attn/sm90.h"
#include "kernels/gemm/geometry.h"
#include "kernels/gemm/sm90.h"
#include "libtecore/backend/cuda/cublaslt_api.h"
#include "libtecore/backend/cuda/cuda.h"
#include "tt_ctx.h"

#define SMS 132

static struct {
	int ncalls, fail_at; /* the call that fails, from 1; 0: none */
	const char *failed;
	int nmaps, nlaunches, nclears, nallocs;
	struct te_sm90_map map[4];
	int type[4];
	size_t nclear; /* words */
	uint64_t clear;
	struct te__cu_launch_config config;
	const char *func;
	union {
		struct te_gemm_sm90 args;
		struct te_attn_sm90 attn;
		struct te_attn_bwd_sm90 attn_bwd;
	};
} fake;

static int fails_now(const char *fn)
{
	if (++fake.ncalls != fake.fail_at)
		return 0;
	fake.failed = fn + strlen("fake_");
	return FAKE_UNKNOWN;
}
#define FAIL() fails_now(__func__)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuCtxPushCurrent(void *ctx)
{
	return FAIL();
}

int fake_cuStreamSynchronize(void *stream)
{
	return FAIL();
}

int fake_cuDeviceGetAttribute(int *ret_value, int attribute, int dev)
{
	ck_assert_int_eq(attribute, TE__CU_ATTR_MULTIPROCESSOR_COUNT);
	*ret_value = SMS;
	return FAIL();
}

int fake_cuStreamIsCapturing(void *stream, int *ret_status)
{
	*ret_status = TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

int fake_cuStreamGetCaptureInfo(void *stream, int *ret_status, uint64_t *ret_id,
				void **ret_graph, void *const **ret_deps,
				const struct te__cu_edge_data **ret_data, size_t *ret_ndeps)
{
	*ret_status = TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

int fake_cuMemAllocFromPoolAsync(uint64_t *ret, size_t n, void *pool, void *stream)
{
	const int r = FAIL();

	if (!r) {
		*ret = (uint64_t)1 << 40;
		fake.nallocs++;
	}
	return r;
}

int fake_cuMemFreeAsync(uint64_t ptr, void *stream)
{
	fake.nallocs--;
	return 0;
}

int fake_cuMemsetD32Async(uint64_t dst, unsigned value, size_t n, void *stream)
{
	ck_assert_uint_eq(value, 0);
	ck_assert_int_eq(fake.nlaunches, 0); /* before the kernel */
	fake.clear = dst;
	fake.nclear = n;
	fake.nclears++;
	return FAIL();
}

/* as the driver checks them (CUDA driver API, cuTensorMapEncodeTiled) */
int fake_cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *ptr,
				const uint64_t *extents, const uint64_t *strides,
				const unsigned *box, const unsigned *steps, int interleave,
				int swizzle, int l2_promotion, int fill)
{
	struct te_sm90_map *m = &fake.map[fake.nmaps];

	ck_assert_uint_eq((uintptr_t)map % 64, 0);
	ck_assert_uint_eq((uintptr_t)ptr % 16, 0);
	ck_assert(rank == 2 || rank == 3);
	ck_assert_uint_eq(strides[0] % 16, 0);
	ck_assert_uint_le(box[0], 256);
	ck_assert_uint_le(box[1], 256);
	ck_assert(steps[0] == 1 && steps[1] == 1);
	ck_assert(interleave == 0 && fill == 0);
	ck_assert_int_eq(swizzle, TE__CU_TENSOR_MAP_SWIZZLE_128B);
	m->p = ptr;
	m->nx = (int64_t)extents[0];
	m->ny = (int64_t)extents[1];
	m->nz = 0;
	if (rank == 3) {
		m->nz = (int64_t)extents[2];
		ck_assert_uint_eq(strides[1], strides[0] * extents[1]);
		ck_assert(box[2] == 1 && steps[2] == 1);
	}
	m->elem = (int32_t)(strides[0] / extents[0]);
	m->box_x = (int32_t)box[0];
	m->box_y = (int32_t)box[1];
	ck_assert_int_eq(m->box_x * m->elem, 128); /* the swizzle's */
	fake.type[fake.nmaps] = type;
	memset(map, 1 + fake.nmaps++, sizeof(struct te_tensor_map));
	return FAIL();
}

int fake_cuLaunchKernelEx(const struct te__cu_launch_config *config, void *func, void **args,
			  void **extra)
{
	fake.config = *config;
	fake.func = func;
	memcpy(&fake.args, args[0],
	       !strstr(func, "sm90")  ? 0 :
	       strstr(func, "gemm")   ? sizeof(fake.args) :
	       strstr(func, "attn_b") ? sizeof(fake.attn_bwd) :
					sizeof(fake.attn));
	fake.nlaunches++;
	return FAIL();
}

static size_t fake_cublasLtGetVersion(void)
{
	return 130000;
}

static int fake_cublasLtCreate(void **ret)
{
	return 1;
}
#pragma GCC diagnostic pop

static const char *const names[] = {
	"te_k_attn_bwd_dq_bf16_d64",
	"te_k_attn_bwd_dq_bf16_d96",
	"te_k_attn_bwd_sm90_d128",
	"te_k_attn_bwd_sm90_d128_documents",
	"te_k_attn_bwd_sm90_d128_window",
	"te_k_attn_bwd_sm90_d64",
	"te_k_attn_bwd_sm90_d64_documents",
	"te_k_attn_bwd_sm90_d64_window",
	"te_k_attn_fwd_bf16_d64",
	"te_k_attn_fwd_bf16_d64_drop",
	"te_k_attn_fwd_bf16_d64_strip",
	"te_k_attn_fwd_bf16_d96",
	"te_k_attn_fwd_sm90_d128",
	"te_k_attn_fwd_sm90_d128_documents",
	"te_k_attn_fwd_sm90_d128_window",
	"te_k_attn_fwd_sm90_d64",
	"te_k_attn_fwd_sm90_d64_documents",
	"te_k_attn_fwd_sm90_d64_window",
	"te_k_gemm_any",
	"te_k_gemm_sm90_bf16",
	"te_k_gemm_sm90_bf16_bt",
	"te_k_gemm_sm90_bf16_tt",
	"te_k_gemm_sm90_e4m3_block",
	"te_k_gemm_sm90_e4m3_e4m3",
	"te_k_gemm_sm90_e5m2_e4m3",
};
static struct te__cuda_func funcs[TT_LEN(names)];
static struct te__cuda_dev dev;
static struct te__cuda_stream stream;
static int64_t live;

static void setup(void)
{
	const struct te__cuda_driver d = fake_driver();
	static struct te__lt_api lt;

	lt.cublasLtGetVersion = fake_cublasLtGetVersion;
	lt.cublasLtCreate = fake_cublasLtCreate;
	memset(&fake, 0, sizeof(fake));
	te__cuda_driver_fake(&d);
	te__cublaslt_fake(&lt);
	for (size_t i = 0; i < TT_LEN(funcs); i++)
		funcs[i] = (struct te__cuda_func){ .name = names[i],
						   .func = (void *)(uintptr_t)names[i] };
	memset(&dev, 0, sizeof(dev));
	dev.ctx = dev.stream = &dev;
	dev.total_nbytes = (size_t)1 << 30;
	dev.cc = 90;
	dev.target = te__target_of(90);
	dev.funcs = funcs;
	dev.nfuncs = TT_LEN(funcs);
	te__devmem_init(&dev.mem, 0, NULL);
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	stream = (struct te__cuda_stream){ .dev = &dev, .stream = &stream };
	live = te__alloc_live();
}

static void workspace_free(void)
{
	if (stream.workspace)
		te__cuda_workspace_free(&dev, stream.workspace, stream.stream);
	stream.workspace = NULL;
}

static void teardown(void)
{
	workspace_free();
	ck_assert_int_eq(fake.nallocs, 0);
	ck_assert_int_eq(te__alloc_live(), live);
	pthread_mutex_destroy(&dev.lt_lock);
	pthread_mutex_destroy(&dev.lock);
}

#define A ((char *)(uintptr_t)0x10000)
#define B ((char *)(uintptr_t)0x20000)
#define C ((char *)(uintptr_t)0x30000)
#define D ((char *)(uintptr_t)0x40000)
#define BIAS ((char *)(uintptr_t)0x50000)

static struct te_k_gemm gemm_of(int32_t a, int32_t b, int32_t d, int64_t m, int64_t n, int64_t k)
{
	return (struct te_k_gemm){ .a = A,
				   .b = B,
				   .d = D,
				   .m = m,
				   .n = n,
				   .k = k,
				   .alpha = 1,
				   .adtype = a,
				   .bdtype = b,
				   .cdtype = d,
				   .ddtype = d };
}

static int launch(const struct te_k_gemm *g)
{
	fake.nmaps = fake.nlaunches = fake.nclears = 0;
	return te__cuda_launch(&stream, &(struct te__launch){ TE_K_GEMM, g, sizeof(*g) });
}

static void check_map(int i, int type, const void *p, int64_t nx, int64_t ny, int box_y)
{
	ck_assert_int_eq(fake.type[i], type);
	ck_assert_ptr_eq(fake.map[i].p, p);
	ck_assert_int_eq(fake.map[i].nx, nx);
	ck_assert_int_eq(fake.map[i].ny, ny);
	ck_assert_int_eq(fake.map[i].box_y, box_y);
}

CASE(gemm, "host fast", .setup = setup, .teardown = teardown);

TEST(gemm, whole_tiles_are_one_launch)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 8192, 2112, 4096);

	g.c = C;
	g.beta = 2;
	g.bias = BIAS;
	DO(launch(&g));
	ck_assert_int_eq(fake.nlaunches, 1);
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_bf16");
	ck_assert_int_eq(fake.nmaps, 4);
	check_map(0, TE__CU_TENSOR_MAP_BFLOAT16, A, 4096, 8192, 128);
	check_map(1, TE__CU_TENSOR_MAP_BFLOAT16, B, 4096, 2112, 128);
	check_map(2, TE__CU_TENSOR_MAP_BFLOAT16, C, 2112, 8192, 64);
	check_map(3, TE__CU_TENSOR_MAP_BFLOAT16, D, 2112, 8192, 64);
	ck_assert_uint_eq(fake.config.grid[0], SMS);
	ck_assert_uint_eq(fake.config.block[0], SM90_THREADS);
	ck_assert_uint_eq(fake.config.smem, SM90_SMEM(TE_SM90_BF16));
	ck_assert_uint_le(fake.config.smem, 232448);
	ck_assert_ptr_eq(fake.args.bias, BIAS);
	ck_assert(fake.args.beta == 2.0f && fake.args.alpha == 1.0f);
	ck_assert_int_eq(fake.args.d_fp32, 0);
	ck_assert_int_eq(fake.args.nrows, 32);
	ck_assert_int_eq(fake.args.ncols, 9);
	ck_assert_uint_eq(fake.args.a.word[0], 0x0101010101010101);
	ck_assert_uint_eq(fake.args.c.word[15], 0x0303030303030303);
	ck_assert_uint_eq(fake.args.d.word[15], 0x0404040404040404);
}

TEST(gemm, transposed_operands_have_boxes_of_64)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 512, 768, 1000);

	g.b_t = 1;
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_bf16_bt");
	check_map(0, TE__CU_TENSOR_MAP_BFLOAT16, A, 1000, 512, 128);
	check_map(1, TE__CU_TENSOR_MAP_BFLOAT16, B, 768, 1000, 64);
	check_map(3, TE__CU_TENSOR_MAP_FLOAT32, D, 768, 512, 64);
	g.a_t = 1;
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_bf16_tt");
	check_map(0, TE__CU_TENSOR_MAP_BFLOAT16, A, 512, 1000, 64);
}

TEST(gemm, gradients_use_the_promoted_kernel)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16, 8192, 1920, 512);

	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_e5m2_e4m3");
	check_map(0, TE__CU_TENSOR_MAP_UINT8, A, 512, 8192, 128);
	check_map(1, TE__CU_TENSOR_MAP_UINT8, B, 512, 1920, 128);
	ck_assert_int_eq(fake.args.ncols, 8);
	ck_assert_uint_eq(fake.config.smem, SM90_SMEM(TE_SM90_E5M2_E4M3));
	g.adtype = TE_DTYPE_E4M3;
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_e4m3_e4m3");
}

TEST(gemm, block_scaled_operands_have_a_kernel)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, 1001, 1920, 640);

	g.sa = (const float *)BIAS;
	g.sb = (const float *)C;
	g.asc = TE_K_SCALING_1X128;
	g.bsc = TE_K_SCALING_128X128;
	g.a_rows = 1008;
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_sm90_e4m3_block");
	ck_assert_uint_eq(fake.config.smem, SM90_SMEM(TE_SM90_E4M3_BLOCK));
	ck_assert_uint_le(fake.config.smem, 232448);
	check_map(0, TE__CU_TENSOR_MAP_UINT8, A, 640, 1001, 128);
	ck_assert_int_eq(fake.args.sa_ld, 1008);
	ck_assert_int_eq(fake.args.sb_ld, 8); /* five blocks of k, padded */
	ck_assert(!fake.args.sa_square && fake.args.sb_square);
	g.asc = TE_K_SCALING_128X128;
	g.bsc = TE_K_SCALING_1X128;
	g.b_rows = 1920;
	DO(launch(&g));
	ck_assert_int_eq(fake.args.sa_ld, 8);
	ck_assert_int_eq(fake.args.sb_ld, 1920);
	ck_assert(fake.args.sa_square && !fake.args.sb_square);
}

/* 36 tiles for 66 clusters: 96 units store sums */
TEST(gemm, cut_tiles_have_cleared_counters_and_sums)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 3072, 768, 32768);
	const uint64_t sums = 96 * 256 * 256 * sizeof(float);

	g.a_t = g.b_t = 1;
	DO(launch(&g));
	ck_assert_int_eq(fake.args.schedule.nslots, 96);
	ck_assert_int_eq(fake.nclears, 1);
	ck_assert_uint_eq(fake.clear, (uintptr_t)fake.args.ready);
	/* one for each consumer of each of at most 65 tiles */
	ck_assert_uint_ge(fake.nclear, 4 * 36);
	ck_assert_ptr_eq(fake.args.ready, stream.workspace);
	ck_assert_uint_ge((uintptr_t)fake.args.sums, (uintptr_t)fake.args.ready + 4 * fake.nclear);
	ck_assert_uint_eq((uintptr_t)fake.args.sums % 256, 0);
	ck_assert_uint_le((uintptr_t)fake.args.sums + sums,
			  (uintptr_t)stream.workspace + TE__CUDA_WORKSPACE_NBYTES);
}

TEST(gemm, small_gemms_have_kernels_of_their_own)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 16, 64, 64);

	ck_assert_int_eq(launch(&g), -TE_EKERNEL); /* not among these functions */
	tt_said("te_k_gemm_small_m_bf16_bf16");
	ck_assert_int_eq(fake.nlaunches, 0);
}

/* what cuBLASLt then computes, which fails here */
static void check_declined(const struct te_k_gemm *g, const char *why)
{
	struct te_sm90_plan p;

	ck_assert_str_eq(te__sm90_plan(g, SMS / 2, TE__CUDA_WORKSPACE_NBYTES, &p), why);
	ck_assert_int_eq(launch(g), -TE_EBLAS);
	tt_said("cublasLtCreate");
	ck_assert_int_eq(fake.nlaunches, 0);
}

TEST(gemm, others_are_left_to_cublaslt)
{
	const struct te_k_gemm ok =
		gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 1000, 1000, 1000);
	struct te_k_gemm g = ok;
	struct te_sm90_plan p;

	g.adtype = g.bdtype = g.cdtype = g.ddtype = TE_DTYPE_FP32;
	check_declined(&g, "its operands are FP32");
	g = gemm_of(TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16, 1024, 1024, 1024);
	g.asc = g.bsc = TE_K_SCALING_1X128;
	check_declined(&g, "no kernel has these types with block scaling");
	g.adtype = TE_DTYPE_E4M3;
	g.sb = (const float *)(C + 4);
	check_declined(&g, "scales are not aligned to 16 bytes");
	g.sb = (const float *)C;
	g.asc = g.bsc = TE_K_SCALING_1X32;
	ck_assert_int_eq(launch(&g), -TE_EKERNEL); /* mx.cu's, which cuBLASLt does not replace */
	tt_said("te_k_gemm_mxfp8");
	g.asc = g.bsc = TE_K_SCALING_1X128;
	g.m = (int64_t)1 << 29;
	check_declined(&g, "an operand has more than 2^30 scales");
	g.m = 1024;
	g.asc = g.bsc = TE_K_SCALING_TENSOR;
	g.bdtype = TE_DTYPE_E5M2;
	check_declined(&g, "no kernel has these types and layouts");
	g = ok;
	g.a_t = 1;
	check_declined(&g, "no kernel has these types and layouts");
	g = ok;
	g.m = ((int64_t)1 << 30) + 1;
	check_declined(&g, "an extent is above 2^30");
	g = ok;
	g.k = 1001;
	check_declined(&g, "rows of a matrix are not a multiple of 16 bytes");
	g = ok;
	g.n = 1004;
	check_declined(&g, "rows of a matrix are not a multiple of 16 bytes");
	g.ddtype = g.cdtype = TE_DTYPE_FP32;
	DO(launch(&g)); /* which has rows of 4016 bytes */
	g = ok;
	g.bias = BIAS + 2;
	check_declined(&g, "a matrix or the bias is not aligned to 16 bytes");
	g = ok;
	g.d = D + 8;
	check_declined(&g, "a matrix or the bias is not aligned to 16 bytes");
	ck_assert_str_eq(te__sm90_plan(&ok, 0, 0, &p), "the GPU has one multiprocessor");
	DO(launch(&ok));
}

/* it leaves FP32 and scales of blocks to cuBLASLt */
TEST(gemm, mma_computes_what_cublaslt_would)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_FP32, 1000, 130, 1008);

	ck_assert_int_eq(setenv("TE_GEMM_PROVIDER", "mma", 1), 0);
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_any");
	ck_assert_uint_eq(fake.config.grid[0], 8 * 2);
	ck_assert_uint_eq(fake.config.smem, TWO_STEPS_SMEM);
	g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 1001, 1003, 1007);
	g.a_t = 1;
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_any");
	g.adtype = g.bdtype = TE_DTYPE_FP32;
	ck_assert_int_eq(launch(&g), -TE_EBLAS);
	g = gemm_of(TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, 1024, 1024, 1024);
	g.asc = g.bsc = TE_K_SCALING_1X128;
	ck_assert_int_eq(launch(&g), -TE_EBLAS);
	tt_said("cublasLtCreate");
}

TEST(gemm, no_cublaslt_is_needed_for_bf16)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 1001, 1003, 1007);

	te__cublaslt_fake(&(struct te__lt_api){ 0 }); /* is not found */
	DO(launch(&g));
	ck_assert_str_eq(fake.func, "te_k_gemm_any");
	g.adtype = g.bdtype = TE_DTYPE_FP32;
	ck_assert_int_eq(launch(&g), -TE_EBLAS);
	tt_said("this GEMM needs cuBLASLt, and libcublasLt.so is not found");
}

static struct te_k_attn_fwd attn_of(int64_t batch, int64_t seqlen, int nheads, int nkv, int dim)
{
	return (struct te_k_attn_fwd){
		.qkv = A,
		.out = B,
		.lse = (float *)C,
		.batch = batch,
		.seqlen = seqlen,
		.nheads = nheads,
		.nkv = nkv,
		.head_dim = dim,
		.scale = 0.5f,
		.dtype = TE_DTYPE_BF16,
	};
}

static int launch_attn(const struct te_k_attn_fwd *a)
{
	fake.nmaps = fake.nlaunches = 0;
	return te__cuda_launch(&stream, &(struct te__launch){ TE_K_ATTN_FWD, a, sizeof(*a) });
}

CASE(attention, "host fast", .setup = setup, .teardown = teardown);

TEST(attention, attention_is_one_persistent_launch)
{
	struct te_k_attn_fwd a = attn_of(8, 1000, 12, 4, 64);

	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d64");
	ck_assert_int_eq(fake.nlaunches, 1);
	ck_assert_int_eq(fake.nmaps, 2);
	check_map(0, TE__CU_TENSOR_MAP_BFLOAT16, A, 20 * 64, 1000, 64);
	check_map(1, TE__CU_TENSOR_MAP_BFLOAT16, B, 12 * 64, 1000, 64);
	ck_assert(fake.map[0].nz == 8 && fake.map[1].nz == 8);
	ck_assert_uint_eq(fake.config.grid[0], SMS);
	ck_assert_uint_eq(fake.config.block[0], 512);
	ck_assert_uint_eq(fake.config.smem, ATTN_SM90_SMEM(64));
	ck_assert_uint_le(fake.config.smem, 232448);
	ck_assert_ptr_eq(fake.attn.lse, a.lse);
	ck_assert(fake.attn.scale == 0.5f);
	ck_assert_int_eq(fake.attn.nrows, 1024);
	ck_assert_int_eq(fake.attn.nblocks, 6);
	ck_assert_int_eq(fake.attn.nmatrices, 96);
	ck_assert_uint_eq(fake.attn.qkv.word[0], 0x0101010101010101);
	ck_assert_uint_eq(fake.attn.out.word[15], 0x0202020202020202);
	ck_assert(fake.attn.has_out && !fake.attn.q.row);
	a.q.row = D;
	a.out = NULL; /* which has no map then */
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d64");
	ck_assert_int_eq(fake.nmaps, 1);
	ck_assert(!fake.attn.has_out && fake.attn.q.row == D);
	a = attn_of(1, 65, 2, 1, 128);
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d128");
	ck_assert_uint_eq(fake.config.grid[0], 2);
	ck_assert_uint_eq(fake.config.block[0], 384);
	ck_assert_uint_le(fake.config.smem, 232448);
	a.seqlen = 0;
	DO(launch_attn(&a));
	ck_assert_int_eq(fake.nlaunches, 0);
	a.seqlen = 65;
	a.nheads = 3;
	a.nkv = 2;
	ck_assert_int_eq(launch_attn(&a), -EINVAL);
}

/* documents have kernels of their own, with a window, too; a window has others */
TEST(attention, documents_and_windows_have_their_kernels)
{
	struct te_k_attn_fwd a = attn_of(8, 1000, 12, 4, 64);

	a.window = 100;
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d64_window");
	a.first = (const int32_t *)A;
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d64_documents");
	ck_assert_ptr_eq(fake.attn.first, A);
	ck_assert_int_eq(fake.attn.window, 100);
	a = attn_of(1, 300, 2, 1, 128);
	a.first = (const int32_t *)A;
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d128_documents");
	ck_assert_int_eq(fake.attn.window, 0);
}

/* parts of the heads whose keys and values fit the cache, and whose items fill rounds of blocks */
TEST(attention, long_attention_reads_some_heads_at_a_time)
{
	struct te_k_attn_fwd a = attn_of(32, 1024, 12, 12, 64);

	DO(launch_attn(&a));
	ck_assert_int_eq(fake.attn.at_once, SMS / 4);
	a = attn_of(2, 8192, 16, 16, 128);
	DO(launch_attn(&a));
	ck_assert_int_eq(fake.attn.at_once, SMS / 12);
	a = attn_of(4, 1024, 12, 12, 64);
	DO(launch_attn(&a));
	ck_assert_int_eq(fake.attn.at_once, 48);
	a = attn_of(64, 65536, 32, 32, 128); /* too many items to try */
	DO(launch_attn(&a));
	ck_assert_int_eq(fake.attn.at_once, SMS / 16);
}

/* by the kernel of this name */
static void check_mma(const struct te_k_attn_fwd *a, const char *name, const char *why)
{
	struct te_attn_sm90_plan p;

	ck_assert_str_eq(te__attn_sm90_plan(a, SMS, &p), why);
	DO(launch_attn(a));
	ck_assert_str_eq(fake.func, name);
	ck_assert_int_eq(fake.nmaps, 0);
}

TEST(attention, other_attention_is_left_to_mma)
{
	static const char other[] = "it is not causal attention of all keys, a window or documents";
	struct te_k_attn_fwd ok = attn_of(64, 1000, 12, 4, 64), a = ok;
	struct te_attn_sm90_plan p;

	a.head_dim = 96;
	check_mma(&a, "te_k_attn_fwd_bf16_d96", "head_dim is neither 64 nor 128");
	a = ok;
	a.threshold = 1;
	check_mma(&a, "te_k_attn_fwd_bf16_d64_drop", "it has dropout");
	a = ok;
	a.dtype = TE_DTYPE_FP32;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p), "it is not BF16");
	a = ok;
	a.out = B + 2;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p),
			 "qkv or out is not aligned to 16 bytes");
	a = ok;
	a.window = 64;
	a.softcap = 1.0f;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p), other);
	a = ok;
	a.full = 1;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p), other);
	a = ok;
	a.batch = 0;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p), "it is empty");
	a = ok;
	a.seqlen = (1 << 28) + 1;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p), "an extent is above 2^28");
	a = ok;
	a.seqlen = 1 << 28;
	ck_assert_str_eq(te__attn_sm90_plan(&a, SMS, &p),
			 "it has more than 2^28 blocks of rows");
}

/* the maps of another address are others: a launch is not patched, but queued anew */
TEST(gemm, addresses_are_in_the_maps)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 512, 512, 512);

	DO(launch(&g));
	ck_assert_ptr_eq(fake.map[2].p, D);
	g.d = C;
	DO(launch(&g));
	ck_assert_ptr_eq(fake.map[2].p, C);
}

TEST(gemm, each_call_may_fail)
{
	struct te_k_gemm g = gemm_of(TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 3072, 768, 32768);
	int nth = 1;

	g.a_t = g.b_t = 1;
	for (;; nth++) {
		int r;

		workspace_free();
		te_error_clear();
		fake.ncalls = 0;
		fake.fail_at = nth;
		r = launch(&g);
		if (fake.ncalls < nth)
			break;
		if (!r)
			continue; /* not needed */
		ck_assert_int_eq(r, -TE_ECUDA);
		ck_assert_int_eq(fake.nlaunches, !strcmp(fake.failed, "cuLaunchKernelEx"));
		if (!fake.nlaunches)
			tt_said(fake.failed);
	}
	fake.fail_at = 0;
	ck_assert_int_gt(nth, 8);
	DO(launch(&g));
}

static struct te_k_attn_bwd attn_bwd_of(int64_t batch, int64_t seqlen, int nheads, int nkv, int dim)
{
	return (struct te_k_attn_bwd){
		.qkv = A,
		.out = B,
		.dout = C,
		.dqkv = D,
		.lse = (float *)BIAS,
		.delta = (float *)BIAS + 4,
		.batch = batch,
		.seqlen = seqlen,
		.nheads = nheads,
		.nkv = nkv,
		.head_dim = dim,
		.scale = 0.5f,
		.dtype = TE_DTYPE_BF16,
		.sums = (uint32_t *)BIAS + 64,
	};
}

static int launch_bwd(enum te_k_id id, const struct te_k_attn_bwd *a)
{
	fake.nmaps = fake.nlaunches = 0;
	return te__cuda_launch(&stream, &(struct te__launch){ id, a, sizeof(*a) });
}

TEST(attention, backward_attention_is_one_persistent_launch)
{
	struct te_k_attn_bwd a = attn_bwd_of(8, 1000, 12, 4, 64);
	struct te_attn_bwd_sm90_plan p;

	DO(launch_bwd(TE_K_ATTN_BWD_DKV, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_sm90_d64");
	ck_assert_int_eq(fake.nmaps, 3);
	check_map(0, TE__CU_TENSOR_MAP_BFLOAT16, A, 20 * 64, 1000, 64);
	check_map(1, TE__CU_TENSOR_MAP_BFLOAT16, C, 12 * 64, 1000, 64);
	check_map(2, TE__CU_TENSOR_MAP_BFLOAT16, D, 20 * 64, 1000, 64);
	ck_assert_int_eq(fake.map[2].nz, 8);
	ck_assert_uint_eq(fake.config.grid[0], SMS);
	ck_assert_uint_eq(fake.config.block[0], ATTN_SM90_BWD_THREADS(64));
	ck_assert_uint_eq(fake.config.smem, ATTN_SM90_BWD_SMEM(64));
	ck_assert_int_eq(fake.attn_bwd.nmatrices, 32);
	ck_assert_int_eq(fake.attn_bwd.nblocks, 8);
	ck_assert_ptr_eq(fake.attn_bwd.delta, a.delta);
	/* 4 words, counters of 8 x 12 x 16 tiles of dq, 8 x 16 first keys: 1668 of 1792 */
	ck_assert_ptr_eq(fake.attn_bwd.next, a.sums);
	ck_assert_ptr_eq(fake.attn_bwd.ready, a.sums + 4);
	ck_assert_ptr_eq(fake.attn_bwd.sums, a.sums + 1792);
	ck_assert_int_eq(fake.attn_bwd.at_once, 32);
	DO(launch_bwd(TE_K_ATTN_BWD_DQ, &a));
	ck_assert_int_eq(fake.nlaunches, 0);
	a.head_dim = 128;
	DO(launch_bwd(TE_K_ATTN_BWD_DQ, &a));
	ck_assert_int_eq(fake.nlaunches, 0);
	DO(launch_bwd(TE_K_ATTN_BWD_DKV, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_sm90_d128");
	ck_assert_uint_eq(fake.config.block[0], ATTN_SM90_BWD_THREADS(128));
	ck_assert_uint_eq(fake.config.smem, ATTN_SM90_BWD_SMEM(128));
	ck_assert_uint_le(fake.config.smem, 232448);
	a.first = (const int32_t *)A;
	DO(launch_bwd(TE_K_ATTN_BWD_DKV, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_sm90_d128_documents");
	a.head_dim = 64;
	DO(launch_bwd(TE_K_ATTN_BWD_DKV, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_sm90_d64_documents");
	ck_assert_ptr_eq(fake.attn_bwd.first, A);
	ck_assert_ptr_eq(fake.attn_bwd.starts, a.sums + 1540);
	a.first = NULL;
	a.head_dim = 96;
	DO(launch_bwd(TE_K_ATTN_BWD_DQ, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_dq_bf16_d96");
	a.head_dim = 64;
	a.sums = NULL;
	DO(launch_bwd(TE_K_ATTN_BWD_DQ, &a));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_dq_bf16_d64");
	ck_assert_str_eq(te__attn_bwd_sm90_plan(&a, SMS, &p), "it has no memory for sums");
	a.sums = (uint32_t *)BIAS + 64;
	a.dqkv = D + 2;
	ck_assert_str_eq(te__attn_bwd_sm90_plan(&a, SMS, &p),
			 "qkv or a gradient is not aligned to 16 bytes");
	a.dqkv = D;
	a.batch = 1 << 20;
	a.seqlen = 1 << 12;
	ck_assert_str_eq(te__attn_bwd_sm90_plan(&a, SMS, &p),
			 "it has more than 2^28 blocks of rows, or 2^31 rows");
}

TEST(attention, windows_have_kernels_of_their_own)
{
	static const char *const fwd[] = { "te_k_attn_fwd_sm90_d64", "te_k_attn_fwd_sm90_d128" };
	static const char *const bwd[] = { "te_k_attn_bwd_sm90_d64", "te_k_attn_bwd_sm90_d128" };
	/* a window of all keys is none */
	static const struct {
		int window, planned;
	} cases[] = { { 1, 1 }, { 999, 999 }, { 1000, 0 }, { INT32_MAX, 0 } };

	for (int i = 0; i < 4; i++)
		for (int wide = 0; wide < 2; wide++) {
			const char *suffix = cases[i].planned ? "_window" : "";
			struct te_k_attn_fwd a = attn_of(8, 1000, 12, 4, wide ? 128 : 64);
			struct te_k_attn_bwd b = attn_bwd_of(8, 1000, 12, 4, wide ? 128 : 64);
			char name[64];

			a.window = b.window = cases[i].window;
			DO(launch_attn(&a));
			snprintf(name, sizeof(name), "%s%s", fwd[wide], suffix);
			ck_assert_str_eq(fake.func, name);
			ck_assert_int_eq(fake.attn.window, cases[i].planned);
			DO(launch_bwd(TE_K_ATTN_BWD_DKV, &b));
			snprintf(name, sizeof(name), "%s%s", bwd[wide], suffix);
			ck_assert_str_eq(fake.func, name);
			ck_assert_int_eq(fake.attn_bwd.window, cases[i].planned);
		}
}

/* a process of its own: the value is read once */
TEST(attention, by_default_all_but_short_forward_is_by_sm90)
{
	const struct te_k_attn_fwd a = attn_of(8, 1000, 12, 4, 64);
	const struct te_k_attn_fwd shorter = attn_of(1, 256, 12, 12, 64);
	const struct te_k_attn_bwd b = attn_bwd_of(8, 1000, 12, 4, 64);

	ck_assert_int_eq(unsetenv("TE_ATTENTION"), 0);
	ck_assert_int_eq(te__param_enum(TE_PARAM_ATTENTION), TE__ATTENTION_AUTO);
	DO(launch_attn(&a));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_sm90_d64");
	DO(launch_attn(&shorter));
	ck_assert_str_eq(fake.func, "te_k_attn_fwd_bf16_d64_strip");
	DO(launch_bwd(TE_K_ATTN_BWD_DKV, &b));
	ck_assert_str_eq(fake.func, "te_k_attn_bwd_sm90_d64");
	DO(launch_bwd(TE_K_ATTN_BWD_DQ, &b));
	ck_assert_int_eq(fake.nlaunches, 0);
}

static int attn_once(void)
{
	const struct te_k_attn_fwd a = attn_of(8, 1000, 12, 4, 64);
	const struct te_k_attn_bwd b = attn_bwd_of(8, 1000, 12, 4, 64);
	int r = launch_attn(&a);

	return r ? r : launch_bwd(TE_K_ATTN_BWD_DKV, &b);
}

TEST(attention, each_call_of_attention_may_fail)
{
	int nth = 1;

	for (;; nth++) {
		int r;

		te_error_clear();
		fake.ncalls = 0;
		fake.fail_at = nth;
		r = attn_once();
		if (fake.ncalls < nth)
			break;
		if (!r)
			continue; /* not needed */
		ck_assert_int_eq(r, -TE_ECUDA);
	}
	fake.fail_at = 0;
	ck_assert_int_gt(nth, 4);
	DO(attn_once());
}

TT_SUITE("backend/sm90", TT_NEED_NOTHING)
{
	if (setenv("TE_GEMM_PROVIDER", "sm90", 1) || setenv("TE_ATTENTION", "sm90", 1))
		abort();
}
