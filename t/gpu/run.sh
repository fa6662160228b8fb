#!/bin/sh
# run.sh [-j N] [PROGRAM...] - all tests of this folder, or these, N at a time; a row for each, the
# lines of those that failed, and their sum. Logs are in log/. LIMIT=SECONDS limits each program.
cd "$(dirname "$0")" || exit 1
jobs=1
[ "${1:-}" != -j ] || { jobs=$2; shift 2; }
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PATH="$PWD/bin:$PATH"
export TT_REQUIRE="${TT_REQUIRE-gpu}" LIMIT="${LIMIT:-300}" TT_TAP=1
[ $# != 0 ] || set -- t/*/*
rm -rf log
mkdir log
printf '%s\n' "$@" | xargs -P "$jobs" -I{} sh -c '
	log=log/$(echo "$1" | tr / -)
	begin=$(date +%s)
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/te-gpu.XXXXXX") || exit
	TMPDIR=$tmp timeout -k 5 "$LIMIT" "./$1" >"$log" 2>&1 </dev/null
	status=$?
	rm -rf "$tmp"
	awk -v name="$1" -v status=$status -v s=$(($(date +%s) - begin)) "
		/^ok .*# SKIP/ || /^1\.\.0 # SKIP/ { skip++; next }
		/^ok / { pass++ }
		/^not ok / { fail++ }
		END {
			skip += status == 77 && !skip
			fail += status && status != 77 && !fail
			printf \"%-28s %5d passed %3d failed %3d skipped %4d s, status %d\n\",
				name, pass, fail, skip, s, status
		}" "$log" | tee "$log.row"' sh {}
echo
grep -H -E '^(not ok|Bail out!)' log/* | cut -c1-200 | head -n 50
cat log/*.row | awk '{ p += $2; f += $4; s += $6 }
	END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }'
