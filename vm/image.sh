#!/bin/sh
# image.sh - makes the initramfs that all guests start from.
#
#   image.sh OUTPUT MODULES BUILD
#
# It has busybox, the modules, the payloads, the tools of the system that payloads use, and the
# programs of the build folder; libraries are in /lib, whatever folder they come from. Exit status:
# 0, or 77 with the reason on standard error.

set -u
output=$1 modules=$2 build=$3
here=$(cd "$(dirname "$0")" && pwd) || exit 1
PATH=$PATH:/usr/sbin:/sbin

busybox=$(command -v busybox) || { echo "busybox is not installed" >&2; exit 77; }
if ldd "$busybox" >/dev/null 2>&1; then
	echo "$busybox is not static: install busybox-static" >&2
	exit 77
fi

root=$(mktemp -d "${TMPDIR:-/tmp}/te-vm.XXXXXX") || exit 1
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM
for dir in bin dev etc lib lib64 payload proc sys tmp; do
	mkdir "$root/$dir"
done
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
	ln -s busybox "$root/bin/$applet" 2>/dev/null
done
cp "$here/init" "$root/init"
cp "$here"/payload/*.sh "$root/payload"
cp -r "$modules" "$root/modules"
chmod -R u+rwX "$root"
chmod 755 "$root" "$root/init"

# add FILE...: programs and libraries, with the libraries that these need
add()
{
	for file; do
		case $file in
		*.so*) cp -L "$file" "$root/lib" ;;
		*) rm -f "$root/bin/${file##*/}" && cp -L "$file" "$root/bin" ;;
		esac
		ldd "$file" 2>/dev/null | grep -o '/[^ ]*'
	done | sort -u | while read -r library; do
		cp -nL "$library" "$root/lib"
	done
}

for tool in dmsetup ip rdma systemctl tc; do
	file=$(command -v $tool) && add "$file"
done
[ ! -x /lib/systemd/systemd ] || add /lib/systemd/systemd

# the provider of soft RoCE, in the folder where libibverbs looks for it; libgcc_s is opened by name
# when a thread is canceled
for provider in /usr/lib/*/libibverbs/librxe-rdmav*.so; do
	[ -e "$provider" ] || continue
	mkdir -p "$root${provider%/*}" "$root/etc/libibverbs.d"
	cp -L "$provider" "$root$provider"
	cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d"
	add "$provider"
done
for library in /lib/*/libgcc_s.so.1 /usr/lib/*/libibverbs.so.1; do
	[ -e "$library" ] && add "$library"
done

# programs are scripts of libtool that set where libraries are, unless the build is static
LD_LIBRARY_PATH=$build/libtecore/.libs:$build/libtegraph/.libs:$build/libtecomm/.libs
LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$build/libtetoken/.libs
export LD_LIBRARY_PATH
for program in tools/te_info tools/te_run tools/te_perftest/te_perftest tools/te_train/te_train \
	tools/tectl daemon/ted t/comm/link_pair t/comm/recover_rank vm/root; do
	file=$build/$program
	real=${file%/*}/.libs/${file##*/}
	[ -e "$real" ] || real=$file
	[ -e "$real" ] || continue
	add "$real"
done
mv "$root"/lib/ld-linux-* "$root/lib64"
mkdir "$root/etc/systemd"
cp -r "$build/daemon/system" "$build/daemon/user" "$root/etc/systemd" || exit 1

# not compressed: guests decompress slowly
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$output.new" || exit 1
mv "$output.new" "$output"
