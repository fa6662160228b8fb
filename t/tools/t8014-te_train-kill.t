#!/bin/sh
# A run that is killed at random moments and resumed gives the bits of one that is left alone.
# TT_KILLS: how many times; TT_SEED repeats the moments.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

kills=${TT_KILLS:-5}
run="$micro --recipe fp8-delayed --steps 1000000 --batch 1 --log-every 1000 --eval-every 7
	--eval-batches 1 --save-every 5 --keep 2"
set -- KILL INT TERM USR1 $HUP
awk -v n="$kills" -v seed="${TT_SEED:-$$}" 'BEGIN {
	srand(seed)
	for (i = 0; i < n; i++)
		printf "%.3f\n", 0.3 * rand()
}' >moments

# steps: how many the checkpoint has
steps()
{
	sed -n 's/^ *"steps": \([0-9]*\),$/\1/p' summary
}

# resumes: the checkpoint is complete
resumes()
{
	"$te_train" --resume a --stop-after 0 --json >summary 2>&1
}

check "a run begins" "$te_train" $run --stop-after 5 --out a text
last=5 n=0
while read -r moment; do
	sig=$1
	shift
	set -- "$@" "$sig"
	n=$((n + 1))
	rm -f err # of the run before
	env --default-signal=INT "$te_train" --resume a >out 2>err &
	pid=$!
	# begun: before that, a signal ends the process without a word
	wait_for 'tokens to train on' err
	sleep "$moment"
	kill -$sig $pid
	if [ "$sig" = KILL ]; then
		wait $pid 2>/dev/null
		ok "$n. SIG$sig after $moment s"
	else
		check "$n. SIG$sig after $moment s" ends_with 130
	fi
	check "$n. the checkpoint is complete" resumes
	check "$n. and no older than the one before" test "$(steps)" -ge "$last"
	for d in a/step-[0-9]*; do
		"$te_train" --resume "$d" --stop-after 0 --out kept --overwrite ||
			echo "$d is not complete"
	done >kept.out 2>kept.err
	check "$n. two older ones are" test "$(grep -c 'is not complete' kept.out)" = 0
	last=$(steps)
done <moments

check "steps were made: $last" test "$last" -gt 5
# one step more: the validation of the last step is done by a run that goes on, not by --stop-after
last=$((last + 1))
check "the last one goes on" "$te_train" --resume a --stop-after "$last"
check "one that is left alone" "$te_train" $run --stop-after "$last" --out b text
for f in model.safetensors state.safetensors config.json; do
	cmp a/$f b/$f
done >differ 2>&1
empty "the same bits" differ

tap_end
