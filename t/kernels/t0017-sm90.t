#!/bin/sh
# Kernels of sm90.cu run on the host, one fiber a thread of the GPU, and give the right result; and
# ptxas has neither spilled registers nor serialized their wgmma.
. "$abs_top_srcdir/t/lib/tap.sh"

why="no C++ compiler for this machine${TT_SANITIZE:+, or fibers with sanitizers}"
I="-I$abs_top_srcdir -I$abs_top_srcdir/include -I$abs_top_builddir -I$abs_top_builddir/include"
seed=${TT_SEED:-$(date +%s)}
[ -z "$TT_SANITIZE" ] || CXX=''
[ -z "$CXX" ] || [ "$($CXX -dumpmachine)" = "$($CC -dumpmachine)" ] || CXX=''

# emulate FAMILY PROGRAM FILES: the kernels of a family, with its C files that plan launches
emulate() {
	family=$1
	program=$2
	shift 2
	if [ -z "$CXX" ]; then
		skip "emulated $program kernels" "$why"
		return
	fi
	objs=
	for f; do
		check "kernels/$family/$f.c compiles for $program" $CC -std=gnu11 -O1 $I -c \
			"$abs_top_srcdir/kernels/$family/$f.c" -o "$tmp/$family-$f.o"
		objs="$objs $tmp/$family-$f.o"
	done
	check "t/kernels/$program.cc compiles" $CXX -std=gnu++17 -O1 -w $I -o "$tmp/$program" \
		"$abs_top_srcdir/t/kernels/$program.cc" $objs
	if "$tmp/$program" "$seed" >"$tmp/out" 2>&1; then
		ok "emulated $program kernels are right and end"
	else
		echo "TT_SEED=$seed repeats it" >>"$tmp/out"
		not_ok "emulated $program kernels are right and end" "$tmp/out"
	fi
}

# reported FAMILY FILE PREFIX N: N kernels of the file
reported() {
	log=$abs_top_builddir/kernels/$1/$2.fatbin90.log
	if [ ! -s "$log" ]; then
		skip "registers of $1/$2.cu" "built without nvcc"
		return
	fi
	check "ptxas reports the kernels of $1/$2.cu" test "$(grep -c "$3" "$log")" -ge "$4"
	grep -E 'C7[0-9]{3}|[^0-9][1-9][0-9]* bytes (stack|spill)' "$log" >"$tmp/bad"
	empty "$1/$2.cu: no spills, no serialized wgmma" "$tmp/bad"
}

emulate gemm sm90 plan schedule
emulate attn attn_sm90 plan
emulate attn attn_bwd_sm90 plan
reported gemm sm90 te_k_gemm_sm90_ 6
reported attn sm90 te_k_attn_fwd_sm90_ 4
reported attn sm90_bwd te_k_attn_bwd_ 8
tap_end
