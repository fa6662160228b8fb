#!/bin/sh
# te_generate continues prompts as te_train does, in batches and alone, and refuses bad input.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

gen=$(built tools/te_generate)
"$te_train" $micro --steps 100 --out c text >out 2>err
check "a model" test -s c/config.json

# the context of the model is 32: te_train computes all of it at each token
for recipe in bf16 fp32; do
	"$te_train" --init c --recipe $recipe --sample-only --sample 24 --temperature 0 \
		--prompt 'The' >want 2>err
	check "greedy text of $recipe" "$gen" --model c --recipe $recipe --prompt 'The' -n 24
	cp tap.out out
	grep -v '^prompts: ' out >got
	same "is what te_train samples in $recipe" want got
done

# the model of the file has weights drawn at random: its tokens are compared, not its text
gguf=$abs_top_srcdir/t/data/llama.gguf
"$te_train" --init "$gguf" --out l --steps 0 text >out 2>err
check "a folder of the model of a GGUF file" test -s l/config.json
for m in "$gguf" l; do
	"$gen" --model "$m" --recipe fp32 --prompt-tokens 84,104 -n 9 --temperature 1 --json 2>err |
		grep -v per_s >"tokens.$(basename "$m")"
done
check "a GGUF file is a model" grep -q '"decoded_tokens": 8' tokens.llama.gguf
same "with the tokens of that folder" tokens.l tokens.llama.gguf

cat >prompts <<'JSON'
{"prompt": "The"}
{"tokens": [84, 104]}

{"prompt": "With a"}
{"prompt": "Of"}
JSON
how="--model c -n 12 --temperature 0.8 --top-k 20 --top-p 0.95 --min-p 0.01
	--repetition-penalty 1.1"
"$gen" $how --file prompts --batch 3 >batch 2>err
check "a line on tokens a second" grep -q '^prompts: 13 tokens' err
i=1337
: >alone
for p in 'The' 'Th' 'With a' 'Of'; do
	"$gen" $how --prompt "$p" --seed $i >>alone 2>err
	i=$((i + 1))
done
same "a batch has the texts of each prompt alone" alone batch
for n in 1 3; do
	"$gen" $how --cache fp8 --file prompts --batch $n >fp8.$n 2>err
done
same "with a cache in FP8, too" fp8.1 fp8.3
printf 'The\nTh\n\nWith a\nOf\n' | "$gen" $how -i >got 2>err
check "interactive prompts" grep -q '^prompts: 13 tokens' err
"$gen" $how --prompt 'The' --json >out 2>err
check "--json counts tokens" grep -q '"decoded_tokens": 11' out
check "--json has the reason of the end" grep -q '"end": "length"' out
"$gen" --model c -n 500 --prompt 'The' --json >out 2>err
check "a text ends with the context" grep -q '"end": "context"' out

# ends with STOP: the text of "The" before it, and how it ends
"$gen" --model c -n 20 --prompt 'The' >whole 2>err
"$gen" --model c -n 20 --prompt 'The' --json 2>err >out
text=$(sed -n 's/.*"text": "\(.*\)",/\1/p' out)
stop=$(printf %s "$text" | cut -c6-8)
printf 'The%s\n' "${text%%"$stop"*}" >want
"$gen" --model c -n 20 --prompt 'The' --stop "$stop" >got 2>err
same "a text ends before the text of --stop" want got
printf '{"prompt": "The"}\n{"prompt": "The"}\n' >twice
"$gen" --model c -n 20 --file twice --stop "$stop" >got 2>err
cat want want >both
same "which is not printed for several prompts" both got
printf 'The\n' | "$gen" --model c -n 20 -i --stop "$stop" 2>err >got
printf '%s\n' "${text%%"$stop"*}" >want
same "nor for lines of standard input" want got
"$gen" --model c -n 20 --prompt 'The' --json --stop "$stop" 2>err >out
check "--json has the reason" grep -q '"end": "stop"' out
check "and the text" grep -qF "\"text\": \"${text%%"$stop"*}\"" out
"$gen" --model c -n 20 --prompt 'The' --stop "${stop}!" >got 2>err
same "a part of the text of --stop is printed" whole got
fails "a --stop that is no text" "followed by neither" "$gen" --model c --prompt a --stop '\x'
fails "an empty --stop" "is empty" "$gen" --model c --prompt a --stop ''
fails "--logprobs in lines" "needs --json" "$gen" --model c --prompt a --logprobs
fails "--stop without texts" "excludes --stop" "$gen" --model c --eval-choices text --stop a

# sum FILE: of the log probabilities there
sum()
{
	tr -d ' \n' <"$1" | sed 's/.*"logprobs":\[*\([^]]*\)\].*/\1/' | tr ',' '\n' |
		awk '{ s += $1 } END { printf "%.4f\n", s }'
}
# tokens are bytes: an ending of --eval-choices is a space and its text
for seed in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
	"$gen" --model c --recipe fp32 -n 6 --prompt 'The' --temperature 0.9 --seed $seed \
		--logprobs --json >out 2>err
	grep -q '"text": " [a-z]' out && break
done
sum out >got
sed -n 's/.*"text": " \(.*\)",/{"ctx": "The", "endings": ["\1", "x"], "label": 0}/p' out >choices
"$gen" --model c --recipe fp32 --eval-choices choices --json 2>err | tr -d ' \n' |
	sed 's/\("logprobs":\[\[[^,]*\),[^]]*/\1/' >out
sum out >want
check "a text with a space before it" grep -q The choices
same "log probabilities of --eval-choices, whatever the sampling" want got

token=$("$gen" --model c -n 1 --prompt-tokens 84 --json 2>err | tr -d ' \n' |
	sed 's/.*"tokens":\[\([0-9]*\)\].*/\1/')
mkdir e
sed "s/^{/{\"eos_token_id\": [999, $token],/" c/config.json >e/config.json
cp c/model.safetensors e
"$gen" --model e -n 9 --prompt-tokens 84 --json >out 2>err
check "a text ends at an end token" grep -q '"end": "eos"' out
check "an empty text has a prompt" grep -q '"prefill_tokens": 1,' out

# a model with a tokenizer: 1 more token than it has, which ends texts
mkdir t
echo '{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
 "intermediate_size": 16, "max_position_embeddings": 64, "vocab_size": 321}' >t/config.json
"$te_train" --model t --out t --steps 0 --random-tokens --overwrite >out 2>err
check "a model of tokens" test -s t/model.safetensors
fails "text without a tokenizer" "prompt 1: is text" "$gen" --model t --prompt a
fails "--stop without a tokenizer" "are numbers" "$gen" --model t --prompt-tokens 1 --stop a
te_token=$(built tools/te_token)
if [ -x "$te_token" ]; then
	"$te_token" train --vocab 320 -o plain.json text
	sed 's/"added_tokens": \[\]/"added_tokens": [{"id": 320, "content": "<|end|>", '\
'"special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}]/' \
		plain.json >t/tokenizer.json
	printf 'The<|end|> king' | "$te_token" encode -t t/tokenizer.json >ids
	list=$(tr -s ' \n' ',,' <ids | sed 's/,$//')
	how="--model t -n 20 --temperature 1 --json"
	"$gen" $how --prompt-tokens "$list" 2>err | grep -v -e per_s -e '"text"' >want
	"$gen" $how --prompt 'The<|end|> king' 2>err >out
	grep -v -e per_s -e '"text"' out >got
	same "a text has its tokens" want got
	tr -d ' \n' <out | sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/' | tr ',' '\n' >ids
	"$te_token" decode -t t/tokenizer.json <ids | tr '\000-\010\013-\037\177' '?' >want
	"$gen" --model t -n 20 --temperature 1 --prompt 'The<|end|> king' 2>err >out
	printf 'The<|end|> king%s\n' "$(cat want; echo .)" | sed '$s/\.$//' >all
	same "which are printed as text" all out
	echo '{"prompt": "The<|end|> king"}' >p
	echo '{"prompt": "The"}' >>p
	"$gen" --model t -n 20 --temperature 1 --file p 2>err | head -c "$(($(wc -c <all)))" >got
	same "of several prompts too" all got
	cp t/tokenizer.json .
	rm t/tokenizer.json
	"$gen" --model t -n 20 --temperature 1 --prompt 'The<|end|> king' \
		--tokenizer tokenizer.json >got 2>err
	same "with --tokenizer" all got
	sed 's/"post_processor": null/"post_processor": {"type": "TemplateProcessing", "single": '\
'[{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], '\
'"pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [320], "tokens": '\
'["<|end|>"]}}}/' tokenizer.json >begins.json
	"$gen" $how --prompt-tokens "320,$list" 2>err | grep -v -e per_s -e '"text"' >want
	"$gen" $how --prompt 'The<|end|> king' --tokenizer begins.json 2>err |
		grep -v -e per_s -e '"text"' >got
	same "tokens that a tokenizer adds begin a prompt" want got
	echo '{}' >bad.json
	fails "no tokenizer" bad.json "$gen" --model t --prompt a --tokenizer bad.json
	sed 's/"id": 320/"id": 321/' tokenizer.json >large.json
	fails "a tokenizer beyond the vocabulary" "more than the model" "$gen" --model t \
		--prompt a --tokenizer large.json
fi

fails "a GGUF file that is not there" "none.gguf: No such file" "$gen" --model none.gguf --prompt a
fails "no model" "give --model" "$gen" --prompt a
fails "no prompt" "one of --prompt" "$gen" --model c
fails "two prompts" "exclude each other" "$gen" --model c --prompt a -i
fails "an empty prompt" "the prompt is empty" "$gen" --model c --prompt ''
fails "a prompt beyond the context" "the context is 32" "$gen" --model c --prompt 'The the the the the the the the the'
fails "a token beyond the vocabulary" "token 256 is beyond" "$gen" --model c --prompt-tokens 256
fails "no number" "expected token numbers" "$gen" --model c --prompt-tokens 1,x
fails "a context beyond the model's" "--context 33" "$gen" --model c --prompt a --context 33
mkdir w
sed 's/"llama"/"mistral", "sliding_window": 16/' t/config.json >w/config.json
cp t/model.safetensors w
check "a context beyond the sliding window" "$gen" --model w --prompt-tokens 1 --context 17
sed 's/"sliding_window"/"layer_types": ["full_attention"], &/' w/config.json >w/c
mv w/c w/config.json
fails "a window of unknown layers" "--context 17: the model has 16" "$gen" --model w \
	--prompt-tokens 1 --context 17
check "one within it" "$gen" --model w --prompt-tokens 1 --context 16
fails "no folder" "nowhere: there is no such file or folder, and only local ones" "$gen" \
	--model nowhere --prompt a
fails "neither a folder nor a GGUF file" "text: expected a folder with config.json and" "$gen" \
	--model text --prompt a
mkdir files
cp "$gguf" files/some.gguf
for tool in "$gen --prompt a" "$te_train --steps 0 text --init" \
	"$(built tools/te_export) out.gguf"; do
	case $tool in *--init) ;; *) tool="$tool --model" ;; esac
	fails "a folder with a GGUF file alone" "give that file, files/some.gguf" $tool files
done
fails "top-p of 0" "--top-p" "$gen" --model c --prompt a --top-p 0
fails "an unexpected argument" '"b"' "$gen" --model c --prompt a b
for bad in '{"prompt": 1}' '{"tokens": []}' '{"tokens": [-1]}' '{' '[]' '{"prompt": ""}'; do
	echo "$bad" >bad
	fails "a line $bad" bad "$gen" --model c --file bad
done
: >bad
fails "a file without prompts" "has no prompts" "$gen" --model c --file bad

tap_end
