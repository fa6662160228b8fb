#!/bin/sh
# te_info prints backends, devices and parameters, as text and as JSON.
. "$abs_top_srcdir/t/lib/tap.sh"

te_info=$(built tools/te_info)
cd "$tmp" || exit 99

check "--help" "$te_info" --help
says "--version" '^te_info [0-9]+\.[0-9]+\.[0-9]+$' "$te_info" --version
fails "an unknown option" --frob "$te_info" --frob
fails "the second of two letters" "-z: unknown" "$te_info" -jz
fails "a value of a flag" "--json=1: the option takes no value" "$te_info" --json=1
fails "a beginning of no option" "--frob: unknown or ambiguous" "$te_info" --frob
fails "an argument" frob "$te_info" frob
fails "two kinds of output" "--params and --transports" "$te_info" -p -t

says "the host is always there" '^backend host' "$te_info"
says "a device and its free memory" \
	'^  0  .*, [0-9.]+ GiB, ([0-9.]+ GiB free|free memory unknown)$' "$te_info"
says "cuda is there, or absent for a reason" \
	'^backend cuda( .*[^:]|: absent: .+)$' "$te_info"
says "versions of the three libraries" \
	'libtecore [0-9.]+, libtegraph [0-9.]+, libtecomm [0-9.]+$' "$te_info"
says "what it was built with" \
	'^built with compiler .*, with(out)? device kernels, with(out)? a BLAS, with(out)? hwloc, with(out)? liburing$' \
	"$te_info"

says "offload to files is tried" \
	'^offload to files: (io_uring|threads), (direct I/O aligned to [0-9]+ bytes|no direct I/O), ' \
	"$te_info"
says "a folder of offload that cannot be used" \
	'^offload to files: not usable: .*/nowhere' env TE_OFFLOAD_DIR=/nowhere "$te_info"
says "offload to files without io_uring" '^offload to files: threads, ' \
	env TE_OFFLOAD_IO=threads "$te_info"
says "--json tells the alignment" '"align_bytes": [0-9]+,' "$te_info" --json
says "a parameter and where it comes from" \
	'^TE_BACKEND=host  \(environment; default "auto"' env TE_BACKEND=host "$te_info" --params
says "a value that cannot be read" \
	'^TE_BACKEND=auto  \(invalid' env TE_BACKEND=abacus "$te_info" --params
says "a variable that means nothing" '^TE_BAKCEND is set' env TE_BAKCEND=1 "$te_info" --params

says "--transports prints what works" '^  fd         available$' "$te_info" --transports
says "--transports prints why something does not" \
	'^  fabric     not available: the host backend has no fabric handles: ' "$te_info" -t
says "fabric handles are simulated" '^  fabric     available$' env TE_HOST_FABRIC=on "$te_info" -t
says "multicast is off" '^  nvls       not available: multicast is off: ' "$te_info" -t
says "multicast is simulated" '^  nvls       available$' env TE_COMM_NVLS=on NCCL_NVLS_ENABLE=1 \
	"$te_info" -t
says "multicast is refused by the environment" \
	'^  nvls       not available: multicast is refused: NCCL_NVLS_ENABLE=0 is in the environment$' \
	env TE_COMM_NVLS=on NCCL_NVLS_ENABLE=0 "$te_info" -t
says "--transports --json" '^ *"name": "fabric",$' "$te_info" --transports --json

TE_BACKEND=abacus "$te_info" >out 2>err
check "and is told without --params" grep -qF 'TE_BACKEND=abacus in the environment' err
TE_BAKCEND=1 "$te_info" >out 2>err
check "so is a variable that means nothing" grep -q 'warning: TE_BAKCEND is set' err

# every parameter is there once
sed -n 's/^TE_PARAM(\([A-Z0-9_]*\),.*/TE_\1/p' "$abs_top_srcdir"/libte*/base/params.def | sort >want
"$te_info" --params | sed -n 's/^\(TE_[A-Z0-9_]*\)=.*/\1/p' | sort >got
same "--params lists params.def" want got
"$te_info" --json | sed -n 's/^ *"name": "\(TE_[A-Z0-9_]*\)",*$/\1/p' | sort >got
same "--json does too" want got

says "--json gives memory in bytes" '^ *"mem_total_bytes": [1-9][0-9]*,?$' "$te_info" --json
name="the cores of the host are those that the process may use"
if taskset -cp $$ >cpus 2>/dev/null; then
	cpu=$(sed 's/.*: *\([0-9]*\).*/\1/' cpus)
	says "$name" '^ *"nprocs": 1,$' taskset -c "$cpu" "$te_info" --json
else
	skip "$name" "there is no taskset"
fi
says "--json gives one object" '^\}$' "$te_info" --json
"$te_info" --json --params | grep backends >found
empty "--json --params gives parameters only" found

# GPUs of a driver for tests: kernels run there, with their variants, or a sentence says why not
gpus()
{
	env FAKE_GPUS="8.0 8.6 8.9 9.0 10.0 12.0" \
		LD_LIBRARY_PATH="$abs_top_builddir/t/tools/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
		"$@" | sed '/^backend host/,$d'
}

cat >want <<-'EOF'
	NVIDIA A100-SXM4-80GB, 8.0, 312 BF16
	NVIDIA GeForce RTX 3090, 8.6, 71 BF16
	NVIDIA L40S, 8.9, 366 BF16
	NVIDIA H100 80GB HBM3, 9.0, 989 BF16
	NVIDIA B200, 10.0, 2243 BF16
	NVIDIA GeForce RTX 5090, 12.0, 210 BF16
EOF
gpus "$te_info" >all 2>err
sed -n -e 's/^  [0-5]  \(NVIDIA .*\) at .* capability \([0-9.]*\),.*/\1, \2/p' \
	-e 's/^     peak .*FP8, \([0-9]* BF16\).*/\1/p' all | paste -d: - - | sed 's/:/, /' >got
same "GPUs since Ampere and their rates" want got
for gpu in 0 1 2 3 4 5; do
	sed -n "/^  $gpu  NVIDIA/,/^  $((gpu + 1))  /p" all | sed '${/^  [1-5]  /d}' >gpu
	kernels=$(grep -c '^     kernels for [0-9.]*, [0-9]* KiB of shared memory a block; ' gpu)
	variants=$(grep -c '^     [-A-Z a-z0-9]*: [a-z0-9, ]* (.*)$' gpu)
	refused=$(grep -c '^     not usable: .*kernels' gpu)
	case "$kernels $variants $refused" in
	"1 11 0" | "0 0 1") ;;
	*) echo "$gpu: $kernels, $variants, $refused" ;;
	esac
done >bad
empty "each has its kernels and variants, or a reason" bad
says "a level above a GPU's is refused" \
	'^     not usable: TE_CUDA_ARCH=9.0 is higher than its compute capability, 8.6$' \
	gpus env TE_CUDA_ARCH=9.0 "$te_info"

if [ -w /dev/full ]; then
	"$te_info" --json >/dev/full 2>err
	echo "exit status $?" >>err
	check "a full disk is reported" grep -q 'exit status 1' err
fi

tap_end
