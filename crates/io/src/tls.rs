//! Loads certificates and keys for TLS, from the directory in which other NBD programs look for theirs.
//!
//! `ca-cert.pem`, and `client-cert.pem` with `client-key.pem`, or `server-cert.pem` with `server-key.pem`.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use rustls::ServerConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore};

const AUTHORITY: &str = "ca-cert.pem";

/// Clients that a server of TLS lets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsClients {
    /// Clients with a certificate signed by the authority in `ca-cert.pem`.
    #[default]
    Signed,
    /// All clients that can reach the server: traffic is encrypted, but clients are not authenticated.
    Anyone,
}

/// Loads a client's settings: it trusts servers with certificates signed by `ca-cert.pem`, and shows its own certificate, if any.
///
/// # Errors
/// Which file is missing, or not what it should be.
pub(crate) fn client(directory: &Path) -> io::Result<ClientConfig> {
    let authorities = authorities(directory)?.ok_or_else(|| wrong(directory, AUTHORITY, &MISSING))?;
    let builder = ClientConfig::builder().with_root_certificates(authorities);
    Ok(match pair(directory, "client")? {
        None => builder.with_no_client_auth(),
        Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
    })
}

/// TLS settings of a server, with warnings for the administrator about certificates that are not valid at this time.
pub struct TlsServer {
    pub config: ServerConfig,
    pub warnings: Vec<String>,
}

/// Loads a server's settings.
///
/// # Errors
/// Which file is missing, or not what it should be.
pub fn server(directory: &Path, clients: TlsClients) -> io::Result<TlsServer> {
    let builder = ServerConfig::builder();
    let builder = match (clients, authorities(directory)?) {
        (TlsClients::Anyone, _) => builder.with_no_client_auth(),
        (TlsClients::Signed, Some(authorities)) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(authorities)).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| wrong(directory, AUTHORITY, &e))?)
        }
        (TlsClients::Signed, None) => {
            return Err(wrong(
                directory,
                AUTHORITY,
                &"it is missing, and without it every client would be served. Put the certificate there of the authority that signs \
                  clients' certificates; or let in all who can reach the server: nbd-tls-clients = \"anyone\"",
            ));
        }
    };
    let own = pair(directory, "server")?.ok_or_else(|| wrong(directory, "server-cert.pem", &MISSING))?;
    let mut warnings = Vec::new();
    for name in ["server-cert.pem", AUTHORITY] {
        let certificates = certificates(directory, name)?.unwrap_or_default();
        let expired = certificates.iter().find_map(out_of_date);
        warnings.extend(expired.map(|why| format!("{}: {why}", directory.join(name).display())));
    }
    Ok(TlsServer { config: builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own))), warnings })
}

/// Explains a TLS error in words.
pub fn explained(error: &Error) -> String {
    match error {
        Error::NoCertificatesPresented => "it has shown no certificate".to_owned(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("its certificate was not signed by the authority in {AUTHORITY}")
        }
        Error::InvalidCertificate(why) => format!("its certificate is not valid: {}", certificate(why)),
        Error::AlertReceived(alert) => {
            format!("it has refused this server's certificate, or ended TLS ({alert:?})")
        }
        other => other.to_string(),
    }
}

/// Explains an error of a certificate in words.
fn certificate(why: &CertificateError) -> String {
    // The library has no error variant for this.
    match format!("{why:?}") {
        words if words.contains("UnsupportedCertVersion") => {
            "it has an old version of X.509, and version 3 is needed: have it signed again with extensions (openssl x509 -extfile), such as \
             subjectAltName"
                .to_owned()
        }
        _ => why.to_string(),
    }
}

const MISSING: &str = "it is missing";

fn authorities(directory: &Path) -> io::Result<Option<RootCertStore>> {
    let Some(certificates) = certificates(directory, AUTHORITY)? else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|e| wrong(directory, AUTHORITY, &told(&e)))?;
    }
    Ok(Some(roots))
}

/// Reads a certificate and its key; none if the certificate is missing.
fn pair(directory: &Path, whose: &str) -> io::Result<Option<CertifiedKey>> {
    let (own, key) = (format!("{whose}-cert.pem"), format!("{whose}-key.pem"));
    let Some(chain) = certificates(directory, &own)? else { return Ok(None) };
    let bytes = read(directory, &key)?.ok_or_else(|| wrong(directory, &key, &MISSING))?;
    let text = String::from_utf8_lossy(&bytes);
    if text.contains("ENCRYPTED") {
        return Err(wrong(
            directory,
            &key,
            &"the key has a password, for which nobody can be asked when the server starts. Write it without one, readable for root \
              alone: openssl pkey -in KEY -out NEW",
        ));
    }
    let read = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        pem::Error::NoItemsFound => wrong(directory, &key, &"there is no private key in it"),
        other => wrong(directory, &key, &other),
    })?;
    let provider = ServerConfig::builder().crypto_provider().clone();
    let private = provider.key_provider.load_private_key(read).map_err(|e| wrong(directory, &key, &e))?;
    let matches = |chain: &[CertificateDer<'static>]| {
        CertifiedKey::new(chain.to_vec(), Arc::clone(&private)).keys_match()
    };
    match matches(&chain) {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(Some(CertifiedKey::new(chain, private)))
        }
        Err(Error::InconsistentKeys(_)) if (1..chain.len()).any(|at| matches(&chain[at..]).is_ok()) => {
            Err(wrong(
                directory,
                &own,
                &"its certificates are in the wrong order: its own comes first, then the one that has signed it, and so on",
            ))
        }
        Err(Error::InconsistentKeys(_)) => {
            Err(wrong(directory, &own, &format!("its public key does not match the private key in {key}")))
        }
        Err(error) => Err(wrong(directory, &own, &told(&error))),
    }
}

fn certificates(directory: &Path, name: &str) -> io::Result<Option<Vec<CertificateDer<'static>>>> {
    let Some(bytes) = read(directory, name)? else { return Ok(None) };
    match CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(all) if all.is_empty() => Err(wrong(directory, name, &"there is no certificate in it")),
        Ok(all) => Ok(Some(all)),
        Err(error) => Err(wrong(directory, name, &error)),
    }
}

/// Reads a PEM file; none if it is missing. A dangling link and an unreadable file are errors, not missing files.
fn read(directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let path = directory.join(name);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(&path) {
                Err(_) => Ok(None),
                Ok(_) => Err(wrong(directory, name, &"it is a link to a file that is missing")),
            };
        }
        Err(error) => return Err(wrong(directory, name, &error)),
    };
    let marks: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];
    if marks.iter().any(|mark| bytes.starts_with(mark)) {
        return Err(wrong(
            directory,
            name,
            &"it begins with a byte order mark, which PEM does not have: store it again as plain text (ASCII)",
        ));
    }
    Ok(Some(bytes))
}

/// Says why a certificate is not valid at this time.
fn out_of_date(of: &CertificateDer<'static>) -> Option<String> {
    // The library checks the dates first, so the signer and the name do not matter here.
    let mut roots = RootCertStore::empty();
    roots.add(of.clone()).ok()?;
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build().ok()?;
    let name = ServerName::try_from("localhost").expect("a name of a host");
    match verifier.verify_server_cert(of, &[], &name, &[], UnixTime::now()) {
        Err(Error::InvalidCertificate(
            why @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        )) => Some(why.to_string()),
        _ => None,
    }
}

fn told(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate(why),
        other => other.to_string(),
    }
}

fn wrong(directory: &Path, name: &str, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", directory.join(name).display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

    use super::*;

    /// A directory as a server has it: an authority, a certificate that it has signed, and the key.
    struct Made {
        dir: tempfile::TempDir,
        authority: String,
    }

    impl Made {
        fn new() -> Made {
            Made::with(|_| {})
        }

        fn with(change: impl Fn(&mut CertificateParams)) -> Made {
            let mut parameters = CertificateParams::new(Vec::new()).unwrap();
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let authority = parameters.self_signed(&key).unwrap().pem();
            let issuer = Issuer::new(parameters, key);
            let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            change(&mut parameters);
            let key = KeyPair::generate().unwrap();
            let certificate = parameters.signed_by(&key, &issuer).unwrap().pem();
            let made = Made { dir: tempfile::tempdir().unwrap(), authority };
            made.write(AUTHORITY, &made.authority);
            made.write("server-cert.pem", &certificate);
            made.write("server-key.pem", key.serialize_pem());
            made
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            fs::write(self.dir.path().join(name), text).unwrap();
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.dir.path().join(name)).unwrap()
        }

        fn serve(&self, clients: TlsClients) -> Result<Vec<String>, String> {
            server(self.dir.path(), clients).map(|tls| tls.warnings).map_err(|error| error.to_string())
        }

        /// The words of a refusal, which name the file.
        fn refused(&self, name: &str, words: &str) {
            let said = self.serve(TlsClients::Signed).expect_err(words);
            assert!(said.contains(&format!("/{name}: ")) && said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn a_server_whose_authority_cannot_be_read_lets_nobody_in() {
        let made = Made::new();
        assert_eq!(made.serve(TlsClients::Signed), Ok(Vec::new()));
        let path = made.dir.path().join(AUTHORITY);
        fs::remove_file(&path).unwrap();
        made.refused(AUTHORITY, "nbd-tls-clients = \"anyone\"");
        assert_eq!(made.serve(TlsClients::Anyone), Ok(Vec::new()));
        symlink("nowhere.pem", &path).unwrap();
        made.refused(AUTHORITY, "a link to a file that is missing");
        assert!(made.serve(TlsClients::Anyone).is_err(), "a file that cannot be read is no missing file");
        fs::remove_file(&path).unwrap();
        // As unreadable as a file without permissions, for root too.
        fs::create_dir(&path).unwrap();
        made.refused(AUTHORITY, "directory");
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_told_apart() {
        let made = Made::new();
        let (certificate, key) = (made.text("server-cert.pem"), made.text("server-key.pem"));
        for locked in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMIIB\n-----END EC PRIVATE KEY-----\n",
        ] {
            made.write("server-key.pem", locked);
            made.refused("server-key.pem", "the key has a password");
        }
        made.write("server-key.pem", &certificate);
        made.refused("server-key.pem", "there is no private key in it");
        made.write("server-key.pem", KeyPair::generate().unwrap().serialize_pem());
        made.refused("server-cert.pem", "does not match the private key in server-key.pem");
        made.write("server-key.pem", &key);
        made.write("server-cert.pem", format!("{}{certificate}", made.authority));
        made.refused("server-cert.pem", "wrong order");
        made.write("server-cert.pem", format!("{certificate}{}", made.authority));
        assert_eq!(made.serve(TlsClients::Signed), Ok(Vec::new()));
        for name in ["server-cert.pem", "server-key.pem", AUTHORITY] {
            let text = made.text(name);
            made.write(name, format!("\u{feff}{text}"));
            made.refused(name, "byte order mark");
            made.write(name, text);
        }
        made.write("server-cert.pem", OLD);
        made.write("server-key.pem", OLD_KEY);
        made.refused("server-cert.pem", "old version of X.509");
    }

    #[test]
    fn certificates_that_have_expired_are_told_of() {
        let made = Made::with(|parameters| parameters.not_after = date_time_ymd(2000, 1, 1));
        let told = made.serve(TlsClients::Signed).unwrap();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("/server-cert.pem: certificate expired"), "{told:?}");
        let made = Made::with(|parameters| parameters.not_before = date_time_ymd(3000, 1, 1));
        let told = made.serve(TlsClients::Signed).unwrap();
        assert!(told.len() == 1 && told[0].contains("not valid yet"), "{told:?}");
    }

    /// A certificate of version 1, as `openssl x509 -req` makes it, valid until 2126; and its key.
    const OLD: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBFzCBvwIUAU4+u9c+Q5nt3abBc7dU71c7lIMwCgYIKoZIzj0EAwIwDjEMMAoG\n\
        A1UEAwwDb2xkMCAXDTI2MTEyNzIzNTYxN1oYDzIxMjYxMTAzMjM1NjE3WjAOMQww\n\
        CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQLkbcf8xnaVbDw\n\
        f2y8+DlS2VEISMpA2w/0sHbh70PudipfJnsf2qgHLgpk7lKvSaZ2r1nD4btQgFI/\n\
        BMBiKEjEMAoGCCqGSM49BAMCA0cAMEQCICo098ul1BcJV2AWhC6v1kuXsmIQmogL\n\
        S4zxA0+tHPyfAiAegcSW3nffMi0MfRj29REMUmG5VJSYd8BAWTDtU8SRUQ==\n\
        -----END CERTIFICATE-----\n";
    const OLD_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgKJqEFnlcUVUFLU+q\n\
        /uP5LzdBjP28uaVgDflCKPOyAk+hRANCAAQLkbcf8xnaVbDwf2y8+DlS2VEISMpA\n\
        2w/0sHbh70PudipfJnsf2qgHLgpk7lKvSaZ2r1nD4btQgFI/BMBiKEjE\n\
        -----END PRIVATE KEY-----\n";
}
