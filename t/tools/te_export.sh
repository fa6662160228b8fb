# te_export.sh - for scripts about te_export(1), after te_train.sh: tools, a text, and losses of it.

export=$(built tools/te_export)
token=$(built tools/te_token)
echo "It was the best of times, it was the worst of times, it was the age of wisdom." >times

# model NAME: the folder NAME with a model of t/data
model()
{
	mkdir "$1"
	cp "$abs_top_srcdir/t/data/$1.json" "$1/config.json"
	cp "$abs_top_srcdir/t/data/$1.safetensors" "$1/model.safetensors"
}

# loss MODEL: of the text
loss()
{
	"$te_train" --init "$1" --steps 0 --eval-batches 0 --val times --json --recipe fp32 \
		--seq-len 16 times 2>>err | sed -n 's/.*"val_loss_nats": \([0-9.]*\).*/\1/p'
}
