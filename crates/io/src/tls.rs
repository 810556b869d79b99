//! What TLS on a connection needs: certificates and keys, from the directory in which other NBD programs look for theirs.
//!
//! `ca-cert.pem`, and `client-cert.pem` with `client-key.pem`, or `server-cert.pem` with `server-key.pem`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// For a client: it believes servers whose certificates `ca-cert.pem` has signed, and shows its own where it has one.
///
/// # Errors
/// Which file is missing, or not what it should be.
pub(crate) fn client(directory: &Path) -> io::Result<ClientConfig> {
    let builder = ClientConfig::builder().with_root_certificates(authorities(directory)?);
    match pair(directory, "client")? {
        None => Ok(builder.with_no_client_auth()),
        Some((own, key)) => {
            builder.with_client_auth_cert(own, key).map_err(|e| wrong(directory, "client-cert.pem", &e))
        }
    }
}

/// For a server. Where there is `ca-cert.pem`, only clients are served whose certificates that has signed.
///
/// # Errors
/// Which file is missing, or not what it should be.
pub fn server(directory: &Path) -> io::Result<ServerConfig> {
    let builder = ServerConfig::builder();
    let builder = match directory.join("ca-cert.pem").exists() {
        false => builder.with_no_client_auth(),
        true => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(authorities(directory)?)).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| wrong(directory, "ca-cert.pem", &e))?)
        }
    };
    let (own, key) = pair(directory, "server")?
        .ok_or_else(|| wrong(directory, "server-cert.pem", &"there is no such file"))?;
    builder.with_single_cert(own, key).map_err(|e| wrong(directory, "server-cert.pem", &e))
}

fn authorities(directory: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(directory, "ca-cert.pem")? {
        roots.add(certificate).map_err(|e| wrong(directory, "ca-cert.pem", &e))?;
    }
    Ok(roots)
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate and its key; none where there is no certificate.
fn pair(directory: &Path, whose: &str) -> io::Result<Option<Pair>> {
    let own = format!("{whose}-cert.pem");
    if !directory.join(&own).exists() {
        return Ok(None);
    }
    let key = format!("{whose}-key.pem");
    let read = PrivateKeyDer::from_pem_file(directory.join(&key)).map_err(|e| wrong(directory, &key, &e))?;
    Ok(Some((certificates(directory, &own)?, read)))
}

fn certificates(directory: &Path, name: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let all =
        CertificateDer::pem_file_iter(directory.join(name)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(wrong(directory, name, &"there is no certificate in it")),
        Ok(all) => Ok(all),
        Err(error) => Err(wrong(directory, name, &error)),
    }
}

fn wrong(directory: &Path, name: &str, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", directory.join(name).display()))
}
