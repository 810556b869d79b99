//! Tests what a program says, to whom, and that it never waits for a reader: messages, signals, and names that are no text.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Nbd, Place, Server, dcd, expect, signal};

/// A stream whose reader reads nothing, and into which no more fits. The first end is the writer's.
fn full() -> (UnixStream, UnixStream) {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    for bytes in [vec![b'x'; 4096], vec![b'x']] {
        while writer.write(&bytes).is_ok() {}
    }
    writer.set_nonblocking(false).unwrap();
    (writer, reader)
}

fn stdio(stream: &UnixStream) -> Stdio {
    OwnedFd::from(stream.try_clone().unwrap()).into()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As many clients as a socket takes, and more: those are turned away, which is told.
fn crowd(place: &Place) -> Vec<UnixStream> {
    (0..104).map(|_| UnixStream::connect(place.path("nbd.sock")).unwrap()).collect()
}

#[test]
fn nothing_waits_for_a_reader_of_standard_error() {
    let place = Place::new();
    place.format();
    let (writer, _reader) = full();
    let mut command = place.dcd();
    command.arg("serve").arg(place.stack()).stdout(Stdio::null()).stderr(stdio(&writer));
    let server = Server { child: command.spawn().unwrap() };
    until("it listens", || Nbd::connect(&place.path("nbd.sock")).is_ok());
    let mut nbd = place.nbd();
    let crowd = crowd(&place);
    for _ in 0..100 {
        nbd.write(0, &[7; 4096]).unwrap();
        nbd.flush().unwrap();
    }
    expect(&place.run("status", &[]), 0, "cache: ");
    nbd.disconnect().unwrap();
    drop(crowd);
    expect(&server.stop(), 0, "");
}

#[test]
fn nothing_waits_for_a_reader_of_standard_output() {
    let place = Place::new();
    place.format();
    let (writer, _reader) = full();
    let mut command = place.dcd();
    command.arg("serve").arg(place.stack()).stdout(stdio(&writer)).stderr(Stdio::null());
    let server = Server { child: command.spawn().unwrap() };
    until("it listens", || Nbd::connect(&place.path("nbd.sock")).is_ok());
    let mut nbd = place.nbd();
    nbd.write(0, &[7; 4096]).unwrap();
    assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    nbd.disconnect().unwrap();
    expect(&place.run("status", &[]), 0, "cache: ");
    expect(&server.stop(), 0, "");
}

#[test]
fn the_journal_gets_a_priority_with_each_line_and_a_terminal_none() {
    let place = Place::new();
    let path = place.path("journal");
    for (is_journal, said) in [(true, "<3>dcd: "), (false, "dcd: ")] {
        let file = File::create(&path).unwrap();
        let about = file.metadata().unwrap();
        let stream = format!("{}:{}", about.dev(), about.ino() + u64::from(!is_journal));
        let status =
            dcd().args(["serve", "/nowhere.toml"]).env("JOURNAL_STREAM", stream).stderr(file).status();
        assert_eq!(status.unwrap().code(), Some(1));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| line.starts_with("<3>") == is_journal), "{text}");
        assert!(text.starts_with(said), "{text}");
    }
}

#[test]
fn signals_that_mean_nothing_to_a_server_leave_it_alone() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    for name in ["HUP", "USR1", "USR2", "ALRM"] {
        signal(&server.child, name);
        nbd.write(0, &[7; 4096]).unwrap();
        expect(&place.run("status", &[]), 0, "cache: ");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn clients_for_whom_no_descriptor_is_left_are_turned_away_and_the_stop_is_clean() {
    let place = Place::new();
    place.format();
    let mut command = Command::new("sh");
    let program = dcd().get_program().to_owned();
    command.args(["-c", "ulimit -n 40; exec \"$@\"", "sh"]).arg(program).args(["serve", "--quiet"]);
    command.arg(place.stack()).env("DCD_STATE_DIR", place.path("state")).env("DCD_MEMORY_DIR", "");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let server = Server { child };
    until("it listens", || Nbd::connect(&place.path("nbd.sock")).is_ok());
    let mut clients = Vec::new();
    while let Ok(client) = Nbd::connect(&place.path("nbd.sock")) {
        clients.push(client);
        assert!(clients.len() < 40, "one is turned away");
    }
    assert!(!clients.is_empty());
    for client in &mut clients {
        client.write(0, &[7; 4096]).unwrap();
    }
    clients.into_iter().for_each(|client| client.disconnect().unwrap());
    expect(&server.stop(), 0, "this process may open no more files for them");
}

/// A name that is no text in any encoding of Unicode.
fn latin(name: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(name)).to_owned()
}

fn serve(place: &Place, stack: &Path) -> Server {
    let mut command = place.dcd();
    command.args(["serve", "--quiet"]).arg(stack).current_dir(place.dir.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let server = Server { child };
    until("it listens", || Nbd::connect(&place.path("nbd.sock")).is_ok());
    server
}

#[test]
fn a_stack_file_whose_name_is_no_text_is_served_and_told_of() {
    let place = Place::new();
    place.format();
    let stack = place.path("").join(latin(b"latin\xe9.toml"));
    fs::rename(place.stack(), &stack).unwrap();
    let server = serve(&place, &stack);
    let run = |command: &[&str]| -> Output { place.dcd().args(command).arg(&stack).output().unwrap() };
    expect(&run(&["status"]), 0, "cache: ");
    expect(&run(&["status", "--json"]), 0, "latin\u{fffd}.toml");
    expect(&run(&["metrics"]), 0, "# EOF");
    expect(&run(&["flush"]), 0, "");
    expect(&server.stop(), 0, "");
}

#[test]
fn a_cache_in_a_directory_whose_name_is_no_text_is_made_and_served() {
    let place = Place::new();
    let directory = place.path("").join(latin(b"d\xe4"));
    fs::create_dir(&directory).unwrap();
    for name in ["log.img", "data.img", "stack.toml"] {
        fs::rename(place.path(name), directory.join(name)).unwrap();
    }
    let text = fs::read_to_string(directory.join("stack.toml")).unwrap();
    let sockets = |name: &str| place.path(name).display().to_string();
    let text = text.replace("unix:nbd.sock", &format!("unix:{}", sockets("nbd.sock")));
    let text = text.replace("\"control.sock\"", &format!("\"{}\"", sockets("control.sock")));
    fs::write(directory.join("stack.toml"), text).unwrap();
    let stack = directory.join("stack.toml");
    let run = |command: &[&str]| -> Output { place.dcd().args(command).arg(&stack).output().unwrap() };
    expect(&run(&["format"]), 0, "");
    let server = serve(&place, &stack);
    let mut nbd = place.nbd();
    nbd.write(0, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    expect(&run(&["status"]), 0, "cache: ");
    server.kill();
    let server = serve(&place, &stack);
    assert_eq!(place.nbd().read(0, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
    for command in ["check", "detach"] {
        expect(&run(&[command]), 0, "");
    }
}

#[test]
fn a_command_that_fences_ends_with_the_start_that_waits_for_it() {
    let mut place = Place { machine: Some("first"), ..Place::new() };
    place.format();
    let server = place.serve();
    place.nbd().write(0, &[7; 4096]).unwrap();
    server.kill();
    place.machine = Some("second");
    let file = place.path("fences");
    let fence = format!("sleep 1000 & echo $! > '{0}.new'; mv '{0}.new' '{0}'; wait", file.display());
    let mut command = place.dcd();
    command.arg("serve").arg(place.stack()).args(["--take-over", "--fence", &fence]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let server = Server { child };
    until("it fences", || file.exists());
    let process = fs::read_to_string(&file).unwrap();
    let runs = || Path::new("/proc").join(process.trim()).join("exe").exists();
    assert!(runs());
    expect(&server.stop(), 1, "was ended, and nothing was changed");
    until("nothing of it is left", || !runs());
}
