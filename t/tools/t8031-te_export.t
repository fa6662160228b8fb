#!/bin/sh
# te_export writes GGUF files that have the model: the losses of its folder in each type, its
# tokenizer's tokens, and the same bytes if it is exported again. What it cannot write it refuses.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"
. "$abs_top_srcdir/t/tools/te_export.sh"

# The sums of files as f32 with which llama.cpp gave the losses of their folders, up to its tables of
# GELU, and the greedy text of te_generate. llama3 has a tensor that pow() computes, and no sum.
while read -r m sum; do
	model $m
	want=$(loss $m)
	for type in f32 bf16; do
		check "$m as $type" "$export" --model $m --type $type $m.$type.gguf
	done
	near "loss of $m as f32" "$want" "$(loss $m.f32.gguf)" 1e-6
	near "loss of $m as bf16" "$want" "$(loss $m.bf16.gguf)" 0.03
	check "bf16 is smaller" test "$(wc -c <$m.bf16.gguf)" -lt "$(wc -c <$m.f32.gguf)"
	for type in f32 bf16; do
		"$export" --model $m.$type.gguf --type $type again.gguf 2>err
		check "$m as $type, exported again" cmp $m.$type.gguf again.gguf
	done
	got=$(cksum <$m.f32.gguf)
	check "sum of $m: $got" test "${sum:-$got}" = "$got"
done <<'EOT'
hf_llama 2603998269 39424
hf_qwen2 4016244457 24896
hf_gpt2 1976100385 33120
fam_mistral 1224308494 23840
fam_llama3
fam_linear 2163411840 25440
fam_qwen3_plain 3806092630 24192
fam_olmo2_plain 257053782 33728
fam_falcon_plain 654927755 32288
fam_smollm3_four 3841919737 19392
fam_gemma2_plain 1454355687 24480
fam_gemma3_six 2263316667 31392
fam_phi3 343601114 33248
fam_neox 129609679 33792
fam_neox_serial 281846990 33792
fam_stablelm 408438860 34496
fam_stablelm_parallel 287946681 33472
EOT
"$export" --model hf_llama x.gguf 2>err
check "a model without a tokenizer is noted" grep -q 'hf_llama: has no tokenizer' err
check "types of a GGUF file become F32" "$export" --model "$abs_top_srcdir/t/data/llama.gguf" \
	--type f32 wide.gguf
want=$(loss "$abs_top_srcdir/t/data/llama.gguf")
near "with the same loss" "$want" "$(loss wide.gguf)" 1e-6
check "F32 becomes Q8_0" "$export" --model wide.gguf --type q8_0 narrow.gguf
near "with nearly that loss" "$want" "$(loss narrow.gguf)" 0.02
check "in 0.4 of the size" test $(($(wc -c <narrow.gguf) * 10)) -lt $(($(wc -c <wide.gguf) * 4))
check "Q8_0 is written again" "$export" --model narrow.gguf --type q8_0 again.gguf
check "as it was" cmp narrow.gguf again.gguf
check "Q8_0 becomes F32" "$export" --model narrow.gguf --type f32 again.gguf
check "and Q8_0" "$export" --model again.gguf --type q8_0 twice.gguf
check "as it was" cmp narrow.gguf twice.gguf

# refused MESSAGE ARGUMENT...: with status 2, and no file
refused()
{
	want=$1
	shift
	"$export" "$@" no.gguf >out 2>err
	status=$?
	check "$want: status $status, $(cat err)" grep -q -- "$want" err
	check "... and exits with 2" test $status -eq 2
	check "... without a file" test ! -e no.gguf -a ! -e no.gguf.new
}
mkdir fam_yarn
cp "$abs_top_srcdir/t/data/fam_yarn.json" fam_yarn/config.json
refused "these scaled positions to GGUF is not implemented" --model fam_yarn
for m in falcon gemma2 gemma3 gpt2_erf neox olmo2 qwen3 smollm3; do
	mkdir fam_$m
	cp "$abs_top_srcdir/t/data/fam_$m.json" fam_$m/config.json
done
sed -i 's/"attention_bias": true/"attention_bias": false/' fam_neox/config.json
refused "gpt2: export of this activation" --model fam_gpt2_erf
refused "qwen3: export of this choice of biases" --model fam_qwen3
refused "olmo2: export of this choice of biases" --model fam_olmo2
refused "falcon: export of this choice of biases" --model fam_falcon
refused "gpt_neox: export of this choice of biases" --model fam_neox
refused "smollm3: export of this order of layers" --model fam_smollm3
refused "gemma2: export of this scale or cap of scores" --model fam_gemma2
sed -i 's/"query_pre_attn_scalar": 10/"query_pre_attn_scalar": 6/' fam_gemma2/config.json
refused "gemma2: export of this choice of biases" --model fam_gemma2
sed -i 's/"attn_logit_softcapping": 2.0/"attn_logit_softcapping": null/' fam_gemma2/config.json
refused "gemma2: export of this scale or cap of scores" --model fam_gemma2
refused "gemma3_text: export of this order of layers" --model fam_gemma3
refused "expected --model" --type f32
refused "expected one of f32|bf16|q8_0" --model hf_llama --type q4_0
mkdir gone
cp hf_llama/config.json gone
refused "gone: " --model gone
mkdir cut
cp hf_llama/config.json cut
head -c 5000 hf_llama/model.safetensors >cut/model.safetensors
refused "cut short" --model cut
"$export" --model hf_llama nowhere/x.gguf 2>err
check "a folder that does not exist: exits with 2" test $? -eq 2
mkdir taken.gguf
"$export" --model hf_llama taken.gguf 2>err
check "a folder in place of the file: exits with 2" test $? -eq 2
(ulimit -f 20 && exec "$export" --model hf_llama full.gguf >out 2>err)
check "a full disk: status 2" test $? -eq 2
check "names the file" grep -q 'full.gguf: File too large' err
check "leaves nothing" test ! -e full.gguf -a ! -e full.gguf.new
echo old >x.gguf
check "another file is replaced" "$export" --model hf_llama x.gguf
check "by the whole file" cmp x.gguf hf_llama.bf16.gguf

# an export takes long enough to be stopped if its model, which is a hole in a file, has 4 Mi tokens
mkdir hole
echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
	"intermediate_size": 64, "vocab_size": 4194304, "max_position_embeddings": 64,
	"tie_word_embeddings": true}' >hole/config.json
awk 'function put(name, shape, n) {
		text = text sep "\"" name "\":{\"dtype\":\"BF16\",\"shape\":[" shape "],\"data_offsets\":[" \
			at "," at + 2 * n "]}"
		at += 2 * n; sep = ","
	}
	BEGIN {
		at = 0
		put("model.embed_tokens.weight", "4194304,64", 4194304 * 64)
		put("model.norm.weight", "64", 64)
		put("model.layers.0.input_layernorm.weight", "64", 64)
		put("model.layers.0.post_attention_layernorm.weight", "64", 64)
		n = split("self_attn.q self_attn.k self_attn.v self_attn.o mlp.gate mlp.up mlp.down", part, " ")
		for (i = 1; i <= n; i++)
			put("model.layers.0." part[i] "_proj.weight", "64,64", 64 * 64)
		printf "{%s}%*s", text, 4096 - 2 - length(text), ""
	}' </dev/null >header
{ printf '\000\020\000\000\000\000\000\000'; cat header; } >hole/model.safetensors
truncate -s $((8 + 4096 + 2 * (4194304 * 64 + 3 * 64 + 7 * 64 * 64))) hole/model.safetensors
for sig in TERM $HUP; do
	for new in h.gguf.new h.new/model.safetensors.new; do
		"$export" --model hole --type f32 "${new%%.new*}" 2>err &
		while [ ! -s $new ] && kill -0 $! 2>/dev/null; do sleep 0.01; done
		kill -$sig $!
		wait $!
		check "$sig ends an export of ${new%%.new*}" test $? -gt 128
		check "... and nothing is left" test ! -e h -a ! -e h.new -a ! -e h.gguf -a ! -e h.gguf.new
	done
done

if [ -x "$token" ]; then
	"$token" train --vocab 270 --pattern llama3 -o hf_llama/tokenizer.json text 2>err
	sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 270/' hf_llama/config.json
	refused "tensor \"model.embed_tokens.weight\" is \[" --model hf_llama
	"$token" train --vocab 300 -o many.json text 2>err
	refused "many.json: the tokenizer has 300 tokens, more than the model's vocabulary of 270" \
		--model hf_llama --tokenizer many.json
	"$te_train" --model hf_llama --steps 0 --out words text --tokenizer hf_llama >out 2>err
	echo '{"chat_template": "{{ messages }}"}' >words/tokenizer_config.json
	sed -i 's/^{/{"eos_token_id": [7, 8],/' words/config.json
	check "a model with a tokenizer" "$export" --model words words.gguf
	check "its file has the template of chats" grep -qa 'tokenizer.chat_template.*{{ messages }}' words.gguf
	check "and the token that ends texts" grep -qa 'tokenizer.ggml.eos_token_id' words.gguf
	"$token" encode -t words text >want 2>err
	"$token" encode -t words.gguf text >got 2>err
	same "tokens of the file are the tokenizer's" want got
	check "exported again" "$export" --model words.gguf again.gguf
	check "the file has the tokenizer of the one before" "$token" encode -t again.gguf -o got text
	same "with its tokens" want got
	mkdir alone
	cp words/config.json words/model.safetensors alone
	check "--tokenizer" "$export" --model alone --tokenizer words alone.gguf
	check "is the tokenizer of the folder" cmp words.gguf alone.gguf
	check "a small vocabulary" "$export" --model alone --tokenizer words.gguf other.gguf
	# a run that begins with a file has its tokenizer, and what it saves has it
	check "--init of the file" "$te_train" --init words.gguf --steps 1 --batch 1 --seq-len 8 \
		--out tuned --save-best text
	check "its tokens are the tokenizer's" "$token" encode -t tuned -o got text
	same "in what it saves" want got
	check "with the best weights too" cmp tuned/tokenizer.gguf tuned/best/tokenizer.gguf
	check "the run goes on" "$te_train" --resume tuned --steps 2 text
	check "a file of what it saved" "$export" --model tuned tuned.gguf
	check "has the template of chats" grep -qa 'tokenizer.chat_template.*{{ messages }}' tuned.gguf
	# llama.cpp refuses a key that is there twice
	check "once" test "$(grep -oa tokenizer.chat_template tuned.gguf | wc -l)" = 1
	check "--tokenizer of a file" "$te_train" --model alone --tokenizer words.gguf --steps 0 \
		--out named text
	check "is saved, too" cmp tuned/tokenizer.gguf named/tokenizer.gguf
	check "--overwrite without" "$te_train" --preset tiny --steps 0 --out named --overwrite text
	check "removes it" test ! -e named/tokenizer.gguf
	# a vocabulary of SentencePiece
	sed 's/"vocab_size": 256/"vocab_size": 340/' plain.json >pieces.json
	"$te_train" --model pieces.json --steps 0 --seq-len 16 --eval-batches 1 --out pieces \
		--tokenizer "$abs_top_srcdir/t/data/sp_bpe.model" text >out 2>err
	check "a model with pieces" "$export" --model pieces pieces.gguf
	"$token" encode -t "$abs_top_srcdir/t/data/sp_bpe.model" text >want 2>err
	"$token" encode -t pieces.gguf text >got 2>err
	same "its file has its tokens" want got
	sed 's/"use_regex": *true/"use_regex": false/; s/(?i/(/' words/tokenizer.json >odd.json
	refused "odd.json: .*pre-tokenizer" --model alone --tokenizer odd.json
fi
tap_end
