#!/bin/sh
# Includes respect the layers: a library sees public headers and its own folder,
# libtegraph and libtecomm not each other, tools and examples what is installed.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir" || exit 99

# ours FOLDER: FILE TARGET of each include of one of our files
ours()
{
	find "$1" -name '*.[chS]' -o -name '*.cu' -o -name '*.cuh' | sort | while read -r f; do
		sed -n 's/^[ \t]*#[ \t]*include[ \t]*\([<"][^">]*\).*/\1/p' "$f" |
			while read -r t; do
				name=${t#?}
				case $t in
				'<te/'*) echo "$f $name" ;;
				'"'*) echo "$f $name" ;;
				esac
			done
	done
}

# only NAME FOLDER PATTERN: includes outside the pattern are wrong
only()
{
	[ -d "$2" ] || return
	ours "$2" | grep -vE "^[^ ]+ ($3)\$" >"$tmp/bad"
	empty "$1" "$tmp/bad"
}

# a new public header of libtecore extends the pattern by itself
for h in $TT_HEADERS; do
	h=$(basename "$h" .h)
	case $h in graph | comm) ;; *) public="$public|te/$h\.h" ;; esac
done
base="config\.h|$public|te/(private|splitmix64)\.h"

only "libtecore includes public headers, kernels/ and its own" libtecore \
	"$base|[a-z_]+\.h|libtecore/.*|kernels/[^/]*|te_k[a-z_]*\.(h|def)"
only "libtegraph includes public headers and its own" libtegraph "$base|te/graph\.h|[a-z_]+\.h|libtegraph/.*"
only "libtecomm includes public headers and its own" libtecomm "$base|te/comm\.h|[a-z_]+\.h|libtecomm/.*"
only "kernels include kernels" kernels "(kernels/)?te_[a-z0-9_]*\.(h|cuh|def)"
only "tools include installed headers, their own and random numbers" tools \
	"config\.h|$public|te/(graph|comm|splitmix64)\.h|tools/.*|[a-z_]+\.h"
only "the daemon includes installed headers and its own" daemon \
	"config\.h|$public|te/(graph|comm)\.h|daemon/.*|[a-z_]+\.h"
only "examples include installed headers" examples "$public|te/(graph|comm)\.h"
only "public headers include public headers" include "$public|te/(graph|comm)\.h"

tap_end
