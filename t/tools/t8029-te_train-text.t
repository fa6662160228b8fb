#!/bin/sh
# Training on text and JSON lines by a tokenizer: its tokens are the ones of a token file, its files
# are saved, and samples are text.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

te_token=$(built tools/te_token)
te_generate=$(built tools/te_generate)
config='"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
 "intermediate_size": 16, "max_position_embeddings": 16'
mkdir model tiny
echo "{$config, \"vocab_size\": 384, \"eos_token_id\": 320, \"bos_token_id\": 320}" \
	>model/config.json
echo "{$config, \"vocab_size\": 256}" >tiny/config.json
head -n 100 text >small
run="--batch 2 --recipe fp32 --eval-batches 0 --log-every 1 --lr 1e-2 --warmup 1 --eval-every 0"

if [ ! -x "$te_token" ]; then
	fails "without libtetoken" "was built without libtetoken" "$te_train" --model model $run \
		--steps 1 --tokenizer small small
	echo '{}' >model/tokenizer.json
	fails "text has no tokens" "is not bytes: give a --tokenizer" "$te_train" --model model \
		$run --steps 1 small
	tap_end
	exit
fi

"$te_token" train --vocab 320 -o plain.json small
"$te_token" train --vocab 300 -o few.json small
sed 's/"added_tokens": \[\]/"added_tokens": [{"id": 320, "content": "<|endoftext|>", '\
'"special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}]/' \
	plain.json >end.json
printf '<|endoftext|>' | "$te_token" encode -t end.json >ids
check "a tokenizer with an end token" grep -qx 320 ids

# losses ARGUMENT...: of the steps
losses()
{
	rm -f log
	"$te_train" $run --log log "$@" >out 2>err || explain "te_train $*"
	sed -n 's/^{\("step":[0-9]*,"[a-z]*_loss_nats":[-+.e0-9]*\),.*/\1/p' log
}

{ "$te_token" encode -b -t end.json small; printf '\100\1\0\0'; } >tokens.u32
losses --model model/config.json --steps 3 tokens.u32 >want
check "losses of a token file" test "$(wc -l <want)" -ge 3
losses --model model/config.json --steps 3 --tokenizer end.json --out a small >got
same "are the ones of its text" want got
mkdir sp
cp model/config.json "$abs_top_srcdir/t/data/sp_bpe.model" sp/
mv sp/sp_bpe.model sp/tokenizer.model
{ "$te_token" encode -b -t sp small; printf '\2\0\0\0'; } >sp.u32
losses --model model/config.json --steps 3 sp.u32 >want.sp
losses --model sp/config.json --steps 3 --tokenizer sp --out sp.out small >got
same "a model of SentencePiece in a folder" want.sp got
check "it is saved" cmp sp/tokenizer.model sp.out/tokenizer.model
"$te_generate" --model sp.out --prompt "the cat" --max-tokens 4 >out 2>err
check "te_generate takes it: $(tail -n 1 err)" grep -q "^the cat" out
gzip -c small >small.gz
losses --model model/config.json --steps 3 --tokenizer end.json small.gz >got
same "and of compressed text" want got
check "the tokenizer is saved" cmp end.json a/tokenizer.json
losses --model model/config.json --steps 5 --stop-after 3 --tokenizer end.json --out c small >out
losses --resume c --steps 5 >got
losses --model model/config.json --steps 5 tokens.u32 >out
grep -E '"step":[45],' out >want
grep -E '"step":[45],' got >got.end
same "a resumed run has the losses of an uninterrupted one" want got.end
fails "and refuses other tokens" "tokens to train on" "$te_train" --resume a --steps 9 \
	--tokenizer few.json

# the tokenizer of the model's folder
cp end.json model/tokenizer.json
losses --model model --steps 3 --out d small >got
losses --model model/config.json --steps 3 tokens.u32 >want
same "the folder's tokenizer is used" want got
check "is saved with the model" cmp end.json d/tokenizer.json
check "and used from there" "$te_train" $run --init d --steps 1 small
check "a resumed run finds it" "$te_train" --resume d --steps 4
"$te_train" --resume d --sample-only --sample 20 --prompt "The way" --temperature 0 >sample 2>err
check "a sample is text" grep -q '^The way' sample
printf 'The way' | "$te_token" encode -t end.json | tr -s ' \n' ',,' | sed 's/,$//' >ids
"$te_train" --resume d --sample-only --sample 20 --prompt-tokens "$(cat ids)" --temperature 0 \
	>got 2>err
same "of the prompt's tokens" sample got
check "without a prompt" "$te_train" --resume d --sample-only --sample 5
check "bytes remain bytes" "$te_train" --model tiny $run --steps 1 small
echo '{"odd": 1}' >tiny/tokenizer.json
check "whatever their folder has" "$te_train" --model tiny $run --steps 1 small
cp tiny/tokenizer.json model/tokenizer.json
check "token files need none" "$te_train" --model model $run --steps 1 tokens.u32
fails "text does" "is not bytes: give a --tokenizer" "$te_train" --model model $run --steps 1 small
fails "a file of another kind" "model/tokenizer.json" "$te_train" --model model $run \
	--tokenizer model/tokenizer.json --steps 1 small
"$te_token" train --vocab 400 -o large.json small
fails "a tokenizer beyond the vocabulary" "the tokenizer has 400 tokens, more than the model" \
	"$te_train" --model model $run --tokenizer large.json --steps 1 small
fails "or beyond bytes" "more than the model's vocabulary of 256" \
	"$te_train" --model tiny $run --tokenizer end.json --steps 1 small

# JSON lines: each document as a token file
rm model/tokenizer.json
: >docs.u32
: >docs.jsonl
head -n 40 small | while read -r line; do
	printf '%s' "$line" | "$te_token" encode -b -t end.json >>docs.u32
	printf '\100\1\0\0' >>docs.u32
	echo "{\"text\": \"$line\"}" >>docs.jsonl
done
"$te_train" --model model $run --tokenizer end.json --dump-val val.u16 --val docs.jsonl --steps 1 \
	--out e docs.jsonl >out 2>err
od -An -v -tu2 -w2 val.u16 >got
od -An -v -tu4 -w4 docs.u32 | awk '{ print $1 }' >want
awk '{ print $1 }' got >tokens
same "documents end with the end token" want tokens
# the same documents in one text
head -n 40 small | awk '{ printf "##\n%s\n##\n", $0 }' >split.txt
split="--model model $run --tokenizer end.json --doc-split ##\n"
sed 's/\(.*\)"}$/\1\\n"}/' docs.jsonl >ended.jsonl
for file in split.txt ended.jsonl; do
	losses $split --order documents --documents --val docs.jsonl --steps 4 $file >$file.got
done
same "a text that is divided has the losses of its documents" ended.jsonl.got split.txt.got
fails "text of bytes is not divided" "--doc-split needs a tokenizer" \
	"$te_train" --model tiny $run --doc-split X --steps 1 small
fails "nor by nothing" "expected a text that is not empty" "$te_train" $split --doc-split '' small
printf '##\n##\n' >none
fails "a text needs a document" "none: has no documents" "$te_train" $split none
awk '{ printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, " \
	"{\"role\": \"assistant\", \"content\": \"yes\"}]}\n", $1 $2 }' small >chat.jsonl
check "messages" "$te_train" --model model $run --tokenizer end.json --steps 2 chat.jsonl
"$te_train" --model model $run --tokenizer end.json --doc-end X --dump-val val.u16 \
	--val docs.jsonl --steps 1 docs.jsonl >out 2>err
od -An -v -tu2 -w2 val.u16 | awk '$1 == 320' >got
empty "another end of documents" got

tap_end
