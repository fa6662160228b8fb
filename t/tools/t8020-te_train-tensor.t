#!/bin/sh
# te_train with models that ranks divide: the initial weights of one rank, its losses but for
# rounding, alone and with several models, its samples, and checkpoints that any layout resumes.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# with dropout of all kinds, which keeps what it keeps on one rank
sed 's/"n_head": 2,/"n_head": 4, "tie_word_embeddings": false,/' micro.json >gpt2.json
# odd sizes: the last rank has padding of the vocabulary, and heads share keys and values
cat >llama.json <<'JSON'
{"model_type": "llama", "vocab_size": 259, "hidden_size": 48, "intermediate_size": 88,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "hidden_act": "silu", "tie_word_embeddings": true}
JSON
common="--batch 2 --warmup 2 --lr 1e-2 --eval-batches 2 --recipe fp32 --eval-every 4
	--save-every 0 --log-every 1"

# near NAME WANT GOT [FIRST LATER NORM]: the losses of two logs, and the norms of gradients, within
# these bounds: of the first loss, of later ones, and relative ones of norms.
#
# A sum over n ranks of sums of k/n products has another order than one of k: both are within k u of
# the exact one, relative to the sum of magnitudes, with u = 2^-24. k is at most 128 here. A token
# passes four such sums and the head, and each norm and softmax in between makes its input's
# relative error an absolute one of the same size: 5 * 128 u < 4e-5 for a logit, twice that for the
# loss of the first step. Later steps have trained on gradients with such errors. AdamW moves a
# weight by the learning rate even where its gradient is nothing but rounding, so these are held to
# a hundredth of what a step changes, and norms to a thousandth.
near()
{
	awk -F '[:,]' -v b1="${4:-8e-5}" -v b2="${5:-2e-3}" -v bn="${6:-1e-3}" '/^{"step":/ { x = $4; if (FNR == NR) {
		want[$2, $3] = x
		norm[$2, $3] = $8
	} else {
		n++
		d = x - want[$2, $3]
		bound = $2 <= 1 ? b1 : b2
		if (!(($2, $3) in want) || d > bound || -d > bound)
			print "step " $2 ": " x ", not " want[$2, $3]
		d = ($8 - norm[$2, $3]) / (norm[$2, $3] + 1e-30)
		if (d > bn || -d > bn)
			print "step " $2 ": " $7 " " $8 ", not " norm[$2, $3]
	} } END { if (n < 3) print "no losses" }' "$2" "$3" >why
	empty "$1" why
}

# begin MODEL DATA: its weights, and the losses that are wanted, of one rank
begin()
{
	run="--model $1.json $common"
	"$te_train" $run --accum 2 --steps 0 --out $1.init $2 >out 2>err
	check "$1: 2 ranks begin" ranks 2 $run --accum 2 --steps 0 --out $1.init2 --tensor 2 $2
	same "with the slices of one rank's weights" $1.init/model.safetensors \
		$1.init2/model.safetensors
	check "$1: one rank" "$te_train" $run --accum 2 --steps 6 --out $1.one --log $1.one.log $2
}

begin llama --random-tokens
check "2 ranks divide it" ranks 2 $run --accum 2 --steps 6 --log llama.2.log --stop-after 2 \
	--out llama.2 --tensor 2 --random-tokens
check "2 ranks divide its tokens" ranks 2 --resume llama.2 --log llama.2.log --stop-after 4 \
	--tensor 2 --sequence-parallel
check "one rank resumes" "$te_train" --resume llama.2 --log llama.2.log
near "the losses are those of one rank" llama.one.log llama.2.log

# caps, windows, and norms after attention and the MLP
sed 's/"num_attention_heads": 2/"num_attention_heads": 4/
	s/"num_key_value_heads": 1/"num_key_value_heads": 2/' \
	"$abs_top_srcdir/t/data/fam_gemma2.json" >gemma2.json
begin gemma2 --random-tokens
check "2 ranks divide it" ranks 2 $run --accum 2 --steps 6 --log gemma2.2.log --tensor 2 \
	--random-tokens
near "the losses are those of one rank" gemma2.one.log gemma2.2.log

begin gpt2 text
for mode in off layer $(fewer 0 step); do
	check "2 models of 2 ranks, --graph $mode" ranks 4 $run --steps 6 --out $mode \
		--log $mode.log --graph $mode --tensor 2 text
	near "the losses are those of one rank" gpt2.one.log $mode.log
	same "a graph changes no bit" off/model.safetensors $mode/model.safetensors
done
for mode in off $(fewer 0 layer); do # which the pipeline below has too
	check "--sequence-parallel, --graph $mode" ranks 4 $run --steps 6 --out tokens.$mode \
		--log tokens.$mode.log --graph $mode --tensor 2 --sequence-parallel text
	near "the losses are those of one rank" gpt2.one.log tokens.$mode.log
	same "a graph changes no bit" tokens.off/model.safetensors tokens.$mode/model.safetensors
done
check "in a pipeline" ranks 4 $run --steps 6 --out tokens.pipe --log pipe.log --graph layer \
	--pipeline-schedule interleaved --chunks 2 --tensor 2 --sequence-parallel text
near "the losses are those of one rank" gpt2.one.log pipe.log
check "2 models stop" ranks 4 $run --steps 6 --stop-after 3 --out a --tensor 2 text
cp -r a b
check "2 ranks with a model each resume" ranks 2 --resume a --log a.log
near "and have the losses of one" gpt2.one.log a.log
check "2 ranks with one model resume" ranks 2 --resume b --log b.log --tensor 2
near "and have the losses of one" gpt2.one.log b.log
check "one rank stops" "$te_train" $run --accum 2 --steps 6 --stop-after 3 --out c text
check "2 models resume" ranks 4 --resume c --log c.log --tensor 2
near "and have the losses of one" gpt2.one.log c.log
check "the log has their number" grep -q '"ranks":4,"shards":2' off.log

run="--model gpt2.json $common --steps 6"
check "4 ranks divide a model" ranks 4 $run --accum 2 --log 4.log --tensor 4 text
near "the losses are those of one rank" gpt2.one.log 4.log
check "and tokens, for which 2 sequences are too few" \
	ranks 4 $run --accum 2 --log tokens.4.log --tensor 4 --sequence-parallel text
near "the losses are those of one rank" gpt2.one.log tokens.4.log
check "one rank, frozen weights" "$te_train" $run --freeze 'embed,h.0.*' --log f1.log text
check "2 ranks" ranks 2 $run --freeze 'embed,h.0.*' --log f2.log --out f2 --tensor 2 --save-best text
near "have its losses" f1.log f2.log
check "the best weights are whole" "$te_train" $run --init f2/best --steps 0 text
check "and the checkpoint" "$te_train" --resume f2 --stop-after 0

# Scales are those of one rank but for rounding. A number whose code is another one because of that
# differs by an eighth, so the losses differ by what FP8 makes of a loss.
fp8="--model gpt2.json $common --recipe fp8-delayed --accum 2 --steps 6"
check "fp8-delayed, one rank" "$te_train" $fp8 --log fp8.one.log text
check "2 ranks" ranks 2 $fp8 --log fp8.log --out fp8 --tensor 2 text
near "have its losses" fp8.one.log fp8.log 1e-2 3e-2 0.1
check "2 ranks stop" ranks 2 $fp8 --stop-after 3 --log fp8.a.log --out fp8.a --tensor 2 text
cp -r fp8.a fp8.b
cp fp8.a.log fp8.b.log
check "and resume" ranks 2 --resume fp8.a --log fp8.a.log --tensor 2
same "with the scales they had" fp8/model.safetensors fp8.a/model.safetensors
check "one rank resumes" "$te_train" --resume fp8.b --log fp8.b.log
near "with these scales" fp8.log fp8.b.log 1e-2 3e-2 0.1
check "one rank stops" "$te_train" $fp8 --stop-after 3 --log fp8.c.log --out fp8.c text
cp -r fp8.c fp8.d
check "one rank saves again" "$te_train" --resume fp8.c --stop-after 3
check "2 ranks save what it saved" ranks 2 --resume fp8.d --stop-after 3 --tensor 2
same "scales and amaxes are kept" fp8.c/state.safetensors fp8.d/state.safetensors
check "2 ranks resume" ranks 2 --resume fp8.d --log fp8.c.log --tensor 2 --sequence-parallel
near "with the losses of one rank" fp8.one.log fp8.c.log 1e-2 3e-2 0.1

for how in "" --sequence-parallel; do
	"$te_train" --sample-only --init gpt2.one --sample 20 --prompt abc --temperature 0 >want 2>err
	check "2 ranks sample $how" ranks 2 --sample-only --init gpt2.one --sample 20 --prompt abc \
		--temperature 0 --tensor 2 $how
	same "as one does" want out
done
few="--steps 1 --sample 9 --sample-first --temperature 0"
"$te_train" $run --accum 2 $few text >want 2>err
check "4 ranks train and sample" ranks 4 $run $few --tensor 2 text
sed -i '/tokens\/s/d' want out
same "as one does, once" want out

cp -r c killed
last_dies 2 --resume killed --tensor 2 text

run="--model gpt2.json $common --steps 1"
fails "one rank has no model to divide" "--tensor 2: 1 rank cannot be divided" \
	"$te_train" $run --tensor 2 text
ranks 3 $run --tensor 2 text
check "3 ranks end with status 2" test $? = 2
check "neither have 3, as one of them says" \
	test "$(grep -c 'tensor 2: 3 ranks cannot be divided into models' err)" = 1
ranks 3 $run --tensor 3 text
check "heads are counted" grep -q 'tensor 3: the model has 4 heads' err
fails "tokens need ranks" "--sequence-parallel needs --tensor" \
	"$te_train" $run --sequence-parallel text
check "2 sequences of any length are divided" \
	ranks 2 $run --tensor 2 --sequence-parallel --seq-len 31 text
ranks 2 $run --tensor 2 --sequence-parallel --batch 1 --seq-len 31 text
check "sequences and tokens are counted" \
	grep -q '2 ranks can divide neither the 1 sequences of --batch nor the 31 tokens' err

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # of libpmix
export ASAN_OPTIONS
if timeout 60 mpirun -n 2 true >out 2>err; then
	check "mpirun" timeout 120 mpirun -n 4 "$te_train" --model gpt2.json $common --steps 6 \
		--tensor 2 --out mpi text
	same "has the same weights" off/model.safetensors mpi/model.safetensors
else
	skip "mpirun" "mpirun does not work: $(head -n 1 err)"
fi

tap_end
