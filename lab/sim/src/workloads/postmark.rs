//! PostMark (Katcher, NetApp TR3022, 1997): a pool of small files; transactions that read or append to one of them, and
//! create or delete one; then the pool is deleted.
//!
//! The rules are those of the published program: each transaction does one of each pair, chosen by the biases; a file is as
//! large as a number drawn evenly between the bounds; an append adds as much as a number drawn evenly below what the file
//! lacks to the upper bound; any file of the pool is as likely as any other. The counters are the program's own, and a
//! test compares them with what the program counts. Its random numbers are others, so they agree in the mean only.

use std::collections::VecDeque;

use dcd_engine::Nanos;
use dcd_model::ffs::{Done, Op};

use super::host::{Host, Program};
use super::steps::{OpenFiles, Step};
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng};

/// See the module's documentation. The defaults are the trace of Zhu and Hu (2003, section 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostMark {
    pub files: u32,
    pub transactions: u32,
    pub bytes_min: u64,
    pub bytes_max: u64,
    /// The program's "read" and "write" sizes: what one call moves. Zhu and Hu read files whole.
    pub transfer_bytes: u64,
    /// Number of transactions in ten that read; the others append.
    pub read_bias: u64,
    /// Number of transactions in ten that create; the others delete.
    pub create_bias: u64,
    /// The mean time that the program waits between two transactions, as one does whose work comes from elsewhere. The
    /// published program waits for nothing.
    pub think: Nanos,
}

impl Default for PostMark {
    fn default() -> Self {
        PostMark {
            files: 20_000,
            transactions: 200_000,
            bytes_min: 512,
            bytes_max: 16 << 10,
            transfer_bytes: 16 << 10,
            read_bias: 5,
            create_bias: 5,
            think: Nanos::ZERO,
        }
    }
}

/// Counters that PostMark reports of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostMarkCounters {
    pub created_alone: u64,
    pub created_in_transactions: u64,
    pub read: u64,
    pub appended: u64,
    pub deleted_alone: u64,
    pub deleted_in_transactions: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl PostMark {
    /// The phases "create", "transactions" and "delete".
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let mut pool = Pool::new(*self, seed);
        for (name, part) in [
            ("create", PostmarkPart::Create),
            ("transactions", PostmarkPart::Transactions),
            ("delete", PostmarkPart::Delete),
        ] {
            pool.begin(part);
            host.phase(name, &mut [&mut pool])?;
        }
        let mut measured = host.take_measured();
        measured.postmark = Some(pool.counters);
        Ok(measured)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostmarkPart {
    Create,
    Transactions,
    Delete,
}

struct PoolFile {
    number: u32,
    bytes: u64,
}

/// The program.
struct Pool {
    postmark: PostMark,
    rng: SimRng,
    files: Vec<PoolFile>,
    next_number: u32,
    counters: PostMarkCounters,
    part: PostmarkPart,
    left: u32,
    steps: VecDeque<Step>,
    open: OpenFiles,
}

fn path(number: u32) -> String {
    format!("/{number}")
}

impl Pool {
    fn new(postmark: PostMark, seed: u64) -> Pool {
        Pool {
            postmark,
            rng: SimRng::new(seed),
            files: Vec::new(),
            next_number: 1,
            counters: PostMarkCounters::default(),
            part: PostmarkPart::Create,
            left: 0,
            steps: VecDeque::new(),
            open: OpenFiles::NONE,
        }
    }

    fn begin(&mut self, part: PostmarkPart) {
        self.part = part;
        self.left = match part {
            PostmarkPart::Create => self.postmark.files,
            PostmarkPart::Transactions => self.postmark.transactions,
            PostmarkPart::Delete => self.files.len() as u32,
        };
    }

    fn create(&mut self) {
        let PostMark { bytes_min, bytes_max, .. } = self.postmark;
        let bytes = self.rng.range(bytes_min, bytes_max);
        let number = self.next_number;
        self.next_number += 1;
        self.steps.push_back(Step::create(0, path(number)));
        self.write(bytes);
        self.files.push(PoolFile { number, bytes });
    }

    fn write(&mut self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(self.postmark.transfer_bytes);
            self.steps.push_back(Step::Append { slot: 0, bytes: piece });
            left -= piece;
        }
        self.steps.push_back(Step::Close { slot: 0 });
        self.counters.bytes_written += bytes;
    }

    fn delete(&mut self) {
        let index = self.rng.below(self.files.len() as u64) as usize;
        let number = self.files.swap_remove(index).number;
        self.steps.push_back(Step::Plain(Op::Unlink { path: path(number) }));
    }

    fn read(&mut self, index: usize) {
        let PoolFile { number, bytes } = self.files[index];
        self.steps.push_back(Step::open(0, path(number)));
        let step = self.postmark.transfer_bytes;
        self.steps.extend((0..bytes.div_ceil(step)).map(|n| Step::Read {
            slot: 0,
            offset: n * step,
            bytes: step,
        }));
        self.steps.push_back(Step::Close { slot: 0 });
        self.counters.read += 1;
        self.counters.bytes_read += bytes;
    }

    fn append(&mut self, index: usize) {
        let PoolFile { number, bytes } = self.files[index];
        let lacks = self.postmark.bytes_max.saturating_sub(bytes);
        let more = if lacks > 0 { self.rng.below(lacks) + 1 } else { 0 };
        self.files[index].bytes += more;
        self.steps.push_back(Step::open(0, path(number)));
        self.write(more);
        self.counters.appended += 1;
    }

    fn transaction(&mut self) {
        if self.postmark.think > Nanos::ZERO {
            let time = Nanos((self.rng.exponential() * self.postmark.think.0 as f64) as u64);
            self.steps.push_back(Step::Plain(Op::Think { time }));
        }
        let index = self.rng.below(self.files.len() as u64) as usize;
        if self.rng.below(10) < self.postmark.read_bias {
            self.read(index);
        } else {
            self.append(index);
        }
        // The last file stays, so that there is always one to read.
        if self.rng.below(10) < self.postmark.create_bias || self.files.len() == 1 {
            self.create();
            self.counters.created_in_transactions += 1;
        } else {
            self.delete();
            self.counters.deleted_in_transactions += 1;
        }
    }

    fn act(&mut self) {
        match self.part {
            PostmarkPart::Create => {
                self.create();
                self.counters.created_alone += 1;
            }
            PostmarkPart::Transactions => self.transaction(),
            PostmarkPart::Delete => {
                self.delete();
                self.counters.deleted_alone += 1;
            }
        }
    }
}

impl Program for Pool {
    fn next(&mut self, last: Done) -> Option<Op> {
        self.open.note(last);
        if self.steps.is_empty() {
            self.left = self.left.checked_sub(1)?;
            self.act();
        }
        self.steps.pop_front().map(|step| self.open.op(step))
    }
}
