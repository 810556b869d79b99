//! The kind "raid".

use std::path::Path;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::raid::contiguity::{Contiguity, Strides};
use dcd_engine::raid::{CacheUnit, Layout, RaidConfig};

use crate::error::StackFileError;
use crate::fields::{Fields, Located};
use crate::kinds::{LayerKind, RaidSpec};

/// In the place of a member that is not there.
const MISSING: &str = "missing";

/// In the place of a journal, where there shall be none.
const NO_JOURNAL: &str = "none";

/// What nothing forces home may stay until it is most of the RAM (Baek and Park, section IV).
const NON_VOLATILE_HIGH_MARK: u8 = 95;

/// Where the strides that are filled come from, when the file does not say which. `Measured` is the default.
#[derive(Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fill {
    /// The stride benchmark, whose result is in the superblocks.
    Measured,
    None,
}

pub(crate) fn read(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    let members = fields.texts("of")?;
    let present: Vec<bool> = members.iter().map(|member| member.text != MISSING).collect();
    let of: Vec<Located> = members.into_iter().filter(|member| member.text != MISSING).collect();
    let spares = fields.texts("spares")?;
    let journal = fields.text("journal")?;
    let hole_accepted = journal.as_ref().is_some_and(|journal| journal.text == NO_JOURNAL);
    let journal = journal.filter(|_| !hole_accepted);
    let d = RaidConfig::default();
    let unit = fields.word("unit")?.unwrap_or(d.unit);
    let Filling { contiguity, calibrated } = filling(fields)?;
    let non_volatile = fields.flag("non-volatile")?.unwrap_or(d.non_volatile);
    let high_mark = if non_volatile { NON_VOLATILE_HIGH_MARK } else { d.high_mark };
    let high_mark = fields.number_in("high-mark", 1..=100)?.map_or(high_mark, |n| n as u8);
    let low_mark = high_mark.saturating_sub(10).max(high_mark / 2);
    let config = RaidConfig {
        level: fields.word("level")?.unwrap_or(d.level),
        strip_sectors: fields.size("strip")?.map_or(d.strip_sectors, |bytes| bytes.div_ceil(SECTOR_BYTES)),
        present,
        journal: journal.is_some(),
        journal_implied: false,
        journal_given_up: hole_accepted,
        journal_required: fields.flag("journal-required")?.unwrap_or(d.journal_required),
        spares: vec![true; spares.len()],
        region_bytes: d.region_bytes,
        pass_rate: fields.size("pass-rate")?.unwrap_or(d.pass_rate),
        cache_bytes: fields.size("cache-size")?.unwrap_or(d.cache_bytes),
        unit,
        memory: fields.word("memory")?.unwrap_or(d.memory),
        contiguity,
        calibrated,
        non_volatile,
        when: fields.word("when")?.unwrap_or(d.when),
        what: fields.word("what")?.unwrap_or(d.what),
        high_mark,
        low_mark: fields.number_in("low-mark", 0..=99)?.map_or(low_mark, |n| n as u8),
        destage_depth: fields.number_in("destage-depth", 1..=1024)?.map_or(d.destage_depth, |n| n as u32),
        flush_depth: fields.number_in("flush-depth", 1..=1024)?.map_or(d.flush_depth, |n| n as u32),
        prefetch_after: d.prefetch_after,
        idle_empty: fields.duration("idle-empty")?.unwrap_or(d.idle_empty),
        idle_full: fields.duration("idle-full")?.unwrap_or(d.idle_full),
        pass_bytes: fields.size("pass-memory")?.unwrap_or(d.pass_bytes),
        // Nothing that a file should say for every start: see `StackFile::accept_damage`.
        accept_damage: false,
        canary: None,
    };
    for (field, wrong) in [("of", members_complaint(&config)), ("strip", config.complaint())] {
        if let Some(complaint) = wrong {
            let span = fields.value_span(field);
            return Err(fields.error(span, format!("\"{field}\": {complaint}")));
        }
    }
    if config.low_mark >= config.high_mark {
        let span = fields.value_span("low-mark");
        let advice = format!("\"low-mark\": it must be below \"high-mark\" ({})", config.high_mark);
        return Err(fields.error(span, advice));
    }
    if config.pass_rate == 0 {
        let span = fields.value_span("pass-rate");
        return Err(
            fields.error(span, "\"pass-rate\": with 0 a rebuild would never end; name at least \"1KiB\"")
        );
    }
    if let Some(spare) = spares.iter().find(|spare| spare.text == MISSING) {
        return Err(fields.error(spare.span.clone(), "\"spares\": only members may be missing; leave it out"));
    }
    if config.journal_required && journal.is_none() {
        let span = fields.value_span("journal-required");
        return Err(fields.error(span, "\"journal-required\": it has no journal; name one with \"journal\""));
    }
    if config.contiguity.is_some() && config.unit == CacheUnit::ParityBlockGroup {
        let span = fields.value_span("unit");
        return Err(fields.error(
            span,
            "\"unit\": strides are filled within a stripe; leave out fill-reads and fill-writes",
        ));
    }
    Ok(LayerKind::Raid(RaidSpec { of, spares, journal, hole_accepted, config }))
}

/// What is wrong with the members alone.
fn members_complaint(config: &RaidConfig) -> Option<String> {
    RaidConfig { strip_sectors: RaidConfig::default().strip_sectors, ..config.clone() }.complaint()
}

/// The contiguity transform, as an array or a log cache is told to do it.
pub(crate) struct Filling {
    /// Smax for reads and writes, where either is given.
    pub contiguity: Option<Contiguity>,
    /// Where neither is: what the stride benchmark has found.
    pub calibrated: bool,
}

pub(crate) fn filling(fields: &mut Fields<'_>) -> Result<Filling, StackFileError> {
    let fill: Option<Fill> = fields.word("fill")?;
    let read = fields.number_in("fill-reads", 0..=4096)?;
    let write = fields.number_in("fill-writes", 0..=4096)?;
    let calibrated = fill != Some(Fill::None);
    if read.is_none() && write.is_none() {
        return Ok(Filling { contiguity: None, calibrated });
    }
    if fill.is_some() {
        let span = fields.value_span("fill");
        return Err(
            fields.error(span, "\"fill\": leave it out where fill-reads or fill-writes say what is filled")
        );
    }
    let strides = |max: Option<u64>| Strides::up_to(max.unwrap_or(0));
    let contiguity = Some(Contiguity { read: strides(read), write: strides(write) });
    Ok(Filling { contiguity, calibrated })
}

/// The size of an array over members of these sizes.
pub(crate) fn sectors(config: &RaidConfig, members: impl Iterator<Item = u64>) -> u64 {
    let least = members.min().unwrap_or(0).saturating_sub(dcd_engine::raid::DATA_SECTOR);
    let shape = config.level.shape(config.present.len()).expect("it was looked at when it was read");
    Layout::new(shape, config.strip_sectors, least, config.unit).sectors()
}
