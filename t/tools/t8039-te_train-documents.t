#!/bin/sh
# te_train --documents: a document's loss does not depend on others in its window, in each mode of
# training, and token files have the documents that a token tells.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

cat >model.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64,
 "eos_token_id": [10, 2], "bos_token_id": 46}
JSON
run="--batch 2 --recipe fp32 --eval-batches 0 --log-every 1 --lr 1e-2 --warmup 1 --eval-every 0"
model="$run --model model.json"

# losses ARGUMENT...: of the steps
losses()
{
	rm -f log
	"$te_train" "$@" --log log >out 2>err || explain "te_train $*"
	sed -n 's/^{\("step":[0-9]*,"[a-z]*_loss_nats":[-+.e0-9]*\),.*/\1/p' log
}

# 28 and 12 targets
echo '{"text": "The first document is short."}' >1.jsonl
echo '{"prompt": "Another one", "completion": " is longer."}' >2.jsonl
cat 1.jsonl 2.jsonl >both.jsonl
for mode in off end; do
	losses $model --documents=$mode --steps 60 --val both.jsonl --valid a=1.jsonl,b=2.jsonl text >got
	sed -n 's/.*"val_loss_nats":\([0-9.]*\),.*{"a":\([0-9.]*\),"b":\([0-9.]*\)}.*/\1 \2 \3/p' log \
		>$mode
done
check "two documents have the losses of each alone" \
	awk '{ d = $1 - (28 * $2 + 12 * $3) / 40 } END { exit !(NR == 1 && d < 1e-6 && d > -1e-6) }' end
check "but not without the option" \
	awk '{ d = $1 - (28 * $2 + 12 * $3) / 40 } END { exit !(NR == 1 && (d > 2e-5 || d < -2e-5)) }' off

sed -e '301,$d' -e 's/.*/{"text": "&"}/' text >docs.jsonl
docs="$model --documents --accum 2 --steps 4"
losses $docs docs.jsonl >want
check "training" test "$(grep -c train_loss want)" = 4
for how in --graph '--recompute block' '--offload all' '--graph --memory 1G'; do
	losses $docs $how docs.jsonl >got
	same "with $how" want got
done
rm -f log
"$te_run" -n 2 "$te_train" $docs --tensor 2 --log log docs.jsonl >out 2>err \
	</dev/null || explain "two ranks"
sed -n 's/.*"train_loss_nats":\([0-9.]*\),.*/\1/p' log >got
check "on ranks that divide the model" awk -F '[:,]' 'NR == FNR { a[FNR] = $1; n = FNR; next }
	{ d = a[FNR] - $4; bad += FNR <= n && (d > 1e-5 || d < -1e-5) }
	END { exit bad || n != 4 }' got want
losses $model --accum 2 --steps 4 docs.jsonl >got
check "it changes losses" sh -c '! cmp -s want got'
losses $docs --stop-after 2 --out a docs.jsonl >got
losses --resume a >>got
grep -v '^"step":2,"val' got >rest
same "a resumed run has the losses of an uninterrupted one" want rest
check "samples" "$te_train" --resume a --steps 5 --sample 4 --sample-first
check "of the model alone" "$te_train" --resume a --sample-only --sample 4
check "and by te_generate" "$(built tools/te_generate)" --model a --prompt A --max-tokens 4
losses --resume a --documents off --steps 6 >got
check "it can be left" grep -q '"step":6' got
for recipe in $recipes; do
	check "in $recipe" "$te_train" $docs --recipe $recipe docs.jsonl
done
check "values of a pass" "$te_train" $docs --eval-every 2 --numerics numerics docs.jsonl
check "a profile" "$te_train" $docs --profile docs.jsonl
check "an estimate" "$te_train" $docs --estimate
"$te_train" $docs --print-plan text >out 2>err
check "a plan has documents" grep -q documents out

# tokens of the same documents, which end with a newline; or begin with a full stop
sed '301,$d' text | od -An -v -tu1 -w1 | awk '{ printf "\\%03o\\0", $1 }' | xargs -0 printf >docs.u16
losses $docs docs.u16 >got
same "token files have documents that a token ends" want got
losses $docs --documents=begin docs.u16 >got
check "or begins" sh -c '! cmp -s want got && grep -q "\"step\":4" got'
sed 's/\[10, 2\]/null/; s/46/null/' model.json >plain.json
fails "if it is known" "docs.u16: documents in token files need the token that ends them, expected eos_token_id" \
	"$te_train" $run --model plain.json --documents docs.u16
fails "for both" "docs.u16: documents in token files need the token that begins them, expected bos_token_id" \
	"$te_train" $run --model plain.json --documents=begin --val docs.u16 docs.jsonl
check "text needs none" "$te_train" $run --model plain.json --documents --steps 1 text

fails "a table of positions" "the model has a table of positions" "$te_train" $micro --documents text
fails "parts of a model" "neither --graph layer nor" "$te_train" $docs --graph layer docs.jsonl
fails "and schedules" "neither --graph layer nor" "$te_train" $docs --graph --chunks 2 \
	--pipeline-schedule 1f1b docs.jsonl
fails "ranks with stages" "--documents is not possible" "$te_train" $docs --pipeline 2 docs.jsonl
fails "random tokens" "--random-tokens has no documents" "$te_train" $model --documents \
	--random-tokens
fails "another word" "--documents" "$te_train" $model --documents=middle text

tap_end
