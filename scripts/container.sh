#!/usr/bin/env bash
# The example for containers, examples/docker, in a Docker or Podman of its own: its image is built over a new Debian, and run with the compose
# file, or with the README's command for Podman. A profile without io_uring is refused with the reason. With the example's, a client of NBD goes
# on while the server is killed and started again. After a stop and "dcd detach" the data disk has all that was written.
#
# usage: container.sh DCD [docker|podman]     the program; one after the other if none is named
#   BASE=TARBALL of a Debian (default: made by mmdebstrap)
# Without Docker or Podman, root, loop devices or Debian's archive it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: container.sh DCD [docker|podman]}")
if [ $# -eq 1 ]; then
    "$0" "$dcd" docker
    exec "$0" "$dcd" podman
fi
engine=$2
cd "$(dirname "$0")/.."
example=$PWD/examples/docker
case $engine in
    docker) packages=(docker.io docker-compose) tools=(docker dockerd docker-compose) ;;
    podman) packages=(podman crun) tools=(podman) ;;
    *) echo "usage: container.sh DCD [docker|podman]" >&2; exit 2 ;;
esac
./scripts/packages.sh "${packages[@]}" golang-github-containers-common mmdebstrap dpkg-dev qemu-utils jq >&2
skip() { echo "SKIPPED: no container is tried in $engine; $*"; exit 0; }
[ "$(id -u)" -eq 0 ] || skip "missing: root"
for tool in "${tools[@]}" mmdebstrap dpkg-deb qemu-io losetup jq; do
    command -v $tool > /dev/null || skip "missing: $tool"
done
profile=/usr/share/containers/seccomp.json
[ -e $profile ] || skip "missing: $profile"

work=$(mktemp -d)
loops=()
started=
daemon=
cache=
clean() {
    if [ -n "$started" ]; then run ps --all --quiet | while read -r id; do run rm --force "$id" > /dev/null 2>&1 || true; done; fi
    if [ -n "$daemon" ]; then
        kill "$daemon" 2> /dev/null || true
        wait "$daemon" || true
    fi
    # They may leave their storage mounted on itself.
    for place in docker storage/overlay; do if mountpoint -q "$work/$place"; then umount "$work/$place"; fi; done
    rm -f /dev/dcd-container.$$.data /dev/dcd-container.$$.log
    [ ${#loops[@]} -eq 0 ] || losetup --detach "${loops[@]}"
    # Where a server was killed for good.
    rm -f "/dev/shm/dcd-${cache//-/}"-*
    rm -rf --one-file-system "$work"
}
trap clean EXIT
fail() { echo "$*" >&2; exit 1; }

# It has nothing to do with another one of this machine, nor with its network.
if [ "$engine" = docker ]; then
    run() { docker "$@"; }
    export DOCKER_HOST=unix://$work/docker.sock
    dockerd --data-root "$work/docker" --exec-root "$work/exec" --pidfile "$work/docker.pid" --host "$DOCKER_HOST" --iptables=false \
        --ip6tables=false --bridge=none > "$work/docker.log" 2>&1 &
    daemon=$!
    for _ in $(seq 300); do
        if docker info > /dev/null 2>&1; then break; fi
        kill -0 "$daemon" 2> /dev/null || skip "dockerd: $(tail -n 1 "$work/docker.log")"
        sleep 0.1
    done
else
    run() { command podman --root "$work/storage" --runroot "$work/run" --tmpdir "$work/tmp" "$@"; }
fi
started=yes

mkdir "$work/deb" "$work/etc" "$work/sockets" "$work/state"
./scripts/deb.sh "$(dirname "$dcd")" "$work/deb" dcd > "$work/log" 2>&1 || fail "no package: $(cat "$work/log")"
base=${BASE:-$work/base.tar}
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
[ -e "$base" ] || { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2> /dev/null || true; } |
    mmdebstrap --mode=root --variant=minbase "$suite" "$base" - > "$work/log" 2>&1 || skip "mmdebstrap: $(tail -n 2 "$work/log")"
run import "$base" base > "$work/log" 2>&1 || skip "import: $(tail -n 1 "$work/log")"
runs() { run run --rm --network none base true > "$work/log" 2>&1; }
if [ "$engine" = podman ] && ! runs; then
    # Root may lack the right to raise limits, as crun does, and crun takes no machine that has both versions of cgroups.
    printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n[engine]\nruntime = "runc"\n' > "$work/containers.conf"
    export CONTAINERS_CONF=$work/containers.conf
fi
runs || skip "$(tail -n 1 "$work/log")"
run build --quiet --network none --build-arg BASE=base -t dcd -f "$example/Containerfile" "$work/deb" > "$work/log" 2>&1 ||
    fail "no image: $(cat "$work/log")"

truncate -s 256M "$work/data.img"
truncate -s 64M "$work/log.img"
for image in data log; do
    loops+=("$(losetup --find --show "$work/$image.img")") || skip "missing: loop devices"
done
# By links, as those of /dev/disk/by-id are.
DATA=/dev/dcd-container.$$.data LOG=/dev/dcd-container.$$.log
export DATA LOG
ln -s "${loops[0]}" $DATA
ln -s "${loops[1]}" $LOG
# The images too: dcd wants to see the file behind a loop device.
places=(-v "$work:$work" -v "$work/etc:/etc/dcd" -v "$work/sockets:/run/dcd" -v "$work/state:/var/lib/dcd")
options=()
[ "$engine" = docker ] || options=(--security-opt unmask=/sys/dev/block)
once() { run run --rm --network none --device "$DATA:$DATA" --device "$LOG:$LOG" ${options[@]+"${options[@]}"} "${places[@]}" "$@"; }

once dcd format --log "$LOG" --data "$DATA" --stack /etc/dcd/srv.toml | tee "$work/format"
cache=$(sed -n 's/^cache \([-0-9a-f]*\):.*/\1/p' "$work/format")
sed -i 's/^nbd = .*/&\nnbd-recovery = true/' "$work/etc/srv.toml"
status=0
once --security-opt "seccomp=$profile" dcd serve srv > "$work/log" 2>&1 || status=$?
[ $status -eq 6 ] && grep -q 'a seccomp profile forbids it' "$work/log" || fail "without io_uring: exit code $status, $(cat "$work/log")"

jq -f "$example/seccomp.jq" $profile > "$work/etc/seccomp.json"
# What the example has of the machine, in the working directory.
own=(-e "s|/etc/dcd/seccomp|$work/etc/seccomp|; s|/etc/dcd:/|$work/etc:/|; s|/run/dcd:/|$work/sockets:/|; s|/var/lib/dcd:/|$work/state:/|"
    -e "s|/etc/machine-id:[^ ]*|$work:$work|")
# Root has not got this right everywhere.
(( 0x$(sed -n 's/^CapBnd:\s*//p' /proc/self/status) >> 24 & 1 )) || own+=(-e 's/SYS_RESOURCE, *//')
if [ "$engine" = docker ]; then
    sed "${own[@]}" "$example/compose.yaml" > "$work/compose.yaml"
    compose() { docker-compose --project-directory "$work" --file "$work/compose.yaml" "$@"; }
    start() { compose up --detach; }
    stop() { compose down; }
else
    sed -n '/^   podman run -d/,/[^\]$/p' "$example/README.md" | sed "${own[@]}" > "$work/start"
    start() {
        # shellcheck source=/dev/null
        podman() { run "$@"; } && . "$work/start"
    }
    stop() { run stop dcd && run rm dcd; }
fi
start > "$work/log" 2>&1 || fail "start: $(cat "$work/log")"
container=$(run ps --all --quiet)
[ -n "$container" ] || fail "start: $(cat "$work/log")"
wait_for_server() { # COUNT: of starts
    for _ in $(seq 300); do
        if [ "$(run logs "$container" 2> /dev/null | grep -c '^cache: nbd')" -ge "$1" ]; then return; fi
        sleep 0.1
    done
    fail "the server does not start: $(run logs "$container" 2>&1)"
}
wait_for_server 1

disk=driver=nbd,server.type=unix,server.path=$work/sockets/srv.sock,reconnect-delay=30
count=100
for number in $(seq $count); do
    echo "write -P $number $((number * 2))M 64k"
    echo flush
    sleep 0.05
done | qemu-io --image-opts "$disk" > "$work/written" 2>&1 &
writer=$!
sleep 2
# It is started again.
kill -KILL "$(run inspect --format '{{.State.Pid}}' "$container")"
wait_for_server 2
wait $writer || fail "the client: $(tail -n 3 "$work/written")"
[ "$(grep -c 'wrote 65536/65536' "$work/written")" -eq $count ] || fail "writes of the client failed: $(tail -n 3 "$work/written")"
run exec "$container" dcd status
stop > "$work/log" 2>&1 || fail "stop: $(cat "$work/log")"
once --security-opt "seccomp=$work/etc/seccomp.json" dcd detach srv
for number in $(seq $count); do echo "read -P $number $((number * 2))M 64k"; done | qemu-io -f raw "$DATA" > "$work/read" 2>&1 || true
if [ "$(grep -c 'read 65536/65536' "$work/read")" -ne $count ] || grep -q 'verification failed' "$work/read"; then
    fail "the data disk has not all of it: $(tail -n 3 "$work/read")"
fi
echo "good, $engine: an image was built; its server was refused, served, killed, started again, stopped; and the disk has all data"
