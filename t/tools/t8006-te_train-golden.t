#!/bin/sh
# Checkpoints made by Python give the losses that Python computed from them (t/data/gen_hf.py).
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

echo "It was the best of times, it was the worst of times, it was the age of wisdom." >times

# loss DIR ARGUMENT...: of the text, from the weights in DIR
loss()
{
	dir=$1
	shift
	"$te_train" --init "$dir" --steps 0 --eval-batches 0 --val times --json "$@" times \
		2>err | sed -n 's/.*"val_loss_nats": \([0-9.]*\).*/\1/p'
}

while read -r family want; do
	mkdir "$family"
	cp "$abs_top_srcdir/t/data/hf_$family.json" "$family/config.json"
	cp "$abs_top_srcdir/t/data/hf_$family.safetensors" "$family/model.safetensors"
	# FP32: two layers of sums of at most 48 products, each rounded by 2^-24
	near "$family" "$want" "$(loss "$family" --recipe fp32)" 1e-5
	near "$family written and read again" "$want" \
		"$(loss "$family" --recipe fp32 --out "$family-2" >x; loss "$family-2" --recipe fp32)" 1e-5
	# BF16 keeps 8 bits, so some 2^-9 of losses of about 6 a layer
	near "$family in bf16" "$want" "$(loss "$family" --recipe bf16)" 0.05
done <<'EOT'
gpt2 5.434913771552478
llama 5.786211036547913
qwen2 5.915194043906658
EOT

sed 's/"rope_theta": 100.0/"rope_theta": 50.0/' llama/config.json >changed
mv changed llama/config.json
got=$(loss llama --recipe fp32)
check "another base of the rotations gives another loss: $got" awk -v b="$got" \
	'BEGIN { d = b - 5.786211036547913; exit !(d > 1e-3 || d < -1e-3) }'

tap_end
