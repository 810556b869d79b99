//! `dcd rescue --disk`: writes back what a log has for one of its data disks, without a server. The log keeps what it has for the others.
//!
//! | the log | the disk is written by |
//! |---|---|
//! | can be written | a start of the cache with that disk alone, as if the others were missing |
//! | failed while it was served, cannot be written, or was detached while the disk was missing | a copy from the log, which is only read. The record of the disk says that it is complete, and never needs this log again |

use dcd_engine::LINE_BYTES;
use dcd_engine::log_cache::DataDiskStatus;
use dcd_engine::log_cache::format::LogState;
use dcd_engine::log_cache::offline::{JoinedDisks, RescueOptions, read_superblock, rescue};
use dcd_stack::HumanBytes;

use crate::cli::Rescue;
use crate::commands::rescue::{own_attachment, unwritten, was_missing};
use crate::control::not_served;
use crate::failure::Failure;
use crate::session::absent::missing_disk;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::{CacheSeen, judge_rescue};
use crate::session::machine;
use crate::session::open::{mark, open_log, open_log_to_read};
use crate::session::record::{Attachment, AttachmentState, DiskRecord, LogSeen};
use crate::session::survey::{inspect, start, target, why_missing};

/// Finds a data disk of a log with several.
pub fn find(choice: &CacheChoice, name: &str) -> Result<CacheChoice, Failure> {
    let stack = choice.site.path.display();
    let named = choice.of_disks().into_iter().find(|own| own.data == name && choice.disks().len() > 1);
    named.filter(|_| !choice.site.is_free_place(name)).ok_or_else(|| {
        Failure::Failed(format!(
            "{stack}: \"{name}\" is no data disk of a log with several; they are {}. Nothing was changed",
            choice.disks().join(", ")
        ))
    })
}

pub fn run(args: &Rescue, name: &str) -> Result<(), Failure> {
    let mut choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    choice.site.asked.degraded_legs = args.degraded;
    let own = find(&choice, name)?;
    if args.list || args.force {
        return Err(Failure::Failed(format!(
            "--disk writes back all that the log has for \"{name}\", or fails: leave out --list and --force, which are for all disks of the \
             log. Nothing was changed"
        )));
    }
    not_served(&choice.site, "write back")?;
    let written = HumanBytes(write_back(&own, args.over_newer_data)?);
    match args.json {
        true => println!("{}", serde_json::json!({ "disk": name, "written_bytes": written.0 })),
        false => println!(
            "\"{name}\" has all its data: {written} were written back. The log keeps what it has for the other disks"
        ),
    }
    Ok(())
}

/// Writes back what the log has for a disk, and returns how much that was. `over_newer`: also from a log that failed, was given up, or was
/// detached, if the disk lacks something of it.
fn write_back(own: &CacheChoice, over_newer: bool) -> Result<u64, Failure> {
    if let Some(why) = why_missing(own)? {
        return Err(missing_disk(own, &why).into());
    }
    let (mut seen, record) = inspect(own)?;
    let was_missing = was_missing(own, seen.record.as_ref(), &seen.log).is_some();
    if let (LogSeen::Present { state, .. }, true) = (&mut seen.log, was_missing) {
        // For this disk alone, the log is as it was before.
        *state = LogState::Stopped;
    }
    let is_dead = was_missing || is_out_of_use(own, &seen);
    judge_rescue(own, &seen, machine::this(), over_newer && is_dead)?;
    let mut alone = own.clone();
    alone.site.asked.degraded_disks = true;
    for other in own.of_disks().iter().filter(|other| is_apart(own, other)) {
        alone.site.file.leave_out_disk(&other.data);
    }
    let dead = match was_missing {
        true => "the log was detached",
        false => "the log failed while it was served",
    };
    match is_dead.then_some(dead).or_else(|| takes_no_writes(&alone)) {
        Some(why) => {
            eprintln!("dcd: {why}: it is only read, and \"{}\" is never used with it again", own.data);
            from_dead_log(&alone, record, over_newer)
        }
        None => by_a_start(&alone),
    }
}

/// Refuses to write back all of a log that failed where one data disk of several is newer than the log, as long as the log has something for
/// another one: that disk can be written alone.
pub fn admit_all(choice: &CacheChoice) -> Result<(), Failure> {
    let choices = choice.of_disks();
    let looked = choices.iter().map(inspect).collect::<Result<Vec<_>, Failure>>()?;
    let attachment = |(seen, _): &(CacheSeen, Option<DiskRecord>)| {
        own_attachment(seen.record.as_ref(), &seen.log).cloned()
    };
    let known: Vec<Option<Attachment>> = looked.iter().map(attachment).collect();
    let is_abandoned = |attachment: &Attachment| attachment.state == AttachmentState::Abandoned;
    let is_newer = |attachment: &Attachment| is_abandoned(attachment) && !attachment.may_lose_data();
    let Some(newer) = known.iter().position(|known| known.as_ref().is_some_and(is_newer)) else {
        return Ok(());
    };
    let waits = known.iter().enumerate().find_map(|(disk, known)| {
        known.as_ref().filter(|known| known.may_lose_data()).map(|known| (disk, is_abandoned(known)))
    });
    let Some((waits, over_newer)) = waits else { return Ok(()) };
    let (newer, one) = (&choices[newer].data, &choices[waits].data);
    let alone = format!(
        "write back what the log has for \"{one}\" alone: \"dcd rescue {}",
        choice.site.path.display()
    );
    Err(Failure::refused(
        format!(
            "the log failed, and has data that \"{one}\" lacks; \"{newer}\" has been written without the log since, and would get old blocks over \
             that"
        ),
        match over_newer {
            false => format!("{alone} --disk {one}\". Nothing is lost by that, and nothing was changed"),
            true => {
                format!("copy \"{one}\", then {alone} --disk {one} --over-newer-data\". Nothing was changed")
            }
        },
    ))
}

/// True if a data disk of the log has been written without it since it failed: nothing in the log may be changed, or be used for that disk.
fn is_out_of_use(own: &CacheChoice, seen: &CacheSeen) -> bool {
    let LogSeen::Present { uuid, .. } = &seen.log else { return false };
    own.of_disks().iter().filter_map(|other| inspect(other).ok()).any(|(other, _)| {
        let attachment = other.record.as_ref().and_then(|record| record.all.of(record.extent));
        attachment.is_some_and(|attachment| {
            attachment.state == AttachmentState::Abandoned && attachment.cache_uuid == *uuid
        })
    })
}

/// Says that the log can be read, but not be written. Tries that with the superblock as it is.
fn takes_no_writes(own: &CacheChoice) -> Option<&'static str> {
    let writes = || {
        let mut log = open_log(own, Purpose::Change)?;
        let state = read_superblock(&mut log)?.state;
        mark(&mut log, state)
    };
    match writes() {
        Ok(()) | Err(Failure::Busy(_)) => None,
        Err(_) => Some("the log cannot be written"),
    }
}

/// Starts the cache with this disk alone.
fn by_a_start(own: &CacheChoice) -> Result<u64, Failure> {
    let drained = Drained::by_a_start(own)?;
    drained.refuse_rest(own)?;
    Ok(drained.before[own.disk].dirty_bytes)
}

/// Contents of a log for each disk, before it was written back and afterwards.
pub struct Drained {
    pub before: Vec<DataDiskStatus>,
    pub after: Vec<DataDiskStatus>,
    /// The reason if not all was written back.
    why: Option<String>,
}

impl Drained {
    /// Starts a cache without the disks that were left out, and writes back what it can.
    pub fn by_a_start(choice: &CacheChoice) -> Result<Drained, Failure> {
        let choice = choice.holding(Purpose::Change);
        let (started, parts) = start(&choice.site, &[&choice.layer], Purpose::Change)?;
        let cache = parts.layers[&choice.layer];
        let disks = || {
            let status = started.status(cache);
            status.log_cache().map(|status| status.disks.clone()).unwrap_or_default()
        };
        let before = disks();
        let why = started.drain(cache).err().map(|why| why.to_string());
        let after = disks();
        started.stop(cache)?;
        Ok(Drained { before, after, why })
    }

    /// Refuses a disk for which the log still has something.
    pub fn refuse_rest(&self, own: &CacheChoice) -> Result<(), Failure> {
        let left = &self.after[own.disk];
        match (left.lost_blocks, left.dirty_bytes) {
            (0, 0) => Ok(()),
            (0, bytes) => Err(self.why.clone().map_or_else(|| unwritten(bytes), Failure::Failed)),
            (lost, _) => Err(unreadable(own, lost as u64 * LINE_BYTES)),
        }
    }
}

/// Writes back from a log that nothing is written to. The record of the disk then says that it never needs this log again.
fn from_dead_log(own: &CacheChoice, record: Option<DiskRecord>, over_newer: bool) -> Result<u64, Failure> {
    let mut log = open_log_to_read(own)?;
    let superblock = read_superblock(&mut log)?;
    let disks: Vec<&str> = own.disks().iter().map(String::as_str).collect();
    let own = own.holding(Purpose::Change);
    let (started, parts) = start(&own.site, &disks, Purpose::Change)?;
    let all = disks.iter().map(|disk| started.part(target(&parts, disk))).collect();
    let mut data = JoinedDisks::with_only(all, own.disk);
    let options = RescueOptions { disk: Some(own.disk), over_newer, ..RescueOptions::default() };
    let report = rescue(&mut log, &mut data, options, &mut |_| {})?;
    if report.refused {
        return Err(Failure::Damage(format!(
            "records of the log are lost, and it is not known what they held for \"{}\": nothing was written. Copy the log's device to a good \
             one and try that",
            own.data
        )));
    }
    match (report.unsaved_bytes, report.unwritten_bytes) {
        (0, _) => {}
        (unsaved, bytes) if unsaved == bytes => return Err(unwritten(bytes)),
        (unsaved, bytes) => return Err(unreadable(&own, unsaved - bytes)),
    }
    if let Some(record) = record {
        let extent = record.extent();
        record.update(|known| Attachment {
            state: AttachmentState::Abandoned,
            dirty_bytes: Some(0),
            discarded: false,
            ..known.unwrap_or_else(|| own.attachment(extent, &superblock, AttachmentState::Abandoned))
        })?;
    }
    Ok(report.written_bytes + report.zeroed_bytes)
}

fn unreadable(own: &CacheChoice, bytes: u64) -> Failure {
    Failure::Damage(format!(
        "{} for \"{}\" cannot be read from the log, which keeps them; the rest is written back. \"dcd rescue --list\" lists them",
        HumanBytes(bytes),
        own.data
    ))
}

/// True for another disk that shares no device with this one, nor with the log.
fn is_apart(own: &CacheChoice, other: &CacheChoice) -> bool {
    let device = |part: &str| own.site.bottom_device(part).map(|device| device.name.clone());
    let it = device(&other.data);
    let legs = own.legs();
    let mut shared = legs.into_iter().chain([own.log.as_str(), own.data.as_str()]);
    other.disk != own.disk && !own.site.is_free_place(&other.data) && !shared.any(|part| device(part) == it)
}
