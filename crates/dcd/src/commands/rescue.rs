//! `dcd rescue`: writes the dirty data of a log back without a server, and lists what cannot be read.

use std::path::Path;

use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::log_cache::offline::{
    RescueOptions, RescueReport, check, place_of_address, read_superblock, rescue,
};
use dcd_engine::log_cache::recover::DamageKind;
use dcd_engine::{Extent, LINE_BYTES, Lba};
use dcd_stack::HumanBytes;

use crate::cli::Rescue;
use crate::commands::one_disk;
use crate::failure::Failure;
use crate::output::no_json;
use crate::progress::{Progress, say_so_when_interrupted};
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::judge_rescue;
use crate::session::machine::this;
use crate::session::open::{OpenedCache, tell_missing_legs};
use crate::session::record::{Attachment, AttachmentState, LogSeen, RecordSeen, Refusal};
use crate::session::started::StartedPart;
use crate::session::survey::inspect;
use crate::session::take_over::went_on_without;

/// Maximum number of extents that are listed as text; `--json` has all.
const LISTED_MAX: usize = 100;

pub fn run(args: &Rescue) -> Result<(), Failure> {
    if let Some(disk) = &args.disk {
        return one_disk::run(args, disk);
    }
    let mut choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    let purpose = if args.list { Purpose::Look } else { Purpose::Change };
    if !args.list {
        say_so_when_interrupted("");
    }
    choice.site.hold(purpose);
    let goes_on = args.force || args.over_newer_data;
    choice.site.asked.take_over = goes_on;
    choice.site.asked.degraded_legs = goes_on || args.degraded;
    if args.list {
        tell_missing_legs(&choice)?;
    }
    if goes_on && !args.list {
        one_disk::admit_all(&choice)?;
    }
    // Checked before anything is opened for writing: a refusal changes not even the label of a leg.
    let (mut refusal, mut given_up, mut nothing_is_lost) = (None, false, true);
    let disks = choice.of_disks();
    let looked = disks.iter().map(inspect).collect::<Result<Vec<_>, Failure>>()?;
    let all = || disks.iter().zip(looked.iter().map(|(cache, _)| cache));
    if let Some(lacks) = all().find_map(|(own, cache)| was_missing(own, cache.record.as_ref(), &cache.log)) {
        return Err(Failure::Damage(lacks));
    }
    for (choice, cache) in all() {
        let judged = judge_rescue(choice, cache, this(), args.over_newer_data).map_err(|refusal| match cache
            .missing
        {
            None => refusal,
            Some(_) => Refusal {
                action: format!(
                    "{}. \"dcd rescue --disk NAME\" writes back one of the others",
                    refusal.action
                ),
                ..refusal
            },
        });
        match judged.err() {
            Some(refusal) if !args.list || matches!(cache.log, LogSeen::Missing(_)) => {
                return Err(refusal.into());
            }
            judged => refusal = refusal.or(judged),
        }
        given_up |= args.list && is_given_up(cache.record.as_ref(), &cache.log);
        nothing_is_lost &= own_attachment(cache.record.as_ref(), &cache.log)
            .is_some_and(|own| own.is_complete() && cache.log.out_of_date(own).is_some());
    }
    if let Some(refusal) = refusal.as_ref().filter(|_| args.list && nothing_is_lost) {
        return tell_nothing_is_lost(refusal, args.json);
    }
    let mut opened = OpenedCache::open(&choice, purpose)?;
    let options =
        RescueOptions { force: args.force, over_newer: args.over_newer_data, list: args.list, disk: None };
    let mut progress = Progress::new(args.json);
    let report = rescue(&mut opened.log, &mut opened.data, options, &mut |seen| {
        progress.left(seen.bytes_total - seen.bytes_done);
    });
    progress.end();
    let report = match (report.map_err(Failure::from), &refusal) {
        (Err(Failure::Refused(_)), Some(refusal)) => return Err(refusal.clone().into()),
        (report, _) => report?,
    };
    if report.marked_clean && !args.list {
        note_clean(&choice, &mut opened)?;
    }
    let changed = if args.list { changed_lbas(&mut opened)? } else { Vec::new() };
    if args.json {
        let mut report = serde_json::to_value(&report).map_err(no_json)?;
        if args.list {
            report["changed_lbas"] = changed.clone().into();
            report["given_up"] = given_up.into();
        }
        println!("{report}");
    } else {
        let place = DiskPlaces::of(&choice, &mut opened.log)?;
        print!("{}{}", describe(&report, args.list, &place), describe_changed(&changed, &place));
        if let Some(refusal) = refusal.filter(|_| !given_up) {
            println!("note: \"dcd rescue\" is refused: {}", refusal.reason);
        }
    }
    verdict(&report, args.list)?;
    if given_up {
        return Err(Failure::Damage(
            "the cache went on without this log, or was served without it: the data disk may be newer. Copy it before \
             \"dcd rescue --over-newer-data\" writes the log's data over it"
                .to_owned(),
        ));
    }
    let is_empty = report.dirty.data_bytes + report.dirty.zeroes_bytes == 0 && report.damages == 0;
    let other = read_superblock(&mut opened.log)?.other_machine(this()).filter(|_| choice.is_mirrored());
    match (changed.is_empty(), is_empty, other) {
        (true, ..) => Ok(()),
        (false, _, Some(other)) => Err(Failure::Damage(
            went_on_without(other, "the data disk is another one, or was changed without its cache").to_string(),
        )),
        (false, true, _) => Err(Failure::Damage(
            "the data disk is another one, or was changed without its cache. The log has no dirty data: if it is the right disk, \
             \"dcd rescue\" accepts it as it is now"
                .to_owned(),
        )),
        (false, false, _) => Err(Failure::Damage(
            "the data disk is another one, or was changed without its cache: copy it before \"dcd rescue --over-newer-data\" \
             writes the log's data over the changes"
                .to_owned(),
        )),
    }
}

/// True when the record, or the log itself, says that this log is out of date, so that a rescue is refused.
fn is_given_up(recorded: Option<&RecordSeen>, seen: &LogSeen) -> bool {
    matches!(seen, LogSeen::Present { state: LogState::GivenUp, .. })
        || own_attachment(recorded, seen).is_some_and(|known| known.state == AttachmentState::Abandoned)
}

/// Says what a disk lacks that was missing when its log was detached; none if it lacks nothing.
pub fn was_missing(choice: &CacheChoice, recorded: Option<&RecordSeen>, seen: &LogSeen) -> Option<String> {
    let own = own_attachment(recorded, seen).filter(|own| own.may_lose_data());
    let is_one_of_several = choice.disks().len() > 1;
    own.filter(|_| matches!(seen, LogSeen::Present { state: LogState::Detached, .. })).map(|own| match is_one_of_several {
        true => format!(
            "the log was detached while \"{name}\" was missing, and {} for it were given up. This disk lacks them. Unless something was \
             written over the log since, \"dcd rescue {} --disk {name}\" writes them back",
            own.held(),
            choice.site.path.display(),
            name = choice.data
        ),
        false => format!(
            "the log was detached, and the attachment record of {} says that this disk lacks {}: another disk, such as a copy, was in \
             its place then and has them, or the record is older than that, as one from a backup",
            choice.site.path_below(&choice.data).unwrap_or(Path::new(&choice.data)).display(),
            own.held(),
        ),
    })
}

/// The attachment of the cache whose log was found.
pub fn own_attachment<'a>(recorded: Option<&'a RecordSeen>, seen: &LogSeen) -> Option<&'a Attachment> {
    let LogSeen::Present { uuid, .. } = seen else { return None };
    let known = recorded.and_then(|recorded| recorded.all.of(recorded.extent));
    known.filter(|attachment| attachment.cache_uuid == *uuid)
}

/// Lists nothing: the data disk has all that the log had, and may be newer.
fn tell_nothing_is_lost(refusal: &Refusal, json: bool) -> Result<(), Failure> {
    if json {
        let mut report = serde_json::to_value(RescueReport::default()).map_err(no_json)?;
        report["changed_lbas"] = serde_json::json!([]);
        report["given_up"] = true.into();
        println!("{report}");
    } else {
        println!("nothing is lost: {refusal}");
    }
    Ok(())
}

/// Returns the LBAs where the data disk is not as the cache left it. A rescue is refused if there are any.
fn changed_lbas(opened: &mut OpenedCache) -> Result<Vec<u64>, Failure> {
    if read_superblock(&mut opened.log)?.state == LogState::Detached {
        return Ok(Vec::new());
    }
    let found = check(&mut opened.log, Some(&mut opened.data), &mut |_| {})?;
    Ok(found.fingerprint.map_or_else(Vec::new, |fingerprint| fingerprint.differing_lbas))
}

/// Formats addresses of a log as places on its data disks.
struct DiskPlaces<'a> {
    superblock: LogSuperblock,
    disks: &'a [String],
}

impl DiskPlaces<'_> {
    fn of<'a>(choice: &'a CacheChoice, log: &mut StartedPart) -> Result<DiskPlaces<'a>, Failure> {
        Ok(DiskPlaces { superblock: read_superblock(log)?, disks: choice.disks() })
    }

    /// The name of the disk with a space before it, where there are several; and the place there.
    fn name(&self, at: Lba) -> (String, Lba) {
        let (disk, at) = place_of_address(&self.superblock, at);
        let name = self.disks.get(disk).filter(|_| self.disks.len() > 1);
        (name.map_or(String::new(), |name| format!(" \"{name}\"")), at)
    }
}

fn describe_changed(lbas: &[u64], places: &DiskPlaces<'_>) -> String {
    match lbas {
        [] => String::new(),
        [first, ..] => {
            let changed = HumanBytes(lbas.len() as u64 * LINE_BYTES);
            let (disk, first) = places.name(Lba(*first));
            format!(
                "changed without the cache: {changed} of the data disk{disk}, the first at LBA {}\n",
                first.0
            )
        }
    }
}

/// Records that the data disk is complete, as no data is dirty. The log of a cache that is out of use makes no record.
pub fn note_clean(choice: &CacheChoice, opened: &mut OpenedCache) -> Result<(), Failure> {
    let superblock = read_superblock(&mut opened.log)?;
    for (choice, record) in choice.of_disks().iter().zip(&opened.records) {
        let Some(record) = record else { continue };
        let is_recorded = record.load()?.of(record.extent()).is_some();
        if superblock.state == LogState::Detached || superblock.state == LogState::GivenUp && !is_recorded {
            return Ok(());
        }
        let clean = choice.attachment(record.extent(), &superblock, AttachmentState::Clean);
        // A log that must never be used again keeps that mark.
        record.update(|old| match old {
            Some(old) if old.state == AttachmentState::Abandoned => {
                Attachment { dirty_bytes: Some(0), discarded: false, ..old }
            }
            Some(Attachment { stale_legs, .. }) => Attachment { stale_legs, ..clean },
            None => clean,
        })?;
    }
    Ok(())
}

fn verdict(report: &RescueReport, list: bool) -> Result<(), Failure> {
    if report.refused {
        return Err(Failure::Damage(
            "records are lost, and it is not known what they held: nothing was written. --force writes the rest, \
             which may be older than the last acknowledged writes"
                .to_owned(),
        ));
    }
    let unread = report.unsaved_bytes - report.unwritten_bytes;
    if unread > 0 || report.damages > 0 {
        let next = match (report.marked_clean, unread, list) {
            (true, ..) => "",
            (_, 0, _) => "; \"dcd rescue --force\" writes back what it holds, and marks it clean",
            (.., true) => "; \"dcd rescue\" writes back the rest, and with --force discards this",
            _ => "; --force discards it and marks the log clean",
        };
        let is_unknown = |kind| matches!(kind, DamageKind::Missing | DamageKind::Unreadable);
        let unknown = report.damage.iter().any(|damage| is_unknown(damage.kind));
        return Err(Failure::Damage(match unread {
            0 if unknown => format!("records of the log are lost, and it is not known what they held{next}"),
            0 => format!("the log is damaged, and nothing is known to be lost{next}"),
            _ => format!("{} could not be read back{next}", HumanBytes(unread)),
        }));
    }
    match report.unwritten_bytes {
        0 => Ok(()),
        bytes if report.marked_clean => Err(Failure::Damage(format!("{} were discarded", HumanBytes(bytes)))),
        bytes => Err(unwritten(bytes)),
    }
}

/// Reports that the data disk failed: all dirty data is still in the log.
pub fn unwritten(bytes: u64) -> Failure {
    Failure::Failed(format!(
        "{} could not be written to the data disk, and are still in the log: nothing is lost. Make space on the data disk, or repair \
         it, and do this again",
        HumanBytes(bytes)
    ))
}

fn describe(report: &RescueReport, list: bool, places: &DiskPlaces<'_>) -> String {
    let (data, zeroes) = (HumanBytes(report.dirty.data_bytes), HumanBytes(report.dirty.zeroes_bytes));
    let mut text = format!("dirty: {data} of data, {zeroes} of zeroes and discards\n");
    if !list && !report.refused {
        let (written, zeroed) = (HumanBytes(report.written_bytes), HumanBytes(report.zeroed_bytes));
        text.push_str(&format!("written back: {written} of data, {zeroed} of zeroes\n"));
    }
    for damage in report.damage.iter().take(LISTED_MAX) {
        text.push_str(&format!("damage: {damage}\n"));
    }
    for unsaved in report.unsaved.iter().take(LISTED_MAX) {
        let (disk, start) = places.name(unsaved.extent.start);
        let extent = Extent::new(start, unsaved.extent.sectors);
        text.push_str(&format!("lost:{disk} {extent}: {}\n", unsaved.reason));
    }
    let more = report.unsaved.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        text.push_str(&format!("and {more} more places; --json lists them\n"));
    }
    text
}
