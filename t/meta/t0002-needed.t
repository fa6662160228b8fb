#!/bin/sh
# Everything loads on a machine without a GPU, its driver or its network.
. "$abs_top_srcdir/t/meta/common.sh"

for l in $libs; do
	$READELF -d "$(so $l)" >"$tmp/dynamic"
	check "$l.so can be read" grep -q "SONAME.*$l\.so" "$tmp/dynamic"
	grep NEEDED "$tmp/dynamic" | grep -iE 'cuda|cublas|nvidia|nvml|nccl|verbs|rdma|pmix' >"$tmp/bad"
	empty "$l needs no CUDA, NCCL, verbs or PMIx library" "$tmp/bad"
	$NM -D --undefined-only "$(so $l)" | grep -E ' (cu[A-Z]|cuda[A-Z]|nccl[A-Z]|ibv_)' >"$tmp/bad"
	empty "$l calls no such library directly" "$tmp/bad"
done

tap_end
