//! Defines how a command ends if it does not succeed.

use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Program(#[from] dcd_cli::Failure),
    #[error(transparent)]
    Study(#[from] dcd_studies::LabError),
    #[error(transparent)]
    Trace(#[from] dcd_trace::TraceError),
    #[error(transparent)]
    Output(#[from] dcd_stack::OutputError),
    #[error(transparent)]
    Stack(#[from] dcd_stack::StackFileError),
}

impl Failure {
    /// Returns the exit code, as `dcd` does.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Program(failure) => failure.exit_code(),
            other => dcd_cli::Failure::Failed(other.to_string()).exit_code(),
        }
    }

    /// A failure of the operating system, with what was tried.
    pub fn io(what: impl std::fmt::Display, error: std::io::Error) -> Failure {
        dcd_cli::Failure::io(what, error).into()
    }
}
