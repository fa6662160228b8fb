#!/bin/sh
# te_train --copy-every: ranks that were killed, and te_run has started again, get the state from the
# memory of another rank, and the run has the losses of one in which no rank was killed.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--model plain.json --batch 1 --warmup 2 --lr 1e-2 --eval-batches 1 --recipe fp32 --log-every 1
	--steps 1000000 --eval-every 0 --save-every 0"

# refuses OPTIONS PATTERN
refuses()
{
	"$te_train" $common $1 text >out 2>err
	check "$1: status $?" told "$2"
}
refuses "--copy-every 2" '^te_train: --copy-every needs --recover$'
refuses "--copy-every 2 --recover 1 --zero 1" 'whole model and all moments, expected --zero 0$'
refuses "--copy-every 2 --recover 1 --tensor 2" 'whole model and all moments, expected --tensor 1$'

# begin N ARGUMENT...: that many ranks in the background, which te_run starts again
begin()
{
	n=$1
	shift
	rm -f err log
	"$te_run" --grace 60 --respawn 999 -n $n "$te_train" $common --log log "$@" text \
		>out 2>err </dev/null &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
}

# trains N: the log gets N more steps
trains()
{
	steps=$(grep -c '^{"step"' log)
	tries=0
	until [ "$(grep -c '^{"step"' log)" -ge $((steps + $1)) ]; do
		[ $((tries += 1)) -gt 2400 ] && { explain "no $1 steps"; return 1; }
		sleep 0.05
	done
}

# as_without N MISSING: the log has the losses of N ranks none of which was killed, and all steps but
# MISSING at most, which a rank 0 had not logged when it was killed
as_without()
{
	steps_losses log | sort -u >got
	last=$(sort -n got | sed -n '$s/ .*//p')
	check "a run without kills, of $last steps" ranks "$1" $common --log ref.log --out ref \
		--stop-after "$last" text
	steps_losses ref.log | sort >want
	comm -13 want got >more
	empty "has the same losses, bit for bit" more
	check "no more than $2 steps are missing: $(comm -23 want got | wc -l)" \
		test "$(comm -23 want got | wc -l)" -le "$2"
	rm -rf ref ref.log
}

begin 2 --recover 9 --copy-every 5 --out first
wait_for '^step [1-9][0-9]/' err
lose 1
check "the rank that is left goes on from a copy" wait_for \
	'^training goes on after step [1-9][0-9]*, from the copy in memory$' err
check "rank 1 returns" wait_for '^rank 1 has returned; 2 of 2 ranks go on$' err
check "and trains" trains 20
check "no checkpoint was needed" test ! -e first/state.safetensors
kill -TERM $pid
check "a signal ends both" ends_with 143
check "which save" "$te_train" --resume first --stop-after 0
check "no more steps are repeated than --copy-every" awk '
	/^{"te_train"/ { match($0, /"from_step":[0-9]*/); from = substr($0, RSTART + 12, RLENGTH - 12)
		if (from + 5 < last) exit 1; n++ }
	/^{"step"/ { match($0, /[0-9]+/); last = substr($0, RSTART, RLENGTH) }
	END { exit n != 3 }' log
as_without 2 0

begin 2 --recover 9 --copy-every 1000000 --save-every 3 --out late
wait_for . late/state.safetensors
lose 0
check "before the first copy the checkpoint is used" wait_for \
	'^training goes on after step [1-9][0-9]*, from the checkpoint in late$' err
check "ranks return" wait_for '^rank 0 has returned; 2 of 2 ranks go on$' err
check "by a copy that is taken for them" wait_for \
	'^training goes on after step [1-9][0-9]*, from the copy in memory$' err
check "and train" trains 20
kill -TERM $pid
check "until a signal ends them" ends_with 143
as_without 2 3

# two of three ranks cannot share three micro-batches: one trains until the others return
kills=20
[ -z "$TT_SANITIZE" ] || kills=4
: "${TT_SEED:=$$}"
echo "# TT_SEED=$TT_SEED"
begin 3 --recover 999 --copy-every 5 --save-every 40 --out saved
i=0
while [ $((i += 1)) -le $kills ]; do
	TT_SEED=$(((TT_SEED * 1103 + 12345) % 1048576))
	set -- $(ranks_of $pid)
	[ $# = 0 ] || shift $((TT_SEED / 64 % $#))
	[ $# = 0 ] || kill -KILL $1
	# later kills can come before ranks return, and those of all ranks need no copy
	[ $i != 1 ] || wait_for ' returned; ' err
	sleep 0.$((TT_SEED / 1024 % 7))
done
check "ranks train after $kills kills" trains 60
kill -TERM $pid
check "until a signal" ends_with 143
check "they went on from copies: $(grep -c 'from the copy in memory$' err) times" \
	grep -q 'from the copy in memory$' err
check "ranks returned: $(grep -Ec ' ha(s|ve) returned; ' err) times" grep -Eq ' ha(s|ve) returned; ' err
as_without 3 $((5 * kills))

tap_end
