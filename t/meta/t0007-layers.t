#!/bin/sh
# Includes respect the layers: a library sees public headers and its own folders, each folder of
# libtecore only those below it, libtegraph and libtecomm not each other, tools and examples what
# is installed. Includes make no circle, nor do the calls between files of the folders listed below.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir" || exit 99

# FILE TARGET of each include of one of our files, in the order of files
find include kernels libte* tools daemon examples -name '*.[chS]' -o -name '*.cu' -o -name '*.cuh' |
	sort | xargs awk '
	match($0, /^[ \t]*#[ \t]*include[ \t]*(<te\/|")[^">]*/) {
		name = substr($0, RSTART, RLENGTH)
		sub(/^[^<"]*[<"]/, "", name)
		print FILENAME, name
	}' >"$tmp/includes"

# ours FOLDER: its files' lines of these
ours()
{
	grep "^$1/" "$tmp/includes"
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
	case $h in graph | schedule | step | comm | comm_op | collective | reducer | token | te) ;; *) public="$public|te/$h\.h" ;; esac
done
private="libtecore/(base/(gguf|grow|private|userns)|offload/limits|plan/(place|span))\.h"
graph="te/(graph|schedule|step)\.h"
comm="te/(comm|comm_op|collective|reducer)\.h"
token="te/token\.h"

only "libtecore includes public headers, kernels/ and its own" libtecore \
	"config\.h|$public|libtecore/.*|kernels/.*"
only "libtegraph includes public headers and its own" libtegraph \
	"config\.h|$public|$graph|$private|[a-z_]+\.h|libtegraph/.*"
only "libtecomm includes public headers, its own and random numbers" libtecomm \
	"config\.h|$public|$comm|$private|libtecore/base/splitmix64\.h|kernels/(te_k|launch|comm/fold)\.h|[a-z_]+\.h|libtecomm/.*"
only "libtetoken includes public headers and its own" libtetoken \
	"config\.h|$public|$token|$private|[a-z_]+\.h"
only "kernels include public headers, kernels/ and libtecore/base" kernels \
	"config\.h|$public|kernels/.*|libtecore/base/.*"
only "tools include installed headers, their own, their library, GGUF, random numbers and ted's protocol" tools \
	"config\.h|$public|$graph|$comm|$token|libtecore/base/(gguf|splitmix64|wire)\.h|tools/((export|generate|lib|run)/.*|plot_log\.h)|[a-z_]+\.(h|def)"
only "their library includes none of them" tools/lib \
	"config\.h|$public|$graph|$comm|$token|libtecore/base/gguf\.h|[a-z_]+\.h"
only "the daemon includes installed headers, its own, its protocol and options" daemon \
	"config\.h|$public|$graph|$comm|libtecore/base/(userns|wire)\.h|tools/lib/(option|say)\.h|daemon/.*|[a-z_]+\.h"
only "examples include installed headers" examples "$public|$graph|te/(comm|comm_op|collective|te)\.h"
only "public headers include public headers" include "$public|$graph|$comm|$token"

# the folders of libtecore and of libtecomm, lowest first; kernels/ is one of them, and the files of
# libtecomm that are in none of its folders are its API
order="libtecore/base kernels libtecore/backend libtecore/tensor libtecore/capture
	libtecore/offload libtecore/quant libtecore/ops libtecore/plan
	libtecomm/meet libtecomm/reach libtecomm/pool libtecomm/collective libtecomm/collective/nodes libtecomm/ops libtecomm libtetoken"
{ ours kernels; ours libtecore; ours libtecomm; } | awk -v order="$order" '
	function rank(file, i) {
		for (i = 1; i <= n; i++)
			if (index(file, folder[i] "/") == 1)
				return i
		return 0
	}
	BEGIN { n = split(order, folder) }
	$2 ~ /^(libtecore|libtecomm|kernels)\// {
		seen++
		if (!rank($1) || !rank($2) || rank($2) > rank($1))
			print $1 " includes " $2
	}
	END { if (seen < 100) print "only " seen " includes were found" }' >"$tmp/bad"
empty "folders include folders below them" "$tmp/bad"

# circle WORDS: edges "FROM TO WHY" of stdin that are part of a circle or between two: files without
# edges to them, or from them, are removed in turn
circle()
{
	awk -v words="$1" '
	{ n++; from[n] = $1; to[n] = $2; why[n] = $3 }
	END {
		while (removed != n) {
			removed = n
			split("", begins)
			split("", ends)
			for (i = 1; i <= n; i++) {
				begins[from[i]] = 1
				ends[to[i]] = 1
			}
			for (i = m = 0; i++ < n;)
				if (to[i] in begins && from[i] in ends) {
					from[++m] = from[i]
					to[m] = to[i]
					why[m] = why[i]
				}
			n = m
		}
		for (i = 1; i <= n; i++)
			print from[i], words, to[i], why[i]
	}'
}

for l in kernels $libs; do
	ours $l | awk '{ local = $1; sub(/[^\/]*$/, $2, local); print $1, $2 ~ /\// ? $2 : local }'
done | circle includes >"$tmp/bad"
empty "includes make no circle" "$tmp/bad"

# calls FOLDER: FILE FILE FUNCTION of each call of a file's function by another file of the folder;
# tables of functions are not calls
calls()
{
	# objects of a library, or of a program; if it has flags of its own, with its name before them
	objs=$(printf "%s\n" "$1"/*.c "$abs_top_builddir/$1"/.libs/*.o "$abs_top_builddir/$1"/*.o |
		awk -F / '
			{ name = $NF; sub(/\.[co]$/, "", name); sub(/.*-/, "", name) }
			/\.c$/ { sources[name] = 1; next }
			name in sources && !seen[name]++')
	$NM -A -g $objs | awk '
		{ sub(/\.o:.*/, "", $1); sub(/.*[\/-]/, "", $1) }
		$(NF - 1) == "U" { uses[$NF] = uses[$NF] $1 " " }
		$(NF - 1) == "T" { file[$NF] = $1; seen++ }
		END {
			if (!seen)
				print "no no functions"
			for (s in file) {
				k = split(uses[s], u, " ")
				for (i = 1; i <= k; i++)
					print u[i], file[s], s
			}
		}'
}

for f in kernels kernels/attn kernels/comm kernels/gemm kernels/quant libtecore/base \
	libtecore/backend libtecore/backend/cuda libtecore/backend/host libtecore/tensor \
	libtecore/capture \
	libtecore/offload libtecore/quant libtecore/ops libtecore/plan libtegraph libtecomm/meet \
	libtecomm/reach libtecomm/reach/link libtecomm/reach/link/verbs libtecomm/pool \
	libtecomm/collective libtecomm/collective/nodes libtecomm/ops libtecomm libtetoken daemon \
	tools/export tools/generate tools/lib tools/te_perftest tools/te_train; do
	calls $f | circle calls >"$tmp/bad"
	empty "calls between files of $f make no circle" "$tmp/bad"
done

tap_end
