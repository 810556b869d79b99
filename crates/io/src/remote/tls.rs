//! TLS to a server, whose certificate must match its name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use dcd_nbd::{Server, Uri};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::connect::StreamSocket;
use crate::tls;

/// Directory of certificates if the URI names none.
const DIRECTORY: &str = "/etc/dcd/tls";

pub(super) type TlsStream = StreamOwned<ClientConnection, StreamSocket>;

/// Explains an error of TLS in words. A server that refuses the client's certificate reports it only after the client has completed
/// its handshake.
pub(super) fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::other(format!(
            "TLS fails: {error}. Check that each side's certificate is signed by the authority that the other side trusts"
        )),
        _ => error,
    }
}

/// Begins TLS, and completes its handshake.
pub(super) fn begin(uri: &Uri, socket: StreamSocket) -> io::Result<TlsStream> {
    let config = tls::client(uri.certificates.as_deref().unwrap_or(Path::new(DIRECTORY)))?;
    let name = match (&uri.hostname, &uri.server) {
        (Some(name), _) => name.clone(),
        (None, Server::Tcp { host, .. }) => host.clone(),
        (None, Server::Unix(_)) => "localhost".to_owned(),
    };
    let server = ServerName::try_from(name.clone())
        .map_err(|_| io::Error::other(format!("\"{name}\" is not a host name: set tls-hostname=NAME")))?;
    let connection = ClientConnection::new(Arc::new(config), server).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(explained)?;
    }
    Ok(stream)
}
