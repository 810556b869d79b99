//! Connects commands to a running server.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub use dcd_serve::control::Client;
use dcd_serve::control::ClientError;
use dcd_stack::StackFile;
use serde_json::{Value, json};

use crate::advice::Advised;
use crate::failure::Failure;
use crate::session::devices::patiently;

/// The control socket that a stack file names, or the socket itself.
fn socket(path: &Path) -> Result<PathBuf, Failure> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return Ok(path.to_owned());
    }
    let file = match StackFile::load(path) {
        Ok(file) => file,
        // The server may still run with an earlier text of this file.
        Err(error) => {
            let control = StackFile::control_of(path).ok_or_else(|| Failure::from(error.clone()))?;
            eprintln!("dcd: {error}");
            return Ok(control);
        }
    };
    file.serve.control.ok_or_else(|| {
        let path = path.display();
        Failure::Failed(format!(
            "{path}: it has no control socket: add control = \"PATH\" to [serve], and serve it again"
        ))
    })
}

/// Connects to the server of a stack file.
pub fn connect(path: &Path) -> Result<Client, Failure> {
    connect_to(&socket(path)?)
}

/// Connects to the server of a stack file; none where there is no server.
pub fn connect_if_served(path: &Path) -> Result<Option<Client>, Failure> {
    match Client::connect(&socket(path)?) {
        Err(ClientError::NotServed { .. }) => Ok(None),
        connected => connected.map(Some).map_err(explained),
    }
}

/// The server of a stack, if it is served. The kernel takes some milliseconds to close the socket of a killed one.
pub fn server_of(file: &StackFile) -> Result<Option<Client>, Failure> {
    let Some(path) = &file.serve.control else { return Ok(None) };
    let connected = patiently(
        || {
            let mut client = Client::connect(path)?;
            ask(&mut client, "status", json!({}))?;
            Ok(client)
        },
        |error| matches!(error, ClientError::Io { .. } | ClientError::Closed { .. }),
    );
    match connected {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::NotServed { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses what cannot be done while a stack is served.
pub fn not_served(file: &StackFile, what: &str) -> Result<(), Failure> {
    if server_of(file)?.is_none() {
        return Ok(());
    }
    let path = file.path.display();
    Err(Failure::Failed(format!("{path}: it is served: stop its server, {what}, and serve it again")))
}

/// Connects to a control socket.
pub fn connect_to(socket: &Path) -> Result<Client, Failure> {
    Client::connect(socket).map_err(explained)
}

/// The control sockets of these stack files; without any, of the servers that run.
pub fn sockets_of(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if !files.is_empty() {
        return files.iter().map(|file| socket(file)).collect();
    }
    for directory in [STACKS, SOCKETS] {
        let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        if std::fs::read_dir(directory).is_err_and(denied) {
            return Err(Failure::Failed(format!("{directory}: permission denied: run as root")));
        }
    }
    let found: Vec<PathBuf> = sockets(Path::new(STACKS), Path::new(SOCKETS)).into_iter().collect();
    let runs =
        at_once(&found, |socket| !matches!(Client::connect(socket), Err(ClientError::NotServed { .. })));
    Ok(found.into_iter().zip(runs).filter_map(|(socket, runs)| runs.then_some(socket)).collect())
}

/// Runs `each` on one thread an item, so that all servers that do not answer cost one timeout together.
fn at_once<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| each(one))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn explained(error: ClientError) -> Failure {
    match error {
        ClientError::Io { path, source } if source.kind() == ErrorKind::PermissionDenied => Failure::Failed(
            format!("{}: permission denied: run as root, or as the user of the server", path.display()),
        ),
        other => other.into(),
    }
}

/// Directories of stack files and control sockets that the user has not named: "dcd format" puts them there.
const STACKS: &str = "/etc/dcd";
const SOCKETS: &str = "/run/dcd";

/// Asks the servers of these stack files, all in parallel; without any file, the running servers that are found by the stack files in
/// /etc/dcd and the control sockets in /run/dcd.
pub fn ask_all<T: Send>(
    files: &[PathBuf],
    ask: impl Fn(&mut Client) -> Result<T, Failure> + Sync,
) -> Vec<Result<T, Failure>> {
    if !files.is_empty() {
        return at_once(files, |file| ask(&mut connect(file)?));
    }
    let found: Vec<PathBuf> = sockets(Path::new(STACKS), Path::new(SOCKETS)).into_iter().collect();
    let asked = at_once(&found, |socket| match Client::connect(socket) {
        Err(ClientError::NotServed { .. }) => None,
        client => Some(client.map_err(explained).and_then(|mut client| ask(&mut client))),
    });
    asked.into_iter().flatten().collect()
}

/// Separates answers from failures: returns the last failure, and prints the others.
pub fn told_apart<T>(answers: Vec<Result<T, Failure>>) -> (Vec<T>, Result<(), Failure>) {
    let (mut found, mut failed) = (Vec::new(), Ok(()));
    for answer in answers {
        match answer {
            Ok(answer) => found.push(answer),
            Err(failure) => {
                if let Err(before) = std::mem::replace(&mut failed, Err(failure)) {
                    eprintln!("dcd: {before}");
                }
            }
        }
    }
    (found, failed)
}

/// Name of a stack in /dev/dcd: that of its file in /etc/dcd. None for a name that systemd would escape: systemd would not find the unit
/// for a device of such a name.
pub fn stack_name(file: &Path) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let is_there = file.parent() == Some(Path::new(STACKS)) && file.extension().is_some_and(|e| e == "toml");
    let name = file.file_stem().filter(|_| is_there)?.to_str()?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    (is_plain && !name.starts_with('.')).then(|| name.to_owned())
}

/// Stack files for a command that names none.
pub fn stack_files() -> Vec<PathBuf> {
    files(Path::new(STACKS), "toml")
}

/// Control sockets that may exist. Stack files that cannot be read are skipped: "dcd doctor" reports them.
fn sockets(stacks: &Path, sockets: &Path) -> BTreeSet<PathBuf> {
    let named =
        files(stacks, "toml").into_iter().filter_map(|file| StackFile::load(&file).ok()?.serve.control);
    named.chain(files(sockets, "control")).collect()
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}

/// Calls a server, and ignores its progress reports.
pub fn ask(client: &mut Client, verb: &str, args: Value) -> Result<Value, ClientError> {
    client.call(verb, args, |_| ControlFlow::Continue(()))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Failed(error.told())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_have_the_names_of_their_files_in_etc() {
        for (file, name) in [
            ("/etc/dcd/disk.toml", Some("disk")),
            ("/etc/dcd/./disk.toml", Some("disk")),
            ("/etc/dcd/big.disk_2.toml", Some("big.disk_2")),
            ("/etc/dcd/big-disk.toml", None),
            ("/etc/dcd/a b.toml", None),
            ("/etc/dcd/a\nB=c.toml", None),
            ("/etc/dcd/..toml", None),
            ("/etc/dcd/disk", None),
            ("/etc/dcd/old/disk.toml", None),
            ("disk.toml", None),
        ] {
            assert_eq!(stack_name(Path::new(file)).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn servers_are_looked_for_where_stack_files_name_them_and_where_they_usually_are() {
        let dir = tempfile::tempdir().unwrap();
        let (stacks, run) = (dir.path().join("etc"), dir.path().join("run"));
        assert!(sockets(&stacks, &run).is_empty(), "there need not be any");
        std::fs::create_dir(&stacks).unwrap();
        std::fs::create_dir(&run).unwrap();
        let stack =
            |control: &str| format!("export = \"d\"\n[serve]\n{control}[device.d]\nmemory = \"1MiB\"\n");
        std::fs::write(stacks.join("a.toml"), stack("control = \"/elsewhere/a.sock\"\n")).unwrap();
        std::fs::write(stacks.join("b.toml"), stack(&format!("control = \"{}/b.control\"\n", run.display())))
            .unwrap();
        std::fs::write(stacks.join("none.toml"), stack("")).unwrap();
        std::fs::write(stacks.join("bad.toml"), "export").unwrap();
        std::fs::write(stacks.join("a.toml.bak"), stack("control = \"/elsewhere/bak\"\n")).unwrap();
        for name in ["b.control", "c.control", "b.sock"] {
            std::fs::write(run.join(name), "").unwrap();
        }
        let found: Vec<PathBuf> = sockets(&stacks, &run).into_iter().collect();
        assert_eq!(found, [PathBuf::from("/elsewhere/a.sock"), run.join("b.control"), run.join("c.control")]);
    }
}
