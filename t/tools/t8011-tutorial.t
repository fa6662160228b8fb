#!/bin/sh
# The commands of te_tutorial(7) work in the order in which they stand there, shortened.
. "$abs_top_srcdir/t/lib/tap.sh"

unset CK_RUN_CASE
PATH=$abs_top_builddir/tools:$abs_top_builddir/tools/te_train:$PATH
TE_BACKEND=host
export PATH TE_BACKEND
cd "$tmp" || exit 99

cat "$abs_top_srcdir"/man/te_[a-c]*.3 >text.txt
cat "$abs_top_srcdir"/man/te_[d-g]*.3 >other.txt

awk -f "$abs_top_srcdir/t/lib/commands.awk" "$abs_top_srcdir/man/te_tutorial.7" >commands
check "the page has commands" test "$(wc -l <commands)" -ge 8
while read -r command; do
	case $command in
	zcat*) continue ;; # the text is given
	cp* | cc* | ./*) continue ;; # make installcheck runs these
	te_plot*)
		if ! command -v gnuplot >/dev/null; then
			skip "$command" "gnuplot is not found"
			continue
		fi
		;;
	esac
	short=$(echo "$command" | sed -e 's/--time-limit 120/--steps 4/' \
		-e 's/--steps 200/--steps 4/' -e 's/--stop-after 100/--stop-after 2/' \
		-e 's/--stop-after 200/--stop-after 4/' -e 's/--sample 300/--sample 5/')
	case $short in *"--sample"* | te_plot*) ;; te_train* | te_run*)
		short="$short --batch 2 --seq-len 32 --eval-batches 1 --log-every 1" ;;
	esac
	check "$command" sh -c "$short"
done <commands
check "a model was trained" test -s run/model.safetensors
check "and tuned" test -s tuned/model.safetensors

tap_end
