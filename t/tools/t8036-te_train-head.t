#!/bin/sh
# te_train --head-recipe: the head in FP8, with layers of any type, learns, is captured, resumed
# and divided by ranks.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

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
fails "two recipes with scales of tensors" \
	'--head-recipe fp8-current with --recipe fp8-delayed: expected one recipe' \
	"$te_train" $learn --recipe fp8-delayed --head-recipe fp8-current text

# layers and head in two FP8 recipes
check "8 steps of bf16" "$te_train" $micro --steps 8 --eval-every 8 --save-every 0 --recipe bf16 \
	--log whole8.log text
for two in fp8-delayed:fp8-block mxfp8:fp8-current; do
	run="$micro --steps 8 --eval-every 8 --save-every 0 --recipe ${two%:*} --head-recipe ${two#*:}"
	two=${two%:*}.two
	check "$two: two recipes" "$te_train" $run --log $two.log --out $two text
	near "their loss" "$(last whole8.log)" "$(last $two.log)"
	for graph in step layer; do
		check "captured by $graph" "$te_train" $run --graph $graph --out $two.$graph text
		same "with the same bits" $two/model.safetensors $two.$graph/model.safetensors
	done
	check "with recomputation" "$te_train" $run --recompute block --out $two.again text
	same "with the same bits" $two/model.safetensors $two.again/model.safetensors
	check "8 steps, half" "$te_train" $run --stop-after 4 --out $two.half text
	check "and the rest" "$te_train" --resume $two.half
	same "have the same bits" $two/model.safetensors $two.half/model.safetensors
	same "and the same scales" $two/state.safetensors $two.half/state.safetensors
done

# chunks of 32 of 128 tokens, or of all
chunk="$micro --dropout 0 --steps 20 --eval-every 20 --save-every 0 --recipe bf16"
check "logits of all tokens" "$te_train" $chunk --log whole.log --out whole text
check "of 32 tokens at a time" "$te_train" $chunk --loss-chunk 32 --log chunk.log --out chunk text
near "their loss" "$(last whole.log)" "$(last chunk.log)"
check "captured" "$te_train" $chunk --loss-chunk 32 --graph --out chunk.graph text
same "with the same bits" chunk/model.safetensors chunk.graph/model.safetensors
check "captured by layer" "$te_train" $chunk --loss-chunk 32 --graph layer --out chunk.layer text
same "with the same bits" chunk/model.safetensors chunk.layer/model.safetensors
check "one chunk" "$te_train" $chunk --loss-chunk 128 --out one.chunk text
same "is whole" whole/model.safetensors one.chunk/model.safetensors
check "2 micro-batches" "$te_train" $chunk --batch 2 --accum 2 --loss-chunk 32 --out accum text
check "2 micro-batches in a graph" "$te_train" $chunk --batch 2 --accum 2 --loss-chunk 32 \
	--graph --out accum.graph text
same "have the same bits" accum/model.safetensors accum.graph/model.safetensors
check "half of the steps" "$te_train" $chunk --loss-chunk 32 --stop-after 10 --out chunk.half text
check "and the rest" "$te_train" --resume chunk.half
same "have the same bits" chunk/model.safetensors chunk.half/model.safetensors
"$te_train" $chunk --steps 0 --loss-chunk 32 --print-plan text text >plan 2>err
check "a plan shows it" grep -q head+loss plan
fails "a chunk of 24 tokens" 'not a multiple of 16' "$te_train" $chunk --loss-chunk 24 text
fails "with a head in FP8" 'not in FP8' "$te_train" $chunk --loss-chunk 32 \
	--head-recipe fp8-delayed text
fails "with --tensor" 'whole vocabularies' "$te_train" $chunk --loss-chunk 32 --tensor 2 text

# ranks sum in another order, so some codes of FP8 differ
run="--model micro.json --dropout 0 --batch 2 --lr 2e-3 --warmup 2 --steps 8 --eval-every 8
	--save-every 0 --recipe bf16 --head-recipe fp8-delayed"
check "one rank" "$te_train" $run --log one.log text
check "2 ranks divide the head" "$te_run" -n 2 "$te_train" $run --tensor 2 --log two.log \
	--stop-after 4 --out two text
check "one rank resumes" "$te_train" --resume two --log two.log
near "and has the loss of one" "$(last one.log)" "$(last two.log)"

tap_end
