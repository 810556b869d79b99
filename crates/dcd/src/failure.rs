//! How a command ends when it does not succeed. The exit codes are part of the interface: scripts rely on them.

use std::process::ExitCode;

use crate::attachment::{RecordError, Refusal};

/// The exit codes, as the help prints them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the message says what, and what to do
  2  wrong usage
  3  refused, because data would be at risk: the message says which, and what to do
  4  damage found, or acknowledged data is lost";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Damage(String),
    /// A device is open elsewhere, most likely in a server of the same stack.
    #[error("{0}")]
    Busy(String),
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) | Failure::Busy(_) => 1,
            Failure::Refused(_) => 3,
            Failure::Damage(_) => 4,
        })
    }

    /// A failure of the operating system, with what was tried.
    pub fn io(what: impl std::fmt::Display, error: std::io::Error) -> Failure {
        Failure::Failed(format!("{what}: {error}"))
    }
}

impl From<dcd_stack::StackFileError> for Failure {
    fn from(error: dcd_stack::StackFileError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<dcd_lab::LabError> for Failure {
    fn from(error: dcd_lab::LabError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<dcd_trace::TraceError> for Failure {
    fn from(error: dcd_trace::TraceError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        match error {
            RecordError::Io { .. } => Failure::Failed(error.to_string()),
            // A record that cannot be understood may say that data is at risk: that is a refusal, not a mishap.
            other => Failure::Refused(Refusal::new(other.to_string(), "see above; nothing was changed")),
        }
    }
}
