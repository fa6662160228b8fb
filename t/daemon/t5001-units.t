#!/bin/sh
# The units of systemd have no errors and protect the system from ted. What systemd does with
# them is tested in a guest: vm/payload/service.sh.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$tmp" || exit 99

for kind in system user; do
	unit=$abs_top_builddir/daemon/$kind/ted.service
	check "$kind: a wrong configuration is not tried again" \
		grep -qx 'RestartPreventExitStatus=2' "$unit"
	check "$kind: the program is where it is installed" \
		grep -qE '^ExecStart=/.*/ted$' "$unit"
done
if ! command -v systemd-analyze >/dev/null; then
	skip "verify" "there is no systemd-analyze"
	tap_end
fi
for kind in system user; do
	# with a program that exists
	mkdir "$tmp/$kind"
	sed "s,^ExecStart=.*,ExecStart=/bin/true," \
		"$abs_top_builddir/daemon/$kind/ted.service" >"$tmp/$kind/ted.service"
	cp "$abs_top_builddir/daemon/$kind/ted.socket" "$tmp/$kind"
	XDG_RUNTIME_DIR=$tmp SYSTEMD_LOG_LEVEL=warning systemd-analyze --$kind --man=no verify \
		"$tmp/$kind/ted.service" "$tmp/$kind/ted.socket" >out 2>&1
	grep "ted\." out >why
	empty "$kind: no errors in the units" why
done
tap_end
