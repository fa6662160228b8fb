#!/bin/sh
# Man pages fit into 80 columns, with mandoc and with groff: no line is longer, no line of a display
# is broken, and rows of tables are lines whose cells begin below each other.
. "$abs_top_srcdir/t/meta/common.sh"

for m in $TT_MANS; do
	p="$abs_top_srcdir/$m"
	[ -e "$p" ] || p="$abs_top_builddir/$m"
	echo "$p"
done >"$tmp/pages"
check "there are pages" test "$(wc -l <"$tmp/pages")" -gt 80

# what the pages show on one line each, with its page: displays, and rows of tables with a number of
# the table and cells after tabs
xargs awk '
	function plain(s)
	{
		gsub(/\\&/, "", s); gsub(/\\e/, "\\", s); gsub(/\\\(dq/, "\"", s)
		sub(/^"/, "", s); sub(/"$/, "", s)
		return s
	}
	FNR == 1 { page = FILENAME; sub(/.*\//, "", page); column = 0 }
	/^\.Dl / { print page "\tdisplay\t" plain(substr($0, 5)) }
	/^\.Bl / { column = /^\.Bl -column/; ntables += column }
	/^\.El/ { column = 0 }
	column && /^\.It / {
		row = substr($0, 5)
		gsub(/(^| )(Dv|Li|Sy|Va) /, " ", row); gsub(/ ,/, ",", row)
		n = split(row, cell, / *Ta */)
		printf "%s\ttable %d", page, ntables
		for (i = 1; i <= n; i++) {
			gsub(/^ +| +$/, "", cell[i])
			printf "\t%s", plain(cell[i])
		}
		print ""
	}' <"$tmp/pages" >"$tmp/whole"
check "pages have displays" grep -q 'display' "$tmp/whole"
check "and tables" grep -q 'table' "$tmp/whole"

# rendered NAME: checks $tmp/text, all pages, and $tmp/errors
rendered()
{
	empty "$1 reports nothing" "$tmp/errors"
	awk 'length > 80 { print length " columns: " $0 }' "$tmp/text" >"$tmp/bad"
	empty "$1: no line is longer than 80 columns" "$tmp/bad"
	awk -F '\t' '
		NR == FNR { line[++nlines] = $0; next }
		{
			found = 0
			for (k = 1; k <= nlines && !found; k++) {
				at = 0
				for (i = 3; i <= NF; i++) {
					n = index(substr(line[k], at + 1), $i)
					if (!n || (i > 3 && n < 2))
						break
					# the first cell begins the line
					if (i == 3 && substr(line[k], 1, n - 1) ~ /[^ ]/)
						break
					begin[i] = at + n
					at += n + length($i) - 1
				}
				found = i > NF && substr(line[k], at + 1) ~ /^ *$/
				for (i = 3; i <= NF && found && $2 ~ /table/; i++)
					if (($2, i) in column && column[$2, i] != begin[i])
						found = 0
			}
			if (!found)
				print $1 ": " $2 ": not on one line, or not aligned: " $3 " " $4
			for (i = 3; i <= NF && found && $2 ~ /table/; i++)
				column[$2, i] = begin[i]
		}' "$tmp/text" "$tmp/whole" >"$tmp/bad"
	empty "$1: displays and rows of tables are unbroken" "$tmp/bad"
}

if [ -n "$MANDOC" ]; then
	xargs $MANDOC -Tascii -Owidth=80 <"$tmp/pages" 2>"$tmp/errors" |
		sed "s/.$(printf '\b')//g" >"$tmp/text"
	rendered mandoc
else
	skip "mandoc" "mandoc is not found"
fi
if groff -mandoc -Tascii /dev/null >/dev/null 2>&1; then
	xargs groff -mandoc -Tascii -P-cbou -rLL=80n <"$tmp/pages" >"$tmp/text" 2>"$tmp/errors"
	rendered groff
else
	skip "groff" "groff, or its mdoc macros, are not found"
fi

tap_end
