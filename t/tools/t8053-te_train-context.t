#!/bin/sh
# te_train --context: ranks that divide the tokens of each sequence have the losses of one rank, in
# each mode, with models that divide micro-batches, too; and checkpoints that any layout resumes.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# 4 ranks share heads of keys and values
cat >llama.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 48, "intermediate_size": 88,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "hidden_act": "silu", "tie_word_embeddings": true}
JSON
common="--batch 2 --warmup 2 --lr 1e-2 --eval-batches 2 --recipe fp32 --eval-every 4
	--save-every 0 --log-every 1 --steps 6"

# like NAME WANT GOT [FIRST LATER]: the losses of two logs, which may differ by FIRST before any
# weight has changed, and by LATER from then on.
#
# The first losses have the same bits in FP32: a row of a GEMM does not depend on other rows, and
# attention and the loss have the bits of one rank. Gradients of weights are sums over tokens in
# another order: sums of at most 128 products that are within 128 u of the exact one, relative to
# the sum of magnitudes, with u = 2^-24. AdamW moves a weight by the learning rate even where its
# gradient is nothing but rounding, so later losses are held to a hundredth of what a step changes.
like()
{
	steps_losses "$2" >want
	steps_losses "$3" | paste -d ' ' want - | awk -v b1="${4:-0}" -v b2="${5:-2e-3}" '
	function far(d, bound)
	{
		return d > bound || -d > bound
	}
	$1 != $3 || NF != 4 || far($2 - $4, $1 == 1 ? b1 : b2) { print }
	END { if (NR != 6) print NR " losses" }' >why
	empty "$1" why
}

# the first validation, before any weight has changed
first()
{
	sed -n 's/^{"step":0,"val_loss_nats":\([^,]*\),.*/\1/p' "$1"
}

# begin NAME ARGUMENT...: one rank
begin()
{
	name=$1
	shift
	rm -f "$name.log" # logs are appended to
	check "$name: one rank" "$te_train" $common --accum 2 --log "$name.log" "$@"
	first "$name.log" >$name.first
}

# go NAME N ARGUMENT...: N ranks with the losses of one; accum is 2 over all models
go()
{
	name=$1 n=$2
	shift 2
	check "$name: $n ranks: $*" ranks "$n" $common --log got.log "$@"
	first got.log >got.first
	same "have its first validation" $name.first got.first
	like "and its losses" $name.log got.log
	mv got.log $name.$n.log
}

begin llama --model llama.json --dropout 0.2 --random-tokens --out one
for n in 2 4; do
	go llama $n --model llama.json --accum 2 --dropout 0.2 --random-tokens --context $n --out $n
done
check "the log has their number" grep -q '"ranks":4,"shards":1,"context":4' llama.4.log
for graph in step layer; do
	go llama 4 --model llama.json --dropout 0.2 --random-tokens --context 2 --out $graph \
		--graph $graph --zero $([ $graph = step ] && echo 1 || echo 0)
done
same "a graph and parts of moments change no bit" step/model.safetensors layer/model.safetensors

# windows, caps and norms of all kinds
sed 's/"num_attention_heads": 2/"num_attention_heads": 4/
	s/"num_key_value_heads": 1/"num_key_value_heads": 2/' \
	"$abs_top_srcdir/t/data/fam_gemma2.json" >gemma2.json
begin gemma2 --model gemma2.json --random-tokens
go gemma2 2 --model gemma2.json --accum 2 --random-tokens --context 2

# packed documents, tokens without a target, and windows that end with padding
sed -e '301,$d' -e 's/\(....\)\(.*\)/{"prompt": "\1", "completion": "\2"}/' text >docs.jsonl
for how in "--documents=end" "--documents=end --order documents"; do
	begin docs --model llama.json $how docs.jsonl
	go docs 4 --model llama.json $how --context 2 docs.jsonl
done

# FP8 scales come from the maxima of all ranks
fp8="--model llama.json --random-tokens --recipe fp8-delayed"
begin fp8 $fp8
check "fp8-delayed, 2 ranks" ranks 2 $common $fp8 --accum 2 --context 2 --log fp8.2.log
like "have the losses of one but for rounding" fp8.log fp8.2.log 1e-2 3e-2

# layouts go on from each other's checkpoints
run="--model llama.json --dropout 0.2 --random-tokens"
check "2 ranks stop" ranks 2 $common $run --accum 2 --context 2 --stop-after 3 --out a --log a.log
cp -r a b
cp a.log b.log
check "one rank resumes" "$te_train" --resume a --log a.log
like "with its losses" llama.log a.log
check "2 models of 2 ranks resume" ranks 4 --resume b --context 2 --log b.log
like "with these losses" llama.log b.log
check "one rank stops" "$te_train" $common $run --accum 2 --stop-after 3 --out c --log c.log
cp -r c killed
check "4 ranks resume" ranks 4 --resume c --context 4 --log c.log
like "with the losses of one" llama.log c.log
last_dies 2 --resume killed --context 2 --random-tokens

run="--model llama.json $common"
# what memory is for, and where time goes
"$te_train" $run --estimate=40M --json >one.json
check "--estimate" ranks 2 $run --context 2 --estimate=40M --json
for name in activations_bytes longest_context seq_len; do
	echo "$name $(key one.json $name) $(key out $name)"
done >sizes
check "is of whole sequences, and a half of the activations" awk '
	/act/ && $3 > 0.6 * $2 || /longest/ && $3 < 1.7 * $2 || /seq_len/ && $3 != $2 { exit 1 }
	END { exit NR != 3 || $2 != 32 }' sizes
check "--profile" ranks 2 $run --context 2 --profile=text text
check "has the tokens of a rank" grep -q '^profile: x \[2,16\] int32' out
check "--print-plan" ranks 2 $run --context 2 --print-plan=text
check "has its tokens" grep -q '^plan: x \[2,16\] int32' out
go llama 2 --model llama.json --accum 2 --dropout 0.2 --random-tokens --context 2 --memory 64M \
	--out limited --numerics values
check "--numerics has values of exchanges" grep -q '"value":"h.1.to_heads' values
check "--memory chooses" grep -q '^chosen: --recompute off --loss-chunk 0 ' out
same "the same weights" 2/model.safetensors limited/model.safetensors

while IFS='|' read -r args name; do
	fails "$name is refused" "--context: $name is not possible with it" \
		"$te_train" $run --context 2 $args text
done <<'LIST'
--tensor 2|--tensor
--pipeline 2|--pipeline
--loss-chunk 16|--loss-chunk
--sample 1|--sample
--eval-choices x|--eval-choices
LIST
fails "--lora is refused" "--context: --lora is not possible with it" \
	"$te_train" $common --init one --lora rank=2 --context 2 text
fails "a table of positions" "--context: the model has a table of positions" \
	"$te_train" --model micro.json $common --context 2 text
fails "one rank" "--context 2: 1 rank cannot be divided" "$te_train" $run --context 2 text
ranks 2 $run --seq-len 31 --context 2 text
check "tokens are counted" grep -q 'context: 2 ranks cannot divide the 31 tokens of --seq-len' err
ranks 3 $run --seq-len 30 --context 3 text
check "heads are counted" grep -q 'h.0.to_heads: 3 ranks cannot divide 4 heads' err

tap_end
