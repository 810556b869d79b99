//! Any bytes of a server that dcd is a client of, in the handshake and after it, cut anywhere: no panic, no answer to what was not asked, and a
//! connection that is lost can be made again.

use std::io::{self, Read, Write};

use dcd_engine::{Buf, Durability, Extent, Io, Lba, Nanos};
use dcd_nbd::{NbdClient, Offer, handshake::handshake};

const SECTORS: u64 = 128;

struct Says<'a>(&'a [u8]);

impl Read for Says<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Says<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_server_that_sends_anything_never_ends_its_client() {
    bolero::check!().for_each(|data: &[u8]| {
        let Some((&shape, data)) = data.split_first() else { return };
        if shape & 1 != 0 {
            let _ = handshake(&mut Says(data), "d", shape & 2 != 0);
            return;
        }
        let offer = Offer {
            bytes: SECTORS * 512,
            flags: u16::MAX,
            durable: shape & 2 != 0,
            block_bytes_min: 512,
            block_bytes_preferred: 4096,
            payload_bytes_max: 1024,
        };
        let mut client = NbdClient::new(offer);
        client.connected(Nanos::ZERO, 1, &offer).expect("it is what it offers");
        let mut asked = 0;
        for (round, chunk) in data.chunks(usize::from(shape >> 2) * 5 + 1).enumerate() {
            let now = Nanos::from_secs(round as u64);
            let at = Lba(round as u64 % (SECTORS - 8));
            let io = match chunk[0] & 3 {
                0 => Io::Flush,
                1 => Io::Discard { extent: Extent::new(at, 8) },
                2 => Io::Write { at, buf: Buf::zeroed(4096), durability: Durability::Volatile },
                _ => Io::Read { at, buf: Buf::zeroed(4096) },
            };
            client.submit(now, io);
            asked += 1;
            if client.receive(now, 0, chunk).is_err() {
                client.lost();
                client.connected(now, 1, &offer).expect("it is what it offers");
            }
            asked -= client.take_ended().len();
            client.outgoing(0).clear();
        }
        // A client that gives up ends all that it still waits for.
        client.lost();
        client.give_up();
        assert_eq!(asked, client.take_ended().len());
    });
}
