#!/bin/sh
# te_train learns, reports and samples.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# below NAME A B
below()
{
	check "$1: $2 < $3" awk -v a="$2" -v b="$3" 'BEGIN { exit !(a != "" && b != "" && a < b) }'
}

learn="$micro --dropout 0 --steps 300 --batch 8 --lr 2e-3 --warmup 20 --eval-every 30"
# other builds show that the same numbers learn
[ -z "$TT_SANITIZE" ] || recipes="fp8-delayed fp32" learn="$micro --steps 60 --eval-every 30"
for r in $recipes; do
	check "$r: trains" "$te_train" $learn --recipe $r --log $r.jsonl --json text
	cp tap.out summary-$r
	[ -z "$TT_SANITIZE" ] || continue
	# 256 equally likely bytes are 5.545 nats, single bytes of this text about 2.8
	below "$r: learns" "$(sed -n 's/.*best_val_loss_nats": \([0-9.]*\).*/\1/p' tap.out)" 2
done
a=$(sed -n 's/.*best_val_loss_nats": \([0-9.]*\).*/\1/p' summary-fp32)
b=$(sed -n 's/.*best_val_loss_nats": \([0-9.]*\).*/\1/p' summary-fp8-delayed)
[ -n "$TT_SANITIZE" ] || check "FP8 is within 2 % of FP32: $b, $a" awk -v a="$a" -v b="$b" \
	'BEGIN { exit !(a > 0 && b / a < 1.02 && a / b < 1.02) }'

check "trains, with a line for each step" "$te_train" $micro --steps 40 --batch 8 --log-every 1 \
	--eval-every 10 --log each.jsonl text
check "the log begins with what ran" grep -q '^{"te_train":' fp32.jsonl
check "has losses" grep -q '^{"step":10,"train_loss_nats":' fp32.jsonl
check "with learning rate and gradient norm" grep -q \
	'^{"step":10,.*"lr":0\.[0-9]*,"grad_norm":[0-9.]*,"skipped_steps":0,' fp32.jsonl
# a busy machine makes some steps far slower than the others, but none faster
sed -n 's/.*"tokens_per_s":\([0-9.e+]*\).*/\1/p' each.jsonl | sort -g >rates
check "rates are those of steps, which are queued ahead: none is far above the median" awk '
	{ rate[NR] = $1 + 0 }
	END { exit !(NR == 40 && rate[40] < 10 * rate[20]) }' rates
check "has validations" grep -q '^{"step":30,"val_loss_nats":.*"val_bits_per_byte"' fp32.jsonl
if command -v gnuplot >/dev/null; then
	check "te_plot draws it" "$(built tools/te_plot)" -o x.svg fp32.jsonl fp8-delayed.jsonl
else
	skip "te_plot draws it" "gnuplot is not found"
fi

# the first scales of FP8 are those that a step leaves, also in a validation before any; with this
# seed no maximum is so close to a power of two that rounding in the step changes a scale
check "weights that do not change" "$te_train" $micro --recipe fp8-delayed --lr 0 --dropout 0 \
	--seed 1 --steps 1 --eval-every 1 --log still.jsonl text
sed -n 's/^{"step":[01],"val_loss_nats":\([^,]*\),.*/\1/p' still.jsonl >still
check "have one loss in both validations" test "$(wc -l <still) $(uniq still | wc -l)" = "2 1"

# micro-batches: two of 4 at half the gradient each are one of 8, up to rounding
all="$micro --dropout 0 --recipe fp32 --steps 5 --eval-batches 0 --json"
"$te_train" $all --batch 8 text >one 2>err
"$te_train" $all --accum 2 text >two 2>err
check "accumulating is one large batch" awk -v a="$(key one best_val_loss_nats)" \
	-v b="$(key two best_val_loss_nats)" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-4 && d > -1e-4) }'

gzip -c text >text.gz
"$te_train" $micro --steps 3 --json text >one 2>err
"$te_train" $micro --steps 3 --json text.gz >two 2>err
check "reads gzip" test "$(key one val_loss_nats)" = "$(key two val_loss_nats)"
"$te_train" $micro --steps 3 --json - <text >two 2>err
check "reads the standard input" test "$(key one val_loss_nats)" = "$(key two val_loss_nats)"
cat text | "$te_train" $micro --steps 3 --json - >two 2>err
check "reads a pipe" test "$(key one val_loss_nats)" = "$(key two val_loss_nats)"
sed 's/256/5000/' micro.json >wide.json
check "random tokens" "$te_train" $micro --model wide.json --random-tokens --steps 2 --json --out r
check "resumes with random tokens" "$te_train" --resume r --steps 3
check "holds out the tail" "$te_train" $micro --steps 0 --val-fraction 0.25 --dump-val tail text
n=$(wc -c <text)
tail -c $((n / 4)) text >want
check "which is what --dump-val writes" cmp want tail
cp tail before
(ulimit -f 8 && exec "$te_train" $micro --steps 0 --dump-val tail text >out 2>err)
check "a dump to a full disk: exit status 2" test $? = 2
check "the message names the file" grep -q '^te_train: tail: ' err
check "the file that was there stays" cmp before tail
ls tail* >files
echo tail >want
same "and no other is left" want files
"$te_train" $micro --steps 0 --dump-val /dev/full text >out 2>err
check "to a full device: exit status 2" test $? = 2

# a dump never replaces what the run reads
cp text kept
cp text v.txt
ln -s text link
for args in "--dump-val text text" "--dump-val link text" "--val v.txt --dump-val v.txt text" \
	"--val v.txt --dump-val text text"; do
	fails "$args" "would replace" "$te_train" $micro --steps 0 $args
done
"$te_train" $micro --steps 0 --dump-val text - <text >out 2>err
check "nor what is the standard input" test $? = 2
check "the files are as they were" cmp kept text
check "both of them" cmp kept v.txt

check "samples" "$te_train" $micro --steps 2 --out c --sample 20 --sample-first --prompt Na text
"$te_train" --resume c --sample-only --sample 50 --prompt 'The' >one 2>err
check "--sample-only writes prompt and text" test "$(wc -c <one)" = 54
"$te_train" --resume c --sample-only --sample 50 --prompt 'The' >two 2>err
same "the same seed, the same sample" one two
"$te_train" --resume c --sample-only --sample 50 --prompt 'The' --seed 2 >two 2>err
cmp -s one two && echo same >seed || : >seed
empty "another seed, another sample" seed
"$te_train" --resume c --sample-only --sample 60 --temperature 0 >one 2>err
"$te_train" --resume c --sample-only --sample 60 --temperature 0 --seed 2 >two 2>err
same "temperature 0 does not draw" one two
"$te_train" --resume c --sample-only --sample 60 --top-k 1 --temperature 2 >two 2>err
same "nor does --top-k 1" one two
"$te_train" --resume c --sample-only --sample 60 --top-p 0 --seed 2 >two 2>err
same "nor does --top-p 0" one two
"$te_train" --resume c --sample-only --sample 9 --prompt 'The' >one 2>err
"$te_train" --resume c --sample-only --sample 9 --prompt-tokens 84,104,101 >two 2>err
same "the bytes of a prompt are its tokens" one two

# a vocabulary that is not bytes: text is none of its tokens
sed 's/"vocab_size": 256/"vocab_size": 300, "bos_token_id": 298/' micro.json >words.json
words="$te_train --init words --sample-only --sample 4"
check "a model of tokens" "$te_train" $micro --model words.json --steps 1 --out words --random-tokens
"$te_train" --init words --steps 0 --batch 2 --eval-batches 1 --random-tokens --log p.jsonl \
	>out 2>err
check "its validation has a perplexity" awk '
	/validation loss/ { for (i = 1; i < NF; i++) { if ($i == "loss") l = $(i + 1)
		if ($i == "perplexity") p = $(i + 1) } }
	END { d = p / exp(l) - 1; exit !(p > 100 && d < 1e-3 && d > -1e-3) }' err
check "also in the log" grep -q '"val_perplexity":[1-9]' p.jsonl
fails "refuses text as a prompt" "--prompt: is text, but the model's vocabulary of 300" $words --prompt Hi
for list in "" 1, ,1 1,,2 '1;2' -1 x 1,2x; do
	fails "no list of tokens: \"$list\"" "--prompt-tokens: \"$list\": expected" \
		$words --prompt-tokens "$list"
done
fails "a token beyond the vocabulary" "token 300 is beyond the model's vocabulary of 300" \
	$words --prompt-tokens 1,300
fails "before anything is trained" "token 99999999999" "$te_train" $micro --steps 1000000 \
	--sample 1 --prompt-tokens 99999999999 text
$words --prompt-tokens 298 >one 2>err
check "a list of tokens is a prompt, and printed" grep -qE '^298( [0-9]+){4} $' one
$words >two 2>err
sed 's/^298 //' one >want
same "its default is bos_token_id of config.json" want two

# on a terminal the line fits
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
	for cols in 30 60 200; do
		script -qec "stty cols $cols; exec '$te_train' $micro --steps 30 text 2>&1 >/dev/null" \
			/dev/null </dev/null | tr '\r' '\n' | sed 's/.\[K//' | grep '^step [0-9]*/' >lines
		check "$cols columns: the line fits" awk -v n=$cols \
			'length($0) >= n { exit 1 } END { exit !NR }' lines
		grep -o 'GiB' lines >whole
		case $cols in
		200) check "$cols columns: all fields" test -s whole ;;
		*) empty "$cols columns: what fits" whole ;;
		esac
	done
	script -qec "exec '$te_train' $micro --steps 0 --batch 1 --val text --eval-batches 1000 \
		text 2>&1 >/dev/null" /dev/null </dev/null >lines
	check "a long validation shows a batch" grep -q 'step 0  validation, batch [0-9]* of 1000' \
		lines
else
	skip "the line fits the terminal" "script(1) is not found"
fi

check "leaves in time" "$te_train" $micro --steps 1000000 --time-limit 1 text
check "prints a plan" "$te_train" $micro --print-plan text
grep -q 'h.1.attn' tap.out
check "with its ops" test $? = 0
check "as DOT" "$te_train" $micro --print-plan dot
"$te_train" $micro --recipe fp8-delayed --out profiled text --profile >profile 2>err
check "prints a profile" grep -q 'attention: h.1.attn' profile
check "with the sum of what is lost" grep -q '  sum$' profile
"$te_train" $micro text --profile json >profile 2>err
check "as JSON" grep -q '^  {"pass": "backward", "group": ' profile
check "saves nothing" test ! -e profiled
for recipe in fp8-delayed fp8-block nvfp4; do
	for with in "" "--numerics values.$recipe"; do
		rm -f log
		"$te_train" $micro --recipe $recipe --steps 4 --eval-every 2 --log-every 1 --log log \
			$with text >out 2>err
		sed -n 's/.*"\(train\|val\)_loss_nats":\([0-9.]*\).*/\2/p' log >losses"$with"
	done
	check "$recipe: --numerics changes no loss" test -s losses
	same "at any step" losses "losses--numerics values.$recipe"
	for step in 0 2 4; do
		at="^{\"step\":$step,\"value\":\"h.1.act.dx\",\"pass\":\"backward\""
		check "step $step has casts of gradients" grep -q "$at,\"dtype\":\"e[245]m[123]\"" \
			values.$recipe
	done
done
fails "--numerics needs a folder" "no/values: No such file" \
	"$te_train" $micro --steps 1 --numerics no/values text
for m in llama qwen2; do
	cat >$m.json <<JSON
{"model_type": "$m", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
 "max_position_embeddings": 32, "tie_word_embeddings": false}
JSON
	tr -d '\200-\377' <text >ascii
	check "$m: trains" "$te_train" --model $m.json --batch 4 --steps 4 --out $m ascii
	check "$m: resumes" "$te_train" --resume $m --steps 6
	check "$m: names as in transformers" grep -q \
		'"model.layers.1.self_attn.k_proj.weight":{"dtype":"F32","shape":\[16,32\]' \
		$m/model.safetensors
	check "$m: no padding in the file" grep -q \
		'"lm_head.weight":{"dtype":"F32","shape":\[200,32\]' $m/model.safetensors
done
check "qwen2: has biases" grep -q 'model.layers.0.self_attn.q_proj.bias' qwen2/model.safetensors

tap_end
