#!/bin/sh
# te_train --zero 1: ranks that keep a part of the moments have the bits of ranks that keep all, any
# number of ranks resumes from any other's checkpoint, also if ranks divide the models, and --estimate
# counts the part.
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

# 3 ranks: with blocks that all of them have
while read -r name args; do
	check "$name: all moments" ranks 3 $fresh $args --out $name.all
	check "$name: a part" ranks 3 $fresh $args --out $name.part --zero 1
	saved $name.all $name.part
done <<'LIST'
fp32 --recipe fp32
bf16 --moments bf16 --masters bf16-remainder --graph step
fp8 --moments fp8 --masters bf16 --recipe fp8-current --graph layer
LIST

# sums in rank order have the order of one rank's
check "one rank" "$te_train" $fresh --recipe fp32 --accum 3 --zero 1 --out one
check "has the weights of three" cmp one/model.safetensors fp32.part/model.safetensors

# six micro-batches, some steps of as many ranks and then of others
sum="$fresh --moments fp8"
for case in "1 6 2" "2 3 3" "3 2 1"; do
	set -- $case
	for zero in 0 1; do
		out=$1.to.$3.$zero
		check "$1 begin" ranks $1 $sum --accum $2 --zero $zero --stop-after 3 --out $out
		check "$3 go on" ranks $3 --resume $out --zero $zero
	done
	saved $1.to.$3.0 $1.to.$3.1
done
cp -r 3.to.1.1 other
check "all moments" ranks 3 --resume other --steps 8
check "a part" ranks 3 --resume 3.to.1.1 --steps 8 --zero 1
saved other 3.to.1.1

for zero in 0 1; do
	for m in fp32 fp8; do
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

tap_end
