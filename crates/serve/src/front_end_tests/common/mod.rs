//! A device in memory and the smallest driver that can carry a front-end to real clients, so that these tests show the
//! front-end's faults and nobody else's. And what a test needs to run tools that may not be there.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dcd_engine::{ErrorKind, Extent, Geometry, Io, IoError, IoResult, SectorState};
use dcd_io::{Actions, FrontEnd, MappedRun, OutputPiece};
use rustix::event::{PollFd, PollFlags, Timespec};

/// A device in memory, shared by all clients.
pub struct Disk {
    pub bytes: Mutex<Vec<u8>>,
    pub flushes: AtomicU64,
    pub durable: AtomicU64,
    pub discards: AtomicU64,
    pub zeroes: AtomicU64,
    /// The most requests that came in at once while the disk was slow.
    pub batch_max: AtomicU64,
    /// A slow disk lets requests gather for a while before it looks at them.
    pub slow: AtomicBool,
    /// Every request fails with this while it is set.
    pub failing: Mutex<Option<ErrorKind>>,
}

impl Disk {
    pub fn new(bytes: usize) -> Arc<Disk> {
        Arc::new(Disk {
            bytes: Mutex::new(vec![0; bytes]),
            flushes: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            zeroes: AtomicU64::new(0),
            batch_max: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            failing: Mutex::new(None),
        })
    }

    pub fn geometry(&self, logical_block_bytes: u32) -> Geometry {
        let sectors = self.bytes.lock().unwrap().len() as u64 / 512;
        Geometry {
            logical_block_bytes,
            discards: dcd_engine::Discards::Zero,
            fast_zeroes: true,
            ..Geometry::plain(sectors)
        }
    }

    pub fn run(&self, mut io: Io) -> IoResult {
        if let Some(kind) = *self.failing.lock().unwrap() {
            return IoResult::err(io.take_buf(), IoError::new(kind));
        }
        let range = io.extent().map(|e| e.start.bytes() as usize..e.end().bytes() as usize);
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let mut bytes = self.bytes.lock().unwrap();
        match (&mut io, range) {
            (Io::Read { buf, .. }, Some(range)) => buf.bytes_mut().copy_from_slice(&bytes[range]),
            (Io::Write { buf, durability, .. }, Some(range)) => {
                bytes[range].copy_from_slice(buf.bytes());
                if *durability == dcd_engine::Durability::Durable {
                    count(&self.durable);
                }
            }
            (Io::Discard { .. }, Some(range)) => {
                bytes[range].fill(0);
                count(&self.discards);
            }
            (Io::WriteZeroes { .. }, Some(range)) => {
                bytes[range].fill(0);
                count(&self.zeroes);
            }
            _ => {
                count(&self.flushes);
            }
        }
        IoResult::ok(io.take_buf())
    }
}

/// States of the first sectors of an extent: those of zeroes are holes.
pub fn zero_runs(disk: &[u8], extent: Extent, runs_max: usize) -> Vec<MappedRun> {
    let mut runs: Vec<MappedRun> = Vec::new();
    let bytes = &disk[extent.start.bytes() as usize..extent.end().bytes() as usize];
    for sector in bytes.chunks(512) {
        let is_zero = sector.iter().all(|byte| *byte == 0);
        let state = if is_zero { SectorState::Hole } else { SectorState::Data };
        let is_full = runs.len() == runs_max;
        match runs.last_mut() {
            Some(last) if last.state == state => last.sectors += 1,
            _ if is_full => break,
            _ => runs.push(MappedRun { sectors: 1, state }),
        }
    }
    runs
}

/// Serves sessions on a unix socket, a thread a client.
pub struct Server {
    pub directory: tempfile::TempDir,
    pub socket: PathBuf,
}

impl Server {
    /// The threads end with their clients, and the one that listens with the process.
    pub fn start<S: FrontEnd>(disk: &Arc<Disk>, connect: impl Fn() -> S + Send + Sync + 'static) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (disk, connect) = (Arc::clone(disk), Arc::new(connect));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (disk, connect) = (Arc::clone(&disk), Arc::clone(&connect));
                thread::spawn(move || serve(&mut connect(), stream.unwrap(), &disk));
            }
        });
        Server { directory, socket }
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

/// Carries one client until it or the session ends the connection.
fn serve(session: &mut dyn FrontEnd, mut stream: UnixStream, disk: &Disk) {
    let mut actions = Actions::default();
    session.start(&mut actions);
    let mut bytes = vec![0; 256 << 10];
    loop {
        // Every other request is answered last, so that clients see replies out of their order.
        while !actions.requests.is_empty() || !actions.maps.is_empty() {
            for map in std::mem::take(&mut actions.maps) {
                let runs = zero_runs(&disk.bytes.lock().unwrap(), map.extent, map.runs_max);
                session.mapped(map.token, &runs, &mut actions);
            }
            let last = actions.requests.pop();
            for (token, io) in std::mem::take(&mut actions.requests).into_iter().chain(last) {
                session.reply(token, disk.run(io), &mut actions);
            }
        }
        if send(session, &mut stream, &mut actions).is_err() || actions.close {
            return;
        }
        if !actions.requests.is_empty() || !actions.maps.is_empty() {
            continue;
        }
        assert!(!session.condition().is_saturated, "nothing is in flight");
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(read) => session.receive(&bytes[..read], &mut actions),
        }
    }
}

fn send(session: &mut dyn FrontEnd, stream: &mut UnixStream, actions: &mut Actions) -> io::Result<()> {
    for piece in std::mem::take(&mut actions.send) {
        match piece {
            OutputPiece::Bytes(bytes) => stream.write_all(&bytes)?,
            OutputPiece::Buf(buf) => {
                stream.write_all(buf.bytes())?;
                session.sent(buf, actions);
            }
        }
    }
    Ok(())
}

/// Carries a front-end with a bell on a thread until it is stopped; the front-end is dropped there.
pub struct SourceDriver {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl SourceDriver {
    pub fn start(disk: &Arc<Disk>, mut source: impl FrontEnd + Send + 'static) -> SourceDriver {
        let stop = Arc::new(AtomicBool::new(false));
        let (disk, stopped) = (Arc::clone(disk), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut bell = [PollFd::from_borrowed_fd(source.bell().unwrap(), PollFlags::IN)];
                let turn = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                rustix::event::poll(&mut bell, Some(&turn)).unwrap();
                if disk.slow.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                let mut actions = Actions::default();
                source.rang(&mut actions);
                disk.batch_max.fetch_max(actions.requests.len() as u64, Ordering::Relaxed);
                while !actions.requests.is_empty() {
                    for (token, io) in std::mem::take(&mut actions.requests).into_iter().rev() {
                        source.reply(token, disk.run(io), &mut actions);
                    }
                }
            }
        });
        SourceDriver { stop, thread: Some(thread) }
    }

    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the source's driver ends well");
        }
    }
}

impl Drop for SourceDriver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Says that a test did nothing, and why: on the real standard error, which the test runner does not hide.
pub fn skip(reason: &str) {
    let _ = writeln!(io::stderr(), "SKIPPED: {reason}");
}

/// Finds a program, or says that the test is skipped.
pub fn tool(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

/// Runs a program to its end, with a limit of a minute.
pub fn run(program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(args).env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin");
    command.output().expect("a program that is there can be started")
}

/// Runs a program that must succeed; returns what it printed.
pub fn run_ok(program: &Path, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{} {args:?}: {}\n{text}\n{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Bytes that differ from sector to sector.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}
