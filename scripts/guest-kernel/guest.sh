# shellcheck shell=sh disable=SC2154,SC2034 # the caller sets and uses some
# The guest's half of a measurement under a kernel of its own, for the first programs that compare-md.sh and peers.sh boot. The host's
# files are the root, read only; the host's working directory comes on /mnt, where "begun" says that all is mounted, and "done" or "failed"
# ends the run.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

mount_own() {
    mount -t sysfs none /sys
    mount -t devtmpfs none /dev 2> /dev/null
    mount -t tmpfs none /tmp
    mount -t tmpfs none /run
    # Where dcd notes which cache a disk belongs to.
    mount -t tmpfs none /var/lib
    mkdir /tmp/tree
}

mount_all() { # TYPE SOURCE OPTIONS: how the working directory is mounted
    mount -t proc none /proc
    mount_own
    mkdir -p /tmp/lib/lib
    mount -t "$1" "$2" /mnt -o "$3"
    # Where a user-mode kernel has its modules, modprobe does not look.
    ln -s /usr/lib/uml/modules /tmp/lib/lib/modules
    : > /mnt/begun
}

power_off() {
    sync
    echo o > /proc/sysrq-trigger
    sleep 60
}

# A guest that has nothing of its host while it works defines another one.
reach_host() { :; }

die() {
    reach_host
    echo "$*" > /mnt/failing
    mv /mnt/failing /mnt/failed
    power_off
}

need_module() { # NAME: loaded already, or from the modules of the user-mode kernel
    grep -q "^$(echo "$1" | tr - _) " /proc/modules || modprobe -q -d /tmp/lib "$1" ||
        die "the kernel has no module $1"
}

# The disks answer a write when it is on the medium, and dcd's arrays when it is in RAM: both are told when to flush.
need_flushes() {
    for disk in /sys/block/vd*; do
        echo 'write back' > "$disk/cache_type" || die "no flushes can be switched on for $disk"
        grep -q 'write back' "$disk/queue/write_cache" || die "no flushes reach $disk"
    done
}

# Should it hang: which disks owe the kernel an answer (reads, writes), and who waits.
tell_when_stuck() {
    (
        {
            sleep $((SECONDS_MAX - 10))
            reach_host
            grep . /sys/block/*/inflight > /mnt/stuck
            # A quiet console would not show them.
            echo 8 > /proc/sys/kernel/printk
            echo w > /proc/sysrq-trigger
        } 2> /dev/null &
    )
}

now() { date +%s.%N; }

since() { awk "BEGIN { printf \"%.3f\\n\", $(now) - $1 }"; }

# fio says how long its requests took, flush and all: its own start takes a second here. fio_seconds: of reads or of
# writes, whichever took longer. A second device, if there is one, gets as many at the same time.
second=
run_fio() { # fio's arguments
    fio --direct=1 --randrepeat=0 --minimal "$@" --name=job --filename="$device" ${second:+--name=second "--filename=$second"} \
        > /tmp/fio.log 2>&1 || die "fio $*: $(tail -c 300 /tmp/fio.log)"
    fio_seconds=$(awk -F';' '/^3;/ { for (i = 9; i <= 50; i += 41) if ($i > max) max = $i } END { printf "%.3f", max / 1000 }' /tmp/fio.log)
}
