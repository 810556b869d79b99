//! The stride benchmark (Baek and Park, section III-D, Fig. 8 and 9): what a disk makes of reads and writes that leave out
//! blocks between them, beside contiguous ones over the same span; and which gaps it pays to fill.
//!
//! The benchmark is a layer over the device, so that it runs on real disks and on modelled ones: each flush that it gets
//! carries out the next pass, and is answered when that has ended.

use std::collections::VecDeque;

use crate::layer::{
    ActivateError, Cx, Durability, ErrorKind, Event, Geometry, Io, IoError, IoResult, Layer, OpId, Port,
    Ports, Request, RequestId,
};
use crate::raid::contiguity::Strides;
use crate::{AnyStatus, Buf, Extent, Lba, Nanos, SECTOR_BYTES};

const BELOW: Port = Port(0);
/// The paper's block.
pub const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
/// Blocks that are sent together; what is adjacent among them is one request. The next ones are sent when so many are
/// outstanding, so there are 32 to 64 (section I-C).
const BATCH_BLOCKS: usize = 32;
/// The tolerance of the paper: fragmented I/O that is slower than contiguous I/O by less is left as it is.
pub const THRESHOLD: f64 = 1.2;

/// Reason for refusing passes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrideError {
    #[error("a pass is empty, or goes past the end of the device at sector {sectors}")]
    Outside { sectors: u64 },
    #[error("the device is read only, and a pass writes")]
    ReadOnly,
}

/// A pass of the benchmark: requests in ascending order, all reads or all writes (of zeroes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StridePass {
    pub writes: bool,
    /// The commands, and the number of blocks in them that were asked for: the others fill gaps.
    pub requests: Vec<(Extent, usize)>,
}

impl StridePass {
    /// Alternates a block and `stride` - 1 blocks that are left out, over the span; contiguous with a stride of 1.
    pub fn strided(writes: bool, span: Extent, stride: u64) -> StridePass {
        let step = stride.max(1) * BLOCK_SECTORS;
        let blocks = (0..span.sectors / BLOCK_SECTORS * BLOCK_SECTORS).step_by(step as usize);
        StridePass::of_blocks(writes, blocks.map(|sector| span.start + sector), &Strides::default())
    }

    /// Blocks in ascending order. What is adjacent among those that are sent together is one request, and so is what the
    /// rule allows to fill the gaps of.
    pub fn of_blocks(writes: bool, blocks: impl IntoIterator<Item = Lba>, rule: &Strides) -> StridePass {
        let mut requests: Vec<(Extent, usize)> = Vec::new();
        for (index, block) in blocks.into_iter().enumerate() {
            let begins = index % BATCH_BLOCKS == 0;
            let stride = |last: &Extent| (block - last.end()) / BLOCK_SECTORS + 1;
            match requests.last_mut().filter(|_| !begins) {
                Some((last, asked)) if stride(last) == 1 || rule.allow(stride(last)) => {
                    last.sectors = block - last.start + BLOCK_SECTORS;
                    *asked += 1;
                }
                _ => requests.push((Extent::new(block, BLOCK_SECTORS), 1)),
            }
        }
        StridePass { writes, requests }
    }
}

/// The curve of Fig. 9 for one kind of access: strides, and the time of a pass with that stride over the time of the
/// contiguous one.
pub type Curve = Vec<(u64, f64)>;

impl Strides {
    /// Smax is the smallest stride from which on all are slower by less than the threshold; what is so before it, too, is
    /// excluded. Where the last stride measured is not, it is the one after it.
    pub fn from_curve(curve: &[(u64, f64)], threshold: f64) -> Strides {
        let gains = |point: &&(u64, f64)| point.0 > 1 && point.1 >= threshold;
        let Some(last) = curve.iter().rposition(|point| gains(&point)) else { return Strides::up_to(1) };
        let max = curve.get(last + 1).map_or(curve[last].0 + 1, |point| point.0);
        let mut except: Vec<(u64, u64)> = Vec::new();
        let mut open = None;
        for point in curve[..=last].iter().filter(|point| point.0 > 1) {
            match (open, gains(&point)) {
                (None, false) => open = Some(point.0),
                (Some(first), true) => {
                    except.push((first, point.0 - 1));
                    open = None;
                }
                _ => {}
            }
        }
        Strides { max, except }
    }
}

/// The progress of a pass.
struct RunningPass {
    pass: StridePass,
    client: RequestId,
    began: Nanos,
    next: usize,
    /// Blocks that were asked for and are outstanding.
    outstanding: usize,
    /// The writes are being flushed.
    flushing: bool,
    error: Option<IoError>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct StrideBench {
    passes: VecDeque<StridePass>,
    running: Option<RunningPass>,
    took: Vec<Nanos>,
    below: Option<Geometry>,
}

impl StrideBench {
    /// The passes, in their order. Passes of writes overwrite with zeroes.
    pub fn new(passes: impl IntoIterator<Item = StridePass>) -> StrideBench {
        StrideBench { passes: passes.into_iter().collect(), ..StrideBench::default() }
    }

    fn begin(&mut self, client: RequestId, cx: &mut Cx) {
        let free = self.running.is_none();
        let Some(pass) = self.passes.pop_front().filter(|_| free) else {
            let error = IoError::new(ErrorKind::Invalid);
            return cx.reply(client, IoResult::err(Buf::none(), error));
        };
        let running = RunningPass {
            pass,
            client,
            began: cx.now,
            next: 0,
            outstanding: 0,
            flushing: false,
            error: None,
        };
        self.running = Some(running);
        self.go_on(cx);
    }

    /// Sends what may be sent; ends the pass when nothing is left.
    fn go_on(&mut self, cx: &mut Cx) {
        let Some(running) = &mut self.running else { return };
        while running.outstanding <= BATCH_BLOCKS
            && running.next < running.pass.requests.len()
            && running.error.is_none()
        {
            let mut batch = 0;
            while let Some(&(request, blocks)) = running.pass.requests.get(running.next)
                && batch < BATCH_BLOCKS
            {
                let (at, buf) = (request.start, Buf::zeroed((request.sectors * SECTOR_BYTES) as usize));
                let io = match running.pass.writes {
                    true => Io::Write { at, buf, durability: Durability::Volatile },
                    false => Io::Read { at, buf },
                };
                cx.submit(BELOW, OpId(blocks as u64), io);
                batch += blocks;
                running.next += 1;
            }
            running.outstanding += batch;
        }
        if running.outstanding > 0 {
            return;
        }
        if running.pass.writes && !running.flushing && running.error.is_none() {
            running.flushing = true;
            running.outstanding = 1;
            return cx.submit(BELOW, OpId(1), Io::Flush);
        }
        let ended = self.running.take().expect("it is running");
        let status = ended.error.map_or(Ok(()), Err);
        if status.is_ok() {
            self.took.push(cx.now.since(ended.began));
        }
        cx.reply(ended.client, IoResult { buf: Buf::none(), status });
    }
}

impl Layer for StrideBench {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(Request { id, io: Io::Flush, .. }) => self.begin(id, cx),
            Event::Request(Request { id, io, .. }) => {
                let error = IoError::new(ErrorKind::Unsupported);
                cx.reply(id, IoResult::err(io.take_buf(), error));
            }
            Event::Completed { op, result } => {
                let running = self.running.as_mut().expect("a pass is running");
                running.outstanding -= op.0 as usize;
                running.error = running.error.or(result.status.err());
                self.go_on(cx);
            }
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.below.expect("geometry is asked for after activation")
    }

    /// # Errors
    /// If a pass lies outside of the device, is empty, or writes to a device that is read only.
    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let geometry = below.geometry(BELOW);
        for pass in &self.passes {
            let end = pass.requests.iter().map(|(request, _)| request.end().0).max();
            if end.is_none_or(|end| end > geometry.sectors) {
                return Err(StrideError::Outside { sectors: geometry.sectors }.into());
            }
            if pass.writes && geometry.read_only {
                return Err(StrideError::ReadOnly.into());
            }
        }
        self.below = Some(geometry);
        Ok(())
    }

    /// The times of the passes that have ended, in nanoseconds.
    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(serde_json::json!({ "passes": self.took }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Command;

    fn at(block: u64) -> Lba {
        Lba(block * BLOCK_SECTORS)
    }

    #[test]
    fn a_stride_leaves_out_what_lies_between_and_contiguous_blocks_are_one_request() {
        let span = Extent::new(at(10), 64 * BLOCK_SECTORS);
        let starts = |pass: StridePass| {
            pass.requests.iter().map(|(r, _)| r.start.0 / BLOCK_SECTORS).collect::<Vec<_>>()
        };
        assert_eq!(starts(StridePass::strided(false, span, 30)), [10, 40, 70]);
        let contiguous = StridePass::strided(true, span, 1);
        assert_eq!(contiguous.requests.iter().map(|(r, _)| r.sectors).collect::<Vec<_>>(), [256, 256]);
        assert_eq!(starts(contiguous), [10, 42]);
        let blocks = [0, 1, 4, 10, 12].map(at);
        let filled = StridePass::of_blocks(true, blocks, &Strides::up_to(4));
        let extent = |first: u64, last: u64| Extent::new(at(first), (last + 1 - first) * BLOCK_SECTORS);
        assert_eq!(filled.requests, [(extent(0, 4), 3), (extent(10, 12), 2)]);
    }

    #[test]
    fn smax_is_where_the_penalty_ends_for_good_and_what_is_fast_before_it_is_excluded() {
        let curve = [(1, 1.0), (2, 3.0), (3, 2.0), (4, 1.1), (5, 1.0), (6, 1.5), (8, 1.19), (10, 0.9)];
        let strides = Strides::from_curve(&curve, THRESHOLD);
        assert_eq!(strides, Strides { max: 8, except: vec![(4, 5)] });
        assert_eq!([3, 4, 5, 6, 7, 8].map(|s| strides.allow(s)), [true, false, false, true, true, false]);
        assert_eq!(Strides::from_curve(&[(1, 1.0), (2, 1.1), (4, 0.8)], THRESHOLD), Strides::up_to(1));
        assert_eq!(Strides::from_curve(&[(1, 1.0), (2, 1.9), (4, 1.8)], THRESHOLD), Strides::up_to(5));
        assert_eq!(Strides::from_curve(&[], THRESHOLD), Strides::up_to(1));
    }

    /// Runs a pass on something that ends the oldest request each time; the most blocks that were out, and the requests.
    fn play(pass: StridePass) -> (usize, Vec<(&'static str, Extent)>) {
        let mut bench = StrideBench::new([pass]);
        let (mut cx, mut waiting, mut sent) = (Cx::default(), VecDeque::new(), Vec::new());
        bench
            .handle(Event::Request(Request { id: RequestId(7), disk: 0, io: Io::Flush }), cx.at(Nanos::ZERO));
        let (mut most, mut now) = (0, Nanos::ZERO);
        loop {
            for command in cx.commands.drain(..) {
                match command {
                    Command::Submit { op, io, .. } => {
                        sent.extend(io.extent().map(|extent| (io.name(), extent)));
                        waiting.push_back((op, io));
                    }
                    Command::Reply { id, result } => {
                        assert_eq!((id, result.status), (RequestId(7), Ok(())));
                        assert_eq!(bench.status(now).to_json()["passes"], serde_json::json!([now]));
                        return (most, sent);
                    }
                    Command::Report(report) => panic!("{report:?}"),
                }
            }
            most = most.max(waiting.iter().map(|(op, _)| op.0 as usize).sum());
            let (op, io) = waiting.pop_front().expect("it goes on until the end");
            now += Nanos(1);
            bench.handle(Event::Completed { op, result: IoResult::ok(io.take_buf()) }, cx.at(now));
        }
    }

    #[test]
    fn from_32_to_64_blocks_are_outstanding_and_every_request_is_sent_once() {
        let span = Extent::new(at(0), 1000 * BLOCK_SECTORS);
        for (writes, stride) in [(false, 1), (true, 1), (false, 3), (true, 7)] {
            let pass = StridePass::strided(writes, span, stride);
            let (most, sent) = play(pass.clone());
            assert!((33..=64).contains(&most), "{most}");
            let name = if writes { "write" } else { "read" };
            assert_eq!(sent, pass.requests.iter().map(|(r, _)| (name, *r)).collect::<Vec<_>>());
        }
    }
}
