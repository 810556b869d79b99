#!/usr/bin/env bash
# A machine with a stack, in qemu, with systemd and udev as on Debian: its file system comes at boot, goes before the server at shutdown, and
# is there after a power cut. udev hides disks of all kinds that have a cache. It has dcd as a package, which is removed, purged, and upgraded
# below the file system. boot/machine.sh has what the machine does, one function each start.
#
# usage: boot.sh DCD      the program
#   SECONDS_MAX=300: for each start of the machine
# Without qemu or the packages it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: boot.sh DCD}")
here=$(realpath "$(dirname "$0")")
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-300}
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"
# shellcheck source=scripts/guest-kernel/qemu.sh
. "$here/guest-kernel/qemu.sh"

"$here/packages.sh" qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod e2fsprogs fdisk systemd dpkg-dev >&2
mapfile -t missing < <(missing_things 500 dpkg-deb dpkg-gencontrol dpkg-shlibdeps strip sfdisk modprobe depmod mkfs.ext4 e2fsck qemu-system-x86_64 busybox cpio xz)
[ -x /usr/lib/systemd/systemd ] || missing+=(systemd)
have_kernel || missing+=("Debian's package of a 6.12 kernel")
# Not installed, as this machine has no use for it.
unpack udev || missing+=("Debian's package udev")
skip_if_missing "no machine is started with a stack"

begin_work boot
# Of the same program; the second one is an upgrade.
VERSION=0.1 "$here/deb.sh" "$(dirname "$dcd")" "$work" dcd > "$work/debs" 2>&1 || fail "no package: $(cat "$work/debs")"
VERSION=0.2 "$here/deb.sh" "$(dirname "$dcd")" "$work" dcd >> "$work/debs" 2>&1 || fail "no package: $(cat "$work/debs")"
# What the package depends on, as this machine has it.
dpkg-query -s libc6 libgcc-s1 > "$work/dpkg-status"
truncate -s 256M "$work/data.img" "$work/root.img"
truncate -s 64M "$work/log.img" "$work/twin1.img" "$work/twin2.img" "$work/nvme.img"
mkfs.ext4 -q -F "$work/root.img"
# shellcheck disable=SC2034 # for start_qemu
disk_names=(data log root twin twin)
# shellcheck disable=SC2034 # for qemu.sh
more_devices=(-drive "if=none,id=nvme,format=raw,file=$work/nvme.img" -device "nvme,drive=nvme,serial=dcd-nvme")
make_initramfs ext4 overlay

start() { # NUMBER: boots the machine, and waits until it has done its part
    begun=$SECONDS
    start_qemu "$here/boot/init.sh" "HERE=$here START=$1 MODULES=$packages/root" "$work/data.img" "$work/log.img" "$work/root.img" "$work/twin1.img" "$work/twin2.img"
    watch_machine "start $1" true
}

# After the end of a start that switches the machine off. Until then the file system is there, and its server.
check_end() { # NUMBER LAST-STEPS
    local end=$((SECONDS + seconds_max))
    while kill -0 "$machine" 2> /dev/null; do
        [ $SECONDS -lt $end ] || hung "the end of start $1"
        sleep 0.1
    done
    machine=
    local order
    tr -d '\r' < "$work/machine.log" > "$work/console"
    order=$(grep -oE '(Unmounted|Stopping|Stopped) (srv.mount|dcd(-attach)?@disk.service)' "$work/console" | tail -n 3 | sed 's/@.*//; s/ srv.*//' | tr '\n' ' ')
    [ "$order" = "$2 " ] ||
        fail "start $1: the order at shutdown is \"$order\": $(tail -n 40 "$work/console")"
    if grep -E 'although a client|not stopped cleanly|dcd(-attach)?@disk.service: Failed with result .(timeout|exit-code)|ordering cycle' "$work/console"; then
        fail "start $1: see above"
    fi
    echo "start $1: good, $((SECONDS - begun)) s"
}

start 1
check_end 1 "Unmounted Stopping dcd Stopped dcd"
start 2
# The power cut: what the machine had in RAM is lost.
kill -KILL -- "-$machine"
wait "$machine" 2> /dev/null || true
machine=
if grep 'ordering cycle' "$work/machine.log"; then fail "start 2: see above"; fi
echo "start 2, and a power cut: good, $((SECONDS - begun)) s"
start 3
check_end 3 "Stopped dcd-attach Stopping dcd Stopped dcd"
