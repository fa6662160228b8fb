#!/bin/sh
# Each library exports what its version script lists, under the right names.
. "$abs_top_srcdir/t/meta/common.sh"

for l in $libs; do
	{ exports $l public; exports $l private; } | sort >"$tmp/want"
	$NM -D --defined-only "$(so $l)" |
		awk '$2 ~ /[TDBRV]/ { sub(/@.*/, "", $3); print $3 }' | sort -u >"$tmp/got"
	same "$l exports what $l.map lists" "$tmp/want" "$tmp/got"

	exports $l public | grep -v '^te_[a-z]' >"$tmp/bad"
	exports $l private | grep -v '^te__[a-z]' >>"$tmp/bad"
	empty "public names of $l begin with te_, private ones with te__" "$tmp/bad"

	exports $l public >"$tmp/sorted"
	sed -n '/_PRIVATE {/q; s/^\t\(te_[a-z0-9_]*\);$/\1/p' \
		"$abs_top_srcdir/$l/$l.map" >"$tmp/listed"
	same "$l.map is sorted, without doubles" "$tmp/listed" "$tmp/sorted"
done

# a library that is not built uses none
case $libs in
*libtetoken*)
	for l in $libs; do
		$NM -D --undefined-only "$(so $l)"
	done >"$tmp/uses"
	find "$abs_top_builddir/tools" "$abs_top_builddir/daemon" -path '*/.libs/*' ! -name '*.*' \
		-exec $NM -D --undefined-only {} + >>"$tmp/uses"
	sed -n 's/.* U \(te__[a-z0-9_]*\)@.*/\1/p' "$tmp/uses" | sort -u >"$tmp/used"
	exports libtecore private | sort -u | comm -23 - "$tmp/used" >"$tmp/bad"
	empty "each private name of libtecore is used outside it" "$tmp/bad"
	;;
esac

# the dynamic linker refuses a library of another version, whose private symbols may differ
sed -n 's/^PACKAGE_VERSION = /LIBTECORE_PRIVATE_/p' "$abs_top_builddir/Makefile" >"$tmp/want"
for l in $libs; do
	$READELF -V "$(so $l)" | grep -o 'LIBTECORE_PRIVATE[^ )]*' | sort -u >"$tmp/got"
	same "$l names private symbols of this version" "$tmp/want" "$tmp/got"
done

tap_end
