//! `dcd doctor`: what this machine can do, what is wrong with it, and which stacks would not start. It changes nothing.

mod disks;
mod fstab;
mod kernel;
mod stacks;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use dcd_serve::disk_user;
use dcd_stack::{StackFile, wrapped};
use serde::Serialize;

use crate::cli::Doctor;
use crate::commands::status::text::WIDTH;
use crate::control;
use crate::failure::Failure;
use crate::loops::{all_stale, stale_by_hand, way_out};
use crate::session::system::logs_in_memory;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Severity {
    Ok,
    /// Something is missing, or worth knowing, but everything works.
    Note,
    /// Data is at risk, or something does not work.
    Bad,
}

impl Severity {
    const fn word(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Bad => "BAD",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Severity,
    about: String,
    found: String,
    action: Option<String>,
}

impl Finding {
    fn new(level: Severity, about: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { level, about: about.into(), found: found.into(), action: None }
    }

    fn with(self, action: impl Into<String>) -> Finding {
        Finding { action: Some(action.into()), ..self }
    }
}

/// Root of the files of the kernel and the system, or of a test.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Reads a file's trimmed text; empty if it cannot be read.
    fn text(&self, path: &str) -> String {
        read(&self.path(path))
    }

    fn release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease")
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

pub fn run(args: &Doctor) -> Result<(), Failure> {
    let machine = Machine { root: PathBuf::from("/") };
    let named: Vec<PathBuf> = if args.files.is_empty() { control::stack_files() } else { args.files.clone() };
    let files: Vec<(PathBuf, Result<StackFile, String>)> = named
        .into_iter()
        .map(|path| {
            let file = StackFile::load(&path).map_err(|error| error.to_string());
            (path, file)
        })
        .collect();
    let readable = || files.iter().filter_map(|(_, file)| file.as_ref().ok());
    let wants_none = |file: &StackFile| !file.serve.nbd.is_empty() || file.serve.vhost_user.is_some();
    let wants_device = readable().any(|file| !wants_none(file));
    let wants_ublk = readable().any(|file| file.serve.ublk.is_some());
    let mut findings = kernel::findings(&machine, wants_ublk, wants_device);
    findings.extend(fstab::findings(&machine));
    findings.extend(all_stale().into_iter().map(|(stack, name)| stale_loop(&stack.display(), &name)));
    findings.extend(stale_by_hand().into_iter().map(|name| stale_loop(&"STACK", &name)));
    for file in readable() {
        findings.extend(disks::findings(&machine, file));
        findings.extend(logs_in_memory(file).into_iter().map(|log| {
            let about = file.path.file_stem().unwrap_or_default().to_string_lossy();
            Finding::new(Severity::Bad, about, log)
                .with("move the log to a file or a partition on a disk: dcd format --replace; or set writes = \"through\"")
        }));
    }
    if files.is_empty() {
        findings.push(Finding::new(
            Severity::Note,
            "stacks",
            "there are no stack files in /etc/dcd; name others",
        ));
    }
    findings.extend(files.iter().flat_map(|(path, file)| stacks::findings(path, file)));
    tell(&findings, args.json)
}

/// Describes a loop device whose server has ended. One that is in use fails what its users write.
fn stale_loop(stack: &dyn Display, name: &str) -> Finding {
    let (level, user) = match disk_user(name) {
        Some(user) => {
            let lost = "writes that were not flushed may be lost";
            (Severity::Bad, format!(", and it is in use ({user}): {lost}"))
        }
        None => (Severity::Note, String::new()),
    };
    let found = format!("a loop device whose server has ended: its requests fail{user}");
    let then = format!(
        "then dcd serve {stack} (if it is not served), dcd attach {stack}, and mount the device that it prints"
    );
    Finding::new(level, format!("/dev/{name}"), found).with(format!("{}; {then}", way_out(name)))
}

fn tell(findings: &[Finding], json: bool) -> Result<(), Failure> {
    let bad = findings.iter().filter(|finding| finding.level == Severity::Bad).count();
    if json {
        println!("{}", serde_json::json!({ "ok": bad == 0, "findings": findings }));
    } else {
        print!("{}", screen(findings));
    }
    match bad {
        0 => Ok(()),
        1 => Err(Failure::Failed("1 finding needs action".to_owned())),
        bad => Err(Failure::Failed(format!("{bad} findings need action"))),
    }
}

/// Formats each finding, with what to do below it, on lines that fit a terminal.
fn screen(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.about.chars().count()).max().unwrap_or(0).min(24);
    let room = WIDTH - width - 8;
    let mut text = String::new();
    for Finding { level, about, found, action } in findings {
        let action = action.as_deref().map(|action| wrapped(action, room - 3)).unwrap_or_default();
        let mut lines = wrapped(found, room);
        lines.extend(
            action.iter().enumerate().map(|(n, line)| format!("{:2} {line}", if n == 0 { "->" } else { "" })),
        );
        // A long name has a line of its own.
        if about.chars().count() > width {
            lines.insert(0, String::new());
        }
        for (n, line) in lines.iter().enumerate() {
            let (level, about) = if n == 0 { (level.word(), about.as_str()) } else { ("", "") };
            text += format!("{level:<4}  {about:<width$}  {line}").trim_end();
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose files are those that the test writes.
    pub(super) struct Made {
        dir: tempfile::TempDir,
        pub machine: Machine,
    }

    impl Made {
        pub fn new(files: &[(&str, &str)]) -> Made {
            let dir = tempfile::tempdir().unwrap();
            let machine = Machine { root: dir.path().to_owned() };
            let made = Made { dir, machine };
            files.iter().for_each(|(path, text)| made.write(path, text));
            made
        }

        pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
            let path = self.machine.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub fn link(&self, path: &str, to: &str) {
            let path = self.machine.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.dir.path().join(to.trim_start_matches('/')), path).unwrap();
        }
    }

    #[test]
    fn what_matters_decides_the_exit_code() {
        let ok = Finding::new(Severity::Ok, "a", "fine");
        let note = Finding::new(Severity::Note, "longer", "is missing").with("add it");
        let bad = Finding::new(Severity::Bad, "c", "lies").with("replace it");
        assert!(tell(&[ok.clone(), note.clone()], true).is_ok());
        assert!(tell(&[ok.clone(), bad.clone()], false).is_err());
        assert_eq!(
            screen(&[ok, note, bad]),
            "ok    a       fine\nnote  longer  is missing\n              -> add it\n\
             BAD   c       lies\n              -> replace it\n"
        );
        let long = Finding::new(Severity::Bad, "a-name-of-thirty-characters-now", "word ".repeat(40));
        let text = screen(&[long.with("step ".repeat(40))]);
        assert!(text.lines().all(|line| line.len() <= 80) && text.matches("->").count() == 1, "{text}");
    }
}
