#!/bin/sh
# te_train --graph and --pipeline-schedule: every mode and order gives the bits of eager steps.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# three layers, so that two chunks differ in size; no tied weights, so that no two chunks add to the
# same gradient
sed 's/"n_layer": 2/"n_layer": 3, "tie_word_embeddings": false/' micro.json >deep.json
deep="--model deep.json --batch 2 --warmup 1 --lr 1e-2 --eval-every 2 --eval-batches 1 --accum 3 \
	--save-every 0 --steps 4"

# train NAME DIR ARGUMENT...: logs to DIR
train()
{
	name=$1 dir=$2
	shift 2
	check "$name" "$te_train" $deep --out "$dir" --log "$dir.jsonl" "$@" text
}

# equal NAME A B
equal()
{
	{
		cmp "$2/model.safetensors" "$3/model.safetensors" 2>&1
		[ -s "$2/model.safetensors" ] || echo "$2 has none"
	} >differ
	empty "$1" differ
}

# counts NAME DIR KEY VALUE: KEY of the object "graph" in the log's first line is VALUE
counts()
{
	head -n 1 "$2.jsonl" >first
	check "$1: $3 is $4" grep -q "\"graph\":{[^}]*\"$3\":$4[,}]" first
}

own=1,2,1,2,-2,-1,1,2,-2,-1,-2,-1
for r in $recipes; do
	d="--recipe $r --dropout 0"
	train "$r: off" off-$r $d --graph off
	train "$r: step" step-$r $d --graph step
	equal "$r: step is off" off-$r step-$r
	train "$r: layer" layer-$r $d --graph layer
	equal "$r: layer is off" off-$r layer-$r
	train "$r: a user-defined order" own-$r $d --graph step --pipeline-schedule $own
	equal "$r: which is off" off-$r own-$r
	train "$r: zero-bubble" zb-$r $d --graph layer --pipeline-schedule zero-bubble --chunks 2
	equal "$r: which is off" off-$r zb-$r
done
for s in $(fewer 2 interleaved 1,-1,-1.5,1,-1,-1.5,1,-1,-1.5 gpipe 1f1b); do
	train "$s of 3 chunks, or its own" s --recipe bf16 --dropout 0 --graph step \
		--pipeline-schedule $s --chunks "$(case $s in *,*) echo 0 ;; *) echo 3 ;; esac)"
	equal "is off" off-bf16 s
	rm -r s
done

# what dropout keeps depends on neither the mode, the division into parts nor the order
train "dropout: off" d-off
train "dropout: --graph alone is step" d-step --graph
equal "dropout: step is off" d-off d-step
counts "--graph alone" d-step mode '"step"'
train "dropout: layer" d-layer --graph=layer
equal "dropout: layer is off" d-off d-layer
train "dropout: pass" d-pass --graph=pass
equal "dropout: pass is off" d-off d-pass
if [ -z "$tsan" ]; then # the threads are those of the runs above
	train "dropout: step of the same parts" d-parts --graph step --pipeline-schedule 1f1b --chunks 1
	equal "dropout: is off" d-off d-parts
	train "dropout: zero-bubble, layer" d-zb --graph layer --pipeline-schedule zero-bubble \
		--chunks 3
	equal "dropout: is off" d-off d-zb
	train "dropout: zero-bubble, step" d-zbs --graph step --pipeline-schedule zero-bubble \
		--chunks 3
	equal "dropout: is off" d-off d-zbs

	# a run can be resumed with the same mode and order, or with others
	train "half" half --graph layer --pipeline-schedule $own --stop-after 2
	check "and half" "$te_train" --resume half --log half.jsonl
	train "is the whole" whole --graph layer --pipeline-schedule $own
	equal "in every bit" whole half
	check "with the same order" test "$(grep -c "\"schedule\":\"$own\"" half.jsonl)" = 2
	train "half, no dropout" other --recipe bf16 --dropout 0 --graph layer --stop-after 2
	check "and half in another mode" "$te_train" --resume other --graph off
	equal "is off" off-bf16 other
	check "an empty order takes it back" "$te_train" --resume half --steps 5 --graph off \
		--pipeline-schedule ''
fi

counts "off" off-bf16 mode '"off"'
counts "off" off-bf16 parts 1
counts "off" off-bf16 launches_per_step 0
counts "step" step-bf16 launches_per_step 1
counts "step" step-bf16 nodes '[1-9][0-9]*'
counts "pass" d-pass parts 1
counts "pass" d-pass launches_per_step 6
counts "layer" layer-bf16 parts 4
counts "layer" layer-bf16 schedule '"1f1b"'
counts "layer" layer-bf16 launches_per_step 24
counts "own" own-bf16 chunks 2
counts "own" own-bf16 schedule "\"$own\""
counts "own" own-bf16 launches_per_step 1
counts "zero-bubble" zb-bf16 passes 36

# one micro-batch at a time needs less memory than all of them
pool()
{
	sed -n '1s/.*"pool_bytes":\([0-9]*\).*/\1/p' "$1.jsonl"
}
train "gpipe" gpipe --graph step --pipeline-schedule gpipe --chunks 1
check "without a schedule micro-batches share their memory: $(pool d-layer), $(pool gpipe)" \
	test "$(pool d-layer)" -lt $(($(pool gpipe) / 2))
check "prints the plans of all parts" sh -c "'$te_train' $deep --graph layer --print-plan dot \
	--recipe bf16 | grep -c digraph | grep -qx 4"

# SUBJECT|ARGUMENTS
while [ -z "$tsan" ] && IFS='|' read -r subject args; do
	eval "fails \"$args\" '$subject' \"\$te_train\" $deep $args text"
done <<'EOT'
--graph: "whole"|--graph=whole
off|--graph=
--pipeline-schedule needs --graph step, pass or layer|--pipeline-schedule 1f1b
--pipeline-schedule needs --graph step, pass or layer|--pipeline-schedule 1f1b --graph off
--chunks needs --pipeline-schedule|--graph step --chunks 2
number of chunks|--graph step --pipeline-schedule 1f1b
4 chunks, but the model has 3 layers|--graph step --pipeline-schedule gpipe --chunks 4
5 chunks, but the model has 3 layers|--graph step --pipeline-schedule 1,2,3,4,5,-5,-4,-3,-2,-1 --accum 1
"2f2b"|--graph step --pipeline-schedule 2f2b --chunks 2
entry 2 (-2)|--graph layer --pipeline-schedule 1,-2,2,-1 --accum 1
micro-batch|--graph layer --pipeline-schedule 1,2,-2,-1
does not fit|--graph layer --batch 1048576
EOT

# a run that moves values to host memory has the same bits, and less memory
tiny="--preset tiny --batch 1 --seq-len 64 --steps 2 --eval-every 0 --eval-batches 1 --save-every 0 --dropout 0.1"
for m in off all auto $(fewer 0 1M); do
	check "--offload $m" env TE_DEVICE_MEM_LIMIT=$(test $m = auto && echo 15M || echo 1G) \
		"$te_train" $tiny --offload $m --out move-$m --log move-$m.jsonl text
	equal "has the bits of off" move-off move-$m
done
check "--offload all, layers" "$te_train" $tiny --offload all --graph layer --out move-layer text
equal "has the bits of off" move-off move-layer
check "--offload all, a graph" "$te_train" $tiny --offload all --graph --out move-step text
equal "has the bits of off" move-off move-step
check "--offload-file" "$te_train" $tiny --offload all --offload-file .:64M --offload-pinned 16M \
	--out move-file --log move-file.jsonl --log-every 1 text
check "what passed through the file is logged" \
	grep -q '"offload_read_bytes":[1-9][0-9]*' move-file.jsonl
equal "has the bits of off" move-off move-file
for s in auto calls; do
	check "--offload-file, a graph that signals by $s" env TE_OFFLOAD_SIGNAL=$s "$te_train" $tiny \
		--graph --offload all --offload-file .:64M --offload-pinned 16M --out words-$s \
		--log words-$s.jsonl --log-every 1 text
	check "reads the file" grep -q '"offload_read_bytes":[1-9][0-9]*' words-$s.jsonl
	equal "has the bits of off" move-off words-$s
done
# other bytes in the file, while the run goes on
"$te_train" $tiny --steps 1000 --offload all --offload-file .:64M text >out 2>err &
pid=$!
while kill -0 $pid 2>/dev/null; do
	for fd in /proc/$pid/fd/*; do
		case $(readlink "$fd") in
		*/#*) dd if=/dev/zero of="$fd" bs=1M count=64 conv=notrunc,nocreat ;;
		esac
	done >/dev/null 2>&1
done
wait $pid
check "a file that returns other bytes ends the run" test $? = 2
check "and is named" grep -q 'offload: read of group .* of the file in .*: .*damaged' err
fails "--offload-file alone" "needs --offload" "$te_train" $tiny --offload-file . text
file="--offload all --offload-file"
fails "a folder that is not there is named" 'file in ./nowhere' "$te_train" $tiny $file ./nowhere text
fails "a file of one byte" '"1": expected a size from 4096' "$te_train" $tiny $file .:1 text
(ulimit -f 1000 && exec "$te_train" $tiny $file . text >out 2>err)
check "a disk that is full: exit status 2" test $? = 2
check "the message names the size" grep -q 'cannot reserve 8589934592 bytes: .*DIR:SIZE' err
counts "--offload all" move-all 'moved_bytes' '[1-9][0-9]*'
counts "--offload auto" move-auto 'moved_bytes' '[1-9][0-9]*'
fails "and does not fit without" "15.00 MiB are free" env TE_DEVICE_MEM_LIMIT=15M "$te_train" $tiny text

# so has one that computes values again; the thread is that of other steps, but for copies
n=4
[ -z "$tsan" ] || n=1
fewer $n 'h.1.*,act --offload all' 'norm,act --graph' 'block --graph layer' '*' norm,act \
	'norm,act --graph layer' block 'block --graph' 'attention,h.*.up' >sets
while read -r m; do
	set -f
	check "--recompute $m" "$te_train" $tiny --recompute $m --out again --log again.jsonl text
	set +f
	counts "and tells how much" again 'recomputed_bytes' '[1-9][0-9]*'
	rm -f again.jsonl
	equal "has the bits of off" move-off again
	rm -rf again
done <sets
[ -z "$tsan" ] || tap_end # what follows has one thread

"$te_train" $tiny --estimate --json --recompute norm,act >out 2>err
check "--estimate has the memory with and without" test \
	"$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' out)" -lt \
	"$(sed -n 's/.*"total_keeping_bytes": \([0-9]*\).*/\1/p' out)"
"$te_train" $tiny --estimate --json >out 2>err
check "and one without nothing to compute again" sh -c '! grep -q total_keeping out'
"$te_train" $tiny --estimate --json --recompute block >block 2>err
check "blocks take less" test \
	"$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' block)" -lt \
	"$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' out)"
fails "--recompute attn" "no operation of this name" "$te_train" $tiny --recompute attn text
fails "--recompute norm," '""' "$te_train" $tiny --recompute norm, text

fails "--offload-pinned some" "not a size" "$te_train" $tiny --offload all --offload-pinned some text
fails "--offload some" "not a size" "$te_train" $tiny --offload some text
fails "--offload ''" "expected off" "$te_train" $tiny --offload '' text

tap_end
