#!/bin/sh
# installcheck.sh - run by make installcheck: what was installed serves a user who
# has only that: headers, pkg-config, libraries, man pages, examples, tools.
# Wants DESTDIR, bindir, sbindir, libdir, includedir, mandir, pkgconfigdir, exampledir, srcdir, CC,
# CXX, FC, PKG_CONFIG, HEADERS, FORTRAN, MANS, PROGRAMS, SPROGRAMS, EXAMPLES, SANITIZE.

fail()
{
	echo "installcheck: $*" >&2
	exit 1
}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/te-installcheck.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

PKG_CONFIG_PATH=$DESTDIR$pkgconfigdir
PKG_CONFIG_SYSROOT_DIR=$DESTDIR
LD_LIBRARY_PATH=$DESTDIR$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TE_BACKEND=host
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR LD_LIBRARY_PATH TE_BACKEND
pc=${PKG_CONFIG:-pkg-config}

# the headers and the Fortran module, and nothing else
for h in $HEADERS $FORTRAN; do basename "$h"; done | sort >"$tmp/want"
(cd "$DESTDIR$includedir/te" && ls) | sort >"$tmp/got"
diff "$tmp/want" "$tmp/got" || fail "headers in $DESTDIR$includedir/te"

for m in $MANS; do
	f=$DESTDIR$mandir/man${m##*.}/${m##*/}
	[ -s "$f" ] || fail "$f is missing"
	case $m in *.3) ;; *) continue ;; esac
	# each function of a page is found by its name; .so is followed from the folder above man3
	sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z0-9_]*\).*/\1/p' "$f" >"$tmp/names"
	while read -r fn; do
		a=$DESTDIR$mandir/man3/$fn.3
		[ "$a" = "$f" ] || [ "$(cat "$a")" = ".so man3/${m##*/}" ] || fail "$a does not include ${m##*/}"
	done <"$tmp/names"
done

for h in $HEADERS; do
	h=${h##*/}
	echo "#include <te/$h>" >"$tmp/a.c"
	cp "$tmp/a.c" "$tmp/a.cc"
	$CC -std=c99 -Wall -Werror -I"$DESTDIR$includedir" -fsyntax-only "$tmp/a.c" ||
		fail "te/$h does not compile alone as C"
	[ -z "$CXX" ] ||
		$CXX -std=c++11 -Wall -Werror -I"$DESTDIR$includedir" -fsyntax-only "$tmp/a.cc" ||
		fail "te/$h does not compile alone as C++"
done

for l in core:te_version graph:te_graph_version comm:te_comm_version; do
	fn=${l#*:} header=${l%:*}
	[ "$header" = core ] && header=version
	flags=$($pc --cflags --libs "libte${l%:*}") || fail "pkg-config does not find libte${l%:*}"
	printf '#include <string.h>\n#include <te/version.h>\n#include <te/%s.h>\n' "$header" >"$tmp/a.c"
	printf 'int main(void) { return strcmp(%s(), TE_VERSION); }\n' "$fn" >>"$tmp/a.c"
	$CC -Wall -Werror -o "$tmp/a" "$tmp/a.c" $flags $SANITIZE || fail "libte${l%:*} does not link"
	"$tmp/a" || fail "a program linked to libte${l%:*} does not run"
done
case " $HEADERS " in *te/token.h*)
	$pc --exists libtetoken || fail "pkg-config does not find libtetoken" ;;
esac

# run NAME COMPILER ARGUMENT...: compile, link and run a program in a folder of its own
run()
{
	name=$1
	shift
	"$@" -lm -o "$tmp/a" $SANITIZE || fail "$name does not build"
	mkdir "$tmp/run" && (cd "$tmp/run" && "$tmp/a" >"$tmp/out") || {
		cat "$tmp/out" >&2
		fail "$name does not run"
	}
	rm -rf "$tmp/run"
}

# another compiler's programs may not start with a library that has this one's sanitizers
if [ -n "$SANITIZE" ]; then
	CXX='' FC=''
	echo "installcheck: skipped: C++ and Fortran programs, since the library has sanitizers"
else
	[ -n "$CXX" ] || echo "installcheck: skipped: C++ programs, since no C++ compiler was found"
	[ -n "$FC" ] || echo "installcheck: skipped: Fortran programs, since gfortran was not found"
fi
if [ -n "$FC" ]; then
	f=$($pc --variable=fortran libtecore)
	# some pkg-configs do not prepend PKG_CONFIG_SYSROOT_DIR to variables
	[ -e "$f/te.f90" ] || f=$DESTDIR$f
	(cd "$tmp" && $FC -c "$f/te.f90") || fail "$f/te.f90 does not compile"
fi

# follow NAME: runs the commands of standard input as a user of the installation types them, in one
# folder; cc, gfortran and pkg-config are those of this build. A pipeline is a subshell: || exit 1
mkdir "$tmp/user"
follow()
{
	grep -E '^(cp|cc|gfortran|\./[a-z]*$)' | sed -e "s,^cc ,$CC -Wall -Werror $SANITIZE ," \
		-e "s,^gfortran ,$FC ," -e "s,\$(pkg-config --variable=fortran libtecore),$f," \
		-e "s,pkg-config,$pc,g" -e "s,/usr/local/share/doc/te/examples,$DESTDIR$exampledir," \
		>"$tmp/commands"
	[ -s "$tmp/commands" ] || fail "$1 has no commands"
	(cd "$tmp/user" && sh -e "$tmp/commands") >"$tmp/out" 2>&1 || {
		cat "$tmp/commands" "$tmp/out" >&2
		fail "the commands of $1 do not work"
	}
}

sed -n '/^```c$/,/^```$/p' "$srcdir/README.md" | sed '/^```/d' >"$tmp/user/hello.c"
{ sed -n 's/^    cc /cc /p' "$srcdir/README.md" && echo ./hello; } | follow README.md || exit 1
man7=$DESTDIR$mandir/man7
awk -f "$srcdir/t/lib/commands.awk" "$man7/te_tutorial.7" | follow "te_tutorial(7)" || exit 1
if [ -n "$FC" ]; then
	cp "$DESTDIR$exampledir/fortran.f90" "$tmp/user/program.f90"
	{ awk -f "$srcdir/t/lib/commands.awk" "$man7/te_fortran.7" && echo ./program; } |
		follow "te_fortran(7)" || exit 1
fi

flags=$($pc --cflags --libs libtegraph libtecomm libtecore)
for e in $EXAMPLES; do
	f=$DESTDIR$exampledir/${e##*/}
	case $e in
	*/mpi.c) ;; # needs MPI: t/meta/t0006-examples.t runs it
	*.c) run "$e" $CC -Wall -Werror "$f" $flags ;;
	*.cc) [ -z "$CXX" ] || run "$e" $CXX -std=c++11 -Wall -Wextra -Werror "$f" $flags ;;
	*.f90) [ -z "$FC" ] || run "$e" $FC "-I$tmp" "$f" "$tmp/te.o" $flags ;;
	esac
done

for p in $PROGRAMS; do
	"$DESTDIR$bindir/${p##*/}" --version >/dev/null || fail "${p##*/} --version does not run"
done
for p in $SPROGRAMS; do
	"$DESTDIR$sbindir/${p##*/}" --version >/dev/null || fail "${p##*/} --version does not run"
done

echo "installcheck: headers, man pages, pkg-config, libraries, examples and tools are in order"
