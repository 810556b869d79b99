#!/bin/sh
# shellcheck disable=SC2153,SC2154 # of /mnt/run
# The first program of the kernel that remote.sh boots: joins two namespaces, makes the ways to a disk in the far one, runs the parts that
# /mnt/run names, and switches the machine off. It comes with HERE (the directory of the scripts) and SECONDS_MAX.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
mount_all 9p work trans=virtio,version=9p2000.L,msize=262144
# shellcheck source=/dev/null
. /mnt/run
export DM_DISABLE_UDEV=1
mkdir /tmp/bin /tmp/far
cp /mnt/bin/dcd /tmp/bin/
dcd=/tmp/bin/dcd
far=192.0.2.2

say() { echo "$*" >> /mnt/results; }

# ---------------------------------------------------------------- the link

make_link() {
    ip netns add far || die "no namespace can be made"
    ip link add near0 type veth peer name far0 netns far || die "no link can be made"
    ip addr add 192.0.2.1/24 dev near0
    ip -n far addr add $far/24 dev far0
    ip link set lo up
    ip -n far link set lo up
    ip link set near0 up
    ip -n far link set far0 up
    tc qdisc add dev near0 root netem || die "the kernel has no netem"
    tc -n far qdisc add dev far0 root netem || die "the kernel has no netem"
}

link() { # NETEM-OPTION...: in both directions
    { tc qdisc change dev near0 root netem "$@" && tc -n far qdisc change dev far0 root netem "$@"; } > /tmp/tc.log 2>&1 ||
        die "netem $*: $(cat /tmp/tc.log)"
}

near_link() { link delay 0ms loss 0%; }

slow_link() { # DELAY[,LOSS]: the delay is that of a round trip
    delay=${1%%,*}
    loss=${1#"$delay"}
    loss=${loss#,}
    link delay "$(awk "BEGIN { print ${delay%ms} / 2 }")ms" loss "${loss:-0%}"
}

# ---------------------------------------------------------------- ways to a far disk

start_far() {
    for way in plain writecache dcd brief; do truncate -s 256M /tmp/far/$way; done
    ip netns exec far nbdkit --foreground --port 10809 file dir=/tmp/far > /tmp/nbdkit.log 2>&1 &
    looks=0
    until nbdkit_listens; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || die "nbdkit does not start: $(cat /tmp/nbdkit.log)"
        sleep 0.05
    done
}

# 2A39 is its port, and 0A a socket that listens.
nbdkit_listens() { ip netns exec far grep -q ':2A39 00000000:0000 0A' /proc/net/tcp; }

connect() { # EXPORT NODE
    nbd-client -N "$1" -C 4 $far 10809 "$2" > /tmp/nbd.log 2>&1 || die "nbd-client: $(cat /tmp/nbd.log)"
    until [ "$(cat "/sys/block/${2#/dev/}/size")" -gt 0 ]; do sleep 0.1; done
    grep -q 'write back' "/sys/block/${2#/dev/}/queue/write_cache" || die "no flushes reach the far disk"
}

serve() { # NAME LOG FIELDS-OF-SERVE...
    name=$1
    log=$2
    shift 2
    {
        printf 'export = "cache"\n[serve]\ncontrol = "%s.control"\n' "$name"
        printf '%s\n' "$@"
        printf '[device.log]\npath = "%s"\n[device.far]\npath = "nbd://%s/%s"\n' "$log" $far "$name"
        printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "far"\n'
    } > "/tmp/$name.toml"
    "$dcd" format "/tmp/$name.toml" > /tmp/format.log 2>&1 || die "dcd format: $(cat /tmp/format.log)"
    "$dcd" serve "/tmp/$name.toml" > "/tmp/$name.ready" 2> "/tmp/$name.log" &
    looks=0
    until [ -s "/tmp/$name.ready" ]; do
        looks=$((looks + 1))
        [ $looks -lt 1200 ] || die "dcd serve is not ready: $(cat "/tmp/$name.log")"
        sleep 0.05
    done
}

# Its completions come from a timer.
make_log() { # NAME
    log=/sys/kernel/config/nullb/$1
    mkdir "$log" || die "there is no null_blk"
    for setting in size=64 memory_backed=1 blocksize=4096 irqmode=2 completion_nsec=20000 power=1; do
        echo "${setting#*=}" > "$log/${setting%=*}" || die "null_blk does not take $setting"
    done
    [ -b "/dev/$1" ] || die "there is no /dev/$1"
}

make_ways() {
    mount -t configfs none /sys/kernel/config || die "there is no configfs"
    for way in writecache dcd brief; do make_log log-$way; done
    connect plain /dev/nbd0
    connect writecache /dev/nbd1
    dmsetup create writecache --noudevsync --noudevrules --table "0 $(blockdev --getsz /dev/nbd1) writecache s /dev/nbd1 /dev/log-writecache 4096 0" \
        > /tmp/dmsetup.log 2>&1 || die "dm-writecache: $(cat /tmp/dmsetup.log) $(dmesg | tail -n 2)"
    serve dcd /dev/log-dcd "ublk = 0"
    serve brief /dev/log-brief "ublk = 1" "ublk-recovery = false"
}

node_of() { # WAY
    case $1 in
        plain) echo /dev/nbd0 ;;
        writecache) echo /dev/mapper/writecache ;;
        dcd) echo /dev/ublkb0 ;;
        brief) echo /dev/ublkb1 ;;
    esac
}

# Until the far disk has all of it.
clean() { # WAY
    case $1 in
        writecache) dmsetup message writecache 0 flush || die "dm-writecache does not flush" ;;
        dcd | brief) "$dcd" flush "/tmp/$1.toml" > /tmp/flush.log 2>&1 || die "dcd flush: $(cat /tmp/flush.log)" ;;
    esac
}

# ---------------------------------------------------------------- parts

measure() { # WAY WORK
    way=$1
    device=$(node_of "$way")
    case $2 in
        fsync) set -- "writes, fsync after each" --rw=randwrite --size=32m --io_size=$((REQUESTS * 4))k --fsync=1 ;;
        deep) set -- "writes, 32 in flight" --rw=randwrite --size=32m --io_size=$((REQUESTS * 16))k --iodepth=32 ;;
        read) set -- "reads" --rw=randread --offset=128m --size=128m --io_size=$((REQUESTS * 4))k ;;
        deepread) set -- "reads, 32 in flight" --rw=randread --offset=128m --size=128m --io_size=$((REQUESTS * 16))k --iodepth=32 ;;
    esac
    title=$1
    shift
    run_fio --ioengine=libaio --bs=4k "$@"
    awk -F';' -v head="measured;$round;$condition;$title;$way" '/^3;/ { printf "%s;%d\n", head, $8 + $49 }' /tmp/fio.log >> /mnt/results
    # Not at the pace of the link.
    near_link
    clean "$way"
    slow_link "$condition"
}

part_measure() {
    round=1
    while [ $round -le "$ROUNDS" ]; do
        for condition in $LINKS; do
            slow_link "$condition"
            for work in fsync deep read deepread; do
                for way in plain writecache dcd brief; do measure $way $work; done
            done
        done
        round=$((round + 1))
    done
    near_link
}

begin_verify() { # SECONDS WRITES-A-SECOND
    fio --name=verify --filename=/dev/ublkb0 --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --size=32m --iodepth=8 --fsync=32 --randrepeat=0 \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=256 --rate_iops="$2" --time_based --runtime="$1" > /tmp/verify.log 2>&1 &
    verify=$!
}

# fio has found nothing, and the far disk gets what the device has where fio has written.
end_verify() {
    wait "$verify" || die "fio: $(tail -n 20 /tmp/verify.log)"
    grep -q 'err= 0' /tmp/verify.log || die "fio: $(tail -n 20 /tmp/verify.log)"
    written=$(sed -n 's/.*issued rwts: total=\([0-9]*,[0-9]*\).*/\1/p' /tmp/verify.log)
    clean dcd
    near_link
    echo 3 > /proc/sys/vm/drop_caches
    cmp -n 33554432 /dev/ublkb0 /tmp/far/dcd > /tmp/cmp.log 2>&1 || die "device and far disk differ: $(cat /tmp/cmp.log)"
}

connection() { "$dcd" status --json /tmp/dcd.toml | grep -o '"connection": *"[^"]*"'; }

connected() { connection | grep -q '"connected\|connections'; }

# Sets $took.
cut_link() { # down|loss
    slow_link 0.5ms
    begin_verify $((CUT + 20)) 100
    sleep 5
    # Destaging is at work when the link goes.
    clean dcd &
    destaging=$!
    sleep "0.0$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')"
    if [ "$1" = down ]; then ip -n far link set far0 down; else link loss 100%; fi
    # At another moment of dcd's attempts each time.
    sleep "$CUT.$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')"
    away=$(connection)
    grep -q '^State:.Z' "/proc/$destaging/status" || waited=$((waited + 1))
    connected && die "the link is cut, and status says $away"
    if [ "$1" = down ]; then ip -n far link set far0 up; else slow_link 0.5ms; fi
    begin=$(now)
    until connected; do
        [ "$(awk "BEGIN { print ($(since "$begin") > 60) }")" -eq 0 ] || die "not connected a minute after the link's return: $(connection)"
        sleep 0.02
    done
    took=$(since "$begin")
    wait $destaging
    end_verify
}

part_verify() {
    link delay 5ms loss 1% reorder 25%
    begin_verify 20 300
    # Over that link, while fio goes on.
    for _ in 1 2 3; do
        sleep 5
        clean dcd
    done
    end_verify
    say "1 % of packets lost and a quarter reordered, 10 ms: fio found no error, and the far disk has the same bytes ($written reads, writes)"
    i=0
    waited=0
    while [ $i -lt "$CUTS" ]; do
        for cut in down loss; do
            cut_link $cut
            say "link cut for $CUT s ($cut): status said ${away#*:}; connected again after $took s; no error in fio, and the same bytes on the far disk"
        done
        i=$((i + 1))
    done
    say "destaging was at work in $waited of these cuts"
}

make_link
start_far
make_ways
for part in $PARTS; do "part_$part"; done
: > /mnt/done
power_off
