#!/bin/sh
# Programs with plans pass when plans are laid out as on a GPU, where small buffers share no memory.
. "$abs_top_srcdir/t/lib/tap.sh"

# CK_RUN_CASE and others of the caller are meant for one program
unset CK_RUN_CASE CK_RUN_SUITE CK_INCLUDE_TAGS CK_EXCLUDE_TAGS TT_TAP

# on one processor: waking others takes time
export TE_HOST_THREADS=2
pinned=
taskset -c 0 true 2>/dev/null && pinned="taskset -c 0"

# sanitizers see the same code again: the short programs only
programs="plan/plan graph/graph graph/contract"
[ -z "$TT_SANITIZE" ] || programs="plan/plan graph/contract"
for program in $programs; do
	check "$program, TE_PLAN_SEPARATE=on" \
		env TE_PLAN_SEPARATE=on $pinned "$abs_top_builddir/t/$program"
done
tap_end
