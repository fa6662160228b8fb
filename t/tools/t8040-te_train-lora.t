#!/bin/sh
# te_train --lora: at first the model's losses, then lower ones; adapters are resumed with the same
# bits, merged by te_generate and te_export, and take the memory that --estimate tells.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

generate=$(built tools/te_generate)
export=$(built tools/te_export)
cat >plain.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "tie_word_embeddings": true, "torch_dtype": "float32"}
JSON
head -c 20000 text >short
tr 'a-y' 'b-z' <short >other
common="--batch 4 --lr 2e-2 --warmup 2 --eval-batches 2"

check "a model" "$te_train" --model plain.json $common --steps 20 --save-dtype bf16 --out base short
adapt="--init base $common --lora rank=3,alpha=6"
for r in $recipes; do
	"$te_train" --init base $common --recipe $r --steps 0 --json other >want.json 2>err
	"$te_train" $adapt --recipe $r --steps 0 --json other >got.json 2>err
	# delayed scales are 1 at first, but frozen weights have the scale that they need
	check "$r: adapters begin with the model's loss" awk -v r=$r \
		-v a="$(key want.json val_loss_nats)" -v b="$(key got.json val_loss_nats)" \
		'BEGIN { d = b - a; exit !(b && (r == "fp8-delayed" ? d * d < 1e-4 : !d)) }'
done

check "30 steps" "$te_train" $adapt --steps 30 --save-every 15 --keep 2 --save-best --json \
	--out whole other
"$te_train" $adapt --steps 30 --json other >got.json 2>err
check "the loss falls by a tenth" awk -v a="$(key want.json val_loss_nats)" \
	-v b="$(key got.json val_loss_nats)" 'BEGIN { exit !(b != "" && b < 0.9 * a) }'
ls whole whole/best >got
printf '%s\n' whole: adapter_config.json adapter_model.safetensors best config.json \
	state.safetensors step-15 step-30 '' whole/best: adapter_config.json \
	adapter_model.safetensors config.json >want
same "files of a checkpoint" want got
for key in '"r": 3,' '"lora_alpha": 6.0' "\"base_model_name_or_path\": \"$tmp/base\"" \
	'"self_attn.q_proj"' '"mlp.down_proj"'; do
	check "adapter_config.json has $key" grep -qF "$key" whole/adapter_config.json
done
check "13 steps" "$te_train" $adapt --steps 30 --stop-after 13 --out half other
check "the others" "$te_train" --resume half
same "a resumed run has the same adapter" whole/adapter_model.safetensors \
	half/adapter_model.safetensors
check "from a kept checkpoint" "$te_train" --resume whole/step-15 --out again
same "too" whole/adapter_model.safetensors again/adapter_model.safetensors

check "dropout, names, BF16 files, a graph" "$te_train" --init base $common --steps 4 \
	--lora 'rank=2,dropout=0.2,targets=h.0.qkv,h.?.down' --save-dtype bf16 --accum 2 --graph \
	--moments bf16 --masters bf16 --out names other
check "modules have whole names" grep -qF '"model.layers.0.self_attn.k_proj"' \
	names/adapter_config.json
check "and go on" "$te_train" --resume names --steps 6
check "on two ranks" "$te_run" -n 2 "$te_train" $adapt --steps 4 --out two other
check "one goes on" "$te_train" --resume two --steps 6

# loss [OPTION]...: of the other text, in FP32
loss()
{
	"$te_train" "$@" $common --recipe fp32 --json other 2>err |
		sed -n 's/.*"val_loss_nats": \([0-9.]*\).*/\1/p'
}
cp -r whole same
want=$(loss --resume same --steps 30)
check "te_export merges" "$export" --model base --adapter whole --type f32 merged.gguf
got=$(loss --init merged.gguf --steps 0)
check "the merged model has the loss $want: $got" awk -v a="$want" -v b="$got" \
	'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-4 && d > -1e-4) }'
"$generate" --model base --prompt 'Uif ' -n 60 -t 1 >plain.txt 2>err
check "te_generate merges" "$generate" --model base --adapter whole --prompt 'Uif ' -n 60 -t 1
"$generate" --model base --adapter whole --prompt 'Uif ' -n 60 -t 1 >adapted.txt 2>err
check "and the text is another" test "$(cat plain.txt)" != "$(cat adapted.txt)"

# weights: 2 bytes of each but the adapters'; gradients and moments: of the adapters
"$te_train" $adapt --estimate=1G --json >est.json 2>err
n=$(key est.json trained_params)
check "adapters have $n parameters" test "$n" = $((2 * 3 * (32 + 64 + 32 + 32 + 32 + 96 + 48 + 32)))
check "gradients are those of adapters" test "$(key est.json gradients_bytes)" -le $((5 * n))
check "moments, too" test "$(key est.json moments_bytes)" -le $((10 * n))
check "the model's weights take 2 bytes" test "$(key est.json weights_bytes)" -le \
	$((2 * $(key est.json params) + 4 * n))

# FP8: 1 byte of each weight of a projection by rows, and 1 by columns
"$te_train" $adapt --recipe fp8-block --estimate=1G --json >fp8.json 2>err
check "and in FP8 no more" test \
	$(($(key fp8.json weights_bytes) + $(key fp8.json copies_bytes))) -le \
	$(($(key est.json weights_bytes) + $(key est.json copies_bytes) + 512))

# the folder of the model has other weights; then the same ones, in FP32
check "best weights have the digest of the model's" \
	grep -qa '"base_digest":"[0-9a-f]\{16\}"' whole/best/adapter_model.safetensors
mv base kept
check "other weights of the model" "$te_train" --init kept $common --steps 1 --out base short
fails "are refused" \
	"whole/adapter_model.safetensors: was trained with other weights than $tmp/base has now" \
	"$te_train" --resume whole --steps 40
# warns COMMAND...: that the adapter belongs to other weights, which is no failure
warns()
{
	"$@" >out 2>err || return 1
	grep -q 'warning: whole/.* was trained with other weights than' err
}
check "te_generate warns of them" warns "$generate" --model base --adapter whole --prompt U -n 4
for to in other.gguf other.dir; do
	check "te_export to $to too" warns "$export" --model base --adapter whole $to
done
rm -r base
check "the same weights in FP32" "$te_train" --init kept $common --steps 0 --out base short
check "are accepted" "$te_train" --resume whole --steps 31
check "and in a GGUF file" "$export" --model kept --type f32 base.gguf
for model in kept base base.gguf; do
	"$generate" --model $model --adapter whole --prompt U -n 4 >out 2>err
	check "no warning of $model" test $? = 0 -a "$(grep -c "other weights" err)" = 0
done
"$export" --model base --adapter whole other2.gguf 2>err
check "te_export does not warn either" test $? = 0 -a "$(grep -c "other weights" err)" = 0
rm -r base
mv kept base

check "a model replaces an adapter" "$te_train" --model plain.json $common --steps 2 --overwrite \
	--out names short
check "and its files" test ! -e names/adapter_config.json -a ! -e names/adapter_model.safetensors
check "an adapter replaces a model" "$te_train" $adapt --steps 2 --overwrite --out names other
check "and its file" test ! -e names/model.safetensors

while IFS='|' read -r message args; do
	eval "\"$te_train\" $args" >out 2>err
	status=$?
	check "$args: refused" test $status = 2
	check "$message" grep -qF -- "$message" err
done <<'EOF'
--lora needs --init|--model plain.json --lora rank=3 other
--lora and --freeze exclude each other|--init base --lora rank=3 --freeze embed other
expected --tensor 1|--init base --lora rank=3 --tensor 2 other
no layer has a projection of this name|--init base --lora rank=3,targets=q_proj other
expected rank=R|--init base --lora alpha=3 other
was saved by a run with --lora "rank=3,alpha=6", not "rank=4"|--resume whole --lora rank=4
base/adapter_config.json|--resume base --lora rank=4 --steps 30
--pipeline: --lora is not possible with it|--init base --lora rank=3 --pipeline 2 other
it is an adapter|--init whole other
EOF
rm half/adapter_config.json
"$te_train" --resume half 2>err
check "the model must be named" grep -q 'half/adapter_config.json' err
tap_end
