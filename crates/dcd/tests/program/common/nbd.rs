//! A small NBD client for the tests: one connection, one request at a time, every reply checked.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_WRITE_ZEROES: u16 = 6;
const FLAG_FUA: u16 = 1;
const FLAG_SEND_FLUSH: u8 = 1 << 2;

pub struct Nbd {
    stream: UnixStream,
    pub bytes: u64,
    /// True if the server offers flushes.
    pub flushes: bool,
    cookie: u64,
}

fn protocol(what: String) -> io::Error {
    io::Error::other(what)
}

impl Nbd {
    /// Connects to the default export.
    pub fn connect(path: &Path) -> io::Result<Nbd> {
        Nbd::connect_to(path, "")
    }

    pub fn connect_to(path: &Path, export: &str) -> io::Result<Nbd> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeroes.
        stream.write_all(&3u32.to_be_bytes())?;
        let mut option = Vec::new();
        option.extend(OPTION_MAGIC.to_be_bytes());
        option.extend(OPT_GO.to_be_bytes());
        option.extend((6 + export.len() as u32).to_be_bytes());
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        option.extend([0; 2]);
        stream.write_all(&option)?;
        let (mut bytes, mut flushes) = (0, false);
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let mut body = vec![0; u32::from_be_bytes(header[16..20].try_into().unwrap()) as usize];
            stream.read_exact(&mut body)?;
            match kind {
                REP_INFO if body[..2] == [0, 0] => {
                    bytes = u64::from_be_bytes(body[2..10].try_into().unwrap());
                    flushes = body[11] & FLAG_SEND_FLUSH != 0;
                }
                REP_INFO => {}
                REP_ACK => return Ok(Nbd { stream, bytes, flushes, cookie: 0 }),
                other => return Err(protocol(format!("option reply {other:#x}"))),
            }
        }
    }

    fn send(&mut self, flags: u16, command: u16, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + payload.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)
    }

    fn reply(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        if header[..4] != REPLY_MAGIC.to_be_bytes() || header[8..] != self.cookie.to_be_bytes() {
            return Err(protocol(format!("a reply to another request: {header:?}")));
        }
        match u32::from_be_bytes(header[4..8].try_into().unwrap()) {
            0 => self.stream.read_exact(into),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }

    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.send(0, CMD_READ, offset, length as u32, &[])?;
        let mut data = vec![0; length];
        self.reply(&mut data)?;
        Ok(data)
    }

    /// Asks for what nobody waits for.
    pub fn ask(&mut self, offset: u64, length: usize) -> io::Result<()> {
        self.send(0, CMD_READ, offset, length as u32, &[])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send(0, CMD_WRITE, offset, data.len() as u32, data)?;
        self.reply(&mut [])
    }

    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send(FLAG_FUA, CMD_WRITE, offset, data.len() as u32, data)?;
        self.reply(&mut [])
    }

    /// Zeroes a range without sending zeroes.
    pub fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.send(0, CMD_WRITE_ZEROES, offset, length as u32, &[])?;
        self.reply(&mut [])
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.send(0, CMD_FLUSH, 0, 0, &[])?;
        self.reply(&mut [])
    }

    pub fn disconnect(mut self) -> io::Result<()> {
        self.send(0, CMD_DISC, 0, 0, &[])
    }
}
