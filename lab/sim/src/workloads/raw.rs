//! Requests without a file system: random writes of one size (Nightingale et al. 1999, Fig. 10), and streams that read in
//! order (Zhu and Hu 2003, Fig. 3), on the device or in files.

use dcd_engine::{Buf, Durability, Io, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack};
use dcd_model::ffs::{Done, Ino, Op};

use super::host::{Host, Program};
use super::measured::{Measured, Phase, Requests};
use super::{RunError, host};
use crate::{Progress, SimDevice, SimRng, VirtualDriver};

/// Streams begin at a multiple of it.
const BLOCK_BYTES: u64 = 8 << 10;

/// Writes of one size at random places, each waited for; the phase "writes".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWrites {
    pub unit_bytes: u64,
    /// The paper: 20 MB.
    pub total_bytes: u64,
    /// How many are under way at once (the paper: one, through the raw device).
    pub depth: u64,
}

impl Default for RawWrites {
    fn default() -> Self {
        RawWrites { unit_bytes: 4 << 10, total_bytes: 20_000_000, depth: 1 }
    }
}

/// Streams that each read their own stretch in order, all at once; the phase "streams".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// The paper: nine of 64 KB.
    pub streams: u64,
    pub bytes: u64,
    pub request_bytes: u64,
    pub place: Place,
    pub turns: Turns,
    /// What a stream does between two requests; in a trace, what the host does.
    pub think: Nanos,
}

/// Who asks when, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// Every stream as soon as it has its last answer.
    Together,
    /// One request at a time, of any stream that is not through: as a trace has them that is played.
    Trace,
}

/// Where streams read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the device itself: the stretches begin so many bytes behind one another, from a place that the seed gives.
    Device { apart: u64 },
    /// In one file each, with cold caches.
    Files,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            streams: 9,
            bytes: 64 << 10,
            request_bytes: 8 << 10,
            place: Place::Files,
            turns: Turns::Together,
            think: Nanos::ZERO,
        }
    }
}

/// A client on the device: its next request, when its last has ended.
trait Client {
    fn next(&mut self) -> Option<Io>;
}

struct RandomWriter {
    left: u64,
    unit_bytes: u64,
    places: u64,
    rng: SimRng,
}

impl Client for RandomWriter {
    fn next(&mut self) -> Option<Io> {
        self.left = self.left.checked_sub(1)?;
        let at = Lba(self.rng.below(self.places) * (self.unit_bytes / SECTOR_BYTES));
        Some(Io::Write { at, buf: Buf::blank(self.unit_bytes as usize), durability: Durability::Durable })
    }
}

struct Reader {
    at: Lba,
    left: u64,
    request_bytes: u64,
}

/// Streams in a trace: whose turn it is, is drawn.
struct TraceReader {
    streams: Vec<Reader>,
    rng: SimRng,
}

impl Client for TraceReader {
    fn next(&mut self) -> Option<Io> {
        self.streams.retain(|stream| stream.left > 0);
        let count = self.streams.len() as u64;
        let turn = if count == 0 { return None } else { self.rng.below(count) };
        self.streams[turn as usize].next()
    }
}

impl Client for Reader {
    fn next(&mut self) -> Option<Io> {
        let bytes = self.left.min(self.request_bytes);
        if bytes == 0 {
            return None;
        }
        let at = self.at;
        self.at = at + bytes / SECTOR_BYTES;
        self.left -= bytes;
        Some(Io::Read { at, buf: Buf::blank(bytes as usize) })
    }
}

impl RawWrites {
    pub(super) fn run<D: SimDevice>(
        &self,
        stack: &mut Stack,
        driver: &mut VirtualDriver<D>,
        seed: u64,
    ) -> Result<Measured, RunError> {
        let sectors = stack.geometry(stack.root()).sectors;
        let count = self.total_bytes.div_ceil(self.unit_bytes);
        let mut rng = SimRng::new(seed);
        let mut clients: Vec<RandomWriter> = (0..self.depth)
            .map(|index| RandomWriter {
                left: count / self.depth + u64::from(index < count % self.depth),
                unit_bytes: self.unit_bytes,
                places: sectors * SECTOR_BYTES / self.unit_bytes,
                rng: rng.fork(),
            })
            .collect();
        raw_phase(stack, driver, "writes", &mut clients, Nanos::ZERO)
    }
}

impl Streams {
    pub(super) fn run_raw<D: SimDevice>(
        &self,
        stack: &mut Stack,
        driver: &mut VirtualDriver<D>,
        apart: u64,
        seed: u64,
    ) -> Result<Measured, RunError> {
        let device = stack.geometry(stack.root()).sectors * SECTOR_BYTES;
        let mut rng = SimRng::new(seed);
        let behind = device.checked_sub(apart * (self.streams - 1) + self.bytes).ok_or(RunError::NoRoom)?;
        let first = rng.below(behind / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let reader = |stream| Reader {
            at: Lba((first + stream * apart) / SECTOR_BYTES),
            left: self.bytes,
            request_bytes: self.request_bytes,
        };
        let streams = (0..self.streams).map(reader);
        match self.turns {
            Turns::Together => {
                let mut clients: Vec<Reader> = streams.collect();
                raw_phase(stack, driver, "streams", &mut clients, self.think)
            }
            Turns::Trace => {
                let client = TraceReader { streams: streams.collect(), rng };
                raw_phase(stack, driver, "streams", &mut [client], self.think)
            }
        }
    }

    pub(super) fn run_files<D: SimDevice>(&self, host: &mut Host<D>) -> Result<Measured, RunError> {
        for stream in 0..self.streams {
            // A directory each, so that the files are not neighbours.
            host.set_up(Op::Mkdir { path: format!("/{stream}") })?;
            host.set_up_file(&format!("/{stream}/file"), self.bytes)?;
        }
        let mut programs: Vec<FileReader> = (0..self.streams)
            .map(|stream| FileReader { stream, streams: *self, file: None, offset: 0, thinks: false })
            .collect();
        let mut programs: Vec<&mut dyn Program> = programs.iter_mut().map(|program| program as _).collect();
        host.phase("streams", &mut programs)?;
        Ok(host.take_measured())
    }
}

struct FileReader {
    stream: u64,
    streams: Streams,
    file: Option<Ino>,
    offset: u64,
    thinks: bool,
}

impl Program for FileReader {
    fn next(&mut self, last: Done) -> Option<Op> {
        if let Done::Opened(file) = last {
            self.file = Some(file);
        }
        let Some(file) = self.file else {
            return Some(Op::Open { path: format!("/{}/file", self.stream) });
        };
        if self.offset >= self.streams.bytes {
            return None;
        }
        self.thinks = !self.thinks && self.streams.think > Nanos::ZERO && self.offset > 0;
        if self.thinks {
            return Some(Op::Think { time: self.streams.think });
        }
        let offset = self.offset;
        self.offset += self.streams.request_bytes;
        Some(Op::Read { file, offset, bytes: self.streams.request_bytes })
    }
}

struct Asked {
    at: Nanos,
    is_read: bool,
}

/// Runs clients that wait for each answer before they ask again, and measures that as the only phase.
fn raw_phase<D: SimDevice, C: Client>(
    stack: &mut Stack,
    driver: &mut VirtualDriver<D>,
    name: &'static str,
    clients: &mut [C],
    think: Nanos,
) -> Result<Measured, RunError> {
    host::reset_layers(stack, driver);
    let begin = driver.now();
    let mut requests = Requests::default();
    let mut asked: Vec<Asked> = Vec::new();
    let mut took = vec![Nanos::ZERO; clients.len()];
    let mut left = 0;
    for (index, client) in clients.iter_mut().enumerate() {
        let Some(io) = client.next() else { continue };
        asked.push(Asked { at: begin, is_read: !io.modifies() });
        driver.request(stack, RequestId(index as u64), io);
        left += 1;
    }
    while left > 0 {
        let progress = driver.step(stack);
        let mut ready: Vec<usize> = Vec::new();
        if let Progress::Alarm(index) = progress {
            ready.push(index as usize);
        }
        while let Some((id, result)) = driver.take_reply() {
            result.status.map_err(RunError::Device)?;
            let (index, now) = (id.0 as usize, driver.now());
            let Asked { at, is_read } = asked[index];
            let bytes = result.buf.len() as u64;
            requests.add(is_read, bytes, now.since(at));
            took[index] = now.since(begin);
            match think {
                Nanos::ZERO => ready.push(index),
                think => driver.set_alarm(now + think, index as u64),
            }
        }
        for index in ready {
            match clients[index].next() {
                Some(io) => {
                    asked[index] = Asked { at: driver.now(), is_read: !io.modifies() };
                    driver.request(stack, RequestId(index as u64), io);
                }
                None => left -= 1,
            }
        }
    }
    let elapsed = took.iter().copied().max().unwrap_or(Nanos::ZERO);
    let layers = host::statuses(stack, driver);
    let phase = Phase { name, elapsed, programs: took, requests, files: None, layers };
    Ok(Measured::of(vec![phase], driver))
}
