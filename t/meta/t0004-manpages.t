#!/bin/sh
# Every exported function has a man page that names it and shows its prototype.
. "$abs_top_srcdir/t/meta/common.sh"

for m in $TT_MANS; do basename "$m"; done | sort >"$tmp/installed"
{
	cd "$abs_top_srcdir/man" && ls *.[1-9]
	for f in *.[1-9].in; do [ -e "$f" ] && basename "$f" .in; done
} | case $libs in *libtetoken*) cat ;; *) grep -v '^te_token' ;; esac | sort -u >"$tmp/there"
same "all pages of man/ are installed" "$tmp/there" "$tmp/installed"

# the names that make install adds to the pages of section 3: NAME.3 PAGE.3
(cd "$abs_top_srcdir" && ${AWK:-awk} -f man/aliases.awk $(
	printf '%s\n' $TT_MANS | grep '\.3$'
)) >"$tmp/aliases"
{
	cat "$tmp/there"
	cut -d' ' -f1 "$tmp/aliases"
} | sort >"$tmp/names"
uniq -d "$tmp/names" >"$tmp/bad"
empty "each name has one page" "$tmp/bad"

# page NAME.S: the file that documents it, its own or one whose NAME section has it
page()
{
	f=$abs_top_srcdir/man/$1
	[ -e "$f" ] || f=$abs_top_srcdir/man/$(sed -n "s,^$1 ,,p" "$tmp/aliases")
	[ -f "$f" ] || f=$abs_top_builddir/man/$1
	echo "$f"
}

for l in $libs; do
	exports $l public >"$tmp/exports"
	while read -r fn; do echo "$fn $(page "$fn.3")"; done <"$tmp/exports" | awk -v l=$l '
		{ fn[NR] = $1; page[NR] = $2 }
		END {
			lte = "lte" substr(l, 6)
			for (i = 1; i <= NR; i++) {
				split("", has)
				while ((getline line <page[i]) > 0) {
					split(line, w, /[ (]/)
					has[w[1] " " w[2]]
					has[line]
				}
				close(page[i])
				at = page[i] ": "
				if (!(".Nm " fn[i] in has))
					print at "no .Nm " fn[i]
				if (!(".Fn " fn[i] in has || ".Fo " fn[i] in has))
					print at "no prototype of " fn[i]
				if (!(".Pq " l ", Fl " lte in has))
					print at "LIBRARY is not " l
				if (!(".Sh EXAMPLES" in has))
					print at "no EXAMPLES"
				if (!(".Sh RETURN VALUES" in has))
					print at "no RETURN VALUES"
			}
			if (NR < 3)
				print "only " NR " functions"
		}' >"$tmp/bad"
	empty "each function of $l has a page with its prototype and an example" "$tmp/bad"
done

# a page of section 3 documents what is exported
for l in $libs; do exports $l public; done | sort >"$tmp/exports"
sed -n 's/\.3$//p' "$tmp/names" | comm -23 - "$tmp/exports" >"$tmp/bad"
empty "no page of section 3 is about a function that is gone" "$tmp/bad"

# HEADER STRUCT MEMBER of each struct of the API; size is explained once, by te(7)
for h in "$abs_top_srcdir"/include/te/*.h; do
	sed -E ':a; s,/\*([^*]|\*+[^*/])*\*+/,,g; /\/\*/ { N; ba }' "$h" |
		awk -v header="${h##*/}" '
		/^struct te_[a-z0-9_]* \{/ { name = $2; body = ""; next }
		/^\}/ && name != "" {
			n = split(body, decl, ";")
			for (i = 1; i <= n; i++) {
				gsub(/\[[^]]*\]/, "", decl[i])
				if (match(decl[i], /\(\*[a-z0-9_]+\)/)) {
					print header, name, substr(decl[i], RSTART + 2, RLENGTH - 3)
					continue
				}
				m = split(decl[i], part, ",")
				for (k = 1; k <= m; k++) {
					sub(/[ \t]+$/, "", part[k]); sub(/.*[ \t*]/, "", part[k])
					if (part[k] != "" && part[k] != "size")
						print header, name, part[k]
				}
			}
			name = ""
		}
		name != "" { body = body " " $0 }'
done >"$tmp/fields"
check "structs have members" test "$(wc -l <"$tmp/fields")" -gt 500

# a page that names the struct, or its INIT macro, names the member
for m in $TT_MANS; do
	case $m in *.[37]) [ ! -e "$abs_top_srcdir/$m" ] || echo "$abs_top_srcdir/$m" ;; esac
done | xargs awk '
	FNR == 1 { page = FILENAME; example = 0 }
	/^\.Sh / { example = /EXAMPLES/ }
	example { next }
	{
		line = $0
		while (match(line, /struct te_[a-z0-9_]+|TE_[A-Z0-9_]+_INIT/)) {
			name = substr(line, RSTART, RLENGTH)
			line = substr(line, RSTART + RLENGTH)
			sub(/^struct /, "", name); sub(/_INIT$/, "", name)
			print page, tolower(name)
		}
	}
	/^\.(It |Pq )?(Va|Fa|Fn) / {
		for (i = 2; i <= NF; i++)
			print page, "." $i
	}' | sort -u >"$tmp/named"
awk 'NR == FNR { named[$1, $2]; pages[$1]; next }
	{
		found = 0
		for (p in pages)
			if ((p, $2) in named && (p, "." $3) in named)
				found = 1
		if (!found)
			print "te/" $1 ": struct " $2 ": no page has .Va " $3
	}' "$tmp/named" "$tmp/fields" >"$tmp/bad"
for act in $(grep -oE '\bTE_ACT_[A-Z]+ = ' "$abs_top_srcdir/include/te/op.h" | cut -d' ' -f1); do
	grep -q "^\.Dv $act\b" "$abs_top_srcdir/man/te_op_linear.3" || echo "te_op_linear.3: no $act"
done >>"$tmp/bad"
empty "pages name the members of structs" "$tmp/bad"

# fields of the options of te/kernel.h: the page of each call that takes them names them
tr '\n' ' ' <"$abs_top_srcdir/include/te/kernel.h" |
	sed -E 's,/\*([^*]|\*+[^*/])*\*+/,,g' | tr ';' '\n' | awk '
	/struct te_kernel_[a-z_]*_opts \{/ {
		name = $0; sub(/.*struct /, "", name); sub(/ .*/, "", name)
		sub(/.*\{/, "")
		open = 1
	}
	/^[ \t]*\}/ { open = 0 }
	open {
		n = split($0, part, ",")
		for (i = 1; i <= n; i++) {
			sub(/ *$/, "", part[i]); sub(/.*[ *]/, "", part[i])
			if (part[i] != "size")
				fields[name] = fields[name] " " part[i]
		}
	}
	/TE_EXPORT int te_kernel_[a-z_]*\(.*_opts \*/ {
		fn = $0; sub(/.*TE_EXPORT int /, "", fn); sub(/\(.*/, "", fn)
		opts = $0; sub(/.*struct te_kernel/, "te_kernel", opts); sub(/ .*/, "", opts)
		n = split(fields[opts], part, " ")
		for (i = 1; i <= n; i++)
			print fn, part[i]
	}' >"$tmp/fields"
check "the options of kernels have fields" test "$(wc -l <"$tmp/fields")" -gt 50
while read -r fn field; do
	grep -qE "^\.(It )?Va (.* )?$field( |$)" "$(page "$fn.3")" || echo "$fn.3: no .Va $field"
done <"$tmp/fields" >"$tmp/bad"
empty "pages name the fields of the options of kernels" "$tmp/bad"

# every .Xr of ours points at a page of ours
for p in $(cat "$tmp/there"); do page "$p"; done | xargs grep -E '^\.Xr te[a-z0-9_]* [0-9]' |
	sed 's,^.*/\([^/:]*\):\.Xr \(te[a-z0-9_]*\) \([0-9]\).*,\2.\3 \1,' | awk '
	NR == FNR { names[$1]; next }
	!($1 in names) { print $2 ": refers to " $1 }' "$tmp/names" - | sort -u >"$tmp/bad"
empty "every reference to a page of ours finds one" "$tmp/bad"

tap_end
