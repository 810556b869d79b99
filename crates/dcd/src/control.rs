//! Connects commands to a running server.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dcd_io::loop_file;
use dcd_serve::control::ClientError;
pub use dcd_serve::control::ControlClient;
use dcd_stack::StackFile;
use serde_json::{Value, json};

use crate::advice::Advised;
use crate::commands::Offered;
use crate::failure::Failure;
use crate::session::devices::patiently;
use crate::session::serving::status::ServerStatus;

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// The control socket that a stack file names, or the socket itself.
fn socket(path: &Path) -> Result<PathBuf, Failure> {
    if is_socket(path) {
        return Ok(path.to_owned());
    }
    let file = match StackFile::load(path) {
        Ok(file) => file,
        // The server may still run with an earlier text of this file.
        Err(error) => {
            let usual = || stack_name(path).map(|name| sockets_dir().join(format!("{name}.control")));
            let control = StackFile::control_of(path).or_else(|| usual().filter(|socket| is_socket(socket)));
            let control = control.ok_or_else(|| Failure::from(error.clone()))?;
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
pub fn connect(path: &Path) -> Result<ControlClient, Failure> {
    own(connect_to(&socket(path)?)?, path)
}

/// Connects to the server of a stack file; none where there is no server.
pub fn connect_if_served(path: &Path) -> Result<Option<ControlClient>, Failure> {
    match ControlClient::connect(&socket(path)?) {
        Err(ClientError::NotServed { .. }) => Ok(None),
        connected => own(connected.map_err(explained)?, path).map(Some),
    }
}

/// Returns a connection if it leads to the server of this stack file, or if the socket itself was named.
fn own(mut client: ControlClient, path: &Path) -> Result<ControlClient, Failure> {
    if !is_socket(path) {
        let status = ask(&mut client, "status", json!({}))?;
        admit_server(&status, path)?;
    }
    Ok(client)
}

/// Refuses the server of another stack: a stack file that was copied still names the control socket of the first one. `status`: what the
/// server says of itself.
fn admit_server(status: &Value, path: &Path) -> Result<(), Failure> {
    let Some(served) = status["stack"].as_str().map(Path::new) else { return Ok(()) };
    let real = |path: &Path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    let file = StackFile::load(path).ok();
    let devices = file.iter().flat_map(|file| &file.devices).map(|device| device.source.absolute_place());
    let named: BTreeSet<_> = devices.map(|place| real(&place.ok()??)).collect();
    let used = status["devices"].as_array().into_iter().flatten();
    let used: BTreeSet<_> = used.map(|device| real(Path::new(device["path"].as_str()?))).collect();
    // A file that was moved, or another name of it, has the same devices.
    let has_its_devices = named == used && !named.is_empty() && !named.contains(&None);
    // A name that is no text is told as well as it can be.
    let is_told =
        std::path::absolute(path).is_ok_and(|path| path.to_string_lossy() == served.to_string_lossy());
    if is_told || real(path) == real(served) || has_its_devices {
        return Ok(());
    }
    let (path, served) = (path.display(), served.display());
    Err(Failure::refused(
        format!("{path}: the server on its control socket serves another stack file, {served}"),
        format!(
            "nothing was done. If both are to be served, give {path} a control socket of its own: control = \"PATH\" in [serve]. To reach that \
             server, name {served}; if that file was moved, name the control socket in its place"
        ),
    ))
}

/// The server of a stack, if it is served. The kernel takes some milliseconds to close the socket of a killed one.
pub fn server_of(file: &StackFile) -> Result<Option<ControlClient>, Failure> {
    let Some(path) = &file.serve.control else { return Ok(None) };
    let connected = patiently(
        || {
            let mut client = ControlClient::connect(path)?;
            let status = ask(&mut client, "status", json!({}))?;
            Ok((client, status))
        },
        |error| matches!(error, ClientError::Io { .. } | ClientError::Closed { .. }),
    );
    match connected {
        Ok((client, status)) => admit_server(&status, &file.path).map(|()| Some(client)),
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
    Err(Failure::Busy(format!("{path}: it is served: stop its server, {what}, and serve it again")))
}

/// Connects to a control socket.
pub fn connect_to(socket: &Path) -> Result<ControlClient, Failure> {
    ControlClient::connect(socket).map_err(explained)
}

/// The control sockets of these stack files; without any, of the servers that run.
pub fn sockets_of(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if !files.is_empty() {
        return files.iter().map(|file| socket(file)).collect();
    }
    for directory in [stacks_dir(), sockets_dir()] {
        let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        if std::fs::read_dir(&directory).is_err_and(denied) {
            return Err(Failure::Failed(format!("{}: permission denied: run as root", directory.display())));
        }
    }
    let found: Vec<PathBuf> = sockets(&stacks_dir(), &sockets_dir()).into_iter().collect();
    let runs = at_once(&found, |socket| {
        !matches!(ControlClient::connect(socket), Err(ClientError::NotServed { .. }))
    });
    Ok(found.into_iter().zip(runs).filter_map(|(socket, runs)| runs.then_some(socket)).collect())
}

/// Runs `each` on one thread an item, so that all servers that do not answer cost one timeout together.
pub fn at_once<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

/// Directory of the stack files that have a name; `DCD_STACK_DIR` names another one.
pub fn stacks_dir() -> PathBuf {
    std::env::var_os("DCD_STACK_DIR").map_or_else(|| "/etc/dcd".into(), PathBuf::from)
}

/// Directory of the sockets of these stacks; `DCD_RUN_DIR` names another one.
pub fn sockets_dir() -> PathBuf {
    std::env::var_os("DCD_RUN_DIR").map_or_else(|| "/run/dcd".into(), PathBuf::from)
}

/// Returns the file of a stack that was typed as a path, which has a slash or ends in ".toml", or as a name.
///
/// # Errors
/// In words, for a name that no stack can have.
pub fn new_stack_path(typed: OsString) -> Result<PathBuf, String> {
    let bytes = typed.as_encoded_bytes();
    if bytes.contains(&b'/') || bytes.ends_with(b".toml") {
        return Ok(typed.into());
    }
    match typed.to_str().filter(|name| is_stack_name(name)) {
        Some(name) => Ok(stacks_dir().join(format!("{name}.toml"))),
        None => Err("it is no name of a stack, which has letters, digits, \"_\" and \".\" only and does not begin with \".\", and no \
                     path, which has a slash or ends in \".toml\""
            .to_owned()),
    }
}

/// Returns the file of a stack that exists.
///
/// # Errors
/// In words, where there is no stack of that name.
pub fn stack_path(typed: OsString) -> Result<PathBuf, String> {
    let here = match Path::new(&typed).exists() {
        true => format!("; for the file of this directory write ./{}", typed.display()),
        false => String::new(),
    };
    let path = new_stack_path(typed.clone()).map_err(|why| why + &here)?;
    if path.as_os_str() != typed && !path.exists() {
        return Err(format!(
            "there is no {}: \"dcd list\" shows the stacks, and the disks of each{here}",
            path.display()
        ));
    }
    Ok(path)
}

/// True for a name that systemd would not escape: it would not find the unit for a device of such a name.
fn is_stack_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    !name.is_empty() && name.chars().all(is_plain) && !name.starts_with('.')
}

/// Asks the servers of these stack files, all in parallel; without any file, the running servers that are found by the stack files in
/// /etc/dcd and the control sockets in /run/dcd.
pub fn ask_all<T: Send>(
    files: &[PathBuf],
    ask: impl Fn(&mut ControlClient) -> Result<T, Failure> + Sync,
) -> Vec<Result<T, Failure>> {
    if !files.is_empty() {
        return at_once(files, |file| ask(&mut connect(file)?));
    }
    let found: Vec<PathBuf> = sockets(&stacks_dir(), &sockets_dir()).into_iter().collect();
    let asked = at_once(&found, |socket| match ControlClient::connect(socket) {
        Err(ClientError::NotServed { .. }) => None,
        client => Some(client.map_err(explained).and_then(|mut client| ask(&mut client))),
    });
    asked.into_iter().flatten().collect()
}

/// Finds the server that has a file or block device open, among those that [`ask_all`] finds: its stack file, and its process.
pub fn server_with(path: &Path) -> Option<(PathBuf, Option<i32>)> {
    let id = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        let is_block = about.file_type().is_block_device();
        // A loop device stands for its file.
        if is_block && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("loop")) {
            let file = std::fs::File::open(path).and_then(|node| loop_file(&node)).ok()??;
            return Some((false, (file.device, file.inode)));
        }
        Some((is_block, if is_block { (0, about.rdev()) } else { (about.dev(), about.ino()) }))
    };
    let wanted = id(path)?;
    let found = ask_all(&[], |client| {
        let status = ServerStatus::ask(client)?;
        let has = status.devices.iter().any(|device| id(Path::new(&device.path)) == Some(wanted));
        Ok(has.then(|| (status.stack, client.server_process())))
    });
    found.into_iter().find_map(|found| found.ok().flatten())
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

/// Name of a stack in /dev/dcd: that of its file in /etc/dcd; none for a file elsewhere, or of another name.
pub fn stack_name(file: &Path) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let is_there = file.parent() == Some(&stacks_dir()) && file.extension().is_some_and(|e| e == "toml");
    let name = file.file_stem().filter(|_| is_there)?.to_str()?;
    is_stack_name(name).then(|| name.to_owned())
}

/// Returns a stack as commands take it: its name where it has one, else the path of its file.
pub fn stack_argument(file: &Path) -> String {
    stack_name(file).unwrap_or_else(|| file.display().to_string())
}

/// Stack files for a command that names none.
pub fn stack_files() -> Vec<PathBuf> {
    files(&stacks_dir(), "toml")
}

/// The names of the stacks in /etc/dcd, which complete a STACK.
pub const STACK_NAMES: Offered =
    ("STACK", || stack_files().iter().filter_map(|file| stack_name(file)).collect());

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
pub fn ask(client: &mut ControlClient, verb: &str, args: Value) -> Result<Value, ClientError> {
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
    fn a_stack_is_typed_as_a_name_or_a_path() {
        let new = |typed: &str| new_stack_path(typed.into());
        assert_eq!(new("srv"), Ok("/etc/dcd/srv.toml".into()));
        for path in ["disk.toml", "./disk", "/run/dcd/disk.control", "/dev/sdb", "nbd://host/disk"] {
            assert_eq!(new(path), Ok(path.into()));
        }
        for odd in ["", "-x", "a-b", "a b", ".hidden", "ä", "a\nb"] {
            assert!(new(odd).unwrap_err().contains("no name of a stack"), "{odd}");
        }
        assert!(stack_path("nobody_has_this".into()).unwrap_err().contains("\"dcd list\""));
        assert!(stack_path("src".into()).unwrap_err().contains("write ./src"), "in this crate's directory");
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
