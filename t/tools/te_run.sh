# te_run.sh - checks of output and processes for the scripts about te_run: . it after tap.sh.

# has NAME PATTERN FILE: a line matches
has()
{
	grep -E -- "$2" "$3" >/dev/null && : >why || { echo "no $2 in:"; cat "$3"; } >why
	empty "$1" why
}

# gone NAME MARK: soon no process has the mark in its command line. It takes two scans in a row: a
# process that starts another during a scan, and ends, can hide it from this one. Marks have $$ in
# them: another build may be tested at the same time.
gone()
{
	echo "$2" >mark
	i=0
	scans=0
	while [ $i -lt 1200 ] && [ $scans -lt 2 ]; do
		scans=$((scans + 1))
		if grep -lsaFf mark /proc/[0-9]*/cmdline >why; then
			scans=0
			sleep 0.05
		fi
		i=$((i + 1))
	done
	empty "$1" why
}
