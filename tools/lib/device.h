/* device.h - the device that a tool runs on. */
#ifndef DEVICE_H
#define DEVICE_H

#include <te/ctx.h>

/* 1: the library chooses the backend; option: what the user named, or NULL */
int device_is_auto(const char *option);
/* warns of a GPU of this index that is passed over, with the reason, for what the run has */
void device_note_gpu(const struct te_device_info *have, int32_t index);
/* a context; a warning if the library chooses it and passes a GPU over, with the reason */
int device_open(const char *option, struct te_ctx **ret_ctx);

#endif
