# aliases.awk - "NAME.3 PAGE.3" for each name in the NAME section of a page of section 3 other than
# the page's own: make install writes a page NAME.3 that includes PAGE.3.
FNR == 1 { page = FILENAME; sub(/.*\//, "", page); name = 0 }
/^\.Sh / { name = $2 == "NAME" }
name && /^\.Nm / && $2 ".3" != page { print $2 ".3", page }
