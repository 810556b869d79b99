//! Keeps the attachment records of the log caches that run, in a server or in a command that reads or writes what lies on them. Writes are
//! in the logs first. So the records call the data disks incomplete before any write, and get the final state at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dcd_engine::log_cache::WritesState;
use dcd_engine::mirror::MirrorStatus;
use dcd_engine::{Control, Extent, LINE_BYTES, LayerIndex, LogCacheState, LogCacheStatus, Nanos, Stack};
use dcd_io::backup_marks::DiskMarks;
use dcd_stack::LayerStatus;

use crate::session::record::{
    Attachment, AttachmentState, DiskRecord, MarksFile, RESCUE_FIRST, RecordError, StaleLeg, stale_legs,
    uuid_text,
};

/// A log cache that may be served.
pub struct Admitted {
    pub layer: String,
    /// Number of the data disk in the log.
    pub disk: usize,
    /// Path of the log by the stack file, which may name other legs than before.
    pub log: PathBuf,
    /// The mirror that its log is, or lies on; none for a log on one device.
    pub mirror: Option<String>,
    pub record: Option<DiskRecord>,
    /// First content of a missing record. Written once the cache has started, as the start may still refuse the disk.
    pub unrecorded: Option<Attachment>,
    /// UUID of the cache; none for a cache on another one, as its log is not read before that one runs.
    pub cache: Option<String>,
}

/// A change that the record of a cache has to note.
pub enum Note {
    /// The log device failed; the status of the cache then, if known.
    LogFailed(Option<Box<LogCacheStatus>>),
    /// No data is at risk if this process and the log die: a cache whose log has failed has written back all its data, or writes go through.
    WrittenBack(Box<LogCacheStatus>),
    /// Writes are to go to the log alone again.
    Incomplete,
    /// The cache has reported that it stopped: all that it wrote back is durable.
    Stopped(Box<LogCacheStatus>),
    /// A data disk is to be added to the log.
    Joining(Box<DiskToRecord>),
    /// The log has the disk, in this epoch.
    Joined { disk: usize, epoch: u64 },
    /// The log does not have the disk any more.
    Left { disk: usize },
    /// Legs of a mirrored log have changed; the note names the mirror in the place of the cache.
    Legs(Box<MirrorStatus>),
    /// A disk has other backup marks.
    Marks(Box<(MarksFile, DiskMarks)>),
}

/// A data disk that is to be added to the log of a running cache.
pub struct DiskToRecord {
    pub disk: usize,
    pub path: PathBuf,
    pub extent: Extent,
    pub data_uuid: [u8; 16],
}

/// Returns the message about a failed log. `held`: data of the log that is not written back.
pub fn log_failed_text(name: &str, held: &str) -> String {
    let held = match held {
        "" => String::new(),
        held => format!("; {held} are written back from it, as far as it can be read"),
    };
    format!("log cache \"{name}\": the log device failed; writes go to the data disk from now on{held}")
}

/// See the module's documentation.
#[derive(Default)]
pub struct RunningCaches(Vec<Running>);

/// A data disk of a cache that runs.
struct Running {
    layer: String,
    disk: usize,
    log: PathBuf,
    mirror: Option<String>,
    /// The legs that the record calls stale.
    stale_legs: Vec<StaleLeg>,
    record: DiskRecord,
    /// The attachment in the record before the start. If there was none: the first one, as in [`Admitted::unrecorded`].
    before: Option<Attachment>,
    is_recorded: bool,
}

impl RunningCaches {
    /// Takes the caches that have been admitted.
    pub fn of(admitted: impl IntoIterator<Item = Admitted>) -> RunningCaches {
        let running = admitted.into_iter().filter_map(
            |Admitted { layer, disk, log, mirror, record, unrecorded, .. }| {
                let stale_legs = Vec::new();
                Some(Running {
                    layer,
                    disk,
                    log,
                    mirror,
                    stale_legs,
                    record: record?,
                    before: unrecorded,
                    is_recorded: false,
                })
            },
        );
        RunningCaches(running.collect())
    }

    /// Leaves the record of a cache as it is from now on.
    pub fn forget(&mut self, layer: &str) {
        self.0.retain(|cache| cache.layer != layer);
    }

    /// Extends the records of caches whose disks have grown: they are to serve all of the disk.
    pub fn grow(&mut self) -> Result<(), RecordError> {
        self.0.iter_mut().try_for_each(|cache| cache.record.grow())
    }

    /// Records that the data disks are incomplete. The devices must be open, and no cache started yet: a start may write to the logs.
    pub fn note_start(&mut self) -> Result<(), RecordError> {
        for cache in &mut self.0 {
            let all = cache.record.load()?;
            if let Some(known) = all.of(cache.record.extent()) {
                cache.before = Some(known.clone());
                cache.stale_legs.clone_from(&known.stale_legs);
                cache.is_recorded = true;
                let noted = cache.record.update(|_| incomplete(known.clone()));
                if let Err(error) = noted
                    && !go_on(&error, Some(known))
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Records the epochs and stale legs once all caches have started.
    pub fn note_started(&mut self, now: Nanos, stack: &Stack) -> Result<(), RecordError> {
        for cache in &mut self.0 {
            let was_recorded = cache.is_recorded;
            let Some(status) = cache.status(now, stack) else { continue };
            let (epoch, stale_legs) = (status.epoch, cache.stale_legs(now, stack));
            let (stale, log) = (stale_legs.clone(), cache.log.clone());
            let noted =
                cache.change(|attachment| Attachment { epoch, log, stale_legs, ..incomplete(attachment) });
            if noted.is_ok() {
                cache.stale_legs = stale;
            }
            match noted {
                Ok(()) if !was_recorded => eprintln!(
                    "dcd: the data disk of \"{}\" had no attachment record here; a new one was made",
                    cache.layer
                ),
                Ok(()) => {}
                Err(error) => {
                    let all = cache.record.load()?;
                    if !go_on(&error, all.of(cache.record.extent())) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the backup marks of a cache's disks over to this start, out of their files. Reports marks that are lost, and disks that can
    /// have none. `trouble`: the reason if this start has to lose all.
    pub fn take_over_marks(
        &self,
        (now, stack): (Nanos, &Stack),
        layer: &str,
        trouble: Option<&str>,
    ) -> BTreeMap<usize, (MarksFile, DiskMarks)> {
        let mut all = BTreeMap::new();
        for cache in self.0.iter().filter(|cache| cache.layer == layer) {
            let Some(status) = cache.status(now, stack) else { continue };
            let attachment = match cache.record.load() {
                Ok(known) => known.of(cache.record.extent()).cloned(),
                Err(error) => {
                    warnln!("dcd: disk {} has no backup marks any more: {error}", cache.disk + 1);
                    None
                }
            };
            let Some(known) = attachment else { continue };
            let file = cache.record.marks_file(&Attachment { epoch: status.epoch, ..known });
            let is_damaged = status.lost_blocks > 0 || !status.accepted_damage.is_empty();
            let damage = is_damaged.then_some("damage in the log was accepted");
            let (marks, told) = file.take_over(trouble.or(damage));
            told.iter().for_each(|told| warnln!("dcd: disk {} of \"{layer}\": {told}", cache.disk + 1));
            all.insert(cache.disk, (file, marks));
        }
        all
    }

    /// Records that the log device of a cache failed: the log is out of date from now on. The cache waits until that is recorded, and
    /// acknowledges nothing if it cannot be. Returns the message for the administrator.
    pub fn log_failed(
        &mut self,
        now: Nanos,
        stack: &mut Stack,
        layer: LayerIndex,
    ) -> Result<String, RecordError> {
        let name = stack.layer_name(layer).to_owned();
        let status = LayerStatus::of(stack, layer, now).into_log_cache();
        let held = self.note(&name, &Note::LogFailed(status))?;
        stack.control(now, layer, Control::LogFailureRecorded);
        Ok(log_failed_text(&name, &held))
    }

    /// Notes a change in the record of a cache, if it has one. Returns what a failed log holds, for messages.
    pub fn note(&mut self, layer: &str, note: &Note) -> Result<String, RecordError> {
        match note {
            Note::Legs(legs) => return self.note_legs(layer, legs).map(|()| String::new()),
            Note::Marks(marks) => {
                let (file, known) = &**marks;
                let (path, action) = (file.path().to_owned(), "writing");
                let stored =
                    file.store(known, false).map_err(|source| RecordError::Io { path, action, source });
                return stored.map(|()| String::new());
            }
            Note::Joining(new) => return self.join(layer, new).map(|()| String::new()),
            Note::Left { disk } => return self.leave(layer, *disk).map(|()| String::new()),
            _ => {}
        }
        let mut held = Vec::new();
        for cache in self.0.iter_mut().filter(|cache| cache.layer == layer) {
            held.extend(cache.note(note)?);
        }
        Ok(held.join(" and "))
    }

    /// Updates the identity of the data disk in the record of a cache that has stopped: its content may have changed.
    pub fn look_again(&mut self, layer: &str) -> Result<(), RecordError> {
        let mut caches = self.0.iter_mut().filter(|cache| cache.layer == layer);
        caches.try_for_each(|cache| cache.record.look_again())
    }

    /// Describes logs that failed while they held data that their data disks lack, and what to do; none if there are none.
    pub fn failed_logs(&self) -> Result<Option<String>, RecordError> {
        let mut told = Vec::new();
        for Running { record, .. } in &self.0 {
            let all = record.load()?;
            let failed = all.of(record.extent()).filter(|attachment| {
                attachment.state == AttachmentState::Abandoned && attachment.may_lose_data()
            });
            told.extend(failed.map(|attachment| {
                format!(
                    "The log {} failed, and {} may be only there: keep that log. {RESCUE_FIRST}",
                    attachment.log.display(),
                    attachment.held()
                )
            }));
        }
        Ok((!told.is_empty()).then(|| told.join(". ")))
    }

    /// Records the stale legs of a log. The labels of the others name a stale leg before any write that it lacks is acknowledged; the
    /// record is for a start that finds the stale leg alone.
    fn note_legs(&mut self, mirror: &str, legs: &MirrorStatus) -> Result<(), RecordError> {
        for cache in self.0.iter_mut().filter(|cache| cache.mirror.as_deref() == Some(mirror)) {
            let stale = stale_legs(&cache.stale_legs, legs);
            let ids = |legs: &[StaleLeg]| legs.iter().map(|leg| leg.id).collect::<Vec<u64>>();
            if cache.is_recorded && ids(&stale) != ids(&cache.stale_legs) {
                cache.change(|attachment| Attachment { stale_legs: stale.clone(), ..attachment })?;
                cache.stale_legs = stale;
            }
        }
        Ok(())
    }

    /// Makes the record of a disk that is to be added: as long as the log does not have it, the disk is complete.
    fn join(&mut self, layer: &str, new: &DiskToRecord) -> Result<(), RecordError> {
        let DiskToRecord { disk, path, extent, data_uuid } = new;
        // A disk in RAM has no record.
        let Some(first) = self.0.iter().find(|cache| cache.layer == layer && cache.disk == 0) else {
            return Ok(());
        };
        let Some(of_first) = first.record.load()?.of(first.record.extent()).cloned() else { return Ok(()) };
        let record = DiskRecord::open(path, *extent)?;
        let is_it = |cache: &&Running| cache.layer == layer && cache.record.path() == record.path();
        if let Some(known) = self.0.iter().find(is_it) {
            return Err(RecordError::InLog { path: record.path().to_owned(), disk: known.disk + 1 });
        }
        let attachment = Attachment {
            disk: *disk,
            disk_uuid: Some(uuid_text(*data_uuid)),
            first_sector: extent.start.0,
            sectors: extent.sectors,
            state: AttachmentState::Clean,
            dirty_bytes: Some(0),
            ..of_first
        };
        record.update(|_| attachment.clone())?;
        let (log, mirror, stale_legs) = (first.log.clone(), first.mirror.clone(), first.stale_legs.clone());
        self.0.push(Running {
            layer: layer.to_owned(),
            disk: *disk,
            log,
            mirror,
            stale_legs,
            record,
            before: Some(attachment),
            is_recorded: true,
        });
        Ok(())
    }

    /// Notes that a disk has left its log.
    fn leave(&mut self, layer: &str, disk: usize) -> Result<(), RecordError> {
        let is_it = |cache: &Running| cache.layer == layer && cache.disk == disk;
        if let Some(cache) = self.0.iter().find(|cache| is_it(cache)) {
            cache.record.leave_log()?;
        }
        self.0.retain(|cache| !is_it(cache));
        Ok(())
    }

    /// Records the caches' state at the end of a run: no more is written.
    pub fn note_end(&mut self, now: Nanos, stack: &Stack) -> Result<(), RecordError> {
        for cache in &mut self.0 {
            if let Some(status) = cache.status(now, stack) {
                let stale_legs = cache.stale_legs(now, stack);
                cache.change(|attachment| Attachment { stale_legs, ..at_end(&status, false, attachment) })?;
            }
        }
        // A cache that did not start has put nothing new into its log.
        let not_started =
            self.0.iter().filter(|cache| cache.is_recorded && cache.status(now, stack).is_none());
        for Running { record, before, .. } in not_started {
            if let Some(before) = before {
                record.update(|_| before.clone())?;
            }
        }
        Ok(())
    }
}

/// Decides if a cache may run although its record cannot be written: yes, unless the record calls the data disk complete. Reports what is
/// lost by that. `known`: what the record says.
fn go_on(error: &RecordError, known: Option<&Attachment>) -> bool {
    let RecordError::Io { .. } = error else { return false };
    let lost = match known {
        Some(attachment) if !attachment.may_lose_data() => return false,
        Some(_) => {
            "the record still says that the data disk is incomplete by itself, but not by how much, and an old copy of the log is not detected"
        }
        None => "until there is a record, only you can prevent that the disk is used without its log",
    };
    eprintln!("dcd: {error}. The cache runs without that: {lost}");
    true
}

impl Running {
    /// Notes a change in the record. Returns what a failed log holds for this disk, for messages.
    fn note(&mut self, note: &Note) -> Result<Option<String>, RecordError> {
        let mut held = None;
        match note {
            Note::LogFailed(status) => {
                let status = status.as_ref().map(|status| status.of_disk(self.disk));
                self.change(|attachment| {
                    let failed = Attachment { state: AttachmentState::Abandoned, ..attachment };
                    let failed = match &status {
                        Some(status) => with_dirty(status, failed),
                        None => failed,
                    };
                    held = failed.may_lose_data().then(|| failed.held());
                    failed
                })?;
            }
            Note::WrittenBack(status) => {
                let status = status.of_disk(self.disk);
                // This note comes often, and lost blocks stay lost: most notes change nothing.
                let known = self.record.load()?.of(self.record.extent()).cloned();
                let changes = |known: &Attachment| {
                    (is_complete(&status) || has_read_out(&status))
                        && known.may_lose_data()
                        && at_end(&status, false, known.clone()) != *known
                };
                if known.as_ref().is_some_and(changes) {
                    self.change(|attachment| at_end(&status, false, attachment))?;
                }
            }
            Note::Incomplete => self.change(incomplete)?,
            Note::Stopped(status) => {
                let status = status.of_disk(self.disk);
                self.change(|attachment| at_end(&status, true, attachment))?;
            }
            Note::Joined { disk, epoch } if *disk == self.disk => {
                self.change(|attachment| Attachment { epoch: *epoch, ..incomplete(attachment) })?;
            }
            Note::Joined { .. } | Note::Joining(_) | Note::Left { .. } | Note::Legs(_) | Note::Marks(_) => {}
        }
        Ok(held)
    }

    fn change(&mut self, change: impl FnOnce(Attachment) -> Attachment) -> Result<(), RecordError> {
        let first = self.before.clone();
        self.record.update(|known| change(known.or(first).expect("admission has seen one or made one")))?;
        self.is_recorded = true;
        Ok(())
    }

    /// Stale legs of the log by now; as before if the cache has not started, or its log is on one device.
    fn stale_legs(&self, now: Nanos, stack: &Stack) -> Vec<StaleLeg> {
        let mut layers = stack.layers();
        let mirror = layers.find(|(_, name)| self.mirror.as_deref() == Some(*name));
        let status = mirror.map(|(layer, _)| LayerStatus::of(stack, layer, now));
        match status.as_ref().and_then(LayerStatus::mirror) {
            Some(legs) => stale_legs(&self.stale_legs, legs),
            None => self.stale_legs.clone(),
        }
    }

    /// Status of the cache with this disk; none before it has started.
    fn status(&self, now: Nanos, stack: &Stack) -> Option<LogCacheStatus> {
        let (index, _) = stack.layers().find(|(_, name)| *name == self.layer)?;
        LayerStatus::of(stack, index, now).log_cache().map(|status| status.of_disk(self.disk))
    }
}

/// True when the data disk has everything without the log, and always will: the log has failed, or writes go through.
pub fn is_complete(status: &LogCacheStatus) -> bool {
    is_home_without_log(status) || status.writes == WritesState::Through && is_written_back(status)
}

/// True when a cache whose log has failed has written back all its data.
fn is_home_without_log(status: &LogCacheStatus) -> bool {
    status.state == LogCacheState::LogFailed && is_written_back(status)
}

/// True when the data disk lacks nothing that is in the log, and no block of the log is lost.
const fn is_written_back(status: &LogCacheStatus) -> bool {
    status.dirty_bytes == 0 && status.lost_blocks == 0
}

/// True when a failed log has only blocks left that cannot be read: everything else is on the data disk.
pub const fn has_read_out(status: &LogCacheStatus) -> bool {
    let lost_max = status.lost_blocks as u64 * LINE_BYTES;
    let is_whole = status.accepted_damage.is_empty() && status.dirty_bytes > 0;
    matches!(status.state, LogCacheState::LogFailed) && is_whole && status.dirty_bytes <= lost_max
}

/// Returns the attachment with the dirty bytes of a status.
fn with_dirty(status: &LogCacheStatus, attachment: Attachment) -> Attachment {
    let zeroes_bytes = status.dirty_bytes.saturating_sub(status.dirty_data_bytes);
    Attachment { dirty_bytes: Some(status.dirty_bytes), zeroes_bytes, ..attachment }
}

/// Returns the attachment of a cache that no longer runs, by its last status. `stopped`: the cache has reported that it stopped.
fn at_end(status: &LogCacheStatus, stopped: bool, attachment: Attachment) -> Attachment {
    let (is_written_back, epoch) = (is_written_back(status), status.epoch);
    // All that an older copy of the log has is on the disk, or in this log.
    let is_newest = stopped || status.writes == WritesState::Through;
    let generation = if is_newest { status.generation } else { attachment.generation };
    match attachment.state {
        // A log that failed stays out of use; what could be read of it may be written back by now.
        AttachmentState::Abandoned
            if is_written_back && (stopped || status.state == LogCacheState::LogFailed) =>
        {
            with_dirty(status, attachment)
        }
        AttachmentState::Abandoned if has_read_out(status) => with_dirty(status, attachment),
        AttachmentState::Abandoned => attachment,
        _ if is_written_back && (stopped || status.state == LogCacheState::Clean) => {
            let clean = Attachment { state: AttachmentState::Clean, epoch, generation, ..attachment };
            with_dirty(status, clean)
        }
        _ => {
            let dirty = Attachment { state: AttachmentState::Dirty, epoch, generation, ..attachment };
            match status.dirty_bytes {
                0 => Attachment { dirty_bytes: None, ..dirty },
                _ => with_dirty(status, dirty),
            }
        }
    }
}

/// Returns the attachment of a cache that runs.
fn incomplete(attachment: Attachment) -> Attachment {
    match attachment.state {
        AttachmentState::Abandoned => attachment,
        _ => Attachment { state: AttachmentState::Dirty, dirty_bytes: None, zeroes_bytes: 0, ..attachment },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use dcd_engine::{AnyStatus, Cx, Event, Geometry, Layer, Lba, StackBuilder, Target};

    use super::*;

    const EXTENT: Extent = Extent::new(Lba(0), 8);

    /// A fake log cache: its status is what the test says.
    struct Says(Rc<RefCell<Option<LogCacheStatus>>>);

    impl Layer for Says {
        fn handle(&mut self, _event: Event, _cx: &mut Cx) {}

        fn next_deadline(&self) -> Option<Nanos> {
            None
        }

        fn geometry(&self) -> Geometry {
            Geometry::plain(8)
        }

        fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
            match &*self.0.borrow() {
                Some(status) => Box::new(status.clone()),
                None => Box::new(()),
            }
        }
    }

    struct Bench {
        dir: tempfile::TempDir,
        caches: RunningCaches,
        stack: Stack,
        status: Rc<RefCell<Option<LogCacheStatus>>>,
    }

    fn attached(state: AttachmentState) -> Attachment {
        Attachment {
            cache_uuid: uuid_text([7; 16]),
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
            state,
            dirty_bytes: Some(0),
            stale_legs: Vec::new(),
            log_bytes: 1 << 20,
        }
    }

    /// A cache that has not started yet.
    fn bench(recorded: Option<Attachment>, unrecorded: Option<Attachment>) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), [0; 4096]).unwrap();
        let record = DiskRecord::open(&dir.path().join("data"), EXTENT).unwrap();
        if let Some(recorded) = recorded {
            record.update(|_| recorded).unwrap();
        }
        let status = Rc::new(RefCell::new(None));
        let mut builder = StackBuilder::new();
        let root: Target = builder.layer("cache", Box::new(Says(Rc::clone(&status))), &[]);
        let running = Running {
            layer: "cache".to_owned(),
            disk: 0,
            log: "log.img".into(),
            mirror: None,
            stale_legs: Vec::new(),
            record,
            before: unrecorded,
            is_recorded: false,
        };
        Bench { dir, caches: RunningCaches(vec![running]), stack: builder.finish(root), status }
    }

    impl Bench {
        fn recorded(&self) -> Option<Attachment> {
            let record = DiskRecord::open(&self.dir.path().join("data"), EXTENT).unwrap();
            record.load().unwrap().of(EXTENT).cloned()
        }

        fn says(&self, state: LogCacheState, dirty_bytes: u64) {
            self.loses(0, state, dirty_bytes);
        }

        fn loses(&self, lost_blocks: usize, state: LogCacheState, dirty_bytes: u64) {
            let status =
                LogCacheStatus { state, dirty_bytes, lost_blocks, epoch: 9, ..LogCacheStatus::default() };
            *self.status.borrow_mut() = Some(status);
        }

        fn note_written_back(&mut self) {
            let status = self.status.borrow().clone().unwrap();
            self.caches.note("cache", &Note::WrittenBack(Box::new(status))).unwrap();
        }

        fn end(&mut self) -> Attachment {
            self.caches.note_end(Nanos::ZERO, &self.stack).unwrap();
            self.recorded().unwrap()
        }
    }

    #[test]
    fn the_record_is_dirty_before_the_cache_starts_and_then_what_the_cache_is() {
        for (state, dirty_bytes, is) in [
            (LogCacheState::Clean, 0, (AttachmentState::Clean, Some(0))),
            (LogCacheState::Dirty, 4096, (AttachmentState::Dirty, Some(4096))),
            (LogCacheState::LogFailed, 0, (AttachmentState::Dirty, None)),
        ] {
            let mut bench = bench(Some(attached(AttachmentState::Clean)), None);
            bench.caches.note_start().unwrap();
            let before = bench.recorded().unwrap();
            assert_eq!((before.state, before.dirty_bytes, before.epoch), (AttachmentState::Dirty, None, 1));
            bench.says(LogCacheState::Clean, 0);
            bench.caches.note_started(Nanos::ZERO, &bench.stack).unwrap();
            let started = bench.recorded().unwrap();
            assert_eq!(
                (started.state, started.dirty_bytes, started.epoch),
                (AttachmentState::Dirty, None, 9)
            );
            bench.says(state, dirty_bytes);
            let end = bench.end();
            assert_eq!((end.state, end.dirty_bytes), is);
        }
    }

    #[test]
    fn a_cache_that_has_lost_blocks_never_leaves_a_clean_record() {
        let mut bench = bench(Some(attached(AttachmentState::Clean)), None);
        bench.caches.note_start().unwrap();
        bench.says(LogCacheState::Clean, 0);
        bench.caches.note_started(Nanos::ZERO, &bench.stack).unwrap();
        bench.loses(1, LogCacheState::Clean, 0);
        assert_eq!(bench.end().state, AttachmentState::Dirty);
    }

    #[test]
    fn a_cache_that_does_not_start_leaves_its_record_as_it_was() {
        let clean = attached(AttachmentState::Clean);
        let mut bench = bench(Some(clean.clone()), None);
        bench.caches.note_start().unwrap();
        assert_eq!(bench.end(), clean);
    }

    #[test]
    fn a_disk_without_a_record_gets_one_once_its_cache_has_started() {
        let mut bench = bench(None, Some(attached(AttachmentState::Dirty)));
        bench.caches.note_start().unwrap();
        bench.caches.note_end(Nanos::ZERO, &bench.stack).unwrap();
        assert_eq!(bench.recorded(), None);
        bench.says(LogCacheState::Dirty, 4096);
        bench.caches.note_started(Nanos::ZERO, &bench.stack).unwrap();
        assert_eq!(bench.recorded().map(|record| record.state), Some(AttachmentState::Dirty));
    }

    #[test]
    fn what_is_home_without_its_log_is_recorded_once_and_what_is_lost_changes_no_record() {
        let mut bench = bench(Some(attached(AttachmentState::Abandoned)), None);
        let at_risk = Attachment { dirty_bytes: Some(4096), ..attached(AttachmentState::Abandoned) };
        bench.caches.0[0].record.update(|_| at_risk).unwrap();
        let place = bench.dir.path().join("data.dcd");
        let file = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&place).unwrap());
        let before = file();
        bench.loses(1, LogCacheState::LogFailed, 0);
        bench.note_written_back();
        assert_eq!((bench.recorded().unwrap().dirty_bytes, file()), (Some(4096), before));
        bench.says(LogCacheState::LogFailed, 0);
        bench.note_written_back();
        let recorded = bench.recorded().unwrap();
        assert_eq!((recorded.state, recorded.dirty_bytes), (AttachmentState::Abandoned, Some(0)));
        let after = file();
        bench.note_written_back();
        assert_eq!(file(), after, "nothing more is to be said");
    }

    #[test]
    fn a_record_that_cannot_be_written_stops_only_a_cache_of_which_it_would_say_too_much() {
        let dirty = Attachment { dirty_bytes: None, ..attached(AttachmentState::Dirty) };
        for (recorded, unrecorded, starts) in [
            (Some(attached(AttachmentState::Clean)), None, false),
            (Some(dirty.clone()), None, true),
            (None, Some(dirty), true),
        ] {
            let mut bench = bench(recorded.clone(), unrecorded);
            // The temporary file of a new record cannot be made.
            std::fs::create_dir(bench.dir.path().join("data.dcd.new")).unwrap();
            assert_eq!(bench.caches.note_start().is_ok(), starts || recorded.is_none(), "{recorded:?}");
            bench.says(LogCacheState::Dirty, 4096);
            assert_eq!(bench.caches.note_started(Nanos::ZERO, &bench.stack).is_ok(), starts, "{recorded:?}");
            assert_eq!(bench.recorded(), recorded);
        }
    }

    #[test]
    fn a_log_that_is_out_of_date_stays_so() {
        let mut bench = bench(Some(attached(AttachmentState::Abandoned)), None);
        bench.caches.note_start().unwrap();
        bench.says(LogCacheState::Clean, 0);
        bench.caches.note_started(Nanos::ZERO, &bench.stack).unwrap();
        assert_eq!(bench.end().state, AttachmentState::Abandoned);
    }
}
