# A drive file with one cylinder in many: reads lab/model/drives/nearline-2018.toml.
#
# -v gib=N: as many cylinders are left out as brings the capacity down to that. A file system of that size then reaches over the whole
# stroke, so that an arm movement between two places of it takes as long as on the whole drive.

function numbers(text, out,    n) {
    gsub(/[^0-9.,]/, "", text)
    n = split(text, out, ",")
    while (n > 0 && out[n] == "") n--
    return n
}

{ sub(/#.*/, ""); line[NR] = $0 }

# The capacity first: heads and zones.
/^heads/ { heads = $3 }
/^zones/ { in_zones = 1; next }
/^\]/ { in_zones = 0 }
in_zones && numbers($0, z) >= 2 { bytes += z[1] * z[2] * 512 }

END {
    each = int(bytes * heads / (gib * 1024 * 1024 * 1024))
    for (i = 1; i <= NR; i++) print_line(line[i])
}

function print_line(text,    n, v, key, j, distance) {
    key = text
    sub(/ *=.*/, "", key)
    if (text ~ /^(seek-ms|zones) *=/) block = key
    else if (text ~ /^\]/) block = ""
    else if (block == "zones") {
        numbers(text, v)
        print "[" int((v[1] + each - 1) / each) ", " v[2] ", " v[3] ", " v[4] "],"
        return
    } else if (block == "seek-ms") {
        n = numbers(text, v)
        for (j = 1; j < n; j += 2) {
            # A move to the next track stays one: what is read in order crosses from cylinder to cylinder.
            distance = v[j] == 1 ? 1 : int(v[j] / each + 0.5)
            if (distance > last) printf "[%d, %.6f],\n", distance, v[j + 1]
            if (distance > last) last = distance
        }
        return
    }
    print text
}
