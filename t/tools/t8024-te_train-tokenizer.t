#!/bin/sh
# What te_train saves has the tokenizer of the model that it began with, and takes nothing else.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

train="--steps 1 --batch 1 --seq-len 8 --eval-batches 1"
"$te_train" $train --model micro.json --out base text >out 2>err
files="tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json
	merges.txt tokenizer.model generation_config.json chat_template.jinja"
mkdir model
cp base/config.json base/model.safetensors model
for f in $files; do
	printf '%s\0\377 %s\n' $f "$f" >model/$f
done
: >model/merges.txt # an empty one is one
# models in the cache of the hub are links
mkdir blobs
mv model/tokenizer.json blobs/0
ln -s ../blobs/0 model/tokenizer.json
echo "not of the model" >model/README.md

check "a run that begins with a model" "$te_train" $train --init model --save-best --out run text
for f in $files; do
	check "saves its $f" cmp model/$f run/$f
	check "with the best weights too" cmp model/$f run/best/$f
done
check "as a file, where a link was" test ! -L run/tokenizer.json
check "and nothing else" test ! -e run/README.md
check "nor what has a temporary name" sh -c '! ls run run/best | grep new'
check "a resumed run" "$te_train" --resume run --steps 2 --out run2 text
for f in $files; do
	check "saves $f" cmp model/$f run2/$f
done
check "so does one that goes on there" "$te_train" --resume run2 --steps 3 text
check "which keeps it" cmp model/tokenizer.json run2/tokenizer.json

# another model's tokenizer would be a wrong one
check "--overwrite by a model without a tokenizer" "$te_train" $train --model micro.json \
	--out run2 --overwrite text
check "removes the old one" test ! -e run2/tokenizer.json -a ! -e run2/merges.txt
check "but no other file" test -e run2/config.json
check "--overwrite of a run with the best weights" "$te_train" $train --model micro.json \
	--out run --overwrite text
check "removes its folder" test ! -e run/best

# what is no file of a tokenizer: a pipe, one that is too long, a link of another user
rm model/vocab.json model/tokenizer_config.json model/chat_template.jinja
mkfifo model/vocab.json
truncate -s 65M model/tokenizer_config.json
echo secret >secret
chmod 600 secret
ln -s ../secret model/chat_template.jinja
[ "$(id -u)" != 0 ] || chown -h 65534 model/chat_template.jinja
check "such files do not fail a run" timeout 60 "$te_train" $train --init model --out odd text
cp tap.out out
check "they are named" grep -q 'model/vocab.json: is not copied' out
check "with the limit" grep -q 'tokenizer_config.json.*at most 64 MiB' out
check "and not copied" test ! -e odd/vocab.json -a ! -e odd/tokenizer_config.json
check "the others are" cmp model/tokenizer.model odd/tokenizer.model
if [ "$(id -u)" = 0 ]; then
	check "a stranger's link is named" grep -q 'chat_template.jinja: is a link that another' out
	check "and not followed" test ! -e odd/chat_template.jinja
else
	skip "a stranger's link" "only root gives a link to another user"
fi

# links that are planted where they are saved
rm model/chat_template.jinja
echo kept >kept
mkdir planted
ln -s ../kept planted/tokenizer.json
ln -s ../kept planted/merges.txt.new
check "planted links do not fail a run" "$te_train" $train --init model --out planted text
check "nor are they followed" test "$(cat kept)" = kept
check "one is replaced" cmp model/tokenizer.json planted/tokenizer.json
check "the other refused" test ! -e planted/merges.txt

tap_end
