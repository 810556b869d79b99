#!/usr/bin/env bash
# Where the instructions of a request of 4 KiB go, from socket to answer: callgrind counts them in `dcd serve`.
#
# Log and data disk are files of a tmpfs, and the client is fio with libnbd. The log holds everything that is read, so a read is a hit.
# Instructions of the kernel are not counted; they are the same for every server, and more. Counts differ by a few per cent between
# runs, as requests arrive in other groups.
#
# usage: profile-path.sh PROGRAM      REQUESTS=16384 DEPTHS="1 32"
set -euo pipefail

dcd=$(realpath "${1:?usage: profile-path.sh PROGRAM}")
requests=${REQUESTS:-16384}
read -r -a depths <<< "${DEPTHS:-1 32}"
for tool in valgrind callgrind_annotate callgrind_control fio; do
    command -v "$tool" > /dev/null || { echo "SKIPPED: $tool is not installed"; exit 0; }
done
[ -w /dev/shm ] || { echo "SKIPPED: /dev/shm is missing"; exit 0; }

work=$(mktemp -d /dev/shm/dcd-profile.XXXXXX)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2> /dev/null || true
    [ -z "$server" ] || wait "$server" 2> /dev/null || true
    server=
}
trap 'stop; rm -rf "$work"' EXIT

client() { # ARGUMENTS OF fio
    fio --name=client --ioengine=nbd --uri="nbd+unix:///?socket=$work/nbd" --size=64M --output-format=terse "$@" > "$work/fio.log" 2>&1 ||
        { cat "$work/fio.log" >&2; exit 1; }
}

# The costs of functions, by what they belong to. One line of callgrind_annotate is "N (P%) FILE:FUNCTION [OBJECT]".
groups() {
    awk -v requests="$requests" '
        /PROGRAM TOTALS/ { seen = 1; next }
        # The frames that are open from the start to the end are charged with everything.
        !seen || /\(100\.0%\)/ || !/^ *[0-9,]+ \(/ { next }
        {
            count = $1; gsub(",", "", count)
            name = $0; sub(/^ *[0-9,]+ \([^)]*\) +/, "", name); sub(/ \[[^]]*\]$/, "", name)
            if (match(name, /\.rs:/)) name = substr(name, RSTART + 4)
            else sub(/^[^:]*:/, "", name)
            group = "other"
            if (name ~ /crc32c/) group = "checksum"
            else if (name ~ /^_*mem(cpy|move|set)/) group = "copy"
            else if (name ~ /log_cache|destage/) group = "log cache"
            else if (name ~ /dcd_serve/) group = "session"
            else if (name ~ /dcd_io|io_uring/) group = "loop"
            else if (name ~ /dcd_engine|dcd_stack/) group = "stack"
            else if (name ~ /alloc|free|unlink_chunk/) group = "memory"
            sum[group] += count; total += count
        }
        END {
            n = split("log cache,stack,session,loop,checksum,copy,memory,other", order, ",")
            for (i = 1; i <= n; i++) printf " %.0f |", sum[order[i]] / requests
            printf " %.0f |\n", total / requests
        }'
}

measure() { # NAME PATTERN DEPTH
    truncate -s 256M "$work/log"
    truncate -s 1G "$work/data"
    rm -f "$work/nbd" "$work/profile"*
    printf 'export = "cache"\n[serve]\nnbd = "unix:%s"\n' "$work/nbd" > "$work/stack.toml"
    printf '[device.log]\npath = "%s"\n[device.data]\npath = "%s"\n' "$work/log" "$work/data" >> "$work/stack.toml"
    printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "data"\nwhen = "when-full"\n' >> "$work/stack.toml"
    "$dcd" format --force "$work/stack.toml" > "$work/format.log" 2>&1 || { cat "$work/format.log" >&2; exit 1; }
    valgrind --tool=callgrind --callgrind-out-file="$work/profile" "$dcd" serve "$work/stack.toml" > "$work/serve.log" 2>&1 &
    server=$!
    for _ in $(seq 200); do [ -S "$work/nbd" ] && break; sleep 0.3; done
    client --rw=write --bs=4k --iodepth=4
    callgrind_control -z "$server" > "$work/control.log" 2>&1
    client --rw="$2" --bs=4k --iodepth="$3" --number_ios="$requests" --io_size=$((requests * 4))k
    callgrind_control -d "$server" > "$work/control.log" 2>&1
    stop
    printf '| %s, depth %s |' "$1" "$3"
    callgrind_annotate --threshold=100 --inclusive=no --tree=none --auto=no "$work/profile.1" 2> /dev/null | groups
}

echo '| instructions for a request | log cache | stack | session | loop | checksum | copy | memory | other | all |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for depth in "${depths[@]}"; do
    measure write randwrite "$depth"
    measure "read hit" randread "$depth"
done
