#!/bin/sh
# te_run --respawn with te_train --recover: ranks that are killed start again and train with the
# others, which do not start again.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 1 --accum 2 --warmup 2 --lr 1e-2 --eval-batches 1 --recipe fp32 --log-every 1
	--steps 1000000 --eval-every 0 --save-every 0"

# begin N ARGUMENT...: that many ranks in the background, which run $with
with=
begin()
{
	n=$1
	shift
	rm -f err log
	"$te_run" --grace 60 --respawn 9 -n $n $with "$te_train" $common --log log "$@" text \
		>out 2>err </dev/null &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
}

# ends: after some more steps a signal ends the run, which saves
ends()
{
	tries=0
	until [ "$(latest_losses log | wc -l)" -ge 20 ]; do
		[ $((tries += 1)) -gt 2400 ] && break
		sleep 0.05
	done
	kill -TERM $pid
	ends_with 143
}

# trains_after PATTERN: a line of err matches, and steps follow it
trains_after()
{
	wait_for "$1" err || return 1
	tries=0
	until sed -n "/$1/,\$p" err | grep -q '^step '; do
		[ $((tries += 1)) -gt 2400 ] && { explain "no step after $1"; return 1; }
		sleep 0.05
	done
}

# alone: a rank that was started again, and finds no other; alone_n: of so many
alone_n=2
alone()
{
	env TE_COMM_DIR="$tmp/alone" TE_COMM_RANK=1 TE_COMM_NRANKS=$alone_n TE_COMM_RESTARTS=1 \
		"$te_train" --model plain.json $common "$@" text
}
mkdir -m 700 alone
alone --recover 1 --out nowhere >alone.out 2>alone.err &
waits=$!
alone >out 2>err
check "without --recover nothing is to return to: $?" told 'started again, which needs --recover$'
alone --recover 1 >out 2>err
check "nor without a folder" told 'started again, which needs --out$'
alone_n=65
alone --recover 1 --out nowhere >out 2>err
check "nor to too many ranks" told 'TE_COMM_NRANKS is 65: expected 1 to 64$'

mkdir -m 700 single
mkdir single/te_train-written
env TE_COMM_DIR="$tmp/single" TE_COMM_JOB=single TE_COMM_BOOTSTRAP=dir TE_COMM_RANK=0 \
	TE_COMM_NRANKS=1 TE_COMM_RESTARTS=0 timeout 60 "$te_train" --model plain.json $common text \
	>out 2>err
check "a start that cannot note what was saved ends" test $? = 1
check "by the name of the note" \
	told '^te_train: te_train-written in TE_COMM_DIR: Is a directory$'

begin 3 --model plain.json --recover 9 --keep 9 --out saved
lose 2
check "a rank returns" wait_for '^rank 2 has returned; 3 of 3 ranks go on$' err
check "a signal ends all" ends
check "te_run tells of its start" told '^te_run: rank 2 is started again, 1 of at most 9 times$'
check "the log has no rank that is lost" test \
	"$(grep '^{"te_train"' log | tail -n 1 | grep -c '"ranks":3,.*"lost_ranks":\[\],')" = 1
at=$(from log)
check "what was trained meanwhile is not lost: step $at" told "^training goes on after step $at, from"
check "the losses are those" ranks 3 --resume saved/step-"$at" --out ref --log ref.log \
	--stop-after "$(latest_losses log | tail -n 1 | sed 's/{"step":\([0-9]*\),.*/\1/')"
latest_losses ref.log >want
latest_losses log >got
same "of three ranks that go on from there, bit for bit" want got
check "and so are the weights" cmp saved/model.safetensors ref/model.safetensors

sed 's/heads": 1/heads": 2/' plain.json >heads.json
begin 4 --model heads.json --recover 9 --out models --tensor 2
lose 1
check "both ranks of a model return" \
	wait_for '^ranks 0, 1 have returned; 4 of 4 ranks go on$' err
check "and train" ends

begin 2 --model plain.json --recover 9 --out first
lose 0
check "rank 0 returns to a single rank" wait_for '^rank 0 has returned; 2 of 2 ranks go on$' err
check "and trains" ends

begin 2 --model plain.json --recover 9 --keep 9 --out whole
lose 0 1
check "when all are lost, all begin again" trains_after '2 train, from the beginning$'
lose 1
check "rank 1 returns to them" trains_after '^rank 1 has returned; 2 of 2 ranks go on$'
lose 0 1
check "all go on when all are lost once more" trains_after '2 train, from the latest checkpoint$'
check "until a signal" ends
at=$(from log)
check "what was saved is not lost: step $at" test "$at" -ge 1
check "the losses are those" ranks 2 --resume whole/step-"$at" --out ref2 --log ref.log \
	--stop-after "$(latest_losses log | tail -n 1 | sed 's/{"step":\([0-9]*\),.*/\1/')"
latest_losses ref.log >want
latest_losses log >got
same "of two ranks that go on from there, bit for bit" want got

# ranks of other hosts: this one, by a program in place of ssh, with a node for each rank
cat >ssh <<'SH'
#!/bin/sh
shift
exec "$@"
SH
chmod +x ssh
echo 'echo $$ >pid.$TE_COMM_RANK; exec "$@"' >noted
with="--hosts a,b:2 --ssh $tmp/ssh --te-run $te_run --per-node 1 sh noted"
begin 3 --model plain.json --recover 9 --keep 9 --out hosts
kill -KILL "$(cat pid.2)"
check "a rank of another host returns" trains_after '^rank 2 has returned; 3 of 3 ranks go on$'
kill -KILL "$(cat pid.0)"
check "so does rank 0 of the first host" trains_after '^rank 0 has returned; 3 of 3 ranks go on$'
check "and trains" ends
at=$(from log)
check "the losses are those" ranks 3 --resume hosts/step-"$at" --out ref3 --log ref.log \
	--stop-after "$(latest_losses log | tail -n 1 | sed 's/{"step":\([0-9]*\),.*/\1/')"
latest_losses ref.log >want
latest_losses log >got
same "of three ranks that go on from there, bit for bit" want got
with=

TE_COMM_IFACE=none0
export TE_COMM_IFACE
begin 2 --model plain.json --recover 9 --out none
lose 1
check "without a way to meet none returns" wait_for \
	'^te_train: an id for ranks that return: .*none0' err
check "and the others go on" ends
unset TE_COMM_IFACE

# rank 1 waits to return, and does not come; a later start does
if [ -z "$TT_SANITIZE" ]; then
	cat >rank <<'SH'
[ $TE_COMM_RANK$TE_COMM_RESTARTS = 11 ] || exec "$@"
exec 9>"$TE_COMM_DIR/te_train-waits-1"
flock 9
printf 1 >&9
echo $$ >absent.pid
exec sleep 1000.8055
SH
	TE_COMM_TIMEOUT_MS=8000
	export TE_COMM_TIMEOUT_MS
	with="sh rank"
	begin 2 --model plain.json --recover 9 --out absent
	lose 1
	check "ranks that do not come are not waited for" wait_for \
		'^ranks that waited to return did not come; 1 of 2 ranks go on$' err
	kill "$(cat absent.pid)"
	check "when they come they train" wait_for '^rank 1 has returned; 2 of 2 ranks go on$' err
	check "with the rank that went on" ends
	unset TE_COMM_TIMEOUT_MS
fi

wait $waits
check "a rank that is alone ends" test $? = 1
check "with the reason" grep -q \
	'^te_train: rank 1 was started again, and no other rank trains$' alone.err

tap_end
