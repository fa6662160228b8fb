#!/bin/sh
# Programs start under te_run, and under mpirun by PMIx, and meet.
. "$abs_top_srcdir/t/lib/tap.sh"

rank=$(built t/comm/rank)
te_run=$(built tools/te_run)
TMPDIR=$tmp
TE_BACKEND=host
TE_COMM_PACKETS=64K
export TE_BACKEND TE_COMM_PACKETS TMPDIR
cd "$tmp" || exit 99
"$rank" >out 2>&1 # libtool's wrapper of it is made once

# ranks NAME HOW N: the output of N ranks that each met once
ranks()
{
	sort -u out >got
	r=0
	while [ $r -lt "$3" ]; do
		echo "rank $r of $3 by $2, local $r of $3, node 0 of 1"
		r=$((r + 1))
	done | sort >want
	same "$1" want got
}

ranks "one rank alone" single 1
for n in 1 4 8; do
	"$te_run" -n $n --timeout 60 "$rank" 5 >out 2>&1
	ranks "te_run -n $n" dir $n
done
"$te_run" -n 4 --per-node 2 --timeout 60 "$rank" >out 2>&1
sort out >got
cat >want2 <<END
rank 0 of 4 by dir, local 0 of 2, node 0 of 2
rank 1 of 4 by dir, local 1 of 2, node 0 of 2
rank 2 of 4 by dir, local 0 of 2, node 1 of 2
rank 3 of 4 by dir, local 1 of 2, node 1 of 2
END
same "te_run --per-node 2" want2 got
# in the place of ssh: ranks of other hosts meet by TCP
printf '#!/bin/sh\nshift\nexec "$@"\n' >ssh
chmod +x ssh
"$te_run" --hosts a:2,b --ssh ./ssh --te-run "$te_run" --timeout 60 "$rank" >out 2>&1
ranks "te_run --hosts" id 3
"$te_run" --hosts a:2,b:2 --per-node 2 --ssh ./ssh --te-run "$te_run" --timeout 60 "$rank" >out 2>&1
sed 's/by dir/by id/' want2 >want
sort out >got
same "te_run --hosts --per-node 2" want got
# on a busy machine processes that start are seconds late too
late_ms=6000
TE_COMM_TIMEOUT_MS=$late_ms "$te_run" -n 3 --timeout 60 "$rank" 1 1 60 >out 2>err
check "a rank that is late under te_run" grep -q 'rank 1 of 3 did not arrive within 6 s' out
check "fails the run" grep -qE '^te_run: rank [02] .* exited with status 3$' err
for name in SLURM_STEP_NUM_TASKS PMI_SIZE OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_SIZE MPI_LOCALNRANKS \
	FLUX_JOB_SIZE JSM_NAMESPACE_SIZE WORLD_SIZE; do
	env $name=1 "$rank" >out 2>&1
	ranks "$name 1 is one rank" single 1
	env $name=3 TE_COMM_BOOTSTRAP=single "$rank" >out 2>&1
	ranks "several that are each alone" single 1
	env $name=3 "$rank" >out 2>&1
	check "several without PMIx ($name) are refused" \
		grep -q "one of 3 processes ($name) of a launcher without PMIx" out
done

skip_mpirun()
{
	for t in "mpirun -n 1" "mpirun -n 4" "mpirun, rank 0 after 3 s" "mpirun, late" \
		"mpirun, rank 0 late"; do
		skip "$t" "$1"
	done
	tap_end
}

command -v mpirun >/dev/null || skip_mpirun "mpirun is not found"
case $TT_SANITIZE in
*thread*) skip_mpirun "threads of libpmix are not built with TSan" ;;
esac
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # of libpmix
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
export ASAN_OPTIONS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
export OMPI_MCA_rmaps_base_oversubscribe
timeout 60 mpirun -n 1 true >out 2>&1 || skip_mpirun "mpirun does not work: $(head -n 3 out | tr '\n' ' ')"

for n in 1 4; do
	timeout 60 mpirun -n $n "$rank" 3 >out 2>err
	echo $? >status
	[ "$(cat status)" = 0 ] || cat err >>out
	how=pmix
	ranks "mpirun -n $n" $how $n
done
timeout 60 mpirun -n 3 "$rank" 1 0 >out 2>&1
ranks "mpirun, rank 0 after 3 s" pmix 3 # its server waits for 2 s
TE_COMM_TIMEOUT_MS=$late_ms timeout 60 mpirun -n 3 "$rank" 1 2 60 >out 2>err
check "mpirun, late" grep -q 'rank 2 of 3 did not arrive within 6 s' out
TE_COMM_TIMEOUT_MS=$late_ms timeout 60 mpirun -n 3 "$rank" 1 0 60 >out 2>err
check "mpirun, rank 0 late" grep -q 'rank 0 of 3 did not arrive within 6 s' out

tap_end
