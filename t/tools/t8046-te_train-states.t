#!/bin/sh
# te_train --states host: moments in host memory, or in a file, have the bits of moments in device
# memory, eagerly and in graphs; either resumes the other's checkpoint, and --estimate counts all
# memories.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

common="--batch 2 --lr 1e-2 --warmup 2 --steps 5 --eval-every 0 --eval-batches 1 --save-every 0
	--log-every 1 --random-tokens"
fresh="--model plain.json $common"

# moments are compared by the steps that follow: their files have the options of their run
while read -r name args; do
	check "$name: device" "$te_train" $fresh $args --out $name.device
	for graph in off step layer; do
		out=$name.$graph
		check "$name: host, --graph $graph" "$te_train" $fresh $args --graph $graph \
			--states host --out $out
		same "has the weights" $name.device/model.safetensors $out/model.safetensors
		check "goes on with device memory" "$te_train" --resume $out --states device \
			--steps 8
		[ $graph != off ] || cp $out/model.safetensors $name.want
		same "has the weights of the first" $name.want $out/model.safetensors
	done
	for graph in off layer; do
		out=$name.file.$graph
		check "$name: a file, --graph $graph" "$te_train" $fresh $args --graph $graph \
			--states host --states-file . --out $out
		same "has the weights of device memory" $name.device/model.safetensors \
			$out/model.safetensors
	done
	check "$name: a file goes on with device memory" "$te_train" --resume $name.file.off \
		--states device --steps 8
	same "has the weights of the first" $name.want $name.file.off/model.safetensors
	check "$name: goes on with a file" "$te_train" --resume $name.file.layer --states-file . \
		--graph step --steps 8
	same "has the weights of the first" $name.want $name.file.layer/model.safetensors
	check "$name: goes on with host memory" "$te_train" --resume $name.device --states host \
		--steps 8
	same "has these weights, too" $name.want $name.device/model.safetensors
done <<'LIST'
fp32 --recipe fp32 --accum 2
bf16 --moments bf16 --masters bf16-remainder
fp8 --moments fp8 --masters bf16 --recipe fp8-current
LIST
says "a resumed run keeps the choice" '"host_states_bytes": [1-9]' \
	"$te_train" --resume fp32.device --estimate --json

for states in device host; do
	check "parts, --states $states" ranks 3 $fresh --moments bf16 --zero 1 --states $states \
		--out parts.$states
	check "shards, --states $states" ranks 2 --model micro.json $common --tensor 2 \
		--states $states --out shards.$states
	says "--estimate, --states $states" '"moments_bytes": [1-9]' "$te_train" $fresh \
		--states $states --estimate=1G --json
	cp out $states.json
done
same "parts have the same weights" parts.device/model.safetensors parts.host/model.safetensors
same "shards have the same weights" shards.device/model.safetensors shards.host/model.safetensors

n=$(key device.json moments_bytes)
m=$(key host.json moments_bytes)
check "moments are counted in host memory: $n" test "$(key host.json host_states_bytes)" = "$n"
# each of a 16th, in blocks of 64 elements
check "three chunks are in device memory: $m" test $((m - n * 3 / 16)) -ge 0 -a \
	$((m - n * 3 / 16)) -lt $((3 * 8 * 64))
check "the rest is the same" test $(($(key device.json total_bytes) - \
	$(key host.json total_bytes))) = $((n - m))
says "remainders, too" '"host_states_bytes": [1-9]' "$te_train" $fresh --states host \
	--masters bf16-remainder --estimate=1G --json
check "take 2 bytes a parameter" test $(($(key out host_states_bytes) - n)) = $((n / 4))
check "host memory" test $(($(key host.json host_bytes) - $(key device.json host_bytes))) = "$n"

says "--estimate counts a file" '"states_file_bytes": [1-9]' "$te_train" $fresh --states host \
	--states-file . --estimate=1G --json
check "a third of three chunks is in device memory" test $((3 * $(key out moments_bytes))) = $m
check "four chunks are in host memory" test $(key out host_states_bytes) -lt $((n / 2))
# moments and FP32 masters, twice, in units of 4 KiB
check "two records of all are in the file" test $(key out states_file_bytes) -ge $((3 * n))
for zero in 1 2 3; do
	check "parts, --zero $zero, a file for each" ranks 3 $fresh --moments bf16 --zero $zero \
		--states host --states-file . --out parts.$zero
	same "have the same weights" parts.device/model.safetensors parts.$zero/model.safetensors
done
check "parts in files go on with device memory" ranks 3 --resume parts.3 --states device --steps 8
check "parts in device memory, too" ranks 3 --resume parts.device --states device --steps 8
same "have the same weights" parts.device/model.safetensors parts.3/model.safetensors
check "masters and gradients in host memory, a file" "$te_train" $fresh --masters bf16 --states all \
	--gradients bf16 --recipe fp8-current --states-file . --out all.file
check "without" "$te_train" $fresh --masters bf16 --states all --gradients bf16 \
	--recipe fp8-current --out all.host
same "have the same weights" all.host/model.safetensors all.file/model.safetensors
fails "--states-file alone" "--states-file needs --states host" "$te_train" $fresh --states-file .
fails "--states-file with --tensor" "expected no --tensor" "$te_train" --model micro.json $common \
	--tensor 2 --states host --states-file .
"$te_train" $fresh --states host --states-file nowhere >out 2>err
check "no folder: exit status 1" test $? = 1
check "names the folder" grep -q '^te_train: --states-file: .*nowhere' err

# the memory of a run is what was estimated
for states in device host; do
	says "a run, --states $states" '"memory_bytes": [1-9]' "$te_train" $fresh \
		--states $states --json
	cp out $states.json
done
check "a run takes as much less" test $(($(key device.json memory_bytes) - \
	$(key host.json memory_bytes))) -ge $((n - m - 4096))

"$te_run" -n 2 "$te_train" --model untied.json $common --pipeline 2 --states host >out 2>err
check "--pipeline is refused" grep -q \
	'^te_train: --pipeline: --states other than device is not possible' err
tap_end
