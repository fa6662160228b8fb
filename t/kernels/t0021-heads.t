#!/bin/sh
# Kernels of elem/heads.cu run on the host, one fiber a thread of the GPU, and give the bits of the
# reference functions; and ptxas has spilled no registers of them.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

emulate "copies of heads" heads 60 elem/elem quant/scale ref simd
no_spills elem/heads
tap_end
