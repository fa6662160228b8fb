#!/bin/sh
# te_train --recover: ranks are killed, and those that are left go on in the same processes, with
# the bits of a new run of as many ranks.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--model untied.json --batch 1 --warmup 2 --lr 1e-2 --eval-batches 1 --recipe fp32
	--eval-every 17 --log-every 1"
sed 's/heads": 1/heads": 2/' plain.json >rotary.json
# 9 steps at least after the loss of a rank
steps=30
[ -z "$TT_SANITIZE" ] || steps=20
endless="$common --steps 1000000 --eval-every 0"

# begin N ARGUMENT...: ranks in the background that --no-kill leaves, with N and options of te_run
begin()
{
	n=$1
	shift
	rm -f err
	"$te_run" --no-kill -n $n "$te_train" "$@" >out 2>>err </dev/null 3<&- &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
}

# A pipe with room for a few lines of a log is what a run waits for in the middle: hold, begin,
# and follow reads it until the run has ended.
mkfifo pipe
hold()
{
	exec 3<>pipe
	yes '' | dd of=pipe bs=4096 oflag=nonblock 2>dd.err
	dd bs=4096 count=1 <&3 >dd.out 2>dd.err
}
# follow LOG STATUS
follow()
{
	sed -n '/^end$/q; /^$/!p' <&3 >"$1" &
	reader=$!
	ends_with "$2"
	followed=$?
	echo end >&3
	wait $reader
	exec 3<&-
	return $followed
}

# begins_as NAME LOG OLD NEW ARGUMENT...: the losses of LOG, which OLD ranks have begun, are those
# of NEW ranks that resume OLD's checkpoint; or, if LOG goes on from initial weights, that begin
# anew with the same batch of all ranks: first scales are taken from what each rank reads
begins_as()
{
	name=$1 log=$2 old=$3 new=$4
	shift 4
	rm -rf ref ref.log
	if [ "$(from "$log")" = 0 ]; then
		check "$name: as many new ranks" ranks "$new" "$@" --accum $((old / new)) --log ref.log
	else
		ranks "$old" "$@" --out ref --stop-after "$(from "$log")"
		check "$name: as many new ranks" ranks "$new" --resume ref $zero --log ref.log
	fi
	latest_losses ref.log >want
	latest_losses "$log" >got
	check "there are losses: $(wc -l <want)" test "$(wc -l <want)" -ge 9
	same "of the same bits" want got
}

# recovers NAME LOST RANKS ARGUMENT...: four ranks finish without some, after a checkpoint if there
# is one to wait for
recovers()
{
	name=$1 lost=$2 left=$3
	shift 3
	rm -rf saved
	hold
	begin "4 $per_node" $common --steps $steps --recover 4 --log pipe "$@" text
	case " $* " in
	*" --out "*) wait_for . saved/state.safetensors ;;
	*" --copy-every "*) wait_for '^step [3-9]/' err ;;
	esac
	lose $lost
	check "$name: the others end with success" follow log 0
	numbers=$(echo $lost | sed 's/ /, /g')
	case $lost in *' '*) were="ranks $numbers were" ;; *) were="rank $numbers was" ;; esac
	check "$were lost" told "^$were lost; $left of 4 ranks go on\$"
	check "the log names them" grep -q \
		"\"ranks\":$left,.*\"lost_ranks\":\[$(echo $lost | sed 's/ /,/g')\]" log
	check "one summary is printed" test "$(wc -l <out)" = 1
	check "and all steps" grep -q " $steps steps, " out
	cp err messages
	begins_as "$name" log 4 $left $common --steps $steps "$@" text
}

save="--save-every 3 --out saved"
if [ -z "$TT_SANITIZE" ]; then # the next run has its code, and graphs
	recovers "a rank is lost" 2 3 --accum 3 $save
	check "from a checkpoint" test "$(from log)" -gt 0
fi
recovers "rank 0 is lost" 0 3 --accum 3 --graph $save
check "from a checkpoint, too" test "$(from log)" -gt 0
check "there is no part of a file" test -z "$(find saved -name '*.new')"
check "the weights are those of these ranks" cmp saved/model.safetensors ref/model.safetensors
zero="--zero 3" # in another order of additions than without it
if [ -z "$TT_SANITIZE" ]; then # the next run has its code, and states in host memory
	recovers "a rank with a part of all is lost" 3 3 --accum 3 $zero --moments bf16 $save
	check "from a checkpoint of all parts" test "$(from log)" -gt 0
	check "state and weights are those" cmp saved/state.safetensors ref/state.safetensors
fi
recovers "a rank with a part in host memory is lost" 1 3 --accum 3 $zero --masters bf16 --states all \
	--graph $save
check "from a checkpoint of all parts, too" test "$(from log)" -gt 0
check "state and weights are those, too" cmp saved/state.safetensors ref/state.safetensors
zero=
recovers "a rank is lost after a copy" 1 3 --accum 3 --save-every 0 --copy-every 2 --recover 4 \
	--moments bf16 --recipe fp8-delayed
check "from the copy" test "$(from log)" -ge 2
check "which is told" grep -q '^training goes on after step [0-9]*, from the copy in memory$' messages
per_node="--per-node 2"
recovers "a node is lost, before a checkpoint" "2 3" 2 --accum 1 --save-every 0 --recipe fp8-delayed
check "from initial weights" test "$(from log)" = 0
check "which is told" grep -q '^training goes on after step 0, with initial weights$' messages

rm -rf saved
hold
begin "4 --per-node 2" $common --steps $steps --recover 4 --log pipe $save text
wait_for . saved/state.safetensors
lose 0 1 3
check "one rank goes on" follow log 0
check "without a communicator" grep -q '"ranks":1,.*"lost_ranks":\[0,1,3\]' log
check "and saves" "$te_train" --resume saved --stop-after 0

# of_models NUMBERS ARGUMENT...: rank 0 has lost the other rank of its model; NUMBERS: what the log
# has of the ranks that go on
of_models()
{
	numbers=$1
	shift
	rm -rf saved ref
	hold
	begin 4 $common --steps $steps --recover 1 --log pipe $save "$@" text
	wait_for . saved/state.safetensors
	lose 1
	check "$*: of two models of 2 ranks, one goes on" follow log 0
	check "rank 0 is left over" \
		told '^te_train: rank 0 is left over: those that go on have whole'
	grep '^{"te_train"' log | sed 's/^/# /' # a reason, if the next check fails
	check "which the log has" grep -q \
		"$numbers,.*\"lost_ranks\":\[1\],\"left_over_ranks\":\[0\]" log
	check "the losses are those" ranks 4 $common --steps $steps --out ref \
		--stop-after "$(from log)" "$@" text
	check "of two new ranks" ranks 2 --resume ref --log ref.log $how
	latest_losses ref.log >want
	latest_losses log >got
	same "bit for bit" want got
}
how="--tensor 2"
of_models '"ranks":2,"shards":2' $how
how="--context 2"
of_models '"ranks":2,"shards":1,"context":2' $how --model rotary.json

begin 2 $endless --recover 9 --tensor 2 --save-every 1 --out no_model text
wait_for '^step [3-9]' err
lose 1
check "without a whole model all end" ends_with 137
check "the message tells why" told '--tensor 2: no model has all its ranks$'
check "and the checkpoint" told '^the checkpoint of step [0-9]* is the latest$'
check "which can be resumed" "$te_train" --resume no_model --stop-after 0
begin 2 $endless --recover 9 --tensor 2 --save-every 0 --out unsaved text
wait_for '^step [3-9]' err
lose 1
check "without a checkpoint all end, too" ends_with 137
grep 'checkpoint of step' err >named
empty "and none is named" named

# holds RANK: how many descriptors and threads it has
holds()
{
	for process in $(ranks_of $pid); do
		tr '\0' '\n' <"/proc/$process/environ" | grep -qx "TE_COMM_RANK=$1" &&
			ls "/proc/$process/fd" "/proc/$process/task" | wc -l
	done
}

# four ranks with a micro-batch each: 2 of the 3 that are left; the second loss is one too many
begin 4 $endless --recover 1 text
before=$(holds 0)
lose 3
wait_for '^training goes on' err
after=$(holds 0)
check "no descriptor or thread is left: $after, before $before" test "$after" -le "$before"
check "ranks that cannot share micro-batches are left over" \
	told '^rank 3 was lost; 2 of 4 ranks go on$'
check "they are named" told '^rank 2 is left over, and ends$'
lose 1
check "more are lost than --recover allows" ends_with 137

begin 3 $endless --recover 1 --accum 2 --out signal text
lose 0
wait_for '^training goes on' err
kill -TERM $(ranks_of $pid)
check "a signal ends those that go on" ends_with 137
check "with the status of a signal" test "$(grep -c 'exited with status 130$' err)" = 2
check "what was made is saved" "$te_train" --resume signal --stop-after 0

# a rank is stopped: the communicators of a step have one time-out together, of 15 s
export TE_COMM_TIMEOUT_MS=15000
begin 2 $endless text
stopped=$(ranks_of $pid | tail -n 1)
kill -STOP $stopped
since=$(date +%s%N)
wait_for 'has not taken part in operation' err
after=$((($(date +%s%N) - since) / 1000000))
wait_for '^te_run: rank 0 .* exited with status 1$' err
kill -KILL $stopped
kill -CONT $stopped 2>kill.err
check "a rank that is stopped is named" ends_with 1
check "after one time-out" test $after -lt 28000
unset TE_COMM_TIMEOUT_MS

# ranks that fail for another reason tell the others, which do not go on
for rank in 0 1 2; do
	sed "s/\"n_head\"/\"initializer_range\": 0.0$((2 + rank)), &/" untied.json >other$rank.json
done
"$te_run" --no-kill -n 3 sh -c 'exec "$0" "$@" --model other$TE_COMM_RANK.json' "$te_train" $common \
	--steps 2 --recover 5 --out differ text >out 2>err </dev/null && : >bad
check "ranks with other weights are not recovered" test ! -e bad
check "and are named" grep -q 'the weights of rank 1 differ from rank 0' err
sed '/a rank was lost or has failed/d' err | grep 'lost' >lost
empty "nobody is lost" lost
check "nothing is saved" test ! -e differ/model.safetensors

tap_end
