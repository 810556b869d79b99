//! Every field of a drive file, for docs/drive-file.md and `dcd drive show --fields`. Tests hold it against the reader and the
//! document.

use std::fmt::Write;

/// A section of a drive file; `""` is what comes before the first one.
struct Section {
    name: &'static str,
    about: &'static str,
    /// Name, default (`""`: it is required), what it is.
    fields: &'static [(&'static str, &'static str, &'static str)],
}

const SECTIONS: [Section; 8] = [
    Section {
        name: "",
        about: "Times are in milliseconds, lengths in sectors of 512 bytes.",
        fields: &[
            ("name", "", "how the drive is called"),
            ("description", "", "maker, model, capacity, year"),
            ("rpm", "", "revolutions a minute"),
            ("heads", "", "surfaces with data"),
            ("sectors", "what the zones hold", "the capacity, where it is less"),
            ("queue-depth", "1", "commands that the drive knows at a time"),
            ("logical-block-bytes", "512", "unit of addresses: 512 or 4096"),
            ("physical-block-bytes", "512", "unit of the medium: 512 or 4096"),
            ("bus-mb-per-s", "", "rate of the bus, in units of 1,000,000 bytes"),
            ("receive-ms", "0", "time to take in a command, in which no other is begun"),
            ("head-switch-ms", "", "time from one head to another of the cylinder"),
            (
                "write-settle-ms",
                "",
                "what a write waits longer than a read after the arm has moved; below 0: shorter",
            ),
            (
                "write-settle-track-ms",
                "`write-settle-ms`",
                "the same after a head switch, or a move to the next cylinder",
            ),
            (
                "seek-ms",
                "",
                "points of the seek curve: `[cylinders, ms]`, from 1 cylinder on; straight lines between them",
            ),
            (
                "zones",
                "",
                "from the outside: `[cylinders, sectors a track, track skew, cylinder skew]`, skews in sectors",
            ),
        ],
    },
    Section {
        name: "layout",
        about: "How addresses run through the zones. May be left out.",
        fields: &[
            ("serpentine", "false", "the head stays when the cylinder changes"),
            (
                "zones-start-at-index",
                "false",
                "each zone begins at an angle of its own; else it goes on where the one before it ends",
            ),
            ("start-sectors", "0", "for each zone that does: which of its sectors is at the index"),
            (
                "gap-cylinders",
                "0",
                "cylinders without data: a number between each two zones, or a list, one before each zone",
            ),
            ("reserved-sectors", "0", "for each zone: sectors at its front that have no address"),
            ("spare-range-cylinders", "those of a zone", "cylinders that share their spares"),
            ("spares-on-each-track", "false", "each track has spares of its own"),
            ("spares", "0", "for each zone: spare sectors at the end of each range"),
            (
                "slips",
                "none",
                "`[zone, [sectors]]`: bad sectors that were slipped over, counted from the zone's first address",
            ),
            ("slipped-tracks", "none", "`[zone, [tracks]]`: the same for whole tracks"),
        ],
    },
    Section {
        name: "overhead-ms",
        about: "The command overhead, each `[after a read, after a write]`.",
        fields: &[
            ("read-hit", "", "of a read from the buffer, and of a flush"),
            ("read", "", "of a read from the medium"),
            ("write-hit", "`write`", "of a write that is answered before it is on the medium"),
            ("write", "", "of a write to the medium"),
        ],
    },
    Section {
        name: "bus-phases",
        about: "Of a drive that gives up the bus while the arm moves. May be left out: then all of it is 0.",
        fields: &[
            (
                "high-water-mark",
                "0",
                "part of a read that is in the buffer before the drive takes the bus again; 0: one sector",
            ),
            ("preparation-ms", "0", "before data moves over the bus"),
            (
                "read-disconnect-ms",
                "[0, 0]",
                "giving up the bus in a read, while the arm moves: after a read, after a write",
            ),
            ("write-disconnect-ms", "0", "the same in a write, after its data has come"),
            ("reselect-ms", "0", "taking the bus again, while the medium passes"),
            ("reselect-again-ms", "0", "the same for the second time in a command"),
            ("read-completion-ms", "0", "at the end of a read"),
            ("write-completion-ms", "0", "at the end of a write"),
            (
                "write-positioning-min-ms",
                "0",
                "from the overhead of a write to its first sector on the medium, at least",
            ),
            (
                "early-disconnect",
                "none",
                "a section of its own, for a drive that gives up the bus before it takes the data of a write",
            ),
        ],
    },
    Section {
        name: "bus-phases.early-disconnect",
        about: "Of writes to the medium.",
        fields: &[
            ("command-ms", "", "in the place of `write` in `overhead-ms`"),
            ("disconnect-ms", "", "giving up the bus before the data has come"),
            ("pause-ms", "", "until the drive takes the bus for the data"),
            ("second-disconnect-ms", "", "in the place of `write-disconnect-ms`"),
            ("seek-delay-ms", "", "from the command to the start of the arm"),
        ],
    },
    Section {
        name: "cache",
        about: "The buffer. May be left out: the drive has none.",
        fields: &[
            ("segments", "", "each holds one run of sectors; the least recently used is replaced"),
            ("segment-sectors", "", "the size of a segment. It is a ring: new sectors replace the oldest"),
            (
                "read-ahead",
                "`\"segment\"`",
                "`none`; `track`: to its end; `next-track`: a stream one track more; `segment`: until it is full",
            ),
            ("read-ahead-sectors", "", "behind a read, at most"),
            (
                "write-segments",
                "",
                "segments that may hold written data; 0: writes leave nothing in the buffer",
            ),
            ("separate-write-segments", "false", "they hold nothing else"),
            ("keep-requested", "false", "reading ahead ends before it replaces what the request asked for"),
            ("resume-on-hit", "false", "a read from the buffer lets a read-ahead that has ended go on"),
            (
                "keep-passing-sectors",
                "false",
                "sectors of the track that pass before the first one wanted are kept",
            ),
            ("zero-latency-reads", "false", "sectors of a read are taken in the order in which they pass"),
        ],
    },
    Section {
        name: "write-back",
        about: "What happens with the write cache on. May be left out: no write is delayed.",
        fields: &[
            ("kind", "", "`on-arrival` or `deferred` ([Delayed writes](drives.md#delayed-writes))"),
            ("sectors", "", "sectors that wait for the medium, at most"),
            ("runs", "1", "separate ranges that wait, at most"),
            (
                "order",
                "`\"nearest\"`",
                "which range goes next: `fifo`, `lba`, or `nearest`, the shortest positioning time",
            ),
            ("idle-ms", "0", "how long the drive rests before it begins"),
        ],
    },
    Section {
        name: "shingles",
        about: "Shingled bands, managed by the drive. The last zone is its persistent cache, and the outermost.",
        fields: &[
            ("band-sectors", "", "the size of a band"),
            ("entries", "", "pieces in the persistent cache, at most"),
            ("idle-ms", "", "how long the drive rests before it cleans a band"),
        ],
    },
];

/// The table of all fields, in Markdown.
pub fn fields() -> String {
    let mut text = String::new();
    for section in &SECTIONS {
        let head = match section.name {
            "" => section.about.to_owned(),
            name => format!("`[{name}]`: {}", section.about),
        };
        write!(text, "{head}\n\n| field | without it | what |\n|---|---|---|\n")
            .expect("a string takes everything");
        for (name, default, about) in section.fields {
            let default = if default.is_empty() { "required" } else { default };
            writeln!(text, "| `{name}` | {default} | {about} |").expect("a string takes everything");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The fields that the reader knows in a section: it lists them where one is unknown.
    fn known(section: &str) -> BTreeSet<String> {
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let error = crate::Drive::parse(&format!("{header}no-such-field = 1\n")).unwrap_err().to_string();
        let (_, list) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{section}: {error}"));
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_reference_has_the_fields_that_the_reader_knows() {
        let sections: BTreeSet<String> = SECTIONS
            .iter()
            .filter(|s| !s.name.is_empty() && !s.name.contains('.'))
            .map(|s| s.name.to_owned())
            .collect();
        for section in &SECTIONS {
            let mut described: BTreeSet<String> = section.fields.iter().map(|f| f.0.to_owned()).collect();
            if section.name.is_empty() {
                described.extend(sections.iter().cloned());
            }
            assert_eq!(described, known(section.name), "[{}]", section.name);
        }
    }

    #[test]
    fn the_document_has_the_reference() {
        let document = include_str!("../../../docs/drive-file.md");
        for line in fields().lines() {
            assert!(
                document.contains(line),
                "docs/drive-file.md: put in the output of \"dcd drive show --fields\": {line}"
            );
        }
    }
}
