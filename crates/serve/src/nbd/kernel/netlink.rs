//! Generic netlink, as far as this family needs it: a request, the kernel's answer, and its verdict.
//!
//! ```text
//! message    length u32 | type u16 | flags u16 | sequence u32 | port u32, then the family's command u8 | version u8 | 0 u16, attributes
//! attribute  length u16 | type u16 | value, filled up to a multiple of 4
//! ```
//!
//! Numbers have the byte order of the machine. The layout is that of linux/netlink.h and linux/genetlink.h. The existing crates add
//! types for every family, and a dozen dependencies each.

use std::io;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, send, socket_with};

const HEADER_BYTES: usize = 16;
const FAMILY_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Flags of a request that asks for a verdict.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// The type of a verdict: an error number, or 0.
const ERROR: u16 = 2;
/// The control family, which lists the others.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// An attribute of attributes.
const NESTED: u16 = 1 << 15;
/// Mask that removes the type's flags for the encoding of the value.
const TYPE_MASK: u16 = !(3 << 14);
/// Maximum size of an answer, above that of any real one.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum time for an answer of the kernel, which does not depend on any server.
const PATIENCE: Duration = Duration::from_secs(30);

/// The attributes of a request, in order.
#[derive(Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    fn value(mut self, kind: u16, value: &[u8]) -> Attributes {
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()).expect("attributes are short");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn number(self, kind: u16, value: u32) -> Attributes {
        self.value(kind, &value.to_ne_bytes())
    }

    pub fn long(self, kind: u16, value: u64) -> Attributes {
        self.value(kind, &value.to_ne_bytes())
    }

    pub fn text(self, kind: u16, value: &str) -> Attributes {
        self.value(kind, &[value.as_bytes(), &[0]].concat())
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn nested(self, kind: u16, inner: Attributes) -> Attributes {
        self.value(kind | NESTED, &inner.0)
    }
}

/// A family of the kernel, and a socket to it.
#[derive(Debug)]
pub struct NetlinkFamily {
    socket: OwnedFd,
    id: u16,
    version: u8,
}

impl NetlinkFamily {
    /// Finds a family by its name; the kernel loads its module, where it has one.
    ///
    /// # Errors
    /// NotFound where there is no such family.
    pub fn open(name: &str, version: u8) -> io::Result<NetlinkFamily> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let control = NetlinkFamily { socket, id: CONTROL, version: 1 };
        let answer = control.call(GET_FAMILY, &Attributes::default().text(FAMILY_NAME, name))?;
        let id = find(&answer, FAMILY_ID).and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)));
        let id = id.ok_or_else(|| io::Error::other("a family without a number"))?;
        Ok(NetlinkFamily { id, version, ..control })
    }

    /// Makes a request. Returns the attributes of its answer, if any.
    pub fn call(&self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        send(&self.socket, &self.request(command, attributes), SendFlags::empty())?;
        let mut answer = Vec::new();
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        loop {
            let (count, _) = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                received => received?,
            };
            if let Some(verdict) = read_messages(&buffer[..count], &mut answer)? {
                return verdict.map(|()| answer);
            }
        }
    }

    fn request(&self, command: u8, attributes: &Attributes) -> Vec<u8> {
        let length = HEADER_BYTES + FAMILY_HEADER_BYTES + attributes.0.len();
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(&u32::try_from(length).expect("requests are short").to_ne_bytes());
        message.extend_from_slice(&self.id.to_ne_bytes());
        message.extend_from_slice(&(REQUEST | ACK).to_ne_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(&[command, self.version, 0, 0]);
        message.extend_from_slice(&attributes.0);
        message
    }
}

/// Reads messages of the kernel. Returns its verdict, once that has arrived.
fn read_messages(mut bytes: &[u8], answer: &mut Vec<u8>) -> io::Result<Option<io::Result<()>>> {
    let malformed = || io::Error::other("the kernel's answer is not a netlink message");
    while !bytes.is_empty() {
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(malformed)?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = bytes.get(HEADER_BYTES..length).ok_or_else(malformed)?;
        if kind == ERROR {
            let number = i32::from_ne_bytes(*body.first_chunk::<4>().ok_or_else(malformed)?);
            return Ok(Some(match number {
                0 => Ok(()),
                _ => Err(io::Error::from_raw_os_error(number.saturating_neg())),
            }));
        }
        *answer = body.get(FAMILY_HEADER_BYTES..).ok_or_else(malformed)?.to_vec();
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

/// The value of an attribute of an answer.
pub fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let header = attributes.first_chunk::<ATTRIBUTE_HEADER_BYTES>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn attributes_are_filled_up_and_found_again() {
        let inner = Attributes::default().number(1, 7);
        let all = Attributes::default().text(10, "abcd").nested(7, inner).long(4, 1 << 40).0;
        assert_eq!(all.len() % 4, 0);
        assert_eq!(find(&all, 10), Some(&b"abcd\0"[..]));
        assert_eq!(find(&all, 4), Some(&(1u64 << 40).to_ne_bytes()[..]));
        assert_eq!(find(find(&all, 7).unwrap(), 1), Some(&7u32.to_ne_bytes()[..]));
        assert_eq!(find(&all, 5), None);
        // What ends in the middle has no value, and an attribute without a length does not repeat for ever.
        assert_eq!(find(&all[..7], 10), None);
        assert_eq!(find(&[0; 8], 10), None);
    }

    #[test]
    fn an_answer_is_followed_by_a_verdict() {
        let attributes = Attributes::default().number(1, 3);
        let body = [&[1, 1, 0, 0], &attributes.0[..]].concat();
        let mut answer = Vec::new();
        assert!(read_messages(&message(0x1c, &body), &mut answer).unwrap().is_none());
        assert_eq!(find(&answer, 1), Some(&3u32.to_ne_bytes()[..]));
        let both = [message(0x1c, &body), message(ERROR, &[0; 20])].concat();
        assert!(read_messages(&both, &mut answer).unwrap().unwrap().is_ok());
        let refused = message(ERROR, &(-22i32).to_ne_bytes());
        let verdict = read_messages(&refused, &mut answer).unwrap().unwrap();
        assert_eq!(verdict.unwrap_err().raw_os_error(), Some(22));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [&[1][..], &[0; 16], &[255; 16], &message(ERROR, &[])] {
            assert!(read_messages(bytes, &mut Vec::new()).is_err(), "{bytes:?}");
        }
    }

    /// Messages of which bytes are damaged: `cargo bolero test -p dcd-serve any_bytes_are_read_to_their_end_or_refused`.
    #[test]
    fn any_bytes_are_read_to_their_end_or_refused() {
        type Case = (Vec<(bool, Vec<u8>)>, Vec<(u16, u8)>, u16);
        bolero::check!().with_type().for_each(|(messages, damages, cut): &Case| {
            let kind = |is_verdict: &bool| if *is_verdict { ERROR } else { 0x1c };
            let messages = messages.iter().map(|(is_verdict, body)| message(kind(is_verdict), body));
            let mut bytes = messages.collect::<Vec<_>>().concat();
            let len = bytes.len();
            for (at, with) in damages.iter().take(if len == 0 { 0 } else { 4 }) {
                bytes[usize::from(*at) % len] = *with;
            }
            bytes.truncate(len.saturating_sub(usize::from(*cut) % 32));
            let mut answer = Vec::new();
            let _ = read_messages(&bytes, &mut answer);
            for wanted in 0..4 {
                let _ = find(&answer, wanted);
                let _ = find(&bytes, wanted);
            }
        });
    }

    #[test]
    fn a_verdict_with_any_number_is_one() {
        for number in [i32::MIN, i32::MAX, 1, -1] {
            let verdict = read_messages(&message(ERROR, &number.to_ne_bytes()), &mut Vec::new());
            assert!(verdict.unwrap().unwrap().is_err(), "{number}");
        }
    }

    #[test]
    fn the_kernel_answers() {
        // The family of families is there wherever netlink is.
        match NetlinkFamily::open("nlctrl", 2) {
            Ok(family) => assert_eq!(family.id, CONTROL),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => panic!("{error}"),
        }
        let none = NetlinkFamily::open("dcd-none", 1).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
