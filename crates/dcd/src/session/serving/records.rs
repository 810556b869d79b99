//! The attachment records of a server, written by a thread of their own: the disk that they are on may not answer, and clients do not wait
//! for it.
//!
//! ```text
//! host ─ note ─▶ thread: RunningCaches ─ waker ─▶ host: take
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use dcd_io::Waker;

use crate::session::record::RecordError;
use crate::session::running::{Note, RunningCaches};

/// Maximum wait at the end of a server for records that are being written.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Small, as a server locks its memory, and that includes the stacks of threads.
const STACK_BYTES: usize = 512 << 10;

/// Kind of a note. A cache has at most one note of each kind under way, but every note of legs and marks: the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteKind {
    LogFailed,
    WrittenBack,
    Incomplete,
    Stopped,
    Joining,
    Joined,
    Left,
    Legs,
    Marks,
}

impl Note {
    const fn kind(&self) -> NoteKind {
        match self {
            Note::LogFailed(_) => NoteKind::LogFailed,
            Note::WrittenBack(_) => NoteKind::WrittenBack,
            Note::Incomplete => NoteKind::Incomplete,
            Note::Stopped(_) => NoteKind::Stopped,
            Note::Joining(_) => NoteKind::Joining,
            Note::Joined { .. } => NoteKind::Joined,
            Note::Left { .. } => NoteKind::Left,
            Note::Legs(_) => NoteKind::Legs,
            Note::Marks(_) => NoteKind::Marks,
        }
    }
}

/// Result of a note: it is on the medium, or an error.
pub struct NoteResult {
    pub layer: String,
    pub kind: NoteKind,
    /// Text for messages about a log that failed: the data that is written back from it.
    pub result: Result<String, RecordError>,
    /// Message about failed logs from now on.
    failed_logs: Result<Option<String>, String>,
}

/// See the module's documentation.
pub struct Records {
    keeper: RecordKeeper,
    under_way: BTreeSet<(String, NoteKind)>,
    /// Caches whose records say that the data disk has everything without the log.
    written_back: BTreeSet<String>,
    failed_logs: Result<Option<String>, String>,
}

enum RecordKeeper {
    /// Notes are made synchronously.
    Here {
        caches: RunningCaches,
        noted: VecDeque<NoteResult>,
    },
    Thread {
        notes: Sender<(String, Note)>,
        noted: Receiver<NoteResult>,
    },
}

impl Records {
    /// Makes notes synchronously.
    pub fn new(caches: RunningCaches) -> Records {
        let failed_logs = failed_logs(&caches);
        let keeper = RecordKeeper::Here { caches, noted: VecDeque::new() };
        Records { keeper, under_way: BTreeSet::new(), written_back: BTreeSet::new(), failed_logs }
    }

    /// Makes notes on a thread. `waker`: wakes the host, which then takes the results.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with_thread(mut caches: RunningCaches, waker: Waker) -> std::io::Result<Records> {
        let failed_logs = failed_logs(&caches);
        let ((notes, asked), (tell, noted)) = (mpsc::channel::<(String, Note)>(), mpsc::channel());
        let keeps = move || {
            while let Ok((layer, note)) = asked.recv() {
                let has_stopped = note.kind() == NoteKind::Stopped;
                if tell.send(make(&mut caches, &layer, &note)).is_err() {
                    return;
                }
                waker.wake();
                if has_stopped {
                    // A file system may have been made on the disk since. Nothing waits for this, and a failure leaves the record correct.
                    let _ = caches.look_again(&layer);
                }
            }
        };
        thread::Builder::new().name("dcd-records".to_owned()).stack_size(STACK_BYTES).spawn(keeps)?;
        let keeper = RecordKeeper::Thread { notes, noted };
        Ok(Records { keeper, under_way: BTreeSet::new(), written_back: BTreeSet::new(), failed_logs })
    }

    /// Begins a note about a cache, unless the same is under way. [`Records::take`] returns its result.
    pub fn note(&mut self, layer: &str, note: Note) {
        let kind = note.kind();
        let is_known = kind == NoteKind::WrittenBack && self.written_back.contains(layer);
        if is_known
            || (!matches!(kind, NoteKind::Legs | NoteKind::Marks)
                && !self.under_way.insert((layer.to_owned(), kind)))
        {
            return;
        }
        match &mut self.keeper {
            RecordKeeper::Here { caches, noted } => noted.push_back(make(caches, layer, &note)),
            // The thread takes notes as long as the server runs.
            RecordKeeper::Thread { notes, .. } => drop(notes.send((layer.to_owned(), note))),
        }
    }

    /// Tells that a cache has data that is not written back.
    pub fn is_dirty(&mut self, layer: &str) {
        self.written_back.remove(layer);
    }

    /// The next note that has ended.
    pub fn take(&mut self) -> Option<NoteResult> {
        let noted = match &mut self.keeper {
            RecordKeeper::Here { noted, .. } => noted.pop_front(),
            RecordKeeper::Thread { noted, .. } => noted.try_recv().ok(),
        }?;
        self.under_way.remove(&(noted.layer.clone(), noted.kind));
        if noted.kind == NoteKind::WrittenBack && noted.result.is_ok() {
            self.written_back.insert(noted.layer.clone());
        }
        self.failed_logs.clone_from(&noted.failed_logs);
        Some(noted)
    }

    /// Text about logs that failed while they held data that their data disks lack; none if there are none. As of the last note.
    pub fn failed_logs(&self) -> Result<Option<String>, String> {
        self.failed_logs.clone()
    }

    /// Ends the thread, and waits a while for that.
    pub fn end(&mut self) {
        let here = RecordKeeper::Here { caches: RunningCaches::default(), noted: VecDeque::new() };
        if let RecordKeeper::Thread { notes, noted } = std::mem::replace(&mut self.keeper, here) {
            drop(notes);
            while noted.recv_timeout(END_PATIENCE).is_ok() {}
        }
    }
}

fn make(caches: &mut RunningCaches, layer: &str, note: &Note) -> NoteResult {
    let result = caches.note(layer, note);
    NoteResult { layer: layer.to_owned(), kind: note.kind(), result, failed_logs: failed_logs(caches) }
}

fn failed_logs(caches: &RunningCaches) -> Result<Option<String>, String> {
    caches.failed_logs().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Extent, Lba, LogCacheStatus};

    use super::*;
    use crate::session::record::{Attachment, AttachmentState, DiskRecord};
    use crate::session::running::Admitted;

    const EXTENT: Extent = Extent::new(Lba(0), 8);

    /// A pipe in the place of a record: a read of it waits for a writer.
    #[test]
    fn a_record_on_a_disk_that_does_not_answer_is_waited_for_by_its_thread_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), [0; 4096]).unwrap();
        let open = || DiskRecord::open(&dir.path().join("data"), EXTENT).unwrap();
        let attached = Attachment {
            cache_uuid: "u".to_owned(),
            log: "log".into(),
            disk: 0,
            disk_uuid: None,
            discarded: false,
            zeroes_bytes: 0,
            first_sector: 0,
            sectors: 8,
            epoch: 1,
            generation: 0,
            elsewhere: false,
            state: AttachmentState::Dirty,
            dirty_bytes: None,
            log_bytes: 1 << 20,
            stale_legs: Vec::new(),
        };
        open().update(|_| attached).unwrap();
        let admitted = Admitted {
            layer: "cache".to_owned(),
            disk: 0,
            log: "log.img".into(),
            mirror: None,
            record: Some(open()),
            unrecorded: None,
            cache: None,
        };
        let driver = dcd_io::Driver::new().unwrap();
        let mut records = Records::with_thread(RunningCaches::of([admitted]), driver.waker()).unwrap();
        let place = dir.path().join("data.dcd");
        let recorded = std::fs::read(&place).unwrap();
        std::fs::remove_file(&place).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&place).status();
        assert!(made.is_ok_and(|made| made.success()));
        let stopped = || Note::Stopped(Box::new(LogCacheStatus { epoch: 9, ..LogCacheStatus::default() }));
        records.note("cache", stopped());
        records.note("cache", stopped());
        assert!(records.take().is_none());
        // The read that waits is answered, and further ones find the record.
        let mut pipe = std::fs::OpenOptions::new().write(true).open(&place).unwrap();
        std::fs::write(dir.path().join("kept"), &recorded).unwrap();
        std::fs::rename(dir.path().join("kept"), &place).unwrap();
        std::io::Write::write_all(&mut pipe, &recorded).unwrap();
        drop(pipe);
        while records.take().is_none_or(|noted| noted.kind != NoteKind::Stopped || noted.result.is_err()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        records.end();
        assert_eq!(open().load().unwrap().of(EXTENT).unwrap().epoch, 9);
    }
}
