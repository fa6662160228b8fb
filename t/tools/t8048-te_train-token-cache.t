#!/bin/sh
# te_train keeps the tokens of text: later runs and other ranks find them, and train on the same.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

te_token=$(built tools/te_token)
[ -x "$te_token" ] || skip_all "no libtetoken"
XDG_CACHE_HOME=$tmp/cache
export XDG_CACHE_HOME

sed 's/"vocab_size": 256/"vocab_size": 320, "eos_token_id": 10/' plain.json >model.json
head -n 100 text >small
"$te_token" train --vocab 320 -o tok.json small
sed 's/.*/{"text": "&"}/' small >small.jsonl
run="--model model.json --tokenizer tok.json --batch 2 --recipe fp32 --eval-batches 0 --log-every 1
	--eval-every 0 --steps 3"

# losses ARGUMENT...: of the steps; err has the notes
losses()
{
	rm -f log
	"$te_train" $run --log log "$@" >out 2>err || sed 's/^/# /' err >&2
	sed -n 's/^{\("step":[0-9]*,"[a-z]*_loss_nats":[-+.e0-9]*\),.*/\1/p' log
}

for f in small small.jsonl; do
	losses --token-cache off $f >want
	check "$f: losses" test "$(wc -l <want)" -ge 3
	losses --token-cache kept --out a.$f $f >got
	same "of tokens that are kept" want got
	check "which a note says" grep -q "$f: its tokens are kept in kept/.*\.tokens" err
	losses --token-cache kept $f >got
	same "of tokens that are found" want got
	check "without a note" sh -c '! grep -q kept err'
	check "a run that kept none goes on with them" "$te_train" --resume a.$f --steps 4 \
		--token-cache off
	check "and one that found some" "$te_train" --resume a.$f --steps 5 --token-cache kept
done
check "a file for each, and nothing else" test "$(ls -A kept | wc -l)" = 2
check "two files" "$te_train" $run --token-cache kept --out both small small.jsonl
check "in two orders" "$te_train" --resume both --token-cache kept --steps 4 small.jsonl small
check "need no others" test "$(ls kept | wc -l)" = 2

# what decides the tokens
losses --token-cache kept --doc-end X small.jsonl >got
check "--doc-end has its own" test "$(ls kept | wc -l)" = 3
"$te_token" train --vocab 300 -o few.json small
losses --token-cache kept --tokenizer few.json small.jsonl >got
check "so has a tokenizer" test "$(ls kept | wc -l)" = 4
echo '{"text": "one more"}' >>small.jsonl
losses --token-cache off small.jsonl >want
losses --token-cache kept small.jsonl >got
check "and text that has changed" test "$(ls kept | wc -l)" = 5
same "which is what is trained on" want got
gzip -c small.jsonl >small.jsonl.gz
losses --token-cache kept small.jsonl.gz >got
same "compressed, too" want got
check "with the same file" test "$(ls kept | wc -l)" = 5

# ranks
rm -r kept
cat >ranks.sh <<'SH'
cache=$1
shift
exec "$@" --batch 1 --token-cache $cache --log $cache.log small
SH
for cache in off kept; do
	check "two ranks, $cache" "$te_run" -n 2 sh ranks.sh $cache "$te_train" $run
	sed -n 's/^{\("step":[0-9]*,"[a-z]*_loss_nats":[-+.e0-9]*\),.*/\1/p' $cache.log >$cache.got
done
check "have losses" test -s off.got
same "of the same tokens" off.got kept.got
check "in one file" test "$(ls -A kept | wc -l)" = 1

losses --token-cache off small >one
for f in kept/*; do
	printf X | dd of="$f" bs=1 seek=500 conv=notrunc 2>err
done
losses --token-cache kept small >got
same "damage does not change the data" one got
check "it is told" grep -q "is damaged, the tokens are computed again" err
losses --token-cache kept small >got
check "once" sh -c '! grep -q damaged err'
losses --token-cache small/kept small >got
same "nor does a folder that cannot be made" one got
check "which is told" grep -q "small/kept: Not a directory: the tokens of .*small are not kept" err
losses small >got
same "small files are not kept by default" one got
check "anywhere" test ! -e cache

tap_end
