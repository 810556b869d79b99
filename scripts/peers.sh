#!/usr/bin/env bash
# dcd beside the kernel's write caches, over the same modelled disk, under one kernel.
#
# What makes it a comparison:
# - The disk is nearline-2018 (7200 rpm) of lab/model, with one cylinder in many (peers/drive.awk): its 4 GiB reach over the whole
#   stroke. `dcd serve` paces it in real time, and the kernel sees it as a virtio disk. It has no write cache; flushes are switched on
#   and counted. Discards are offered, and cost nothing.
# - The SSD is a file of a tmpfs that the kernel sees as a second virtio disk: as fast as the emulation.
# - "disk": a cache has its log on the first LOG_MIB of the disk, and caches the rest. "ssd": it has all of the SSD, of the same size.
# - BED=qemu: Debian's 6.12 kernel under software emulation. The guest's processor is slower than the host's. That factor is measured
#   first, by one loop on both, and the disk is slowed by it, so that disk and processor have the proportion of a real machine. All
#   seconds that are reported have been divided by the factor. The SSD is not slowed, nor is what a cache does by the clock: dcd waits
#   for a second of idleness, dm-writecache commits every second, bcache looks for dirty blocks every 30 s.
#   BED=uml: Debian's user-mode kernel, which is not slowed. System calls of processes are dear there, so dcd looks worse than it is.
# - dcd runs in the guest, with the promise `flush`: as `dcd` through ublk as it is by default, which recovers, as `dcd-brief` through ublk
#   without recovery, and as `dcd-nbd`. The user-mode kernel has no ublk. The others are as they are by default, but bcache writes back and has no sequential cutoff, and dm-cache writes back with smq and blocks of 64 KiB. dm-writeboost is built from the source of
#   Debian's package, with two names changed that the kernel has dropped.
# - Every round takes another setup first, and each run boots the kernel and begins on an empty disk.
#
# WORK, in the order in which one boot does it:
#   fsync      FSYNCS random writes of 4 KiB over 1 GiB, each with its flush
#   burst      BURST_MIB of 4 KiB at random, 32 at a time, and one flush; then the time until the cache is clean, by its own command
#   readback   2 MiB more of those, two seconds of rest, and half of the same blocks read, one at a time
#   mixed      2 MiB of 4 KiB at random, 70 % reads, 16 at a time
#   trees1, trees4  one user, and four: unpack TREE_FILES files each, copy them after a remount, remove both; ext2 with dirsync, made with
#              its default discards. After each come a sync of the file system, and at the end the time until the cache is clean
#   sqlite     100 commits, ext4
#   postmark   200 files and 500 transactions, and a sync; ext4
#   dbench     one client for ten seconds, ext4; only where it is named
#   sustained  a boot of its own with a log of SUSTAINED_LOG_MIB: 4 KiB at random, 32 at a time, for SUSTAINED_SECONDS, after half of that
#              which fills the log and does not count
# For each, the results have the requests and MiB at the disk and the processor seconds of the whole guest too, and at the end the
# RAM that is gone since before the cache was made.
#
# usage: peers.sh PROGRAMS     the directory of dcd and dcd-lab
#   ROUNDS=3 SETUPS="plain writecache writeboost dmcache bcache dcd dcd-brief dcd-nbd"
#   PLACES="disk ssd" BED=qemu|uml SLOWER=FACTOR LOG_MIB=256
#   WORK="fsync burst readback mixed trees1 trees4 sqlite postmark sustained" FSYNCS=128 BURST_MIB=16 TREE_FILES=50
#   SUSTAINED_LOG_MIB=16 SUSTAINED_SECONDS=20 SECONDS_MAX=1800
# The table goes to standard output, every measurement to target/peers/results.csv.
set -euo pipefail

programs=$(realpath "${1:?usage: peers.sh DIRECTORY OF dcd AND dcd-lab}")
here=$(realpath "$(dirname "$0")")
dcd=$programs/dcd-lab
rounds=${ROUNDS:-3}
read -r -a setups <<< "${SETUPS:-plain writecache writeboost dmcache bcache dcd dcd-brief dcd-nbd}"
read -r -a places <<< "${PLACES:-disk ssd}"
read -r -a workloads <<< "${WORK:-fsync burst readback mixed trees1 trees4 sqlite postmark sustained}"
log_mib=${LOG_MIB:-256}
sustained_log_mib=${SUSTAINED_LOG_MIB:-16}
slower=${SLOWER:-}
disk_gib=4
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-1800}
kept=$here/../target/peers
mkdir -p "$kept"
kept=$(realpath "$kept")
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"
# shellcheck source=scripts/guest-kernel/qemu.sh
. "$here/guest-kernel/qemu.sh"

for name in "${setups[@]}"; do
    case $name in
        plain | writecache | writeboost | dmcache | bcache | dcd | dcd-brief | dcd-nbd) ;;
        *) fail "there is no setup \"$name\": use plain, writecache, writeboost, dmcache, bcache, dcd, dcd-brief or dcd-nbd in SETUPS" ;;
    esac
done
for name in "${places[@]}"; do
    case $name in
        disk | ssd) ;;
        *) fail "there is no place \"$name\" for a log: use disk or ssd in PLACES" ;;
    esac
done
for name in "${workloads[@]}"; do
    case $name in
        fsync | burst | readback | mixed | trees1 | trees4 | sqlite | postmark | dbench | sustained) ;;
        *) fail "there is no workload \"$name\": the head of $0 lists those of WORK" ;;
    esac
done
has() { # WORD WORD...: the first is one of the others
    local word=$1 one
    shift
    for one in "$@"; do [ "$one" != "$word" ] || return 0; done
    return 1
}

# ---------------------------------------------------------------- what is not in the kernel

# dm-writeboost is not in the kernel, so it is built from the source of its package.
build_writeboost() {
    local headers=linux-headers-$release package source=$kept/writeboost-$release
    [ -e "$source/dm-writeboost.ko" ] && return
    for package in "$headers" $(depends_on "$headers" 'linux-\(headers\|kbuild\)-.*') dm-writeboost-dkms; do
        unpack "$package" || { echo "the package $package cannot be had"; return 1; }
    done
    sed -i "s|include /usr/src|include $packages/root/usr/src|" "$packages/root/usr/src/$headers/Makefile"
    rm -rf "$source"
    cp -r "$packages"/root/usr/src/dm-writeboost-*/ "$source"
    # What 6.12 has no more, by what took its place.
    sed -i 's/i_size_read(dev->bdev->bd_inode) >> 9/bdev_nr_sectors(dev->bdev)/; s/blk_limits_io_opt(limits, 4096)/limits->io_opt = 4096/' \
        "$source"/*.c
    make -C "$packages/root/usr/src/$headers" "M=$source" CONFIG_DEBUG_INFO_BTF_MODULES= modules > "$kept/writeboost.log" 2>&1 && return
    echo "it does not build: $(grep -m 1 -i error "$kept/writeboost.log")"
    return 1
}

# ---------------------------------------------------------------- where it cannot run

"$here/packages.sh" user-mode-linux qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod fio fuse3 e2fsprogs dmsetup \
    nbd-client sqlite3 postmark dbench gcc make >&2
mapfile -t missing < <(missing_things 3000 fio fusermount3 modprobe depmod mkfs.ext2 mkfs.ext4 sqlite3 awk tar)
bed_reasons=()
have_bed() { # BED
    local tool tools=(qemu-system-x86_64 busybox cpio xz)
    [ "$1" = qemu ] || tools=(linux.uml qemu-storage-daemon)
    for tool in "${tools[@]}"; do
        command -v "$tool" > /dev/null || { bed_reasons+=("$1 needs $tool"); return 1; }
    done
    [ "$1" = uml ] || have_kernel || { bed_reasons+=("qemu needs Debian's package of a 6.12 kernel"); return 1; }
}
case ${BED:-} in
    '') if have_bed qemu; then bed=qemu; elif have_bed uml; then bed=uml; else bed=; fi ;;
    qemu | uml) if have_bed "$BED"; then bed=$BED; else bed=; fi ;;
    *) fail "there is no bed \"$BED\": use qemu or uml" ;;
esac
[ -n "$bed" ] || missing+=("a kernel to boot (${bed_reasons[*]})")
skip_if_missing "dcd is not compared with its peers"

skipped=()
skip() { # KIND NAME REASON: takes a setup or a workload out
    local -n list=$1
    local one rest=()
    has "$2" "${list[@]}" || return 0
    for one in "${list[@]}"; do [ "$one" = "$2" ] || rest+=("$one"); done
    list=(${rest[@]+"${rest[@]}"})
    skipped+=("$2: $3")
    echo "SKIPPED $2: $3" >&2
}
if has writeboost "${setups[@]}"; then
    if [ "$bed" = uml ]; then
        skip setups writeboost "there are no headers of the user-mode kernel to build it with"
    else
        why=$(build_writeboost) || skip setups writeboost "$why"
    fi
fi
if [ "$bed" = uml ]; then
    for name in dcd dcd-brief; do skip setups $name "the user-mode kernel has no ublk"; done
fi
! has bcache "${setups[@]}" || unpack bcache-tools || skip setups bcache "the package bcache-tools cannot be had"
for tool in dmsetup nbd-client; do
    command -v $tool > /dev/null && continue
    case $tool in
        dmsetup) for name in writecache writeboost dmcache bcache dcd dcd-brief dcd-nbd; do skip setups $name "$tool is not installed"; done ;;
        nbd-client) skip setups dcd-nbd "$tool is not installed" ;;
    esac
done
for tool in postmark dbench; do
    command -v $tool > /dev/null || skip workloads $tool "it is not installed"
done
[ ${#setups[@]} -gt 0 ] || { echo "SKIPPED: no setup is left"; exit 0; }

# ---------------------------------------------------------------- what the guest needs

begin_work peers
mkdir "$work/bin"
cp "$programs/dcd" "$work/bin/"
[ ! -e "$packages/root/usr/sbin/make-bcache" ] || cp "$packages/root/usr/sbin/make-bcache" "$work/bin/"
"$dcd" demo tree "$work/tree"
(cd "$work/tree" && find . -type f | LC_ALL=C sort | awk -v n="${TREE_FILES:-50}" '
    { name[NR] = $0 } END { for (i = 0; i < n && i < NR; i++) print name[1 + int(i * NR / n)] }') > "$work/tree.list"
tar -cf "$work/tree.tar" -C "$work/tree" -T "$work/tree.list"
rm -rf "$work/tree"

if [ "$bed" = qemu ]; then
    ! has writeboost "${setups[@]}" || more_modules=("$kept/writeboost-$release/dm-writeboost.ko")
    make_initramfs nbd ublk_drv ext4 dm-writecache dm-cache dm-cache-smq bcache
fi

boot() { # SETUP DISK-FILE...: boots with these as virtio disks; the first has O_DIRECT
    local setup=$1 id=0 file arguments=() options
    shift
    if [ "$bed" = uml ]; then
        devices=()
        for file in "$@"; do
            id=$((id + 1))
            options=cache.direct=on,aio=native
            [ $id -eq 1 ] || options=cache.direct=off,aio=threads
            arguments+=("disk$id" "$file" "$options")
        done
        [ $id -eq 0 ] || start_storage "${arguments[@]}"
        start_user_mode "$here/peers/guest.sh" "HERE=$here" BED=uml
    else
        start_qemu "$here/peers/guest.sh" "HERE=$here BED=qemu" "$@"
    fi
    watch_machine "$setup" true
}

# ---------------------------------------------------------------- how much slower the guest's processor is

if [ "$bed" = uml ]; then
    slower=1
elif [ -z "$slower" ]; then
    # shellcheck source=scripts/guest-kernel/guest.sh
    on_host=$(. "$here/guest-kernel/guest.sh" && processor_loop "$work/processor-loop")
    echo 'SETUP=processor' > "$work/run"
    boot processor
    stop_all
    slower=$(awk -v host="$on_host" '{ printf "%.2f", $1 / host }' "$work/processor")
    echo "the guest's processor is $slower times slower than the host's: so is the disk" >&2
fi
awk -v gib=$disk_gib -v slower="$slower" -f "$here/peers/drive.awk" "$here/../lab/model/drives/nearline-2018.toml" > "$work/drive.toml"
{
    serve_section disk disk
    printf '[device.image]\npath = "disk.img"\n'
    printf '[layer.disk]\nkind = "disk"\nof = "image"\ndrive = "drive.toml"\nsize = "%sGiB"\n' $disk_gib
} > "$work/disk.toml"

# ---------------------------------------------------------------- runs

results=$kept/results.csv
[ ! -e "$results" ] || mv -f "$results" "$kept/results-before.csv"
echo "bed,setup,log,workload,round,value,unit" > "$results"
[ "$bed" = uml ] || echo "$bed,all,,processor,0,$slower,times slower" >> "$results"

run() { # SETUP PLACE ROUND LOG-MIB WORKLOAD...
    local setup=$1 place=$2 round=$3 mib=$4 begin=$SECONDS disks
    shift 4
    [ "$setup" != plain ] || place=
    rm -f "$work/disk.img" "$work/ssd.img" "$work/results"
    truncate -s ${disk_gib}G "$work/disk.img"
    cat > "$work/run" << RUN
SETUP=$setup PLACE=$place ROUND=$round LOG_MIB=$mib WORKLOADS="$*" SLOWER=$slower
FSYNCS=${FSYNCS:-128} BURST_MIB=${BURST_MIB:-16} SUSTAINED_SECONDS=${SUSTAINED_SECONDS:-20}
RUN
    exports=(disk)
    start_server disk
    disks=("$(image_of disk)")
    if [ "$place" = ssd ]; then
        # An SSD that has been used: its pages are there.
        head -c "${mib}M" /dev/zero > "$work/ssd.img"
        disks+=("$work/ssd.img")
    fi
    boot "$setup $place" "${disks[@]}"
    [ "$place" = ssd ] || check_flushes "$setup $place" disk
    stop_all
    # Times of the slowed world become times of the real one.
    awk -F';' -v OFS=, -v slower="$slower" -v head="$bed,$setup,$place" -v round="$round" '
        $3 ~ /^m?s$/ { $2 = sprintf("%.4f", $2 / slower) }
        $3 ~ /\/s$/ { $2 = sprintf("%.2f", $2 * slower) }
        { print head, $1, round, $2, $3 }' "$work/results" >> "$results"
    echo "round $round: $setup${place:+, $place}, $*: $((SECONDS - begin)) s" >&2
}

# A run that fails says why, and leaves the others alone.
attempt() { # as run
    (
        trap stop_all EXIT
        trap 'exit 143' TERM
        run "$@"
    ) &
    running=$!
    wait $running || skipped+=("$1 $2 in round $3, ${*:5}: it failed")
    running=
}

at_once=()
for name in "${workloads[@]}"; do [ "$name" = sustained ] || at_once+=("$name"); done
combinations=()
for name in "${setups[@]}"; do
    if [ "$name" = plain ]; then
        combinations+=("plain -")
    else
        for place in "${places[@]}"; do combinations+=("$name $place"); done
    fi
done
count=${#combinations[@]}
for round in $(seq "$rounds"); do
    for turn in $(seq 0 $((count - 1))); do
        read -r name place <<< "${combinations[$(((turn + round - 1) % count))]}"
        [ ${#at_once[@]} -eq 0 ] || attempt "$name" "$place" "$round" "$log_mib" "${at_once[@]}"
        ! has sustained "${workloads[@]}" || attempt "$name" "$place" "$round" "$sustained_log_mib" sustained
    done
done

# ---------------------------------------------------------------- the tables

table() { # TITLE WORKLOAD=HEADING...: medians of the rounds, and lowest to highest where there are several
    local title=$1
    shift
    # shellcheck disable=SC2154 # of host.sh
    (IFS=';'; awk -F, -v columns="$*" -v title="$title" "$summary"'
        NR > 1 {
            key = $2 (($3 == "") ? "" : ", " $3)
            if (!(key in known)) { known[key] = 1; rows[++row_count] = key }
            value[key, $4, ++seen[key, $4]] = $6
            any[$4] = 1
        }
        END {
            n = split(columns, column, ";")
            for (i = 1; i <= n; i++) {
                split(column[i], pair, "=")
                if (pair[1] in any) { work[++count] = pair[1]; head = head " " pair[2] " |"; line = line "---|" }
            }
            if (count == 0) exit
            printf "%s\n\n|  |%s\n|---|%s\n", title, head, line
            for (r = 1; r <= row_count; r++) {
                if (rows[r] == "all") continue
                printf "| %s |", rows[r]
                for (i = 1; i <= count; i++) printf " %s |", cell(rows[r], work[i])
                print ""
            }
            print ""
        }
        function cell(key, name,    times, list, j) {
            times = seen[key, name]
            for (j = 1; j <= times; j++) list[j] = value[key, name, j]
            if (times == 0) return ""
            return times == 1 ? sprintf("%.2f", list[1]) : summary(list, times, "%.2f")
        }' "$results")
}

echo "nearline-2018 cut to $disk_gib GiB, log of $log_mib MiB, kernel $([ "$bed" = uml ] && echo "user-mode" || echo "$release, disk $slower times slower"), $rounds rounds: median (lowest to highest)"
echo
table "Seconds" "fsync=${FSYNCS:-128} fsyncs" "burst=burst" "burst.drain=until clean" readback=readback mixed=mixed sqlite=SQLite postmark=PostMark
table "Seconds, trees" unpack1=unpack copy1=copy remove1=remove trees1.drain="until clean" \
    unpack4="unpack, 4 users" copy4="copy, 4" remove4="remove, 4" trees4.drain="until clean, 4"
table "Random writes on a full log of $sustained_log_mib MiB, ${SUSTAINED_SECONDS:-20} s" \
    "sustained=writes a second" sustained.p99="p99, ms" sustained.longest="longest, ms"
table "dbench" "dbench=MB a second"
table "What a burst costs until clean, and RAM at the end of all" burst.requests="requests at the disk" burst.mib="MiB at the disk" \
    burst.cpu="processor seconds" ram="RAM, MiB" \
    server.rss="the server's RAM, MiB" server.cpu="the server's processor seconds, all workloads"
for name in ${skipped[@]+"${skipped[@]}"}; do echo "Skipped: $name"; done
