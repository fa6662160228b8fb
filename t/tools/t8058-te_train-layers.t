#!/bin/sh
# te_train --layer-recipe: GEMMs of layers in recipes of their own have the bits of a model that has
# one recipe, if all have it; they are captured, resumed and divided by ranks.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

run="$micro --dropout 0 --steps 6 --eval-every 6 --save-every 0"

# last LOG: its last validation loss
last()
{
	sed -n 's/.*"val_loss_nats":\([^,]*\),.*/\1/p' "$1" | tail -n 1
}

for r in bf16 $(fewer 1 fp8-delayed fp8-block mxfp8); do
	check "$r" "$te_train" $run --recipe $r --log $r.log --out $r text
done
fp8=fp8-delayed
[ -d $fp8 ] || check "$fp8" "$te_train" $run --recipe $fp8 --log $fp8.log --out $fp8 text
for r in bf16 $fp8; do
	other=$fp8
	[ $r != $fp8 ] || other=bf16
	check "all layers in $r" "$te_train" $run --recipe $other --layer-recipe "*:$r" --out all.$r text
	same "have the bits of $r" $r/model.safetensors all.$r/model.safetensors
done

# the first and the last layer in BF16, and a GEMM in blocks
own="h.0.*,h.1.up:bf16;h.*.down:fp8-block"
run="$run --recipe $fp8 --layer-recipe $own"
check "three recipes" "$te_train" $run --log own.log --out own text
for r in bf16 $fp8; do
	cmp -s $r/model.safetensors own/model.safetensors && echo $r >early || : >early
	empty "have other bits than $r" early
done
check "their loss is within 1 %" awk -v a="$(last bf16.log)" -v b="$(last own.log)" \
	'BEGIN { d = b / a - 1; exit !(a > 0 && d < 0.01 && d > -0.01) }'
for graph in step $(fewer 0 layer); do
	check "captured by $graph" "$te_train" $run --graph $graph --out own.$graph text
	same "with the same bits" own/model.safetensors own.$graph/model.safetensors
done
check "half of the steps" "$te_train" $run --stop-after 3 --out half text
cp -r half other
check "and the rest" "$te_train" --resume half
same "have the same bits" own/model.safetensors half/model.safetensors
same "and the same scales" own/state.safetensors half/state.safetensors
check "with other recipes the scales begin anew" "$te_train" --resume other --layer-recipe "*:bf16"
check "2 ranks with a part of the states each" "$te_run" -n 2 "$te_train" $run --batch 2 --zero 2 \
	--log zero.log text
check "are within 1 %" awk -v a="$(last own.log)" -v b="$(last zero.log)" \
	'BEGIN { d = b / a - 1; exit !(a > 0 && d < 0.01 && d > -0.01) }'

run="$micro --recipe $fp8"
fails "no recipe" 'expected PATTERN,...:RECIPE' "$te_train" $run --layer-recipe h.0.qkv text
fails "no pattern" 'expected PATTERN,...:RECIPE' "$te_train" $run --layer-recipe :bf16 text
fails "an unknown recipe" 'no recipe "fp9"' "$te_train" $run --layer-recipe h.0.*:fp9 text
fails "no such layer" 'no layer has a GEMM of this name' "$te_train" $run \
	--layer-recipe "h.0.*:bf16;h.99.*:bf16" text
fails "two with scales of tensors" \
	'--layer-recipe fp8-current with --recipe fp8-delayed: expected one recipe' \
	"$te_train" $run --layer-recipe h.0.*:fp8-current text
fails "two groups" '--layer-recipe fp8-delayed with --layer-recipe fp8-current' \
	"$te_train" $micro --layer-recipe "h.0.*:fp8-current;h.1.*:fp8-delayed" text
fails "with the head" '--layer-recipe fp8-current with --head-recipe fp8-delayed' \
	"$te_train" $micro --head-recipe fp8-delayed --layer-recipe "h.0.*:fp8-current" text
while IFS='|' read -r subject args; do
	fails "with $args" "$subject" "$te_train" $run --layer-recipe h.0.*:bf16 $args text
done <<'EOT'
--pipeline: --layer-recipe is not possible with it|--pipeline 2
--zero 3: --layer-recipe is not possible with it|--zero 3
--eval-choices and --layer-recipe exclude each other|--eval-choices text
EOT

tap_end
