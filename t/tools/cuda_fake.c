/*
 * t/tools/cuda_fake.c - a libcuda.so.1 for te_info(1). It describes GPUs of FAKE_GPUS, which has
 * compute capabilities such as "8.0 12.0". All that needs a context fails.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/export.h>

#include "libtecore/backend/cuda/driver.h"

static const struct {
	int cc;
	const char *name;
	int nprocs, mhz, mem_mhz, bus_bits, smem_kib;
} chip[] = {
	{ 80, "NVIDIA A100-SXM4-80GB", 108, 1410, 1593, 5120, 163 },
	{ 86, "NVIDIA GeForce RTX 3090", 82, 1695, 9751, 384, 99 },
	{ 89, "NVIDIA L40S", 142, 2520, 9001, 384, 99 },
	{ 90, "NVIDIA H100 80GB HBM3", 132, 1980, 2619, 5120, 227 },
	{ 100, "NVIDIA B200", 148, 1850, 3996, 8192, 227 },
	{ 120, "NVIDIA GeForce RTX 5090", 170, 2407, 14001, 512, 99 },
};

/* the index in chip of the nth GPU of FAKE_GPUS, or -1 */
static int nth(int n)
{
	const char *p = getenv("FAKE_GPUS");
	char *end;

	for (; p && *p; p = end) {
		const int cc = (int)(10 * strtod(p, &end) + 0.5);

		if (end == p)
			return -1;
		for (int i = 0; n == 0 && i < (int)(sizeof(chip) / sizeof(chip[0])); i++)
			if (chip[i].cc == cc)
				return i;
		n--;
	}
	return -1;
}

static int works(void)
{
	return 0;
}

static int fails(void)
{
	return 999;
}

static int get_count(int *ret)
{
	for (*ret = 0; nth(*ret) >= 0; ++*ret)
		;
	return 0;
}

static int get_version(int *ret)
{
	*ret = 13000;
	return 0;
}

static int get_device(int *ret, int ordinal)
{
	*ret = nth(ordinal);
	return 0;
}

static int get_name(char *name, int len, int dev)
{
	snprintf(name, (size_t)len, "%s", chip[dev].name);
	return 0;
}

static int get_address(char *address, int len, int dev)
{
	snprintf(address, (size_t)len, "0000:%02x:00.0", dev);
	return 0;
}

static int get_memory(size_t *ret, int dev)
{
	*ret = (size_t)24 << (30 + (dev < 0));
	return 0;
}

static int get_error(int result, const char **ret)
{
	*ret = result ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
	return 0;
}

static int get_attribute(int *ret, int attribute, int dev)
{
	const int hopper = chip[dev].cc >= 90;

	*ret = attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR ? chip[dev].cc / 10 :
	       attribute == TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR ? chip[dev].cc % 10 :
	       attribute == TE__CU_ATTR_MULTIPROCESSOR_COUNT ? chip[dev].nprocs :
	       attribute == TE__CU_ATTR_CLOCK_RATE ? chip[dev].mhz * 1000 :
	       attribute == TE__CU_ATTR_MEMORY_CLOCK_RATE ? chip[dev].mem_mhz * 1000 :
	       attribute == TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH ? chip[dev].bus_bits :
	       attribute == TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ?
		       chip[dev].smem_kib << 10 :
	       attribute == TE__CU_ATTR_CLUSTER_LAUNCH || attribute == TE__CU_ATTR_TENSOR_MAP ||
			       attribute == TE__CU_ATTR_MULTICAST ? hopper : 1;
	return 0;
}

TE_EXPORT int cuGetProcAddress_v2(const char *symbol, void **ret_fn, int version, uint64_t flags,
				  int *ret_status);

int cuGetProcAddress_v2(const char *symbol, void **ret_fn, int version, uint64_t flags,
			int *ret_status)
{
	static const struct {
		const char *name;
		void *fn;
	} row[] = {
		{ "cuInit", (void *)works },
		{ "cuDriverGetVersion", (void *)get_version },
		{ "cuGetErrorName", (void *)get_error },
		{ "cuDeviceGetCount", (void *)get_count },
		{ "cuDeviceGet", (void *)get_device },
		{ "cuDeviceGetName", (void *)get_name },
		{ "cuDeviceGetPCIBusId", (void *)get_address },
		{ "cuDeviceGetAttribute", (void *)get_attribute },
		{ "cuDeviceTotalMem", (void *)get_memory },
	};

	(void)version;
	(void)flags;
	*ret_status = 0;
	*ret_fn = (void *)fails;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (!strcmp(row[i].name, symbol))
			*ret_fn = row[i].fn;
	return 0;
}
