/*
 * variants.c - how a device does the tasks that differ between GPUs, from its features: what
 * kernels/FAMILY/launch.c, launch.c, edges.c and cublaslt.c of the cuda backend choose.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecore/tensor/ctx.h"

#define NO_FP8 "no FP8 tensor cores, which begin with 8.9; the recipe bf16 runs"
#define NO_SM90 "no wgmma: it needs a GPU of 9.0 and kernels of that level"

static int has(const struct te_device_info *d, uint32_t feature)
{
	return (d->features & feature) != 0;
}

static void set(struct te_variant_info *ret, const char *variant, const char *reason)
{
	snprintf(ret->variant, sizeof(ret->variant), "%s", variant);
	snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
}

static void gemm(const struct te_device_info *d, struct te_variant_info *ret)
{
	const int by = te__param_enum(TE_PARAM_GEMM_PROVIDER);

	if (by == TE__GEMM_MMA)
		set(ret, "mma", "TE_GEMM_PROVIDER=mma");
	else if (by != TE__GEMM_SM90)
		set(ret, "mma, cublaslt",
		    "mma for few rows, a short k, or if there is no cuBLASLt; cuBLASLt for others");
	else if (has(d, TE_FEATURE_WGMMA))
		set(ret, "mma, sm90, cublaslt",
		    "mma for few rows or a short k; TE_GEMM_PROVIDER=sm90 where it can");
	else
		set(ret, "mma, cublaslt", NO_SM90 ", so TE_GEMM_PROVIDER=sm90 has no effect");
}

static void gemm_fp8(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_FP8_MMA))
		gemm(d, ret);
	else
		set(ret, "none", NO_FP8);
}

/* cuBLASLt has VEC128_32F and BLK128x128_32F of cublasLtMatmulMatrixScale_t on 9.0 only */
static void gemm_block(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (!has(d, TE_FEATURE_FP8_MMA))
		set(ret, "none", NO_FP8);
	else if (d->cc_major != 9 || d->kernels_cc < 90)
		set(ret, "mma", "cuBLASLt scales blocks by FP32 on 9.0 only");
	else
		set(ret, "cublaslt", "cuBLASLt 12.9 or later");
}

static void mx_gemm(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (d->cc_major == 10 || d->cc_major == 12)
		set(ret, "cublaslt, mma",
		    "cuBLASLt 12.8 or later where it can; not run on such a GPU yet");
	else
		set(ret, "mma",
		    "codes are decoded to BF16, on every GPU; slower than the recipe bf16");
}

static void attn_fwd(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (!has(d, TE_FEATURE_WGMMA))
		set(ret, "mma", NO_SM90);
	else if (te__param_enum(TE_PARAM_ATTENTION) == TE__ATTENTION_MMA)
		set(ret, "mma", "TE_ATTENTION=mma");
	else
		set(ret, "sm90, mma", "sm90 (wgmma and TMA) for shapes that it takes");
}

static void norms(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_CLUSTERS))
		set(ret, "cluster", "a cluster of blocks keeps the rows in shared memory");
	else
		set(ret, "twice", "no clusters: the input is read twice");
}

static void casts(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_FP8_CONVERT))
		set(ret, "instructions", "FP8 conversion instructions");
	else
		set(ret, "software", "no FP8 conversion instructions; the same bits");
}

static void mx_casts(const struct te_device_info *d, struct te_variant_info *ret)
{
	(void)d;
	set(ret, "mx", "the same kernels on every GPU, and the bits of the host");
}

static void edges(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_PDL))
		set(ret, "programmatic", "kernels start before the ones they wait for end");
	else
		set(ret, "full", "no programmatic dependent launch");
}

static void nvls(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_MULTICAST))
		set(ret, "nvls", "with TE_COMM_NVLS=on");
	else
		set(ret, "none", "no multicast memory; the other algorithms run");
}

static void words(const struct te_device_info *d, struct te_variant_info *ret)
{
	if (has(d, TE_FEATURE_MEM_OPS))
		set(ret, "words", "batch memory operations");
	else
		set(ret, "calls", "no batch memory operations: host calls");
}

static const struct {
	const char *task;
	void (*choose)(const struct te_device_info *d, struct te_variant_info *ret);
} row[] = {
	{ "BF16 GEMM", gemm },
	{ "FP8 GEMM", gemm_fp8 },
	{ "FP8 GEMM with scales of blocks", gemm_block },
	{ "MXFP8 and NVFP4 GEMM", mx_gemm },
	{ "attention", attn_fwd },
	{ "norms with transposed FP8 copies", norms },
	{ "FP8 casts", casts },
	{ "MXFP8 and NVFP4 casts", mx_casts },
	{ "edges of graphs", edges },
	{ "all-reduce in multicast memory", nvls },
	{ "waits for offload files", words },
};
#define NROWS ((int)(sizeof(row) / sizeof(row[0])))

int te_variant_count(void)
{
	return NROWS;
}

int te_variant_info(const struct te_device_info *device, int index,
		    struct te_variant_info *ret_info)
{
	struct te_variant_info info = TE_VARIANT_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	int r = te__sized_check("te_variant_info", te_variant_info, ret_info);

	if (!r)
		r = te__sized_in("te_variant_info", te_device_info, device, &d);
	if (r)
		return r;
	if (index < 0 || index >= NROWS)
		return te__fail(-EINVAL, "te_variant_info: index %d of %d tasks", index, NROWS);
	snprintf(info.task, sizeof(info.task), "%s", row[index].task);
	if (d.kernels_cc)
		row[index].choose(&d, &info);
	else if (d.usable)
		set(&info, "host", "the reference function");
	else
		set(&info, "none", "the device cannot be used");
	te__sized_out(te_variant_info, &info, ret_info);
	return 0;
}
