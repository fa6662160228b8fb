#!/bin/sh
# Each program in a man page's EXAMPLES, README.md's, and each of examples/ compiles
# without a warning and runs on the host backend, in C, C++ and Fortran.
. "$abs_top_srcdir/t/meta/common.sh"

TE_BACKEND=host
export TE_BACKEND

# try NAME COMPILER ARGUMENT...: compile, link and run, in a folder of its own
try()
{
	name=$1
	shift
	mkdir -p "$tmp/run"
	if "$@" -lm -o "$tmp/a.out" >"$tmp/out" 2>&1; then
		if (cd "$tmp/run" && "$tmp/a.out") >"$tmp/out" 2>&1; then
			ok "$name"
		else
			echo "exit status $?" >>"$tmp/out"
			not_ok "$name" "$tmp/out"
		fi
	else
		not_ok "$name" "$tmp/out"
	fi
	rm -rf "$tmp/run"
}

# another compiler's programs may not start with a library that has this one's sanitizers
[ -z "$TT_SANITIZE" ] || CXX='' FC=''
why="no compiler${TT_SANITIZE:+ for a library with sanitizers}"
cc="$CC -Wall -Werror $cflags"

try_cxx()
{
	if [ -n "$CXX" ]; then
		try "$1" $CXX -std=c++11 -Wall -Wextra -Werror $cflags "$2" $ldflags \
			-ltegraph -ltecomm -ltecore
	else
		skip "$1" "$why"
	fi
}

# the program of the page before, on two ranks
try_ranks()
{
	if "$(built tools/te_run)" -n 2 "$tmp/a.out" >"$tmp/out" 2>&1; then
		ok "$1 on two ranks"
	else
		not_ok "$1 on two ranks" "$tmp/out"
	fi
}

# two ranks
try_mpi()
{
	if ! command -v mpicc >"$tmp/out" || ! command -v mpirun >"$tmp/out"; then
		skip "$1" "no mpicc or no mpirun"
	elif [ -n "$TT_SANITIZE" ]; then
		skip "$1" "MPI does not start with sanitizers"
	elif ! OMPI_CC=$CC mpicc -Wall -Wextra -Werror $cflags "$2" $ldflags -ltecomm -ltecore \
		-o "$tmp/a.out" >"$tmp/out" 2>&1; then
		not_ok "$1" "$tmp/out"
	elif ! OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 \
		"$tmp/a.out" 65536 3 >"$tmp/out" 2>&1; then
		not_ok "$1" "$tmp/out"
	else
		ok "$1"
	fi
}

case $($FC --version 2>&1) in
GNU*) fflags='-std=f2018 -Wall -Wextra -Werror' ;;
*) fflags= ;;
esac
[ -z "$FC" ] || (cd "$tmp" && $FC -c "$abs_top_builddir/include/te/te.f90")

try_fortran()
{
	if [ -n "$FC" ]; then
		try "$1" $FC $fflags "-I$tmp" "$2" "$tmp/te.o" $ldflags -ltegraph -ltecomm -ltecore
	else
		skip "$1" "$why"
	fi
}

# example PAGE: the program of its EXAMPLES
example()
{
	awk '/^\.Sh EXAMPLES/ { e = 1; next }
	     /^\.Sh/ { e = 0 }
	     e && /^\.Bd/ { c = 1; next }
	     /^\.Ed/ { c = 0 }
	     c' "$1" | sed -e 's/\\&//g' -e 's/\\e/\\/g' -e 's/\\-/-/g'
}

# a sanitizer's library takes longest to link and to start: one page of four, drawn
n=$(awk 'BEGIN { srand(); print int(4 * rand()) }')
for m in $TT_MANS; do
	p="$abs_top_srcdir/$m"
	case $m in *.3) ;; *) continue ;; esac
	n=$((n + 1))
	[ -z "$TT_SANITIZE" ] || [ $((n % 4)) = 0 ] || continue
	example "$p" >"$tmp/a.c"
	try "${m#man/}" $cc "$tmp/a.c" $ldflags \
		$(sed -n 's/^\.Pq libte[a-z]*, Fl \(l[a-z]*\).*/-\1/p' "$p") -ltecore
	! grep -q 'te_run.* -n 2' "$p" || try_ranks "${m#man/}"
done

sed -n '/^```c$/,/^```$/p' "$abs_top_srcdir/README.md" | sed '/^```/d' >"$tmp/a.c"
try "README.md's program" $cc "$tmp/a.c" $ldflags -ltegraph -ltecore

example "$abs_top_srcdir/man/te_fortran.7" >"$tmp/a.f90"
try_fortran te_fortran.7 "$tmp/a.f90"

for e in $TT_EXAMPLES; do
	f=$abs_top_srcdir/$e
	case $e in
	*/mpi.c) try_mpi "$e" "$f" ;;
	*.c) try "$e" $cc "$f" $ldflags -ltegraph -ltecomm -ltecore ;;
	*.cc) try_cxx "$e" "$f" ;;
	*.f90) try_fortran "$e" "$f" ;;
	esac
done

tap_end
