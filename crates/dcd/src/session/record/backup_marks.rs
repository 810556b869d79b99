//! The file of a disk's backup marks, beside its attachment record: what clients have changed since each mark, from the clean stop of a
//! server to the next start of its cache.
//!
//! ```text
//! header (JSON, one line) │ grains of each mark, only after a clean stop
//! ```
//!
//! A start replaces the file by one without grains before it serves anything, and so does each new mark. So a crash, a kill and a failed
//! stop leave a file that only tells which marks are lost. The marks are those of one cache, disk and activation of the log. The next activation
//! alone takes them over: any other start may have written without them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use dcd_io::backup_marks::{DiskMarks, LostMark, MarkPeriod, words};
use serde::{Deserialize, Serialize};

use super::Attachment;
use super::durable::{NewContent, remove};

const FORMAT: &str = "dcd backup marks";
const VERSION: u32 = 1;
const NOTE: &str = "Written by dcd: which parts of the disk have changed since marks that \"dcd mark\" has made. Without this file the next \
                    backup has to be a full one.";
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// The cache, the disk and the activation that marks belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarksOwner {
    cache_uuid: String,
    disk_uuid: Option<String>,
    first_sector: u64,
    sectors: u64,
    epoch: u64,
}

impl MarksOwner {
    /// Returns the reason if marks of an earlier start are lost to the one of this owner.
    fn refuses(&self, earlier: &MarksOwner) -> Option<&'static str> {
        if (&self.cache_uuid, &self.disk_uuid) != (&earlier.cache_uuid, &earlier.disk_uuid) {
            Some("they are of another cache or disk")
        } else if (self.first_sector, self.sectors) != (earlier.first_sector, earlier.sectors) {
            Some("the size of the disk has changed since")
        } else if self.epoch != earlier.epoch + 1 {
            Some("the log was started without them since, by another command or machine")
        } else {
            None
        }
    }
}

#[derive(Serialize, Deserialize)]
struct MarksHeader {
    owner: MarksOwner,
    /// Number and time of each mark.
    marks: Vec<(u64, u64)>,
    /// Number and reason of each lost mark.
    lost: Vec<(u64, String)>,
    /// Checksum of the grains; none if the file has none, so that its marks are lost.
    grains: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct MarksDocument {
    format: String,
    version: u32,
    note: String,
    header: MarksHeader,
    crc32c: String,
}

fn header_checksum(header: &MarksHeader) -> String {
    format!("{:08x}", crc32c::crc32c(&serde_json::to_vec(header).expect("a header is plain data")))
}

/// A header with the periods of its marks, or the reason why they are lost.
type LoadedMarks = (MarksHeader, Result<Vec<MarkPeriod>, String>);

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct MarksFile {
    path: PathBuf,
    owner: MarksOwner,
}

impl MarksFile {
    /// The file beside an attachment record. Disks that share a record have different names.
    pub fn beside(record: &Path, attachment: &Attachment) -> MarksFile {
        let Attachment { cache_uuid, disk_uuid, first_sector, sectors, epoch, .. } = attachment;
        let mut path = record.as_os_str().to_owned();
        let disk = disk_uuid.as_ref().map_or_else(|| first_sector.to_string(), String::clone);
        path.push(format!(".{cache_uuid}.{disk}.marks"));
        let owner = MarksOwner {
            cache_uuid: cache_uuid.clone(),
            disk_uuid: disk_uuid.clone(),
            first_sector: *first_sector,
            sectors: *sectors,
            epoch: *epoch,
        };
        MarksFile { path: path.into(), owner }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the marks over from the start before this one, with a text for the administrator if they are lost. The file does not have
    /// them any more then. `trouble`: the reason if this start has to lose them.
    pub fn take_over(&self, trouble: Option<&str>) -> (DiskMarks, Option<String>) {
        let mut marks = DiskMarks::new(self.owner.sectors);
        let loaded = match self.load(trouble) {
            Ok(None) => return (marks, None),
            Ok(Some((header, periods))) => {
                let lost = header.lost.into_iter();
                marks.lost = lost.map(|(mark, reason)| LostMark { mark, reason }).collect();
                let numbers: Vec<u64> = header.marks.iter().map(|(mark, _)| *mark).collect();
                periods.map(|periods| marks.periods = periods).map_err(|reason| (numbers, reason))
            }
            Err(error) => Err((Vec::new(), error.to_string())),
        };
        // The file must be gone before a client changes anything, or else an older state would come back.
        let numbers = marks.periods.iter().map(|period| period.mark).collect();
        let loaded = match self.store(&marks, false).or_else(|_| remove(&self.path)) {
            Err(error) if loaded.is_ok() => Err((numbers, format!("their file cannot be removed: {error}"))),
            _ => loaded,
        };
        let Err((numbers, reason)) = loaded else { return (marks, None) };
        if numbers.is_empty() && !marks.lost.is_empty() {
            return (marks, None);
        }
        let names = numbers.iter().map(|mark| format!(" {mark}")).collect::<Vec<_>>().join(",");
        let told =
            format!("backup marks are lost, and the next backup has to be a full one:{names} ({reason})");
        marks.lose(numbers, &reason);
        // This only keeps the reasons: the marks are lost without it.
        let _ = self.store(&marks, false);
        (marks, Some(told))
    }

    /// Replaces the file, and returns when that is on the medium. `with_grains`: nothing is written to the disk until the next start.
    pub fn store(&self, marks: &DiskMarks, with_grains: bool) -> io::Result<()> {
        if marks.periods.is_empty() && marks.lost.is_empty() {
            return remove(&self.path);
        }
        let grains = || {
            let chunks = marks.periods.iter().flat_map(|period| period.grains.chunks(512));
            chunks.map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        let header = MarksHeader {
            owner: self.owner.clone(),
            marks: marks.periods.iter().map(|period| (period.mark, period.made)).collect(),
            lost: marks.lost.iter().map(|lost| (lost.mark, lost.reason.clone())).collect(),
            grains: with_grains.then(|| grains().fold(0, |crc, bytes| crc32c::crc32c_append(crc, &bytes))),
        };
        let (crc32c, note) = (header_checksum(&header), NOTE.to_owned());
        let document = MarksDocument { format: FORMAT.to_owned(), version: VERSION, note, header, crc32c };
        let mut bytes = serde_json::to_vec(&document).expect("a header is plain data");
        bytes.push(b'\n');
        let mut content = NewContent::write(&self.path, &bytes)?;
        if with_grains {
            grains().try_for_each(|bytes| content.file.write_all(&bytes))?;
            content.file.sync_all()?;
        }
        content.put()
    }

    /// Reads the file; none where there is none.
    fn load(&self, trouble: Option<&str>) -> io::Result<Option<LoadedMarks>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => BufReader::new(file),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = |why: &str| io::Error::other(format!("their file is damaged ({why})"));
        let mut line = Vec::new();
        (&mut file).take(HEADER_BYTES_MAX).read_until(b'\n', &mut line)?;
        let document: MarksDocument = serde_json::from_slice(&line).map_err(|e| damaged(&e.to_string()))?;
        if (document.format.as_str(), document.version) != (FORMAT, VERSION) {
            return Err(damaged("another program has written it, or a later release"));
        }
        let header = document.header;
        if document.crc32c != header_checksum(&header) {
            return Err(damaged("its checksum does not match"));
        }
        if header.marks.is_empty() {
            return Ok(Some((header, Ok(Vec::new()))));
        }
        let reason = self.owner.refuses(&header.owner).or(trouble);
        let periods = match (reason, header.grains) {
            (Some(reason), _) => Err(reason.to_owned()),
            (None, None) => Err("the last server was not stopped cleanly".to_owned()),
            (None, Some(crc)) => {
                self.grains(&mut file, &header, crc).map_err(|error| damaged(&error.to_string()).to_string())
            }
        };
        Ok(Some((header, periods)))
    }

    fn grains(&self, file: &mut impl Read, header: &MarksHeader, crc: u32) -> io::Result<Vec<MarkPeriod>> {
        let mut found = 0;
        let mut bytes = vec![0; words(self.owner.sectors) * 8];
        let mut periods = Vec::new();
        for (mark, made) in &header.marks {
            file.read_exact(&mut bytes)?;
            found = crc32c::crc32c_append(found, &bytes);
            let grains = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            periods.push(MarkPeriod { mark: *mark, made: *made, grains });
        }
        match found == crc {
            true => Ok(periods),
            false => Err(io::Error::other("the checksum of its grains does not match")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use dcd_engine::Extent;

    use super::super::AttachmentState;
    use super::super::rules::tests::attachment;
    use super::*;

    const SECTORS: u64 = 5000 << 7;

    struct Disk {
        _dir: tempfile::TempDir,
        record: PathBuf,
        attachment: Attachment,
    }

    impl Disk {
        fn new() -> Disk {
            let dir = tempfile::tempdir().unwrap();
            let record = dir.path().join("data.dcd");
            let extent = Extent::new(dcd_engine::Lba(0), SECTORS);
            Disk { _dir: dir, record, attachment: attachment(AttachmentState::Dirty, extent) }
        }

        fn file(&self, change: impl FnOnce(&mut Attachment)) -> MarksFile {
            let mut attachment = self.attachment.clone();
            change(&mut attachment);
            MarksFile::beside(&self.record, &attachment)
        }

        /// The file as a start sees it that many activations later.
        fn after(&self, starts: u64) -> MarksFile {
            self.file(|attachment| attachment.epoch += starts)
        }

        /// Stores the marks 1 and 2, with a change in each.
        fn stored(&self, with_grains: bool) -> DiskMarks {
            let mut marks = DiskMarks::new(SECTORS);
            for (mark, grain) in [(1, 3), (2, 4100)] {
                let mut period = MarkPeriod::new(mark, 9, SECTORS).unwrap();
                period.grains[grain / 64] |= 1 << (grain % 64);
                marks.periods.push(period);
            }
            self.after(0).store(&marks, with_grains).unwrap();
            marks
        }
    }

    fn is_lost((marks, told): (DiskMarks, Option<String>), reason: &str) {
        assert!(told.is_some_and(|told| told.contains(reason)), "{reason}");
        assert!(marks.periods.is_empty());
        assert!(marks.lost.iter().all(|lost| lost.reason.contains(reason)), "{:?}", marks.lost);
    }

    #[test]
    fn a_start_takes_the_marks_out_of_the_file_so_that_a_second_one_has_lost_them() {
        let disk = Disk::new();
        let stored = disk.stored(true);
        assert_eq!(disk.after(1).take_over(None), (stored, None));
        // Killed: the file has no grains any more.
        is_lost(disk.after(2).take_over(None), "the last server was not stopped cleanly");
        assert_eq!(disk.after(3).take_over(None).1, None, "it is told once");
        assert_eq!(disk.after(3).take_over(None).0.lost.len(), 2);
        disk.stored(false);
        is_lost(disk.after(1).take_over(None), "the last server was not stopped cleanly");
        // A clean stop without any mark leaves no file.
        disk.after(0).store(&DiskMarks::new(SECTORS), true).unwrap();
        assert!(!disk.after(0).path().exists());
        assert_eq!(disk.after(1).take_over(None), (DiskMarks::new(SECTORS), None));
    }

    #[test]
    fn marks_are_taken_over_by_the_next_start_of_this_cache_and_disk_alone() {
        let disk = Disk::new();
        type MarksCase<'a> = (&'a str, Option<&'a str>, &'a dyn Fn(&mut Attachment));
        let cases: [MarksCase; 6] = [
            ("the log was started without them since", None, &|of| of.epoch += 2),
            ("the log was started without them since", None, &|_| ()),
            ("the size of the disk has changed", None, &|of| (of.epoch, of.sectors) = (of.epoch + 1, 8)),
            ("another cache or disk", None, &|of| "other".clone_into(&mut of.cache_uuid)),
            ("another cache or disk", None, &|of| of.disk_uuid = Some("other".to_owned())),
            ("moonlight", Some("moonlight"), &|of| of.epoch += 1),
        ];
        for (reason, trouble, change) in cases {
            disk.stored(true);
            let file = disk.file(change);
            // Their names differ, so this is a file that somebody has renamed.
            let _ = fs::rename(disk.after(0).path(), file.path());
            is_lost(file.take_over(trouble), reason);
            fs::remove_file(file.path()).unwrap();
        }
    }

    #[test]
    fn disks_that_share_a_record_have_files_of_their_own() {
        let disk = Disk::new();
        let other = |change: &dyn Fn(&mut Attachment)| disk.file(change).path().to_owned();
        let all = [
            other(&|_| ()),
            other(&|of| "other".clone_into(&mut of.cache_uuid)),
            other(&|of| of.disk_uuid = Some("other".to_owned())),
            other(&|of| of.first_sector = 8),
        ];
        assert_eq!(std::collections::BTreeSet::from(all.clone()).len(), all.len());
    }

    #[test]
    fn a_torn_or_changed_file_loses_all_marks() {
        let disk = Disk::new();
        disk.stored(true);
        let (path, bytes) = (disk.after(0).path().to_owned(), fs::read(disk.after(0).path()).unwrap());
        let header = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        assert_eq!(bytes.len(), header + 1 + 2 * words(SECTORS) * 8);
        for at in [0, 20, header / 2, header - 1, header, header + 1, bytes.len() - 1] {
            fs::write(&path, &bytes[..at]).unwrap();
            is_lost(disk.after(1).take_over(None), "their file is damaged");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            let (marks, told) = disk.after(1).take_over(None);
            // A changed note harms nothing.
            assert!(marks.periods.is_empty() == told.is_some());
            assert!(told.is_some() || at < header);
        }
    }

    #[test]
    fn a_file_that_stays_loses_the_marks() {
        let disk = Disk::new();
        disk.stored(true);
        let path = disk.after(0).path().to_owned();
        // Neither can be replaced: the name of the new content is a directory, nor removed, as the file is not one.
        let mut new = path.clone().into_os_string();
        new.push(".new");
        fs::create_dir(&new).unwrap();
        fs::write(Path::new(&new).join("in"), "").unwrap();
        // Removed instead of replaced: the marks are good.
        assert_eq!(disk.after(1).take_over(None).0.periods.len(), 2);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        is_lost(disk.after(1).take_over(None), "");
    }
}
