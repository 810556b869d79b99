//! The mark of a file that is a data disk: an extended attribute of its inode.
//!
//! A record lies beside a file and is found by the file's name. The mark is found under every name of the file: through a hard link, a bind
//! mount, a loop device, and after a rename. It names the caches of the file and the path of the record; all else is in the record. It
//! stays when the last cache is taken off, and names none then: so a log that was detached is recognised.
//!
//! A copy of the file is another disk, as the mark has the number of its inode. On file systems without such attributes there is only the
//! record.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::identity::DiskIdentity;

/// The attribute of a disk that is a whole file; one that begins at an offset has that in the name.
const NAME: &str = "user.dcd";
/// Number of bytes that are looked at in a blank file: file systems and partition tables write there.
const BEGINNING_BYTES: usize = 1 << 20;

/// A file that has a mark, or may get one.
#[derive(Debug)]
pub struct MarkedFile {
    file: PathBuf,
    attribute: CString,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordMark {
    inode: u64,
    pub record: PathBuf,
    /// UUIDs of all caches in the record, by which it is recognised as the record of this file.
    pub recorded: Vec<String>,
    /// UUIDs of the caches whose logs may have data that the file lacks.
    pub caches: Vec<String>,
}

/// Returns the byte at which the disk with this mark begins; none for another attribute.
pub fn offset_of(attribute: &CStr) -> Option<u64> {
    match attribute.to_str().ok()?.strip_prefix(NAME)? {
        "" => Some(0),
        offset => offset.strip_prefix('@')?.parse().ok(),
    }
}

impl MarkedFile {
    /// The disk that begins at this byte of a file.
    pub fn new(file: PathBuf, offset: u64) -> MarkedFile {
        let name = if offset == 0 { NAME.to_owned() } else { format!("{NAME}@{offset}") };
        MarkedFile { file, attribute: CString::new(name).expect("a number has no zero byte") }
    }

    /// Returns the mark; none if there is none, or it is of another inode.
    pub fn read(&self) -> Option<RecordMark> {
        let file = File::open(&self.file).ok()?;
        let text = dcd_io::read_mark(&file, &self.attribute).ok()??;
        let mark: RecordMark = serde_json::from_slice(&text).ok()?;
        (mark.inode == file.metadata().ok()?.ino()).then_some(mark)
    }

    /// Identity of the file, for the record beside it.
    pub fn identity(&self) -> Option<DiskIdentity> {
        let inode = fs::metadata(&self.file).ok()?.ino();
        Some(DiskIdentity { names: vec![format!("inode-{inode}")], ..DiskIdentity::default() })
    }

    /// True where the file has nothing by which a log could tell it from another one: no attribute, and zeroes at its beginning.
    pub fn is_blank(&self) -> bool {
        let Ok(mut file) = File::open(&self.file) else { return false };
        let mut start = vec![0; BEGINNING_BYTES];
        let has_mark = !matches!(dcd_io::read_mark(&file, &self.attribute), Ok(None));
        !has_mark && file.read(&mut start).is_ok_and(|_| start.iter().all(|byte| *byte == 0))
    }

    /// Writes the mark, unless it is so already, and returns when that is on the medium.
    ///
    /// # Errors
    /// If the file system has no attributes, or no space for them.
    pub fn write(&self, record: &Path, recorded: Vec<String>, caches: Vec<String>) -> io::Result<()> {
        let inode = fs::metadata(&self.file)?.ino();
        let mark = RecordMark { inode, record: record.to_owned(), recorded, caches };
        if self.read().as_ref() == Some(&mark) {
            return Ok(());
        }
        let text = serde_json::to_vec(&mark).map_err(io::Error::other)?;
        dcd_io::write_mark(&File::open(&self.file)?, &self.attribute, &text)
    }
}
