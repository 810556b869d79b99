#!/usr/bin/env bash
# Installs the Debian packages named as arguments, if some are missing and it can. It never fails: tests that lack a
# tool are skipped, and the summary says so.
set -uo pipefail

command -v dpkg-query > /dev/null || exit 0
missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "not installed, and not root: ${missing[*]}"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -q --no-install-recommends "${missing[@]}" > /dev/null 2>&1; }
echo "installing ${missing[*]}"
install || { apt-get update -q > /dev/null 2>&1; install; } || echo "could not install all of: ${missing[*]}"
exit 0
