#!/usr/bin/env bash
# Devices that outlive their server, under Debian's 6.12 kernel in qemu. ublk: the device and its limits, ext4 on it, a server that is killed
# and restarted under load, killed inside its recovery, and upgraded; fsx and stress-ng; devices without servers, removed under load, and many of them. The
# kernel's NBD client: what "dcd attach" makes, and the same kills and upgrades. A log on an NVMe SSD: its wear, and discards. ublk/*.sh have the tests, one function each.
#
# usage: ublk.sh DCD     the program
#   PARTS="..." (default: all), KILLS=5 RECOVERIES=5 UPGRADES=2 REMOVALS=3 MANY=30 FSX_OPERATIONS=20000 STRESS_SECONDS=1 SECONDS_MAX=1200, SUCCESSOR=DCD (what upgrades
#   start; default: a copy of DCD)
# "measure" in PARTS puts ublk beside NBD, FUSE, loop and null_blk: SECONDS_EACH=10 ROUNDS=3.
# Without qemu or the kernel's package it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: ublk.sh DCD}")
here=$(realpath "$(dirname "$0")")
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-1200}
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"
# shellcheck source=scripts/guest-kernel/qemu.sh
. "$here/guest-kernel/qemu.sh"

"$here/packages.sh" qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod fio e2fsprogs nbd-client stress-ng >&2
mapfile -t missing < <(missing_things 700 fio stress-ng modprobe depmod mkfs.ext4 e2fsck blkdiscard qemu-system-x86_64 busybox cpio xz)
have_kernel || missing+=("Debian's package of a 6.12 kernel")
skip_if_missing "ublk is not tried under a kernel that has it"

parts=${PARTS:-node limits errors ext4 discard stops listed promise kills recoveries upgrades attach nbd_kills nbd_upgrades grow removed removed_killed many second \
    disks queues wear fsx stress}
# The file system exerciser in its Rust version, which cargo installs: Debian has none.
fsx=$packages/fsx/bin/fsx
if [[ " $parts " = *" fsx "* ]] && [ ! -x "$fsx" ] && ! cargo install --quiet --locked --version 0.3.2 --root "$packages/fsx" fsx >&2; then
    echo "left out: fsx, which cargo cannot install"
    parts=" $parts "
    parts=${parts/ fsx / }
fi

begin_work ublk
mkdir "$work/bin"
[ ! -x "$fsx" ] || cp "$fsx" "$here/ublk/fsx.toml" "$work/bin"
cp "$dcd" "$work/bin/dcd"
cp "${SUCCESSOR:-$dcd}" "$work/bin/successor"
truncate -s 512M "$work/data.img"
truncate -s 64M "$work/log.img"
# An NVMe SSD with a partition of 62 MiB, which begins at 1 MiB.
truncate -s 64M "$work/nvme.img"
printf '\0\0\0\0\203\0\0\0\0\010\0\0\0\360\001\0' | dd of="$work/nvme.img" bs=1 seek=446 conv=notrunc status=none
printf '\125\252' | dd of="$work/nvme.img" bs=1 seek=510 conv=notrunc status=none
# shellcheck disable=SC2034 # for qemu.sh
more_devices=(-drive "if=none,id=nvme,format=raw,discard=unmap,file=$work/nvme.img" -device "nvme,drive=nvme,serial=dcd")
# Of measurements alone, and of the parts "wear" and "disks".
truncate -s 128M "$work/file.img"
truncate -s 512M "$work/data2.img"
truncate -s 64M "$work/log2.img"
cat > "$work/run" << RUN
PARTS="$parts"
KILLS=${KILLS:-5} RECOVERIES=${RECOVERIES:-5} UPGRADES=${UPGRADES:-2} REMOVALS=${REMOVALS:-3} MANY=${MANY:-30} FSX_OPERATIONS=${FSX_OPERATIONS:-20000}
STRESS_SECONDS=${STRESS_SECONDS:-1} STRESS_BUT=${STRESS_BUT:-}
SECONDS_EACH=${SECONDS_EACH:-10} ROUNDS=${ROUNDS:-3}
RUN
make_initramfs ext4 nbd ublk_drv fuse loop null_blk nvme
start_qemu "$here/ublk/guest.sh" "HERE=$here" "$work/"{data,log,file,data2,log2}.img
watch_results ublk
awk -F';' "$summary"'
    $1 == "measured" { seen[$3, $4]++; value["rate", $3, $4, seen[$3, $4]] = $5; value["cost", $3, $4, seen[$3, $4]] = $6; any = 1 }
    # Ratios to ublk in the same round.
    function table(what, title,    s, w, i, n, ratios) {
        printf "\n| %s |", title
        for (w = 1; w <= 4; w++) printf " %s |", works[w]
        print "\n|---|---|---|---|---|"
        for (s = 1; s <= setups; s++) {
            printf "| %s |", names[setup[s]]
            for (w = 1; w <= 4; w++) {
                n = seen[works[w], setup[s]]
                for (i = 1; i <= n; i++) ratios[i] = value[what, works[w], setup[s], i]
                if (setup[s] == "ublk") { printf " %s |", summary(ratios, n, "%.0f"); continue }
                for (i = 1; i <= n; i++) ratios[i] /= value[what, works[w], "ublk", i]
                printf " %s |", summary(ratios, n, "%.2f")
            }
            print ""
        }
    }
    END {
        if (!any) exit
        split("randread-1 randread-32 randwrite-1 randwrite-32", works, " ")
        setups = split("ublk nbd fuse ublk-recovery ublk-file loop-file ublk-ram null_blk", setup, " ")
        split("ublk|NBD|FUSE and loop|ublk with recovery|ublk over a file|loop over that file|ublk over RAM|null_blk", told, "|")
        for (s = 1; s <= setups; s++) names[setup[s]] = told[s]
        table("rate", "requests a second; from the second row on, times those of ublk")
        table("cost", "processor time for each, in us; from the second row on, times that of ublk")
    }' "$work/results"
