#!/bin/sh
# Rules of the sources that a pattern can find.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir" || exit 99

code=$(find include libtecore libtegraph libtecomm libtetoken kernels tools daemon examples t \
	-name '*.[chS]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort)
libcode=$(echo "$code" | grep -E '^(libte|kernels/)')
lists=$(find . -path ./build-aux -prune -o -name local.mk -print | sort)

grep -nE '\b(secure_)?getenv *\(' $libcode | grep -v '^libtecore/base/param\.c:' >"$tmp/bad"
empty "libraries read the environment in param.c only" "$tmp/bad"

grep -nE '\bcuda(Malloc|Free|Mem|Stream|Event|Graph|Launch|Device|Get|Set|Func|Host)[A-Za-z]* *\(' \
	$code >"$tmp/bad"
grep -nE '#[[:space:]]*include[[:space:]]*[<"](cuda|cuda_runtime[a-z_]*|cublas[A-Za-z_0-9]*|nccl|infiniband/.*)\.h' \
	$(echo "$code" | grep -v '\.cuh*$' |
		grep -vE '^(t/backend/cuda_abi\.c|libtecomm/reach/link/verbs/verbs\.h)$') >>"$tmp/bad"
# (providers of verbs are called by inline functions of the header)
empty "no CUDA runtime call, and no header of a library that is opened by dlopen" "$tmp/bad"

grep -nE '\b(exit|abort|_exit|printf|puts|perror) *\(' \
	$(echo "$libcode" | grep -E '\.c$') | grep -vE '^[^:]*:[0-9]*:[[:space:]]*/?\*' >"$tmp/bad"
grep -nE '(fprintf|fputs|fputc|fwrite) *\(.*\b(stdout|stderr)\b' \
	$(echo "$libcode" | grep -E '\.c$') | grep -v '^libtecore/base/log\.c:' >>"$tmp/bad"
empty "libraries do not print, exit or abort" "$tmp/bad"

grep -nE '\b(malloc|calloc|realloc|strdup|strndup|aligned_alloc|posix_memalign|free) *\(' \
	$(echo "$libcode" | grep -E '\.c$') | grep -vE '^libtecore/base/(fault|param)\.c:' |
	grep -vE '^[^:]*:[0-9]*:[[:space:]]*/?\*' >"$tmp/bad"
empty "libraries allocate through te__malloc and its kin" "$tmp/bad"

grep -nE '[[:space:]]$' $code $lists configure.ac Makefile.am >"$tmp/bad"
empty "no white space ends a line" "$tmp/bad"

# a tab reaches the next multiple of 8
awk '{
	n = split($0, part, "\t")
	for (i = 1; i < n; i++)
		part[i + 1] = sprintf("%s%*s%s", part[i], 8 - length(part[i]) % 8, "", part[i + 1])
	if (length(part[n]) > 100)
		print FILENAME ":" FNR ": " length(part[n]) " columns"
}' $(echo "$code" | grep -v '^t/data/') >"$tmp/bad"
empty "no line is longer than 100 columns" "$tmp/bad"

wc -l $(echo "$code" | grep -v '^t/data/') | awk '$2 != "total" && $1 > 1000' >"$tmp/bad"
empty "no file is longer than 1,000 lines" "$tmp/bad"

grep -nE '^[[:space:]]*//' $(echo "$code" | grep -E '\.[ch]$') >"$tmp/bad"
empty "comments are /* */" "$tmp/bad"

awk 'FNR == 1 && !/^\/\*/ { print FILENAME }' $(echo "$code" | grep -E '\.(c|cu)$') >"$tmp/bad"
empty "each source opens with what it is responsible for" "$tmp/bad"

# make check gives each test a TMPDIR, and tells what it leaves there
grep -n '"/tmp/te-' $(echo "$code" | grep -E '^t/.*\.[ch]$') >"$tmp/bad"
empty "tests make files in tt_tmpdir()" "$tmp/bad"

# what differs between recipes is in their rows
grep -nE '\bTE_RECIPE_(NONE|DELAYED|CURRENT|BLOCK)\b|\brecipe(\.|->)kind\b' \
	$(echo "$libcode" | grep -E '^libte.*\.[ch]$') | grep -v '^libtecore/quant/' >"$tmp/bad"
empty "only libtecore/quant looks at the kind of a recipe" "$tmp/bad"

# every file is in a list, so it is in the tarball
find include/te kernels libtecore libtegraph libtecomm libtetoken tools daemon examples man t vm \
	-type f -name '*.*' ! -name '*.in' ! -name '*.fatbin*' ! -name '*.d' ! -name '*.o' \
	! -name '*.lo' ! -name '*.la' ! -name '*.l[oa]T' ! -name '*.log' ! -name '*.trs' ! -name '*.left' ! -name '*.pc' \
	! -path '*/.libs/*' ! -path '*/.deps/*' ! -path 'include/te/version.h' \
	! -path 'include/te/te.f90' ! -path 't/data/*' ! -path 'vm/run*' ! -name .dirstamp |
	grep -vE '/local\.mk$|^man/te_environment\.7$' | # automake's own, and a built page
	awk -v lists="$(echo $lists) Makefile.am" '
	BEGIN {
		n = split(lists, list, " ")
		for (i = 1; i <= n; i++)
			while ((getline <list[i]) > 0) {
				m = split($0, part, /[^A-Za-z0-9_.\/-]+/)
				for (k = 1; k <= m; k++)
					named[part[k]]
			}
	}
	{
		program = $0
		sub(/\.c$/, "", program) # as a Check program is listed
		if (!($0 in named) && !(program in named && /^t\//))
			print
	}' >"$tmp/bad"
empty "every file is in a list of a local.mk" "$tmp/bad"

# sorted lists merge without conflicts
for f in $lists; do
	awk -v file="$f" '
		/^[A-Za-z0-9_]+ \+?= \\$/ { prev = ""; list = $1 ~ /(LDADD|LIBADD|ENVIRONMENT)$/ ? "" : $1; next }
		/^\t[^ \t]+( \\)?$/ && list != "" {
			if (prev != "" && $1 < prev)
				print file ": " list ": " $1 " comes after " prev
			prev = $1
		}
		!/\\$/ { list = "" }' "$f"
done >"$tmp/bad"
empty "lists of local.mk are sorted" "$tmp/bad"

tap_end
