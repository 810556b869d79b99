#!/usr/bin/env bash
# Explores crashes with seeds that nobody has tried, on all processors, for HOURS hours or until STATES states of each kind have
# been tried; stops at the first loss, with the command that replays it. Appends a line for each piece to soak.log.
#
# Usage: soak.sh DCD-CRASH [HOURS] ; STATES=N soak.sh DCD-CRASH
set -euo pipefail
crash=$1
hours=${2:-8}
log=${SOAK_LOG:-soak.log}
piece=20000
kinds=(
    "--promise flush" "--promise flush --fill" "--promise flush --ordered-destage" "--promise always" "--promise ordered"
    "--process-deaths --promise flush" "--process-deaths --promise always" "--process-deaths --promise ordered"
    "--legs --promise flush" "--take-over --promise always"
    "--rot --promise flush" "--rot --promise always" "--errors --promise flush" "--errors --promise always"
    "--disks 4 --promise flush" "--disks 4 --promise always" "--disks 4 --promise ordered"
    "--raid raid5 --journal --lose-members --spares 1" "--raid raid6 --journal --lose-members --spares 1"
    "--raid raid5 --journal --hot-add" "--raid raid6 --journal --hot-add" "--raid raid5" "--raid raid6"
    "--errors --raid raid6 --journal" "--raid raid5 --log-cache" "--raid raid6 --log-cache=slice"
)
if [ -n "${STATES:-}" ]; then deadline=0; else deadline=$((SECONDS + hours * 3600)); fi
failed=$(mktemp -u)

explore() { # WORKER
    local round=0 tried=0
    while [ ! -e "$failed" ]; do
        for ((kind = $1; kind < ${#kinds[@]}; kind += workers)); do
            [ -e "$failed" ] && return
            [ "$deadline" -gt 0 ] && [ "$SECONDS" -ge "$deadline" ] && return
            local seed output
            seed=$((16#$(od -An -N7 -tx1 /dev/urandom | tr -d ' ')))
            # shellcheck disable=SC2086
            if output=$("$crash" ${kinds[$kind]} --seed "$seed" --states "$piece" 2>&1); then
                echo "$piece states, nothing lost: dcd-crash ${kinds[$kind]} --seed $seed --states $piece" | tee -a "$log"
            else
                touch "$failed"
                { echo "LOST: dcd-crash ${kinds[$kind]} --seed $seed --states $piece"; tail -n 5 <<<"$output"; } | tee -a "$log"
                return
            fi
        done
        round=$((round + 1))
        tried=$((round * piece))
        [ "$deadline" -eq 0 ] && [ "$tried" -ge "$STATES" ] && return
    done
}

workers=$(nproc)
for ((worker = 0; worker < workers; worker++)); do explore "$worker" & done
wait
if [ -e "$failed" ]; then rm "$failed"; exit 1; fi
