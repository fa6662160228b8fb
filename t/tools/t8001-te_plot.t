#!/bin/sh
# te_plot draws logs as SVG through gnuplot, and reports what is wrong with a log.
. "$abs_top_srcdir/t/lib/tap.sh"

te_plot=$abs_top_builddir/tools/te_plot
cd "$tmp" || exit 99

# fails NAME SUBJECT COMMAND...: exit 2, one line on stderr that names the subject
fails()
{
	name=$1 subject=$2
	shift 2
	"$@" >out 2>err
	status=$?
	{
		[ $status = 2 ] || echo "exit status $status"
		[ "$(wc -l <err)" = 1 ] || echo "not one line"
		grep -qF -- "$subject" err || echo "no \"$subject\""
		[ -s out ] && echo "output on stdout"
	} >why
	[ -s why ] && cat err >>why
	empty "$name" why
}

# log RUN: a log as te_train writes it
log()
{
	echo '{"te_train":"0.1.0","recipe":"bf16"}'
	echo '{"step":0,"val_loss_nats":5.5,"val_bits_per_byte":7.9}'
	for i in 1 2 3 4 5; do
		echo "{\"step\":${i}0,\"train_loss_nats\":$((6 - i)).$1,\"lr\":0.001}"
	done
	echo '{"step":50,"val_loss_nats":1.5}'
}

check "--help" "$te_plot" --help
check "--version" "$te_plot" --version
fails "an unknown option" "--frob" "$te_plot" --frob
fails "no output" "-o" "$te_plot" run.jsonl
fails "no logs" "no log given" "$te_plot" -o x.svg
fails "a log that is not there" "missing.jsonl" "$te_plot" -o x.svg missing.jsonl
log 1 >good.jsonl
{ log 1; echo '{"step":60,'; } >cut.jsonl
fails "a log cut short" "cut.jsonl: line 9" "$te_plot" -o x.svg good.jsonl cut.jsonl
{ log 1; echo '{"step":"x","train_loss_nats":1}'; } >bad.jsonl
fails "a step that is no number" "bad.jsonl: line 9" "$te_plot" -o x.svg bad.jsonl
echo '{"a":1}' >foreign.jsonl
fails "a file of another kind" "foreign.jsonl: line 1" "$te_plot" -o x.svg foreign.jsonl
echo '{"te_train":"0.1.0"}' >none.jsonl
fails "a log without losses" "none.jsonl" "$te_plot" -o x.svg none.jsonl
fails "no gnuplot" "./no-gnuplot" "$te_plot" --gnuplot ./no-gnuplot -o x.svg good.jsonl
fails "a folder that is not there" "no/x.svg" "$te_plot" -o no/x.svg good.jsonl
printf '#!/bin/sh\nexit 3\n' >broken && chmod +x broken
"$te_plot" --gnuplot ./broken -o x.svg good.jsonl 2>err
check "a gnuplot that fails is a failure" test $? = 1
ls x.svg* >left 2>/dev/null
empty "failures leave no file behind" left

# a fake gnuplot that saves its commands shows what would be drawn
printf '#!/bin/sh\ntee commands\n' >spy && chmod +x spy
{ log 1; echo '{"te_train":"0.1.0","from_step":30}'
	echo '{"step":40,"train_loss_nats":9}'; } >"it's \"two\".jsonl"
check "draws with a stand-in" "$te_plot" --gnuplot ./spy --title 'a "b"' -o x.svg good.jsonl \
	"it's \"two\".jsonl"
check "has the title" grep -qF 'set title "a \"b\""' commands
check "names runs by file" grep -qF '"it'\''s \"two\", validation"' commands
check "plots points" grep -q '^20 4.1$' commands
sed -n '/^\$train1/,/^EOD/p' commands >train1
printf '$train1 << EOD\n10 5.1\n20 4.1\n30 3.1\n40 9\nEOD\n' >want
same "a resumed run replaces what it repeats" want train1
rm -f x.svg

if command -v gnuplot >/dev/null; then
	check "draws one run" "$te_plot" -o one.svg good.jsonl
	check "the result is SVG" grep -q '<svg' one.svg
	check "with both curves" grep -q 'good, validation' one.svg
	log 7 >other.jsonl
	check "draws two runs" "$te_plot" --title T -o two.svg good.jsonl other.jsonl
	check "and both are there" grep -q 'other, training' two.svg
else
	skip "draws with gnuplot" "gnuplot is not found"
fi

tap_end
