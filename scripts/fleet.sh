#!/usr/bin/env bash
# "dcd tune DIR" spread over machines, as docs/traces.md has it: two hosts in network namespaces, each with a server of its own. GNU parallel reaches
# them over ssh (sshd with a key of its own), and Slurm runs a job array on them (a controller, and a slurmd on each). Traces and reports are
# in a directory that all hosts have. Parts are merged, and the result is compared with that of one process.
#
# Needs root for namespaces. An engine that is not installed is skipped. A few minutes.
#
# usage: fleet.sh DCD-LAB     TRACES=8 REQUESTS=300 (reads, and as many writes, of a trace) SHARDS=4
set -euo pipefail

lab=$(realpath "${1:?usage: fleet.sh DCD-LAB}")
traces=${TRACES:-8}
requests=${REQUESTS:-300}
shards=${SHARDS:-4}
here=$(dirname "$(realpath "$0")")

"$here/packages.sh" iproute2 openssh-server openssh-client parallel slurmctld slurmd slurm-client munge
command -v ip > /dev/null || { echo "SKIPPED: ip is not installed"; exit 0; }
dir=$(mktemp -d)
pids=()
clean() {
    local pid name
    # The last ones first: a server of keys is needed until the end.
    for pid in $(printf '%s\n' "${pids[@]}" | tac); do kill "$pid" 2> /dev/null || true; wait "$pid" 2> /dev/null || true; done
    for name in one two control; do ip netns del "fleet-$name" 2> /dev/null || true; done
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM

# A bridge in the namespace that jobs come from, and a host at each of its two ports.
ip netns add fleet-control 2> /dev/null || { echo "SKIPPED: network namespaces need root"; exit 0; }
inside() { nsenter "--net=/run/netns/fleet-$1" "${@:2}"; }
background() { nsenter "--net=/run/netns/fleet-$1" "${@:2}" & pids+=($!); }
ip -n fleet-control link add bridge type bridge
ip -n fleet-control addr add 192.0.2.1/24 dev bridge
ip -n fleet-control link set bridge up
ip -n fleet-control link set lo up
for host in one:192.0.2.11 two:192.0.2.12; do
    name=${host%:*}
    ip netns add "fleet-$name"
    ip link add "$name" netns fleet-control type veth peer name eth0 netns "fleet-$name"
    ip -n fleet-control link set "$name" master bridge up
    ip -n "fleet-$name" addr add "${host#*:}/24" dev eth0
    ip -n "fleet-$name" link set eth0 up
    ip -n "fleet-$name" link set lo up
done

# ---------------------------------------------------------------- one process

mkdir "$dir/traces"
"$lab" trace synthesise --quiet --preset off-day --describe | sed "/count = /s/count = .*/count = $requests/" > "$dir/trace.toml"
for number in $(seq "$traces"); do
    "$lab" trace synthesise --quiet --description "$dir/trace.toml" --seed "$number" "$dir/traces/disk-$number.dcd" > /dev/null
done
echo "this is no trace" > "$dir/traces/notes.txt"
"$lab" tune "$dir/traces" --ssd 0.10 --quiet --out "$dir/single" > "$dir/single.said" 2>&1

# What both have: the report, and for each trace its directory.
compare() { # NAME
    "$lab" merge "$dir/$1/report-"*"-of-$shards.json" > "$dir/$1.txt"
    "$lab" merge "$dir/single/report.json" > "$dir/single.txt"
    diff "$dir/single.txt" "$dir/$1.txt"
    for number in $(seq "$traces"); do
        for file in tune.json serve.toml simulate.toml; do
            cmp "$dir/single/disk-$number.dcd/$file" "$dir/$1/disk-$number.dcd/$file"
        done
    done
}

part=("$lab" tune "$dir/traces" --ssd 0.10 --jobs 1 --quiet)

# ---------------------------------------------------------------- GNU parallel over ssh

serve_ssh() { # HOST
    ssh-keygen -q -t ed25519 -N '' -f "$dir/$1.key"
    cat > "$dir/$1.sshd" <<END
HostKey $dir/$1.key
PidFile none
AuthorizedKeysFile $dir/user.key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
END
    mkdir -p /run/sshd
    background "$1" "$(command -v sshd)" -D -e -f "$dir/$1.sshd" 2> "$dir/$1.sshd.log"
}

over_ssh() {
    local host
    ssh-keygen -q -t ed25519 -N '' -f "$dir/user.key"
    for host in one:192.0.2.11 two:192.0.2.12; do
        serve_ssh "${host%:*}"
        echo "${host#*:} $(cut -d' ' -f1,2 "$dir/${host%:*}.key.pub")" >> "$dir/known"
    done
    cat > "$dir/ssh.conf" <<END
User root
IdentityFile $dir/user.key
IdentitiesOnly yes
UserKnownHostsFile $dir/known
StrictHostKeyChecking yes
BatchMode yes
ConnectionAttempts 20
END
    mkdir "$dir/parallel"
    PARALLEL_HOME=$dir/parallel-home inside control parallel --will-cite --ssh "ssh -F $dir/ssh.conf" --sshlogin 1/192.0.2.11,1/192.0.2.12 \
        --joblog "$dir/jobs" "${part[@]}" --out "$dir/parallel" --shard "{}/$shards" ::: $(seq "$shards") > "$dir/parallel.said" 2>&1
    for host in 192.0.2.11 192.0.2.12; do
        awk -v host="$host" '$2 == host && $7 == 0 { jobs++ } END { exit !jobs; }' "$dir/jobs" || { cat "$dir/jobs" >&2; echo "$host did nothing" >&2; exit 1; }
    done
    compare parallel
    echo "GNU parallel, $shards jobs on two hosts: the same report as of one process, $traces traces and a file that is none"
}

if command -v parallel > /dev/null && command -v sshd > /dev/null; then
    over_ssh
else
    echo "SKIPPED: GNU parallel or sshd is not installed"
fi

# ---------------------------------------------------------------- a job array of Slurm

over_slurm() {
    mkdir -p "$dir/slurm" "$dir/spool-one" "$dir/spool-two" "$dir/munge" "$dir/state"
    head -c 1024 /dev/urandom > "$dir/munge/key"
    chmod 400 "$dir/munge/key"
    background control munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --seed-file="$dir/munge/seed" --log-file="$dir/munge/log" 2> "$dir/munge/said"
    cat > "$dir/slurm.conf" <<END
ClusterName=fleet
SlurmctldHost=control(192.0.2.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
NodeName=one NodeHostname=one NodeAddr=192.0.2.11
NodeName=two NodeHostname=two NodeAddr=192.0.2.12
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
END
    # Nothing is to be limited.
    echo CgroupPlugin=cgroup/v1 > "$dir/cgroup.conf"
    export SLURM_CONF=$dir/slurm.conf
    background control unshare --uts sh -c 'hostname control && exec slurmctld -D -c' > /dev/null 2>&1
    for host in one two; do
        # shellcheck disable=SC2016 # $0 is the host
        background $host unshare --uts sh -c 'hostname $0 && exec slurmd -D -N $0' $host > /dev/null 2>&1
    done
    local looks=0
    until [ "$(inside control sinfo --noheader --format %D --states idle 2> /dev/null)" = 2 ]; do
        looks=$((looks + 1))
        [ $looks -lt 600 ] || { tail -n 5 "$dir"/slurm*.log "$dir/munge/said" >&2; echo "the nodes of Slurm do not come up" >&2; exit 1; }
        sleep 0.1
    done
    # shellcheck disable=SC2016 # Slurm's
    inside control timeout 600 sbatch --quiet --wait --array="1-$shards" --output="$dir/slurm/said-%a" \
        --wrap "hostname > $dir/slurm/host-\$SLURM_ARRAY_TASK_ID; ${part[*]} --out $dir/slurm --shard \$SLURM_ARRAY_TASK_ID/$shards" ||
        { tail -n 5 "$dir"/slurm/said-* "$dir"/slurm*.log "$dir/munge/said" >&2; exit 1; }
    [ "$(cat "$dir"/slurm/host-* | sort -u | wc -l)" -eq 2 ] || { echo "only $(cat "$dir"/slurm/host-*) worked" >&2; exit 1; }
    compare slurm
    echo "Slurm, a job array of $shards on two nodes: the same report as of one process"
}

if command -v slurmctld > /dev/null && command -v slurmd > /dev/null && command -v munged > /dev/null; then
    over_slurm
else
    echo "SKIPPED: Slurm is not installed"
fi
