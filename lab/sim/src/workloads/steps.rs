//! A program that is a list of steps on at most two open files.

use dcd_model::ffs::{Done, Ino, Op};

use super::host::Program;

/// One call; `slot` says which of the open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create { slot: usize, path: String },
    Open { slot: usize, path: String },
    Read { slot: usize, offset: u64, bytes: u64 },
    Append { slot: usize, bytes: u64 },
    Close { slot: usize },
    Unlink { path: String },
    Mkdir { path: String },
    Readdir { path: String },
    Sync,
}

/// See the module's documentation.
pub(super) struct Steps<I> {
    steps: I,
    files: [Ino; 2],
    /// The slot of the file that is being opened.
    opening: usize,
}

impl<I: Iterator<Item = Step>> Steps<I> {
    pub fn new(steps: I) -> Steps<I> {
        Steps { steps, files: [Ino::ROOT; 2], opening: 0 }
    }
}

impl<I: Iterator<Item = Step>> Program for Steps<I> {
    fn next(&mut self, last: Done) -> Option<Op> {
        if let Done::Opened(file) = last {
            self.files[self.opening] = file;
        }
        Some(match self.steps.next()? {
            Step::Create { slot, path } => {
                self.opening = slot;
                Op::Create { path }
            }
            Step::Open { slot, path } => {
                self.opening = slot;
                Op::Open { path }
            }
            Step::Read { slot, offset, bytes } => Op::Read { file: self.files[slot], offset, bytes },
            Step::Append { slot, bytes } => Op::Append { file: self.files[slot], bytes },
            Step::Close { slot } => Op::Close { file: self.files[slot] },
            Step::Unlink { path } => Op::Unlink { path },
            Step::Mkdir { path } => Op::Mkdir { path },
            Step::Readdir { path } => Op::Readdir { path },
            Step::Sync => Op::Sync,
        })
    }
}

/// Makes a file and writes it in pieces.
pub(super) fn write_file(path: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let pieces = (0..bytes.div_ceil(piece)).map(move |n| piece.min(bytes - n * piece));
    let begin = std::iter::once(Step::Create { slot: 0, path });
    let appends = pieces.map(|bytes| Step::Append { slot: 0, bytes });
    begin.chain(appends).chain(std::iter::once(Step::Close { slot: 0 }))
}

/// Opens a file and reads it in pieces.
pub(super) fn read_file(path: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let begin = std::iter::once(Step::Open { slot: 0, path });
    let reads = (0..bytes.div_ceil(piece)).map(move |n| {
        let offset = n * piece;
        Step::Read { slot: 0, offset, bytes: piece.min(bytes - offset) }
    });
    begin.chain(reads).chain(std::iter::once(Step::Close { slot: 0 }))
}

/// Reads a file and writes what it has to another, piece by piece.
pub(super) fn copy_file(from: String, to: String, bytes: u64, piece: u64) -> impl Iterator<Item = Step> {
    let begin = [Step::Open { slot: 0, path: from }, Step::Create { slot: 1, path: to }];
    let pieces = (0..bytes.div_ceil(piece)).flat_map(move |n| {
        let offset = n * piece;
        let bytes = piece.min(bytes - offset);
        [Step::Read { slot: 0, offset, bytes }, Step::Append { slot: 1, bytes }]
    });
    begin.into_iter().chain(pieces).chain([Step::Close { slot: 0 }, Step::Close { slot: 1 }])
}
