/*
 * t/fuzz/checkpoint.c - te_checkpoint_load(3) of any bytes: as they are, and with the CRC that
 * fits, so that what comes after its check is reached.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/checkpoint.h>
#include "libtecore/offload/crc32c.h"

#include "fuzz.h"

static struct te_ctx *ctx;
static struct te_seq *seq;
static struct te_adamw *adamw;

static void finish(void)
{
	te_adamw_unref(adamw);
	te_seq_unref(seq);
	te_ctx_unref(ctx);
}

static void prepare(void)
{
	struct te_bias_attrs attrs = TE_ATTRS(bias, .width = 4);
	struct te_ctx_opts opts = TE_CTX_OPTS_INIT;
	struct te_op *op;

	opts.backend = "host";
	if (te_ctx_create(&opts, &ctx) < 0 || te_seq_create(ctx, &seq) < 0 ||
	    te_op_bias(&attrs, "b", &op) < 0 || te_seq_append(seq, op) < 0 ||
	    te_seq_init(seq, 1) < 0 || te_adamw_create(seq, NULL, &adamw) < 0)
		abort();
	te_op_unref(op);
	atexit(finish);
}

static void load(const uint8_t *data, size_t nbytes)
{
	const char *name = fuzz_file(data, nbytes);

	te_checkpoint_load(seq, adamw, name, 0, NULL);
	te_checkpoint_load(seq, NULL, name, TE_CHECKPOINT_SKIP_QUANT, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	static const char key[] = "\"crc32c\":\"";
	uint8_t *copy, *at;
	char digits[9];

	if (!ctx)
		prepare();
	load(data, nbytes);
	copy = malloc(nbytes + 1);
	memcpy(copy, data, nbytes);
	at = memmem(copy, nbytes, key, sizeof(key) - 1);
	if (at && (size_t)(copy + nbytes - at) >= sizeof(key) - 1 + 8) {
		at += sizeof(key) - 1;
		memset(at, '0', 8);
		snprintf(digits, sizeof(digits), "%08x", te__crc32c(0, copy, nbytes));
		memcpy(at, digits, 8);
		load(copy, nbytes);
	}
	free(copy);
	return 0;
}
