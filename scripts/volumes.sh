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
#   take-over    has a second dcd take over from its leg of the log while the first one is cut off and lives on, KILLS times in turns, with
#                examples/ceph/fence between the first one and the image
#
# usage: volumes.sh measure|kills ceph|iscsi PROGRAM, volumes.sh take-over ceph PROGRAM     KILLS=20 SECONDS_EACH=5 COMMITS=300 ROUNDS=3 PLACE=/dev/shm
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

# ---------------------------------------------------------------- take-overs

# Two machines: each has a leg of the log, which nbdkit serves to the other, a qemu-nbd of its own, and a name.
machine_stack() { # MACHINE OTHER
    mkdir -p "$dir/machine$1"
    cat > "$dir/machine$1/stack.toml" << END
export = "cache"
[serve]
nbd = "unix:front.sock"
control = "control.sock"
[device.own]
path = "leg.img"
size = "64MiB"
[device.other]
path = "nbd+unix:///?socket=$dir/machine$2/leg.sock"
[device.volume]
path = "nbd+unix:///volume1?socket=$dir/machine$1/volume.sock"
[layer.cache]
kind = "log-cache"
log = ["own", "other"]
data = "volume"
idle-empty = "100ms"
END
}

machine_export() { # MACHINE: the command that serves the image to it
    echo "qemu-nbd --persistent --shared=8 --format=raw --cache=none --export-name=volume1 --socket=$dir/machine$1/volume.sock" \
        "--pid-file=$dir/qemu-nbd-m$1.pid --fork $("$storage" uri 1 "$dir")"
}

machine_leg() { # MACHINE: serves its leg to the other one
    rm -f "$dir/machine$1/leg.sock"
    nbdkit --unix "$dir/machine$1/leg.sock" --pidfile "$dir/leg$1.pid" file "$dir/machine$1/leg.img"
}

machine_dcd() { # MACHINE OPTIONS...
    rm -f "$dir/machine$1/front.sock"
    DCD_MACHINE=machine$1 DCD_STATE_DIR=$dir/machine$1/state "$dcd" serve --quiet "${@:2}" "$dir/machine$1/stack.toml" > "$dir/machine$1/said" 2>&1 &
    echo $! > "$dir/dcd$1.pid"
    disown
    for _ in $(seq 2400); do
        if [ -S "$dir/machine$1/front.sock" ]; then return; fi
        kill -0 "$(cat "$dir/dcd$1.pid")" 2> /dev/null || break
        sleep 0.05
    done
    cat "$dir/machine$1/said" >&2
    exit 1
}

machine_fio() { # MACHINE ROUND OPTIONS...
    fio --name=x --ioengine=nbd "--uri=nbd+unix:///?socket=$dir/machine$1/front.sock" --rw=randwrite --bs=4k --size=16M "--randseed=$2" --iodepth=8 \
        --end_fsync=1 --verify=crc32c --verify_state_save=0 --output="$dir/fio" "${@:3}"
}

take_overs() {
    local first=1 second=2 round
    export CEPH_CONF=$dir/ceph.conf
    machine_stack 1 2
    machine_stack 2 1
    truncate -s 64M "$dir/machine2/leg.img"
    machine_leg 2
    # The function prints a command, which runs here.
    # shellcheck disable=SC2091
    $(machine_export 1)
    DCD_MACHINE=machine1 DCD_STATE_DIR=$dir/machine1/state "$dcd" format "$dir/machine1/stack.toml" > "$dir/formatted" 2>&1 || { cat "$dir/formatted" >&2; exit 1; }
    machine_dcd 1
    for round in $(seq "$kills"); do
        machine_fio $first "$round" --do_verify=0
        # It goes on writing elsewhere when the link is cut.
        machine_fio $first 0 --offset=64M --do_verify=0 --time_based --runtime=100000 --output="$dir/fio.old" &
        local old=$!
        sleep 1
        stop_pid leg$second
        machine_dcd $second --take-over --fence "'$examples/ceph/fence' rbd/volume1 && $(machine_export $second)"
        machine_fio $second "$round" --verify_only || { echo "round $round:" >&2; cat "$dir/fio" >&2; exit 1; }
        # The first one lives, and the cluster does not let its server write.
        if fio --name=old --ioengine=nbd "--uri=nbd+unix:///volume1?socket=$dir/machine$first/volume.sock" --rw=write --bs=4k --size=4k --offset=400M \
            --end_fsync=1 --output="$dir/fio.fenced"; then
            echo "round $round: the first machine still writes to the volume" >&2
            exit 1
        fi
        kill -KILL $old
        wait $old 2> /dev/null || true
        stop_pid "dcd$first" KILL
        stop_pid "qemu-nbd-m$first" KILL
        # Its leg comes back, and is filled.
        machine_leg $first
        DCD_STATE_DIR=$dir/machine$second/state "$dcd" log add --quiet --force "$dir/machine$second/stack.toml" other > "$dir/added" 2>&1 ||
            { cat "$dir/added" >&2; exit 1; }
        machine_fio $second "$round" --verify_only || { echo "round $round:" >&2; cat "$dir/fio" >&2; exit 1; }
        read -r first second <<< "$second $first"
    done
    echo "$kills take-overs while the other machine lived: nothing lost"
}

trap clean EXIT
trap 'exit 130' INT TERM
"$storage" up "$dir" > "$dir/up.said"
case $command in
    measure)
        start_export 1
        make_stack
        start_dcd
        start_export 2
        measure
        ;;
    kills)
        start_export 1
        make_stack
        start_dcd
        under_fio qemu-nbd-1 start_export 1
        for part in $parts; do under_fio "$part" "$storage" start "$part" "$dir"; done
        kill_dcd
        ;;
    take-over) take_overs ;;
    *) usage ;;
esac
