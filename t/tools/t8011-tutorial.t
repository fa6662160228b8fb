#!/bin/sh
# The commands of te_tutorial(7) work in the order in which they stand there, shortened.
. "$abs_top_srcdir/t/lib/tap.sh"

unset CK_RUN_CASE
te_run=$(built tools/te_run) te_train=$(built tools/te_train/te_train)
PATH=${te_run%/*}:${te_train%/*}:$PATH
TE_BACKEND=host
export PATH TE_BACKEND
cd "$tmp" || exit 99

cat "$abs_top_srcdir"/man/te_[a-c]*.3 >text.txt
cat "$abs_top_srcdir"/man/te_[d-g]*.3 >other.txt
cp other.txt plays.txt

# a small model in place of the published one, with a tokenizer; without libtetoken there is none
mkdir small
echo '{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
 "intermediate_size": 16, "max_position_embeddings": 256, "vocab_size": 300}' >small/config.json
if [ -x "$(built tools/te_token)" ]; then
	te_token train --vocab 300 -o small/tokenizer.json other.txt >out 2>&1
	te_train --model small --out small --overwrite --steps 0 --random-tokens --seq-len 32 \
		--batch 1 >out 2>&1
	check "a model to begin with" te_export --model small SmolLM2-135M-Instruct.Q4_1.gguf
fi

awk -f "$abs_top_srcdir/t/lib/commands.awk" "$abs_top_srcdir/man/te_tutorial.7" >commands
check "the page has commands" test "$(wc -l <commands)" -ge 8
while read -r command; do
	case $command in
	zcat* | pip* | unzip*) continue ;; # text and model are given
	cp* | cc* | ./*) continue ;; # make installcheck runs these
	*SmolLM2* | *" plays "*)
		if [ ! -f SmolLM2-135M-Instruct.Q4_1.gguf ]; then
			skip "$command" "built without libtetoken"
			continue
		fi
		;;
	te_plot*)
		if ! command -v gnuplot >/dev/null; then
			skip "$command" "gnuplot is not found"
			continue
		fi
		;;
	esac
	short=$(echo "$command" | sed -e 's/--time-limit 120/--steps 4/' \
		-e 's/--steps 200/--steps 4/' -e 's/--stop-after 100/--stop-after 2/' \
		-e 's/--sample 300/--sample 5/')
	case $short in *"--sample"* | te_plot*) ;; te_train* | te_run*)
		short="$short --batch 2 --seq-len 32 --eval-batches 1 --log-every 1" ;;
	esac
	check "$command" sh -c "$short"
done <commands
check "a model was trained" test -s run/model.safetensors
check "and tuned" test -s tuned/model.safetensors

tap_end
