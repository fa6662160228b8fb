# pair.sh - two guests and a wire, with a rank each: te.rank= says which this is. The wire is
# unplugged, a guest pauses, and is switched off in the end. Each step has a communicator of its
# own, whose id the first guest gives to the second.

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

flowing()
{
	[ $(($(sent) - sent)) -gt "$1" ]
}

# end NAME STATUSES PATTERN
end()
{
	wait $running
	judge "$1" "$2" "$3" $? /tmp/out
}

check="check 65536 200" # messages of 64 KiB at most, whose bytes are compared
failed="after [0-9]{1,4} ms: .*rank [01] \(host pair[01], pid [0-9]+\)" # within 10 s
for transport in tcp verbs; do
	patient $transport $check
	end "$transport" 0 ''
done
for transport in tcp verbs; do
	TE_LINK_SECONDS=40 run $transport $check
	until_true flowing 500000
	[ "$rank" = 1 ] || monitor set_link net off
	end "$transport, unplugged" 3 "$failed"
	[ "$rank" = 1 ] || monitor set_link net on
	[ -z "$short" ] || continue
	TE_LINK_SECONDS=40 run $transport $check
	until_true flowing 500000
	[ "$rank" = 0 ] || host pause 5 s
	end "$transport, a guest pauses for 5 s" 3 "$failed"
	patient $transport $check
	until_true flowing 500000
	[ "$rank" = 0 ] || host pause 0.2 s
	end "$transport, a guest pauses for 0.2 s" 0 ''
done
TE_LINK_SECONDS=40 run verbs $check
until_true flowing 500000
[ "$rank" = 0 ] || monitor quit
end "a guest is switched off" 3 "$failed"
