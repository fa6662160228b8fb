#!/bin/sh
# Each public header compiles alone, as C99 and as C++11, and all are installed.
. "$abs_top_srcdir/t/meta/common.sh"

for h in $TT_HEADERS; do basename "$h"; done | sort >"$tmp/installed"
{
	cd "$abs_top_srcdir/include/te" && ls *.h
	echo version.h
} | case $libs in *libtetoken*) cat ;; *) grep -vx token.h ;; esac | sort -u >"$tmp/there"
same "all headers of include/te are installed" "$tmp/there" "$tmp/installed"

strict="-Wall -Wextra -Werror -pedantic -fsyntax-only $cflags"
while read -r h; do
	printf '#include <te/%s>\nint main(void) { return 0; }\n' "$h" >"$tmp/a.c"
	cp "$tmp/a.c" "$tmp/a.cc"
	check "$h alone as C99" $CC -std=c99 $strict "$tmp/a.c"
	if [ -n "$CXX" ]; then
		check "$h alone as C++11" $CXX -std=c++11 $strict "$tmp/a.cc"
	else
		skip "$h alone as C++11" "no C++ compiler"
	fi
done <"$tmp/there"

# the INIT macros are used, so they are checked where a user expands them
grep -hoE 'define TE_[A-Z0-9_]+_INIT\b' "$abs_top_srcdir"/include/te/*.h |
	awk '{ print $2 }' | sort -u >"$tmp/init"
{
	while read -r h; do echo "#include <te/$h>"; done <"$tmp/there"
	while read -r m; do
		s=$(echo "${m%_INIT}" | tr A-Z a-z)
		echo "int use_$s(void);"
		echo "int use_$s(void) { struct $s o = $m; return o.size != sizeof(o); }"
	done <"$tmp/init"
} >"$tmp/a.c"
cp "$tmp/a.c" "$tmp/a.cc"
check "TE_X_INIT initialises struct te_x in C99" $CC -std=c99 $strict "$tmp/a.c"
if [ -n "$CXX" ]; then
	check "TE_X_INIT initialises struct te_x in C++11" $CXX -std=c++11 $strict "$tmp/a.cc"
fi

# a default is replaced without a warning
cat >"$tmp/a.c" <<'EOF'
#include <te/te.h>
struct te_linear_attrs a = TE_ATTRS(linear, .in = 4, .out = 8, .init_std = 1.0f);
struct te_cross_entropy_attrs c = TE_ATTRS(cross_entropy, 4, 0, 2.0f);
EOF
check "TE_ATTRS gives attributes in C99" $CC -std=c99 $strict "$tmp/a.c"

# a struct that begins with its size can grow; the others are values, which never change
cat "$abs_top_srcdir"/include/te/*.h | awk '
	/^struct te_[a-z0-9_]+ \{/ {
		name = $2
		getline
		print name, ($0 ~ /size_t size;/ ? "sized" : "value")
	}' | sort >"$tmp/structs"
sed -n 's/ value$//p' "$tmp/structs" >"$tmp/got"
printf '%s\n' te_access te_arg te_comm_id te_named te_op_value te_region te_rng_words te_sched_entry \
	te_sched_step te_spec te_spill_rate >"$tmp/want"
same "all structs but values begin with their size" "$tmp/want" "$tmp/got"

# the library fills in what callbacks read, so these need no macro
sed -n 's/ sized$//p' "$tmp/structs" |
	grep -vxE 'te_op_infer|te_op_call|te_fused|te_graph_call|te_plan_event|te_plan_numerics' >"$tmp/want"
grep -hoE 'define TE_[A-Z0-9_]+_INIT\b' "$abs_top_srcdir"/include/te/*.h |
	sed 's/.* //; s/_INIT$//' | tr A-Z a-z | sort -u >"$tmp/got"
same "a macro initialises each of them" "$tmp/want" "$tmp/got"

# the comment of a function names its arguments; the functions after it are its relatives
for h in "$abs_top_srcdir"/include/te/*.h; do
	awk -v h="${h##*/}" '
	/^\/\*\*$/ { doc = " "; next }
	doc != "" && text == "" && !/^TE_EXPORT/ {
		doc = doc $0 " "
		if (/\*\// || /^ \*/) next
		doc = ""
	}
	doc != "" { text = text $0 }
	text ~ /;$/ {
		match(text, /te_[a-z0-9_]+\(/)
		name = substr(text, RSTART, RLENGTH - 1)
		sub(/[^(]*\(/, "", text)
		sub(/\).*/, "", text)
		n = split(text, arg, ",")
		for (i = 1; i <= n; i++) {
			sub(/.*[ *]/, "", arg[i])
			if (arg[i] !~ /^(void|\.\.\.)$/ && doc !~ "@" arg[i] "[,: ]")
				print h ": " name ": no @" arg[i]
		}
		if (doc !~ / Thread: / || doc !~ / Since: /)
			print h ": " name ": no Thread or no Since"
		doc = text = ""
	}' "$h"
done >"$tmp/bad"
empty "comments of functions have @arguments, Thread and Since" "$tmp/bad"

tap_end
