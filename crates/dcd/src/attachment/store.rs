//! The record's file: JSON with a checksum, replaced whole.
//!
//! That of an array has copies. They are written one after the other, and a directory may be away meanwhile, so each has a
//! generation: the newest counts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Attachments;
use super::place::{array_places, places};

const FORMAT: &str = "dcd attachment record";
const VERSION: u32 = 1;
const NOTE: &str = "Written by dcd. The disk that this belongs to may be incomplete without its cache: keep this file, \
                    and do not mount or check the disk while a cache is attached. \"dcd detach\" removes it.";

/// What can go wrong with a record, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{path}: {action} the attachment record failed: {source}")]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error(
        "{path}: this attachment record is damaged ({why}). It says which cache the disk has: restore it from a \
         backup, or look at the log with \"dcd check\", and if the cache is the right one, move the record away"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path}: version {version} of the attachment record is not known here: use the release that wrote it"
    )]
    Version { path: PathBuf, version: u32 },
    #[error(
        "the disk has {} attachment records: {} and {}. Keep the one that belongs to its cache, move the other away",
        .0.len(), .0[0].display(), .0[1].display()
    )]
    Several(Vec<PathBuf>),
}

#[derive(Serialize, Deserialize)]
struct Document {
    format: String,
    version: u32,
    note: String,
    attachments: Attachments,
    /// Which of several copies is the newest; none where there is but one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    crc32c: String,
}

/// Where the record of one data disk is.
#[derive(Debug)]
pub struct RecordFile {
    /// All of its copies: several only of an array.
    paths: Vec<PathBuf>,
    is_array: bool,
}

impl RecordFile {
    /// The record of the disk at `device`, whether it exists or not.
    pub fn of(device: &Path) -> Result<RecordFile, RecordError> {
        let places = places(device).map_err(|source| RecordError::Io {
            path: device.to_owned(),
            action: "finding",
            source,
        })?;
        let existing: Vec<PathBuf> = places.all.into_iter().filter(|path| path.exists()).collect();
        match existing.as_slice() {
            [] => Ok(RecordFile { paths: vec![places.preferred], is_array: false }),
            [path] => Ok(RecordFile { paths: vec![path.clone()], is_array: false }),
            _ => Err(RecordError::Several(existing)),
        }
    }

    /// The record of an array with these members, whether it exists or not.
    pub fn of_array(uuid: &str, members: &[&Path]) -> Result<RecordFile, RecordError> {
        let paths = array_places(uuid, members).map_err(|source| RecordError::Io {
            path: members.first().map_or_else(PathBuf::new, |member| (*member).to_owned()),
            action: "finding",
            source,
        })?;
        Ok(RecordFile { paths, is_array: true })
    }

    /// The attachments; none where there is no record.
    pub fn load(&self) -> Result<Attachments, RecordError> {
        Ok(self.newest()?.map_or_else(Attachments::default, |document| document.attachments))
    }

    fn newest(&self) -> Result<Option<Document>, RecordError> {
        let mut newest: Option<Document> = None;
        for path in &self.paths {
            if let Some(copy) = read(path)?
                && newest.as_ref().is_none_or(|newest| newest.generation < copy.generation)
            {
                newest = Some(copy);
            }
        }
        Ok(newest)
    }

    /// Replaces the record; with no attachment, removes it. Returns when that is on the medium.
    pub fn store(&self, attachments: &Attachments) -> Result<(), RecordError> {
        if attachments.0.is_empty() {
            return self.paths.iter().try_for_each(|path| remove(path));
        }
        let generation = match self.is_array {
            true => Some(self.newest()?.and_then(|newest| newest.generation).unwrap_or(0) + 1),
            false => None,
        };
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            note: NOTE.to_owned(),
            attachments: attachments.clone(),
            generation,
            crc32c: checksum(attachments, generation),
        };
        let mut text = serde_json::to_string_pretty(&document).expect("a record is plain data");
        text.push('\n');
        self.paths
            .iter()
            .try_for_each(|path| replace(path, text.as_bytes()).map_err(|source| io(path, "writing", source)))
    }
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
    if document.crc32c != checksum(&document.attachments, document.generation) {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    Ok(Some(document))
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = directory(path);
    fs::create_dir_all(directory)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // One that was left by a crash. Only the owner of the disk's lock gets here, so nobody is writing it.
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync(directory)
}

fn remove(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Ok(()) => sync(directory(path)).map_err(|source| io(path, "removing", source)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(io(path, "removing", source)),
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn io(path: &Path, action: &'static str, source: io::Error) -> RecordError {
    RecordError::Io { path: path.to_owned(), action, source }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn checksum(attachments: &Attachments, generation: Option<u64>) -> String {
    let mut bytes = serde_json::to_vec(attachments).expect("a record is plain data");
    bytes.extend(generation.iter().flat_map(|generation| generation.to_le_bytes()));
    format!("{:08x}", crc32c::crc32c(&bytes))
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Extent, Lba};

    use super::super::{AttachmentState, admit};
    use super::*;

    fn stored() -> (tempfile::TempDir, RecordFile, Attachments) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("data"), b"").unwrap();
        let file = RecordFile::of(&dir.path().join("data")).unwrap();
        let one = admit::tests::attachment(AttachmentState::Dirty, Extent::new(Lba(0), 8));
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
        let with = |state| Attachments(vec![admit::tests::attachment(state, Extent::new(Lba(0), 8))]);
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

    #[test]
    fn a_later_version_is_named() {
        let (_dir, file, _) = stored();
        let text = fs::read_to_string(&file.paths[0]).unwrap().replace("\"version\": 1", "\"version\": 2");
        fs::write(&file.paths[0], text).unwrap();
        assert!(matches!(file.load(), Err(RecordError::Version { version: 2, .. })));
    }
}
