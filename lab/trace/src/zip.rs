//! The first file of a ZIP archive as a stream, without a look at the directory at its end: stored, or deflated.
//!
//! A local header stands before each file. A checksum is in it, or follows the data. An archive with a second file is damaged for a
//! reader that wants one trace, so that it says so, and the first one can be used.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

use flate2::Crc;
use flate2::bufread::DeflateDecoder;

pub const MAGIC: &[u8; 4] = b"PK\x03\x04";
/// Each part of an archive begins so.
const SIGNATURE: &[u8; 2] = b"PK";
const DESCRIPTOR: &[u8; 4] = b"PK\x07\x08";
const HEADER_BYTES: usize = 30;
const ENCRYPTED: u16 = 1;
/// The checksum and the sizes follow the data.
const DESCRIBED: u16 = 1 << 3;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// A size that is in an extra field.
const LARGE: u64 = u32::MAX as u64;

enum Data {
    Stored(std::io::Take<Box<dyn BufRead>>),
    Deflated(DeflateDecoder<Box<dyn BufRead>>),
    Ended,
}

pub struct FirstFile {
    data: Data,
    crc: Crc,
    /// The checksum of the header, if it has one.
    wanted: Option<u32>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

/// Reads the headers up to the first file that is no directory.
pub fn open(mut archive: Box<dyn BufRead>) -> Result<FirstFile> {
    loop {
        let mut header = [0; HEADER_BYTES];
        archive.read_exact(&mut header)?;
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if !header.starts_with(MAGIC) {
            return Err(wrong("there is no file in the archive"));
        }
        let (flags, method, bytes) = (short(6), short(8), u64::from(long(18)));
        let mut name = vec![0; short(26).into()];
        archive.read_exact(&mut name)?;
        archive.read_exact(&mut vec![0; short(28).into()])?;
        if name.ends_with(b"/") {
            continue;
        }
        let described = flags & DESCRIBED != 0;
        let data = match method {
            _ if flags & ENCRYPTED != 0 => return Err(wrong("the archive is encrypted: decrypt it first")),
            STORED if !described && bytes != LARGE => Data::Stored(archive.take(bytes)),
            DEFLATED => Data::Deflated(DeflateDecoder::new(archive)),
            _ => return Err(wrong(format!("the archive is packed by method {method}: unpack it first"))),
        };
        return Ok(FirstFile { data, crc: Crc::new(), wanted: (!described).then(|| long(14)) });
    }
}

impl FirstFile {
    /// Checks what was read, and that nothing is left.
    fn check(&self, archive: &mut dyn BufRead) -> Result<()> {
        let mut part = [0; 4];
        let wanted = match self.wanted {
            Some(wanted) => wanted,
            None => {
                archive.read_exact(&mut part)?;
                if part == *DESCRIPTOR {
                    archive.read_exact(&mut part)?;
                }
                u32::from_le_bytes(part)
            }
        };
        if wanted != self.crc.sum() {
            return Err(wrong("its checksum is wrong"));
        }
        if self.wanted.is_none() {
            archive.read_exact(&mut [0; 8])?;
        }
        archive.read_exact(&mut part)?;
        if self.wanted.is_none() && !part.starts_with(SIGNATURE) {
            // Its sizes have eight bytes each.
            archive.read_exact(&mut part)?;
            archive.read_exact(&mut part)?;
        }
        if part == *MAGIC {
            return Err(wrong(
                "the archive has several files, and only the first one was read: unpack it first",
            ));
        }
        Ok(())
    }
}

impl Read for FirstFile {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = match &mut self.data {
            Data::Stored(data) => data.read(buffer)?,
            Data::Deflated(data) => data.read(buffer)?,
            Data::Ended => return Ok(0),
        };
        self.crc.update(&buffer[..read]);
        if read == 0 && !buffer.is_empty() {
            let mut archive = match std::mem::replace(&mut self.data, Data::Ended) {
                Data::Stored(data) => data.into_inner(),
                Data::Deflated(data) => data.into_inner(),
                Data::Ended => return Ok(0),
            };
            self.check(&mut archive)?;
        }
        Ok(read)
    }
}

/// Makes an archive of named files, with the sizes before or after the data.
#[cfg(test)]
pub fn archive(files: &[(&str, &[u8])], method: u16, described: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, content) in files {
        let mut crc = Crc::new();
        crc.update(content);
        let packed = match method {
            DEFLATED => {
                let level = flate2::Compression::fast();
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
                std::io::Write::write_all(&mut encoder, content).expect("memory does not fail");
                encoder.finish().expect("memory does not fail")
            }
            _ => content.to_vec(),
        };
        let numbers = [crc.sum(), packed.len() as u32, content.len() as u32].map(u32::to_le_bytes).concat();
        let mut header = vec![0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        header[6] = if described { DESCRIBED as u8 } else { 0 };
        header[8..10].copy_from_slice(&method.to_le_bytes());
        if !described {
            header[14..26].copy_from_slice(&numbers);
        }
        header[26..28].copy_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend([&header, name.as_bytes(), &packed].concat());
        if described {
            out.extend([&DESCRIPTOR[..], &numbers].concat());
        }
    }
    // The directory is not read.
    out.extend(b"PK\x01\x02 and so on");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(bytes: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let archive = Box::new(std::io::Cursor::new(bytes));
        open(archive).and_then(|mut file| file.read_to_end(&mut content)).map_err(|e| e.to_string())?;
        Ok(content)
    }

    #[test]
    fn the_first_file_is_read_and_checked() {
        let text = b"0,8,512,R,0.0\n".repeat(1000);
        for (method, described) in [(STORED, false), (DEFLATED, false), (DEFLATED, true)] {
            let whole = archive(&[("a.csv", &text)], method, described);
            assert_eq!(unpacked(whole.clone()), Ok(text.clone()), "{method} {described}");
            let cut = whole[..whole.len() / 2].to_vec();
            assert!(unpacked(cut).is_err(), "{method} {described}");
            let two = archive(&[("a.csv", &text), ("b.csv", &text)], method, described);
            assert!(unpacked(two).unwrap_err().contains("several files"), "{method} {described}");
        }
        let beside = archive(&[("traces/", b""), ("traces/a.csv", &text)], STORED, false);
        assert_eq!(unpacked(beside), Ok(text.clone()));
        let mut damaged = archive(&[("a.csv", &text)], STORED, false);
        damaged[HEADER_BYTES + 50] ^= 1;
        assert!(unpacked(damaged).unwrap_err().contains("checksum"));
        let mut encrypted = archive(&[("a.csv", &text)], STORED, false);
        encrypted[6] = 1;
        assert!(unpacked(encrypted).unwrap_err().contains("encrypted"));
        assert!(unpacked(archive(&[("a.csv", &text)], 99, false)).unwrap_err().contains("method 99"));
    }
}
