# shellcheck shell=sh disable=SC2154,SC2086,SC2034 # guest.sh and /mnt/run set some, and read some; $node has no spaces
# How devices of ublk come and go, for guest.sh: what blktests tries with the kernel's own server, and dcd's refusals.

requests() { awk '{ print $1 + $5 }' /sys/block/ublkb0/stat; }

# Reads and writes without a pause, which fail when the device is gone.
begin_requests() {
    begun=$(requests)
    fio --name=job --filename=$node --direct=1 --ioengine=libaio --bs=4k --size=32m --rw=randrw --iodepth=16 --time_based --runtime=600 --allow_file_create=0 \
        > /tmp/fio.log 2>&1 &
    load=$!
    looks=0
    until [ "$(requests)" -gt $((begun + 200)) ]; do
        kill -0 $load 2> /dev/null || die "fio has ended: $(tail -n 5 /tmp/fio.log)"
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "no requests in 60 s: $(report)"
        sleep 0.05
    done
}

runs() { kill -0 "$1" 2> /dev/null && ! grep -q '^State:.Z' "/proc/$1/status" 2> /dev/null; }

ends() { # WHAT PROCESS: waits for it and sets $ended
    looks=0
    while runs "$2"; do
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "$1 does not end in 60 s: $(report)"
        sleep 0.05
    done
    wait "$2"
    ended=$?
}

nothing_is_left() {
    looks=0
    while [ -e /dev/ublkc0 ] || [ -e $node ]; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || die "a removed device is still there after 60 s: $(report)"
        sleep 0.1
    done
    is "the list" "" "$("$dcd" ublk list)"
    is "the notes of devices" "" "$(ls /run/dcd-ublk 2> /dev/null)"
    dmesg | grep -E 'BUG:|Oops|WARNING:|blocked for more' > /tmp/dmesg.log && die "the kernel: $(head -n 5 /tmp/dmesg.log)"
}

# Whatever has happened to its device, the stack is served again, and its blocks can be read and written.
serves_again() {
    serve any
    fio --name=verify --filename=$node --size=4m --bs=4k --rw=randwrite --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c > /tmp/fio.log 2>&1 ||
        die "fio: $(tail -n 20 /tmp/fio.log)"
}

# By another program, under requests: these fail, the server says so and ends, and nothing is left.
part_removed() {
    i=0
    while [ $i -lt "$REMOVALS" ]; do
        serves_again
        begin_requests
        refused 3 "process $server serves it" "$dcd" ublk remove 0
        timeout 60 "$dcd" ublk remove --force 0 > /tmp/remove.log 2>&1 || die "remove --force: $? $(cat /tmp/remove.log) $(report)"
        ends fio $load
        [ $ended -ne 0 ] || die "requests to a removed device succeed"
        ends "the server of a removed device" $server
        { [ $ended -ne 0 ] && grep -q "$node has been removed by another program" /tmp/server.log; } || die "exit $ended: $(cat /tmp/server.log)"
        nothing_is_left
        i=$((i + 1))
    done
    serves_again
    stop_server
    nothing_is_left
    say "removed under requests: $i"
}

# The server is killed at any moment of a removal: by another program, and by itself when it stops.
part_removed_killed() {
    i=0
    left=0
    while [ $i -lt "$REMOVALS" ]; do
        for by in other itself; do
            serves_again
            if [ $by = other ]; then
                begin_requests
                timeout 60 "$dcd" ublk remove --force 0 > /tmp/remove.log 2>&1 &
                remover=$!
            else
                kill -TERM $server
            fi
            # A pause takes a while to begin here.
            [ $((i % 2)) -eq 0 ] || pause 0 100
            kill_server
            if [ $by = other ]; then
                ends "a removal" $remover
                [ $ended -eq 0 ] || die "the removal of a device whose server was killed: exit $ended: $(cat /tmp/remove.log) $(report)"
                ends fio $load
                [ $ended -ne 0 ] || die "requests to a removed device succeed"
            elif [ -e /dev/ublkc0 ]; then
                # Every second time the next server has to do with what is left.
                left=$((left + 1))
                [ $((left % 2)) -eq 0 ] || timeout 60 "$dcd" ublk remove 0 > /tmp/remove.log 2>&1 || die "remove: exit $?: $(cat /tmp/remove.log) $(report)"
                [ $((left % 2)) -eq 1 ] || continue
            fi
            nothing_is_left
        done
        i=$((i + 1))
    done
    serves_again
    stop_server
    nothing_is_left
    say "servers killed while their device was removed: $((2 * i)); devices that a stop had left: $left"
}

# One after the other, and some at a time.
part_many() {
    i=0
    while [ $i -lt "$MANY" ]; do
        if [ $((i % 2)) -eq 0 ]; then stack any "ublk = true"; else stack any "ublk = 0"; fi
        serve any
        dd if=$node of=/dev/null bs=1M count=1 iflag=direct 2> /dev/null || die "$node cannot be read"
        stop_server
        nothing_is_left
        i=$((i + 1))
    done
    stack any "ublk = true"
    servers=
    i=0
    while [ $i -lt 8 ]; do
        bare_stack "many$i" 'memory = "16MiB"' "ublk = true"
        serve "many$i"
        grep -q "ublk /dev/ublkb$i\$" /tmp/ready || die "not the next number: $(cat /tmp/ready)"
        servers="$servers $server"
        i=$((i + 1))
    done
    is "devices in the list" 8 "$("$dcd" ublk list | wc -l)"
    # Each has its own content.
    i=0
    while [ $i -lt 8 ]; do
        printf 'device %d' $i | dd of=/dev/ublkb$i conv=fsync 2> /dev/null || die "/dev/ublkb$i cannot be written"
        i=$((i + 1))
    done
    echo 3 > /proc/sys/vm/drop_caches
    i=0
    while [ $i -lt 8 ]; do
        is "what a device has" "device $i" "$(dd if=/dev/ublkb$i bs=8 count=1 2> /dev/null)"
        i=$((i + 1))
    done
    for server in $servers; do stop_server; done
    nothing_is_left
    say "made and removed: $MANY, and $i at a time"
}

# A second server of a stack, or of another stack over its disks, does not start, and the first one is not disturbed.
part_second() {
    serve any
    fresh_ext4
    begin_load
    cp /tmp/any.toml /tmp/twin.toml
    sed -i 's/any.control/twin.control/' /tmp/twin.toml
    i=0
    while [ $i -lt 5 ]; do
        refused 1 "in use" timeout 60 "$dcd" serve /tmp/any.toml
        refused 1 "in use" timeout 60 "$dcd" serve /tmp/twin.toml
        load_goes_on
        i=$((i + 1))
    done
    end_load
    check_ext4
    stop_server
    nothing_is_left
}

# A disk joins the log of a mounted one, and leaves it, under load; between, the server is killed below both file systems.
part_disks() {
    data=/dev/vdc log=/dev/vde
    stack disks "ublk = true"
    "$dcd" format --force /tmp/disks.toml > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
    serve disks
    fresh_ext4
    begin_load
    timeout 120 "$dcd" create more --data /dev/vdd --log /tmp/disks.toml > /tmp/create.log 2>&1 || die "create: $? $(cat /tmp/create.log)"
    looks=0
    until [ -b /dev/ublkb1 ]; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || die "the second disk has no device: $(cat /tmp/create.log) $(report)"
        sleep 0.1
    done
    load_goes_on
    mkfs.ext4 -q -F /dev/ublkb1 > /tmp/mkfs.log 2>&1 || die "mkfs.ext4: $(cat /tmp/mkfs.log)"
    mkdir /tmp/fs2
    mount -t ext4 /dev/ublkb1 /tmp/fs2 || die "the second disk cannot be mounted"
    cp "$dcd" /tmp/fs2/copy
    refused 1 "is in use" timeout 120 "$dcd" remove /tmp/disks.toml --disk more
    kill_server
    serve disks
    load_goes_on
    sync
    echo 3 > /proc/sys/vm/drop_caches
    cmp "$dcd" /tmp/fs2/copy || die "the second disk lost what was written before the kill"
    mark=$("$dcd" mark /tmp/disks.toml --disk more 2>&1) || die "mark: $mark"
    cp "$dcd" /tmp/fs2/other
    sync
    "$dcd" mark /tmp/disks.toml --disk more --list > /tmp/marks || die "mark --list"
    grep -qE "^$mark +good +[0-9.]+ MiB" /tmp/marks || die "the mark does not tell what was written: $(cat /tmp/marks)"
    umount /tmp/fs2 || die "the second disk cannot be unmounted"
    timeout 300 "$dcd" remove /tmp/disks.toml --disk more > /tmp/remove.log 2>&1 || die "remove: $? $(cat /tmp/remove.log) $(report)"
    load_goes_on
    [ ! -b /dev/ublkb1 ] || die "the device of the removed disk is still there"
    end_load
    check_ext4
    stop_server
    e2fsck -fn /dev/vdd > /tmp/e2fsck.log 2>&1 || die "e2fsck of the removed disk: $(cat /tmp/e2fsck.log)"
    mount -t ext4 /dev/vdd /tmp/fs2 || die "the removed disk cannot be mounted"
    cmp "$dcd" /tmp/fs2/copy || die "the removed disk lacks what was written"
    umount /tmp/fs2
    rmdir /tmp/fs2
    "$dcd" ublk remove 0 > /dev/null 2>&1
    data="" log=""
}

# The kernel has as many queues and tags as the server says, and requests for all of them at a time.
part_queues() {
    serve any
    "$dcd" status --json /tmp/any.toml > /tmp/status || die "status: $(cat /tmp/status)"
    queues=$(grep -o '"queues":[0-9]*' /tmp/status | cut -d: -f2)
    depth=$(grep -o '"depth":[0-9]*' /tmp/status | head -n 1 | cut -d: -f2)
    is queues "$queues" "$(find /sys/block/ublkb0/mq -mindepth 1 -maxdepth 1 | wc -l)"
    is queues "$(nproc)" "$queues"
    for tags in /sys/block/ublkb0/mq/*/nr_tags; do is "the depth of a queue" "$depth" "$(cat "$tags")"; done
    kill -STOP $server
    fio --filename=$node --direct=1 --ioengine=libaio --bs=4k --size=32m --rw=randread --iodepth="$depth" --cpus_allowed_policy=split --number_ios=5000 \
        --name=a --cpus_allowed=0 --name=b --cpus_allowed=1 > /tmp/fio.log 2>&1 &
    load=$!
    looks=0
    until [ "$(awk '{ print $1 }' /sys/block/ublkb0/inflight)" -eq $((queues * depth)) ]; do
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "not $((queues * depth)) requests at a time, but $(cat /sys/block/ublkb0/inflight)"
        sleep 0.05
    done
    # A list does not wait for a server that does not answer.
    timeout 20 "$dcd" ublk list > /tmp/list || die "list waits for a server that does nothing"
    kill -CONT $server
    ends fio $load
    [ $ended -eq 0 ] || die "fio: $(tail -n 5 /tmp/fio.log)"
    stop_server
    nothing_is_left
    say "requests at a time: $((queues * depth)), $queues queues of $depth"
}
