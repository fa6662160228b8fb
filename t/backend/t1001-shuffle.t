#!/bin/sh
# Programs with graphs give the same results in whatever order edges by data let nodes run.
. "$abs_top_srcdir/t/lib/tap.sh"

# CK_RUN_CASE and others of the caller are meant for one program
unset CK_RUN_CASE CK_RUN_SUITE CK_INCLUDE_TAGS CK_EXCLUDE_TAGS TT_TAP

# shuffled SEED PROGRAM...
shuffled()
{
	seed=$1
	shift
	for program; do
		check "$program, TE_HOST_SHUFFLE=$seed" \
			env TE_HOST_SHUFFLE="$seed" "$abs_top_builddir/t/$program"
	done
}

# a random one besides; the name of a check that fails says which
programs="capture/recording graph/bind_update graph/graph graph/contract"
# sanitizers see the same code in one order as in another: the short programs only
if [ -n "$TT_SANITIZE" ]; then
	programs="capture/recording graph/bind_update graph/contract"
	shuffled $(($(od -An -N3 -tu4 /dev/urandom) + 2)) $programs
	tap_end
fi
shuffled 1 $programs
shuffled $(($(od -An -N3 -tu4 /dev/urandom) + 2)) $programs graph/equivalence
tap_end
