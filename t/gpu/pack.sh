#!/bin/sh
# pack.sh OUT.tar.xz PROGRAM... - packs tests and the tools of a build, with the shared libraries they
# need and run.sh, for a machine with a GPU and without a compiler. It runs in the build folder.
# PRESET is that of xz(1).
set -eu
out=$1
shift
tmp=$(mktemp -d "${TMPDIR:-/tmp}/te-pack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
top=$tmp/gpu-tests
mkdir -p "$top/bin" "$top/lib"

for f in "$@"; do
	mkdir -p "$top/${f%/*}"
	${STRIP:-strip} -o "$top/$f" "$f"
done
for f in tools/.libs/te_* tools/te_perftest/.libs/te_perftest tools/te_train/.libs/te_train \
	libte*/.libs/libte*.so.[0-9]; do
	[ -f "$f" ] || continue
	case $f in *.so.*) to=lib ;; *) to=bin ;; esac
	${STRIP:-strip} --strip-unneeded -o "$top/$to/${f##*/}" "$(readlink -f "$f")"
done
# all but the C library, which would have to fit the loader there
find "$top" -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
	grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|libte[a-z]*)\.so' |
	while read -r f; do cp -L "$f" "$top/lib"; done

cp "${0%/*}/run.sh" "$top"

# programs have the same device code: a window of compression that holds several of them
tar -C "$tmp" -cf - gpu-tests | xz --lzma2=preset=${PRESET:-6},dict=256MiB >"$out.part"
mv "$out.part" "$out"
ls -l "$out"
