#!/bin/sh
# mandoc finds nothing to warn about in any man page, and no argument is printed as an option or as
# a part of the one before it.
. "$abs_top_srcdir/t/meta/common.sh"

[ -n "$MANDOC" ] || skip_all "mandoc is not found"

for m in $TT_MANS; do
	p="$abs_top_srcdir/$m"
	[ -e "$p" ] || p="$abs_top_builddir/$m"
	# a page need not be installed to be referred to
	$MANDOC -Tlint -Wwarning "$p" >"$tmp/lint" 2>&1
	empty "${m#man/}" "$tmp/lint"
done

cd "$abs_top_srcdir" || exit 99
# a word that is no macro is another argument of Fl, which prints it as an option; Bq has the rest
grep -nE '^\.(It )?Fl -[a-z0-9-]+ [0-9a-z]|^\.It Bq .* Bq ' $TT_MANS /dev/null >"$tmp/bad"
empty "arguments of options and error codes have macros" "$tmp/bad"

tap_end
