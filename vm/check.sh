#!/bin/bash
# check.sh - boots guests and judges what runs in them: see doc/vm.md.
#
# Prints a line for each result, and last the line N passed, N failed, N skipped. Exit status: 1 if
# a test failed. VM_BUILD: the build folder whose programs are tested; VM_DIR: for logs; VM_CACHE:
# where the kernel is kept; VM_KERNEL: which one, see kernel.sh; VM_SHORT=1: what takes longest is
# left out; VM_ACCEL: kvm or tcg; VM_ONLY: payloads to run.

set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
build=${VM_BUILD:?}
short=${VM_SHORT:-}
[ "$short" != 0 ] || short=
PATH=$PATH:/usr/sbin:/sbin
begin=$SECONDS

pass()
{
	echo "PASS: $*"
}

fail()
{
	echo "FAIL: $*"
}

skip()
{
	echo "SKIP: $*"
}

skip_all()
{
	skip "$@"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
}

# ---- what is needed ----

command -v qemu-system-x86_64 >/dev/null || skip_all "guests: qemu-system-x86_64 is not installed"
command -v mkfs.ext4 >/dev/null || skip_all "guests: mkfs.ext4 is not installed"
cache=${VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/te-vm}
mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || cache=$VM_DIR.cache
export VM_DIR=${VM_DIR:?}
rm -rf "$VM_DIR" && mkdir -p "$VM_DIR" && cd "$VM_DIR" || exit 1
trap 'kill $(jobs -p) 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM

modules="virtio_pci virtio_net virtio_blk crc32_generic crc32c_generic ext4 nvme dm-flakey"
modules="$modules ib_uverbs rdma_rxe veth sch_netem"
kernel=$("$here/kernel.sh" "$cache" $modules 2>why) || skip_all "guests: $(tail -n 1 why)"
ln -s "$kernel/vmlinux" vmlinux
cp "$kernel/version" kernel
"$here/image.sh" initrd "$kernel/modules" "$build" 2>why || skip_all "guests: $(tail -n 1 why)"

# KVM only if the processor's extensions are there too: hosts that are guests themselves may have
# the device and emulate each instruction of the guest
accel()
{
	if [ -w "$1" ] && grep -qwE 'vmx|svm' "$2"; then echo kvm; else echo tcg; fi
}

# ---- guests ----

# start NAME PAYLOAD [OPTION OF QEMU]...: in the background
start()
{
	VM_APPEND="te.short=$short ${VM_APPEND:-}" "$here/guest.sh" "$@" &
}

guest()
{
	start "$@"
	wait $!
}

# judge NAME STATUS WANTED [TEXT]: of a guest that has ended
judge()
{
	if [ "$2" = "$3" ]; then
		[ -z "${4:-}" ] || pass "harness: $4"
	else
		fail "$1: ${4:-the guest}: status $2, not $3: $VM_DIR/$1.log"
		tail -n 40 "$1.log" "$1.qemu"
	fi
}

# results NAME STATUS [WANTED]: what the payload of a guest that has ended has found
results()
{
	local line failing=

	while read -r line; do
		case $line in
		"@@ok "*) pass "$1: ${line#@@ok }" ;;
		"@@skip "*) skip "$1: ${line#@@skip }" ;;
		"@@not ok "*) fail "$1: ${line#@@not ok }" ;;
		@@*) ;;
		*) [ -z "$failing" ] || echo "	$line" ;;
		esac
		case $line in
		"@@not ok "*) failing=1 ;;
		@@*) failing= ;;
		esac
	done < <(tr -d '\r' <"$1.log")
	judge "$1" "$2" "${3:-0}"
}

# ---- the harness ----

accel_is()
{
	local got

	echo "$2" >cpuinfo
	got=$(accel "$1" cpuinfo)
	if [ "$got" = "$3" ]; then pass "harness: $4"; else fail "harness: $4: $got"; fi
}

check_harness()
{
	local hang none n

	VM_LIMIT=6 VM_CPUS=1 start hang hang
	hang=$!
	VM_CPUS=1 start none none
	none=$!
	: >device
	accel_is device "flags : fpu svm sse" kvm "KVM if the device and the extensions are there"
	accel_is device "flags : fpu svm_lock sse" tcg "TCG without the extensions"
	accel_is nowhere "flags : fpu vmx sse" tcg "TCG without the device"
	for n in 7 $([ -n "$short" ] || echo 0 127 200); do
		VM_CPUS=1 VM_APPEND=te.status=$n guest hello hello
		judge hello $? $n "status $n of a payload is that of its guest"
	done
	wait $none
	judge none $? 125 "no payload: 125"
	wait $hang
	judge hang $? 124 "a payload that does not end: 124"
}

# ---- drives ----

# image NAME SIZE: a file with a file system
image()
{
	truncate -s "$2" "$1.img"
	mkfs.ext4 -q -F -b 4096 -m 0 -N 16 -O ^has_journal "$1.img"
}

# adds a drive to the array "options"; errors are the guest's, instead of pausing it
virtio_blk()
{
	local errors=werror=report,rerror=report

	options+=(-device "virtio-blk-pci,id=$1,drive=$1-drive,serial=$1,$errors${2:+,$2}")
}

backed()
{
	options+=(-drive "if=none,id=$1-drive,format=raw,cache=unsafe,file=$1.img${2:+,$2}")
}

# once N TYPE: a rule of blkdebug: one operation on byte 32M fails, which the files are all across
once()
{
	local rule=inject-error.$1

	echo "$rule.event=none,$rule.iotype=$2,$rule.errno=5,$rule.sector=65536,$rule.once=on"
}

check_disk()
{
	local name options=()

	for name in plain nvme debug under slow; do
		image $name 64M
	done
	image small 16M
	# a drive can be removed from a port of its own
	options+=(-device pcie-root-port,id=port1,chassis=1)
	options+=(-device pcie-root-port,id=port2,chassis=2)
	backed plain && virtio_blk plain bus=port1
	backed nvme && options+=(-device nvme,id=nvme,drive=nvme-drive,serial=nvme,bus=port2)
	backed small && virtio_blk small
	backed under && virtio_blk under
	backed slow throttling.bps-total=20000000 && virtio_blk slow
	name=driver=blkdebug,node-name=debug-drive,image=debug-file
	options+=(-blockdev driver=file,node-name=debug-file,filename=debug.img)
	options+=(-blockdev "$name,$(once 0 write),$(once 1 write),$(once 2 read)")
	virtio_blk debug request-merging=off
	guest disk disk "${options[@]}"
	results disk $?
}

# ---- the node service ----

check_service()
{
	# systemd makes control groups, for which the kernel changes its code: see guest.sh
	VM_CPUS=1 guest service service
	results service $?
}

# ---- ranks ----

check_comm()
{
	guest comm comm
	results comm $?
}

# ---- ranks of several nodes ----

check_wire()
{
	# soft RoCE may send in a system call for seconds, in which a device that is taken down waits
	VM_APPEND="preempt=full ${VM_APPEND:-}" guest wire wire
	results wire $?
}

# pauses a guest when its payload says host pause SECONDS s, until it ends
pauses()
{
	local n=0 all

	while kill -0 "$1" 2>/dev/null; do
		mapfile -t all < <(sed -n 's/^@@host pause \([0-9.]*\) s.*/\1/p' "$2.log" 2>why)
		if [ ${#all[@]} -gt $n ]; then
			echo stop >"$2.mon.in"
			sleep "${all[n]}"
			echo cont >"$2.mon.in"
			n=$((n + 1))
		fi
		sleep 0.1
	done
}

# wired NAME RANK PAYLOAD SERVER [OPTION OF QEMU]...: a guest at one end of a wire, in the
# background; the one whose SERVER is on starts first
wired()
{
	local name=$1 rank=$2 payload=$3 wire=$3.wire
	local net=stream,id=wire,server=$4,addr.type=unix,addr.path=$wire

	[ "$4" = on ] || until_made $wire $! || return
	shift 4
	VM_APPEND="te.rank=$rank ${VM_APPEND:-}" start "$name" "$payload" -netdev "$net" -device \
		virtio-net-pci,id=net,netdev=wire,host_mtu=4200,romfile=,mac=52:54:00:00:00:0$rank "$@"
}

# until_made SOCKET PROCESS: or the process has ended
until_made()
{
	while [ ! -S "$1" ] && kill -0 "$2" 2>/dev/null; do
		sleep 0.1
	done
}

# no_wire TOPIC
no_wire()
{
	qemu-system-x86_64 -display none -netdev help 2>/dev/null | grep -q stream && return 1
	skip "$1: QEMU has no -netdev stream: version 7.2 or newer is needed"
}

check_pair()
{
	local first second

	no_wire pair && return
	# the guest that pauses is the server: a server of QEMU 7.2 waits for its client to read
	wired pair1 1 pair on
	second=$!
	wired pair0 0 pair off
	first=$!
	pauses $second pair1
	wait $first
	results pair0 $?
	wait $second
	results pair1 $? 125 # it was switched off
}

check_train()
{
	local first second

	[ -z "$short" ] || return
	no_wire train && return
	# the one that is switched off is the client: the server stays, for its successor
	wired train0 0 train on
	first=$!
	wired train1 1 train off
	second=$!
	wait $second
	results train1 $? 125
	VM_APPEND=te.again=1 wired train2 1 train off
	second=$!
	wait $first
	results train0 $?
	wait $second
	results train2 $?
}

# ---- all of them ----

if [ -z "${VM_ACCEL:-}" ]; then
	VM_ACCEL=$(accel /dev/kvm /proc/cpuinfo)
	export VM_ACCEL
	# even then it may not work
	[ "$VM_ACCEL" = tcg ] || VM_LIMIT=10 VM_APPEND=te.status=0 guest kvm hello || VM_ACCEL=tcg
fi
topics=${VM_ONLY:-train wire pair disk harness service comm} # the longest first
# two at a time, because some of them wait
for topic in $topics; do
	[ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
	check_$topic >results.$topic 2>&1 &
done
wait
for topic in $topics; do
	cat results.$topic
done | tee results
# the second line is of processes that have ended, as in 1m2.345s 0m6.789s
times >cpu
cpu=$(tail -n 1 cpu | awk -F "[ms ]+" '{ print int(60 * ($1 + $3) + $2 + $4) }')
echo "$(cat kernel), $VM_ACCEL, $((SECONDS - begin)) s, $cpu s of processors; logs are in $VM_DIR"
failed=$(grep -c '^FAIL: ' results)
echo "$(grep -c '^PASS: ' results) passed, $failed failed, $(grep -c '^SKIP: ' results) skipped"
[ "$failed" = 0 ]
