/* device.c - the device that a tool runs on. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "say.h"

int device_is_auto(const char *option)
{
	const char *backend = option ? option : getenv("TE_BACKEND");

	return !backend || !strcmp(backend, "auto");
}

void device_note_gpu(const struct te_device_info *have, int32_t index)
{
	for (int i = 0; i < te_backend_count() && !strcmp(have->backend, "host"); i++) {
		struct te_backend_info b = TE_BACKEND_INFO_INIT;
		struct te_device_info d = TE_DEVICE_INFO_INIT;

		if (te_backend_info(i, &b) || !strcmp(b.name, "host") || b.ndevices <= index ||
		    te_device_info(b.name, index, &d) || d.usable)
			continue;
		say_note("%s: warning: %s is not used, %s; this run is on the CPU, as it is "
			 "without a warning by --backend host", say_program(), d.name, d.reason);
	}
}

int device_open(const char *option, struct te_ctx **ret_ctx)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_device_info have = TE_DEVICE_INFO_INIT;
	struct te_ctx *ctx = NULL;
	int te;

	co.backend = option;
	te = te_ctx_create(&co, &ctx);
	if (te >= 0 && device_is_auto(option) && te_ctx_device_info(ctx, &have) >= 0)
		device_note_gpu(&have, co.device);
	if (te < 0)
		return say_te(te, "no context");
	*ret_ctx = ctx;
	return STATUS_OK;
}
