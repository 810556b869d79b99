//! Common code of the program's tests: a directory with disks, servers that are stopped when a test ends, a client.
#![allow(dead_code, reason = "each test uses its part")]

pub mod array;
pub mod nbd;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use nbd::Nbd;

pub const MIB: u64 = 1 << 20;

/// The program under test: the laboratory's tests run theirs, which has the same commands.
pub fn dcd() -> Command {
    Command::new(option_env!("CARGO_BIN_EXE_dcd").or(option_env!("CARGO_BIN_EXE_dcd-lab")).unwrap())
}

/// A directory with a log of 8 MiB, a data disk of 16 MiB full of known bytes, and a stack file for them.
pub struct Place {
    pub dir: tempfile::TempDir,
    /// The machine that its programs run on; none: this one.
    pub machine: Option<&'static str>,
    /// Directory in RAM for memory that outlives servers; none where the machine has none.
    pub memory: Option<tempfile::TempDir>,
}

impl Place {
    pub fn new() -> Place {
        // Beside the build, as a RAM disk may not know O_DIRECT.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = Place { dir, machine: None, memory: tempfile::tempdir_in("/dev/shm").ok() };
        File::create(place.path("log.img")).unwrap().set_len(8 * MIB).unwrap();
        fs::write(place.path("data.img"), original(16 * MIB)).unwrap();
        place.write_stack("");
        place
    }

    /// The stack file, with more settings for the cache.
    pub fn write_stack(&self, cache: &str) {
        self.write_stack_with("cache", cache, "");
    }

    pub fn write_stack_with(&self, export: &str, cache: &str, more: &str) {
        let text = format!(
            "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
             [device.log]\npath = \"log.img\"\n[device.data]\npath = \"data.img\"\n\
             [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\n{cache}\n{more}\n"
        );
        fs::write(self.stack(), text).unwrap();
    }

    /// Has servers start on a machine on which no memory outlives them.
    pub fn without_memory(mut self) -> Place {
        self.memory = None;
        self
    }

    /// More settings for the front-ends.
    pub fn add_to_serve(&self, more: &str) {
        let text = fs::read_to_string(self.stack()).unwrap();
        fs::write(self.stack(), text.replacen("[serve]\n", &format!("[serve]\n{more}"), 1)).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn stack(&self) -> PathBuf {
        self.path("stack.toml")
    }

    pub fn record(&self) -> PathBuf {
        self.path("data.img.dcd")
    }

    /// Has the data disk come from another host, where its record has stayed.
    pub fn move_data(&self) {
        fs::remove_file(self.record()).unwrap();
        fs::copy(self.path("data.img"), self.path("moved.img")).unwrap();
        fs::rename(self.path("moved.img"), self.path("data.img")).unwrap();
    }

    /// Runs a command on the stack file.
    pub fn run(&self, command: &str, more: &[&str]) -> Output {
        self.dcd().arg(command).arg(self.stack()).args(more).output().unwrap()
    }

    /// The program, with a state directory of its own.
    pub fn dcd(&self) -> Command {
        let mut dcd = dcd();
        dcd.env("DCD_STATE_DIR", self.path("state"));
        let memory = self.memory.as_ref().filter(|_| self.machine.is_none());
        dcd.env("DCD_MEMORY_DIR", memory.map_or(Path::new(""), |memory| memory.path()));
        if let Some(machine) = self.machine {
            dcd.env("DCD_MACHINE", machine);
        }
        dcd
    }

    pub fn format(&self) {
        expect(&self.run("format", &[]), 0, "");
    }

    pub fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    pub fn serve_with(&self, more: &[&str]) -> Server {
        Server::start(self, more).unwrap_or_else(|output| panic!("{}", describe(&output)))
    }

    pub fn nbd(&self) -> Nbd {
        Nbd::connect(&self.path("nbd.sock")).unwrap()
    }

    /// The data disk without its cache.
    pub fn bare(&self) -> Vec<u8> {
        fs::read(self.path("data.img")).unwrap()
    }
}

/// Initial content of a data disk: different in every sector.
pub fn original(bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|word| (word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).collect()
}

/// A running server; killed when it is dropped.
pub struct Server {
    pub child: Child,
}

impl Server {
    /// Starts a server and waits until clients can connect; the output of one that ended instead.
    pub fn start(place: &Place, more: &[&str]) -> Result<Server, Output> {
        let mut command = place.dcd();
        command.arg("serve").arg("--quiet").arg(place.stack()).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            return Err(child.wait_with_output().unwrap());
        }
        Ok(Server { child })
    }

    /// A clean stop; the server's exit code and what it said.
    pub fn stop(self) -> Output {
        signal(&self.child, "TERM");
        self.wait()
    }

    /// Waits until a server that was told to stop has ended.
    pub fn wait(mut self) -> Output {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        let child = std::mem::replace(&mut self.child, Command::new("true").spawn().unwrap());
        child.wait_with_output().unwrap()
    }

    /// No clean stop at all.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap();
    assert!(status.success());
}

fn describe(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("exit {:?}\n--- stdout\n{out}\n--- stderr\n{err}", output.status.code())
}

/// Asserts on the exit code, and on a part of what was said.
pub fn expect(output: &Output, code: i32, said: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", describe(output));
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    // Some commands break long texts into lines.
    let joined = all.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(all.contains(said) || joined.contains(said), "\"{said}\" is not in: {}", describe(output));
}

/// A small file system in memory, gone when it is dropped.
pub struct SmallFs {
    dir: tempfile::TempDir,
}

impl SmallFs {
    /// None, with a line that says so, where it cannot be mounted.
    pub fn mount(test: &str, bytes: u64) -> Option<SmallFs> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let size = format!("size={bytes}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallFs { dir });
        }
        skip(&format!("{test}: a tmpfs cannot be mounted here"));
        None
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Leaves no byte of it free.
    pub fn fill(&self) {
        let mut file = File::create(self.path("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

/// Says that a test is skipped, past the test runner, which would keep it to itself.
pub fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// The path of a tool, or a line that says that the test is skipped for want of it.
pub fn tool(test: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    if found.is_none() {
        skip(&format!("{test}: {name} is not installed"));
    }
    found
}
