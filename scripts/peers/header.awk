# The header of peers/modelled from what drive.awk has made: C tables, in nanoseconds and sectors. It fails at what is not modelled there.

function fail(text) {
    print "header.awk: the module of peers has no " text > "/dev/stderr"
    exit 1
}

function numbers(text, out,    n) {
    gsub(/[^0-9.,]/, "", text)
    n = split(text, out, ",")
    while (n > 0 && out[n] == "") n--
    return n
}

function define(name, value) { printf "#define %s (%.0fLL)\n", name, value }

function ns(ms) { return int(ms * 1e6 + 0.5) }

/^ *$/ { next }
/^\[[a-z-]*\]/ { section = $1; if (section !~ /^\[(overhead-ms|cache|write-back)\]$/) fail(section); next }
# What a drive does with its write cache on is not looked at.
section == "[write-back]" { next }
/^(seek-ms|zones) = \[/ {
    list = $1
    print "static const struct {\n\tunsigned int " (list == "zones" ? "cylinders, per_track, track_skew, cylinder_skew" : "distance, ns") \
        ";\n} " (list == "zones" ? "zone_shapes" : "seek_points") "[] = {"
    next
}
/^\]/ { print "};"; list = ""; next }
list == "zones" { numbers($0, v); printf "\t{ %d, %d, %d, %d },\n", v[1], v[2], v[3], v[4]; next }
list == "seek-ms" { numbers($0, v); printf "\t{ %d, %d },\n", v[1], ns(v[2]); next }

{ value = $0; sub(/^[^=]*= */, "", value) }
/^(name|description) =/ { next }
section == "" && $1 == "rpm" { define("REVOLUTION_NS", int(60e9 / value + 0.5)); next }
section == "" && $1 == "heads" { define("HEADS", value); next }
section == "" && $1 == "queue-depth" { define("QUEUE_DEPTH", value); next }
section == "" && $1 == "logical-block-bytes" { define("LOGICAL_BLOCK_BYTES", value); next }
section == "" && $1 == "physical-block-bytes" { define("PHYSICAL_BLOCK_BYTES", value); next }
section == "" && $1 == "bus-mb-per-s" { define("BUS_PS_PER_SECTOR", int(512e6 / value + 0.5)); next }
section == "" && $1 == "head-switch-ms" { define("HEAD_SWITCH_NS", ns(value)); next }
section == "" && $1 == "write-settle-ms" { define("WRITE_SETTLE_NS", ns(value)); next }
section == "" && $1 == "write-settle-track-ms" { define("WRITE_SETTLE_TRACK_NS", ns(value)); next }
# After a read, and after a write.
section == "[overhead-ms]" {
    numbers(value, v)
    name = $1
    sub(/^read-hit$/, "hit", name)
    printf "static const unsigned int overhead_%s_ns[2] = { %d, %d };\n", name, ns(v[1]), ns(v[2])
    next
}
section == "[cache]" && $1 == "segments" { define("SEGMENTS", value); next }
section == "[cache]" && $1 == "segment-sectors" { define("SEGMENT_SECTORS", value); next }
section == "[cache]" && $1 == "read-ahead-sectors" { define("READ_AHEAD_SECTORS", value); next }
section == "[cache]" && $1 == "write-segments" { define("WRITE_SEGMENTS", value); next }
section == "[cache]" && $1 == "resume-on-hit" { define("RESUME_ON_HIT", value == "true"); next }
{ fail("\"" $1 "\" of a drive file" (section == "" ? "" : ", section " section)) }
