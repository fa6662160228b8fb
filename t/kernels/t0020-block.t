#!/bin/sh
# GEMMs of gemm/block.cu run on the host, one fiber a thread of the GPU, and give the bits of plain
# loops.
. "$abs_top_srcdir/t/lib/tap.sh"

why="no C++ compiler for this machine${TT_SANITIZE:+, or fibers with sanitizers}"
I="-I$abs_top_srcdir -I$abs_top_srcdir/include -I$abs_top_builddir -I$abs_top_builddir/include"
seed=${TT_SEED:-$(date +%s)}
[ -z "$TT_SANITIZE" ] || CXX=''
[ -z "$CXX" ] || [ "$($CXX -dumpmachine)" = "$($CC -dumpmachine)" ] || CXX=''

if [ -z "$CXX" ]; then
	skip "emulated GEMMs" "$why"
else
	check "t/kernels/block.cc compiles" $CXX -std=gnu++17 -O1 -w -ffp-contract=off $I \
		-o "$tmp/block" "$abs_top_srcdir/t/kernels/block.cc"
	if "$tmp/block" "$seed" >"$tmp/out" 2>&1; then
		ok "emulated GEMMs are right"
	else
		echo "TT_SEED=$seed repeats it" >>"$tmp/out"
		not_ok "emulated GEMMs are right" "$tmp/out"
	fi
fi
tap_end
