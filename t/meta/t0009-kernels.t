#!/bin/sh
# kernels.def agrees with the argument structs and with the files of each family.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir/kernels" || exit 99

# ID name args family
sed -n 's/^TE_K(\([A-Z0-9_]*\), *\([a-z0-9_]*\), *\([a-z0-9_]*\), *\([a-z0-9_]*\),.*/\1 \2 \3 \4/p' \
	kernels.def >"$tmp/k"
check "kernels.def has rows" test -s "$tmp/k"
check "every row is understood" test "$(grep -c '^TE_K(' kernels.def)" = "$(wc -l <"$tmp/k")"

cut -d' ' -f1 "$tmp/k" | sort | uniq -d >"$tmp/bad"
empty "kernel ids are unique" "$tmp/bad"
cut -d' ' -f2 "$tmp/k" | sort | uniq -d >"$tmp/bad"
empty "names are unique" "$tmp/bad"

while read -r id name args family; do
	grep -q "^struct te_k_$args {" "$family"/*.h ||
		echo "$family: no struct te_k_$args ($id)"
	grep -qE "^void te__h_$name\(" "$family"/*.c ||
		echo "$family: no te__h_$name ($id)"
	grep -qE "\bte_k_($name|$args)" "$family"/*.cu ||
		echo "$family: no device function named after te_k_$name ($id)"
	grep -qE "^int te__geo_$name\(" "$family/launch.c" ||
		echo "$family/launch.c: no te__geo_$name ($id)"
done <"$tmp/k" >"$tmp/bad"
empty "each family's folder holds its structs, references, device code and geometry" "$tmp/bad"

for f in */*.cu; do dirname "$f"; done | sort -u >"$tmp/folders"
cut -d' ' -f4 "$tmp/k" | sort -u >"$tmp/families"
same "each folder is a family of kernels.def" "$tmp/families" "$tmp/folders"

# device functions that launch.c names, and those that the .cu defines, both after macro expansion;
# a name without its type, which launch.c has too, is the beginning of others; for machine code and
# PTX of compute capability 9.0, which have all of them
for d in */; do
	f=${d%/}
	for cu in "$f"/*.cu; do
		for feature in -D__CUDA_ARCH_FEAT_SM90_ALL -U__CUDA_ARCH_FEAT_SM90_ALL; do
			$CC -E -P -x c++ -D__CUDA_ARCH__=900 $feature -I.. "$cu" 2>>"$tmp/cpp"
		done
	done | tr '\n' ' ' | sed 's/__global__/\n&/g' |
		sed -n 's/^__global__[^{;]*[ \t]\(te_k_[a-z0-9_]*\) *(.*/\1/p' | sort -u >"$tmp/defined"
	$CC -E -P -I"$abs_top_builddir" -I.. -I../include -I"$abs_top_builddir/include" \
		"$f/launch.c" 2>>"$tmp/cpp" | sed 's/"[ \t]*"//g' |
		grep -oE '"te_k_[a-z0-9_]+"' | tr -d '"' | sort -u >"$tmp/named"
	awk -v f="$f" '
		NR == FNR { defined[$0]; next }
		{ named[$0] }
		END {
			for (k in defined)
				if (!(k in named))
					print f "/launch.c: never launches " k
			for (k in named) {
				bad = !(k in defined)
				for (other in named)
					if (index(other, k "_") == 1)
						bad = 0
				if (bad)
					print f ": no .cu has " k ", which launch.c names"
			}
			if (NR == FNR)
				print f "/launch.c: names no device function"
		}' "$tmp/defined" "$tmp/named"
done | sort >"$tmp/bad"
empty "launch.c names the device functions that the .cu defines" "$tmp/bad"

# level 8.6 has the images of level 8.0 of these files
sed -n '/^KERNEL_SAME_CU/,/[^\\]$/s/^\tkernels\/\([a-z/0-9_]*\.cu\).*/\1/p' local.mk >"$tmp/same"
while read -r cu; do
	for arch in 800 860; do
		$CC -E -P -x c++ -D__CUDA_ARCH__=$arch -I.. "$cu" >"$tmp/$arch" 2>>"$tmp/cpp"
	done
	cmp -s "$tmp/800" "$tmp/860" || echo "$cu"
done <"$tmp/same" >"$tmp/bad"
check "local.mk has files with the same code for 8.0 and 8.6" test -s "$tmp/same"
empty "the code of KERNEL_SAME_CU is the same for 8.0 and 8.6" "$tmp/bad"

# constants that device code and launch.c share are in geometry.h or a header of kernels/
grep -nE '__launch_bounds__\([0-9]+[,)]|TE_KERNEL\(.*\([0-9]+[,)]' */*.cu */*.cuh >"$tmp/bad"
for d in */; do
	sed -n 's/^#define \([A-Za-z0-9_]*\).*/\1/p' $(ls "$d"*.cu "$d"*.cuh 2>/dev/null) |
		sort -u >"$tmp/device"
	sed -n 's/^#define \([A-Za-z0-9_]*\).*/\1/p' "$d"launch.c | sort -u |
		comm -12 - "$tmp/device" | sed "s,.*,$d: & is defined in device code and in launch.c,"
done >>"$tmp/bad"
empty "launch bounds have names, and no constant is defined twice" "$tmp/bad"

# every pointer of every struct, in order: "name field"; of a struct in it that struct's fields
awk '
	/^struct te_k_[a-z_0-9]* {/ { name = $2; sub(/^te_k_/, "", name); next }
	/^}/ { name = "" }
	name == "" { next }
	{ gsub(/\/\*[^*]*\*\//, ""); sub(/\/\*.*/, "") }
	/^\tstruct te_k_[a-z_]* [a-z]*;/ {
		f = $3; sub(/;/, "", f)
		inner = $2; sub(/^te_k_/, "", inner)
		for (i = 1; i <= count[inner]; i++)
			print name, f "." member[inner, i]
		next
	}
	/\*/ {
		sub(/;.*/, "")
		n = split($0, d, ",")
		for (i = 1; i <= n; i++) {
			if (d[i] !~ /\*/)
				print name, "is read wrongly here:", $0
			sub(/.*\*/, "", d[i])
			member[name, ++count[name]] = d[i]
			print name, d[i]
		}
	}' te_k.h */*.h >"$tmp/all"
while read -r name field; do
	cut -d' ' -f3 "$tmp/k" | grep -qx "$name" && echo "$name $field"
done <"$tmp/all" | sort >"$tmp/want"
q=$(sed -n '/^struct te_k_q {/,/^}/s/.*\*\([a-z_]*\);.*/\1/p' te_k.h | tr '\n' ' ')
comm=$(sed -n '/^struct te_k_comm {/,/^}/s/.*\*\([a-z_]*\);.*/\1/p' comm/comm.h | tr '\n' ' ')
# "name args use field": each use of a row, which may go on in the next line
awk '
	/^TE_K\(/ { row = "" }
	/^TE_K\(/, /\)$/ {
		row = row $0
		if ($0 !~ /\)$/)
			next
		sub(/^TE_K\(/, "", row)
		n = split(row, part, /,[ \t]*/)
		for (i = 5; i <= n; i++)
			if (part[i] ~ /^(R|W|DISJOINT|U|AT|R_AT|Q|COMM)\([a-z_.]+[,)]*$/) {
				use = part[i]; sub(/\(.*/, "", use)
				field = part[i]; sub(/^[A-Z_]*\(/, "", field); gsub(/\)/, "", field)
				print part[2], part[3], use, field
			}
	}' kernels.def >"$tmp/uses"
cut -d' ' -f2 "$tmp/k" | sort >"$tmp/want_rows"
cut -d' ' -f1 "$tmp/uses" | sort -u >"$tmp/got_rows"
same "each row of kernels.def lists memory" "$tmp/want_rows" "$tmp/got_rows"
while read -r name args use field; do
	case $use in
	Q) for m in $q; do echo "$args $field.$m"; done ;;
	COMM) for m in $comm; do echo "$args $field.$m"; done ;;
	*) echo "$args $field" ;;
	esac
done <"$tmp/uses" | sort >"$tmp/got_all"
sort -u "$tmp/got_all" >"$tmp/got"
# a struct of several kernels has its fields in each row
while read -r name args use field; do
	echo "$args $(grep -c "^[A-Z0-9_]* [a-z0-9_]* $args " "$tmp/k")"
done <"$tmp/uses" | sort -u >"$tmp/times"
while read -r args n; do
	grep "^$args " "$tmp/got_all" | sort | uniq -c | awk -v n="$n" '$1 != n'
done <"$tmp/times" >"$tmp/bad"
empty "each row has each pointer once" "$tmp/bad"
# strip() of attn/strip.cuh calls it after its address arithmetic
awk '/__global__|DEV void (strip|few_rows_body|attn_step)\(/ { if (left) print at; left = 14; at = FILENAME ":" FNR }
	/^[ \t]*((te_begin\(\)|te_begin_early\(\)|te_begin_launch\(\)|comm_begin\(.*\));|strip\(|few_rows_body<|attn_step<)/ { left = 0 }
	left && !--left { print at }
	END { if (left) print at }' */*.cu >"$tmp/bad"
empty "each kernel begins with te_begin()" "$tmp/bad"
check "structs have pointers" test "$(wc -l <"$tmp/want")" -gt 100
same "kernels.def lists every pointer of every kernel's struct" "$tmp/want" "$tmp/got"

tap_end
