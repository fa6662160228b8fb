#!/bin/sh
# te_train --states masters and all: weights and gradients in host memory give the weights of a run
# that has them in device memory, eager and in graphs, in each recipe; --estimate counts them,
# --memory chooses them, a plan lists them, and a resumed run goes on with them or without.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 2 --lr 1e-2 --warmup 1 --steps 3 --eval-every 0 --eval-batches 1 --save-every 0
	--random-tokens"
cat >two.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 80, "max_position_embeddings": 32}
JSON
fresh="--model two.json --seq-len 32 $common --masters bf16 --moments fp8 --gradients bf16"

while read -r name states args; do
	check "$name: on the device" "$te_train" $fresh $args --out "$name.device"
	check "$name: $states" "$te_train" $fresh $args --states $states --out "$name.$states"
	same "$name: the same weights" "$name.device/model.safetensors" \
		"$name.$states/model.safetensors"
done <<'LIST'
step all --recipe fp8-delayed --graph step --accum 2 --column-copies recompute
layer masters --recipe bf16 --graph layer --accum 2 --recompute block
chunk all --recipe bf16 --graph step --accum 2 --loss-chunk 48
LIST

check "half of the steps" "$te_train" $fresh --recipe fp8-delayed --graph step --accum 2 \
	--column-copies recompute --states all --stop-after 2 --out half
check "has the choice" grep -aq '"states":"all"' half/state.safetensors
check "the last one on the device" "$te_train" --resume half --states device
same "the resumed run has the same weights" step.device/model.safetensors half/model.safetensors

# adapters read the weights of their base from host memory
for s in device masters; do
	check "adapters, $s" "$te_train" --init layer.device $common --lora rank=2 --states $s \
		--out lora.$s
done
same "the same adapters" lora.device/adapter_model.safetensors \
	lora.masters/adapter_model.safetensors

for s in host all; do
	"$te_train" $fresh --states $s --estimate=1G --json >$s.json
done
n=$(($(key host.json weights_bytes) / 2))
check "--estimate: gradients are not on the device" test $(key all.json gradients_bytes) = 0
check "and are in host memory, as masters are" test \
	$(($(key all.json host_states_bytes) - $(key host.json host_states_bytes))) = $((4 * n))
says "the text tells of it" '^gradients .*in host memory; activations have some$' \
	"$te_train" $fresh --states all --estimate=1G
says "a plan lists them" '^  h.1.proj.weight +\[64,64\] bf16 +[0-9]+ gradient@' \
	"$te_train" $fresh --states all --print-plan text

given="--recompute block --loss-chunk 0 --offload off"
host=$("$te_train" $fresh $given --states host --estimate --json |
	sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p')
says "--memory chooses them where nothing else fits" "^chosen: $given --states masters\$" \
	"$te_train" $fresh $given --memory $((host - 1024)) --estimate
fails "FP32 masters" "--states all: masters are FP32, expected --masters bf16" \
	"$te_train" $fresh --masters fp32 --states all

# two ranks with a micro-batch each have the weights of one with two
two="--recipe fp32 --graph step --masters bf16 --gradients fp32"
check "one rank" "$te_train" $fresh $two --accum 2 --out r1
check "two ranks" $te_run -n 2 "$te_train" $fresh $two --states masters --out r2
same "the same weights" r1/model.safetensors r2/model.safetensors
for how in "all: 2 ranks share gradients" "masters --zero 1: ranks have all masters and moments"; do
	args=${how%%:*}
	$te_run -n 2 "$te_train" $fresh --states $args >two.out 2>&1
	check "two ranks, --states $args" grep -q "^te_train: --states .*${how#*:}" two.out
done
tap_end
