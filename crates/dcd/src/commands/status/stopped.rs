//! A stack without a server, as the records of its data disks describe it.

use std::path::{Path, PathBuf};

use dcd_stack::HumanBytes;

use crate::commands::create::has_units;
use crate::control::stack_name;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::record::{Attachment, AttachmentState};
use crate::session::serving::checks::choices;
use crate::session::site::Site;
use crate::session::survey::open_record;

/// Advice about a stack that is in use.
const NO_SOCKET: &str = "stop what uses it; if that is its server, add control = \"PATH\" to [serve]";

/// See the module's documentation.
pub struct Stopped {
    file: PathBuf,
    /// Attached caches by the records, each with the name of its data disk; an error if a record cannot be read.
    attachments: Result<Vec<(String, Attachment)>, Failure>,
}

impl Stopped {
    pub fn look(file: &Path) -> Stopped {
        Stopped { file: file.to_owned(), attachments: attachments(file) }
    }

    /// The columns of the table.
    pub fn row(&self) -> [String; 4] {
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let action = match () {
            () if self.is_in_use() => NO_SOCKET.to_owned(),
            () if self.is_abandoned() => "dcd doctor".to_owned(),
            () => start_command(&self.file),
        };
        [name, self.state().to_owned(), self.dirty(), action]
    }

    /// The state in words.
    pub fn state(&self) -> &'static str {
        match () {
            () if self.is_in_use() => "in use",
            () if self.is_abandoned() => "given up",
            () => "stopped",
        }
    }

    /// True where another process has a data disk, most likely a server without a control socket.
    pub fn is_in_use(&self) -> bool {
        matches!(self.attachments, Err(Failure::Busy(_)))
    }

    fn all(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.iter().flatten().map(|(_, attachment)| attachment)
    }

    /// True if a log failed, or its data disk was served without it: a start with it is refused.
    fn is_abandoned(&self) -> bool {
        self.all().any(|attachment| attachment.state == AttachmentState::Abandoned)
    }

    fn dirty(&self) -> String {
        match (&self.attachments, self.dirty_bytes()) {
            (Err(_), _) => "?".to_owned(),
            (_, None) => "unknown".to_owned(),
            (_, Some(bytes)) => format!("{} at its stop", HumanBytes(bytes)),
        }
    }

    /// Dirty bytes in the logs when the server stopped; none if the records do not tell.
    pub fn dirty_bytes(&self) -> Option<u64> {
        self.attachments.as_ref().ok()?.iter().map(|(_, attachment)| dirty(attachment)).sum()
    }

    /// The part of these that one data disk lacks.
    pub fn dirty_on(&self, disk: &str) -> Option<u64> {
        let all = self.attachments.as_ref().ok()?;
        all.iter().find(|(name, _)| name == disk).and_then(|(_, attachment)| dirty(attachment))
    }

    /// Explains that the stack is not served, and what its logs hold.
    pub fn told(&self) -> String {
        let stack = self.file.display();
        // After a crash only the log knows.
        let is_unknown =
            |known: &Attachment| known.state != AttachmentState::Clean && known.dirty_bytes.is_none();
        let held = |known: &Attachment| match is_unknown(known) {
            true => "acknowledged writes (how many is known after the start; \"dcd doctor\" counts them)"
                .to_owned(),
            false => known.held(),
        };
        let mut held: Vec<String> = self.all().map(held).collect();
        held.sort_unstable();
        held.dedup();
        let held =
            if held.is_empty() { String::new() } else { format!(", and its log has {}", held.join(" and ")) };
        match self.is_abandoned() {
            true => format!(
                "{stack}: not served{held}. The log has failed, or its disk was served without it, so a start is refused: \"dcd doctor\" says what \
                 to do"
            ),
            false => format!("{stack}: not served{held}. Start it with: {}", start_command(&self.file)),
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

fn dirty(attachment: &Attachment) -> Option<u64> {
    match attachment.state {
        AttachmentState::Clean => Some(0),
        _ => attachment.dirty_bytes,
    }
}

fn attachments(file: &Path) -> Result<Vec<(String, Attachment)>, Failure> {
    let mut all = Vec::new();
    for choice in choices(&Site::load(file)?)?.iter().flat_map(CacheChoice::of_disks) {
        if let Some(record) = open_record(&choice)? {
            let own = record.load()?.of(record.extent()).cloned();
            all.extend(own.map(|own| (choice.data.clone(), own)));
        }
    }
    Ok(all)
}
