#!/usr/bin/env bash
# The example for containers, examples/docker, in a Docker of its own: its image is built over a new Debian and run with the compose file. A
# profile without io_uring is refused with the reason. With the example's, a client of NBD goes on while the server is killed and started
# again. After a stop and "dcd detach" the data disk has all that was written.
#
# usage: container.sh DCD     the program
#   BASE=TARBALL of a Debian (default: made by mmdebstrap)
# Without Docker, root, loop devices or Debian's archive it says "SKIPPED: REASON".
set -euo pipefail

dcd=$(realpath "${1:?usage: container.sh DCD}")
cd "$(dirname "$0")/.."
example=$PWD/examples/docker
./scripts/packages.sh docker.io docker-compose golang-github-containers-common mmdebstrap dpkg-dev qemu-utils jq >&2
skip() { echo "SKIPPED: no container is tried; $*"; exit 0; }
[ "$(id -u)" -eq 0 ] || skip "missing: root"
for tool in dockerd docker-compose mmdebstrap dpkg-deb qemu-io losetup jq; do
    command -v $tool > /dev/null || skip "missing: $tool"
done
profile=/usr/share/containers/seccomp.json
[ -e $profile ] || skip "missing: $profile"

work=$(mktemp -d)
loops=()
daemon=
cache=
clean() {
    if [ -n "$daemon" ]; then
        docker ps --all --quiet | xargs -r docker rm --force > /dev/null 2>&1 || true
        kill "$daemon" 2> /dev/null || true
        wait "$daemon" || true
    fi
    rm -f /dev/dcd-container.$$.data /dev/dcd-container.$$.log
    [ ${#loops[@]} -eq 0 ] || losetup --detach "${loops[@]}"
    # Where a server was killed for good.
    rm -f "/dev/shm/dcd-${cache//-/}"
    rm -rf --one-file-system "$work"
}
trap clean EXIT
fail() { echo "$*" >&2; exit 1; }

# It has nothing to do with another one of this machine, nor with its network.
export DOCKER_HOST=unix://$work/docker.sock
dockerd --data-root "$work/docker" --exec-root "$work/exec" --pidfile "$work/docker.pid" --host "$DOCKER_HOST" --iptables=false \
    --ip6tables=false --bridge=none > "$work/docker.log" 2>&1 &
daemon=$!
for _ in $(seq 300); do
    if docker info > /dev/null 2>&1; then break; fi
    kill -0 "$daemon" 2> /dev/null || skip "dockerd: $(tail -n 1 "$work/docker.log")"
    sleep 0.1
done

mkdir "$work/deb" "$work/etc" "$work/sockets" "$work/state"
./scripts/deb.sh "$(dirname "$dcd")" "$work/deb" dcd > "$work/log" 2>&1 || fail "no package: $(cat "$work/log")"
base=${BASE:-$work/base.tar}
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
[ -e "$base" ] || { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2> /dev/null || true; } |
    mmdebstrap --mode=root --variant=minbase "$suite" "$base" - > "$work/log" 2>&1 || skip "mmdebstrap: $(tail -n 2 "$work/log")"
docker import "$base" base > /dev/null || skip "docker import"
docker run --rm --network none base true > "$work/log" 2>&1 || skip "docker: $(tail -n 1 "$work/log")"
docker build --quiet --network none --build-arg BASE=base -t dcd -f "$example/Containerfile" "$work/deb" > "$work/log" 2>&1 ||
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
once() { docker run --rm --network none --device "$DATA" --device "$LOG" "${places[@]}" "$@"; }

once dcd format --log "$LOG" --data "$DATA" --stack /etc/dcd/srv.toml | tee "$work/format"
cache=$(sed -n 's/^cache \([-0-9a-f]*\):.*/\1/p' "$work/format")
sed -i 's/^nbd = .*/&\nnbd-recovery = true/' "$work/etc/srv.toml"
status=0
once --security-opt "seccomp=$profile" dcd serve srv > "$work/log" 2>&1 || status=$?
[ $status -eq 6 ] && grep -q 'a seccomp profile forbids it' "$work/log" || fail "without io_uring: exit code $status, $(cat "$work/log")"

jq -f "$example/seccomp.jq" $profile > "$work/etc/seccomp.json"
sed -e "s|/etc/dcd/seccomp|$work/etc/seccomp|; s|- /etc/dcd:|- $work/etc:|; s|- /run/dcd:|- $work/sockets:|; s|- /var/lib/dcd:|- $work/state:|" \
    -e "s|- /etc/machine-id.*|- $work:$work|" \
    "$example/compose.yaml" > "$work/compose.yaml"
# Root has not got this right everywhere.
(( 0x$(sed -n 's/^CapBnd:\s*//p' /proc/self/status) >> 24 & 1 )) || sed -i 's/SYS_RESOURCE, //' "$work/compose.yaml"
compose() { docker-compose --project-directory "$work" --file "$work/compose.yaml" "$@"; }
compose up --detach > "$work/log" 2>&1 || fail "compose: $(cat "$work/log")"
container=$(docker ps --all --quiet)
[ -n "$container" ] || fail "compose: $(cat "$work/log")"
wait_for_server() { # COUNT: of starts
    for _ in $(seq 300); do
        if [ "$(docker logs "$container" 2> /dev/null | grep -c '^cache: nbd')" -ge "$1" ]; then return; fi
        sleep 0.1
    done
    fail "the server does not start: $(docker logs "$container" 2>&1)"
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
# Docker starts it again.
kill -KILL "$(docker inspect --format '{{.State.Pid}}' "$container")"
wait_for_server 2
wait $writer || fail "the client: $(tail -n 3 "$work/written")"
[ "$(grep -c 'wrote 65536/65536' "$work/written")" -eq $count ] || fail "writes of the client failed: $(tail -n 3 "$work/written")"
docker exec "$container" dcd status
compose down > "$work/log" 2>&1 || fail "compose down: $(cat "$work/log")"
once --security-opt "seccomp=$work/etc/seccomp.json" dcd detach srv
for number in $(seq $count); do echo "read -P $number $((number * 2))M 64k"; done | qemu-io -f raw "$DATA" > "$work/read" 2>&1 || true
if [ "$(grep -c 'read 65536/65536' "$work/read")" -ne $count ] || grep -q 'verification failed' "$work/read"; then
    fail "the data disk has not all of it: $(tail -n 3 "$work/read")"
fi
echo "good: an image was built; its server was refused, served, killed, started again, stopped; and the disk has all data"
