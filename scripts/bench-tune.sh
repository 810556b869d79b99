#!/usr/bin/env bash
# What dcd tune takes for a million requests, 60 % of them writes: time, the processor's time, and the most memory. The argument is
# dcd-lab.
set -euo pipefail
lab=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# The places and bursts of a preset, with other counts and sizes on a larger disk.
"$lab" trace synthesise --preset sci-off --describe | sed -e '/^\[reads\]/,/count/s/count = .*/count = 400000/' \
    -e '/^\[writes\]/,/count/s/count = .*/count = 600000/' -e '/size_bytes/,/mean/s/mean = .*/mean = 8192.0/' \
    -e 's/^bytes = .*/bytes = 8589934592/; s/^align_bytes = .*/align_bytes = 4096/; s/^region_bytes = .*/region_bytes = 1048576/' \
    -e 's/^seconds = .*/seconds = 72000.0/; s/^service_ms = .*/service_ms = 8.0/' > "$dir/million.toml"
"$lab" trace synthesise --quiet --description "$dir/million.toml" "$dir/million.dcd" > /dev/null
cd "$dir"
TIMEFORMAT='%R s, of the processor %U s'
time {
    "$lab" tune million.dcd --quiet > result &
    # The high-water mark, as long as there is one.
    while memory=$(sed -n 's/^VmHWM:[ \t]*//p' "/proc/$!/status" 2> /dev/null) && [ -n "$memory" ]; do
        most=$memory
        sleep 0.1
    done
    wait $!
}
echo "at most $most"
sed -n '1p; /^Recommended/p; /^How sure/p' result
