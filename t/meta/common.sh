# common.sh - what the scripts of t/meta share.
. "$abs_top_srcdir/t/lib/tap.sh"

LC_ALL=C
export LC_ALL
libs="libtecore libtegraph libtecomm"
# not with --disable-token
case " $TT_HEADERS " in *te/token.h*) libs="$libs libtetoken" ;; esac

# so LIB: the built shared library
so()
{
	echo "$abs_top_builddir/$1/.libs/$1.so"
}

# exports LIB public|private: the names its version script lists
exports()
{
	sed 's,/\*.*\*/,,' "$abs_top_srcdir/$1/$1.map" | awk -v want="$2" '
		/[A-Z0-9_.]+ \{/ { node = $1 ~ /_PRIVATE$/ ? "private" : "public" }
		/global:/ { global = 1; next }
		/local:/ { global = 0 }
		/\}/ { global = 0 }
		global && node == want { gsub(/[ \t;]/, ""); if ($0 != "") print }' | sort
}

# flags to compile and link against the tree as it was built
cflags="-I$abs_top_srcdir/include -I$abs_top_builddir/include $TT_SANITIZE"
ldflags="$TT_SANITIZE"
for l in $libs; do
	ldflags="$ldflags -L$abs_top_builddir/$l/.libs"
done
