# tap.sh - TAP for scripts: . "$abs_top_srcdir/t/lib/tap.sh", checks, then tap_end.
# $tmp is a temporary folder.

tap_n=0
tap_bad=0
tmp=$(mktemp -d "${TMPDIR:-/tmp}/te-test.XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 99' HUP INT TERM

# libraries of the build
for tap_lib in core graph comm token; do
	LD_LIBRARY_PATH=$abs_top_builddir/libte$tap_lib/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH

# built PROGRAM: the path of a program of the build. Libtool's script with its name, which sets
# LD_LIBRARY_PATH, takes longer to start than the program.
built()
{
	tap_real=$abs_top_builddir/${1%/*}/.libs/${1##*/}
	[ -x "$tap_real" ] || tap_real=$abs_top_builddir/$1
	echo "$tap_real"
}

# skip_all REASON: skips the whole script; call it before any check
skip_all()
{
	echo "1..0 # SKIP $*"
	exit 0
}

# ok NAME, not_ok NAME FILE: a result; the file has the reason
ok()
{
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $*"
}

not_ok()
{
	tap_n=$((tap_n + 1))
	tap_bad=1
	echo "not ok $tap_n - $1"
	sed 's/^/# /' "$2"
}

# skip NAME REASON: skips one check
skip()
{
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $1 # SKIP $2"
}

# check NAME COMMAND...: the command succeeds
check()
{
	tap_name=$1
	shift
	if "$@" >"$tmp/tap.out" 2>&1; then
		ok "$tap_name"
	else
		echo "exit status $? of: $*" >>"$tmp/tap.out"
		not_ok "$tap_name" "$tmp/tap.out"
	fi
}

# empty NAME FILE: the file is empty
empty()
{
	if [ -s "$2" ]; then not_ok "$1" "$2"; else ok "$1"; fi
}

# same NAME WANT GOT: two files are equal
same()
{
	check "$1" diff "$2" "$3"
}

# fails NAME SUBJECT COMMAND...: exit 2, and one line on standard error that names the subject. This
# and says() leave the output in out and err of the current folder.
fails()
{
	tap_name=$1 tap_subject=$2
	shift 2
	"$@" >out 2>err
	tap_status=$?
	{
		[ $tap_status = 2 ] || echo "exit status $tap_status"
		[ "$(wc -l <err)" = 1 ] || echo "not one line"
		grep -qF -- "$tap_subject" err || echo "no \"$tap_subject\""
		[ -s out ] && echo "output on standard output"
	} >"$tmp/tap.why"
	[ -s "$tmp/tap.why" ] && cat err >>"$tmp/tap.why"
	empty "$tap_name" "$tmp/tap.why"
}

# says NAME PATTERN COMMAND...: exit 0, and a line on standard output that the pattern matches
says()
{
	tap_name=$1 tap_pattern=$2
	shift 2
	"$@" >out 2>err
	echo "exit status $?, no $tap_pattern" >>err
	if tail -n 1 err | grep -q '^exit status 0' && grep -qE -- "$tap_pattern" out; then
		ok "$tap_name"
	else
		not_ok "$tap_name" err
	fi
}

tap_end()
{
	echo "1..$tap_n"
	exit $tap_bad
}
