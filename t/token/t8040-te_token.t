#!/bin/sh
# te_token trains a vocabulary, encodes, decodes and counts; bad usage and files are named.
. "$abs_top_srcdir/t/lib/tap.sh"

te_token=$(built tools/te_token)
cd "$tmp" || exit 99
mkdir model
sed 's/[^ -~]//g' "$abs_top_srcdir/README.md" >text

check "train" "$te_token" train --vocab 600 -o model/tokenizer.json text
check "encode" "$te_token" encode -t model -o ids text
check "decode" "$te_token" decode -t model/tokenizer.json -o back ids
same "text comes back" text back
check "encode to integers" "$te_token" encode -b -t model -o ids.bin text
check "decode integers" "$te_token" decode --binary -t model -o back.bin ids.bin
same "text comes back from integers" text back.bin
"$te_token" encode -t model <text >ids.stdin
same "standard input and output" ids ids.stdin
"$te_token" encode -t model --threads 1 - <text >ids.one
same "one thread" ids ids.one

wc -w <ids >n
"$te_token" count -t model text >count
check "count" grep -q "^$(tr -d ' ' <n) tokens, $(wc -c <text | tr -d ' ') bytes$" count
"$te_token" count -t model --json text >count
check "count in JSON" grep -q "\"tokens\": $(tr -d ' ' <n), .*\"vocab\": 600, \"seconds\": " count
printf 'the cat' >cat
"$te_token" encode -t "$abs_top_srcdir/t/data/sp_bpe.model" --template cat >got
check "a model of SentencePiece" test "$(tr -s '\n' ' ' <got)" = "1 264 273 262 "
echo '[104, 105]' | "$te_token" decode -t model >got
printf 'hi' >want
same "tokens in brackets" want got
: >empty
"$te_token" encode -t model empty >got
empty "an empty text has no tokens" got

# fails STATUS WORDS ARGUMENT...
fails()
{
	status=$1 words=$2
	shift 2
	"$te_token" "$@" >out 2>why </dev/null
	check "$*: exit $status" test $? = "$status"
	check "$*: $words" grep -q "$words" why
}

fails 2 "expected encode, decode, count or train" twist
fails 2 "expected encode, decode, count or train" encode a b
fails 2 "needs --tokenizer" encode text
fails 2 "nowhere" encode -t nowhere text
fails 2 "nowhere" encode -t model nowhere
fails 2 "no tokenizer.json" encode -t . text
fails 2 "no tokenizer: expected" encode -t text text
fails 2 "expected a token" decode -t model text
printf abc >odd
fails 2 "no whole number" decode -b -t model odd
echo 4000 >ids.bad
fails 2 "token 4000 is outside" decode -t model ids.bad
fails 2 "pattern: odd" train --pattern odd text
fails 2 "threads" count --threads -1 -t model text
fails 2 "json: not an option of encode" encode --json -t model text
fails 2 "skip-special: not an option of count" count --skip-special -t model text
fails 2 "template: not an option of decode" decode --template -t model ids
fails 2 "tokenizer: not an option of train" train -t model text
check "--template and --ordinary" "$te_token" count --template --ordinary -t model text

"$te_token" train -o small.json cat 2>why
check "fewer tokens than asked" grep -q "pairs for 25[0-9] tokens only, --vocab is 8192" why

# a file is written wholly or not at all, and an earlier one stays until then
echo old >kept
(ulimit -f 1 && exec "$te_token" encode -t model -o kept text 2>why)
check "a full disk: exit 1" test $? = 1
check "names the file" grep -q "kept: File too large" why
echo old >want
same "and the earlier file stays" want kept
ls kept?* >left 2>/dev/null
check "without a temporary one" test ! -s left
ln -s kept link
"$te_token" encode -t model -o link text
same "a link's file is written" ids kept
check "and it stays a link" test -h link
"$te_token" encode -t model -o /dev/stdout text >got
same "/dev/stdout" ids got
if [ -w /dev/full ]; then
	for to in /dev/full /dev/stdout; do
		"$te_token" encode -t model -o $to text >/dev/full 2>why
		check "$to on a full device: $(cat why)" grep -q "$to: No space" why
	done
	for option in --help --version; do
		"$te_token" $option >/dev/full 2>why
		check "$option on a full device: exit 2" test $? = 2
		check "is reported" grep -q "standard output: No space" why
	done
fi
check "--help" "$te_token" --help
check "--version" "$te_token" --version

tap_end
