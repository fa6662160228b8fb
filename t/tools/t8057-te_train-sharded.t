#!/bin/sh
# te_train --sharded: ranks save their parts of a checkpoint at the same time; any number of ranks
# resumes with the bits of a checkpoint in one file, other programs find the tensors by the index, a
# rank that fails or is killed leaves the checkpoint before, and damaged parts are named.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 1 --lr 1e-2 --warmup 2 --steps 6 --eval-every 0 --eval-batches 1 --save-every 0
	--log-every 1 --random-tokens"

# saved A B: both have the same weights and state, in one file each
saved()
{
	same "$1 and $2: weights" $1/model.safetensors $2/model.safetensors
	check "$1 and $2: state" cmp $1/state.safetensors $2/state.safetensors
}

# as_one DIR RANKS ARGUMENT...: save what these ranks load from DIR in one file
as_one()
{
	rm -rf whole
	cp -r $1 whole
	n=$2
	shift 2
	check "$n resume, $*" ranks $n --resume whole "$@"
	echo .lock config.json model.safetensors state.safetensors | tr ' ' '\n' >want
	ls -A whole >got
	same "and save one file of weights" want got
}

# step: of whole
step()
{
	grep -ao '"step":[0-9]*' whole/state.safetensors | head -n 1 | sed 's/.*://'
}

# begun by 3 ranks; any number of others, with more or fewer parts or none, has the same bits
while read -r name model zero args; do
	how="--model $model $common --accum 2 $args --zero $zero --save-every 2"
	check "$name: rank 0 saves all" ranks 3 $how --out $name.one
	check "$name: each rank saves" ranks 3 $how --out $name.parts --sharded
	for case in "1 0" "2 1" "3 $zero" "6 $zero"; do
		set -- $case
		as_one $name.parts $1 --zero $2 $(echo "$args" | grep -o -e "--graph [a-z]*")
		saved $name.one whole
	done
done <<'LIST'
fp32 plain.json 1 --recipe fp32
rounded untied.json 2 --save-dtype bf16 --moments bf16 --masters bf16-remainder --gradients bf16 --graph step
codes untied.json 3 --save-dtype bf16 --moments fp8 --masters bf16 --recipe fp8-current --graph layer
vectors untied.json 1 --save-dtype bf16 --recipe bf16
delayed micro.json 1 --recipe fp8-delayed --states host --masters bf16
LIST
# a validation of ranks that divide the model may differ by rounding
as_one vectors.parts 2 --tensor 2
same "vectors.one and whole: weights" vectors.one/model.safetensors whole/model.safetensors
for d in vectors.one whole; do
	tail -c 500000 $d/state.safetensors >$d.end
done
check "and moments" cmp vectors.one.end whole.end

# what other programs read
for how in one parts; do
	check "te_export reads $how" "$(built tools/te_export)" --model codes.$how --type f32 $how.f32
done
same "the index names all weights" one.f32/model.safetensors parts.f32/model.safetensors
check "te_train begins with them" "$te_train" --init codes.parts $common --steps 1 --out init

# with copies of earlier ones, whose files have names of both kinds
check "three are kept" ranks 2 --model plain.json $common --zero 3 --sharded --keep 3 \
	--save-every 1 --out keep
for step in 4 5 6; do
	as_one keep/step-$step 1 --stop-after 0 --keep 1
	check "step $step is kept" test "$(step)" = $step
done
ls -d keep/step-* | wc -l >got
echo 3 >want
same "no others" want got
check "not all names are equal" test $(ls keep/step-*/state-* | sed 's|.*/||' | sort -u | wc -l) = 4

# a rank that cannot write: the checkpoint before stays, and later ones replace it
mkdir fp32.parts/state-000002-of-000003.safetensors.new
cp -r fp32.parts fails
ranks 3 --resume fails --zero 1 --sharded --steps 8 && echo "exit status 0" >why || : >why
empty "a rank fails" why
check "it is named" told "rank 1 has not written its part of the checkpoint; its message says why"
check "with its reason" told "state-000002-of-000003.safetensors.new: .*not a regular file"
check "its index is as before" cmp fails/model.safetensors.index.json \
	fp32.parts/model.safetensors.index.json
rmdir fp32.parts/*.new fails/*.new
as_one fails 1
saved fp32.one whole
check "it goes on" ranks 3 --resume fails --zero 1 --sharded --steps 8
ls -A fails >got
cat >want <<'LIST'
.lock
config.json
model-000001-of-000003.safetensors
model-000002-of-000003.safetensors
model-000003-of-000003.safetensors
model.safetensors.index.json
state-000001-of-000003.safetensors
state-000002-of-000003.safetensors
state-000003-of-000003.safetensors
state.safetensors
LIST
same "and replaces all files" want got

# ranks that are killed while others and threads write
for n in 0 1 2; do
	rm -f err
	"$te_run" -n 3 "$te_train" --model plain.json $common --steps 1000000 --save-every 1 --zero 2 \
		--sharded --out killed --overwrite >out 2>err </dev/null &
	pid=$!
	wait_for "^step $((20 + 7 * n))/" err
	lose $n
	ends_with 0 && echo "exit status 0" >why || : >why
	empty "without rank $n all end" why
	as_one killed 1 --zero 0 --stop-after 0
	check "with a checkpoint of a late step" test "$(step)" -ge 15
done

# damage is found by those who read it
refused()
{
	ranks 3 --resume bad --zero 1 --steps 8 && echo "exit status 0" >why || : >why
	empty "$1 is refused" why
	check "with its name" told "$2"
	rm -r bad
	cp -r fp32.parts bad
}
cp -r fp32.parts bad
printf 9 | dd of=bad/state-00002-of-00003.safetensors bs=1 seek=900 conv=notrunc 2>err
refused "a damaged part" "bad/state-00002-of-00003.safetensors: damaged: its data does not match"
rm bad/model-00003-of-00003.safetensors
refused "a part that is not there" "bad/model-00003-of-00003.safetensors: No such file"
cp fails/state-000001-of-000003.safetensors bad/state-00001-of-00003.safetensors
refused "a part of another checkpoint" "not the part that bad/state.safetensors belongs to"
fails "it is not replaced unasked" "bad: has the checkpoint of step 6 of another run" \
	"$te_train" --model plain.json $common --out bad
rm bad/state*
fails "nor weights in several files" "bad/model.safetensors.index.json: exists and is not of this" \
	"$te_train" --model plain.json $common --out bad

fails "all moments are with one rank" "--sharded needs --zero 1, 2 or 3" "$te_train" --model \
	plain.json $common --sharded
while read -r name how; do
	fails "$name is refused" "--sharded: $name is not possible with it" "$te_train" --model \
		plain.json $common --zero 1 --sharded $how
done <<'LIST'
--tensor --tensor 2
--pipeline --pipeline 2
--states-file --states-file . --states host --masters bf16
LIST
tap_end
