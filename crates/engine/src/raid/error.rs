//! Names the reasons for not starting an array, not using a device, or refusing a command of an administrator. The program adds what to do
//! about them.

use crate::layer::Seat;
use crate::raid::apart::Apart;
use crate::raid::config::{Level, ShapeError};
use crate::raid::journal::ReplayError;
use crate::raid::superblock::ArraySuperblockError;
use crate::{IoError, SECTOR_BYTES};

/// The other members, where some are unknown devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    None,
    /// Their parity makes up for those that are unknown.
    MakeUp,
    TooFew,
}

/// Reason for refusing to start an array. Members and spares are named by their places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("none of its members can be read")]
    Unreadable,
    /// Problems, each with the members that have it.
    #[error("{}", all_wrong(.wrong))]
    Unknown { wrong: Vec<(ArraySuperblockError, Vec<usize>)>, others: Others },
    #[error("member {0} belongs to another array than most of its members")]
    Foreign(usize),
    #[error("all of its members are spares")]
    OnlySpares,
    #[error("it is growing to {members} members, and cannot be served until that is done")]
    Growing { members: usize },
    /// `grows`: one member more is named than it has.
    #[error(
        "it was made with level {}, {members} members and strips of {} KiB",
        .level.name(),
        .strip_sectors * SECTOR_BYTES / 1024
    )]
    Described { level: Level, members: usize, strip_sectors: u64, grows: bool },
    #[error(transparent)]
    Apart(#[from] Apart),
    #[error("two spares are the same member {0}")]
    SpareTwice(usize),
    #[error("spare {0} is named twice")]
    NamedTwice(usize),
    #[error("member {member} and spare {spare} are one device")]
    MemberAndSpare { member: usize, spare: usize },
    #[error("member {place} has the role {role}")]
    OtherRole { place: usize, role: usize },
    #[error("member {0} is a spare")]
    IsSpare(usize),
    #[error("member {0} is out of date: another device has taken its role, or the array went on without it")]
    OutOfDate(usize),
    #[error("member {role} has {sectors} sectors, and had {needed}")]
    Smaller { role: usize, sectors: u64, needed: u64 },
    #[error("{} missing, unreadable or out of date, and the parity makes up for {parity}", are(.roles))]
    TooManyFailed { roles: Vec<usize>, parity: usize },
    /// `absent`: those that had not failed before; `lacks_journal`: its records would tell.
    #[error(
        "its parity is in doubt in {in_doubt} of {regions} regions (region {region} is one), as it did not stop cleanly or had not \
         computed all of it yet, and {} missing or failed: what they held may come out wrong",
        are(.lacking)
    )]
    InDoubt {
        in_doubt: u64,
        regions: u64,
        region: u64,
        lacking: Vec<usize>,
        absent: Vec<usize>,
        lacks_journal: bool,
    },
    #[error("it has a journal, and none is named")]
    NoJournal,
    #[error("its journal is too small: {kib} KiB at least, as a record holds a whole stripe")]
    JournalTooSmall { kib: u64 },
    #[error("there is something else where its journal should be")]
    ForeignJournal,
    #[error("{what} the journal: {error}")]
    Journal { what: &'static str, error: IoError },
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// "member 1", "members 1 and 3".
pub fn members_named(roles: &[usize]) -> String {
    let names: Vec<String> = roles.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("members {} and {last}", first.join(", ")),
        one => format!("member {}", one.concat()),
    }
}

/// "member 1 is", "members 1 and 3 are".
pub(super) fn are(roles: &[usize]) -> String {
    format!("{} {}", members_named(roles), if roles.len() == 1 { "is" } else { "are" })
}

fn all_wrong(wrong: &[(ArraySuperblockError, Vec<usize>)]) -> String {
    let why = wrong.iter().map(|(error, places)| format!("{}: {error}", members_named(places)));
    why.collect::<Vec<_>>().join("; ")
}

/// A device that an array has and does not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seat} is not used: {why}")]
pub struct Unused {
    pub seat: Seat,
    pub why: UnusedWhy,
}

/// Reason for not using a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusedWhy {
    #[error(transparent)]
    Unknown(ArraySuperblockError),
    #[error("it belongs to another array")]
    Foreign,
    #[error("it has {sectors} sectors, and each member has {needed}")]
    TooSmall { sectors: u64, needed: u64 },
    #[error("it was a member and is out of date")]
    WasMember,
    #[error(
        "it is out of date: another device had taken its role, and is missing, or the array went on without it"
    )]
    OutOfDate,
    #[error(
        "it has older data than the other members know that it had, as if restored from an image or a copy"
    )]
    Outdated,
    #[error("it could not be made a spare ({0})")]
    NotMade(IoError),
    #[error("it could not be made a spare, as the array takes no writes any more")]
    NoWrites,
}
