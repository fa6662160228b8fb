#!/bin/sh
# The device code of each level is machine code and PTX of that level only, and libtecore is as small
# as doc/gpus.md says.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$abs_top_builddir" || exit 99
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
ls kernels/*/*.fatbin[89][0-9] >"$tmp/images" 2>"$tmp/err"

# targets IMAGE: the architectures of its machine code
targets()
{
	cuobjdump -lelf "$1" 2>>"$tmp/err" | grep -o '\.sm_[0-9]*' | sort -u
}

# instructions that no GPU below 9.0 has, as nvdisasm and cuobjdump print them: clusters, their
# barriers and shared memory, TMA, mbarriers, wgmma, programmatic launch
hopper='[[:space:]](UCGABAR|HGMMA|QGMMA|UTMA|SYNCS|ACQBULK|PREEXIT|WARPGROUP|MAPA|LDGMC)'
# and below 8.9: conversions to and from FP8, mma of FP8
fp8='[[:space:]](QMMA|F2FP[.A-Z0-9_]*\.E[45]M[32])'

for f in kernels/*/*.[89][0-9].ptx; do
	level=${f%.ptx}
	[ ! -f "$f" ] || grep -qx "\.target sm_${level##*.}" "$f" || echo "$f"
done >"$tmp/bad"
empty "the PTX of each level is of that level" "$tmp/bad"
if [ ! -s "$tmp/images" ]; then
	skip "levels of device code" "built without nvcc"
elif ! command -v cuobjdump >"$tmp/out" 2>&1; then
	skip "levels of device code" "there is no cuobjdump"
else
	while read -r f; do
		level=${f##*.fatbin}
		targets "$f" | grep -vx "\.sm_$level" | sed "s,^,$f: ,"
		[ -n "$(targets "$f")" ] || echo "$f: no device code"
	done <"$tmp/images" >"$tmp/bad"
	empty "the code of each level is of that level" "$tmp/bad"
	for f in kernels/*/*.fatbin8[0-9]; do
		[ -f "$f" ] || continue
		newer=$hopper
		[ "${f##*.fatbin}" = 89 ] || newer="$hopper|$fp8"
		cuobjdump -sass "$f" 2>>"$tmp/err" | grep -m1 -E "$newer" | sed "s,^,$f: ,"
	done >"$tmp/bad"
	empty "no instruction of a newer level is in it" "$tmp/bad"
	if [ -f kernels/gemm/sm90.fatbin90 ]; then
		cuobjdump -sass kernels/gemm/sm90.fatbin90 >"$tmp/sass" 2>"$tmp/err"
		check "such instructions are found in level 9.0" grep -qE "$hopper" "$tmp/sass"
	fi
	if [ -f kernels/quant/quant.fatbin89 ]; then
		cuobjdump -sass kernels/quant/quant.fatbin89 >"$tmp/sass" 2>"$tmp/err"
		check "FP8 instructions are found in level 8.9" grep -qE "$fp8" "$tmp/sass"
	fi
	: >"$tmp/bad"
	if cp libtecore/.libs/libtecore.so "$tmp/lib" 2>>"$tmp/err" && strip "$tmp/lib"; then
		n=$(wc -c <"$tmp/lib")
		[ "$n" -le 16000000 ] || echo "$n bytes" >"$tmp/bad"
	fi
	empty "libtecore has at most 16 MB" "$tmp/bad"
fi
tap_end
