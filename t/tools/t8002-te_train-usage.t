#!/bin/sh
# On bad usage and bad input te_train prints one line that names the cause, and exits with 2.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

check "--help" "$te_train" --help
check "--version" "$te_train" --version
"$te_train" --help >help 2>err
for o in preset model resume recipe graph steps accum out log sample; do
	grep -q -- "--$o" help || echo "$o"
done >missing
empty "--help lists the options" missing
empty "--help is silent on stderr" err

mkdir folder
: >empty.txt
printf 'a short text' >short.txt
printf 'a' >val.txt
printf 'abc' >odd.bin
printf 'a\0\0\0b\0\0\0' >even.bin
{ printf '\210\330\064\001\001\0\0\0\200\0\0\0'; head -c 1268 /dev/zero; } >llmc.bin
printf '\223NUMPY\001\0' >x.npy
printf '\037\213\010\0\0\0\0\0\0\003\113' >cut.gz
echo '{"model_type" "gpt2"}' >broken.json
sed 's/"n_head": 2/"n_head": 5/' micro.json >heads.json
sed 's/256/100/' micro.json >few.json
cat >scaled.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1,
 "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32,
 "rope_scaling": {"type": "ntk", "factor": 2}}
JSON

# a checkpoint, and another model than its own
sed 's/"n_layer": 2/"n_layer": 3/' micro.json >deep.json
check "a checkpoint" "$te_train" $micro --steps 1 --out small text
check "with its own model" "$te_train" --init small --model micro.json --steps 1 text

# SUBJECT|ARGUMENTS
while IFS='|' read -r subject args; do
	eval "fails \"$args\" '$subject' \"\$te_train\" $args"
done <<'EOT'
--frob|--frob text
--steps|--preset tiny text --steps
--steps|--preset tiny --steps few text
--steps|--preset tiny --steps -1 text
--lr|--preset tiny --lr 1x text
--dropout|--preset tiny --dropout 1.5 text
no weight or operation "h.9.*"|--preset tiny --freeze "embed,h.9.*" text
no weight or operation ""|--preset tiny --freeze embed, text
leaves no weight to train|--preset tiny --freeze "*" text
leaves no weight to train|--preset tiny --freeze "*" --estimate
--recipe|--preset tiny --recipe fp4 text
--backend|--preset tiny --backend tpu text
"huge"|--preset huge text
no model|text
exclude each other|--preset tiny --model micro.json text
no training data|--preset tiny
exclude each other|--preset tiny --random-tokens text
text: is text|--preset gpt2-124m text
--random-tokens|--preset gpt2-124m text
text: token 1|--model few.json text
none.txt|--preset tiny none.txt
empty.txt|--preset tiny empty.txt
folder: the folder has no files|--preset tiny folder
none.json|--model none.json text
broken.json: line 1|--model broken.json text
rope_scaling|--model scaled.json text
n_head 5|--model heads.json text
--seq-len 64|--model micro.json --seq-len 64 text
short.txt|--preset tiny short.txt
at least 129|--preset tiny short.txt
val.txt|--preset tiny --val val.txt text
cut.gz|--preset tiny cut.gz
odd.bin|--preset tiny odd.bin
--data-type u16 or u32|--preset tiny even.bin
--data-type|--preset tiny --data-type u8 text
cannot be mixed|--preset tiny text llmc.bin
a NumPy array|--preset tiny x.npy
no/dump|--preset tiny --dump-val no/dump text
text/out|--preset tiny --out text/out text
text: not a directory, expected a folder|--preset tiny --out text text
small/model.safetensors: expected a folder|--init small/model.safetensors text
no/log|--preset tiny --log no/log text
--sample-only|--preset tiny --sample-only
--prompt needs --sample|--preset tiny --prompt NAME text
--sample-only needs --sample|--init small --sample-only
--overwrite needs --out|--preset tiny --overwrite text
--save-best needs --out|--preset tiny --save-best text
nowhere|--resume nowhere
no checkpoint of te_train, which has state.safetensors|--resume .
nowhere|--init nowhere text
hf download meta-llama/Llama-3.2-1B --local-dir|--init meta-llama/Llama-3.2-1B text
only local ones|--model openai-community/gpt2 text
./nowhere: No such file|--init ./nowhere text
the model is tied: its head has the weight of embed|--model micro.json --freeze head text
the model is tied|--model micro.json --freeze embed,head.weight text
"h.0.attn" has no weight|--model micro.json --freeze h.0.attn text
"nothing"|--model micro.json --freeze nothing text
here it is "h.1.qkv.weight"|--model micro.json --freeze transformer.h.1.attn.c_attn text
the model is tied|--model micro.json --freeze lm_head text
hf download openai-community/gpt2 --|--init https://huggingface.co/openai-community/gpt2 text
n_layer|--init small --model deep.json text
n_layer|--resume small --model deep.json text
model_type|--init small --preset tiny text
exclude each other|--init small --resume small text
device 7|--preset tiny --backend host --device 7 text
EOT

# a pipe that nothing writes to would be waited for
mkfifo fifo
mkdir piped
mkfifo piped/config.json
fails "a pipe is no model" 'fifo: not a file' timeout 60 "$te_train" --model fifo text
fails "nor in a folder" 'config.json: not a file' timeout 60 "$te_train" --model piped text
fails "nor of weights" 'config.json: not a file' timeout 60 "$te_train" --init piped text

# the memory of a run is known before it is taken
check "--estimate needs no file" "$te_train" --preset gpt2-1558m --batch 4 --estimate=80G
cp tap.out estimate
check "and names the largest batch" grep -Eq '^largest batch +[1-9]' estimate
check "and the longest context" grep -Eq "^longest +[0-9]+ tokens" estimate
"$te_train" --preset tiny --estimate=40M --json >out 2>err
most=$(sed -n 's/.*"largest_batch": \([0-9]*\).*/\1/p' out)
"$te_train" --preset tiny --estimate=40960K --json --batch "$most" >out 2>err
check "which fits: $most" awk -v n="$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' out)" \
	'BEGIN { exit !(n > 0 && n <= 40 * 1048576) }'
"$te_train" --preset tiny --estimate=40960k --json --batch $((most + 1)) >out 2>err
check "and one more does not" awk -v n="$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' out)" \
	'BEGIN { exit !(n > 40 * 1048576) }'
"$te_train" --preset tiny --backend host --recipe auto --estimate=40M >out 2>err
check "--recipe auto is printed with its reason" \
	grep -q -- "--recipe auto is bf16: the device has no tensor cores" err
fails "--estimate=many" "--estimate" "$te_train" --preset tiny --estimate=many
fails "--estimate=" '--estimate: ""' "$te_train" --preset tiny --estimate=
fails "--estimate=0" "expected a size from 1 " "$te_train" --preset tiny --estimate=0
TE_DEVICE_MEM_LIMIT=40M "$te_train" --preset tiny --estimate --json --batch "$most" >out 2>err
check "what a limit leaves is free" grep -q '"free_bytes": 41943040' out
check "and is as much" grep -q "\"largest_batch\": $most" out
fails "more than is free" " MiB, 20.00 MiB are free" env TE_DEVICE_MEM_LIMIT=20M "$te_train" --preset tiny text

check "a time may have a unit" "$te_train" $micro --steps 1 --time-limit 1h30m text
fails "a time of no unit" '--time-limit: "10x"' "$te_train" --preset tiny --time-limit 10x text

# there may be a GPU; without one the reason is printed
if "$te_train" --preset tiny --backend cuda --steps 1 text >out 2>err; then
	skip "--backend cuda without a GPU" "there is one"
else
	fails "--backend cuda without a GPU" "--backend cuda" \
		"$te_train" --preset tiny --backend cuda --steps 1 text
fi

# without liblzma or libzstd, what to do is in the message
for z in gzip xz zstd; do
	if ! command -v $z >/dev/null; then
		skip "$z" "$z is not found"
		continue
	fi
	$z -c text >packed
	if "$te_train" $micro --steps 0 packed >out 2>err; then
		ok "$z data is read"
	else
		fails "$z data is refused with what to do" "$z -dc FILE" "$te_train" $micro packed
	fi
done

check "FP8 takes any extents: 45 tokens" "$te_train" --preset tiny --backend host \
	--recipe fp8-delayed --batch 3 --seq-len 15 --steps 1 --eval-batches 1 text

# more memory than any machine has
fails "a batch that does not fit" "--batch 1048576" \
	"$te_train" --preset tiny --batch 1048576 --backend host text
check "says what it needs and what is there" grep -Eq '[0-9].*[0-9]' err

tap_end
