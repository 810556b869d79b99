#!/bin/sh
# shellcheck disable=SC2153,SC2154,SC3028 # what peers.sh says; and the shell is busybox
# The first program of the kernel that peers.sh boots: makes the cache of the setup, runs the workloads on it, hands over the results, and
# switches the machine off. It has all that it needs in RAM, for what the host does takes real time. peers.sh says what is to be done by
# variables, with commas for spaces.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
mount_own
# Where dcd keeps memory that outlives its server.
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
WORKLOADS=$(echo "$WORKLOADS" | tr , ' ')
export DM_DISABLE_UDEV=1
postgres=$(dirname /usr/lib/postgresql/*/bin/postgres)

# The working directory of the host: at the end alone.
reach_host() {
    grep -q ' /mnt ' /proc/mounts || mount -t 9p work /mnt -o trans=virtio,version=9p2000.L,msize=262144
    [ ! -e /tmp/results ] || cp /tmp/results /mnt/results
}

hand_over() {
    reach_host
    : > /mnt/done
    power_off
}

# shellcheck disable=SC2086 # several options
insmod /modelled.ko $MODELLED || die "the modelled devices do not start: $(dmesg | tail -n 3)"
# shellcheck disable=SC2086 # several options
[ -z "$SECOND" ] || insmod /second.ko $SECOND || die "the second disk does not start: $(dmesg | tail -n 3)"

if [ "$SETUP" = check ]; then
    device=/dev/spindle
    # One after the other: at random, in order, and in order with pauses; then many at a time.
    for step in "randrw --bs=4k --io_size=2m" "rw --bs=4k --io_size=512k --offset=1g" "rw --bs=512k --io_size=32m --offset=2g" \
        "read --bs=16k --io_size=2m --offset=3g --thinktime=3ms" "write --bs=8k --io_size=512k --thinktime=1ms --offset=512m" \
        "randrw --bsrange=4k-1m --io_size=64m"; do
        # shellcheck disable=SC2086 # fio's options
        run_fio --ioengine=psync --randseed=1 --rw=$step
    done
    cp /proc/spindle /tmp/results
    reach_host
    cp /proc/spindle /mnt/one.csv
    run_fio --ioengine=libaio --randseed=2 --rw=randrw --bs=4k --io_size=8m --iodepth=32
    cp /proc/spindle /mnt/all.csv
    hand_over
fi

tell_when_stuck
# Such a disk always finds some RAM.
echo 65536 > /proc/sys/vm/min_free_kbytes
fio --version > /tmp/warm

# ---------------------------------------------------------------- what is counted beside the time

server=

note() { # NAME VALUE UNIT
    echo "$1;$2;$3" >> /tmp/results
}

difference() { awk "BEGIN { printf \"%.6f\\n\", $1 - $2 }"; }

at_disk() { # requests and MiB; a flush counts as a write
    cat /sys/block/spindle*/stat | awk '{ requests += $1 + $5; mib += ($3 + $7) / 2048 } END { print requests, mib }'
}

asked() { # requests that came to what the setup makes
    for part in "$device" ${second:+"$second"}; do cat "/sys/block/$(basename "$(readlink -f "$part")")/stat"; done |
        awk '{ sum += $1 + $5 + $16 } END { print sum }'
}

flushes() { cat /sys/block/spindle*/stat /sys/block/flash/stat 2> /tmp/warm | awk '{ sum += $16 } END { print sum }'; }

flushes_of_ssd() { awk '{ print $16 }' /sys/block/flash/stat; }

idle() { # seconds of the processor
    awk -F: '/\.(idle|iowait)_sleeptime/ { sum += $2 } END { printf "%.9f", sum / 1e9 }' /proc/timer_list
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

# Of the server of dcd, all its threads; 0 where there is none.
server_seconds() { cat /proc/"${server:-none}"/task/*/schedstat 2> /tmp/warm | awk '{ sum += $1 } END { printf "%.9f", sum / 1e9 }'; }

count_from_here() {
    before_server=$(server_seconds)
    before_asked=$(asked)
    before_disk=$(at_disk)
    [ "$PLACE" = disk ] || before_flushes=$(flushes_of_ssd)
    before_idle=$(idle)
    before_time=$EPOCHREALTIME
}

note_counts() { # NAME
    after_time=$EPOCHREALTIME
    after_idle=$(idle)
    after_disk=$(at_disk)
    note "$1.asked" "$(difference "$(asked)" "$before_asked")" requests
    [ -z "$server" ] || note "$1.server" "$(difference "$(server_seconds)" "$before_server")" s
    note "$1.cpu" "$(awk "BEGIN { printf \"%.6f\", $after_time - $before_time - ($after_idle - $before_idle) }")" s
    [ "$PLACE" = disk ] || note "$1.flushes" "$(difference "$(flushes_of_ssd)" "$before_flushes")" flushes
    note "$1.requests" "$(difference "${after_disk% *}" "${before_disk% *}")" requests
    note "$1.mib" "$(difference "${after_disk#* }" "${before_disk#* }")" MiB
}

# Where the instructions of one workload go (PROFILE): the host's qemu counts them between two files.
profiled() { # NAME COMMAND...
    if [ "$PROFILE" != "$1" ]; then
        shift
        "$@"
        return
    fi
    shift
    reach_host
    ask_profile begin
    "$@" || return
    ask_profile end
    cat /proc/kallsyms > /mnt/profile.kernel
    cat /proc/"${server:-none}"/maps > /mnt/profile.server 2> /tmp/warm
    return 0
}

ask_profile() { # begin|end
    : > "/mnt/profile.$1"
    while [ -e "/mnt/profile.$1" ]; do :; done
}

# ---------------------------------------------------------------- setups

mapping() { # NAME TABLE
    dmsetup create "$1" --noudevsync --noudevrules --table "$2" > /tmp/dmsetup.log 2>&1 ||
        die "dmsetup create $1 \"$2\": $(cat /tmp/dmsetup.log) $(dmesg | tail -n 2)"
}

sectors_of() { blockdev --getsz "$1"; }

# Sets log and data to where a cache has them.
choose_places() {
    if [ "$PLACE" != disk ]; then
        log=/dev/flash
        data=/dev/spindle
        return
    fi
    mapping log "0 $((LOG_MIB * 2048)) linear /dev/spindle 0"
    mapping data "0 $(($(sectors_of /dev/spindle) - LOG_MIB * 2048)) linear /dev/spindle $((LOG_MIB * 2048))"
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
    backing="$data ${SECOND:+/dev/spindle2}"
    # shellcheck disable=SC2086 # one device or two
    make-bcache --writeback --bucket "${bucket}k" -C "$log" -B $backing > /tmp/bcache.log 2>&1 || die "make-bcache: $(cat /tmp/bcache.log)"
    bcaches=
    for part in "$log" $backing; do
        realpath "$part" > /sys/fs/bcache/register || die "bcache does not take $part: $(dmesg | tail -n 3)"
        [ "$part" = "$log" ] || bcaches="$bcaches /sys/block/bcache$(echo "$bcaches" | wc -w)/bcache"
    done
    for part in $bcaches; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            [ -e "$part/cache" ] && break
            sleep 0.5
        done
        grep -q '\[writeback\]' "$part/cache_mode" || die "bcache does not write back: $(dmesg | tail -n 3)"
        echo 0 > "$part/sequential_cutoff"
    done
    device=/dev/bcache0
    second=${SECOND:+/dev/bcache1}
}

dcd_stack() {
    printf 'export = "cache"\n[serve]\ncontrol = "/tmp/dcd.control"\n'
    case $SETUP in
        dcd) printf 'ublk = true\n' ;;
        dcd-brief) printf 'ublk = true\nublk-recovery = false\n' ;;
        dcd-nbd) printf 'nbd = "unix:/tmp/dcd.socket"\n' ;;
    esac
    printf '[device.disk]\npath = "/dev/spindle"\n'
    [ -z "$SECOND" ] || printf '[device.second]\npath = "/dev/spindle2"\n'
    if [ "$PLACE" != disk ]; then
        printf '[device.log]\npath = "/dev/flash"\n'
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = ["disk"%s]\npromise = "flush"\n' "${SECOND:+, \"second\"}"
    else
        printf '[layer.log]\nkind = "slice"\nof = "disk"\nsize = "%sMiB"\n' "$LOG_MIB"
        printf '[layer.rest]\nkind = "slice"\nof = "disk"\nfirst = "%sMiB"\n' "$LOG_MIB"
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "rest"\npromise = "flush"\n'
    fi
}

make_dcd() {
    dcd_stack > /tmp/dcd.toml
    dcd format --force /tmp/dcd.toml > /tmp/dcd.log 2>&1 || die "dcd format: $(cat /tmp/dcd.log)"
    dcd serve --quiet /tmp/dcd.toml > /tmp/dcd.ready 2> /tmp/dcd.log &
    server=$!
    until [ -s /tmp/dcd.ready ]; do
        kill -0 $server 2> /dev/null || die "dcd serve: $(cat /tmp/dcd.log)"
        sleep 0.1
    done
    device=/dev/ublkb0
    second=${SECOND:+/dev/ublkb1}
    if [ "$SETUP" = dcd-nbd ]; then
        device=/dev/nbd0
        nbd-client -unix /tmp/dcd.socket $device > /tmp/nbd.log 2>&1 || die "nbd-client: $(cat /tmp/nbd.log)"
        until [ "$(cat /sys/block/nbd0/size)" -gt 0 ]; do sleep 0.1; done
    fi
    for part in "$device" ${second:+"$second"}; do
        grep -q 'write back' "/sys/block/${part#/dev/}/queue/write_cache" || die "no flushes reach dcd from $part"
    done
}

make_setup() {
    case $SETUP in plain | dcd*) ;; *) choose_places ;; esac
    case $SETUP in
        plain)
            device=/dev/spindle
            second=${SECOND:+/dev/spindle2}
            ;;
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
            for part in $bcaches; do
                echo 0 > "$part/writeback_delay"
                echo 0 > "$part/writeback_percent"
            done
            for part in $bcaches; do
                until [ "$(cat "$part/dirty_data")" = 0.0k ]; do sleep 0.2; done
                echo 10 > "$part/writeback_percent"
                echo 30 > "$part/writeback_delay"
            done
            ;;
        dcd*) dcd flush /tmp/dcd.toml > /tmp/flush.log 2>&1 || die "dcd flush: $(cat /tmp/flush.log)" ;;
    esac
}

note_clean() { # NAME
    [ "$SETUP" = plain ] && return
    begin=$EPOCHREALTIME
    clean
    note "$1.drain" "$(difference "$EPOCHREALTIME" "$begin")" s
}

# ---------------------------------------------------------------- workloads

# The requests are the same for every setup with one seed, and others for every workload.
random_4k() { # NUMBER fio's arguments
    number=$1
    shift
    run_fio --ioengine=libaio --bs=4k --size=1g --randseed="$SEED$number" "$@"
}

fsync_writes() { # NAME
    count_from_here
    profiled "$1" random_4k 1 --rw=randwrite --io_size=$((FSYNCS * 4))k --fsync=1
    note "$1" "$fio_seconds" s
    note_counts "$1"
}

burst() { # NAME
    count_from_here
    profiled "$1" random_4k 2 --rw=randwrite --io_size="${BURST_MIB}m" --iodepth=32 --end_fsync=1
    note "$1" "$fio_seconds" s
    note_clean "$1"
    note_counts "$1"
}

readback() {
    random_4k 3 --rw=randwrite --io_size=8m --iodepth=32 --end_fsync=1
    sleep 2
    count_from_here
    profiled readback random_4k 3 --rw=randread --io_size=4m
    note readback "$fio_seconds" s
    note_counts readback
}

mixed() {
    count_from_here
    profiled mixed random_4k 4 --rw=randrw --rwmixread=70 --io_size=8m --iodepth=16 --end_fsync=1
    note mixed "$fio_seconds" s
    note_counts mixed
}

sustained() {
    count_from_here
    random_4k 5 --rw=randwrite --iodepth=32 --time_based --ramp_time=$((SUSTAINED_SECONDS / 2)) \
        --runtime="$SUSTAINED_SECONDS"
    # KiB that were written, and microseconds: the 99th percentile, and the longest.
    awk -F';' '/^3;/ {
        for (i = 59; i <= 78; i++) if ($i ~ /^99\.0+%=/) { p99 = $i; sub(/.*=/, "", p99) }
        printf "sustained;%.3f;writes/s\nsustained.p99;%.3f;ms\nsustained.longest;%.3f;ms\n", $47 / 4 / ($50 / 1000), p99 / 1000, $56 / 1000
    }' /tmp/fio.log >> /tmp/results
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

unpack_tree() { mkdir "/tmp/tree/$1" && tar -xf /tree.tar -C "/tmp/tree/$1"; }
copy_tree() { cp -r "/tmp/tree/$1" "/tmp/tree/copy-$1"; }
remove_tree() { rm -rf "/tmp/tree/$1" "/tmp/tree/copy-$1"; }

trees() { # USERS
    mkfs.ext2 -q -F "$device" > /tmp/mkfs.log 2>&1 || die "mkfs.ext2: $(cat /tmp/mkfs.log)"
    for step in unpack copy remove; do
        mount -t ext2 -o dirsync "$device" /tmp/tree || die "ext2 cannot be mounted"
        [ $step != unpack ] || count_from_here
        begin=$EPOCHREALTIME
        profiled "$step$1" each_user "$1" ${step}_tree
        note "$step$1" "$(difference "$EPOCHREALTIME" "$begin")" s
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
    begin=$EPOCHREALTIME
}

end_ext4() { # NAME
    note "$1" "$(difference "$EPOCHREALTIME" "$begin")" s
    note_counts "$1"
    umount /tmp/tree
}

sqlite_commits() {
    {
        echo 'create table t (n integer primary key, text);'
        for n in $(seq "$COMMITS"); do echo "insert into t values ($n, hex(randomblob(50)));"; done
    } > /tmp/commits.sql
    mount_ext4
    profiled sqlite sqlite3 /tmp/tree/database < /tmp/commits.sql > /tmp/sqlite.log 2>&1 || die "sqlite3: $(tail -n 1 /tmp/sqlite.log)"
    end_ext4 sqlite
}

postgres_transactions() {
    mount_ext4
    tar -xf /database.tar -C /tmp/tree
    clean
    chmod 1777 /tmp
    mkdir -p /tmp/postgres
    chown postgres /tmp/postgres
    # Not busybox's setpriv.
    /usr/bin/setpriv --reuid=postgres --regid="$(id -g postgres)" --clear-groups \
        "$postgres/postgres" -D /tmp/tree/pg -k /tmp/postgres -h '' > /tmp/postgres.log 2>&1 &
    postmaster=$!
    until "$postgres/psql" -h /tmp/postgres -U postgres -qX -c 'select 1' bench > /tmp/psql.log 2>&1; do
        kill -0 $postmaster 2> /tmp/warm || die "postgres: $(tail -n 3 /tmp/postgres.log)"
        sleep 0.1
    done
    count_from_here
    begin=$EPOCHREALTIME
    profiled restore "$postgres/psql" -h /tmp/postgres -U postgres -qX -v ON_ERROR_STOP=1 -f /dump.sql bench > /tmp/psql.log 2>&1 || die "psql: $(tail -n 3 /tmp/psql.log)"
    note restore "$(difference "$EPOCHREALTIME" "$begin")" s
    note_counts restore
    count_from_here
    begin=$EPOCHREALTIME
    profiled pgbench "$postgres/pgbench" -h /tmp/postgres -U postgres -n -t "$TRANSACTIONS" --random-seed="$SEED" bench > /tmp/pgbench.log 2>&1 ||
        die "pgbench: $(tail -n 3 /tmp/pgbench.log)"
    note pgbench "$(difference "$EPOCHREALTIME" "$begin")" s
    note_counts pgbench
    kill -INT $postmaster
    wait $postmaster
    rm -rf /tmp/tree/pg
    umount /tmp/tree
}

postmark_files() {
    printf 'set location /tmp/tree\nset number 200\nset transactions 500\nset seed %s\nrun\nquit\n' "$SEED" > /tmp/postmark.in
    mount_ext4
    profiled postmark postmark /tmp/postmark.in > /tmp/postmark.log 2>&1 < /dev/null || die "postmark: $(tail -n 3 /tmp/postmark.log)"
    sync -f /tmp/tree
    end_ext4 postmark
}

dbench_client() {
    mount_ext4
    # A sixth of the time more goes by before it counts.
    dbench -t 10 -D /tmp/tree -c /usr/share/dbench/client.txt 1 > /tmp/dbench.log 2>&1 ||
        die "dbench: $(tail -n 3 /tmp/dbench.log)"
    note dbench "$(sed -n 's/^Throughput \([0-9.]*\) .*/\1/p' /tmp/dbench.log)" MB/s
    rm -rf /tmp/tree/clients
    umount /tmp/tree
}

free_before=$(available_mib)
make_setup
flushes_before=$(flushes)
for workload in $WORKLOADS; do
    case $workload in
        fsync) fsync_writes fsync ;;
        burst) burst burst ;;
        pair)
            fsync_writes pair.fsync
            burst pair.burst
            ;;
        readback) readback ;;
        mixed) mixed ;;
        sustained) sustained ;;
        trees1) trees 1 ;;
        trees4) trees 4 ;;
        sqlite) sqlite_commits ;;
        postgres) postgres_transactions ;;
        postmark) postmark_files ;;
        dbench) dbench_client ;;
    esac
done
[ "$(flushes)" -gt "$flushes_before" ] || die "no flush came to a device, so it is no comparison"
# The boot with the small log says nothing about RAM, and one with two disks is too short to.
if [ "$WORKLOADS" != sustained ] && [ "$WORKLOADS" != pair ]; then
    note ram "$(difference "$free_before" "$(available_mib)")" MiB
    if [ "${SETUP#dcd}" != "$SETUP" ]; then
        note server.rss "$(awk '/^VmRSS/ { print $2 / 1024 }' "/proc/$server/status")" MiB
        note server.cpu "$(server_seconds)" s
    fi
fi
hand_over
