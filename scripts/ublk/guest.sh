#!/bin/sh
# shellcheck disable=SC2153,SC2154 # of /mnt/run
# The first program of the kernel that ublk.sh boots: runs the parts that /mnt/run names, and switches the machine off. It comes with HERE
# (the directory of the scripts) and SECONDS_MAX.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
# shellcheck source=scripts/ublk/measure.sh
. "$HERE/ublk/measure.sh"
# shellcheck source=scripts/ublk/devices.sh
. "$HERE/ublk/devices.sh"
mount_all 9p work trans=virtio,version=9p2000.L,msize=262144
# shellcheck source=/dev/null
. /mnt/run
need_flushes
tell_when_stuck
mkdir /tmp/bin /tmp/fs
cp /mnt/bin/* /tmp/bin/
dcd=/tmp/bin/dcd
node=/dev/ublkb0
server=

say() { echo "$*" >> /mnt/results; }

stack() { # NAME FIELDS-OF-SERVE...
    name=$1
    shift
    {
        printf 'export = "cache"\n[serve]\ncontrol = "%s.control"\n' "$name"
        printf '%s\n' "$@"
        printf '[device.data]\npath = "%s"\n[device.log]\npath = "%s"\n' "${data:-/dev/vda}" "${log:-/dev/vdb}"
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "data"\n'
    } > "/tmp/$name.toml"
}

# A stack of one device, without a cache.
bare_stack() { # NAME FIELD-OF-DEVICE FIELDS-OF-SERVE...
    name=$1
    device=$2
    shift 2
    {
        printf 'export = "disk"\n[serve]\ncontrol = "%s.control"\n' "$name"
        printf '%s\n' "$@"
        printf '[device.disk]\n%s\n' "$device"
    } > "/tmp/$name.toml"
}

begin_serve() { # STACK
    : > /tmp/ready
    "$dcd" serve "/tmp/$1.toml" > /tmp/ready 2> /tmp/server.log &
    server=$!
}

# What the server says, what the kernel knows, and where both wait.
report() {
    cat /tmp/server.log
    timeout 40 "$dcd" ublk list 2>&1
    timeout 10 "$dcd" status --json /tmp/any.toml 2>&1
    mount -t debugfs none /sys/kernel/debug 2> /dev/null
    grep -r . /sys/kernel/debug/block/ublkb0/state /sys/kernel/debug/block/ublkb0/requeue_list /sys/kernel/debug/block/ublkb0/hctx*/busy \
        /sys/kernel/debug/block/ublkb0/hctx*/state /sys/kernel/debug/block/ublkb0/hctx*/dispatch 2> /dev/null
    for task in "/proc/$server/task"/* $(grep -lE '^State:.D' /proc/[0-9]*/status | sed 's|/status||'); do
        echo "$(cat "$task/comm"), $(sed -n 's/^State:.//p' "$task/status"): $(sed 's/.*] //; s/+.*//' "$task/stack" | tr '\n' ' ')"
    done
}

# A start waits for a log to be read, and under emulation for processors.
wait_ready() {
    looks=0
    until [ -s /tmp/ready ]; do
        kill -0 $server 2> /dev/null || die "dcd serve: $(report)"
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "the server is not ready after 60 s: $(report)"
        sleep 0.05
    done
}

serve() { begin_serve "$1"; wait_ready; }

kill_server() {
    kill -KILL $server
    looks=0
    while kill -0 $server 2> /dev/null && ! grep -q '^State:.Z' /proc/$server/status 2> /dev/null; do
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "a killed server does not end in 60 s: $(report)"
        sleep 0.05
    done
    wait $server 2> /dev/null
}

stop_server() { # by SIGTERM, cleanly
    kill -TERM $server
    wait $server || die "dcd serve ended with $?: $(cat /tmp/server.log)"
}

is() { # WHAT EXPECTED SEEN
    [ "$2" = "$3" ] || die "$1 is \"$3\" and not \"$2\""
}

refused() { # CODE PATTERN COMMAND...
    code=$1
    pattern=$2
    shift 2
    "$@" > /tmp/refused 2>&1 && die "not refused: $*"
    status=$?
    { [ $status -eq "$code" ] && grep -q "$pattern" /tmp/refused; } || die "$*: exit $status, not $code with \"$pattern\": $(cat /tmp/refused)"
}

fresh_ext4() {
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $node > /tmp/mkfs.log 2>&1 || die "mkfs.ext4: $(cat /tmp/mkfs.log)"
    mount -t ext4 $node /tmp/fs || die "ext4 cannot be mounted"
}

check_ext4() {
    umount /tmp/fs || die "ext4 cannot be unmounted"
    e2fsck -fn $node > /tmp/e2fsck.log 2>&1 || die "e2fsck: $(cat /tmp/e2fsck.log)"
    dmesg | grep -iE 'I/O error|EXT4-fs error|Buffer I/O|BUG:|Oops|WARNING:' > /tmp/dmesg.log && die "the kernel: $(head -n 5 /tmp/dmesg.log)"
}

# fio with verification, in the background, until told to end: random writes with an fsync now and then; when a file has been written, all of
# it is read back, and that again and again.
begin_load() {
    cat > /tmp/load.fio << FIO
[global]
directory=/tmp/fs
rw=randwrite
ioengine=libaio
iodepth=8
direct=1
fsync=32
verify=crc32c
verify_state_save=0
verify_fatal=1
loops=100000
group_reporting
[small]
bs=4k
size=4m
[large]
bs=48k
size=12m
FIO
    fio /tmp/load.fio > /tmp/fio.log 2>&1 &
    load=$!
    # Files that are written once, and compared with what they were.
    mkdir -p /tmp/fs/files
    i=0
    while [ $i -lt 20 ]; do
        head -c 100000 /dev/urandom > "/tmp/fs/files/$i"
        i=$((i + 1))
    done
    (cd /tmp/fs && sha256sum files/*) > /tmp/sums
    sync -f /tmp/fs
}

load_goes_on() {
    kill -0 "$load" 2> /dev/null || die "fio has ended: $(grep -vE "^ |^$|percentiles" /tmp/fio.log | head -n 12)"
}

end_load() {
    load_goes_on
    kill -INT "$load"
    looks=0
    while ! grep -q '^State:.Z' "/proc/$load/status" && kill -0 "$load"; do
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "fio does not end in 60 s: $(report)"
        sleep 0.05
    done
    wait "$load"
    grep -qiE 'verify: bad|error=|err= *[1-9]|fio: .*(verify|io_u error)' /tmp/fio.log && die "fio: $(tail -n 20 /tmp/fio.log)"
    grep -q 'err= 0' /tmp/fio.log || die "fio did not end well: $(tail -n 20 /tmp/fio.log)"
    echo 3 > /proc/sys/vm/drop_caches
    (cd /tmp/fs && sha256sum --quiet -c /tmp/sums) > /tmp/compared 2>&1 || die "files have changed: $(head -n 3 /tmp/compared)"
}

pause() { # FROM TO, in thousandths of a second
    sleep "$(awk -v from="$1" -v to="$2" -v seed="$(od -An -N4 -tu4 /dev/urandom)" 'BEGIN { srand(seed); printf "%.3f", (from + rand() * (to - from)) / 1000 }')"
}

# Has the kernel's NBD client make the device, which outlives its server.
attach_nbd() {
    stack nbd 'nbd = "unix:/tmp/nbd.socket"' 'nbd-recovery = true'
    serve nbd
    node=$("$dcd" attach /tmp/nbd.toml 2> /tmp/attach.log) || die "attach: $(cat /tmp/attach.log)"
    [ -b "$node" ] || die "there is no $node"
}

release_nbd() {
    "$dcd" attach --release /tmp/nbd.toml > /tmp/attach.log 2>&1 || die "release: $(cat /tmp/attach.log)"
    is "the size of what was released" 0 "$(cat "/sys/block/${node#/dev/}/size")"
    stop_server
    node=/dev/ublkb0
}

# ---------------------------------------------------------------- parts

part_node() {
    serve any
    grep -q "ublk $node" /tmp/ready || die "the node is not told: $(cat /tmp/ready)"
    [ -b $node ] || die "there is no $node"
    "$dcd" status /tmp/any.toml > /tmp/status || die "status: $(cat /tmp/status)"
    grep -q "ublk: $node, .*recovery, reissue" /tmp/status || die "status does not show the flags: $(cat /tmp/status)"
    stop_server
    [ ! -e $node ] || die "$node is left"
    [ ! -e /dev/ublkc0 ] || die "/dev/ublkc0 is left"
}

part_limits() {
    serve any
    queue=/sys/block/ublkb0/queue
    is size "$(cat /sys/block/vda/size)" "$(cat /sys/block/ublkb0/size)"
    is "the logical block" "$(cat /sys/block/vda/queue/logical_block_size)" "$(cat $queue/logical_block_size)"
    is "the physical block" "$(cat /sys/block/vda/queue/physical_block_size)" "$(cat $queue/physical_block_size)"
    is "the smallest request that is recommended" 4096 "$(cat $queue/minimum_io_size)"
    is "the largest request" 512 "$(cat $queue/max_hw_sectors_kb)"
    is "the cache" "write back" "$(cat $queue/write_cache)"
    is FUA 1 "$(cat $queue/fua)"
    is rotational "$(cat /sys/block/vda/queue/rotational)" "$(cat $queue/rotational)"
    is queues 2 "$(find /sys/block/ublkb0/mq -mindepth 1 -maxdepth 1 | wc -l)"
    [ "$(cat $queue/discard_max_bytes)" -gt 0 ] || die "there are no discards"
    [ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ] || die "there are no write-zeroes"
    stop_server
}

part_errors() {
    serve any
    # Another stack does not get the device, by number or as any.
    stack strange "ublk = 0"
    sed 's|/dev/vda|/dev/ram-data|; s|/dev/vdb|/dev/ram-log|; s|"cache"|"data"|; /layer.cache/,$d; /device.log/,/ram-log/d' /tmp/strange.toml > /tmp/other.toml
    truncate -s 16M /tmp/other.img
    sed -i 's|/dev/ram-data|/tmp/other.img|' /tmp/other.toml
    refused 1 "belongs to the stack /tmp/any.toml" "$dcd" serve /tmp/other.toml
    refused 3 "process $server serves it" "$dcd" ublk remove 0
    refused 1 "there is no /dev/ublkb7" "$dcd" ublk remove 7
    stop_server
}

part_ext4() {
    serve any
    fresh_ext4
    cp -r /usr/share/perl-base /tmp/fs/ 2> /dev/null || cp -r /etc /tmp/fs/tree 2> /dev/null
    (cd /tmp/fs && find . -type f -exec sha256sum {} + | sort) > /tmp/before
    umount /tmp/fs
    mount -t ext4 $node /tmp/fs || die "ext4 cannot be mounted again"
    (cd /tmp/fs && find . -type f -exec sha256sum {} + | sort) > /tmp/after
    cmp -s /tmp/before /tmp/after || die "files have changed"
    [ -s /tmp/before ] || die "nothing was copied"
    check_ext4
    fio --name=verify --filename=$node --size=64m --bs=4k --rw=randwrite --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c > /tmp/fio.log 2>&1 ||
        die "fio: $(tail -n 20 /tmp/fio.log)"
    stop_server
}

# fsx, which compares all that it reads with what it has written, also where the server is killed meanwhile. What is clean is dropped from
# memory again and again, so that it is read from the device. In rounds, each with a seed and its share of the kills.
part_fsx() {
    serve any
    fresh_ext4
    i=0 ran=0
    reads=$(awk '{ print $1 }' /sys/block/ublkb0/stat)
    while [ $ran -lt "$FSX_OPERATIONS" ]; do
        many=$((FSX_OPERATIONS - ran))
        [ $many -le 20000 ] || many=20000
        ran=$((ran + many))
        fsx_round $many $((KILLS * ran / FSX_OPERATIONS))
        say "fsx: $ran of $FSX_OPERATIONS operations, the last ones with seed $seed, $i kills"
    done
    reads=$(($(awk '{ print $1 }' /sys/block/ublkb0/stat) - reads))
    check_ext4
    stop_server
    say "fsx: the device was read $reads times"
}

fsx_round() { # operations, and how many kills there shall have been at their end
    rm -rf /tmp/fsx /tmp/fs/exercised
    mkdir -p /tmp/fsx
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    /tmp/bin/fsx -q -f /tmp/bin/fsx.toml -N "$1" -S "$seed" -P /tmp/fsx /tmp/fs/exercised > /tmp/fsx.log 2>&1 &
    load=$!
    while runs $load; do
        pause 100 700
        echo 1 > /proc/sys/vm/drop_caches
        [ $i -lt "$2" ] || continue
        kill_server
        serve any
        i=$((i + 1))
    done
    wait $load || die "fsx -S $seed: exit $?: $(head -n 6 /tmp/fsx.log; tail -n 30 /tmp/fsx.log) $(report)"
    grep -q "All operations completed" /tmp/fsx.log || die "fsx -S $seed: $(head -n 6 /tmp/fsx.log)"
}

# What stress-ng does to file systems and verifies, one kind after the other, each by two processes, also where the server is killed meanwhile.
part_stress() {
    serve any
    fresh_ext4
    mkdir /tmp/fs/stressed
    # The program is on the host's file system, whose devices are not the guest's.
    stress-ng --class filesystem --sequential 2 --timeout "${STRESS_SECONDS}s" --verify --temp-path /tmp/fs/stressed --metrics-brief \
        ${STRESS_BUT:+--exclude $STRESS_BUT} > /tmp/stress.log 2>&1 &
    load=$!
    i=0
    while runs $load; do
        pause 1000 6000
        echo 1 > /proc/sys/vm/drop_caches
        [ $i -lt "$KILLS" ] || continue
        kill_server
        serve any
        i=$((i + 1))
    done
    status=0
    wait $load || status=$?
    # 3 and 4: some kinds cannot run here; it names them.
    case $status in 0 | 3 | 4) ;; *) die "stress-ng: exit $status: $(grep -E 'fail|error' /tmp/stress.log | head -n 20)" ;; esac
    grep -q "successful run completed" /tmp/stress.log || die "stress-ng: $(tail -n 5 /tmp/stress.log)"
    kinds=$(grep 'dispatching hogs' /tmp/stress.log | grep -o ' 2 [a-z]' | wc -l)
    grep -E 'skip|not implemented' /tmp/stress.log | sed 's/.*\] /stress-ng: /' | sort -u >> /mnt/results
    check_ext4
    stop_server
    say "stress-ng: $kinds kinds of load, $i kills"
}

part_discard() {
    serve any
    fio --name=fill --filename=$node --size=8m --bs=64k --rw=write --direct=1 > /tmp/fio.log 2>&1 || die "fio: $(tail -n 5 /tmp/fio.log)"
    blkdiscard --offset 1048576 --length 1048576 $node || die "no discard"
    blkdiscard --zeroout --offset 4194304 --length 1048576 $node || die "no zeroes"
    is "what was zeroed" 0 "$(dd if=$node bs=1M skip=4 count=1 iflag=direct 2> /dev/null | tr -d '\000' | wc -c)"
    [ "$(dd if=$node bs=1M skip=5 count=1 iflag=direct 2> /dev/null | tr -d '\000' | wc -c)" -gt 0 ] || die "more was zeroed than that"
    fresh_ext4
    fstrim /tmp/fs || die "fstrim fails"
    check_ext4
    stop_server
}

# A stop leaves a device that is in use, and the next server goes on with it. A partition counts, and so does an open file.
part_stops() {
    serve any
    fresh_ext4
    echo before > /tmp/fs/file
    refused 3 "mounted on /tmp/fs" "$dcd" stop /tmp/any.toml
    grep -q "dcd stop --for-restart" /tmp/refused || die "stop does not say how to leave the device: $(cat /tmp/refused)"
    "$dcd" stop --for-restart /tmp/any.toml || die "stop --for-restart fails, and the file system could wait"
    wait $server || die "dcd serve ended with $?: $(cat /tmp/server.log)"
    grep -q "stays, and its requests wait" /tmp/server.log || die "nothing is said of a device that stays: $(cat /tmp/server.log)"
    "$dcd" ublk list > /tmp/list
    grep -q "waiting for its next server, of /tmp/any.toml, in use: $node, mounted on /tmp/fs" /tmp/list || die "list: $(cat /tmp/list)"
    refused 3 "Its requests wait" "$dcd" ublk remove 0
    # A write while there is no server waits.
    (echo meanwhile > /tmp/fs/waits && sync -f /tmp/fs) &
    writer=$!
    sleep 0.3
    kill -0 $writer || die "a write did not wait for a server"
    serve any
    "$dcd" status --json /tmp/any.toml | grep -q '"is_recovered":true' || die "status does not say that the device was taken over"
    wait $writer || die "a write that waited failed"
    is "a file" before "$(cat /tmp/fs/file)"
    check_ext4
    # Somebody has it open, and does nothing.
    tail -f /dev/null 3< $node &
    sleeper=$!
    "$dcd" stop --force /tmp/any.toml || die "stop --force fails"
    wait $server
    grep -q "open in process" /tmp/server.log || die "an open device was not seen: $(cat /tmp/server.log)"
    [ -b $node ] || die "an open device was removed"
    kill $sleeper
    wait $sleeper
    serve any
    stop_server
    [ ! -e $node ] || die "$node is left"
}

part_listed() {
    serve any
    kill_server
    "$dcd" ublk list > /tmp/list || die "list fails"
    grep -q "$node: waiting for its next server, of /tmp/any.toml" /tmp/list || die "list: $(cat /tmp/list)"
    "$dcd" ublk list --json | grep -q '"state":"waiting"' || die "list --json: $("$dcd" ublk list --json)"
    "$dcd" ublk remove 0 || die "remove fails"
    [ ! -e /dev/ublkc0 ] || die "the device is left"
    serve any
    fresh_ext4
    kill_server
    "$dcd" ublk remove --force 0 || die "remove --force fails"
    umount /tmp/fs
    # That was the point: the file system has lost its device.
    dmesg -c > /dev/null
    until [ ! -e /dev/ublkc0 ]; do sleep 0.1; done
    serve any
    stop_server
    is "the list" "" "$("$dcd" ublk list)"
}

promise() { # STACK PROMISE
    sed -i '/^promise/d' "/tmp/$1.toml"
    echo "promise = \"$2\"" >> "/tmp/$1.toml"
}

# A file system on $node is written, and the server killed. With the promise always the kernel sends no flush.
written_and_killed() { # FLUSHES: some or none
    fresh_ext4
    before=$(awk '{ print $16 }' "/sys/block/${node#/dev/}/stat")
    echo before > /tmp/fs/file
    sync -f /tmp/fs
    flushes=$(($(awk '{ print $16 }' "/sys/block/${node#/dev/}/stat") - before))
    case $1$flushes in none0 | some[1-9]*) ;; *) die "flushes of $node: $flushes, not $1" ;; esac
    kill_server
}

goes_on() {
    echo 3 > /proc/sys/vm/drop_caches
    is "a file" before "$(cat /tmp/fs/file)"
    check_ext4
}

# A device that is not flushed gets no server that needs flushes, and continues with one that needs none. Others continue with both.
part_promise() {
    promise any always
    serve any
    is "the cache of ublk" "write through" "$(cat /sys/block/ublkb0/queue/write_cache)"
    written_and_killed none
    promise any flush
    refused 1 "does not flush" "$dcd" serve /tmp/any.toml
    promise any always
    serve any
    goes_on
    stop_server
    promise any flush
    serve any
    written_and_killed some
    promise any always
    serve any
    goes_on
    stop_server
    stack nbd 'nbd = "unix:/tmp/nbd.socket"' 'nbd-recovery = true'
    promise nbd always
    serve nbd
    node=$("$dcd" attach /tmp/nbd.toml 2> /tmp/attach.log) || die "attach: $(cat /tmp/attach.log)"
    is "the cache of NBD" "write through" "$(cat "/sys/block/${node#/dev/}/queue/write_cache")"
    written_and_killed none
    promise nbd flush
    serve nbd
    looks=0
    until grep -q "$node waits, and cannot be connected to this server: .*does not flush" /tmp/server.log; do
        looks=$((looks + 1))
        [ $looks -lt 200 ] || die "nothing is said of the promise: $(cat /tmp/server.log)"
        sleep 0.05
    done
    refused 1 "does not flush" "$dcd" attach /tmp/nbd.toml
    kill_server
    promise nbd always
    serve nbd
    goes_on
    release_nbd
    stack nbd 'nbd = "unix:/tmp/nbd.socket"' 'nbd-recovery = true'
    serve nbd
    node=$("$dcd" attach /tmp/nbd.toml 2> /tmp/attach.log) || die "attach: $(cat /tmp/attach.log)"
    written_and_killed some
    promise nbd always
    serve nbd
    goes_on
    release_nbd
    say "promises changed at restarts: 4, of which 2 were refused"
}

# One command for each way to a device, again and again, and what takes it away.
part_attach() {
    serve any
    is "the device of ublk" $node "$("$dcd" attach /tmp/any.toml)"
    stop_server
    refused 1 "not served" "$dcd" attach /tmp/any.toml
    attach_nbd
    is "the device of a second attach" "$node" "$("$dcd" attach /tmp/nbd.toml)"
    is "the size" "$(cat /sys/block/vda/size)" "$(cat "/sys/block/${node#/dev/}/size")"
    fresh_ext4
    echo before > /tmp/fs/file
    refused 3 "dcd stop --for-restart" "$dcd" stop /tmp/nbd.toml
    refused 3 "mounted on /tmp/fs" "$dcd" attach --release /tmp/nbd.toml
    # A write while there is no server waits, and the next server gets it.
    stop_server
    grep -q "Its requests wait for the next server" /tmp/server.log || die "nothing is said of what waits: $(cat /tmp/server.log)"
    (echo meanwhile > /tmp/fs/waits && sync -f /tmp/fs) &
    writer=$!
    sleep 0.3
    kill -0 $writer || die "a write did not wait for a server"
    serve nbd
    wait $writer || die "a write that waited failed"
    is "a file" before "$(cat /tmp/fs/file)"
    refused 3 "the kernel" "$dcd" stop /tmp/nbd.toml
    is "the device after a restart" "$node" "$("$dcd" attach /tmp/nbd.toml)"
    # A client that does not say that it goes on is harmed by a stop.
    nbd-client -unix /tmp/nbd.socket /dev/nbd9 > /tmp/nbd.log 2>&1 || die "nbd-client: $(cat /tmp/nbd.log)"
    refused 3 "is not stopped" "$dcd" stop --for-restart /tmp/nbd.toml
    nbd-client -d /dev/nbd9 > /dev/null 2>&1
    until [ "$(cat /sys/block/nbd9/size)" -eq 0 ]; do sleep 0.1; done
    sleep 0.5
    "$dcd" stop --for-restart /tmp/nbd.toml || die "a stop for a restart is refused"
    wait $server
    serve nbd
    check_ext4
    # A device whose server does not come back.
    kill_server
    dd if="$node" of=/dev/null bs=4096 count=1 iflag=direct 2> /dev/null &
    reader=$!
    sleep 0.3
    refused 3 "open in process" "$dcd" attach --release /tmp/nbd.toml
    "$dcd" attach --release --force /tmp/nbd.toml || die "release --force fails"
    wait $reader && die "a request without a server did not fail"
    "$dcd" attach --release /tmp/nbd.toml 2> /tmp/attach.log || die "a second release fails"
    grep -q "is not attached" /tmp/attach.log || die "release says: $(cat /tmp/attach.log)"
    dmesg -c > /dev/null
    # TCP, where the kernel learns of the server's end in another way.
    ip link set lo up || die "there is no loopback"
    stack nbd 'nbd = "tcp:10809"' 'nbd-allow-local-users = true' 'nbd-recovery = true'
    serve nbd
    node=$("$dcd" attach /tmp/nbd.toml) || die "attach over TCP fails"
    fresh_ext4
    kill_server
    (echo meanwhile > /tmp/fs/waits && sync -f /tmp/fs) &
    writer=$!
    sleep 0.3
    kill -0 $writer || die "a write over TCP did not wait for a server"
    serve nbd
    wait $writer || die "a write over TCP that waited failed"
    check_ext4
    release_nbd
    # Without nbd-recovery the device ends with its server, and the next attach makes another one.
    stack nbd 'nbd = "unix:/tmp/nbd.socket"'
    serve nbd
    node=$("$dcd" attach /tmp/nbd.toml) || die "attach without recovery fails"
    is "the device of a second attach" "$node" "$("$dcd" attach /tmp/nbd.toml)"
    kill_server
    dd if="$node" of=/dev/null bs=4096 count=1 iflag=direct 2> /dev/null && die "a device without recovery outlives its server"
    serve nbd
    grep -q "$node is left from an earlier server" /tmp/server.log || die "nothing is said of what is left: $(cat /tmp/server.log)"
    node=$("$dcd" attach /tmp/nbd.toml) || die "attach after a kill fails"
    dmesg -c > /dev/null
    fresh_ext4
    check_ext4
    release_nbd
}

part_kills() {
    serve any
    kill_below_ext4 any 1500
    stop_server
}

# The same for the kernel's NBD client, whose device goes on with each new server.
part_nbd_kills() {
    attach_nbd
    # What was on its way is sent again after 5 s at most; some kills shall come before that, and some after it.
    kill_below_ext4 nbd 9000
    release_nbd
}

kill_below_ext4() { # STACK, thousandths of a second between two kills at most
    fresh_ext4
    begin_load
    longest=0
    i=0
    while [ $i -lt "$KILLS" ]; do
        pause 200 "$2"
        kill_server
        # Whoever reads the device waits now, as nothing of it is in memory.
        echo 1 > /proc/sys/vm/drop_caches
        restart=$(now)
        serve "$1"
        took=$(since "$restart")
        longest=$(awk "BEGIN { print ($took > $longest) ? $took : $longest }")
        load_goes_on
        i=$((i + 1))
        [ $((i % 10)) -ne 0 ] || say "kills so far: $i"
    done
    end_load
    check_ext4
    say "kills: $i, the longest restart took $longest s; $(grep -m 1 -oE 'read: IOPS[^(]*' /tmp/fio.log), $(grep -m 1 -oE 'write: IOPS[^(]*' /tmp/fio.log)"
}

# Killed before it is ready: from its first look at the device until after it has it.
part_recoveries() {
    serve any
    fresh_ext4
    begin_load
    # As long as the fastest start takes, and a little more.
    takes=60
    late=0
    i=0
    while [ $i -lt "$RECOVERIES" ]; do
        pause 100 400
        kill_server
        restart=$(now)
        serve any
        took=$(since "$restart")
        takes=$(awk "BEGIN { print ($took < $takes) ? $took : $takes }")
        load_goes_on
        kill_server
        begin_serve any
        pause 0 "$(awk "BEGIN { print 1100 * $takes }")"
        [ ! -s /tmp/ready ] || late=$((late + 1))
        kill_server
        serve any
        load_goes_on
        i=$((i + 1))
        [ $((i % 10)) -ne 0 ] || say "kills inside recovery so far: $i"
    done
    end_load
    check_ext4
    say "kills inside recovery: $i, of which $late came after its end"
    stop_server
}

part_upgrades() {
    serve any
    upgrade_below_ext4 any
    stop_server
}

part_nbd_upgrades() {
    attach_nbd
    upgrade_below_ext4 nbd
    release_nbd
}

upgrade_below_ext4() { # STACK
    fresh_ext4
    begin_load
    i=0
    while [ $i -lt "$UPGRADES" ]; do
        pause 200 1000
        stop_server
        if [ "$dcd" = /tmp/bin/dcd ]; then dcd=/tmp/bin/successor; else dcd=/tmp/bin/dcd; fi
        serve "$1"
        load_goes_on
        i=$((i + 1))
    done
    end_load
    check_ext4
    say "upgrades in place: $i"
}

# Below a mounted file system that is written to, the data disk becomes larger, and a larger log takes the place of the first.
part_grow() {
    data=/tmp/data.img
    for kind in nbd any; do
        rm -f $data /tmp/old.img /tmp/log.img
        truncate -s 64M $data
        truncate -s 16M /tmp/old.img
        truncate -s 24M /tmp/log.img
        set -- 'nbd = "unix:/tmp/nbd.socket"' 'nbd-recovery = true'
        [ $kind = nbd ] || set -- 'ublk = true'
        log=/tmp/old.img
        stack $kind "$@"
        cp "/tmp/$kind.toml" /tmp/old.toml
        "$dcd" format "/tmp/$kind.toml" > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
        serve $kind
        node=$("$dcd" attach "/tmp/$kind.toml" 2> /tmp/attach.log) || die "attach: $(cat /tmp/attach.log)"
        fresh_ext4
        begin_load
        truncate -s 96M $data
        stop_for_restart $kind
        log=/tmp/log.img
        stack $kind "$@"
        "$dcd" format --replace /tmp/old.toml "/tmp/$kind.toml" > /tmp/format.log 2>&1 || die "dcd format --replace: $(cat /tmp/format.log)"
        serve $kind
        load_goes_on
        # The new log was made for the larger disk.
        grown_node
        truncate -s 128M $data
        stop_for_restart $kind
        serve $kind
        grep -q "is served with its old size" /tmp/server.log || die "nothing is said of a larger disk: $(cat /tmp/server.log)"
        load_goes_on
        stop_for_restart $kind
        "$dcd" grow "/tmp/$kind.toml" > /tmp/format.log 2>&1 || die "dcd grow: $(cat /tmp/format.log)"
        serve $kind
        load_goes_on
        grown_node
        end_load
        check_ext4
        if [ $kind = nbd ]; then
            release_nbd
        else
            stop_server
            serve any
            is "the size of a new device" 262144 "$(cat "$size")"
            stop_server
        fi
        "$dcd" detach --quiet "/tmp/$kind.toml" > /tmp/detach.log 2>&1 || die "dcd detach: $(cat /tmp/detach.log)"
        say "grown below ext4: $kind"
    done
    data="" log=""
    stack any "ublk = true"
}

# A log on a partition of an NVMe SSD, as qemu emulates it: nothing of its life is used, and it counts what is written.
part_wear() {
    data=/dev/vdc log=/dev/nvme0n1p1
    is "the rotational flag of the SSD" 0 "$(cat /sys/block/nvme0n1/queue/rotational)"
    stack wear "ublk = true"
    "$dcd" format /tmp/wear.toml > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
    serve wear
    fio --name=job --filename=$node --direct=1 --rw=randwrite --bs=4k --size=32m > /tmp/fio.log 2>&1 || die "fio: $(tail -n 5 /tmp/fio.log)"
    looks=0
    until "$dcd" status /tmp/wear.toml > /tmp/status && grep -q "nvme0n1: 0 % worn by its own count, years left: not known" /tmp/status; do
        looks=$((looks + 1))
        [ $looks -lt 30 ] || die "the SSD's wear is not told: $(cat /tmp/status)"
        sleep 1
    done
    grep -q "written to the log today" /tmp/status || die "a day's writes are not told: $(cat /tmp/status)"
    # Free segments are discarded from the first rest of the log on.
    sleep 5
    "$dcd" metrics /tmp/wear.toml > /tmp/metrics || die "dcd metrics"
    grep -q '^dcd_ssd_life_used_ratio{.*disk="nvme0n1"} 0.0$' /tmp/metrics || die "the metrics lack the SSD: $(cat /tmp/metrics)"
    discarded=$(sed -n 's/^dcd_log_discarded_bytes_total{.*} //p' /tmp/metrics)
    [ "$discarded" -gt 1000000 ] || die "$discarded bytes were discarded"
    "$dcd" status --json /tmp/wear.toml > /tmp/status.json || die "status"
    grep -q '"written_bytes": *[1-9]' /tmp/status.json || die "the SSD does not count: $(cat /tmp/status.json)"
    # All that the log has is found again after a kill.
    fio --name=job --filename=$node --direct=1 --rw=write --bs=4k --size=8m --verify=crc32c --do_verify=0 > /tmp/fio.log 2>&1 || die "fio: $(tail -n 5 /tmp/fio.log)"
    kill_server
    serve wear
    fio --name=job --filename=$node --direct=1 --rw=read --bs=4k --size=8m --verify=crc32c > /tmp/fio.log 2>&1 || die "after a kill: $(tail -n 5 /tmp/fio.log)"
    stop_server
    say "of an NVMe SSD: $(grep -o '"ssds": *\[[^]]*\]' /tmp/status.json | tr -s ' \n' ' '), $discarded bytes discarded"
    "$dcd" ublk remove 0 > /dev/null 2>&1
    data="" log=""
    stack any "ublk = true"
}

stop_for_restart() { # STACK
    "$dcd" stop --for-restart "/tmp/$1.toml" || die "dcd stop --for-restart: $(cat /tmp/server.log)"
    wait $server || die "dcd serve ended with $?: $(cat /tmp/server.log)"
}

# The device has the size of the data disk, or its server says why not.
grown_node() {
    size=/sys/block/${node#/dev/}/size
    if [ $kind = nbd ]; then
        is "the device of an attached stack" "$node" "$("$dcd" attach "/tmp/$kind.toml" 2> /tmp/attach.log)"
        is "the size of $node" "$(($(stat -c %s $data) / 512))" "$(cat "$size")"
        resize2fs "$node" > /tmp/resize.log 2>&1 || die "resize2fs: $(cat /tmp/resize.log)"
        return
    fi
    looks=0
    until grep -q "keeps its size" /tmp/server.log || [ "$(cat "$size")" -eq "$(($(stat -c %s $data) / 512))" ]; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || die "nothing is said of a device that keeps its size: $(report)"
        sleep 0.05
    done
}

stack any "ublk = true"
"$dcd" format /tmp/any.toml > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
for part in $PARTS; do
    started=$(now)
    dmesg -c > /dev/null
    "part_$part"
    say "$part: good, $(since "$started") s"
done
: > /mnt/done
power_off
