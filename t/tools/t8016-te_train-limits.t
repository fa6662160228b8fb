#!/bin/sh
# te_train's learning rate is the documented one, numbers have bounds, a loss that is no number is
# never saved, and --numerics names the tensor with the first infinities.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

micro="--model micro.json --batch 1 --eval-batches 1 --eval-every 0"

# te_train(1): linear warm-up, then half a cosine; the seventh decimal may be rounded otherwise
$te_train $micro --steps 10 --warmup 4 --lr 1e-3 --min-lr 1e-4 --log-every 1 --log lr.jsonl text \
	>out 2>&1
sed -n 's/^{"step": *\([0-9]*\),.*"lr": *\([0-9.e-]*\).*/\1 \2/p' lr.jsonl | awk '
{
	s = $1 - 1
	want = s < 4 ? 1e-3 * (s + 1) / 4 : 1e-4 + 0.45e-3 * (1 + cos(3.14159265358979 * (s - 4) / 6))
	if (!($2 > want - 1e-7 && $2 < want + 1e-7))
		print "step " $1 ": " $2 ", not " want
	n++
}
END { if (n != 10) print n + 0 " steps" }' >why
empty "each step has its learning rate" why

# each option that takes an integer refuses one that no run could use, and names itself
for option in $($te_train --help | sed -n 's/^ *\(--[a-z-]*\) [NTK] .*/\1/p'); do
	fails "$option has an upper bound" "$option" $te_train $micro $option 9223372036854775807 text
done
check "there are such options" test "$tap_n" -gt 12

# unsigned DIR: the weights of good, in a file whose digest is not looked at
unsigned()
{
	mkdir $1 && cp good/config.json $1
	LC_ALL=C sed 's/"digest":/"digesx":/' good/model.safetensors >$1/model.safetensors
}

# a weight that is no number, in a file whose digest is not looked at
$te_train $micro --steps 1 --out good text >out 2>&1
unsigned bad
size=$(wc -c <bad/model.safetensors)
for at in 4 8 12 16; do
	printf '\000\000\300\177' |
		dd of=bad/model.safetensors bs=1 seek=$((size - at)) conv=notrunc 2>>out
done
$te_train --init bad --batch 1 --warmup 1 --steps 3 --eval-batches 1 --out lost text >out 2>err
status=$?
check "a loss that is no number ends the run" test $status = 1
check "the message says so" grep -qi 'not finite\|not a number\|nan' err
check "nothing is saved" test ! -e lost/model.safetensors -a ! -e lost/state.safetensors
cat err >how
check "the weight is named" grep -q 'the weight norm.bias is -*nan' how
for every in 0 1; do
	$te_train --init bad --batch 1 --warmup 1 --steps 3 --eval-batches 1 --eval-every $every \
		--numerics values.$every text >out 2>err
	step=$((1 - every))
	check "--numerics names the first value" grep -q \
		"step $step: the first value that is not finite is norm.y of the forward pass: [1-9]" err
	grep -v '"nan":0,' values.$every | head -n 1 >first
	check "which its file has" \
		grep -q "^{\"step\":$step,\"value\":\"norm.y\",\"pass\":\"forward\",\"dtype\":\"" first
done

# weights of 3.39e38, the largest BF16: outputs of their GEMM are infinite. The next cast saturates
# them, so that no loss shows it, but scales of mxfp8 and numbers of BF16 can be infinite
unsigned large
file=large/model.safetensors
name=transformer.h.1.mlp.c_fc.weight
at=$(LC_ALL=C sed -n "s/.*\"$name\":{[^}]*\"data_offsets\":\[\([0-9]*\),.*/\1/p" $file | head -n 1)
at=$((at + 8 + $(od -An -t u4 -N 4 $file)))
for i in 1 2 3 4 5 6 7 8; do
	printf '\000\000\177\177\000\000\177\177\000\000\177\177\000\000\177\177'
done | dd of=$file bs=1 seek=$at conv=notrunc 2>>out
for recipe in fp8-delayed fp8-current fp8-block nvfp4 mxfp8 bf16; do
	case $recipe in
	mxfp8 | bf16) want=1 ;;
	*) want=0 ;;
	esac
	$te_train --init large --batch 4 --warmup 1 --steps 2 --eval-batches 1 --eval-every 1 \
		--recipe $recipe --numerics large.$recipe text >out 2>err
	status=$?
	check "$recipe: the run ends with $want" test $status = $want
	grep -o 'step .: the first value that is not finite is [^ ]* of the forward pass: 0 NaN' err |
		head -n 1 >got
	echo "step 0: the first value that is not finite is h.1.up.y of the forward pass: 0 NaN" >want
	same "$recipe: --numerics names the output of these weights" want got
	grep -v '"nan":0,"infinite":0' large.$recipe | head -n 1 >first
	check "$recipe: which its file has first" grep -q '"step":0,"value":"h.1.up.y",.*"nan":0,' first
	[ $want = 1 ] && continue
	check "$recipe: at each validation" test "$(grep -c 'first value .* is h.1.up.y of' err)" = 3
	grep -i 'loss -*\(nan\|inf\)' err >why
	empty "$recipe: with losses that are finite" why
done

rm -rf lost
$te_train --init bad --steps 0 --eval-batches 1 --save-best --out lost --log lost.jsonl text >out 2>err
check "so does a validation of it" test $? = 1
check "which is named, with the weight" \
	grep -q '^te_train: the validation loss of step 0 is not finite (-*nan): .*the weight norm.bias is' err
grep -h '(best)\|best val\|val_loss' err out lost.jsonl >best
empty "it is not the best one, nor any" best
check "and nothing is saved" test -z "$(ls lost)"
for json in "" --json; do
	$te_train --init bad --sample 9 --sample-only $json >out 2>err
	check "there are no samples of it $json" test $? = 1
	check "but a message" \
		grep -q '^te_train: the sample ends: the logit of token 0 is not finite .*the weight norm.bias is' err
	grep '?' out >drawn
	empty "and no token" drawn
done

tap_end
