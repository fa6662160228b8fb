#!/bin/sh
# The instructions on multicast memory are in the built image of nvls.cu, and in no other; and
# the library names the driver's functions for multicast in one table only.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$abs_top_srcdir" || exit 99
grep -rlE 'cuMulticast[A-Z]' libtecore libtecomm libtegraph kernels tools include | sort >"$tmp/got"
printf '%s\n' libtecore/backend/cuda/driver.c libtecore/backend/cuda/multicast.def \
	libtecore/backend/cuda/share.c >"$tmp/want"
same "functions for multicast are named in their table and its users" "$tmp/want" "$tmp/got"

# sass FATBIN: its instructions, each function after a line with its name
sass()
{
	cuobjdump -sass "$1" 2>"$tmp/err" |
		sed -n 's/^[[:space:]]*Function : /&/p; s,^[[:space:]]*/\*[0-9a-f]*\*/[[:space:]]*,,p'
}

# has NAME FUNCTION PATTERN: the function has such an instruction
has()
{
	awk -v f="$2" '/Function : / { on = $3 == f } on' "$tmp/nvls" >"$tmp/function"
	check "$1" grep -q "$3" "$tmp/function"
}

m=te_k_comm_allreduce_nvls
fatbin=$abs_top_builddir/kernels/comm/nvls.fatbin90
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [ ! -s "$fatbin" ]; then
	skip "instructions in $m" "built without nvcc, or not for 9.0"
elif ! command -v cuobjdump >"$tmp/out" 2>&1; then
	skip "instructions in $m" "there is no cuobjdump"
else
	sass "$fatbin" >"$tmp/nvls"
	has "multimem.ld_reduce of FP32" $m 'LDGMC.*ADD.F32x4'
	has "multimem.ld_reduce of BF16 in FP32" $m 'LDGMC.*F32ADD.BF16x8'
	has "multimem.ld_reduce of FP16 in FP32" $m 'LDGMC.*F32ADD.F16x8'
	has "multimem.red of the exit flags" $m 'RED[A-Z]*\..*AND.*SYS'
	has "multimem.st of results" $m 'STG.*128.*SYS\|STG.*SYS.*128\|STGMC'
	has "multimem.st of packets by halves" ${m}_oneshot 'STG.*64.*SYS\|STGMC'
	for f in "$abs_top_builddir"/kernels/*/*.fatbin[89][0-9]; do
		[ "$f" = "$fatbin" ] && continue
		sass "$f" | grep -m1 LDGMC | sed "s,^,$f: ,"
	done >"$tmp/bad"
	empty "no other image has them" "$tmp/bad"
fi
tap_end
