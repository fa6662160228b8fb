#!/bin/sh
# Checkpoints of each family of models, made by transformers with every feature on, give the losses,
# the norms of the gradient and the greedy text that transformers computed (t/data/gen_families.py).
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

echo "It was the best of times, it was the worst of times, it was the age of wisdom." >times
printf 'It was the best o' >first # the only sequence of 16 tokens and its targets

# loss DIR: of the text, from the weights in DIR; writes them to DIR-2
loss()
{
	"$te_train" --init "$1" --steps 0 --eval-batches 0 --val times --json --recipe fp32 \
		--seq-len 16 --out "$1-2" times 2>err |
		sed -n 's/.*"val_loss_nats": \([0-9.]*\).*/\1/p'
}

# norm DIR: of the gradient for the first sequence
norm()
{
	rm -f log
	"$te_train" --init "$1" --steps 1 --batch 1 --val first --eval-batches 0 --seq-len 16 \
		--dropout 0 --recipe fp32 --log-every 1 --log log first >out 2>err
	sed -n 's/.*"grad_norm":\([0-9.]*\).*/\1/p' log | tail -1
}

while read -r name want gradient; do
	mkdir "$name"
	cp "$abs_top_srcdir/t/data/fam_$name.json" "$name/config.json"
	cp "$abs_top_srcdir/t/data/fam_$name.safetensors" "$name/model.safetensors"
	near "loss of $name" "$want" "$(loss "$name")" 2e-5
	near "gradient of $name" "$gradient" "$(norm "$name")" 2e-4
	near "loss of $name, written and read again" "$want" "$(loss "$name-2")" 2e-5
done <<'EOT'
gpt2 5.45092528905624 5.648400783538818
llama2 5.505587455553886 4.927958965301514
tinyllama 5.8194577143742485 4.969509124755859
qwen2 5.931328602326222 6.301917552947998
llama3 5.465796348376152 4.976594924926758
linear 5.69050764426207 8.158783912658691
yarn 5.631951063107222 5.644285202026367
mistral 5.509900802221054 5.941380500793457
smollm3 5.298692556527945 4.485586643218994
phi3 5.768892728365385 3.8763978481292725
neox 5.209799742087339 3.8163199424743652
neox_serial 5.1831087943835135 4.457695007324219
falcon 5.655554257906401 3.3838441371917725
stablelm 5.44218278542543 4.954983234405518
stablelm_parallel 5.749412243182842 3.2859318256378174
qwen3 5.895030388465295 6.271738052368164
olmo2 5.653350732265374 4.783361434936523
gemma2 5.452586638621795 4.243353366851807
gemma3 5.261389707907652 3.147318124771118
gemma2_wide 4.987503736447065 2.629246473312378
gemma3_wide 5.024271451509916 3.855898141860962
qwen3_plain 5.450097891000601 5.089915752410889
olmo2_plain 5.516190846761067 5.502214431762695
falcon_plain 5.691982073661609 3.0824155807495117
smollm3_four 5.122005462646484 6.405060291290283
gemma2_plain 5.1180758353991385 4.653633117675781
gpt2_erf 5.47071789472531 4.445552825927734
EOT

# 100 tokens from what te_train has written, with places for them
while read -r name prompt want; do
	sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 192/' \
		"$name-2/config.json"
	[ $name != phi3 ] || sed -i 's/"original_max_position_embeddings": 16/'\
'"original_max_position_embeddings": 128/' phi3-2/config.json
	"$(built tools/te_generate)" --model "$name-2" --recipe fp32 -n 100 \
		--repetition-penalty 1.2 --prompt-tokens "$prompt" --json 2>err | tr -d ' \n' |
		sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/' >got
	echo >>got
	echo "$want" >want
	same "greedy text of $name" want got
done <"$abs_top_srcdir/t/data/fam_greedy.txt"

# the cache of te_generate against passes over the whole text
for name in gemma2_wide gemma3_wide; do
	"$te_train" --init $name --recipe fp32 --sample-only --sample 24 --temperature 0 \
		--prompt 'It was' >want 2>err
	"$(built tools/te_generate)" --model $name --recipe fp32 --prompt 'It was' -n 24 \
		>got 2>err
	check "$name has a text" test -s want
	same "its greedy text" want got
done

# step LOG [OPTION...]: loss and norm of the gradient of a step of four rows
step()
{
	log=$1
	shift
	"$te_train" --init gemma2 --steps 1 --batch 4 --val first --eval-batches 0 --seq-len 16 \
		--dropout 0 --recipe fp32 --log-every 1 --log "$log" "$@" times >out 2>err
	sed -n 's/.*"train_loss_nats":\([0-9.]*\).*"grad_norm":\([0-9.]*\).*/\1 \2/p' "$log"
}
whole=$(step whole)
chunks=$(step chunks --loss-chunk 16)
check "capped logits in chunks have the same loss: $chunks" \
	test "${chunks% *}" = "${whole% *}" -a -n "${whole% *}"
near "and the gradient" "${whole#* }" "${chunks#* }" 2e-5
says "--memory prefers whole logits" \
	'^chosen: --recompute off --loss-chunk 0 --offload off --states device$' \
	"$te_train" --init gemma2 --memory 1G --estimate --batch 100 --seq-len 16
check "and lays out chunks too" test "$(grep -c ' ms$' out)" = 8

# t/data/gen_gguf.py
gguf=$abs_top_srcdir/t/data/llama.gguf
near "loss of a GGUF file" 5.332661946614583 "$(ln -sf "$gguf" small.gguf; loss small.gguf)" 2e-5
near "the same from the folder that was written" 5.332661946614583 "$(loss small.gguf-2)" 2e-5

# refused MESSAGE: bad.gguf
refused()
{
	"$te_train" --init bad.gguf --steps 0 --val times times >out 2>err
	status=$?
	check "bad.gguf: $1: status $status, $(cat err)" grep -q "bad.gguf: .*$1" err
	check "... and exits with 2" test $status -eq 2
}

size=$(wc -c <"$gguf")
head -c $((size - 100)) "$gguf" >bad.gguf
refused "its data ends beyond the end"
head -c 300 "$gguf" >bad.gguf
refused "cut short within its metadata"
head -c 3 "$gguf" >bad.gguf
refused "expected a folder with config.json and model.safetensors, or a GGUF file"
sed 's/qwen2/mamba/; s/llama/mamba/g' "$gguf" >bad.gguf
refused "the architecture \"mamba\" is not implemented"
sed 's/ffn_gate/ffn_nose/' "$gguf" >bad.gguf
refused "there is no tensor \"model.layers.0.mlp.gate_proj.weight\""
sed 's/attention\.head_count_kv/attention.head_count_kz/' "$gguf" >bad.gguf
refused "self_attn.k_proj"

# tensors of more than 2^20 elements, as stored and transposed, are read in parts
echo '{"model_type": "gpt2", "vocab_size": 2100, "n_positions": 16, "n_embd": 528, "n_layer": 1,
 "n_head": 11}' >wide.json
large="--steps 0 --random-tokens --seq-len 16 --batch 1 --eval-batches 1"
check "a model of large tensors" "$te_train" --model wide.json $large --out wide
check "is read" "$te_train" --init wide $large --out wide-2
check "with all its values" cmp wide/model.safetensors wide-2/model.safetensors
rm -rf wide wide-2

tap_end
