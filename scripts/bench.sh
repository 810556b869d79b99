#!/usr/bin/env bash
# The measurements of docs/benchmarks.md, one after the other. Each part says what it compares; figures are ratios and
# counts of one run, as absolute times differ between machines.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== examples that measure: CPU, memory, recovery, destaging"
for file in {crates,lab}/*/examples/*.rs; do
    [ -e "$file" ] || continue
    crate=$(basename "$(dirname "$(dirname "$file")")")
    echo "-- dcd-$crate: $(basename "$file" .rs)"
    cargo run --release --quiet --locked -p "dcd-$crate" --example "$(basename "$file" .rs)"
done
echo
echo "== a trace on eighteen disks, beside DiskSim"
if [ -e "${DCD_TRACES:-}/ascii.trace.gz" ]; then
    trace=$(mktemp)
    trap 'rm -f "$trace"' EXIT
    gzip -dc "$DCD_TRACES/ascii.trace.gz" >"$trace"
    cargo run --release --quiet --locked -p dcd-sim --example disk_speed -- "$trace" atlas-10k c-look 18
else
    echo "SKIPPED: DCD_TRACES is not a directory with DiskSim's ascii.trace.gz"
fi
echo
echo "== policies of the write cache, beside libCacheSim"
./scripts/bench-policies.sh
echo
echo "== where the instructions of a request go"
./scripts/profile-path.sh target/release/dcd
echo
echo "== NBD, beside other servers"
./scripts/bench-nbd.sh target/release/dcd
echo
echo "== RAM of several disks on one log"
./scripts/bench-disks.sh target/release/dcd
echo
echo "== recovery of a full log after kill -9"
./scripts/bench-recovery.sh target/release/dcd
echo
echo "== dcd tune, a million requests"
./scripts/bench-tune.sh "$PWD/target/release/dcd-lab"
echo
echo "== a file system on a slow disk"
./demo/demo.sh target/release/dcd-lab
echo
echo "== arrays beside Linux md"
./scripts/compare-md.sh target/release/dcd-lab
