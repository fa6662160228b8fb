#!/bin/sh
# The tables of kernels agree with each other and with the files.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir/kernels" || exit 99

# ID name module host
sed -n 's/^TE_K(\([A-Z0-9_]*\), *\([a-z0-9_]*\), *\([a-z0-9_]*\), *\([a-z0-9_]*\)).*/\1 \2 \3 \4/p' \
	te_k.def >"$tmp/k"
check "te_k.def has rows" test -s "$tmp/k"
check "every row is understood" test "$(grep -c '^TE_K(' te_k.def)" = "$(wc -l <"$tmp/k")"

cut -d' ' -f1 "$tmp/k" | sort | uniq -d >"$tmp/bad"
empty "kernel ids are unique" "$tmp/bad"
cut -d' ' -f4 "$tmp/k" | sort | uniq -d >"$tmp/bad"
empty "reference functions are unique" "$tmp/bad"

cut -d' ' -f2 "$tmp/k" | sort -u | while read -r name; do
	grep -q "^struct te_k_$name {" te_k.h || echo "te_k.h: no struct te_k_$name"
done >"$tmp/bad"
empty "each kernel has its struct" "$tmp/bad"

sed -n 's/^TE_K_MODULE(\([a-z0-9_]*\)).*/\1/p' te_k_modules.def >"$tmp/modules"
for f in te_*.cu; do [ -e "$f" ] && { f=${f#te_}; echo "${f%.cu}"; }; done >"$tmp/files"
same "te_k_modules.def lists every .cu, sorted" "$tmp/files" "$tmp/modules"

cut -d' ' -f3 "$tmp/k" | sort -u >"$tmp/want"
sort "$tmp/modules" | diff "$tmp/want" - >"$tmp/bad"
empty "each kernel's module is there, and each module is used" "$tmp/bad"

while read -r id name module host; do
	grep -qE "\bte_k_($host|$name)" "te_$module.cu" ||
		echo "te_$module.cu: nothing named after te_k_$host ($id)"
done <"$tmp/k" >"$tmp/bad"
empty "each module holds its kernels" "$tmp/bad"

# every pointer of every struct, in order: "name field"; of a struct te_k_q its own fields
awk '
	/^struct te_k_[a-z_0-9]* {/ { name = $2; sub(/^te_k_/, "", name); next }
	/^}/ { name = "" }
	name == "" { next }
	{ gsub(/\/\*[^*]*\*\//, ""); sub(/\/\*.*/, "") }
	/^\tstruct te_k_q [a-z]*;/ {
		f = $3; sub(/;/, "", f)
		for (i = 1; i <= nq; i++)
			print name, f "." q[i]
		next
	}
	/\*/ {
		sub(/;.*/, "")
		n = split($0, d, ",")
		for (i = 1; i <= n; i++) {
			if (d[i] !~ /\*/)
				print name, "is read wrongly here:", $0
			sub(/.*\*/, "", d[i])
			if (name == "q")
				q[++nq] = d[i]
			else
				print name, d[i]
		}
	}' te_k.h >"$tmp/all"
while read -r name field; do
	cut -d' ' -f2 "$tmp/k" | grep -qx "$name" && echo "$name $field"
done <"$tmp/all" | sort >"$tmp/want"
q=$(sed -n '/^struct te_k_q {/,/^}/s/.*\*\([a-z_]*\);.*/\1/p' te_k.h | tr '\n' ' ')
# "host name field": each use of a row, which may go on in the next line
awk '
	/^TE_K_PTRS\(/ { row = "" }
	/^TE_K_PTRS\(/, /\)$/ {
		row = row $0
		if ($0 !~ /\)$/)
			next
		sub(/^TE_K_PTRS\(/, "", row)
		n = split(row, part, /,[ \t]*/)
		for (i = 3; i <= n; i++)
			if (part[i] ~ /^(R|W|PART|U|AT|Q)\([a-z_]+[,)]*$/) {
				use = part[i]; sub(/\(.*/, "", use)
				field = part[i]; sub(/^[A-Z]*\(/, "", field); gsub(/\)/, "", field)
				print part[1], part[2], use, field
			}
	}' te_k_ptr.def >"$tmp/uses"
cut -d' ' -f2,4 "$tmp/k" | awk '{ print $2, $1 }' | sort >"$tmp/want_rows"
cut -d' ' -f1,2 "$tmp/uses" | sort -u >"$tmp/got_rows"
same "te_k_ptr.def has a row for each kernel, with its struct" "$tmp/want_rows" "$tmp/got_rows"
while read -r host name use field; do
	case $use in
	Q) for m in $q; do echo "$name $field.$m"; done ;;
	*) echo "$name $field" ;;
	esac
done <"$tmp/uses" | sort >"$tmp/got_all"
sort -u "$tmp/got_all" >"$tmp/got"
# a struct of several kernels has its fields in each row
while read -r host name use field; do
	echo "$name $(grep -c "^[A-Z0-9_]* $name " "$tmp/k")"
done <"$tmp/uses" | sort -u >"$tmp/times"
while read -r name n; do
	grep "^$name " "$tmp/got_all" | sort | uniq -c | awk -v n="$n" '$1 != n'
done <"$tmp/times" >"$tmp/bad"
empty "each row has each pointer once" "$tmp/bad"
# strip() of te_attn.cu says first where its memory is, and begins then
awk '/__global__|FN void strip\(/ { if (left) print at; left = 7; at = FILENAME ":" FNR }
	/^[ \t]*(te_begin\(\);|strip\()/ { left = 0 }
	left && !--left { print at }
	END { if (left) print at }' te_*.cu >"$tmp/bad"
empty "each kernel begins with te_begin()" "$tmp/bad"
check "structs have pointers" test "$(wc -l <"$tmp/want")" -gt 100
same "te_k_ptr.def lists every pointer of every kernel's struct" "$tmp/want" "$tmp/got"

tap_end
