/* device.h - the device that a tool runs on. */
#ifndef DEVICE_H
#define DEVICE_H

#include <te/ctx.h>

/* 1: the library chooses the backend; option: what the user named, or NULL */
int device_is_auto(const char *option);
/*
 * A context for inference with heads of that many channels: the host, with a warning, if the
 * library chooses and heads are too wide for its GPU.
 */
int device_for_heads(const char *option, int64_t head_dim, struct te_ctx **ret_ctx);

#endif
