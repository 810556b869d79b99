#!/usr/bin/env bash
# RAM and threads of a server with one disk, of one with DISKS disks on one log, and of as many servers with a disk and a log each. Logs have
# LOG_MIB together. Files are on a tmpfs, and in no server's RAM. "started" is after the start, "worked" after MIB of random 4 KiB
# writes to each disk, a flush, and `dcd flush`. RSS counts what servers share once for each of them, PSS once in all.
#
# usage: bench-disks.sh PROGRAM     DISKS=8 LOG_MIB=512 MIB=32 FRONTS="nbd fuse"
set -euo pipefail

dcd=$(realpath "${1:?usage: bench-disks.sh PROGRAM}")
disks=${DISKS:-8}
log_mib=${LOG_MIB:-512}
mib=${MIB:-32}
read -r -a fronts <<< "${FRONTS:-nbd fuse}"
"$(dirname "$0")/packages.sh" fio fuse3
command -v fio > /dev/null || { echo "NOT MEASURED: fio is not installed" >&2; exit 1; }

work=$(mktemp -d /dev/shm/dcd-bench.XXXXXX)
export DCD_STATE_DIR=$work/state
servers=()
stacks=()
clients=()
stop_servers() {
    local server
    for server in ${servers[@]+"${servers[@]}"}; do
        kill -TERM "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
    done
    servers=()
    stacks=()
    clients=()
    rm -rf "$work"/*.img* "$work/state"
}
trap 'stop_servers; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

stack_file() { # FRONT NAME LOG-MIB DISK...
    local disk front=$1 name=$2 names=
    truncate -s "$3M" "$work/$name-log.img"
    printf 'export = "cache"\n[serve]\ncontrol = "%s.control"\n' "$name"
    case $front in
        nbd) printf 'nbd = "unix:%s.socket"\n' "$name" ;;
        fuse) printf 'fuse = "%s.mount"\n' "$name" ;;
        *) echo "there is no front-end \"$front\" here: use nbd or fuse in FRONTS" >&2; exit 2 ;;
    esac
    printf '[device.log]\npath = "%s-log.img"\n' "$name"
    for disk in "${@:4}"; do
        truncate -s 1G "$work/$disk.img"
        printf '[device.%s]\npath = "%s.img"\n' "$disk" "$disk"
        names+="${names:+, }\"$disk\""
    done
    printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = [%s]\n' "$names"
}

start() { # FRONT NAME LOG-MIB DISK...: serves a stack of that name with these disks
    local disk other front=$1 name=$2
    stack_file "$@" > "$work/$name.toml"
    [ "$front" != fuse ] || mkdir -p "$work/$name.mount"
    "$dcd" format "$work/$name.toml" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    rm -f "$work/ready"
    "$dcd" serve --quiet "$work/$name.toml" > "$work/ready" 2> "$work/log" &
    servers+=($!)
    stacks+=("$name")
    until [ -s "$work/ready" ]; do
        kill -0 "${servers[-1]}" 2> /dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.05
    done
    for disk in "${@:4}"; do
        # The first disk is served as that of the stack, the others by their names.
        other=$disk
        [ "$disk" != "$4" ] || other=
        case $front in
            nbd) clients+=("--ioengine=nbd --uri=nbd+unix:///$other?socket=$work/$name.socket") ;;
            fuse) clients+=("--ioengine=psync --direct=1 --filename=$work/$name.mount${other:+-$other}/disk.img") ;;
        esac
    done
}

taken() { # of all servers: threads, RSS and PSS in MiB
    local server
    for server in "${servers[@]}"; do
        cat "/proc/$server/status" "/proc/$server/smaps_rollup"
    done | awk '/^Threads:/ { threads += $2 } /^Rss:/ { rss += $2 } /^Pss:/ { pss += $2 }
        END { printf "%d | %.1f | %.1f", threads, rss / 1024, pss / 1024 }'
}

do_work() {
    local client stack
    for client in "${clients[@]}"; do
        # shellcheck disable=SC2086 # several options
        fio --name=write $client --rw=randwrite --bs=4k --iodepth=32 --size=1g --io_size="${mib}m" --end_fsync=1 > "$work/log" 2>&1 ||
            { cat "$work/log" >&2; echo "NOT MEASURED: fio failed" >&2; exit 1; }
    done
    for stack in "${stacks[@]}"; do
        "$dcd" flush "$work/$stack.toml" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    done
}

measure() { # FRONT ROW
    local started
    started=$(taken)
    do_work
    printf '| %s | %s | %s | %s |\n' "$1" "$2" "$started" "$(taken)"
    stop_servers
}

mapfile -t names < <(for number in $(seq "$disks"); do echo "disk$number"; done)
echo "| front-end | servers | threads, started | RSS, MiB | PSS, MiB | threads, worked | RSS, MiB | PSS, MiB |"
echo "|---|---|---:|---:|---:|---:|---:|---:|"
for front in "${fronts[@]}"; do
    start "$front" pool "$log_mib" disk1
    measure "$front" "one, 1 disk"
    start "$front" pool "$log_mib" "${names[@]}"
    measure "$front" "one, $disks disks"
    for name in "${names[@]}"; do start "$front" "stack-$name" $((log_mib / disks)) "$name"; done
    measure "$front" "$disks, 1 disk each"
done
