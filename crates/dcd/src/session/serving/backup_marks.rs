//! Backup marks of a server: made, listed and dropped in memory. Their files get them at a clean stop alone.

use std::collections::BTreeMap;

use dcd_engine::{LogCacheState, Nanos, Stack};
use dcd_io::backup_marks::{BackupMarks, DiskMarks, MARKS_MAX, MarkPeriod};
use dcd_stack::{LayerKind, LayerStatus};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::session::random::random_id;
use crate::session::record::MarksFile;
use crate::session::running::Note;
use crate::session::serving::server::Served;
use crate::session::site::Site;

/// See the module's documentation.
pub struct MarkKeeper {
    marks: BackupMarks,
    files: BTreeMap<usize, MarksFile>,
    cache: String,
}

/// Names the log cache whose disks may have marks.
///
/// # Errors
/// In words, if clients can change the disk in ways that marks would not notice.
pub fn marked_cache(site: &Site) -> Result<String, String> {
    let cache = site.layer(&site.export).filter(|layer| matches!(layer.kind, LayerKind::LogCache { .. }));
    let cache = cache.ok_or_else(|| format!("the export \"{}\" is no log cache", site.export))?;
    if site.log_caches().count() > 1 {
        return Err("the stack has several log caches".to_owned());
    }
    match site.non_volatile_layers().first() {
        Some(layer) => Err(format!("layer \"{layer}\" answers from RAM")),
        None => Ok(cache.name.clone()),
    }
}

impl MarkKeeper {
    /// Begins to keep the marks of a cache's disks.
    pub fn start(
        marks: BackupMarks,
        disks: BTreeMap<usize, (MarksFile, DiskMarks)>,
        cache: String,
    ) -> MarkKeeper {
        let mut files = BTreeMap::new();
        for (disk, (file, own)) in disks {
            files.insert(disk, file);
            marks.change(|all| all.insert(disk, own));
        }
        MarkKeeper { marks, files, cache }
    }

    /// Forgets a disk that has left the log.
    pub fn leave(&mut self, disk: usize) {
        self.files.remove(&disk);
        self.marks.change(|all| drop(all.remove(&disk)));
    }

    /// Stores the marks after a clean stop, if the log is whole.
    pub fn store(&self, now: Nanos, stack: &Stack) {
        let layer = stack.layers().find(|(_, name)| *name == self.cache).map(|(layer, _)| layer);
        let status = layer.and_then(|layer| LayerStatus::of(stack, layer, now).into_log_cache());
        let is_whole = status.is_some_and(|status| {
            status.state != LogCacheState::LogFailed
                && status.lost_blocks == 0
                && status.accepted_damage.is_empty()
        });
        if !is_whole {
            return;
        }
        for (disk, own) in self.marks.change(std::mem::take) {
            if let Some(Err(error)) = self.files.get(&disk).map(|file| file.store(&own, true)) {
                warnln!("dcd: the backup marks of disk {} are lost: {error}", disk + 1);
            }
        }
    }

    fn make(&self, disk: usize) -> Result<Value, String> {
        // JSON keeps numbers up to 2^53 exact in all programs.
        let mark = (random_id().map_err(|error| error.to_string())? >> 11).max(1);
        let made = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        self.change(disk, |own| {
            if own.periods.len() == MARKS_MAX {
                return Err(format!(
                    "the disk has {MARKS_MAX} marks, and no more are kept: --list shows them, and --drop N drops one; older ones stay good"
                ));
            }
            let period = MarkPeriod::new(mark, made, own.sectors);
            own.periods.push(period.map_err(|_| "there is no memory for another mark".to_owned())?);
            Ok(json!({ "mark": mark }))
        })
    }

    fn forget(&self, disk: usize, mark: u64) -> Result<Value, String> {
        self.change(disk, |own| match own.forget(mark) {
            true => Ok(json!({})),
            false => Err(format!("the disk has no mark {mark}: --list shows those that it has")),
        })
    }

    fn list(&self, disk: usize) -> Result<Value, String> {
        self.change(disk, |own| {
            let lost = own.lost.iter().map(|lost| json!({ "mark": lost.mark, "lost": lost.reason }));
            let kept = own.amounts().into_iter().map(|(mark, made, bytes)| {
                let made = Timestamp::from_second(made.cast_signed()).unwrap_or_default().to_string();
                json!({ "mark": mark, "made": made, "changed_bytes": bytes })
            });
            Ok(json!({ "marks": lost.chain(kept).collect::<Vec<Value>>() }))
        })
    }

    fn change<T>(
        &self,
        disk: usize,
        change: impl FnOnce(&mut DiskMarks) -> Result<T, String>,
    ) -> Result<T, String> {
        let none = "this disk was missing when the server started, or came later: it can have marks after the next start";
        self.marks.change(|all| change(all.get_mut(&disk).ok_or(none)?))
    }

    /// The file of a disk, and its marks without what has changed since.
    fn note(&self, disk: usize) -> Option<Note> {
        let light = |own: &DiskMarks| {
            let period = |of: &MarkPeriod| MarkPeriod { grains: Vec::new(), ..*of };
            let periods = own.periods.iter().map(period).collect();
            DiskMarks { sectors: own.sectors, periods, lost: own.lost.clone() }
        };
        let known = self.marks.of(disk, light)?;
        Some(Note::Marks(Box::new((self.files.get(&disk)?.clone(), known))))
    }
}

impl Served {
    /// Takes a call about marks: `{"command": "make"}`, `"list"`, or `"drop"` with `"mark"`; with `"disk"`, if there are several.
    pub fn mark_call(&mut self, args: &Value) -> Result<Value, String> {
        if self.is_stopping() {
            return Err("the server is stopping".to_owned());
        }
        let disk = self.marked_disk(args)?;
        let keeper = self.marks.as_ref().map_err(|why| {
            format!("this stack can have no marks, as a change could pass them unnoticed: {why}")
        })?;
        let answer = match args["command"].as_str().unwrap_or("") {
            "list" => return keeper.list(disk),
            "make" => keeper.make(disk),
            "drop" => keeper.forget(disk, args["mark"].as_u64().ok_or("\"mark\" is missing")?),
            other => Err(format!("\"{other}\" is no command for marks: it has make, list and drop")),
        }?;
        // So that the next start tells what a crash has lost. The marks do not wait for it.
        if let Some(note) = keeper.note(disk) {
            self.host.records.note(&keeper.cache, note);
        }
        Ok(answer)
    }

    /// Number of the disk that a call names.
    fn marked_disk(&self, args: &Value) -> Result<usize, String> {
        let file = self.host.file.as_ref().ok_or("the stack is in no file")?;
        let names: Vec<&str> = file
            .served_disks()
            .into_iter()
            .map(|name| if file.is_free_place(name) { "" } else { name })
            .collect();
        let known = || names.iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join(", ");
        match args["disk"].as_str() {
            None if names.len() == 1 => Ok(0),
            None => Err(format!("each data disk has its own marks: name one of {} with --disk", known())),
            Some(name) => names
                .iter()
                .position(|own| *own == name && !name.is_empty())
                .ok_or_else(|| format!("\"{name}\" is no data disk of the log; they are {}", known())),
        }
    }
}
