#!/bin/sh
# Kernels of quant/mx.cu run on the host, one fiber a thread of the GPU, and give the bits of the
# reference functions.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

emulate "casts" mx 40 quant/nvfp4 quant/quant quant/scale ref simd
tap_end
