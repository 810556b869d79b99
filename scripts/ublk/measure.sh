# shellcheck shell=sh disable=SC2154 # guest.sh and /mnt/run set some
# ublk beside other ways to a block device, for guest.sh: the same kernel, in turns. Requests a second, and processor time of the whole machine
# for each. Reads are of what was written before.

processor_time() { awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) * 10000 }' /proc/stat; }

four_kib() { # NODE FIO-OPTION...
    file=$1
    shift
    fio --name=job --filename="$file" --direct=1 --ioengine=libaio --bs=4k --size=32m --rw="${work%-*}" --iodepth="${work#*-}" \
        --randrepeat=1 --minimal "$@" > /tmp/fio.log 2>&1 || die "fio: $(tail -n 5 /tmp/fio.log)"
}

measure() { # NAME NODE
    before=$(processor_time)
    four_kib "$2" --time_based --runtime="$SECONDS_EACH"
    after=$(processor_time)
    awk -F';' -v busy=$((after - before - fio_alone)) -v head="measured;$round;$work;$1" '/^3;/ {
        printf "%s;%d;%.1f\n", head, $8 + $49, busy / (($6 + $47) / 4) }' /tmp/fio.log >> /mnt/results
}

# What a run of fio takes that makes one request.
measure_fio() {
    work=randread-1
    for _ in 1 2 3; do
        before=$(processor_time)
        four_kib /dev/nullb0 --number_ios=1
        fio_alone=$(($(processor_time) - before))
    done
    say "fio alone: $fio_alone us"
}

loop_on() { # FILE: sets $loop
    loop=$(losetup --direct-io=on --find --show "$1" 2> /tmp/losetup.log) || die "losetup $1: $(cat /tmp/losetup.log)"
    is "direct I/O of $loop" 1 "$(cat "/sys/block/${loop#/dev/}/loop/dio")"
}

# All are served at once, and measured one after the other: what else the host does meanwhile concerns all of them. One cache is shown in
# three ways, without recovery: writes are answered as the promise says. With recovery, over disks of its own, each write is in the log
# before. Without a cache, ublk and the kernel's loop have the same file.
begin_ways() {
    stack ways "ublk = 0" "ublk-recovery = false" 'nbd = "unix:/tmp/ways.socket"' 'fuse = "/tmp/fuse"'
    serve ways
    servers="$servers $server"
    nbd-client -unix /tmp/ways.socket /dev/nbd0 > /tmp/nbd.log 2>&1 || die "nbd-client: $(cat /tmp/nbd.log)"
    until [ "$(cat /sys/block/nbd0/size)" -gt 0 ]; do sleep 0.1; done
    loop_on /tmp/fuse/disk.img
    ways="ublk=/dev/ublkb0 nbd=/dev/nbd0 fuse=$loop"
    data=/dev/vdd log=/dev/vde
    stack recovery "ublk = 1"
    "$dcd" format /tmp/recovery.toml > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
    serve recovery
    servers="$servers $server"
    bare_stack file 'path = "/tmp/file/disk.img"' "ublk = 2" "ublk-recovery = false"
    serve file
    servers="$servers $server"
    loop_on /tmp/file/disk.img
    bare_stack ram 'memory = "64MiB"' "ublk = 3" "ublk-recovery = false"
    serve ram
    servers="$servers $server"
    ways="$ways ublk-recovery=/dev/ublkb1 ublk-file=/dev/ublkb2 loop-file=$loop ublk-ram=/dev/ublkb3 null_blk=/dev/nullb0"
}

part_measure() {
    mkdir -p /tmp/fuse /tmp/file
    mkfs.ext4 -q -F /dev/vdc > /tmp/mkfs.log 2>&1 || die "mkfs.ext4: $(cat /tmp/mkfs.log)"
    mount -t ext4 /dev/vdc /tmp/file || die "ext4 cannot be mounted"
    dd if=/dev/urandom of=/tmp/file/disk.img bs=1M count=64 conv=fsync 2> /dev/null || die "no file of 64 MiB"
    servers=
    begin_ways
    measure_fio
    round=1
    while [ $round -le "$ROUNDS" ]; do
        for work in randwrite-1 randwrite-32 randread-1 randread-32; do
            for way in $ways; do
                # Nothing is dirty that somebody else has written.
                for cached in ways recovery; do
                    "$dcd" flush /tmp/$cached.toml > /tmp/flush.log 2>&1 || die "dcd flush: $(cat /tmp/flush.log)"
                done
                measure "${way%%=*}" "${way#*=}"
            done
        done
        round=$((round + 1))
    done
    losetup -D
    nbd-client -d /dev/nbd0 > /dev/null 2>&1
    for server in $servers; do stop_server; done
    umount /tmp/file
    data="" log=""
}
