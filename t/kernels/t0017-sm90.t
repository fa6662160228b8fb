#!/bin/sh
# Kernels of sm90.cu run on the host, one fiber a thread of the GPU, and give the right result; and
# ptxas has neither spilled registers nor serialized their wgmma.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/kernels/emulate.sh"

# reported FILE PREFIX N: N kernels of the file
reported()
{
	log=$abs_top_builddir/kernels/$1.fatbin90.log
	[ ! -s "$log" ] || check "ptxas reports the kernels of $1.cu" \
		test "$(grep -c "$2" "$log")" -ge "$3"
	no_spills $1
}

emulate "sm90 kernels" sm90 "" gemm/plan gemm/schedule
emulate "attn_sm90 kernels" attn_sm90 "" attn/plan
emulate "attn_bwd_sm90 kernels" attn_bwd_sm90 "" attn/plan
reported gemm/sm90 te_k_gemm_sm90_ 6
reported attn/sm90 te_k_attn_fwd_sm90_ 4
reported attn/sm90_bwd te_k_attn_bwd_ 4
tap_end
