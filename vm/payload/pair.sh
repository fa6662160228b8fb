# pair.sh - two guests and a wire, with a rank each, and two each in the end: te.rank= is the guest.
# The wire is unplugged, a guest pauses, ranks are killed, and a guest is switched off. Each step has
# a communicator of its own, whose id the first guest gives to the second.

for tool in link_pair ip rdma; do
	if [ ! -x /bin/$tool ]; then
		[ "$rank" = 1 ] || skip "two guests" "there is no $tool"
		exit 0
	fi
done
. /payload/meet.sh
export TE_COMM_TIMEOUT_MS=120000 TE_COMM_BOOTSTRAP=id TE_COMM_NRANKS=2 TE_COMM_RANK=$rank
export TE_LINK_HEARTBEAT_MS=1000 TE_LINK_TIMEOUT_MS=5000
step=0

# run TRANSPORT MODE...: in the background
run()
{
	step=$((step + 1))
	sent=$(sent)
	TE_COMM_ID=$(sed -n ${step}p /tmp/ids) timeout 240 link_pair "$@" >/tmp/out 2>&1 &
	running=$!
}

# patient ...: run, for guests that pause, or do so because the host is busy
patient()
{
	TE_COMM_IB_TIMEOUT=19 TE_LINK_HEARTBEAT_MS=20000 TE_LINK_TIMEOUT_MS=60000 run "$@"
}

sent()
{
	cat /sys/class/net/eth0/statistics/tx_bytes
}

# messages have passed the wire since the start
flowing()
{
	[ $(($(sent) - sent)) -gt 500000 ]
}

# end NAME STATUSES PATTERN
end()
{
	wait $running
	judge "$1" "$2" "$3" $? /tmp/out
}

# until RDMA can be used after the wire was unplugged
active()
{
	grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
}

check="check 65536 200" # messages of 64 KiB at most, whose bytes are compared
failed="after [0-9]{1,4} ms: .*rank [01] \(host pair[01], pid [0-9]+\)" # within 10 s
for transport in tcp verbs; do
	patient $transport $check
	end "$transport" 0 ''
done
for transport in tcp verbs; do
	TE_LINK_SECONDS=-1 run $transport $check
	[ "$rank" = 1 ] || { until_true flowing; monitor set_link net off; }
	end "$transport, unplugged" 3 "$failed"
	[ "$rank" = 1 ] || monitor set_link net on
	until_true active
	[ -z "$short" ] || continue
	TE_LINK_SECONDS=-1 run $transport $check
	[ "$rank" = 0 ] || { until_true flowing; host pause 5 s; }
	end "$transport, a guest pauses for 5 s" 3 "$failed"
	patient $transport $check
	[ "$rank" = 0 ] || { until_true flowing; host pause 0.2 s; }
	end "$transport, a guest pauses for 0.2 s" 0 ''
done
if [ -n "$short" ] || [ ! -x /bin/recover_rank ]; then
	TE_LINK_SECONDS=-1 run verbs $check
	[ "$rank" = 0 ] || { until_true flowing; monitor quit; }
	end "a guest is switched off" 3 "$failed"
	exit
fi

# four ranks, two in each guest, go on without those that are lost
export TE_COMM_HEARTBEAT_MS=4000 TE_COMM_IB_TIMEOUT=17 TE_COMM_NRANKS=4

# ranks TRANSPORT: those of this guest, in the background, until two are left; their processes are
# $even and $odd
ranks()
{
	step=$((step + 1))
	export TE_COMM_ID=$(sed -n ${step}p /tmp/ids) TE_COMM_TRANSPORT=$1
	TE_COMM_RANK=$((2 * rank)) timeout 240 recover_rank 2 8000 >/tmp/even 2>&1 &
	even=$!
	TE_COMM_RANK=$((2 * rank + 1)) timeout 240 recover_rank 2 8000 >/tmp/odd 2>&1 &
	odd=$!
}

# sums FILE RANKS: of this rank all, so that the others have half of theirs at least
sums()
{
	until_true grep -q "^ranks $2 on 2 nodes by .*: 20 sums" "/tmp/$1"
}

ranks tcp
if [ "$rank" = 1 ]; then
	sums odd "0 1 2 3" && kill -KILL $odd
	left=even process=$even
else
	sums odd "0 1 2" && kill -KILL $even
	left=odd process=$odd
fi
wait $process
judge "tcp, rank 0 is killed, too: one of each guest goes on" 0 \
	'^ranks 1 2 on 2 nodes by tcp: 20 sums' $? /tmp/$left
judge "tcp, rank 3 is killed: three ranks go on" 0 \
	'^ranks 0 1 2 on 2 nodes by tcp: 10 sums' 0 /tmp/$left

ranks verbs
if [ "$rank" = 1 ]; then
	sums odd "0 1 2 3" && kill -KILL $odd
	sums even "0 1 2"
	monitor quit
	wait $even # does not return
fi
wait $even
judge "a guest is switched off: the others name its rank" 0 \
	'^after [0-9]{1,5} ms: .*rank 2 \(host pair1, pid [0-9]+\)' $? /tmp/even
wait $odd
judge "and go on" 0 '^ranks 0 1 on 1 nodes by memory: 20 sums' $? /tmp/odd
judge "verbs, rank 3 is killed: three ranks go on" 0 \
	'^ranks 0 1 2 on 2 nodes by verbs: 10 sums' 0 /tmp/odd
