//! The reference of the fields of stack files; `registry::reference` adds those of registered kinds.

/// Every field, with its default.
pub const REFERENCE: &str = r#"A stack file describes devices, the layers over them, and how the top is served.
Relative paths are relative to the directory of the file. Sizes are written like
"64MiB" (K, M, G, T are powers of 1024; KB, MB, GB, TB powers of 1000), spans of
time like "500ms".

export = "NAME"             the device or layer that is served

[serve]
nbd = "unix:PATH"           where NBD clients connect: unix:PATH, tcp:PORT (loopback),
                            tcp:ADDRESS:PORT; or a list of those
nbd-allow-local-users = false
                            needed without nbd-tls for tcp: each user of this machine, and each container
                            on its network, can then read and write the disk
nbd-tls = "DIR"             TLS for the tcp addresses: DIR has server-cert.pem, server-key.pem, and
                            ca-cert.pem, the authority whose clients are served
nbd-tls-clients = "signed"  signed: clients need a certificate; anyone: all who can connect are served
nbd-allow-remote = false    needed without nbd-tls for an address that other hosts can reach: there
                            is no encryption and no password
nbd-name = ""               name of the NBD export
nbd-recovery = false        true: clients may outlive the server, as dcd attach has the kernel do
fuse = "DIR"                directory on which one image file appears
ublk = false                true: a block device of the kernel, /dev/ublkbN; or its number. Needs root
                            and the module ublk_drv
ublk-recovery = true        it outlives the server. false: it ends with the server
control = "PATH"            socket by which the dcd commands reach the server
metrics = "tcp:PORT"        where Prometheus fetches http://127.0.0.1:PORT/metrics; tcp:ADDRESS:PORT
                            for another loopback address, unix:PATH for a socket

[device.NAME]               a file, a block device, an export of an NBD server, or RAM
path = "PATH"               or "nbd://HOST:PORT/EXPORT", "nbd+unix:///EXPORT?socket=PATH"; nbds with TLS
size = "1GiB"               create a missing file with this size
memory = "64MiB"            instead of path: RAM, gone when the server ends
read-only = false
timeout = "30s"             of an export: what its server does not answer for so long fails. Not given:
                            it waits for ever

[layer.NAME]
kind = "log-cache"          a write cache that is a log
log = "NAME"                where the log is: made by dcd format. A list, ["NAME", "NAME"]: a copy on
                            each, of which one may be lost
data = "NAME"               the disk that is cached
promise = "flush"           flush: durable after FLUSH and FUA, as on any disk
                            ordered: after a crash the disk is as it was at most
                            delay-max ago; always: every write is durable at once
delay-max = "500ms"         for ordered
bypass = "64KiB"            writes from this size on bypass the log; 0: never
reads = "pass"              keep: copy to the log what is read twice from the data disk, and
                            again what is read there. Not on a log that spins, nor with
                            ordered-destage. A byte of RAM for each 4 KiB of log
when = "idle"               idle: destage when the disk is idle; high-low: by the marks;
                            one-threshold, two-thresholds, asap, when-full, linear
what = "oldest-first"       oldest-first, last-write-first, least-valid-first, and what a
                            write cache knows
high-mark = 75              percent of the log in use from which destaging does not wait
low-mark = 50               percent at which high-low stops, and from which on the oldest are
                            destaged first whatever "what" says: they free the log's tail
idle-empty = "1s"           how long the disk must be idle when the log is empty; a thousandth of
                            it when the log is full
destage-memory = "16MiB"    RAM for blocks that are being destaged, taken at the start; as much again
                            for reading the log
destage-depth = 32          data-disk writes in flight while destaging
ordered-destage = false     the data disk alone is always in a state that a plain disk
                            could have crashed in, at the price of shorter sweeps

[layer.NAME]
kind = "raid"               an array with a stripe cache, made by dcd array create
level = "raid5"             raid5: one member may fail; raid6: two
of = ["NAME", "missing"]    its members in the order of their roles; "missing" in the place of
                            one that is missing
spares = ["NAME"]           devices made ready with dcd array add: where a member has failed, the
                            first one takes its place and is filled; status says when to name it
                            in its place in "of"
strip = "128KiB"            what a stripe has on each member
journal = "NAME"            closes the write hole: what is about to be written is there first, so
                            that a crash that takes a member too loses nothing. A slice of an SSD;
                            a few stripes are enough. Below a log cache, where nothing is said, it
                            is the first 64 MiB of what the log is on; "none": no journal, or one
                            that was there and is gone for good
journal-required = false    true: when the journal fails, no more writes are taken; otherwise the
                            array goes on without it, and status says so
pass-rate = "10MiB"         the most that a rebuild, a resync or a scrub moves in a second at each member
                            while clients are active; when they are not, it is not limited
cache-size = "64MiB"        RAM for stripes; up to an eighth more for what destages will read
non-volatile = false        as in a write cache
when = "idle"               as in a log cache
what = "wow"                as in a write cache
high-mark = 10              percent of that RAM that is dirty from which it is destaged whatever
                            the load; 95 where it is non-volatile
low-mark = 5                percent at which that ends, for high-low; 10 below high-mark, or half of it
destage-depth = 32          stripes that are destaged at a time

[layer.NAME]
kind = "read-ahead"         reads on where reads come in order, and keeps it in RAM; below a log
                            cache, before a disk that seeks and has many readers of small files
of = "NAME"
streams = 32                readers that are followed at a time
size = "128KiB"             the most that is read ahead for one; takes three times that of RAM

[layer.NAME]
kind = "slice"              a part of what is below
of = "NAME"
first = "0"                 where it begins
size = "64MiB"              how long it is; left out: to the end

[layer.NAME]
kind = "fault"              for tests: what is below fails or lies
of = "NAME"
ignore-flush = false        answer flushes without carrying them out
hits = "all"                which operations fail: all, reads, writes, flushes
fail-after = 0              how many of them succeed first
fail-count = 0              how many fail then
no-space = false            they fail with ENOSPC in place of EIO

[layer.NAME]
kind = "trace"              records what passes and changes nothing; above or below a cache
of = "NAME"
keep = 100                  how many of the newest operations dcd status --json shows
file = "PATH"               gets every operation, one JSON object a line; times are in ns.
                            Begun anew at each start, and never on a disk of this stack. Serving does
                            not wait for it: what cannot be written in time is left out and counted
"#;

#[cfg(test)]
mod tests {
    use crate::testing::parse;

    /// The fields that a table may have, from the error about one that it may not have.
    fn known_fields(text: &str) -> Vec<String> {
        let error = parse(text).expect_err(text).to_string();
        let known = error.split_once("known here: ").expect(&error).1;
        known.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn the_reference_has_every_field_and_no_other() {
        let layer = |kind: &str| {
            format!(
                "export = \"x\"\n[device.d]\nmemory = \"1MiB\"\n[layer.x]\nkind = \"{kind}\"\nof = \"d\"\nlog = \"d\"\n\
                 data = \"d\"\nunheard = 1\n"
            )
        };
        // Every kind refuses the fields of the others, so only those that it has are given to it.
        let only = |kind: &str, fields: &[&str]| {
            let text = layer(kind);
            let kept = text.lines().filter(|line| {
                let name = line.split(' ').next().unwrap_or("");
                !["of", "log", "data"].contains(&name) || fields.contains(&name)
            });
            kept.collect::<Vec<_>>().join("\n")
        };
        let mut known = vec!["export".to_owned()];
        known.extend(known_fields("export = \"x\"\n[serve]\nunheard = 1\n"));
        known.extend(known_fields("export = \"x\"\n[device.d]\nmemory = \"1MiB\"\nunheard = 1\n"));
        known.extend(known_fields(&only("log-cache", &["log", "data"])));
        known.extend(known_fields(&only("slice", &["of"])));
        known.extend(known_fields(&only("fault", &["of"])));
        known.extend(known_fields(&only("trace", &["of"])));
        known.extend(known_fields(&only("read-ahead", &["of"])));
        known.extend(known_fields(
            &only("raid", &["of"]).replace("of = \"d\"", "of = [\"d\", \"missing\", \"missing\"]"),
        ));
        let described: Vec<&str> =
            crate::reference::REFERENCE.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        for field in &known {
            assert!(described.contains(&field.as_str()), "\"{field}\" is not described");
        }
        for field in described {
            assert!(known.iter().any(|known| known == field), "\"{field}\" is described and does not exist");
        }
    }
}
