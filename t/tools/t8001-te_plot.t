#!/bin/sh
# te_plot draws logs and values of --numerics as SVG, PNG or PDF through gnuplot, and reports what is
# wrong with a file.
. "$abs_top_srcdir/t/lib/tap.sh"

te_plot=$(built tools/te_plot)
cd "$tmp" || exit 99

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
{ log 1; echo '{"step":60,'; echo '{"step":70,"train_loss_nats":1}'; } >cut.jsonl
fails "a log cut short" "cut.jsonl: line 9" "$te_plot" -o x.svg good.jsonl cut.jsonl
{ log 1; echo '{"step":"x","train_loss_nats":1}'; } >bad.jsonl
fails "a step that is no number" "bad.jsonl: line 9" "$te_plot" -o x.svg bad.jsonl
echo '{"a":1}' >foreign.jsonl
fails "a file of another kind" "foreign.jsonl: line 1" "$te_plot" -o x.svg foreign.jsonl
echo '{"te_train":"0.1.0"}' >none.jsonl
fails "a log without losses" "none.jsonl" "$te_plot" -o x.svg none.jsonl
fails "no gnuplot" "./no-gnuplot" "$te_plot" --gnuplot ./no-gnuplot -o x.svg good.jsonl
fails "a suffix of no format" "x.jpg: the name must end in" "$te_plot" -o x.jpg good.jsonl
fails "a folder that is not there" "no/x.svg" "$te_plot" -o no/x.svg good.jsonl
printf '#!/bin/sh\nexit 3\n' >broken && chmod +x broken
"$te_plot" --gnuplot ./broken -o x.svg good.jsonl 2>err
check "a gnuplot that fails is a failure" test $? = 1
printf '#!/bin/sh\nhead -c 100000 /dev/zero 2>/dev/null\nexit 0\n' >much && chmod +x much
fails "a full disk" "x.svg: File too large" sh -c 'ulimit -f 16; exec "$@"' sh \
	"$te_plot" --gnuplot ./much -o x.svg good.jsonl
ls x.svg* >left 2>/dev/null
empty "failures leave no file behind" left

# a fake gnuplot that saves its commands shows what would be drawn
printf '#!/bin/sh\ntee commands\n' >spy && chmod +x spy
{ log 1; echo '{"te_train":"0.1.0","from_step":30}'
	echo '{"step":40,"train_loss_nats":9}'; } >"it's \"two\".jsonl"
check "draws with a stand-in" "$te_plot" --gnuplot ./spy --title 'a "b"' -o x.svg good.jsonl \
	"it's \"two\".jsonl"
check "has the title" grep -qF "set title 'a \"b\"'" commands
check "names runs by file" grep -qF "'it''s \"two\", validation'" commands
check "plots points" grep -q '^20 4.1$' commands
# validation is what runs are compared by: its lines are thicker, opaque, and over those of training
tr '\n' ' ' <commands | sed 's/.*EOD plot //; s/, \\ */\n/g' >curves
awk '{ for (i = 1; i < NF; i++) {
		if ($i == "lw")
			width[NR] = $(i + 1)
		if ($i == "rgb")
			digits = length($(i + 1)) - 3
	}
}
/\$train/ && width[NR] > thin { thin = width[NR] }
/\$val/ && (!thick || width[NR] < thick) { thick = width[NR] }
/\$train/ && thick { print "training over validation" }
/\$train/ && digits != 8 { print "opaque training" }
/\$val/ && digits != 6 { print "transparent validation" }
END { if (!(thick >= 3 * thin) || NR != 4) print NR " curves, " thin " and " thick " wide" }' curves >why
empty "validation stands out" why
sed -n '/^\$train1/,/^EOD/p' commands >train1
printf '$train1 << EOD\n10 5.1\n20 4.1\n30 3.1\n40 9\nEOD\n' >want
same "a resumed run replaces what it repeats" want train1
rm -f x.svg

# a run that was killed while it wrote its log
{ log 1; printf '{"step":60,"train_lo'; } >torn.jsonl
"$te_plot" --gnuplot ./spy -o x.svg torn.jsonl 2>err
check "a torn last line is ignored" test $? = 0
check "and told" grep -qF 'torn.jsonl: line 9, the last, is incomplete' err
check "what is before it is drawn" grep -q '^50 1.1$' commands
printf '{"te_train":"0.' >torn1.jsonl
fails "a log that is torn in its first line" "torn1.jsonl: line 1" "$te_plot" -o x.svg torn1.jsonl

# what the output is
"$te_plot" --gnuplot ./spy -o - good.jsonl >out
same "- is standard output" commands out
mkfifo pipe && { cat pipe >out & }
"$te_plot" --gnuplot ./spy -o pipe good.jsonl
wait
same "a pipe gets the picture" commands out
check "and stays a pipe" test -p pipe
check "a device too" "$te_plot" --gnuplot ./spy -o /dev/null good.jsonl
check "which stays one" test -c /dev/null
echo old >real.svg && ln -s real.svg link.svg
"$te_plot" --gnuplot ./spy -o link.svg good.jsonl
check "a link stays one" test -L link.svg
same "and what it names is replaced" commands real.svg
echo mine >y.svg.new
"$te_plot" --gnuplot ./spy -o y.svg good.jsonl
echo mine >want
same "no other file is written" want y.svg.new
(umask 027; "$te_plot" --gnuplot ./spy -o mode.svg good.jsonl)
check "the umask holds" test "$(stat -c %a mode.svg)" = 640
for kind in svg:svg png:pngcairo pdf:pdfcairo; do
	"$te_plot" --gnuplot ./spy -o "p.${kind%:*}" good.jsonl
	check ".${kind%:*}" grep -q "^set terminal ${kind#*:} " commands
done
rm -f ./*.svg p.*

# values of --numerics: row STEP VALUE PASS DTYPE SATURATED UNDERFLOW AMAX SCALE NAN
row()
{
	echo "{\"step\":$1,\"value\":\"$2\",\"pass\":\"$3\",\"dtype\":\"$4\",\"elements\":1000," \
		"\"nan\":$9,\"infinite\":0,\"zero\":5,\"saturated\":$5,\"underflow\":$6," \
		"\"amax\":$7,\"scale_inv\":$8}"
}
for step in 0 10 20 30; do
	row $step a.y forward bf16 0 0 $step.5 0 0
	row $step a.y forward e4m3 $((step / 10)) 1 $step.5 0.25 0
	for i in 1 2 3 4 5 6 7 8; do
		row $step h.$i.dx backward e5m2 0 ${i}0 0.$i 0 0
	done
done >values
"$te_plot" --numerics --gnuplot ./spy -o x.svg values 2>err
check "draws values" test $? = 0
check "of 10 the 7 that saturate or become 0 most" grep -q '^7 of 10 values are drawn' err
sed -n "s/.* title '\(.*\)'.*/\1/p" commands >got
for i in 8 7 6 5 4 3 2; do echo "h.$i.dx backward e5m2"; done >want
same "and names them" want got
sed -n '/^\$underflow0/,/^EOD/p' commands >got
printf '$underflow0 << EOD\n0 0.08\n10 0.08\n20 0.08\n30 0.08\nEOD\n' >want
same "shares of elements" want got
check "values without a scale have no panel of it" test "$(grep -c '^\$scale' commands)" = 0
check "has three panels and the names" grep -q '^set multiplot layout 4,1' commands
check "chosen values" "$te_plot" --numerics --values 'a.y *' --title "it's" --gnuplot ./spy -o x.svg \
	values
check "have a title" grep -qF "set multiplot layout 5,1 title 'it''s'" commands
sed -n '/^\$amax1/,/^EOD/p; /^\$scale1/,/^EOD/p; /^\$saturated1/,/^EOD/p' commands >got
cat >want <<'DATA'
$amax1 << EOD
0 0.5
10 10.5
20 20.5
30 30.5
EOD
$scale1 << EOD
0 0.25
10 0.25
20 0.25
30 0.25
EOD
$saturated1 << EOD
0 0
10 0.001
20 0.002
30 0.003
EOD
DATA
same "magnitudes, scales and shares" want got
check "a value without a cast has one panel" test "$(grep -c '0 <<' commands)" = 1
{
	cat values
	row 20 a.y forward bf16 0 0 7 0 0
	row 30 a.y forward bf16 0 0 null 0 4
	row 30 a.y forward e4m3 0 0 1 1 9
	printf '{"step":40,"val'
} >bad
"$te_plot" --numerics --values 'a.y forward bf16' --gnuplot ./spy -o x.svg bad 2>err
check "with a torn line" grep -q 'bad: line 44, the last, is incomplete: ignored' err
sed -n '/^\$amax0/,/^EOD/p' commands >got
printf '$amax0 << EOD\n0 0.5\n10 10.5\n20 7\nEOD\n' >want
same "later lines replace, NaN has no point" want got
check "the first NaN has a line" grep -q '^set arrow 1 from 30, ' commands
check "with its value" grep -qF "'step 30: not finite first: a.y forward bf16'" commands
"$te_plot" --numerics --gnuplot ./spy -o x.svg bad 2>err
check "which is drawn" grep -qF "'a.y forward bf16'" commands
rm -f x.svg
fails "a log is no file of values" "good.jsonl: line 1: not a value of te_train --numerics" \
	"$te_plot" --numerics -o x.svg good.jsonl
fails "values are no log" "values: line 1: not the first line" "$te_plot" -o x.svg values
row 1 a.y forward bf16 0 0 '"x"' 0 0 >word
fails "a magnitude that is no number" "word: line 1: amax is not" "$te_plot" --numerics -o x.svg word
: >none
fails "no values" "none: no values" "$te_plot" --numerics -o x.svg none
fails "no value that matches" 'matches none of 10 values, such as "a.y forward bf16"' \
	"$te_plot" --numerics --values b -o x.svg values
fails "two files of values" "--numerics: 2 files" "$te_plot" --numerics -o x.svg values values
fails "--values of logs" "--values needs --numerics" "$te_plot" --values a -o x.svg good.jsonl
ls x.svg* >left 2>/dev/null
empty "these leave no file behind" left

if command -v gnuplot >/dev/null; then
	"$te_plot" --numerics -o values.svg bad 2>err
	check "draws values with gnuplot" test $? = 0
	printf '%s\n' "7 of 10 values" "te_plot: bad: line 44" >want
	sed 's/ are drawn.*//; s/, the last.*//' err | sort >got
	same "which has no complaint" want got
	check "and the result is SVG" grep -q 'a.y forward bf16' values.svg
	check "draws one run" "$te_plot" -o one.svg good.jsonl
	check "the result is SVG" grep -q '<svg' one.svg
	check "with both curves" grep -q 'good, validation' one.svg
	log 7 >other.jsonl
	check "draws two runs" "$te_plot" --title T -o two.svg good.jsonl other.jsonl
	check "and both are there" grep -q 'other, training' two.svg
	log 3 >'`touch executed`.jsonl'
	check "a name in backquotes" "$te_plot" --title '`touch executed`$(touch executed)' \
		-o three.svg '`touch executed`.jsonl'
	check "runs no command" test ! -e executed
	check "and is the name" grep -qF '`touch executed`, training' three.svg
	if echo 'set terminal pngcairo' | gnuplot 2>/dev/null; then
		check "draws PNG" "$te_plot" -o one.png good.jsonl
		printf '\211PNG' >want
		head -c 4 one.png >got
		same "which is PNG" want got
		check "draws PDF" "$te_plot" -o one.pdf good.jsonl
		check "which is PDF" grep -q '^%PDF' one.pdf
	else
		skip "draws PNG and PDF" "this gnuplot has no Cairo"
	fi
else
	skip "draws with gnuplot" "gnuplot is not found"
fi

tap_end
