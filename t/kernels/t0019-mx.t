#!/bin/sh
# Kernels of quant/mx.cu run on the host, one fiber a thread of the GPU, and give the bits of the
# reference functions; and ptxas has spilled no registers of them.
. "$abs_top_srcdir/t/lib/tap.sh"

why="no C++ compiler for this machine${TT_SANITIZE:+, or fibers with sanitizers}"
I="-I$abs_top_srcdir -I$abs_top_srcdir/include -I$abs_top_builddir -I$abs_top_builddir/include"
seed=${TT_SEED:-$(date +%s)}
[ -z "$TT_SANITIZE" ] || CXX=''
[ -z "$CXX" ] || [ "$($CXX -dumpmachine)" = "$($CC -dumpmachine)" ] || CXX=''

if [ -z "$CXX" ]; then
	skip "emulated casts" "$why"
else
	objs=
	for f in quant/nvfp4 quant/quant ref simd; do
		o=$tmp/$(basename $f).o
		check "kernels/$f.c compiles" $CC -std=gnu11 -O1 -ffp-contract=off $I -c \
			"$abs_top_srcdir/kernels/$f.c" -o "$o"
		objs="$objs $o"
	done
	check "t/kernels/mx.cc compiles" $CXX -std=gnu++17 -O1 -w -ffp-contract=off $I \
		-o "$tmp/mx" "$abs_top_srcdir/t/kernels/mx.cc" $objs
	if "$tmp/mx" "$seed" 40 >"$tmp/out" 2>&1; then
		ok "emulated casts are right and end"
	else
		echo "TT_SEED=$seed repeats it" >>"$tmp/out"
		not_ok "emulated casts are right and end" "$tmp/out"
	fi
fi

log=$abs_top_builddir/kernels/quant/mx.fatbin90.log
if [ ! -s "$log" ]; then
	skip "registers of quant/mx.cu" "built without nvcc"
else
	grep -E '[^0-9][1-9][0-9]* bytes (stack|spill)' "$log" >"$tmp/bad"
	empty "quant/mx.cu: no spills" "$tmp/bad"
fi
tap_end
