#!/usr/bin/env bash
# 4 KiB random reads and writes over NBD on a unix socket: dcd with log and data in RAM-backed files, beside
# `nbdkit file` and `qemu-nbd` on such files. All three run in turn, several times, and medians are compared, as times on
# a shared machine drift.
#
# usage: bench-nbd.sh PROGRAM     ROUNDS=3 SECONDS_EACH=2
set -euo pipefail

dcd=$(realpath "${1:?usage: bench-nbd.sh PROGRAM}")
rounds=${ROUNDS:-3}
seconds=${SECONDS_EACH:-2}
for tool in fio nbdkit qemu-nbd; do
    command -v $tool > /dev/null || { echo "not measured: $tool is not installed"; exit 0; }
done

work=$(mktemp -d /dev/shm/dcd-bench.XXXXXX)
server=
stop_server() {
    if [ -n "$server" ]; then
        kill -TERM "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
        server=
    fi
}
trap 'stop_server; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

truncate -s 1G "$work/data.img"
truncate -s 512M "$work/log.img" "$work/plain.img"
truncate -s 1G "$work/plain.img"
cat > "$work/stack.toml" << STACK
export = "cache"
[serve]
nbd = "unix:socket"
[device.log]
path = "log.img"
[device.data]
path = "data.img"
[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
STACK
"$dcd" format "$work/stack.toml" > /dev/null

start_server() { # NAME
    rm -f "$work/socket"
    case $1 in
        dcd) "$dcd" serve --quiet "$work/stack.toml" > /dev/null & ;;
        nbdkit) nbdkit --foreground --unix "$work/socket" file "$work/plain.img" & ;;
        qemu-nbd) qemu-nbd --persistent --shared=8 --format=raw --cache=none --aio=io_uring --socket="$work/socket" "$work/plain.img" 2> /dev/null & ;;
    esac
    server=$!
    for _ in $(seq 200); do
        [ -S "$work/socket" ] && return
        sleep 0.02
    done
    echo "$1 does not start" >&2
    exit 1
}

measure() { # RW DEPTH: prints IOPS
    fio --name=bench --ioengine=nbd --uri="nbd+unix:///?socket=$work/socket" --rw="$1" --bs=4k --iodepth="$2" \
        --size=256m --time_based --runtime="$seconds" --randrepeat=1 --output-format=json |
        awk -v kind="${1#rand}" '$1 == "\"" kind "\"" { inside = 1 }
            inside && $1 == "\"iops\"" { gsub(",", "", $3); print $3; exit }'
}

for round in $(seq "$rounds"); do
    for rw in randwrite randread; do
        for depth in 1 32; do
            for name in dcd nbdkit qemu-nbd; do
                start_server "$name"
                echo "$rw $depth $name $(measure $rw $depth)" >> "$work/results"
                stop_server
            done
        done
    done
    echo "round $round of $rounds done" >&2
done

median() { # RW DEPTH NAME
    awk -v a="$1" -v b="$2" -v c="$3" '$1 == a && $2 == b && $3 == c { print $4 }' "$work/results" | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
printf '%-10s %5s %12s %12s %12s %10s\n' "4 KiB" depth dcd nbdkit qemu-nbd "dcd/best"
for rw in randwrite randread; do
    for depth in 1 32; do
        row=()
        for name in dcd nbdkit qemu-nbd; do row+=("$(median $rw $depth $name)"); done
        awk -v rw=$rw -v depth=$depth -v a="${row[0]}" -v b="${row[1]}" -v c="${row[2]}" \
            'BEGIN { best = b > c ? b : c; printf "%-10s %5d %12.0f %12.0f %12.0f %9.2fx\n", rw, depth, a, b, c, a / best }'
    done
done
