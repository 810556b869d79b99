//! The devices of a stack file, `[device.NAME]`: the place of each, and whether it is available.

use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcd_nbd::{Server, Uri, UriError};

use crate::error::StackFileError;
use crate::fields::{Fields, Located};

/// Place of a device's sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// A file or a block device. `size`: create a missing file with this many bytes.
    Path { path: PathBuf, size: Option<u64> },
    /// An export of an NBD server.
    Remote(RemoteSource),
    /// RAM of this many bytes; its content ends with the process.
    Memory { size: u64 },
    /// Stands for a data disk that is missing at a start. No stack file names it.
    Missing,
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSource {
    /// The URI with absolute paths: names the device, as a path names other devices.
    pub text: PathBuf,
    pub uri: Uri,
    /// Time after which an unanswered request fails; none: it waits indefinitely.
    pub timeout: Option<Duration>,
}

impl RemoteSource {
    /// `dir`: where relative paths of the URI begin.
    fn of(mut uri: Uri, dir: &Path) -> RemoteSource {
        for file in [uri.server.socket_mut(), uri.certificates.as_mut()].into_iter().flatten() {
            let whole = dir.join(&*file);
            *file = std::path::absolute(&whole).unwrap_or(whole);
        }
        RemoteSource { text: uri.to_string().into(), uri, timeout: None }
    }
}

impl DeviceSource {
    /// A path names a file or a block device, and a URI an export.
    ///
    /// # Errors
    /// What is wrong with the URI.
    pub fn of(path: &Path) -> Result<DeviceSource, UriError> {
        match path.to_str().filter(|text| Uri::is_meant(text)) {
            Some(text) => Ok(DeviceSource::Remote(RemoteSource::of(Uri::parse(text)?, Path::new("")))),
            None => Ok(DeviceSource::Path { path: path.to_owned(), size: None }),
        }
    }

    /// Returns a path or URI that was typed, with a relative path made absolute.
    ///
    /// # Errors
    /// What is wrong with the URI, or that there is no current directory.
    pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
        let source = DeviceSource::of(path).map_err(std::io::Error::other)?;
        Ok(source.absolute_place()?.unwrap_or_default())
    }

    /// The path, or the URI; none for RAM.
    pub fn place(&self) -> Option<&Path> {
        match self {
            DeviceSource::Path { path, .. } => Some(path),
            DeviceSource::Remote(remote) => Some(&remote.text),
            DeviceSource::Memory { .. } | DeviceSource::Missing => None,
        }
    }

    /// Returns the place with an absolute path, which is valid in every directory.
    ///
    /// # Errors
    /// If there is no current directory.
    pub fn absolute_place(&self) -> std::io::Result<Option<PathBuf>> {
        match self {
            DeviceSource::Path { path, .. } => std::path::absolute(path).map(Some),
            DeviceSource::Remote(remote) => Ok(Some(remote.text.clone())),
            DeviceSource::Memory { .. } | DeviceSource::Missing => Ok(None),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredDevice {
    pub name: String,
    pub source: DeviceSource,
    pub read_only: bool,
    pub(crate) span: Range<usize>,
}

impl DeclaredDevice {
    /// True if the file or block device exists and has a medium, or if the server of the export accepts a connection.
    pub fn is_there(&self) -> bool {
        match &self.source {
            DeviceSource::Path { path, .. } => path.exists() && !is_without_medium(path),
            DeviceSource::Remote(remote) => is_reachable(&remote.uri.server),
            DeviceSource::Memory { .. } => true,
            DeviceSource::Missing => false,
        }
    }

    /// True for a file that some commands create if it is missing.
    pub const fn is_made(&self) -> bool {
        matches!(self.source, DeviceSource::Path { size: Some(_), .. })
    }
}

fn is_reachable(server: &Server) -> bool {
    match server {
        Server::Unix(path) => UnixStream::connect(path).is_ok(),
        Server::Tcp { host, port } => {
            let mut addresses = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
            addresses.any(|address| TcpStream::connect_timeout(&address, REACHED_WITHIN).is_ok())
        }
    }
}

/// True for a loop device without a file, or a drive without a disk: their nodes exist. Any other error of opening means a medium.
fn is_without_medium(path: &Path) -> bool {
    let is_block = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block
        && match std::fs::File::open(path) {
            Ok(mut device) => {
                std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0)).is_ok_and(|size| size == 0)
            }
            Err(error) => GONE.contains(&error.raw_os_error().unwrap_or(0)),
        }
}

/// Maximum time for a server to accept a connection.
const REACHED_WITHIN: Duration = Duration::from_secs(1);

/// EIO, ENXIO, ENODEV and ENOMEDIUM of Linux.
const GONE: [i32; 4] = [5, 6, 19, 123];

pub(crate) fn read(
    name: Located,
    mut fields: Fields<'_>,
    dir: &Path,
) -> Result<DeclaredDevice, StackFileError> {
    let path = fields.text("path")?;
    let memory = fields.size("memory")?;
    let size = fields.size("size")?;
    let read_only = fields.flag("read-only")?.unwrap_or(false);
    let timeout = fields.duration("timeout")?.map(|timeout| Duration::from_nanos(timeout.0));
    for (field, bytes) in [("memory", memory), ("size", size)] {
        if let Some(bytes) = bytes.filter(|bytes| *bytes == 0 || bytes % 4096 != 0) {
            let span = fields.value_span(field);
            let message = format!(
                "\"{field}\" must be a multiple of 4096 bytes, and not 0: this is {bytes} bytes (a number without a unit counts bytes; \"64MiB\" has one)"
            );
            return Err(fields.error(span, message));
        }
    }
    let remote = path.as_ref().is_some_and(|path| Uri::is_meant(&path.text));
    if timeout.is_some() && !remote {
        let span = fields.value_span("timeout");
        return Err(fields.error(
            span,
            "\"timeout\" belongs to the URI of an NBD server: the kernel decides it for other devices",
        ));
    }
    let source = match (path, memory) {
        (Some(_), None) if remote && size.is_some() => {
            return Err(fields.error_here("the NBD server decides the size of its export: take \"size\" out"));
        }
        (Some(path), None) if remote => {
            let uri = Uri::parse(&path.text)
                .map_err(|why| fields.error(path.span.clone(), format!("\"path\": {why}")))?;
            DeviceSource::Remote(RemoteSource { timeout, ..RemoteSource::of(uri, dir) })
        }
        (Some(path), None) => DeviceSource::Path { path: dir.join(path.text), size },
        (None, Some(_)) if size.is_some() => {
            return Err(
                fields.error_here("\"size\" belongs to \"path\": the size of RAM is given by \"memory\"")
            );
        }
        (None, Some(size)) => DeviceSource::Memory { size },
        (Some(_), Some(_)) => return Err(fields.error_here("has both \"path\" and \"memory\": keep one")),
        (None, None) => {
            return Err(fields.error_here(
                "has neither \"path\" nor \"memory\": add path = \"FILE\" or memory = \"64MiB\"",
            ));
        }
    };
    fields.finish()?;
    Ok(DeclaredDevice { name: name.text, source, read_only, span: name.span })
}
