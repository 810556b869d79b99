#!/usr/bin/env bash
# A data disk on another machine: two network namespaces of this one, with nbdkit in the far one and dcd in the near one.
#
# - "export" is fio on the remote export itself, "dcd" fio on a stack with a local log before it. Both are 4 KiB random writes: with an fsync after
#   each ("fsync"), and with 32 in flight ("depth 32"). nbdkit's delay filter makes each read and write of the far disk wait.
#   Log and far disk are files in RAM, so what is compared is a fast log here with a disk that is only as slow as its delay. netem is not
#   used: few kernels of virtual machines have it.
# - "cut" takes the link down for a time under writes that fio reads back and compares, and says how long after its return dcd is
#   connected again. What is in no cache waits meanwhile; nothing may fail.
#
# Needs root, for the namespaces, and 600 MiB of /dev/shm. Four minutes.
#
# usage: remote.sh PROGRAM     DELAYS="0 1 5" (ms) SECONDS_EACH=3 CUT=30 ROUNDS=3
set -euo pipefail

dcd=$(realpath "${1:?usage: remote.sh PROGRAM}")
delays=${DELAYS:-0 1 5}
seconds=${SECONDS_EACH:-3}
cut=${CUT:-30}
rounds=${ROUNDS:-3}

"$(dirname "$0")/packages.sh" fio nbdkit iproute2
for tool in fio nbdkit ip; do
    command -v $tool > /dev/null || { echo "NOT MEASURED: $tool is not installed" >&2; exit 1; }
done
near=dcd-near-$$ far=dcd-far-$$
work=$(mktemp -d /dev/shm/dcd-remote.XXXXXX)
pids=()
clean() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2> /dev/null || true; done
    ip netns del "$near" 2> /dev/null || true
    ip netns del "$far" 2> /dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
export DCD_STATE_DIR=$work/state

ip netns add "$near" 2> /dev/null || { echo "NOT MEASURED: network namespaces need root" >&2; exit 1; }
ip netns add "$far"
ip link add near0 netns "$near" type veth peer name far0 netns "$far"
ip -n "$near" addr add 192.0.2.1/24 dev near0
ip -n "$far" addr add 192.0.2.2/24 dev far0
for name in near0:$near far0:$far lo:$near lo:$far; do ip -n "${name#*:}" link set "${name%:*}" up; done

# The far disk, whose reads and writes take so many ms.
start_far() {
    truncate -s 256M "$work/far.img"
    ip netns exec "$far" nbdkit --foreground --port 10809 --filter=delay file "$work/far.img" \
        rdelay="$1ms" wdelay="$1ms" &
    far_pid=$!
    pids+=("$far_pid")
    for _ in $(seq 100); do
        ip netns exec "$near" bash -c '< /dev/tcp/192.0.2.2/10809' 2> /dev/null && return
        sleep 0.05
    done
    echo "nbdkit does not start" >&2
    exit 1
}

start_near() {
    cat > "$work/stack.toml" <<END
export = "cache"
[serve]
nbd = "unix:front.sock"
control = "control.sock"
[device.log]
path = "log.img"
size = "256MiB"
[device.far]
path = "nbd://192.0.2.2/"
[layer.cache]
kind = "log-cache"
log = "log"
data = "far"
END
    ip netns exec "$near" "$dcd" format "$work/stack.toml" > /dev/null 2>&1
    ip netns exec "$near" "$dcd" serve --quiet "$work/stack.toml" > "$work/said" 2>&1 &
    near_pid=$!
    pids+=("$near_pid")
    for _ in $(seq 100); do [ -S "$work/front.sock" ] && return; sleep 0.05; done
    cat "$work/said" >&2
    exit 1
}

stop() {
    kill "$1" 2> /dev/null || true
    wait "$1" 2> /dev/null || true
}

# Requests in a second: what, and further options of fio.
fio_rate() {
    local uri=$1
    shift
    ip netns exec "$near" fio --name=x --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --size=200M --time_based \
        --runtime="$seconds" --output-format=json "$@" | awk -F'[:,]' '/"iops" :/ && $2 > most { most = $2 } END { printf "%.0f", most }'
}

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

measure() { # uri, options
    for _ in $(seq "$rounds"); do fio_rate "$@"; echo; done | median
}

printf '%8s  %-9s  %10s  %10s  %8s\n' "delay" "writes" "export" "dcd" "ratio"
for delay in $delays; do
    start_far "$delay"
    export_fsync=$(measure nbd://192.0.2.2/ --iodepth=1 --fsync=1)
    export_deep=$(measure nbd://192.0.2.2/ --iodepth=32)
    rm -f "$work/log.img" "$work/front.sock"
    rm -rf "$work/state"
    start_near
    dcd_fsync=$(measure "nbd+unix:///?socket=$work/front.sock" --iodepth=1 --fsync=1)
    dcd_deep=$(measure "nbd+unix:///?socket=$work/front.sock" --iodepth=32)
    stop "$near_pid"
    stop "$far_pid"
    printf '%5s ms  %-9s  %8s/s  %8s/s  %8s\n' "$delay" fsync "$export_fsync" "$dcd_fsync" \
        "$(awk "BEGIN { printf \"%.1f\", $dcd_fsync / $export_fsync }")"
    printf '%5s ms  %-9s  %8s/s  %8s/s  %8s\n' "$delay" "depth 32" "$export_deep" "$dcd_deep" \
        "$(awk "BEGIN { printf \"%.1f\", $dcd_deep / $export_deep }")"
done

[ "$cut" -gt 0 ] || exit 0
rm -f "$work/log.img" "$work/front.sock"
rm -rf "$work/state"
start_far 1
start_near
ip netns exec "$near" fio --name=verify --ioengine=nbd --uri="nbd+unix:///?socket=$work/front.sock" --rw=randwrite --bs=4k --size=200M \
    --iodepth=8 --fsync=32 --verify=crc32c --verify_state_save=0 --verify_backlog=256 --time_based --runtime=$((cut + 30)) --output="$work/fio" &
fio_pid=$!
sleep 8
ip -n "$far" link set far0 down
sleep "$cut"
connection() { ip netns exec "$near" "$dcd" status --json "$work/stack.toml" | grep -o '"connection": *"[^"]*"' || true; }
away=$(connection)
ip -n "$far" link set far0 up
began=$(date +%s%N)
while ! connection | grep -q '"connected\|connections'; do
    [ $(($(date +%s%N) - began)) -lt 60000000000 ] || { echo "not connected again after a minute: $(connection)" >&2; exit 1; }
    sleep 0.05
done
took=$((($(date +%s%N) - began) / 1000000))
wait "$fio_pid" || { echo "fio found errors:" >&2; cat "$work/fio" >&2; exit 1; }
echo "cut for $cut s: $away"
echo "connected again $took ms after the link was back; fio compared what it wrote: no errors"
stop "$near_pid"
grep -o "lost its connection: [^;]*" "$work/said" | head -1
