//! Handles a connection in the transmission phase: turns requests into bytes, and bytes into answers.

use dcd_engine::{ErrorKind, Io, Nanos, SECTOR_BYTES};

use super::links::LinkError;
use super::{NbdClient, PIECE_BYTES_MAX, RANGE_BYTES_MAX, ZEROES_BYTES_MAX, is_durable, offset};
use crate::handshake::Offer;
use crate::protocol as p;

/// A connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub in_flight: usize,
    /// Bytes to send.
    out: Vec<u8>,
    /// Received part of an answer's header.
    header: Vec<u8>,
    /// The read whose data is arriving, and the received bytes of its piece.
    body: Option<(u64, u64)>,
}

impl Link {
    /// Adds a request for the next piece of an operation, after its first `done` bytes. Returns the piece's length.
    pub fn push(&mut self, offer: &Offer, number: u64, io: &Io, done: u64) -> u64 {
        self.in_flight += 1;
        let Some(extent) = io.extent() else {
            self.out.extend_from_slice(&p::request(p::CMD_FLUSH, 0, number, 0, 0));
            return 0;
        };
        let start = offset(extent.start) + done;
        let rest = extent.sectors * SECTOR_BYTES - done;
        let payload = PIECE_BYTES_MAX.min(u64::from(offer.payload_bytes_max) & !(SECTOR_BYTES - 1));
        let fua = if is_durable(io) { p::CMD_FLAG_FUA } else { 0 };
        let writes_zeroes = offer.has(p::TFLAG_SEND_WRITE_ZEROES);
        let (command, flags, piece) = match io {
            Io::Read { .. } | Io::ReadCopy { .. } => (p::CMD_READ, 0, rest.min(payload)),
            Io::Write { .. } | Io::WriteCopy { .. } => (p::CMD_WRITE, fua, rest.min(payload)),
            Io::Discard { .. } => (p::CMD_TRIM, 0, rest.min(RANGE_BYTES_MAX)),
            Io::WriteZeroes { unmap, .. } if writes_zeroes => {
                let hole = if *unmap { 0 } else { p::CMD_FLAG_NO_HOLE };
                (p::CMD_WRITE_ZEROES, fua | hole, rest.min(RANGE_BYTES_MAX))
            }
            Io::WriteZeroes { .. } => (p::CMD_WRITE, fua, rest.min(payload).min(ZEROES_BYTES_MAX)),
            Io::Flush => unreachable!("it has no extent"),
        };
        self.out.extend_from_slice(&p::request(command, flags, number, start, piece as u32));
        match io {
            Io::Write { buf, .. } | Io::WriteCopy { buf, .. } => {
                self.out.extend_from_slice(&buf.bytes()[done as usize..(done + piece) as usize]);
            }
            Io::WriteZeroes { .. } if !writes_zeroes => {
                self.out.resize(self.out.len() + piece as usize, 0);
            }
            _ => {}
        }
        piece
    }
}

impl NbdClient {
    /// Returns the bytes to send on a connection. The caller removes the bytes that it has sent from the front.
    ///
    /// # Panics
    /// If there is no such connection.
    pub fn outgoing(&mut self, link: usize) -> &mut Vec<u8> {
        &mut self.links[link].out
    }

    /// Takes bytes that a connection has brought.
    ///
    /// # Errors
    /// If the connection is unusable. The caller then closes all connections, and calls [`NbdClient::lost`].
    pub fn receive(&mut self, now: Nanos, link: usize, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            bytes = match self.links[link].body {
                Some((number, filled)) => self.take_body(now, link, number, filled, bytes)?,
                None => self.take_header(now, link, bytes)?,
            };
        }
        self.send_waiting(now);
        Ok(())
    }

    fn take_header<'a>(&mut self, now: Nanos, link: usize, bytes: &'a [u8]) -> Result<&'a [u8], LinkError> {
        let header = &mut self.links[link].header;
        let take = bytes.len().min(p::SIMPLE_REPLY_BYTES - header.len());
        header.extend_from_slice(&bytes[..take]);
        if header.len() == p::SIMPLE_REPLY_BYTES {
            let (magic, error, number) = (p::u32_at(header, 0), p::u32_at(header, 4), p::u64_at(header, 8));
            header.clear();
            if magic != p::SIMPLE_REPLY_MAGIC {
                return Err(LinkError::Protocol);
            }
            let op = self.ops.get(&number).filter(|op| op.link == Some(link)).ok_or(LinkError::Protocol)?;
            match error {
                0 if matches!(op.io, Io::Read { .. } | Io::ReadCopy { .. }) => {
                    self.links[link].body = Some((number, 0));
                }
                0 => self.came(now, link, number, Ok(()))?,
                _ => {
                    let kind = p::Errno::kind(error).ok_or(LinkError::ShuttingDown)?;
                    self.came(now, link, number, Err(kind))?;
                }
            }
        }
        Ok(&bytes[take..])
    }

    fn take_body<'a>(
        &mut self,
        now: Nanos,
        link: usize,
        number: u64,
        filled: u64,
        bytes: &'a [u8],
    ) -> Result<&'a [u8], LinkError> {
        let op = self.ops.get_mut(&number).expect("it is on its way");
        let take = (op.piece - filled).min(bytes.len() as u64);
        let start = (op.done + filled) as usize;
        if let Io::Read { buf, .. } | Io::ReadCopy { buf, .. } = &mut op.io {
            buf.bytes_mut()[start..start + take as usize].copy_from_slice(&bytes[..take as usize]);
        }
        let whole = filled + take == op.piece;
        self.links[link].body = (!whole).then_some((number, filled + take));
        if whole {
            self.came(now, link, number, Ok(()))?;
        }
        Ok(&bytes[take as usize..])
    }

    /// An answer has come whole.
    fn came(
        &mut self,
        now: Nanos,
        link: usize,
        number: u64,
        status: Result<(), ErrorKind>,
    ) -> Result<(), LinkError> {
        self.links[link].in_flight -= 1;
        self.answered(now, number, status)
    }
}
