#!/bin/sh
# Checkpoints survive full disks and crashes; damaged ones and other files are refused.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

check "a checkpoint" "$te_train" $micro --steps 4 --out c text
ls c >have
printf 'config.json\nmodel.safetensors\nstate.safetensors\n' >want
same "three files, nothing left over" want have
cp -r c good

# damaged FILE SUBJECT NAME: c/FILE, which was modified, is refused; then restore it
damaged()
{
	fails "$3" "$2" "$te_train" --resume c --steps 5
	cp "good/$1" "c/$1"
}
for f in model state; do
	f=$f.safetensors
	size=$(wc -c <good/$f)
	for n in 0 7 50 $((size / 2)) $((size - 1)); do
		head -c $n good/$f >c/$f
		damaged $f "c/$f" "$f cut to $n bytes"
	done
	cp text c/$f
	damaged $f "c/$f" "$f is text"
	{ head -c $((size - 100)) good/$f; head -c 100 text; } >c/$f
	damaged $f "c/$f: damaged" "$f with other bytes near its end"
	rm c/$f
	damaged $f "$f" "$f is not there"
done
cp c/model.safetensors c/state.safetensors
damaged state.safetensors "c/state.safetensors" "weights in place of the state"
sed 's/"n_embd": 32/"n_embd": 64/; s/"n_inner": 128/"n_inner": 256/' good/config.json >c/config.json
damaged config.json "transformer.wte.weight" "another width than the weights'"
sed 's/"n_layer": 2/"n_layer": 1/' good/config.json >c/config.json
damaged config.json "12 tensors" "fewer layers than the weights'"
check "other weights" "$te_train" $micro --steps 5 --out other text
cp other/model.safetensors c/
damaged model.safetensors "c/model.safetensors" "the weights of another step"

# a crash between the two renames leaves new state, old weights, and the new weights as .new
cp other/state.safetensors c/
cp other/model.safetensors c/model.safetensors.new
check "a crash while renaming is made good" "$te_train" --resume c --steps 5
check "with the weights that belong there" cmp c/model.safetensors other/model.safetensors
size=$(wc -c <other/model.safetensors)
cp good/* c/
cp other/state.safetensors c/
{ head -c $((size - 4)) other/model.safetensors; printf damg; } >c/model.safetensors.new
fails "but not with damaged ones" "c/model.safetensors: not the weights" "$te_train" --resume c
check "which stay where they are" cmp c/model.safetensors good/model.safetensors
cp good/* c/
head -c 1000 good/model.safetensors >c/model.safetensors.new
check "what a crash while writing left is of no matter" "$te_train" --resume c --steps 4
check "and the checkpoint is the same" cmp c/model.safetensors good/model.safetensors

# a full disk, by a limit of the file size in blocks of 512 bytes
cp good/* c/
(ulimit -f 100 && exec "$te_train" --resume c --steps 6 >out 2>err)
check "a disk that is full while saving: exit 2" test $? = 2
grep "te_train: c/model.safetensors.new: .*nothing was replaced" err >said
check "and a line that says so" test -s said
for f in $(cat want); do cmp c/$f good/$f; done >differ 2>&1
ls c >have
same "nothing is left over" want have
empty "the old checkpoint is intact" differ

# --init starts anew from weights alone
check "--init" "$te_train" --init good --steps 0 --out n text
check "and keeps them" cmp n/model.safetensors good/model.safetensors
check "the best weights are kept" "$te_train" $micro --steps 6 --save-best --out best text
check "in a folder of their own" test -s best/best/model.safetensors

# weights in BF16 for other programs: the state has what a resumed run goes on with
check "--save-dtype bf16" "$te_train" $micro --steps 4 --save-best --save-dtype bf16 --out half text
for f in half half/best; do
	check "$f: all tensors are BF16" sh -c "head -c 8000 $f/model.safetensors | tr -d ' ' |
		grep -a '\"dtype\":\"BF16\"' | grep -av '\"F32\"'"
	check "$f: config.json has the type" grep -q '"torch_dtype": "bfloat16"' $f/config.json
done
check "the file has half the size" test $(($(wc -c <half/model.safetensors) * 10)) -lt \
	$(($(wc -c <good/model.safetensors) * 6))
check "a run that goes on in FP32" "$te_train" --resume half --save-dtype fp32 --stop-after 4 --out full
check "has the weights that FP32 would have kept" cmp full/model.safetensors good/model.safetensors
check "the type is kept" "$te_train" --resume half --steps 5
check "in a resumed run" grep -q '"torch_dtype": "bfloat16"' half/config.json
check "which makes the steps of one in FP32" "$te_train" --resume half --save-dtype fp32 --stop-after 5 \
	--out five
check "resumed too" "$te_train" --resume good --steps 5 --out goon
check "exactly" cmp five/model.safetensors goon/model.safetensors
check "--init from BF16" "$te_train" --init half --save-dtype bf16 --steps 0 --out round text
check "writes the same BF16" cmp round/model.safetensors half/model.safetensors

# --keep: folders of links
check "--keep" "$te_train" $micro --steps 6 --save-every 1 --keep 2 --out k text
ls -d k/step-* >have
printf 'k/step-5\nk/step-6\n' >want
same "the latest two are there" want have
for f in model state; do
	check "the last one is the checkpoint: $f" cmp k/$f.safetensors k/step-6/$f.safetensors
done
check "--resume of the one before" "$te_train" --resume k/step-5 --steps 6 --out again
check "has the same end" cmp again/model.safetensors k/model.safetensors
check "the number is kept" "$te_train" --resume k --steps 7
rm -r k/step-7
touch k/step-6/mine
check "what a killed run had not kept" "$te_train" --resume k --steps 8
ls -d k/step-* >have
printf 'k/step-6\nk/step-7\nk/step-8\n' >want
same "is kept by the next, and a folder with other files stays" want have
check "they are not of a run that replaces it" "$te_train" $micro --steps 2 --keep 2 --out k \
	--overwrite text
ls -d k/step-* >have
printf 'k/step-2\nk/step-6\n' >want
same "they are removed" want have

# what another run has saved is replaced by --overwrite only
cp -r best was
ln -s best link
fails "a new run does not replace a checkpoint" "best: has the checkpoint of step 6 of another run" \
	"$te_train" $micro --steps 2 --out best text
check "the message tells how to go on" grep -q -- '--resume best .*--overwrite' err
fails "nor does one that resumes another" "step 6" "$te_train" --resume good --steps 6 --out best
fails "nor one that begins with its weights" "step 6" "$te_train" --init best --steps 1 --out best text
cp -r best weights
rm -r weights/state.safetensors weights/best
fails "nor are weights replaced" "weights/model.safetensors: exists" \
	"$te_train" --init weights --steps 1 --out weights text
mkdir old
cp -r best/best old
fails "nor best weights" "old/best/model.safetensors: exists" \
	"$te_train" $micro --steps 1 --out old text
rm -f best/.lock was/.lock
check "nothing has changed" diff -r was best
check "the run itself goes on, by any name" "$te_train" --resume best --steps 7 --out link/
check "a limit of its size ends the run that replaces it" sh -c \
	'ulimit -f 100; "$@"; test $? = 2' sh "$te_train" $micro --steps 3 --out best --overwrite text
check "the checkpoint is still there" "$te_train" --resume best --stop-after 0
check "without best weights, which are not of the new run" test ! -e best/best
check "--overwrite" "$te_train" $micro --steps 4 --out best --overwrite text
check "replaces it" cmp best/model.safetensors good/model.safetensors
cp -r was/best weights
check "a run that begins with the best weights of what it replaces" "$te_train" --init was/best \
	--steps 0 --out was --overwrite text
check "has them" cmp was/model.safetensors weights/best/model.safetensors
check "and they are gone" test ! -e was/best
check "--overwrite and --save-best" "$te_train" $micro --steps 6 --out was --overwrite --save-best text
check "keep the new ones" test -s was/best/model.safetensors

tap_end
