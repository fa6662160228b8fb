#!/bin/sh
# Kernels of sm90.cu, and attention by tiles, run on the host, one fiber a thread of the GPU, and
# give the right result.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

emulate "sm90 kernels" sm90 "" gemm/plan gemm/schedule
emulate "attn_sm90 kernels" attn_sm90 "" attn/plan
emulate "attn_bwd_sm90 kernels" attn_bwd_sm90 "" attn/plan
emulate_I="$emulate_I -DTE_ARCH=86"
emulate "attention by tiles" attn_tile 3 attn/attn attn/launch micro quant/scale ref simd
tap_end
