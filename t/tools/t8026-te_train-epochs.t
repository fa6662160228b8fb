#!/bin/sh
# Training windows by epochs: the same on any number of ranks, and after a restart on others; large
# data sets, which are not read before the first step.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

# the rate is 0, so that the loss of a step depends on its tokens only
common="--batch 1 --lr 0 --recipe fp32 --eval-every 0 --eval-batches 1 --save-every 0 --log-every 1"
fresh="--model plain.json $common"
# 40 windows of 16 in an epoch: 6.67 steps
head -c 640 text >train
head -c 100 text >held

# losses FILE: step, loss and number of epochs of each line of a log
losses()
{
	sed -n 's/^{"step":\([0-9]*\),"train_loss_nats":\([^,]*\),.*"epochs":\([^,]*\),.*/\1 \2 \3/p' \
		"$@"
}

check "one rank" "$te_train" $fresh --accum 6 --steps 14 --val held --log one.log train
losses one.log >want
check "has 14 losses" test "$(wc -l <want)" = 14
check "of 2.1 epochs" grep -q '^14 .* 2.1$' want

check "two ranks" "$te_run" -n 2 "$te_train" $fresh --accum 3 --steps 14 --stop-after 4 \
	--val held --log a.log --out a train
check "three go on" "$te_run" -n 3 "$te_train" --resume a --stop-after 9 --log b.log
check "and one" "$te_train" --resume a --log c.log
losses a.log b.log c.log >got
same "each takes what the others left" want got

# the same files, given again, are at the same position; others begin
"$te_train" $fresh --accum 6 --steps 14 --stop-after 4 --val held --out d train 2>err
cp -r d e
check "given again" "$te_train" --resume d --log d.log train
losses a.log d.log >got
same "files go on" want got
tail -c 640 text >other
check "other files" "$te_train" --resume e --stop-after 5 --log e.log other
check "begin" grep -q '"epochs":0.15,' e.log

# a length of windows that differs: the next epoch
rm -rf e
"$te_train" $fresh --accum 6 --steps 14 --stop-after 2 --val held --out e train 2>err
check "shorter windows" "$te_train" --resume e --seq-len 8 --stop-after 3 --log f.log
check "begin an epoch" grep -q '"epochs":1.075,' f.log

"$te_train" $fresh --accum 6 --steps 14 --stop-after 2 --val held --out o train 2>err
check "another seed" "$te_train" --resume o --seed 8 --stop-after 3 --log o.log
check "begins one, too" grep -q '"epochs":1.15,' o.log

# documents that are permuted: lines, 2.7 epochs of them
sed -e '61,$d' -e 's/.*/{"text": "&"}/' text >lines.jsonl
docs="$fresh --order documents --val held"
check "documents" "$te_train" $docs --accum 6 --steps 56 --log i.log lines.jsonl
losses i.log >want
check "for several epochs" awk '{ e = $3 } END { exit !(e > 2) }' want
check "two ranks read them" "$te_run" -n 2 "$te_train" $docs --accum 3 --steps 56 --stop-after 8 \
	--log j.log --out j lines.jsonl
cp -r j k
check "and three the rest" "$te_run" -n 3 "$te_train" --resume j --stop-after 30 --log k.log
check "and one, too" "$te_train" --resume j --log l.log
losses j.log k.log l.log >got
same "in one order" want got
"$te_train" $fresh --accum 6 --steps 56 --val held --log m.log lines.jsonl >out 2>err
losses m.log >got
check "which differs from that of windows" sh -c '! cmp -s want got'
for option in "--order epoch" "--seed 8" "--documents=begin"; do
	cp -r k n
	rm -f n.log
	check "another order, $option," "$te_train" --resume n $option --stop-after 9 --log n.log
	losses n.log | awk '{ d = $3 - 1 } END { exit !(NR == 1 && d > 0 && d < 0.2) }'
	check "begins an epoch" test $? = 0
	rm -rf n
done
fails "one document" "no document ends in the first 640 tokens" "$te_train" $docs train
fails "random tokens" "random-tokens has no documents" "$te_train" $fresh --order documents \
	--random-tokens

# a mixture
mkdir both
cp train other both/
cat train train train other other train >joined
"$te_train" $fresh --steps 9 --val held --log w.log joined >out 2>err
losses w.log >want
check "a file three times" "$te_train" $fresh --steps 9 --stop-after 4 --val held --log x.log \
	--out w --repeat ./train=3,both=1 train other both
check "goes on from another folder" sh -c 'cd / && "$@"' sh "$te_train" --resume "$tmp/w" \
	--log "$tmp/y.log"
losses x.log y.log >got
same "as if it were written three times" want got
cat other train other train train >joined
"$te_train" $fresh --steps 9 --val held --order random --log z.log joined >out 2>err
losses z.log >want
check "a folder twice" "$te_train" $fresh --steps 9 --val held --order random --log v.log \
	--repeat both=2 both train
losses v.log >got
same "likewise" want got
for list in train train= train=0 train=1001 train=2x; do
	fails "not $list" "expected FILE=N, with N from 1 to 1000" "$te_train" $fresh --val held \
		--repeat $list train
done
fails "nor another file" "held is not one of the files" "$te_train" $fresh --val held \
	--repeat held=2 train
fails "held-out data is in no copy" "--repeat needs --val" "$te_train" $fresh --repeat train=2 train

# with replacement
check "at random" "$te_train" $fresh --steps 3 --val held --order random --log g.log --out g train
check "there are no epochs" grep -q '"epochs":null' g.log
check "which a checkpoint keeps" "$te_train" --resume g --steps 4 --log h.log
check "in a resumed run" grep -q '"epochs":null' h.log
"$te_train" $fresh --random-tokens --steps 1 --log i.log 2>err
check "random tokens are drawn so too" grep -q '"order":"random".*' i.log

# chunks of text, whose tokens are computed when they are used
te_token=$(built tools/te_token)
if [ -x "$te_token" ]; then
	sed 's/"vocab_size": 256/"vocab_size": 300, "eos_token_id": 10/' plain.json >tok.conf
	head -n 40 text >few
	"$te_token" train --vocab 300 -o tok.json few
	chunks="--model tok.conf $common --tokenizer tok.json --order chunks"
	for f in lines.jsonl "few --doc-split \\n --documents" few; do
		rm -rf *.log c
		check "chunks of $f" "$te_train" $chunks --accum 6 --steps 40 --log a.log $f
		losses a.log >want
		check "for several epochs" awk '{ e = $3 } END { exit !(e > 2) }' want
		check "two ranks read them" "$te_run" -n 2 "$te_train" $chunks --accum 3 --steps 40 \
			--stop-after 9 --log b.log --out c $f
		check "and three the rest" "$te_run" -n 3 "$te_train" --resume c --log c.log
		losses b.log c.log >got
		cut -d " " -f 1,2 want >both.want
		cut -d " " -f 1,2 got >both.got
		same "in one order" both.want both.got
	done
	"$te_train" $chunks --seed 8 --steps 40 --log d.log few >out 2>err
	losses d.log | cut -d " " -f 1,2 >got
	check "which depends on the seed" sh -c '! cmp -s both.want got'
	check "another length of windows" "$te_train" --resume c --seq-len 8 --steps 41 --log e.log
	losses e.log | awk '{ d = $3 - int($3) } END { exit !(NR == 1 && $3 > 3 && d < 0.2) }'
	check "begins an epoch" test $? = 0
	fails "another order" "cannot continue another order" "$te_train" --resume c --order epoch
	fails "text that is one byte longer" "has other tokens" sh -c \
		'echo >>few; "$@"' sh "$te_train" --resume c --steps 50
	fails "token files" "is a file of tokens" "$te_train" $chunks --data-type u16 few
else
	skip "chunks" "no libtetoken"
fi
fails "bytes" "is for text whose tokens a tokenizer computes" "$te_train" $fresh --order chunks train

# 50 GB of shards, whose tokens are 0: header of llm.c, number of tokens 500000000
mkdir shards
for i in $(seq 50); do
	printf '\210\330\064\001\001\000\000\000\000\145\315\035' >shards/$i.bin &&
		truncate -s 1000001024 shards/$i.bin || break
done 2>err
if [ "$(find shards -size +900000k | wc -l)" = 50 ]; then
	check "50 GB" timeout 60 "$te_train" $fresh --steps 2 --out big --log big.log shards
	check "are one data set" grep -q '"train_tokens":22500000000,' big.log
	check "which goes on" timeout 60 "$te_train" --resume big --steps 3
	sed 's/16}/16, "eos_token_id": 0}/' plain.json >ends.json
	check "in documents" timeout 60 "$te_train" --model ends.json $common --order documents \
		--steps 1 shards
	printf '\007' | dd of=shards/7.bin bs=1 seek=1024 conv=notrunc 2>err
	fails "unless it has changed" "has other tokens" "$te_train" --resume big --steps 4
else
	skip "50 GB of shards" "files with holes of this size cannot be made"
fi
rm -rf shards

tap_end
