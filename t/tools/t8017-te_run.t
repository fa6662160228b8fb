#!/bin/sh
# te_run starts ranks, ends all when one fails, forwards signals and leaves nothing.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_run.sh"

te_run=$(built tools/te_run)
mkdir "$tmp/dirs" "$tmp/work"
TMPDIR=$tmp/dirs
export TMPDIR
cd "$tmp/work" || exit 99

# gives NAME STATUS COMMAND...: exits with the status; out and err have the output
gives()
{
	name=$1 want=$2
	shift 2
	"$@" >out 2>err </dev/null
	got=$?
	{
		[ $got = "$want" ] || { echo "exit status $got, not $want"; cat out err; }
		ls "$TMPDIR"
	} >why
	empty "$name" why
}

# no_folder NAME: soon there is none of te_run
no_folder()
{
	i=0
	while [ $i -lt 200 ] && [ -n "$(ls "$TMPDIR")" ]; do
		sleep 0.05
		i=$((i + 1))
	done
	ls "$TMPDIR" >why
	empty "$1" why
}

check "--help" "$te_run" --help
check "--version" "$te_run" --version
gives "no number of ranks" 2 "$te_run" true
has "and why" '^te_run: no number of ranks: give -n N' err
gives "no command" 2 "$te_run" -n 2
for n in 0 -1 x 1025 2x; do
	gives "-n $n" 2 "$te_run" -n $n true
done
gives "an unknown option" 2 "$te_run" --frob
gives "a time-out that is none" 2 "$te_run" -n 1 -t 0 true
gives "no such command" 127 "$te_run" -n 3 ./none
has "is named once" '^te_run: ./none: No such file' err
check "only once" test "$(wc -l <err)" = 1
echo text >text
gives "no program" 126 "$te_run" -n 2 ./text

gives "the ranks get a rank, a number and a folder" 0 "$te_run" -n 5 sh -c \
	'[ -d "$TE_COMM_DIR" ] && [ "$(stat -c %a "$TE_COMM_DIR")" = 700 ] &&
	[ "$TE_COMM_BOOTSTRAP" = dir ] && [ -n "$TE_COMM_JOB" ] &&
	echo "$TE_COMM_RANK of $TE_COMM_NRANKS"'
sort out >sorted
printf '%s of 5\n' 0 1 2 3 4 >want
same "each its own" want sorted
mkdir others
: >others/file
"$te_run" -n 1 sh -c 'rmdir "$TE_COMM_DIR"; ln -s "$0" "$TE_COMM_DIR"' "$PWD/others" >out 2>err
check "files of a folder that a link in its place names stay" test -e others/file
rm "$TMPDIR"/*
gives "options after the command are its own" 0 "$te_run" -n 1 echo -n 7 --timeout
has "as they are" '^7 --timeout$' out
gives "nodes for tests" 0 "$te_run" -n 5 --per-node 2 sh -c 'echo $TE_COMM_RANK $TE_COMM_NODE'
sort out >sorted
printf '%s\n' '0 0' '1 0' '2 1' '3 1' '4 2' >want
same "of two ranks each" want sorted

gives "whole lines with their rank" 0 "$te_run" -n 3 --prefix sh -c \
	'i=0; while [ $i -lt 200 ]; do printf "line %s "; sleep 0; echo $i; i=$((i+1)); done
	echo err >&2; printf end'
for r in 0 1 2; do
	awk -v r=$r 'BEGIN { for (i = 0; i < 200; i++) print "[" r "] line  " i
		print "[" r "] end" }' >want
	grep "^\[$r\]" out >got
	same "in the order of rank $r" want got
done
sort err >sorted
printf '[%s] err\n' 0 1 2 >want
same "standard error too" want sorted
gives "long lines are broken" 0 "$te_run" -n 1 -p sh -c \
	'head -c 200000 /dev/zero | tr "\0" x; echo'
check "and nothing of them is lost" test "$(tr -cd x <out | wc -c)" = 200000

gives "control characters of this host" 0 "$te_run" -n 1 -p printf '\033[1m\r\302\233\377\n'
printf '[0] \033[1m\r\302\233\377\n' >want
same "are as they were" want out

echo input | "$te_run" -n 3 sh -c 'cat >in.$TE_COMM_RANK' >out 2>err
echo input >want
same "rank 0 has the standard input" want in.0
check "the others have none" test ! -s in.1 -a ! -s in.2

gives "the status of a rank that fails" 7 "$te_run" -n 3 sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; exec sleep 60.'$$'1701'
has "which is named" '^te_run: rank 1 \(pid [0-9]+\) exited with status 7$' err
gone "the others end" 60.$$1701
gives "the signal of a rank" 137 "$te_run" -n 3 sh -c \
	'[ $TE_COMM_RANK = 2 ] && kill -9 $$; exec sleep 60.'$$'1702'
has "which is named as well" '^te_run: rank 2 \(pid [0-9]+\) was killed by signal 9' err
gone "the others end then too" 60.$$1702
gives "ranks that ignore SIGTERM" 3 timeout 30 "$te_run" -n 2 --grace 1 sh -c \
	'[ $TE_COMM_RANK = 0 ] && exit 3; trap "" TERM; while :; do sleep 0.'$$'1703; done'
gone "are killed" 0.$$1703
gives "what ranks leave" 0 "$te_run" -n 2 sh -c 'sleep 60.'$$'1704 & exit 0'
gone "ends with them" 60.$$1704
gives "what ranks leave with a pipe" 0 "$te_run" -n 2 -p sh -c 'sleep 60.'$$'1705 & echo x'
gone "ends with them too" 60.$$1705
# timeout(1) sends its signal to te_run and to the group that it is in: here two signals, both of
# which te_run finds when it continues
gives "signals that come at once" 130 sh -c '"$@" & p=$!
	until [ -e there ]; do sleep 0.02; done; kill -STOP $p
	kill -INT $p; kill -TERM $p; kill -CONT $p; wait $p' sh env --default-signal=INT \
	"$te_run" -n 1 sh -c 'trap "sleep 1; echo saved; exit 0" INT; >there
	while :; do sleep 0.05; done'
has "do not kill ranks that end in order" '^saved$' out
# a rank that has not ended by then, on a busy machine, is named too
for limit in 0.5 5 50; do
	"$te_run" -n 3 --timeout $limit sh -c \
		'[ $TE_COMM_RANK = 1 ] && exit 0; exec sleep 60.'$$'1706' >out 2>err </dev/null
	status=$?
	grep -q 'ranks 0, 1' err || break
done
check "a time-out ends te_run" test $status = 124
has "names who was running" "^te_run: not finished after $limit s: ranks 0, 2 of 3\$" err
gone "and ends them" 60.$$1706
gives "a time-out of many ranks" 124 "$te_run" -n 40 --timeout 1 sleep 60.$$1707
has "names the first" '^te_run: not finished after 1 s: ranks 0, 1, .*, \.\.\. of 40$' err
gone "and ends all of them" 60.$$1707

# on COMMAND: as a rank that goes on when te_run has named all the others
on='until [ "$(grep -c "^te_run: rank " err)" = $((TE_COMM_NRANKS - 1)) ]; do sleep 0.02; done'
gives "--no-kill: ranks that fail" 0 timeout 60 "$te_run" -n 3 --no-kill sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; [ $TE_COMM_RANK = 2 ] && kill -9 $$; '"$on; echo on"
has "are named" '^te_run: rank 1 \(pid [0-9]+\) exited with status 7$' err
has "all of them" '^te_run: rank 2 \(pid [0-9]+\) was killed by signal 9' err
has "and do not end the others" '^on$' out
gives "--no-kill: the first status if no rank succeeds" 7 timeout 60 "$te_run" -n 2 -k sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; '"$on; exit 3"
"$te_run" -n 2 --no-kill sh -c 'echo $$ >late.$TE_COMM_RANK
	until grep -q "^State:.T" /proc/$PPID/status; do sleep 0.02; done
	[ $TE_COMM_RANK = 1 ] && kill -9 $$; exit 7' >out 2>err </dev/null &
pid=$!
while [ ! -s late.0 ] || [ ! -s late.1 ]; do sleep 0.02; done
kill -STOP $pid
for rank in 0 1; do
	until grep -qs '^State:.Z' /proc/"$(cat late.$rank)"/status; do sleep 0.02; done
done
kill -CONT $pid
wait $pid
check "--no-kill: of ranks that have ended meanwhile, one that was killed" test $? = 137
gives "--no-kill: a time-out" 124 "$te_run" -n 2 -k --timeout 0.5 sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; exec sleep 60.'$$'1710'
gone "ends those that go on" 60.$$1710
gives "--respawn: ranks that fail" 0 timeout 60 "$te_run" -n 2 --respawn 3 --prefix sh -c \
	'echo "start $TE_COMM_RESTARTS"; [ $TE_COMM_RANK = 0 ] || [ $TE_COMM_RESTARTS = 2 ]'
has "start again" '^\[1\] start 1$' out
has "until they succeed" '^\[1\] start 2$' out
has "and are named" '^te_run: rank 1 is started again, 2 of at most 3 times$' err
gives "--respawn: not more often" 5 timeout 60 "$te_run" -n 1 -r 2 sh -c 'echo >>starts; exit 5'
check "than it says" test "$(wc -l <starts)" = 3
gives "ranks of another te_run do not start again" 0 env TE_COMM_RESTARTS=4 "$te_run" -n 1 sh -c \
	'[ -z "$TE_COMM_RESTARTS" ]'
recover_rank=$(built t/comm/recover_rank)
if [ -x "$recover_rank" ]; then
	"$te_run" -n 4 --per-node 2 --no-kill sh -c \
		'echo $$ >pid.$TE_COMM_RANK; exec "$0" 3 5000 >sums.$TE_COMM_RANK' \
		"$recover_rank" >out 2>err </dev/null &
	pid=$!
	until grep -q '20 sums' sums.3 2>/dev/null; do
		kill -0 $pid 2>/dev/null || break
		sleep 0.05
	done
	kill -9 "$(cat pid.3)"
	wait $pid
	check "--no-kill: a communicator is recovered" test $? = 0
	check "by all others" test \
		"$(grep -l '^ranks 0 1 2 on 2 nodes by .*: 20 sums' sums.[0-3] | tr -d '\n')" = \
		sums.0sums.1sums.2
else
	skip "--no-kill: a communicator is recovered" "t/comm/recover_rank is not built"
fi

# started SIGNAL: te_run is sent the signal when its ranks run; its status and output. idle: a
# library that te_run has to load
idle=
started()
{
	rm -f up.*
	env --default-signal="$1" ${idle:+LD_PRELOAD="$idle"} "$te_run" -n 2 env -u LD_PRELOAD \
		sh -c 'trap "echo got $TE_COMM_RANK; got=1" '"$1"'; got=
		: >up.$TE_COMM_RANK; while [ -z "$got" ]; do sleep 0.'$$'1707; done
		sleep 0.5; exit 5' >out 2>err </dev/null &
	pid=$!
	while { [ ! -e up.0 ] || [ ! -e up.1 ]; } && kill -0 $pid; do sleep 0.05; done
	kill -"$1" $pid
	wait $pid
	echo $? >status
}
# a shell ignores SIGINT in what it starts with &
for s in TERM HUP USR2 USR1; do
	started $s
	sort out >sorted
	printf 'got %s\n' 0 1 >want
	same "SIG$s is forwarded" want sorted
	gone "no rank is left after SIG$s" 0.$$1707
done
check "the status is that of the rank after USR1" test "$(cat status)" = 5
started TERM
check "and that of the signal after SIGTERM" test "$(cat status)" = 143

gives "signals that are ignored" 0 env --ignore-signal=HUP --ignore-signal=INT "$te_run" -n 1 \
	sh -c 'kill -HUP $PPID; kill -INT $PPID; echo on'
has "stay so" '^on$' out
# of what a launcher blocks and ignores nothing reaches the ranks: they could not be ended in order
# (the first 31: others are of the C library)
signals='for s in Blk Ign; do
	echo $s $((0x$(sed -n "s/^Sig$s:.*\(.\{8\}\)$/\1/p" /proc/self/status) & 0x7fffffff))
done'
gives "a launcher that blocks and ignores signals" 0 env --default-signal --block-signal \
	--ignore-signal=ALRM,CHLD,PIPE,TERM,USR1,USR2,WINCH "$te_run" -n 1 sh -c "$signals"
printf '%s 0\n' Blk Ign >want.signals
same "does so for itself alone" want.signals out
env --block-signal=TERM --ignore-signal=TERM "$te_run" -n 2 sh -c 'trap "echo saved; exit 0" TERM
	: >blocked.$TE_COMM_RANK; while :; do sleep 0.05; done' >out 2>err &
pid=$!
while [ ! -e blocked.0 ] || [ ! -e blocked.1 ]; do sleep 0.05; done
kill -TERM $pid
wait $pid
check "SIGTERM ends it, whatever the launcher does" test $? = 143
printf 'saved\nsaved\n' >want.saved
same "and its ranks in order" want.saved out
gives "SIGCHLD is not one of them" 0 timeout -s KILL 60 env --ignore-signal=CHLD "$te_run" -n 2 true

idle=$abs_top_builddir/t/lib/.libs/libidle.so
if [ -n "$TT_SANITIZE" ]; then
	skip "SIGTERM is forwarded, whichever threads libraries have started" \
		"a library comes before that of the sanitizer"
elif [ -e "$idle" ]; then
	started TERM
	sort out >sorted
	same "SIGTERM is forwarded, whichever threads libraries have started" want sorted
else
	skip "SIGTERM is forwarded, whichever threads libraries have started" "no $idle"
fi
idle=
ls "$TMPDIR" >why
empty "no folder is left" why

"$te_run" -n 2 sh -c ': >killed.$TE_COMM_RANK; exec sleep 60.'$$'1708' >out 2>err &
pid=$!
while [ ! -e killed.0 ] || [ ! -e killed.1 ]; do sleep 0.05; done
kill -9 $pid
wait $pid 2>/dev/null
gone "the ranks end if te_run is killed" 60.$$1708
no_folder "and so does their folder"

for stop in "" "stopped "; do
	rm -f killed.*
	"$te_run" -n 2 sh -c 'sleep 60.'$$'1713 & : >killed.$TE_COMM_RANK; wait' >out 2>err &
	pid=$!
	while [ ! -e killed.0 ] || [ ! -e killed.1 ]; do sleep 0.05; done
	[ -z "$stop" ] || kill -TSTP $pid
	until [ -z "$stop" ] || grep -q '^State:.T' /proc/$pid/status; do sleep 0.05; done
	kill -9 $pid
	wait $pid 2>/dev/null
	gone "and what they have started, if te_run is ${stop}and killed" 60.$$1713
	no_folder "and their folder, if te_run is ${stop}and killed"
done

"$te_run" -n 2 -p sh -c 'while echo y; do :; done; : 60.'$$'1709' 2>err | head -n 1 >out
has "a reader that goes away ends all" '^\[[01]\] y$' out
gone "ranks that write" 60.$$1709

# a reader that does not read, and is there
mkfifo unread
exec 3<>unread
gives "a time-out ends te_run if nobody reads its output" 124 timeout -s KILL 60 sh -c \
	'exec "$@" >unread 2>&1 3<&-' sh "$te_run" -n 2 -p --timeout 1 yes 60.$$1711
gone "and its ranks" 60.$$1711
timeout -s KILL 60 "$te_run" -n 2 -p sh -c 'echo $PPID >stalled.$TE_COMM_RANK
	exec yes 60.'$$'1712' >unread 2>err 3<&- &
pid=$!
while [ ! -s stalled.0 ] || [ ! -s stalled.1 ]; do sleep 0.05; done
kill -TERM "$(cat stalled.0)"
wait $pid
check "so does SIGTERM" test $? = 143
exec 3<&-
"$te_run" -n 1 -p sh -c 'head -c 300000 /dev/zero | tr "\0" x; exit 3' 2>err |
	{ sleep 2; tr -cd x | wc -c; } >out
echo 300000 >want
same "a slow reader gets all output of a rank that fails" want out
has "whose status is told" 'exited with status 3$' err

tap_end
