#!/usr/bin/env bash
# Format, lints and every test, and at the end what was skipped and why. With "product" only those of crates/, and short runs of the
# crash explorer.
#
# A test that lacks a tool or a device writes "SKIPPED: REASON" to standard error and returns; the summary counts those.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -rf "$log" "$log.lock" "${built:-$log}"*' EXIT
started=$SECONDS

echo "== format"
cargo fmt --all --check
packages=(--workspace)
if [ "${1:-}" = product ]; then
    packages=()
    for manifest in crates/*/Cargo.toml; do packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)"); done
fi
echo "== scripts"
if command -v shellcheck > /dev/null; then
    # Variables that scripts share with those that they read are no fault.
    grep -rlE '^#!/.*\bsh|^#!/.*\bbash' .ci demo examples packaging scripts | xargs shellcheck -S warning -e SC2034,SC2154
else
    echo "SKIPPED: scripts are not checked; missing: shellcheck" | tee -a "$log"
fi
echo "== crates of others"
if command -v cargo-deny > /dev/null; then
    cargo deny --locked check licenses bans sources
else
    echo "SKIPPED: licences, versions and sources of crates are not checked; missing: cargo-deny" | tee -a "$log"
fi
# Where nothing was built yet, what only helps the next build would cost a tenth of the time.
[ -d target/debug/incremental ] || export CARGO_INCREMENTAL=0
echo "== lints"
cargo clippy "${packages[@]}" --all-targets --locked --quiet -- -D warnings
# As they are installed: the workspace has features that these lack.
cargo check -p dcd -p dcd-lab --locked --quiet
# Links between comments.
RUSTDOCFLAGS="-D warnings" cargo doc "${packages[@]}" --no-deps --locked --quiet
echo "== tests"
# promtool tries the alerts. It is taken out of its package, which would also start a daemon.
if ! command -v promtool > /dev/null; then
    tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")
    mkdir -p "$tools"
    [ -x "$tools/promtool" ] || (
        cd "$tools"
        apt-get download prometheus
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool
        rm prometheus_*.deb
    ) > /dev/null 2>&1 || true
    PATH=$PATH:$tools
fi
# Built once, without the examples (the lints have checked those). Then three binaries run at a time with three threads each: most tests
# wait for disks and clocks.
built=$(mktemp)
cargo test "${packages[@]}" --lib --bins --tests --locked --no-run --message-format=json-render-diagnostics > "$built"
sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1 \2/p' "$built" |
    LC_ALL=C sort -t/ -k1 > "$built.tests"
[ -s "$built.tests" ] || { echo "no tests were built" >&2; exit 1; }
# The longest first.
{ grep -E '/(dcd_crash|dcd_sim|dcd_trace|program)-[^/]*$' "$built.tests" || true; grep -vE '/(dcd_crash|dcd_sim|dcd_trace|program)-[^/]*$' "$built.tests"; } > "$built.order"
# Names of passing tests are left out.
noise='^(test .* \.\.\. ok|running [0-9]+ tests?|)$'
# Of each test with forged bytes.
export BOLERO_RANDOM_TEST_TIME_MS=${BOLERO_RANDOM_TEST_TIME_MS:-30000}
export noise log RUST_TEST_THREADS=3
run_binary() { # DIRECTORY EXECUTABLE
    local out status=0
    out=$(mktemp)
    (cd "$1" && "$2") > "$out" 2>&1 || status=$?
    {
        flock 9
        echo "   ${2##*/}"
        [ "$status" -eq 0 ] || echo "test ${2##*/}: exit $status ... FAILED" >> "$out"
        cat "$out" >> "$log"
        grep -Ev "$noise" "$out" || true
    } 9>> "$log.lock"
    rm -f "$out"
    return "$status"
}
export -f run_binary
set +e
xargs -P 3 -L 1 bash -c 'run_binary "$0" "$1"' < "$built.order"
status=$?
set -e
echo "== packages"
# lintian looks at them.
programs=(dcd)
[ "${1:-}" = product ] || programs+=(dcd-lab)
./scripts/deb.sh "${CARGO_TARGET_DIR:-target}/debug" "$built.deb" "${programs[@]}" 2>&1 | tee -a "$log" ||
    { status=1; echo "test scripts/deb.sh ... FAILED" >> "$log"; }
if [ "${1:-}" = product ]; then
    echo "== crash explorer"
    for options in "--promise flush" "--promise ordered" "--promise always" "--raid raid6 --journal --lose-members"; do
        # Options are words of their own.
        # shellcheck disable=SC2086
        cargo run --quiet --locked --profile test -p dcd-crash -- $options --states 1000 | sed -n '1p;$p' || status=1
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
