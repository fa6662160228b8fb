#!/bin/sh
# 20 steps give the same bits as 10 steps and 10 resumed ones, captured or not, in every recipe.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

files="model.safetensors state.safetensors config.json"

# equal NAME A B FILE...
equal()
{
	name=$1 a=$2 b=$3
	shift 3
	for f; do
		cmp "$a/$f" "$b/$f" 2>&1 || [ -s "$a/$f" ] || echo "$a/$f is not there"
	done >differ
	empty "$name" differ
}

for r in $recipes; do
	run="$micro --recipe $r --steps 20 --eval-every 4 --save-every 0 --accum 2"
	check "$r: 20 steps" "$te_train" $run --out a-$r text
	check "$r: 20 steps, one captured" "$te_train" $run --graph --out g-$r text
	equal "$r: captured is eager" a-$r g-$r model.safetensors
	check "$r: 10 steps" "$te_train" $run --stop-after 10 --out b-$r text
	cmp -s a-$r/model.safetensors b-$r/model.safetensors && echo same >early || : >early
	empty "$r: 10 steps are not 20" early
	check "$r: 10 more" "$te_train" --resume b-$r
	equal "$r: 20 = 10 + 10" a-$r b-$r $files
done

# validating more often, or saving, does not change the training
run="$micro --recipe fp8-delayed --steps 20 --save-every 3 --accum 2"
check "other validations and saves" "$te_train" $run --eval-every 1 --out v text
equal "validating disturbs nothing" a-fp8-delayed v model.safetensors
check "another seed" "$te_train" $run --seed 5 --out s text
cmp -s v/model.safetensors s/model.safetensors && echo same >seed || : >seed
empty "another seed gives other weights" seed
check "resumes in another folder, to another" "$te_train" --resume b-bf16 --steps 22 --out w
check "the first is as it was" cmp b-bf16/model.safetensors a-bf16/model.safetensors

# weights that are not trained: captured and resumed, with the same patterns only
run="$micro --recipe fp8-delayed --steps 20 --save-every 0 --accum 2 --freeze embed,h.0.*"
check "frozen: 20 steps" "$te_train" $run --out fa text
check "frozen: 20 steps, captured" "$te_train" $run --graph --out fg text
equal "frozen: captured is eager" fa fg model.safetensors
check "frozen: 10 steps" "$te_train" $run --stop-after 10 --out fb text
cp -r fb fc
check "frozen: 10 more" "$te_train" --resume fb
equal "frozen: 20 = 10 + 10" fa fb $files
fails "other weights cannot be trained" '"embed,h.0.*", not "embed,h.1.*"' \
	"$te_train" --resume fc --freeze "embed,h.1.*"
fails "nor all" '"embed,h.0.*", not ""' "$te_train" --resume fc --freeze ""
fails "nor some where all were" '"", not "embed"' \
	"$te_train" --resume b-bf16 --steps 30 --freeze embed
check "but from the weights" "$te_train" $micro --steps 2 --init fc --freeze "embed,h.1.*" text
check "samples need no moments" "$te_train" --resume fc --freeze "" --sample-only --sample 4

head -c 5000 text >less
cp text whole && cp less text
fails "files that changed are refused" "tokens to train on" "$te_train" --resume b-bf16 --steps 30
check "unless they are given" "$te_train" --resume b-bf16 --steps 22 --out x less

# a context beyond that of the model
short="--model plain.json --batch 1 --eval-batches 1"
check "rotary positions beyond the model's" "$te_train" $short --seq-len 48 --steps 1 --out far text
"$te_train" $short --seq-len 48 --steps 1 text >out 2>err
check "are a warning" test "$(grep -c 'warning: --seq-len 48 is beyond .* 16: checkp' err)" = 1
check "and saved" grep -q '"max_position_embeddings": 48' far/config.json
"$te_train" --resume far --model plain.json --steps 2 >out 2>err
check "a resumed run goes on with them" test $? = 0
grep warning err >warned
empty "without a warning" warned
"$te_train" $short --seq-len 16 --steps 1 text >out 2>err
grep warning err >warned
empty "nor is there one for the model's own" warned

tap_end
