#!/usr/bin/env bash
# Counts the lines of production code: of each Rust file under version control what stands before its first `#[cfg(test)]`, without
# comments and blank lines. Files with "test" in their path, examples, benches and fuzz targets do not count.
set -euo pipefail
cd "$(dirname "$0")/.."

count() { # WHAT PATH ...
    git ls-files -- "${@:2}" | grep '\.rs$' | grep -Ev 'test|/(benches|examples|fuzz)/' | xargs -d '\n' awk -v what="$1" '
        /^[ \t]*#\[cfg\(test\)\]/ { nextfile }
        !/^[ \t]*($|\/\/)/ { lines++ }
        END { printf "%7d  %s\n", lines, what }'
}

count 'product (crates/ without crash)' crates ':!crates/crash'
count 'crash explorer (crates/crash)' crates/crash
count 'laboratory (lab/)' lab
