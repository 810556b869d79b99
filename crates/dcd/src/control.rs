//! How the commands reach a running server.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use dcd_serve::control::{Client, ClientError};
use dcd_stack::StackFile;
use serde_json::Value;

use crate::advice::Advised;
use crate::failure::Failure;

/// The control socket that a stack file names, or the socket itself.
fn socket(path: &Path) -> Result<PathBuf, Failure> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return Ok(path.to_owned());
    }
    let file = StackFile::load(path)?;
    file.serve.control.ok_or_else(|| {
        let path = path.display();
        Failure::Failed(format!(
            "{path}: it has no control socket: add control = \"PATH\" to [serve], and serve it again"
        ))
    })
}

/// Connects to the server of a stack file.
pub fn connect(path: &Path) -> Result<Client, Failure> {
    Client::connect(&socket(path)?).map_err(|error| match error {
        ClientError::Io { path, source } if source.kind() == ErrorKind::PermissionDenied => Failure::Failed(
            format!("{}: permission denied: run as root, or as the user of the server", path.display()),
        ),
        other => other.into(),
    })
}

/// Calls a server, of whose progress nothing is wanted.
pub fn ask(client: &mut Client, verb: &str, args: Value) -> Result<Value, ClientError> {
    client.call(verb, args, |_| ControlFlow::Continue(()))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Failed(error.told())
    }
}
