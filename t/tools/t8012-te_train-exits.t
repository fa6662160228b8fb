#!/bin/sh
# However a run ends, what it trained is saved, and the next run finds it.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

long="$micro --steps 1000000 --eval-every 0 --log-every 1"

# saved DIR: a checkpoint of the last step that err names as made
saved()
{
	"$te_train" --resume "$1" --stop-after 0 --json >summary 2>again &&
		grep -q "\"steps\": $(sed -n 's/^step \([0-9]*\)\/.*/\1/p' err | tail -n 1)," summary
}

for sig in INT TERM $HUP USR1 USR2 XCPU; do
	rm -rf i
	start $long --out i text
	kill -$sig $pid
	check "SIG$sig: exit status 130" ends_with 130
	check "SIG$sig: saved" saved i
	check "SIG$sig: summary" grep -q 'steps, .* tokens/s, checkpoint in i' out
	step=$(sed -n "s/.*SIG$sig: finishing step \([0-9]*\), then saving.*/\1/p" err)
	check "SIG$sig: told, with the step" grep -q "\"steps\": $step," summary
done

rm -rf i err
env --ignore-signal=INT "$te_train" $long --out i text >out 2>err &
pid=$!
wait_for '^step [1-9][0-9]*/' err
kill -INT $pid
kill -TERM $pid
check "SIGINT that is ignored stays so" ends_with 130
check "and other signals are heard" grep -q 'SIGTERM: finishing step' err
grep SIGINT err >why
empty "alone" why

rm -rf i err
env --block-signal "$te_train" $long --out i text >out 2>err &
pid=$!
wait_for '^step [1-9][0-9]*/' err
kill -TERM $pid
check "signals that a launcher blocks are heard" ends_with 130
check "and it is saved" saved i

# timeout(1) sends a signal twice
rm -rf i
start $long --out i text
kill -STOP $pid
kill -INT $pid
kill -TERM $pid
kill -CONT $pid
check "signals at the same moment are one" ends_with 130
check "and it is saved" saved i

# a validation of all of the text takes far longer than a step
start $micro --seq-len 2 --batch 1 --steps 1000000 --log-every 1 --eval-every 5 --eval-batches 0 \
	--save-every 0 --out v text
check "a validation begins" wait_for '^step 5/' err
sleep 0.1
kill -INT $pid
check "it ends at a signal" ends_with 130
check "and the step is saved" saved v
check "told" grep -q 'SIGINT: ending the validation of step 5, then saving' err
grep 'step 5: validation' err >unfinished
empty "a part of a validation is no result" unfinished
start --resume v --log-every 1 --eval-batches 2
kill -TERM $pid
ends_with 130
check "the resumed run repeats it" grep -q '^step 5: validation' err

# A second one, while a long step is finished, ends it at once, unless the first one was a warning
# that time is nearly over. Without the pause they would be one. A first one that came before the
# step or after it is sent again, later, to a copy.
"$te_train" $micro --steps 1 --save-every 1 --out k text >out 2>err
accum=8192
[ -z "$TT_SANITIZE" ] || accum=1024
for signals in TERM-INT TERM-TERM USR1-TERM; do
	first=${signals%-*} second=${signals#*-}
	[ $first = TERM ] || accum=$((accum / 16)) # this step is finished
	for pause in 0 0.1 0.3 1 3; do
		rm -rf k2 err
		cp -r k k2
		env --default-signal=INT "$te_train" --resume k2 --steps 2 --accum $accum >out 2>err &
		pid=$!
		wait_for 'held out' err
		# the signals have handlers
		wait_for '^SigCgt:.*[4-7c-f][0-9a-f][0-9a-f][0-9a-f]$' "/proc/$pid/status"
		sleep $pause
		kill -$first $pid
		until grep -q SIG$first err || grep -q '^State:.Z' "/proc/$pid/status"; do
			sleep 0.05
		done
		kill -STOP $pid 2>/dev/null
		sleep 0.6
		# or the step had not begun, or has ended
		grep -q "SIG$first: finishing step 2," err && [ ! -s out ] && break
		kill -KILL $pid 2>/dev/null
		wait $pid
	done
	kill -$second $pid
	kill -CONT $pid
	status=143 made=1
	[ $signals != TERM-INT ] || status=130
	[ $signals != USR1-TERM ] || status=130 made=2
	check "SIG$first, then SIG$second: exit status $status" ends_with $status
	check "and $((made - 1)) lines of a summary" test "$(wc -l <out)" = $((made - 1))
	"$te_train" --resume k2 --stop-after 0 --json >summary 2>again
	check "the checkpoint has $made steps" grep -q "\"steps\": $made," summary
done

# before there is anything to save
mkfifo fifo
"$te_train" $micro --steps 1 --out w fifo >out 2>err &
pid=$!
exec 3>fifo # opened by the run, too, which reads it now
kill -TERM $pid
check "while data are read, a signal ends it" ends_with 143
exec 3>&-

rm -f err
(trap '' HUP && exec "$te_train" $micro --steps 40 --log-every 1 text >out 2>err) &
pid=$!
wait_for '^step [1-9]' err
kill -HUP $pid
check "nohup is respected" ends_with 0

# closed pipes
{
	"$te_train" $long --out p text 2>&1
	echo $? >status
} | head -n 5 >err
check "a closed pipe: exit status 1" test "$(cat status)" = 1
check "saved" "$te_train" --resume p --stop-after 0
{
	"$te_train" $micro --steps 3 --out p2 --sample 5 text 2>err
	echo $? >status
} | true
check "a closed standard output: exit status 1" test "$(cat status)" = 1
check "saved, and told" grep -q 'standard output' err
check "and resumes" "$te_train" --resume p2 --stop-after 0
check "closed standard files" sh -c '"$@" <&- >&- 2>&-' sh "$te_train" $micro --steps 3 --out q text
check "are not written to" "$te_train" --resume q --stop-after 0

# files that change
cp text changing
start $long --out f changing
echo "Another line." >>changing
check "a file that changes: exit status 2" ends_with 2
check "it is named" grep -q 'changing: the file changed' err
check "and the training saved" grep -q '^step [0-9]* was saved' err
check "to continue with, once the files are given" "$te_train" --resume f --stop-after 0 changing
tr e f <changing >changed && mv changed changing
fails "other tokens of the same number are refused" "other tokens" "$te_train" --resume f --steps 3

tap_end
