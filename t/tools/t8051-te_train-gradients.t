#!/bin/sh
# te_train --gradients bf16: losses are near, resumed runs, ranks and parts of moments have the same
# bits, --estimate counts them, and what cannot have them says so.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 2 --lr 1e-2 --warmup 2 --steps 6 --eval-every 0 --eval-batches 1 --save-every 0
	--log-every 1 --random-tokens"
fresh="--model plain.json $common --gradients bf16"

# after 200 steps of words
for g in fp32 bf16; do
	"$te_train" --model plain.json --batch 4 --lr 1e-2 --warmup 2 --eval-batches 8 --steps 200 \
		--gradients $g --json text >$g.json 2>err
	check "200 steps, $g" test $? = 0
done
check "the losses are within 0.3 %" awk -v a="$(key fp32.json val_loss_nats)" \
	-v b="$(key bf16.json val_loss_nats)" \
	'BEGIN { d = b / a - 1; exit !(a > 0 && a < 4 && d * d < 9e-6) }'
check "they differ" test "$(key fp32.json val_loss_nats)" != "$(key bf16.json val_loss_nats)"

while read -r name args; do
	check "$name" "$te_train" $fresh $args --accum 2 --out $name --log $name.log
	check "$name: half of the steps" "$te_train" $fresh $args --accum 2 --stop-after 3 \
		--out $name.half
	check "$name: the others" "$te_train" --resume $name.half
	same "$name: the resumed run has the same weights" $name/model.safetensors \
		$name.half/model.safetensors
	check "$name: two ranks" "$te_run" -n 2 "$te_train" $fresh $args --out $name.two \
		--log $name.two.log
	steps_losses $name.log >want
	steps_losses $name.two.log >got
	check "$name: the losses of two ranks are near" awk 'NR == FNR { want[$1] = $2; next }
		{ d = $2 / want[$1] - 1; n++; if (d * d > 1e-6) exit 1 } END { exit n != 6 }' \
		want got
	check "$name: two ranks with a part" "$te_run" -n 2 "$te_train" $fresh $args --zero 1 \
		--out $name.part
	same "$name: a part has the same weights" $name.two/model.safetensors \
		$name.part/model.safetensors
done <<'LIST'
bf16 --moments bf16 --masters bf16 --graph step
fp8 --moments fp8 --recipe fp8-current --graph layer
LIST
check "two ranks divide the model" "$te_run" -n 2 "$te_train" $fresh --model micro.json --tensor 2
check "continues with fp32" "$te_train" --resume bf16.two --gradients fp32 --steps 7
check "adapters" "$te_train" --init bf16 $common --lora rank=2 --gradients bf16

for g in fp32 bf16; do
	"$te_train" --model plain.json --random-tokens --gradients $g --estimate=1G --json \
		>$g.json 2>err
done
n=$(key fp32.json gradients_bytes)
check "--estimate counts them" test "$n" -gt 0 -a "$n" = $((2 * $(key bf16.json gradients_bytes)))
# both sizes are rounded up to 256 bytes
check "the total is less by as much" test \
	$(($(key fp32.json total_bytes) - $(key bf16.json total_bytes))) = \
	$(((n + 255) / 256 * 256 - (n / 2 + 255) / 256 * 256))

while IFS='|' read -r args pattern; do
	"$te_train" $fresh $args >out 2>err
	check "$args is refused" grep -qF -- "$pattern" err
done <<'LIST'
--recipe fp32|--gradients bf16: --recipe fp32 computes in FP32, expected --gradients fp32
--pipeline 2|--pipeline: --gradients other than fp32 is not possible with it
LIST
tap_end
