#!/bin/sh
# te_train with several ranks: the losses and the weights of one rank with all micro-batches,
# checkpoints that any number of ranks resumes, signals, and a rank that ends.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--model untied.json --batch 2 --warmup 2 --lr 1e-2 --eval-batches 2 --recipe fp32
	--eval-every 4 --save-every 0 --log-every 1"

check "one rank" "$te_train" $common --accum 2 --steps 6 --out one --log one.log text
check "two ranks" ranks 2 $common --steps 6 --out two --log two.log text
losses one.log >want
losses two.log >got
check "there are losses" test "$(wc -l <want)" -ge 8
same "losses are those of one rank, bit for bit" want got
same "so are the weights" one/model.safetensors two/model.safetensors
check "only rank 0 logs" test "$(grep -c '"te_train"' two.log)" = 1
check "and prints" test "$(grep -c '^step 6/6' err)" = 1 -a "$(wc -l <out)" = 1
check "the log has their number" grep -q '"ranks":2' two.log

for mode in step layer; do
	check "--graph $mode" ranks 2 $common --steps 6 --out $mode --log $mode.log --graph $mode text
	losses $mode.log >got
	same "has the same losses" want got
	same "and weights" one/model.safetensors $mode/model.safetensors
done

# on two nodes: sums of several nodes have the bits of one, in calls and in graphs
check "four ranks" ranks 4 $common --steps 6 --out four --log four.log text
losses four.log >want
for mode in off step; do
	check "two nodes, --graph $mode" ranks "4 --per-node 2" $common --steps 6 --out $mode.2 \
		--log $mode.2.log --graph $mode text
	losses $mode.2.log >got
	same "has the losses of four ranks on one" want got
	same "and the weights" four/model.safetensors $mode.2/model.safetensors
done

# more ranks of a node than GPUs map each other's memory
check "nine micro-batches" "$te_train" $common --accum 9 --steps 2 --out one.9 --log one.9.log text
check "nine ranks" ranks 9 $common --steps 2 --out nine --log nine.log text
losses one.9.log >want
losses nine.log >got
same "have the losses of one rank" want got
same "and its weights" one.9/model.safetensors nine/model.safetensors

# options of rank 1 that would have its ranks wait for others, or train other weights
export te_train common
while read -r name how; do
	ranks_how=$how "$te_run" -n 2 sh -c '[ $TE_COMM_RANK = 0 ] && ranks_how=
		exec "$te_train" $common --steps 2 $ranks_how text' >out 2>err </dev/null
	check "$name: status 2" test $? = 2
	check "and rank 0 names it" test \
		"$(grep -c "^te_train: --$name: rank 1 has another value than rank 0" err)" = 1
done <<'LIST'
zero --zero 3
graph --graph layer
seed --seed 3
accum --accum 2
recipe --recipe bf16
tensor --tensor 2
out --out other
LIST
ranks_how=unused
check "names of logs may differ" "$te_run" -n 2 sh -c \
	'exec "$te_train" $common --steps 2 --log $TE_COMM_RANK.log text' </dev/null

# ranks that cannot meet
fails "ranks that cannot connect are refused" "nothing says how the ranks connect" \
	env TE_COMM_RANK=1 TE_COMM_NRANKS=2 "$te_train" $common --steps 6 text
check "unless each is alone" env TE_COMM_RANK=1 TE_COMM_NRANKS=2 TE_COMM_BOOTSTRAP=single \
	"$te_train" $common --steps 2 text

env TE_COMM_IFACE=nosuch "$te_run" -n 2 --per-node 1 "$te_train" $common text >out 2>err </dev/null
check "an interface that is not there is named" grep -q \
	'cannot listen: TCP: no interface of TE_COMM_IFACE (nosuch) is up' err
fails "processes without PMIx fail by themselves" "joining the ranks: te_comm_create" \
	env SLURM_STEP_NUM_TASKS=2 "$te_train" $common text
fails "so do those of torchrun" "one of 2 processes (WORLD_SIZE) of a launcher without PMIx" \
	env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
	"$te_train" $common text
check "but one process is one rank" env RANK=0 WORLD_SIZE=1 "$te_train" $common --steps 1 text

ranks 2 $common --steps 6 --out none no-such-file
check "ranks without data fail" grep -q 'no-such-file: No such file' err
grep 'checkpoint of step' err >named
empty "without naming a checkpoint, as there is none" named

# 3 steps, then 3 more with another number of ranks: accum is kept for all of them together
check "two ranks stop" ranks 2 $common --steps 6 --stop-after 3 --out a text
check "one resumes" "$te_train" --resume a
same "and ends with the same weights" one/model.safetensors a/model.safetensors
check "one rank stops" "$te_train" $common --accum 2 --steps 6 --stop-after 3 --out b text
check "two resume" ranks 2 --resume b
same "and end with the same weights" one/model.safetensors b/model.safetensors
"$te_run" -n 3 "$te_train" --resume b >out 2>err </dev/null
check "three cannot share two micro-batches" grep -q '3 ranks cannot share; give --accum' err

# scales of delayed scaling are reduced: otherwise the weights differ, and are not saved
for recipe in fp8-delayed fp8-current; do
	check "$recipe is saved" ranks 3 $common --recipe $recipe --steps 4 --out $recipe text
done

# begin ARGUMENT...: two ranks in the background that have made a step
begin()
{
	rm -f err
	env --default-signal=INT "$te_run" -n 2 "$te_train" "$@" >out 2>err </dev/null &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
}
# catches PROCESS: it has a handler of SIGTERM
catches()
{
	caught=$(sed -n 's/^SigCgt:.*\(....\)$/\1/p' "/proc/$1/status" 2>sed.err)
	[ $((0x${caught:-0} & 0x4000)) != 0 ]
}
# the text is validated two tokens at a time
rm -f err
env --default-signal=INT "$te_run" -n 2 "$te_train" $common --batch 1 --seq-len 2 --steps 0 \
	--eval-batches 0 --val-fraction 0.9 --out ended text >out 2>err </dev/null &
pid=$!
wait_for 'held out' err
last=$(ranks_of $pid | tail -n 1)
tries=0
until catches $last || [ $((tries += 1)) -gt 2400 ]; do sleep 0.05; done
kill -TERM $last
check "a signal to one rank ends a validation of all" ends_with 130
grep 'validation loss' err >unfinished
empty "between two of its batches" unfinished
check "and it is saved" test -s ended/state.safetensors

begin $common --steps 1000000 --eval-every 0 --out stopped text
kill -TERM $(ranks_of $pid | head -n 1)
check "a signal to one rank ends all, with 130" ends_with 130
at=$(sed -n 's/^.*all ranks end after step \([0-9]*\) or before.*/\1/p' err)
check "what was made is saved" "$te_train" --resume stopped --stop-after 0
check "and the message is of rank 0" test "$(grep -c 'all ranks end' err)" -le 1

begin $common --steps 1000000 --eval-every 0 --save-every 2 --out killed text
wait_for '^step [3-9]' err
kill -KILL $(ranks_of $pid | tail -n 1)
ends_with 0 && : >why || : >bad
check "a rank that is killed ends all with a failure" test -e bad
check "the last checkpoint can be resumed" "$te_train" --resume killed --stop-after 0

begin $common --steps 1000000 --eval-every 0 --out interrupted text
kill -INT $pid
check "SIGINT to te_run ends all, with 130" ends_with 130
check "what was made is saved" "$te_train" --resume interrupted --stop-after 0

# killed at any moment, most of which are in a save, twice: two ranks go on from a whole checkpoint
begin $common --steps 1000000 --eval-every 0 --save-every 1 --out cut text
wait_for '^step [3-9]' err # a save is complete
for moment in 0.03 0.1; do
	sleep $moment
	left=$(ranks_of $pid)
	kill -KILL $pid
	wait $pid 2>/dev/null
	# its ranks end after it, and have the folder locked until then
	all_end $left
	begin --resume cut
done
kill -TERM $pid
check "two ranks resume after an interrupted save" ends_with 143
"$te_train" --resume cut --stop-after 0 --json >summary 2>err
steps=$(($(sed -n 's/^ *"steps": \([0-9]*\),$/\1/p' summary) + 1))
check "they have made steps: $steps" test "$steps" -gt 3
check "and go on" ranks 2 --resume cut --stop-after "$steps"
check "as one rank does" "$te_train" $common --steps 1000000 --eval-every 0 --accum 2 \
	--stop-after "$steps" --out whole text
same "with the same weights" whole/model.safetensors cut/model.safetensors

# each rank begins with other weights
for rank in 0 1; do
	sed "s/\"n_head\"/\"initializer_range\": 0.0$((2 + rank)), &/" untied.json >other$rank.json
done
"$te_run" -n 2 sh -c 'exec "$0" "$@" --model other$TE_COMM_RANK.json' "$te_train" $common --steps 2 \
	--out differ text >out 2>err </dev/null && : >bad2
check "ranks with different weights fail" test ! -e bad2
check "and name the rank" grep -q 'the weights of rank 1 differ from rank 0' err
check "nothing is saved" test ! -e differ/model.safetensors

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # of libpmix
export ASAN_OPTIONS
if timeout 60 mpirun -n 2 true >out 2>err; then
	check "mpirun" timeout 120 mpirun -n 2 "$te_train" $common --steps 6 --out mpi text
	same "has the same weights" one/model.safetensors mpi/model.safetensors
else
	skip "mpirun" "mpirun does not work: $(head -n 1 err)"
fi

echo text | "$te_run" -n 2 "$te_train" $common --steps 1 - >out 2>err
check "the standard input is of one rank" grep -q 'only rank 0 has the standard input' err

tap_end
