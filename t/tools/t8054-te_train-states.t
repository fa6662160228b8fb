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

more=1, # a part of these with sanitizers: no code is in one of them only
[ -z "$TT_SANITIZE" ] || more=
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
for how in "all --zero 1: 2 ranks share gradients" \
	"masters --context 2 --gradients fp32: ranks have all masters and moments"; do
	args=${how%%:*}
	$te_run -n 2 "$te_train" $fresh --states $args >two.out 2>&1
	check "two ranks, --states $args" grep -q "^te_train: --states .*${how#*:}" two.out
done

# ranks with parts of the states in their host memory, and one rank with all on the device
parts="--model two.json --seq-len 32 $common --batch 1 --masters bf16 --moments fp8 --steps 4"
fewer 2 "eager 3 ${more}2,3 masters --recipe fp32" \
	"exact 2 ${more}2 masters --recipe fp32 --graph step --masters bf16-remainder" \
	"each 4 2,3 all --recipe fp32 --graph layer" >exact
while read -r name n stages states args; do
	check "$name: one rank" "$te_train" $parts $args --accum $n --out $name.1
	for zero in $(echo $stages | tr , ' '); do
		check "$name: --zero $zero" ranks $n $parts $args --zero $zero --states $states \
			--out $name.zero$zero
		same "$name: has the weights of one rank" $name.1/model.safetensors \
			$name.zero$zero/model.safetensors
	done
done <exact
while read -r name n stages states args; do
	check "$name: all states" ranks $n $parts $args --out $name.0
	for zero in $(echo $stages | tr , ' '); do
		check "$name: --zero $zero" ranks $n $parts $args --zero $zero --states $states \
			--out $name.zero$zero
		same "$name: the same weights" $name.0/model.safetensors \
			$name.zero$zero/model.safetensors
	done
done <<LIST
codes 3 1,3 masters --recipe fp8-current --graph step --gradients bf16
block 2 ${more:+2,}3 all --recipe fp8-block --graph layer --recompute block
LIST
# each goes on from the checkpoint of another
check "begins in parts" ranks 3 $parts --recipe fp32 --zero 3 --states all --stop-after 1 --out on
for how in "3 2 masters 2" "1 0 device 3" "3 3 masters 4"; do
	set -- $how
	check "$1 go on with --zero $2 --states $3" ranks $1 --resume on --zero $2 --states $3 \
		--stop-after $4
done
same "has the weights of one rank" eager.1/model.safetensors on/model.safetensors

# what a run takes in addition to the estimate is the memory of communicators
{ fewer 0 "2 device" "2 all" "3 masters"; printf '%s\n' "2 masters" "3 all"; } >hows
n=0
while read -r zero states; do
	n=$((n + 1))
	given="$parts --recipe fp8-current --gradients bf16 --zero $zero --states $states --json"
	check "--zero $zero --states $states: estimate" ranks 3 $given --estimate=1G
	cp out estimate.json
	check "--zero $zero --states $states: run" ranks 3 $given
	echo $(($(key out memory_bytes) - $(key estimate.json total_bytes))) >>more
done <hows
check "estimates are what runs take: $(uniq more)" test "$(wc -l <more) $(uniq more | wc -l)" = "$n 1"
n=$(($(key estimate.json params) / 64 / 3 * 64)) # of a part
check "a part of moments, masters and gradients is in host memory" test \
	$(($(key estimate.json host_states_bytes) - (2 * n + n / 32 + 4 * n))) -lt 1024

# the limit has room for communicators and 4 MiB
given="--preset tiny --batch 1 --seq-len 32 --random-tokens --masters bf16 --moments fp8 --recompute off
	--loss-chunk 0 --offload off"
says "--memory chooses them for ranks with parts" '^chosen: .* --states masters$' \
	"$te_run" -n 2 "$te_train" $given --zero 3 --memory 9M --estimate
tap_end
