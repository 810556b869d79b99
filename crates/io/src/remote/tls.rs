//! TLS on a connection: the server must be whom its certificate says, and asks for ours where it wants to.
//!
//! The certificates lie in one directory under the names that NBD's other clients and servers use: `ca-cert.pem`,
//! `client-cert.pem` and `client-key.pem`, or `server-cert.pem` and `server-key.pem`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dcd_nbd::{Server, Uri};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::connect::Socket;

/// Where certificates are if the URI does not say.
const DIRECTORY: &str = "/etc/dcd/tls";

pub(super) type Stream = StreamOwned<ClientConnection, Socket>;

/// Begins TLS. The handshake goes on with the first bytes that are read or written.
pub(super) fn begin(uri: &Uri, socket: Socket) -> io::Result<Stream> {
    let directory = uri.certificates.clone().unwrap_or_else(|| PathBuf::from(DIRECTORY));
    let config = config(&directory)?;
    let name = match (&uri.hostname, &uri.server) {
        (Some(name), _) => name.clone(),
        (None, Server::Tcp { host, .. }) => host.clone(),
        (None, Server::Unix(_)) => "localhost".to_owned(),
    };
    let server = ServerName::try_from(name.clone())
        .map_err(|_| io::Error::other(format!("\"{name}\" is no name of a host: say tls-hostname=NAME")))?;
    let connection = ClientConnection::new(Arc::new(config), server).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, socket))
}

fn config(directory: &Path) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&directory.join("ca-cert.pem"))? {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let (own, key) = (directory.join("client-cert.pem"), directory.join("client-key.pem"));
    match own.exists() {
        false => Ok(builder.with_no_client_auth()),
        true => {
            builder.with_client_auth_cert(certificates(&own)?, private_key(&key)?).map_err(io::Error::other)
        }
    }
}

/// The certificates of a file.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => {
            Err(io::Error::other(format!("{}: there is no certificate in it", path.display())))
        }
        Ok(all) => Ok(all),
        Err(error) => {
            Err(io::Error::other(format!("{}: no certificate can be read: {error}", path.display())))
        }
    }
}

fn private_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error| io::Error::other(format!("{}: no private key can be read: {error}", path.display())))
}
