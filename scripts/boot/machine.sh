#!/bin/sh
# shellcheck disable=SC2153,SC2154 # of the unit
# What the machine of boot.sh does, each time that it is started: a service of systemd that comes after everything else. It comes with HERE, START
# and SECONDS_MAX.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
export PATH=/usr/local/bin:$PATH
data=/dev/disk/by-id/virtio-data
log=/dev/disk/by-id/virtio-log

# All that could have gone wrong.
report() {
    systemctl --no-pager status dcd@disk.service srv.mount dev-dcd-disk.device 2>&1 | head -n 60
    systemctl list-jobs --no-pager 2>&1
    ls -l /dev/dcd /dev/disk/by-id 2>&1
    tail -n 5 /run/dcd-ublk/* 2>&1
    udevadm test /sys/block/ublkb0 2>&1 | tail -n 60
}

wait_until() { # COMMAND...
    looks=0
    until "$@" > /dev/null 2>&1; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || die "not after 60 s: $*: $(report)"
        sleep 0.1
    done
}

install_deb() { # VERSION
    dpkg -i /mnt/dcd_"$1"_*.deb > /tmp/dpkg.log 2>&1 || die "dpkg -i: $(cat /tmp/dpkg.log)"
}

server_of() { systemctl show -P MainPID "dcd@$1"; }

refused() { # PATTERN COMMAND...
    pattern=$1
    shift
    "$@" > /tmp/refused 2>&1
    status=$?
    { [ $status -eq 1 ] && grep -q "$pattern" /tmp/refused; } || die "$*: exit $status, not 1 with \"$pattern\": $(cat /tmp/refused)"
}

fstab() { # OPTIONS
    echo "/dev/dcd/disk /srv ext4 $1 0 2" > /etc/fstab
    sync
}

write_files() { # NAME
    mkdir "/srv/$1"
    cp -r /etc "/srv/$1/"
    (cd /srv && find . -type f -exec sha256sum {} +) > /root/sums
    grep -q "/$1/" /root/sums || die "no files were written"
    sync
}

check_files() {
    [ -s /root/sums ] || die "there are no sums"
    (cd /srv && sha256sum --quiet -c /root/sums) > /tmp/compared 2>&1 || die "files have changed: $(head -n 3 /tmp/compared)"
}

is_dirty() { dcd status --json /etc/dcd/disk.toml | grep -qE '"dirty_bytes":[1-9]'; }

# The next boots have a server that takes longer to start than systemd waits for anything by itself, as after a crash with a large log on a disk
# that turns. The waiting is made short in place of making the start as long as that.
start_slowly() {
    mkdir -p /etc/systemd/system/dcd@disk.service.d
    printf '[Manager]\nDefaultTimeoutStartSec=5s\nDefaultDeviceTimeoutSec=5s\n' > /etc/systemd/system.conf.d/impatient.conf
    printf '[Service]\nExecStartPre=/bin/sleep 12\n' > /etc/systemd/system/dcd@disk.service.d/slow.conf
}

start_as_usual() {
    rm /etc/systemd/system.conf.d/impatient.conf /etc/systemd/system/dcd@disk.service.d/slow.conf
    systemctl daemon-reload
}

done_so_far() {
    sync
    : > /mnt/done
}

# A new stack, by names that stay.
start_1() {
    wait_until test -e $data -a -e $log
    install_deb 0.1
    # What the machine is started from gets no cache.
    mount /dev/vdc /boot
    refused "/dev/disk/by-id/virtio-root has /boot of this machine on it. dcd is started from there" \
        dcd format --log $log --data /dev/disk/by-id/virtio-root --stack /etc/dcd/disk.toml
    umount /boot
    echo "/dev/dcd/disk / ext4 defaults 0 1" > /etc/fstab
    refused "/ is on /dev/dcd/disk: dcd is started from there" dcd doctor

    part_zoned
    part_udev
    part_create
    dcd format --log $log --data $data --stack /etc/dcd/disk.toml || die "dcd format fails"
    part_package
    # Nothing is destaged before the log is nearly full.
    sed -i 's/^nbd = .*/ublk = true/; s/^promise = .*/&\nwhen = "high-low"/' /etc/dcd/disk.toml
    systemctl enable dcd@disk || die "the unit cannot be enabled"
    systemctl start dcd@disk || die "the server does not start: $(report)"
    # The start has waited for the device, and so does udev here.
    udevadm settle
    [ "$(readlink -f /dev/dcd/disk)" = /dev/ublkb0 ] || die "there is no name: $(report)"
    systemctl show -p StatusText dcd@disk | grep -q 'ublk /dev/ublkb0' || die "no status: $(systemctl show -p StatusText dcd@disk)"
    # The directory of all sockets does not go with one of them.
    start_other
    systemctl stop dcd@other
    dcd status /etc/dcd/disk.toml > /dev/null || die "the first one is not reached any more"

    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/dcd/disk || die "no file system"
    check_names /dev/ublkb0
    fstab nofail
    systemctl daemon-reload
    systemctl start srv.mount || die "not mounted: $(report)"
    write_files first
    is_dirty || die "nothing is dirty: $(dcd status /etc/dcd/disk.toml)"
    start_slowly
    done_so_far
    systemctl poweroff
}

# The two commands: a mounted file system after one, and the plain disk with it after the other. A second disk comes and goes beside it.
part_create() {
    dcd create disk --data $data --log $log > /tmp/created 2>&1 || die "dcd create: $(cat /tmp/created) $(report)"
    grep -q 'in /etc/fstab: /dev/dcd/disk ' /tmp/created || die "the line for fstab is not told: $(cat /tmp/created)"
    [ "$(readlink -f /dev/dcd/disk)" = /dev/ublkb0 ] || die "there is no name: $(report)"
    systemctl -q is-enabled dcd@disk || die "it is not served at the next boot"
    mkfs.ext4 -q /dev/dcd/disk && mount /dev/dcd/disk /srv || die "no file system"
    echo created > /srv/file
    dcd create more --data /dev/vdd --log disk > /tmp/created 2>&1 || die "a second disk: $(cat /tmp/created) $(report)"
    wait_until test -b /dev/dcd/disk-more
    dcd remove disk --disk more > /tmp/removed 2>&1 || die "the second disk stays: $(cat /tmp/removed)"
    dcd remove disk > /tmp/removed 2>&1 && die "it was removed below a file system: $(cat /tmp/removed)"
    umount /srv
    dcd remove disk > /tmp/removed 2>&1 || die "dcd remove: $(cat /tmp/removed)"
    systemctl -q is-enabled dcd@disk && die "it is still served at boots"
    [ ! -e /etc/dcd/disk.toml ] && mount -o ro $data /srv && grep -q created /srv/file || die "the disk is not plain: $(report)"
    umount /srv
}

# The package goes and comes, and the log stays. It does not go while a stack is served.
part_package() {
    systemctl start dcd@disk || die "the server does not start: $(report)"
    refused "dcd is not removed: it serves these stacks" dpkg -r dcd
    dcd status /etc/dcd/disk.toml > /dev/null || die "the server has gone with a package that was not removed"
    dcd flush /etc/dcd/disk.toml || die "dcd flush fails"
    dcd stop /etc/dcd/disk.toml || die "dcd stop fails"
    sha256sum $log /etc/dcd/disk.toml /var/lib/dcd/*.dcd > /tmp/before || die "there is no record"
    dpkg -r dcd > /tmp/dpkg.log 2>&1 || die "dpkg -r: $(cat /tmp/dpkg.log)"
    grep -q '/var/lib/dcd/.*virtio-data.*.dcd' /tmp/dpkg.log || die "the disk with a cache is not named: $(cat /tmp/dpkg.log)"
    grep -q 'run: dcd detach /etc/dcd/disk.toml' /tmp/dpkg.log || die "the way to a plain disk is not told: $(cat /tmp/dpkg.log)"
    systemctl enable dcd@disk > /dev/null 2>&1 && die "the unit is left"
    dpkg -P dcd > /tmp/dpkg.log 2>&1 || die "dpkg -P: $(cat /tmp/dpkg.log)"
    for kept in /etc/dcd /var/lib/dcd; do
        grep -q "$kept is kept" /tmp/dpkg.log || die "that $kept is kept is not told: $(cat /tmp/dpkg.log)"
    done
    [ -z "$(find /usr/bin/dcd /usr/lib/systemd/system /usr/lib/udev/rules.d /usr/share/doc/dcd -name '*dcd*' 2> /dev/null)" ] || die "something is left"
    sha256sum --quiet -c /tmp/before || die "a purge has changed a log, a stack file or a record"
    install_deb 0.1
    dcd check /etc/dcd/disk.toml > /dev/null || die "dcd check fails"
}

property() { # DEVICE NAME
    udevadm info -q property "$1" | sed -n "s/^$2=//p"
}

# The file system of a disk is seen, or it is hidden: by udev now, and at the next start of the machine.
seen_as() { # seen|hidden DEVICE
    for _ in now coldplug; do
        udevadm settle
        uuid=$(blkid -p -s UUID -o value "$2")
        links=$(ls -l /dev/disk/by-uuid 2>&1)
        linked=$(readlink -f "/dev/disk/by-uuid/$uuid")
        case $1 in
            seen) [ "$(property "$2" ID_FS_TYPE)" = ext4 ] && [ "$linked" = "$2" ] && [ "$(property "$2" SYSTEMD_READY)" != 0 ] ;;
            hidden) [ -z "$(property "$2" ID_FS_TYPE)" ] && [ "$linked" != "$2" ] && [ "$(property "$2" SYSTEMD_READY)" = 0 ] ;;
        esac || die "$2 is not $1: $links $(udevadm info "$2"; ls -l /var/lib/dcd; grep -h '"names"' -A9 /var/lib/dcd/*)"
        udevadm trigger --action=add --name-match="$2"
    done
    udevadm settle
}

cache_of() { # NAME DATA
    dcd format --log "/root/$1.log" --log-size 4MiB --data "$2" --stack "/root/$1.toml" > /tmp/made || die "dcd format: $(cat /tmp/made)"
}

# udev hides what is on a disk from the moment that it has a cache, whatever kind of disk it is, and shows it when the cache is gone.
part_udev() {
    modprobe scsi_debug dev_size_mb=64 || die "no scsi_debug"
    wait_until test -b /dev/sda -a -b /dev/nvme0n1 -a -b /dev/vdd -a -b /dev/vde
    printf 'label: gpt\n,24M\n,\n' | sfdisk -q /dev/sda || die "no partitions"
    udevadm settle
    for disk in /dev/sda1 /dev/sda2 /dev/nvme0n1 /dev/vdd /dev/vde; do
        mkfs.ext4 -q "$disk" || die "no file system on $disk"
        seen_as seen "$disk"
    done

    cache_of part /dev/sda1
    seen_as hidden /dev/sda1
    seen_as seen /dev/sda2
    [ -n "$(find /dev/disk/by-id -lname '*/sda1')" ] || die "sda1 has lost its own names: $(udevadm info /dev/sda1)"
    dcd detach --quiet /root/part.toml || die "dcd detach fails"
    seen_as seen /dev/sda1
    # The partitions of a disk that has a cache as a whole.
    cache_of whole /dev/sda
    seen_as hidden /dev/sda1
    seen_as hidden /dev/sda2
    dcd detach --quiet /root/whole.toml || die "dcd detach fails"
    seen_as seen /dev/sda2

    cache_of nvme /dev/nvme0n1
    seen_as hidden /dev/nvme0n1

    # Two disks that have the same serial number.
    [ "$(cat /sys/block/vdd/serial)" = "$(cat /sys/block/vde/serial)" ] || die "the twins have different serial numbers"
    cache_of first /dev/vdd
    seen_as hidden /dev/vdd
    seen_as seen /dev/vde
    cache_of second /dev/vde
    seen_as hidden /dev/vde
    dcd detach --quiet /root/first.toml || die "dcd detach fails"
    seen_as seen /dev/vdd
    seen_as hidden /dev/vde
    dcd detach --quiet /root/second.toml || die "dcd detach fails"
    seen_as seen /dev/vde
    dcd detach --quiet /root/nvme.toml || die "dcd detach fails"
    seen_as seen /dev/nvme0n1
}

part_zoned() {
    modprobe null_blk nr_devices=1 gb=1 zoned=1 zone_size=16 || die "no null_blk"
    wait_until test -b /dev/nullb0
    refused "host-managed" dcd format --log /root/zoned.log --log-size 4MiB --data /dev/nullb0
}

# The names that the content has lead to the device of the cache.
check_names() { # DEVICE
    udevadm settle
    uuid=$(property "$1" ID_FS_UUID)
    [ -n "$uuid" ] && [ "$(readlink -f "/dev/disk/by-uuid/$uuid")" = "$1" ] || die "by-uuid does not lead to $1: $(udevadm info "$1"; report)"
    [ -z "$(property /dev/vda ID_FS_TYPE)" ] || die "udev shows what is on the data disk: $(udevadm info /dev/vda)"
}

# A stack whose device ends with its server.
start_other() {
    truncate -s 1M /root/other.img
    cat > /etc/dcd/other.toml << 'OTHER'
export = "data"
[serve]
ublk = true
ublk-recovery = false
control = "/run/dcd/other.control"
[device.data]
path = "/root/other.img"
OTHER
    systemctl start dcd@other || die "another server does not start: $(systemctl status dcd@other)"
    # udev opens a new device, too.
    udevadm settle
}

# It came with the machine. A server that is restarted or killed takes no file system with it.
start_2() {
    wait_until mountpoint -q /srv
    is_dirty || die "what was dirty is not: $(dcd status /etc/dcd/disk.toml)"
    check_names /dev/ublkb0
    check_files
    start_as_usual
    systemctl restart dcd@disk || die "no restart: $(report)"
    mountpoint -q /srv || die "a restart took the file system away"
    check_files
    systemctl kill -s KILL dcd@disk
    echo 3 > /proc/sys/vm/drop_caches
    check_files
    systemctl is-active -q dcd@disk || die "not started again: $(report)"
    part_upgrade
    # The next start is by NBD, and without the file system the machine does not come up.
    fstab defaults
    sed -i 's|^ublk = true|nbd = "unix:/run/dcd/disk.sock"\nnbd-recovery = true|' /etc/dcd/disk.toml
    systemctl enable dcd-attach@disk || die "the unit of the NBD device cannot be enabled"
    start_slowly
    write_files second
    (while :; do head -c 20000 /dev/urandom > /srv/torn; done) &
    sleep 1
    : > /mnt/done
    wait
}

# Below a file system that waits, and not below one that would fail.
part_upgrade() {
    start_other
    tail -f /dev/null < /dev/dcd/other &
    sleep 0.5
    disk=$(server_of disk)
    other=$(server_of other)
    install_deb 0.2
    [ "$(server_of disk)" != "$disk" ] || die "the server goes on with the old version: $(cat /tmp/dpkg.log)"
    [ "$(server_of other)" = "$other" ] || die "a server was restarted whose device does not outlive it"
    grep -q 'dcd@other.service goes on with the version' /tmp/dpkg.log || die "that it goes on is not told: $(cat /tmp/dpkg.log)"
    systemctl is-active -q dcd@disk || die "no server: $(report)"
    mountpoint -q /srv || die "an upgrade took the file system away"
    echo 3 > /proc/sys/vm/drop_caches
    check_files
    kill $!
    systemctl stop dcd@other
}

start_3() {
    wait_until mountpoint -q /srv
    [ "$(findmnt -n -o SOURCE /srv)" = /dev/nbd0 ] || die "no NBD device is mounted: $(report)"
    check_names /dev/nbd0
    check_files
    start_as_usual
    # A device that waits for its server does not go with it.
    systemctl kill -s KILL dcd@disk
    wait_until systemctl is-active -q dcd@disk
    echo 3 > /proc/sys/vm/drop_caches
    check_files
    grep -q second /root/sums || die "the second files were not written"
    write_files third
    done_so_far
    systemctl poweroff
}

"start_$START"
