#!/usr/bin/env bash
# What continuous integration does not run, for whoever releases: targets of make, one after the other, and a line for each at its end. One that
# fails does not end the rest. What a part prints is in target/check-all/PART.log.
#
# usage: check-all.sh [PART...]     msrv boot ublk vhost peers test-deb test-container
#   peers is a short run, of one seed and a few workloads, unless SETUPS, WORK and SEEDS say otherwise
# It ends with failure if a part failed. A part that lacks what it needs is skipped, and counted as skipped.
set -uo pipefail

cd "$(dirname "$0")/.." || exit
[ $# -gt 0 ] || set -- msrv boot ublk vhost peers test-deb test-container
export SEEDS=${SEEDS:-1} SETUPS=${SETUPS:-plain writecache dcd} WORK=${WORK:-fsync burst sqlite}
kept=target/check-all
mkdir -p "$kept" || exit
passed=0 failed=0 skipped=0
for part in "$@"; do
    started=$SECONDS
    if ! "${MAKE:-make}" --no-print-directory "$part" > "$kept/$part.log" 2>&1 < /dev/null; then
        result="FAILED, see $kept/$part.log: $(tail -n 1 "$kept/$part.log")"
        failed=$((failed + 1))
    elif result=$(grep -m 1 '^SKIPPED: ' "$kept/$part.log"); then
        skipped=$((skipped + 1))
    else
        result=passed
        passed=$((passed + 1))
    fi
    printf '%-14s %5d s  %s\n' "$part" $((SECONDS - started)) "$result"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
