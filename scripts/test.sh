#!/usr/bin/env bash
# Format, lints and every test, and at the end what was skipped and why.
#
# A test that lacks a tool or a device prints a line "skipped: NAME: REASON" and returns; the summary counts those lines.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS

echo "== format"
cargo fmt --all --check
echo "== lints"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
echo "== tests"
# Output of passing tests is shown too: that is where skipped ones say so.
status=0
cargo test --workspace --locked --no-fail-fast -- --show-output 2>&1 | tee "$log" | grep -Ev '^(successes:|----.*stdout ----|    [a-z_:0-9]+|)$' || true
status=${PIPESTATUS[0]}

echo
echo "== summary, after $((SECONDS - started)) s"
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "%d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log"
skipped=$(grep -c '^skipped: ' "$log" || true)
echo "$skipped skipped for want of a tool or a device"
grep '^skipped: ' "$log" | sort | uniq -c | sed 's/^/  /' || true
if [ "$status" -ne 0 ]; then
    echo "FAILED"
    grep -E '^test .* FAILED$' "$log" || true
fi
exit "$status"
