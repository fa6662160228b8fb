/* device.c - the device that a tool runs on. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "say.h"

#define GPU_CHANNELS 128 /* limit of a head: te_op_attention(3) */

int device_is_auto(const char *option)
{
	const char *backend = option ? option : getenv("TE_BACKEND");

	return !backend || !strcmp(backend, "auto");
}

int device_for_heads(const char *option, int64_t head_dim, struct te_ctx **ret_ctx)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx = NULL;
	int te;

	co.backend = option;
	te = te_ctx_create(&co, &ctx);
	if (te >= 0 && head_dim > GPU_CHANNELS && device_is_auto(option) &&
	    strcmp(te_ctx_backend(ctx), "host") != 0) {
		say_note("%s: warning: heads of %lld channels, and GPUs have at most %d: this run "
			 "is on the CPU, as it is without a warning by --backend host",
			 say_program(), (long long)head_dim, GPU_CHANNELS);
		te_ctx_unref(ctx);
		co.backend = "host";
		te = te_ctx_create(&co, &ctx);
	}
	if (te < 0)
		return say_te(te, "no context");
	*ret_ctx = ctx;
	return STATUS_OK;
}
