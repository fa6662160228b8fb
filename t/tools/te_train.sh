# te_train.sh - what the scripts about te_train share: . it after tap.sh.

te_train=$abs_top_builddir/tools/te_train/te_train
TE_BACKEND=host
export TE_BACKEND
cd "$tmp" || exit 99

# text that every checkout has, and a model that trains on it in a second
cat "$abs_top_srcdir"/man/te*.[0-9] >text
cat >micro.json <<'JSON'
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2,
 "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
JSON
micro="--model micro.json --batch 4 --warmup 2 --lr 1e-2 --eval-batches 2"

# fails NAME SUBJECT COMMAND...: exit 2, one line on stderr that names the subject
fails()
{
	name=$1 subject=$2
	shift 2
	"$@" >out 2>err
	status=$?
	{
		[ $status = 2 ] || echo "exit status $status"
		[ "$(wc -l <err)" = 1 ] || echo "not one line"
		grep -qF -- "$subject" err || echo "no \"$subject\""
		[ -s out ] && echo "output on stdout"
	} >why
	[ -s why ] && cat err >>why
	empty "$name" why
}
