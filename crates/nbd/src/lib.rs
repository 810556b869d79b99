//! The NBD protocol, for both sides: its numbers ([`protocol`]), the client's handshake ([`handshake`]), the URIs that name
//! exports ([`Uri`]), and a client of the transmission phase that survives the loss of its server ([`NbdClient`]).
//!
//! This crate does no I/O. The handshake works on anything that reads and writes; the client takes and returns bytes.

mod client;
pub mod handshake;
pub mod protocol;
mod uri;

pub use client::{KEPT_BYTES_MAX, LinkError, NbdClient, SETTLE};
pub use handshake::Offer;
pub use uri::{DEFAULT_PORT, Server, Uri, UriError};

/// A checksum, for names that have to be short.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
