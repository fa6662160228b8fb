/* t/kernels/kernels.c - kernels of all families, at aligned and at unaligned addresses. */
#include "config.h"

#include "kernel_lib.h"
#include "tt_ctx.h"

TT_PAIR("kernels/kernels", TT_ONE_PROCESS)
