//! The URIs that name an export of a server: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`, and with TLS
//! `nbds://` and `nbds+unix://`, as the NBD project describes them.

use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that a URI has to encode.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The port that is registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Server {
    /// The path of the socket, where it is one.
    pub fn socket_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Server::Unix(path) => Some(path),
            Server::Tcp { .. } => None,
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    pub server: Server,
    /// Empty: the server's default.
    pub export: String,
    pub tls: bool,
    /// The directory of the certificates (`tls-certificates`).
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, if not the host's (`tls-hostname`).
    pub hostname: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    #[error("\"{0}\" is no NBD URI: write nbd://HOST/EXPORT, or nbd+unix:///EXPORT?socket=PATH")]
    Scheme(String),
    #[error("no host is named: write nbd://HOST/EXPORT")]
    Host,
    #[error("the port \"{0}\" is no number from 1 to 65535")]
    Port(String),
    #[error("no socket is named: write nbd+unix:///EXPORT?socket=PATH")]
    Socket,
    #[error("\"{0}\" is not known here: a URI takes {1}")]
    Parameter(String, &'static str),
    #[error("\"{0}\" belongs to TLS: write nbds instead of nbd")]
    WithoutTls(&'static str),
    #[error("it has a user's name: NBD knows none")]
    User,
    #[error("\"{0}\" is not UTF-8 once its percent signs are decoded")]
    Text(String),
}

impl Uri {
    /// True for a text that is meant as an NBD URI, valid or not, and not as a file.
    pub fn is_meant(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with("nbd"))
    }

    /// Reads a URI.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Uri, UriError> {
        let unknown = || UriError::Scheme(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(unknown()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (mut socket, mut certificates, mut hostname) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match key {
                "socket" if unix => socket = Some(PathBuf::from(value)),
                "tls-certificates" if tls => certificates = Some(PathBuf::from(value)),
                "tls-hostname" if tls => hostname = Some(value),
                "tls-certificates" => return Err(UriError::WithoutTls("tls-certificates")),
                "tls-hostname" => return Err(UriError::WithoutTls("tls-hostname")),
                _ => {
                    let known = if unix {
                        "\"socket\", \"tls-certificates\" and \"tls-hostname\""
                    } else {
                        "\"tls-certificates\" and \"tls-hostname\""
                    };
                    return Err(UriError::Parameter(key.to_owned(), known));
                }
            }
        }
        let server = match unix {
            true => Server::Unix(socket.filter(|path| !path.as_os_str().is_empty()).ok_or(UriError::Socket)?),
            false => tcp(authority)?,
        };
        Ok(Uri { server, export: decode(export)?, tls, certificates, hostname })
    }
}

/// Formats the URI, with special characters encoded again.
impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encoded = |text: &str| utf8_percent_encode(text, ENCODED).to_string();
        let tls = if self.tls { "s" } else { "" };
        let export = encoded(&self.export);
        let mut parameters = Vec::new();
        match &self.server {
            Server::Tcp { host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { encoded(host) };
                let port = if *port == DEFAULT_PORT { String::new() } else { format!(":{port}") };
                write!(f, "nbd{tls}://{host}{port}/{export}")?;
            }
            Server::Unix(path) => {
                write!(f, "nbd{tls}+unix:///{export}")?;
                parameters.push(format!("socket={}", encoded(&path.to_string_lossy())));
            }
        }
        if let Some(directory) = &self.certificates {
            parameters.push(format!("tls-certificates={}", encoded(&directory.to_string_lossy())));
        }
        if let Some(name) = &self.hostname {
            parameters.push(format!("tls-hostname={}", encoded(name)));
        }
        match parameters.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", parameters.join("&")),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
fn tcp(authority: &str) -> Result<Server, UriError> {
    if authority.contains('@') {
        return Err(UriError::User);
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port.filter(|port| !port.is_empty()) {
        None => DEFAULT_PORT,
        Some(text) => {
            text.parse().ok().filter(|port| *port != 0).ok_or_else(|| UriError::Port(text.to_owned()))?
        }
    };
    let host = decode(host)?;
    if host.is_empty() { Err(UriError::Host) } else { Ok(Server::Tcp { host, port }) }
}

fn decode(text: &str) -> Result<String, UriError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| UriError::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_understood() {
        let tcp = |host: &str, port| Server::Tcp { host: host.to_owned(), port };
        for (text, server, export) in [
            ("nbd://host", tcp("host", DEFAULT_PORT), ""),
            ("nbd://host/", tcp("host", DEFAULT_PORT), ""),
            ("nbd://host:7/a/b", tcp("host", 7), "a/b"),
            ("nbd://host//a", tcp("host", DEFAULT_PORT), "/a"),
            ("nbd://[::1]:7/x%20y", tcp("::1", 7), "x y"),
            ("nbd://[fe80::1]", tcp("fe80::1", DEFAULT_PORT), ""),
            ("nbd+unix:///?socket=/run/a.sock", Server::Unix("/run/a.sock".into()), ""),
            ("nbd+unix:///disk?socket=/run/a%3fb", Server::Unix("/run/a?b".into()), "disk"),
        ] {
            let uri = Uri::parse(text).unwrap();
            assert_eq!(Uri::parse(&uri.to_string()), Ok(uri.clone()), "{uri}");
            assert_eq!((uri.server, uri.export.as_str(), uri.tls), (server, export, false), "{text}");
        }
        let uri = Uri::parse("nbds://h/e?tls-certificates=/etc/pki&tls-hostname=other").unwrap();
        assert!(uri.tls);
        assert_eq!(uri.to_string(), "nbds://h/e?tls-certificates=/etc/pki&tls-hostname=other");
        assert_eq!(uri.certificates, Some("/etc/pki".into()));
        assert_eq!(uri.hostname.as_deref(), Some("other"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("http://host/", UriError::Scheme("http://host/".to_owned())),
            ("nbd:///disk", UriError::Host),
            ("nbd://host:0/", UriError::Port("0".to_owned())),
            ("nbd://host:70000/", UriError::Port("70000".to_owned())),
            ("nbd+unix:///disk", UriError::Socket),
            ("nbd://me@host/", UriError::User),
            ("nbd://host/?tls-hostname=x", UriError::WithoutTls("tls-hostname")),
            ("nbd://host/%ff", UriError::Text("%ff".to_owned())),
        ] {
            assert_eq!(Uri::parse(text), Err(error), "{text}");
        }
        assert!(
            matches!(Uri::parse("nbd://h/?socket=/a"), Err(UriError::Parameter(key, _)) if key == "socket")
        );
        assert!(Uri::is_meant("nbdx://host") && !Uri::is_meant("/dev/nbd0") && !Uri::is_meant("a://b"));
    }
}
