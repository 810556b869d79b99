# shellcheck shell=bash
# A stack over images of this machine, served to its kernel: what demo.sh and apps.sh share. The caller sets $dcd (the program), $work (its
# directory, with NAME.toml for each stack) and $front_end, and calls stop_server when it ends.

find_front_end() {
    modprobe -q ublk_drv 2> /dev/null || true
    [ ! -w /dev/ublk-control ] || { echo ublk; return; }
    modprobe -q nbd 2> /dev/null || true
    [ ! -b /dev/nbd0 ] || { echo nbd; return; }
    [ ! -w /dev/fuse ] || echo fuse
}

# The directory for images. In memory where there is room: a disk below the images would add its own times to those of the model.
place_of_images() { # MIB
    local free
    free=$(df --output=avail --block-size=1M /dev/shm 2> /dev/null | tail -n 1)
    if [ "${free:-0}" -ge "$1" ] && awk -v room="$1" '/^MemAvailable:/ { exit !($2 >= 2 * room * 1024) }' /proc/meminfo; then
        echo /dev/shm
    else
        echo /var/tmp
    fi
}

say_place_of_images() {
    echo "front-end: $front_end; images in $(dirname "$work"); $(nproc) processors, load $(cut -d ' ' -f 1-3 /proc/loadavg)"
    if [ "$(stat -f -c %T "$work")" != tmpfs ]; then
        echo "These images are not in memory, and their disk adds its own times. TMPDIR names another directory."
    fi
}

now() { date +%s.%N; }

describe_serving() { # the table [serve] of a stack file
    local place
    case $front_end in
        ublk) place=true ;;
        nbd) place='"unix:nbd"' ;;
        fuse) place='"fuse"' ;;
    esac
    printf '[serve]\n%s = %s\ncontrol = "control"\n' "$front_end" "$place"
}

server=
loops=()

start_server() { # NAME: sets $image, which the kernel reaches
    mkdir -p "$work/fuse"
    stack=$work/$1.toml
    : > "$work/$1.ready"
    "$dcd" serve --quiet "$stack" > "$work/$1.ready" &
    server=$!
    while [ ! -s "$work/$1.ready" ]; do
        kill -0 "$server" 2> /dev/null || { echo "the server of $1 ended" >&2; exit 1; }
        sleep 0.02
    done
    case $front_end in
        fuse) image=$(find "$work/fuse" -type f | head -n 1) ;;
        *) image=$("$dcd" attach "$stack") ;;
    esac
}

loop_device() { # FILE OFFSET_MIB SIZE_MIB: sets $loop
    loop=$(losetup --find --show --direct-io=on --offset $(($2 << 20)) --sizelimit $(($3 << 20)) "$1")
    loops+=("$loop")
    if [ "$(losetup --noheadings --output DIO "$loop" | tr -d ' ')" != 1 ]; then
        echo "direct I/O did not take on $loop: its page cache would hide the disk" >&2
        exit 1
    fi
}

# A mount whose server is dead is no mountpoint to mountpoint(1).
is_mounted() { grep -q " $1 " /proc/mounts; }

stop_server() { # MOUNTS...
    local mount loop
    for mount in "$@"; do
        if is_mounted "$mount"; then umount "$mount" || umount -l "$mount" || true; fi
    done
    for loop in ${loops[@]+"${loops[@]}"}; do losetup -d "$loop" 2> /dev/null || true; done
    # A loop device lets go of its file a little later.
    for loop in ${loops[@]+"${loops[@]}"}; do
        for _ in $(seq 100); do losetup "$loop" > /dev/null 2>&1 || break; sleep 0.05; done
    done
    loops=()
    if [ -n "$server" ]; then
        [ "$front_end" != nbd ] || "$dcd" attach --release "$stack" || true
        kill -TERM "$server" 2> /dev/null || true
        wait "$server" || true
        server=
    fi
    if is_mounted "$work/fuse"; then umount -l "$work/fuse" || true; fi
}
