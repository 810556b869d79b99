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
fn decode(block: &[u8]) -> Option<(JournalHeader, Vec<JournalEntryBytes>)> {
    let (header, _) = JournalHeader::read_from_prefix(block).ok()?;
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
    let entries =
        bytes.chunks_exact(ENTRY_BYTES).filter_map(|entry| JournalEntryBytes::read_from_bytes(entry).ok());
    Some((header, entries.collect()))
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
    #[error("reading the journal: {0}")]
    Io(crate::IoError),
}

/// True when a device may be the journal of an array: the device begins with zeroes, or with a record of the array. A first slot
/// may be torn; then the next slots decide.
pub fn fits(journal: &mut dyn BlockDevice, slots: &Slots, uuid: [u8; 16]) -> Result<bool, crate::IoError> {
    for slot in 0..slots.count.min(JOURNAL_LOOKS_MAX) {
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

/// The records whose writes have to be made again. All are whole.
#[derive(Debug, Default)]
pub struct PendingRecords {
    /// Their numbers, in the order of their writes.
    pub records: Range<u64>,
    /// Entries of theirs without bytes: record, role, and where the unit begins.
    pub void: Vec<(u64, usize, Lba)>,
}

/// Finds the records that have to be written again. It reads the header of every slot, and the payload of those records alone, one after the
/// other.
pub fn pending(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
) -> Result<PendingRecords, ReplayError> {
    // The number and the tail of the newest record, and of the one before it.
    let mut newest: Option<(u64, u64)> = None;
    let mut before = newest;
    for slot in 0..slots.count {
        let block = journal.read(slots.at(slot), slots.header_bytes).map_err(ReplayError::Io)?;
        let Some((header, _)) = decode(block.bytes()) else { continue };
        let number = header.number.get();
        if header.uuid != uuid || header.epoch.get() != epoch || number % slots.count != slot {
            continue;
        }
        let found = Some((number, header.tail.get()));
        if found > newest {
            (newest, before) = (found, newest);
        } else if found > before {
            before = found;
        }
    }
    // Only the newest can be torn, as one is written at a time.
    if let Some((number, _)) = newest
        && read_record(journal, slots, uuid, epoch, number)?.is_none()
    {
        newest = before;
    }
    let Some((newest, tail)) = newest else { return Err(ReplayError::NotThis) };
    let mut first = tail;
    match newest.checked_sub(tail) {
        // The one that was being written may lie over it, and that needs its writes to be durable.
        Some(more) if more + 1 == slots.count => {
            if read_record(journal, slots, uuid, epoch, tail)?.is_none() {
                first += 1;
            }
        }
        Some(more) if more < slots.count => {}
        _ => return Err(ReplayError::Damaged(newest)),
    }
    let mut pending = PendingRecords { records: first..newest + 1, void: Vec::new() };
    for number in pending.records.clone() {
        let entries = read_record(journal, slots, uuid, epoch, number)?;
        let entries = entries.ok_or(ReplayError::Damaged(number))?;
        let void = entries.iter().filter(|entry| entry.buf.is_empty());
        pending.void.extend(void.map(|entry| (number, entry.role, entry.at)));
    }
    Ok(pending)
}

/// Reads a record with its payload; none where it is damaged, or another one lies there.
pub fn read_record(
    journal: &mut dyn BlockDevice,
    slots: &Slots,
    uuid: [u8; 16],
    epoch: u64,
    number: u64,
) -> Result<Option<Vec<RecordEntry>>, ReplayError> {
    let at = slots.at(number);
    let block = journal.read(at, slots.header_bytes).map_err(ReplayError::Io)?;
    let is_it = |header: &JournalHeader| {
        (header.uuid, header.epoch.get(), header.number.get()) == (uuid, epoch, number)
    };
    let Some((header, entries)) = decode(block.bytes()).filter(|(header, _)| is_it(header)) else {
        return Ok(None);
    };
    let sectors: u64 = entries.iter().map(|entry| u64::from(entry.sectors.get())).sum();
    if !entries.iter().all(|entry| slots.may_have(entry))
        || sectors != u64::from(header.payload_sectors.get())
        || sectors > slots.payload_sectors()
    {
        return Ok(None);
    }
    let payload = match sectors {
        0 => Buf::none(),
        _ => {
            let at = at + slots.header_bytes as u64 / SECTOR_BYTES;
            journal.read(at, (sectors * SECTOR_BYTES) as usize).map_err(ReplayError::Io)?
        }
    };
    let whole = crc32c::crc32c(payload.bytes()) == header.payload_crc.get();
    Ok(whole.then(|| cut(&payload, &entries)))
}

/// Cuts a payload that is as long as its entries say.
fn cut(payload: &Buf, entries: &[JournalEntryBytes]) -> Vec<RecordEntry> {
    let mut at = 0;
    let entry = |entry: &JournalEntryBytes| {
        let block = &payload.bytes()[at..at + (u64::from(entry.sectors.get()) * SECTOR_BYTES) as usize];
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
        assert!(headers <= slots.count + 5, "{headers} headers");
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
        // Number 7 lies over number 3, and is torn in its header or behind it.
        for sector in [0, slots.header_bytes as u64 / SECTOR_BYTES] {
            let (mut torn, _) = empty(4);
            torn.bytes.copy_from_slice(&journal.bytes);
            put(&mut torn, &slots, 7, 4);
            spoil(&mut torn, 7, sector);
            assert_eq!(found(&mut torn, &slots), Ok(4..7), "sector {sector}");
            spoil(&mut torn, 5, slots.header_bytes as u64 / SECTOR_BYTES);
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
}
