#!/usr/bin/env bash
# The write cache's pool beside libCacheSim: LRU and FIFO over one trace of 10 million requests, in caches of 100,000 objects.
#
# What makes it a comparison:
# - Both read the same file of fixed records, which is in memory, and both decode the records within the time that is measured.
# - Time is that of the processor, for the whole loop; the start of the programs and the making of the caches are not in it.
# - libCacheSim runs its own loop in C (`process_trace`), after one run that does not count, and its index has the size that fits the cache.
# - Rounds take turns; shown is the median. The misses must be equal, or the script fails.
#
# "lru" is a cache of reads. "fifo" is a write cache: every request is a write, and the block that was dirty for the longest time is purged.
#
# usage: bench-policies.sh     ROUNDS=5 PYTHON=python3
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
rounds=${ROUNDS:-5}
"$python" -c 'import libcachesim' 2> /dev/null || {
    echo "SKIPPED: $python has no libcachesim (get it with: $python -m pip install libcachesim; PYTHON names another interpreter)"
    exit 0
}
cargo build --release --quiet --locked -p dcd-model --example write_cache_policy
program=target/release/examples/write_cache_policy
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" trace "$work/trace"

theirs() { # lru OR fifo: seconds and misses
    "$python" - "$1" "$work/trace" << 'CODE'
import sys, time
import libcachesim as lib
policy = {"lru": lib.LRU, "fifo": lib.FIFO}[sys.argv[1]]
requests = 10_000_000
trace = lib.TraceReader(trace=sys.argv[2], trace_type=lib.TraceType.ORACLE_GENERAL_TRACE)
for counts in (False, True):
    cache = policy(cache_size=100_000, hashpower=18)
    start = time.thread_time()
    miss_ratio, _ = cache.process_trace(trace)
    seconds = time.thread_time() - start
    trace.reset()
print(seconds, round(miss_ratio * requests))
CODE
}

for _ in $(seq "$rounds"); do
    for policy in lru fifo; do
        echo "$policy dcd $("$program" $policy "$work/trace")"
        echo "$policy libCacheSim $(theirs $policy)"
    done
done > "$work/results"
sort -k1,1r -k2,2 -k3,3n "$work/results" | awk -v rounds="$rounds" '
    { key = $1 " " $2; if (++seen[key] == int((rounds + 1) / 2)) printf "%s: %.1f million requests a second, %d misses\n", key, 10 / $3, $4
      if ($1 in misses && misses[$1] != $4) { print "FAILED: the misses of " $1 " differ"; failed = 1 }
      misses[$1] = $4 }
    END { exit failed }'
