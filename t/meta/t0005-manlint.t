#!/bin/sh
# mandoc finds nothing to warn about in any man page.
. "$abs_top_srcdir/t/meta/common.sh"

[ -n "$MANDOC" ] || skip_all "mandoc is not found"

for m in $TT_MANS; do
	p="$abs_top_srcdir/$m"
	[ -e "$p" ] || p="$abs_top_builddir/$m"
	# a page need not be installed to be referred to
	$MANDOC -Tlint -Wwarning "$p" >"$tmp/lint" 2>&1
	empty "${m#man/}" "$tmp/lint"
done

tap_end
