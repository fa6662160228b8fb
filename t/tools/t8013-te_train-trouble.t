#!/bin/sh
# Failed saves, full disks and a second run end no training.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

long="$micro --steps 1000000 --eval-every 0 --log-every 1"

# one run saves to a folder
start $long --out c text
"$te_train" $micro --steps 2 --out c text >out2 2>err2
check "a second run is refused" test $? = 2
check "its message names the process" grep -q "^te_train: c: another run .*: process $pid on " err2
"$te_train" --resume c --steps 2 >out2 2>err2
check "so is --resume" test $? = 2
kill -KILL $pid
wait $pid
check "a process that was killed has no lock" "$te_train" $micro --steps 2 --out c --overwrite text
check "the folder has checkpoints" "$te_train" --resume c --stop-after 0

# a save that fails is tried again
start $long --save-every 3 --out s text
check "saves" wait_for . s/state.safetensors
# a save may be writing that file now
i=0
until mkdir s/state.safetensors.new 2>mkdir.err || [ $((i += 1)) = 10000 ]; do :; done
check "a failed save is told" wait_for '^step [0-9]* was not saved; training continues' err
n=$(grep -c '^step [0-9]*/' err)
rmdir s/state.safetensors.new
check "it is tried again" wait_for '^step [0-9]* was saved' err
i=0
until [ "$(grep -c '^step [0-9]*/' err)" -gt "$n" ] || [ $((i += 1)) = 1000 ]; do sleep 0.01; done
check "training continued" [ $i -lt 1000 ]
kill -TERM $pid
check "as if nothing had been" ends_with 130
check "with a checkpoint" "$te_train" --resume s --stop-after 0

# what would stop the save stops the start
mkdir -p n/model.safetensors.new
fails "a name that a save needs is taken" "n/model.safetensors.new: is not a regular file" \
	"$te_train" $micro --steps 1 --out n text
if [ "$(id -u)" = 0 ] && unshare -m true 2>unshare.err; then
	mkdir small
	fails "a disk that is too small" "small: 0.2" unshare -m sh -c \
		'mount -t tmpfs -o size=256k tmpfs small && exec "$@"' sh \
		"$te_train" $micro --steps 1 --out small text
	check "tells what a checkpoint needs" grep -q 'MiB are free, a checkpoint needs 0.4' err
else
	skip "a disk that is too small" "only root can mount one"
fi

# names that are not UTF-8 are those of files too
f=$(printf 'te\377t')
cp text "$f"
cp text "$f.val"
check "a name that is not UTF-8" "$te_train" $micro --steps 2 --out b --val "$f.val" \
	--log b.jsonl "$f"
check "is resumed from" "$te_train" --resume b --steps 3
check "with --val" "$te_train" --resume b --val "$f" --steps 4
check "and as any other" "$te_train" $micro --steps 4 --out b2 --val text text
check "which gives the same bits" cmp b/model.safetensors b2/model.safetensors
check "the log can be drawn" "$(built tools/te_plot)" -o b.svg b.jsonl

# a log on a full disk
"$te_train" $micro --steps 20 --log-every 1 --log /dev/full text >out 2>err
check "a full disk for the log: exit status 0" test $? = 0
check "told once" test "$(grep -c '/dev/full: .*training continues' err)" = 1
(ulimit -f 8 && exec "$te_train" $micro --steps 60 --log-every 1 --log cut.jsonl text >out 2>err)
check "a limit of its size: exit status 0" test $? = 0
check "told" grep -q 'cut.jsonl: .*training continues' err
check "there are lines" test "$(wc -l <cut.jsonl)" -gt 5
check "all of them whole" test "$(tail -c 2 cut.jsonl)" = '}'

"$te_train" $micro --steps 1 text >out 2>err
check "without --out, told that nothing is saved" grep -q 'without --out nothing' err
"$te_train" $micro --steps 1 --out t text >out 2>err
grep 'without --out' err >said
empty "not with it" said

tap_end
