//! The numbers and fixed-size messages of the NBD protocol; everything on the wire is big-endian.
//!
//! Names follow the protocol text, so that a reader can hold the two side by side.

use dcd_engine::ErrorKind;

/// "NBDMAGIC", the first bytes of every server.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", before every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
pub const FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
pub const FLAG_C_NO_ZEROES: u32 = 1 << 1;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;
pub const OPT_EXTENDED_HEADERS: u32 = 11;
/// Private option of dcd's own client, without data: the client continues with the next server.
pub const OPT_GOES_ON: u32 = 0x6463_6401;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub const REP_ERR_TLS_REQUIRED: u32 = (1 << 31) + 5;
pub const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;
pub const REP_ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;
/// Private item of dcd's servers, without data, for clients that ask for it: what the server has answered survives a power cut, without a
/// flush.
pub const INFO_DURABLE: u16 = 0x6463;

pub const TFLAG_HAS_FLAGS: u16 = 1 << 0;
pub const TFLAG_READ_ONLY: u16 = 1 << 1;
pub const TFLAG_SEND_FLUSH: u16 = 1 << 2;
pub const TFLAG_SEND_FUA: u16 = 1 << 3;
pub const TFLAG_ROTATIONAL: u16 = 1 << 4;
pub const TFLAG_SEND_TRIM: u16 = 1 << 5;
pub const TFLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const TFLAG_SEND_DF: u16 = 1 << 7;
pub const TFLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub const TFLAG_SEND_CACHE: u16 = 1 << 10;
pub const TFLAG_SEND_FAST_ZERO: u16 = 1 << 11;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const CMD_FLAG_FUA: u16 = 1 << 0;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
/// With extended headers: the length is that of a payload.
pub const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub const REPLY_FLAG_DONE: u16 = 1 << 0;
pub const REPLY_NONE: u16 = 0;
pub const REPLY_OFFSET_DATA: u16 = 1;
pub const REPLY_OFFSET_HOLE: u16 = 2;
pub const REPLY_BLOCK_STATUS: u16 = 5;
pub const REPLY_BLOCK_STATUS_EXT: u16 = 6;
pub const REPLY_ERROR: u16 = (1 << 15) + 1;
pub const REPLY_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// The metadata context of holes, its states, and the query for all contexts of the protocol text.
pub const BASE_ALLOCATION: &str = "base:allocation";
pub const BASE_ALL: &str = "base:";
pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;

/// The metadata contexts of dcd: all, and the one of what has changed since a backup mark, followed by its number.
pub const DCD_ALL: &str = "dcd:";
pub const CHANGED_SINCE: &str = "dcd:changed-since=";
pub const STATE_CHANGED: u32 = 1 << 0;

/// Bytes of the zeroes after the export flags that a client may decline (NO_ZEROES).
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Longest string that the protocol text allows.
pub const STRING_BYTES_MAX: usize = 4096;

pub const CLIENT_FLAGS_BYTES: usize = 4;
pub const OPTION_HEADER_BYTES: usize = 16;
pub const REQUEST_HEADER_BYTES: usize = 28;
pub const EXTENDED_REQUEST_BYTES: usize = 32;
pub const SIMPLE_REPLY_BYTES: usize = 16;

/// An error number of the protocol; the values are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Inval = 22,
    NoSpc = 28,
    NotSup = 95,
    Shutdown = 108,
}

impl Errno {
    /// Translates a server's error number; none if it ends the connection.
    pub fn kind(number: u32) -> Option<ErrorKind> {
        match number {
            1 => Some(ErrorKind::ReadOnly),
            22 => Some(ErrorKind::Invalid),
            28 => Some(ErrorKind::NoSpace),
            95 => Some(ErrorKind::Unsupported),
            108 => None,
            _ => Some(ErrorKind::Medium),
        }
    }

    /// Chooses the error number for a client. The protocol reserves ENOTSUP for fast zeroes, and tells writes past the end (ENOSPC) from
    /// reads past the end (EINVAL).
    pub fn of(kind: ErrorKind, writes_data: bool, fast_zero: bool) -> Errno {
        match kind {
            ErrorKind::Medium | ErrorKind::Lost | ErrorKind::PowerCut => Errno::Io,
            ErrorKind::NoSpace => Errno::NoSpc,
            ErrorKind::OutOfRange if writes_data => Errno::NoSpc,
            ErrorKind::OutOfRange | ErrorKind::Invalid => Errno::Inval,
            ErrorKind::ReadOnly => Errno::Perm,
            ErrorKind::Unsupported if fast_zero => Errno::NotSup,
            ErrorKind::Unsupported => Errno::Inval,
            ErrorKind::Shutdown => Errno::Shutdown,
        }
    }
}

/// Takes `N` bytes at `at`. The callers hold arrays and slices that are long enough.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

/// Header before the data of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    pub magic: u64,
    pub option: u32,
    pub length: u32,
}

impl OptionHeader {
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> OptionHeader {
        OptionHeader { magic: u64_at(bytes, 0), option: u32_at(bytes, 8), length: u32_at(bytes, 12) }
    }
}

/// A request in the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub magic: u32,
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
}

impl RequestHeader {
    pub fn parse(bytes: &[u8; REQUEST_HEADER_BYTES]) -> RequestHeader {
        RequestHeader::with_length(bytes, u64::from(u32_at(bytes, 24)))
    }

    pub fn parse_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> RequestHeader {
        RequestHeader::with_length(bytes, u64_at(bytes, 24))
    }

    fn with_length(bytes: &[u8], length: u64) -> RequestHeader {
        RequestHeader {
            magic: u32_at(bytes, 0),
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length,
        }
    }
}

/// The reply to one request; a read's data follows it.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..16].copy_from_slice(&cookie.to_be_bytes());
    reply
}

/// The reply to one option, whole.
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(20 + data.len());
    reply.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    reply.extend_from_slice(&option.to_be_bytes());
    reply.extend_from_slice(&kind.to_be_bytes());
    reply.extend_from_slice(&(data.len() as u32).to_be_bytes());
    reply.extend_from_slice(data);
    reply
}

/// A request; the data of a write follows it.
pub fn request(
    command: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_HEADER_BYTES] {
    let mut request = [0; REQUEST_HEADER_BYTES];
    request[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[4..6].copy_from_slice(&flags.to_be_bytes());
    request[6..8].copy_from_slice(&command.to_be_bytes());
    request[8..16].copy_from_slice(&cookie.to_be_bytes());
    request[16..24].copy_from_slice(&offset.to_be_bytes());
    request[24..28].copy_from_slice(&length.to_be_bytes());
    request
}
