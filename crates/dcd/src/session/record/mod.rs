//! The attachment record: describes the cache of a data disk, and is kept beside the disk and not on it.
//!
//! An array is a data disk like any other; its record is named by its UUID.
//!
//! The data disk keeps its layout, so nothing on it tells that a cache holds newer data. The record does: which cache,
//! where its log was, the last activation, and whether the data disk alone is complete. It is written before the change
//! that it records takes effect, and whole or not at all (a new file, synced, renamed over the old one).
//!
//! ```text
//!            attach                    activate
//!   (none) ─────────▶ Clean ───────────────────────▶ Dirty
//!     ▲                 ▲   stop, nothing dirty         │ stop, some dirty: Dirty with the bytes known
//!     │ detach          └───────────────────────────────┤
//!     └─────────────────────────────────────────────────┤ log device failed
//!                            Abandoned ◀────────────────┘ or served without the cache
//! ```
//!
//! An `Abandoned` log is never used again: the data disk has been written since without it.

mod backup_marks;
pub mod durable;
mod elsewhere;
mod identity;
mod mark;
mod place;
mod retired;
mod rules;
mod store;
mod udev;

use std::path::{Path, PathBuf};

use dcd_engine::log_cache::format::LogSuperblock;
use dcd_engine::mirror::{LegState, MirrorStatus};
use dcd_engine::{Extent, Lba};
use serde::{Deserialize, Serialize};

pub use backup_marks::MarksFile;
use elsewhere::attachments_elsewhere;
pub use elsewhere::{original_of, record_of_disk};
pub use identity::numbers as device_numbers;
pub use place::{names_of, state_dir};
pub use rules::{
    LegsSeen, LogSeen, NO_LOG, RESCUE_FIRST, Refusal, StartGrounds, admit_attach, admit_not_retired,
    admit_on_array, admit_overwrite, admit_plain, admit_start, admit_told, admit_without_cache,
    admit_without_record,
};
pub use store::{RecordError, RecordFile};
pub use udev::attachments_of;

use crate::control;
use crate::session::choice::CacheChoice;
use crate::session::site::Site;

/// Tells whether the data disk is complete without its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachmentState {
    /// No data is dirty: the data disk alone is complete.
    Clean,
    /// The log has, or may have, data that the data disk lacks.
    Dirty,
    /// The log failed, or the data disk was served without it: the log is out of date permanently. Or the disk has left a log of several.
    Abandoned,
}

/// A leg of a log that lacks writes that the other legs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StaleLeg {
    pub id: u64,
    /// Maximum generation of the leg's own label, unless the leg has been filled since.
    pub generation: u64,
}

/// Maximum number of stale legs in a record; the newest stay. A log has no more than eight legs at a time.
const STALE_LEGS_MAX: usize = 16;

/// Returns the legs that lack something according to the log, and the stale legs known before that the log does not list.
pub fn stale_legs(known: &[StaleLeg], legs: &MirrorStatus) -> Vec<StaleLeg> {
    let generation = legs.generation;
    let standing = |id: u64| legs.legs.iter().find(|leg| leg.id == id).map(|leg| leg.standing);
    let mut stale: Vec<StaleLeg> = known.iter().filter(|leg| standing(leg.id).is_none()).copied().collect();
    let lacking = legs.legs.iter().filter(|leg| leg.standing != Some(LegState::Whole));
    stale.extend(lacking.map(|leg| StaleLeg { id: leg.id, generation }));
    stale.split_off(stale.len().saturating_sub(STALE_LEGS_MAX))
}

/// A cache that is attached to a data disk, or to a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Attachment {
    pub cache_uuid: String,
    /// Path of the log when it was last seen; for messages only.
    #[serde(serialize_with = "crate::output::path_text")]
    pub log: PathBuf,
    /// Number of the data disk in its log.
    #[serde(default, skip_serializing_if = "is_first")]
    pub disk: usize,
    /// The UUID by which the log knows the data disk; none for the first or only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_uuid: Option<String>,
    /// The part of the data disk that is cached.
    pub first_sector: u64,
    pub sectors: u64,
    /// The last activation of the log that was recorded.
    pub epoch: u64,
    /// Generation of the log's superblock when the cache was last stopped: an older one is of a copy. 0: not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
    pub state: AttachmentState,
    /// Number of bytes in the log that the data disk lacked, when that was last known.
    pub dirty_bytes: Option<u64>,
    /// Zeroes and discards among these bytes: a failed log does not lose them, as they are not read from it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zeroes_bytes: u64,
    /// The disk is used without data that only the log had, or may have had: that was accepted.
    #[serde(default, skip_serializing_if = "is_not")]
    pub discarded: bool,
    /// Legs of the log that lack acknowledged writes: alone, none of them may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_legs: Vec<StaleLeg>,
    /// The size of the log: no more data than this can be dirty, but zeroes and discards take no space in it.
    pub log_bytes: u64,
    /// Read from the record of another offset of the same medium.
    #[serde(skip)]
    pub elsewhere: bool,
}

/// True for the first or only disk, whose record says nothing about that: earlier programs read it.
fn is_first(disk: &usize) -> bool {
    *disk == 0
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_not(it: &bool) -> bool {
    !*it
}

impl Attachment {
    pub const fn extent(&self) -> Extent {
        Extent::new(Lba(self.first_sector), self.sectors)
    }

    /// Amount of writes that only the log has, for messages: the known number, or the bound.
    pub fn held(&self) -> String {
        use dcd_stack::HumanBytes;
        match (self.state, self.dirty_bytes) {
            (AttachmentState::Clean, _) | (_, Some(0)) => "no acknowledged writes".to_owned(),
            (_, Some(bytes)) => {
                let zeroes = self.zeroes_bytes.min(bytes);
                let data = Some(bytes - zeroes).filter(|data| *data > 0);
                let data = data.map(|data| format!("{} of acknowledged writes", HumanBytes(data)));
                let zeroes = Some(zeroes).filter(|zeroes| *zeroes > 0);
                let zeroes = zeroes.map(|zeroes| format!("{} of zeroes and discards", HumanBytes(zeroes)));
                data.into_iter().chain(zeroes).collect::<Vec<_>>().join(" and ")
            }
            (_, None) => format!("up to {} of acknowledged writes", HumanBytes(self.log_bytes)),
        }
    }

    /// The bytes at risk, for messages.
    pub fn at_risk(&self) -> String {
        match (self.may_lose_data(), self.dirty_bytes) {
            (false, _) => "no data is at risk".to_owned(),
            (true, Some(_)) => format!("{} would be lost", self.held()),
            (true, None) => format!(
                "{} would be lost (the log's size; the amount is not known), and zeroes and discards of any size",
                self.held()
            ),
        }
    }

    /// Returns the place of this disk in the log of its cache; none if the log does not have it.
    pub fn place_in(&self, superblock: &LogSuperblock) -> Option<usize> {
        let Some(id) = &self.disk_uuid else { return Some(self.disk) };
        let is_it =
            |place: &usize| superblock.has_disk(*place) && uuid_text(superblock.uuid_of(*place)) == *id;
        (1..superblock.space().count()).find(is_it)
    }

    /// False where the data disk is known to be complete.
    pub fn may_lose_data(&self) -> bool {
        self.state != AttachmentState::Clean && self.dirty_bytes != Some(0)
    }

    /// True where the data disk has all that was ever acknowledged: a log that is out of date has nothing for it.
    pub fn is_complete(&self) -> bool {
        !self.may_lose_data() && !self.discarded
    }

    /// State of a data disk that may be used without its log.
    pub const fn without_log(&self) -> &'static str {
        match self.discarded {
            true => "what only the log had is lost, as was accepted",
            false => "the data disk is complete without it",
        }
    }
}

/// The attachments of one data disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments(pub Vec<Attachment>);

impl Attachments {
    /// The attachment of exactly this part.
    pub fn of(&self, extent: Extent) -> Option<&Attachment> {
        self.0.iter().find(|attachment| attachment.extent() == extent && !attachment.elsewhere)
    }

    /// An attachment under another offset of the medium that shares sectors with this part.
    pub fn elsewhere(&self, extent: Extent) -> Option<&Attachment> {
        self.0.iter().find(|attachment| attachment.elsewhere && attachment.extent().overlaps(extent))
    }

    /// An attachment that shares sectors with this part.
    pub fn overlapping(&self, extent: Extent) -> Option<&Attachment> {
        self.0.iter().find(|attachment| attachment.extent().overlaps(extent))
    }

    /// Returns the extent of a cache that was made when this part was shorter; none where another cache has sectors of the part.
    pub fn grown(&self, extent: Extent) -> Option<Extent> {
        let mut overlapping = self.0.iter().filter(|attachment| attachment.extent().overlaps(extent));
        let attached = overlapping.next()?.extent();
        let is_shorter = attached.start == extent.start && attached.sectors < extent.sectors;
        (is_shorter && overlapping.next().is_none()).then_some(attached)
    }

    /// Puts an attachment in the place of everything that shares sectors with it.
    pub fn put(&mut self, attachment: Attachment) {
        self.remove(attachment.extent());
        self.0.push(attachment);
    }

    pub fn remove(&mut self, extent: Extent) {
        self.0.retain(|attachment| !attachment.extent().overlaps(extent));
    }

    /// Takes back what the record says of dirty data if this log was started since: the record is an old one, as from a backup.
    pub fn doubt(&mut self, log: &LogSuperblock) {
        let uuid = uuid_text(log.cache_uuid);
        let is_older = |known: &&mut Attachment| {
            known.cache_uuid == uuid && known.epoch < log.epoch && known.state != AttachmentState::Abandoned
        };
        for known in self.0.iter_mut().filter(is_older) {
            (known.state, known.dirty_bytes) = (AttachmentState::Dirty, None);
        }
    }

    /// Caches that an array's members have to name: without them the array may be incomplete.
    pub fn to_tell(&self) -> Vec<u64> {
        let in_use = self.0.iter().filter(|attachment| attachment.state != AttachmentState::Abandoned);
        in_use.filter_map(|attachment| told_as(&attachment.cache_uuid)).collect()
    }
}

/// Returns the id by which members of an array name a cache: the first eight bytes of its UUID.
pub fn told_as(cache_uuid: &str) -> Option<u64> {
    let digits: String = cache_uuid.chars().filter(|c| *c != '-').take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// Text for messages: the caches that members name.
pub fn caches_text(told: &[u64]) -> String {
    let begins = |id: &u64| {
        let digits = format!("{id:016x}");
        format!("{}-{}-{}-...", &digits[..8], &digits[8..12], &digits[12..])
    };
    told.iter().map(begins).collect::<Vec<_>>().join(" and ")
}

/// A UUID as text, in the usual groups.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The record of the disk at `device`, for one part of it: what a command works with.
pub struct DiskRecord {
    file: RecordFile,
    /// None for an array.
    device: Option<PathBuf>,
    extent: Extent,
    grown_sectors: u64,
    /// The caches that the disk itself names; none for a disk that cannot name any.
    told: Option<Vec<u64>>,
    teller: Teller,
}

/// The part of a data disk that names its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The superblocks of an array's members.
    Members,
    /// The mark of a file.
    Mark,
}

impl Teller {
    /// Text for messages: the disk, and how it names its caches.
    pub const fn text(self) -> [&'static str; 2] {
        match self {
            Teller::Members => ["this array", "as its members say"],
            Teller::Mark => ["this file", "as its attribute user.dcd says"],
        }
    }
}

impl DiskRecord {
    pub fn open(device: &Path, extent: Extent) -> Result<DiskRecord, RecordError> {
        let file = RecordFile::of(device)?;
        let told = file.told().map(|caches| caches.iter().filter_map(|uuid| told_as(uuid)).collect());
        let device = Some(device.to_owned());
        Ok(DiskRecord { file, device, extent, grown_sectors: 0, told, teller: Teller::Mark })
    }

    /// Opens the record of the array with these members. `told`: the caches that they name.
    pub fn of_array(
        uuid: &str,
        members: &[&Path],
        extent: Extent,
        told: Vec<u64>,
    ) -> Result<DiskRecord, RecordError> {
        let file = RecordFile::of_array(uuid, members)?;
        Ok(DiskRecord {
            file,
            device: None,
            extent,
            grown_sectors: 0,
            told: Some(told),
            teller: Teller::Members,
        })
    }

    /// Limits the record to the part that a cache is attached to, if the disk has grown since: a cache serves the size that it was made
    /// for.
    pub fn attached_part(self) -> Result<DiskRecord, RecordError> {
        let all = self.load()?;
        match all.grown(self.extent) {
            Some(attached) => {
                let grown_sectors = self.extent.sectors - attached.sectors;
                Ok(DiskRecord { extent: attached, grown_sectors, ..self })
            }
            None => Ok(self),
        }
    }

    /// Extends the attachment to all of a disk that has grown. The cache learns that afterwards; until then the record protects the new
    /// part.
    pub fn grow(&mut self) -> Result<(), RecordError> {
        let mut all = self.load()?;
        let whole = Extent { sectors: self.extent.sectors + self.grown_sectors, ..self.extent };
        if let Some(attachment) = all.0.iter_mut().find(|attachment| attachment.extent() == self.extent) {
            attachment.sectors = whole.sectors;
            self.file.store(&all)?;
        }
        (self.extent, self.grown_sectors) = (whole, 0);
        Ok(())
    }

    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Path of the record, or of its first copy.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn load(&self) -> Result<Attachments, RecordError> {
        self.file.load()
    }

    /// Like [`DiskRecord::load`], with the caches of the same medium that were attached under another offset: what admission looks at.
    pub fn load_with_others(&self) -> Result<Attachments, RecordError> {
        let mut all = self.load()?;
        if let Some(device) = &self.device {
            all.0.extend(attachments_elsewhere(device)?);
        }
        Ok(all)
    }

    /// Looks at the disk again, and updates its identity in the record.
    pub fn look_again(&mut self) -> Result<(), RecordError> {
        self.file.look_again()
    }

    /// The caches that the disk itself named when this was opened; none if it cannot name any.
    pub fn told(&self) -> Option<&[u64]> {
        self.told.as_deref()
    }

    /// The part of the disk that names its caches.
    pub const fn teller(&self) -> Teller {
        self.teller
    }

    /// True for a cache that was taken off a disk of this machine, or discarded.
    pub fn is_retired(&self, cache: &str) -> Result<bool, RecordError> {
        self.file.is_retired(cache)
    }

    /// Reads everything that decides about a start. `log`: the superblock of the log that was found.
    pub fn seen(&self, log: Option<&LogSuperblock>) -> Result<RecordSeen, RecordError> {
        let (mut all, extent) = (self.load_with_others()?, self.extent);
        let uuid = log.map(|log| uuid_text(log.cache_uuid));
        let cache = uuid.as_deref();
        log.iter().for_each(|log| all.doubt(log));
        let is_unknown = all.overlapping(extent).is_none();
        let retired = cache.filter(|_| is_unknown).map(|cache| self.is_retired(cache)).transpose()?;
        let (told, teller) = (self.told.clone(), self.teller);
        let other =
            all.overlapping(extent).filter(|known| cache.is_some_and(|cache| known.cache_uuid != cache));
        let stack = other.and_then(|other| stack_with_log(&other.log));
        let retired = retired.unwrap_or(false);
        Ok(RecordSeen { all, extent, told, teller, retired, stack, has_place: None, original: None })
    }

    /// Changes the attachment of this part, or makes it, and returns when that is on the medium.
    pub fn update(&self, change: impl FnOnce(Option<Attachment>) -> Attachment) -> Result<(), RecordError> {
        let mut all = self.file.load()?;
        let changed = change(all.of(self.extent).cloned());
        assert_eq!(changed.extent(), self.extent, "an attachment keeps its part of the disk");
        all.put(changed);
        self.file.store(&all)
    }

    /// The file of the backup marks of an attached cache.
    pub fn marks_file(&self, attachment: &Attachment) -> MarksFile {
        MarksFile::beside(self.file.path(), attachment)
    }

    /// Removes the files of backup marks of this part. They are of no use to a later cache or disk, so a failure does no harm.
    fn remove_marks(&self, all: &Attachments) {
        for attachment in all.0.iter().filter(|attachment| attachment.extent().overlaps(self.extent)) {
            let _ = durable::remove(self.marks_file(attachment).path());
        }
    }

    /// Discards every cache of this part: their logs are out of date from now on. The loss, if any, has been accepted.
    pub fn abandon(&self) -> Result<(), RecordError> {
        let mut all = self.file.load()?;
        for attachment in all.0.iter_mut().filter(|attachment| attachment.extent().overlaps(self.extent)) {
            attachment.discarded |= attachment.may_lose_data();
            attachment.state = AttachmentState::Abandoned;
            (attachment.dirty_bytes, attachment.zeroes_bytes) = (Some(0), 0);
        }
        self.file.store(&all)
    }

    /// Notes that the part is a data disk of its log no more, and complete. The record stays until the stack file does not name the disk: it
    /// says that the disk is not the one that has the place by now.
    pub fn leave_log(&self) -> Result<(), RecordError> {
        let mut all = self.file.load()?;
        self.remove_marks(&all);
        let Some(own) = all.0.iter_mut().find(|own| own.extent() == self.extent) else { return Ok(()) };
        own.state = AttachmentState::Abandoned;
        (own.dirty_bytes, own.zeroes_bytes) = (Some(0), 0);
        self.file.store(&all)
    }

    /// Forgets a part that has left its log, which others use.
    pub fn forget_log(&self) -> Result<(), RecordError> {
        let mut all = self.file.load()?;
        if all
            .of(self.extent)
            .is_none_or(|own| own.state != AttachmentState::Abandoned || own.may_lose_data())
        {
            return Ok(());
        }
        all.remove(self.extent);
        self.file.store_without_retiring(&all)
    }

    /// Forgets the cache: the part is a plain disk.
    pub fn remove(&self) -> Result<(), RecordError> {
        let mut all = self.file.load()?;
        self.remove_marks(&all);
        all.remove(self.extent);
        self.file.store(&all)
    }
}

/// The record of a data disk and the disk's own marks, as they were read.
#[derive(Clone, Debug)]
pub struct RecordSeen {
    pub all: Attachments,
    /// The part of the disk that is to be used.
    pub extent: Extent,
    /// The caches that the disk itself names; none for a disk that cannot name any.
    pub told: Option<Vec<u64>>,
    pub teller: Teller,
    /// True if the record is missing, and the cache was taken off a disk of this machine, or discarded.
    pub retired: bool,
    /// The stack file in /etc/dcd with the log of the cache that is attached, if that is not the cache whose log was found.
    pub stack: Option<PathBuf>,
    /// The record of the disk that has this one's place in the log, if this one has none, and is not the first.
    pub has_place: Option<PathBuf>,
    /// Another disk, or its record, of which this one may be a copy: it is there, and its record has this one's place in the log.
    pub original: Option<PathBuf>,
}

/// Returns the stack file in /etc/dcd that names this log.
pub fn stack_with_log(log: &Path) -> Option<PathBuf> {
    let names_log = |file: &PathBuf| {
        let Ok(site) = Site::load(file) else { return false };
        let caches: Vec<String> = site.log_caches().map(|layer| layer.name.clone()).collect();
        let choices = caches.iter().map(|cache| CacheChoice::of(site.clone(), Some(cache)));
        choices.flatten().any(|choice| choice.log_place() == log)
    };
    control::stack_files().into_iter().find(names_log)
}

impl RecordSeen {
    /// Text about caches that the disk names and the record lacks, if the record has no cache of this part either; none if there are
    /// no such caches.
    pub fn lost(&self) -> Option<String> {
        let lost = self.not_recorded();
        let is_lost = !lost.is_empty() && self.all.overlapping(self.extent).is_none();
        is_lost.then(|| caches_text(&lost))
    }

    /// Returns the caches that the record has for this part. If the record has none, returns the only cache that the disk names
    /// and the record lacks.
    pub fn told_of_part(&self) -> Vec<u64> {
        let of_part = self.all.0.iter().filter(|attachment| attachment.extent().overlaps(self.extent));
        let of_part: Vec<u64> = of_part.filter_map(|attachment| told_as(&attachment.cache_uuid)).collect();
        match self.not_recorded().as_slice() {
            [only] if of_part.is_empty() => vec![*only],
            _ => of_part,
        }
    }

    /// Caches that the disk names and the record lacks: an older record was lost.
    fn not_recorded(&self) -> Vec<u64> {
        let recorded: Vec<u64> =
            self.all.0.iter().filter_map(|attachment| told_as(&attachment.cache_uuid)).collect();
        let told = self.told.iter().flatten().copied();
        told.filter(|cache| !recorded.contains(cache)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_stays_stale_until_the_log_says_that_it_is_whole() {
        use dcd_engine::mirror::LegStatus;
        let log = |generation, legs: &[(u64, LegState)]| MirrorStatus {
            generation,
            legs: legs
                .iter()
                .map(|(id, standing)| LegStatus {
                    id: *id,
                    standing: Some(*standing),
                    ..LegStatus::default()
                })
                .collect(),
            ..MirrorStatus::default()
        };
        let ids = |stale: &[StaleLeg]| stale.iter().map(|leg| (leg.id, leg.generation)).collect::<Vec<_>>();
        let failed = stale_legs(&[], &log(5, &[(1, LegState::Whole), (2, LegState::Failed)]));
        assert_eq!(ids(&failed), [(2, 5)]);
        let filling = stale_legs(&failed, &log(8, &[(1, LegState::Whole), (2, LegState::Filling)]));
        assert_eq!(ids(&filling), [(2, 8)]);
        // It was taken out, and its device may come back.
        let gone = stale_legs(&failed, &log(9, &[(1, LegState::Whole)]));
        assert_eq!(ids(&gone), [(2, 5)]);
        let filled = stale_legs(&failed, &log(9, &[(1, LegState::Whole), (2, LegState::Whole)]));
        assert!(filled.is_empty());
        let many = (0..100).map(|id| StaleLeg { id: 100 + id, generation: id }).collect::<Vec<_>>();
        let kept = stale_legs(&many, &log(200, &[(1, LegState::Failed)]));
        assert_eq!((kept.len(), kept.last().map(|leg| leg.id)), (STALE_LEGS_MAX, Some(1)));
    }

    #[test]
    fn a_uuid_reads_as_usual() {
        let uuid = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77";
        assert_eq!(uuid_text(uuid), "01234567-89ab-cdef-0011-223344556677");
    }

    #[test]
    fn an_update_is_seen_by_the_next_reader_and_removal_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data.img");
        std::fs::write(&data, b"x").unwrap();
        let extent = Extent::new(Lba(0), 2048);
        let record = DiskRecord::open(&data, extent).unwrap();
        let first = rules::tests::attachment(AttachmentState::Clean, extent);
        record
            .update(|old| {
                assert!(old.is_none());
                first.clone()
            })
            .unwrap();
        record.update(|old| Attachment { state: AttachmentState::Dirty, epoch: 9, ..old.unwrap() }).unwrap();
        let seen = DiskRecord::open(&data, extent).unwrap().load().unwrap();
        assert_eq!(seen.0, [Attachment { state: AttachmentState::Dirty, epoch: 9, ..first }]);
        record.remove().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the data file is left");
    }

    #[test]
    fn members_of_an_array_are_to_tell_of_a_cache_in_use() {
        let of = |uuid: [u8; 16], state| Attachment {
            cache_uuid: uuid_text(uuid),
            ..rules::tests::attachment(state, Extent::new(Lba(0), 8))
        };
        let (left, used) = (of([1; 16], AttachmentState::Abandoned), of([0xe7; 16], AttachmentState::Clean));
        assert_eq!(Attachments(vec![left.clone(), used]).to_tell(), [0xe7e7_e7e7_e7e7_e7e7]);
        assert!(Attachments(vec![left]).to_tell().is_empty());
        assert_eq!(caches_text(&[0xe7 << 56, 1]), "e7000000-0000-0000-... and 00000000-0000-0001-...");
    }

    #[test]
    fn only_the_one_cache_that_begins_where_a_part_does_may_have_seen_it_grow() {
        let of = |start: u64, sectors: u64| {
            rules::tests::attachment(AttachmentState::Dirty, Extent::new(Lba(start), sectors))
        };
        let part = Extent::new(Lba(0), 4096);
        let grown = |attachments: &[Attachment]| Attachments(attachments.to_vec()).grown(part);
        assert_eq!(grown(&[of(0, 2048)]), Some(Extent::new(Lba(0), 2048)));
        for others in [
            vec![],
            vec![of(0, 4096)],
            vec![of(0, 8192)],
            vec![of(1024, 1024)],
            vec![of(0, 1024), of(2048, 1024)],
        ] {
            assert_eq!(grown(&others), None, "{others:?}");
        }
    }
}
