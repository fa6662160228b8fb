#!/bin/sh
# te_generate --chat: messages become the text of a template, a chat computes new tokens only, and
# templates that are not known are refused.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

gen=$(built tools/te_generate)
te_token=$(built tools/te_token)
[ -x "$te_token" ] || skip_all "built without libtetoken"

# special FILE TOKEN...: a tokenizer with special tokens 300, 301, ...
"$te_token" train --vocab 300 -o plain.json text
special()
{
	file=$1
	shift
	id=300
	list=
	for token; do
		list="$list${list:+, }{\"id\": $id, \"content\": \"$token\", \"special\": true, "\
'"single_word": false, "lstrip": false, "rstrip": false, "normalized": false}'
		id=$((id + 1))
	done
	sed "s#\"added_tokens\": \[\]#\"added_tokens\": [$list]#" plain.json >"$file"
}
special all.json '<|im_start|>' '<|im_end|>' '<|start_header_id|>' '<|end_header_id|>' \
	'<|eot_id|>' '<s>' '</s>' '<bos>' '<start_of_turn>' '<end_of_turn>' '<|user|>' \
	'<|assistant|>' '<|system|>' '<|end|>' '<|begin_of_text|>'
check "a tokenizer" grep -q im_end all.json

mkdir m
echo '{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
 "intermediate_size": 16, "max_position_embeddings": 200, "vocab_size": 320}' >config
cp config m/config.json
"$te_train" --model m --out m --steps 0 --random-tokens --overwrite --seq-len 16 --batch 1 \
	--eval-batches 1 >out 2>err
check "a model" test -s m/model.safetensors
cp all.json m/tokenizer.json

# tokens FILE: the tokens after prompts, and how many the prompts have
tokens()
{
	grep -v -e per_s -e '"text"' "$1"
}

# asks NAME TEXT ARGUMENT...: the arguments ask the model what TEXT, a whole prompt, asks
asks()
{
	name=$1
	text=$2
	shift 2
	printf '%s' "$text" | "$te_token" encode -t m/tokenizer.json >ids
	"$gen" --model m -n 1 --json --prompt-tokens "$(tr -s ' \n' ',,' <ids | sed 's/,$//')" \
		2>err >out
	tokens out >want
	[ -s want ] || echo "no tokens of $text" >want
	"$gen" --model m -n 1 --json "$@" 2>err >out
	tokens out >got
	same "$name" want got
}

# template NAME SOURCE SYSTEM-AND-USER USER: texts of prompts
template()
{
	printf '%s' "$2" >m/chat_template.jinja
	asks "$1" "$4" --chat --prompt 'Hi you'
	asks "$1 with a system" "$3" --chat --prompt 'Hi you' --system 'Be brief'
	rm m/chat_template.jinja
	asks "$1 by its name" "$4" --chat --chat-template "$1" --prompt 'Hi you'
}
template chatml "{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}" \
'<|im_start|>system
Be brief<|im_end|>
<|im_start|>user
Hi you<|im_end|>
<|im_start|>assistant
' '<|im_start|>user
Hi you<|im_end|>
<|im_start|>assistant
'
template llama3 "'<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + text + '<|eot_id|>'" \
'<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Be brief<|eot_id|><|start_header_id|>user<|end_header_id|>

Hi you<|eot_id|><|start_header_id|>assistant<|end_header_id|>

' '<|begin_of_text|><|start_header_id|>user<|end_header_id|>

Hi you<|eot_id|><|start_header_id|>assistant<|end_header_id|>

'
template gemma "'<start_of_turn>' + role + '\\n' + text + '<end_of_turn>\\n' 'model'" \
'<bos><start_of_turn>user
Be brief

Hi you<end_of_turn>
<start_of_turn>model
' '<bos><start_of_turn>user
Hi you<end_of_turn>
<start_of_turn>model
'
template phi3 "'<|user|>\\n' + text + '<|end|>\\n' + '<|assistant|>\\n'" \
'<|system|>
Be brief<|end|>
<|user|>
Hi you<|end|>
<|assistant|>
' '<|user|>
Hi you<|end|>
<|assistant|>
'
template zephyr "{{ '<|user|>\\n' + message['content'] + eos_token }}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }} \
{{ '<|assistant|>\\n' + message['content'] + eos_token }}" \
'<|system|>
Be brief</s>
<|user|>
Hi you</s>
<|assistant|>
' '<|user|>
Hi you</s>
<|assistant|>
'
template mistral "'[INST] ' + message['content'] + ' [/INST]' eos_token" \
'<s> [INST] Be brief

Hi you [/INST]' '<s> [INST] Hi you [/INST]'

# templates in tokenizer_config.json
printf '%s\n' '{"chat_template": [{"name": "tools", "template": "x"}, {"name": "default",' \
	' "template": "<|im_start|> <|im_end|> \n"}]}' >m/tokenizer_config.json
cat >file <<'JSON'
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": [{"type": "text", "text": "c"}]}]}
JSON
asks "a template of a list" '<|im_start|>user
a<|im_end|>
<|im_start|>assistant
b<|im_end|>
<|im_start|>user
c<|im_end|>
<|im_start|>assistant
' --chat --file file

# numbers TEXT: its tokens, as --prompt-tokens takes them
numbers()
{
	printf '%s' "$1" | "$te_token" encode -t m/tokenizer.json | tr -s ' \n' ',,' | sed 's/,$//'
}
head=$(numbers '<|im_start|>user
Hi you<|im_end|>
<|im_start|>assistant
')
next=$(numbers '<|im_end|>
<|im_start|>user
And me<|im_end|>
<|im_start|>assistant
')
nnext=$(echo "$next" | tr ',' '\n' | wc -l)

# The second message of a chat computes its own tokens only, and its answer is the one to the whole
# text. An answer may end by its token, which the text after it begins with.
printf 'Hi you\nAnd me\n' >lines
for n in 1 5 60; do
	"$gen" --model m -n $n --json --chat <lines 2>err | tr -d ' \n' | tr '{' '\n' |
		grep '^"prompt_tokens"' >turn
	list=$(sed -n '1s/.*"tokens":\[\([0-9,]*\)\].*/\1/p' turn)
	"$gen" --model m -n $n --json --prompt-tokens "$head,$list,$next" 2>err |
		tr -d ' \n' | sed 's/.*"tokens":\[\([0-9]*\).*/\1/' >want
	sed -n '2s/.*"tokens":\[\([0-9]*\).*/\1/p' turn | tr -d '\n' >got
	same "the second answer after one of at most $n tokens" want got
	less=0
	sed -n 1p turn | grep -q '"end":"eos"' && less=1
	check "its message computes $((nnext - less)) tokens" \
		grep -q "^\"prompt_tokens\":$((nnext - less))," turn
done
echo '{"prompt": "Hi you"}' >p
fails "a chat beyond the context" "the context is 50" "$gen" --model m --chat --context 50 \
	--prompt "$(cat p p p p p p p p p p)"
fails "a chat that reaches it" "prompt 2: has" "$gen" --model m --chat --context 45 --json -i <lines

# a folder that te_train saves of a GGUF file has its tokenizer, and with it the template
check "a GGUF file" "$(built tools/te_export)" --model m --type f32 m.gguf
check "a model from it" "$te_train" --init m.gguf --out f --steps 0 --random-tokens --seq-len 16 \
	--batch 1 --eval-batches 1
for m in m m.gguf f; do
	"$gen" --model $m -n 3 --json --chat --prompt 'Hi you' 2>err >out
	tokens out >$m.got
	check "$m has tokens" test -s $m.got
done
same "the template of the file" m.got m.gguf.got
same "of the folder that was saved" m.got f.got

# refused
fails "a template that is not implemented" "is not implemented: give one" \
	sh -c 'echo "{{ x }}" >m/chat_template.jinja; exec "$1" --model m --chat --prompt a' sh "$gen"
rm m/chat_template.jinja m/tokenizer_config.json
fails "no template" "is not known: give one of chatml|" "$gen" --model m --chat --prompt a
cat >file <<'JSON'
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
JSON
fails "the last message is an answer" "last message is by the user" "$gen" --model m --chat \
	--chat-template chatml --file file
cp plain.json m/tokenizer.json
fails "no token that ends an answer" 'no token "<|im_end|>"' "$gen" --model m --chat \
	--chat-template chatml --prompt a
rm m/tokenizer.json
fails "no tokenizer" "--chat: the model has no tokenizer" "$gen" --model m --chat --prompt a
fails "--system alone" "need --chat" "$gen" --model m --system a --prompt a
fails "--chat-template alone" "need --chat" "$gen" --model m --chat-template chatml --prompt a
fails "tokens" "--chat excludes" "$gen" --model m --chat --prompt-tokens 1
fails "an unknown name" "--chat-template" "$gen" --model m --chat --chat-template x --prompt a

tap_end
