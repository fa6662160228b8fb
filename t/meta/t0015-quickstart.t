#!/bin/sh
# quickstart finds the compiler of a CC that has several words, names what is missing, and builds for
# the GPUs that are there.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$tmp" || exit 99
unset GPU_ARCHS

# a tree whose configure fails, and a PATH with little else than what the build needs
mkdir tree bin
cp "$abs_top_srcdir/quickstart" tree
for f in dirname mkdir id tail cat grep sed nproc; do
	ln -s "$(command -v $f)" bin
done
printf '#!/bin/sh\nexit 0\n' >bin/make
chmod +x bin/make
cp bin/make bin/pkg-config
cp bin/make bin/launcher
printf '#!/bin/sh\necho "$@" >args\nexit 1\n' >tree/configure
chmod +x tree/configure

# quickstart COMPILER
quickstart()
{
	PATH=$PWD/bin CC=$1 /bin/sh tree/quickstart check >out 2>&1
}

quickstart nothing
check "a compiler that is not there is named" grep -q 'install these.* gcc' out
quickstart 'launcher nothing -m64'
check "the first of several words is the command" grep -q 'configure failed' out
if [ ! -x /usr/local/cuda/bin/nvcc ]; then
	check "without nvcc no device code is built" grep -q -e --without-nvcc \
		tree/build-quickstart/args
	check "and one line says so" grep -q 'no device code: there is no nvcc' out
fi
cp bin/make bin/nvcc
quickstart 'launcher nothing -m64'
check "levels of all GPUs where no GPU is" grep -q -e '--with-gpu-archs=all ' \
	tree/build-quickstart/args
GPU_ARCHS=8.9 quickstart 'launcher nothing -m64'
check "GPU_ARCHS names levels" grep -q -e '--with-gpu-archs=8.9 ' tree/build-quickstart/args
GPU_ARCHS=none quickstart 'launcher nothing -m64'
check "or none" grep -q -e --without-nvcc tree/build-quickstart/args
printf '#!/bin/sh\nprintf "9.0\\n8.9\\n12.0\\n9.0\\n7.5\\n[N/A]\\n"\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
quickstart 'launcher nothing -m64'
check "levels of the GPUs that are there" grep -q -e '--with-gpu-archs=9.0,8.9+PTX ' \
	tree/build-quickstart/args

tap_end
