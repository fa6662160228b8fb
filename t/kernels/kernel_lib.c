/* t/kernels/kernel_lib.c - see kernel_lib.h. */
#include "config.h"

#include "kernel_lib.h"
#include "tt_ctx.h"

const int32_t kl_types[2] = { TE_DTYPE_FP32, TE_DTYPE_BF16 };
const int32_t kl_fp8[2] = { TE_DTYPE_E4M3, TE_DTYPE_E5M2 };

/* around tiles of 64 x 128, vectors of 8, and the 16 rows of a store of transposed codes */
const struct kl_shape kl_shapes[] = {
	{ 1, 1 },
	{ 3, 63 },
	{ 64, 64 },
	{ 65, 65 },
	{ 63, 127 },
	{ 64, 128 },
	{ 16, 136 },
	{ 32, 768 },
	{ 127, 1000 },
	{ 128, 1032 },
	{ 130, 33 },
	{ 5, 4096 },
	/* for GPUs: a tile of 64 x 128 for each multiprocessor. The host and unaligned addresses
	 * have one variant for all shapes */
	{ 9, 17000 },
	{ 8449, 24 },
	{ 67, 8584 },
};

size_t kl_count(size_t n, size_t for_gpus)
{
	return strcmp(backend, "host") && !kc_is_unaligned() ? n : n - for_gpus;
}

size_t kl_nshapes(void)
{
	return kl_count(TT_LEN(kl_shapes), 3);
}

/* at unaligned addresses and with sanitizers, every third shape */
size_t kl_every(void)
{
	return TT_FEWER(8) < 8 ? 6 : kc_is_unaligned() ? 3 : 1;
}

size_t kl_first(size_t n)
{
	const size_t every = kl_every();

	return (size_t)tt_rand_int(0, (int64_t)(every < n ? every : n) - 1);
}

const float *kl_noop(void)
{
	switch (tt_rand_int(0, 3)) {
	case 0:
		return kc_word(1.0f);
	case 1:
		return kc_word(0.0f);
	default:
		return NULL;
	}
}

void kl_setup(void)
{
	kc_open(backend);
}

void kl_setup_odd(void)
{
	kl_setup();
	kc_unaligned(1);
}
