//! The events of a stack: what its servers have told, with the time, in a bounded file beside the records.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::messages::Priority;
use crate::session::record::state_dir;

/// Maximum size of the file. A full one takes the place of the one before it.
const BYTES_MAX: u64 = 256 << 10;

/// The file of a stack's events.
pub struct EventFile {
    path: PathBuf,
}

impl EventFile {
    /// The file for a stack file. No two stack files share one: a name escapes the path, as systemd does.
    pub fn of(stack: &Path) -> EventFile {
        let whole = std::path::absolute(stack).unwrap_or_else(|_| stack.to_owned());
        let mut name = String::new();
        for byte in whole.as_os_str().as_encoded_bytes().iter().skip(1) {
            match byte {
                b'/' => name.push('-'),
                b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => name.push(char::from(*byte)),
                other => name.push_str(&format!("\\x{other:02x}")),
            }
        }
        EventFile { path: state_dir().join("events").join(name) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn old(&self) -> PathBuf {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        old.into()
    }

    /// Removes the events of a stack that is no more: another one may get its name.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        for path in [self.old(), self.path.clone()] {
            match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Appends lines. They may be lost with the machine: nothing is synced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&self, lines: &str) -> io::Result<()> {
        let open = || OpenOptions::new().append(true).create(true).open(&self.path);
        let mut file: File = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(self.path.parent().expect("a file in a directory"))?;
                open()?
            }
            opened => opened?,
        };
        if file.metadata()?.len() + lines.len() as u64 > BYTES_MAX {
            fs::rename(&self.path, self.old())?;
            file = open()?;
        }
        file.write_all(lines.as_bytes())
    }

    /// Returns all lines, the oldest first; none where no server has served the stack.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(&self) -> io::Result<String> {
        let mut all = Vec::new();
        for path in [self.old(), self.path.clone()] {
            match fs::read(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => all.extend(read?),
            }
        }
        Ok(String::from_utf8_lossy(&all).into_owned())
    }
}

/// A message as the file has it: each line with the time in UTC, and its priority.
pub fn lines(now: Timestamp, priority: Priority, text: &str) -> String {
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    let text = text.strip_prefix("dcd: ").unwrap_or(text);
    text.lines().map(|line| format!("{at} {priority} {line}\n")).collect()
}

/// A line of the file with the time in a zone. A line that is no event stays as it is.
pub fn in_zone(line: &str, zone: &TimeZone) -> String {
    let event = line.split_once(' ').and_then(|(at, rest)| Some((at.parse::<Timestamp>().ok()?, rest)));
    event.map_or_else(
        || line.to_owned(),
        |(at, rest)| format!("{} {rest}", at.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M:%S")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_stay_in_two_files_of_bounded_size() {
        let place = tempfile::tempdir().unwrap();
        let file = EventFile { path: place.path().join("events/srv.toml") };
        assert_eq!(file.read().unwrap(), "");
        for event in 0..20_000 {
            file.append(&format!("event {event} of a server that tells much\n")).unwrap();
        }
        let kept = file.read().unwrap();
        assert!(kept.ends_with("event 19999 of a server that tells much\n"));
        assert!((BYTES_MAX..=2 * BYTES_MAX).contains(&(kept.len() as u64)), "{} bytes", kept.len());
        let first: usize = kept.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(kept.lines().count(), 20_000 - first, "none between them is missing");
    }

    #[test]
    fn stack_files_of_different_paths_have_files_of_their_own() {
        let name = |path: &str| EventFile::of(Path::new(path)).path.file_name().unwrap().to_owned();
        assert_eq!(name("/etc/dcd/srv.toml"), "etc-dcd-srv.toml");
        assert_ne!(name("/etc/dcd/a-b.toml"), name("/etc/dcd/a/b.toml"));
    }

    #[test]
    fn each_line_has_the_time_and_the_priority() {
        let at: Timestamp = "2026-03-01T22:30:05.9Z".parse().unwrap();
        let told = lines(at, Priority::Warning, "dcd: leg \"b\" failed\nreplace it\n");
        assert_eq!(
            told,
            "2026-03-01T22:30:05Z warning leg \"b\" failed\n2026-03-01T22:30:05Z warning replace it\n"
        );
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(
            in_zone(told.lines().next().unwrap(), &zone),
            "2026-03-02 00:30:05 warning leg \"b\" failed"
        );
        assert_eq!(in_zone("torn", &zone), "torn");
    }
}
