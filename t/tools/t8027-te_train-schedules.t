#!/bin/sh
# Learning rates of each schedule, whose length is in steps or in tokens.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

run="--model plain.json --batch 2 --recipe fp32 --eval-every 0 --eval-batches 1 --log-every 1
	--save-every 0 --lr 1e-3 --min-lr 2e-4 --warmup 2"

# rates FILE: the learning rates of a log in millionths
rates()
{
	sed -n 's/^{"step":.*"lr":\([^,]*\),.*/\1/p' "$1" |
		awk '{ printf "%s%.0f", (NR > 1 ? " " : ""), 1e6 * $1 } END { print "" }'
}

while read -r name options; do
	read -r want
	rm -f log
	check "$name" "$te_train" $run $options --log log text
	rates log >got
	echo "$want" >want
	same "$name: rates" want got
done <<'LIST'
cosine --steps 6
500 1000 1000 883 600 317
linear --steps 6 --schedule linear
500 1000 1000 800 600 400
constant --steps 6 --schedule constant
500 1000 1000 1000 1000 1000
wsd --steps 10 --schedule wsd --decay 0.5
500 1000 1000 1000 1000 1000 1000 800 600 400
tokens --tokens 161 --schedule linear
500 1000 1000 800 600 400
LIST

fails "steps and tokens exclude each other" "exclude each other" "$te_train" \
	$run --steps 5 --tokens 5 text
fails "a decay of another schedule" "decay: the schedule cosine has no" "$te_train" \
	$run --decay 0.5 text
rm -f log
check "a checkpoint" "$te_train" $run --tokens 161 --schedule wsd --decay 0.5 --stop-after 3 --out a text
cp -r a b
check "keeps the tokens" "$te_train" --resume a --log log
rates log >got
echo "1000 1000 600" >want
same "and the schedule" want got
"$te_train" --resume b --steps 4 >out 2>err
check "unless steps are given" grep -q '; 4 steps' out
"$te_train" --resume b --steps 6 --stop-after 6 >out 2>err
check "the last step is validated with --stop-after, too" grep -q '^step 6: validation' err
"$te_train" --resume b >out 2>err
check "a run without steps says so" grep -q 'nothing is left to train: step 6 of 6' err
"$te_train" --resume b --steps 9 --stop-after 5 >out 2>err
check "also for --stop-after" grep -q 'nothing is left to train: .* --stop-after is 5' err

tap_end
