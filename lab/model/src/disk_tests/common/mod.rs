//! A small driver for one disk over memory: it keeps a clock, wakes the disk at its deadlines, and carries out what the
//! disk hands down, at once.

use dcd_engine::{
    Buf, Command, Cx, Durability, ErrorKind, Event, Extent, Geometry, Io, IoError, IoResult, Layer, Lba,
    Nanos, Port, Ports, Request, RequestId,
};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A drive with round numbers: 10 ms for a revolution, 0.1 ms for a sector, 0.01 ms for a sector on the bus.
pub const ROUND: &str = r#"
name = "round"
description = "Round numbers, for tests"
rpm = 6000
heads = 2
queue-depth = 32
bus-mb-per-s = 51.2
head-switch-ms = 0.5
write-settle-ms = 0.3
seek-ms = [[1, 1.0], [99, 10.8]]
zones = [[100, 100, 10, 20]]
[overhead-ms]
read-hit = [0.1, 0.1]
read = [0.2, 0.2]
write = [0.3, 0.3]
[cache]
segments = 2
segment-sectors = 64
read-ahead-sectors = 64
write-segments = 1
"#;

pub fn round() -> Drive {
    Drive::parse(ROUND).expect("the drive of the tests is right")
}

pub fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Operation that the disk handed down: name, place, time.
pub type Handed = (&'static str, Option<Extent>, Nanos);

pub struct Bench<L = Disk> {
    pub disk: L,
    pub now: Nanos,
    pub handed: Vec<Handed>,
    pub durable_writes: usize,
    /// The bytes below; empty: there are none, only lengths.
    pub memory: Vec<u8>,
    /// Operations from this number on fail.
    pub fail_from: usize,
    /// Delay of every wake-up.
    pub late: Nanos,
    pub replies: Vec<(u64, Nanos, IoResult)>,
    next_id: u64,
}

struct BelowGeometry(Geometry);

impl Ports for BelowGeometry {
    fn geometry(&self, port: Port) -> Geometry {
        assert_eq!(port, Port(0));
        self.0
    }

    fn run(&mut self, _port: Port, _io: Io) -> IoResult {
        panic!("a disk does nothing while it is activated");
    }
}

pub fn activate(disk: &mut impl Layer, below: Geometry) -> Result<(), String> {
    disk.activate(&mut BelowGeometry(below)).map_err(|e| e.to_string())
}

impl Bench {
    /// A whole drive over nothing but lengths.
    pub fn new(drive: Drive, queue: Scheduler) -> Bench {
        let sectors = drive.sectors();
        Bench::over(Disk::with_drive(drive, &DiskConfig { queue, ..DiskConfig::default() }), sectors)
    }
}

impl<L: Layer> Bench<L> {
    pub fn over(mut disk: L, sectors: u64) -> Bench<L> {
        activate(&mut disk, Geometry::plain(sectors)).expect("the drive fits itself");
        Bench {
            disk,
            now: Nanos::ZERO,
            handed: Vec::new(),
            durable_writes: 0,
            memory: Vec::new(),
            fail_from: usize::MAX,
            late: Nanos::ZERO,
            replies: Vec::new(),
            next_id: 0,
        }
    }

    pub fn with_memory(mut self) -> Bench<L> {
        self.memory = vec![0; self.disk.geometry().sectors as usize * 512];
        self
    }

    pub fn send(&mut self, io: Io) -> u64 {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.event(Event::Request(Request { id, disk: 0, io }));
        self.next_id
    }

    pub fn read(&mut self, lba: u64, sectors: usize) -> u64 {
        self.send(Io::Read { at: Lba(lba), buf: Buf::blank(sectors * 512) })
    }

    pub fn write(&mut self, lba: u64, sectors: usize) -> u64 {
        self.send(Io::Write {
            at: Lba(lba),
            buf: Buf::blank(sectors * 512),
            durability: Durability::Volatile,
        })
    }

    /// Sends one request and waits for its end: how long it took, on the disk's timeline.
    pub fn timed(&mut self, send: impl FnOnce(&mut Bench<L>) -> u64) -> Nanos {
        let begin = self.now;
        let id = send(self);
        while !self.replies.iter().any(|(replied, ..)| *replied == id) {
            self.step();
        }
        self.now.since(begin)
    }

    /// Lets the clock go to the next deadline; false where there is none.
    pub fn step(&mut self) -> bool {
        let Some(deadline) = self.disk.next_deadline() else { return false };
        self.now = self.now.max(deadline + self.late);
        self.event(Event::Wake);
        true
    }

    pub fn drain(&mut self) {
        while self.step() {}
    }

    /// Lets time pass and the disk do what it does in it.
    pub fn rest(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.disk.next_deadline().is_some_and(|deadline| deadline <= until) {
            self.step();
        }
        self.now = until;
    }

    pub fn event(&mut self, event: Event) {
        let mut cx = Cx::default();
        self.disk.handle(event, cx.at(self.now));
        self.disk.check();
        self.disk.check_progress(self.now, !cx.commands.is_empty());
        for command in cx.commands {
            match command {
                Command::Submit { port, op, io } => {
                    assert_eq!(port, Port(0));
                    let result = self.carry_out(io);
                    self.event(Event::Completed { op, result });
                }
                Command::Reply { id, result } => self.replies.push((id.0, self.now, result)),
                Command::Report(report) => panic!("a disk reports nothing: {report:?}"),
            }
        }
    }

    fn carry_out(&mut self, io: Io) -> IoResult {
        self.handed.push((io.name(), io.extent(), self.now));
        if self.handed.len() > self.fail_from {
            let extent = io.extent().unwrap_or(Extent::new(Lba(0), 0));
            return IoResult::err(io.take_buf(), IoError::at(ErrorKind::Medium, extent));
        }
        match io {
            Io::Read { at, mut buf } | Io::ReadCopy { at, mut buf, .. } => {
                if !buf.is_blank() {
                    let len = buf.len();
                    buf.bytes_mut().copy_from_slice(&self.memory[at.bytes() as usize..][..len]);
                }
                IoResult::ok(buf)
            }
            Io::Write { at, buf, durability } => {
                self.durable_writes += usize::from(durability == Durability::Durable);
                if !buf.is_blank() {
                    self.memory[at.bytes() as usize..][..buf.len()].copy_from_slice(buf.bytes());
                }
                IoResult::ok(buf)
            }
            Io::WriteZeroes { extent, .. } => {
                if !self.memory.is_empty() {
                    let (start, end) = (extent.start.bytes() as usize, extent.end().bytes() as usize);
                    self.memory[start..end].fill(0);
                }
                IoResult::ok(Buf::none())
            }
            other => IoResult::ok(other.take_buf()),
        }
    }

    /// Keeps `depth` random requests in flight until `count` have been answered; the times of all answers.
    pub fn random_load(
        &mut self,
        seed: u64,
        depth: usize,
        count: usize,
        sectors: u64,
        read_part: f64,
    ) -> Vec<Nanos> {
        let mut random = random(seed);
        let places = self.disk.geometry().sectors / sectors;
        let mut sent = 0;
        while self.replies.len() < count {
            while sent < count && sent - self.replies.len() < depth {
                let lba = random.random_range(0..places) * sectors;
                match random.random_bool(read_part) {
                    true => self.read(lba, sectors as usize),
                    false => self.write(lba, sectors as usize),
                };
                sent += 1;
            }
            self.step();
        }
        self.replies.iter().map(|(_, at, _)| *at).collect()
    }

    /// The answer to a request.
    pub fn status_of(&self, id: u64) -> Option<Result<(), IoError>> {
        self.replies.iter().find(|(replied, ..)| *replied == id).map(|(_, _, result)| result.status)
    }
}
