#!/usr/bin/env bash
# dcd before volumes of other storage, which qemu-nbd opens and serves: RBD images of a Ceph (examples/ceph), units of an iSCSI target
# (examples/iscsi). Each is brought up on this machine, and taken away. Its files and the log are in the directory PLACE: in RAM, where no
# disk that others use has a part in the measurement, so it is the software between a program and the storage that is compared.
#
#   measure      a volume through qemu-nbd, and another of its kind behind dcd, in turns: 4 KiB random writes with an fsync after each and with 32
#                in flight, and SQLite's commits on an ext4, with a write-ahead log and with a rollback journal, synchronous=FULL. The kernel
#                reaches both through nbdfuse and a loop device.
#   kills        kills each part of the storage, and qemu-nbd, KILLS times under writes that fio reads back and compares, and dcd KILLS times
#                after writes that were flushed
#
# usage: volumes.sh measure|kills ceph|iscsi PROGRAM     KILLS=20 SECONDS_EACH=5 COMMITS=300 ROUNDS=3 PLACE=/dev/shm
set -euo pipefail

usage() { sed -n '/^# usage/s/^# //p' "$0" >&2; exit 2; }
[ $# -eq 3 ] || usage
command=$1
here=$(dirname "$(realpath "$0")")
examples=$here/../examples
dcd=$(realpath "$3")
seconds=${SECONDS_EACH:-5}
commits=${COMMITS:-300}
rounds=${ROUNDS:-3}
kills=${KILLS:-20}
place=${PLACE:-/dev/shm}

case $2 in
    ceph)
        storage=$examples/ceph/cluster.sh
        parts="osd.0 mon.a"
        "$here/packages.sh" ceph-mon ceph-osd ceph-common
        tools="ceph-mon ceph-osd rbd"
        ;;
    iscsi)
        storage=$examples/iscsi/target.sh
        parts=tgtd
        "$here/packages.sh" tgt
        tools="tgtd tgtadm"
        ;;
    *) usage ;;
esac
"$here/packages.sh" qemu-utils qemu-block-extra fio libnbd-bin sqlite3 e2fsprogs fuse3
for tool in $tools qemu-nbd fio nbdfuse sqlite3 mkfs.ext4 losetup fusermount3; do
    command -v "$tool" > /dev/null || { echo "SKIPPED: $tool is not installed" >&2; exit 0; }
done

dir=$(mktemp -d "$place/dcd-volumes.XXXXXX")
export DCD_STATE_DIR=$dir/state
clean() {
    local status=$?
    leave_file_system
    "$storage" down "$dir"
    exit $status
}

start_export() { # NUMBER
    rm -f "$dir/volume$1.sock"
    qemu-nbd --persistent --shared=8 --format=raw --cache=none "--export-name=volume$1" --socket="$dir/volume$1.sock" \
        --pid-file="$dir/qemu-nbd-$1.pid" --fork "$("$storage" uri "$1" "$dir")"
}

stop_pid() { # NAME [SIGNAL]
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
    cp "$examples/ceph/stack.toml" "$dir/"
    "$dcd" format "$dir/stack.toml" > "$dir/formatted" 2>&1 || { cat "$dir/formatted" >&2; exit 1; }
}

uri_of() { # WAY
    case $1 in
        plain) echo "nbd+unix:///volume2?socket=$dir/volume2.sock" ;;
        dcd) echo "nbd+unix:///?socket=$dir/front.sock" ;;
    esac
}

# ---------------------------------------------------------------- measurements

fio_rate() { # WAY, options
    fio --name=x --ioengine=nbd --uri="$(uri_of "$1")" --rw=randwrite --bs=4k --size=256M --time_based --runtime="$seconds" --output-format=json \
        "${@:2}" | awk -F'[:,]' '/"iops" :/ && $2 > most { most = $2 } END { printf "%.0f\n", most }'
}

loop=
enter_file_system() { # WAY
    mkdir -p "$dir/$1.fuse" "$dir/fs"
    nbdfuse --pidfile "$dir/nbdfuse.pid" "$dir/$1.fuse/disk" "$(uri_of "$1")" &
    fuse_pid=$!
    for _ in $(seq 200); do [ -e "$dir/$1.fuse/disk" ] && break; sleep 0.05; done
    fuse=$dir/$1.fuse
    loop=$(losetup --find --show "$fuse/disk")
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
    mount -t ext4 "$loop" "$dir/fs"
}

leave_file_system() {
    [ -n "$loop" ] || return 0
    if mountpoint -q "$dir/fs"; then umount "$dir/fs" || true; fi
    losetup --detach "$loop" || true
    # The loop device lets go of its file when all of it has been written.
    for _ in $(seq 1200); do fusermount3 -u "$fuse" 2> /dev/null && break; sleep 0.05; done
    # It has nothing left to do, and does not always end.
    kill -KILL "$fuse_pid" 2> /dev/null || true
    wait "$fuse_pid" 2> /dev/null || true
    loop=
}

commit_rate() { # JOURNAL
    local begin end
    {
        echo "pragma journal_mode=$1; pragma synchronous=full; create table t (n integer primary key, text);"
        for n in $(seq "$commits"); do echo "insert into t values ($n, hex(randomblob(50)));"; done
    } > "$dir/commits.sql"
    rm -f "$dir"/fs/*.db*
    begin=$(date +%s%N)
    sqlite3 "$dir/fs/$1.db" < "$dir/commits.sql" > "$dir/sqlite.log"
    end=$(date +%s%N)
    [ "$(sqlite3 "$dir/fs/$1.db" 'select count(*) from t')" -eq "$commits" ] || { cat "$dir/sqlite.log" >&2; exit 1; }
    echo $((commits * 1000000000 / (end - begin)))
}

measure() {
    local way rates=$dir/rates
    for _ in $(seq "$rounds"); do
        for way in plain dcd; do echo "fsync,$way,$(fio_rate $way --iodepth=1 --fsync=1)"; done
        for way in plain dcd; do echo "deep,$way,$(fio_rate $way --iodepth=32)"; done
        for way in plain dcd; do
            enter_file_system $way
            for journal in wal delete; do echo "$journal,$way,$(commit_rate $journal)"; done
            leave_file_system
        done
    done > "$rates"
    awk -F, '
        { value[$1, $2, ++seen[$1, $2]] = $3 }
        function row(work, title,    i, n, plain, own, ratio) {
            n = seen[work, "dcd"]
            for (i = 1; i <= n; i++) { plain[i] = value[work, "plain", i]; own[i] = value[work, "dcd", i]; ratio[i] = own[i] / plain[i] }
            printf "| %s | %s | %s | %s |\n", title, middle(plain, n, "%d"), middle(own, n, "%d"), middle(ratio, n, "%.1f")
        }
        function middle(values, n, form,    i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && values[j - 1] > values[j]; j--) { t = values[j]; values[j] = values[j - 1]; values[j - 1] = t }
            return sprintf(form " (" form " to " form ")", values[int((n + 1) / 2)], values[1], values[n])
        }
        END {
            print "| a second | the volume itself | behind dcd | ratio |\n|---|---|---|---|"
            row("fsync", "4 KiB random writes, fsync after each")
            row("deep", "4 KiB random writes, 32 in flight")
            row("wal", "SQLite commits, write-ahead log")
            row("delete", "SQLite commits, rollback journal")
        }' "$rates"
}

# ---------------------------------------------------------------- kills

# Kills one of them again and again while fio writes, reads back and compares.
under_fio() { # what, how to start it
    fio --name=verify --ioengine=nbd --uri="$(uri_of dcd)" --rw=randwrite --bs=4k --size=256M --iodepth=8 --fsync=32 \
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
        local write=(fio --name=x --ioengine=nbd "--uri=$(uri_of dcd)" --rw=randwrite --bs=4k --size=16M --randseed="$round"
            --iodepth=8 --end_fsync=1 --verify=crc32c --verify_state_save=0 --output="$dir/fio")
        "${write[@]}" --do_verify=0
        stop_pid dcd KILL
        start_dcd
        "${write[@]}" --verify_only || { echo "round $round:" >&2; cat "$dir/fio" >&2; exit 1; }
    done
    echo "$kills kills of dcd after a flush: nothing lost"
}

trap clean EXIT
trap 'exit 130' INT TERM
"$storage" up "$dir" > "$dir/up.said"
start_export 1
make_stack
start_dcd
case $command in
    measure)
        start_export 2
        measure
        ;;
    kills)
        under_fio qemu-nbd-1 start_export 1
        for part in $parts; do under_fio "$part" "$storage" start "$part" "$dir"; done
        kill_dcd
        ;;
    *) usage ;;
esac
