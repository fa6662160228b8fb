#!/bin/sh
# Programs with graphs give the same results in whatever order edges by data let nodes run.
. "$abs_top_srcdir/t/lib/tap.sh"

# CK_RUN_CASE and others of the caller are meant for one program
unset CK_RUN_CASE CK_RUN_SUITE CK_INCLUDE_TAGS CK_EXCLUDE_TAGS TT_TAP

# one thread executes nodes in the order that was drawn; on one processor, as waking others takes time
export TE_HOST_THREADS=1
pinned=
taskset -c 0 true 2>/dev/null && pinned="taskset -c 0"

# shuffled SEED PROGRAM...
shuffled()
{
	seed=$1
	shift
	for program; do
		check "$program, TE_HOST_SHUFFLE=$seed" \
			env TE_HOST_SHUFFLE="$seed" $pinned "$abs_top_builddir/t/$program"
	done
}

# a random one besides; the name of a check that fails says which
short="capture/recording graph/bind_update graph/contract"
random=$(($(od -An -N3 -tu4 /dev/urandom) + 2))
# sanitizers see the same code in one order as in another: the short programs only
if [ -n "$TT_SANITIZE" ]; then
	shuffled $random $short
	tap_end
fi
shuffled 1 $short
shuffled $random $short graph/equivalence
# and whatever new memory holds
for program in $short; do
	check "$program, TE_HOST_POISON=on" \
		env TE_HOST_POISON=on "$abs_top_builddir/t/$program"
done
tap_end
