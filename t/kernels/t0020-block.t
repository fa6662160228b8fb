#!/bin/sh
# GEMMs of gemm/block.cu run on the host, one fiber a thread of the GPU, and give the bits of plain
# loops.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

emulate "GEMMs" block ""
tap_end
