//! A stack without a server, as the records of its data disks describe it.

use std::path::{Path, PathBuf};

use dcd_engine::log_cache::format::LogState;
use dcd_stack::HumanBytes;

use crate::commands::create::has_units;
use crate::control::stack_name;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::record::{Attachment, AttachmentState, LogSeen};
use crate::session::serving::checks::choices;
use crate::session::site::Site;
use crate::session::survey::{inspect, open_record};

/// Advice about a stack that is in use.
const NO_SOCKET: &str = "stop what uses it; if that is its server, add control = \"PATH\" to [serve]";

/// See the module's documentation.
pub struct Stopped {
    file: PathBuf,
    /// Knowledge of the cache of each data disk, with the disk's name; an error if a record cannot be read.
    caches: Result<Vec<(String, CacheKnown)>, Failure>,
}

/// Knowledge of the cache of a data disk.
enum CacheKnown {
    /// The attachment, by the record.
    Attached(Attachment),
    /// There is no record, and the log says that it was detached.
    Detached,
    /// There is no record, and the log may have data.
    Unrecorded,
    /// Neither a record nor a log is found.
    Unseen,
}

impl CacheKnown {
    /// Dirty bytes in the log when the server stopped; none if nothing tells.
    fn dirty_bytes(&self) -> Option<u64> {
        match self {
            CacheKnown::Attached(Attachment { state: AttachmentState::Clean, .. }) | CacheKnown::Detached => {
                Some(0)
            }
            CacheKnown::Attached(attachment) => attachment.dirty_bytes,
            CacheKnown::Unrecorded | CacheKnown::Unseen => None,
        }
    }

    /// Text about the content of the log; none where that is nothing.
    fn held(&self) -> Option<String> {
        const UNKNOWN: &str = "how many is known after the start; \"dcd doctor\" counts them";
        match self {
            CacheKnown::Detached | CacheKnown::Unseen => None,
            CacheKnown::Unrecorded => Some(format!("perhaps acknowledged writes ({UNKNOWN})")),
            CacheKnown::Attached(known) if self.dirty_bytes().is_some() => Some(known.held()),
            // After a crash only the log knows.
            CacheKnown::Attached(_) => Some(format!("acknowledged writes ({UNKNOWN})")),
        }
    }
}

impl Stopped {
    pub fn look(file: &Path) -> Stopped {
        Stopped { file: file.to_owned(), caches: caches(file) }
    }

    /// The columns of the table.
    pub fn row(&self) -> [String; 4] {
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let action = match () {
            () if self.is_in_use() => NO_SOCKET.to_owned(),
            () if self.is_abandoned() || self.is_detached() => "dcd doctor".to_owned(),
            () => start_command(&self.file),
        };
        [name, self.state().to_owned(), self.dirty(), action]
    }

    /// The state in words.
    pub fn state(&self) -> &'static str {
        match () {
            () if self.is_in_use() => "in use",
            () if self.is_abandoned() => "given up",
            () if self.is_detached() => "detached",
            () => "stopped",
        }
    }

    /// True where another process has a data disk, most likely a server without a control socket.
    pub fn is_in_use(&self) -> bool {
        matches!(self.caches, Err(Failure::Busy(_)))
    }

    fn all(&self) -> impl Iterator<Item = &CacheKnown> {
        self.caches.iter().flatten().map(|(_, known)| known)
    }

    /// True if a log failed, or its data disk was served without it: a start with it is refused.
    fn is_abandoned(&self) -> bool {
        let is_abandoned = |known: &CacheKnown| matches!(known, CacheKnown::Attached(known) if known.state == AttachmentState::Abandoned);
        self.all().any(is_abandoned)
    }

    /// True if a log was detached: a start with it is refused.
    fn is_detached(&self) -> bool {
        self.all().any(|known| matches!(known, CacheKnown::Detached))
    }

    fn dirty(&self) -> String {
        match self.dirty_bytes() {
            None => "?".to_owned(),
            Some(bytes) => format!("{} at its stop", HumanBytes(bytes)),
        }
    }

    /// Dirty bytes in the logs when the server stopped; none if that is not known.
    pub fn dirty_bytes(&self) -> Option<u64> {
        self.caches.as_ref().ok()?.iter().map(|(_, known)| known.dirty_bytes()).sum()
    }

    /// The part of these that one data disk lacks.
    pub fn dirty_on(&self, disk: &str) -> Option<u64> {
        let all = self.caches.as_ref().ok()?;
        all.iter().find(|(name, _)| name == disk).and_then(|(_, known)| known.dirty_bytes())
    }

    /// Explains that the stack is not served, and what its logs hold.
    pub fn told(&self) -> String {
        let stack = self.file.display();
        let mut held: Vec<String> = self.all().filter_map(CacheKnown::held).collect();
        held.sort_unstable();
        held.dedup();
        let held =
            if held.is_empty() { String::new() } else { format!(", and its log has {}", held.join(" and ")) };
        match () {
            () if self.is_abandoned() => format!(
                "{stack}: not served{held}. The log has failed, its disk was served without it, or a disk has left it, so a start is refused: \"dcd doctor\" says what \
                 to do"
            ),
            () if self.is_detached() => format!(
                "{stack}: not served{held}. Its cache was detached, so a start is refused: \"dcd format {stack}\" makes a new log, and \"dcd remove \
                 {stack}\" takes the stack away"
            ),
            () => format!("{stack}: not served{held}. Start it with: {}", start_command(&self.file)),
        }
    }
}

/// Returns the command that starts a server: that of systemd only where it has the units.
pub fn start_command(file: &Path) -> String {
    match stack_name(file).filter(|_| has_units()) {
        Some(name) => format!("systemctl start dcd@{name}"),
        None => format!("dcd serve {}", file.display()),
    }
}

fn caches(file: &Path) -> Result<Vec<(String, CacheKnown)>, Failure> {
    let mut all = Vec::new();
    let choices = choices(&Site::load(file)?)?;
    for choice in choices.iter().flat_map(CacheChoice::of_disks) {
        if choice.site.is_free_place(&choice.data) {
            continue;
        }
        // A data disk of several may be missing: the log tells whether the cache is in use.
        let recorded = match Failure::unless_busy(open_record(&choice))?.flatten() {
            Some(record) => record.load()?.of(record.extent()).cloned(),
            None => None,
        };
        let known = recorded.map_or_else(|| unrecorded(&choice), |own| Ok(CacheKnown::Attached(own)))?;
        all.push((choice.data, known));
    }
    Ok(all)
}

/// Looks at the log of a data disk without a record.
fn unrecorded(choice: &CacheChoice) -> Result<CacheKnown, Failure> {
    let seen = Failure::unless_busy(inspect(choice))?;
    Ok(match seen.map(|(seen, _)| seen.log) {
        Some(LogSeen::Present { state: LogState::Detached, .. }) => CacheKnown::Detached,
        Some(LogSeen::Present { .. }) => CacheKnown::Unrecorded,
        Some(LogSeen::Missing(_)) | None => CacheKnown::Unseen,
    })
}
