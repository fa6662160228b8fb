#!/bin/sh
# --memory chooses what is computed again, divided and offloaded: the fastest mix that fits by
# prediction, with the results of the options that it stands for.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--model micro.json --backend host --batch 40 --seq-len 32 --steps 2 --warmup 1
	--random-tokens --eval-every 0 --eval-batches 1 --save-every 0"

# bytes OPTION...: of the run with these options
bytes()
{
	"$te_train" $common --estimate --json "$@" | sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p'
}

# mib BYTES
mib()
{
	echo "$1" | awk '{ printf "%.2f MiB", $1 / 1048576 }'
}

plain=$(bytes)
block=$(bytes --recompute block)
check "block takes less: $block of $plain" test "$block" -lt "$plain"
half=$(((plain + block) / 2))

"$te_train" $common --memory 4G --log-every 1 --out most 2>&1 | cat >out
check "a limit above all: the plain run is taken" grep -q \
	'^chosen: --recompute off --loss-chunk 0 --offload off --states device$' out
check "a pipe has that before the first step" awk '
	/^chosen:/ { chosen = NR }
	/^step 1\// { step = NR }
	END { exit !(chosen && chosen < step) }' out
check "of 8 mixes, which all fit" test "$(grep -c ' ms$' out)" = 8
check "and the first takes what --estimate says" grep -q "^off  *0  *device  *-  *$(mib "$plain") " out
check "a plain run" "$te_train" $common --out plain
same "has the same weights" plain/model.safetensors most/model.safetensors

says "a limit that something must make room for" 'a step .* ms \(predicted .*\), checkpoint in half$' \
	"$te_train" $common --memory $half --out half
check "the fastest mix that fits is chosen, and moves only for more than 1 %" awk '
	$NF == "ms" && (!least || $(NF - 1) < least) { least = $(NF - 1) }
	$NF == "ms" { ms[$1 " " $2 " " $3] = $(NF - 1) }
	$NF == "ms" && $4 == "-" && (!still || $(NF - 1) < still) { still = $(NF - 1) }
	/^chosen:/ { at = $3 " " $5 " " $9; moves = $7 != "off"; n++ }
	END { exit !(n == 1 && ms[at] > 0 && ms[at] <= 1.05 * least &&
		     (!moves || !still || ms[at] < 0.99 * still)) }' out
options=$(sed -n 's/^chosen: //p' out)
check "not the plain run: $options" test "$options" != \
	"--recompute off --loss-chunk 0 --offload off --states device"
# --offload auto needs the limit that it moves for
check "its options, given" env TE_DEVICE_MEM_LIMIT=$half "$te_train" $common $options --out given
same "give the same weights" given/model.safetensors half/model.safetensors
says "json has the prediction" '"predicted_step_ms": [0-9]' \
	"$te_train" $common --memory $half --json
check "to the byte" test "$(sed -n 's/.*"predicted_bytes": \([0-9]*\).*/\1/p' out)" = \
	"$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' out)"
used=$(sed -n 's/.*"memory_bytes": \([0-9]*\).*/\1/p' out)
check "and no more memory than allowed: $used of $half" test "$used" -le "$half"
check "and no table" test "$(grep -c chosen out)" = 0
check "a resumed run" "$te_train" --resume half --steps 3
kept=$(echo "$options" | sed 's/--recompute \([^ ]*\) .*/"recompute":"\1"/')
check "has the choice" grep -aq "$kept" half/state.safetensors

says "given options stay" \
	'^chosen: --recompute block --loss-chunk 16 --offload off --states device$' \
	"$te_train" $common --memory 4G --recompute block --loss-chunk 16 --offload off \
	--states device --estimate
check "and are one mix" test "$(grep -c ' ms$' out)" = 1

given="--recompute block --loss-chunk 16 --offload off"
device=$(bytes $given)
host=$(bytes $given --states host)
check "moments in host memory take less: $host of $device" test "$host" -lt "$device"
says "they are chosen where nothing else fits" "^chosen: $given --states host\$" \
	"$te_train" $common $given --memory $(((host + device) / 2)) --out host
check "moments in device memory" "$te_train" $common $given --out device
same "give the same weights" device/model.safetensors host/model.safetensors

"$te_train" $common --memory 500K >out 2>err
check "nothing fits" test $? = 2
check "the error names the smallest mix" grep -q \
	'nothing fits into 0.49 MiB: --recompute block --loss-chunk [0-9]* takes' err
check "and no mix is said to fit" test "$(grep -c ' ms$' out)" = 0
fails "another offload" "--offload is all, expected off or auto" \
	"$te_train" $common --memory 1G --offload all
fails "samples" "not for --sample-only" \
	"$te_train" --resume half --memory 1G --sample-only --sample 1
# each rank has two communicators of 20 MiB
unset TE_COMM_PACKETS
te_run="$te_run -n 2"
says "two ranks choose" \
	'^chosen: --recompute off --loss-chunk 0 --offload off --states device$' \
	$te_run "$te_train" $common --memory 64M --out two
check "once" test "$(grep -c chosen out)" = 1
check "two ranks without a limit" $te_run "$te_train" $common --out two.plain
same "have the same weights" two.plain/model.safetensors two/model.safetensors
tap_end
