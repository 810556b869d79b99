#!/usr/bin/env bash
# Format, lints and every test, and at the end what was skipped and why. With "product" only those of crates/, and short runs of the
# crash explorer.
#
# A test that lacks a tool or a device writes "SKIPPED: REASON" to standard error and returns; the summary counts those.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS

echo "== format"
cargo fmt --all --check
packages=(--workspace)
if [ "${1:-}" = product ]; then
    packages=()
    for manifest in crates/*/Cargo.toml; do packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)"); done
fi
echo "== lints"
cargo clippy "${packages[@]}" --all-targets --locked --quiet -- -D warnings
echo "== tests"
# Names of passing tests are left out.
noise='^(test .* \.\.\. ok|running [0-9]+ tests?|)$'
set +e
cargo test "${packages[@]}" --locked --no-fail-fast 2>&1 | tee "$log" | grep -Ev "$noise"
status=${PIPESTATUS[0]}
set -e
if [ "${1:-}" = product ]; then
    echo "== crash explorer"
    for options in "--promise flush" "--promise ordered" "--promise always" "--raid raid6 --journal --lose-members"; do
        # Options are words of their own.
        # shellcheck disable=SC2086
        cargo run --quiet --locked -p dcd-sim --bin dcd-crash -- $options --states 1000 | sed -n '1p;$p' || status=1
    done
fi

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
