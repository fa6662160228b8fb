#!/bin/sh
# bash completes the options of the tools, their choices, and the tests of te_perftest.
. "$abs_top_srcdir/t/lib/tap.sh"

command -v bash >/dev/null || skip_all "bash is not found"
cd "$tmp" || exit 99

# completes WANT COMMAND CURRENT PREVIOUS: what the second word may be
completes()
{
	bash -c '
		. "$abs_top_srcdir/tools/completion.bash"
		PATH=$abs_top_builddir/tools:$abs_top_builddir/tools/te_train:$PATH
		PATH=$abs_top_builddir/tools/te_perftest:$PATH
		COMP_CWORD=1
		_te_tool "$1" "$2" "$3"
		echo "${COMPREPLY[*]}"' bash "$2" "$3" "$4" >got 2>&1
	echo "$1" >want
	same "$2 $4 $3: $1" want got
}

completes "--recipe" te_train --reci te_train
completes "--freeze" te_train --fr te_train
completes "bf16" te_train b --recipe
completes "step" te_train s --graph
completes "char-gpt" te_train c --preset
completes "" te_train fo te_train
completes "graph gemm" te_perftest g te_perftest
completes "--iters" te_perftest --it te_perftest
completes "cold" te_perftest co --cache
completes "gemm" te_perftest gem --call
completes "chain" te_perftest ch --algorithm
completes "--params" te_info --p te_info
completes "--per-node" te_run --pe te_run
completes "--gnuplot" te_plot --g te_plot
completes "--socket" tectl --so tectl

# a name and its choices stay on one line, where bash finds them
for t in te_export te_generate te_info te_perftest/te_perftest te_plot te_run te_token \
	te_train/te_train tectl; do
	"$(built "tools/$t")" --help | awk -v t="$t" \
		'length > 80 && !/^ +(-[a-z], )? *--[a-z-]+ [^ ]+$/ { print t ": " $0 }'
done >why 2>&1
empty "lines of --help have at most 80 columns" why

bash -c 'for f in te_info te_train; do cmp "$abs_top_srcdir/tools/completion.bash" \
	"$abs_top_builddir/tools/completion/$f" || exit; done' >why 2>&1
empty "it is installed under the name of each tool" why

tap_end
