#!/bin/sh
# Each program in a man page's EXAMPLES, README.md's, and each of examples/ compiles
# without a warning and runs on the host backend.
. "$abs_top_srcdir/t/meta/common.sh"

TE_BACKEND=host
export TE_BACKEND

# try NAME FILE.c LIBRARY...: compile, link and run, in a folder of its own
try()
{
	name=$1 src=$2
	shift 2
	mkdir -p "$tmp/run"
	if $CC -Wall -Werror $cflags -o "$tmp/a.out" "$src" $ldflags "$@" -lm >"$tmp/out" 2>&1; then
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

for m in $TT_MANS; do
	p="$abs_top_srcdir/$m"
	case $m in *.3) ;; *) continue ;; esac
	case $(head -n 1 "$p") in '.so '*) continue ;; esac
	awk '/^\.Sh EXAMPLES/ { e = 1; next }
	     /^\.Sh/ { e = 0 }
	     e && /^\.Bd/ { c = 1; next }
	     /^\.Ed/ { c = 0 }
	     c' "$p" | sed -e 's/\\&//g' -e 's/\\e/\\/g' -e 's/\\-/-/g' >"$tmp/a.c"
	try "${m#man/}" "$tmp/a.c" \
		$(sed -n 's/^\.Pq libte[a-z]*, Fl \(l[a-z]*\).*/-\1/p' "$p") -ltecore
done

sed -n '/^```c$/,/^```$/p' "$abs_top_srcdir/README.md" | sed '/^```/d' >"$tmp/a.c"
try "README.md's program" "$tmp/a.c" -ltecore

for e in $TT_EXAMPLES; do
	case $e in *.c) ;; *) continue ;; esac
	try "$e" "$abs_top_srcdir/$e" -ltegraph -ltecomm -ltecore
done

tap_end
