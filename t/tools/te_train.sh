# te_train.sh - what the scripts about te_train share: . it after tap.sh.

te_train=$(built tools/te_train/te_train)
te_run=$(built tools/te_run)
TE_BACKEND=host
# small models: to fill 16 MiB takes a rank longer than its steps
TE_COMM_PACKETS=1M
export TE_BACKEND TE_COMM_PACKETS
cd "$tmp" || exit 99

# sentences of common words, the same in every run: a linear congruence draws the words, rare ones
# rarely; and a model that learns them in a second
awk '
function draw(m)
{
	x = (x * 1103 + 12345) % 1048576
	return int(x / 1048576 * m)
}
BEGIN {
	n = split("the of and to in a is that it was for on are with as his they at be this " \
		"from have or by one had not but what all were when we there can an your which " \
		"their said if do will each about how up out them then she many some so these " \
		"would other into has more her two like him see time could no make than first " \
		"been its who now people my made over did down only way find use may water long " \
		"little very after words called just where most know", word, " ")
	for (i = 0; i < 6000; i++) {
		line = ""
		len = 4 + draw(8)
		for (k = 0; k < len; k++)
			line = line (k ? " " : "") word[1 + int(n * (draw(1000) / 1000) ^ 3)]
		print toupper(substr(line, 1, 1)) substr(line, 2) "."
	}
}' >text
cat >micro.json <<'JSON'
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2,
 "n_head": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
JSON
# one without dropout, and one in which no weight has two ops, so that sums of ranks have the order of
# one rank's
cat >plain.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1,
 "num_attention_heads": 1, "intermediate_size": 16, "max_position_embeddings": 16}
JSON
sed 's/"n_head": 2,/"n_head": 2, "tie_word_embeddings": false,/' micro.json >untied.json
micro="--model micro.json --batch 4 --warmup 2 --lr 1e-2 --eval-batches 2"
# a sanitizer makes a step ten times as long
recipes="fp8-delayed fp8-current fp8-block bf16 fp32"
[ -z "$TT_SANITIZE" ] || recipes="fp8-delayed bf16"
# and threads are the same with each recipe
tsan=
case $TT_SANITIZE in *thread*) recipes=bf16 tsan=1 ;; esac

# fewer REST LINE...: the lines, one each; a build with sanitizers has the first REST only: the others
# run the same code with other numbers
fewer()
{
	fewer_n=$1
	shift
	if [ -n "$TT_SANITIZE" ]; then
		printf '%s\n' "$@" | head -n "$fewer_n"
	else
		printf '%s\n' "$@"
	fi
}

# explain TEXT: the text and the end of err, before a check that fails
explain()
{
	echo "# $1; the end of err:"
	tail -n 20 err | sed 's/^/# /'
}

# key FILE NAME: a number of a JSON object
key()
{
	sed -n "s/.*\"$2\": \([-0-9.e+]*\).*/\1/p" "$1"
}

# losses FILE: step, losses, norm and learning rate of each line of a log
losses()
{
	sed -n 's/^\({"step":[^}]*\),"skipped.*/\1/p' "$@"
}

# steps_losses FILE...: step and loss of each line of logs that has a loss of training
steps_losses()
{
	sed -n 's/^{"step":\([0-9]*\),"train_loss_nats":\([^,]*\),.*/\1 \2/p' "$@"
}

# near NAME WANT GOT BOUND: two numbers
near()
{
	check "$1: $3 is within $4 of $2" awk -v a="$2" -v b="$3" -v e="$4" \
		'BEGIN { d = a - b; exit !(a != "" && b != "" && d <= e && d >= -e) }'
}

# wait_for PATTERN FILE: until a line matches, for 2 minutes at least
wait_for()
{
	tries=0
	until grep -qs -- "$1" "$2"; do
		if [ $((tries += 1)) -gt 2400 ]; then
			explain "no line of $2 matches $1"
			return 1
		fi
		sleep 0.05
	done
}

# start ARGUMENT...: te_train in the background, where a shell ignores SIGINT; $pid, with its first
# step made
start()
{
	rm -f err # that of another run has steps too, and a signal sent too early ends the run
	env --default-signal=INT "$te_train" "$@" >out 2>err &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
}

# all_end PROCESS...: they do, within 4 minutes
all_end()
{
	tries=0
	for process; do
		# a process that has ended is a zombie until it is waited for
		while grep -qs '^State:[^Z]*$' "/proc/$process/status"; do
			[ $((tries += 1)) -le 4800 ] || return 1
			sleep 0.05
		done
	done
}

# ends_with STATUS: $pid does
ends_with()
{
	all_end "$pid" || kill -KILL "$pid"
	wait "$pid"
	ended=$?
	[ $ended = "$1" ] || explain "exit status $ended, expected $1"
	[ $ended = "$1" ]
}

# ranks_of PID: the processes of te_train that this te_run has started, in the order of the ranks
ranks_of()
{
	for child in $(cat /proc/"$1"/task/*/children); do
		grep -q te_train "/proc/$child/comm" && echo "$child"
	done
}

# told PATTERN: a line of err matches
told()
{
	grep -q -- "$1" err || { explain "no line matches $1"; false; }
}

# lose NUMBER...: kill ranks at once, by the numbers that they had at first
lose()
{
	killed=
	for process in $(ranks_of $pid); do
		number=$(tr '\0' '\n' <"/proc/$process/environ" | sed -n 's/^TE_COMM_RANK=//p')
		case " $* " in *" $number "*) killed="$killed $process" ;; esac
	done
	kill -KILL $killed
}

# latest_losses FILE: losses of the lines after the last run began
latest_losses()
{
	sed -n '/^{"te_train"/h; /^{"te_train"/!H; ${g; p}' "$1" | losses
}
# from FILE: the step after which that run began
from()
{
	sed -n 's/^{"te_train".*"from_step":\([0-9]*\),.*/\1/p' "$1" | tail -n 1
}

# ranks N ARGUMENT...: te_train with that many, and options of te_run; out, err, and its status
ranks()
{
	ranks_n=$1
	shift
	"$te_run" -n $ranks_n "$te_train" "$@" >out 2>err </dev/null
}

# last_dies N ARGUMENT...: the last rank of a run without an end is killed
last_dies()
{
	ranks_n=$1
	shift
	rm -f err # the run before has steps
	"$te_run" -n $ranks_n "$te_train" --steps 1000000 --eval-every 0 "$@" >out 2>err </dev/null &
	pid=$!
	wait_for '^step [1-9][0-9]*/' err
	kill -KILL "$(ranks_of $pid | tail -n 1)"
	ends_with 0 && echo "exit status 0" >why || : >why
	empty "a rank that is killed ends all with a failure" why
}

# the signals that tests send to runs; SIGHUP only if it is not ignored, as it is under nohup(1)
HUP=
[ "$(sh -c 'kill -HUP $$; echo ignored')" = ignored ] || HUP=HUP
