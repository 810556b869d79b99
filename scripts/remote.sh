#!/usr/bin/env bash
# A data disk on another machine: two network namespaces under Debian's 6.12 kernel in qemu, with netem between them. nbdkit is in the far
# namespace, over files in RAM; dcd is in the near one, and beside it the kernel's NBD client with dm-writecache. remote/guest.sh does the work.
#
# - "measure": requests of 4 KiB, to each way in turns: random writes with an fsync after each, random writes 32 in flight, and random reads of
#   what is in no cache, one and 32 in flight. LINKS has the delay of a round trip, half of it in each direction, and how many packets are lost
#   in each. All logs are null_blk in RAM, which takes 20 us for a request. All ways have four connections.
# - "verify": fio reads back and compares what it writes through dcd, while packets are lost and reordered; and while the link is gone
#   for CUT seconds, CUTS times switched off and as often with all packets lost. What is in no cache waits meanwhile; nothing may fail. Then the
#   device and the far disk are compared, byte for byte, where fio wrote.
#
# Time is virtual: one processor, for both machines, executes 10^9 instructions a second, and nothing is waited for. So what else the host
# does changes nothing.
#
# usage: remote.sh DCD     the program
#   PARTS="measure verify" LINKS="0.5ms 5ms 0.5ms,1%" REQUESTS=1000 ROUNDS=3 CUT=30 CUTS=4 SECONDS_MAX=3000 (of the host)
# Without qemu or the kernel's package it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: remote.sh DCD}")
here=$(realpath "$(dirname "$0")")
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-3000}
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"
# shellcheck source=scripts/guest-kernel/qemu.sh
. "$here/guest-kernel/qemu.sh"

"$here/packages.sh" qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod fio dmsetup nbd-client nbdkit iproute2 >&2
mapfile -t missing < <(missing_things 2000 fio modprobe depmod dmsetup nbd-client nbdkit ip tc qemu-system-x86_64 busybox cpio xz)
have_kernel || missing+=("Debian's package of a 6.12 kernel")
skip_if_missing "no remote disk is tried under a kernel that has netem"

begin_work remote
mkdir "$work/bin"
cp "$dcd" "$work/bin/dcd"
cat > "$work/run" << RUN
PARTS="${PARTS:-measure verify}" LINKS="${LINKS:-0.5ms 5ms 0.5ms,1%}"
REQUESTS=${REQUESTS:-1000} ROUNDS=${ROUNDS:-3} CUT=${CUT:-30} CUTS=${CUTS:-4}
RUN
make_initramfs nbd ublk_drv dm-writecache null_blk veth sch_netem
# shellcheck disable=SC2034,SC2054 # for qemu.sh
emulation=(-accel tcg,thread=single -icount shift=0,sleep=off -smp 1)
start_qemu "$here/remote/guest.sh" "HERE=$here"
watch_results remote
awk -F';' "$summary"'
    $1 == "measured" {
        row = $3 ";" $4
        if (!(row in known)) { known[row] = 1; rows[++count] = row }
        rate[row, $5, $2] = $6
        if ($2 > rounds) rounds = $2
    }
    function column(row, way, base,    i, values) {
        for (i = 1; i <= rounds; i++) values[i] = base ? rate[row, way, i] / rate[row, base, i] : rate[row, way, i]
        return summary(values, rounds, base ? "%.2f" : "%.0f")
    }
    END {
        if (!count) exit
        print "\n| link | 4 KiB requests | nbd-client, dm-writecache: a second | nbd-client alone: times that | dcd: times that | dcd, ublk-recovery = false |"
        print "|---|---|---|---|---|---|"
        for (r = 1; r <= count; r++) {
            split(rows[r], part, ";")
            printf "| %s | %s | %s | %s | %s | %s |\n", part[1], part[2], column(rows[r], "writecache"), column(rows[r], "plain", "writecache"),
                column(rows[r], "dcd", "writecache"), column(rows[r], "brief", "writecache")
        }
    }' "$work/results"
