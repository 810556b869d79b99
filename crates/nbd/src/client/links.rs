//! Connections made and lost: decides which operations are sent again or wait, and recognises the server.

use dcd_engine::{Buf, Extent, Io, Nanos, SECTOR_BYTES};

use super::wire::Link;
use super::{Kept, NbdClient, ResultTo, SETTLE};
use crate::handshake::Offer;
use crate::protocol as p;

/// Maximum number of blocks by which the client recognises its server.
const MARKS_MAX: usize = 8;
/// Maximum size of each of these blocks.
const MARK_BYTES_MAX: usize = 4096;
/// Flags that must be the same after a reconnect.
const NEEDED: u16 = p::TFLAG_READ_ONLY | p::TFLAG_SEND_FUA | p::TFLAG_SEND_TRIM | p::TFLAG_SEND_WRITE_ZEROES;

/// Errors that end a connection, or by which the client refuses it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("the server's answer is none of the NBD protocol")]
    Protocol,
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error(
        "the export has other content than before: another machine has written to it, or it is another disk, or an older state of this one"
    )]
    OtherContent,
    #[error("a block that was read to know the export again cannot be read")]
    Unreadable,
    #[error("the export has {now} bytes and had {before}: it is another disk")]
    OtherSize { before: u64, now: u64 },
    #[error(
        "the export came back with other properties (flags {now:#x}, which were {before:#x}; blocks of {block} bytes at least; {payload} bytes \
         at a time)"
    )]
    OtherProperties { before: u16, now: u16, block: u32, payload: u32 },
    #[error(
        "the export came back with another promise: writes were durable when they were answered, and now need a flush, or a flush is no longer \
         offered; have the server promise what it did (promise = \"always\"), or start this dcd again"
    )]
    LessDurable,
}

/// A write that was on its way when a connection was lost.
#[derive(Debug)]
pub(super) struct Hazard {
    extent: Extent,
    /// The number of the write. Those with higher ones are newer.
    write: u64,
    /// None until there is a connection again.
    pub until: Option<Nanos>,
}

impl Hazard {
    /// True if this operation has to wait for the hazard.
    pub fn holds(&self, number: u64, extent: Extent) -> bool {
        number > self.write && self.extent.overlaps(extent)
    }
}

/// A block whose content is certainly durable on the server.
#[derive(Debug)]
pub(super) struct DurableBlock {
    pub extent: Extent,
    sum: u32,
}

impl NbdClient {
    /// True while there are connections.
    pub fn is_connected(&self) -> bool {
        !self.links.is_empty()
    }

    /// True while blocks are read to recognise the server.
    pub fn is_checking(&self) -> bool {
        self.ops.values().any(|op| matches!(op.origin, ResultTo::Check(_) | ResultTo::Start))
    }

    /// Returns the time at which a waiting operation may be sent without another event.
    pub fn next_deadline(&self) -> Option<Nanos> {
        match self.waiting.is_empty() {
            true => None,
            false => self.hazards.iter().filter_map(|hazard| hazard.until).min(),
        }
    }

    /// Connections have been made, all to one server.
    ///
    /// # Errors
    /// If the server has a different export under this name.
    pub fn connected(&mut self, now: Nanos, connections: usize, offer: &Offer) -> Result<(), LinkError> {
        let before = &self.offer;
        if offer.bytes != before.bytes {
            return Err(LinkError::OtherSize { before: before.bytes, now: offer.bytes });
        }
        let is_narrower = offer.block_bytes_min > before.block_bytes_min
            || u64::from(offer.payload_bytes_max) < SECTOR_BYTES;
        if offer.flags & NEEDED != before.flags & NEEDED || is_narrower {
            return Err(LinkError::OtherProperties {
                before: before.flags,
                now: offer.flags,
                block: offer.block_bytes_min,
                payload: offer.payload_bytes_max,
            });
        }
        if !offer.is_as_durable_as(before) {
            return Err(LinkError::LessDurable);
        }
        self.offer.payload_bytes_max = offer.payload_bytes_max;
        self.links.resize_with(connections, Link::default);
        for hazard in &mut self.hazards {
            hazard.until.get_or_insert(now + SETTLE);
        }
        let mut reads: Vec<(Io, ResultTo)> = self.marks.iter().map(DurableBlock::check).collect();
        reads.push((read_of(self.start.extent()), ResultTo::Start));
        for (read, origin) in reads {
            // Sent before the waiting operations, of which there may be more than are searched.
            let number = self.add(now, read, origin);
            self.waiting.remove(&number);
            self.send(now, number);
        }
        self.send_waiting(now);
        Ok(())
    }

    /// The connections are lost. The next connection sends all unflushed writes again.
    pub fn lost(&mut self) {
        self.links.clear();
        self.ops.retain(|_, op| !matches!(op.origin, ResultTo::Check(_) | ResultTo::Start));
        for (number, op) in &mut self.ops {
            if op.link.take().is_some() && op.io.modifies() {
                let extent = op.io.extent().expect("what modifies has an extent");
                self.hazards.push(Hazard { extent, write: *number, until: None });
            }
            op.done = 0;
            self.waiting.insert(*number);
        }
        self.waiting.retain(|number| self.ops.contains_key(number));
        self.kept_bytes = 0;
        for (number, Kept { io, .. }) in std::mem::take(&mut self.kept) {
            let op = super::ClientOp {
                io,
                origin: ResultTo::Resent,
                since: Nanos::ZERO,
                sent: Nanos::ZERO,
                was_sent: true,
                link: None,
                done: 0,
                piece: 0,
                covers: 0,
            };
            self.ops.insert(number, op);
            self.waiting.insert(number);
        }
    }

    /// Remembers a durable block, unless a newer write to it is in flight.
    pub(super) fn remember(&mut self, mark: Option<DurableBlock>) {
        let Some(mark) = mark else { return };
        let touches =
            |io: &Io| io.modifies() && io.extent().is_some_and(|extent| extent.overlaps(mark.extent));
        let is_newer =
            self.ops.values().any(|op| touches(&op.io)) || self.kept.values().any(|kept| touches(&kept.io));
        if is_newer {
            return;
        }
        self.marks.retain(|other| !other.extent.overlaps(mark.extent));
        if self.marks.len() == MARKS_MAX {
            self.marks.remove(0);
        }
        self.marks.push(mark);
    }
}

impl DurableBlock {
    /// The beginning of a write.
    pub fn of(io: &Io) -> Option<DurableBlock> {
        let Io::Write { at, buf, .. } = io else { return None };
        let bytes = &buf.bytes()[..buf.len().min(MARK_BYTES_MAX)];
        let extent = Extent::new(*at, bytes.len() as u64 / SECTOR_BYTES);
        Some(DurableBlock { extent, sum: crc32c::crc32c(bytes) })
    }

    fn check(&self) -> (Io, ResultTo) {
        (read_of(self.extent), ResultTo::Check(self.sum))
    }
}

fn read_of(extent: Extent) -> Io {
    Io::Read { at: extent.start, buf: Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize) }
}
