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

/// See the module's documentation.
pub struct Stopped {
    file: PathBuf,
    /// Attached caches by the records; none if a record cannot be read.
    attachments: Option<Vec<Attachment>>,
}

impl Stopped {
    pub fn look(file: &Path) -> Stopped {
        Stopped { file: file.to_owned(), attachments: attachments(file).ok() }
    }

    /// The columns of the table.
    pub fn row(&self) -> [String; 4] {
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match self.is_abandoned() {
            true => [name, "given up".to_owned(), self.dirty(), "dcd doctor".to_owned()],
            false => [name, "stopped".to_owned(), self.dirty(), start_command(&self.file)],
        }
    }

    /// True if a log failed, or its data disk was served without it: a start with it is refused.
    fn is_abandoned(&self) -> bool {
        let mut all = self.attachments.iter().flatten();
        all.any(|attachment| attachment.state == AttachmentState::Abandoned)
    }

    fn dirty(&self) -> String {
        match (&self.attachments, self.dirty_bytes()) {
            (None, _) => "?".to_owned(),
            (_, None) => "unknown".to_owned(),
            (_, Some(bytes)) => HumanBytes(bytes).to_string(),
        }
    }

    /// Dirty bytes in the logs; none if the records do not tell.
    pub fn dirty_bytes(&self) -> Option<u64> {
        let dirty = |attachment: &Attachment| match attachment.state {
            AttachmentState::Clean => Some(0),
            _ => attachment.dirty_bytes,
        };
        self.attachments.as_ref()?.iter().map(dirty).sum()
    }

    /// Explains that the stack is not served, and what its logs hold.
    pub fn told(&self) -> String {
        let stack = self.file.display();
        let mut held: Vec<String> = self.attachments.iter().flatten().map(Attachment::held).collect();
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

fn attachments(file: &Path) -> Result<Vec<Attachment>, Failure> {
    let mut all = Vec::new();
    for choice in choices(&Site::load(file)?)?.iter().flat_map(CacheChoice::of_disks) {
        if let Some(record) = open_record(&choice)? {
            all.extend(record.load()?.of(record.extent()).cloned());
        }
    }
    Ok(all)
}
