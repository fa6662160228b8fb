#!/bin/sh
# te_environment(7) holds every parameter, te_errors(7) every code. A test names each parameter.
. "$abs_top_srcdir/t/meta/common.sh"

page=$abs_top_builddir/man/te_environment.7
cat "$abs_top_srcdir"/libte*/*/params.def |
	sed -n 's/^TE_PARAM(\([A-Z0-9_]*\),.*/TE_\1/p' | sort >"$tmp/want"
check "params.def has rows" test -s "$tmp/want"
sed -n 's/^\.It Ev //p' "$page" | sort >"$tmp/got"
same "te_environment.7 has a row for each parameter" "$tmp/want" "$tmp/got"
while read -r p; do
	grep -rqw "$p" "$abs_top_srcdir/t" || echo "$p"
done <"$tmp/want" >"$tmp/bad"
empty "a test names each parameter" "$tmp/bad"

sed -n 's/^\tX(\(TE_E[A-Z]*\), \([0-9]*\),.*/\1 \2/p' \
	"$abs_top_srcdir/include/te/errno.h" >"$tmp/codes"
check "TE_ERRNO_MAP has rows" test -s "$tmp/codes"
cut -d' ' -f1 "$tmp/codes" >"$tmp/want"
sed -n 's/^\.It Er \(TE_E[A-Z]*\).*/\1/p' "$abs_top_srcdir/man/te_errors.7" >"$tmp/got"
same "te_errors.7 has each code, in order" "$tmp/want" "$tmp/got"
cut -d' ' -f2 "$tmp/codes" | sort -n | uniq -d >"$tmp/bad"
empty "numbers of codes are unique" "$tmp/bad"

tap_end
