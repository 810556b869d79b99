#!/bin/sh
# The first program of the machine that vhost.sh boots: its disk is /dev/vda. It comes with HERE (the directory of the scripts) and
# SECONDS_MAX.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
mount_all 9p work trans=virtio,version=9p2000.L,msize=262144
tell_when_stuck
mkdir /tmp/fs
disk=/dev/vda
queue=/sys/block/vda/queue

say() { echo "$*" >> /mnt/results; }

is() { # WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || die "$1: $3, not $2"
}

# The host kills servers from here on, until there are enough.
begin_kills() {
    rm -f /mnt/enough
    : > /mnt/writing
}

end_kills() {
    until [ -e /mnt/enough ]; do sleep 0.1; done
    rm /mnt/writing
}

is "the size" $((192 << 11)) "$(cat /sys/block/vda/size)"
is "its serial" cache "$(cat /sys/block/vda/serial)"
is "its cache" 'write back' "$(cat $queue/write_cache)"
is "its blocks" 512 "$(cat $queue/logical_block_size)"
is "its queues" 2 "$(find /sys/block/vda/mq -mindepth 1 -maxdepth 1 | wc -l)"
[ "$(cat $queue/discard_max_bytes)" -gt 0 ] || die "it takes no discards"
blkdiscard $disk || die "blkdiscard"
blkdiscard --zeroout --length 16M $disk || die "blkdiscard --zeroout"
say "features: good"

# In rounds, each of which writes all blocks, and reads them back.
begin_kills
rounds=0
until [ -e /mnt/enough ] && [ $rounds -gt 0 ]; do
    rounds=$((rounds + 1))
    offset=$((rounds % 8 * 12))m
    fio --name=job --filename=$disk --direct=1 --ioengine=libaio --bs=4k --size=12m --offset=$offset --rw=randwrite --iodepth=16 \
        --fsync=16 --verify=crc32c --randseed=$rounds > /tmp/fio.log 2>&1 || die "fio, round $rounds: $(tail -n 20 /tmp/fio.log)"
done
end_kills
say "fio: good, $rounds rounds"

mkfs.ext4 -q -F $disk || die "mkfs"
mount $disk /tmp/fs || die "mount"
begin_kills
files=0
until [ -e /mnt/enough ] && [ $files -ge 50 ]; do
    files=$((files + 1))
    number=$((files % 200))
    head -c 65536 /dev/urandom > /tmp/block
    cp /tmp/block "/tmp/fs/$number" && sync "/tmp/fs/$number" || die "file $files"
    sha256sum < /tmp/block > "/tmp/sum$number"
done
end_kills
umount /tmp/fs || die "umount"
e2fsck -fn $disk > /tmp/fsck.log 2>&1 || die "e2fsck: $(tail -n 5 /tmp/fsck.log)"
mount $disk /tmp/fs || die "mount again"
for sum in /tmp/sum*; do
    is "file ${sum#/tmp/sum}" "$(cat "$sum")" "$(sha256sum < "/tmp/fs/${sum#/tmp/sum}")"
done
umount /tmp/fs || die "umount"
dmesg | grep -E 'I/O error|blocked for more' > /tmp/dmesg.log && die "the kernel: $(head -n 5 /tmp/dmesg.log)"
say "ext4: good, $files files"
dd if=$disk bs=1M iflag=direct 2> /tmp/dd.log | sha256sum | cut -d ' ' -f 1 > /mnt/sum
: > /mnt/done
power_off
