#!/usr/bin/env bash
# dcd's RAID-5 beside Linux md's, over the same five modelled disks, under one kernel.
#
# What makes it a comparison:
# - The kernel is Debian's user-mode-linux, booted anew for each run with the host's files as its root. What it sees are
#   virtio disks: qemu-storage-daemon opens the images that `dcd serve` shows through FUSE, with O_DIRECT and aio.
# - md has five such disks, each a modelled drive that dcd paces in real time; dcd's array has five of the same drives inside
#   one `dcd serve`, and the kernel sees one disk. So both pay the same way for each request, and the drives are the same code.
# - The drives have no write cache. Flushes are switched on for all disks, go down to dcd, and are counted: a run in which none
#   arrived is an error. Everything is measured with its flush.
# - md has its stripe cache at 8192 (160 MiB with parity) and no bitmap, as is its default at this size; dcd has 128 MiB, which is
#   data alone, and its write-intent bitmap where it has no journal.
#   "dcd-slice" is the same array below a log cache whose log is the array's own first 128 MiB: the same five disks, and no more.
#   "md-journal" is md with its journal in write-back mode, "dcd-log" dcd's array with its journal and below a log cache; both
#   have one file on the host, which is not paced, for that: an SSD.
# - "bare" is such a file alone, without an array: what kernel and emulation take themselves. No setup can be told from another
#   where both are as fast as that.
# - Drives serve what waits in the order that takes the least time, as drives do; with QUEUE=fcfs in the order in which it came, as
#   simpler emulations of disks do.
# - Every round takes another setup first, and each run begins on empty disks. A ratio is that of two runs of one round.
#
# random: WRITES_MIB (16, which are 4096 x 4 KiB) at random places of 512 MiB, 64 at a time, then flush; drain: until what that
# left in the journal or log is destaged. mixed: 70 % reads, 16 at a time. write, read: 512 MiB one after the other. unpack, copy: four
# trees of 508 files on a new ext4, the mean of FILES_TIMES (3). sustained: as random, SUSTAINED_MIB (160), on the five disks alone.
# BURST_ONLY=yes: random and drain alone.
#
# usage: compare-md.sh PROGRAM     ROUNDS=3 WRITES_MIB=16 SUSTAINED_MIB=160 FILES_TIMES=3 BURST_ONLY=no SECONDS_MAX=240 DRIVE=cheetah-15k4
#        QUEUE=sptf SETUPS="md dcd dcd-slice md-journal dcd-log bare"
set -euo pipefail

dcd=$(realpath "${1:?usage: compare-md.sh PROGRAM}")
here=$(realpath "$(dirname "$0")")
rounds=${ROUNDS:-3}
drive=${DRIVE:-cheetah-15k4}
queue=${QUEUE:-sptf}
writes_mib=${WRITES_MIB:-16}
sustained_mib=${SUSTAINED_MIB:-160}
files_times=${FILES_TIMES:-3}
burst_only=${BURST_ONLY:-no}
read -r -a setups <<< "${SETUPS:-md dcd dcd-slice md-journal dcd-log bare}"
seconds_max=${SECONDS_MAX:-240}
member_mib=640
log_mib=512
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"

# ---------------------------------------------------------------- where it cannot run

"$here/packages.sh" user-mode-linux mdadm kmod qemu-system-common fio fuse3 e2fsprogs
mapfile -t missing < <(missing_things 6000 linux.uml mdadm modprobe qemu-storage-daemon fio fusermount3 mkfs.ext4)
skip_if_missing "md is not compared"

begin_work compare

# ---------------------------------------------------------------- stack files

disks() { # NUMBERS: modelled drives over files
    local i
    for i in "$@"; do
        printf '[device.image%s]\npath = "disk%s.img"\n' "$i" "$i"
        printf '[layer.disk%s]\nkind = "disk"\nof = "image%s"\ndrive = "%s"\nqueue = "%s"\n' "$i" "$i" "$drive" "$queue"
    done
}

files() { # the same without a drive
    local i
    for i in 0 1 2 3 4; do printf '[device.disk%s]\npath = "disk%s.img"\n' "$i" "$i"; done
}

array() {
    printf '[layer.array]\nkind = "raid"\nlevel = "raid5"\nstrip = "128KiB"\ncache-size = "128MiB"\n'
    printf 'of = ["disk0", "disk1", "disk2", "disk3", "disk4"]\n'
}

ssd() { # the array's journal and the log, on one file
    printf 'journal = "journal"\n[device.ssd]\npath = "ssd.img"\n'
    printf '[layer.journal]\nkind = "slice"\nof = "ssd"\nsize = "64MiB"\n'
    printf '[layer.log]\nkind = "slice"\nof = "ssd"\nfirst = "64MiB"\n'
    printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "array"\n'
}

own_slice() { # the log on the first stripes of the array itself
    printf '[layer.log]\nkind = "slice"\nof = "array"\nsize = "128MiB"\n'
    printf '[layer.rest]\nkind = "slice"\nof = "array"\nfirst = "128MiB"\n'
    printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "rest"\n'
}

for i in 0 1 2 3 4; do
    { serve_section disk$i disk$i; disks $i; } > "$work/disk$i.toml"
done
{ serve_section ssd ssd; printf '[device.ssd]\npath = "ssd.img"\n'; } > "$work/ssd.toml"
{ serve_section dcd array; disks 0 1 2 3 4; array; } > "$work/dcd.toml"
{ serve_section dcd-slice cache; disks 0 1 2 3 4; array; own_slice; } > "$work/dcd-slice.toml"
{ serve_section dcd-log cache; disks 0 1 2 3 4; array; ssd; } > "$work/dcd-log.toml"
# The same arrays without the drives' pace, to be made in no time.
{ serve_section dcd-slice cache; files; array; own_slice; } > "$work/make-dcd-slice.toml"
{ serve_section dcd-log cache; files; array; ssd; } > "$work/make-dcd-log.toml"
{ serve_section dcd array; files; array; } > "$work/make-dcd.toml"

# Which gaps it pays to fill on this drive.
"$dcd" calibrate --drive "$drive" --json > "$work/strides.json"

# ---------------------------------------------------------------- servers

clear_disks() {
    rm -f "$work"/*.img "$work"/*.dcd
    for i in 0 1 2 3 4; do truncate -s ${member_mib}M "$work/disk$i.img"; done
    # An SSD that has been used: its pages are there.
    head -c ${log_mib}M /dev/zero > "$work/ssd.img"
}

# Makes the array once, lets it compute its parity without the drives' pace, and keeps the disks as they are then.
make_array() { # SETUP
    clear_disks
    "$dcd" array create "$work/make-$1.toml" > /dev/null
    "$dcd" calibrate --from "$work/strides.json" --store "$work/make-$1.toml" --layer array > /dev/null
    [ "$1" = dcd ] || "$dcd" format "$work/make-$1.toml" > /dev/null
    start_server "make-$1"
    dd if="$(image_of "$1")" of=/dev/null bs=4k count=1 status=none
    until "$dcd" status --json "$work/make-$1.toml" | grep '"state":"good"' > /dev/null; do sleep 0.1; done
    stop_all
    mkdir "$work/made-$1"
    for file in "$work"/*.img; do cp --sparse=always "$file" "$work/made-$1/"; done
    rm -f "$work"/*.img
}

start_setup() { # SETUP: sets $exports, what the kernel will see
    clear_disks
    case $1 in
        dcd*)
            for file in "$work/made-$1"/*.img; do cp --sparse=always "$file" "$work/"; done
            exports=("$1")
            ;;
        md) exports=(disk0 disk1 disk2 disk3 disk4) ;;
        md-journal) exports=(disk0 disk1 disk2 disk3 disk4 ssd) ;;
        bare)
            exports=(ssd)
            head -c 768M /dev/zero >> "$work/ssd.img"
            ;;
        *) fail "there is no setup \"$1\": md dcd dcd-slice md-journal dcd-log bare" ;;
    esac
    local name disks=()
    for name in "${exports[@]}"; do
        start_server "$name"
        disks+=("$name" "$(image_of "$name")" "cache.direct=on,aio=native")
    done
    start_storage "${disks[@]}"
}

# ---------------------------------------------------------------- one run

answer() { # what the machine asks of the host while it runs
    [ -e "$work/question" ] || return 0
    rm "$work/question"
    "$dcd" flush "$work/$(cat "$work/setup").toml" > /dev/null 2>&1
    touch "$work/answer"
}

run() { # SETUP ROUND
    rm -f "$work/question" "$work/answer"
    echo "$1" > "$work/setup"
    echo "$2" > "$work/round"
    start_setup "$1"
    start_user_mode "$here/compare-md/guest.sh" "HERE=$here" "WRITES_MIB=$writes_mib" "SUSTAINED_MIB=$sustained_mib" \
        "FILES_TIMES=$files_times" "BURST_ONLY=$burst_only"
    watch_machine "$1" answer
    local name
    for name in "${exports[@]}"; do check_flushes "$1" "$name"; done
    stop_all
}

for setup in "${setups[@]}"; do
    case $setup in dcd*) make_array "$setup" ;; esac
done
"$dcd" demo tree "$work/tree"
tar -cf "$work/tree.tar" -C "$work" tree
: > "$work/results"
count=${#setups[@]}
for round in $(seq "$rounds"); do
    for turn in $(seq 0 $((count - 1))); do
        run "${setups[$(((turn + round) % count))]}" "$round"
    done
    echo "round $round of $rounds done" >&2
done

# ---------------------------------------------------------------- the table

# One line for each workload: seconds of each setup as median (lowest to highest), and how many times faster than md dcd was in
# the same round, on the same disks and with an SSD.
awk -F';' -v setups="${setups[*]}" -v drive="$drive, $queue" -v rounds="$rounds" "$summary"'
    function ratio(workload, md, ours,    round, values, n) {
        for (round = 1; round <= rounds; round++)
            if ((md, workload, round) in seconds && (ours, workload, round) in seconds && seconds[ours, workload, round] > 0)
                values[++n] = seconds[md, workload, round] / seconds[ours, workload, round]
        return n ? summary(values, n, "%.2f") : ""
    }
    { seconds[$1, $3, $2] = $4 }
    END {
        printf "five drives %s, RAID-5, strips of 128 KiB, %d rounds: seconds, and times faster than md; median (lowest to highest)\n", drive, rounds
        count = split(setups, names, " ")
        printf "| %-9s |", ""
        for (i = 1; i <= count; i++) printf " %-24s |", names[i]
        printf " %-20s | %-20s | %-26s |\n|---|", "md / dcd", "md / dcd-slice", "md-journal / dcd-log"
        for (i = 1; i <= count; i++) printf "---|"
        print "---|---|---|"
        workloads = split("random drain mixed write read unpack copy sustained", workload, " ")
        for (w = 1; w <= workloads; w++) {
            printf "| %-9s |", workload[w]
            for (i = 1; i <= count; i++) {
                n = 0
                for (round = 1; round <= rounds; round++)
                    if ((names[i], workload[w], round) in seconds) values[++n] = seconds[names[i], workload[w], round]
                printf " %-24s |", n ? summary(values, n, "%.2f") : ""
            }
            printf " %-20s | %-20s | %-26s |\n", ratio(workload[w], "md", "dcd"), ratio(workload[w], "md", "dcd-slice"), ratio(workload[w], "md-journal", "dcd-log")
        }
    }' "$work/results"
