#!/bin/sh
# Training on JSON lines: losses of completions only, templates, and what is refused.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

run="--model plain.json --batch 2 --recipe fp32 --eval-batches 0 --log-every 1 --lr 1e-2 --warmup 1
	--eval-every 0"

# prompts that cannot be learned, with one completion
awk 'BEGIN {
	for (i = 1; i <= 100; i++) {
		x = (x * 1103 + 12345) % 1048576
		printf "{\"prompt\": \"%d\", \"completion\": \"yes\"}\n", x
	}
}' >pairs.jsonl
check "pairs" "$te_train" $run --steps 60 --json --out a pairs.jsonl
"$te_train" --resume a --steps 61 --json >out 2>err
check "the loss is of the completions" awk '/"val_loss_nats"/ { v = $2 + 0 } END { exit !(v < 0.8) }' out
check "the tokens are counted" grep -q 'tokens to train on' err
sed -e 's/{"prompt": \(.*\), "completion": \(.*\)}/[user \1}, assistant \2}]/' \
	-e 's/\[user /{"messages": [{"role": "user", "content": /' \
	-e 's/assistant /{"role": "assistant", "content": /' -e 's/$/}/' pairs.jsonl >chat.jsonl
for name in chatml llama3 mistral gemma phi3 zephyr; do
	check "messages, $name" "$te_train" $run --steps 2 --chat-template $name --out $name chat.jsonl
done
check "are resumed" "$te_train" --resume mistral --steps 3
fails "with their template" "tokens to train on" "$te_train" --resume mistral --steps 4 \
	--chat-template chatml
fails "or the end of a document" "has other tokens" "$te_train" --resume a --steps 70 --doc-end X
check "strings of a template" "$te_train" $run --steps 2 --chat-begin '<\n>' --chat-system 's: {}\n' \
	--chat-user 'u: {}\n' --chat-assistant 'a: {}\n' chat.jsonl
fails "need the content" '--chat-user: "u": expected one {}' "$te_train" $run --chat-user u chat.jsonl

head -n 3 pairs.jsonl >bad.jsonl
echo '{"question": "?"}' >>bad.jsonl
fails "other lines are named" 'bad.jsonl: line 4: has neither "text", "prompt" nor "messages"' \
	"$te_train" $run bad.jsonl
check "but may be text" "$te_train" $run --steps 1 --data-type text bad.jsonl
fails "other models need tokens" "the model's vocabulary of 50257 is not bytes" \
	"$te_train" --preset gpt2-124m pairs.jsonl
echo '{"prompt": "only a question", "completion": ""}' >empty.jsonl
fails "validation needs targets" "no token of the validation data is a target" \
	"$te_train" $run --doc-end '' --val empty.jsonl pairs.jsonl

# named sets, whose losses are those of --val
head -n 50 text >a.txt
head -n 10 chat.jsonl >b.jsonl
check "named sets" "$te_train" $run --steps 3 --eval-every 2 --val a.txt --valid a=a.txt,b-2=b.jsonl \
	--log valid.log --out v --dump-val dump text
check "have losses in the log" test "$(grep -c '"valid_loss_nats":{"a":[0-9.]*,"b-2":[0-9.]*}' \
	valid.log)" = 3
sed -n 's/.*"val_loss_nats":\([0-9.]*\),.*"valid_loss_nats":{"a":\([0-9.]*\),.*/\1 \2/p' valid.log |
	awk '$1 != $2 || !$1' >differ
empty "of their files" differ
(cd / && "$te_train" --resume "$tmp/v" --steps 4 --json) >out 2>err
check "also in a run that another folder resumes" grep -q '"valid_loss_nats": {' out
for set in =a.txt a= a 'a b=a.txt' a=a.txt,a=b.jsonl; do
	fails "not $set" "--valid: " "$te_train" $run --valid "$set" text
done
fails "files that do not exist are refused" "no-such-file: " "$te_train" $run --valid a=no-such-file text
fails "those that are read are kept" "would replace a file" "$te_train" $run --val a.txt \
	--valid b=b.jsonl --dump-val b.jsonl text
fails "random tokens have no files" "exclude each other" "$te_train" $run --random-tokens \
	--valid a=a.txt

tap_end
