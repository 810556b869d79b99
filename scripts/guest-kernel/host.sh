# shellcheck shell=bash disable=SC2154,SC2034 # the caller sets and uses some
# The host's half of what is tested or measured under a kernel of its own: the working directory, the servers of modelled disks, the
# kernel as a process, and the end of all of them. guest.sh is the other half.
#
# The caller sets: dcd (a program that knows modelled disks), seconds_max (a run that takes longer has hung), and exports (the names of
# the disks' servers).

export PATH=$PATH:/usr/sbin:/sbin
work=
servers=()
storage=
machine=
booted=()
# A subshell with servers and a machine of its own.
running=
exports=()

begin_work() { # NAME: makes $work, which goes away at the end, as all servers do, also when interrupted
    work=$(mktemp -d "/dev/shm/dcd-$1.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# What cannot be had, one a line: the tools among the arguments, root, FUSE, and MIB of RAM for the disks.
missing_things() { # MIB TOOL...
    local tool room mib=$1
    shift
    [ "$(id -u)" -eq 0 ] || echo "root"
    [ -w /dev/fuse ] || echo "/dev/fuse"
    for tool in "$@"; do
        command -v "$tool" > /dev/null || echo "$tool"
    done
    room=$(df --output=avail --block-size=1M /dev/shm 2> /dev/null | tail -1)
    [ "${room:-0}" -ge "$mib" ] || echo "$mib MiB in /dev/shm"
}

skip_if_missing() { # WHAT-IS-NOT-DONE: ends the script if something is in $missing
    [ ${#missing[@]} -gt 0 ] || return 0
    (IFS=,; echo "SKIPPED: $1; missing: ${missing[*]}")
    exit 0
}

stop_all() {
    # The machine has children of its own, all in its process group.
    if [ -n "$machine" ]; then
        kill -KILL -- "-$machine" 2> /dev/null || true
        wait "$machine" 2> /dev/null || true
        machine=
    fi
    if [ -n "$storage" ]; then
        kill "$storage" 2> /dev/null || true
        wait "$storage" 2> /dev/null || true
        storage=
    fi
    local server
    for server in ${servers[@]+"${servers[@]}"}; do
        kill -TERM "$server" 2> /dev/null || true
        wait "$server" || true
    done
    servers=()
    local mount
    for mount in "$work"/*.fuse; do
        if mountpoint -q "$mount"; then umount -l "$mount" || true; fi
    done
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM HUP
    set +e
    if [ -n "$running" ]; then
        kill "$running"
        wait "$running"
    fi
    stop_all
    rm -rf "$work"
    exit "$status"
}

fail() {
    echo "NOT MEASURED: $*" >&2
    exit 1
}

serve_section() { # NAME EXPORT
    printf 'export = "%s"\n[serve]\nfuse = "%s.fuse"\ncontrol = "%s.control"\n' "$2" "$1" "$1"
}

start_server() { # NAME
    mkdir -p "$work/${1#make-}.fuse"
    rm -f "$work/$1.ready"
    "$dcd" serve --quiet "$work/$1.toml" > "$work/$1.ready" 2> "$work/$1.log" &
    servers+=($!)
    for _ in $(seq 1000); do
        [ -s "$work/$1.ready" ] && return
        kill -0 "${servers[-1]}" 2> /dev/null || break
        sleep 0.02
    done
    fail "the server of $1 does not start: $(tail -n 3 "$work/$1.log")"
}

image_of() { # NAME: the image file that a server shows
    find "$work/$1.fuse" -type f
}

# Shows files to a user-mode kernel as virtio disks, in the order given, and sets $devices to its arguments for them.
start_storage() { # ID FILE BLOCKDEV-OPTIONS, again and again
    local id arguments=()
    devices=()
    while [ $# -gt 0 ]; do
        id=$1
        arguments+=(--blockdev "driver=file,node-name=$id,filename=$2,$3")
        arguments+=(--export "type=vhost-user-blk,id=$id,node-name=$id,addr.type=unix,addr.path=$work/$id.vhost,writable=on")
        devices+=("virtio_uml.device=$work/$id.vhost:2")
        rm -f "$work/$id.vhost"
        shift 3
    done
    qemu-storage-daemon "${arguments[@]}" 2> "$work/storage.log" &
    storage=$!
    for _ in $(seq 500); do
        [ -S "$work/$id.vhost" ] && return
        kill -0 "$storage" 2> /dev/null || break
        sleep 0.02
    done
    fail "qemu-storage-daemon does not start: $(cat "$work/storage.log")"
}

start_machine() { # PROGRAM ARGUMENT...: boots a kernel that writes "begun" to $work, and at the end "done" or "failed"
    booted=("$@")
    rm -f "$work/done" "$work/failed" "$work/stuck" "$work/begun"
    setsid "$@" > "$work/machine.log" 2>&1 < /dev/null &
    machine=$!
}

# A user-mode kernel with the host's files as its root, whose first program is a script with WORK and the variables given.
start_user_mode() { # SCRIPT VARIABLE=VALUE...
    local script=$1
    shift
    start_machine linux.uml mem=1G root=/dev/root rootfstype=hostfs rootflags=/ ro "init=$script" "WORK=$work" \
        "SECONDS_MAX=$seconds_max" "$@" "uml_dir=$work/uml" con=null con0=null,fd:1 ${devices[@]+"${devices[@]}"}
}

hung() { # SETUP
    local name
    cat "$work/stuck" "$work/machine.log" >&2 || true
    for name in ${exports[@]+"${exports[@]}"}; do "$dcd" status --json "$work/$name.toml" >&2 || true; done
    fail "$1 took more than $seconds_max s; which disks owe an answer, who waits, and what the servers know, is above"
}

# Waits for the machine's end; COMMAND runs again and again meanwhile. An emulated kernel that stops before anything of ours has run in
# it is booted once more.
watch_machine() { # SETUP COMMAND [again]
    local again=${3:-}
    local end=$((SECONDS + seconds_max))
    while kill -0 "$machine" 2> /dev/null && [ ! -e "$work/done" ] && [ ! -e "$work/failed" ]; do
        [ $SECONDS -lt $end ] || hung "$1"
        "$2"
        sleep 0.02
    done
    if [ -e "$work/failed" ]; then fail "$1: $(cat "$work/failed")"; fi
    [ -e "$work/done" ] && return
    if [ -z "$again" ] && [ ! -e "$work/begun" ]; then
        echo "$1: the kernel stopped as it came up, and is booted once more: $(tail -n 40 "$work/machine.log")" >&2
        start_machine "${booted[@]}"
        watch_machine "$1" "$2" again
        return
    fi
    fail "$1: the kernel stopped: $(tail -n 40 "$work/machine.log")"
}

# As watch_machine, and shows each line that the guest writes to $work/results.
watch_results() { # SETUP
    : > "$work/results"
    shown=0
    watch_machine "$1" show_results
    show_results
}

show_results() {
    local lines
    lines=$(wc -l < "$work/results")
    [ "$lines" -gt "$shown" ] || return 0
    tail -n +$((shown + 1)) "$work/results" | head -n $((lines - shown))
    shown=$lines
}

# A run in which no flush came to a disk kept no promise.
check_flushes() { # SETUP NAME
    local flushes
    flushes=$("$dcd" status --json "$work/$2.toml" | grep -o '"flush":{[^}]*"count":[0-9]*' | tail -n 1 | grep -o '[0-9]*$')
    [ "${flushes:-0}" -gt 0 ] || fail "$1: no flush came to $2, so it is no comparison"
}

# For awk: the median of some values, the lowest and the highest.
summary='function summary(values, n, form,    i, j, t) {
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && values[j - 1] > values[j]; j--) { t = values[j]; values[j] = values[j - 1]; values[j - 1] = t }
    return sprintf(form " (" form " to " form ")", (values[int((n + 1) / 2)] + values[int((n + 2) / 2)]) / 2, values[1], values[n])
}'
