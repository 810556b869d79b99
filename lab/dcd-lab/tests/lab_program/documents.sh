# shellcheck shell=bash disable=SC1090
# A machine for the commands of a document: a mount namespace whose devices are files in the directory $1. $2: the program; $3: the
# commands, which are run in /etc/dcd.
set -eu
scratch=$1 program=$2 commands=$3
mkdir -p "$scratch"/{dev,etc,lib,tmp,srv,disk/by-id,bin}
cp -a /etc/. "$scratch/etc"
rm -rf "$scratch/etc/dcd"
mkdir -p "$scratch/etc/dcd" "$scratch/etc/modules-load.d"
mount --bind "$scratch/etc" /etc
mount --bind "$scratch/lib" /var/lib
mount --bind "$scratch/tmp" /var/tmp
mount --bind "$scratch/srv" /srv
mount -t tmpfs -o mode=755 tmpfs /run
# Of block devices only loop devices: dcd finds neither ublk nor NBD.
mount -t tmpfs -o mode=755 tmpfs "$scratch/dev"
cp -a /dev/{null,zero,full,random,urandom,fuse,tty,loop*} "$scratch/dev"
for i in {0..63}; do [ -e "$scratch/dev/loop$i" ] || mknod "$scratch/dev/loop$i" b 7 "$i"; done
mkdir "$scratch/dev/shm" "$scratch/dev/disk" "$scratch/dev/vg"
mount --bind "$scratch/disk" "$scratch/dev/disk"
mount -t tmpfs tmpfs "$scratch/dev/shm"
mount --move "$scratch/dev" /dev
mount -t proc proc /proc
ip link set lo up

# A document has one server at a time: the next one takes its place, in the background.
cat > "$scratch/bin/dcd" <<EOS
#!/bin/bash
PATH=$PATH
[ "\$1" = serve ] || exec "$program" "\$@"
if [ -e /run/server ]; then kill "\$(cat /run/server)"; while [ -e "/proc/\$(cat /run/server)/exe" ]; do sleep 0.02; done; fi
rm -f /run/served
"$program" "\$@" > /run/served 2> /run/errors &
echo \$! > /run/server
while [ ! -s /run/served ] && [ -e /proc/\$!/exe ]; do sleep 0.02; done
cat /run/served /run/errors
[ -s /run/served ] || wait \$!
EOS
for word in $FOREIGN; do printf '#!/bin/sh\n' > "$scratch/bin/$word"; done
chmod 755 "$scratch"/bin/*
export PATH="$scratch/bin:$PATH" HOME=$scratch
cd /etc/dcd
formatted() { # NAME: a stack over files that is not served
    truncate -s 32M log
    truncate -s 64M data
    dcd format --log log --data data --stack "/etc/dcd/$1.toml"
}
step() { # LINE COMMAND
    printf '\n@step %s\n' "$1"
    local status=0
    eval "$2" 2>&1 < /dev/null || status=$?
    printf '\n@exit %s\n' "$status"
}
set +eu
. "$commands"
# A loop device would outlive the namespace.
for stack in /etc/dcd/*.toml; do "$program" attach --release --force "$stack"; done > /dev/null 2>&1
