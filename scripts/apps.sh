#!/usr/bin/env bash
# Applications on a modelled disk, plain and behind dcd, in real time. Each checks its own data after its measurement, and once more
# after the server was killed in the middle of its writes and started again.
#
# One pass makes a file system and does on it, in this order: initdb, the restore of a dump of pgbench's tables, pgbench with 1 and with
# 8 clients, SQLite commits (rollback journal), puts to etcd (one connection), git commits with fsync, dpkg unpacking six packages, and
# the delivery of mail into a maildir (an fsync of each mail and of its directory). Passes take turns, and each round begins with another
# setup:
#   host         the image without a model of a disk: what processor, front-end and other programs on the machine take
#   plain        the modelled disk
#   flush, always  dcd with that promise, its log of 64 MiB on the same disk
#   ssd          dcd with the promise flush, its log of 64 MiB in memory, without a model
# Ratios are of one round. A figure is marked where the host alone takes at least half as long: it says more about the machine than about
# the disk.
#
# usage: apps.sh PROGRAM     dcd-lab; as root on Debian, whose packages (see below) it installs
#   ROUNDS=3 FILESYSTEMS="ext4 xfs" SETUPS="host plain flush always ssd"   a pass takes about a minute
#   KILLS=yes     whether servers are killed, after the last round; some minutes
#   SECONDS_EACH=5 COMMITS=100 PUTS=300 MAILS=100 SCALE=5 (of pgbench, 13 MB each)
#   DRIVE=nearline-2018 FRONT_END=ublk|nbd|fuse REPORT=target/apps/report.md TMPDIR=DIRECTORY OF IMAGES
set -euo pipefail

dcd=$(realpath "${1:?usage: apps.sh PROGRAM}")
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/modelled-disk.sh
. "$here/modelled-disk.sh"
rounds=${ROUNDS:-3}
read -r -a filesystems <<< "${FILESYSTEMS:-ext4 xfs}"
read -r -a setups <<< "${SETUPS:-host plain flush always ssd}"
kills=${KILLS:-yes}
seconds_each=${SECONDS_EACH:-5}
commits=${COMMITS:-100}
puts=${PUTS:-300}
mails=${MAILS:-100}
scale=${SCALE:-5}
drive=${DRIVE:-nearline-2018}
report=${REPORT:-$here/../target/apps/report.md}
log_mib=64
data_mib=2048
etcd_url=http://127.0.0.1:22379
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

"$here/packages.sh" postgresql sqlite3 etcd-server git curl perl e2fsprogs xfsprogs fuse3
postgres=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -n 1)
export PATH=$PATH:$postgres
front_end=${FRONT_END:-$(find_front_end)}
skip() { echo "SKIPPED: $1" >&2; exit 0; }
[ "$(id -u)" -eq 0 ] || skip "not root"
[ -n "$front_end" ] || skip "no ublk, NBD or /dev/fuse"
for tool in losetup initdb pgbench pg_amcheck sqlite3 etcd git curl perl dpkg; do
    command -v $tool > /dev/null || skip "$tool is not installed"
done
for filesystem in "${filesystems[@]}"; do
    command -v "mkfs.$filesystem" > /dev/null || skip "mkfs.$filesystem is not installed"
done

kept=$(dirname "$report")
mkdir -p "$kept/debs"
# Packages without scripts that run before they are unpacked.
(cd "$kept/debs" && { [ -n "$(find . -name '*.deb')" ] || apt-get download -q hello tree zip unzip bc cowsay > /dev/null 2>&1; }) ||
    skip "no packages for dpkg"
debs=$(realpath "$kept/debs")

work=$(mktemp -d "${TMPDIR:-$(place_of_images 3000)}/dcd-apps.XXXXXX")
export DCD_STATE_DIR=$work/state
chmod 711 "$work"
fs=$work/fs
mkdir "$fs"
postmaster=
etcd=
load=

clean_up() {
    local status=$?
    trap - EXIT INT TERM HUP
    set +e
    kill_applications
    stop_server "$fs"
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
fail() { echo "$*" >&2; exit 1; }

# ---------------------------------------------------------------- applications

# NAME_start brings up what serves it, NAME_run COUNT prints a line for each piece of work when it is done, NAME_check LINES fails unless
# the data are whole and have at least that many pieces.

repeat() { awk -v count="$1" -v line="$2" 'BEGIN { while (count-- > 0) print line }'; }

as_postgres() { runuser -u postgres -- "$@"; }
sql() { as_postgres psql -qAtX -h "$work/socket" "$@"; }

postgres_start() {
    install -d -o postgres "$work/socket"
    as_postgres pg_ctl -D "$1/pg" -w -t 120 -s -l "$work/socket/log" \
        -o "-k $work/socket -c listen_addresses=''" start 2> /dev/null || fail "$(tail -n 5 "$work/socket/log")"
    postmaster=$(head -n 1 "$1/pg/postmaster.pid")
}
postgres_stop() { as_postgres pg_ctl -D "$1/pg" -m fast -s -w stop; postmaster=; }
postgres_run() { # inserts, one transaction each
    sql -c 'create table if not exists acked (n serial primary key)' postgres
    repeat "$1" "insert into acked default values returning n;" | stdbuf -oL runuser -u postgres -- psql -qAtX -h "$work/socket" postgres
}
postgres_check() { # pgbench keeps four sums equal
    as_postgres pg_amcheck -h "$work/socket" --all --install-missing > "$work/amcheck" 2>&1 || fail "$(cat "$work/amcheck")"
    [ "$(sql -c "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
        and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)" bench)" = t ] || fail "pgbench's sums differ"
    [ "$1" -eq 0 ] || [ "$(sql -c 'select count(*) from acked' postgres)" -ge "$1" ] || fail "PostgreSQL lost transactions"
}

sqlite_start() { sqlite3 "$fs/db" 'create table if not exists t (n integer primary key, body text)'; }
sqlite_run() {
    repeat "$1" "insert into t (body) values (hex(randomblob(250))); select last_insert_rowid();" | stdbuf -oL sqlite3 "$fs/db"
}
sqlite_check() { # a commit is the removal of a journal, which SQLite does not wait for: the last commit may be undone
    [ "$(sqlite3 "$fs/db" 'pragma integrity_check')" = ok ] || fail "SQLite's integrity_check failed"
    [ "$(sqlite3 "$fs/db" 'select count(*) from t')" -ge $(($1 - killed)) ] || fail "SQLite lost commits"
}

etcd_start() {
    etcd --name one --data-dir "$fs/etcd" --listen-client-urls $etcd_url --advertise-client-urls $etcd_url \
        --listen-peer-urls http://127.0.0.1:22380 --initial-advertise-peer-urls http://127.0.0.1:22380 \
        --initial-cluster one=http://127.0.0.1:22380 > "$work/etcd.log" 2>&1 &
    etcd=$!
    disown
    for _ in $(seq 600); do
        if curl -sf $etcd_url/health 2> /dev/null | grep -q true; then return; fi
        sleep 0.05
    done
    fail "etcd did not start: $(tail -n 3 "$work/etcd.log")"
}
etcd_stop() {
    kill "$etcd"
    while kill -0 "$etcd" 2> /dev/null; do sleep 0.02; done
    etcd=
}
etcd_run() {
    # Both are base64 as they are.
    awk -v count="$1" -v url=$etcd_url 'BEGIN {
        while (++n <= count) printf "%sno-buffer\nwrite-out=\"\\n\"\nurl=\"%s/v3/kv/put\"\ndata=\"{\\\"key\\\":\\\"%08d\\\",\\\"value\\\":\\\"%0200d\\\"}\"\n", (n > 1 ? "next\n" : ""), url, n, n
    }' > "$work/puts"
    curl -sS -K "$work/puts" | grep --line-buffered revision
}
etcd_check() {
    local count
    count=$(curl -sf $etcd_url/v3/kv/range -d '{"key":"AA==","range_end":"AA==","count_only":true}' | sed -n 's/.*"count":"\([0-9]*\)".*/\1/p')
    [ "${count:-0}" -ge "$1" ] || fail "etcd lost keys: ${count:-none} of $1"
}
etcd_p99_ms() { # upper end of the bucket that holds 99 of 100 fsyncs of its log
    curl -sf $etcd_url/metrics | sed -n 's/^etcd_disk_wal_fsync_duration_seconds_bucket{le="\(.*\)"} /\1 /p' |
        awk '{ end[NR] = $1; count[NR] = $2 } END { for (i = 1; i <= NR; i++) if (count[i] >= 0.99 * count[NR]) { print end[i] * 1000; exit } }'
}

git_() { git -C "$fs/repository" -c user.name=a -c user.email=a -c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0 "$@"; }
git_start() { [ -d "$fs/repository" ] || git init -q "$fs/repository"; }
git_run() {
    local n
    for n in $(seq "$1"); do
        echo "$n" > "$fs/repository/file$((n % 10))"
        git_ add . && git_ commit -q -m "$n" && echo "$n"
    done
}
git_check() { # a commit ends with a rename, whose directory git does not wait for
    git_ fsck --strict --no-dangling > "$work/git" 2>&1 || fail "$(cat "$work/git")"
    [ "$(git_ rev-list --count HEAD)" -ge $(($1 - killed)) ] || fail "git lost commits"
}

dpkg_start() {
    mkdir -p "$fs/root/var/lib/dpkg/info" "$fs/root/var/lib/dpkg/updates"
    touch "$fs/root/var/lib/dpkg/status"
}
dpkg_run() {
    local deb
    for deb in "$debs"/*.deb; do
        dpkg --root="$fs/root" --log=/dev/null --force-depends --unpack "$deb" > "$work/dpkg" 2>&1 && dpkg-deb -f "$deb" Package
    done
}
dpkg_check() {
    local package wrong
    for package in $(head -n "$1" "$work/acked"); do
        wrong=$(dpkg --root="$fs/root" --verify "$package") || true
        [ -z "$wrong" ] || fail "dpkg: $wrong"
        dpkg --root="$fs/root" -s "$package" | grep -q '^Status: .* unpacked' || fail "dpkg lost $package"
    done
}

mail_start() { mkdir -p "$fs/mail/tmp" "$fs/mail/new"; sync -f "$fs/mail"; }
mail_() {
    perl -MIO::Handle -e '
        my ($what, $box, $count) = @ARGV;
        STDOUT->autoflush;
        open my $new, "<", "$box/new" or die $!;
        for my $n (1 .. $count) {
            my $text = "mail $n\n" x (100 + $n * 37 % 1500);
            if ($what eq "check") {
                open my $mail, "<", "$box/new/$n" or die "mail $n: $!";
                local $/;
                <$mail> eq $text or die "mail $n is wrong";
                next;
            }
            open my $mail, ">", "$box/tmp/$n" or die $!;
            print $mail $text or die $!;
            $mail->flush && $mail->sync && close $mail && rename("$box/tmp/$n", "$box/new/$n") && $new->sync or die $!;
            print "$n\n";
        }' "$1" "$fs/mail" "$2"
}
mail_run() { mail_ run "$1"; }
mail_check() { mail_ check "$1" || fail "the spool lost mail"; }

kill_applications() {
    [ -z "$load" ] || { pkill -KILL -P "$load"; kill -KILL "$load"; wait "$load"; } 2> /dev/null || true
    # A backend without a postmaster ends by itself, but not at once.
    [ -z "$postmaster" ] || { pkill -KILL -P "$postmaster"; kill -KILL "$postmaster"; } 2> /dev/null || true
    [ -z "$etcd" ] || kill -KILL "$etcd" 2> /dev/null || true
    while pgrep -u postgres -f "^postgres|$fs/pg" > /dev/null || { [ -n "$etcd" ] && kill -0 "$etcd" 2> /dev/null; }; do sleep 0.05; done
    load='' postmaster='' etcd=''
}

# ---------------------------------------------------------------- disks

describe() { # SETUP: its stack file
    local log_on=disk export=data
    case $1 in
        flush | always) export=cache ;;
        ssd) export=cache log_on=ssd ;;
    esac
    cat << STACK
export = "$export"

$(describe_serving)
[device.image]
path = "image"
STACK
    [ "$1" = host ] || printf '[layer.disk]\nkind = "disk"\nof = "image"\ndrive = "%s"\n' "$drive"
    printf '[layer.data]\nkind = "slice"\nof = "%s"\nfirst = "%dMiB"\n' "$([ "$1" = host ] && echo image || echo disk)" $log_mib
    [ $export = cache ] || return 0
    if [ $log_on = ssd ]; then
        printf '[device.log]\npath = "ssd"\n'
    else
        printf '[layer.log]\nkind = "slice"\nof = "disk"\nsize = "%dMiB"\n' $log_mib
    fi
    printf '[layer.cache]\nkind = "log-cache"\nlog = "log"\ndata = "data"\npromise = "%s"\n' "${1/ssd/flush}"
}

mount_disk() { # SETUP FILESYSTEM
    local options=noatime
    # After a kill the old file system may not have ended yet.
    [ "$2" != xfs ] || options+=,nouuid
    start_server "$1"
    loop_device "$image" 0 $data_mib
    mount -t "$2" -o $options "$loop" "$fs"
}

make_disk() { # SETUP FILESYSTEM
    # With the records of the caches that were attached.
    rm -f "$work"/image* "$work"/ssd*
    truncate -s $((log_mib + data_mib))M "$work/image"
    truncate -s ${log_mib}M "$work/ssd"
    loop_device "$work/image" $log_mib $data_mib
    case $2 in
        ext4) mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop" ;;
        *) "mkfs.$2" -q -f "$loop" ;;
    esac
    stop_server "$fs"
    describe "$1" > "$work/$1.toml"
    case $1 in host | plain) ;; *) "$dcd" format "$work/$1.toml" > "$work/said" 2>&1 || fail "$(cat "$work/said")" ;; esac
    mount_disk "$1" "$2"
}

# ---------------------------------------------------------------- measurements

note() { # ROW VALUE
    echo "$filesystem,$1,$setup,$round,$2" >> "$work/results"
    printf '  %-12s %8.2f\n' "$1" "$2"
}

timed() { # ROW COMMAND...
    local begin
    sync -f "$fs"
    begin=$(now)
    "${@:2}" > "$work/acked"
    sync -f "$fs"
    note "$1" "$(awk "BEGIN { print $(now) - $begin }")"
}

# The order of rows is that of the table; a newer pg_dump adds two lines that are different each time.
dump() { as_postgres pg_dump -h "$work/socket" bench | grep -vE '^\\(un)?restrict '; }

make_dump() {
    install -d -o postgres "$work/source"
    as_postgres initdb -A trust --no-sync -D "$work/source/pg" > /dev/null
    postgres_start "$work/source"
    as_postgres createdb -h "$work/socket" bench
    as_postgres pgbench -h "$work/socket" -i -q -s "$scale" bench > /dev/null 2>&1
    dump > "$work/dump"
    postgres_stop "$work/source"
    rm -r "$work/source"
}

restore() { sql -v ON_ERROR_STOP=1 -f "$work/dump" bench; }

transactions() { # CLIENTS
    as_postgres pgbench -h "$work/socket" -n -c "$1" -T "$seconds_each" bench 2> "$work/pgbench" | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

pass() { # one of $setup on $filesystem in $round
    local application
    killed=0
    make_disk "$setup" "$filesystem"
    install -d -o postgres "$fs/pg"
    timed initdb as_postgres initdb -A trust -D "$fs/pg"
    postgres_start "$fs"
    as_postgres createdb -h "$work/socket" bench
    timed restore restore
    dump | cmp - "$work/dump" || fail "the restored tables differ"
    note pgbench1 "$(transactions 1)"
    note pgbench8 "$(transactions 8)"
    postgres_check 0
    postgres_stop "$fs"
    for application in sqlite etcd git dpkg mail; do
        "${application}_start"
        case $application in sqlite) count=$commits ;; etcd) count=$puts ;; mail) count=$mails ;; *) count=30 ;; esac
        timed "$application" "${application}_run" "$count"
        "${application}_check" "$(wc -l < "$work/acked")"
        [ $application = dpkg ] || [ "$(wc -l < "$work/acked")" -eq "$count" ] || fail "$application ended early"
    done
    note etcd-p99 "$(etcd_p99_ms)"
    etcd_stop
    [ "$setup" = host ] || say_log
}

# Whether the log follows the head of its disk, what it wrote, and how late the modelled disk noticed what it had done.
say_log() {
    "$dcd" status --json "$work/$setup.toml" | tr -d '\n "' > "$work/status"
    {
        grep -oE '\b(log_head|log_bytes|log_writes|write_bytes|flushes):[^,}]*' "$work/status" | sort -u || true
        grep -oE 'late:\{[^}]*' "$work/status" | grep -oE 'mean_ms:[0-9.]*' | sed 's/^mean/late/'
    } | sed "s/^/$filesystem,$setup,$round,/" | tee -a "$work/logs" | cut -d , -f 4 | paste -s -d ' ' | sed 's/^/  /'
}

# Kills the server under each application and checks what it had been told was done.
kill_each() {
    local application done=()
    killed=1
    for application in postgres sqlite etcd git dpkg mail; do
        rm -rf "$fs/db" "$fs/etcd" "$fs/repository" "$fs/root" "$fs/mail"
        [ $application = mail ] || "${application}_start" "$fs"
        [ $application != mail ] || mail_start
        sync -f "$fs"
        "${application}_run" 20000 > "$work/acked" 2> /dev/null &
        load=$!
        disown
        for _ in $(seq 600); do [ "$(wc -l < "$work/acked")" -ge 3 ] && break; sleep 0.05; done
        sleep 0.$((RANDOM % 10))
        kill -KILL "$server"
        wait "$server" 2> /dev/null || true
        # Whatever waits for the disk gets errors, or waits.
        kill_applications
        server=
        stop_server "$fs" 2> /dev/null
        mount_disk "$setup" "$filesystem"
        case $application in postgres | etcd) "${application}_start" "$fs" ;; esac
        "${application}_check" "$(wc -l < "$work/acked")"
        case $application in postgres) postgres_stop "$fs" ;; etcd) etcd_stop ;; esac
        done+=("$application ($(wc -l < "$work/acked"))")
    done
    echo "$filesystem, $setup: killed under ${done[*]}: nothing lost" | tee -a "$work/killed"
}

# ---------------------------------------------------------------- report

table() { # FILESYSTEM
    awk -F , -v filesystem="$1" -v setups="${setups[*]}" -v seconds="$seconds_each" -v commits="$commits" -v puts="$puts" -v mails="$mails" '
        $1 == filesystem { value[$2, $3, $4] = $5; if ($4 > rounds) rounds = $4 }
        function sorted(list, n,    i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        }
        function middle(list, n) { return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
        function cell(row, setup, rate,    i, n, list, ratios, text, host) {
            for (i = 1; i <= rounds; i++) {
                if (!((row, setup, i) in value)) return "|  "
                list[i] = value[row, setup, i]
                if ((row, "plain", i) in value) ratios[i] = rate ? list[i] / value[row, "plain", i] : value[row, "plain", i] / list[i]
                if ((row, "host", i) in value) host[i] = rate ? list[i] / value[row, "host", i] : value[row, "host", i] / list[i]
            }
            sorted(list, rounds)
            text = sprintf(rate ? "%.0f" : "%.2f", middle(list, rounds))
            if (setup != "host" && setup != "plain" && (row, "plain", 1) in value) {
                sorted(ratios, rounds)
                text = text sprintf(", %.1fx (%.1f to %.1f)", middle(ratios, rounds), ratios[1], ratios[rounds])
            } else if (rounds > 1) text = text sprintf(rate ? " (%.0f to %.0f)" : " (%.2f to %.2f)", list[1], list[rounds])
            sorted(host, rounds)
            if (setup != "host" && (row, "host", 1) in value && middle(host, rounds) >= 0.5) { text = text "*"; spoiled++ }
            cells += setup != "host"
            return "| " text " "
        }
        function line(row, title, rate,    i) {
            printf "| %s ", title
            for (i = 1; i <= n; i++) printf "%s", cell(row, names[i], rate)
            print "|"
        }
        END {
            n = split(setups, names, " ")
            title["host"] = "no disk"; title["plain"] = "plain disk"; title["flush"] = "`flush`"; title["always"] = "`always`"; title["ssd"] = "`flush`, log in memory"
            printf "| %s |", filesystem
            for (i = 1; i <= n; i++) printf " %s |", title[names[i]]
            printf "\n|---|"
            for (i = 1; i <= n; i++) printf "---|"
            print ""
            line("initdb", "PostgreSQL: initdb")
            line("restore", "restore of a dump")
            line("pgbench1", "pgbench, 1 client, transactions/s", 1)
            line("pgbench8", "pgbench, 8 clients, transactions/s", 1)
            line("sqlite", commits " SQLite commits")
            line("etcd", puts " puts to etcd")
            line("etcd-p99", "99 % of its fsyncs, ms")
            line("git", "30 git commits")
            line("dpkg", "dpkg unpacks six packages")
            line("mail", mails " mails delivered")
            print ""
            if (spoiled)
                printf "With a `*`: without any disk it takes at least half as long, so the host spoils %d of %d figures.\n\n", spoiled, cells
        }' "$work/results"
}

say_place_of_images
make_dump
: > "$work/results"
: > "$work/killed"
: > "$work/logs"
loads=()
begin=$SECONDS
for round in $(seq "$rounds"); do
    for filesystem in "${filesystems[@]}"; do
        for setup in "${setups[@]}"; do
            loads+=("$(cut -d ' ' -f 1 /proc/loadavg)")
            echo "round $round of $rounds, $filesystem, $setup; load ${loads[-1]}, $((SECONDS - begin)) s so far"
            pass
            if [ "$kills" = yes ] && [ "$round" = "$rounds" ]; then
                case $setup in flush | always | ssd) kill_each ;; esac
            fi
            stop_server "$fs"
        done
    done
    setups=("${setups[@]:1}" "${setups[0]}")
done
read -r -a setups <<< "${SETUPS:-host plain flush always ssd}"
{
    echo "$drive through $front_end, $rounds rounds on $(nproc) processors, load $(printf '%s\n' "${loads[@]}" | sort -n | sed -n '1p;$p' | paste -s -d ' ' | sed 's/ / to /')." \
        "The modelled disk noticed what it had done" \
        "$(sed -n 's/.*late_ms://p' "$work/logs" | xargs printf '%.1f\n' | sort -n | sed -n '1p;$p' | paste -s -d ' ' | sed 's/ / to /') ms late, on the average of a pass." \
        "Seconds, or transactions a second: median (lowest to highest), times as fast as the plain disk in the same round (lowest to highest)."
    echo
    for filesystem in "${filesystems[@]}"; do table "$filesystem"; done
    sed 's/^/- /' "$work/killed"
} > "$report"
cp "$work/results" "$kept/results.csv"
cp "$work/logs" "$kept/logs.csv"
echo
cat "$report"
