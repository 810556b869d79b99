//! From byte ranges to blocks: programs read and write a file at any offset, and a stack takes whole blocks.
//!
//! A write that does not fill its first or last block becomes a *job* of two steps: read these blocks, then write the
//! whole. Between the steps nobody else may change them, or the older copy would come back. So every change holds a lock
//! on its blocks: a job of two steps waits for all that overlap it, and they wait for it, in the order in which they came.
//! Whole-block changes do not wait for each other (the stack keeps their order), and reads wait for nobody.
//!
//! | state | holds the lock | leads to |
//! |---|---|---|
//! | `Waiting` | no | `Reading` or `Changing` when nothing older overlaps |
//! | `Reading` | yes | `Changing`; the end on an error, with nothing changed |
//! | `Changing` | yes | the end |

use std::collections::VecDeque;
use std::ops::Range;

use dcd_engine::{Buf, Durability, Extent, Io, IoError, IoResult, Lba, SECTOR_BYTES};
use slab::Slab;

/// A request for bytes, inside the file.
#[derive(Debug)]
pub enum ByteIo {
    Read {
        offset: u64,
        len: usize,
    },
    Write(Placed),
    Flush,
    /// Makes the range read as zeroes. `discard`: by a discard, on devices whose discards read as zeroes.
    Zero {
        offset: u64,
        len: u64,
        discard: bool,
        unmap: bool,
    },
}

/// The data of a write, in a buffer of whole blocks.
#[derive(Debug)]
pub struct Placed {
    pub at: Lba,
    pub buf: Buf,
    /// Range of the data in the buffer.
    pub data: Range<usize>,
    pub durability: Durability,
}

impl Placed {
    /// Zeroed blocks that cover a range.
    pub fn covering(block: u64, offset: u64, len: usize, durability: Durability) -> Placed {
        let start = offset - offset % block;
        let skip = (offset - start) as usize;
        let bytes = (skip + len).next_multiple_of(block as usize);
        Placed { at: Lba(start / SECTOR_BYTES), buf: Buf::zeroed(bytes), data: skip..skip + len, durability }
    }

    fn is_whole(&self) -> bool {
        self.data == (0..self.buf.len())
    }

    /// The blocks that are only partly covered, as offsets in the buffer.
    fn edges(&self, block: usize) -> impl Iterator<Item = usize> + use<> {
        let last = self.buf.len() - block;
        let head = (self.data.start > 0).then_some(0);
        let tail = (self.data.end < self.buf.len() && !(last == 0 && head.is_some())).then_some(last);
        head.into_iter().chain(tail)
    }

    /// Copies the bytes outside the data from the old content of the block at `edge`.
    fn patch(&mut self, edge: usize, old: &Buf) {
        let (start, end) = (edge, edge + old.len());
        let head = start..self.data.start.clamp(start, end);
        let tail = self.data.end.clamp(start, end)..end;
        for part in [head, tail] {
            self.buf.copy_from(part.start, old, part.start - edge, part.len());
        }
    }

    fn into_io(self) -> Io {
        Io::Write { at: self.at, buf: self.buf, durability: self.durability }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    Waiting,
    Reading,
    Changing,
}

struct Job<W> {
    waiter: W,
    state: JobState,
    /// The blocks that it changes.
    lock: Option<Extent>,
    /// Writes whose edges must be read first.
    patches: Vec<Placed>,
    /// Change that needs no reading.
    whole: Option<Io>,
    outstanding: usize,
    error: Option<IoError>,
    /// Data of a read.
    buf: Buf,
}

enum JobPart {
    Edge { job: usize, patch: usize, edge: usize },
    Change { job: usize },
}

/// A completed job: its waiter, and the result of its last command.
pub struct Done<W> {
    pub waiter: W,
    pub result: IoResult,
}

/// All jobs in flight; `W` identifies the request to answer.
pub struct Jobs<W> {
    block: u64,
    jobs: Slab<Job<W>>,
    parts: Slab<JobPart>,
    waiting: VecDeque<usize>,
    /// Jobs of two steps, waiting or not. While there are none, nothing has to be compared.
    patching: usize,
    /// Commands for the stack, each with its token.
    pub out: Vec<(u64, Io)>,
}

impl<W> Jobs<W> {
    /// `block`: the bytes in the smallest unit that the stack takes.
    pub fn new(block: u32) -> Jobs<W> {
        let (jobs, parts) = (Slab::default(), Slab::default());
        let block = u64::from(block);
        Jobs { block, jobs, parts, waiting: VecDeque::new(), patching: 0, out: Vec::new() }
    }

    /// Begins a request. Its commands are in `out`, now or once others have ended.
    pub fn submit(&mut self, io: ByteIo, waiter: W) {
        let (patches, whole) = self.plan(io);
        let lock = lock_of(&patches, whole.as_ref());
        let state = JobState::Waiting;
        let (outstanding, error, buf) = (0, None, Buf::none());
        let job = Job { waiter, state, lock, patches, whole, outstanding, error, buf };
        self.patching += usize::from(!job.patches.is_empty());
        let blocked = self.is_blocked(&job, self.waiting.len());
        let index = self.jobs.insert(job);
        if blocked {
            self.waiting.push_back(index);
        } else {
            self.begin(index);
        }
    }

    /// Takes the end of a command; returns the end of its job where this was the last one.
    pub fn complete(&mut self, token: u64, result: IoResult) -> Option<Done<W>> {
        let part = self.parts.remove(token as usize);
        let (JobPart::Edge { job: index, .. } | JobPart::Change { job: index }) = part;
        let job = &mut self.jobs[index];
        job.outstanding -= 1;
        match (result.status, part) {
            (Err(error), _) => job.error = job.error.or(Some(error)),
            (Ok(()), JobPart::Edge { patch, edge, .. }) => job.patches[patch].patch(edge, &result.buf),
            (Ok(()), JobPart::Change { .. }) => job.buf = result.buf,
        }
        if job.outstanding > 0 {
            return None;
        }
        if job.state == JobState::Reading && job.error.is_none() {
            self.change(index);
            return None;
        }
        Some(self.end(index))
    }

    /// Splits a request into whole blocks and blocks that have to be read first.
    fn plan(&self, io: ByteIo) -> (Vec<Placed>, Option<Io>) {
        let block = self.block;
        match io {
            ByteIo::Flush => (Vec::new(), Some(Io::Flush)),
            ByteIo::Read { offset, len } => {
                let placed = Placed::covering(block, offset, len, Durability::Volatile);
                (Vec::new(), Some(Io::Read { at: placed.at, buf: placed.buf }))
            }
            ByteIo::Write(placed) if placed.is_whole() => (Vec::new(), Some(placed.into_io())),
            ByteIo::Write(placed) => (vec![placed], None),
            ByteIo::Zero { offset, len, discard, unmap } => {
                let end = offset + len;
                let (first, last) = (offset.next_multiple_of(block), end - end % block);
                let zeroes = |from: u64, to: u64| {
                    Placed::covering(block, from, (to - from) as usize, Durability::Volatile)
                };
                if first >= last {
                    return (vec![zeroes(offset, end)], None);
                }
                let edges = [(offset, first), (last, end)];
                let patches =
                    edges.iter().filter(|(from, to)| from < to).map(|(from, to)| zeroes(*from, *to));
                let extent = Extent::new(Lba(first / SECTOR_BYTES), (last - first) / SECTOR_BYTES);
                let durability = Durability::Volatile;
                let whole = if discard {
                    Io::Discard { extent }
                } else {
                    Io::WriteZeroes { extent, unmap, durability }
                };
                (patches.collect(), Some(whole))
            }
        }
    }

    /// True where a job has to wait for one that runs, or for one of the first `before` that wait.
    fn is_blocked(&self, job: &Job<W>, before: usize) -> bool {
        let Some(lock) = job.lock else { return false };
        if self.patching == 0 {
            return false;
        }
        let overlaps = |other: &Job<W>| other.lock.is_some_and(|held| held.overlaps(lock));
        let running = |other: &Job<W>| {
            other.state != JobState::Waiting && !(other.patches.is_empty() && job.patches.is_empty())
        };
        self.jobs.iter().any(|(_, other)| running(other) && overlaps(other))
            || self.waiting.iter().take(before).any(|index| overlaps(&self.jobs[*index]))
    }

    fn begin(&mut self, index: usize) {
        let block = self.block as usize;
        let job = &mut self.jobs[index];
        job.state = JobState::Reading;
        for (patch, placed) in job.patches.iter().enumerate() {
            for edge in placed.edges(block) {
                let token = self.parts.insert(JobPart::Edge { job: index, patch, edge });
                let at = placed.at + edge as u64 / SECTOR_BYTES;
                self.out.push((token as u64, Io::Read { at, buf: Buf::zeroed(block) }));
                job.outstanding += 1;
            }
        }
        if job.outstanding == 0 {
            self.change(index);
        }
    }

    fn change(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        job.state = JobState::Changing;
        // The places stay in the list: it tells that this was a job of two steps.
        let patches = job.patches.iter_mut().map(|placed| {
            let buf = std::mem::take(&mut placed.buf);
            Io::Write { at: placed.at, buf, durability: placed.durability }
        });
        for io in patches.chain(job.whole.take()) {
            let token = self.parts.insert(JobPart::Change { job: index });
            self.out.push((token as u64, io));
            job.outstanding += 1;
        }
    }

    fn end(&mut self, index: usize) -> Done<W> {
        let job = self.jobs.remove(index);
        self.patching -= usize::from(!job.patches.is_empty());
        self.release();
        let status = job.error.map_or(Ok(()), Err);
        Done { waiter: job.waiter, result: IoResult { buf: job.buf, status } }
    }

    /// Begins jobs that no longer have to wait.
    fn release(&mut self) {
        let mut place = 0;
        while place < self.waiting.len() {
            let index = self.waiting[place];
            if self.is_blocked(&self.jobs[index], place) {
                place += 1;
            } else {
                self.waiting.remove(place);
                self.begin(index);
            }
        }
    }
}

/// The blocks that a job changes: from the first to the last.
fn lock_of(patches: &[Placed], whole: Option<&Io>) -> Option<Extent> {
    let patched = patches.iter().map(|p| Extent::new(p.at, p.buf.len() as u64 / SECTOR_BYTES));
    let changed = whole.filter(|io| io.modifies()).and_then(Io::extent);
    patched.chain(changed).reduce(|a, b| {
        let start = a.start.min(b.start);
        Extent::new(start, a.end().max(b.end()) - start)
    })
}

#[cfg(test)]
#[path = "jobs_tests.rs"]
mod tests;
