#!/usr/bin/env bash
# A real Ceph on this machine, and dcd before an RBD image of it: one monitor and one OSD over a file, no kernel module. qemu-nbd serves the
# image, and a stack has it as its data disk, with a local log.
#
#   up DIR       brings the cluster up in DIR, with an image vol1 of 512 MiB, and prints how to use it
#   down DIR     stops it and removes DIR
#   measure      4 KiB random writes, an fsync after each, and 32 in flight: the image itself through qemu-nbd, with librbd's own persistent
#                cache where the packages have it, and behind dcd
#   kills        kills the OSD, the monitor and qemu-nbd KILLS times each under writes that fio reads back and compares, and dcd KILLS times
#                after writes that were flushed
#
# usage: ceph.sh up|down DIR, or ceph.sh measure|kills PROGRAM     KILLS=20 SECONDS_EACH=5 ROUNDS=3
set -euo pipefail

usage() { sed -n '/^# usage/s/^# //p' "$0" >&2; exit 2; }
command=${1:-}
here=$(dirname "$(realpath "$0")")
seconds=${SECONDS_EACH:-5}
rounds=${ROUNDS:-3}
kills=${KILLS:-20}

needs() {
    "$here/packages.sh" ceph-mon ceph-osd ceph-common qemu-utils qemu-block-extra fio
    for tool in ceph-mon ceph-osd rbd qemu-nbd fio; do
        command -v $tool > /dev/null || { echo "NOT RUN: $tool is not installed" >&2; exit 1; }
    done
}

start_mon() { ceph-mon -c "$dir/ceph.conf" -i a; }
start_osd() { ceph-osd -c "$dir/ceph.conf" -i 0 > /dev/null 2>&1; }

up() {
    mkdir -p "$dir/mon" "$dir/osd"
    local fsid port=${CEPH_PORT:-23300} osd
    fsid=$(cat /proc/sys/kernel/random/uuid)
    osd=$(cat /proc/sys/kernel/random/uuid)
    cat > "$dir/ceph.conf" <<END
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$port
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd crush chooseleaf type = 0
run dir = $dir
log file = $dir/\$name.log
admin socket = $dir/\$name.\$pid.asok
pid file = $dir/\$name.pid
public addr = 127.0.0.1
cluster addr = 127.0.0.1
[mon.a]
mon data = $dir/mon
[osd]
osd data = $dir/osd
osd objectstore = bluestore
bluestore block size = 4294967296
osd memory target = 939524096
END
    export CEPH_CONF=$dir/ceph.conf
    monmaptool --create --addv a "[v2:127.0.0.1:$port]" --fsid "$fsid" "$dir/monmap" > /dev/null
    ceph-mon --mkfs -i a --monmap "$dir/monmap"
    start_mon
    timeout 60 ceph osd new "$osd" > /dev/null
    ceph-osd -i 0 --mkfs --osd-uuid "$osd" > /dev/null 2>&1
    start_osd
    timeout 60 ceph osd crush add osd.0 1.0 host=here root=default > /dev/null 2>&1
    timeout 60 ceph osd pool create rbd 8 8 > /dev/null 2>&1
    for _ in $(seq 60); do timeout 10 ceph osd stat | grep -q "1 up" && break; sleep 1; done
    timeout 60 rbd create --size 512M vol1
}

down() {
    for pid in "$dir"/*.pid; do
        if [ -e "$pid" ]; then kill -KILL "$(cat "$pid")" 2> /dev/null || true; fi
    done
    rm -rf "$dir"
}

# qemu-nbd over the image; what follows are options of librbd.
start_export() {
    local options=rbd:rbd/vol1:conf=$dir/ceph.conf
    for option in "$@"; do options+=":$option"; done
    rm -f "$dir/rbd.sock"
    qemu-nbd --persistent --shared=8 --format=raw --cache=none --export-name=vol1 --socket="$dir/rbd.sock" --pid-file="$dir/qemu-nbd.pid" \
        --fork "$options"
}

stop_pid() {
    local pid
    pid=$(cat "$dir/$1.pid" 2> /dev/null) || return 0
    kill "-${2:-TERM}" "$pid" 2> /dev/null || return 0
    while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
}

start_dcd() {
    rm -f "$dir/front.sock"
    "$dcd" serve --quiet "$dir/stack.toml" > "$dir/dcd.said" 2>&1 &
    echo $! > "$dir/dcd.pid"
    disown
    for _ in $(seq 600); do [ -S "$dir/front.sock" ] && return; sleep 0.05; done
    cat "$dir/dcd.said" >&2
    exit 1
}

make_stack() {
    cat > "$dir/stack.toml" <<END
export = "cache"
[serve]
nbd = "unix:front.sock"
control = "control.sock"
[device.log]
path = "log.img"
size = "256MiB"
[device.volume]
path = "nbd+unix:///vol1?socket=rbd.sock"
[layer.cache]
kind = "log-cache"
log = "log"
data = "volume"
END
    "$dcd" format "$dir/stack.toml" > "$dir/formatted" 2>&1 || { cat "$dir/formatted" >&2; exit 1; }
}

fio_rate() {
    for _ in $(seq "$rounds"); do
        fio --name=x --ioengine=nbd --uri="$1" --rw=randwrite --bs=4k --size=256M --time_based --runtime="$seconds" --output-format=json \
            "${@:2}" | awk -F'[:,]' '/"iops" :/ && $2 > most { most = $2 } END { printf "%.0f\n", most }'
    done | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

row() { # name, URI
    local fsync deep
    fsync=$(fio_rate "$2" --iodepth=1 --fsync=1)
    deep=$(fio_rate "$2" --iodepth=32)
    printf '%-24s  %10s/s  %10s/s\n' "$1" "$fsync" "$deep"
}

measure() {
    printf '%-24s  %12s  %12s\n' "4 KiB random writes" "fsync each" "depth 32"
    start_export
    row "RBD image" "nbd+unix:///vol1?socket=$dir/rbd.sock"
    stop_pid qemu-nbd
    mkdir -p "$dir/pwl"
    if compgen -G "/usr/lib/*/librbd/libceph_librbd_pwl_cache*" > /dev/null \
        && start_export rbd_plugins=pwl_cache rbd_persistent_cache_mode=ssd "rbd_persistent_cache_path=$dir/pwl" rbd_persistent_cache_size=1073741824; then
        row "librbd's cache (ssd)" "nbd+unix:///vol1?socket=$dir/rbd.sock"
        stop_pid qemu-nbd
    else
        echo "librbd's cache (ssd)      NOT MEASURED: these packages do not have it"
    fi
    start_export
    make_stack
    start_dcd
    row "dcd, log on this disk" "nbd+unix:///?socket=$dir/front.sock"
    stop_pid dcd
    stop_pid qemu-nbd
}

# Kills one of them again and again while fio writes, reads back and compares.
under_fio() { # what, how to start it
    fio --name=verify --ioengine=nbd --uri="nbd+unix:///?socket=$dir/front.sock" --rw=randwrite --bs=4k --size=256M --iodepth=8 --fsync=32 \
        --verify=crc32c --verify_state_save=0 --verify_backlog=256 --time_based --runtime=100000 --output="$dir/fio" &
    local fio=$!
    for _ in $(seq "$kills"); do
        sleep 1.5
        stop_pid "$1" KILL
        sleep 0.3
        "${@:2}"
        kill -0 $fio 2> /dev/null || { echo "fio ended early:" >&2; cat "$dir/fio" >&2; exit 1; }
    done
    sleep 2
    kill -INT $fio
    wait $fio || true
    grep -q "err= 0" "$dir/fio" || { cat "$dir/fio" >&2; exit 1; }
    echo "$kills kills of $1 under fio: nothing lost"
}

kill_dcd() {
    for round in $(seq "$kills"); do
        local write=(fio --name=x --ioengine=nbd "--uri=nbd+unix:///?socket=$dir/front.sock" --rw=randwrite --bs=4k --size=16M --randseed="$round"
            --iodepth=8 --end_fsync=1 --verify=crc32c --verify_state_save=0 --output="$dir/fio")
        "${write[@]}" --do_verify=0
        stop_pid dcd KILL
        start_dcd
        "${write[@]}" --verify_only || { echo "round $round:" >&2; cat "$dir/fio" >&2; exit 1; }
    done
    echo "$kills kills of dcd after a flush: nothing lost"
}

case $command in
    up | down)
        dir=$(realpath -m "${2:?$(usage)}")
        if [ "$command" = down ]; then down; exit; fi
        needs
        up
        echo "CEPH_CONF=$dir/ceph.conf rbd info vol1"
        echo "qemu-nbd --persistent --shared=8 --format=raw --export-name=vol1 --socket=$dir/rbd.sock rbd:rbd/vol1:conf=$dir/ceph.conf"
        ;;
    measure | kills)
        dcd=$(realpath "${2:?$(usage)}")
        needs
        dir=$(mktemp -d)
        export DCD_STATE_DIR=$dir/state
        trap down EXIT
        trap 'exit 130' INT TERM
        up
        if [ "$command" = measure ]; then measure; exit; fi
        start_export
        make_stack
        start_dcd
        under_fio qemu-nbd start_export
        under_fio osd.0 start_osd
        under_fio mon.a start_mon
        kill_dcd
        ;;
    *) usage ;;
esac
