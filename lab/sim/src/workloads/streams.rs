//! Streams that read in order, in files or on the device (Zhu and Hu 2003, Fig. 3), as a trace has them that is played: one
//! request at a time, of any stream that is not through.

use dcd_engine::{Buf, Io, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack};

use dcd_model::ffs::Op;

use super::RunError;
use super::host::{self, Host};
use super::measured::{LoadPhase, Measured, Requests};
use super::steps::{Step, Steps};
use dcd_crash::{DriverProgress, SimDevice, SimRng, VirtualDriver};

/// Streams begin at a multiple of it.
const BLOCK_BYTES: u64 = 8 << 10;

/// See the module's documentation. The phase is called "streams".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// The paper: nine of 64 KB.
    pub streams: u64,
    pub bytes: u64,
    pub request_bytes: u64,
    /// The stretches begin so many bytes behind one another, from a place that the seed gives.
    pub apart: u64,
    /// Time of the host between two requests to the device.
    pub think: Nanos,
    /// They read files, and the file system's own times pass between two requests; otherwise the device.
    pub in_files: bool,
}

/// A stream: where it reads next, and bytes that are left.
struct Reader {
    at: Lba,
    left: u64,
}

impl Streams {
    /// A stretch for each stream.
    fn readers(&self, device_bytes: u64, rng: &mut SimRng) -> Result<Vec<Reader>, RunError> {
        let behind = device_bytes.checked_sub(self.apart * (self.streams - 1) + self.bytes);
        let first = rng.below(behind.ok_or(RunError::NoRoom)? / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let at = |stream| Lba((first + stream * self.apart) / SECTOR_BYTES);
        Ok((0..self.streams).map(|stream| Reader { at: at(stream), left: self.bytes }).collect())
    }

    /// The stream of each request: whose turn it is, is drawn.
    fn turns(&self, rng: &mut SimRng) -> Vec<usize> {
        let mut left = vec![self.bytes.div_ceil(self.request_bytes); self.streams as usize];
        let mut streams: Vec<usize> = (0..left.len()).collect();
        let mut turns = Vec::new();
        while !streams.is_empty() {
            let at = rng.below(streams.len() as u64) as usize;
            let stream = streams[at];
            turns.push(stream);
            left[stream] -= 1;
            if left[stream] == 0 {
                streams.remove(at);
            }
        }
        turns
    }

    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        if self.in_files {
            self.run_in_files(host, seed)
        } else {
            self.run_raw(host.stack, host.driver, seed)
        }
    }

    /// Each stream is a file in a directory of its own, and so in a group of cylinders of its own.
    fn run_in_files<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let path = |stream| format!("/stream{stream}/file");
        for stream in 0..self.streams {
            host.set_up(Op::Mkdir { path: format!("/stream{stream}") })?;
            host.set_up_file(&path(stream), self.bytes)?;
        }
        host.script(vec![Op::Remount])?;
        let mut offsets = vec![0; self.streams as usize];
        let read = |slot: usize| {
            let offset = offsets[slot];
            let bytes = self.request_bytes.min(self.bytes - offset);
            offsets[slot] += bytes;
            Step::Read { slot, offset, bytes }
        };
        let opens = (0..self.streams).map(|stream| Step::open(stream as usize, path(stream)));
        let reads = self.turns(&mut SimRng::new(seed)).into_iter().map(read);
        host.phase("streams", &mut [&mut Steps::new(opens.chain(reads))])?;
        Ok(host.take_measured())
    }

    fn run_raw<D: SimDevice>(
        &self,
        stack: &mut Stack,
        driver: &mut VirtualDriver<D>,
        seed: u64,
    ) -> Result<Measured, RunError> {
        let mut rng = SimRng::new(seed);
        let mut streams = self.readers(stack.geometry(stack.root()).sectors * SECTOR_BYTES, &mut rng)?;
        host::reset_layers(stack, driver);
        let begin = driver.now();
        let mut elapsed = Nanos::ZERO;
        let mut requests = Requests::default();
        for turn in self.turns(&mut rng) {
            let Reader { at, left } = &mut streams[turn];
            let bytes = self.request_bytes.min(*left);
            let io = Io::Read { at: *at, buf: Buf::blank(bytes as usize) };
            (*at, *left) = (*at + bytes / SECTOR_BYTES, *left - bytes);
            let asked = driver.now();
            driver.request(stack, RequestId(0), io);
            let result = loop {
                match driver.take_reply() {
                    Some((_, result)) => break result,
                    None => driver.step(stack),
                };
            };
            result.status.map_err(RunError::Device)?;
            requests.add(true, bytes, driver.now().since(asked));
            elapsed = driver.now().since(begin);
            if self.think > Nanos::ZERO {
                driver.set_alarm(driver.now() + self.think, 0);
                while !matches!(driver.step(stack), DriverProgress::Alarm(_)) {}
            }
        }
        let layers = host::statuses(stack, driver);
        let phase = LoadPhase { name: "streams", elapsed, requests, files: None, layers };
        Ok(Measured::of(vec![phase], driver))
    }
}
