/* t/fuzz/gemm_cache.c - the file of cuBLASLt's algorithms, of any bytes. */
#include "config.h"

#include "fuzz.h"
#include "libtecore/backend/cuda/gemm_cache.h"

static int accept(void *arg, const struct te__lt_algo *algo)
{
	*(uint64_t *)arg ^= algo->data[0] ^ algo->data[7];
	return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	/* that of the corpus */
	const struct te__gemm_key key = { .m = 64, .n = 128, .k = 256, .align = 256 };
	uint64_t sum = 0;

	te__gemm_cache_find(fuzz_file(data, nbytes), &key, accept, &sum);
	return 0;
}
