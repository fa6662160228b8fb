# service.sh - ted(8) under systemd, by the units that a build installs, of users and of the system:
# activation by its socket, readiness, a crash, a process that stops, a wrong configuration.

for tool in systemd systemctl ted tectl; do
	if [ ! -x /bin/$tool ]; then
		skip "ted under systemd" "there is no $tool"
		exit 0
	fi
done
mkdir -p /run
mount -t tmpfs run /run
mkdir -m 700 /run/user
mkdir -p /run/systemd/system # a manager of a user wants a system that systemd has booted
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo 0123456789abcdef0123456789abcdef >/etc/machine-id

# ctl ARGUMENT...: of systemctl, for the manager; that of the system hears who is in its namespace
ctl()
{
	case $kind in
	user) systemctl --user "$@" ;;
	system) nsenter -t "$(pidof systemd)" -m -p systemctl "$@" ;;
	esac
}

# begin KIND: the manager of a user or of the system, which is the first process of a namespace
begin()
{
	kind=$1 units=/etc/systemd/$1
	for target in basic default exit shutdown sockets sysinit; do
		echo '[Unit]' >$units/$target.target
	done
	# the program is where the unit says; a configuration of the test, and less patience
	program=$(sed -n 's/^ExecStart=//p' $units/ted.service)
	mkdir -p "${program%/*}" $units/ted.service.d
	ln -sf /bin/ted "$program"
	cat >$units/ted.service.d/test.conf <<-EOT
		[Service]
		ExecStart=
		ExecStart=$program --config /etc/test.conf
		WatchdogSec=3
	EOT
	: >/etc/test.conf
	case $kind in
	user)
		export XDG_RUNTIME_DIR=/run/user
		set -- systemd
		;;
	system)
		unset XDG_RUNTIME_DIR
		set -- env container=test unshare -p -f --mount-proc systemd --unit=default.target
		;;
	esac
	"$@" --$kind --log-target=console >/tmp/$kind.out 2>&1 </dev/null &
	manager=$!
	until_true ctl is-active default.target || { ctl is-active default.target; cat /tmp/$kind.out; exit 1; }
}

# properties NAME...: of the service, on a line
properties()
{
	line=
	for name; do
		line="$line $(ctl show -P "$name" ted.service)"
	done
	echo "${line# }"
}

is()
{
	properties $2 >/tmp/state
	grep -qxE -- "$1" /tmp/state
}

# state NAME PATTERN PROPERTY...: they come to be so
state()
{
	claim="$kind: $1" pattern=$2
	shift 2
	until_true is "$pattern" "$*"
	judge "$claim" 0 "^$pattern\$" 0 /tmp/state
}

serves()
{
	gives "$kind: $1" 0 '^te_clients 1$' tectl status
}

kinds="user system"
[ -z "$short" ] || kinds=user
for kind in $kinds; do
	begin $kind
	ctl start ted.socket
	state "ted does not run before it is needed" inactive ActiveState
	serves "a client starts it by its socket"
	state "it has said that it is ready" "active running notify 0" \
		ActiveState SubState Type NRestarts
	ctl show -P SystemCallFilter ted.service >/tmp/calls
	gives "$kind: its system calls are filtered, and none of io_uring is left" 0 \
		'^Seccomp:.*2' sh -c '! grep io_uring /tmp/calls &&
		grep ^Seccomp: /proc/$(pidof ted)/status'
	[ $kind = user ] || gives "$kind: it has a user of its own" 0 '^Uid:.6[0-9]{4}' \
		grep '^Uid:' "/proc/$(pidof ted)/status"
	ctl kill --kill-who=main -s KILL ted.service
	state "killed, it is started again" "active running 1" ActiveState SubState NRestarts
	serves "killed, it serves again"
	ctl kill --kill-who=main -s STOP ted.service
	state "stopped, it is ended by the watchdog and started again" "active running 2" \
		ActiveState SubState NRestarts
	serves "stopped, it serves again"
	echo 'clients = many' >/etc/test.conf
	ctl stop ted.service 2>/tmp/why
	ctl reset-failed ted.service
	ctl start ted.service 2>/tmp/why
	state "a wrong configuration is status 2" "failed 2 exit-code" \
		ActiveState ExecMainStatus Result
	sleep 1 # ten times as long as systemd waits before it starts a service again
	state "after which it is not started again" "failed 0" ActiveState NRestarts
	: >/etc/test.conf
	ctl reset-failed ted.service ted.socket
	ctl restart ted.socket
	serves "until it is mended"
	ctl stop ted.socket ted.service
	kill -KILL $manager
	wait $manager 2>/tmp/why
done
exit 0
