//! The client's side of the handshake, for a connection that is given to the kernel.

use std::io::{self, Read, Write};

use super::protocol as p;

/// More than any reply of a handshake has.
const REPLY_BYTES_MAX: u32 = 64 << 10;
const OPTION_REPLY_BYTES: usize = 20;

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub bytes: u64,
    /// The transmission flags.
    pub flags: u16,
    pub block_bytes_min: u32,
}

/// Goes through the handshake; the connection is in the transmission phase then. `goes_on`: the client outlives the server, which is told so.
///
/// # Errors
/// Those of the connection, and in words, what the server has answered.
pub fn handshake(stream: &mut (impl Read + Write), name: &str, goes_on: bool) -> io::Result<Offer> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let is_nbd = p::u64_at(&greeting, 0) == p::INIT_MAGIC && p::u64_at(&greeting, 8) == p::OPTION_MAGIC;
    if !is_nbd || p::u16_at(&greeting, 16) & p::FLAG_FIXED_NEWSTYLE == 0 {
        return Err(io::Error::other("this is no NBD server that knows options"));
    }
    let no_zeroes = p::u16_at(&greeting, 16) & p::FLAG_NO_ZEROES != 0;
    let flags = p::FLAG_C_FIXED_NEWSTYLE | if no_zeroes { p::FLAG_C_NO_ZEROES } else { 0 };
    stream.write_all(&flags.to_be_bytes())?;
    if goes_on {
        stream.write_all(&option(p::OPT_GOES_ON, &[]))?;
        // A server that does not know it says so, and takes the client for any other.
        read_reply(stream)?;
    }
    stream.write_all(&go(name))?;
    let mut offer = Offer { bytes: 0, flags: 0, block_bytes_min: 512 };
    loop {
        let (kind, data) = read_reply(stream)?;
        match kind {
            p::REP_ACK if offer.bytes > 0 => return Ok(offer),
            p::REP_ACK => return Err(io::Error::other("the server does not say how large the export is")),
            p::REP_INFO => offer.take(&data),
            _ => {
                return Err(io::Error::other(format!("the server says: {}", String::from_utf8_lossy(&data))));
            }
        }
    }
}

/// The kind of a reply to an option, and its data.
fn read_reply(stream: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let mut header = [0; OPTION_REPLY_BYTES];
    stream.read_exact(&mut header)?;
    let length = p::u32_at(&header, 16);
    if p::u64_at(&header, 0) != p::OPTION_REPLY_MAGIC || length > REPLY_BYTES_MAX {
        return Err(io::Error::other("the server's answer is none of the NBD protocol"));
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((p::u32_at(&header, 12), data))
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = p::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// GO, and the one item that is wanted besides the export's size.
fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&p::INFO_BLOCK_SIZE.to_be_bytes());
    option(p::OPT_GO, &data)
}

impl Offer {
    fn take(&mut self, item: &[u8]) {
        match item.first_chunk::<2>().map(|kind| u16::from_be_bytes(*kind)) {
            Some(p::INFO_EXPORT) if item.len() >= 12 => {
                (self.bytes, self.flags) = (p::u64_at(item, 2), p::u16_at(item, 10));
            }
            Some(p::INFO_BLOCK_SIZE) if item.len() >= 6 => self.block_bytes_min = p::u32_at(item, 2),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dcd_engine::Geometry;
    use dcd_io::{Actions, Piece, Session};

    use super::*;
    use crate::Outlives;
    use crate::nbd::{NbdExports, NbdSession};

    /// A connection to a session, without a socket.
    struct Wire {
        session: NbdSession,
        sent: std::collections::VecDeque<u8>,
    }

    impl Wire {
        fn to(exports: NbdExports) -> Wire {
            let mut wire = Wire { session: NbdSession::new(Arc::new(exports)), sent: Default::default() };
            let mut actions = Actions::default();
            wire.session.start(&mut actions);
            wire.keep(actions);
            wire
        }

        fn keep(&mut self, actions: Actions) {
            for piece in actions.send {
                let Piece::Bytes(bytes) = piece else { panic!("a handshake has no buffers") };
                self.sent.extend(bytes);
            }
        }
    }

    impl Read for Wire {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.sent.read(into)
        }
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut actions = Actions::default();
            self.session.receive(bytes, &mut actions);
            self.keep(actions);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_handshake_ends_in_the_transmission_phase_with_what_the_kernel_has_to_know() {
        let geometry = Geometry { logical_block_bytes: 4096, ..Geometry::plain(2048) };
        let exports = NbdExports::single("disk", geometry, false);
        let flags = exports.find("disk").unwrap().flags();
        for (outlives, goes_on) in
            [(Outlives::No, true), (Outlives::Answered, false), (Outlives::Answered, true)]
        {
            let mut wire = Wire::to(exports.clone().outliving(outlives));
            let offer = handshake(&mut wire, "disk", goes_on).unwrap();
            assert_eq!(offer, Offer { bytes: 1 << 20, flags, block_bytes_min: 4096 });
            assert!(wire.session.has_device() && wire.sent.is_empty());
            assert_eq!(wire.session.holds_requests(), outlives != Outlives::No);
            assert_eq!(wire.session.outlives_server(), goes_on && outlives != Outlives::No);
        }
    }

    #[test]
    fn the_server_s_refusal_is_passed_on() {
        let mut wire = Wire::to(NbdExports::single("disk", Geometry::plain(2048), false));
        let refused = handshake(&mut wire, "other", false).unwrap_err().to_string();
        assert!(refused.contains("no export has this name"), "{refused}");
        let mut other = io::Cursor::new([0; 64].to_vec());
        assert!(handshake(&mut other, "", false).unwrap_err().to_string().contains("no NBD server"));
    }
}
