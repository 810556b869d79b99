//! The journal: what an operation is about to write, data and parity, is durable there before any member is written. After a
//! crash it is written again, all of it, so that no row is left between two versions: the write hole is closed. Bytes are
//! described in docs/format.md.
//!
//! It is a ring of equal slots, each large enough for all of a unit; the record with number `n` is in slot `n % slots`. One
//! record is written at a time, so a crash tears one at most, and that is the newest. Each record names the oldest one
//! whose writes were not all durable (the *tail*); recovery writes from there to the newest, in order, which leaves every
//! block as the last of them has it. Numbers begin again with each epoch, and records of another epoch are not looked at.
//!
//! A record of a unit says which roles have failed there: a member that has been filled since has what the rows say together, and not
//! what older records had for it. The crash explorer found this.

mod run;

use std::collections::{BTreeSet, VecDeque};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layer::Port;
use crate::raid::config::CacheUnit;
use crate::raid::layout::Layout;
use crate::raid::offline::CreateError;
use crate::raid::superblock::Superblock;
use crate::{BlockDevice, Buf, LINE_BYTES, Lba, SECTOR_BYTES};

const MAGIC: [u8; 8] = *b"DCDRJRNL";

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// Of the header and its entries.
    crc: U32,
    entries: U32,
    uuid: [u8; 16],
    epoch: U64,
    number: U64,
    tail: U64,
    payload_crc: U32,
    payload_sectors: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    role: U32,
    sectors: U32,
    lba: U64,
}

/// The record of an epoch that is first is in the first slot; if a crash tore it, another one tells.
const JOURNAL_LOOKS_MAX: u64 = 4;
const HEADER_BYTES: usize = size_of::<Header>();
const ENTRY_BYTES: usize = size_of::<EntryBytes>();

/// One write of a record. Without bytes: the role has failed in the unit that begins there, and older writes to it are void.
#[derive(Debug)]
pub struct RecordEntry {
    pub role: usize,
    pub at: Lba,
    pub buf: Buf,
}

/// The places of records on a journal for an array.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub count: u64,
    header_bytes: usize,
    slot_sectors: u64,
}

impl Slots {
    /// Fewer than two slots are no journal: a record must never overwrite the one before.
    pub const COUNT_MIN: u64 = 2;

    pub fn new(layout: &Layout, journal_sectors: u64) -> Slots {
        let columns = layout.shape.columns();
        // Every other block of every column.
        let entries = columns * layout.rows.div_ceil(2);
        let header_bytes = (HEADER_BYTES + entries * ENTRY_BYTES).next_multiple_of(LINE_BYTES as usize);
        let slot_bytes = header_bytes + columns * layout.rows * LINE_BYTES as usize;
        let slot_sectors = slot_bytes as u64 / SECTOR_BYTES;
        Slots { count: journal_sectors / slot_sectors, header_bytes, slot_sectors }
    }

    /// The smallest journal.
    pub const fn bytes_min(&self) -> u64 {
        self.slot_sectors * Self::COUNT_MIN * SECTOR_BYTES
    }

    pub const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    const fn at(&self, number: u64) -> Lba {
        Lba(number % self.count * self.slot_sectors)
    }
}

/// A record's place in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    pub uuid: [u8; 16],
    pub epoch: u64,
    pub number: u64,
    pub tail: u64,
}

fn encode(slots: &Slots, place: RecordPlace, entries: &[(usize, Lba, &Buf)]) -> Buf {
    let payload: usize = entries.iter().map(|(.., buf)| buf.len()).sum();
    let mut record = Buf::zeroed(slots.header_bytes + payload);
    let mut at = slots.header_bytes;
    for (.., buf) in entries {
        record.copy_from(at, buf, 0, buf.len());
        at += buf.len();
    }
    let bytes = record.bytes_mut();
    let mut header = Header::new_zeroed();
    header.magic = MAGIC;
    header.entries = (entries.len() as u32).into();
    header.uuid = place.uuid;
    (header.epoch, header.number, header.tail) = (place.epoch.into(), place.number.into(), place.tail.into());
    header.payload_crc = crc32c::crc32c(&bytes[slots.header_bytes..]).into();
    header.payload_sectors = ((payload as u64 / SECTOR_BYTES) as u32).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    for (index, (role, lba, buf)) in entries.iter().enumerate() {
        let entry = EntryBytes {
            role: (*role as u32).into(),
            sectors: ((buf.len() as u64 / SECTOR_BYTES) as u32).into(),
            lba: lba.0.into(),
        };
        let at = HEADER_BYTES + index * ENTRY_BYTES;
        bytes[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
    }
    if let Some(place) = bytes[..slots.header_bytes].get_mut(count_at(entries.len())) {
        place.copy_from_slice(&slots.count.to_le_bytes());
    }
    header.crc = crc32c::crc32c(&bytes[..slots.header_bytes]).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    record
}

/// The place in a record of the number of slots: behind its entries, if there is room in its header.
const fn count_at(entries: usize) -> std::ops::Range<usize> {
    let at = HEADER_BYTES + entries * ENTRY_BYTES;
    at..at + size_of::<u64>()
}

/// Reads the header of a record, if there is one.
fn decode(block: &[u8]) -> Option<(Header, Vec<EntryBytes>)> {
    let (header, _) = Header::read_from_prefix(block).ok()?;
    if header.magic != MAGIC {
        return None;
    }
    let mut unsigned = block.to_vec();
    unsigned[8..12].fill(0);
    if crc32c::crc32c(&unsigned) != header.crc.get() {
        return None;
    }
    let entries = header.entries.get() as usize;
    let bytes = block.get(HEADER_BYTES..HEADER_BYTES + entries * ENTRY_BYTES)?;
    let entries = bytes.chunks_exact(ENTRY_BYTES).filter_map(|entry| EntryBytes::read_from_bytes(entry).ok());
    Some((header, entries.collect()))
}

/// Why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("the journal has no record of this array's last activity: it is not the one that was in use")]
    NotThis,
    #[error(
        "record {0} of the journal is damaged: what was being written when the array stopped is in doubt"
    )]
    Damaged(u64),
    #[error("reading the journal: {0}")]
    Io(crate::IoError),
}

/// Whether a device may be the journal of an array: it begins with zeroes, or with a record of it. The slot that it begins with may
/// be torn; then another one tells.
pub fn fits(journal: &mut dyn BlockDevice, slots: &Slots, uuid: [u8; 16]) -> Result<bool, crate::IoError> {
    for slot in 0..slots.count {
        let block = journal.read(slots.at(slot), slots.header_bytes)?;
        if slot == 0 && block.bytes().iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        if decode(block.bytes()).is_some_and(|(header, _)| header.uuid == uuid) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The places of an array's records on a device.
fn slots(device: &dyn BlockDevice, superblock: &Superblock) -> Option<Slots> {
    let shape = superblock.level.shape(superblock.members)?;
    let layout = Layout::new(shape, superblock.strip_sectors, superblock.member_sectors, CacheUnit::Stripe);
    Some(Slots::new(&layout, device.geometry().sectors))
}

/// Makes a device the journal of a new array: it begins with zeroes.
///
/// # Errors
/// If it is too small, or cannot be written.
pub fn clear_journal(device: &mut dyn BlockDevice, superblock: &Superblock) -> Result<(), CreateError> {
    let slots = slots(device, superblock).expect("an array that has been made has a shape");
    if slots.count < Slots::COUNT_MIN {
        return Err(CreateError::JournalTooSmall { kib: slots.bytes_min() / 1024 });
    }
    let zeroes = device.write(Lba(0), Buf::zeroed(slots.header_bytes));
    zeroes.and_then(|()| device.flush()).map_err(CreateError::Journal)
}

/// Whether a device can be the journal of an array: not where there is something else.
///
/// # Errors
/// If it cannot be read.
pub fn may_be_journal_of(
    device: &mut dyn BlockDevice,
    superblock: &Superblock,
) -> Result<bool, crate::IoError> {
    let slots = slots(device, superblock).expect("an array that has been made has a shape");
    fits(device, &slots, superblock.uuid)
}

/// A journal that a device begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundJournal {
    /// The bytes of its slots, where the device is larger than that; none where it is all of the device, or an older program wrote the
    /// record, which does not say it.
    pub slice_bytes: Option<u64>,
}

/// The journal of an array, if a device begins with records of it.
pub fn find_journal(device: &mut dyn BlockDevice, superblock: &Superblock) -> Option<FoundJournal> {
    let slots = slots(device, superblock).filter(|slots| slots.count >= Slots::COUNT_MIN)?;
    let mut found = None;
    for slot in 0..slots.count.min(JOURNAL_LOOKS_MAX) {
        let Ok(block) = device.read(slots.at(slot), slots.header_bytes) else { continue };
        let Some((header, entries)) = decode(block.bytes()) else { continue };
        if header.uuid != superblock.uuid {
            continue;
        }
        let bytes = block.bytes().get(count_at(entries.len())).and_then(|bytes| bytes.try_into().ok());
        let count = bytes.map_or(0, u64::from_le_bytes);
        let is_slice = (Slots::COUNT_MIN..slots.count).contains(&count);
        let slice_bytes = is_slice.then_some(count * slots.slot_sectors * SECTOR_BYTES);
        // The newest record was written by who used it last.
        let place = (header.epoch.get(), header.number.get());
        if found.is_none_or(|(other, _)| other < place) {
            found = Some((place, FoundJournal { slice_bytes }));
        }
    }
    found.map(|(_, found)| found)
}

/// The writes that have to be made again, in their order.
pub fn pending(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
) -> Result<Vec<RecordEntry>, ReplayError> {
    let mut records: Vec<(u64, u64, Option<Vec<RecordEntry>>)> = Vec::new();
    for slot in 0..slots.count {
        let block = journal.read(slots.at(slot), slots.header_bytes).map_err(ReplayError::Io)?;
        let Some((header, entries)) = decode(block.bytes()) else { continue };
        let number = header.number.get();
        if header.uuid != uuid || header.epoch.get() != epoch || number % slots.count != slot {
            continue;
        }
        let bytes = u64::from(header.payload_sectors.get()) * SECTOR_BYTES;
        let at = slots.at(slot) + slots.header_bytes as u64 / SECTOR_BYTES;
        let payload = match bytes {
            0 => Buf::none(),
            _ => journal.read(at, bytes as usize).map_err(ReplayError::Io)?,
        };
        let whole = crc32c::crc32c(payload.bytes()) == header.payload_crc.get();
        records.push((number, header.tail.get(), whole.then(|| cut(&payload, &entries))));
    }
    records.sort_by_key(|(number, ..)| *number);
    // Only the newest can be torn, as one is written at a time.
    if records.last().is_some_and(|(.., entries)| entries.is_none()) {
        records.pop();
    }
    let Some((newest, tail, _)) = records.last() else { return Err(ReplayError::NotThis) };
    let (newest, tail) = (*newest, *tail);
    let mut writes = Vec::new();
    for number in tail..=newest {
        match records.iter_mut().find(|(other, ..)| *other == number).and_then(|(.., entries)| entries.take())
        {
            Some(entries) => writes.extend(entries),
            // The one that was being written may lie over it, and that needs its writes to be durable.
            None if number + slots.count == newest + 1 => {}
            None => return Err(ReplayError::Damaged(number)),
        }
    }
    Ok(writes)
}

fn cut(payload: &Buf, entries: &[EntryBytes]) -> Vec<RecordEntry> {
    let mut at = 0;
    let mut cut = Vec::with_capacity(entries.len());
    for entry in entries {
        let bytes = (u64::from(entry.sectors.get()) * SECTOR_BYTES) as usize;
        let Some(block) = payload.bytes().get(at..at + bytes) else { break };
        at += bytes;
        cut.push(RecordEntry {
            role: entry.role.get() as usize,
            at: Lba(entry.lba.get()),
            buf: Buf::copy_of(block),
        });
    }
    cut
}

/// The journal of a running array.
pub(super) struct Journal {
    port: Port,
    slots: Slots,
    /// The epoch that was opened.
    epoch: u64,
    /// The number of the next record.
    next: u64,
    /// Records whose writes are not all durable.
    live: BTreeSet<u64>,
    /// Operations that wait to be recorded.
    queue: VecDeque<u64>,
    writing: bool,
}

impl Journal {
    pub const fn new(port: Port, slots: Slots) -> Journal {
        Journal {
            port,
            slots,
            epoch: 0,
            next: 0,
            live: BTreeSet::new(),
            queue: VecDeque::new(),
            writing: false,
        }
    }

    /// Its port.
    pub const fn port(&self) -> Port {
        self.port
    }
}
