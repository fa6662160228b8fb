# wire.sh - two ranks, as if they were two nodes, with an RDMA device each, over a wire that loses,
# corrupts and reorders packets, or is cut; ranks that stop or are killed.

for tool in link_pair ip rdma tc; do
	if [ ! -x /bin/$tool ]; then
		skip "RDMA" "there is no $tool"
		exit 0
	fi
done
load crc32_generic ib_uverbs rdma_rxe veth sch_netem

# Both ends of a pair of virtual Ethernet devices are in one network namespace, since those of soft
# RoCE have to be. So that packets take the wire, and not a short way inside the kernel, addresses
# are local only for what arrives at a device.
ip link add wire0 mtu 4200 type veth peer name wire1 mtu 4200
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do
	conf=/proc/sys/net/ipv4/conf/wire$i
	echo 1 >$conf/accept_local
	echo 0 >$conf/rp_filter
	ip addr add 10.8.0.$((i + 1))/32 dev wire$i
	ip link set wire$i up
	ip route add 10.8.0.$((2 - i)) dev wire$i src 10.8.0.$((i + 1)) table 10$i
	ip rule add pref 1$i iif wire$i lookup local
	ip rule add pref 2$i from 10.8.0.$((i + 1)) to 10.8.0.$((2 - i)) lookup 10$i
	ip rule add pref 3$i oif wire$i lookup 10$i
done
ip rule add pref 100 lookup local
ip rule del pref 0
tc qdisc add dev wire0 root netem
for i in 0 1; do
	rdma link add rxe$i type rxe netdev wire$i || exit 1
done

# run MODE...: in the background, until all is as it should be or has failed; each rank's status is
# in status0 and status1, its output in rank0 and rank1, its process in pid0 and pid1
run()
{
	rm -f /tmp/rank? /tmp/pid? /tmp/status?
	sent=$(sent)
	timeout 240 te_run -n 2 --per-node 1 sh -c '
		export TE_COMM_IB_DEVICE=rxe$TE_COMM_RANK
		case $TE_LINK_BOTH in # ranks with two devices
		*$TE_COMM_RANK*) TE_COMM_IB_DEVICE=$TE_COMM_IB_DEVICE,rxe$((1 - TE_COMM_RANK)) ;;
		esac
		sh -c "echo \$\$ >/tmp/pid$TE_COMM_RANK; exec link_pair verbs $*" \
			>/tmp/rank$TE_COMM_RANK 2>&1
		echo $? >/tmp/status$TE_COMM_RANK' sh "$@" &
	running=$!
}

sent()
{
	cat /sys/class/net/wire0/statistics/tx_bytes
}

# flowing BYTES: have passed the wire since the start
flowing()
{
	[ $(($(sent) - sent)) -gt "$1" ]
}

# end NAME STATUSES PATTERN [STATUSES PATTERN]: of both ranks, or each
end()
{
	wait $running
	judge "$1: rank 0" "$2" "$3" "$(cat /tmp/status0)" /tmp/rank0
	judge "$1: rank 1" "${4-$2}" "${5-$3}" "$(cat /tmp/status1)" /tmp/rank1
}

# until both devices can be used after one was down
active()
{
	for i in 0 1; do
		grep -q ACTIVE /sys/class/infiniband/rxe$i/ports/1/state || return 1
	done
}

# wire [FAULT...]: of packets that wire0 sends. The queue is changed, not exchanged: meanwhile packets
# would be refused, with which soft RoCE of Linux 6.12 ends the queue pair.
wire()
{
	tc qdisc change dev wire0 root netem corrupt 0% reorder 0% "$@"
}

# 64 KiB at most a message, whose bytes are compared
check="check 65536 50"
# patient: nothing that follows is to fail
export TE_COMM_TIMEOUT_MS=120000 TE_LINK_HEARTBEAT_MS=20000 TE_LINK_TIMEOUT_MS=60000
export TE_COMM_HEARTBEAT_MS=20000 TE_COMM_IB_TIMEOUT=19
failed='after [0-9]{1,4} ms: .*rank [01] \(host wire, pid [0-9]+\)' # within 10 s
run $check
end "RDMA" 0 ''
echo "$(($(sent) - sent)) bytes" >/tmp/bytes
judge "messages take the wire" 0 '^[0-9]{6,} bytes' 0 /tmp/bytes
run lat 64 50
end "latency" 0 ''
export TE_COMM_IB_QPS=3
run check 1500000 4
end "three queue pairs" 0 ''
export TE_COMM_IB_QPS=0 TE_LINK_BOTH=01
run check 1500000 4
end "two ports" 0 ''
if [ -z "$short" ]; then
	export TE_LINK_BOTH=1 TE_LOG=info
	run check 1500000 4
	end "one port and two" 0 ', 1 of 1 queue pairs each on device rxe0' \
		0 ', 0 of 1 queue pairs each on device rxe0'
	export TE_COMM_IB_QPS=3
	run check 1500000 4
	end "one port and two, three queue pairs" 0 ', 3 of 3 queue pairs each on device rxe0' \
		0 ', 1 of 3 queue pairs each on device rxe0'
	unset TE_LOG
fi
unset TE_COMM_IB_QPS TE_LINK_BOTH
if [ -x /bin/te_perftest ]; then
	cat >/bin/nodes <<-'EOT'
		#!/bin/sh
		# nodes COMMAND...: two ranks, with a node and a device each
		exec te_run -n 2 --per-node 1 sh -c 'TE_COMM_IB_DEVICE=rxe$TE_COMM_RANK exec "$@"' sh "$@"
	EOT
	chmod +x /bin/nodes
	gives "te_perftest verbs" 0 "^ *verbs" env TE_COMM_IB_GID=1 \
		nodes te_perftest verbs --bytes 64 --iters ${short:-3} --warmup 1 --verify
	gives "all-reduce between nodes" 0 '^ +2 +allreduce +bf16 +65536 ' env TE_COMM_TRANSPORT=verbs \
		nodes te_perftest comm --verify --bytes 1K,64K --iters 3 --warmup 1 --depth 2
	# sums by the backend's kernel, from memory that is registered with the devices, or not
	for gpudirect in on off; do
		[ -z "$short" ] || [ $gpudirect = on ] || continue
		from=
		[ $gpudirect = on ] && from=', from memory of the device'
		gives "all-reduce between nodes, TE_COMM_SUMS=device, TE_COMM_GPUDIRECT=$gpudirect" 0 \
			"2 nodes, 1 rails by verbs$from\$" env TE_LOG=info,comm=info \
			TE_COMM_TRANSPORT=verbs TE_COMM_SUMS=device TE_COMM_ALGO=chain \
			TE_COMM_GPUDIRECT=$gpudirect nodes te_perftest comm --verify --bytes 1K,64K,1M \
			--iters 3 --warmup 1 --depth 2
	done
fi
# packets are lost: 0.3 s, since soft RoCE on a busy host sends slowly what is to be sent again
export TE_COMM_IB_TIMEOUT=16
for fault in 'loss 1%' 'loss 5%' 'corrupt 1%' 'duplicate 5%' 'delay 1ms reorder 25% 50%'; do
	[ -z "$short" ] || [ "$fault" = 'loss 1%' ] || continue
	wire $fault
	run $check
	end "packets, $fault" 0 ''
	wire
done

# until it fails
export TE_LINK_SECONDS=-1 TE_LINK_HEARTBEAT_MS=1000 TE_LINK_TIMEOUT_MS=5000
run $check
until_true flowing 500000
wire loss 100%
end "a wire that is cut" 3 "$failed.*; device rxe[01] port 1"
wire
if [ -z "$short" ]; then
	run idle 100 60
	until_true flowing 1000
	wire loss 100%
	end "a wire that is cut while it is idle" 3 "$failed.*; device rxe[01] port 1"
	wire
	run $check
	until_true flowing 500000
	ip link set wire0 down
	end "a device that is down" 3 "$failed.*; device rxe[01] port 1"
	ip link set wire0 up
	until_true active
	# patient, because 0.2 s in a guest may be longer
	TE_COMM_IB_TIMEOUT=19 TE_LINK_HEARTBEAT_MS=20000 TE_LINK_TIMEOUT_MS=60000 \
		TE_LINK_SECONDS=0 run check 65536 200
	until_true flowing 500000
	wire loss 100%
	sleep 0.2
	wire
	end "a wire that is cut for 0.2 s" 0 ''
	run $check
	until_true flowing 500000
	kill -STOP "$(cat /tmp/pid1)"
	until_true test -e /tmp/status0
	kill -CONT "$(cat /tmp/pid1)"
	end "a rank that stops" 3 "$failed"
fi
run $check
until_true flowing 500000
kill -KILL "$(cat /tmp/pid1)"
end "a rank that is killed" 3 "$failed" 137 ''
