#!/bin/sh
# A resumed run in which an allocation fails gives the result of an undisturbed one, or fails with
# one line and leaves a checkpoint that can be resumed to that result. Every 67th allocation fails,
# from a first one that differs from run to run; TT_ALL=1: all of them.
. "$abs_top_srcdir/t/lib/tap.sh"

[ -z "$TT_SANITIZE" ] || skip_all "the allocator of a sanitizer cannot be replaced"
. "$abs_top_srcdir/t/tools/te_train.sh"

fault=$abs_top_builddir/t/lib/.libs/failalloc.so
[ -f "$fault" ] || skip_all "this build has no shared libraries"
# hwloc 2.9 crashes if an allocation of its own fails: it is not asked for the number of cores
TE_HOST_THREADS=2
export TE_HOST_THREADS
files="config.json model.safetensors state.safetensors"

sed 's/"n_layer": 2/"n_layer": 1/' micro.json >one.json
head -c 4000 text >less
check "a checkpoint" "$te_train" --model one.json --recipe fp8-delayed --batch 1 --seq-len 16 \
	--eval-batches 1 --warmup 2 --steps 2 --out c less
cp -r c want
check "undisturbed" env LD_PRELOAD="$fault" FAILALLOC_COUNT=n "$te_train" --resume want --steps 4
all=$(cat n)
check "has many allocations: $all" test "$all" -gt 1000

step=67
[ "$TT_ALL" = 1 ] && step=1
n=$(($$ % step + 1))

# equal DIR: its files are those of want
equal()
{
	for f in $files; do
		cmp "$1/$f" "want/$f" 2>&1
	done
}

while [ "$n" -le "$all" ]; do
	rm -rf d
	cp -r c d
	LD_PRELOAD=$fault FAILALLOC_NTH=$n "$te_train" --resume d --steps 4 >out 2>err
	status=$?
	case $status in
	0) equal d >why ;;
	1 | 2) [ "$(grep -c '^te_train: ' err)" = 1 ] || echo "no line names the failure" >why ;;
	*) echo "exit status $status" >why ;;
	esac
	[ -s why ] && cat err >>why
	"$te_train" --resume d --steps 4 >out 2>&1 || cat out >>why
	equal d >>why
	[ -s why ] && sed "s/^/allocation $n: /" why >>bad
	rm -f why
	n=$((n + step))
done
touch bad
empty "each failure is reported, and the checkpoint remains" bad

tap_end
