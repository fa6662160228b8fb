#!/bin/sh
# te_generate --eval-choices: log probabilities of endings as transformers computes them, accuracies,
# and lines that are refused with the field.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

gen=$(built tools/te_generate)
cat >q <<'JSON'
{"ctx": "A man opens the door", "endings": ["and walks in.", "sings."], "label": 0}
{"ctx_a": "It rains.", "ctx_b": "she ", "endings": ["runs", "takes an old umbrella", " sits"], "label": "1"}
{"query": "Two", "choices": ["is it.", "is the number after one."], "gold": 1}

{"ctx_a": "The words of this context are more than the model has places for.", "endings": ["end", "the end of it"], "label": 1}
JSON

# by transformers 5.24 in FP32: tokens are bytes, the model has 64 positions
while read -r name want; do
	mkdir "$name"
	cp "$abs_top_srcdir/t/data/fam_$name.json" "$name/config.json"
	cp "$abs_top_srcdir/t/data/fam_$name.safetensors" "$name/model.safetensors"
	"$gen" --model "$name" --recipe fp32 --eval-choices q --json >out 2>err
	tr -d ' \n' <out >line
	sed 's/.*"logprobs":\[\(.*\)\],"tokens.*/\1/' line | tr -d '[]' | tr ',' '\n' >got
	echo "$want" | tr ' ' '\n' >all
	check "log probabilities of $name" awk 'NR == FNR { a[FNR] = $1; n = FNR; next }
		{ d = a[FNR] - $1; bad += d > 1e-3 || d < -1e-3 }
		END { exit bad || n != 9 || FNR != n }' all got
	check "accuracies of $name" grep -q '"acc":0.0,.*"acc_norm":1.0,' line
	check "contexts that lose tokens are counted" grep -q '"truncated":2,' line
done <<'EOT'
llama3 -76.61627 -37.81141 -30.11214 -120.76866 -28.97201 -35.87121 -136.09519 -20.40777 -73.64656
gemma2 -77.14400 -42.79907 -29.59850 -119.99466 -28.37716 -41.40637 -140.02967 -25.49152 -82.15599
EOT
"$gen" --model llama3 --recipe fp32 --eval-choices q --json --batch 2 2>err | grep -v per_s >got
"$gen" --model llama3 --recipe fp32 --eval-choices q --json 2>err | grep -v per_s >want
same "the batch changes nothing" want got
"$gen" --model llama3 --recipe fp32 --eval-choices q >got 2>err
echo 'questions 4, acc 0.0000 +- 0.0000, acc_norm 1.0000 +- 0.0000' >want
same "a line of text" want got
head -n 1 q >one
"$gen" --model llama3 --recipe fp32 --eval-choices one >got 2>/dev/null
echo 'questions 1, acc 0.0000, acc_norm 1.0000' >want
same "one question has no standard error" want got
check "a note on lost tokens" grep -q '^2 of 9 endings: the context lost' err

# refused WHAT LINE WORDS: after a good line and an empty one
refused()
{
	printf '{"ctx": "a", "endings": ["b", "c"], "label": 1}\n\n%s\n' "$2" >bad
	fails "$1" "bad: line 3: $3" "$gen" --model llama3 --eval-choices bad
}

refused "no JSON" '{' 'string or'
refused "no context" '{"endings": ["b", "c"], "label": 1}' '"ctx": expected a text'
refused "a context that is a number" '{"ctx": 1, "endings": ["b", "c"], "label": 1}' '"ctx"'
refused "the second part of a context" \
	'{"ctx_a": "a", "ctx_b": 2, "endings": ["b", "c"], "label": 1}' '"ctx_b"'
refused "an empty context" '{"ctx": " ", "endings": ["b", "c"], "label": 1}' '"ctx": has no tokens'
refused "no endings" '{"ctx": "a", "label": 1}' '"endings": expected a list'
refused "one choice" '{"ctx": "a", "choices": ["b"], "label": 0}' '"choices": expected a list'
refused "an empty ending" '{"ctx": "a", "endings": ["b", ""], "label": 1}' '"endings": ending 1'
refused "an ending that is a number" '{"ctx": "a", "endings": ["b", 1], "label": 1}' \
	'"endings": ending 1'
refused "no label" '{"ctx": "a", "endings": ["b", "c"]}' '"label": expected'
for label in 2 -1 1.0 '""' '"1x"' '"99999999999999999999"' null; do
	refused "label $label" '{"ctx": "a", "endings": ["b", "c"], "label": '"$label}" '"label"'
done
refused "a byte beyond the vocabulary" '{"ctx": "{", "endings": ["b", "c"], "label": 1}' 'byte 123'
long=$(printf '%0100d' 0)
refused "an ending beyond the context" \
	'{"ctx": "a", "endings": ["b", "'"$long"'"], "label": 1}' '"endings": one has 101 tokens'
: >bad
fails "no questions" "bad: has no questions" "$gen" --model llama3 --eval-choices bad
fails "a prompt and a file" "exclude each other" "$gen" --model llama3 --eval-choices q --prompt a
sed 's/"vocab_size": 123/"vocab_size": 321/' llama3/config.json >c && mkdir tokens && cp c tokens/config.json
"$te_train" --model tokens --out tokens --steps 0 --random-tokens --overwrite --seq-len 16 \
	--batch 1 --eval-batches 1 >out 2>err
fails "a model of tokens without a tokenizer" "--eval-choices: the model's vocabulary of 321" \
	"$gen" --model tokens --eval-choices q
te_token=$(built tools/te_token)
if [ -x "$te_token" ]; then
	"$te_token" train --vocab 300 -o tokens/tokenizer.json text
	check "a tokenizer" "$gen" --model tokens --eval-choices q --context 40
fi

tap_end
