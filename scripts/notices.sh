#!/usr/bin/env bash
# Prints the licences of the libraries that a program contains, with the notices that these ask for.
#
# usage: notices.sh PACKAGE     dcd or dcd-lab
# Of a library under MIT or another licence the text of MIT is enough. One under Apache-2.0 may lack the text, which is the same everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
own=$PWD
sources=("${CARGO_HOME:-$HOME/.cargo}"/registry/src/*)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo tree --package "${1:?usage: notices.sh PACKAGE}" --edges normal,no-proc-macro --prefix none --no-dedupe --locked \
    --format '{p}|{l}|{r}' > "$work/tree"
# Those of the workspace have a path.
grep -v '(/' "$work/tree" | sort -u | while IFS='|' read -r crate licence home; do
    name=${crate%% v*} version=${crate##* v}
    for root in "${sources[@]}"; do [ ! -d "$root/$name-$version" ] || break; done
    cd "$root/$name-$version" || { echo "the sources of $crate are missing: cargo fetch" >&2; exit 1; }
    mapfile -t texts < <(find . -maxdepth 1 -type f | grep -iE '^\./(licen[cs]e|copying|copyright|notice|unlicense)' | LC_ALL=C sort)
    case $licence in *MIT*AND* | *AND*MIT*) ;; *MIT*)
        for text in "${texts[@]}"; do case $text in *MIT*) texts=("$text"); break ;; esac; done ;;
    esac
    [ -n "${texts[*]}" ] || case $licence in *Apache-2.0*) texts=("$own/LICENSE-APACHE") ;; esac
    [ -n "${texts[*]}" ] || { echo "$crate has no text of its licence" >&2; exit 1; }
    # Libraries with the same text stand together.
    sum=$(cat "${texts[@]}" | sha256sum | cut -d ' ' -f 1)
    echo "$name $version ($licence) $home" >> "$work/$sum.names"
    cat "${texts[@]}" > "$work/$sum.text"
done

echo "Libraries in $1, and their notices. The standard library of Rust is in it too: Copyright (c) The Rust Project Contributors,"
echo "MIT OR Apache-2.0, https://github.com/rust-lang/rust."
for names in "$work"/*.names; do
    printf '\n%s\n\n' "-------------------------------------------------------------------------------"
    cat "$names" - "${names%.names}.text" <<< ''
done
