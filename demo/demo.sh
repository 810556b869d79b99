#!/usr/bin/env bash
# A file system on a modelled 7200 rpm disk: plain, and behind dcd with a log on the same disk.
#
# Each disk is the same model, paced in real time, over a sparse file in memory, if there is room. Its first 64 MiB are the log (unused on the plain
# disk), the rest is the data disk: an ext2 for the tree of files and an ext4 for SQLite. The kernel reaches them through the
# best front-end that it has: ublk, its NBD client, or FUSE; and loop, for the two parts. The ext2 is mounted with dirsync: metadata is written synchronously, as in the DCD paper.
#
# usage: demo.sh PROGRAM
#   USERS=4       that many users at once, each with a tree of its own
#   DISKS="..."   which disks, of: host plain flush always; host is the image without a model: what the machine itself takes
#   DRIVE=...     which drive (barracuda-1996, nearline-2018, a drive file)
#   FRONT_END=... which front-end: ublk, nbd or fuse (default: the first of them that the kernel has)
#   REPORT=FILE   where the report goes
#   TMPDIR=...    where the images go (default: /dev/shm, or /var/tmp where memory is short)
set -euo pipefail

dcd=$(realpath "${1:?usage: demo.sh PROGRAM}")
here=$(realpath "$(dirname "$0")")
users=${USERS:-1}
disks=${DISKS:-host plain flush always}
report=${REPORT:-$(dirname "$here")/target/demo-report.html}
drive=${DRIVE:-nearline-2018}
commits=100

log_mib=64
tree_mib=1792
sql_mib=192
data_mib=$((tree_mib + sql_mib))

export PATH=$PATH:/usr/sbin:/sbin

# shellcheck source=scripts/modelled-disk.sh
. "$here/../scripts/modelled-disk.sh"

# ---------------------------------------------------------------- where it cannot run for real

missing=()
if [ "$(id -u)" -eq 0 ]; then
    front_end=${FRONT_END:-$(find_front_end)}
    [ -n "$front_end" ] || missing+=("ublk, NBD or /dev/fuse")
else
    missing+=("root")
fi
[ -w /dev/loop-control ] || missing+=("/dev/loop-control")
for tool in losetup mkfs.ext2 mkfs.ext4 sqlite3 tar; do
    command -v $tool > /dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "No real file system here: missing ${missing[*]}."
    echo "Untar, copy and remove in virtual time instead, by a model of FFS:"
    echo
    exec "$dcd" study run dcd-nuser --set users=1 --set disks=plain,"ours flush" --set runs=1 --out "$(dirname "$report")"
fi

# ---------------------------------------------------------------- cleaning up, also when interrupted

work=$(mktemp -d "${TMPDIR:-$(place_of_images 1500)}/dcd-demo.XXXXXX")
# Records and events go with the images.
export DCD_STATE_DIR=$work/state
stop_disk() { stop_server "$work/tree" "$work/sql"; }

clean_up() {
    local status=$?
    trap - EXIT INT TERM HUP
    set +e
    jobs -p | grep -vx "${server:-none}" | while read -r job; do kill "$job" 2> /dev/null; done
    sleep 0.2
    stop_disk
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---------------------------------------------------------------- pieces

is_cached() { [ "$1" != host ] && [ "$1" != plain ]; }

describe_disk() { # NAME: its stack file
    cat << STACK
export = "$(is_cached "$1" && echo cache || echo data)"

$(describe_serving)

[device.image]
path = "$1.img"

$([ "$1" = host ] || printf '[layer.disk]\nkind = "disk"\nof = "image"\ndrive = "%s"' "$drive")

[layer.data]
kind = "slice"
of = "$([ "$1" = host ] && echo image || echo disk)"
first = "${log_mib}MiB"
STACK
    is_cached "$1" || return 0
    cat << STACK

[layer.log]
kind = "slice"
of = "disk"
size = "${log_mib}MiB"

[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
promise = "$1"
STACK
}

make_disk() { # NAME: file systems are there before the cache is attached, and are there after it is detached
    truncate -s $((log_mib + data_mib))M "$work/$1.img"
    mkfs.ext2 -q -F -N 32768 -E offset=$((log_mib << 20)) "$work/$1.img" ${tree_mib}M
    mkfs.ext4 -q -F -E offset=$(((log_mib + tree_mib) << 20)),lazy_itable_init=0 "$work/$1.img" ${sql_mib}M
    describe_disk "$1" > "$work/$1.toml"
    ! is_cached "$1" || "$dcd" format "$work/$1.toml"
}

start_disk() { # NAME
    mkdir -p "$work/tree" "$work/sql"
    start_server "$1"
    loop_device "$image" 0 $tree_mib
    tree_loop=$loop
    loop_device "$image" $tree_mib $sql_mib
    sql_loop=$loop
}

for_users() { # COMMAND: once for each user, at the same time; {} is the user's directory
    local user jobs=()
    for user in $(seq "$users"); do
        bash -c "exec ${1//\{\}/$work/tree/user$user}" &
        jobs+=($!)
    done
    wait "${jobs[@]}"
}

measure() { # DISK PHASE COMMAND: on a freshly mounted file system, so that nothing is cached
    mount -o dirsync "$tree_loop" "$work/tree"
    "$dcd" status --reset "$work/$1.toml" > /dev/null
    local begin end
    begin=$(now)
    for_users "$3"
    sync -f "$work/tree"
    end=$(now)
    note "$1" "$2" "$begin" "$end"
    umount "$work/tree"
}

note() { # DISK PHASE BEGIN END
    local seconds
    seconds=$(awk "BEGIN { print $4 - $3 }")
    echo "$1 $2 $seconds" >> "$work/seconds"
    [ "$1" = host ] || printf '{"disk":"%s","phase":"%s","seconds":%s,"status":%s}\n' \
        "$1" "$2" "$seconds" "$("$dcd" status --json "$work/$1.toml")" >> "$work/results"
    printf '  %-8s %6.2f s\n' "$2" "$seconds"
}

measure_sql() { # DISK
    mount "$sql_loop" "$work/sql"
    sqlite3 "$work/sql/db" 'CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT);'
    sync -f "$work/sql"
    "$dcd" status --reset "$work/$1.toml" > /dev/null
    local begin end
    begin=$(now)
    for i in $(seq $commits); do
        echo "BEGIN; INSERT INTO t VALUES ($i, printf('%0500d', $i)); COMMIT;"
    done | sqlite3 "$work/sql/db"
    end=$(now)
    note "$1" sqlite "$begin" "$end"
    umount "$work/sql"
}

check_tree() { # DIRECTORY WHAT: every file's content is what was packed
    local user
    for user in $(seq "$users"); do
        diff -r "$work/original/tree" "$1/user$user/$2" || { echo "wrong content in user$user/$2" >&2; exit 1; }
    done
}

check_sql() { # DIRECTORY
    local sum
    sum=$(sqlite3 "file:$1/db?mode=ro&immutable=1" 'PRAGMA integrity_check; SELECT count(*), sum(id), sum(length(body)) FROM t;' | tr '\n' ' ')
    if [ "$sum" != "ok $commits|$((commits * (commits + 1) / 2))|$((commits * 500)) " ]; then
        echo "wrong content in the database: $sum" >&2
        exit 1
    fi
}

check_bare() { # NAME: the data disk alone, without dcd
    loop_device "$work/$1.img" $log_mib $tree_mib
    e2fsck -f -n "$loop" > "$work/fsck" 2>&1 || { cat "$work/fsck" >&2; exit 1; }
    mount -o ro "$loop" "$work/tree"
    check_tree "$work/tree" tree
    umount "$work/tree"
    loop_device "$work/$1.img" $((log_mib + tree_mib)) $sql_mib
    mount -o ro "$loop" "$work/sql"
    check_sql "$work/sql"
    umount "$work/sql"
    stop_disk
}

run_disk() { # NAME
    echo "$1"
    make_disk "$1"
    start_disk "$1"
    mount "$tree_loop" "$work/tree"
    for user in $(seq "$users"); do mkdir "$work/tree/user$user"; done
    umount "$work/tree"
    measure "$1" untar "tar -xf $work/tree.tar -C {}"
    measure "$1" copy 'cp -r {}/tree {}/copy'
    mount -o ro "$tree_loop" "$work/tree"
    check_tree "$work/tree" copy
    umount "$work/tree"
    measure "$1" remove 'rm -r {}/copy'
    measure_sql "$1"
    mount -o ro "$tree_loop" "$work/tree"
    check_tree "$work/tree" tree
    umount "$work/tree"
    stop_disk
    if ! is_cached "$1"; then
        check_bare "$1"
        echo "  every file has its content"
    else
        "$dcd" detach --quiet "$work/$1.toml"
        check_bare "$1"
        echo "  every file has its content, also on the bare disk after detaching"
    fi
    rm "$work/$1.img"
}

# Names the figures of which the machine took at least half.
say_host() {
    awk '
        $1 == "host" { host[$2] = $3; next }
        $2 in host && 2 * host[$2] >= $3 { spoiled = spoiled sprintf("\n  %s, %s: %.2f of %.2f s", $1, $2, host[$2], $3) }
        END {
            if (spoiled) print "The machine itself, not the disk, takes at least half of these figures. They do not show what dcd does:" spoiled
        }' "$work/seconds"
}

# ---------------------------------------------------------------- the demonstration

mkdir -p "$work/original" "$(dirname "$report")"
"$dcd" demo tree "$work/original"
tar -cf "$work/tree.tar" -C "$work/original" tree
say_place_of_images
for disk in $disks; do run_disk "$disk"; done
echo
"$dcd" demo report "$work/results" --report "$report" --users "$users" --drive "$drive" --front-end "$front_end"
say_host
