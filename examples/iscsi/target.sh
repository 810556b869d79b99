#!/usr/bin/env bash
# An iSCSI target to try dcd with: tgtd over files in DIR, with two units of 512 MiB. Debian's tgt is needed, and root.
#
#   up DIR            brings it up, and prints how a unit is served to dcd; the stack file is that of ../ceph
#   down DIR          stops it and removes DIR
#   start tgtd DIR    starts it when it was stopped
#   uri N DIR         what QEMU calls unit N (qemu-block-extra has the driver)
#
# usage: target.sh up|down DIR, target.sh start tgtd DIR, target.sh uri N DIR     ISCSI_PORT=23260
set -euo pipefail

here=$(dirname "$(realpath "$0")")
usage() { sed -n '/^# usage/s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
dir=$(realpath -m "${!#}")
port=${ISCSI_PORT:-23260}
name=iqn.2026-01.example.dcd:volumes

admin() { tgtadm --control-port "$port" --lld iscsi "$@"; }

start() {
    mkdir -p /run/tgtd
    tgtd --control-port "$port" --pid-file "$dir/tgtd.pid" --iscsi "portal=127.0.0.1:$port"
    for _ in $(seq 100); do admin --op show --mode sys > /dev/null 2>&1 && break; sleep 0.05; done
    admin --op new --mode target --tid 1 --targetname $name
    for number in 1 2; do
        admin --op new --mode logicalunit --tid 1 --lun $number --backing-store "$dir/volume$number.img"
    done
    # Nobody comes in before all units are there.
    admin --op bind --mode target --tid 1 --initiator-address ALL
}

up() {
    mkdir -p "$dir"
    for number in 1 2; do truncate -s 512M "$dir/volume$number.img"; done
    start
}

down() {
    for pid in "$dir"/*.pid; do
        if [ -e "$pid" ]; then kill -KILL "$(cat "$pid")" 2> /dev/null || true; fi
    done
    rm -rf "$dir" "/run/tgtd/socket.$port"*
}

uri() { echo "iscsi://127.0.0.1:$port/$name/$1"; }

case $1 in
    up)
        up
        cat << END
qemu-nbd --persistent --shared=8 --format=raw --cache=none --export-name=volume1 --socket=$dir/volume1.sock --fork $(uri 1)
cp $(realpath "$here/../ceph/stack.toml") $dir/
dcd format $dir/stack.toml
dcd serve $dir/stack.toml
END
        ;;
    down) down ;;
    start) start ;;
    uri) uri "$2" ;;
    *) usage ;;
esac
