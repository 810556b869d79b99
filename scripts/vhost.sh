#!/usr/bin/env bash
# A virtual machine whose disk comes over vhost-user: Debian's 6.12 kernel in qemu, which connects again when the server ends. The server
# runs on the host, and is killed and stopped while the machine writes, with fio and below ext4. vhost/guest.sh has the machine's part.
#
# usage: vhost.sh DCD      the program
#   KILLS=10: kills during each of the two; SECONDS_MAX=900
# Without qemu or the kernel's package it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: vhost.sh DCD}")
here=$(realpath "$(dirname "$0")")
kills=${KILLS:-10}
# shellcheck disable=SC2034 # for host.sh
seconds_max=${SECONDS_MAX:-900}
# shellcheck source=scripts/guest-kernel/host.sh
. "$here/guest-kernel/host.sh"
# shellcheck source=scripts/guest-kernel/qemu.sh
. "$here/guest-kernel/qemu.sh"

"$here/packages.sh" qemu-system-x86 qemu-system-common busybox-static cpio xz-utils kmod fio e2fsprogs >&2
mapfile -t missing < <(missing_things 700 fio modprobe depmod mkfs.ext4 e2fsck blkdiscard qemu-system-x86_64 busybox cpio xz)
have_kernel || missing+=("Debian's package of a 6.12 kernel")
skip_if_missing "vhost-user is not tried with a virtual machine"

begin_work vhost
truncate -s 192M "$work/data.img"
truncate -s 48M "$work/log.img"
cat > "$work/vm.toml" << STACK
export = "cache"
[serve]
vhost-user = "unix:vm.sock"
control = "vm.control"
[device.data]
path = "data.img"
[device.log]
path = "log.img"
[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
STACK
"$dcd" format "$work/vm.toml" > "$work/format.log" 2>&1 || fail "$(cat "$work/format.log")"

server=
serve() {
    rm -f "$work/ready"
    "$dcd" serve "$work/vm.toml" > "$work/ready" 2>> "$work/server.log" &
    server=$!
    # shellcheck disable=SC2034 # for host.sh
    servers=("$server")
    for _ in $(seq 1500); do
        [ -s "$work/ready" ] && return
        kill -0 "$server" 2> /dev/null || break
        sleep 0.02
    done
    fail "the server does not start: $(tail -n 5 "$work/server.log")"
}

# While the machine says that it writes: kills, and as the last one a stop, which upgrades do.
killed=0
endings() {
    show_results
    if [ ! -e "$work/writing" ]; then
        killed=0
        return
    fi
    [ "$killed" -lt "$kills" ] || return 0
    sleep "0.$((RANDOM % 9 + 1))"
    killed=$((killed + 1))
    if [ "$killed" -lt "$kills" ]; then
        kill -KILL "$server"
    else
        kill -TERM "$server"
    fi
    { wait "$server" || true; } 2> /dev/null
    serve
    [ "$killed" -lt "$kills" ] || touch "$work/enough"
}

serve
stopped=0
: > "$work/results"
shown=0
make_initramfs ext4
more_devices=(-object "memory-backend-memfd,id=shared,size=$ram,share=on" -machine "memory-backend=shared"
    -chardev "socket,id=vm,path=$work/vm.sock,reconnect=1" -device "vhost-user-blk-pci,chardev=vm,num-queues=2")
start_qemu "$here/vhost/guest.sh" "HERE=$here"
until [ -e "$work/begun" ] || ! kill -0 "$machine" 2> /dev/null; do sleep 0.1; done
"$dcd" stop "$work/vm.toml" > "$work/stop.log" 2>&1 || stopped=$?
[ "$stopped" -eq 3 ] && grep -q 'a client has its device: process [0-9]* (qemu' "$work/stop.log" ||
    fail "a stop beside a machine: $stopped $(cat "$work/stop.log")"
watch_machine vhost endings
show_results
# The machine is off, so nobody has the disk. The disk alone has all that the machine saw.
for _ in $(seq 100); do kill -0 "$machine" 2> /dev/null || break; sleep 0.1; done
"$dcd" stop "$work/vm.toml" || fail "the machine is off, and the stop fails"
wait "$server" || fail "the server's end: $?"
servers=()
"$dcd" detach "$work/vm.toml" > "$work/detach.log" 2>&1 || fail "$(cat "$work/detach.log")"
sum=$(sha256sum < "$work/data.img")
[ "${sum%% *}" = "$(cat "$work/sum")" ] || fail "the disk is not what the machine saw"
echo "disk: good"
