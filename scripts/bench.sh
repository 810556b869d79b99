#!/usr/bin/env bash
# The measurements of docs/benchmarks.md, one after the other. Each part says what it compares; figures are ratios and
# counts of one run, as absolute times differ between machines.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== examples that measure: CPU, memory, recovery, destaging"
for file in crates/*/examples/*.rs; do
    [ -e "$file" ] || continue
    crate=$(basename "$(dirname "$(dirname "$file")")")
    echo "-- dcd-$crate: $(basename "$file" .rs)"
    cargo run --release --quiet --locked -p "dcd-$crate" --example "$(basename "$file" .rs)"
done
echo
echo "== NBD, beside other servers"
./scripts/bench-nbd.sh target/release/dcd
echo
echo "== recovery of a full log after kill -9"
./scripts/bench-recovery.sh target/release/dcd
echo
echo "== a file system on a slow disk"
./demo/demo.sh target/release/dcd
