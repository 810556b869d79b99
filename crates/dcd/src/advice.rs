//! Advises what to do about an error of the engine. The engine's errors state facts; the commands of this program are named here. The
//! way out that loses nothing comes first.

use std::fmt::Display;

use dcd_engine::layers::slice::SliceError;
use dcd_engine::log_cache::recover::RecoverError;
use dcd_engine::log_cache::{LogError, OtherData};
use dcd_engine::mirror::MirrorError;
use dcd_engine::raid::grow::{GrowError, GrowRefusal};
use dcd_engine::raid::offline::ChangeError;
use dcd_engine::raid::{
    Apart, ArrayCreateError, ArrayNote, ArrayStatus, AssembleError, Others, ReplayError, UnusedWhy,
    members_named,
};
use dcd_engine::{CommandError, StartError};
use dcd_serve::control::ClientError;
use dcd_stack::HumanBytes;

use crate::session::record::{RESCUE_FIRST, Refusal};

/// An error of the engine, with advice.
pub trait Advised: Display {
    /// Returns what to do; none if the text of the error says it.
    fn advice(&self) -> Option<String>;

    /// The error and its advice, in one line.
    fn told(&self) -> String {
        match self.advice() {
            Some(advice) => format!("{self}; {advice}"),
            None => self.to_string(),
        }
    }

    fn refusal(&self) -> Refusal {
        Refusal::new(self.to_string(), self.advice().unwrap_or_else(|| NOTHING_CHANGED.to_owned()))
    }
}

/// Text in place of advice, for errors that have none.
pub const NOTHING_CHANGED: &str = "nothing was changed";
const CHECK_DEVICE: &str = "check the device, then try again; nothing is lost by trying again";
const FEWER_STRIDES: &str = "measure fewer of them";

/// Fills in an array's status its notes and what to do about them.
pub fn advise(array: &mut ArrayStatus) {
    array.advice = array.notes.iter().map(Advised::told).collect();
}

impl Advised for StartError {
    fn advice(&self) -> Option<String> {
        let error = &self.error;
        let log = error.downcast_ref().and_then(LogError::advice);
        let array = || error.downcast_ref().and_then(AssembleError::advice);
        let mirror = || error.downcast_ref().and_then(MirrorError::advice);
        let is_too_long = matches!(error.downcast_ref(), Some(SliceError::TooLong { .. }));
        let slice = || is_too_long.then(|| "make it smaller or move it".to_owned());
        log.or_else(array).or_else(mirror).or_else(slice)
    }
}

impl Advised for LogError {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            LogError::OtherData(other) => return Some(about_other_data(other)),
            LogError::NotFormatted => {
                "check that it is the right device; if there never was a log, \"dcd format\" makes one"
            }
            LogError::Leg => "name it in a list, with the other legs: log = [\"NAME\", \"NAME\"]",
            LogError::NoSuperblock(..) => {
                "if this was a dcd log, its dirty data cannot be found without a superblock; keep the device as it is"
            }
            LogError::Smaller { .. } => {
                "use the right device; if it was made smaller, make it as large as it was: the data that it still holds is not lost"
            }
            LogError::BlockSize { .. } => "use the device that the log was formatted for",
            LogError::TooSmall { .. } => "use a larger device or smaller segments",
            LogError::TooManySegments { .. } => "leave `--segment-size` out, or make it larger",
            LogError::TooManyRanges => FEWER_STRIDES,
            LogError::NotEmpty => "write everything back first, with \"dcd rescue\"",
            LogError::Detached => "\"dcd format\" attaches it again",
            LogError::GivenUp => {
                return Some(format!("{RESCUE_FIRST}. Then \"dcd format\" makes a new log"));
            }
            LogError::OtherMachine { .. } => {
                "start it there. If that machine is off and stays off, \"dcd serve --take-over --other-is-off\" takes the log over; with \
                 --fence COMMAND in place of --other-is-off, that command switches the machine off first"
            }
            LogError::ReadOnly(_) => "make it writable, or take read-only = true out of the stack file",
            LogError::Occupied { .. } => {
                "first take that cache off with \"dcd detach\", or write its data back with \"dcd rescue\" (of a detached log: with --disk); \
                 --force discards the cache"
            }
            LogError::Recover(RecoverError::Damage(_)) => {
                "\"dcd check\" lists the damage; \"dcd rescue\" writes everything that can be read to the data disk; \
                 \"dcd serve --accept-damage\" starts without the lost data"
            }
            LogError::Recover(RecoverError::ChainTooLong { .. }) => "\"dcd dump\" shows it",
            LogError::Recover(RecoverError::Io { .. }) => "check the device and its size, then start again",
            LogError::Io { .. } | LogError::NotTaken => CHECK_DEVICE,
            LogError::MemoryMissed(_) => {
                "if the file is elsewhere, as in another container, start there, or put it back. If it is gone, first end the clients: unmount, and \
                 remove the device (\"dcd ublk remove\", or \"nbd-client -d\"). Then \"dcd serve --accept-damage\" serves what a power cut \
                 would have left; check the file system"
            }
            LogError::MemoryInUse(_) => {
                "stop the other process, or wait for its end, then start again; nothing was changed"
            }
            LogError::TooManyPieces => "\"dcd rescue\" writes them back offline",
            LogError::Bypassed => {
                "start once without ordered-destage, destage everything with \"dcd flush\", then start with ordered-destage"
            }
            LogError::PartsOfBlocks { .. } => {
                "use the disk with the smaller blocks again, or write everything back with \"dcd rescue\""
            }
            LogError::Version(_) | LogError::TwoCaches(..) | LogError::Options(_) | LogError::HasDisk(_) => {
                return None;
            }
            LogError::Disks { .. } => {
                "name all data disks of the log in \"data\", in the order in which it got them. If a format was interrupted, the log is empty: \
                 repeat it"
            }
        };
        Some(advice.to_owned())
    }
}

impl Advised for MirrorError {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            MirrorError::NoLegs(_) => {
                "reconnect the log's devices, or correct their paths: a log that was used may have the newest data. Only if there never was one, \
                 \"dcd format\" makes it"
            }
            MirrorError::TwoMirrors(..) => "name the right ones; nothing was changed",
            MirrorError::Twice(..) => {
                "take the copy out of \"log\"; afterwards \"dcd log add\" can make it another leg. Nothing was changed"
            }
            MirrorError::Apart(..) => {
                "change neither until you know which to keep: with a stack file that names only one of them, \"dcd check\" shows its log. Then \
                 take the other one out of \"log\", serve with --degraded, and add it again with \"dcd log add --force\": writes that only it has \
                 are lost then"
            }
            MirrorError::Missing { .. } => {
                "reconnect the missing leg: it may have writes that the others lack. If the leg is gone for good, or its device is blank now, \
                 and it was not used without the others since, \"dcd serve --degraded\" starts with the others (without a time; \"dcd detach\" \
                 and \"dcd rescue\" have --degraded, too)"
            }
            MirrorError::NoneWhole(_) => {
                "reconnect the leg that was in use last. If that leg is gone for good, so is the log: see \"dcd serve --without-cache\""
            }
            MirrorError::TooSmall { .. } => {
                "use the right device; if it was made smaller, make it as large as it was"
            }
            MirrorError::ReadOnly(_) => "make it writable, or take read-only = true out of the stack file",
            MirrorError::Label { .. } => CHECK_DEVICE,
        };
        Some(advice.to_owned())
    }
}

fn about_other_data(other: &OtherData) -> String {
    let connect = "if it is another disk, connect the right one (\"dcd check\" says whether the log has lost its newest superblock). If it is \
                   the right disk,";
    match other.dirty_bytes {
        0 => format!(
            "{connect} the log holds no data that the disk lacks, and \"dcd rescue\" accepts the disk as it is now. An older copy of the disk \
             lacks what was written since: use the original"
        ),
        dirty => format!(
            "{connect} copy it first: {} in the log are not written back, and may not fit the changed disk. Then either \"dcd rescue \
             --over-newer-data\" writes the log's data over the changes, or \"dcd serve --without-cache --force\" keeps the changes and discards the log's \
             data. Check the file system in either case",
            HumanBytes(dirty)
        ),
    }
}

impl Advised for AssembleError {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            AssembleError::InDoubt { absent, lacks_journal, .. } => {
                return Some(about_doubt(absent, *lacks_journal));
            }
            AssembleError::ForeignJournal => {
                "name the right device for it, and leave this one as it is: it may have data that only it has"
            }
            AssembleError::Apart(apart) => return apart.advice(),
            AssembleError::Replay(error) => return about_journal(error),
            AssembleError::Unknown { others: Others::None, .. } => "make the array with \"dcd array create\"",
            AssembleError::Unknown { others: Others::MakeUp, .. } => {
                "if this is a new device for a member that is gone for good, add it with \"dcd array add STACK-FILE NAME\""
            }
            AssembleError::Unknown { others: Others::TooFew, .. } => "name the right devices",
            AssembleError::Foreign(_) => {
                "name the right device; if that is gone for good, and nothing on this one is needed, put this one in its place with \
                 \"dcd array add --force STACK-FILE NAME\""
            }
            AssembleError::OnlySpares => "name the members in \"of\", and spares in \"spares\"",
            AssembleError::Growing { .. } => "name all of them in \"of\", and run \"dcd array grow\" again",
            AssembleError::Described { grows: true, .. } => {
                "describe it like that in the stack file; to add a member, name it last and run \"dcd array grow\""
            }
            AssembleError::Described { grows: false, .. } => "describe it like that in the stack file",
            AssembleError::SpareTwice(_) | AssembleError::NamedTwice(_) => "name each device once",
            AssembleError::MemberAndSpare { .. } => "name it once",
            AssembleError::OtherRole { .. } => "name the members in the order of their roles",
            AssembleError::IsSpare(_) => "name it in \"spares\", and not in \"of\"",
            AssembleError::OutOfDate(_) => {
                "in its place, name the device that has its role now, or \"missing\"; to use this one again, add it with \"dcd array add\""
            }
            AssembleError::Smaller { .. } => {
                "name the right device; if it is gone for good, write \"missing\" in its place"
            }
            AssembleError::NoJournal => {
                "name it in the stack file, as journal = \"NAME\". If it is gone for good, write journal = \"none\": a crash in which a \
                 member fails, too, may then lose data"
            }
            AssembleError::Unreadable | AssembleError::TooManyFailed { .. } => {
                "\"dcd array status\" shows each device"
            }
            AssembleError::Journal { what: "reading", error } => {
                return about_journal(&ReplayError::Io(*error));
            }
            AssembleError::Journal { .. } => CHECK_DEVICE,
            AssembleError::Shape(_) | AssembleError::JournalTooSmall { .. } => return None,
        };
        Some(advice.to_owned())
    }
}

fn about_doubt(absent: &[usize], lacks_journal: bool) -> String {
    let bring_back = (!absent.is_empty()).then(|| format!("reconnect {}", members_named(absent)));
    let journal = lacks_journal.then(|| "reconnect the journal that it had".to_owned());
    let accept = "accept wrong blocks (\"dcd serve --accept-doubt\")".to_owned();
    bring_back.into_iter().chain(journal).chain([accept]).collect::<Vec<_>>().join(", or ")
}

fn about_journal(error: &ReplayError) -> Option<String> {
    let computed = "if no member is missing, the parity is computed again";
    let without = format!("\"dcd serve --accept-doubt\" starts without its records: {computed}");
    Some(match error {
        ReplayError::NotThis => format!(
            "name that one; if it is gone for good, \"dcd serve --accept-doubt\" starts without it: {computed}"
        ),
        ReplayError::Damaged(_) => without,
        ReplayError::Shrunk { .. } => {
            format!(
                "give it its old size, or more, again: then nothing is lost. If that is impossible, {without}"
            )
        }
        ReplayError::Resized => {
            format!("give it its old size again: then nothing is lost. If that is impossible, {without}")
        }
        ReplayError::OtherUnit => {
            format!(
                "name the old \"unit\" until the array has been started once: then nothing is lost. If that is impossible, {without}"
            )
        }
        ReplayError::Io(_) => format!("{CHECK_DEVICE}. If it stays unreadable, {without}"),
    })
}

impl Advised for Apart {
    fn advice(&self) -> Option<String> {
        let advice = "choose which members to keep: name only these, and \"missing\" in place of the others. Then add the others again \
                      with \"dcd array add\", one by one: each is filled completely, and writes that only the others have are lost";
        Some(advice.to_owned())
    }
}

impl Advised for CommandError {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            CommandError::Blocks { .. } => "stop the server, add it, and serve it again",
            CommandError::Id(_) | CommandError::Held(_) => "try again",
            CommandError::StillThere(_) => "\"dcd array remove\" first",
            CommandError::BehindSpares { .. } => "name new ones after them in \"spares\"",
            CommandError::SpareThere(_) => "\"dcd array remove\" first",
            CommandError::Joining(_) | CommandError::Resyncing => "wait until that is done",
            CommandError::InUse { .. } => "\"dcd array fail\" first, if it can be spared",
            CommandError::NoSpare => {
                "\"dcd array add\" takes a device that is named in the place of the member, or in \"spares\""
            }
            CommandError::InDoubt => {
                "copy what can be read to another disk; \"dcd serve --accept-doubt\" then computes the rest, and it may be wrong"
            }
            CommandError::MemberMissing => "rebuild it first",
            CommandError::LegInUse => "\"dcd log remove\" takes out a leg that has not failed",
            CommandError::LastLeg => "add another one first, and wait until it is whole",
            CommandError::Labels(_) => CHECK_DEVICE,
            CommandError::TooManyLegs(_) => "remove one first",
            CommandError::NoMember { .. }
            | CommandError::NoWrites
            | CommandError::OfMirror
            | CommandError::NoLeg
            | CommandError::ReadOnly
            | CommandError::TooSmall { .. }
            | CommandError::NotFailed(_)
            | CommandError::Journal
            | CommandError::HasFailed(_)
            | CommandError::NotSpared(_)
            | CommandError::NothingFailed
            | CommandError::MemberReadOnly
            | CommandError::NoScrub => return None,
        };
        Some(advice.to_owned())
    }
}

impl Advised for ArrayNote {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            ArrayNote::SpareTaken { .. } => {
                "in the stack file, name it in the place of that member in \"of\", take it out of \"spares\", and remove the table of the \
                 device that it replaces"
            }
            ArrayNote::JournalFailed { .. } => {
                "give the array another journal. If the stack file names none, it is in the first 64 MiB of the log's device: write the log's place \
                 into the file, too, as a slice of that device with first = \"64MiB\""
            }
            ArrayNote::InDoubt => {
                "copy what can be read to another disk; \"dcd serve --accept-doubt\" then computes the rest, and it may be wrong"
            }
            ArrayNote::Unreadable { .. } => "reconnect the missing members, or write these blocks again",
            ArrayNote::Unused(unused) => match &unused.why {
                UnusedWhy::Unknown(_) => "\"dcd array add\" makes it a spare",
                UnusedWhy::Foreign => {
                    "if nothing on it is needed, make it a spare of this one with \"dcd array add --force\""
                }
                UnusedWhy::TooSmall { .. } => "name a larger device",
                UnusedWhy::WasMember => "add it again with \"dcd array add\"",
                UnusedWhy::OutOfDate | UnusedWhy::Outdated => {
                    "take it out with \"dcd array remove\", and add it again"
                }
                UnusedWhy::NotMade(_) => "take it out with \"dcd array remove\", check it, and add it again",
                UnusedWhy::NoWrites => return None,
            },
            ArrayNote::SpareAbsent(_) | ArrayNote::Lost(_) => return None,
        };
        Some(advice.to_owned())
    }
}

impl Advised for ChangeError {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            ChangeError::InDoubt(member) => {
                return Some(format!(
                    "serve the array until its state is \"good\"; if it cannot be served without member {member}, use \"dcd serve \
                     --accept-doubt\""
                ));
            }
            ChangeError::Apart(apart) => return apart.advice(),
            ChangeError::InUse(_) => "\"dcd array fail\" first, if it can be spared",
            ChangeError::Rebuilding(_) => "finish that first, with \"dcd array rebuild\"",
            ChangeError::NotSpared { .. } => "reconnect the missing members first",
            ChangeError::Id(_) => "try again",
            ChangeError::TooManyRanges => FEWER_STRIDES,
            ChangeError::Nobody
            | ChangeError::Foreign(_)
            | ChangeError::NoRole { .. }
            | ChangeError::NoParity
            | ChangeError::TooSmall { .. }
            | ChangeError::Member { .. }
            | ChangeError::Superblock(_)
            | ChangeError::Write { .. }
            | ChangeError::Io(_) => return None,
        };
        Some(advice.to_owned())
    }
}

impl Advised for ClientError {
    fn advice(&self) -> Option<String> {
        let not_served = matches!(self, ClientError::NotServed { .. });
        not_served.then(|| "is the stack served? (\"dcd serve STACK\")".to_owned())
    }
}

impl Advised for ArrayCreateError {
    fn advice(&self) -> Option<String> {
        let too_small = matches!(self, ArrayCreateError::TooSmall { .. });
        too_small.then(|| "use larger members or a smaller strip".to_owned())
    }
}

impl Advised for GrowError {
    fn advice(&self) -> Option<String> {
        match self {
            GrowError::Refused(refusal) => refusal.advice(),
            GrowError::Stopped => Some("\"dcd array grow\" continues".to_owned()),
            _ => None,
        }
    }
}

impl Advised for GrowRefusal {
    fn advice(&self) -> Option<String> {
        let advice = match self {
            GrowRefusal::Apart(apart) => return apart.advice(),
            GrowRefusal::Begun { .. } => "name them all, in the order of their roles",
            GrowRefusal::GetsMember => "finish that first, with \"dcd array grow\"",
            GrowRefusal::OtherRole(_) => "name that one there in \"of\", even if it was a spare",
            GrowRefusal::Outdated(_) => "name \"missing\" in its place",
            GrowRefusal::InDoubt => {
                "serve it without the new member in \"of\" until its state is \"good\", and stop it cleanly"
            }
            GrowRefusal::HasFailed => {
                "rebuild them first, without the new member in \"of\" (\"dcd array add\", \"dcd array rebuild\")"
            }
            GrowRefusal::Lost => "write these blocks first, or delete their files",
            GrowRefusal::Named { .. } => "name all of them, and the new one last",
            GrowRefusal::Id(_) => "try again",
            GrowRefusal::TakenBack { .. } => {
                "serve it with the stack file that has no new member: dcd serve --degraded STACK"
            }
            GrowRefusal::NotAllThere { .. }
            | GrowRefusal::Unreadable
            | GrowRefusal::Foreign(_)
            | GrowRefusal::TooMany { .. }
            | GrowRefusal::Missing
            | GrowRefusal::TooSmall { .. } => return None,
        };
        Some(advice.to_owned())
    }
}
