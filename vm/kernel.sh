#!/bin/sh
# kernel.sh - fetches a kernel of Debian and unpacks what guests need of it; installs nothing.
#
#   kernel.sh CACHE MODULE...
#
# Prints a folder in CACHE, which is made the first time. It has vmlinux, which QEMU starts without
# decompression in the guest; version; and modules/: each MODULE as NAME.ko, and NAME.order, the
# modules to load for it, in order. VM_KERNEL is a package for apt-get, or a .deb file; by default
# the package that linux-image-amd64 depends on. Exit status: 0, or 77 with the reason on standard
# error.

set -u
cache=$1
shift

refuse()
{
	echo "$*" >&2
	exit 77
}

case ${VM_KERNEL:-} in
*.deb)
	deb=$(readlink -f "$VM_KERNEL") || refuse "$VM_KERNEL is not found"
	package=$(basename "$deb" .deb)
	;;
*)
	package=${VM_KERNEL:-$(apt-cache depends linux-image-amd64 2>/dev/null |
		sed -n 's/^ *Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -n 1)}
	[ -n "$package" ] || refuse "apt-get knows no kernel package: set VM_KERNEL"
	deb=
	;;
esac
# a change of this script or of the list makes another folder
final=$cache/$package-$({ cat "$0" && echo "$*"; } | cksum | cut -d' ' -f1)
if [ -e "$final" ]; then
	echo "$final"
	exit 0
fi

for tool in dpkg-deb xz zstd; do
	command -v $tool >/dev/null || refuse "$tool is not installed"
done
mkdir -p "$cache" && dir=$(mktemp -d "$cache/new.XXXXXX") || refuse "cannot write to $cache"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
cd "$dir" || exit 1
if [ -z "$deb" ]; then
	command -v apt-get >/dev/null || refuse "no apt-get to download $package: set VM_KERNEL"
	timeout -k 5 300 apt-get -q download "$package" >apt.log 2>&1 ||
		refuse "cannot download $package: $(grep '^E:' apt.log | head -n 1)"
	deb=$(echo "$package"_*.deb)
fi
dpkg-deb -x "$deb" deb || refuse "$deb is not a package"

# a kernel is a program that decompresses itself: take out what it would decompress
image=$(echo deb/boot/vmlinuz-*)
is_program()
{
	[ "$(LC_ALL=C head -c 4 vmlinux | tail -c 3)" = ELF ]
}
for format in 'xz \xfd7zXZ\x00' 'zstd \x28\xb5\x2f\xfd'; do
	at=$(LC_ALL=C grep -aobP "${format#* }" "$image" | head -n 1 | cut -d: -f1)
	[ -n "$at" ] || continue
	# what follows the compressed data makes it fail at the end
	tail -c +$((at + 1)) "$image" | ${format%% *} -dcq >vmlinux 2>/dev/null
	is_program && break
done
is_program || refuse "$package: ${image#deb/boot/} is compressed in an unknown way"
echo "${image##*/vmlinuz-}" >version

# modules, after those that they depend on; what is part of the kernel has no file
find deb/lib/modules deb/usr/lib/modules -name '*.ko*' 2>/dev/null >files
mkdir modules

# take MODULE: prints the order
take()
{
	file=$(grep -E "/$(echo "$1" | sed 's/[-_]/[-_]/g')\.ko(\.(xz|zst))?\$" files | head -n 1)
	[ -n "$file" ] || return
	name=${file##*/}
	name=${name%%.ko*}
	case $file in
	*.xz) xz -dc "$file" ;;
	*.zst) zstd -dcq "$file" ;;
	*) cat "$file" ;;
	esac >"modules/$name.ko"
	for needed in $(tr '\0' '\n' <"modules/$name.ko" | LC_ALL=C sed -n 's/^depends=//p' |
		head -n 1 | tr ',' ' '); do
		(take "$needed")
	done
	echo "$name"
}
for module; do
	take "$module" | awk '!seen[$0]++' >"modules/$module.order"
done
rm -rf deb files apt.log ./*.deb
chmod 755 .
mv "$dir" "$final" 2>/dev/null || [ -e "$final" ] || refuse "cannot write to $final"
echo "$final"
