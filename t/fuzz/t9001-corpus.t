#!/bin/sh
# Each parser copes with the files of its corpus, whole and cut short at any length.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$tmp" || exit 99
check "there is a corpus" test -s "$abs_top_srcdir/t/fuzz/corpus/schedule/0"
for corpus in "$abs_top_srcdir"/t/fuzz/corpus/*; do
	name=${corpus##*/}
	target=$abs_top_builddir/t/fuzz/$name
	if [ ! -x "$target" ]; then
		skip "$name" "built without a library that it needs"
	elif "$target" -help=1 2>&1 | grep -q libFuzzer; then
		check "$name" "$target" -runs=0 "$corpus"
	else
		check "$name" "$target" "$corpus"
	fi
done
tap_end
