# disk.sh - files of offload on drives: virtio-blk and NVMe, and drives that are full, fail, stop
# or are removed. check.sh gives the drives their serial names, and says which sectors of the drive
# "debug" fail.

if [ ! -x /bin/te_perftest ] || [ ! -x /bin/te_train ]; then
	skip "files of offload" "te_perftest and te_train are not built"
	exit 0
fi
load crc32c_generic ext4 nvme dm-flakey
# a busy host may stop a drive for seconds
export TE_OFFLOAD_TIMEOUT_MS=60000

# disk NAME: its device
disk()
{
	for file in /sys/block/*/serial /sys/block/*/device/serial; do
		[ "$(tr -d ' ' <"$file" 2>/dev/null)" = "$1" ] || continue
		file=${file#/sys/block/}
		echo "/dev/${file%%/*}"
	done
}

found()
{
	[ -b "$(disk "$1")" ]
}

# mounted NAME [DEVICE]: the file system of a drive, at /NAME
mounted()
{
	mkdir "/$1"
	[ -n "${2:-}" ] || until_true found "$1" || return 1
	mount -t ext4 "${2:-$(disk "$1")}" "/$1"
}

# every byte that is read is compared; 48M take all blocks, and 50M leave two
file="te_perftest file --io io_uring --block 1M --iters 1 --check all"
at='of group [0-9]+, 4194304 bytes: block [0-9]+, at byte [0-9]+ of the file in'
error='Input/output error'

mounted plain && mounted nvme && mounted small && mounted debug || exit 1
gives "te_info tries a folder" 0 '^offload to files: io_uring, direct I/O ' \
	env TE_OFFLOAD_DIR=/plain te_info
gives "virtio-blk: what is written comes back" 0 '^ both +threads' \
	$file --io io_uring,threads --dir /plain --bytes 32M
gives "NVMe: what is written comes back" 0 '^ both +threads' \
	$file --io io_uring,threads --dir /nvme --bytes 32M

# written DEVICE: bytes
written()
{
	echo $(($(awk '{ print $7 }' "/sys/block/${1#/dev/}/stat") * 512))
}

# has_written DEVICE BYTES: more than $before
has_written()
{
	[ $(($(written "$1") - before)) -gt "$2" ]
}

cat /payload/*.sh /init >/tmp/text
train="te_train --preset tiny --seq-len 32 --batch 2 --eval-every 0 --eval-batches 1 --save-every 0"
$train --steps 2 --json /tmp/text >/tmp/without 2>&1 </dev/null
before=$(written "$(disk nvme)")
gives "te_train with values in a file" 0 'of activations wait for backward' $train --steps 2 \
	--offload all --offload-file /nvme:32M --offload-verify all --json /tmp/text
grep loss_nats /tmp/without >/tmp/want
grep loss_nats /tmp/gives.out >/tmp/got
gives "has the losses of a run without" 0 identical diff -s /tmp/want /tmp/got
echo "$(($(written "$(disk nvme)") - before)) bytes" >/tmp/written
judge "and has written them" 0 '^[0-9]{6,} bytes' 0 /tmp/written
gives "a full file system is an error before the first write" 1 \
	'spill: /small: cannot reserve 50331648 bytes: No space left on device: [0-9]+ are available' \
	$file --dir /small --bytes 48M

# the drive fails a write, a write and a read, once each; operations are not merged
echo 2 >"/sys/block/$(basename "$(disk debug)")/queue/nomerges"
gives "a failed write names group, byte and folder" 1 \
	"te_perftest: file: offload: write $at /debug: $error" $file --dir /debug --bytes 48M
gives "a block that cannot be written moves" 0 'byte [0-9]+ of the file cannot be written: byte ' \
	env TE_LOG=info $file --dir /debug --bytes 50M
gives "a failed read names group, byte and folder" 1 \
	"te_perftest: file: offload: read $at /debug: $error" $file --dir /debug --bytes 48M
gives "the next run succeeds" 0 '^ both +io_uring' $file --dir /debug --bytes 48M

# table NAME TARGET...: of the device-mapper drive, while it is in use
table()
{
	printf '%s\n' "$@" | dmsetup load dm &&
		dmsetup suspend --nolockfs --noflush --noudevsync dm &&
		dmsetup resume --noudevsync dm
}

if [ -x /bin/dmsetup ]; then
	until_true found under || exit 1
	under=$(disk under)
	all=131072 bad=65536 good=$((65536 + 8)) # sectors
	echo "0 $all linear $under 0" | dmsetup create dm --noudevsync && dmsetup mknodes &&
		mounted dm /dev/mapper/dm || exit 1
	table "0 $bad linear $under 0" "$bad 8 error" "$good $((all - good)) linear $under $good"
	gives "sectors that fail for good are an error" 1 \
		"te_perftest: file: offload: write $at /dm: $error" $file --dir /dm --bytes 48M
	gives "or left, if there is room" 0 'byte [0-9]+ of the file cannot be written: byte ' \
		env TE_LOG=info $file --dir /dm --bytes 50M
	table "0 $all flakey $under 0 0 100 1 error_writes"
	gives "a drive that refuses all writes fails the trial" 1 \
		"spill: /dm: a trial of io_uring failed: $error" $file --dir /dm --bytes 48M
	table "0 $all linear $under 0"
	gives "a drive that recovers is used" 0 '^ both +io_uring' $file --dir /dm --bytes 48M
	if [ -z "$short" ]; then
		# one file for all steps, so that it is in use when values have been written
		before=$(written "$under")
		TE_OFFLOAD_TIMEOUT_MS=5000 timeout 240 $train --steps 100000 --offload all \
			--offload-file /dm:32M /tmp/text >/tmp/stopped 2>&1 </dev/null &
		until_true has_written "$under" 1000000
		dmsetup suspend --nolockfs --noflush --noudevsync dm
		wait $!
		judge "a drive that stops is an error after 5 s" 1 \
			'offload: (read|write) of group .* of the file in /dm: Connection timed out' \
			$? /tmp/stopped
		dmsetup resume --noudevsync dm
	fi
else
	skip "device mapper" "dmsetup is not installed"
fi

# 20 MB/s; each row of the table has the median rate of a pass
mounted slow || exit 1
te_perftest file --dir /slow --io io_uring --bytes 4M --block 128K --iters 1 --check all --json \
	>/tmp/slow 2>&1 </dev/null
status=$?
awk '/"bytes_per_s"/ { getline; sub(/.*: /, ""); print $0 < 30e6 ? "slow" : "fast", $0 }' \
	/tmp/slow | sort >/tmp/rates
judge "a slow drive is slow, not an error" 0 '^slow' $status /tmp/rates

# removed TEXT DRIVE COMMAND...: removed while the command uses it. ext4 says that there is no space
# where it cannot read which blocks are free.
removed()
{
	name=$1 drive=$2
	shift 2
	device=$(disk "$drive")
	before=$(written "$device")
	timeout 240 "$@" >/tmp/removed 2>&1 </dev/null &
	until_true has_written "$device" 1000000
	monitor device_del "$drive"
	wait $!
	judge "$name" 1 \
		": (offload|spill): .*/$drive: .*($error|No such device|Read-only|No space left)" $? \
		/tmp/removed
}
removed "a virtio-blk drive that is removed is an error that names the folder" plain \
	$file --dir /plain --bytes 32M --iters 10000
removed "so is an NVMe drive, while te_train uses it" nvme \
	$train --steps 10000 --offload all --offload-file /nvme:32M /tmp/text
gives "te_info says why a drive is not usable" 0 '^offload to files: not usable: .*/plain' \
	env TE_OFFLOAD_DIR=/plain te_info

# last, because it cannot be undone
if echo 2 2>/dev/null >/proc/sys/kernel/io_uring_disabled; then
	gives "io_uring refused: the engine says so" 1 \
		'io_uring is refused: Operation not permitted' $file --dir /slow --bytes 8M
	gives "io_uring refused: offload takes threads" 0 '^offload to files: threads, ' \
		env TE_OFFLOAD_DIR=/slow te_info
else
	skip "io_uring refused" "kernel $(uname -r) has no io_uring_disabled"
fi
