/*
 * t/fuzz/quant.c - te_quant_load(3) of any bytes: as they are, and with the checksum that fits, so
 * that what comes after its check is reached.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <te/ctx.h>
#include <te/quant.h>

#include "fuzz.h"

static struct te_ctx *ctx;
static struct te_quant *quant;

static void finish(void)
{
	te_quant_unref(quant);
	te_ctx_unref(ctx);
}

static void prepare(void)
{
	static const enum te_dtype types[3] = { TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_E5M2 };
	struct te_ctx_opts opts = TE_CTX_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;

	opts.backend = "host";
	if (te_recipe_from_name("fp8-delayed", &recipe) < 0)
		abort();
	recipe.history_len = 4;
	if (te_ctx_create(&opts, &ctx) < 0 || te_quant_create(ctx, &recipe, 3, types, &quant) < 0)
		abort();
	atexit(finish);
}

/* CRC-32 of IEEE 802.3, bit by bit */
static uint32_t crc32_of(const uint8_t *p, size_t n)
{
	uint32_t c = 0xffffffff;

	while (n--) {
		c ^= *p++;
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
	}
	return ~c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	uint8_t *copy;

	if (!ctx)
		prepare();
	te_quant_load(quant, data, nbytes);
	if (nbytes < 4)
		return 0;
	copy = malloc(nbytes);
	memcpy(copy, data, nbytes);
	for (int i = 0; i < 4; i++)
		copy[nbytes - 4 + (size_t)i] = (uint8_t)(crc32_of(copy, nbytes - 4) >> 8 * i);
	te_quant_load(quant, copy, nbytes);
	free(copy);
	return 0;
}
