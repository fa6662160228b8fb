# train.sh - two guests train one model, with two ranks each: te.rank= is the guest. The second one
# is switched off in the middle, and the ranks of the first go on without it; te.again=1 says that
# this is its successor. Losses are those of as many ranks in one guest.

for tool in te_run te_train ip rdma; do
	if [ ! -x /bin/$tool ]; then
		[ "$rank" = 1 ] || skip "training on two guests" "there is no $tool"
		exit 0
	fi
done
. /payload/meet.sh
cd /tmp
cat /payload/*.sh /init >text
cat >model.json <<-'EOT'
	{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2,
	 "n_head": 2, "resid_pdrop": 0.1, "tie_word_embeddings": false}
EOT
options="--model model.json --batch 1 --recipe fp32 --warmup 2 --lr 1e-2 --steps 1000000
	--log-every 1 --eval-every 0 --eval-batches 1"
# patient, where ranks are not to fail
export TE_COMM_TIMEOUT_MS=120000 TE_COMM_HEARTBEAT_MS=20000 TE_COMM_IB_TIMEOUT=19
used=0

# train TRANSPORT ARGUMENT...: ranks 0 and 1 of four in the first guest, 2 and 3 in the second
train()
{
	used=$((used + 1))
	export TE_COMM_TRANSPORT=$1 id=$(sed -n ${used}p ids)
	shift
	timeout 240 te_run -n 2 --grace 60 ${launch:-} sh -c '
		export TE_COMM_BOOTSTRAP=id TE_COMM_ID=$id TE_COMM_NRANKS=4
		export TE_COMM_RANK=$((TE_COMM_RANK + 2 * $0))
		exec te_train "$@"' "$rank" "$@" >out 2>&1 &
	running=$!
}

# losses LOG: of all steps, in order; of those that were made again the last time
losses()
{
	sed -n 's/^{"step":\([0-9]*,[^}]*\),"skipped.*/\1/p' "$1" | awk -F, '
		{ line[$1] = $0; last = $1 > last + 0 ? $1 : last }
		END { for (i = 1; i <= last; i++) if (i in line) print line[i] }'
}

has_steps()
{
	[ "$(losses "$1" | wc -l)" -ge "$2" ]
}

if [ -z "${again:-}" ]; then
	for transport in tcp verbs; do
		train $transport $options --stop-after 3 --log $transport text
		wait $running
		judge "te_train over $transport" 0 '' $? out
	done

	# the second guest is switched off after the second checkpoint
	launch=--no-kill
	TE_COMM_HEARTBEAT_MS=5000 TE_COMM_IB_TIMEOUT=17 \
		train verbs $options --save-every 2 --out saved --log accident --recover 3 text
	launch=
	if [ "$rank" = 1 ]; then
		until_true fetch off
		monitor quit
		wait $running # does not return
	fi
	until_true has_steps accident 5 || { cat out; exit 1; }
	begin=$(date +%s)
	serve off now
	until_true grep -q '^training goes on' out
	echo "after $(($(date +%s) - begin)) s" >took
	kill -TERM $running
	wait $running
	judge "a guest is switched off: the ranks of the other go on" 143 \
		'^te_train: .*rank [23] \(host train1, pid [0-9]+\)' $? out
	judge "in the same processes" 0 '^ranks 2, 3 were lost; 2 of 4 ranks go on' 0 out
	judge "from the checkpoint" 0 '^training goes on after step [1-9][0-9]*, from .* in saved' 0 out
	judge "soon" 0 '^after [0-9]{1,2} s' 0 took

	# and then with the successor of that guest
	from=$(sed -n 's/^training goes on after step \([0-9]*\),.*/\1/p' out)
	at=$(losses accident | wc -l)
	end=$((at + 2))
	echo $end >saved/end
	serve checkpoint "$(tar c saved | base64)"
else
	until_true fetch checkpoint || exit 1
	base64 -d checkpoint | tar x
	used=3 end=$(cat saved/end)
fi
train verbs --resume saved --log accident --stop-after $end
wait $running
judge "the checkpoint is resumed by both guests" 0 '' $? out

if [ "$rank" = 0 ]; then
	{
		te_run -n 4 te_train $options --stop-after $from --out whole --log one text
		te_run -n 2 te_train --resume whole --log one --stop-after $at
		te_run -n 4 te_train --resume whole --log one --stop-after $end
	} >out 2>&1 || cat out
	for run in tcp verbs accident; do
		losses $run >got
		losses one | head -n "$(wc -l <got)" >want
		diff -s want got >same 2>&1
		judge "$run: losses are those of one node, $(wc -l <got) steps" 0 identical $? same
	done
fi
