#!/bin/sh
# te_perftest prints a table and a JSON object of sane figures, and refuses bad usage
# with one line. Nothing here depends on how fast the machine is.
. "$abs_top_srcdir/t/lib/tap.sh"

te_perftest=$(built tools/te_perftest/te_perftest)
te_run=$(built tools/te_run)
TE_BACKEND=host
export TE_BACKEND
cd "$tmp" || exit 99

# keys FILE: the keys of a JSON object, as it is printed, each once
keys()
{
	sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' "$1" | sort -u
}

# has FILE KEY...: they are among the keys
has()
{
	keys "$1" >found
	shift
	for k in "$@"; do
		grep -qx "$k" found || echo "no $k"
	done >why
	empty "the object has ${name}" why
}

# sane NAME FILE ITERS: each figure is positive, its quantiles are in order, and its
# samples are 1 to ITERS
sane()
{
	awk -v iters="$3" '
		/": \{$/ { figure = $1 }
		/"(median|p5|p95|mad|min|max|samples)": / {
			v[substr($1, 2, length($1) - 3)] = $2 + 0
		}
		/"samples": / {
			n++
			if (!(v["min"] > 0 && v["min"] <= v["p5"] && v["p5"] <= v["median"] &&
			      v["median"] <= v["p95"] && v["p95"] <= v["max"]))
				print figure, v["min"], v["p5"], v["median"], v["p95"], v["max"]
			if (!(v["mad"] >= 0 && v["mad"] <= v["max"] - v["min"]))
				print figure, "mad", v["mad"]
			if (v["samples"] < 1 || v["samples"] > iters)
				print figure, "samples", v["samples"]
			delete v
		}
		/: -/ || /nan|inf/ { print }
		END { if (!n) print "no figures" }' "$2" >why
	empty "$1" why
}

# table NAME FIRST COLUMNS ROWS: out is a header, then an aligned table
table()
{
	awk -v cols="$3" -v rows="$4" '
		/^(device|driver|clock|samples|figures) / { heads++ }
		/^$/ { getline upper; getline lower; width = length(lower); body = 1; next }
		body {
			gsub(/ +([0-9]+%|n=1)/, "")
			if (NF != cols)
				print NF " columns: " $0
			n++
		}
		END {
			if (heads != 5)
				print heads " lines of header"
			if (n != rows)
				print n " rows"
		}' out >why
	awk '/^$/ { body = 1; next } body { print length($0) }' out | sort -u | wc -l >lengths
	[ "$(cat lengths)" = 1 ] || echo "lines differ in length" >>why
	grep -q "^te_perftest [0-9.]* $2: " out || echo "no first line" >>why
	[ -s why ] && cat out >>why
	empty "$1" why
}

check "--help" "$te_perftest" --help
check "--version" sh -c "'$te_perftest' --version | grep -qx 'te_perftest [0-9.]*'"
"$te_perftest" --list >out
for t in graph step decode copy cast quantize norm act gemm attn calls comm verbs file offload; do
	check "--list names $t" grep -q "^$t " out
	"$te_perftest" --help | grep -q "^$t: "
	check "--help too" test $? = 0
done
"$te_perftest" --list --json >out
check "--list --json is one object" sh -c "head -n 1 out | grep -qx '{' && tail -n 1 out | grep -qx '}'"
check "a value of the environment that cannot be used" sh -c \
	"TE_DEVICE_MEM_LIMIT=1P '$te_perftest' copy 2>&1 | grep -q 'TE_DEVICE_MEM_LIMIT=1P .* bytes'"
TE_DEVICE_MEM_LIMIT=1P "$te_perftest" copy >out 2>err
check "ends the run" test $? = 2
TE_HOST_LIMIT=1G "$te_perftest" --list >out 2>err
check "a variable that means nothing is a warning" grep -q 'warning: TE_HOST_LIMIT is set' err
# a row of so many nodes takes longer than that on any machine
nodes=50000
[ -z "$TT_SANITIZE" ] || nodes=5000
"$te_perftest" graph --nodes $nodes,1,2 --kind fill --edges serial --seconds 0.01 --iters 1 >out
check "rows for which no time is left are left out" grep -q '^2 more rows did not fit' out
check "one sample has no spread" grep -q 'n=1' out
# with sanitizers the first row of the others takes seconds
tests="quantize norm act attn calls"
[ -z "$TT_SANITIZE" ] || tests="attn calls"
for t in $tests; do
	check "$t: so they are" sh -c "
		'$te_perftest' $t --seconds 0.01 --iters 1 | grep -qE '^[1-9][0-9]* more rows did not'"
done

# SUBJECT|ARGUMENTS
while IFS='|' read -r subject args; do
	eval "fails \"te_perftest $args\" '$subject' \"\$te_perftest\" $args"
done <<'EOT'
no test given|
no test given|--iters 3
"frob"|frob
unexpected argument "frob"|graph frob
--frob|graph --frob
--iters needs a value|graph --iters
--iters: "0"|graph --iters 0
--iters: "3x"|graph --iters 3x
--iters: "1,2"|graph --iters 1,2
--warmup: "-1"|graph --warmup -1
--seconds: "nan"|graph --seconds nan
--seconds: "0"|graph --seconds 0
--seed: ""|graph --seed ""
--nodes: "0"|graph --nodes 0
--nodes: "1,,2"|graph --nodes 1,,2
--nodes: "1,"|graph --nodes 1,
--nodes: "1T"|graph --nodes 1T
--nodes: "9999999999G"|graph --nodes 9999999999G
--nodes: "99999999999999999999"|graph --nodes 99999999999999999999
more than 32|graph --nodes 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
--rebind: "0"|graph --rebind 0
--kind: "magic"|graph --kind magic
--kind: "kernel,"|graph --kind kernel,
--kind: ""|graph --kind ""
--bytes: 6|graph --bytes 6
--fuse: "norm"|comm --fuse norm
--cols: "8"|comm --cols 8
--call: "all"|comm --call all
--tune needs a value|comm --tune
--bytes: "1Z"|copy --bytes 1Z
from 1 to 1099511627776|copy --bytes 2T
--bytes: "1KK"|copy --bytes 1KK
--bytes: "K"|copy --bytes K
--cache: "tepid"|copy --cache tepid
--nodes: not an option of copy|copy --nodes 1
--cache: not an option of graph|graph --cache cold
--nodes: no test given|--list --nodes 1
--rows: "0"|cast --rows 0
--recipe: not an option of cast|cast --recipe delayed
--recipe: "mx"|quantize --recipe mx
--copies: "col"|quantize --copies col
--op: "softmax"|norm --op softmax
--op: "rmsnorm"|act --op rmsnorm
--types: "fp4"|gemm --types fp4
--call: "softmax"|calls --call softmax
--depth: "129"|calls --depth 129
--k: "-16"|gemm --k -16
24|gemm --types fp8 --k 24
--kv-heads: 3|attn --heads 4 --kv-heads 3
--width: 18|step --width 18
--recipe: "delayed"|step --recipe delayed
--batch: "0"|step --batch 0
--width: 18|decode --width 18
--kv-heads: 4 heads are no multiple of 3|decode --kv-heads 3
--temperature: "-1"|decode --temperature -1
--way: "links"|offload --way links
--group: "1"|offload --group 1
"tpu"|graph --backend tpu
device 7|graph --device 7
EOT
if [ -n "$TT_SANITIZE" ]; then
	skip "1T is a size" "the allocator of a sanitizer ends the program"
else
	fails "1T is a size" "no 1099511627776 bytes" env TE_DEVICE_MEM_LIMIT=1M \
		"$te_perftest" copy --bytes 1T
fi
if "$te_perftest" graph --nodes 1 --iters 1 --backend cuda >out 2>err; then
	skip "--backend cuda without a GPU" "there is one"
else
	fails "--backend cuda without a GPU" "no device: " "$te_perftest" graph --backend cuda
fi

# time enough for all rows, however slow the build is; the samples end it before
quick="--iters 7 --warmup 1 --seconds 60 --verify"

check "graph: runs" sh -c "'$te_perftest' graph $quick --nodes 1,3,70 --edges serial,all >out"
table "graph: a table of 3 kinds by 3 counts by 2 modes of capture" graph 16 18
"$te_perftest" graph $quick --nodes 33,2 --kind copy,kernel --bytes 1028 --edges pdl --json >out 2>err
check "graph --json: runs" test $? = 0
empty "graph --json: is silent on standard error" err
sane "graph: figures" out 7
name="the figures of graph"
has out update_us updated_in_place_ratio rebound_slots rebind_us rebound_launch_us \
	edges edges_between capture_us instantiate_us first_launch_us launch_us launch_queued_us eager_cpu_us \
	eager_cpu_us_per_node cpu_ratio launches_queued kernel_nodes first_launch_us device_us device_us_per_node replay_us eager_us \
	eager_to_replay_ratio
name="what is measured, on what and by which clock"
has out version test device backend driver peak_bandwidth_bytes_per_s l2_bytes clock \
	cpu_resolution_ns cpu_read_ns time_limit_s iters warmup seed verified rows
grep -E '"(kind|edges|nodes|node_bytes)": ' out | tr -d ' ",\n' >got
for k in kernel copy; do
	for n in 33 2; do
		printf "kind:${k}edges:pdlnode_bytes:1028nodes:$n"
	done
done >want
same "graph: rows are what was asked for" want got
check "--verify is told" grep -q '"verified": true' out
check "a time that is too short gives one sample of each figure" sh -c "
	'$te_perftest' graph --nodes 1 --kind fill --seconds 0.01 --iters 1000000 --json |
		grep -q '\"samples\": '"

# the smallest model that FP8 supports
step="--layers 1 --width 16 --heads 2 --vocab 16 --batch 2 --seq-len 8"
check "step: runs" sh -c "
	'$te_perftest' step $quick $step --recipe fp32,bf16,fp8-delayed,fp8-current,fp8-block \
		--edges serial,all >out"
table "step: a table of 5 recipes by 2 modes of capture" step 15 10
"$te_perftest" step $quick $step --recipe auto --backend host >out 2>err
check "step: --recipe auto is printed with its reason" \
	grep -q -- "--recipe auto is bf16: the device has no tensor cores" err
"$te_perftest" step $quick $step --recipe bf16 --json >out
sane "step: figures" out 7
name="the figures of step"
has out recipe parameters nodes kernel_nodes capture_us launch_us eager_cpu_us device_us \
	replay_us eager_us eager_to_replay_ratio

decode="--layers 1 --width 16 --heads 4 --kv-heads 2 --inner 24 --vocab 20"
check "decode: runs" sh -c "'$te_perftest' decode $quick $decode --context 3,70 >out"
table "decode: a table of 2 numbers of sequences by 2 contexts" decode 10 4
"$te_perftest" decode $quick $decode --seqs 3 --temperature 1 --top-k 4 --kv-cache fp8 --json >out
sane "decode: figures" out 7
name="the figures of decode"
has out seqs context parameters step_us token_us tokens_per_s bytes_per_s bandwidth_ratio

check "copy: runs" sh -c "'$te_perftest' copy $quick --bytes 1,64K,1M >out"
table "copy: a table" copy 6 3
"$te_perftest" copy $quick --bytes 257,100K --json >out 2>err
check "copy --json: runs" test $? = 0
sane "copy: figures" out 7
name="the figures of copy"
has out bytes buffers buffers_bytes device_us read_and_written_bytes_per_s peak_ratio
check "copy: the peak of a host is not known" grep -q '"peak_ratio": null' out
"$te_perftest" copy $quick --bytes 4K --cache warm --json >out
check "copy: --cache warm takes one pair of buffers" grep -q '"buffers": 2,' out

# unaligned extents
shape="--rows 37 --cols 219"
check "cast: runs" sh -c "'$te_perftest' cast $quick $shape >out"
table "cast: a table" cast 9 1
"$te_perftest" cast $quick $shape --json >out
sane "cast: figures" out 7
check "cast: 4 bytes read and 2 written an element" \
	grep -q "\"moved_bytes\": $((37 * 219 * 6))," out

check "quantize: blocks of 32, verified" \
	"$te_perftest" quantize $quick $shape --backend host --recipe mxfp8
check "quantize: nvfp4 of three kinds, verified" "$te_perftest" quantize $quick --rows 48 \
	--cols 208 --backend host --recipe nvfp4,nvfp4-weight,nvfp4-grad
check "quantize: runs" sh -c "'$te_perftest' quantize $quick $shape >out"
table "quantize: a table of 2 recipes by 2 copies" quantize 11 4
"$te_perftest" quantize $quick $shape --copies both --json >out
sane "quantize: figures" out 7
name="the figures of quantize"
has out recipe copies rows cols buffers moved_bytes device_us copy_us copy_ratio peak_ratio
grep -E '"(recipe|moved_bytes)": ' out | tr -d ' ",\n' >got
printf "recipe:delayedmoved_bytes:$((37 * 219 * 4))" >want
printf "recipe:currentmoved_bytes:$((37 * 219 * 6))" >>want
same "quantize: bytes read and written, one row for each recipe" want got

check "norm: runs" sh -c "'$te_perftest' norm $quick $shape >out"
table "norm: a table of 2 ops by 2 passes" norm 11 4
"$te_perftest" norm $quick $shape --op rmsnorm --json >out
sane "norm: figures" out 7
name="the figures of norm"
has out op pass rows cols plans moved_bytes device_us copy_us copy_ratio peak_ratio
grep -E '"(pass|moved_bytes)": ' out | tr -d ' ",\n' >got
printf "pass:forwardmoved_bytes:$((37 * 219 * 4))" >want
printf "pass:bothmoved_bytes:$((37 * 219 * 10))" >>want
same "norm: bytes read and written, one row for each pass" want got
check "act: runs" sh -c "'$te_perftest' act $quick $shape >out"
table "act: a table of 2 ops by 2 passes" act 11 4
"$te_perftest" act $quick $shape --op silu --json >out
sane "act: figures" out 7
grep -E '"(op|pass|moved_bytes)": ' out | tr -d ' ",\n' >got
printf "op:silupass:forwardmoved_bytes:$((37 * 219 * 4))" >want
printf "op:silupass:bothmoved_bytes:$((37 * 219 * 10))" >>want
same "act: bytes read and written, one row for each pass" want got

shape="--m 48 --n 32 --k 80"
check "gemm: runs" sh -c \
	"'$te_perftest' gemm $quick $shape --types fp32,bf16,fp8,fp8-grad,fp8-block,fp8-block-dw >out"
table "gemm: a table of 6 types" gemm 9 6
check "gemm: blocks of 32 and 16, verified" \
	"$te_perftest" gemm $quick $shape --backend host --types mxfp8,nvfp4
"$te_perftest" gemm $quick --m 1 --n 3 --k 7 --types bf16 --json >out
sane "gemm: figures" out 7
name="the figures of gemm"
has out types m n k buffers device_us flop_per_s flop_per_s_per_core peak_ratio
# one core is what one thread has
TE_HOST_THREADS=1 OPENBLAS_NUM_THREADS=1 "$te_perftest" gemm $quick --types fp32 --json |
	sed -n 's/^ *"flop_per_s[a-z_]*": \(.*\),$/\1/p' | sort -u >got
check "gemm: the rate of a core is that of one thread" test "$(wc -l <got)" = 1

shape="--batch 2 --seq-len 70 --heads 4 --kv-heads 2 --head-dim 24"
check "attn: runs" sh -c "'$te_perftest' attn $quick $shape --types fp32,bf16 >out"
table "attn: a table of 2 types by 2 passes" attn 14 4
check "attn: in a window" sh -c "'$te_perftest' attn $quick $shape --window 9 --verify >out"
check "attn: of documents" sh -c "'$te_perftest' attn $quick $shape --document 9 --verify >out"
"$te_perftest" attn $quick $shape --pass forward --json >out
sane "attn: figures" out 7
name="the figures of attn"
has out types pass batch seq_len heads kv_heads head_dim window document plans device_us gemm_us \
	flop_per_s \
	gemm_ratio flop_per_s_per_core peak_ratio

shape="--rows 37 --cols 219 --depth 3"
"$te_run" -n 2 "$te_perftest" comm $quick --verify --bytes 2,1K,33K --types fp32 --depth 3 \
	--algorithm ll,oneshot,twoshot,zerocopy --json >out 2>err
check "comm: two ranks run, and one prints" test $? = 0
sane "comm: figures" out 21
"$te_run" -n 2 "$te_perftest" comm $quick --verify --symmetric --bytes 40K --depth 2 \
	--algorithm zerocopy >out 2>err
check "comm --symmetric: runs" test $? = 0
"$te_perftest" comm $quick --bytes 1K >out 2>err
check "comm: one rank runs" test $? = 0
"$te_run" -n 3 "$te_perftest" comm $quick --verify --bytes 2K,5K --cols 48 --depth 3 \
	--fuse none,add-rms,add-rms-fp8 --algorithm oneshot,twoshot,staged --json >out 2>err
check "comm --fuse: results are those of separate kernels" test $? = 0
sane "comm --fuse: figures" out 21
check "comm --fuse: the norm is in the kernel of oneshot and twoshot" \
	test "$(grep -c '"fused": 1' out),$(grep -c '"fuse": "add-rms' out)" = 8,12
check "comm --fuse: and is compared with kernels apart" test "$(grep -c '"speedup": [0-9]' out)" = 12
"$te_run" -n 3 "$te_perftest" comm $quick --verify --bytes 3K,70K --depth 3 --json \
	--call allreduce,sendrecv,alltoall,gather,scatter,reduce >out 2>err
check "comm --call: results are those of a loop" test $? = 0
sane "comm --call: figures" out 21
check "comm --call: each call has its rows" test \
	"$(grep -c '"call": ' out),$(grep -c '"algorithm": "messages"' out)" = 12,10
"$te_run" -n 3 --per-node 2 "$te_perftest" comm $quick --verify --bytes 3K --depth 2 \
	--call sendrecv,alltoall --json >out 2>err
check "comm --call: between nodes too" test $? = 0
"$te_run" -n 2 "$te_perftest" comm $quick --bytes 2K --depth 3 --gemm --json >out 2>err
check "comm --gemm: runs" test $? = 0
sane "comm --gemm: figures" out 21
TE_COMM_TRANSPORT=no "$te_run" -n 2 --per-node 1 "$te_perftest" comm $quick --verify --bytes 2K \
	--depth 3 --transport tcp --json >nodes 2>err
check "comm --transport: runs between nodes, whatever the environment says" test $? = 0
check "comm --transport: by an algorithm for nodes" grep -q '"algorithm": "exchange"' nodes
TE_HOST_FABRIC=on "$te_run" -n 2 --per-node 1 "$te_perftest" comm $quick --bytes 2K --depth 3 \
	--transport fabric --json >nodes 2>err
check "comm --transport fabric: runs between nodes" test $? = 0
check "comm --transport fabric: by an algorithm of one node" \
	grep -q '"algorithm": "oneshot"' nodes
name="the figures of comm --gemm"
has out ranks call type bytes memory algorithm fuse fused blocks launches sent_bytes max_us p99_us \
	with_gemm_us gemm_us gemm_alone_us slowdown gemm_slowdown
"$te_run" -n 2 "$te_perftest" verbs $quick --transport tcp --bytes 0,9,70K --depth 3 --json \
	>out 2>err
check "verbs: runs over TCP, and one rank prints" test $? = 0
sane "verbs: figures" out 7
name="the figures of verbs"
has out transport bytes depth half_round_trip_us least_us p99_us batch_us bytes_per_s
fails "verbs: one rank is too few" "one rank, expected 2 or more: te_run -n 2" \
	"$te_perftest" verbs $quick --transport tcp
printf 'te-comm-table 1\n3 any any rest staged 5\n2 any any rest staged 5\n' >table
"$te_run" -n 2 "$te_perftest" comm $quick --seconds 30 --bytes 2K,40K,16 --depth 2 --tune table \
	--verify >out 2>err
check "comm --tune: runs" test $? = 0
sed -n '1p; 3p' table >got
printf 'te-comm-table 1\n3 any any rest staged 5\n' >want
same "comm --tune: rows of other numbers of ranks remain" want got
grep '^2 ' table | cut -d' ' -f1-4 | grep rest >got
printf '2 %s rest\n' "float any" "float symmetric" "any any" "any symmetric" >want
same "comm --tune: each section is written" want got
TE_COMM_TABLE=table "$te_run" -n 2 "$te_perftest" comm $quick --bytes 2K --json >out 2>err
check "comm --tune: the table is used" test $? = 0
grep '"\(algorithm\|blocks\)"' out >got
check "comm --tune: and chooses the algorithm" \
	grep -qF "\"$(awk '/^2 float any/ && ($4 == "rest" || $4 >= 2048) { print $5; exit }' table)\"" got
"$te_perftest" comm $quick --tune table >out 2>err
check "comm --tune: one rank is told why not" grep -q 'tune: there is one rank, expected 2 or more' err
mkfifo pipe
"$te_run" -n 2 "$te_perftest" comm $quick --tune pipe >out 2>err
check "comm --tune: replaces no pipe or device" \
	sh -c "[ $? = 1 ] && [ -p pipe ] && grep -q 'tune: pipe: is not a file' err"
echo '2 any' >>table
TE_COMM_TABLE=table "$te_perftest" comm $quick --bytes 2K >out 2>err
check "comm: a wrong table is named with its line" \
	grep -q "TE_COMM_TABLE: table:$(wc -l <table): too few words" err
file="--dir . --bytes 1M --block 16K --depth 3 --check sample"
check "file: runs" sh -c "'$te_perftest' file $quick $file --io threads >out"
table "file: a table of three passes" file 8 3
"$te_perftest" file $quick $file --io threads --json >out 2>err
check "file --json: runs" test $? = 0
sane "file: figures" out 7
name="the figures of file"
has out pass io bytes block_bytes depth bytes_per_s cpu_s_per_gb p50_us p99_us
fails "file: a file that is too small for its blocks" "at least 131072" \
	"$te_perftest" file --bytes 64K --block 16K --io threads
"$te_perftest" file --dir /nowhere --io threads >out 2>err
echo "exit status $?" >>err
check "file: a folder that is not there" \
	sh -c "grep -q 'exit status 1' err && grep -q /nowhere err"
offload="--bytes 100001 --group 7000 --n 24"
check "offload: runs" sh -c "'$te_perftest' offload $quick $offload >out"
table "offload: a table of two ways by three passes" offload 10 6
"$te_perftest" offload $quick $offload --way graph --json >out 2>err
check "offload --json: runs" test $? = 0
sane "offload: figures" out 7
name="the figures of offload"
has out pass way bytes group_bytes plain_us copies_us plain_bytes_per_s copied_bytes_per_s \
	plain_ratio gemms load_us at_once_us budget_ratio hidden_ratio at_once_ratio
grep '"pass"' out | tr -d ' "\n' >got
printf "pass:out,pass:in,pass:both," >want
same "offload: rows are what was asked for" want got
check "calls: runs" sh -c "'$te_perftest' calls $quick $shape >out"
table "calls: a table of all calls" calls 13 24
"$te_perftest" calls $quick $shape --call quantize,adamw,rmsnorm-bwd,transpose --json >out 2>err
check "calls --json: runs" test $? = 0
sane "calls: figures" out 21
name="the figures of calls"
has out call rows cols blocks depth launches cpu_us cpu_p99_us moved_bytes device_us copy_us copy_ratio \
	peak_ratio
grep -E '"(call|moved_bytes)": ' out | tr -d ' ",\n' >got
printf "call:transposemoved_bytes:$((37 * 219 * 4))" >want
# x, dy, dx; gamma, dgamma twice; rstd
printf "call:rmsnorm-bwdmoved_bytes:$((37 * 219 * 6 + 219 * 12 + 37 * 4))" >>want
printf "call:adamwmoved_bytes:$((37 * 219 * 32))" >>want
printf "call:quantizemoved_bytes:$((37 * 219 * 3))" >>want
same "calls: bytes read and written, a row for each call in the order of the table" want got
grep -E '"launches": ' out | tr -d ' ",\n' >got
printf "launches:%d" 1 2 3 1 >want
same "calls: launches" want got

if [ -w /dev/full ]; then
	"$te_perftest" graph $quick --nodes 1 >/dev/full 2>err
	echo "exit status $?" >>err
	check "a full disk is reported" grep -q 'exit status 1' err
fi

tap_end
