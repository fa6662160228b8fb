# t/kernels/emulate.sh - for scripts that run kernels on the host, one fiber a thread of the GPU;
# read after tap.sh.

emulate_I="-I$abs_top_srcdir -I$abs_top_srcdir/include -I$abs_top_builddir
	-I$abs_top_builddir/include"
emulate_seed=${TT_SEED:-$(date +%s)}
[ -z "$TT_SANITIZE" ] || CXX=''
[ -z "$CXX" ] || [ "$($CXX -dumpmachine)" = "$($CC -dumpmachine)" ] || CXX=''

# emulate WHAT PROGRAM ARGS FILE...: t/kernels/PROGRAM.cc with kernels/FILE.c, run with the seed and
# ARGS
emulate()
{
	what=$1 program=$2 args=$3
	shift 3
	if [ -z "$CXX" ]; then
		skip "emulated $what" \
			"no C++ compiler for this machine${TT_SANITIZE:+, or fibers with sanitizers}"
		return
	fi
	objs=
	for f; do
		o=$tmp/$program-$(basename "$f").o
		check "kernels/$f.c compiles for $program" $CC -std=gnu11 -O1 -ffp-contract=off \
			$emulate_I -c "$abs_top_srcdir/kernels/$f.c" -o "$o"
		objs="$objs $o"
	done
	check "t/kernels/$program.cc compiles" $CXX -std=gnu++17 -O1 -w -ffp-contract=off \
		$emulate_I -o "$tmp/$program" "$abs_top_srcdir/t/kernels/$program.cc" $objs
	if "$tmp/$program" "$emulate_seed" $args >"$tmp/out" 2>&1; then
		ok "emulated $what are right and end"
	else
		echo "TT_SEED=$emulate_seed repeats it" >>"$tmp/out"
		not_ok "emulated $what are right and end" "$tmp/out"
	fi
}
