#!/bin/sh
# The tests for a machine without a compiler run where they are unpacked, and failures are counted.
. "$abs_top_srcdir/t/lib/tap.sh"

cd "$abs_top_builddir" || exit 99
[ -x t/tensor/caller ] && [ -x t/tensor/caller_gpu ] || skip_all "built without Check"
[ -z "$TT_SANITIZE" ] || skip_all "what is packed runs in other tests"
PRESET=0
export PRESET
check "pack" sh "$abs_top_srcdir/t/gpu/pack.sh" "$tmp/tests.tar.xz" t/tensor/caller t/tensor/caller_gpu
cd "$tmp" || exit 99
check "unpack" tar xJf tests.tar.xz

# last PATTERN: of the output's last line
last()
{
	tail -n 1 out | grep -qE -- "$1"
}

unset LD_LIBRARY_PATH TT_TAP
TT_REQUIRE= sh gpu-tests/run.sh >out 2>&1
check "exit status" test $? = 0
check "tests of a GPU pass, or are skipped without one" last '^[1-9][0-9]* passed, 0 failed, [0-9]+ skipped$'
sh -c 'LD_LIBRARY_PATH=$PWD/gpu-tests/lib gpu-tests/bin/te_info --version' >out 2>&1
check "tools start" last '^te_info '

mkdir gpu-tests/t/bad
printf '#!/bin/sh\necho ok 1 - a\necho not ok 2 - b\nexit 1\n' >gpu-tests/t/bad/fails
printf '#!/bin/sh\necho ok 1 - a\nkill -9 $$\n' >gpu-tests/t/bad/dies
printf '#!/bin/sh\necho ok 1 - a\nsleep 60\n' >gpu-tests/t/bad/hangs
chmod +x gpu-tests/t/bad/*
LIMIT=1 sh gpu-tests/run.sh -j 3 t/bad/fails t/bad/dies t/bad/hangs >out 2>&1
check "exit status of failures" test $? = 1
check "a program that fails, is killed, or hangs" last '^3 passed, 3 failed, 0 skipped$'
check "the line that failed" grep -q 'not ok 2 - b' out

tap_end
