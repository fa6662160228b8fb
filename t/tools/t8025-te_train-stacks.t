#!/bin/sh
# te_train and te_run where `ulimit -s` is small: threads of the library do not get that size.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# frames are larger
[ -z "$TT_SANITIZE" ] || skip_all "sanitizers need larger stacks"

cat >llama.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 32, "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
 "num_key_value_heads": 1, "rms_norm_eps": 1e-5}
JSON
for kib in 512 128; do
	for recipe in fp8-block fp8-delayed fp32; do
		check "$recipe trains with ulimit -s $kib" sh -c "ulimit -s $kib && exec \
			$te_train --model llama.json --recipe $recipe --batch 4 --steps 2 --warmup 1 \
			--eval-batches 1 text"
	done
	check "two ranks train with ulimit -s $kib" sh -c "ulimit -s $kib && exec \
		$te_run -n 2 $te_train --model micro.json --batch 4 \
		--steps 2 --warmup 1 --eval-batches 1 text"
done

tap_end
