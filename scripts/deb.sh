#!/usr/bin/env bash
# Debian packages of the programs, by dpkg's own tools: what "make install" installs, with the metadata of packaging/debian.
#
# usage: deb.sh BUILT OUT PACKAGE...     the directory of the programs, that of the packages; dcd, dcd-lab
#   VERSION=0.1.0 (default: that of the workspace)
# lintian looks at them where it is installed; an error of it is one of this script.
set -euo pipefail

built=$(realpath "${1:?usage: deb.sh BUILT OUT PACKAGE...}")
mkdir -p "${2:?usage: deb.sh BUILT OUT PACKAGE...}"
out=$(realpath "$2")
shift 2
cd "$(dirname "$0")/.."
debian=$PWD/packaging/debian
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
# The same files make the same package.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}

./scripts/packages.sh dpkg-dev lintian >&2
for tool in dpkg-deb dpkg-gencontrol dpkg-shlibdeps strip readelf; do
    command -v $tool > /dev/null || { echo "SKIPPED: no packages are made; missing: $tool (package dpkg-dev)"; exit 0; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# dpkg's tools look for these here.
mkdir "$work/debian"
cp "$debian/control" "$work/debian/control"
{
    printf 'dcd (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources has the changes.\n\n' "$version"
    printf ' -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' "$debian/control")" "$(date -uRd "@$SOURCE_DATE_EPOCH")"
} > "$work/debian/changelog"

for package in "$@"; do
    root=$work/$package
    target=copy-dcd
    [ "$package" = dcd ] || target=copy-lab
    make -s "$target" CARGO=: BUILT="$built" DESTDIR="$root" PREFIX=/usr > /dev/null
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    gzip -9n "$root"/usr/share/man/man?/*
    docs=$root/usr/share/doc/$package
    gzip -9n "$docs/NOTICES"
    install -D -m 644 "$debian/copyright" "$docs/copyright"
    rm -f "$docs"/LICENSE-*
    gzip -9nc "$work/debian/changelog" > "$docs/changelog.gz"
    if readelf --wide --sections "$root/usr/bin/$package" | grep -q '\.debug_line'; then
        echo "$package has debug lines: make $target should strip it" >&2
        exit 1
    fi
    mkdir "$root/DEBIAN"
    for script in "$debian/$package".*; do
        if [ -e "$script" ]; then install -m 755 "$script" "$root/DEBIAN/${script##*.}"; fi
    done
    (
        cd "$work"
        dpkg-shlibdeps -O "$root/usr/bin/$package" > substvars 2> shlibs.log || { cat shlibs.log >&2; exit 1; }
        dpkg-gencontrol -p"$package" -P"$root" -Tsubstvars -v"$version" -ffiles > /dev/null
        cd "$root"
        find usr -type f -exec md5sum {} + | sort -k 2 > DEBIAN/md5sums
    )
    find "$root" -type d -exec chmod 755 {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out" > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
    deb=$out/${package}_${version}_$(dpkg --print-architecture).deb
    if command -v lintian > /dev/null; then
        # It warns where it is run by root.
        lintian --allow-root --tag-display-limit 0 --fail-on error "$deb" || { echo "lintian finds errors in $deb" >&2; exit 1; }
    else
        echo "SKIPPED: package $package is not looked at; missing: lintian"
    fi
    echo "$deb"
done
