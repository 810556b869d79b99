#!/bin/sh
# The first program of the kernel that peers.sh boots: makes the cache of the setup, runs the workloads on it, and switches the machine
# off. It comes with HERE (the directory of the scripts), BED and SECONDS_MAX; /mnt/run says the rest.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
if [ "$BED" = uml ]; then
    mount_all hostfs none "$WORK"
    for module in virtio_blk nbd ext2 ext4 dm-writecache dm-cache-smq bcache; do modprobe -q -d /tmp/lib $module; done
else
    mount_all 9p work trans=virtio,version=9p2000.L,msize=262144
fi
# shellcheck source=/dev/null
. /mnt/run
if [ "$SETUP" = processor ]; then
    processor_loop /tmp/processor > /mnt/processor
    : > /mnt/done
    power_off
fi
export DM_DISABLE_UDEV=1
need_flushes
tell_when_stuck
# What a virtio disk does not say.
echo 1 > /sys/block/vda/queue/rotational
[ "$PLACE" != ssd ] || echo 0 > /sys/block/vdb/queue/rotational
mkdir /tmp/bin
cp /mnt/bin/* /tmp/bin/
# What the workloads start is in memory before they are measured.
fio --version > /tmp/warm
sqlite3 :memory: 'select 1' > /tmp/warm
tar -tf /mnt/tree.tar > /tmp/warm
cp /mnt/tree.tar /tmp/
mkdir /tmp/cold && cp -r /tmp/bin /tmp/cold/ && rm -rf /tmp/cold && dmsetup version > /tmp/warm

# ---------------------------------------------------------------- what is counted beside the time

note() { # NAME VALUE UNIT
    echo "$1;$2;$3" >> /mnt/results
}

at_disk() { # requests and MiB; a flush counts as a write
    awk '{ print $1 + $5, ($3 + $7) / 2048 }' /sys/block/vda/stat
}

busy() { # seconds of all processors together
    awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) / 100 }' /proc/stat
}

available_mib() {
    sync
    # What was freed comes back after a while.
    for _ in 1 2 3; do
        echo 3 > /proc/sys/vm/drop_caches
        sleep 1
    done
    awk '/^MemAvailable/ { print $2 / 1024 }' /proc/meminfo
}

less() { awk "BEGIN { printf \"%.2f\\n\", $1 - $2 }"; }

count_from_here() {
    before_disk=$(at_disk)
    before_busy=$(busy)
}

note_counts() { # NAME
    after_busy=$(busy)
    after_disk=$(at_disk)
    note "$1.cpu" "$(less "$after_busy" "$before_busy")" s
    note "$1.requests" "$(less "${after_disk% *}" "${before_disk% *}")" requests
    note "$1.mib" "$(less "${after_disk#* }" "${before_disk#* }")" MiB
}

# ---------------------------------------------------------------- setups

mapping() { # NAME TABLE
    dmsetup create "$1" --noudevsync --noudevrules --table "$2" > /tmp/dmsetup.log 2>&1 ||
        die "dmsetup create $1 \"$2\": $(cat /tmp/dmsetup.log) $(dmesg | tail -n 2)"
}

sectors_of() { blockdev --getsz "$1"; }

# Sets log and data to where a cache has them.
choose_places() {
    if [ "$PLACE" = ssd ]; then
        log=/dev/vdb
        data=/dev/vda
        return
    fi
    mapping log "0 $((LOG_MIB * 2048)) linear /dev/vda 0"
    mapping data "0 $(($(sectors_of /dev/vda) - LOG_MIB * 2048)) linear /dev/vda $((LOG_MIB * 2048))"
    log=/dev/mapper/log
    data=/dev/mapper/data
}

make_dmcache() {
    metadata=8192
    mapping metadata "0 $metadata linear $log 0"
    mapping blocks "0 $(($(sectors_of "$log") - metadata)) linear $log $metadata"
    cache_of="/dev/mapper/metadata /dev/mapper/blocks $data 128 1 writeback"
    mapping cache "0 $(sectors_of "$data") cache $cache_of smq 0"
    device=/dev/mapper/cache
}

make_bcache() {
    # The kernel wants more than 512 buckets: the default of 512 KiB is too large for such a log.
    bucket=512
    while [ $bucket -gt "$LOG_MIB" ]; do bucket=$((bucket / 2)); done
    /tmp/bin/make-bcache --writeback --bucket "${bucket}k" -C "$log" -B "$data" > /tmp/bcache.log 2>&1 || die "make-bcache: $(cat /tmp/bcache.log)"
    for part in "$log" "$data"; do
        realpath "$part" > /sys/fs/bcache/register || die "bcache does not take $part: $(dmesg | tail -n 3)"
    done
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -e /sys/block/bcache0/bcache/cache ] && break
        sleep 0.5
    done
    grep -q '\[writeback\]' /sys/block/bcache0/bcache/cache_mode || die "bcache does not write back: $(dmesg | tail -n 3)"
    echo 0 > /sys/block/bcache0/bcache/sequential_cutoff
    device=/dev/bcache0
}

dcd_stack() {
    printf 'export = "cache"\n[serve]\ncontrol = "/tmp/dcd.control"\n'
    case $SETUP in
        dcd) printf 'ublk = true\n' ;;
        dcd-brief) printf 'ublk = true\nublk-recovery = false\n' ;;
        dcd-nbd) printf 'nbd = "unix:/tmp/dcd.socket"\n' ;;
    esac
    printf '[device.disk]\npath = "/dev/vda"\n'
    if [ "$PLACE" = ssd ]; then
        printf '[device.log]\npath = "/dev/vdb"\n'
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "disk"\npromise = "flush"\n'
    else
        printf '[layer.log]\nkind = "slice"\nof = "disk"\nsize = "%sMiB"\n' "$LOG_MIB"
        printf '[layer.rest]\nkind = "slice"\nof = "disk"\nfirst = "%sMiB"\n' "$LOG_MIB"
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "rest"\npromise = "flush"\n'
    fi
}

make_dcd() {
    dcd_stack > /tmp/dcd.toml
    /tmp/bin/dcd format /tmp/dcd.toml > /tmp/dcd.log 2>&1 || die "dcd format: $(cat /tmp/dcd.log)"
    /tmp/bin/dcd serve --quiet /tmp/dcd.toml > /tmp/dcd.ready 2> /tmp/dcd.log &
    server=$!
    until [ -s /tmp/dcd.ready ]; do
        kill -0 $server 2> /dev/null || die "dcd serve: $(cat /tmp/dcd.log)"
        sleep 0.1
    done
    device=/dev/ublkb0
    if [ "$SETUP" = dcd-nbd ]; then
        device=/dev/nbd0
        nbd-client -unix /tmp/dcd.socket $device > /tmp/nbd.log 2>&1 || die "nbd-client: $(cat /tmp/nbd.log)"
        until [ "$(cat /sys/block/nbd0/size)" -gt 0 ]; do sleep 0.1; done
    fi
    grep -q 'write back' "/sys/block/${device#/dev/}/queue/write_cache" || die "no flushes reach dcd"
}

make_setup() {
    case $SETUP in plain | dcd*) ;; *) choose_places ;; esac
    case $SETUP in
        plain) device=/dev/vda ;;
        writecache)
            mapping cache "0 $(sectors_of "$data") writecache s $data $log 4096 0"
            device=/dev/mapper/cache
            ;;
        writeboost)
            mapping cache "0 $(sectors_of "$data") writeboost $data $log"
            device=/dev/mapper/cache
            ;;
        dmcache) make_dmcache ;;
        bcache) make_bcache ;;
        dcd*) make_dcd ;;
    esac
}

change_policy() { # POLICY: of dm-cache
    {
        dmsetup reload cache --table "0 $(sectors_of "$data") cache $cache_of $1 0" &&
            dmsetup suspend --noudevsync cache &&
            dmsetup resume --noudevsync --noudevrules cache
    } > /tmp/dmsetup.log 2>&1 || die "dm-cache does not take the policy $1: $(cat /tmp/dmsetup.log)"
}

# Until nothing is dirty, as each cache has it.
clean() {
    case $SETUP in
        writecache) dmsetup message cache 0 flush || die "dm-writecache does not flush" ;;
        writeboost) dmsetup message cache 0 drop_caches || die "dm-writeboost does not write back" ;;
        dmcache)
            change_policy cleaner
            until dmsetup status cache | awk '{ exit $14 != 0 }'; do sleep 0.2; done
            change_policy smq
            ;;
        bcache)
            # At once, and as fast as it can; then as it was.
            echo 0 > /sys/block/bcache0/bcache/writeback_delay
            echo 0 > /sys/block/bcache0/bcache/writeback_percent
            until [ "$(cat /sys/block/bcache0/bcache/dirty_data)" = 0.0k ]; do sleep 0.2; done
            echo 10 > /sys/block/bcache0/bcache/writeback_percent
            echo 30 > /sys/block/bcache0/bcache/writeback_delay
            ;;
        dcd*) /tmp/bin/dcd flush /tmp/dcd.toml > /tmp/flush.log 2>&1 || die "dcd flush: $(cat /tmp/flush.log)" ;;
    esac
}

note_clean() { # NAME
    [ "$SETUP" = plain ] && return
    begin=$(now)
    clean
    note "$1.drain" "$(since "$begin")" s
}

# ---------------------------------------------------------------- workloads

# The requests are the same for every setup of a round, and others for every workload.
random_4k() { # NUMBER fio's arguments
    number=$1
    shift
    run_fio --ioengine=libaio --bs=4k --size=1g --randseed="$ROUND$number" "$@"
}

fsync_writes() {
    count_from_here
    random_4k 1 --rw=randwrite --io_size=$((FSYNCS * 4))k --fsync=1
    note fsync "$fio_seconds" s
    note_counts fsync
}

burst() {
    count_from_here
    random_4k 2 --rw=randwrite --io_size="${BURST_MIB}m" --iodepth=32 --end_fsync=1
    note burst "$fio_seconds" s
    note_clean burst
    note_counts burst
}

readback() {
    random_4k 3 --rw=randwrite --io_size=2m --iodepth=32 --end_fsync=1
    sleep "$(awk "BEGIN { print 2 * $SLOWER }")"
    count_from_here
    random_4k 3 --rw=randread --io_size=1m
    note readback "$fio_seconds" s
    note_counts readback
}

mixed() {
    count_from_here
    random_4k 4 --rw=randrw --rwmixread=70 --io_size=2m --iodepth=16 --end_fsync=1
    note mixed "$fio_seconds" s
    note_counts mixed
}

sustained() {
    count_from_here
    random_4k 5 --rw=randwrite --iodepth=32 --time_based --ramp_time="$(awk "BEGIN { print int($SUSTAINED_SECONDS * $SLOWER / 2) }")" \
        --runtime="$(awk "BEGIN { print int($SUSTAINED_SECONDS * $SLOWER) }")"
    # KiB that were written, and microseconds: the 99th percentile, and the longest.
    awk -F';' '/^3;/ {
        for (i = 59; i <= 78; i++) if ($i ~ /^99\.0+%=/) { p99 = $i; sub(/.*=/, "", p99) }
        printf "sustained;%.3f;writes/s\nsustained.p99;%.3f;ms\nsustained.longest;%.3f;ms\n", $47 / 4 / ($50 / 1000), p99 / 1000, $56 / 1000
    }' /tmp/fio.log >> /mnt/results
    note_counts sustained
}

each_user() { # USERS COMMAND...: all at once, with the number of the user as the last argument; notes nothing, and waits for the disk
    users=$1
    shift
    for user in $(seq "$users"); do "$@" "$user" & jobs_of_users="$jobs_of_users $!"; done
    # The server of dcd is a job too, and never ends.
    # shellcheck disable=SC2086
    wait $jobs_of_users
    jobs_of_users=
    sync -f /tmp/tree
}

unpack_tree() { mkdir "/tmp/tree/$1" && tar -xf /tmp/tree.tar -C "/tmp/tree/$1"; }
copy_tree() { cp -r "/tmp/tree/$1" "/tmp/tree/copy-$1"; }
remove_tree() { rm -rf "/tmp/tree/$1" "/tmp/tree/copy-$1"; }

trees() { # USERS
    mkfs.ext2 -q -F "$device" > /tmp/mkfs.log 2>&1 || die "mkfs.ext2: $(cat /tmp/mkfs.log)"
    for step in unpack copy remove; do
        mount -t ext2 -o dirsync "$device" /tmp/tree || die "ext2 cannot be mounted"
        [ $step != unpack ] || count_from_here
        begin=$(now)
        each_user "$1" ${step}_tree
        note "$step$1" "$(since "$begin")" s
        umount /tmp/tree
    done
    note_clean "trees$1"
    note_counts "trees$1"
}

# One ext4 for all that want it. What mke2fs writes is destaged before anything is measured.
ext4_made=
mount_ext4() {
    if [ -z "$ext4_made" ]; then
        mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$device" > /tmp/mkfs.log 2>&1 || die "mkfs.ext4: $(cat /tmp/mkfs.log)"
        clean
        ext4_made=yes
    fi
    mount -t ext4 "$device" /tmp/tree || die "ext4 cannot be mounted"
    count_from_here
    begin=$(now)
}

end_ext4() { # NAME
    note "$1" "$(since "$begin")" s
    note_counts "$1"
    umount /tmp/tree
}

sqlite_commits() {
    {
        echo 'create table t (n integer primary key, text);'
        for n in $(seq 100); do echo "insert into t values ($n, hex(randomblob(50)));"; done
    } > /tmp/commits.sql
    mount_ext4
    sqlite3 /tmp/tree/database < /tmp/commits.sql > /tmp/sqlite.log 2>&1 || die "sqlite3: $(tail -n 1 /tmp/sqlite.log)"
    end_ext4 sqlite
}

postmark_files() {
    printf 'set location /tmp/tree\nset number 200\nset transactions 500\nset seed %s\nrun\nquit\n' "$ROUND" > /tmp/postmark.in
    mount_ext4
    postmark /tmp/postmark.in > /tmp/postmark.log 2>&1 < /dev/null || die "postmark: $(tail -n 3 /tmp/postmark.log)"
    sync -f /tmp/tree
    end_ext4 postmark
}

dbench_client() {
    mount_ext4
    # A sixth of the time more goes by before it counts.
    dbench -t "$(awk "BEGIN { print int(10 * $SLOWER) }")" -D /tmp/tree -c /usr/share/dbench/client.txt 1 > /tmp/dbench.log 2>&1 ||
        die "dbench: $(tail -n 3 /tmp/dbench.log)"
    note dbench "$(sed -n 's/^Throughput \([0-9.]*\) .*/\1/p' /tmp/dbench.log)" MB/s
    rm -rf /tmp/tree/clients
    umount /tmp/tree
}

free_before=$(available_mib)
make_setup
# shellcheck disable=SC2153 # of /mnt/run
for workload in $WORKLOADS; do
    case $workload in
        fsync) fsync_writes ;;
        burst) burst ;;
        readback) readback ;;
        mixed) mixed ;;
        sustained) sustained ;;
        trees1) trees 1 ;;
        trees4) trees 4 ;;
        sqlite) sqlite_commits ;;
        postmark) postmark_files ;;
        dbench) dbench_client ;;
    esac
done
# The boot with the small log says nothing about RAM.
if [ "$WORKLOADS" != sustained ]; then
    note ram "$(less "$free_before" "$(available_mib)")" MiB
    if [ "${SETUP#dcd}" != "$SETUP" ]; then
        note server.rss "$(awk '/^VmRSS/ { print $2 / 1024 }' "/proc/$server/status")" MiB
        note server.cpu "$(awk '{ print ($14 + $15) / 100 }' "/proc/$server/stat")" s
    fi
fi
: > /mnt/done
power_off
