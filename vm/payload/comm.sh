# comm.sh - ranks of one host.

if [ ! -x /bin/te_perftest ]; then
	skip "ranks" "te_perftest is not built"
	exit 0
fi
gives "two ranks: all-reduce" 0 '^ +2 +allreduce +bf16 +65536 ' te_run -n 2 te_perftest comm --verify \
	--bytes 1K,64K --iters 3 --warmup 1 --depth 2
# killed when both have a pool, which the log says
gives "a rank that is killed ends the other" 137 '^te_run: rank 1 .* was killed by signal 9' \
	env TE_LOG=info te_run -n 2 sh -c '
		pools() { [ "$(grep -c " a pool of .* bytes" /tmp/gives.out)" = 2 ]; }
		[ $TE_COMM_RANK = 0 ] || (until pools; do sleep 0.1; done; kill -9 $$) &
		exec te_perftest comm --bytes 1K --iters 1000000 --seconds 100'
