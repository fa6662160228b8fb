#!/bin/sh
# guest.sh - runs a payload in a guest, and exits with its status.
#
#   guest.sh NAME PAYLOAD [OPTION OF QEMU]...
#
# VM_DIR has vmlinux and initrd; NAME.log and the other files of the guest go there. VM_ACCEL is kvm
# or tcg. VM_LIMIT: seconds (600); VM_CPUS (2), VM_MEMORY (512M), VM_APPEND: the kernel's command
# line. NAME.mon.in takes commands of QEMU's monitor; what the guest writes to its second serial
# line goes there too. Exit status 124: the time limit was reached; 125: the guest ended without a
# result.

set -u
name=$1 payload=$2
shift 2
at=$VM_DIR/$name
rm -f "$at".*
mkfifo "$at.mon.in" && : >"$at.mon.out" >"$at.log" || exit 125

# Without AVX, which TCG emulates slowly. The kernel trusts the TSC of several processors of Intel,
# and compares it with the HPET: on a busy host it may have measured a tenth of its rate; nor may the
# timer interrupt come in time for the test of it (no_timer_check).
# One processor boots, and init starts the others (maxcpus=1): the kernel changes its own code while
# it boots, and QEMU 7.2 may keep what it translated while another processor changed it. Such a guest
# takes a breakpoint that is no longer there again and again. With random numbers of the processor
# (rdrand) the kernel's generator, too, is ready before.
accel=tcg,thread=multi cpu=qemu64,vendor=GenuineIntel,+rdrand
[ "$VM_ACCEL" = kvm ] && accel=kvm cpu=host

# The monitor reads from the FIFO before the serial line opens it for writing.
timeout -k 2 "${VM_LIMIT:-600}" qemu-system-x86_64 \
	-machine q35 -accel $accel -cpu $cpu -smp "${VM_CPUS:-2}" -m "${VM_MEMORY:-512M}" \
	-nodefaults -no-user-config -no-reboot -display none \
	-kernel "$VM_DIR/vmlinux" -initrd "$VM_DIR/initrd" \
	-append "console=ttyS0 loglevel=2 panic=-1 mitigations=off random.trust_cpu=on no_timer_check \
maxcpus=1 te.name=$name te.payload=$payload ${VM_APPEND:-}" \
	-chardev "pipe,id=monitor,path=$at.mon" -mon chardev=monitor,mode=readline \
	-chardev "file,id=log,path=$at.log" -serial chardev:log \
	-chardev "file,id=control,path=$at.mon.in" -serial chardev:control \
	-device isa-debug-exit,iobase=0xf4,iosize=1 \
	"$@" >"$at.qemu" 2>&1 </dev/null &
qemu=$!
trap 'kill $qemu 2>/dev/null' EXIT
trap 'exit 125' HUP INT TERM
wait $qemu
qemu_status=$?

status=$(tr -d '\r' <"$at.log" | sed -n 's/^@@end \([0-9]*\) .*/\1/p' | tail -n 1)
[ -n "$status" ] && exit "$status"
case $qemu_status in
124 | 137) exit 124 ;; # of timeout: ended, or killed because it did not end
esac
exit 125
