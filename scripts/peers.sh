#!/usr/bin/env bash
# dcd beside the kernel's write caches, over the same modelled devices, under one kernel, in virtual time.
#
# What makes it a comparison:
# - Debian's 6.12 kernel runs in qemu, and its time is virtual: one processor executes 10^9 instructions a second, and nothing is waited
#   for. So what else the host does changes nothing, and the same seed gives the same figures. All that the guest uses is in its RAM. Two
#   instructions that copy any number of bytes (erms) are kept from it: each byte would count as an instruction.
# - The devices are those of a kernel module, peers/modelled, in the guest's own time. The disk is nearline-2018 (7200 rpm) of lab/model,
#   with one cylinder in many (peers/drive.awk): its 4 GiB reach over the whole stroke. Its write cache is off; flushes are switched
#   on and counted. The first boot sends a list of requests to it, and dcd-lab compares their times with those of lab/model.
# - The SSD has 8 channels and 1 GB/s. A read takes 80 us, a write 20 to 80, and a flush SSD_FLUSH_US: 20 as with power-loss protection,
#   1000 as without.
# - Places of the log. "disk": its first LOG_MIB, and the cache is for the rest. "ssd": all of the SSD, of the same size. "free": an SSD
#   that takes no time at all, which shows what the processor costs.
# - dcd runs in the guest, with the promise `flush`: as `dcd` through ublk as it is by default, which recovers, as `dcd-brief` through ublk
#   without recovery, and as `dcd-nbd`. The others are as they are by default, but bcache writes back and has no sequential cutoff, and
#   dm-cache writes back with smq and blocks of 64 KiB. dm-writeboost is built from the source of Debian's package, with two names changed
#   that the kernel has dropped.
# - Each run boots the kernel and begins on empty devices.
# - One processor executes the workload, the kernel and the server of dcd. On several, their work would overlap. Its caches are not
#   modelled: a real one executes more instructions a second while it finds all in its caches, and fewer while it waits for memory.
#
# WORK, in the order in which one boot does it:
#   fsync      FSYNCS random writes of 4 KiB over 1 GiB, each with its flush
#   burst      BURST_MIB of 4 KiB at random, 32 at a time, and one flush; then the time until the cache is clean, by its own command
#   readback   8 MiB more of those, two seconds of rest, and half of the same blocks read, one at a time
#   mixed      8 MiB of 4 KiB at random, 70 % reads, 16 at a time
#   trees1, trees4  one user, and four: unpack 508 files each, copy them after a remount, remove both; ext2 with dirsync, made with
#              its default discards. After each come a sync of the file system, and at the end the time until the cache is clean
#   sqlite     COMMITS commits, ext4
#   postgres   PostgreSQL on ext4: the restore of a dump of pgbench's tables, and TRANSACTIONS transactions of pgbench with one client;
#              only where it is named
#   postmark   200 files and 500 transactions, and a sync; ext4
#   dbench     one client for ten seconds, ext4; only where it is named
#   sustained  a boot of its own with a log of SUSTAINED_LOG_MIB: 4 KiB at random, 32 at a time, for SUSTAINED_SECONDS, after half of that
#              which fills the log and does not count
#   pair       a boot of its own with two disks on one log, for the setups that can do that: plain (no log), bcache and dcd with ublk, not with
#              the log on the disk. As fsync and burst, on both disks at once, with as many requests for each
# For each, the results also have the requests to the cache (asked), the requests and MiB at the disk, and the processor seconds of the
# whole guest (where fio runs, its start is among them) and of dcd's server. At the end they have the RAM that is gone since before the
# cache was made.
#
# usage: peers.sh PROGRAMS     the directory of dcd and dcd-lab
#   SEEDS=3 SETUPS="plain writecache writeboost dmcache bcache dcd dcd-brief dcd-nbd" PLACES="disk ssd" LOG_MIB=256 SSD_FLUSH_US=20
#   WORK="fsync burst readback mixed trees1 trees4 sqlite postmark sustained pair" FSYNCS=1000 BURST_MIB=32 COMMITS=300
#   TRANSACTIONS=500 SUSTAINED_LOG_MIB=16 SUSTAINED_SECONDS=20 SECONDS_MAX=7200 (of the host, and of the guest)
#   PROFILE=burst (or fsync, readback, mixed, unpack1, copy1, remove1, unpack4, copy4, remove4, sqlite, restore, pgbench, postmark): where
#   the instructions of that workload go, in target/peers/profile-SETUP-PLACE-WORKLOAD; its times do not count
# The table goes to standard output, every measurement to target/peers/results.csv.
set -euo pipefail

programs=$(realpath "${1:?usage: peers.sh DIRECTORY OF dcd AND dcd-lab}")
here=$(realpath "$(dirname "$0")")
lab=$programs/dcd-lab
seeds=${SEEDS:-3}
read -r -a setups <<< "${SETUPS:-plain writecache writeboost dmcache bcache dcd dcd-brief dcd-nbd}"
read -r -a places <<< "${PLACES:-disk ssd}"
read -r -a workloads <<< "${WORK:-fsync burst readback mixed trees1 trees4 sqlite postmark sustained pair}"
log_mib=${LOG_MIB:-256}
sustained_log_mib=${SUSTAINED_LOG_MIB:-16}
ssd_flush_us=${SSD_FLUSH_US:-20}
disk_gib=4
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-7200}
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
        disk | ssd | free) ;;
        *) fail "there is no place \"$name\" for a log: use disk, ssd or free in PLACES" ;;
    esac
done
for name in "${workloads[@]}"; do
    case $name in
        fsync | burst | readback | mixed | trees1 | trees4 | sqlite | postgres | postmark | dbench | sustained | pair) ;;
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

have_headers() {
    local package
    headers=linux-headers-$release
    for package in "$headers" $(depends_on "$headers" 'linux-\(headers\|kbuild\)-.*'); do
        unpack "$package" || return
    done
    headers=$packages/root/usr/src/$headers
    sed -i "s|include /usr/src|include $packages/root/usr/src|" "$headers/Makefile"
}

build_module() { # NAME: what is in its directory in $kept
    make -C "$headers" "M=$kept/$1-$release" CONFIG_DEBUG_INFO_BTF_MODULES= modules > "$kept/$1.log" 2>&1 && return
    echo "it does not build: $(grep -m 1 -i error "$kept/$1.log")"
    return 1
}

# dm-writeboost is not in the kernel, so it is built from the source of its package.
build_writeboost() {
    local source=$kept/writeboost-$release
    [ -e "$source/dm-writeboost.ko" ] && return
    unpack dm-writeboost-dkms || { echo "the package dm-writeboost-dkms cannot be had"; return 1; }
    rm -rf "$source"
    cp -r "$packages"/root/usr/src/dm-writeboost-*/ "$source"
    # What 6.12 has no more, by what took its place.
    sed -i 's/i_size_read(dev->bdev->bd_inode) >> 9/bdev_nr_sectors(dev->bdev)/; s/blk_limits_io_opt(limits, 4096)/limits->io_opt = 4096/' \
        "$source"/*.c
    build_module writeboost
}

# The modelled devices, with the drive that lab/model has too.
build_modelled() {
    local source=$kept/modelled-$release
    mkdir -p "$source"
    awk -v gib=$disk_gib -f "$here/peers/drive.awk" "$here/../lab/model/drives/nearline-2018.toml" > "$work/drive.toml"
    awk -f "$here/peers/header.awk" "$work/drive.toml" > "$source/drive.h" || fail "the module does not know the drive"
    cp "$here"/peers/modelled/* "$source/"
    build_module modelled
}

# ---------------------------------------------------------------- where it cannot run

# shellcheck disable=SC2046 # one word or none
"$here/packages.sh" qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod fio e2fsprogs dmsetup \
    nbd-client sqlite3 postmark dbench gcc make $(! has postgres "${workloads[@]}" || echo postgresql) >&2
mapfile -t missing < <(missing_things 3000 qemu-system-x86_64 busybox cpio xz fio modprobe depmod mke2fs sqlite3 awk tar gcc make)
if ! have_kernel; then
    missing+=("Debian's package of a 6.12 kernel")
elif ! have_headers; then
    missing+=("the headers of the kernel")
fi
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
    why=$(build_writeboost) || skip setups writeboost "$why"
fi
! has bcache "${setups[@]}" || unpack bcache-tools || skip setups bcache "the package bcache-tools cannot be had"
if ! command -v dmsetup > /dev/null; then
    for name in writecache writeboost dmcache bcache; do skip setups $name "dmsetup is not installed"; done
fi
command -v nbd-client > /dev/null || skip setups dcd-nbd "nbd-client is not installed"
for tool in postmark dbench; do
    command -v $tool > /dev/null || skip workloads $tool "it is not installed"
done
postgres=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -n 1)
[ -n "$postgres" ] || skip workloads postgres "it is not installed"
[ ${#setups[@]} -gt 0 ] || { echo "SKIPPED: no setup is left"; exit 0; }

# ---------------------------------------------------------------- what the guest needs

# A new database for the guest to unpack, and a dump of pgbench's tables for it to restore.
make_database() {
    local place=$work/database as_postgres=(setpriv "--reuid=postgres" "--regid=postgres" --clear-groups)
    chmod 711 "$work"
    install -d -o postgres "$place"
    # shellcheck disable=SC2016 # for that shell
    (cd "$place" && PATH=$postgres:$PATH PLACE=$place "${as_postgres[@]}" bash -euo pipefail -c '
        initdb -A trust --no-sync --locale=C -D pg
        # The guest has no time zones.
        sed -i /timezone/d pg/postgresql.conf
        pg_ctl -D pg -w -s -l log -o "-k $PLACE -h \"\" -F" start
        psql -h "$PLACE" -qX -c "create database bench" -c "create database source" postgres
        pgbench -h "$PLACE" -i -q -s 1 source
        pg_dump -h "$PLACE" source > dump.sql
        psql -h "$PLACE" -qX -c "drop database source" postgres
        pg_ctl -D pg -m fast -w -s stop') > "$work/database.log" 2>&1 || fail "no database can be made: $(tail -n 3 "$work/database.log")"
    tar --sort=name --mtime=@0 -cf "$root/database.tar" -C "$place" pg
    cp "$place/dump.sql" "$root/"
    rm -rf "$place"
}

begin_work peers
why=$(build_modelled) || fail "the modelled devices: $why"
tools=()
for tool in fio mke2fs sqlite3 dmsetup nbd-client postmark dbench; do
    file=$(command -v $tool) && tools+=("$file")
done
put_files "${tools[@]}" "$programs/dcd" /etc/mke2fs.conf
root=$work/initramfs
cp "$programs/dcd" "$root/usr/bin/"
ln -s mke2fs "$root/usr/sbin/mkfs.ext2"
ln -s mke2fs "$root/usr/sbin/mkfs.ext4"
[ ! -e "$packages/root/usr/sbin/make-bcache" ] || cp "$packages/root/usr/sbin/make-bcache" "$root/usr/sbin/"
! has dbench "${workloads[@]}" || put_files /usr/share/dbench/client.txt
mkdir -p "$root/scripts/guest-kernel" "$root/scripts/peers"
cp "$here/guest-kernel/guest.sh" "$root/scripts/guest-kernel/"
cp "$here/peers/guest.sh" "$root/scripts/peers/"
cp "$kept/modelled-$release/"{modelled,second}.ko "$root/"
if has postgres "${workloads[@]}"; then
    put_files "$postgres"/{postgres,psql,pgbench} /usr/bin/setpriv "${postgres%/bin}/lib/plpgsql.so" \
        "/usr/share/postgresql/$(basename "${postgres%/bin}")/timezonesets"
    getent passwd postgres > "$root/etc/passwd"
    make_database
fi
"$lab" demo tree "$work/tree"
tar --sort=name --mtime=@0 -cf "$root/tree.tar" -C "$work/tree" .
rm -rf "$work/tree"
! has writeboost "${setups[@]}" || more_modules=("$kept/writeboost-$release/dm-writeboost.ko")
make_whole_initramfs crc32c-intel nbd ublk_drv ext4 dm-writecache dm-cache dm-cache-smq bcache
rm -rf "$root"

# ---------------------------------------------------------------- runs

processor=max,-erms
ram=3G
if [ -n "${PROFILE:-}" ]; then
    gcc -O2 -shared -fPIC -o "$work/profile.so" "$here/peers/profile.c" || fail "the plugin that counts instructions does not build"
    more_devices=(-plugin "$work/profile.so,directory=$work")
fi

# The functions that took the most instructions, of the kernel and of the server; all other programs are one line.
profile() { # NAME
    perl "$here/peers/profile.pl" "$work" "$programs/dcd" > "$kept/profile-$1"
    rm "$work"/profile "$work"/profile.kernel "$work"/profile.server
    echo "Profile: $kept/profile-$1" >&2
}
boot() { # NAME SEED VARIABLE=VALUE...
    local name=$1
    emulation=(-accel "tcg,thread=single" -icount "shift=0,sleep=off" -smp 1 -seed "$2" -rtc "base=2026-01-01,clock=vm")
    shift 2
    start_qemu /scripts/peers/guest.sh "HERE=/scripts nokaslr $*"
    # It would do the same once more.
    : > "$work/begun"
    watch_machine "$name" true
    stop_all
}

# The same requests at the module and at lab/model: first one after the other, then many at a time. They take as long in both.
compare_models() {
    boot "the comparison of the disk with its model" 1 SETUP=check "MODELLED=\"disk_mib=$((disk_gib * 1024)) record=20000\""
    {
        printf 'export = "disk"\n[device.image]\npath = "disk.img"\n'
        printf '[layer.disk]\nkind = "disk"\nof = "image"\ndrive = "drive.toml"\nsize = "%sGiB"\n' $disk_gib
    } > "$work/disk.toml"
    truncate -s ${disk_gib}G "$work/disk.img"
    echo "The module (measured) beside lab/model, one request after the other:"
    "$lab" drive validate --write-cache off "$work/drive.toml" "$work/one.csv" | tee "$work/compared"
    awk '/^demerit figure/ { same = $3 <= 0.01 } END { exit !same }' "$work/compared" || fail "the disk of the module is not that of lab/model"
    "$lab" simulate "$work/disk.toml" --trace "$work/all.csv" --json | grep -o '"read":{[^{}]*"mean_ms":[^,]*\|"write":{[^{}]*"mean_ms":[^,]*' |
        awk -F'[":,]+' -v OFS=, '{ print $2, $NF }' > "$work/simulated"
    echo "The same and more, up to 32 at a time; mean response, ms:"
    awk -F, 'FNR == 1 { files++ }
        files == 1 { model[$1] = $2 }
        files == 2 && FNR > 1 { count[$3]++; sum[$3] += $6 / 1e6 }
        END {
            for (op in model) {
                mean = sum[op] / count[op]
                printf "%-6s module %.3f, lab/model %.3f\n", op, mean, model[op]
                if (mean < model[op] * 0.999 || mean > model[op] * 1.001) differs = 1
            }
            exit differs || length(model) != 2
        }' "$work/simulated" "$work/all.csv" || fail "the queue of the module is not that of lab/model"
    echo
}

results=$kept/results.csv
[ ! -e "$results" ] || mv -f "$results" "$kept/results-before.csv"
echo "setup,log,workload,seed,value,unit" > "$results"

run() { # SETUP PLACE SEED LOG-MIB WORKLOAD...
    local setup=$1 place=$2 seed=$3 mib=$4 begin=$SECONDS ssd='' second=''
    shift 4
    [ "$setup" != plain ] || place=
    case $place in
        ssd) ssd="ssd_mib=$mib ssd_flush_us=$ssd_flush_us seed=$seed" ;;
        free) ssd="ssd_mib=$mib ssd_read_us=0 ssd_write_us=0,0 ssd_flush_us=0 ssd_mb_per_s=0" ;;
    esac
    [ "$*" != pair ] || second="disk_mib=$((disk_gib * 1024)) disk_name=spindle2"
    rm -f "$work/results"
    boot "$setup $place" "$seed" "SETUP=$setup PLACE=${place:-disk} SEED=$seed LOG_MIB=$mib WORKLOADS=$(IFS=,; echo "$*")" \
        "MODELLED=\"disk_mib=$((disk_gib * 1024)) $ssd\"" ${second:+"SECOND=\"$second\""} \
        "FSYNCS=${FSYNCS:-1000} BURST_MIB=${BURST_MIB:-32} COMMITS=${COMMITS:-300}" \
        "TRANSACTIONS=${TRANSACTIONS:-500} SUSTAINED_SECONDS=${SUSTAINED_SECONDS:-20} PROFILE=${PROFILE:-}"
    [ ! -e "$work/profile" ] || profile "$setup${place:+-$place}-$PROFILE"
    awk -F';' -v OFS=, -v head="$setup,$place" -v seed="$seed" '{ print head, $1, seed, $2, $3 }' "$work/results" >> "$results"
    echo "seed $seed: $setup${place:+, $place}, $*: $((SECONDS - begin)) s" >&2
}

# A run that fails says why, and does not end the others.
failed=()
attempt() { # as run
    (
        trap stop_all EXIT
        trap 'exit 143' TERM
        run "$@"
    ) &
    running=$!
    wait $running || failed+=("$1 $2 with seed $3, ${*:5}")
    running=
}

at_once=()
for name in "${workloads[@]}"; do case $name in sustained | pair) ;; *) at_once+=("$name") ;; esac; done
may_be_pair() { # SETUP PLACE
    case $1 in
        plain) ;;
        bcache | dcd | dcd-brief) [ "$2" != disk ] ;;
        *) false ;;
    esac
}
combinations=()
for name in "${setups[@]}"; do
    if [ "$name" = plain ]; then
        combinations+=("plain -")
    else
        for place in "${places[@]}"; do combinations+=("$name $place"); done
    fi
done
compare_models
for seed in $(seq "$seeds"); do
    for combination in "${combinations[@]}"; do
        read -r name place <<< "$combination"
        [ ${#at_once[@]} -eq 0 ] || attempt "$name" "$place" "$seed" "$log_mib" "${at_once[@]}"
        ! has sustained "${workloads[@]}" || attempt "$name" "$place" "$seed" "$sustained_log_mib" sustained
        ! has pair "${workloads[@]}" || ! may_be_pair "$name" "$place" || attempt "$name" "$place" "$seed" "$log_mib" pair
    done
done

# ---------------------------------------------------------------- the tables

table() { # TITLE WORKLOAD=HEADING...: medians of the seeds, and lowest to highest where there are several
    local title=$1
    shift
    # shellcheck disable=SC2154 # of host.sh
    (IFS=';'; awk -F, -v columns="$*" -v title="$title" "$summary"'
        NR > 1 {
            key = $1 (($2 == "") ? "" : ", " $2)
            if (!(key in known)) { known[key] = 1; rows[++row_count] = key }
            value[key, $3, ++seen[key, $3]] = $5
            any[$3] = 1
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
            return times == 1 ? sprintf("%.3f", list[1]) : summary(list, times, "%.3f")
        }' "$results")
}

echo "nearline-2018 cut to $disk_gib GiB, log of $log_mib MiB, flush of the SSD $ssd_flush_us us, kernel $release, $seeds seeds:" \
    "median (lowest to highest)"
echo
columns() { # SUFFIX
    printf '%s\n' "fsync$1=${FSYNCS:-1000} fsyncs" "burst$1=burst" "readback$1=readback" "mixed$1=mixed" \
        "sqlite$1=${COMMITS:-300} SQLite commits" "restore$1=restore of a dump" "pgbench$1=${TRANSACTIONS:-500} of pgbench" \
        "postmark$1=PostMark" "trees1$1=trees" "trees4$1=trees, 4 users"
}
mapfile -t seconds < <(columns "")
table "Seconds" "${seconds[@]}" "burst.drain=until clean after the burst"
mapfile -t seconds < <(columns .cpu)
table "Processor seconds; those of trees and bursts until clean" "${seconds[@]}"
table "Seconds, trees" unpack1=unpack copy1=copy remove1=remove trees1.drain="until clean" \
    unpack4="unpack, 4 users" copy4="copy, 4" remove4="remove, 4" trees4.drain="until clean, 4"
table "Random writes on a full log of $sustained_log_mib MiB, ${SUSTAINED_SECONDS:-20} s" \
    "sustained=writes a second" sustained.p99="p99, ms" sustained.longest="longest, ms"
table "Two disks on one log, the same on both at once; seconds" "pair.fsync=${FSYNCS:-1000} fsyncs on each" \
    "pair.burst=burst on each" "pair.burst.drain=until clean" "pair.fsync.cpu=processor seconds, fsyncs" \
    "pair.burst.cpu=burst, until clean" "pair.fsync.flushes=flushes of the SSD, fsyncs"
table "dbench" "dbench=MB a second"
table "What a burst costs until clean, and RAM at the end of all" burst.requests="requests at the disk" burst.mib="MiB at the disk" \
    ram="RAM, MiB" \
    server.rss="the server's RAM, MiB" server.cpu="the server's processor seconds, all workloads"
for name in ${skipped[@]+"${skipped[@]}"}; do echo "Skipped: $name"; done
for name in ${failed[@]+"${failed[@]}"}; do echo "Failed: $name"; done
[ ${#failed[@]} -eq 0 ]
