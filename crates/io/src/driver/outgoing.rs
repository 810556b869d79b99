//! Queues what a connection has to send: pieces in order, gathered into one message at a time.

use std::collections::VecDeque;

use dcd_engine::Buf;

use crate::OutputPiece;

/// Pieces in one message. The kernel takes 1024; beyond a few hundred, gathering more saves nothing.
const VECTORS_MAX: usize = 256;

/// See the module's documentation.
pub(super) struct Outgoing {
    pieces: VecDeque<OutputPiece>,
    /// Sent bytes of the first piece.
    skip: usize,
    /// Bytes that are not sent yet.
    bytes: usize,
    vectors: Vec<libc::iovec>,
    header: Box<libc::msghdr>,
    /// Pieces that the kernel is reading; none where no message is on its way.
    lent: usize,
    pub in_flight: bool,
    /// True if the socket's buffer was full: the next message waits for space.
    pub waits: bool,
}

impl Default for Outgoing {
    fn default() -> Self {
        // SAFETY: plain data; all zeroes is the empty message.
        let header = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Outgoing {
            pieces: VecDeque::new(),
            skip: 0,
            bytes: 0,
            vectors: Vec::new(),
            header,
            lent: 0,
            in_flight: false,
            waits: false,
        }
    }
}

fn bytes_of(piece: &OutputPiece) -> &[u8] {
    match piece {
        OutputPiece::Bytes(bytes) => bytes,
        OutputPiece::Buf(buf) => buf.bytes(),
    }
}

impl Outgoing {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.in_flight
    }

    pub fn push(&mut self, piece: OutputPiece) {
        let piece = match piece {
            // A stream cannot carry a blank buffer: send zeroes.
            OutputPiece::Buf(buf) if buf.is_blank() && !buf.is_empty() => {
                OutputPiece::Buf(Buf::zeroed(buf.len()))
            }
            piece => piece,
        };
        self.bytes += bytes_of(&piece).len();
        // Small headers in a row become one piece, unless the kernel is reading the one before.
        if self.pieces.len() > self.lent
            && let (Some(OutputPiece::Bytes(last)), OutputPiece::Bytes(bytes)) =
                (self.pieces.back_mut(), &piece)
        {
            last.extend_from_slice(bytes);
            return;
        }
        self.pieces.push_back(piece);
    }

    /// The next message, valid until [`Outgoing::sent`]: the pieces stay where they are.
    pub fn message(&mut self) -> *const libc::msghdr {
        assert!(!self.in_flight, "one message at a time");
        self.vectors.clear();
        let mut skip = self.skip;
        for piece in self.pieces.iter().take(VECTORS_MAX) {
            let bytes = &bytes_of(piece)[std::mem::take(&mut skip)..];
            self.vectors
                .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        }
        self.lent = self.vectors.len();
        self.in_flight = true;
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        &raw const *self.header
    }

    /// The message has ended, and `count` bytes of it have gone out. Gives back the buffers that went out whole.
    pub fn sent(&mut self, count: usize, gone: &mut Vec<Buf>) {
        self.in_flight = false;
        self.lent = 0;
        self.bytes -= count;
        self.skip += count;
        while let Some(first) = self.pieces.front() {
            let len = bytes_of(first).len();
            if len > self.skip {
                break;
            }
            self.skip -= len;
            if let Some(OutputPiece::Buf(buf)) = self.pieces.pop_front() {
                gone.push(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a message, as the kernel would read them.
    fn read(outgoing: &mut Outgoing) -> Vec<u8> {
        let header = outgoing.message();
        // SAFETY: the message is valid until `sent`.
        unsafe {
            let vectors = std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen as _);
            let slice =
                |v: &libc::iovec| std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len).to_vec();
            vectors.iter().flat_map(slice).collect()
        }
    }

    #[test]
    fn partial_sends_go_on_where_they_ended() {
        let mut outgoing = Outgoing::default();
        outgoing.push(OutputPiece::Bytes(vec![1, 2]));
        outgoing.push(OutputPiece::Bytes(vec![3]));
        outgoing.push(OutputPiece::Buf(Buf::copy_of(&[4, 5, 6])));
        outgoing.push(OutputPiece::Bytes(vec![7]));
        let mut gone = Vec::new();
        assert_eq!(read(&mut outgoing), [1, 2, 3, 4, 5, 6, 7]);
        outgoing.sent(4, &mut gone);
        assert_eq!((outgoing.bytes(), gone.len()), (3, 0));
        assert_eq!(read(&mut outgoing), [5, 6, 7]);
        // What comes meanwhile is not joined to a piece that the kernel is reading.
        outgoing.push(OutputPiece::Bytes(vec![8]));
        outgoing.sent(2, &mut gone);
        assert_eq!(gone.len(), 1);
        assert_eq!(read(&mut outgoing), [7, 8]);
        outgoing.sent(2, &mut gone);
        assert!(outgoing.is_empty() && outgoing.bytes() == 0);
    }

    #[test]
    fn empty_buffers_come_back() {
        let mut outgoing = Outgoing::default();
        outgoing.push(OutputPiece::Buf(Buf::none()));
        let mut gone = Vec::new();
        outgoing.sent(0, &mut gone);
        assert!(gone.len() == 1 && outgoing.is_empty());
    }

    #[test]
    fn blank_buffers_go_out_as_zeroes() {
        let mut outgoing = Outgoing::default();
        outgoing.push(OutputPiece::Buf(Buf::blank(3)));
        assert_eq!(read(&mut outgoing), [0, 0, 0]);
    }
}
