#!/usr/bin/env bash
# Counts the lines of production code: Rust files under version control, without tests, examples, comments and blank lines.
#
# A test is what lies below tests/, benches/, examples/ or fuzz/, a file NAME_tests.rs, and each module behind `#[cfg(test)]`.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { # PATH ...
    git ls-files -- "$@" | grep '\.rs$' | grep -Ev "(^|/)(tests|benches|examples|fuzz)/|_tests\.rs\$" | while read -r file; do
        [ ! -e "$file" ] || echo "$file"
    done
}

# Regular expressions of the files that are modules of tests.
test_modules() { # FILE ...
    awk '
        FNR == 1 { dir = FILENAME; if (dir ~ /\/(mod|lib|main)\.rs$/) sub(/\/[^\/]*$/, "", dir); else sub(/\.rs$/, "", dir) }
        /^[ \t]*#\[cfg\((any\()?test/ { pending = 1; next }
        pending && match($0, /mod [a-z0-9_]+;/) { print "^" dir "/" substr($0, RSTART + 4, RLENGTH - 5) "(/|\\.rs$)" }
        { pending = pending && /^[ \t]*#\[/ }' "$@"
}

count() { # PATH ...
    local all
    mapfile -t all < <(sources "$@")
    [ ${#all[@]} -gt 0 ] || { echo 0; return; }
    mapfile -t all < <(printf '%s\n' "${all[@]}" | grep -Evf <(test_modules "${all[@]}"; echo '^$'))
    awk '
        FNR == 1 { skipping = pending = 0 }
        skipping { if ($0 ~ "^" indent "}") skipping = 0; next }
        /^[ \t]*$/ || /^[ \t]*\/\// { next }
        /^[ \t]*#\[cfg\(test\)\]/ { pending = 1; next }
        pending && /^[ \t]*#\[/ { next }
        pending { pending = 0; indent = $0; sub(/[^ \t].*/, "", indent); skipping = ($0 ~ /\{[ \t]*$/); next }
        { lines++ }
        END { print lines + 0 }' "${all[@]}"
}

printf '%7d  product (crates/ without crash)\n' "$(count crates ':!crates/crash')"
printf '%7d  crash explorer (crates/crash)\n' "$(count crates/crash)"
printf '%7d  laboratory (lab/)\n' "$(count lab)"
