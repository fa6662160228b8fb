#!/bin/sh
# te_train with ranks that have layers of a model: every schedule gives the losses and the weights
# of one rank, bit for bit, and so do checkpoints that other layouts resume; what it refuses; a rank
# that is killed.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# stages of unequal numbers of layers, with dropout of all kinds
sed 's/"n_layer": 2,/"n_layer": 5, "tie_word_embeddings": false,/' micro.json >gpt2.json
# a message of 128 KiB is longer than te_comm_send() has room for
cat >llama.json <<'JSON'
{"model_type": "llama", "vocab_size": 259, "hidden_size": 256, "intermediate_size": 88,
 "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "hidden_act": "silu", "tie_word_embeddings": false}
JSON
common="--batch 2 --warmup 2 --lr 1e-2 --eval-batches 2 --eval-every 4 --save-every 0 --log-every 1"

# equal NAME DIR: a run's losses and weights are those of the run in one
equal()
{
	losses one.log >want
	losses "$2.log" >got
	same "$1: the losses of one rank" want got
	same "and its weights" one/model.safetensors "$2/model.safetensors"
}

run="--model gpt2.json $common --accum 5 --eval-every 2 --steps 3"
check "one rank" "$te_train" $run --out one --log one.log text
losses one.log >want
check "there are losses" test "$(wc -l <want)" -ge 5
fewer 3 "4 gpipe 0" "4 1f1b 0" "2 zero-bubble 2" "2 gpipe 0" "3 1f1b 1" "2 interleaved 2" \
	"4 zero-bubble 0" >schedules
while read -r n schedule chunks; do
	check "$n ranks, $schedule, $chunks" ranks "$n" $run --pipeline "$n" --chunks "$chunks" \
		--pipeline-schedule "$schedule" --out "$n.$schedule" --log "$n.$schedule.log" text
	equal "$n ranks, $schedule, $chunks" "$n.$schedule"
done <schedules
check "2 ranks, --graph step" ranks 2 $run --pipeline 2 --pipeline-schedule interleaved --chunks 2 \
	--graph step --out step --log step.log --json text
equal "--graph step" step
check "waits are predicted" \
	grep -q '^in the last step ranks waited [0-9.]*% of the time, [0-9.]*% by prediction' err
check "also in JSON" grep -q '"predicted_bubble": 0[.][0-9]' out
check "the log has the stages" \
	grep -q '"shards":1.*"schedule":"1f1b","stages":4,"chunks":1' 4.1f1b.log
check "and chunks" grep -q '"schedule":"zero-bubble","stages":2,"chunks":2' 2.zero-bubble.log
check "2 ranks with one micro-batch" ranks 2 $run --accum 1 --pipeline 2 --out few --log few.log text
rm -rf one one.log
check "one rank" "$te_train" $run --accum 1 --out one --log one.log text
equal "fewer micro-batches than stages" few

# with FP32 a value is as long in half of the tokens
for recipe in $(fewer 1 fp8-current fp32); do
	len=128
	[ $recipe != fp32 ] || len=64
	run="--model llama.json $common --accum 3 --steps 2 --recipe $recipe --random-tokens"
	run="$run --seq-len $len"
	rm -rf one one.log
	check "$recipe: one rank" "$te_train" $run --out one --log one.log
	check "3 ranks" ranks 3 $run --pipeline 3 --out "$recipe" --log "$recipe.log"
	equal "$recipe" "$recipe"
	check "3 ranks, zero-bubble" ranks 3 $run --pipeline 3 --pipeline-schedule zero-bubble \
		--graph step --out "$recipe.zb" --log "$recipe.zb.log"
	equal "$recipe" "$recipe.zb"
done

run="--model gpt2.json $common --accum 4 --steps 6"
rm -rf one one.log
check "one rank" "$te_train" $run --pipeline-schedule '' --out one --log one.log text
check "3 ranks stop" ranks 3 $run --pipeline 3 --stop-after 2 --out a --log a.log text
check "2 ranks resume" ranks 2 --resume a --pipeline 2 --pipeline-schedule interleaved --chunks 2 \
	--stop-after 3 --log a.log
check "with another schedule, in which the chunks are not kept" \
	ranks 2 --resume a --pipeline 2 --pipeline-schedule gpipe --stop-after 4 --log a.log
check "4 ranks resume" ranks 4 --resume a --pipeline 4 --pipeline-schedule zero-bubble \
	--stop-after 5 --log a.log
check "one rank resumes" "$te_train" --resume a --pipeline-schedule '' --log a.log
equal "resumed" a
same "all of the state" one/state.safetensors a/state.safetensors
rm -rf one one.log
check "2 ranks with whole models" ranks 2 $run --accum 2 --out one --log one.log text
while read -r mode schedule chunks; do
	check "2 pipelines, $schedule, --graph $mode" ranks 4 $run --accum 2 --pipeline 2 \
		--graph "$mode" --pipeline-schedule "$schedule" --chunks "$chunks" \
		--out "d.$mode" --log "d.$mode.log" text
	equal "2 pipelines" "d.$mode"
done <<'LIST'
off interleaved 2
step zero-bubble 2
LIST
rm -rf one one.log
check "2 ranks that divide the weights" ranks 2 $run --pipeline-schedule '' --tensor 2 --out one \
	--log one.log text
check "2 stages of 2 ranks stop" ranks 4 $run --tensor 2 --pipeline 2 \
	--pipeline-schedule interleaved --chunks 2 --stop-after 2 --out t --log t.log text
check "and go on" ranks 4 --resume t --tensor 2 --pipeline 2 --pipeline-schedule zero-bubble \
	--graph step --stop-after 4 --log t.log
check "as 2 ranks without stages" ranks 2 --resume t --tensor 2 --pipeline-schedule '' \
	--graph off --log t.log
equal "divided stages" t
same "and their state" one/state.safetensors t/state.safetensors
rm -rf one one.log
check "4 ranks, 2 models of 2" ranks 4 $run --accum 2 --steps 2 --pipeline-schedule '' --tensor 2 \
	--out one --log one.log text
check "8 ranks, 2 models of 2 stages of 2" ranks 8 $run --accum 2 --steps 2 --tensor 2 --pipeline 2 \
	--pipeline-schedule zero-bubble --graph step --out all --log all.log text
equal "8 ranks" all
run="$run --freeze h.0.*,head --save-best"
rm -rf one one.log
check "frozen weights, one rank" "$te_train" $run --out one --log one.log text
check "2 ranks" ranks 2 $run --pipeline 2 --pipeline-schedule zero-bubble --out f --log f.log text
equal "frozen weights" f
same "and the best weights" one/best/model.safetensors f/best/model.safetensors

last_dies 3 --resume a --pipeline 3 text
check "and is named" grep -q 'rank 2' err

run="--model gpt2.json $common --steps 1"
while IFS='|' read -r option name; do
	fails "$name" "--pipeline: $name is not possible with it" "$te_train" $run --pipeline 2 \
		$option text
done <<'LIST'
--tensor 2 --sequence-parallel|--sequence-parallel
--graph layer|--graph layer
--numerics values|--numerics
--offload all|--offload
--memory 1G|--memory
--recompute norm|--recompute
--masters bf16|--masters other than fp32
--moments fp8|--moments other than fp32
--recipe fp8-delayed|--recipe fp8-delayed
--head-recipe fp8-delayed|--head-recipe fp8-delayed
--recover 1|--recover
--sample 1|--sample
--estimate|--estimate
--print-plan|--print-plan
--profile|--profile
LIST
fails "other schedules" "--pipeline-schedule gpipe|1f1b|interleaved|zero-bubble, not 1,-1" \
	"$te_train" $run --pipeline 2 --pipeline-schedule 1,-1 text
fails "chunks of others" "--pipeline-schedule 1f1b is for --chunks 1" \
	"$te_train" $run --pipeline 2 --chunks 2 text
fails "no chunks" "interleaved needs --chunks 2 or more" \
	"$te_train" $run --pipeline 2 --pipeline-schedule interleaved text
fails "more chunks than layers" "--pipeline 2 --chunks 3: the model has 5 layers" \
	"$te_train" $run --pipeline 2 --pipeline-schedule interleaved --chunks 3 text
fails "tied weights" "expected an untied model" "$te_train" --model micro.json $common --pipeline 2 text
fails "more ranks than layers" "--pipeline 6: the model has 5 layers" \
	"$te_train" $run --pipeline 6 text
fails "one rank" "--pipeline 2: 1 rank cannot be divided" "$te_train" $run --pipeline 2 text

tap_end
