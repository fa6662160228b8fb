#!/bin/sh
# te_train --eval-choices: a trained model prefers right endings, as often as te_generate finds with
# its checkpoint, on one rank or several, and bad questions are refused before the first step.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

gen=$(built tools/te_generate)
sed 's/"n_positions": 32/"n_positions": 64/' micro.json >model.json
run="--model model.json --dropout 0 --batch 4 --seq-len 32 --warmup 2 --lr 1e-2 --eval-batches 1
	--steps 24 --eval-every 12 --save-every 0"

# the third word of a line against words of an earlier line
awk 'NR % 50 == 1 && NF > 4 && n < 40 {
	label = n++ % 3
	printf "{\"ctx\": \"%s %s\", \"endings\": [", $1, $2
	for (i = 0; i < 3; i++)
		printf "%s\"%s\"", i ? ", " : "", i == label ? $3 : i == (label + 1) % 3 ? a : b
	printf "], \"label\": %d}\n", label
	a = $5
	b = $4 " " $5
}
BEGIN { a = "the"; b = "of it" }' text >hard
# that word against letters that the text does not have
awk 'NR % 50 == 1 && NF > 4 && n < 12 {
	other = $3
	gsub(/./, "Q", other)
	label = n++ % 2
	printf "{\"ctx\": \"%s %s\", \"endings\": [\"%s\", \"%s\"], \"label\": \"%d\"}\n", $1, $2,
		label ? other : $3, label ? $3 : other, label
}' text >easy

# agrees NAME RECIPE STEP: the accuracies of that step in err, with te_generate and ck
agrees()
{
	agrees_name=$1
	"$gen" --model ck --recipe "$2" --eval-choices hard 2>/dev/null |
		sed 's/^questions \([0-9]*\), acc \([0-9.]*\) .*acc_norm \([0-9.]*\) .*/acc \2, acc_norm \3 of \1 questions/' >want
	sed -n 's/^step '"$3"': \(acc .*\)/\1/p' err >got
	same "$agrees_name: as te_generate finds" want got
	check "of all questions" grep -q 'of 40 questions' want
}

# train NAME ARGUMENT...: out and err, and a check of the status
train()
{
	train_name=$1
	shift
	check "$train_name" sh -c '"$0" "$@" >out 2>err' "$te_train" "$@"
}

train "easy questions" $run --recipe fp32 --eval-choices easy --log log --json --out easy.out text
check "are known after training" grep -q '"step":24,.*"choices":{"acc":1.0,"acc_norm":1.0,"questions":12}' log
check "and not before" grep -q '"step":0,.*"choices":{"acc":0\.[0-9]*,"acc_norm":0\.[0-9]*,"questions":12}' log
check "at each validation" test "$(grep -c '"choices":{' log)" = 3
tr -d ' \n' <out >line
check "the summary has the last" grep -q '"choices":{"acc":1.0,"acc_norm":1.0,"questions":12}' line

for r in $recipes; do
	plain=bf16
	[ $r != fp32 ] || plain=fp32
	"$te_train" $run --recipe $r --eval-choices hard --overwrite --out ck text >/dev/null 2>err
	agrees $r $plain 24
done
train "a graph, moments and weights in BF16" $run --graph --moments bf16 --masters bf16 \
	--eval-choices hard --overwrite --out ck text
agrees "a graph" bf16 24
sed 's/"max_position_embeddings": 16/"max_position_embeddings": 64/' plain.json >rotary.json
train "documents, chunks of logits" --model rotary.json --seq-len 32 --batch 2 \
	--documents end --loss-chunk 16 --steps 4 --eval-batches 1 --eval-choices hard --overwrite \
	--out ck text
agrees documents bf16 4
cp -r ck base
train "adapters" --init base --lora rank=2 --seq-len 32 --batch 2 --steps 4 --lr 1e-2 \
	--eval-batches 1 --eval-choices hard --out adapter text
"$gen" --model base --adapter adapter --eval-choices hard 2>/dev/null >all
near "adapters: accuracy of the merged model" "$(sed 's/.*acc \([0-9.]*\) .*acc_norm.*/\1/' all)" \
	"$(sed -n 's/^step 4: acc \([0-9.]*\),.*/\1/p' err)" 0.026
check "three ranks" ranks 3 $run --steps 12 --eval-choices hard --overwrite --out ck text
agrees "three ranks" bf16 12
# 40 questions, in rounds of 16 of each rank
train "a resumed run answers the same questions" --resume ck --steps 13
agrees "a resumed run" bf16 13
train "or none" --resume ck --steps 14 --eval-choices ''
check "so there is no accuracy" test "$(grep -c acc_norm err)" = 0

# refused NAME MESSAGE LINE: after a good line, before a step and before --out is made
refused()
{
	{ head -n 1 easy; printf '%s\n' "$3"; } >bad
	rm -rf no
	fails "$1" "$2" "$te_train" $run --eval-choices bad --out no text
	check "$1: nothing was trained" test ! -e no
}

refused "a broken line" 'bad: line 2: ' '{"ctx": "a", "endings": ["b"'
refused "a label out of range" 'bad: line 2: "label": expected the number of an ending, 0 to 1' \
	'{"ctx": "a", "endings": ["b", "c"], "label": 2}'
refused "no endings" 'bad: line 2: "endings": expected a list' '{"ctx": "a", "label": 0}'
fails "no file" "no-such-file: " "$te_train" $run --eval-choices no-such-file text
: >bad
fails "no questions" "bad: has no questions" "$te_train" $run --eval-choices bad text
fails "a head in FP8" "--eval-choices needs a head that is not in FP8" "$te_train" $run \
	--head-recipe fp8-current --eval-choices easy text
fails "ranks that divide a model" "--eval-choices needs whole models, --tensor is 2" "$te_train" \
	$run --tensor 2 --eval-choices easy text
fails "stages" "--pipeline: --eval-choices is not possible" "$te_train" $run --pipeline 2 \
	--eval-choices easy text

tap_end
