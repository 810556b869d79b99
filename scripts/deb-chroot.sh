#!/usr/bin/env bash
# The packages in a new Debian, which has nothing else: they are installed with what they depend on, the README's commands run, and they go. boot.sh
# has them on a machine with systemd.
#
# usage: deb-chroot.sh DEB...
# Without mmdebstrap, root or Debian's archive it says "SKIPPED: REASON".
set -euo pipefail

cd "$(dirname "$0")/.."
./scripts/packages.sh mmdebstrap >&2
skip() { echo "SKIPPED: the packages are not installed in a new Debian; $*"; exit 0; }
[ "$(id -u)" -eq 0 ] || skip "missing: root"
command -v mmdebstrap > /dev/null || skip "missing: mmdebstrap"
work=$(mktemp -d)
trap 'umount --lazy "$work/root"/{proc,sys,dev,var/lib/dcd/other.fuse} 2> /dev/null || true; rm -rf --one-file-system "$work"' EXIT
mkdir "$work/root"
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2> /dev/null || true; } |
    mmdebstrap --mode=root --variant=minbase "$suite" "$work/root" - > "$work/log" 2>&1 || skip "mmdebstrap: $(tail -n 2 "$work/log")"
cp "$@" "$work/root/root/"
mount -t proc none "$work/root/proc"
# For an image through FUSE, and a loop device.
mount -t sysfs none "$work/root/sys"
mount --bind /dev "$work/root/dev"
cat > "$work/root/root/commands" << 'COMMANDS'
set -eu
cd /root
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -q --no-install-recommends ./*.deb > install.log 2>&1 || { cat install.log; exit 1; }
truncate -s 256M slow.img
dcd format --log fast.img --log-size 64MiB --data slow.img --stack /etc/dcd/disk.toml
mkdir -p /run/dcd
dcd serve /etc/dcd/disk.toml > ready 2> server.log &
until [ -s ready ]; do kill -0 $! || { cat server.log; exit 1; }; sleep 0.1; done
dcd status
dcd flush /etc/dcd/disk.toml
if dpkg -r dcd > removed 2>&1; then echo "a package was removed that is in use"; exit 1; fi
grep -q 'dcd is not removed: it serves these stacks' removed
dcd stop /etc/dcd/disk.toml
wait
dcd check /etc/dcd/disk.toml
dcd detach /etc/dcd/disk.toml
dcd study list | head -n 3
if [ -c /dev/fuse ]; then
    truncate -s 64M other.img
    dcd create other --data slow.img --log other.img > created
    node=$(grep -o '/dev/[^ ]*' created | head -n 1)
    head -c 1M /dev/urandom > content
    dd if=content of="$node" bs=1M oflag=direct conv=notrunc status=none
    dcd list
    dcd remove other
    cmp -n 1048576 content slow.img
fi
zcat /usr/share/man/man5/dcd-stack.5.gz | grep -q 'stack files of dcd'
dpkg -P dcd-lab dcd 2>&1
[ -e /etc/dcd/disk.toml ] && [ -e fast.img ] && [ ! -e /usr/bin/dcd ] && [ ! -e /usr/bin/dcd-lab ]
COMMANDS
chroot "$work/root" /bin/sh /root/commands
echo "good: installed in a new Debian, used, removed and purged"
