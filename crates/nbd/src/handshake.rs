//! The client's side of the handshake.

use std::io::{self, Read, Write};

use crate::protocol as p;

/// Maximum length of a reply, above that of any real one.
const REPLY_BYTES_MAX: u32 = 64 << 10;
const OPTION_REPLY_BYTES: usize = 20;
/// Maximum number of replies to an option, above that of any real server.
const REPLIES_MAX: usize = 64;
/// Maximum payload of a server that announces none.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Properties of an export, as its server announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub bytes: u64,
    /// The transmission flags.
    pub flags: u16,
    /// True if the server says that what it has answered survives a power cut.
    pub durable: bool,
    pub block_bytes_min: u32,
    /// Preferred block size; 0 if the server announces none.
    pub block_bytes_preferred: u32,
    /// The longest read or write that it takes.
    pub payload_bytes_max: u32,
}

impl Offer {
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// True if a client of the earlier offer may continue with this one: what it takes for durable is. A client that has flushed so far
    /// may do so without need.
    pub const fn is_as_durable_as(&self, earlier: &Offer) -> bool {
        self.durable || !earlier.durable && self.has(p::TFLAG_SEND_FLUSH) == earlier.has(p::TFLAG_SEND_FLUSH)
    }
}

/// Completes the handshake, up to the transmission phase. `goes_on`: tells the server that the client outlives it.
///
/// # Errors
/// Errors of the connection, and in words, refusals of the server.
pub fn handshake(stream: &mut (impl Read + Write), name: &str, goes_on: bool) -> io::Result<Offer> {
    greet(stream)?;
    if goes_on {
        stream.write_all(&option(p::OPT_GOES_ON, &[]))?;
        // A server that does not know this option refuses it, and treats the client as an ordinary one.
        read_reply(stream)?;
    }
    choose(stream, name)
}

/// The greetings of both sides. Options may follow.
///
/// # Errors
/// As for [`handshake`].
pub fn greet(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let is_nbd = p::u64_at(&greeting, 0) == p::INIT_MAGIC && p::u64_at(&greeting, 8) == p::OPTION_MAGIC;
    if !is_nbd || p::u16_at(&greeting, 16) & p::FLAG_FIXED_NEWSTYLE == 0 {
        return Err(io::Error::other("this is no NBD server that knows options"));
    }
    let no_zeroes = p::u16_at(&greeting, 16) & p::FLAG_NO_ZEROES != 0;
    let flags = p::FLAG_C_FIXED_NEWSTYLE | if no_zeroes { p::FLAG_C_NO_ZEROES } else { 0 };
    stream.write_all(&flags.to_be_bytes())
}

/// Asks the server to begin TLS. After the TLS handshake, options follow as before.
///
/// # Errors
/// As for [`handshake`].
pub fn ask_for_tls(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(&option(p::OPT_STARTTLS, &[]))?;
    match read_reply(stream)? {
        (p::REP_ACK, _) => Ok(()),
        (_, said) => Err(io::Error::other(format!(
            "the server has no TLS for this client{}",
            match said.is_empty() {
                true => String::new(),
                false => format!(": {}", String::from_utf8_lossy(&said)),
            }
        ))),
    }
}

/// Chooses an export, by which the transmission phase begins.
///
/// # Errors
/// As for [`handshake`].
pub fn choose(stream: &mut (impl Read + Write), name: &str) -> io::Result<Offer> {
    stream.write_all(&go(name))?;
    let mut offer = Offer {
        bytes: 0,
        flags: 0,
        durable: false,
        block_bytes_min: 512,
        block_bytes_preferred: 0,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
    };
    for _ in 0..REPLIES_MAX {
        let (kind, data) = read_reply(stream)?;
        match kind {
            p::REP_ACK if offer.bytes > 0 => return Ok(offer),
            p::REP_ACK => return Err(io::Error::other("the server does not say how large the export is")),
            p::REP_INFO => offer.take(&data),
            p::REP_ERR_TLS_REQUIRED => {
                return Err(io::Error::other("the server wants TLS: write nbds instead of nbd"));
            }
            p::REP_ERR_UNKNOWN if data.is_empty() => {
                return Err(io::Error::other(format!("the server has no export \"{name}\"")));
            }
            _ => {
                return Err(io::Error::other(format!("the server says: {}", String::from_utf8_lossy(&data))));
            }
        }
    }
    Err(io::Error::other("the server does not come to an end with what it tells of the export"))
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

/// Builds the option GO, which asks for the block sizes and for durability besides the export's size.
fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    let asked = [p::INFO_BLOCK_SIZE, p::INFO_DURABLE];
    data.extend_from_slice(&(asked.len() as u16).to_be_bytes());
    asked.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    option(p::OPT_GO, &data)
}

impl Offer {
    fn take(&mut self, item: &[u8]) {
        match item.first_chunk::<2>().map(|kind| u16::from_be_bytes(*kind)) {
            Some(p::INFO_EXPORT) if item.len() >= 12 => {
                (self.bytes, self.flags) = (p::u64_at(item, 2), p::u16_at(item, 10));
            }
            Some(p::INFO_BLOCK_SIZE) if item.len() >= 14 => {
                self.block_bytes_min = p::u32_at(item, 2);
                self.block_bytes_preferred = p::u32_at(item, 6);
                self.payload_bytes_max = p::u32_at(item, 10);
            }
            Some(p::INFO_DURABLE) => self.durable = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Bytes of a server, after which nothing comes; what it is sent does not matter.
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

    fn greeting() -> Vec<u8> {
        [&p::INIT_MAGIC.to_be_bytes()[..], &p::OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat()
    }

    fn reply(kind: u32, data: &[u8]) -> Vec<u8> {
        let (kind, length) = (kind.to_be_bytes(), (data.len() as u32).to_be_bytes());
        [&p::OPTION_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &kind, &length, data].concat()
    }

    fn export(bytes: u64) -> Vec<u8> {
        let info = [&p::INFO_EXPORT.to_be_bytes()[..], &bytes.to_be_bytes(), &[0, 1]].concat();
        reply(p::REP_INFO, &info)
    }

    #[test]
    fn a_server_that_never_comes_to_an_end_is_not_listened_to_for_ever() {
        let good = [greeting(), export(512), reply(p::REP_ACK, &[])].concat();
        assert_eq!(handshake(&mut Says(&good), "x", false).unwrap().bytes, 512);
        let endless = [greeting(), export(512).repeat(1 << 16)].concat();
        let mut says = Says(&endless);
        assert!(handshake(&mut says, "x", false).is_err());
        assert!(says.0.len() > endless.len() / 2);
    }

    #[test]
    fn any_bytes_of_a_server_are_an_offer_or_an_error() {
        for seed in 0..4000 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut said = greeting();
            for _ in 0..random.random_range(0..4) {
                let data: Vec<u8> = (0..random.random_range(0..20)).map(|_| random.random()).collect();
                said.extend(match random.random_range(0..4) {
                    0 => export(random.random()),
                    1 => reply(p::REP_INFO, &data),
                    2 => reply(p::REP_ACK, &data),
                    _ => reply(random.random(), &data),
                });
            }
            if random.random_bool(0.5) {
                let place = random.random_range(0..said.len());
                said[place] = random.random();
            }
            said.truncate(random.random_range(0..=said.len()));
            if let Ok(offer) = handshake(&mut Says(&said), "x", random.random()) {
                assert!(offer.bytes > 0);
            }
        }
    }
}
