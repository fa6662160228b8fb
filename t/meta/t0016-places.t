#!/bin/sh
# CONTRIBUTING.md tells how many files an addition touches, sources of tests not counted: no more
# have the name of the newest example of each kind.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir" || exit 99

# places ROW EXAMPLE FOLDERS: files of the folders whose names or lines match one of the patterns of
# stdin, one a line, are at most as many as the row of the table has in parentheses
places()
{
	cat >"$tmp/patterns"
	most=$(sed -n "s/^| $1 (\([0-9]*\) files\{0,1\}) |.*/\1/p" CONTRIBUTING.md)
	find $3 -type f ! -name '*.[od]' ! -name '*.l[oa]' ! -name '*.fatbin*' ! -path '*/.*' |
		sort >"$tmp/files"
	{
		xargs grep -lE -f "$tmp/patterns" <"$tmp/files"
		grep -E -f "$tmp/patterns" "$tmp/files"
	} | sort -u >"$tmp/found"
	n=$(wc -l <"$tmp/found")
	{
		echo "CONTRIBUTING.md has ${most:-no number}, $n are found:"
		cat "$tmp/found"
	} >"$tmp/bad"
	# an example that is gone would pass for ever
	if [ "$n" -gt 0 ] && [ "$n" -le "${most:--1}" ]; then
		ok "$1, as $2: $n files"
	else
		not_ok "$1, as $2" "$tmp/bad"
	fi
}

product="include kernels libtecore libtegraph libtecomm daemon tools man t/local.mk"

places "a recipe" nvfp4 "$product" <<'P'
TE_RECIPE_NVFP4
X\(nvfp4\)
te__recipe_nvfp4\b
libtecore/quant/nvfp4\.c
It Li nvfp4
delayed.*current.*nvfp4\b
P
places "a kernel" attn_bwd_bias kernels <<'P'
attn_bwd_bias
ATTN_BWD_BIAS
attn/bias\.
P
places "an operation" qk_norm "$product" <<'P'
(Nm|Fo) te_op_qk_norm\b
te_op_qk_norm(\(const|;)
libtecore/ops/qk_norm\.c
P
places "a backend entry" load_shared "libtecore/backend t/local.mk" <<'P'
load_shared
P
places "a transport between nodes" tcp "$product" <<'P'
te__link_tcp\b
link/tcp\.
It Cm tcp$
P
places "an option of a tool" --chat-system "tools man" <<'P'
chat[_-]system
P
places "a test of .te_perftest." calls "tools man/te_perftest.1" <<'P'
\btest_calls\b
TEST\(calls\)
te_perftest/calls\.
^\.Ss calls$
P

grep -lE '^(START_TEST|END_TEST)|tcase_add_' t/*/*.c | grep -vE '^t/lib/' >"$tmp/bad"
empty "no test is listed a second time: TEST() registers it" "$tmp/bad"

# the twin X_gpu of a program of TT_PAIRS is the same program: no file has its name
sed -n '/^TT_\(LONG_\)\{0,1\}PAIRS = /,/[^\\]$/s/^\t\([^ ]*\).*/\1/p' t/local.mk >"$tmp/pairs"
check "there are pairs" test -s "$tmp/pairs"
while read -r p; do
	ls "${p}"_gpu.c "${p}"_gpu.h 2>/dev/null
	grep -n "${p}_gpu\b" t/local.mk
done <"$tmp/pairs" >"$tmp/bad"
empty "twins of pairs touch no file" "$tmp/bad"

tap_end
