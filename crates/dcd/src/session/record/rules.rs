//! Decides if a cache may be used with a data disk: pure functions of what the record says and what the log says.

use std::path::Path;

use dcd_engine::log_cache::format::LogState;
use dcd_engine::mirror::{LegState, MirrorStatus};
use dcd_engine::raid::CACHES_MAX;
use dcd_engine::{Extent, SECTOR_BYTES};
use dcd_stack::HumanBytes;

use crate::advice::NOTHING_CHANGED;

use super::{Attachment, AttachmentState, Attachments, Teller, caches_text, told_as};

/// Reason for a refusal, and what to do: printed as two lines, exit code 3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}\n  {}{action}", if action == NOTHING_CHANGED { "" } else { "what to do: " })]
pub struct Refusal {
    pub reason: String,
    pub action: String,
}

impl Refusal {
    pub fn new(reason: impl Into<String>, action: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), action: action.into() }
    }
}

/// Content of the device where the log should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSeen {
    /// No such device, or no superblock on it; the text says which.
    Missing(String),
    Present {
        uuid: String,
        epoch: u64,
        generation: u64,
        state: LogState,
        /// True when one of the two superblocks is not whole: it may have been the newer one.
        torn: bool,
        legs: LegsSeen,
    },
}

/// The reason why a log must not be replayed over its data disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfDate {
    /// The disk went on without it.
    GivenUp,
    /// The legs that are there lack acknowledged writes.
    Stale,
    /// The log is of a time before the last start or the last stop of the cache.
    Older { torn: bool },
}

impl LogSeen {
    /// Returns the reason why the log of this attachment must not be replayed; none for the log as it was last used.
    pub fn out_of_date(&self, attachment: &Attachment) -> Option<OutOfDate> {
        let LogSeen::Present { epoch, generation, state, torn, legs, .. } = self else { return None };
        let (epoch, torn) = (*epoch, *torn);
        // A log that lost the superblock of its last stop is the same log, and is recovered as after a crash.
        let is_before_stop = epoch == attachment.epoch && *generation < attachment.generation && !torn;
        if attachment.state == AttachmentState::Abandoned || *state == LogState::GivenUp {
            Some(OutOfDate::GivenUp)
        } else if legs.are_stale(attachment) {
            Some(OutOfDate::Stale)
        } else {
            (epoch < attachment.epoch || is_before_stop).then_some(OutOfDate::Older { torn })
        }
    }
}

/// The legs of a log that are whole according to their labels; none for a log on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegsSeen {
    pub whole: Vec<u64>,
    /// Generation of the newest label.
    pub generation: u64,
}

impl LegsSeen {
    pub fn of(legs: &MirrorStatus) -> LegsSeen {
        let whole = legs.legs.iter().filter(|leg| leg.standing == Some(LegState::Whole));
        LegsSeen { whole: whole.map(|leg| leg.id).collect(), generation: legs.found_generation }
    }

    /// True if each of these legs lacks acknowledged writes, by the record.
    fn are_stale(&self, attachment: &Attachment) -> bool {
        let is_stale = |id: &u64| {
            attachment.stale_legs.iter().any(|stale| stale.id == *id && self.generation <= stale.generation)
        };
        !self.whole.is_empty() && self.whole.iter().all(is_stale)
    }
}

/// Grounds on which a log may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartGrounds {
    /// Record and log agree.
    Known,
    /// The disk has no record, as when it was moved here from another host. The log's own fingerprint of the disk
    /// protects it; a new record is made.
    Unrecorded,
}

/// Decides if the log at `log` may be served over `extent` of a disk with these attachments.
pub fn admit_start(
    all: &Attachments,
    extent: Extent,
    log: &Path,
    seen: &LogSeen,
) -> Result<StartGrounds, Refusal> {
    let log = log.display();
    admit_offset(all, extent)?;
    let attachment = match (all.of(extent), all.overlapping(extent)) {
        (Some(attachment), _) => Some(attachment),
        (None, Some(other)) => return Err(overlap(other, extent)),
        (None, None) => None,
    };
    let (uuid, state) = match seen {
        LogSeen::Missing(why) => return Err(missing(attachment, why)),
        LogSeen::Present { state: LogState::Detached, uuid, .. } => {
            let own = attachment.filter(|own| own.cache_uuid == *uuid && own.may_lose_data());
            if let Some(own) = own {
                return Err(Refusal::new(
                    format!("the log {log} was detached, and this disk lacks {}", own.held()),
                    "\"dcd rescue --list\" says where they are",
                ));
            }
            return Err(Refusal::new(
                format!("the log {log} was detached: its cache is not in use any more"),
                "make a new one with \"dcd format\", or serve the plain disk without a log-cache layer",
            ));
        }
        LogSeen::Present { uuid, state, .. } => (uuid, *state),
    };
    let Some(attachment) = attachment else {
        return match state {
            LogState::GivenUp => Err(was_given_up(&log.to_string(), None)),
            _ => Ok(StartGrounds::Unrecorded),
        };
    };
    if attachment.cache_uuid != *uuid {
        return Err(Refusal::new(
            format!(
                "another cache is attached to the data disk: {} (its log was {}), and {log} has {uuid}",
                attachment.cache_uuid,
                attachment.log.display()
            ),
            "name the right data disk in the stack file, or the right log; or detach the other cache first (\"dcd detach\")",
        ));
    }
    match seen.out_of_date(attachment) {
        None => Ok(StartGrounds::Known),
        Some(OutOfDate::GivenUp) => Err(was_given_up(&log.to_string(), Some(attachment))),
        Some(OutOfDate::Stale) => Err(stale(attachment, &log.to_string())),
        Some(OutOfDate::Older { torn }) => Err(older(attachment, &log.to_string(), torn)),
    }
}

/// The data disk, or the log itself, says that this log is out of date.
fn was_given_up(log: &str, attachment: Option<&Attachment>) -> Refusal {
    let reason =
        format!("the data disk has been written without the log {log} since that failed or was left out");
    match attachment {
        Some(attachment) if attachment.discarded && !attachment.may_lose_data() => Refusal::new(
            format!("{reason}, and it was accepted that what only the log had is lost"),
            format!(
                "make a new one with \"dcd format\", and never use this log again as it is. Only if you need what was given up: {RESCUE_FIRST}"
            ),
        ),
        Some(attachment) if !attachment.may_lose_data() => Refusal::new(
            reason,
            format!(
                "make a new one with \"dcd format\": {}. And never use this log again: replaying it would put old data over new",
                attachment.at_risk()
            ),
        ),
        _ => Refusal::new(
            match attachment {
                Some(attachment) => format!("{reason}, and {} are only in the log", attachment.held()),
                None => reason,
            },
            format!("{RESCUE_FIRST}. Then \"dcd format\" makes a new log; never use this log again as it is"),
        ),
    }
}

/// The way out for a log that failed, or was left out, and can be read again.
pub const RESCUE_FIRST: &str = "\"dcd rescue --list\" shows what the log has. Copy the data disk; then \"dcd rescue --over-newer-data\" writes \
    it back, and overwrites each of these blocks, also where the data disk has newer data";

/// Names all steps to replace the log at `log` by another one.
pub fn way_to_a_new_log(log: &Path) -> String {
    format!(
        "to replace the log, stop the server: everything is written back, and the new log is made, by \"dcd format --replace OLD NEW\". OLD is \
         the stack file that names {}, NEW one that names the new log",
        log.display()
    )
}

/// The way on where a log is out of date and the data disk has all that was acknowledged.
fn nothing_is_lost(before: &str) -> String {
    format!(
        "{before}. If it is gone, nothing is lost: the data disk is complete without it. \"dcd detach\" gives the plain disk, and \"dcd format\" \
         then makes a new log"
    )
}

/// Refuses stale legs: the leg that has all acknowledged writes is missing.
fn stale(attachment: &Attachment, log: &str) -> Refusal {
    let reason = format!(
        "the leg of the log {log} that is connected lacks acknowledged writes: it failed, or was away, while another leg was written, as \
         the attachment record of the data disk says"
    );
    if attachment.is_complete() {
        return Refusal::new(reason, nothing_is_lost("connect the leg that was in use last"));
    }
    Refusal::new(
        reason,
        "connect the leg that was in use last: nothing is lost then. If that leg is gone, those writes are lost: \"dcd rescue --list\" says what \
         this leg holds. Copy the data disk; then \"dcd rescue --over-newer-data\" writes that back, perhaps over newer data, and \"dcd serve \
         --without-cache --force\" serves the disk without it",
    )
}

/// Refuses a log that is older than the log that the data disk was last used with.
fn older(attachment: &Attachment, log: &str, torn: bool) -> Refusal {
    let known = "it is of a time before the cache was last started or stopped, as the attachment record of the data disk says";
    let reason = format!("the log {log} is an old copy: {known}. Using it would put old data over new");
    if attachment.is_complete() {
        return Refusal::new(reason, nothing_is_lost("use the original log"));
    }
    if torn {
        return Refusal::new(
            format!(
                "one of the two superblocks of the log {log} is damaged, and the other one is old: {known}. This is the log \
                 with its newer superblock lost, or an old copy of it"
            ),
            "if it is not a copy: copy the data disk; then \"dcd rescue --over-newer-data --force\" writes back what it holds, each record checked (\"dcd \
             rescue --list\" says what that is). An old copy would put old data over new",
        );
    }
    Refusal::new(
        reason,
        "use the original log. If it is gone, the newest writes are lost: \"dcd rescue --list\" says what this copy holds. Copy the data disk; \
         then \"dcd rescue --over-newer-data\" writes that back, perhaps over newer data, and \"dcd serve --without-cache --force\" serves the \
         disk without it",
    )
}

/// Refuses a part of a medium that has a cache under another offset.
fn admit_offset(all: &Attachments, extent: Extent) -> Result<(), Refusal> {
    let Some(other) = all.elsewhere(extent) else { return Ok(()) };
    Err(Refusal::new(
        format!(
            "the cache {} is attached to {} of this disk, as a partition of it, its whole disk, or at another offset of its file; its log is {}",
            other.cache_uuid,
            other.extent(),
            other.log.display()
        ),
        "use the device that has that cache, or take the cache off there first (\"dcd detach\"). Nothing was changed",
    ))
}

fn overlap(other: &Attachment, extent: Extent) -> Refusal {
    let attached = other.extent();
    if attached.start == extent.start && attached.sectors > extent.sectors {
        let size = |extent: Extent| HumanBytes(extent.sectors * SECTOR_BYTES);
        return Refusal::new(
            format!(
                "the data disk has become smaller: it has {} ({} bytes), but had {} ({} bytes) when the cache {} was attached to it",
                size(extent),
                extent.sectors * SECTOR_BYTES,
                size(attached),
                attached.sectors * SECTOR_BYTES,
                other.cache_uuid
            ),
            match other.state {
                AttachmentState::Abandoned => {
                    "make it as large as it was. (The cache was discarded: \"dcd format\" makes a new one for the present size)"
                }
                _ => "make it as large as it was: nothing that the log holds is lost",
            },
        );
    }
    Refusal::new(
        format!(
            "the cache {} is attached to {} of the data disk, which overlaps {extent}",
            other.cache_uuid,
            other.extent()
        ),
        "give the stack file the slice that was formatted, or detach the other cache first (\"dcd detach\")",
    )
}

/// Advice where the stack file names a log, and no log is found there.
pub const NO_LOG: &str =
    "correct its path in the stack file; if there never was one, \"dcd format\" makes it";

fn missing(attachment: Option<&Attachment>, why: &str) -> Refusal {
    match attachment {
        None => Refusal::new(format!("there is no log: {why}"), NO_LOG),
        Some(attachment) if !attachment.may_lose_data() && attachment.state == AttachmentState::Abandoned => {
            Refusal::new(
                format!(
                    "the log is missing ({why}); it was discarded before, and {}",
                    attachment.without_log()
                ),
                "\"dcd format\" makes a new one, and \"dcd detach\" takes the cache off",
            )
        }
        Some(attachment) if !attachment.may_lose_data() => Refusal::new(
            format!(
                "the log is missing ({why}); the data disk is complete without it, as its attachment record says"
            ),
            "bring the log back. If it is gone for good: \"dcd serve --without-cache\" gives it up, and serves the plain disk",
        ),
        Some(attachment) => Refusal::new(
            format!(
                "the log is missing ({why}), and the data disk is incomplete without it; the log was {}",
                attachment.log.display()
            ),
            format!(
                "bring the log back, or correct its path in the stack file{}. Without the log: \"dcd serve --without-cache --force\"; {}",
                match attachment.state {
                    AttachmentState::Abandoned => format!("; {RESCUE_FIRST}"),
                    _ => String::new(),
                },
                attachment.at_risk()
            ),
        ),
    }
}

/// Decides if the data disk may be served without its cache. `force` accepts that data is lost.
pub fn admit_without_cache(all: &Attachments, extent: Extent, force: bool) -> Result<(), Refusal> {
    match all.overlapping(extent) {
        Some(attachment) if attachment.may_lose_data() && !force => Err(Refusal::new(
            format!("the data disk is incomplete without its cache {}", attachment.cache_uuid),
            match attachment.state {
                AttachmentState::Abandoned => format!(
                    "its log ({}) failed, and may be readable again: {RESCUE_FIRST}. Without the log: add --force; {}",
                    attachment.log.display(),
                    attachment.at_risk()
                ),
                _ => format!(
                    "serve it with the log ({}); or add --force: {}",
                    attachment.log.display(),
                    attachment.at_risk()
                ),
            },
        )),
        _ => Ok(()),
    }
}

/// Decides if a disk may be used without its cache although the record, which says how much that would lose, is lost itself. `lost`: caches
/// that the disk itself names. `instead`: another way out.
pub fn admit_without_record(
    lost: Option<String>,
    teller: Teller,
    force: bool,
    instead: &str,
) -> Result<(), Refusal> {
    let [disk, says] = teller.text();
    match lost {
        Some(caches) if !force => Err(Refusal::new(
            format!(
                "the cache {caches} is attached to {disk}, or to a part of it, {says}; its attachment record is not here, so it is not \
                 known how much the disk lacks without the log"
            ),
            format!(
                "serve it with that cache in the stack file and its log connected: that makes a new record. {instead}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Decides if the log of the cache `uuid` at `log` may be used with a disk without a record. `told`: the caches that the disk itself names.
pub fn admit_told(told: &[u64], teller: Teller, log: &Path, uuid: &str) -> Result<(), Refusal> {
    let log = log.display();
    let [disk, says] = teller.text();
    match told {
        [] => Err(out_of_use(&format!("no cache is attached to {disk}, {says}"), &log.to_string(), uuid)),
        _ if !told.iter().any(|id| Some(*id) == told_as(uuid)) => Err(Refusal::new(
            format!(
                "another cache is attached to {disk}, {says}: {}, and {log} has {uuid}",
                caches_text(told)
            ),
            "name the right data disk in the stack file, or the right log",
        )),
        _ => Ok(()),
    }
}

/// Decides if the log of the cache `uuid` at `log` may be used with a disk without a record. `retired`: the cache was taken off its disk
/// before.
pub fn admit_not_retired(retired: bool, log: &Path, uuid: &str) -> Result<(), Refusal> {
    match retired {
        true => Err(out_of_use("no cache is attached to this disk", &log.display().to_string(), uuid)),
        false => Ok(()),
    }
}

fn out_of_use(why: &str, log: &str, uuid: &str) -> Refusal {
    Refusal::new(
        format!(
            "{why}: the cache {uuid}, of the log {log}, was detached or discarded, and the disk may have been written since"
        ),
        "\"dcd rescue --list\" shows what the log has that the disk lacks: nothing, if it was detached. Then \"dcd format --force\" makes a \
         new log; never use this log again as it is. If it was discarded, copy the disk before \"dcd rescue --over-newer-data\" writes back what \
         the log has, perhaps over newer data",
    )
}

/// Decides if `extent` of a disk with these attachments may be served by a stack that has no cache for it.
pub fn admit_plain(all: &Attachments, extent: Extent) -> Result<(), Refusal> {
    admit_offset(all, extent)?;
    match all.overlapping(extent) {
        Some(attachment) if attachment.state != AttachmentState::Abandoned => Err(Refusal::new(
            format!(
                "the cache {} is attached to this disk, and this stack serves the disk without it; its log is {}",
                attachment.cache_uuid,
                attachment.log.display()
            ),
            "serve the stack that has the cache, or take the cache off first (\"dcd detach\")",
        )),
        _ => Ok(()),
    }
}

/// Refuses to overwrite `extent` of a disk with these attachments if it is the data disk of a cache. `device` names it.
pub fn admit_overwrite(all: &Attachments, extent: Extent, device: &str, force: bool) -> Result<(), Refusal> {
    match all.overlapping(extent) {
        Some(attachment) if attachment.state != AttachmentState::Abandoned && !force => Err(Refusal::new(
            format!(
                "{device} is the data disk of the cache {}, whose log is {}",
                attachment.cache_uuid,
                attachment.log.display()
            ),
            format!(
                "choose another device, or take that cache off first (\"dcd detach\"); with --force its {} are \
                 overwritten",
                HumanBytes(extent.sectors * SECTOR_BYTES)
            ),
        )),
        _ => Ok(()),
    }
}

/// Decides if a new cache may be attached to `extent` of a disk with these attachments.
pub fn admit_attach(all: &Attachments, extent: Extent, force: bool) -> Result<(), Refusal> {
    admit_offset(all, extent)?;
    match all.overlapping(extent) {
        Some(attachment) if attachment.state != AttachmentState::Abandoned || attachment.may_lose_data() => {
            if force {
                return Ok(());
            }
            Err(Refusal::new(
                format!(
                    "a cache is attached to the data disk already: {}, with its log of {} at {}",
                    attachment.cache_uuid,
                    HumanBytes(attachment.log_bytes),
                    attachment.log.display()
                ),
                match attachment.state {
                    AttachmentState::Abandoned => format!(
                        "its log failed, and may be readable again: {RESCUE_FIRST}. Without the log: add --force; {}",
                        attachment.at_risk()
                    ),
                    _ => format!(
                        "{}. Without writing back: add --force; {}",
                        way_to_a_new_log(&attachment.log),
                        // Another cache may have the log by now.
                        match attachment.may_lose_data() {
                            true => attachment.at_risk(),
                            false => "this cache has no data at risk".to_owned(),
                        }
                    ),
                },
            ))
        }
        _ => Ok(()),
    }
}

/// Decides if a part of an array with these attachments may get a cache: the members of the array have to name all caches.
pub fn admit_on_array(all: &Attachments, extent: Extent) -> Result<(), Refusal> {
    let others =
        Attachments(all.0.iter().filter(|other| !other.extent().overlaps(extent)).cloned().collect());
    if others.to_tell().len() < CACHES_MAX {
        return Ok(());
    }
    Err(Refusal::new(
        format!("other parts of this array have {} caches already", others.to_tell().len()),
        format!(
            "\"dcd detach\" one of them: the members of an array can name {CACHES_MAX} caches, and no more"
        ),
    ))
}

#[cfg(test)]
#[path = "rules_tests.rs"]
pub mod tests;
