/*
 * t/backend/cuda_levels.c - features of GPUs since Ampere, TE_CUDA_ARCH, the kernels that are
 * chosen and the peak rates, with a driver that describes the chips. Neither libcuda nor a GPU is
 * needed. Each test is a process, so TE_CUDA_ARCH may be set in it.
 */
#include "config.h"

#include <te/ctx.h>
#include <te/errno.h>
#include <te/op.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/base/base.h"
#include "tt.h"
#include "tt_ctx.h"

#define ALL (TE_FEATURE_FP8_CONVERT | TE_FEATURE_FP8_MMA | TE_FEATURE_CLUSTERS | \
	     TE_FEATURE_PDL | TE_FEATURE_TMA | TE_FEATURE_MULTICAST | TE_FEATURE_MEM_OPS)
#define ADA (TE_FEATURE_FP8_CONVERT | TE_FEATURE_FP8_MMA | TE_FEATURE_MEM_OPS)

/* datasheets: dense TFLOPS of BF16 with sums in FP32, FP8 and FP32, GB/s */
static const struct {
	const char *name;
	int cc, nprocs, clock_mhz, mem_clock_mhz, bus_bits, smem_kib;
	double bf16, fp8, fp32, bandwidth;
	/* with kernels of all levels */
	int arch;
	uint32_t features;
	unsigned arch_smem_kib;
} chip[] = {
	{ "NVIDIA A100-SXM4-40GB", 80, 108, 1410, 1215, 5120, 163, 312, 0, 19.5, 1555, 80,
	  TE_FEATURE_MEM_OPS, 163 },
	{ "NVIDIA GeForce RTX 3090", 86, 82, 1695, 9751, 384, 99, 71, 0, 35.6, 936, 86,
	  TE_FEATURE_MEM_OPS, 99 },
	{ "NVIDIA RTX A6000", 86, 84, 1800, 8001, 384, 99, 154.8, 0, 38.7, 768, 86,
	  TE_FEATURE_MEM_OPS, 99 },
	{ "NVIDIA L40S", 89, 142, 2520, 9001, 384, 99, 362, 733, 91.6, 864, 89, ADA, 99 },
	{ "NVIDIA GeForce RTX 4090", 89, 128, 2520, 10501, 384, 99, 165.2, 330.3, 82.6, 1008, 89,
	  ADA, 99 },
	{ "NVIDIA H100 80GB HBM3", 90, 132, 1980, 2619, 5120, 227, 989.4, 1978.9, 66.9, 3352, 90,
	  ALL | TE_FEATURE_WGMMA, 227 },
	{ "NVIDIA B200", 100, 148, 1850, 3996, 8192, 227, 2250, 4500, 70, 8184, 90, ALL, 227 },
	{ "NVIDIA GeForce RTX 5090", 120, 170, 2407, 14001, 512, 99, 209.5, 419, 104.8, 1792, 89,
	  ADA, 99 },
};

static int now; /* the chip of the driver */
static int denied = -1, unreadable = -1; /* attributes: 0, and an error */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuDeviceGetCount(int *ret_count)
{
	*ret_count = 1;
	return 0;
}

int fake_cuDeviceGet(int *ret_dev, int ordinal)
{
	*ret_dev = ordinal;
	return 0;
}

int fake_cuDeviceGetName(char *name, int len, int dev)
{
	snprintf(name, (size_t)len, "%s", chip[now].name);
	return 0;
}

int fake_cuDeviceGetPCIBusId(char *address, int len, int dev)
{
	snprintf(address, (size_t)len, "0000:1a:00.0");
	return 0;
}

int fake_cuDeviceTotalMem(size_t *ret_nbytes, int dev)
{
	*ret_nbytes = (size_t)24 << 30;
	return 0;
}

int fake_cuDeviceGetAttribute(int *ret_value, int attribute, int dev)
{
	const int hopper = chip[now].cc >= 90;

	*ret_value = attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR ? chip[now].cc / 10 :
		     attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR ? chip[now].cc % 10 :
		     attribute == TE__CU_ATTR_MULTIPROCESSOR_COUNT ? chip[now].nprocs :
		     attribute == TE__CU_ATTR_CLOCK_RATE ? chip[now].clock_mhz * 1000 :
		     attribute == TE__CU_ATTR_MEMORY_CLOCK_RATE ? chip[now].mem_clock_mhz * 1000 :
		     attribute == TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH ? chip[now].bus_bits :
		     attribute == TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ?
							       chip[now].smem_kib << 10 :
		     attribute == TE__CU_ATTR_CLUSTER_LAUNCH ||
				     attribute == TE__CU_ATTR_TENSOR_MAP ||
				     attribute == TE__CU_ATTR_MULTICAST ? hopper : 1;
	if (attribute == denied)
		*ret_value = 0;
	return attribute == unreadable; /* CUDA_ERROR_INVALID_VALUE */
}
#pragma GCC diagnostic pop

#define H100 5 /* index in chip */

static const short every[] = { 80, 86, 89, 90, 0 }, none[] = { 0 };

static void use_chip(int index)
{
	const struct te__cuda_driver d = fake_driver();

	now = index;
	te__cuda_driver_fake(&d);
	te__cuda_levels_fake(every, every);
}

static const char *why;

static struct te__cuda_features ask(void)
{
	static char text[256];
	struct te__cuda_features f;

	DO(te__cuda_features(0, &f, text, sizeof(text)));
	why = text;
	return f;
}

/* what te_device_info() gives in a build with kernels */
static struct te_device_info info(const struct te__cuda_features *f)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	DO(te_device_info("cuda", 0, &d));
	d.usable = 1;
	d.features = f->target.features;
	d.kernels_cc = f->target.arch;
	return d;
}

/* the variant of a task */
static const char *variant(const struct te_device_info *d, const char *task)
{
	static struct te_variant_info v;

	for (int i = 0; i < te_variant_count(); i++) {
		v = (struct te_variant_info)TE_VARIANT_INFO_INIT;
		DO(te_variant_info(d, i, &v));
		ck_assert_str_ne(v.reason, "");
		if (!strcmp(v.task, task))
			return v.variant;
	}
	ck_abort_msg("there is no task %s", task);
	return NULL;
}

static const char *norm(const struct te__target *t, int64_t rows)
{
	static _Alignas(16) unsigned char m[16];
	const struct te_k_norm_fwd a = { .x = m, .gamma = (float *)m, .rstd = (float *)m,
					 .rows = rows, .cols = 2048, .q = { .row = m, .col = m },
					 .dtype = TE_DTYPE_BF16 };
	struct te__geometry k;

	DO(te__geometry_for(t, TE_K_NORM_FWD, &a, &k));
	return k.func;
}

/* te_variant_info() and the choice of kernels agree */
static void check_dispatch(const struct te__cuda_features *f)
{
	const uint32_t has = f->target.features;
	const struct te_device_info d = info(f);
	struct te__cuda_dev dev = { .target = f->target, .cc = 10 * f->major + f->minor };
	const int own = d.cc_major != 9 || d.kernels_cc < 90;

#define IS(task, bit, yes, no) ck_assert_str_eq(variant(&d, task), has & (bit) ? yes : no)
	IS("BF16 GEMM", 0, "", "mma, cublaslt");
	IS("FP8 GEMM", TE_FEATURE_FP8_MMA, "mma, cublaslt", "none");
	IS("attention", TE_FEATURE_WGMMA, "sm90, mma", "mma");
	IS("FP8 casts", TE_FEATURE_FP8_CONVERT, "instructions", "software");
	IS("norms with transposed FP8 copies", TE_FEATURE_CLUSTERS, "cluster", "twice");
	IS("edges of graphs", TE_FEATURE_PDL, "programmatic", "full");
	IS("all-reduce in multicast memory", TE_FEATURE_MULTICAST, "nvls", "none");
	IS("waits for offload files", TE_FEATURE_MEM_OPS, "words", "calls");
#undef IS
	ck_assert_str_eq(variant(&d, "FP8 GEMM with scales of blocks"),
			 !(has & TE_FEATURE_FP8_MMA) ? "none" : own ? "mma" : "cublaslt");
	ck_assert_str_eq(variant(&d, "MXFP8 and NVFP4 casts"), "mx");
	ck_assert_str_eq(variant(&d, "MXFP8 and NVFP4 GEMM"),
			 te__cuda_mx_by_cublaslt(&dev) ? "cublaslt, mma" : "mma");
	ck_assert_int_eq(te__cuda_mx_by_cublaslt(&dev), f->major == 10 || f->major == 12);
	/* rows in registers, 16 for a column-wise store; others in the memory of a cluster */
	ck_assert_str_eq(norm(&f->target, 1024), "te_k_norm_cast_8");
	ck_assert_str_eq(norm(&f->target, 1020), has & TE_FEATURE_CLUSTERS ?
			 "te_k_norm_cast_cluster2" : "te_k_norm_fwd_col_bf16");
	te_error_clear();
	ck_assert_int_eq(te__cuda_fp8_gemm(&dev, TE_K_SCALING_TENSOR),
			 has & TE_FEATURE_FP8_MMA ? 0 : -EOPNOTSUPP);
	ck_assert_int_eq(te__cuda_fp8_gemm(&dev, TE_K_SCALING_128X128),
			 has & TE_FEATURE_FP8_MMA ? 0 : -EOPNOTSUPP);
	ck_assert_int_eq(te__cuda_blocks_by_mma(&dev), own);
	for (int scaling = TE_K_SCALING_1X32; scaling <= TE_K_SCALING_16X16; scaling++)
		DO(te__cuda_fp8_gemm(&dev, scaling));
}

CASE(levels, "host fast serial");

/* in BF16 common ones have functions for few rows and for blocks; all in FP32 share functions */
TEST_EACH(levels, activations_have_functions, TE_ACT_COUNT)
{
	static const char *const name[TE_ACT_COUNT] = { "gelu", "qgelu",   "relu",     "srelu",
							"silu", "sigmoid", "gelu_erf", "tanh" };
	static _Alignas(16) unsigned char m[16];
	const int common = _i == TE_ACT_GELU || _i == TE_ACT_GELU_ERF || _i == TE_ACT_SILU;
	const struct te__target t = te__target_of(90);
	char want[64];

	for (int k = 0; k < 12; k++) {
		const int gated = k % 2, bf16 = k / 2 % 2, block = k / 4 == 2, small = k / 4 == 1;
		const int32_t dtype = bf16 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
		struct te_k_act_fwd a = { .x = m, .y = m, .rows = k / 4 ? 64 : 65536, .cols = 1024,
					  .q = { .row = m }, .act = _i, .gated = gated,
					  .dtype = dtype };
		struct te_k_act_bwd b = { .dy = m, .x = m, .dx = m, .rows = a.rows, .cols = 1024,
					  .q = { .row = m }, .act = _i, .gated = gated,
					  .dtype = dtype };
		struct te__geometry g;

		a.q.scaling = b.q.scaling = block ? TE_K_SCALING_1X128 : TE_K_SCALING_TENSOR;
		snprintf(want, sizeof(want), "te_k_act_fwd_%s%s%s%s%s",
			 block			   ? "block_" :
			 small && common && bf16 ? "small_m_" :
						     "",
			 gated ? "gated_" : "", bf16 && (!block || common) ? name[_i] : "",
			 bf16 && (!block || common) ? "_" : "", bf16 ? "bf16" : "fp32");
		DO(te__geometry_for(&t, TE_K_ACT_FWD, &a, &g));
		ck_assert_str_eq(g.func, want);
		DO(te__geometry_for(&t, TE_K_ACT_BWD, &b, &g));
		memcpy(want + strlen("te_k_act_"), "bwd", 3);
		ck_assert_str_eq(g.func, want);
	}
}

/* few: each block of 64 rows has a multiprocessor; res: a residual, and over 4096 columns */
TEST(levels, gradients_of_norms_are_chosen_by_rows_columns_and_residual)
{
	static const struct {
		int64_t rows, cols;
		int dres, casts;
		const char *want;
	} row[] = {
		{ 132 * 64, 1280, 0, 0, "few" },	 { 132 * 64 + 1, 1280, 0, 0, "1280" },
		{ 132 * 64, 1288, 0, 0, "4096" },	 { 64, 8192, 0, 0, "8192" },
		{ 64, 8192, 1, 0, "8192_res" },		 { 64, 1280, 1, 0, "few" },
		{ 132 * 64, 1280, 0, 1, "cast_few" },	 { 132 * 64 + 16, 768, 0, 1, "cast_768" },
		{ 132 * 64 + 16, 1280, 1, 1, "cast_1280" }, { 16384, 1600, 1, 1, "cast_2048" },
	};
	static _Alignas(16) unsigned char m[16];
	const struct te__target t = te__target_of(90);

	for (size_t i = 0; i < TT_LEN(row); i++) {
		struct te_k_norm_both a = { .dy = m, .x = m, .gamma = (float *)m,
					    .rstd = (float *)m, .dx = m, .part_gamma = (float *)m,
					    .dres = row[i].dres ? m : NULL, .rows = row[i].rows,
					    .cols = row[i].cols, .dtype = TE_DTYPE_BF16 };
		struct te__geometry g;
		char want[64];

		if (row[i].casts)
			a.q.row = a.q.col = m;
		snprintf(want, sizeof(want), "te_k_norm_once_%s", row[i].want);
		DO(te__geometry_for(&t, TE_K_NORM_BOTH, &a, &g));
		ck_assert_str_eq(g.func, want);
	}
}

TEST_EACH(levels, a_gpu_has_the_features_of_its_level, TT_LEN(chip))
{
	struct te__cuda_features f;

	use_chip(_i);
	f = ask();
	ck_assert_str_eq(why, te__kernel_images[0].name ? "" : "this libtecore has no device "
			 "kernels: it was built without nvcc");
	ck_assert_int_eq(10 * f.major + f.minor, chip[_i].cc);
	ck_assert_int_eq(f.target.arch, chip[_i].arch);
	ck_assert_uint_eq(f.target.features, chip[_i].features);
	ck_assert_uint_eq(f.target.smem_max, chip[_i].arch_smem_kib << 10);
	check_dispatch(&f);
}

static const struct {
	int attribute;
	uint32_t lost;
} denials[] = {
	{ TE__CU_ATTR_CLUSTER_LAUNCH, TE_FEATURE_CLUSTERS },
	{ TE__CU_ATTR_TENSOR_MAP, TE_FEATURE_TMA | TE_FEATURE_WGMMA },
	{ TE__CU_ATTR_MULTICAST, TE_FEATURE_MULTICAST },
	{ TE__CU_ATTR_64_BIT_MEM_OPS, TE_FEATURE_MEM_OPS },
};

/* as in a virtual machine, or with an older driver; and a driver that fails */
TEST_EACH(levels, what_a_driver_denies_is_not_used, TT_LEN(denials))
{
	const int attribute = denials[_i].attribute;
	struct te__cuda_features f;
	char text[256];

	use_chip(H100);
	denied = attribute;
	f = ask();
	ck_assert_uint_eq(f.target.features, chip[H100].features & ~denials[_i].lost);
	check_dispatch(&f);
	unreadable = attribute;
	te_error_clear();
	ck_assert_int_eq(te__cuda_features(0, &f, text, sizeof(text)), -TE_ECUDA);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "cuDeviceGetAttribute"));
}

static const struct {
	const char *text;
	int level;
} lower[] = { { "8.0", 80 }, { "8.6", 86 }, { "8.9", 89 }, { "9.0", 90 } };

#define NCHIPS ((int)TT_LEN(chip))
#define NLOWER ((int)TT_LEN(lower))

TEST_EACH(levels, te_cuda_arch_lowers_the_level, NCHIPS * NLOWER)
{
	const int c = _i / NLOWER, level = lower[_i % NLOWER].level;
	struct te__target want = te__target_of(level);
	struct te__cuda_features f;
	char text[256];

	setenv("TE_CUDA_ARCH", lower[_i % NLOWER].text, 1);
	use_chip(c);
	f = ask();
	if (level > chip[c].cc) {
		ck_assert_int_eq(f.target.arch, 0);
		snprintf(text, sizeof(text), "TE_CUDA_ARCH=%s is higher than its compute "
			 "capability, %d.%d", lower[_i % NLOWER].text, chip[c].cc / 10,
			 chip[c].cc % 10);
		ck_assert_str_eq(why, text);
		return;
	}
	ck_assert_int_eq(f.target.arch, level);
	if (want.smem_max > (unsigned)chip[c].smem_kib << 10)
		want.smem_max = (unsigned)chip[c].smem_kib << 10;
	if (chip[c].cc != 90)
		want.features &= ~(uint32_t)TE_FEATURE_WGMMA;
	ck_assert_uint_eq(f.target.smem_max, want.smem_max);
	ck_assert_uint_eq(f.target.features, want.features);
	check_dispatch(&f);
}

/* machine code of 8.6 does not run on 9.0: PTX is needed */
TEST(levels, a_level_without_ptx_is_refused)
{
	const short ptx[] = { 80, 0 };
	struct te__cuda_features f;

	setenv("TE_CUDA_ARCH", "8.6", 1);
	use_chip(5);
	te__cuda_levels_fake(every, ptx);
	f = ask();
	ck_assert_int_eq(f.target.arch, 0);
	ck_assert_str_eq(why, "TE_CUDA_ARCH=8.6: compute capability 9.0 needs PTX of 8.6, and the "
			 "kernels of this build are for " TE_GPU_ARCHS);
	te__cuda_levels_fake(ptx + 1, none);
	ask();
	ck_assert_str_eq(why, "compute capability 8.6: the kernels of this build are for "
			 TE_GPU_ARCHS ", and TE_CUDA_ARCH is set");
}

/* kernels of 9.0 run on a GPU of 12.x if there are no others, in 99 KiB of shared memory */
TEST(levels, later_gpus_run_ptx)
{
	const short ptx[] = { 90, 0 };
	struct te__cuda_features f;

	use_chip(7);
	te__cuda_levels_fake(none, ptx);
	f = ask();
	ck_assert_int_eq(f.target.arch, 90);
	ck_assert_uint_eq(f.target.features, ALL);
	ck_assert_uint_eq(f.target.smem_max, 99 << 10);
}

static void near_to(double is, double want)
{
	ck_assert_msg(is >= 0.98 * want && is <= 1.02 * want, "%g, datasheet %g", is, want);
}

TEST_EACH(levels, peaks_are_those_of_datasheets, NCHIPS)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	use_chip(_i);
	DO(te_device_info("cuda", 0, &d));
	near_to(d.peak_bf16_flops, chip[_i].bf16 * 1e12);
	near_to(d.peak_fp8_flops, chip[_i].fp8 * 1e12);
	near_to(d.peak_fp32_flops, chip[_i].fp32 * 1e12);
	near_to(d.peak_bandwidth, chip[_i].bandwidth * 1e9);
}

TEST(levels, a_variant_of_no_task_is_refused)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	struct te_variant_info v = TE_VARIANT_INFO_INIT;

	DO(te_device_info("host", 0, &d));
	DO(te_variant_info(&d, 0, &v));
	ck_assert_str_eq(v.task, "BF16 GEMM");
	ck_assert_str_eq(v.variant, "host");
	ck_assert_int_eq(te_variant_info(&d, te_variant_count(), &v), -EINVAL);
	tt_said("te_variant_info: index 11 of 11 tasks");
	ck_assert_int_eq(te_variant_info(&d, -1, &v), -EINVAL);
	ck_assert_int_eq(te_variant_info(NULL, 0, &v), -EINVAL);
	d.usable = 0;
	DO(te_variant_info(&d, 1, &v));
	ck_assert_str_eq(v.variant, "none");
}

TEST_EACH(levels, parameters_choose_variants, 2)
{
	struct te__cuda_features f;
	struct te_device_info d;

	setenv("TE_GEMM_PROVIDER", "sm90", 1);
	setenv("TE_ATTENTION", "mma", 1);
	use_chip(_i ? 5 : 3);
	f = ask();
	d = info(&f);
	ck_assert_str_eq(variant(&d, "BF16 GEMM"), _i ? "mma, sm90, cublaslt" : "mma, cublaslt");
	ck_assert_str_eq(variant(&d, "attention"), "mma");
}

TEST(levels, the_provider_mma_needs_no_cublaslt)
{
	struct te__cuda_features f;
	struct te_device_info d;

	setenv("TE_GEMM_PROVIDER", "mma", 1);
	use_chip(3);
	f = ask();
	d = info(&f);
	ck_assert_str_eq(variant(&d, "BF16 GEMM"), "mma");
}

TT_MAIN("backend/cuda_levels", TT_NEED_NOTHING)
