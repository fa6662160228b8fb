#!/bin/sh
# te_train --zero 1, 2 and 3: ranks that keep a part of the moments, or of gradients and weights too,
# have the bits of ranks that keep all, any number of ranks resumes from any other's checkpoint, also
# if ranks divide the models, and --estimate counts the part.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 1 --lr 1e-2 --warmup 2 --steps 6 --eval-every 0 --eval-batches 1 --save-every 0
	--log-every 1 --random-tokens"
fresh="--model plain.json $common"

# saved A B: both checkpoints have the same weights and the same state
saved()
{
	same "$1 and $2: weights" $1/model.safetensors $2/model.safetensors
	check "$1 and $2: state" cmp $1/state.safetensors $2/state.safetensors
}

# with blocks that all ranks have
more=1,
[ -z "$TT_SANITIZE" ] || more=
fewer 4 "fp32 3 ${more}2,3 --recipe fp32" \
	"fp8 4 ${more:+1,2,}3 --moments fp8 --masters bf16 --recipe fp8-current --graph layer" \
	"bf16 2 1,2 --moments bf16 --masters bf16-remainder --gradients bf16 --graph step" \
	"step 2 3 --masters bf16 --graph step --save-best --eval-every 3" \
	"layer 4 3 --recipe bf16 --graph layer" "mx 2 3 --recipe mxfp8 --graph step" >lists
while read -r name n stages args; do
	check "$name: all moments" ranks $n $fresh $args --out $name.all
	for zero in $(echo $stages | tr , ' '); do
		check "$name: a part" ranks $n $fresh $args --out $name.$zero --zero $zero
		saved $name.all $name.$zero
	done
done <lists
same "the best weights" step.all/best/model.safetensors step.3/best/model.safetensors

# ranks of two nodes do not map each other's weights
for states in device masters; do
	check "two nodes, --states $states" ranks "4 --per-node 2" $fresh --moments fp8 --masters bf16 \
		--recipe fp8-current --graph layer --zero 3 --states $states --out nodes.$states
	same "have the weights of one" fp8.3/model.safetensors nodes.$states/model.safetensors
done

# sums in rank order have the order of one rank's
check "one rank" "$te_train" $fresh --recipe fp32 --accum 3 --zero 2 --out one
check "has the weights of three" cmp one/model.safetensors fp32.2/model.safetensors
for how in "3 1" "1 3"; do
	set -- $how
	check "$1 begin" ranks $1 $fresh --recipe fp32 --accum $2 --zero 3 --stop-after 3 --out first
	check "$2 go on" ranks $2 --resume first --zero $(($1 > 1 ? 2 : 3))
	check "with one rank's weights" cmp one/model.safetensors first/model.safetensors
	rm -r first
done
# a table with two ops: each micro-batch is summed over the ranks, so that last bits differ
for zero in 1 2; do
	check "2 micro-batches" ranks 2 --model micro.json $common --recipe fp32 --accum 2 \
		--graph step --zero $zero --log $zero.log
	sed -n 's/.*"step":6,"train_loss_nats":\([0-9.]*\).*/\1/p' $zero.log >$zero.loss
done
check "with the same loss but for rounding" awk 'NR > 1 { exit !(($1 - x) ^ 2 < 1e-8 && x > 1) }
	{ x = $1 }' 1.loss 2.loss
check "in both logs" test 2 = "$(cat 1.loss 2.loss | grep -c .)"

# six micro-batches, some steps of as many ranks and then of others
sum="$fresh --moments fp8"
fewer 2 "3 2 1" "2 3 3" "1 6 2" >cases
while read -r case; do
	set -- $case
	for zero in 0 1; do
		out=$1.to.$3.$zero
		check "$1 begin" ranks $1 $sum --accum $2 --zero $zero --stop-after 3 --out $out
		check "$3 go on" ranks $3 --resume $out --zero $zero
	done
	saved $1.to.$3.0 $1.to.$3.1
done <cases
cp -r 3.to.1.1 other
check "all moments" ranks 3 --resume other --steps 8
check "a part" ranks 3 --resume 3.to.1.1 --steps 8 --zero 1
saved other 3.to.1.1

for zero in 0 1 2 3; do
	for m in fp32 $([ $zero -gt 1 ] || echo fp8); do
		check "--estimate, --zero $zero" ranks 4 $fresh --moments $m --zero $zero \
			--estimate=1G --json
		cp out $m.$zero.json
	done
done
# 64 elements are a block; all ranks have those that remain
n=$(key fp32.0.json gradients_bytes)
n=$((n / 4)) own=$((n / 64 / 4 * 64))
own=$((own + n - 4 * own))
printf '%d\n' $((8 * n)) $((8 * own)) $((2 * (n + n / 64))) $((2 * (own + own / 64))) >want
for m in fp32 fp8; do
	key $m.0.json moments_bytes
	key $m.1.json moments_bytes
done >got
same "moments are counted" want got
check "the rest is the same" test \
	$(($(key fp32.0.json total_bytes) - $(key fp32.1.json total_bytes))) = $((8 * (n - own)))
check "gradients are counted" test $(key fp32.2.json gradients_bytes) = $((4 * own))
# in FP32, a multiple of 256 bytes, and in BF16
check "weights are counted" test $(key fp32.3.json weights_bytes) = \
	$(($(key fp32.2.json weights_bytes) - 4 * n + (4 * own + 255) / 256 * 256 + 2 * own))
for zero in 1 2; do
	check "more layers" ranks 4 --preset tiny --random-tokens --zero $zero --estimate=1G --json
	key out total_bytes >$zero.total
done
check "take less" test $(cat 2.total) -lt $(cat 1.total)

# a communicator has the weights of --zero 3: what fits into --memory fits with it
given="--preset tiny --batch 1 --seq-len 32 --random-tokens --masters bf16 --moments fp8 --recompute off
	--loss-chunk 0 --offload off --states device --steps 1 --eval-every 0 --eval-batches 1"
for limit in 13 15 17; do
	if ranks 2 $given --zero 3 --memory ${limit}M; then
		echo "$limit MiB are enough"
	else
		grep -o -m 1 "nothing fits into $limit" err
	fi
done >got
printf '%s\n' "nothing fits into 13" "nothing fits into 15" "17 MiB are enough" >want
same "--memory counts the communicator" want got

# ranks that have a part of a model; begun and resumed with parts of the moments
while read -r name how; do
	check "$name: all moments" ranks 4 --model untied.json $common --accum 2 $how --out $name.all
	check "$name: a part" ranks 4 --model untied.json $common --accum 2 $how --zero 1 \
		--stop-after 3 --out $name.part
	check "$name: goes on" ranks 4 --resume $name.part $how --zero 1
	saved $name.all $name.part
done <<'LIST'
tensor --tensor 2 --sequence-parallel --recipe fp8-delayed
pipeline --pipeline 2 --freeze h.0.*,head
LIST

while read -r name how; do
	fails "$name is refused" "--zero 2: $name is not possible with it" "$te_train" $fresh \
		--zero 2 $how
done <<'LIST'
--tensor --tensor 2
--pipeline --pipeline 2
--context --context 2
--profile --profile text
--numerics --numerics n
LIST
while IFS='|' read -r name how; do
	fails "$name is refused" "--zero 3: $name is not possible with it" "$te_train" $fresh \
		--zero 3 $how
done <<'LIST'
--masters bf16-remainder|--masters bf16-remainder
--recipe fp8-delayed|--recipe fp8-delayed
--recipe auto|--recipe auto
--sample|--sample 9
LIST
tap_end
