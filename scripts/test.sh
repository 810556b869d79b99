#!/usr/bin/env bash
# Format, lints and every test, and at the end what was skipped and why.
#
# A test that lacks a tool or a device writes "SKIPPED: REASON" to standard error and returns; the summary counts those.
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
# Names of passing tests are left out.
noise='^(test .* \.\.\. ok|running [0-9]+ tests?|)$'
set +e
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" | grep -Ev "$noise"
status=${PIPESTATUS[0]}
set -e

echo
echo "== summary, after $((SECONDS - started)) s"
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "%d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log"
echo "$(grep -c 'SKIPPED: ' "$log" || true) skipped for want of a tool or a device"
grep -o 'SKIPPED: .*' "$log" | sort | uniq -c || true
if [ "$status" -ne 0 ]; then
    echo "FAILED"
    grep -E '^test .* FAILED$' "$log" || true
fi
exit "$status"
