#!/usr/bin/env bash
# How long the server needs after kill -9, with a log of 1 GiB full of random 4 KiB writes: seconds until it lets clients
# in, and bytes it has read by then; beside it, in turn, the seconds to read the same file from its start to its end.
#
# The log stays full: destaging begins at 100 %, never for idleness, and a little less than that is written. dcd reads with
# O_DIRECT where the file system has it, and so does the plain reading, in pieces of a segment. Bytes are those that the
# kernel counts for the process (/proc/PID/io), which are of the device; on a tmpfs there is none, and it counts nothing.
#
# usage: bench-recovery.sh PROGRAM     ROUNDS=3 DIRECTORY=/var/tmp (needs 2.2 GB)
set -euo pipefail

dcd=$(realpath "${1:?usage: bench-recovery.sh PROGRAM}")
rounds=${ROUNDS:-3}
"$(dirname "$0")/packages.sh" fio
command -v fio > /dev/null || { echo "NOT MEASURED: fio is not installed" >&2; exit 1; }

work=$(mktemp -d "${DIRECTORY:-/var/tmp}/dcd-bench.XXXXXX")
export DCD_STATE_DIR=$work/state
server=
stop_server() {
    if [ -n "$server" ]; then
        kill -KILL "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
        server=
    fi
}
trap 'stop_server; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

truncate -s 4G "$work/data.img"
# Real space for all of it, so that reading the file reads the disk.
dd if=/dev/zero of="$work/log.img" bs=1M count=1024 conv=fsync status=none
cat > "$work/stack.toml" << STACK
export = "cache"
[serve]
nbd = "unix:socket"
control = "control"
[device.log]
path = "log.img"
[device.data]
path = "data.img"
[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
when = "high-low"
high-mark = 100
low-mark = 99
STACK
mkfifo "$work/ready"

start_server() { # until it says that it is ready
    "$dcd" serve --quiet "$work/stack.toml" > "$work/ready" &
    server=$!
    local line=
    read -r line < "$work/ready" || true
    [ "$line" = ready ] || { echo "NOT MEASURED: the server does not start" >&2; exit 1; }
}

status() { # FIELD of the cache
    "$dcd" status --json "$work/stack.toml" | grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2
}

"$dcd" format "$work/stack.toml" > /dev/null
start_server
# A record costs a header beside its blocks, so 1000 MiB of them fill some 99 % of the log.
fio --name=fill --ioengine=nbd --uri="nbd+unix:///?socket=$work/socket" --rw=randwrite --bs=4k --iodepth=32 --size=4g \
    --io_size=1000m --norandommap --randrepeat=1 --end_fsync=1 > "$work/fio.log" 2>&1 ||
    { cat "$work/fio.log" >&2; echo "NOT MEASURED: fio failed" >&2; exit 1; }
echo "log: $(status used_bytes) of $(status size_bytes) bytes in use, $(status dirty_bytes) bytes dirty"
stop_server

since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.2f", to - from }'; }
for round in $(seq "$rounds"); do
    from=$EPOCHREALTIME
    start_server
    ready=$(since "$from")
    bytes=$(awk '$1 == "read_bytes:" { print $2 }' "/proc/$server/io")
    dirty=$(status dirty_bytes)
    stop_server
    from=$EPOCHREALTIME
    dd if="$work/log.img" of=/dev/null bs=512K iflag=direct status=none 2> /dev/null ||
        dd if="$work/log.img" of=/dev/null bs=512K status=none
    plain=$(since "$from")
    echo "round $round: ready after $ready s, $bytes bytes read, $dirty bytes recovered; the whole log read plainly: $plain s"
done
