#!/bin/sh
# Kernels of sm90.cu run on the host, one fiber a thread of the GPU, and give the exact result; and
# ptxas has neither spilled registers nor serialized their wgmma.
. "$abs_top_srcdir/t/lib/tap.sh"

log=$abs_top_builddir/kernels/gemm/sm90.log
why="no C++ compiler for this machine${TT_SANITIZE:+, or fibers with sanitizers}"
[ -z "$TT_SANITIZE" ] || CXX=''
[ -z "$CXX" ] || [ "$($CXX -dumpmachine)" = "$($CC -dumpmachine)" ] || CXX=''
if [ -z "$CXX" ]; then
	skip "emulated GEMMs" "$why"
else
	I="-I$abs_top_srcdir -I$abs_top_srcdir/include -I$abs_top_builddir -I$abs_top_builddir/include"
	for f in plan schedule; do
		check "kernels/gemm/$f.c compiles" $CC -std=gnu11 -O1 $I -c \
			"$abs_top_srcdir/kernels/gemm/$f.c" -o "$tmp/$f.o"
	done
	check "t/kernels/sm90.cc compiles" $CXX -std=gnu++17 -O1 -w $I -o "$tmp/sm90" \
		"$abs_top_srcdir/t/kernels/sm90.cc" "$tmp/plan.o" "$tmp/schedule.o"
	seed=${TT_SEED:-$(date +%s)}
	if "$tmp/sm90" "$seed" >"$tmp/out" 2>&1; then
		ok "emulated GEMMs are exact and end"
	else
		echo "TT_SEED=$seed repeats it" >>"$tmp/out"
		not_ok "emulated GEMMs are exact and end" "$tmp/out"
	fi
fi

if [ ! -s "$log" ]; then
	skip "registers of sm90.cu" "built without nvcc"
else
	check "ptxas reports the kernels" test "$(grep -c 'te_k_gemm_sm90_' "$log")" -ge 5
	grep -E 'C7[0-9]{3}|[^0-9][1-9][0-9]* bytes (stack|spill)' "$log" >"$tmp/bad"
	empty "no spills, no serialized wgmma" "$tmp/bad"
fi
tap_end
