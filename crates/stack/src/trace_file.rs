//! The file of a trace layer: JSON, one object a line in the order in which the operations were answered; or the compact
//! format, in the order in which they came, for `dcd serve --record`.
//!
//! A thread writes it. The thread that serves only puts records into a bounded queue: if the file cannot keep up, it drops
//! records and counts them, as serving comes first. A simulation waits instead.
//!
//! If the file cannot be written any more, as on a full disk, that is reported immediately. The file then ends after its last whole
//! record, and only whole records count as recorded.
//!
//! A start overwrites the file. As a wrong path must not cost data, only an empty file or a trace is overwritten.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dcd_engine::IoKind;
use dcd_engine::Nanos;
use dcd_engine::layers::trace::{Sink, SinkStatus, TraceRecord};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::compact::{self, Writer};
use crate::output::{Inputs, OutputError};
use crate::record::{DeviceId, Record, RecordOp};

/// Records in the queue, some 5 MB: at 100,000 requests a second the file may stall for more than half a second.
const QUEUE_RECORDS: usize = 1 << 16;
/// Maximum time until a record is written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// Bytes that are written together, some 500 records, so that recording costs little.
const BUFFER_BYTES: usize = 64 << 10;
/// Limits in time and number for records that are held back, so that they are written in the order of arrival. A request that
/// takes longer is written out of order.
const HELD_SPAN: Nanos = Nanos::from_secs(5);
const HELD_MAX: usize = 1 << 16;
/// Maximum time that the end of a server waits for the end of its recording.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Format of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    JsonLines,
    Compact,
}

impl Form {
    /// Returns the beginning of every file of this format. JSON begins with the first field of [`TraceRecord`].
    const fn beginning(self) -> &'static [u8] {
        match self {
            Form::JsonLines => b"{\"at\":",
            Form::Compact => b"DCDTRACE",
        }
    }
}

/// Treatment of a record when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The record is left out and counted: no request waits for a file.
    Drop,
    /// Virtual time waits.
    Wait,
}

/// Counts of a recording; they outlive the layer that records.
#[derive(Clone, Debug)]
pub struct Recording {
    pub path: PathBuf,
    counts: Arc<TraceCounts>,
}

#[derive(Debug, Default)]
struct TraceCounts {
    taken: AtomicU64,
    dropped: AtomicU64,
    broken: Mutex<Option<Broken>>,
}

impl TraceCounts {
    fn lock(&self) -> MutexGuard<'_, Option<Broken>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file cannot be written any more.
#[derive(Clone, Debug)]
struct Broken {
    why: String,
    /// Records that are in the file.
    kept: u64,
}

impl Recording {
    /// Records that are in the file, or on their way there.
    pub fn recorded(&self) -> u64 {
        self.broken().map_or_else(|| self.counts.taken.load(Ordering::Relaxed), |broken| broken.kept)
    }

    /// Records that are not in the file.
    pub fn dropped(&self) -> u64 {
        let dropped = self.counts.dropped.load(Ordering::Relaxed);
        let lost = self.broken().map(|broken| self.counts.taken.load(Ordering::Relaxed) - broken.kept);
        dropped + lost.unwrap_or(0)
    }

    /// The error that ended the recording, if any.
    pub fn error(&self) -> Option<String> {
        self.broken().map(|broken| broken.why)
    }

    fn broken(&self) -> Option<Broken> {
        self.counts.lock().clone()
    }

    /// Ends a file that cannot be written any more. A simulation reports that here; the host of a server asks for the error.
    fn give_up(&self, form: Form, overrun: Overrun, mut file: File, why: &std::io::Error) {
        let ended = match form {
            Form::JsonLines => end_lines(&mut file),
            Form::Compact => compact::end_after_failure(&mut file),
        };
        let kept = ended.unwrap_or(0);
        let why = format!("{}: {why}", self.path.display());
        if overrun == Overrun::Wait {
            // Nobody may read it.
            let _ = writeln!(std::io::stderr(), "dcd: {why}: the recording ends here, with {kept} requests");
        }
        *self.counts.lock() = Some(Broken { why, kept });
    }
}

/// Puts records into the queue. Dropping it ends the file. With [`Overrun::Drop`], a disk that does not answer delays nothing for long.
pub(crate) struct TraceRecorder {
    recording: Recording,
    overrun: Overrun,
    queue: Option<SyncSender<TraceRecord>>,
    /// The thread's end closes it.
    ended: Receiver<()>,
}

impl TraceRecorder {
    /// Begins a file. `inputs`: the files of the stack, which it must not overwrite.
    pub fn create(
        path: &Path,
        form: Form,
        overrun: Overrun,
        inputs: &Inputs,
    ) -> Result<TraceRecorder, OutputError> {
        let failed = |source| OutputError::Io { output: path.display().to_string(), source };
        inputs.check(path)?;
        let file = begin(path, form.beginning())?;
        let recording = Recording { path: path.to_owned(), counts: Arc::default() };
        let (queue, records) = sync_channel(QUEUE_RECORDS);
        let to_repair = file.try_clone().map_err(failed)?;
        let told = recording.clone();
        let (alive, ended) = sync_channel(0);
        let write = move || {
            let _alive: SyncSender<()> = alive;
            let result = match form {
                Form::JsonLines => write_json(&records, file),
                Form::Compact => write_compact(&records, file),
            };
            match result {
                // Before the end is told: the next recorder may want the file. A child that was just forked may still have it open.
                Ok(()) => _ = flock(&to_repair, FlockOperation::Unlock),
                Err(why) => told.give_up(form, overrun, to_repair, &why),
            }
        };
        std::thread::Builder::new().name("dcd-trace".to_owned()).spawn(write).map_err(failed)?;
        Ok(TraceRecorder { recording, overrun, queue: Some(queue), ended })
    }

    pub fn recording(&self) -> Recording {
        self.recording.clone()
    }
}

impl Sink for TraceRecorder {
    fn take(&mut self, record: &TraceRecord) {
        let queue = self.queue.as_ref().expect("it is taken only when this is dropped");
        let sent = match self.overrun {
            Overrun::Drop => queue.try_send(*record).map_err(|error| match error {
                TrySendError::Full(_) | TrySendError::Disconnected(_) => (),
            }),
            Overrun::Wait => queue.send(*record).map_err(|_| ()),
        };
        let counts = &self.recording.counts;
        let count = if sent.is_ok() { &counts.taken } else { &counts.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn status(&self) -> SinkStatus {
        let recording = &self.recording;
        SinkStatus {
            path: recording.path.display().to_string(),
            recorded: recording.recorded(),
            dropped: recording.dropped(),
            error: recording.error(),
        }
    }
}

impl Drop for TraceRecorder {
    fn drop(&mut self) {
        self.queue = None;
        match self.overrun {
            Overrun::Wait => drop(self.ended.recv()),
            Overrun::Drop => {
                if self.ended.recv_timeout(END_PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    let why = format!(
                        "{}: its disk does not answer, and the last requests may be missing",
                        self.recording.path.display()
                    );
                    let kept = self.recording.recorded();
                    self.recording.counts.lock().get_or_insert(Broken { why, kept });
                }
            }
        }
    }
}

fn begin(path: &Path, beginning: &[u8]) -> Result<File, OutputError> {
    let output = || path.display().to_string();
    let failed = |source| OutputError::Io { output: output(), source };
    let mut options = OpenOptions::new();
    // Private, as a trace shows where clients write.
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(OutputError::NoFile { output: output() });
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        Errno::WOULDBLOCK => OutputError::Busy { output: output() },
        e => failed(e.into()),
    })?;
    let mut head = Vec::new();
    (&mut file).take(beginning.len() as u64).read_to_end(&mut head).map_err(failed)?;
    if !head.is_empty() && head != beginning {
        return Err(OutputError::NoTrace { output: output() });
    }
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

fn write_json(records: &Receiver<TraceRecord>, file: File) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let mut pace = Pace::new();
    loop {
        match pace.next(records) {
            Ok(record) => {
                serde_json::to_writer(&mut out, &record)?;
                out.write_all(b"\n")?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if pace.is_due() {
            out.flush()?;
        }
    }
    out.flush()
}

/// Decides when the records so far are written, however few: this bounds what a kill of the server loses, and a full disk is noticed.
struct Pace {
    written: Instant,
    /// Records that came since.
    came: bool,
}

impl Pace {
    fn new() -> Pace {
        Pace { written: Instant::now(), came: false }
    }

    fn next(&mut self, records: &Receiver<TraceRecord>) -> Result<TraceRecord, RecvTimeoutError> {
        let record = records.recv_timeout(WRITTEN_WITHIN.saturating_sub(self.written.elapsed()))?;
        self.came = true;
        Ok(record)
    }

    /// True if no record has come since the file was last written.
    const fn rests(&self) -> bool {
        !self.came
    }

    fn is_due(&mut self) -> bool {
        let due = self.written.elapsed() >= WRITTEN_WITHIN;
        if due {
            *self = Pace::new();
        }
        due
    }
}

/// A record that is held back, the first that came first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HeldRecord {
    at: Nanos,
    /// Order of the answers of requests that came at the same time.
    number: u64,
    start: u64,
    sectors: u64,
    op: RecordOp,
    fua: bool,
    latency: Nanos,
}

impl HeldRecord {
    fn new(record: &TraceRecord, number: u64) -> HeldRecord {
        let op = match record.operation {
            IoKind::Read => RecordOp::Read,
            IoKind::Flush => RecordOp::Flush,
            IoKind::Discard => RecordOp::Discard,
            // The format has no zeroes.
            IoKind::Write | IoKind::WriteZeroes => RecordOp::Write,
        };
        let (start, sectors) = record.extent.map_or((0, 0), |extent| (extent.start.0, extent.sectors));
        HeldRecord { at: record.at, number, start, sectors, op, fua: record.durable, latency: record.latency }
    }

    fn write(&self, out: &mut Writer) -> std::io::Result<()> {
        let device = DeviceId(0);
        let record = match self.op {
            RecordOp::Flush => Record::flush(self.at, device),
            // A request past the end of every device, which was refused.
            op => match Record::new(self.at, device, op, self.start, self.sectors) {
                Ok(record) => record,
                Err(_) => return Ok(()),
            },
        };
        out.write(&record.with_fua(self.fua).answered_after(Some(self.latency)))
    }
}

/// Cuts off an incomplete last line. Returns the number of whole lines.
fn end_lines(file: &mut File) -> std::io::Result<u64> {
    file.rewind()?;
    let (mut lines, mut end, mut at) = (0, 0, 0);
    let mut piece = vec![0; BUFFER_BYTES];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        for (place, _) in piece[..read].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            (lines, end) = (lines + 1, at + place as u64 + 1);
        }
        at += read as u64;
    }
    file.set_len(end)?;
    Ok(lines)
}

/// Writes the compact format. The writer passes whole blocks, so a buffer before the file would gain nothing.
fn write_compact(records: &Receiver<TraceRecord>, mut file: File) -> std::io::Result<()> {
    let new_writer = |file: &File| {
        let out = file.try_clone()?;
        Ok::<_, std::io::Error>(Writer::new(Box::new(out)))
    };
    // Begin with an empty trace: a disk that is already full is then reported immediately.
    new_writer(&file)?.finish()?;
    file.rewind()?;
    let mut out = new_writer(&file)?;
    let mut held = BinaryHeap::new();
    let mut newest = Nanos::ZERO;
    let mut pace = Pace::new();
    let mut number = 0;
    loop {
        let rests = match pace.next(records) {
            Ok(record) => {
                newest = newest.max(record.at.saturating_add(record.latency));
                held.push(Reverse(HeldRecord::new(&record, number)));
                number += 1;
                false
            }
            Err(RecvTimeoutError::Timeout) => pace.rests(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let due = |first: &HeldRecord| rests || first.at.saturating_add(HELD_SPAN) <= newest;
        while held.len() > HELD_MAX || held.peek().is_some_and(|Reverse(first)| due(first)) {
            let Reverse(first) = held.pop().expect("it was looked at");
            first.write(&mut out)?;
        }
        if pace.is_due() {
            out.checkpoint()?;
        }
    }
    while let Some(Reverse(first)) = held.pop() {
        first.write(&mut out)?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Extent, Lba};

    use super::*;

    fn record(at: u64, latency: u64) -> TraceRecord {
        let extent = Some(Extent::new(Lba(8), 16));
        let (at, latency) = (Nanos::from_millis(at), Nanos::from_millis(latency));
        TraceRecord { at, operation: IoKind::Write, extent, durable: true, latency, ok: true }
    }

    #[test]
    fn every_operation_is_a_line_and_a_new_start_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        for times in [3, 1] {
            let mut recorder =
                TraceRecorder::create(&path, Form::JsonLines, Overrun::Drop, &Inputs::default()).unwrap();
            (0..times).for_each(|at| recorder.take(&record(at, 5)));
            let second = TraceRecorder::create(&path, Form::JsonLines, Overrun::Drop, &Inputs::default());
            assert!(matches!(second.err().unwrap(), OutputError::Busy { .. }));
            assert_eq!(recorder.status().recorded, times);
            drop(recorder);
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<serde_json::Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines.len() as u64, times);
            let last = &lines[times as usize - 1];
            assert_eq!(
                (&last["at"], &last["extent"]["start"]),
                (&((times - 1) * 1_000_000).into(), &8.into())
            );
        }
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_up_neither_what_is_served_nor_its_end() {
        let counts = Arc::new(TraceCounts::default());
        let recording = Recording { path: "a.trace".into(), counts };
        let ((queue, _records), (alive, ended)) = (sync_channel(1), sync_channel(0));
        let mut recorder =
            TraceRecorder { recording: recording.clone(), overrun: Overrun::Drop, queue: Some(queue), ended };
        (0..3).for_each(|at| recorder.take(&record(at, 5)));
        drop(recorder);
        drop(alive);
        assert_eq!((recording.recorded(), recording.dropped()), (1, 2));
        assert!(recording.error().unwrap().contains("does not answer"));
    }

    #[test]
    fn a_recording_is_in_the_order_in_which_requests_came() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.dcd");
        let mut recorder =
            TraceRecorder::create(&path, Form::Compact, Overrun::Wait, &Inputs::default()).unwrap();
        // As they were answered: the first one last, after two seconds.
        let flush = TraceRecord { operation: IoKind::Flush, extent: None, ..record(1_500, 1) };
        let volatile = TraceRecord { durable: false, ..record(9_000, 1) };
        for record in [record(1_000, 2), flush, record(0, 2_000), volatile] {
            recorder.take(&record);
        }
        drop(recorder);
        let mut trace = dcd_trace::open(&path, None).unwrap().reader;
        let mut seen = Vec::new();
        while let Some(record) = trace.next_record().unwrap() {
            let (at, response) = (record.at.0 / 1_000_000, record.response.unwrap().0 / 1_000_000);
            seen.push((at, record.op.name(), record.fua, response));
        }
        assert_eq!(
            seen,
            [
                (0, "write", true, 2_000),
                (1_000, "write", true, 2),
                (1_500, "flush", false, 1),
                (9_000, "write", false, 1)
            ]
        );
    }

    #[test]
    fn what_does_not_fit_the_queue_is_counted_and_nobody_waits() {
        // Nobody takes from this queue.
        let (queue, _records) = sync_channel(2);
        let recording = Recording { path: PathBuf::new(), counts: Arc::default() };
        let ended = sync_channel(0).1;
        let mut recorder = TraceRecorder { recording, overrun: Overrun::Drop, queue: Some(queue), ended };
        (0..5).for_each(|at| recorder.take(&record(at, 1)));
        let status = recorder.status();
        assert_eq!((status.recorded, status.dropped), (2, 3));
    }

    #[test]
    fn a_full_file_system_ends_the_recording_with_its_reason() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (queue, records) = sync_channel(1 << 16);
        (0..50_000).for_each(|at| queue.send(record(at, 1)).unwrap());
        drop(queue);
        let error = write_compact(&records, full).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    #[test]
    fn what_has_come_is_in_the_file_soon_however_little_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for form in [Form::Compact, Form::JsonLines] {
            let path = dir.path().join(format!("{form:?}"));
            let mut recorder = TraceRecorder::create(&path, form, Overrun::Wait, &Inputs::default()).unwrap();
            recorder.take(&record(0, 1));
            recorder.take(&record(9, 1));
            let deadline = Instant::now() + Duration::from_secs(60);
            let requests = || match form {
                Form::JsonLines => std::fs::read_to_string(&path).unwrap().lines().count(),
                Form::Compact => {
                    // As a server that is killed leaves it: without the mark at the end.
                    let opened = dcd_trace::open(&path, None).ok().map(|opened| opened.reader);
                    opened.map_or(0, |mut trace| {
                        std::iter::from_fn(|| trace.next_record().ok().flatten()).count()
                    })
                }
            };
            while requests() < 2 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(requests(), 2, "{form:?}");
            drop(recorder);
        }
    }

    #[test]
    fn a_recording_is_its_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::write(&old, "").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [&new, &old] {
            drop(TraceRecorder::create(path, Form::JsonLines, Overrun::Wait, &Inputs::default()).unwrap());
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_recording_that_was_cut_off_ends_behind_its_last_whole_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.dcd");
        let mut recorder =
            TraceRecorder::create(&path, Form::Compact, Overrun::Wait, &Inputs::default()).unwrap();
        (0..30_000).for_each(|at| recorder.take(&record(at, at % 100)));
        drop(recorder);
        let whole = std::fs::read(&path).unwrap();
        // In the header, in the header of a block, in a block, and before the end mark.
        for (left, some) in [(7, false), (20, false), (whole.len() - 20_000, true), (whole.len() - 3, true)] {
            std::fs::write(&path, &whole[..left]).unwrap();
            let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let kept = compact::end_after_failure(&mut file).unwrap();
            let mut trace = dcd_trace::open(&path, None).unwrap().reader;
            let mut read = 0;
            // A trace without a single request is refused by its reader.
            while let Some(record) =
                trace.next_record().or_else(|error| if some { Err(error) } else { Ok(None) }).unwrap()
            {
                assert_eq!(record.at, Nanos::from_millis(read));
                read += 1;
            }
            assert!(read == kept && (kept > 0) == some, "{left} bytes: {read} read, {kept} kept");
        }
    }

    #[test]
    fn what_is_not_in_the_file_does_not_count_as_recorded() {
        let dir = tempfile::tempdir().unwrap();
        for (form, whole) in [(Form::JsonLines, &b"{\"at\":1}\n{\"at\":2}\n"[..]), (Form::Compact, b"")] {
            let path = dir.path().join(format!("{form:?}"));
            std::fs::write(&path, [whole, b"{\"at\":"].concat()).unwrap();
            let recording = Recording { path: path.clone(), counts: Arc::default() };
            recording.counts.taken.store(7, Ordering::Relaxed);
            recording.counts.dropped.store(1, Ordering::Relaxed);
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            recording.give_up(form, Overrun::Drop, file, &std::io::Error::other("No space left"));
            let kept = whole.iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!((recording.recorded(), recording.dropped()), (kept, 8 - kept));
            assert!(recording.error().unwrap().ends_with(": No space left"));
            if form == Form::JsonLines {
                assert_eq!(std::fs::read(&path).unwrap(), whole);
            }
        }
    }

    #[test]
    fn what_is_no_trace_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious.img");
        let create =
            |path: &Path, form| TraceRecorder::create(path, form, Overrun::Drop, &Inputs::default()).err();
        for form in [Form::JsonLines, Form::Compact] {
            for content in [&b"\0\0\0\0\0\0\0\0"[..], b"{", b"{\"a\": 1}"] {
                std::fs::write(&path, content).unwrap();
                assert!(matches!(create(&path, form).unwrap(), OutputError::NoTrace { .. }));
                assert_eq!(std::fs::read(&path).unwrap(), content);
            }
            assert!(create(dir.path(), form).is_some(), "a directory");
            assert!(matches!(create(Path::new("/dev/null"), form).unwrap(), OutputError::NoFile { .. }));
        }
    }
}
