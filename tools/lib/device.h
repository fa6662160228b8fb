/* device.h - the device that a tool runs on. */
#ifndef DEVICE_H
#define DEVICE_H

#include <te/ctx.h>

/* 1: the library chooses the backend; option: what the user named, or NULL */
int device_is_auto(const char *option);
/* warns of a GPU of this index that is passed over, with the reason, for what the run has */
void device_note_gpu(const struct te_device_info *have, int32_t index);
/*
 * A context for inference with heads of that many channels: the host, with a warning, if the
 * library chooses and heads are too wide for its GPU, or the GPU cannot be used.
 */
int device_for_heads(const char *option, int64_t head_dim, struct te_ctx **ret_ctx);

#endif
