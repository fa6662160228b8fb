#!/bin/sh
# The Fortran module has every function, structure and constant of the headers, compiles without
# a warning, has the layouts and initial values of C, and works.
. "$abs_top_srcdir/t/meta/common.sh"

awk=$abs_top_srcdir/include/fortran.awk
module=$abs_top_builddir/include/te/te.f90
headers=
for h in $TT_HEADERS; do
	[ -f "$abs_top_builddir/$h" ] && d=$abs_top_builddir || d=$abs_top_srcdir
	headers="$headers $d/$h"
done

sed -n 's/^! untranslated: //p' "$module" >"$tmp/bad"
empty "every declaration is translated" "$tmp/bad"

page=$abs_top_srcdir/man/te_fortran.7
for l in $libs; do exports $l public; done | sort >"$tmp/want"
{
	sed -n 's/.* bind(C, name="\(te_[a-z0-9_]*\)").*/\1/p' "$module"
	sed -n '/variable number of arguments/,/^\.P/s/^\.Xr \(te_[a-z0-9_]*\) 3.*/\1/p' "$page"
} | sort >"$tmp/got"
same "it has each exported function, but for those that te_fortran(7) lists" "$tmp/want" "$tmp/got"

cat $headers | sed -n 's/^struct \(te_[a-z0-9_]*\) {.*/\1/p' | sort >"$tmp/want"
sed -n 's/^  type, bind(C), public :: //p' "$module" | sort >"$tmp/got"
same "it has each structure" "$tmp/want" "$tmp/got"

# what is left of TE_ names without comments, INIT macros, include guards and macros for C only
cat $headers | awk '
	{
		gsub(/\/\*([^*]|\*[^\/])*\*\//, "")
		if (/\*\//) { sub(/.*\*\//, ""); in_comment = 0 }
		if (in_comment) next
		if (/\/\*/) { sub(/\/\*.*/, ""); in_comment = 1 }
		gsub(/"[^"]*"/, "")
		n = split($0, word, /[^A-Za-z0-9_]+/)
		for (i = 1; i <= n; i++)
			if (word[i] ~ /^TE_[A-Z0-9][A-Z0-9_]*$/)
				print word[i]
	}' | grep -vE '_(INIT|H)$' |
	grep -vxE 'TE_(ATTRS_?|BEGIN_DECLS|END_DECLS|ERRNO_ENUM|ERRNO_MAP|EXPORT|PRINTF)' |
	sort -u >"$tmp/want"
sed -n 's/.* parameter, public :: \(TE_[A-Z0-9_]*\) =.*/\1/p' "$module" | sed 's/_CONST$//' |
	sort >"$tmp/got"
same "it has each constant" "$tmp/want" "$tmp/got"

sed -n 's/.* :: \(TE_[A-Z0-9_]*_CONST\) =.*/\1/p' "$module" | sort >"$tmp/want"
sed -n 's/^\.It Dv \(TE_[A-Z0-9_]*_CONST\)$/\1/p' "$page" >"$tmp/got"
same "te_fortran(7) lists the constants that are named otherwise" "$tmp/want" "$tmp/got"

cat >"$tmp/strange.h" <<'EOF'
#define TE_HEX 0x10u
#define TE_LARGE 4294967295u
#define TE_MACRO(x) (x)
enum te_bits { TE_SHIFTED = 1 << 3 };
struct te_long { size_t size; long x; };
struct te_array { size_t size; int x[LENGTH]; };
struct te_odd { size_t size; int x; };
#define TE_ODD_INIT { sizeof(struct te_odd), OTHER }
TE_EXPORT int te_by_long(long x);
TE_EXPORT long te_of_long(void);
TE_EXPORT void te_odd(void);
extern int te_variable;
EOF
"$AWK" -f "$awk" "$tmp/strange.h" | sed -n 's/^! untranslated: \(.*\): .*/\1/p' |
	sort >"$tmp/got"
printf '%s\n' TE_HEX TE_LARGE TE_MACRO 'TE_SHIFTED = 1 << 3' 'extern int te_variable;' te_array \
	te_by_long te_long te_odd te_odd te_of_long >"$tmp/want"
same "what cannot be translated is named" "$tmp/want" "$tmp/got"

if [ -z "$FC" ]; then
	skip "the module compiles" "no Fortran compiler"
	skip "layouts and values are those of C" "no Fortran compiler"
	skip "callbacks, arrays and texts" "no Fortran compiler"
	tap_end
fi
case $($FC --version 2>&1) in
GNU*) FC="$FC -std=f2018 -Wall -Wextra -Werror -pedantic" ;;
esac
cd "$tmp" || exit 99
check "the module compiles" $FC -c "$module"

"$AWK" -v out=c -f "$awk" $headers >layout.c
"$AWK" -v out=fortran -f "$awk" $headers >layout.f90
$CC -Wall -Werror $cflags -o layout_c layout.c >"$tmp/out" 2>&1 &&
	$FC -o layout_f layout.f90 te.o >>"$tmp/out" 2>&1 &&
	./layout_c >want 2>>"$tmp/out" && ./layout_f >got 2>>"$tmp/out" &&
	test -s want && diff want got >>"$tmp/out" &&
	ok "layouts and values are those of C" || not_ok "layouts and values are those of C" "$tmp/out"

if [ -n "$TT_SANITIZE" ]; then
	# another compiler's programs may not start with a library that has this one's sanitizers
	skip "callbacks, arrays and texts" "the library has sanitizers"
else
	check "callbacks, arrays and texts compile" $FC -o uses \
		"$abs_top_srcdir/t/meta/fortran.f90" te.o $ldflags -ltegraph -ltecore
	check "callbacks, arrays and texts" ./uses
fi

tap_end
