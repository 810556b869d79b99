//! The record's file: JSON with a checksum, replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Attachments;
use super::place::places;

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
    crc32c: String,
}

/// Where the record of one data disk is.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
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
            [] => Ok(RecordFile { path: places.preferred }),
            [path] => Ok(RecordFile { path: path.clone() }),
            _ => Err(RecordError::Several(existing)),
        }
    }

    /// The attachments; none where there is no record.
    pub fn load(&self) -> Result<Attachments, RecordError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Attachments::default()),
            Err(source) => return Err(self.io("reading", source)),
        };
        let damaged = |why: String| RecordError::Damaged { path: self.path.clone(), why };
        // The version is judged first: a later release may have other fields.
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if value["format"] != FORMAT {
            return Err(damaged("it does not begin as one".to_owned()));
        }
        if value["version"] != VERSION {
            let version = value["version"].as_u64().unwrap_or(0) as u32;
            return Err(RecordError::Version { path: self.path.clone(), version });
        }
        let document: Document = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
        if document.crc32c != checksum(&document.attachments) {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        Ok(document.attachments)
    }

    /// Replaces the record; with no attachment, removes it. Returns when that is on the medium.
    pub fn store(&self, attachments: &Attachments) -> Result<(), RecordError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if attachments.0.is_empty() {
            return match fs::remove_file(&self.path) {
                Ok(()) => sync(directory).map_err(|source| self.io("removing", source)),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                Err(source) => Err(self.io("removing", source)),
            };
        }
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            note: NOTE.to_owned(),
            attachments: attachments.clone(),
            crc32c: checksum(attachments),
        };
        let mut text = serde_json::to_string_pretty(&document).expect("a record is plain data");
        text.push('\n');
        self.replace(directory, text.as_bytes()).map_err(|source| self.io("writing", source))
    }

    fn replace(&self, directory: &Path, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = self.path.with_file_name(name);
        // One that was left by a crash. Only the owner of the disk's lock gets here, so nobody is writing it.
        match fs::remove_file(&new) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        sync(directory)
    }

    fn io(&self, action: &'static str, source: io::Error) -> RecordError {
        RecordError::Io { path: self.path.clone(), action, source }
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn checksum(attachments: &Attachments) -> String {
    let bytes = serde_json::to_vec(attachments).expect("a record is plain data");
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
        let left_over = file.path.with_file_name("data.dcd.new");
        fs::write(&left_over, b"half a rec").unwrap();
        assert_eq!(file.load().unwrap(), all);
        file.store(&all).unwrap();
        assert!(!left_over.exists());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (_dir, file, all) = stored();
        let good = fs::read(&file.path).unwrap();
        let text = String::from_utf8(good.clone()).unwrap();
        let note = text.find("\"note\"").unwrap()..text.find("\"attachments\"").unwrap();
        for at in (0..good.len()).filter(|at| !note.contains(at)) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                fs::write(&file.path, &bad).unwrap();
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
    fn a_later_version_is_named() {
        let (_dir, file, _) = stored();
        let text = fs::read_to_string(&file.path).unwrap().replace("\"version\": 1", "\"version\": 2");
        fs::write(&file.path, text).unwrap();
        assert!(matches!(file.load(), Err(RecordError::Version { version: 2, .. })));
    }
}
