//! The record's file: JSON with a checksum, replaced whole.
//!
//! The record of an array has copies. They are written one after the other, and a directory may be missing meanwhile, so each
//! copy has a generation: the newest counts.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::durable::{remove, replace};
use super::identity::{DiskIdentity, Match};
use super::mark::{MarkedFile, RecordMark};
use super::place::{BlockDisk, FileDisk, RecordLocation, array_places, place, state_dir};
use super::retired::{is_retired, retire};
use super::{Attachment, AttachmentState, Attachments};

const FORMAT: &str = "dcd attachment record";
const VERSION: u32 = 1;
/// A record is overwritten in place only where it fits a page.
const IN_PLACE_MAX: usize = 4096;
const NOTE: &str = "Written by dcd. The disk that this belongs to may be incomplete without its cache: keep this file, \
                    and do not mount or check the disk while a cache is attached. \"dcd detach\" removes it.";

/// An error of a record. [`RecordError::action`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(
        "{path}: {action} the attachment record failed: {source}{}",
        if is_no_space(source) { ". Free space there: 8 KiB are enough" } else { "" }
    )]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{path}: this attachment record is damaged ({why}), and only it says which cache the disk has")]
    Damaged { path: PathBuf, why: String },
    #[error("{path}: version {version} of the attachment record is not known to this program")]
    Version { path: PathBuf, version: u32 },
    #[error("the disk has {} attachment records: {} and {}", .0.len(), .0[0].display(), .0[1].display())]
    Several(Vec<PathBuf>),
    #[error(
        "{device}: the file behind this loop device is not at {file} here, as if the loop device was made in another mount namespace: \
         it is not known if a cache is attached to the file"
    )]
    Hidden { device: PathBuf, file: PathBuf },
    #[error(
        "{record}: this attachment record was written for another file, and the file in its place is blank"
    )]
    OfAnother { record: PathBuf },
    #[error("{path}: this is the attachment record of data disk {disk} of this log already")]
    InLog { path: PathBuf, disk: usize },
}

impl RecordError {
    /// The way out. Nothing was changed.
    pub fn action(&self) -> String {
        match self {
            RecordError::Io { path, .. } => format!("make {} readable and writable, and try again", path.display()),
            RecordError::Damaged { .. } => "restore it from a backup. Or look at the log with \"dcd check\", and if its cache is the right one, \
                 move the record away. Nothing was changed"
                .to_owned(),
            RecordError::Version { .. } => "use the release that wrote it. Nothing was changed".to_owned(),
            RecordError::Several(_) => {
                "keep the one that belongs to the disk's cache, and move the other away. Nothing was changed".to_owned()
            }
            RecordError::InLog { .. } => "name a disk that the log does not have. Nothing was changed".to_owned(),
            RecordError::Hidden { device, .. } => format!(
                "name the file itself in the stack file, or make the loop device again, from here: \"losetup --detach {}\", and \"losetup \
                 --find --show FILE\". Nothing was changed",
                device.display()
            ),
            RecordError::OfAnother { record } => format!(
                "give the file that was there its name back. If this is that file, moved without its attributes, or if that file and its log are \
                 gone for good, move {} away. Nothing was changed",
                record.display()
            ),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    format: String,
    version: u32,
    note: String,
    attachments: Attachments,
    /// Generation of a copy: the newest counts. None where the record has one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// Identity of the record's disk; none of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<DiskIdentity>,
    crc32c: String,
}

/// The record of a data disk in its files.
#[derive(Debug)]
pub struct RecordFile {
    /// Paths of all copies of the record: only an array has several.
    paths: Vec<PathBuf>,
    is_array: bool,
    block: Option<BlockDisk>,
    marked: Option<MarkedFile>,
    /// UUIDs of the caches that the mark of a file names; none if it has no mark.
    told: Option<Vec<String>>,
    /// Directory of the list of retired caches.
    state_dir: PathBuf,
    /// True if the record may be another disk's. A record of another cache never replaces it, but gets a place of its own.
    is_unclear: bool,
    own: OnceLock<PathBuf>,
}

impl RecordFile {
    fn new(paths: Vec<PathBuf>) -> RecordFile {
        RecordFile {
            paths,
            is_array: false,
            block: None,
            marked: None,
            told: None,
            state_dir: state_dir(),
            is_unclear: false,
            own: OnceLock::new(),
        }
    }

    /// The record at this path, whichever disk it is of: to be read only.
    pub fn at(path: PathBuf) -> RecordFile {
        RecordFile::new(vec![path])
    }

    /// Finds the record of the disk at `device`; the record need not exist.
    pub fn of(device: &Path) -> Result<RecordFile, RecordError> {
        let place = place(device).map_err(|source| RecordError::Io {
            path: device.to_owned(),
            action: "finding",
            source,
        })?;
        match place {
            RecordLocation::Export(path) => Ok(RecordFile::new(vec![path])),
            RecordLocation::File(file) => RecordFile::of_file(file),
            RecordLocation::InStateDir(block) => RecordFile::of_block(block),
        }
    }

    /// Finds the record of a file: beside it, or where its mark says if the file has another name than before.
    pub fn of_file(FileDisk { beside, marked, .. }: FileDisk) -> Result<RecordFile, RecordError> {
        let mark = marked.read();
        let recorded = read(&beside).ok().flatten().and_then(|found| found.disk);
        // A file that was moved or restored is not blank, and the log recognises its content.
        if recorded.is_some() && recorded != marked.identity() && marked.is_blank() {
            return Err(RecordError::OfAnother { record: beside });
        }
        let has_its_cache = |path: &Path, mark: &RecordMark| {
            let found = read(path).ok().flatten();
            found.is_some_and(|found| {
                found.attachments.0.iter().any(|one| mark.recorded.contains(&one.cache_uuid))
            })
        };
        let path = match &mark {
            Some(mark) if !has_its_cache(&beside, mark) && has_its_cache(&mark.record, mark) => {
                mark.record.clone()
            }
            _ => beside,
        };
        let told = mark.map(|mark| mark.caches);
        Ok(RecordFile { marked: Some(marked), told, ..RecordFile::new(vec![path]) })
    }

    pub fn of_block(block: BlockDisk) -> Result<RecordFile, RecordError> {
        let of = |path: &PathBuf| match read(path) {
            Ok(None) => Match::Other,
            Ok(Some(document)) => block.matches(document.disk.as_ref()),
            // A record that cannot be understood may be this disk's.
            Err(_) => Match::Unclear,
        };
        let own: Vec<(PathBuf, Match)> =
            block.own_paths().into_iter().map(|path| (path.clone(), of(&path))).collect();
        let that = |verdict| own.iter().filter(move |(_, is)| *is == verdict).map(|(path, _)| path.clone());
        let mut existing: Vec<PathBuf> = that(Match::Same).collect();
        let mut is_unclear = false;
        if existing.is_empty() {
            let others = block.all_paths().into_iter();
            existing = others.filter(|path| !is_by_name(path, &own) && of(path) == Match::Same).collect();
        }
        if existing.is_empty() {
            existing = that(Match::Unclear).collect();
            is_unclear = true;
        }
        let path = match (existing.as_slice(), &block.hidden_file) {
            ([], Some(file)) => {
                return Err(RecordError::Hidden { device: block.device.clone(), file: file.clone() });
            }
            ([], None) => block.new_path(),
            ([path], _) => path.clone(),
            _ => return Err(RecordError::Several(existing)),
        };
        let state_dir = block.state_dir.clone();
        Ok(RecordFile { block: Some(block), state_dir, is_unclear, ..RecordFile::new(vec![path]) })
    }

    /// Finds the record of an array with these members; the record need not exist.
    pub fn of_array(uuid: &str, members: &[&Path]) -> Result<RecordFile, RecordError> {
        let paths = array_places(uuid, members).map_err(|source| RecordError::Io {
            path: members.first().map_or_else(PathBuf::new, |member| (*member).to_owned()),
            action: "finding",
            source,
        })?;
        Ok(RecordFile { is_array: true, ..RecordFile::new(paths) })
    }

    /// UUIDs of the caches that the mark of a file names; none if it has no mark, and for other disks.
    pub fn told(&self) -> Option<&[String]> {
        self.told.as_deref()
    }

    /// True for a cache that was taken off a disk of this machine, or discarded.
    pub fn is_retired(&self, cache: &str) -> Result<bool, RecordError> {
        is_retired(&self.state_dir, cache)
            .map_err(|source| io(&self.state_dir, "reading retired-caches for", source))
    }

    /// The attachments; none where there is no record.
    pub fn load(&self) -> Result<Attachments, RecordError> {
        Ok(self.newest()?.map_or_else(Attachments::default, |document| document.attachments))
    }

    /// True for the record of another block device of the system than `own`.
    pub fn is_of_another(&self, own: &BlockDisk) -> bool {
        self.newest().ok().flatten().and_then(|found| found.disk).is_some_and(|disk| own.has_other(&disk))
    }

    /// The place of the record, or of its first copy.
    pub fn path(&self) -> &Path {
        &self.paths()[0]
    }

    fn paths(&self) -> &[PathBuf] {
        self.own.get().map_or(self.paths.as_slice(), std::slice::from_ref)
    }

    fn newest(&self) -> Result<Option<Document>, RecordError> {
        let mut newest: Option<Document> = None;
        for path in self.paths() {
            if let Some(copy) = read(path)?
                && newest.as_ref().is_none_or(|newest| newest.generation < copy.generation)
            {
                newest = Some(copy);
            }
        }
        Ok(newest)
    }

    /// Looks at the disk again, and updates its identity in the record.
    pub fn look_again(&mut self) -> Result<(), RecordError> {
        let has_changed = self.block.as_mut().is_some_and(BlockDisk::look_again);
        let attachments = if has_changed { self.load()? } else { Attachments::default() };
        match attachments.0.is_empty() {
            true => Ok(()),
            false => self.store(&attachments),
        }
    }

    /// Replaces the record; with no attachment, removes it. Returns when that is on the medium.
    pub fn store(&self, attachments: &Attachments) -> Result<(), RecordError> {
        self.store_and(attachments, true)
    }

    /// Like [`RecordFile::store`], for caches that are still in use when they go from this record.
    pub fn store_without_retiring(&self, attachments: &Attachments) -> Result<(), RecordError> {
        self.store_and(attachments, false)
    }

    fn store_and(&self, attachments: &Attachments, retires: bool) -> Result<(), RecordError> {
        let announce = || self.block.iter().for_each(BlockDisk::announce);
        let known = self.newest().ok().flatten();
        let told = self.told.iter().flatten().cloned();
        let mut gone: Vec<String> = known
            .iter()
            .flat_map(|known| &known.attachments.0)
            .map(|known| known.cache_uuid.clone())
            .chain(told)
            .filter(|uuid| retires && attachments.0.iter().all(|kept| kept.cache_uuid != *uuid))
            .collect();
        if let (true, Some(block), None) = (self.is_unclear, &self.block, self.own.get())
            && known.is_some_and(|known| known.attachments.0.len() == gone.len())
            && !attachments.0.is_empty()
        {
            let _ = self.own.set(block.new_path());
            gone.clear();
        }
        let retired = retire(&self.state_dir, &gone);
        if attachments.0.is_empty() {
            let is_marked = self.mark(attachments);
            if let (Err(error), false) = (retired, is_marked || self.is_array) {
                eprintln!(
                    "dcd: {}: retired-caches cannot be written ({error}), so dcd cannot refuse the log of the cache {}. Never use that log again",
                    self.state_dir.display(),
                    gone.join(", ")
                );
            }
            let removed = |path: &PathBuf| remove(path).map_err(|source| io(path, "removing", source));
            return self.paths().iter().try_for_each(removed).inspect(|()| announce());
        }
        // Else the log of a cache that was discarded would look like one of a disk that was moved here.
        retired.map_err(|source| io(&self.state_dir, "writing retired-caches for", source))?;
        let is_new = !self.paths().iter().any(|path| path.exists());
        let generation = match self.is_array {
            true => Some(self.newest()?.and_then(|newest| newest.generation).unwrap_or(0) + 1),
            false => None,
        };
        let of_file = || self.marked.as_ref().and_then(MarkedFile::identity);
        let disk = self.block.as_ref().map(BlockDisk::identity).or_else(of_file);
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            note: NOTE.to_owned(),
            attachments: attachments.clone(),
            generation,
            crc32c: checksum(attachments, generation, disk.as_ref()),
            disk,
        };
        let mut text = serde_json::to_string_pretty(&document).expect("a record is plain data");
        text.push('\n');
        self.paths()
            .iter()
            .try_for_each(|path| put(path, text.as_bytes()).map_err(|source| io(path, "writing", source)))?;
        self.mark(attachments);
        if is_new {
            announce();
        }
        Ok(())
    }

    /// Writes the mark of a file; true if its file system can keep it. A record is written before its mark and removed after it, so a mark
    /// without a record says that the record was lost.
    fn mark(&self, attachments: &Attachments) -> bool {
        let (Some(marked), [record]) = (&self.marked, self.paths()) else { return false };
        let caches = |is_listed: fn(&Attachment) -> bool| {
            let listed = attachments.0.iter().filter(|attachment| is_listed(attachment));
            listed.map(|attachment| attachment.cache_uuid.clone()).collect()
        };
        let in_use = caches(|attachment| attachment.state != AttachmentState::Abandoned);
        marked.write(record, caches(|_| true), in_use).is_ok()
    }
}

/// True where a path is among those that were looked at by the names of a disk.
fn is_by_name(path: &Path, own: &[(PathBuf, Match)]) -> bool {
    own.iter().any(|(looked_at, _)| looked_at == path)
}

/// Replaces a record, or overwrites it if its file system is full: a good disk does not wait for free space.
fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    let replaced = replace(path, text);
    if !replaced.as_ref().is_err_and(is_no_space) || overwrite(path, text).is_err() {
        return replaced;
    }
    eprintln!(
        "dcd: {}: its file system is full, so this attachment record was overwritten in place. A power cut during such a write damages it, \
         and the next start then asks which cache the disk has. Free space there: 8 KiB are enough",
        path.display()
    );
    Ok(())
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Overwrites a record in place, within the space that it has: one page, which the kernel takes as a whole or not at all.
fn overwrite(path: &Path, text: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let (found, named) = (file.metadata()?, fs::symlink_metadata(path)?);
    if (found.dev(), found.ino()) != (named.dev(), named.ino()) {
        // A symbolic link in the place of the record may lead to a file that is no record.
        return Err(ErrorKind::InvalidInput.into());
    }
    let length = text.len().max(usize::try_from(found.len()).unwrap_or(usize::MAX));
    if length > IN_PLACE_MAX || length as u64 > found.blocks() * 512 {
        return Err(ErrorKind::StorageFull.into());
    }
    // What follows a JSON text may be white space.
    let mut page = text.to_vec();
    page.resize(length, b' ');
    file.write_all_at(&page, 0)?;
    file.sync_all()
}

fn read(path: &Path) -> Result<Option<Document>, RecordError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(path, "reading", source)),
    };
    let damaged = |why: String| RecordError::Damaged { path: path.to_owned(), why };
    // The version is judged first: a later release may have other fields.
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    if value["format"] != FORMAT {
        return Err(damaged("it does not begin as one".to_owned()));
    }
    if value["version"] != VERSION {
        let version = value["version"].as_u64().unwrap_or(0) as u32;
        return Err(RecordError::Version { path: path.to_owned(), version });
    }
    let document: Document = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
    if document.crc32c != checksum(&document.attachments, document.generation, document.disk.as_ref()) {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    Ok(Some(document))
}

fn io(path: &Path, action: &'static str, source: io::Error) -> RecordError {
    RecordError::Io { path: path.to_owned(), action, source }
}

fn checksum(attachments: &Attachments, generation: Option<u64>, disk: Option<&DiskIdentity>) -> String {
    let mut bytes = serde_json::to_vec(attachments).expect("a record is plain data");
    bytes.extend(generation.iter().flat_map(|generation| generation.to_le_bytes()));
    if let Some(disk) = disk {
        bytes.extend(serde_json::to_vec(disk).expect("an identity is plain data"));
    }
    format!("{:08x}", crc32c::crc32c(&bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use dcd_engine::{Extent, Lba};

    use super::super::identity::tests::Fake;
    use super::super::{AttachmentState, rules};
    use super::*;

    fn stored() -> (tempfile::TempDir, RecordFile, Attachments) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("data"), b"").unwrap();
        let file = RecordFile::of(&dir.path().join("data")).unwrap();
        let one = rules::tests::attachment(AttachmentState::Dirty, Extent::new(Lba(0), 8));
        let all = Attachments(vec![one]);
        file.store(&all).unwrap();
        (dir, file, all)
    }

    #[test]
    fn what_is_stored_is_loaded_and_nothing_else_is_left() {
        let (dir, file, all) = stored();
        assert_eq!(file.load().unwrap(), all);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the disk and its record");
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_record() {
        let (_dir, file, all) = stored();
        let left_over = file.paths[0].with_file_name("data.dcd.new");
        fs::write(&left_over, b"half a rec").unwrap();
        assert_eq!(file.load().unwrap(), all);
        file.store(&all).unwrap();
        assert!(!left_over.exists());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (_dir, file, all) = stored();
        let good = fs::read(&file.paths[0]).unwrap();
        let text = String::from_utf8(good.clone()).unwrap();
        let note = text.find("\"note\"").unwrap()..text.find("\"attachments\"").unwrap();
        for at in (0..good.len()).filter(|at| !note.contains(at)) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                fs::write(&file.paths[0], &bad).unwrap();
                match file.load() {
                    Err(
                        RecordError::Damaged { .. } | RecordError::Version { .. } | RecordError::Io { .. },
                    ) => {}
                    // White space, and the case of a letter in the escape of one, mean the same.
                    Ok(loaded) => assert_eq!(loaded, all, "bit {bit} of byte {at}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn the_newest_copy_of_an_arrays_record_counts_and_all_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let members = ["one", "two"].map(|name| dir.path().join(name).join("disk"));
        for member in &members {
            fs::create_dir(member.parent().unwrap()).unwrap();
            fs::write(member, b"").unwrap();
        }
        let of = |members: &[PathBuf]| {
            let members: Vec<&Path> = members.iter().map(PathBuf::as_path).collect();
            RecordFile::of_array("u", &members).unwrap()
        };
        let with = |state| Attachments(vec![rules::tests::attachment(state, Extent::new(Lba(0), 8))]);
        of(&members).store(&with(AttachmentState::Clean)).unwrap();
        // One member is away meanwhile.
        of(&members[1..]).store(&with(AttachmentState::Dirty)).unwrap();
        assert_eq!(of(&members[..1]).load().unwrap(), with(AttachmentState::Clean), "all that it knows");
        for order in [[0, 1], [1, 0]] {
            let file = of(&order.map(|member| members[member].clone()));
            assert_eq!(file.load().unwrap(), with(AttachmentState::Dirty));
        }
        let copy = &of(&members).paths[1];
        let text = fs::read_to_string(copy).unwrap();
        fs::write(copy, text.replace("\"generation\": 2", "\"generation\": 0")).unwrap();
        assert!(matches!(of(&members).load(), Err(RecordError::Damaged { .. })));
        fs::write(copy, text).unwrap();
        of(&members).store(&Attachments::default()).unwrap();
        assert_eq!(of(&members).load().unwrap(), Attachments::default());
    }

    const SDA: u64 = 8 << 8;
    const SDB: u64 = 8 << 8 | 16;

    /// The record of a block device of a fake system.
    fn of_block(fake: &Fake, name: &str, number: u64) -> RecordFile {
        let state_dir = fake.dir.path().join("state");
        RecordFile::of_block(BlockDisk::new(fake.device(name), number, state_dir, fake.system.clone()))
            .unwrap()
    }

    fn dirty() -> Attachments {
        Attachments(vec![rules::tests::attachment(AttachmentState::Dirty, Extent::new(Lba(0), 8))])
    }

    #[test]
    fn disks_that_are_numbered_anew_keep_their_records() {
        // Disks that differ in a serial number, in their content, or in that one of them has content.
        for (serials, contents) in [
            ([Some("S1"), Some("S2")], [None, None]),
            ([Some("S1"), Some("S2")], [Some(1), Some(1)]),
            ([None, None], [Some(1), Some(2)]),
            ([None, None], [Some(1), None]),
        ] {
            let fake = Fake::new();
            let plug = |numbers: [u64; 2]| {
                for (disk, (number, name)) in numbers.into_iter().zip(["sda", "sdb"]).enumerate() {
                    fake.disk(name, contents[disk]);
                    fake.numbered(number, name);
                    if let Some(serial) = serials[disk] {
                        fake.attribute(number, "serial", serial);
                    }
                }
            };
            plug([SDA, SDB]);
            of_block(&fake, "sda", SDA).store(&dirty()).unwrap();
            assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), dirty());
            assert_eq!(of_block(&fake, "sdb", SDB).load().unwrap(), Attachments::default());
            // The first disk has the second's number now.
            plug([SDB, SDA]);
            let case = format!("{serials:?} {contents:?}");
            assert_eq!(of_block(&fake, "sda", SDB).load().unwrap(), dirty(), "{case}");
            let other = of_block(&fake, "sdb", SDA);
            assert_eq!(other.load().unwrap(), Attachments::default(), "{case}");
            // Its own record leaves that one alone.
            other.store(&dirty()).unwrap();
            of_block(&fake, "sdb", SDA).store(&Attachments::default()).unwrap();
            assert_eq!(of_block(&fake, "sda", SDB).load().unwrap(), dirty(), "{case}");
        }
    }

    #[test]
    fn a_disk_keeps_its_record_when_it_gets_another_file_system_or_a_name() {
        let fake = Fake::new();
        fake.numbered(SDA, "sda");
        fake.disk("sda", None);
        of_block(&fake, "sda", SDA).store(&dirty()).unwrap();
        for uuid in [1, 2] {
            fake.disk("sda", Some(uuid));
            let file = of_block(&fake, "sda", SDA);
            assert_eq!(file.load().unwrap(), dirty());
            file.store(&dirty()).unwrap();
        }
        // udev was not there yet.
        fake.attribute(SDA, "serial", "S1");
        assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), dirty());
    }

    #[test]
    fn a_record_from_before_records_named_their_disk_is_found_by_its_number() {
        let fake = Fake::new();
        fake.numbered(SDA, "sda");
        fake.disk("sda", Some(1));
        let file = of_block(&fake, "sda", SDA);
        file.store(&dirty()).unwrap();
        let text = fs::read_to_string(&file.paths[0]).unwrap();
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document.as_object_mut().unwrap().remove("disk");
        document["crc32c"] = checksum(&dirty(), None, None).into();
        fs::write(&file.paths[0], document.to_string()).unwrap();
        assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), dirty());
    }

    #[test]
    fn two_disks_with_one_serial_number_are_two_disks() {
        let fake = Fake::new();
        for (number, name, uuid) in [(SDA, "sda", 1), (SDB, "sdb", 2)] {
            fake.disk(name, Some(uuid));
            fake.numbered(number, name);
            fake.attribute(number, "device/serial", "0000000000CA");
        }
        of_block(&fake, "sda", SDA).store(&dirty()).unwrap();
        let other = of_block(&fake, "sdb", SDB);
        assert_eq!(other.load().unwrap(), Attachments::default());
        other.store(&dirty()).unwrap();
        of_block(&fake, "sdb", SDB).store(&Attachments::default()).unwrap();
        assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), dirty());
    }

    #[test]
    fn a_disk_that_may_be_another_one_never_takes_its_record() {
        let fake = Fake::new();
        fake.numbered(SDA, "sda");
        fake.attribute(SDA, "serial", "S1");
        fake.disk("sda", Some(1));
        of_block(&fake, "sda", SDA).store(&dirty()).unwrap();
        // Another file system on this disk, or another disk with this name: both are refused.
        fake.disk("sda", Some(2));
        let unclear = of_block(&fake, "sda", SDA);
        assert_eq!(unclear.load().unwrap(), dirty());
        let mut other = dirty();
        other.0[0].cache_uuid = "other".to_owned();
        unclear.store(&other).unwrap();
        assert_eq!(unclear.load().unwrap(), other);
        assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), other);
        fake.disk("sda", Some(1));
        assert_eq!(of_block(&fake, "sda", SDA).load().unwrap(), dirty());
    }

    #[test]
    fn a_file_has_its_record_under_each_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let [disk, link, renamed] = ["disk", "sub/link", "renamed"].map(|name| dir.join(name));
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(&disk, b"x").unwrap();
        let of = |path: &Path| RecordFile::of(path).unwrap();
        of(&disk).store(&dirty()).unwrap();
        if of(&disk).told().is_none() {
            let _ = writeln!(io::stderr(), "SKIPPED: extended attributes: not on {}", dir.display());
            return;
        }
        fs::hard_link(&disk, &link).unwrap();
        assert_eq!(of(&link).load().unwrap(), dirty());
        fs::rename(&disk, &renamed).unwrap();
        assert_eq!(of(&renamed).load().unwrap(), dirty());
        // A change under another name is seen under all of them.
        let mut clean = dirty();
        clean.0[0].state = AttachmentState::Clean;
        of(&renamed).store(&clean).unwrap();
        assert_eq!(of(&link).load().unwrap(), clean);
        // Another file in the place of the first gets the record that lies there; a copy is another disk.
        fs::copy(&renamed, &disk).unwrap();
        assert_eq!((of(&disk).load().unwrap(), of(&disk).told()), (clean, None));
        // The record is lost, and the mark of the file shows it.
        fs::remove_file(dir.join("disk.dcd")).unwrap();
        assert_eq!(of(&link).load().unwrap(), Attachments::default());
        assert_eq!(of(&link).told().unwrap(), ["right"]);
        of(&link).store(&Attachments::default()).unwrap();
        assert_eq!(of(&renamed).told().unwrap(), [""; 0]);
    }

    #[test]
    fn a_blank_file_in_the_place_of_another_has_not_its_record() {
        let (dir, _, all) = stored();
        let data = dir.path().join("data");
        fs::rename(&data, dir.path().join("renamed")).unwrap();
        fs::File::create(&data).unwrap().set_len(1 << 20).unwrap();
        assert!(matches!(RecordFile::of(&data), Err(RecordError::OfAnother { .. })));
        // One with something on it may be the same, moved or restored: its log knows it.
        fs::write(&data, "moved").unwrap();
        assert_eq!(RecordFile::of(&data).unwrap().load().unwrap(), all);
    }

    #[test]
    fn a_cache_whose_record_goes_is_retired() {
        let (dir, mut file, all) = stored();
        file.state_dir = dir.path().join("state");
        let mut other = all.clone();
        other.0[0].cache_uuid = "other".to_owned();
        file.store(&other).unwrap();
        assert!(file.is_retired("right").unwrap() && !file.is_retired("other").unwrap());
        file.store(&Attachments::default()).unwrap();
        assert!(file.is_retired("other").unwrap());
    }

    #[test]
    fn a_record_is_not_replaced_where_its_cache_cannot_be_retired() {
        let (dir, mut file, all) = stored();
        file.state_dir = dir.path().join("full");
        fs::write(&file.state_dir, "no directory").unwrap();
        let mut other = all.clone();
        other.0[0].cache_uuid = "other".to_owned();
        assert!(matches!(file.store(&other), Err(RecordError::Io { .. })));
        assert_eq!(file.load().unwrap(), all);
    }

    #[test]
    fn a_record_is_not_written_through_a_link() {
        let (dir, file, _) = stored();
        let precious = dir.path().join("precious");
        fs::write(&precious, "x".repeat(4096)).unwrap();
        fs::remove_file(&file.paths[0]).unwrap();
        std::os::unix::fs::symlink(&precious, &file.paths[0]).unwrap();
        assert!(overwrite(&file.paths[0], b"{}").is_err());
        assert_eq!(fs::read(&precious).unwrap(), [b'x'; 4096]);
    }

    #[test]
    fn a_later_version_is_named() {
        let (_dir, file, _) = stored();
        let text = fs::read_to_string(&file.paths[0]).unwrap().replace("\"version\": 1", "\"version\": 2");
        fs::write(&file.paths[0], text).unwrap();
        assert!(matches!(file.load(), Err(RecordError::Version { version: 2, .. })));
    }
}
