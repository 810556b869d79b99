//! The table of the fields of stack files: `dcd stack-file` and the manual page print it, and `dcd set`, `dcd get` and the completions look
//! up there which fields exist and when they change. `registry::reference` adds the text of registered kinds.

/// Introduction of the reference.
const ABOUT: &str = "\
A stack file describes devices, the layers over them, and how the top is served.
Relative paths are relative to the directory of the file. Sizes are written like
\"64MiB\" (K, M, G, T are powers of 1024; KB, MB, GB, TB powers of 1000), spans of
time like \"500ms\". \"dcd set\" changes fields marked * while the stack is served.
";
/// Column at which the text about a field begins, and width of the page.
const INDENT: usize = 28;
const WIDTH: usize = 80;

/// Time at which a changed field takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// At once: `dcd set` changes it while the stack is served.
    Served,
    /// At the next start.
    Restart,
    /// Not by an edit alone, as data lies by it; the text says what changes it.
    Fixed(&'static str),
}

impl Change {
    pub const fn word(self) -> &'static str {
        match self {
            Change::Served => "served",
            Change::Restart => "restart",
            Change::Fixed(_) => "fixed",
        }
    }
}

/// A field of a stack file.
#[derive(Clone, Copy, Debug)]
pub struct FieldReference {
    pub name: &'static str,
    /// Value as it is written in the file: the default, or an example where there is none.
    pub example: &'static str,
    pub has_default: bool,
    pub change: Change,
    text: &'static str,
}

/// The fields of one table of a stack file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableReference {
    head: &'static str,
    about: &'static str,
    pub fields: &'static [FieldReference],
}

const fn field(
    change: Change,
    name: &'static str,
    example: &'static str,
    text: &'static str,
) -> FieldReference {
    FieldReference { name, example, has_default: true, change, text }
}

const fn served(name: &'static str, example: &'static str, text: &'static str) -> FieldReference {
    field(Change::Served, name, example, text)
}

const fn at_start(name: &'static str, example: &'static str, text: &'static str) -> FieldReference {
    field(Change::Restart, name, example, text)
}

/// A field without a default; the value is an example.
const fn example(name: &'static str, example: &'static str, text: &'static str) -> FieldReference {
    at_start(name, example, text).without_default()
}

const fn fixed(
    why: &'static str,
    name: &'static str,
    example: &'static str,
    text: &'static str,
) -> FieldReference {
    field(Change::Fixed(why), name, example, text)
}

impl FieldReference {
    const fn without_default(self) -> FieldReference {
        FieldReference { has_default: false, ..self }
    }

    fn render(&self) -> String {
        let mark = if self.change == Change::Served { "* " } else { "" };
        row(&format!("{} = {}", self.name, self.example), &format!("{mark}{}", self.text))
    }
}

/// Formats a text beside `left`. The text about a long value begins in the next line.
fn row(left: &str, text: &str) -> String {
    let mut lines = wrapped(text, WIDTH - INDENT).into_iter();
    let first = if left.len() < INDENT { lines.next().unwrap_or_default() } else { String::new() };
    let mut row = format!("{left:<INDENT$}{first}").trim_end().to_owned();
    lines.for_each(|line| row.push_str(&format!("\n{:INDENT$}{line}", "")));
    row + "\n"
}

/// Breaks a text into lines of at most `width` columns, if its words fit.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let columns = |text: &str| text.chars().count();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => line.extend([" ", word]),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

impl TableReference {
    /// The word of the kind, for a layer.
    fn kind(&self) -> Option<&'static str> {
        let kind = self.fields.first().filter(|first| first.name == "kind")?;
        Some(kind.example.trim_matches('"'))
    }

    /// The fields without the kind of a layer, which never changes.
    fn settings(&self) -> &'static [FieldReference] {
        if self.kind().is_some() { &self.fields[1..] } else { self.fields }
    }

    fn render(&self) -> String {
        let head = if self.head.is_empty() { String::new() } else { row(self.head, self.about) };
        self.fields.iter().fold(head, |page, field| page + &field.render())
    }
}

/// The reference of all kinds of the product.
pub(crate) fn product_reference() -> String {
    let tables = TABLES.iter().map(TableReference::render);
    [ABOUT.to_owned()].into_iter().chain(tables).collect::<Vec<_>>().join("\n")
}

/// The fields of a kind of layer, without the kind; none for a registered kind.
pub(crate) fn fields_of_kind(kind: &str) -> &'static [FieldReference] {
    TABLES.iter().find(|table| table.kind() == Some(kind)).map_or(&[], TableReference::settings)
}

/// The fields of a table that is no layer: `[serve]`, `[device.NAME]`, or the top of the file.
pub(crate) fn fields_of_head(head: &str) -> &'static [FieldReference] {
    TABLES.iter().find(|table| table.head == head).map_or(&[], TableReference::settings)
}

/// The names of the fields that pass, each once.
pub fn field_names(passes: fn(Change) -> bool) -> Vec<&'static str> {
    let passing = TABLES.iter().flat_map(TableReference::settings).filter(|field| passes(field.change));
    let mut names = Vec::new();
    for name in passing.map(|field| field.name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

const TABLES: &[TableReference] = &[
    TableReference {
        head: "",
        about: "",
        fields: &[example("export", r#""NAME""#, "the device or layer that is served")],
    },
    TableReference {
        head: "[serve]",
        about: "",
        fields: &[
            example(
                "nbd",
                r#""unix:PATH""#,
                "where NBD clients connect: unix:PATH, tcp:PORT (loopback), tcp:ADDRESS:PORT; or a \
                 list of those",
            ),
            at_start(
                "nbd-allow-local-users",
                "false",
                "needed without nbd-tls for tcp: each user of this machine, and each container on its \
                 network, can then read and write the disk",
            ),
            example(
                "nbd-socket-group",
                r#""kvm""#,
                "group whose users may connect to the unix sockets of nbd, in a directory that lets them \
                 through; without it only the server's user may",
            ),
            at_start("nbd-socket-mode", r#""0600""#, "mode of those sockets; \"0660\" if there is a group"),
            example(
                "nbd-tls",
                r#""DIR""#,
                "TLS for the tcp addresses: DIR has server-cert.pem, server-key.pem, and ca-cert.pem, \
                 the authority whose clients are served",
            ),
            at_start(
                "nbd-tls-clients",
                r#""signed""#,
                "signed: clients need a certificate; anyone: all who can connect are served",
            ),
            at_start(
                "nbd-allow-remote",
                "false",
                "needed without nbd-tls for an address that other hosts can reach: there is no \
                 encryption and no password",
            ),
            at_start("nbd-name", r#""""#, "name of the NBD export"),
            at_start(
                "nbd-recovery",
                "false",
                "true: clients may outlive the server, as dcd attach has the kernel do",
            ),
            example(
                "fuse",
                r#""DIR""#,
                "directory on which one image file appears; DIR-NAME for each disk after the first",
            ),
            example(
                "vhost-user",
                r#""unix:PATH""#,
                "where virtual machines connect, as QEMU's vhost-user-blk; PATH-NAME for each disk after \
                 the first",
            ),
            example(
                "vhost-user-socket-group",
                r#""kvm""#,
                "group whose users may connect there, as nbd-socket-group",
            ),
            at_start(
                "vhost-user-socket-mode",
                r#""0600""#,
                "mode of that socket; \"0660\" if there is a group",
            ),
            at_start(
                "ublk",
                "false",
                "true: a block device of the kernel, /dev/ublkbN; or its number. Needs root and the \
                 module ublk_drv",
            ),
            at_start("ublk-recovery", "true", "it outlives the server. false: it ends with the server"),
            example("control", r#""PATH""#, "socket by which the dcd commands reach the server"),
            example(
                "metrics",
                r#""tcp:PORT""#,
                "where Prometheus fetches http://127.0.0.1:PORT/metrics; tcp:ADDRESS:PORT for another \
                 loopback address, unix:PATH for a socket",
            ),
        ],
    },
    TableReference {
        head: "[device.NAME]",
        about: "a file, a block device, an export of an NBD server, or RAM",
        fields: &[
            example(
                "path",
                r#""PATH""#,
                r#"or "nbd://HOST:PORT/EXPORT", "nbd+unix:///EXPORT?socket=PATH"; nbds with TLS"#,
            ),
            example("size", r#""1GiB""#, "create a missing file with this size"),
            example("memory", r#""64MiB""#, "instead of path: RAM, gone when the server ends"),
            at_start("read-only", "false", ""),
            example(
                "timeout",
                r#""30s""#,
                "of an export: what its server does not answer for so long fails. Not given: it waits \
                 for ever",
            ),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example("kind", r#""log-cache""#, "a write cache that is a log"),
            fixed(
                "the log is made by \"dcd format\"; \"dcd format --replace\" moves to another one, and \
                 \"dcd log add\" adds a leg",
                "log",
                r#""NAME""#,
                "where the log is: made by dcd format. A list, [\"NAME\", \"NAME\"]: a copy on each, of \
                 which one may be lost",
            )
            .without_default(),
            fixed(
                r#"a log is made for its data disks, by "dcd format""#,
                "data",
                r#""NAME""#,
                "the disk that is cached; a list of names is several disks that share the log",
            )
            .without_default(),
            at_start(
                "promise",
                r#""flush""#,
                "flush: durable after FLUSH and FUA, as on any disk; ordered: after a crash the disk \
                 is as it was at most delay-max ago; always: every write is durable at once",
            ),
            served("delay-max", r#""500ms""#, "for ordered"),
            served("bypass", r#""64KiB""#, "writes from this size on bypass the log; 0: never"),
            at_start(
                "reads",
                r#""pass""#,
                "keep: copy to the log what is read twice from the data disk, and again what is read \
                 there. Not on a log that spins, nor with ordered-destage. A byte of RAM for each 4 \
                 KiB of log",
            ),
            served(
                "writes",
                r#""back""#,
                "back: answered by the log, and written back later; through: by the data disk, and the log keeps \
                 copies for reads, so that it may be lost. Not with promise \"ordered\", nor with ordered-destage",
            ),
            served(
                "when",
                r#""idle""#,
                "idle: destage when the disk is idle; high-low: by the marks; one-threshold, \
                 two-thresholds, asap, when-full, linear",
            ),
            served(
                "what",
                r#""oldest-first""#,
                "which segments go first: oldest-first, last-write-first, least-valid-first, most-dirty, \
                 least-recently-written, c-scan, clock, wow (both of these), stow (here as wow)",
            ),
            served("high-mark", "75", "percent of the log in use from which destaging does not wait"),
            served(
                "low-mark",
                "50",
                "percent at which high-low stops, and from which on the oldest are destaged first \
                 whatever \"what\" says: they free the log's tail",
            ),
            served(
                "share",
                "50",
                "percent of the log that the dirty blocks of one of several data disks may take; beyond it, writes to \
                 that disk wait",
            ),
            served(
                "idle-empty",
                r#""1s""#,
                "how long the disk must be idle when the log is empty; a thousandth of it when the \
                 log is full",
            ),
            at_start(
                "destage-memory",
                r#""16MiB""#,
                "RAM for blocks that are being destaged, taken at the start; as much again for \
                 reading the log",
            ),
            served("destage-depth", "32", "data-disk writes in flight while destaging"),
            served(
                "destage-rate",
                r#""0""#,
                "bytes that destaging writes in a second while clients are active, until 5 s after their last request; \
                 0: no limit. Above high-mark, and for dcd flush, there is none",
            ),
            served(
                "destage-window",
                "[]",
                "local times at which dirty data is written back, like [\"02:00-05:00\", \"Sat 00:00-24:00\", \
                 \"Mon-Fri 22:00-06:00\"]; empty: at all times. Above high-mark, and for dcd flush, it is \
                 written back at other times, too",
            ),
            served(
                "discard-freed",
                "true",
                "discard free segments of the log, so that an SSD has room to collect its garbage in: after a start all \
                 that is not in use, and later the part that the head enters next. Only where the log, and each of its \
                 legs, is a plain NVMe or SATA SSD of this machine or a partition of one, as the kernel says; not if it \
                 is slow at it. false: also for an SSD that a virtual machine is given of thin storage",
            ),
            served(
                "wear-budget",
                r#""0""#,
                "bytes that may be written to the log in 24 hours, like \"50GB/day\", before the SSD is spared: from \
                 three quarters of it on, no reads are copied to the log; when it is used up, writes from 16 KiB on \
                 bypass the log. Smaller writes still go to the log, and with promise = \"ordered\" or ordered-destage all do. It begins anew when the server starts. The least is 64 MiB; 0: no budget",
            ),
            at_start(
                "ordered-destage",
                "false",
                "the data disk alone is always in a state that a plain disk could have crashed in, at \
                 the price of shorter sweeps",
            ),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example("kind", r#""raid""#, "an array with a stripe cache, made by dcd array create"),
            fixed(
                r#""dcd array create" has fixed it on the members"#,
                "level",
                r#""raid5""#,
                "raid5: one member may fail; raid6: two",
            ),
            fixed(
                "\"dcd array add\" and \"dcd array remove\" change members, and the superblocks name them",
                "of",
                r#"["NAME", "missing"]"#,
                "its members in the order of their roles; \"missing\" in the place of one that is \
                 missing",
            )
            .without_default(),
            fixed(
                r#""dcd array add" makes a spare, also while the array is served"#,
                "spares",
                r#"["NAME"]"#,
                "devices made ready with dcd array add: where a member has failed, the first one \
                 takes its place and is filled; status says when to name it in its place in \"of\"",
            )
            .without_default(),
            fixed(
                r#""dcd array create" has fixed it on the members"#,
                "strip",
                r#""128KiB""#,
                "what a stripe has on each member",
            ),
            example(
                "journal",
                r#""NAME""#,
                "closes the write hole: what is about to be written is there first, so that a crash \
                 that takes a member too loses nothing. A slice of an SSD; a few stripes are enough. \
                 Below a log cache, where nothing is said, it is the first 64 MiB of what the log is \
                 on; \"none\": no journal, or one that was there and is gone for good",
            ),
            at_start(
                "journal-required",
                "false",
                "true: when the journal fails, no more writes are taken; otherwise the array goes on \
                 without it, and status says so",
            ),
            served(
                "pass-rate",
                r#""10MiB""#,
                "the most that a rebuild, a resync or a scrub moves in a second at each member while \
                 clients are active; when they are not, it is not limited",
            ),
            at_start(
                "cache-size",
                r#""64MiB""#,
                "RAM for stripes; up to an eighth more for what destages will read",
            ),
            at_start(
                "non-volatile",
                "false",
                "true: that RAM keeps its data without power, so a flush is answered from it. To \
                 simulate a controller with a battery; dcd serve refuses it without \
                 --i-have-nvram",
            ),
            served("when", r#""idle""#, "as in a log cache"),
            served("what", r#""wow""#, "as in a log cache, for stripes"),
            served(
                "high-mark",
                "10",
                "percent of that RAM that is dirty from which it is destaged whatever the load; 95 \
                 where it is non-volatile",
            ),
            served(
                "low-mark",
                "5",
                "percent at which that ends, for high-low; 10 below high-mark, or half of it",
            ),
            served("destage-depth", "32", "stripes that are destaged at a time"),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example(
                "kind",
                r#""read-ahead""#,
                "reads on where reads come in order, and keeps it in RAM; below a log cache, before a \
                 disk that seeks and has many readers of small files",
            ),
            example("of", r#""NAME""#, ""),
            at_start("streams", "32", "readers that are followed at a time"),
            at_start(
                "size",
                r#""128KiB""#,
                "the most that is read ahead for one; takes three times that of RAM",
            ),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example("kind", r#""slice""#, "a part of what is below"),
            fixed("the data below lies by it", "of", r#""NAME""#, "").without_default(),
            fixed("the data below lies by it", "first", r#""0""#, "where it begins"),
            fixed("the data below lies by it", "size", r#""64MiB""#, "how long it is; left out: to the end")
                .without_default(),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example("kind", r#""fault""#, "for tests: what is below fails or lies"),
            example("of", r#""NAME""#, ""),
            at_start("ignore-flush", "false", "answer flushes without carrying them out"),
            at_start("hits", r#""all""#, "which operations fail: all, reads, writes, flushes"),
            at_start("fail-after", "0", "how many of them succeed first"),
            at_start("fail-count", "0", "how many fail then"),
            at_start("no-space", "false", "they fail with ENOSPC in place of EIO"),
        ],
    },
    TableReference {
        head: "[layer.NAME]",
        about: "",
        fields: &[
            example("kind", r#""trace""#, "records what passes and changes nothing; above or below a cache"),
            example("of", r#""NAME""#, ""),
            at_start("keep", "100", "how many of the newest operations dcd status --json shows"),
            example(
                "file",
                r#""PATH""#,
                "gets every operation, one JSON object a line; times are in ns. Begun anew at each \
                 start, and never on a disk of this stack. Serving does not wait for it: what cannot \
                 be written in time is left out and counted",
            ),
        ],
    },
];

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
    fn the_reference_fits_a_terminal() {
        let page = super::product_reference();
        let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
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
            super::TABLES.iter().flat_map(|table| table.fields).map(|field| field.name).collect();
        for field in &known {
            assert!(described.contains(&field.as_str()), "\"{field}\" is not described");
        }
        for field in described {
            assert!(known.iter().any(|known| known == field), "\"{field}\" is described and does not exist");
        }
    }
}
