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
	damaged $f "c/$f" "$f is not there"
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

tap_end
