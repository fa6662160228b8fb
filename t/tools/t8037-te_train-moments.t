#!/bin/sh
# Moments in BF16 and FP8: resumed runs and several ranks have the same bits, any format is loaded
# into any other, and --estimate counts them. Groups of weights with options of their own.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 2 --lr 1e-2 --warmup 2 --steps 6 --eval-every 0 --eval-batches 1 --save-every 0
	--log-every 1 --random-tokens"
fresh="--model plain.json $common"

for m in fp32 bf16 fp8; do
	check "$m" "$te_train" $fresh --accum 2 --moments $m --out $m --log $m.log
	check "$m, half of the steps" "$te_train" $fresh --accum 2 --moments $m --stop-after 3 \
		--out $m.half
	cp -r $m.half $m.other
	check "$m, the others" "$te_train" --resume $m.half
	same "$m: the resumed run has the same weights" $m/model.safetensors \
		$m.half/model.safetensors
	check "$m on two ranks" "$te_run" -n 2 "$te_train" $fresh --accum 1 --moments $m \
		--out $m.two
	check "$m, one rank goes on" "$te_train" --resume $m.two --steps 7
	"$te_train" --model plain.json --random-tokens --moments $m --estimate=1G --json >$m.json \
		2>err
done
steps_losses fp32.log >want
check "a run has 6 losses" test "$(wc -l <want)" = 6
for m in bf16 fp8; do
	steps_losses $m.log >got
	# to 1 %: with another sum of roundings a few steps of this model differ by less
	check "$m: losses are near" awk 'NR == FNR { want[$1] = $2; next }
		{ d = $2 / want[$1] - 1; if (d * d > 1e-4) exit 1 }' want got
done

# the size of a moment in its file
for m in fp32 bf16 fp8; do
	LC_ALL=C grep -ao '"adamw.m":{"dtype":"[A-Z0-9]*"' $m/state.safetensors
done >got
printf '"adamw.m":{"dtype":"%s"\n' F32 BF16 U8 >want
same "checkpoints tell the format" want got

for from in fp32 bf16 fp8; do
	for to in fp32 bf16 fp8; do
		test $from != $to || continue
		cp -r $from.other $from.$to
		check "$from continues as $to" "$te_train" --resume $from.$to --moments $to \
			--log $from.$to.log
		steps_losses $from.$to.log >got
		steps_losses fp32.log | tail -n 3 >want
		check "$from to $to: losses are near" awk '
			NR == FNR { want[$1] = $2; n++; next }
			{ d = $2 / want[$1] - 1; n--; if (d * d > 1e-4) exit 1 }
			END { exit n != 0 }' want got
	done
done

n=$(key fp32.json gradients_bytes)
n=$((n / 4))
printf '%d\n' $((8 * n)) $((4 * n)) $((2 * (n + n / 64))) >want
for m in fp32 bf16 fp8; do key $m.json moments_bytes; done >got
same "--estimate counts moments" want got

for m in bf16-remainder bf16; do
	check "masters $m" "$te_train" $fresh --accum 2 --masters $m --out m.$m --log m.$m.log
	check "masters $m, half of the steps" "$te_train" $fresh --accum 2 --masters $m \
		--stop-after 3 --out m.$m.half
	cp -r m.$m.half m.$m.other
	check "masters $m, the others" "$te_train" --resume m.$m.half
	same "masters $m: the resumed run has the same weights" m.$m/model.safetensors \
		m.$m.half/model.safetensors
	check "masters $m on two ranks" "$te_run" -n 2 "$te_train" $fresh --accum 1 --masters $m \
		--out m.$m.two
	check "masters $m continue as fp32" "$te_train" --resume m.$m.other --masters fp32
	cp -r fp32.half f.$m
	check "fp32 continues with masters $m" "$te_train" --resume f.$m --steps 7 --masters $m
	steps_losses m.$m.log >got
	steps_losses fp32.log >want
	check "masters $m: losses are near" awk 'NR == FNR { want[$1] = $2; next }
		{ d = $2 / want[$1] - 1; if (d * d > 1e-4) exit 1 }' want got
	"$te_train" --model plain.json --random-tokens --masters $m --estimate=1G --json >m.$m.json \
		2>err
done
# in FP8 nothing is rounded to BF16
for m in fp32 bf16-remainder; do
	check "masters $m in fp8" "$te_train" $fresh --recipe fp8-current --masters $m --out e.$m
done
same "remainders have the weights of FP32 masters" e.fp32/model.safetensors \
	e.bf16-remainder/model.safetensors
n=$(key fp32.json weights_bytes)
printf '%d\n' $n $((n / 2)) >want
for m in m.bf16-remainder m.bf16; do key $m.json weights_bytes; done >got
same "--estimate counts masters" want got
check "masters are the BF16 copies" test $(($(key m.bf16-remainder.json copies_bytes) * 2)) -lt \
	"$(key fp32.json copies_bytes)"
"$te_train" $fresh --tensor 2 --masters bf16 >out 2>err
check "--tensor stores FP32 masters" grep -q 'expected --masters fp32' err

"$te_train" $fresh --tensor 2 --moments fp8 >out 2>err
check "--tensor stores FP32" grep -q 'expected --moments fp32' err

# a factor of 2^-1 for all weights is half of the rate
half="--lr 5e-3 --min-lr 5e-4"
check "half of the rate" "$te_train" $fresh $half --beta2 0.9 --out g.half
check "a group of all weights" "$te_train" $fresh --min-lr 1e-3 --stop-after 3 \
	--groups '*:rate=0.5,beta2=0.9' --out g.all
check "goes on" "$te_train" --resume g.all
same "has the same weights" g.half/model.safetensors g.all/model.safetensors
check "two groups" "$te_train" $fresh --min-lr 1e-3 --stop-after 3 \
	--groups 'head:rate=0.5,beta2=0.9;*:rate=0.5,beta2=0.9' --out g.other
check "go on as one" "$te_train" --resume g.other --groups '*:rate=0.5,beta2=0.9'
same "with the same weights" g.half/model.safetensors g.other/model.safetensors
check "others are options of the checkpoint now" grep -aq \
	'"groups": *"\*:rate=0.5,beta2=0.9"' g.other/state.safetensors
while IFS='|' read -r groups pattern; do
	"$te_train" $fresh --groups "$groups" >out 2>err
	check "--groups $groups is refused" grep -qF -- "$pattern" err
done <<'LIST'
x|--groups: "x": expected PATTERN,...:rate=X,decay=X and so on
:rate=1|--groups: ":rate=1": expected PATTERN
h:|--groups: "h:": expected PATTERN
head:rate=-1|--groups: "rate=-1": expected a number from 0 to 1000 after =
head:rat=1|--groups: "rat=1": expected rate=X, decay=X, beta1=X or beta2=X
head:rate=1;|--groups: "": expected PATTERN
head:rate=1;nope:rate=1|group 1: no trained weight is named nope, and no op that owns one
LIST
tap_end
