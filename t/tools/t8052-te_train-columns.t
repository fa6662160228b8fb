#!/bin/sh
# te_train --column-copies recompute: backward makes the column-wise copies of weights, with the
# weights that the run has that keeps them, eager and in graphs, in ranks and with adapters;
# --estimate counts them, --memory chooses them, and a resumed run goes on with them.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 2 --lr 1e-2 --warmup 1 --steps 3 --eval-every 0 --eval-batches 1 --save-every 0
	--random-tokens"
cat >two.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 80, "max_position_embeddings": 32}
JSON
fresh="--model two.json --seq-len 32 $common"

# pair NAME RANKS OPTION...: the same run in both ways
pair()
{
	name=$1
	run=
	[ "$2" = 1 ] || run="$te_run -n $2"
	shift 2
	check "$name: copies that are kept" $run "$te_train" "$@" --out "$name.keep"
	check "$name: copies that are made" $run "$te_train" "$@" --column-copies recompute \
		--out "$name.made"
	same "$name: the same weights" "$name.keep/model.safetensors" "$name.made/model.safetensors"
}

while read -r name ranks args; do
	pair $name $ranks $fresh $args
done <<'LIST'
step 1 --recipe fp8-delayed --graph step --accum 2
layer 1 --recipe fp8-current --graph layer --accum 2 --recompute block
masters 1 --recipe fp8-block --masters bf16 --gradients bf16 --moments fp8 --head-recipe fp8-block
offload 1 --recipe fp8-current --offload all
mxfp8 1 --recipe mxfp8 --masters bf16-remainder --graph step
tensor 2 --recipe fp8-current --tensor 2 --graph step
parts 2 --recipe fp8-block --zero 1
stages 2 --recipe fp8-current --pipeline 2 --accum 2
LIST

check "half of the steps" "$te_train" $fresh --recipe fp8-delayed --graph step --accum 2 \
	--column-copies recompute --stop-after 2 --out half
check "has the choice" grep -aq '"column-copies":"recompute"' half/state.safetensors
check "the others" "$te_train" --resume half
same "the resumed run has the same weights" step.keep/model.safetensors half/model.safetensors

# adapters have BF16 weights of their base, stored as codes
for c in keep recompute; do
	check "adapters, $c" "$te_train" --init step.keep $common --lora rank=2 \
		--recipe fp8-current --column-copies $c --out lora.$c
	"$te_train" --init step.keep $common --lora rank=2 --recipe fp8-current \
		--column-copies $c --estimate=1G --json >lora.$c.json
	"$te_train" $fresh --recipe fp8-current --column-copies $c --estimate=1G --json >$c.json
done
same "the same adapters" lora.keep/adapter_model.safetensors \
	lora.recompute/adapter_model.safetensors

# two layers of qkv, projection, and three matrices of the MLP
codes=$((2 * (3 * 64 * 64 + 64 * 64 + 3 * 64 * 80)))
check "--estimate: copies take a byte a parameter less" test \
	$(($(key keep.json copies_bytes) - $(key recompute.json copies_bytes))) = $codes
# nothing before the first qkv is trained
check "and so do adapters' bases" test \
	$(($(key lora.keep.json weights_bytes) - $(key lora.recompute.json weights_bytes))) = \
	$((codes - 3 * 64 * 64))
large=$((2 * 64 * 80 + 1024))
less=$(($(key keep.json total_bytes) - $(key recompute.json total_bytes)))
check "the total is less, but for one and states: $less" test $less -ge $((codes - large - 2048))
says "the text tells of it" '^copies .*column-wise ones are made in activations$' \
	"$te_train" $fresh --recipe fp8-current --column-copies recompute --estimate=1G
says "a plan has them" 'columns\(h.1.proj.weight\) \+ h.1.proj.bwd' \
	"$te_train" $fresh --recipe fp8-current --column-copies recompute --print-plan text

given="--recompute block --loss-chunk 0 --offload off --states device"
keep=$("$te_train" $fresh --recipe fp8-current $given --estimate --json |
	sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p')
says "--memory chooses them where nothing else fits" \
	"^chosen: $given --column-copies recompute\$" \
	"$te_train" $fresh --recipe fp8-current $given --memory $((keep - 1024)) --estimate
says "and not where all fits" "^chosen: $given --column-copies keep\$" \
	"$te_train" $fresh --recipe fp8-current $given --memory 1G --estimate
check "which is the only mix that is looked at" test "$(grep -c ' ms$' out)" = 1
says "those that are given stay" "^chosen: $given --column-copies recompute\$" \
	"$te_train" $fresh --recipe fp8-current $given --memory 1G --estimate \
	--column-copies recompute
says "a recipe without codes has none" "^chosen: $given\$" \
	"$te_train" $fresh $given --memory 1G --estimate
fails "a word" "--column-copies" "$te_train" $fresh --column-copies none
tap_end
