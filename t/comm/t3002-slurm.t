#!/bin/sh
# Programs start under srun, by PMIx, and te_run starts its agents by it: a Slurm of this user alone,
# with two nodes, both on this host. TT_SLURM_PLUGINS: where Slurm's plugins are, if they are moved.
. "$abs_top_srcdir/t/lib/tap.sh"

rank=$(built t/comm/rank)
te_run=$(built tools/te_run)
PATH=$PATH:/usr/sbin:/sbin
# of Debian, or with the names of the source
find_one()
{
	command -v "$1" || command -v "$1-wlm"
}
slurmctld=$(find_one slurmctld) || skip_all "slurmctld is not found"
slurmd=$(find_one slurmd) || skip_all "slurmd is not found"
slurmstepd=$(find_one slurmstepd) || skip_all "slurmstepd is not found"
command -v srun >/dev/null || skip_all "srun is not found"
case $TT_SANITIZE in
*thread*) skip_all "threads of libpmix are not built with TSan" ;;
esac
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # of libpmix
export ASAN_OPTIONS
TE_BACKEND=host
export TE_BACKEND
cd "$tmp" || exit 99
"$rank" >out 2>&1 # libtool's wrapper of it is made once
"$te_run" --version >out

host=$(hostname | cut -d . -f 1)
port=$((21000 + $$ % 3000 * 3))
mkdir state spool-n1 spool-n2
cat >slurm.conf <<END
ClusterName=te
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
${TT_SLURM_PLUGINS:+PluginDir=$TT_SLURM_PLUGINS}
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool-%n
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd-%n.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdLogFile=$tmp/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/linear
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=4
PartitionName=p Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
END
SLURM_CONF=$tmp/slurm.conf
export SLURM_CONF
"$slurmctld" -D >slurmctld.out 2>&1 &
ctld=$!
d=
for n in n1 n2; do
	"$slurmd" -D -N $n -d "$slurmstepd" >slurmd-$n.out 2>&1 &
	d="$d $!"
done
end()
{
	kill $d $ctld 2>/dev/null
	wait
	rm -rf "$tmp"
}
trap end EXIT

# no test of libtecomm: that Slurm runs a process
i=0
until timeout 10 srun -N 2 -n 2 true >srun.out 2>&1; do
	i=$((i + 1))
	if [ $i = 20 ] || ! kill -0 $ctld $d; then
		skip_all "Slurm does not start here: $(grep -hE 'error|fatal' ./*.out | tail -n 1)"
	fi
	sleep 0.2
done

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

timeout 30 srun -N 1 -n 2 --mpi=none "$rank" >out 2>&1
check "srun without PMIx is refused" grep -q 'srun --mpi=pmix' out

# te_run's agents by srun, in one allocation
cat >job <<END
#!/bin/sh
"$te_run" --hosts n1:2,n2 --ssh "srun -u --overlap -N 1 -n 1 -w" --te-run "$te_run" "$rank" >out 2>err
echo \$? >status
"$te_run" --hosts n1,n2 --ssh "srun -u --overlap -N 1 -n 1 -w" --te-run "$te_run" \
	sh -c '[ \$TE_COMM_RANK = 1 ] && exit 7; exec sleep 60.3001' 2>err.fails
echo \$? >>status
END
timeout 60 sbatch -W -N 2 -n 4 -o sbatch.out job >sbatch.err 2>&1
[ -s out ] || cat sbatch.out sbatch.err err >out
ranks "te_run --hosts by srun" id 3
printf '0\n7\n' >want
same "and the status of its ranks" want status
check "names the one that failed" grep -q 'rank 1 (host n2, .*) exited with status 7' err.fails

# one node: those of one host would share a folder
if ! timeout 30 srun -N 1 -n 1 --mpi=pmix true >out 2>&1; then
	why="this Slurm has no PMIx: $(tail -n 1 out)"
	for t in "srun -n 1" "srun -n 4" "srun, late"; do
		skip "$t" "$why"
	done
	tap_end
fi
for n in 1 4; do
	timeout 60 srun -N 1 -n $n --mpi=pmix "$rank" 3 >out 2>err || cat err >>out
	ranks "srun -n $n" pmix $n
done
TE_COMM_TIMEOUT_MS=2000 timeout 60 srun -N 1 -n 3 --mpi=pmix "$rank" 1 2 >out 2>err
check "srun, late" grep -q 'rank 2 of 3 did not arrive within 2 s' out

tap_end
