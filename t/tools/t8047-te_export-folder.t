#!/bin/sh
# te_export writes folders of transformers that have the model: its losses, the same weights from a
# GGUF file as from a folder, with an adapter merged, and its tokenizer. A folder gets its name when it
# is complete, and replaces only what an export has written.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"
. "$abs_top_srcdir/t/tools/te_export.sh"

# pairs of channels, matrices that are transposed, gains that are centered at 0, a tied head that is
# written twice and heads in turn, and frequencies that are divided
while read -r m how; do
	model $m
	want=$(loss $m)
	check "$m as a folder" "$export" --model $m --type f32 $m.f32/
	near "with the same loss" "$want" "$(loss $m.f32)" 1e-6
	check "$m as a GGUF file" "$export" --model $m --type f32 $m.gguf
	check "which becomes a folder" "$export" --model $m.gguf --type f32 $m.back
	near "with the same loss" "$want" "$(loss $m.back)" 1e-5
	[ "$how" = near ] || check "and the same weights" \
		cmp $m.f32/model.safetensors $m.back/model.safetensors
	check "$m as BF16" "$export" --model $m $m.bf16
	near "with nearly the same loss" "$want" "$(loss $m.bf16)" 0.03
done <<'EOT'
hf_llama
hf_gpt2
fam_gemma2_plain near
fam_neox near
fam_phi3
EOT
check "BF16 has 2 bytes for a weight" test $(($(wc -c <hf_llama.bf16/model.safetensors) * 10)) \
	-lt $(($(wc -c <hf_llama.f32/model.safetensors) * 6))
check "and its config.json tells it" grep -q '"torch_dtype": "bfloat16"' hf_llama.bf16/config.json
for f in fam_gemma2_plain.f32 fam_gemma2_plain.back; do
	check "$f: integers remain integers" grep -q '"query_pre_attn_scalar": 6,*$' $f/config.json
done
"$export" --model hf_llama none 2>err
check "a model without a tokenizer is noted" grep -q 'hf_llama: has no tokenizer' err

# adapters
check "an adapter" "$te_train" --init hf_llama --lora rank=2,alpha=8 --steps 3 --lr 0.05 --batch 2 \
	--seq-len 16 --out lora text
check "is merged" "$export" --model hf_llama --adapter lora --type f32 merged
"$export" --model hf_llama --adapter lora --type f32 merged.gguf 2>err
"$export" --model merged.gguf --type f32 again 2>err
check "as in GGUF files" cmp merged/model.safetensors again/model.safetensors
check "which changes weights" test "$(loss merged)" != "$(loss hf_llama)"

# refused MESSAGE ARGUMENT...: with status 2, and nothing in the folder no
refused()
{
	want=$1
	shift
	"$export" "$@" >out 2>err
	status=$?
	check "$want: status $status, $(cat err)" grep -q -- "$want" err
	check "... and exits with 2" test $status -eq 2
	check "... without a folder" test ! -e no -a ! -e no.new
}
refused "no: expected a name that ends with .gguf for --type q8_0" --model hf_llama --type q8_0 no
refused "hf_llama.f32: has a model: expected another folder, or --overwrite" --model hf_llama \
	hf_llama.f32
refused "times: exists and is no folder" --model hf_llama --overwrite times
refused "nowhere" --model hf_llama nowhere/no
refused "expected the name of a file" --model hf_llama ..
refused "expected the name of a file" --model hf_llama /
mkdir cut
cp hf_llama/config.json cut
head -c 5000 hf_llama/model.safetensors >cut/model.safetensors
refused "cut short" --model cut no
(ulimit -f 20 && exec "$export" --model hf_llama --type f32 no >out 2>err)
check "a full disk: status 2" test $? -eq 2
check "leaves nothing" test ! -e no -a ! -e no.new

# folders that exist
mkdir empty
check "an empty folder is used" "$export" --model hf_llama empty
check "for the whole model" cmp empty/model.safetensors hf_llama.bf16/model.safetensors
echo '{' >empty/tokenizer.json
mkdir empty.new
echo cut >empty.new/model.safetensors.new
check "--overwrite, after an export that was killed" "$export" --model hf_gpt2 --overwrite empty
check "replaces the model" cmp empty/model.safetensors hf_gpt2.bf16/model.safetensors
check "and removes files of the other" test ! -e empty/tokenizer.json -a ! -e empty.new
check "a model in its own place" "$export" --model empty --overwrite --type f32 empty
near "has the same loss" "$(loss hf_gpt2.bf16)" "$(loss empty)" 1e-6
echo mine >empty/notes
cp empty/model.safetensors kept
refused "empty/notes: no export has written it" --model hf_llama --overwrite empty
check "a folder with other files stays as it is" cmp kept empty/model.safetensors
mkdir no.new
echo mine >no.new/notes
"$export" --model hf_llama no 2>err
check "another user's folder of the temporary name: status 2" test $? -eq 2
check "it stays as it is" grep -q mine no.new/notes
rm -r no.new

if [ -x "$token" ]; then
	mkdir t
	"$token" train --vocab 256 --pattern llama3 -o t/tokenizer.json text 2>err
	echo '{"chat_template": "{{ messages }}"}' >t/tokenizer_config.json
	"$te_train" --model plain.json --steps 0 --out words --tokenizer t text >out 2>err
	sed -i 's/^{/{"eos_token_id": 7,/' words/config.json
	check "a model with a tokenizer" "$export" --model words copy
	for f in tokenizer.json tokenizer_config.json; do
		check "has its $f" cmp t/$f copy/$f
	done
	check "--tokenizer" "$export" --model hf_gpt2 --tokenizer t/tokenizer.json other
	check "is copied" cmp t/tokenizer.json other/tokenizer.json
	check "a file with a tokenizer" "$export" --model words words.gguf
	check "becomes a folder" "$export" --model words.gguf back
	check "with the token that ends texts" grep -q '"eos_token_id": 7' back/config.json
	"$token" encode -t words text >want 2>err
	"$token" encode -t back text >got 2>err
	same "and its tokens" want got
fi
tap_end
