#!/usr/bin/env bash
# 4 KiB random writes and reads over NBD on a unix socket: dcd beside `nbdkit file` and `qemu-nbd`.
#
# What makes it a comparison:
# - All files are of one size on one tmpfs and hold data everywhere: nobody reads holes or is the first to touch a page.
#   "dcd", "nbdkit" and "qemu-nbd" have a data file each; "dcd" has a log beside it, fresh for each run of writes.
#   "device" is dcd without the log cache over such a file, and shows what its driver and NBD session cost alone.
# - Nobody opens with O_DIRECT: a file of a tmpfs is its own page cache. dcd finds that out by itself; qemu-nbd gets
#   `--cache=writeback`, which means the same, and `--aio=threads`, which was its fastest choice here (QEMU_AIO=io_uring
#   shows the other: such a file has no asynchronous I/O, so the kernel gives it to threads as well).
# - dcd's promise is `flush`, the contract that the other two have: writes may be volatile until FLUSH or FUA. The
#   client asks for neither.
# - Every round takes another server first; shown is the median of the rounds, with the lowest and the highest.
# - One client, fio with libnbd, the same for all. CPU in percent of one processor is shown for it and for the server:
#   where the client is at 100, a faster server would not show.
# - Whether the scheduler puts client and server on one processor or on two is worth a factor of three at depth 1 on a virtual
#   machine, and differs from run to run. PLACE=together and PLACE=apart fix that, for all servers alike; PLACE=free,
#   which is the default, leaves it to the scheduler.
#
# "read" is of blocks that are on the data disk, and "read log" of blocks that are only in the log; for the other servers
# both are the same run. "write full" is a log that is full all the time, so that each block is written twice and read
# once. "write legs" is a log with two legs, which are files of the same tmpfs: it shows what the second one costs the processor.
# Servers are compared only where they do the same work, so these two rows have no ratio.
#
# usage: bench-nbd.sh PROGRAM     ROUNDS=5 SECONDS_EACH=1 DEPTHS="1 32" PLACE=free; less than three minutes as it is
set -euo pipefail

dcd=$(realpath "${1:?usage: bench-nbd.sh PROGRAM}")
rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-1}
read -r -a depths <<< "${DEPTHS:-1 32}"
case ${PLACE:-free} in
    free) server_on=() client_on=() ;;
    together) server_on=(taskset -c 0) client_on=(taskset -c 0) ;;
    apart) server_on=(taskset -c 0) client_on=(taskset -c 1) ;;
    *) echo "PLACE is free, together or apart" >&2; exit 2 ;;
esac
data_mib=512
log_mib=1024
small_log_mib=64

"$(dirname "$0")/packages.sh" fio nbdkit qemu-utils
for tool in fio nbdkit qemu-nbd; do
    command -v $tool > /dev/null || { echo "NOT MEASURED: $tool is not installed" >&2; exit 1; }
done
fio --enghelp=nbd > /dev/null || { echo "NOT MEASURED: this fio has no engine for NBD" >&2; exit 1; }
room=$(df --output=avail --block-size=1M /dev/shm | tail -1)
[ "$room" -ge 6000 ] || { echo "NOT MEASURED: /dev/shm has $room MiB free, and 6000 are needed" >&2; exit 1; }

work=$(mktemp -d /dev/shm/dcd-bench.XXXXXX)
export DCD_STATE_DIR=$work/state
server=
stop_server() {
    if [ -n "$server" ]; then
        kill -"${1:-TERM}" "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
        server=
    fi
}
trap 'stop_server KILL; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Data everywhere, and the same for all. A log is written over once as well, so that its pages are there.
head -c ${data_mib}M /dev/urandom > "$work/data.img"
for name in small device nbdkit qemu-nbd; do cp "$work/data.img" "$work/$name.img"; done
cat "$work/data.img" "$work/data.img" > "$work/log.img"
cp "$work/log.img" "$work/second-log.img"
head -c ${small_log_mib}M "$work/data.img" > "$work/small-log.img"

stack_file() { # NAME DATA LOG
    cat > "$work/$1.toml" << STACK
export = "cache"
[serve]
nbd = "unix:socket"
[device.log]
path = "$3"
[device.data]
path = "$2"
[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
promise = "flush"
STACK
}
stack_file dcd data.img log.img
stack_file small small.img small-log.img
stack_file legs data.img log.img
sed -i 's|^log = .*|log = ["log", "second"]|; s|^\[device.data\]|[device.second]\npath = "second-log.img"\n&|' "$work/legs.toml"
cat > "$work/device.toml" << STACK
export = "data"
[serve]
nbd = "unix:socket"
[device.data]
path = "device.img"
STACK

format() { # NAME
    rm -f "$work"/*.img.dcd
    "$dcd" format --force "$work/$1.toml" > "$work/format.log" 2>&1 || { cat "$work/format.log" >&2; exit 1; }
}

start_server() { # NAME
    rm -f "$work/socket"
    case $1 in
        nbdkit) "${server_on[@]}" nbdkit --foreground --unix "$work/socket" file "$work/nbdkit.img" & ;;
        qemu-nbd) "${server_on[@]}" qemu-nbd --persistent --format=raw --cache=writeback --aio="${QEMU_AIO:-threads}" \
            --socket="$work/socket" "$work/qemu-nbd.img" & ;;
        *) "${server_on[@]}" "$dcd" serve --quiet "$work/$1.toml" > /dev/null & ;;
    esac
    server=$!
    for _ in $(seq 500); do
        [ -S "$work/socket" ] && return
        kill -0 "$server" 2> /dev/null || break
        sleep 0.01
    done
    echo "NOT MEASURED: $1 does not start" >&2
    exit 1
}

ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$server/stat"; }

client() { # fio's arguments
    "${client_on[@]}" fio --name=bench --ioengine=nbd --uri="nbd+unix:///?socket=$work/socket" --bs=4k --size=${data_mib}m \
        --randrepeat=1 --norandommap --output-format=terse --terse-version=3 "$@" 2> "$work/fio.log" ||
        { cat "$work/fio.log" >&2; echo "NOT MEASURED: fio failed" >&2; exit 1; }
}

measure() { # ROW RW DEPTH NAME: a line of results, with IOPS, and CPU of server and client in percent
    local before after line
    before=$(ticks)
    line=$(client --rw="$2" --iodepth="$3" --time_based --runtime="$seconds")
    after=$(ticks)
    # terse fields: 8 and 49 are IOPS of reads and writes; 88 and 89 the client's CPU.
    awk -F';' -v row="$1" -v rw="$2" -v depth="$3" -v name="$4" -v ticks=$((after - before)) -v seconds="$seconds" '
        /^3;/ { iops = rw == "randread" ? $8 : $49
          printf "%s;%s;%s;%s;%.0f;%.0f\n", row, depth, name, iops, ticks / seconds, $88 + $89 }' <<< "$line" >> "$work/results"
}

fresh() { # NAME: a cache with nothing in it
    stop_server KILL
    case $1 in dcd | small | legs) format "$1" ;; esac
    start_server "$1"
}

names=(dcd device nbdkit qemu-nbd)
for round in $(seq "$rounds"); do
    for depth in "${depths[@]}"; do
        for turn in 0 1 2 3; do
            name=${names[$(((turn + round) % 4))]}
            fresh "$name"
            measure write randwrite "$depth" "$name"
            if [ "$name" = dcd ]; then
                # Writes below 64 KiB go into the log, so then it has every block of the disk.
                fresh dcd
                client --rw=write --bs=32k --iodepth=16 > /dev/null
                measure "read log" randread "$depth" dcd
                fresh dcd
            fi
            measure read randread "$depth" "$name"
        done
        fresh small
        client --rw=randwrite --io_size=$((2 * small_log_mib))m --iodepth=32 > /dev/null
        measure "write full" randwrite "$depth" dcd
        fresh legs
        measure "write legs" randwrite "$depth" dcd
    done
    echo "round $round of $rounds done" >&2
done

# One line for each ROW and DEPTH: thousands of operations a second as median (lowest to highest), and CPU of server and
# client; then the median of dcd against the better of the other two.
awk -F';' -v place="${PLACE:-free}" -v data=$data_mib -v log_size=$log_mib -v rounds="$rounds" -v seconds="$seconds" '
    function sorted(key,    n, i, j, t) {
        n = count[key]
        for (i = 1; i <= n; i++) v[i] = iops[key, i]
        for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
        return n
    }
    function median(key,    n) { n = sorted(key); return n ? (v[int((n + 1) / 2)] + v[int((n + 2) / 2)]) / 2 : 0 }
    { key = $1 ";" $2 ";" $3; iops[key, ++count[key]] = $4; server[key] += $5; client[key] += $6
      if (!seen[$1 ";" $2]++) rows[++row_count] = $1 ";" $2 }
    END {
        printf "processors: %s; 4 KiB, data of %d MiB, log of %d MiB, %d rounds of %s s: thousands a second, lowest to highest, CPU %% of server and client\n", place, data, log_size, rounds, seconds
        printf "%-16s", "row, depth"
        split("dcd device nbdkit qemu-nbd", names, " ")
        for (i = 1; i <= 4; i++) printf " %-28s", names[i]
        print " dcd/best"
        for (r = 1; r <= row_count; r++) {
            split(rows[r], row, ";")
            printf "%-16s", row[1] ", " row[2]
            best = 0
            from = row[1] == "read log" ? "read" : row[1]
            for (i = 1; i <= 4; i++) {
                key = rows[r] ";" names[i]
                m = median(key)
                if (i > 2) { other = median(from ";" row[2] ";" names[i]); if (other > best) best = other }
                if (!count[key]) { printf " %-28s", "-"; continue }
                m = median(key)
                printf " %-28s", sprintf("%.1f (%.1f to %.1f) %d+%d", m / 1000, v[1] / 1000, v[count[key]] / 1000, server[key] / count[key], client[key] / count[key])
            }
            if (best) printf " %.2fx", median(rows[r] ";dcd") / best
            print ""
        }
    }' <(sort -t';' -k1,1 -k2,2n "$work/results")
