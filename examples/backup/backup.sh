#!/bin/bash
# Keeps BACKUP equal to the disk of a served stack. The first run copies all, later ones what has changed since the run before.
#
#   backup.sh [--disk DISK] STACK URI BACKUP [MOUNTPOINT]
#   backup.sh srv 'nbd+unix:///?socket=/run/dcd/srv.sock' /backup/srv.img /srv
#   backup.sh --disk mail all 'nbd+unix:///mail?socket=/run/dcd/all.sock' /backup/mail.img /mail
#
# DISK is a data disk of a log with several: each has its own marks, its own URI and its own BACKUP.
# MOUNTPOINT is frozen while changes are copied; without it nobody may write. BACKUP.mark has the mark of the last complete run. If the script fails, run it
# again: BACKUP is not complete before a run succeeds. If the mark is lost, remove BACKUP.mark: the next run copies all.
# Needs: nbdinfo, nbdcopy and nbdsh (libnbd).
set -euo pipefail
disk=()
if [ "${1:-}" = --disk ]; then disk=(--disk "$2"); shift 2; fi
stack=$1 uri=$2 backup=$3 mounted=${4:-}
nbdsh --command 'import nbd' || { echo "$0: nbdsh does not find libnbd for Python: package python3-libnbd" >&2; exit 1; }
work=$(mktemp -d "$backup.XXXXXX") new='' first='' frozen=''
mark() { dcd mark "$stack" ${disk[@]+"${disk[@]}"} "$@"; }
finish() {
  if [ -n "$frozen" ]; then fsfreeze -u "$mounted" || echo "$0: $mounted may still be frozen" >&2; fi
  # Marks of a run that has failed.
  for left in $new $first; do mark --drop "$left" || true; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

if [ ! -e "$backup.mark" ]; then
  # Not frozen: what is written meanwhile is copied again below.
  first=$(mark)
  nbdcopy "$uri" "$work/all"
  sync "$work/all"
  mv "$work/all" "$backup"
fi
if [ -n "$mounted" ]; then
  frozen=1
  fsfreeze -f "$mounted"
fi
old=${first:-$(cat "$backup.mark")}
new=$(mark)
size=$(nbdinfo --size "$uri")
[ "$(stat -c %s "$backup")" = "$size" ] || { echo "$0: $backup has another size than the disk" >&2; exit 1; }
if ! nbdinfo --map="dcd:changed-since=$old" "$uri" >"$work/map"; then
  echo "$0: mark $old is lost (dcd mark $stack${disk[*]:+ ${disk[*]}} --list): remove $backup.mark, and run this again for a full backup" >&2
  exit 1
fi
# The extents must follow one another, from 0 to the end.
awk -v size="$size" '$1 != end { exit 1 } { end += $2 } END { if (end != size) exit 1 }' "$work/map" ||
  { echo "$0: nbdinfo has not told the whole disk" >&2; exit 1; }
MAP=$work/map BACKUP=$backup nbdsh --uri "$uri" --command '
import os
with open(os.environ["MAP"]) as extents, open(os.environ["BACKUP"], "r+b") as backup:
    for extent in extents:
        offset, length, changed = (int(word) for word in extent.split()[:3])
        while changed and length:
            part = min(length, 1 << 20)
            backup.seek(offset)
            backup.write(h.pread(part, offset))
            offset, length = offset + part, length - part
    backup.flush()
    os.fsync(backup.fileno())
'
echo "$new" >"$work/mark"
sync "$work/mark"
mv "$work/mark" "$backup.mark"
sync "$(dirname "$backup")"
new='' first=''
# A mark that stays does no harm: a disk has eight at most.
mark --drop "$old"
