#!/bin/sh
# Kernels of elem/heads.cu run on the host, one fiber a thread of the GPU, and give the bits of the
# reference functions.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

emulate "copies of heads" heads 60 elem/elem quant/scale ref simd
tap_end
