#!/bin/sh
# te_run --hosts starts ranks by ssh: here by a program in its place, which runs the command on this
# host in a process of its own, and by sshd where there is one.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_run.sh"

te_run=$(built tools/te_run)
mkdir "$tmp/work" "$tmp/elsewhere"
cd "$tmp/work" || exit 99

# ssh of the tests: -o is an option with an argument, down-* are not reached, noisy's shell prints
cat >"$tmp/ssh" <<'END'
#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1
shift
echo "$host: $*" >>"$FAKE/asked"
echo $$ >>"$FAKE/$host.pid"
case $host in
down-*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255 ;;
blocks) set -- env --block-signal --ignore-signal=PIPE,TERM,USR1 "$@" ;;
noisy) printf 'ssh: \033[31mred\n' >&2; printf 'welcome\007\n' ;;
lies) # rank 0, pid 1, exited with status 256, which is 0 to the parent of te_run; all have ended
	printf 'teR1\5\0\0\0\20\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0\0\1\0\0teR1\10\0\0\0\0\0\0\0'
	exit 0 ;;
mute) exec sleep 60.${RUN}2101 ;;
stuck) # the agent gets what te_run writes, and nobody reads what it writes itself
	mkfifo "$FAKE/unread"
	exec 3<&0
	"$@" <&3 3<&- 1<>"$FAKE/unread" &
	echo $! >"$FAKE/agent.pid"
	exec sleep 60.${RUN}2116 3<&- ;;
slow) # until te_run knows that the other host has failed
	until grep -q "^down-2" "$FAKE/asked"; do sleep 0.05; done
	sleep 0.5 ;;
esac
cd "$FAKE/elsewhere" || exit 1
exec env -i PATH="$PATH" HOST="$host" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" \
	ASAN_OPTIONS="$ASAN_OPTIONS" LSAN_OPTIONS="$LSAN_OPTIONS" /bin/sh -c "exec $*"
END
chmod +x "$tmp/ssh"
FAKE=$tmp RUN=$$
export FAKE RUN

# on LIST OPTION...: te_run on these hosts
on()
{
	list=$1
	shift
	timeout 60 "$te_run" --ssh "$tmp/ssh -o BatchMode=yes" --te-run "$te_run" \
		--hosts "$list" "$@"
}

# gives NAME STATUS COMMAND...: exits with the status; out and err have the output
gives()
{
	name=$1 want=$2
	shift 2
	"$@" >out 2>err </dev/null
	got=$?
	[ $got = "$want" ] && : >why || { echo "exit status $got, not $want"; cat out err; } >why
	empty "$name" why
}

# until COMMAND...: it succeeds, within 20 s
until_ok()
{
	i=0
	until "$@"; do
		i=$((i + 1))
		[ $i -lt 400 ] || return 1
		sleep 0.05
	done
}

for list in "" , a, a:0 a:x a:1025 -oProxyCommand=x '[]'; do
	gives "no list of hosts: \"$list\"" 2 on "$list" true
done
gives "more ranks than slots" 2 on a:2,b -n 4 true
has "and why" '^te_run: --hosts: 4 ranks, but the hosts have 3 slots$' err
gives "no variable" 2 on a --export =x true

show='echo $TE_COMM_RANK of $TE_COMM_NRANKS local $TE_COMM_LOCAL_RANK on $HOST'
gives "as many ranks as slots" 0 on a,u@b:3 sh -c "$show"
sort out >sorted
printf '%s\n' '0 of 4 local 0 on a' '1 of 4 local 0 on u@b' '2 of 4 local 1 on u@b' \
	'3 of 4 local 2 on u@b' >want
same "in the order of the hosts" want sorted
rm -f "$tmp/asked"
gives "hosts without ranks" 0 on '[::1]:2,b:2,c' -n 3 sh -c "$show"
sort out >sorted
printf '%s\n' '0 of 3 local 0 on ::1' '1 of 3 local 1 on ::1' '2 of 3 local 0 on b' >want
same "are not asked for" want sorted
printf '%s\n' "::1: $te_run --agent" "b: $te_run --agent" >want
sort "$tmp/asked" >sorted
same "the command has no arguments of the job" want sorted

pwd >want
gives "the folder of te_run" 0 on a pwd
same "is that of the ranks" want out
TE_LOG=warn OTHER=5 FAKE_TOO=6 gives "the environment" 0 on a -x OTHER -x 'NEW=a b' --per-node 1 \
	sh -c 'echo $TE_LOG.$OTHER.$NEW.$FAKE_TOO.$TE_COMM_NODE.$TE_COMM_BOOTSTRAP'
echo 'warn.5.a b..0.id' >want
same "has what is exported" want out
gives "arguments" 0 on a printf '%s,' 'a  b' '' '$x' "it's" '*'
printf 'a  b,,$x,it'\''s,*,' >want
same "are as they were" want out

# the first 31 signals: others are of the C library
gives "a host that blocks and ignores signals" 0 on blocks sh -c 'for s in Blk Ign; do
	echo $s $((0x$(sed -n "s/^Sig$s:.*\(.\{8\}\)$/\1/p" /proc/self/status) & 0x7fffffff))
	done'
printf '%s 0\n' Blk Ign >want
same "does not do so to ranks" want out

# what a terminal would obey; a character in two parts; the end of one; not UTF-8: C1 controls as one
# byte and as two, longer forms than need be, a surrogate
raw='\033]0;x\007\r\177\302\233 \303'
rest='\274\t\342\202\254 \360\237\230\200 \300\233 \340\202\233 \355\240\200 \233 \377 \303'
shown='\x1b]0;x\x07\x0d\x7f\xc2\x9b ü	€ 😀 \xc0\x9b \xe0\x82\x9b \xed\xa0\x80 \x9b \xff \xc3'
for prefix in "" -p; do
	gives "control characters of a rank of another host" 0 on a $prefix sh -c \
		"printf '$raw'; sleep 0.1; printf '$rest'; printf '$raw$rest\n' >&2"
	printf '%s%s' "${prefix:+[0] }" "$shown" >want
	[ -z "$prefix" ] || echo >>want
	same "are shown ${prefix:+with $prefix}" want out
	printf '%s%s\n' "${prefix:+[0] }" "$shown" >want
	same "of its standard error as well ${prefix:+with $prefix}" want err
done
gives "control characters of a shell there" 1 on noisy true
has "are shown in what te_run says of them" 'sent "welcome\\x07' err
has "and so are those of ssh" '^ssh: \\x1b\[31mred$' err

# a secret is where only the user can read it: not in a command line
gives "the id" 0 on a,b sh -c 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\0" "\n" >seen.$HOST
	echo "$TE_COMM_ID" >id.$HOST'
check "is that of all ranks" cmp id.a id.b
has "and is one" '^te1:[0-9a-f]{32}:[0-9]+:' id.a
cut -d : -f 2 id.a >key
if grep -lFf key seen.a seen.b >why; then :; fi
empty "but in no command line" why

gives "whole lines with their rank" 0 on a:2,b --prefix sh -c \
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
gives "much output" 0 on a,b sh -c 'head -c 3000000 /dev/zero | tr "\0" x'
check "is complete" test "$(wc -c <out)" = 6000000
echo input | on a cat >out 2>err
check "ranks have no standard input" test ! -s out

gives "the status of a rank that fails" 7 on a,b:2 sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; exec sleep 60.'$$'2102'
has "which is named" '^te_run: rank 1 \(host b, pid [0-9]+\) exited with status 7$' err
check "only once" test "$(wc -l <err)" = 1
gone "the others end" 60.$$2102
gives "the signal of a rank" 137 on a,b sh -c \
	'[ $TE_COMM_RANK = 1 ] && kill -9 $$; exec sleep 60.'$$'2103'
has "which is named as well" '^te_run: rank 1 \(host b, pid [0-9]+\) was killed by signal 9' err
gone "the others end then too" 60.$$2103
gives "ranks that ignore SIGTERM" 3 on a,b --grace 1 sh -c \
	'[ $TE_COMM_RANK = 0 ] && exit 3; trap "" TERM; while :; do sleep 0.'$$'2104; done'
gone "are killed" 0.$$2104
gives "what ranks leave" 0 on a,b sh -c 'sleep 60.'$$'2105 & exit 0'
gone "ends with them" 60.$$2105
# a rank that has not ended by then, on a busy machine, is named too
for limit in 2 20; do
	on a:2,b --timeout $limit sh -c '[ $TE_COMM_RANK = 1 ] && exit 0; exec sleep 60.'$$'2106' \
		>out 2>err </dev/null
	status=$?
	grep -q 'ranks 0, 1' err || break
done
check "a time-out ends te_run" test $status = 124
has "names who was running" "^te_run: not finished after $limit s: ranks 0, 2 of 3\$" err
gone "and ends them" 60.$$2106

gives "no such command" 127 on a ./none
has "is told with the host" '^te_run: host a: ./none: No such file' err
gives "no such folder" 1 sh -c 'mkdir gone && cd gone && rmdir ../gone && exec "$@"' sh \
	"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a true
gives "a host that cannot be reached" 1 on a,down-1 sleep 60.$$2107
has "is named" '^te_run: host down-1: the connection has ended' err
gone "and the others end" 60.$$2107
gives "signals that come with the job are heard" 1 timeout 20 "$te_run" --ssh "$tmp/ssh" \
	--te-run "$te_run" --hosts slow,down-2 --grace 60 --silence 200 sleep 60.$$2113
gives "a host without te_run" 1 "$te_run" --ssh "$tmp/ssh" --te-run ./none --hosts a true
gives "no ssh" 1 "$te_run" --ssh ./none --hosts a true
has "is told" '^te_run: ./none: No such file' err
fault=$abs_top_builddir/t/lib/.libs/failfork.so
if [ -n "$TT_SANITIZE" ]; then
	skip "a process that cannot be started" "a library comes before that of the sanitizer"
elif [ -e "$fault" ]; then
	gives "a process that cannot be started" 1 timeout 60 env LD_PRELOAD="$fault" \
		FAILFORK_NTH=2 "$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b \
		sleep 60.$$2115
	grep -v '^te_run: host b: cannot start ssh: Resource temporarily' err >why
	empty "is told, and no other process gets a signal" why
	gone "the ranks of the other host end" 60.$$2115
	# read until its child has ended
	env LD_PRELOAD="$fault" FAILFORK_ORPHAN=1 "$te_run" --ssh "$tmp/ssh" --te-run "$te_run" \
		--hosts down-4 true 2>&1 >/dev/null </dev/null | cat >out
	grep down-4 "$tmp/asked" >why
	empty "an ssh that starts after the end of te_run ends" why
else
	skip "a process that cannot be started" "no $fault"
fi
gives "a shell that prints" 1 on a,noisy sleep 60.$$2108
has "is told too, and what may be the cause" \
	'^te_run: host noisy: te_run there sent "welcome.*does its shell print at the start\?$' err
gone "and the ranks end" 60.$$2108
gives "a status that no process has" 1 on lies true
has "is no message of an agent" '^te_run: host lies: ' err
# the first host is the first one that can be lost
gives "a host that is silent" 1 on mute,a --silence 1 sleep 60.$$2109
has "is lost" '^te_run: host mute: nothing has come for 1 s' err
gone "and its ssh ends" 60.$$2101
gone "as do the other ranks" 60.$$2109
gives "an agent without a job" 2 "$te_run" --agent
# a busy machine can keep a process from running for some seconds
for silence in 2 6 20; do
	on a,b --silence $silence sleep $((2 * silence + 1)) >out 2>err </dev/null
	status=$?
	grep -q 'nothing has come' err || break
done
check "hosts that are alive and print nothing" test $status = 0

# started SIGNAL: te_run is sent the signal when its ranks run; its status and output
started()
{
	rm -f up.*
	env --default-signal="$1" "$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b sh -c \
		'trap "echo got $TE_COMM_RANK; got=1" '"$1"'; got=
		: >up.$TE_COMM_RANK; while [ -z "$got" ]; do sleep 0.'$$'2110; done
		rm up.$TE_COMM_RANK; while [ -e up.0 -o -e up.1 ]; do sleep 0.'$$'2110; done
		exit 5' >out 2>err </dev/null &
	pid=$!
	until_ok test -e up.0 -a -e up.1
	kill -"$1" $pid
	wait $pid
	echo $? >status
}
for s in TERM USR1; do
	started $s
	sort out >sorted
	printf 'got %s\n' 0 1 >want
	same "SIG$s is passed on" want sorted
	gone "no rank is left after SIG$s" 0.$$2110
done
check "the status is that of the rank after USR1" test "$(cat status)" = 5

# ended PID: it is not there or a zombie
ended()
{
	! grep -qs '^State:[^Z]*$' "/proc/$1/status"
}
mkfifo unread
exec 3<>unread
timeout -s KILL 60 "$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b --timeout 2 \
	--grace 1 yes 60.$$2117 >unread 2>&1 3<&- &
late=$!
rm -f up.*
"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b --grace 1000 sh -c \
	': >up.$TE_COMM_RANK; exec yes 60.'$$'2118' >unread 2>err 3<&- &
pid=$!
until_ok test -e up.0 -a -e up.1
asked_again()
{
	ended $pid || kill -TERM $pid
	ended $pid
}
until_ok asked_again || kill -9 $pid
wait $pid
check "a second signal ends te_run if nobody reads its output" test $? = 143
gone "and the ranks" 60.$$2118
gives "a host whose ssh hangs" 1 on stuck --silence 1 yes 60.$$2119
has "is lost" '^te_run: host stuck: nothing has come for 1 s' err
check "and its agent ends" until_ok ended "$(cat "$tmp/agent.pid")"
ended "$(cat "$tmp/agent.pid")" || kill -9 "$(cat "$tmp/agent.pid")"
gone "and its rank" 60.$$2119
wait $late
check "a time-out ends te_run if nobody reads its output" test $? = 124
gone "as well as the ranks" 60.$$2117
exec 3<&-

for who in te_run ssh; do
	rm -f up.* "$tmp"/*.pid
	"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b sh -c \
		': >up.$TE_COMM_RANK; exec sleep 60.'$$'2111' >out 2>err </dev/null &
	pid=$!
	until_ok test -e up.0 -a -e up.1
	if [ $who = te_run ]; then kill -9 $pid; else kill -9 "$(cat "$tmp/b.pid")"; fi
	wait $pid 2>/dev/null
	gone "the ranks end if $who is killed" 60.$$2111
done
has "the host whose ssh was killed is named" '^te_run: host b: the connection has ended' err

gives "--no-kill: a rank that fails" 0 on a,b:2 --no-kill sh -c \
	'[ $TE_COMM_RANK = 1 ] && exit 7; until grep -q "rank 1" err; do sleep 0.05; done; echo on'
has "is named" '^te_run: rank 1 \(host b, pid [0-9]+\) exited with status 7$' err
check "and the others go on" test "$(grep -c '^on$' out)" = 2
rm -f up.* "$tmp"/*.pid
"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b -k sh -c ': >up.$TE_COMM_RANK
	[ $TE_COMM_RANK = 0 ] || exec sleep 60.'$$'2114
	until grep -q "host b" err; do sleep 0.05; done; echo on' >out 2>err </dev/null &
pid=$!
until_ok test -e up.0 -a -e up.1
kill -9 "$(cat "$tmp/b.pid")"
wait $pid
check "--no-kill: a host is lost" test $? = 0
has "which is named" '^te_run: host b: the connection has ended' err
has "and those of the others go on" '^on$' out
gone "but not its own" 60.$$2114
"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts down-1 -k true >out 2>err </dev/null
check "--no-kill: no rank succeeds if all hosts are lost" test $? = 1

gives "--respawn: ranks that fail on other hosts" 0 on a,b:2 --respawn 4 --prefix sh -c \
	'echo "start $TE_COMM_RESTARTS on $HOST"; echo "$TE_COMM_DIR" >dir.$TE_COMM_RANK
	case $TE_COMM_RANK$TE_COMM_RESTARTS in 10) exit 3 ;; 11|20) kill -9 $$ ;; esac'
sort out >sorted
printf '[%s\n' '0] start 0 on a' '1] start 0 on b' '1] start 1 on b' '1] start 2 on b' \
	'2] start 0 on b' '2] start 1 on b' >want
same "start again, there" want sorted
has "and are named" '^te_run: rank 1 \(host b, pid [0-9]+\) exited with status 3$' err
has "with the number of starts" '^te_run: rank [12] is started again, 3 of at most 4 times$' err
check "all ranks have one folder" cmp dir.0 dir.2
has "in the folder of te_run" "^$tmp/work/.te_run" dir.0
gives "--respawn: not more often" 5 on a,b -r 3 sh -c 'echo >>starts.$TE_COMM_RANK; exit 5'
check "than it says: $(cat starts.? | wc -l) starts" test "$(cat starts.? | wc -l)" = 5
has "an end that is not followed by a start" '^te_run: rank [01] \(host [ab], pid [0-9]+\) exited' err
ls -d .te_run* >left 2>/dev/null
empty "no folder is left" left
gives "--respawn: a time-out" 124 on a,b -r 1000000 --timeout 2 sh -c \
	'[ $TE_COMM_RANK = 0 ] && exec sleep 60.'$$'2120; sleep 0.1; exit 1'
gone "ends all ranks" 60.$$2120
rm -f up.* "$tmp"/*.pid
"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b -r 9 sh -c ': >up.$TE_COMM_RANK
	[ $TE_COMM_RANK = 0 ] || exec sleep 60.'$$'2121
	until grep -q "host b: the" err; do sleep 0.05; done; echo on' >out 2>err </dev/null &
pid=$!
until_ok test -e up.0 -a -e up.1
kill -9 "$(cat "$tmp/b.pid")"
wait $pid
check "--respawn: a host is lost" test $? = 0
gone "and its ranks end" 60.$$2121
grep 'started again' err >why
empty "without another start" why
rm -f up.*
"$te_run" --ssh "$tmp/ssh" --te-run "$te_run" --hosts a,b -r 9 sh -c \
	'[ $TE_COMM_RESTARTS = 1 ] && : >up.$TE_COMM_RANK && exec sleep 60.'$$'2122; exit 1' \
	>out 2>err </dev/null &
pid=$!
until_ok test -e up.0 -a -e up.1
kill -9 $pid
wait $pid 2>/dev/null
gone "ranks that were started again end if te_run is killed" 60.$$2122
no_dir()
{
	! ls -d .te_run* >/dev/null 2>&1
}
check "and so does their folder" until_ok no_dir
cat >"$tmp/apart" <<END
#!/bin/sh
# starts an agent in whose sight the folder of this te_run is not
host=\$1
shift
mv .te_run* hidden
exec "$tmp/ssh" "\$host" "\$@"
END
chmod +x "$tmp/apart"
gives "a host without the folder" 1 timeout 60 "$te_run" --ssh "$tmp/apart" --te-run "$te_run" \
	--hosts a -r 1 true
has "is named, with what it lacks" '^te_run: host a: .*/\.te_run\.[^ ]*: No such file.*all hosts share' err
rm -rf hidden

# sshd for this user alone, on the loopback
skip_sshd()
{
	for t in "by sshd" "the folder by sshd" "a signal by sshd" "an unknown key"; do
		skip "$t" "$1"
	done
	tap_end
}

sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) || skip_sshd "sshd is not found"
command -v ssh >/dev/null || skip_sshd "ssh is not found"
command -v ssh-keygen >/dev/null || skip_sshd "ssh-keygen is not found"
for key in host user other; do
	ssh-keygen -q -t ed25519 -N '' -f "$tmp/$key" || skip_sshd "ssh-keygen makes no key"
done
cat >"$tmp/sshd_config" <<END
ListenAddress 127.0.0.1
HostKey $tmp/host
PidFile $tmp/sshd.pid
AuthorizedKeysFile $tmp/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
END
port=$((20000 + $$ % 10000))
n=0
until "$sshd" -f "$tmp/sshd_config" -p $port -E "$tmp/sshd.log"; do
	n=$((n + 1)) port=$((port + 1))
	[ $n -lt 5 ] || skip_sshd "sshd does not start: $(head -n 1 "$tmp/sshd.log")"
done
until_ok test -s "$tmp/sshd.pid"
trap 'kill "$(cat "$tmp/sshd.pid")"; rm -rf "$tmp"' EXIT
# libtool's wrapper, which finds the libraries
wrapper=$abs_top_builddir/tools/te_run
"$wrapper" --version >out
by_ssh="ssh -o BatchMode=yes -F none -p $port -o StrictHostKeyChecking=no
	-o UserKnownHostsFile=$tmp/known -o IdentitiesOnly=yes -i"
by_ssh=$(echo $by_ssh) # one line

$by_ssh "$tmp/user" 127.0.0.1 true >out 2>&1 ||
	skip_sshd "this user cannot log in: $(tail -n 1 out) $(tail -n 1 "$tmp/sshd.log")"
gives "by sshd" 0 timeout 60 "$te_run" --ssh "$by_ssh $tmp/user" --te-run "$wrapper" \
	--hosts 127.0.0.1:2 -p sh -c 'echo $TE_COMM_RANK; pwd'
pwd >here
printf '[%s] %s\n' 0 0 0 "$(cat here)" 1 1 1 "$(cat here)" | sort >want
sort out >sorted
same "the folder by sshd" want sorted
"$te_run" --ssh "$by_ssh $tmp/user" --te-run "$wrapper" --hosts 127.0.0.1 sh -c \
	': >up.ssh; exec sleep 60.'$$'2112' >out 2>err </dev/null &
pid=$!
until_ok test -e up.ssh
kill -9 $pid
wait $pid 2>/dev/null
gone "a signal by sshd" 60.$$2112
gives "an unknown key" 1 timeout 60 "$te_run" --ssh "$by_ssh $tmp/other" --te-run "$wrapper" \
	--hosts 127.0.0.1 true

tap_end
