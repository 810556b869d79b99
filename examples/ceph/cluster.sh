#!/usr/bin/env bash
# A Ceph cluster to try dcd with: a monitor and an OSD over a file in DIR, and two RBD images of 512 MiB, volume1 and volume2.
# No kernel module and no container is needed; Debian's ceph-mon, ceph-osd and ceph-common are.
#
#   up DIR            brings it up, and prints how an image is served to dcd and how dcd is put before it
#   down DIR          stops it and removes DIR
#   start PART DIR    starts a part that was stopped: mon.a or osd.0
#   uri N DIR         what QEMU calls the image volumeN
#
# usage: cluster.sh up|down DIR, cluster.sh start PART DIR, cluster.sh uri N DIR     CEPH_PORT=23300
set -euo pipefail

here=$(dirname "$(realpath "$0")")
usage() { sed -n '/^# usage/s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
dir=$(realpath -m "${!#}")
port=${CEPH_PORT:-23300}
export CEPH_CONF=$dir/ceph.conf

start() { # PART
    case $1 in
        mon.a) ceph-mon -i a ;;
        osd.0) ceph-osd -i 0 > /dev/null 2>&1 ;;
        *) usage ;;
    esac
}

up() {
    local fsid osd
    fsid=$(cat /proc/sys/kernel/random/uuid)
    osd=$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "$dir/mon" "$dir/osd"
    sed "s|FSID|$fsid|; s|PORT|$port|; s|DIR|$dir|g" "$here/ceph.conf" > "$CEPH_CONF"
    monmaptool --create --addv a "[v2:127.0.0.1:$port]" --fsid "$fsid" "$dir/monmap" > /dev/null
    ceph-mon --mkfs -i a --monmap "$dir/monmap"
    start mon.a
    timeout 60 ceph osd new "$osd" > /dev/null
    ceph-osd -i 0 --mkfs --osd-uuid "$osd" > /dev/null 2>&1
    start osd.0
    timeout 60 ceph osd crush add osd.0 1.0 host=here root=default > /dev/null 2>&1
    timeout 60 ceph osd pool create rbd 8 8 > /dev/null 2>&1
    for _ in $(seq 60); do timeout 10 ceph osd stat | grep -q "1 up" && break; sleep 1; done
    for number in 1 2; do timeout 60 rbd create --size 512M volume$number; done
}

down() {
    for pid in "$dir"/*.pid; do
        if [ -e "$pid" ]; then kill -KILL "$(cat "$pid")" 2> /dev/null || true; fi
    done
    rm -rf "$dir"
}

uri() { echo "rbd:rbd/volume$1:conf=$CEPH_CONF"; }

case $1 in
    up)
        up
        cat << END
CEPH_CONF=$CEPH_CONF rbd info volume1
qemu-nbd --persistent --shared=8 --format=raw --cache=none --export-name=volume1 --socket=$dir/volume1.sock --fork $(uri 1)
cp $here/stack.toml $dir/
dcd format $dir/stack.toml
dcd serve $dir/stack.toml
END
        ;;
    down) down ;;
    start) start "$2" ;;
    uri) uri "$2" ;;
    *) usage ;;
esac
