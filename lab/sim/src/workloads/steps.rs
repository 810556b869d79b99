//! Steps of programs with their open files.

use dcd_model::ffs::{Done, Ino, Op};

use super::host::Program;

/// A call; `slot` is the number of the open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Opens a file or makes one.
    Open {
        slot: usize,
        op: Op,
    },
    Read {
        slot: usize,
        offset: u64,
        bytes: u64,
    },
    Write {
        slot: usize,
        offset: u64,
        bytes: u64,
    },
    Append {
        slot: usize,
        bytes: u64,
    },
    Close {
        slot: usize,
    },
    /// A call on no open file.
    Plain(Op),
}

impl Step {
    pub fn create(slot: usize, path: String) -> Step {
        Step::Open { slot, op: Op::Create { path } }
    }

    pub fn open(slot: usize, path: String) -> Step {
        Step::Open { slot, op: Op::Open { path } }
    }
}

/// The open files of a program.
pub(super) struct OpenFiles {
    files: Vec<Ino>,
    /// The slot of the file that is being opened.
    opening: usize,
}

impl OpenFiles {
    pub const NONE: OpenFiles = OpenFiles { files: Vec::new(), opening: 0 };

    /// Takes note of what the last call gave.
    pub fn note(&mut self, last: Done) {
        if let Done::Opened(file) = last {
            let slots = self.files.len().max(self.opening + 1);
            self.files.resize(slots, Ino::ROOT);
            self.files[self.opening] = file;
        }
    }

    pub fn op(&mut self, step: Step) -> Op {
        match step {
            Step::Open { slot, op } => {
                self.opening = slot;
                op
            }
            Step::Read { slot, offset, bytes } => Op::Read { file: self.files[slot], offset, bytes },
            Step::Write { slot, offset, bytes } => Op::Write { file: self.files[slot], offset, bytes },
            Step::Append { slot, bytes } => Op::Append { file: self.files[slot], bytes },
            Step::Close { slot } => Op::Close { file: self.files[slot] },
            Step::Plain(op) => op,
        }
    }
}

/// A program that is a list of steps.
pub(super) struct Steps<I> {
    steps: I,
    files: OpenFiles,
}

impl<I: Iterator<Item = Step>> Steps<I> {
    pub fn new(steps: I) -> Steps<I> {
        Steps { steps, files: OpenFiles::NONE }
    }
}

impl<I: Iterator<Item = Step>> Program for Steps<I> {
    fn next(&mut self, last: Done) -> Option<Op> {
        self.files.note(last);
        self.steps.next().map(|step| self.files.op(step))
    }
}

/// Makes a file and writes it in pieces.
pub(super) fn write_file(path: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let pieces = (0..bytes.div_ceil(piece)).map(move |n| piece.min(bytes - n * piece));
    let begin = std::iter::once(Step::create(0, path));
    let appends = pieces.map(|bytes| Step::Append { slot: 0, bytes });
    begin.chain(appends).chain(std::iter::once(Step::Close { slot: 0 }))
}

/// Opens a file and reads it in pieces.
pub(super) fn read_file(path: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let begin = std::iter::once(Step::open(0, path));
    let reads = (0..bytes.div_ceil(piece)).map(move |n| {
        let offset = n * piece;
        Step::Read { slot: 0, offset, bytes: piece.min(bytes - offset) }
    });
    begin.chain(reads).chain(std::iter::once(Step::Close { slot: 0 }))
}

/// Reads a file and writes what it has to another, piece by piece.
pub(super) fn copy_file(from: String, to: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let begin = [Step::open(0, from), Step::create(1, to)];
    let pieces = (0..bytes.div_ceil(piece)).flat_map(move |n| {
        let offset = n * piece;
        let bytes = piece.min(bytes - offset);
        [Step::Read { slot: 0, offset, bytes }, Step::Append { slot: 1, bytes }]
    });
    begin.into_iter().chain(pieces).chain([Step::Close { slot: 0 }, Step::Close { slot: 1 }])
}
