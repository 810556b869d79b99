//! The records of a journal: their bytes, and what a start reads of them.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::raid::config::CacheUnit;
use crate::raid::layout::{DATA_SECTOR, Layout};
use crate::raid::superblock::ArraySuperblock;
use crate::{BlockDevice, Buf, LINE_BYTES, Lba, SECTOR_BYTES};

const MAGIC: [u8; 8] = *b"DCDRJRNL";

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct JournalHeader {
    magic: [u8; 8],
    /// Checksum of the header and its entries.
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
struct JournalEntryBytes {
    role: U32,
    sectors: U32,
    lba: U64,
}

/// The ring that a record is in; zeroes where an older program wrote the record, or its header has no room.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct JournalRing {
    slots: U64,
    slot_sectors: U64,
}

/// Slots that are looked at for a record of an array. The first record of an epoch is in the first slot; if a crash tore a later one there, the
/// next slots have others.
const JOURNAL_LOOKS_MAX: u64 = 4;
const HEADER_BYTES: usize = size_of::<JournalHeader>();
const ENTRY_BYTES: usize = size_of::<JournalEntryBytes>();

/// A write of a record. Without bytes: the role has failed in the unit that begins there, and older writes to it are void.
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
    /// The roles of the array, and the end of what its members give to stripes.
    roles: usize,
    end: Lba,
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
        let end = layout.member_lba(layout.units(), 0);
        Slots { count: journal_sectors / slot_sectors, header_bytes, slot_sectors, roles: columns, end }
    }

    /// The smallest journal.
    pub const fn bytes_min(&self) -> u64 {
        self.slot_sectors * Self::COUNT_MIN * SECTOR_BYTES
    }

    pub const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    const fn payload_sectors(&self) -> u64 {
        self.slot_sectors - self.header_bytes as u64 / SECTOR_BYTES
    }

    /// An entry is about sectors that a member gives to stripes.
    fn may_have(&self, entry: &JournalEntryBytes) -> bool {
        let (at, sectors) = (entry.lba.get(), u64::from(entry.sectors.get()));
        let end = at.checked_add(sectors).is_some_and(|end| end <= self.end.0);
        (entry.role.get() as usize) < self.roles && at >= DATA_SECTOR && at < self.end.0 && end
    }

    pub const fn at(&self, number: u64) -> Lba {
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

/// The bytes of a record.
pub fn encode(slots: &Slots, place: RecordPlace, entries: &[(usize, Lba, &Buf)]) -> Buf {
    let payload: usize = entries.iter().map(|(.., buf)| buf.len()).sum();
    let mut record = Buf::zeroed(slots.header_bytes + payload);
    let mut at = slots.header_bytes;
    for (.., buf) in entries {
        record.copy_from(at, buf, 0, buf.len());
        at += buf.len();
    }
    let bytes = record.bytes_mut();
    let mut header = JournalHeader::new_zeroed();
    header.magic = MAGIC;
    header.entries = (entries.len() as u32).into();
    header.uuid = place.uuid;
    (header.epoch, header.number, header.tail) = (place.epoch.into(), place.number.into(), place.tail.into());
    header.payload_crc = crc32c::crc32c(&bytes[slots.header_bytes..]).into();
    header.payload_sectors = ((payload as u64 / SECTOR_BYTES) as u32).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    for (index, (role, lba, buf)) in entries.iter().enumerate() {
        let entry = JournalEntryBytes {
            role: (*role as u32).into(),
            sectors: ((buf.len() as u64 / SECTOR_BYTES) as u32).into(),
            lba: lba.0.into(),
        };
        let at = HEADER_BYTES + index * ENTRY_BYTES;
        bytes[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
    }
    let ring = JournalRing { slots: slots.count.into(), slot_sectors: slots.slot_sectors.into() };
    if let Some(place) = bytes[..slots.header_bytes].get_mut(ring_at(entries.len())) {
        place.copy_from_slice(ring.as_bytes());
    }
    header.crc = crc32c::crc32c(&bytes[..slots.header_bytes]).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    record
}

/// The place of the ring in a record: behind its entries, if there is room in its header.
const fn ring_at(entries: usize) -> Range<usize> {
    let at = HEADER_BYTES + entries * ENTRY_BYTES;
    at..at + size_of::<JournalRing>()
}

/// A header with its entries, and the ring that it is in.
struct DecodedHeader {
    header: JournalHeader,
    entries: Vec<JournalEntryBytes>,
    ring: JournalRing,
}

impl DecodedHeader {
    /// Reads fields and entries of a header as far as a block has them. The checksum is not looked at.
    fn unchecked(block: &[u8]) -> Option<DecodedHeader> {
        let (header, rest) = JournalHeader::read_from_prefix(block).ok()?;
        let count = header.entries.get() as usize;
        let entries = rest.chunks_exact(ENTRY_BYTES).take(count);
        let entries = entries.filter_map(|entry| JournalEntryBytes::read_from_bytes(entry).ok()).collect();
        let ring = block.get(ring_at(count)).and_then(|bytes| JournalRing::read_from_bytes(bytes).ok());
        Some(DecodedHeader { header, entries, ring: ring.unwrap_or_else(JournalRing::new_zeroed) })
    }

    fn is_of(&self, uuid: [u8; 16], epoch: u64) -> bool {
        self.header.uuid == uuid && self.header.epoch.get() == epoch
    }

    const fn number(&self) -> u64 {
        self.header.number.get()
    }

    /// The places of the entries.
    fn places(&self, slots: &Slots) -> Vec<Lba> {
        let real = self.entries.iter().filter(|entry| slots.may_have(entry));
        real.map(|entry| Lba(entry.lba.get())).collect()
    }
}

/// Reads the header of a record, if there is one.
fn decode(block: &[u8]) -> Option<DecodedHeader> {
    let decoded = DecodedHeader::unchecked(block)?;
    let header = &decoded.header;
    if header.magic != MAGIC {
        return None;
    }
    let mut unsigned = block.to_vec();
    unsigned[8..12].fill(0);
    let fits = crc32c::crc32c(&unsigned) == header.crc.get();
    (fits && decoded.entries.len() == header.entries.get() as usize).then_some(decoded)
}

/// Reason for refusing to replay a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("the journal has no record of this array's last activity: it is not the one that was in use")]
    NotThis,
    #[error(
        "record {0} of the journal is damaged: what was being written when the array stopped is in doubt"
    )]
    Damaged(u64),
    #[error(
        "the journal had {had_kib} KiB when the array stopped, and now has {kib} KiB: records may be missing"
    )]
    Shrunk { had_kib: u64, kib: u64 },
    #[error("the journal had another size when the array stopped")]
    Resized,
    #[error("the journal was written with another \"unit\" of the array's cache")]
    OtherUnit,
    #[error("reading the journal: {0}")]
    Io(crate::IoError),
}

/// True when a device may be the journal of an array: the device begins with zeroes, or with a record of the array. A first slot
/// may be torn; then the next slots decide.
pub fn fits(journal: &mut dyn BlockDevice, slots: &Slots, uuid: [u8; 16]) -> Result<bool, crate::IoError> {
    let mut failed = None;
    for slot in 0..slots.count.min(JOURNAL_LOOKS_MAX) {
        for copy in copies_of(journal) {
            match journal.read_copy(slots.at(slot), slots.header_bytes, copy) {
                Ok(block) if slot == 0 && block.bytes().iter().all(|byte| *byte == 0) => return Ok(true),
                Ok(block) if decode(block.bytes()).is_some_and(|found| found.header.uuid == uuid) => {
                    return Ok(true);
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
    }
    failed.map_or(Ok(false), Err)
}

/// The numbers of the copies of a device.
fn copies_of(device: &dyn BlockDevice) -> Range<u8> {
    0..device.geometry().copies
}

/// The places of an array's records on a device.
pub fn slots(device: &dyn BlockDevice, superblock: &ArraySuperblock) -> Option<Slots> {
    let shape = superblock.level.shape(superblock.members)?;
    let layout = Layout::new(shape, superblock.strip_sectors, superblock.member_sectors, CacheUnit::Stripe);
    Some(Slots::new(&layout, device.geometry().sectors))
}

/// True when a device can be the journal of an array: false if the device holds something else.
///
/// # Errors
/// If it cannot be read.
pub fn may_be_journal_of(
    device: &mut dyn BlockDevice,
    superblock: &ArraySuperblock,
) -> Result<bool, crate::IoError> {
    let slots = slots(device, superblock).expect("an array that has been made has a shape");
    fits(device, &slots, superblock.uuid)
}

/// Returns the size of the beginning of a device that tells whether it can be the journal of an array.
pub fn journal_header_bytes(device: &dyn BlockDevice, superblock: &ArraySuperblock) -> Option<usize> {
    slots(device, superblock).map(|slots| slots.header_bytes())
}

/// True when a device has records of an array's journal near its beginning, where this array would have them: its own, or what a journal
/// that was cleared has left.
pub fn has_journal_records(device: &mut dyn BlockDevice, superblock: &ArraySuperblock) -> bool {
    let Some(slots) = slots(device, superblock) else { return false };
    (0..slots.count.min(JOURNAL_LOOKS_MAX)).any(|slot| {
        let read = device.read(slots.at(slot), slots.header_bytes);
        read.is_ok_and(|block| decode(block.bytes()).is_some())
    })
}

/// A journal that a device begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundJournal {
    /// The bytes of its slots, where the device is larger than that; none where it is all of the device, or an older program wrote the
    /// record, which does not say it.
    pub slice_bytes: Option<u64>,
}

/// The journal of an array, if a device begins with records of it.
pub fn find_journal(device: &mut dyn BlockDevice, superblock: &ArraySuperblock) -> Option<FoundJournal> {
    let slots = slots(device, superblock).filter(|slots| slots.count >= Slots::COUNT_MIN)?;
    let mut found = None;
    for slot in 0..slots.count.min(JOURNAL_LOOKS_MAX) {
        let Ok(block) = device.read(slots.at(slot), slots.header_bytes) else { continue };
        let Some(DecodedHeader { header, ring, .. }) = decode(block.bytes()) else { continue };
        if header.uuid != superblock.uuid {
            continue;
        }
        let count = ring.slots.get();
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

/// The records whose writes have to be made again. All are whole, and the same in all copies of the journal.
#[derive(Debug)]
pub struct PendingRecords {
    /// The ring that they are in: the device may have had another size.
    pub slots: Slots,
    /// Their numbers, in the order of their writes.
    pub records: Range<u64>,
    /// Entries of theirs without bytes: record, role, and where the unit begins.
    pub void: Vec<(u64, usize, Lba)>,
    /// Places in units that a newer record writes to. It was torn, or has rotted since; then its writes may have been acknowledged. In
    /// either case older writes to these units were durable before it began.
    pub over: Vec<Lba>,
}

/// Finds the records that have to be written again. It reads the header of every slot, and the payload of those records alone, one after the
/// other.
pub fn pending(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
) -> Result<PendingRecords, ReplayError> {
    let (slots, newest) = newest(journal, slots, uuid, epoch)?;
    let number = newest.number();
    let whole = read_record(journal, &slots, uuid, epoch, number)?.is_some();
    let begun = begun(journal, &slots, uuid, epoch, number + 1)?;
    // Only the newest can be torn, as one is written at a time. What its tail excludes was durable before it.
    let torn = begun.as_ref().or_else(|| (!whole).then_some(&newest));
    let by = torn.unwrap_or(&newest);
    let (number, tail) = (by.number(), by.header.tail.get());
    if number.checked_sub(tail).is_none_or(|more| more >= slots.count) {
        return Err(ReplayError::Damaged(number));
    }
    let end = if torn.is_some() { number } else { number + 1 };
    let mut first = tail;
    // The one that was being written may lie over it, and that needs its writes to be durable.
    if end - tail == slots.count && read_record(journal, &slots, uuid, epoch, tail)?.is_none() {
        first += 1;
    }
    let over = torn.map(|torn| torn.places(&slots)).unwrap_or_default();
    let mut pending = PendingRecords { slots, records: first..end, void: Vec::new(), over };
    for number in pending.records.clone() {
        let entries = read_record(journal, &slots, uuid, epoch, number)?;
        let entries = entries.ok_or(ReplayError::Damaged(number))?;
        let void = entries.iter().filter(|entry| entry.buf.is_empty());
        pending.void.extend(void.map(|entry| (number, entry.role, entry.at)));
    }
    Ok(pending)
}

/// Finds the newest header of an epoch, and the ring that its records are in: the device may have had another size then.
fn newest(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
) -> Result<(Slots, DecodedHeader), ReplayError> {
    let mut found: Vec<(u64, DecodedHeader)> = Vec::new();
    for slot in 0..slots.count {
        let mut best: Option<DecodedHeader> = None;
        for block in blocks(journal, slots, slot)? {
            let decoded = decode(block.bytes()).filter(|decoded| decoded.is_of(uuid, epoch));
            if decoded
                .as_ref()
                .is_some_and(|decoded| best.as_ref().is_none_or(|best| best.number() < decoded.number()))
            {
                best = decoded;
            }
        }
        found.extend(best.map(|best| (slot, best)));
    }
    let rings = found.iter().map(|(_, decoded)| decoded.ring);
    let ring = rings.max_by_key(|ring| ring.slots.get()).unwrap_or_else(JournalRing::new_zeroed);
    if ![0, slots.slot_sectors].contains(&ring.slot_sectors.get()) {
        return Err(ReplayError::OtherUnit);
    }
    let is_in_place = |count: u64, slot: u64, number: u64| slot < count && number % count == slot;
    let count = match ring.slots.get() {
        0 if !found.iter().all(|(slot, decoded)| is_in_place(slots.count, *slot, decoded.number())) => {
            return Err(ReplayError::Resized);
        }
        0 => slots.count,
        count if count > slots.count => {
            let kib = |count: u64| count.saturating_mul(slots.slot_sectors) / (1024 / SECTOR_BYTES);
            return Err(ReplayError::Shrunk { had_kib: kib(count), kib: kib(slots.count) });
        }
        count => count,
    };
    let in_place = found.into_iter().filter(|(slot, decoded)| is_in_place(count, *slot, decoded.number()));
    let newest = in_place.map(|(_, decoded)| decoded).max_by_key(DecodedHeader::number);
    Ok((Slots { count, ..*slots }, newest.ok_or(ReplayError::NotThis)?))
}

/// Reads the header of a slot in every copy that can be read.
fn blocks(journal: &mut dyn BlockDevice, slots: &Slots, number: u64) -> Result<Vec<Buf>, ReplayError> {
    let mut blocks = Vec::new();
    let mut failed = None;
    for copy in copies_of(journal) {
        match journal.read_copy(slots.at(number), slots.header_bytes, copy) {
            Ok(block) => blocks.push(block),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if blocks.is_empty() => Err(ReplayError::Io(error)),
        _ => Ok(blocks),
    }
}

/// The remains of a header in the place of the next record.
enum NextHeader {
    /// The slot has what it had before, or no more than the rest of a header that was torn.
    None,
    /// The record was begun: its first sector is there.
    Begun(DecodedHeader),
    /// A record may have been durable here, and its header has rotted.
    Rotten,
}

/// Looks at the place after the newest record for one whose header was torn or has rotted. Sectors are written whole: a torn header has
/// the first sector of the one before or of the new one.
///
/// # Errors
/// If one may have been durable: older records must not be written over it.
fn begun(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
    number: u64,
) -> Result<Option<DecodedHeader>, ReplayError> {
    // In the first lap of an epoch anything may have been there before. Where the slot behind has a record of an earlier one in this ring,
    // this slot had one, too.
    let is_earlier = |block: &Buf| {
        decode(block.bytes()).is_some_and(|DecodedHeader { header, ring, .. }| {
            let is_ring = (ring.slots.get(), ring.slot_sectors.get()) == (slots.count, slots.slot_sectors);
            header.uuid == uuid && header.epoch.get() < epoch && is_ring
        })
    };
    let had_record = number >= slots.count || blocks(journal, slots, number + 1)?.iter().any(is_earlier);
    let mut is_old = false;
    for block in blocks(journal, slots, number)? {
        match next_header(block.bytes(), uuid, epoch, number, had_record) {
            NextHeader::None => is_old = true,
            NextHeader::Begun(decoded) => return Ok(Some(decoded)),
            NextHeader::Rotten => {}
        }
    }
    if is_old { Ok(None) } else { Err(ReplayError::Damaged(number)) }
}

fn next_header(block: &[u8], uuid: [u8; 16], epoch: u64, number: u64, had_record: bool) -> NextHeader {
    let sector = SECTOR_BYTES as usize;
    let Some(found) = DecodedHeader::unchecked(&block[..sector]) else { return NextHeader::Rotten };
    let end = ring_at(found.header.entries.get() as usize);
    let is_long = end.end > sector && end.start <= block.len();
    // A header that ends in its first sector has zeroes behind it.
    let mut alone = vec![0; block.len()];
    alone[..sector].copy_from_slice(&block[..sector]);
    let is_intact = decode(block).is_some() || !is_long && decode(&alone).is_some();
    let like = [
        found.header.magic == MAGIC,
        found.header.uuid == uuid,
        found.header.epoch.get() == epoch,
        found.number() == number,
    ];
    let is_before = like[0] && like[1] && (found.header.epoch.get(), found.number()) < (epoch, number);
    // The checksum of a long one covers sectors that a crash may have left as they were.
    if like == [true; 4] && (is_intact || is_long) {
        NextHeader::Begun(found)
    } else if is_intact || is_before && is_long {
        NextHeader::None
    } else if had_record || like[0] || like[1] || like[2] && like[3] {
        NextHeader::Rotten
    } else {
        NextHeader::None
    }
}

/// Reads a record with its payload; none where it is damaged in all copies, or another one lies there. Copies that lack it get it.
pub fn read_record(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
    number: u64,
) -> Result<Option<Vec<RecordEntry>>, ReplayError> {
    let (mut whole, mut lacking, mut failed) = (None, Vec::new(), None);
    for copy in copies_of(journal) {
        let read = read_whole(journal, slots, copy, number, |decoded| {
            decoded.is_of(uuid, epoch) && decoded.number() == number
        });
        match read {
            Ok(Some(record)) => whole = Some(record),
            Ok(None) => lacking.push(copy),
            Err(error) => {
                lacking.push(copy);
                failed = Some(error);
            }
        }
    }
    let Some((record, entries)) = whole else {
        return failed.map_or(Ok(None), |error| Err(ReplayError::Io(error)));
    };
    for copy in lacking {
        let buf = Buf::copy_of(record.bytes());
        journal.write_copy(slots.at(number), buf, copy).map_err(ReplayError::Io)?;
    }
    Ok(Some(cut(&record.bytes()[slots.header_bytes..], &entries)))
}

/// Reads a record from one copy, with its header, if it is whole there.
fn read_whole(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    copy: u8,
    number: u64,
    is_it: impl Fn(&DecodedHeader) -> bool,
) -> Result<Option<(Buf, Vec<JournalEntryBytes>)>, crate::IoError> {
    let at = slots.at(number);
    let block = journal.read_copy(at, slots.header_bytes, copy)?;
    let Some(DecodedHeader { header, entries, .. }) = decode(block.bytes()).filter(is_it) else {
        return Ok(None);
    };
    let sectors: u64 = entries.iter().map(|entry| u64::from(entry.sectors.get())).sum();
    if !entries.iter().all(|entry| slots.may_have(entry))
        || sectors != u64::from(header.payload_sectors.get())
        || sectors > slots.payload_sectors()
    {
        return Ok(None);
    }
    let mut record = Buf::zeroed(slots.header_bytes + (sectors * SECTOR_BYTES) as usize);
    record.copy_from(0, &block, 0, slots.header_bytes);
    if sectors > 0 {
        let at = at + slots.header_bytes as u64 / SECTOR_BYTES;
        let payload = journal.read_copy(at, (sectors * SECTOR_BYTES) as usize, copy)?;
        record.copy_from(slots.header_bytes, &payload, 0, payload.len());
    }
    let is_whole = crc32c::crc32c(&record.bytes()[slots.header_bytes..]) == header.payload_crc.get();
    Ok(is_whole.then_some((record, entries)))
}

/// Cuts a payload that is as long as its entries say.
fn cut(payload: &[u8], entries: &[JournalEntryBytes]) -> Vec<RecordEntry> {
    let mut at = 0;
    let entry = |entry: &JournalEntryBytes| {
        let block = &payload[at..at + (u64::from(entry.sectors.get()) * SECTOR_BYTES) as usize];
        at += block.len();
        RecordEntry { role: entry.role.get() as usize, at: Lba(entry.lba.get()), buf: Buf::copy_of(block) }
    };
    entries.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::raid::matrix::Shape;
    use crate::{Extent, Geometry, Io, IoResult};

    const UUID: [u8; 16] = *b"an array of test";
    const EPOCH: u64 = 7;

    /// A journal in memory that notes what is read.
    struct Noted {
        bytes: Vec<u8>,
        reads: Vec<Extent>,
    }

    impl BlockDevice for Noted {
        fn geometry(&self) -> Geometry {
            Geometry::plain(self.bytes.len() as u64 / SECTOR_BYTES)
        }

        fn run(&mut self, mut io: Io) -> IoResult {
            let extent = io.extent().expect("no flushes");
            let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
            match &mut io {
                Io::Read { buf, .. } => {
                    self.reads.push(extent);
                    buf.bytes_mut().copy_from_slice(&self.bytes[range]);
                }
                Io::Write { buf, .. } => self.bytes[range].copy_from_slice(buf.bytes()),
                _ => unreachable!("it is read and written"),
            }
            IoResult::ok(io.take_buf())
        }
    }

    fn layout() -> Layout {
        Layout::new(Shape { data: 3, parity: 1 }, 16 * 8, 100 * 16 * 8, CacheUnit::Stripe)
    }

    fn empty(slots: u64) -> (Noted, Slots) {
        let sectors = slots * Slots::new(&layout(), 0).slot_sectors;
        let journal = Noted { bytes: vec![0; (sectors * SECTOR_BYTES) as usize], reads: Vec::new() };
        (journal, Slots::new(&layout(), sectors))
    }

    fn put(journal: &mut Noted, slots: &Slots, number: u64, tail: u64) {
        let buf = Buf::copy_of(&[number as u8; 3 * LINE_BYTES as usize]);
        let place = RecordPlace { uuid: UUID, epoch: EPOCH, number, tail };
        let at = layout().member_lba(number % 100, 0);
        let record = encode(slots, place, &[(2, at, &Buf::none()), (1, at, &buf)]);
        journal.write(slots.at(number), record).expect("written");
    }

    fn found(journal: &mut Noted, slots: &Slots) -> Result<Range<u64>, ReplayError> {
        pending(journal, slots, UUID, EPOCH).map(|pending| pending.records)
    }

    #[test]
    fn a_start_reads_the_payload_only_of_what_it_replays() {
        let (mut journal, slots) = empty(64);
        (0..150).for_each(|number| put(&mut journal, &slots, number, u64::max(number, 3) - 3));
        journal.reads.clear();
        let pending = pending(&mut journal, &slots, UUID, EPOCH).expect("whole");
        assert_eq!(pending.records, 146..150);
        assert_eq!(pending.void.len(), 4);
        let header_sectors = slots.header_bytes as u64 / SECTOR_BYTES;
        let is_header = |read: &&Extent| read.start.0.is_multiple_of(slots.slot_sectors);
        let headers = journal.reads.iter().filter(is_header).count() as u64;
        assert!(journal.reads.iter().filter(is_header).all(|read| read.sectors == header_sectors));
        assert!(headers <= slots.count + 6, "{headers} headers");
        let payloads: BTreeSet<u64> = journal
            .reads
            .iter()
            .filter(|read| !is_header(read))
            .map(|read| read.start.0 / slots.slot_sectors)
            .collect();
        assert_eq!(payloads, (146..150).map(|number| number % 64).collect::<BTreeSet<u64>>());
        assert!(journal.reads.len() as u64 - headers <= 5, "and once each, the newest twice");
        let record = read_record(&mut journal, &slots, UUID, EPOCH, 147).expect("read").expect("whole");
        assert_eq!((record.len(), record[1].role, record[1].buf.bytes()[0]), (2, 1, 147));
    }

    #[test]
    fn the_newest_record_may_be_torn_and_lie_over_the_oldest_and_no_other_may() {
        let (mut journal, slots) = empty(4);
        (0..7).for_each(|number| put(&mut journal, &slots, number, u64::max(number, 3) - 3));
        assert_eq!(found(&mut journal, &slots), Ok(3..7));
        let spoil = |journal: &mut Noted, number: u64, sector: u64| {
            let at = (slots.at(number) + sector).bytes() as usize;
            journal.bytes[at] ^= 1;
        };
        // Number 7 lies over number 3, and is torn behind some sectors of its header, or behind that.
        let payload = slots.header_bytes as u64 / SECTOR_BYTES;
        for (sectors, tail) in [(0, 3), (1, 4), (payload, 4), (payload + 1, 4)] {
            let (mut torn, _) = empty(4);
            torn.bytes.copy_from_slice(&journal.bytes);
            put(&mut torn, &slots, 7, 4);
            let slot = slots.at(7).bytes() as usize;
            let rest =
                slot + (sectors * SECTOR_BYTES) as usize..slot + (slots.slot_sectors * SECTOR_BYTES) as usize;
            torn.bytes[rest.clone()].copy_from_slice(&journal.bytes[rest]);
            assert_eq!(found(&mut torn, &slots), Ok(tail..7), "{sectors} sectors");
            spoil(&mut torn, 5, payload);
            assert_eq!(found(&mut torn, &slots), Err(ReplayError::Damaged(5)));
        }
        let (mut nothing, _) = empty(4);
        assert_eq!(found(&mut nothing, &slots), Err(ReplayError::NotThis));
    }

    #[test]
    fn a_record_that_names_what_cannot_be_there_is_damaged() {
        for tail in [0, 5, 6, 11, 1 << 40, u64::MAX] {
            let (mut journal, slots) = empty(4);
            (0..10).for_each(|number| put(&mut journal, &slots, number, number));
            put(&mut journal, &slots, 10, tail);
            assert!(matches!(found(&mut journal, &slots), Err(ReplayError::Damaged(_))), "tail {tail}");
        }
        let (_, slots) = empty(4);
        let entry = |role: u32, lba: u64, sectors: u32| {
            slots.may_have(&JournalEntryBytes { role: role.into(), lba: lba.into(), sectors: sectors.into() })
        };
        let end = DATA_SECTOR + 100 * 16 * 8;
        assert!(entry(0, DATA_SECTOR, 8) && entry(3, end - 8, 8) && entry(3, end - 8, 0));
        assert!(!entry(4, DATA_SECTOR, 8) && !entry(0, DATA_SECTOR - 8, 8) && !entry(0, end - 8, 16));
        assert!(!entry(0, u64::MAX, 8) && !entry(0, end, 0) && !entry(u32::MAX, DATA_SECTOR, 0));
    }

    #[test]
    fn a_foreign_device_is_refused_after_a_few_looks() {
        let (mut journal, slots) = empty(64);
        journal.bytes.fill(7);
        assert_eq!(fits(&mut journal, &slots, UUID), Ok(false));
        assert_eq!(journal.reads.len() as u64, JOURNAL_LOOKS_MAX);
        // The record in the first slot is torn, and the one after it is older.
        put(&mut journal, &slots, 1, 1);
        assert_eq!(fits(&mut journal, &slots, UUID), Ok(true));
    }

    /// Bytes of a slot, with which a test changes a sector of a record.
    fn flip(journal: &mut Noted, slots: &Slots, number: u64, byte: usize) {
        let at = slots.at(number).bytes() as usize + byte;
        journal.bytes[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x5a);
    }

    fn sized(journal: &Noted, slots: u64) -> (Noted, Slots) {
        let (mut other, slots) = empty(slots);
        let bytes = other.bytes.len().min(journal.bytes.len());
        other.bytes[..bytes].copy_from_slice(&journal.bytes[..bytes]);
        (other, slots)
    }

    #[test]
    fn the_ring_of_the_records_counts_and_not_the_size_of_the_device() {
        for newest in [1, 3, 4, 7, 8, 11, 30] {
            let (mut journal, slots) = empty(4);
            (0..=newest).for_each(|number| put(&mut journal, &slots, number, u64::max(number, 1) - 1));
            let pending = pending(&mut journal, &slots, UUID, EPOCH).expect("whole");
            for count in [5, 6, 7, 8, 9, 64] {
                let (mut larger, now) = sized(&journal, count);
                let found = super::pending(&mut larger, &now, UUID, EPOCH).expect("whole");
                assert_eq!(found.records, pending.records, "{newest} in {count}");
                assert_eq!(found.slots.count, 4);
            }
            for count in [2, 3] {
                let (mut smaller, now) = sized(&journal, count);
                let kib = |count: u64| count * slots.slot_sectors / 2;
                let error = ReplayError::Shrunk { had_kib: kib(4), kib: kib(count) };
                assert_eq!(found(&mut smaller, &now), Err(error), "{newest} in {count}");
            }
        }
    }

    /// An older program did not write the ring.
    #[test]
    fn records_without_their_ring_are_refused_where_they_are_in_no_ring_of_the_size_of_the_device() {
        let (mut journal, slots) = empty(4);
        for number in 0..6 {
            put(&mut journal, &slots, number, number);
            let at = slots.at(number).bytes() as usize;
            let header = &mut journal.bytes[at..at + slots.header_bytes];
            header[ring_at(2)].fill(0);
            header[8..12].fill(0);
            let crc = crc32c::crc32c(header);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        assert_eq!(found(&mut journal, &slots), Ok(5..6));
        for count in [3, 5] {
            let (mut other, now) = sized(&journal, count);
            assert_eq!(found(&mut other, &now), Err(ReplayError::Resized), "{count}");
        }
    }

    #[test]
    fn records_of_another_unit_of_the_cache_are_refused() {
        let (mut journal, slots) = empty(4);
        (0..6).for_each(|number| put(&mut journal, &slots, number, number));
        let shape = Shape { data: 3, parity: 1 };
        let rows = Layout::new(shape, 16 * 8, 100 * 16 * 8, CacheUnit::ParityBlockGroup);
        let now = Slots::new(&rows, journal.bytes.len() as u64 / SECTOR_BYTES);
        assert_eq!(found(&mut journal, &now), Err(ReplayError::OtherUnit));
    }

    /// The newest record was durable, and what it wrote was acknowledged.
    #[test]
    fn a_newest_record_that_rots_lets_no_older_one_be_replayed_over_it() {
        for newest in [1, 2, 3, 4, 7, 9] {
            let (mut journal, slots) = empty(4);
            (0..=newest).for_each(|number| put(&mut journal, &slots, number, number));
            flip(&mut journal, &slots, newest, slots.header_bytes + 100);
            assert_eq!(found(&mut journal, &slots), Ok(newest..newest), "{newest}: payload");
            for byte in [0, 8, 16, 20, 32, 36, 40, 48, 64, 80] {
                let (mut journal, slots) = empty(4);
                (0..=newest).for_each(|number| put(&mut journal, &slots, number, number));
                flip(&mut journal, &slots, newest, byte);
                let error = Err(ReplayError::Damaged(newest));
                assert_eq!(found(&mut journal, &slots), error, "{newest}: byte {byte}");
            }
        }
        // In the first lap of an epoch, the slot behind has a record of an earlier one.
        let (mut journal, slots) = empty(8);
        for number in 0..8 {
            put(&mut journal, &slots, number, number);
            let at = slots.at(number).bytes() as usize;
            let header = &mut journal.bytes[at..at + slots.header_bytes];
            header[32..40].copy_from_slice(&(EPOCH - 1).to_le_bytes());
            header[8..12].fill(0);
            let crc = crc32c::crc32c(header);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        (0..4).for_each(|number| put(&mut journal, &slots, number, number));
        assert_eq!(found(&mut journal, &slots), Ok(3..4));
        let at = slots.at(3).bytes() as usize;
        journal.bytes[at..at + slots.header_bytes].fill(0x77);
        assert_eq!(found(&mut journal, &slots), Err(ReplayError::Damaged(3)));
    }

    /// A newer record writes to a unit, and is torn or has rotted: older writes there were durable before it began.
    #[test]
    fn the_places_of_a_record_that_is_not_whole_are_named() {
        let (mut journal, slots) = empty(8);
        (0..6).for_each(|number| put(&mut journal, &slots, number, 1));
        flip(&mut journal, &slots, 5, slots.header_bytes + 100);
        let pending = pending(&mut journal, &slots, UUID, EPOCH).expect("whole");
        assert_eq!((pending.records, pending.over), (1..5, vec![layout().member_lba(5, 0); 2]));
    }

    /// Two legs of a log that the journal is on.
    struct Legs([Noted; 2]);

    impl BlockDevice for Legs {
        fn geometry(&self) -> Geometry {
            Geometry { copies: 2, ..self.0[0].geometry() }
        }

        fn run(&mut self, io: Io) -> IoResult {
            match io {
                Io::ReadCopy { at, buf, copy } => self.0[usize::from(copy)].run(Io::Read { at, buf }),
                Io::WriteCopy { at, buf, durability, copy } => {
                    self.0[usize::from(copy)].run(Io::Write { at, buf, durability })
                }
                _ => panic!("each copy is read"),
            }
        }
    }

    #[test]
    fn the_newest_record_of_any_copy_counts_and_the_others_get_it() {
        for (behind, lost) in [0, 1].into_iter().flat_map(|leg| (0..6).map(move |lost| (leg, lost))) {
            let (mut journal, slots) = empty(4);
            let (mut older, _) = empty(4);
            for number in 0..10 {
                put(&mut journal, &slots, number, u64::max(number, 2) - 2);
                if number + lost < 10 {
                    put(&mut older, &slots, number, u64::max(number, 2) - 2);
                }
            }
            let mut legs = if behind == 0 { [older, journal] } else { [journal, older] };
            // A bad place of the other leg does not matter, either.
            if lost == 0 {
                flip(&mut legs[1 - behind], &slots, 9, 20);
                flip(&mut legs[1 - behind], &slots, 8, slots.header_bytes + 100);
            }
            let mut legs = Legs(legs);
            assert_eq!(fits(&mut legs, &slots, UUID), Ok(true));
            let found = pending(&mut legs, &slots, UUID, EPOCH).expect("whole").records;
            assert_eq!(found, 7..10, "leg {behind} lacks {lost}");
            for leg in &mut legs.0 {
                assert_eq!(super::pending(leg, &slots, UUID, EPOCH).expect("whole").records, 7..10);
            }
        }
    }

    #[test]
    fn a_copy_that_is_foreign_does_not_make_the_device_foreign() {
        for leg in [0, 1] {
            let (mut journal, slots) = empty(4);
            (0..6).for_each(|number| put(&mut journal, &slots, number, number));
            let (mut foreign, _) = empty(4);
            foreign.bytes.fill(7);
            let legs = if leg == 0 { [foreign, journal] } else { [journal, foreign] };
            let mut legs = Legs(legs);
            assert_eq!(fits(&mut legs, &slots, UUID), Ok(true));
            assert_eq!(pending(&mut legs, &slots, UUID, EPOCH).expect("whole").records, 5..6);
        }
    }
}
