#!/bin/bash
# The first program of the user-mode kernel that compare-md.sh boots: makes the array of the setup, runs the workloads on it,
# and switches the machine off. The host's files are its root, read only; the host's working directory is on /mnt.
set -uo pipefail
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"

mount_all hostfs none "$WORK"
for module in virtio_blk raid456; do need_module $module; done
modprobe -q -d /tmp/lib ext4

SETUP=$(cat /mnt/setup)
ROUND=$(cat /mnt/round)

need_flushes
tell_when_stuck

note() { # WORKLOAD SECONDS
    echo "$SETUP;$ROUND;$1;$2" >> /mnt/results
}

mean() { awk '{ sum += $1 } END { printf "%.3f", sum / NR }' "$1"; }

# The requests are the same for every setup of a round.
workload_number=0
measure() { # WORKLOAD fio's arguments
    local workload=$1
    shift
    # Otherwise all would read and write the same places, and what is read be in every cache.
    workload_number=$((workload_number + 1))
    run_fio --ioengine=libaio --randseed="$ROUND$workload_number" --end_fsync=1 "$@"
    note "$workload" "$fio_seconds"
}

ask_host() { # QUESTION: waits until the host has done it
    echo "$1" > /mnt/question.new
    mv /mnt/question.new /mnt/question
    until [ -e /mnt/answer ]; do sleep 0.02; done
    rm /mnt/answer
}

make_array() {
    device=/dev/md0
    local journal=()
    [ "$SETUP" = md ] || journal=(--write-journal /dev/vdf)
    # The disks are all zeroes, so the parity is right.
    mdadm --create $device --run --assume-clean --level=5 --raid-devices=5 --chunk=128 --bitmap=none \
        ${journal[@]+"${journal[@]}"} /dev/vd[a-e] > /tmp/mdadm.log 2>&1 || die "mdadm: $(tail -n 3 /tmp/mdadm.log)"
    echo 8192 > /sys/block/md0/md/stripe_cache_size || die "md's stripe cache cannot be set"
    [ "$SETUP" = md ] || echo write-back > /sys/block/md0/md/journal_mode || die "md's journal cannot write back"
}

case $SETUP in
    md*) make_array ;;
    *) device=/dev/vda ;;
esac

# 4 KiB at random places of 512 MiB, and the destage of all that a journal or a log holds.
measure random --rw=randwrite --bs=4k --size=512m --io_size="${WRITES_MIB}m" --iodepth=64
begin=$(now)
case $SETUP in
    md-journal)
        mdadm --stop $device > /tmp/mdadm.log 2>&1 || die "mdadm --stop: $(cat /tmp/mdadm.log)"
        note drain "$(since "$begin")"
        mdadm --assemble $device --run /dev/vd[a-f] > /tmp/mdadm.log 2>&1 || die "mdadm: $(tail -n 3 /tmp/mdadm.log)"
        echo 8192 > /sys/block/md0/md/stripe_cache_size
        echo write-back > /sys/block/md0/md/journal_mode
        ;;
    dcd-log | dcd-slice)
        ask_host drain
        note drain "$(since "$begin")"
        ;;
esac

if [ "$BURST_ONLY" = yes ]; then
    echo "$SETUP" > /mnt/done
    power_off
fi

measure mixed --rw=randrw --rwmixread=70 --bs=4k --size=512m --io_size=16m --iodepth=16
measure write --rw=write --bs=512k --offset=512m --size=512m --iodepth=16
measure read --rw=read --bs=512k --offset=512m --size=512m --iodepth=16

# Many small files: four users unpack a tree each and copy it.
for _ in $(seq "$FILES_TIMES"); do
    mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 $device || die "mkfs.ext4 failed"
    mount -t ext4 $device /tmp/tree || die "ext4 cannot be mounted"
    begin=$(now)
    for user in 1 2 3 4; do
        { mkdir /tmp/tree/$user && tar -xf /mnt/tree.tar -C /tmp/tree/$user; } &
    done
    wait
    sync -f /tmp/tree
    since "$begin" >> /tmp/unpack
    umount /tmp/tree
    mount -t ext4 $device /tmp/tree
    begin=$(now)
    for user in 1 2 3 4; do cp -r /tmp/tree/$user /tmp/tree/copy-$user & done
    wait
    sync -f /tmp/tree
    since "$begin" >> /tmp/copy
    umount /tmp/tree
    mount -t ext4 -o ro $device /tmp/tree
    for user in 1 2 3 4; do
        diff -r /tmp/tree/$user /tmp/tree/copy-$user > /tmp/diff.log || die "a copy differs: $(tail -n 1 /tmp/diff.log)"
    done
    umount /tmp/tree
done
note unpack "$(mean /tmp/unpack)"
note copy "$(mean /tmp/copy)"

# Far more than RAM and a burst, over the same 512 MiB.
case $SETUP in
    md | dcd | dcd-slice)
        measure sustained --rw=randwrite --bs=4k --size=512m --io_size="${SUSTAINED_MIB}m" --iodepth=64
        ;;
esac
echo "$SETUP" > /mnt/done
power_off
