#!/bin/sh
# te_train --head-recipe: the head in FP8, with layers of any type, learns, is captured, resumed
# and divided by ranks.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

te_run=$abs_top_builddir/tools/te_run
heads="fp8-delayed fp8-current fp8-block"
[ -z "$TT_SANITIZE" ] || heads=fp8-delayed
learn="$micro --dropout 0 --steps 40 --lr 2e-3 --eval-every 40 --eval-batches 4 --save-every 0"

# last LOG: its last validation loss
last()
{
	sed -n 's/.*"val_loss_nats":\([^,]*\),.*/\1/p' "$1" | tail -n 1
}

# near NAME WANT GOT: within 1 %
near()
{
	check "$1: $3 is within 1 % of $2" awk -v a="$2" -v b="$3" \
		'BEGIN { d = b / a - 1; exit !(a > 0 && d < 0.01 && d > -0.01) }'
}

check "bf16" "$te_train" $learn --recipe bf16 --log bf16.log text
for h in $heads; do
	run="$learn --recipe bf16 --head-recipe $h"
	check "bf16, head in $h" "$te_train" $run --log $h.log --out $h text
	near "its loss" "$(last bf16.log)" "$(last $h.log)"
	cmp -s bf16.log $h.log && echo same >early || : >early
	empty "it is not the loss of bf16" early
	check "captured" "$te_train" $run --graph --out $h.graph text
	same "with the same bits" $h/model.safetensors $h.graph/model.safetensors
	check "20 steps" "$te_train" $run --stop-after 20 --out $h.half text
	cp -r $h.half $h.other
	check "20 more" "$te_train" --resume $h.half
	same "have the same bits" $h/model.safetensors $h.half/model.safetensors
	same "and the same scales" $h/state.safetensors $h.half/state.safetensors
	check "layers and head in $h" "$te_train" $learn --recipe $h --head-recipe $h \
		--log all.log text
	near "its loss" "$(last bf16.log)" "$(last all.log)"
done
check "a plan shows it" "$te_train" $learn --recipe bf16 --head-recipe fp8-delayed --steps 0 \
	--print-plan text text
grep -q '+quantize' tap.out
check "a norm casts the head's input" test $? = 0
check "with other recipes the scales begin anew" "$te_train" --resume fp8-delayed.other \
	--recipe fp8-delayed --head-recipe bf16
fails "two FP8 recipes" '--head-recipe fp8-block with --recipe fp8-delayed: one FP8' \
	"$te_train" $learn --recipe fp8-delayed --head-recipe fp8-block text

# ranks sum in another order, so some codes of FP8 differ
run="--model micro.json --dropout 0 --batch 2 --lr 2e-3 --warmup 2 --steps 8 --eval-every 8
	--save-every 0 --recipe bf16 --head-recipe fp8-delayed"
check "one rank" "$te_train" $run --log one.log text
check "2 ranks divide the head" "$te_run" -n 2 "$te_train" $run --tensor 2 --log two.log \
	--stop-after 4 --out two text
check "one rank resumes" "$te_train" --resume two --log two.log
near "and has the loss of one" "$(last one.log)" "$(last two.log)"

tap_end
