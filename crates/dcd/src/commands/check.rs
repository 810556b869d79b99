//! `dcd check`: verifies a log, and the data disk's fingerprint where there is a stack file.

use dcd_engine::log_cache::offline::{CheckReport, check};
use dcd_stack::HumanBytes;

use crate::cli::{Check, LogArgs};
use crate::failure::Failure;
use crate::output::print_json;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::judge_cache;
use crate::session::machine::this;
use crate::session::open::{OpenedLog, is_log, tell_missing_legs};
use crate::session::record::{LogSeen, Refusal};
use crate::session::survey::inspect;

pub fn run(args: &Check) -> Result<(), Failure> {
    let refusal = start_refused(&args.log)?;
    let mut log = OpenedLog::open(&args.log)?;
    let data = log.data.as_mut().map(|data| data as &mut dyn dcd_engine::BlockDevice);
    let checked = check(&mut log.log, data, &mut |_| {}).map_err(Failure::from);
    let report = match (checked, &refusal) {
        // A start gives the same reason, and knows more.
        (Err(Failure::Refused(_)), Some(refusal)) => return Err(refusal.clone().into()),
        (checked, _) => checked?,
    };
    if args.json {
        print_json(&report)?;
    } else {
        print!("{}", describe(&report));
        if let Some(refusal) = refusal {
            println!("note: this log is not served: {}", refusal.reason);
        }
    }
    if report.is_ok() {
        return Ok(());
    }
    let found = match report.problems.len() {
        1 => "1 problem".to_owned(),
        many => format!("{many} problems"),
    };
    Err(Failure::Damage(format!("{found} found; \"dcd rescue --list\" says what can be saved")))
}

/// Returns the refusal of a start, if any. Even an intact log is refused if the data disk's record names another. Without a log, there is
/// nothing to check, and that refusal is an error.
fn start_refused(args: &LogArgs) -> Result<Option<Refusal>, Failure> {
    if is_log(&args.file)? {
        return Ok(None);
    }
    let choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    if choice.stands_on_a_cache() {
        return Ok(None);
    }
    let choice = choice.holding(Purpose::Look);
    tell_missing_legs(&choice)?;
    for choice in choice.of_disks() {
        let (cache, _) = inspect(&choice)?;
        let is_missing = matches!(cache.log, LogSeen::Missing(_));
        match judge_cache(&choice, &cache, this(), &choice.site.asked).err() {
            Some(refusal) if is_missing => return Err(refusal.into()),
            Some(refusal) => return Ok(Some(refusal)),
            None => {}
        }
    }
    Ok(None)
}

fn describe(report: &CheckReport) -> String {
    let mut text = format!(
        "cache {}, {}, activation {}, {} segments of {}\n",
        report.cache_uuid,
        report.state,
        report.epoch,
        report.segments,
        HumanBytes(u64::from(report.segment_bytes))
    );
    if let Some(machine) = &report.machine {
        let whose = if *machine == format!("{:016x}", this()) { "this one" } else { "not this one" };
        text.push_str(&format!("served last by machine {machine}, {whose}\n"));
    }
    for (index, copy) in report.copies.iter().enumerate() {
        match (&copy.generation, &copy.error) {
            (Some(generation), _) => text.push_str(&format!("superblock {index}: generation {generation}\n")),
            (None, error) => {
                text.push_str(&format!(
                    "superblock {index}: {}\n",
                    error.as_deref().unwrap_or("not readable")
                ));
            }
        }
    }
    if let Some(found) = &report.calibration {
        let (reads, writes) = (found.read.max, found.write.max);
        text.push_str(&format!("stride benchmark: Smax {reads} for reads, {writes} for writes\n"));
    }
    text.push_str(&format!(
        "{} records, {} of them written back; {} of data and {} of zeroes are dirty\n",
        report.records,
        report.records_home,
        HumanBytes(report.dirty.data_bytes),
        HumanBytes(report.dirty.zeroes_bytes)
    ));
    for problem in &report.problems {
        text.push_str(&format!("problem: {problem}\n"));
    }
    if report.is_ok() {
        text.push_str("no problems\n");
    }
    text
}
