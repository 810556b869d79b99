//! Replies in the form that the client has negotiated: simple ones, or chunks with a structured or an extended header.
//!
//! A reply is one chunk here, or one for each metadata context. Its data is in memory before the chunk begins, so no error can come later.

use dcd_engine::{IoError, SECTOR_BYTES, SectorState};
use dcd_io::MappedRun;
use dcd_io::backup_marks::ChangedRun;

use super::protocol::{self as p, Errno};

/// Maximum number of runs in the status of blocks.
pub const STATUS_RUNS_MAX: usize = 512;
/// Maximum size of a reply with the status of blocks.
pub const STATUS_BYTES_MAX: usize = CHUNK_HEADER_BYTES_MAX + 8 + 16 * STATUS_RUNS_MAX;
const CHUNK_HEADER_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyForm {
    #[default]
    Simple,
    Structured,
    Extended,
}

/// The request that a reply is for.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo {
    pub cookie: u64,
    pub offset: u64,
    /// True for a read: with structured replies, it gets no simple one.
    pub reads: bool,
}

/// The status of a block in a metadata context, and its bytes.
pub type StatusRun = (u64, u32);

/// A chunk of a reply, without the end of its payload.
struct ChunkHead {
    bytes: Vec<u8>,
}

impl ChunkHead {
    /// The last chunk of a reply. `length`: bytes of the payload.
    fn new(form: ReplyForm, to: ReplyTo, kind: u16, length: u64) -> ChunkHead {
        ChunkHead::flagged(form, to, kind, length, p::REPLY_FLAG_DONE)
    }

    fn flagged(form: ReplyForm, to: ReplyTo, kind: u16, length: u64, flags: u16) -> ChunkHead {
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_BYTES_MAX + 24);
        let extended = form == ReplyForm::Extended;
        let magic = if extended { p::EXTENDED_REPLY_MAGIC } else { p::STRUCTURED_REPLY_MAGIC };
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&to.cookie.to_be_bytes());
        match extended {
            true => {
                bytes.extend_from_slice(&to.offset.to_be_bytes());
                bytes.extend_from_slice(&length.to_be_bytes());
            }
            false => bytes.extend_from_slice(&(length as u32).to_be_bytes()),
        }
        ChunkHead { bytes }
    }

    fn with(mut self, field: &[u8]) -> ChunkHead {
        self.bytes.extend_from_slice(field);
        self
    }
}

impl ReplyForm {
    /// The reply to a request that succeeded and returns nothing.
    pub fn done(self, to: ReplyTo) -> Vec<u8> {
        match self {
            ReplyForm::Structured if to.reads => ChunkHead::new(self, to, p::REPLY_NONE, 0).bytes,
            ReplyForm::Simple | ReplyForm::Structured => p::simple_reply(0, to.cookie).to_vec(),
            ReplyForm::Extended => ChunkHead::new(self, to, p::REPLY_NONE, 0).bytes,
        }
    }

    /// The reply to a request that was refused, or failed for another reason than an error of the stack.
    pub fn refused(self, to: ReplyTo, error: Errno) -> Vec<u8> {
        self.error(to, error, "", None)
    }

    /// The reply to a request of `bytes` that failed in the stack. A read is told the place.
    pub fn failed(self, to: ReplyTo, bytes: u64, error: Errno, cause: &IoError) -> Vec<u8> {
        let place = cause.extent.filter(|_| to.reads && bytes > 0);
        // The error may be of a whole block around the request.
        let place = place.map(|extent| extent.start.bytes().clamp(to.offset, to.offset + bytes - 1));
        self.error(to, error, &cause.to_string(), place)
    }

    fn error(self, to: ReplyTo, error: Errno, words: &str, place: Option<u64>) -> Vec<u8> {
        if self == ReplyForm::Simple {
            return p::simple_reply(error as u32, to.cookie).to_vec();
        }
        let kind = if place.is_some() { p::REPLY_ERROR_OFFSET } else { p::REPLY_ERROR };
        let length = 6 + words.len() + if place.is_some() { 8 } else { 0 };
        let chunk = ChunkHead::new(self, to, kind, length as u64)
            .with(&(error as u32).to_be_bytes())
            .with(&(words.len() as u16).to_be_bytes())
            .with(words.as_bytes());
        match place {
            Some(place) => chunk.with(&place.to_be_bytes()).bytes,
            None => chunk.bytes,
        }
    }

    /// Start of the reply to a read. The data follows.
    pub fn data(self, to: ReplyTo, bytes: usize) -> Vec<u8> {
        match self {
            ReplyForm::Simple => p::simple_reply(0, to.cookie).to_vec(),
            ReplyForm::Structured | ReplyForm::Extended => {
                let chunk = ChunkHead::new(self, to, p::REPLY_OFFSET_DATA, 8 + bytes as u64);
                chunk.with(&to.offset.to_be_bytes()).bytes
            }
        }
    }

    /// The whole reply to a read of zeroes; none if they have to be sent.
    pub fn zeroes(self, to: ReplyTo, bytes: usize) -> Option<Vec<u8>> {
        let length = u32::try_from(bytes).ok().filter(|_| self != ReplyForm::Simple)?;
        let chunk = ChunkHead::new(self, to, p::REPLY_OFFSET_HOLE, 12);
        Some(chunk.with(&to.offset.to_be_bytes()).with(&length.to_be_bytes()).bytes)
    }

    /// The status of blocks in a metadata context. A request without extended headers has less than 4 GiB, and so has each run. `last`: no
    /// other context follows.
    pub fn status(self, to: ReplyTo, context: u32, runs: &[StatusRun], last: bool) -> Vec<u8> {
        let (extended, count) = (self == ReplyForm::Extended, runs.len() as u32);
        let flags = if last { p::REPLY_FLAG_DONE } else { 0 };
        let chunk = match extended {
            true => {
                let (kind, length) = (p::REPLY_BLOCK_STATUS_EXT, 8 + 16 * u64::from(count));
                let chunk = ChunkHead::flagged(self, to, kind, length, flags);
                chunk.with(&context.to_be_bytes()).with(&count.to_be_bytes())
            }
            false => {
                let (kind, length) = (p::REPLY_BLOCK_STATUS, 4 + 8 * u64::from(count));
                ChunkHead::flagged(self, to, kind, length, flags).with(&context.to_be_bytes())
            }
        };
        let add = |chunk: ChunkHead, (bytes, state): &StatusRun| match extended {
            true => chunk.with(&bytes.to_be_bytes()).with(&u64::from(*state).to_be_bytes()),
            false => chunk.with(&(*bytes as u32).to_be_bytes()).with(&state.to_be_bytes()),
        };
        runs.iter().fold(chunk, add).bytes
    }
}

/// Status of sectors in the context of holes.
pub fn run_of_holes(run: &MappedRun) -> StatusRun {
    (run.sectors * SECTOR_BYTES, state_of(run.state))
}

/// Status of sectors in the context of a mark.
pub fn run_of_changes(run: &ChangedRun) -> StatusRun {
    (run.sectors * SECTOR_BYTES, if run.changed { p::STATE_CHANGED } else { 0 })
}

const fn state_of(state: SectorState) -> u32 {
    match state {
        SectorState::Data => 0,
        SectorState::Zeroes => p::STATE_ZERO,
        SectorState::Hole => p::STATE_HOLE | p::STATE_ZERO,
    }
}
