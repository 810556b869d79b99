//! Shows the content of a log, row by row, without changing anything.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::superblock::{live_superblock, read_copies};
use super::{LogError, state_name, uuid};
use crate::log_cache::format::{EntryKind, Header, LogSuperblock, LogSuperblockError};
use crate::log_cache::recover::{Damage, WalkOptions, walk};
use crate::{BlockDevice, Extent};

/// Selects the rows to show.
#[derive(Clone, Debug, Default)]
pub struct DumpFilter {
    /// Only entries that touch these sectors, and records with such entries.
    pub extent: Option<Extent>,
    /// Only these records.
    pub seq: Option<Range<u64>>,
    /// Read every payload and mark bad ones, instead of reading only payloads that may be torn.
    pub verify: bool,
}

/// A row of a dump. As JSON, `row` names its kind; as text, it is one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "row", rename_all = "kebab-case")]
pub enum Row {
    Superblock {
        copy: usize,
        live: bool,
        error: Option<String>,
        generation: u64,
        cache_uuid: String,
        data_uuid: String,
        state: &'static str,
        epoch: u64,
        epoch_start_seq: u64,
        tail_seq: u64,
        tail_sector: u64,
        durable_seq: u64,
    },
    Record {
        seq: u64,
        epoch: u64,
        sector: u64,
        sectors: u32,
        oldest_live_seq: u64,
        durable_seq: u64,
        flush_epoch: u64,
        continues: bool,
        entries: usize,
    },
    Entry {
        seq: u64,
        kind: &'static str,
        lba: u64,
        sectors: u64,
        crc: u32,
        bad: bool,
    },
    Damage(Damage),
    End {
        next_seq: u64,
        sector: u64,
        tail_seq: u64,
        records: u64,
        records_dropped: u64,
        torn_sector: Option<u64>,
    },
}

const fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Data => "data",
        EntryKind::Discard => "discard",
        EntryKind::Zeroes => "zeroes",
        EntryKind::ZeroesUnmap => "zeroes-unmap",
        EntryKind::Invalidate => "invalidate",
        EntryKind::Clean => "clean",
        EntryKind::Left => "left",
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Superblock { copy, error: Some(error), .. } => write!(f, "superblock {copy}: {error}"),
            Row::Superblock {
                copy,
                live,
                generation,
                cache_uuid,
                data_uuid,
                state,
                epoch,
                epoch_start_seq,
                tail_seq,
                tail_sector,
                durable_seq,
                ..
            } => write!(
                f,
                "superblock {copy}{}: generation {generation}, {state}, cache {cache_uuid}, data {data_uuid}, epoch {epoch} from \
                 record {epoch_start_seq}, tail {tail_seq} at sector {tail_sector}, durable before {durable_seq}",
                if *live { " (live)" } else { "" }
            ),
            Row::Record {
                seq,
                epoch,
                sector,
                sectors,
                oldest_live_seq,
                durable_seq,
                continues,
                entries,
                ..
            } => write!(
                f,
                "record {seq}: epoch {epoch}, sector {sector}, {sectors} sectors, {entries} entries, destaged before \
                 {oldest_live_seq}, durable before {durable_seq}{}",
                if *continues { ", continues" } else { "" }
            ),
            Row::Entry { kind, lba, sectors, crc, bad, .. } => {
                let bad = if *bad { ", BAD" } else { "" };
                write!(f, "  {kind} LBA {lba}..{}, crc {crc:08x}{bad}", lba + sectors)
            }
            Row::Damage(damage) => write!(f, "damage: {damage}"),
            Row::End { next_seq, sector, tail_seq, records, records_dropped, torn_sector } => {
                write!(
                    f,
                    "end at sector {sector}: {records} records, dirty from {tail_seq} on, next {next_seq}"
                )?;
                if *records_dropped > 0 {
                    write!(f, ", {records_dropped} of an incomplete request")?;
                }
                torn_sector.map_or(Ok(()), |sector| write!(f, ", a torn record at sector {sector}"))
            }
        }
    }
}

/// Passes every row to `sink`.
pub fn dump(
    log: &mut dyn BlockDevice,
    filter: &DumpFilter,
    sink: &mut dyn FnMut(&Row),
) -> Result<(), LogError> {
    let copies = read_copies(log)?;
    let live = live_superblock(&copies);
    for (index, copy) in copies.iter().enumerate() {
        sink(&superblock_row(index, copy, live.as_ref().ok().map(|live| live.generation)));
    }
    let superblock = live?;
    let options = WalkOptions { accept_damage: true, verify_all: filter.verify, ..WalkOptions::default() };
    let walked = walk(log, &superblock, options, &mut |header: &Header, bad: &[usize]| {
        rows(header, bad, filter, sink)
    })?;
    for damage in &walked.damage {
        sink(&Row::Damage(damage.clone()));
    }
    sink(&Row::End {
        next_seq: walked.next_seq,
        sector: walked.end,
        tail_seq: walked.tail_seq,
        records: walked.records,
        records_dropped: walked.records_dropped,
        torn_sector: walked.torn_sector,
    });
    Ok(())
}

fn superblock_row(copy: usize, found: &Result<LogSuperblock, LogSuperblockError>, live: Option<u64>) -> Row {
    let good = found.as_ref().ok();
    let number = |get: fn(&LogSuperblock) -> u64| good.map_or(0, get);
    Row::Superblock {
        copy,
        live: good.is_some_and(|good| Some(good.generation) == live),
        error: found.as_ref().err().map(ToString::to_string),
        generation: number(|s| s.generation),
        cache_uuid: good.map_or(String::new(), |s| uuid(&s.cache_uuid)),
        data_uuid: good.map_or(String::new(), |s| uuid(&s.data_uuid)),
        state: good.map_or("", |s| state_name(s.state)),
        epoch: number(|s| s.epoch),
        epoch_start_seq: number(|s| s.epoch_start_seq),
        tail_seq: number(|s| s.tail_seq),
        tail_sector: number(|s| s.tail_sector),
        durable_seq: number(|s| s.durable_seq),
    }
}

fn rows(header: &Header, bad: &[usize], filter: &DumpFilter, sink: &mut dyn FnMut(&Row)) {
    let wanted = |extent: Extent| filter.extent.is_none_or(|filter| filter.overlaps(extent));
    let in_range = filter.seq.as_ref().is_none_or(|range| range.contains(&header.seq));
    let any = filter.extent.is_none() || header.entries.iter().any(|entry| wanted(entry.extent));
    if !in_range || !any {
        return;
    }
    sink(&Row::Record {
        seq: header.seq,
        epoch: header.epoch,
        sector: header.sector,
        sectors: header.sectors,
        oldest_live_seq: header.oldest_live_seq,
        durable_seq: header.durable_seq,
        flush_epoch: header.flush_epoch,
        continues: header.continues,
        entries: header.entries.len(),
    });
    for (index, entry) in header.entries.iter().enumerate().filter(|(_, entry)| wanted(entry.extent)) {
        sink(&Row::Entry {
            seq: header.seq,
            kind: kind_name(entry.kind),
            lba: entry.extent.start.0,
            sectors: entry.extent.sectors,
            crc: entry.crc,
            bad: bad.contains(&index),
        });
    }
}
