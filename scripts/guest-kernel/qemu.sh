# shellcheck shell=bash disable=SC2154,SC2034 # the caller sets and uses some
# Debian's 6.12 kernel in qemu, under software emulation, for scripts that have host.sh: its packages, unpacked and not installed, an
# initramfs with the modules that a guest needs, and the start of the machine. The host's files are the guest's root, read only.

packages=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")/target/guest-kernel
mkdir -p "$packages"
# The kernel's release: have_kernel finds it.
release=
# Modules that are not of the kernel's package.
more_modules=()
# How the guest's processors are emulated, and which they are.
emulation=(-accel "tcg,thread=multi" -smp 2)
processor=max
ram=1G
# The serial numbers of disks, for /dev/disk/by-id.
disk_names=()
# Arguments for devices that are no virtio disks.
more_devices=()

unpack() { # PACKAGE: into $packages/root, once
    [ -e "$packages/$1.unpacked" ] && return
    rm -rf "$packages/download"
    mkdir -p "$packages/download" "$packages/root"
    (cd "$packages/download" && apt-get download -q "$1") > "$packages/download.log" 2>&1 || return
    dpkg -x "$packages"/download/*.deb "$packages/root" || return
    rm -rf "$packages/download"
    touch "$packages/$1.unpacked"
}

depends_on() { # PACKAGE PATTERN: the packages that it needs
    apt-cache depends "$1" 2> /dev/null | sed -n "s/^ *|*Depends: \\($2\\)\$/\\1/p"
}

# Sets $release to the newest 6.12 kernel that Debian offers, and unpacks it.
have_kernel() {
    local package
    command -v apt-get > /dev/null && command -v dpkg > /dev/null || return
    package=$(depends_on linux-image-6.12-amd64 'linux-image-6\.12.*' | tail -n 1)
    [ -n "$package" ] || package=$(depends_on linux-image-amd64 'linux-image-6\.12.*' | tail -n 1)
    # The lists may be missing, but a kernel that is there from the last time will do.
    [ -n "$package" ] || package=$(cat "$packages/kernel" 2> /dev/null)
    [ -n "$package" ] && unpack "$package" || return
    echo "$package" > "$packages/kernel"
    release=${package#linux-image-}
    depmod -b "$packages/root" "$release" 2> "$packages/depmod.log"
}

# The modules in the order in which they have to be loaded.
put_modules() { # MODULE...
    local root=$work/initramfs module file number=100
    mkdir -p "$root"/{bin,proc,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in "$@" virtio_pci virtio_blk 9pnet_virtio 9p; do
        modprobe -d "$packages/root" -S "$release" --show-depends "$module" 2> "$work/modprobe.log" || fail "$(cat "$work/modprobe.log")"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' > "$work/modules"
    while read -r file; do
        number=$((number + 1))
        module=$root/modules/$number-$(basename "${file%.xz}")
        case $file in
            *.xz) xz -dc "$file" > "$module" ;;
            *) cp "$file" "$module" ;;
        esac
    done < "$work/modules"
    for file in ${more_modules[@]+"${more_modules[@]}"}; do cp "$file" "$root/modules/999-$(basename "$file")"; done
}

pack_initramfs() {
    chmod +x "$work/initramfs/init"
    (cd "$work/initramfs" && find . | LC_ALL=C sort | cpio -o -H newc --reproducible --quiet) > "$work/initramfs.cpio"
}

# A first program that mounts the host's files.
make_initramfs() { # MODULE...
    put_modules "$@"
    mkdir -p "$work/initramfs/host"
    cat > "$work/initramfs/init" << 'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
for module in /modules/*; do /bin/busybox insmod "$module" || echo "insmod $module failed"; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro host /host || echo "no host"
exec /bin/busybox switch_root /host /bin/sh "$SCRIPT"
INIT
    pack_initramfs
}

# Files of the host for a guest that has them all in RAM, programs with their libraries; a directory is copied whole. It is called first.
put_files() { # FILE...
    local root=$work/initramfs directory file
    mkdir -p "$root"
    for directory in bin sbin lib lib64; do
        mkdir -p "$root/usr/$directory"
        [ -e "$root/$directory" ] || ln -s "usr/$directory" "$root/$directory"
    done
    for file in "$@"; do
        [ -d "$file" ] || ldd "$file" 2> "$work/ldd.log" | grep -o '/[^ ]*' || true
        echo "$file"
    done | sort -u > "$work/files"
    while read -r file; do
        [ ! -e "$root$file" ] || continue
        mkdir -p "$root$(dirname "$file")"
        cp -rL "$file" "$root$file"
    done < "$work/files"
}

# A first program that has all it needs, so that nothing of the host's time gets into the guest's.
make_whole_initramfs() { # MODULE...
    put_modules "$@"
    mkdir -p "$work/initramfs"/{mnt,dev,sys,tmp,run,var/lib}
    cat > "$work/initramfs/init" << 'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /usr/bin 2> /dev/null
mount -t proc none /proc
for module in /modules/*; do insmod "$module" || echo "insmod $module failed"; done
exec sh "$SCRIPT"
INIT
    pack_initramfs
}

start_qemu() { # SCRIPT VARIABLES DISK-FILE...: boots with these as virtio disks; the first has O_DIRECT
    local script=$1 variables=$2 id=0 file options arguments=()
    shift 2
    for file in "$@"; do
        id=$((id + 1))
        options=cache.direct=on,aio=native
        [ $id -eq 1 ] || options=cache.direct=off,aio=threads
        arguments+=(-blockdev "driver=file,node-name=disk$id,filename=$file,$options")
        arguments+=(-device "virtio-blk-pci,drive=disk$id,write-cache=on${disk_names[id - 1]:+,serial=${disk_names[id - 1]}}")
    done
    start_machine qemu-system-x86_64 "${emulation[@]}" -cpu "$processor" -m "$ram" -nodefaults -nographic -no-reboot -serial stdio \
        -kernel "$packages/root/boot/vmlinuz-$release" -initrd "$work/initramfs.cpio" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off SCRIPT=$script SECONDS_MAX=$seconds_max $variables" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$work,mount_tag=work,security_model=none" \
        ${arguments[@]+"${arguments[@]}"} ${more_devices[@]+"${more_devices[@]}"}
}
