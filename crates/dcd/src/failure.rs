//! Failures of commands, and their exit codes. The exit codes are part of the interface: scripts rely on them.

use std::process::ExitCode;

use dcd_engine::log_cache::LogError;
use dcd_engine::raid::offline::ChangeError;
use dcd_io::DriverError;

use crate::advice::Advised;
use crate::session::record::{RecordError, Refusal};

/// The exit codes, as the help prints them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the message says what, and what to do
  2  wrong usage
  3  refused, because data would be at risk or a device is in use: the message says which, and what to
     do. Only dcd serve has 1 for a device in use, as it may be tried again
  4  damage found, or acknowledged data is lost
  5  nothing is lost, but a cache or array is degraded, or dirty data cannot be written back
  6  the kernel or the container denies io_uring: the message says why";

const FAILED: u8 = 1;
const REFUSED: u8 = 3;
const DAMAGE: u8 = 4;
const DEGRADED: u8 = 5;
const NO_RING: u8 = 6;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Damage(String),
    /// No data is lost, but one more failure may lose data, or dirty data cannot be written back.
    #[error("{0}")]
    Degraded(String),
    /// A device is open elsewhere, most likely in a server of the same stack.
    #[error("{0}")]
    Busy(String),
    /// The kernel or the container denies io_uring to this process: trying again does not help.
    #[error("{0}")]
    NoRing(String),
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) => FAILED,
            Failure::Refused(_) | Failure::Busy(_) => REFUSED,
            Failure::Damage(_) => DAMAGE,
            Failure::Degraded(_) => DEGRADED,
            Failure::NoRing(_) => NO_RING,
        })
    }

    /// Makes a failure of the kind that another dcd has ended with, whose message is `why`.
    pub fn of_exit_code(code: Option<i32>, why: String) -> Failure {
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(REFUSED) => match why.split_once("\n  what to do: ") {
                Some((reason, action)) => Failure::refused(reason, action),
                None => Failure::refused(why, "its messages say what to do; then repeat this command"),
            },
            Some(DAMAGE) => Failure::Damage(why),
            Some(NO_RING) => Failure::NoRing(why),
            _ => Failure::Failed(why),
        }
    }

    /// Makes a refusal of what would put data at risk: the reason, and what to do.
    pub fn refused(reason: impl Into<String>, action: impl Into<String>) -> Failure {
        Failure::Refused(Refusal::new(reason, action))
    }

    /// Makes one failure of all refusals, so that "--force" is an answer to nothing that was not said. Another failure goes first.
    pub fn of_all(checks: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
        let mut all: Option<Refusal> = None;
        for check in checks {
            let refusal = match check {
                Ok(()) => continue,
                Err(Failure::Refused(refusal)) => refusal,
                Err(other) => return Err(other),
            };
            all = Some(match all {
                None => refusal,
                Some(Refusal { reason, action }) => Refusal::new(
                    format!("{reason}; and {}", refusal.reason),
                    format!("{action}. Of the other: {}", refusal.action),
                ),
            });
        }
        all.map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Turns a failure into none, unless a device is in use: that ends a command in any case.
    pub fn unless_busy<T>(tried: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match tried {
            Err(failure @ Failure::Busy(_)) => Err(failure),
            tried => Ok(tried.ok()),
        }
    }

    /// Turns a device that is in use into a plain failure: a server that is ending, or a command, may soon be done with it.
    pub fn to_try_again(self) -> Failure {
        match self {
            Failure::Busy(why) => Failure::Failed(why),
            failure => failure,
        }
    }

    /// Makes a failure from an error of the operating system. `what`: the operation that was tried.
    pub fn io(what: impl std::fmt::Display, error: std::io::Error) -> Failure {
        Failure::Failed(format!("{what}: {error}"))
    }
}

/// The outcome of a status command. The exit code is that of the worst finding; the message has all of them.
#[derive(Debug, Default)]
pub struct Health {
    damage: Vec<String>,
    degraded: Vec<String>,
}

impl Health {
    /// Adds a finding: acknowledged data is lost or damaged, or cannot be served.
    pub fn damaged(&mut self, what: impl Into<String>) {
        self.damage.push(what.into());
    }

    pub fn degraded(&mut self, what: impl Into<String>) {
        self.degraded.push(what.into());
    }

    pub fn is_damaged(&self) -> bool {
        !self.damage.is_empty()
    }

    pub fn is_degraded(&self) -> bool {
        !self.degraded.is_empty()
    }

    /// Returns the exit code of [`Self::verdict`].
    pub fn code(&self) -> u8 {
        match self {
            health if health.is_damaged() => DAMAGE,
            health if health.is_degraded() => DEGRADED,
            _ => 0,
        }
    }

    /// Adds the findings of `other`, which are about `whose`.
    pub fn add(&mut self, whose: &str, other: Health) {
        let told = |what: String| format!("{whose}: {what}");
        self.damage.extend(other.damage.into_iter().map(told));
        self.degraded.extend(other.degraded.into_iter().map(told));
    }

    pub fn verdict(self) -> Result<(), Failure> {
        let Health { damage, degraded } = self;
        let of = if damage.is_empty() { Failure::Degraded } else { Failure::Damage };
        match [damage, degraded].concat().join("; ") {
            all if all.is_empty() => Ok(()),
            all => Err(of(all)),
        }
    }
}

impl From<dcd_stack::StackFileError> for Failure {
    fn from(error: dcd_stack::StackFileError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<dcd_stack::OutputError> for Failure {
    fn from(error: dcd_stack::OutputError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Failure {
        match error {
            LogError::Io { .. } => Failure::Failed(error.told()),
            other => Failure::Refused(other.refusal()),
        }
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Failure {
        match error {
            ChangeError::Write { .. } | ChangeError::Io(_) | ChangeError::Superblock(_) => {
                Failure::Failed(error.told())
            }
            other => Failure::Refused(other.refusal()),
        }
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        match error {
            DriverError::Setup(_) => Failure::NoRing(error.to_string()),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        match error {
            RecordError::Io { .. } => Failure::Failed(error.to_string()),
            // A record that cannot be understood may say that data is at risk: that is a refusal, not a mishap.
            other => Failure::refused(other.to_string(), other.action()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_refusals_are_said_before_somebody_adds_force() {
        let refused =
            |number: u8| Err(Failure::refused(format!("reason {number}"), format!("action {number}")));
        assert!(Failure::of_all([Ok(()), Ok(())]).is_ok());
        let Err(Failure::Refused(both)) = Failure::of_all([refused(1), Ok(()), refused(2)]) else {
            panic!("two refusals are one");
        };
        assert_eq!(both.reason, "reason 1; and reason 2");
        assert_eq!(both.action, "action 1. Of the other: action 2");
        let unread = || Err(Failure::Failed("it cannot be read".to_owned()));
        assert!(matches!(Failure::of_all([refused(1), unread()]), Err(Failure::Failed(_))));
    }

    #[test]
    fn the_worst_finding_decides_the_exit_code_and_the_message_has_all() {
        assert!(Health::default().verdict().is_ok());
        let mut health = Health::default();
        health.degraded("a");
        assert_eq!((Health::default().code(), health.code()), (0, DEGRADED));
        assert!(
            matches!(health.verdict(), Err(failure @ Failure::Degraded(_)) if failure.to_string() == "a")
        );
        let mut health = Health::default();
        health.degraded("a");
        health.damaged("b");
        assert_eq!(health.code(), DAMAGE);
        assert!(
            matches!(health.verdict(), Err(failure @ Failure::Damage(_)) if failure.to_string() == "b; a")
        );
    }
}
