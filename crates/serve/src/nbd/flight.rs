//! The requests of one connection that the engine has not answered.

use dcd_engine::Extent;
use slab::Slab;

use super::replies::ReplyTo;

/// State of a request until its answer.
#[derive(Clone, Copy, Debug)]
pub struct PendingAnswer {
    pub to: ReplyTo,
    /// Memory that it holds: of its payload, of the data it reads, or of its reply.
    pub bytes: usize,
    pub kind: AnswerKind,
}

/// Treatment of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    Read,
    /// A read whose data is not sent.
    Cache,
    Write,
    Flush,
    Trim,
    /// A trim that has to be durable: the engine's discard is not, so a flush follows it under the same token.
    TrimThenFlush,
    Zeroes {
        fast: bool,
    },
    /// The status of blocks, of which the driver tells the holes.
    Status {
        extent: Extent,
        runs_max: usize,
    },
}

#[derive(Debug, Default)]
pub struct RequestsInFlight {
    pending: Slab<PendingAnswer>,
    bytes: usize,
}

impl RequestsInFlight {
    pub fn insert(&mut self, pending: PendingAnswer) -> u64 {
        self.bytes += pending.bytes;
        self.pending.insert(pending) as u64
    }

    pub fn get_mut(&mut self, token: u64) -> &mut PendingAnswer {
        &mut self.pending[token as usize]
    }

    pub fn remove(&mut self, token: u64) -> PendingAnswer {
        let pending = self.pending.remove(token as usize);
        self.bytes -= pending.bytes;
        pending
    }

    pub fn requests(&self) -> usize {
        self.pending.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
