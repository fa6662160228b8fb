# te_run.sh - checks of output and processes for the scripts about te_run: . it after tap.sh.

# has NAME PATTERN FILE: a line matches
has()
{
	grep -E -- "$2" "$3" >/dev/null && : >why || { echo "no $2 in:"; cat "$3"; } >why
	empty "$1" why
}

# gone NAME MARK: soon no process has the mark in its command line
gone()
{
	echo "$2" >mark
	i=0
	while [ $i -lt 1200 ] && grep -qsaFf mark /proc/[0-9]*/cmdline; do
		sleep 0.05
		i=$((i + 1))
	done
	grep -lsaFf mark /proc/[0-9]*/cmdline >why
	empty "$1" why
}
