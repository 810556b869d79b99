#!/bin/sh
# shellcheck disable=SC2153,SC2154 # HERE, START and MODULES come from the kernel's command line
# The first program of the machine that boot.sh starts: makes the host's files, with what the machine has changed on a disk of its own, the root
# of systemd.
# shellcheck source=scripts/guest-kernel/guest.sh
. "$HERE/guest-kernel/guest.sh"
mount_all 9p work trans=virtio,version=9p2000.L,msize=262144

mkdir /tmp/disk /tmp/root
mount -t ext4 /dev/vdc /tmp/disk || die "the machine's root cannot be mounted"
mkdir -p /tmp/disk/changed /tmp/disk/work
mount -t overlay -o lowerdir=/,upperdir=/tmp/disk/changed,workdir=/tmp/disk/work root /tmp/root || die "no root: $(dmesg | tail -n 3)"
cd /tmp/root || die "no root"

if [ "$START" = 1 ]; then
    # The host's /tmp is seen here, and not in /tmp. udev is put where this machine has links for directories.
    tar -C ".$MODULES" -c bin/udevadm etc/udev lib/udev lib/systemd | tar --keep-directory-symlink -x
    mkdir -p usr/lib/modules
    ln -s "$MODULES/lib/modules/$(uname -r)" usr/lib/modules/
    # Nothing of the host's services, and nothing that a machine for a test has no use for.
    rm -rf .dockerenv etc/systemd/system etc/rc?.d var/lib/dcd etc/dcd
    mkdir -p etc/systemd/system/multi-user.target.wants etc/systemd/system-generators etc/systemd/system.conf.d var/lib etc/dcd srv
    for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-tmpfiles-clean.timer systemd-logind.service \
        systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-random-seed.service systemd-hwdb-update.service \
        systemd-binfmt.service getty.target dbus.service dbus.socket systemd-user-sessions.service systemd-journal-flush.service; do
        ln -s /dev/null "etc/systemd/system/$unit"
    done
    for generator in usr/lib/systemd/system-generators/* ; do
        [ "${generator##*/}" = systemd-fstab-generator ] || ln -s /dev/null "etc/systemd/system-generators/${generator##*/}"
    done
    printf '[Manager]\nLogTarget=console\nLogLevel=info\nLogColor=no\nShowStatus=yes\n' > etc/systemd/system.conf.d/test.conf
    echo dcd-test > etc/hostname
    rm -f etc/machine-id
    echo 0123456789abcdef0123456789abcdef > etc/machine-id
    : > etc/fstab

    # A database of packages that is small, and the machine's own.
    mkdir -p /tmp/disk/dpkg/info /tmp/disk/dpkg/updates
    cp /mnt/dpkg-status /tmp/disk/dpkg/status
    # The console is kept where the machine's journal is not.
    mkdir -p etc/systemd/system/dcd@.service.d
    printf '[Service]\nStandardError=journal+console\n' > etc/systemd/system/dcd@.service.d/test.conf
fi
cat > etc/systemd/system/test.service << UNIT
[Service]
Type=exec
ExecStart=/bin/sh $HERE/boot/machine.sh
Environment=HERE=$HERE START=$START SECONDS_MAX=$SECONDS_MAX
StandardOutput=journal+console
StandardError=journal+console
UNIT
mount --bind /tmp/disk/dpkg var/lib/dpkg || die "no database of packages"
ln -sf ../test.service etc/systemd/system/multi-user.target.wants/test.service

for directory in proc sys dev mnt; do mount --move "/$directory" "$directory" || die "/$directory cannot be moved"; done
mount -t tmpfs none run
mount --move . / && exec chroot . /usr/lib/systemd/systemd --unit=multi-user.target
die "no systemd"
