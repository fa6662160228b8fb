#!/bin/sh
# Registers of kernels that need most of them: ptxas has neither spilled them nor serialized wgmma.
. "$abs_top_srcdir/t/lib/tap.sh"

# no_spills FILE [PREFIX N]: kernels/FILE.cu, N kernels of which begin with the prefix
no_spills()
{
	log=$abs_top_builddir/kernels/$1.fatbin90.log
	if [ ! -s "$log" ]; then
		skip "registers of $1.cu" "built without nvcc"
		return
	fi
	[ -z "$2" ] || check "ptxas reports the kernels of $1.cu" \
		test "$(grep -c "$2" "$log")" -ge "$3"
	grep -E 'C7[0-9]{3}|[^0-9][1-9][0-9]* bytes (stack|spill)' "$log" >"$tmp/bad"
	empty "$1.cu: no spills, no serialized wgmma" "$tmp/bad"
}

no_spills gemm/sm90 te_k_gemm_sm90_ 6
no_spills attn/sm90 te_k_attn_fwd_sm90_ 4
no_spills attn/sm90_bwd te_k_attn_bwd_ 4
no_spills elem/heads
tap_end
