//! The kind "raid".

use std::path::Path;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::raid::{Layout, RaidConfig, ShapeError};

use crate::error::StackFileError;
use crate::fields::{Fields, Located};
use crate::kinds::{LayerKind, RaidSpec};

/// Word in the list of members for one that is missing.
const MISSING: &str = "missing";

/// Word for an array without a journal.
const NO_JOURNAL: &str = "none";

/// Non-volatile RAM may be dirty for most of its size before destaging must begin (Baek and Park, section IV).
const NON_VOLATILE_HIGH_MARK: u8 = 95;

/// Fields of earlier versions.
const REMOVED: [(&str, &str); 9] = [
    ("fill", FILL),
    ("fill-reads", FILL),
    ("fill-writes", FILL),
    ("unit", "leave it out; stripes are locked and destaged as a whole"),
    ("memory", "leave it out; the cache takes its RAM by rows of blocks"),
    ("pass-memory", "leave it out; passes take 32 MiB of RAM"),
    ("flush-depth", "leave it out; a flush destages up to 128 stripes at a time"),
    (
        "idle-empty",
        "leave it out; destaging begins when the members have been idle for 1 s, or less as the cache fills",
    ),
    (
        "idle-full",
        "leave it out; destaging begins when the members have been idle for 1 s, or less as the cache fills",
    ),
];

/// Advice for removed fields that said which gaps are filled.
pub(crate) const FILL: &str =
    "leave it out; \"dcd calibrate --store\" measures which gaps it pays to fill, and stores that";

pub(crate) fn read(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    fields.refuse_removed(&REMOVED)?;
    let members = fields.texts("of")?;
    let present: Vec<bool> = members.iter().map(|member| member.text != MISSING).collect();
    let of: Vec<Located> = members.into_iter().filter(|member| member.text != MISSING).collect();
    let spares = fields.texts("spares")?;
    let journal = fields.text("journal")?;
    let hole_accepted = journal.as_ref().is_some_and(|journal| journal.text == NO_JOURNAL);
    let journal = journal.filter(|_| !hole_accepted);
    let d = RaidConfig::default();
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
        pass_rate: fields.rate("pass-rate")?.unwrap_or(d.pass_rate),
        cache_bytes: fields.size("cache-size")?.unwrap_or(d.cache_bytes),
        non_volatile,
        when: fields.word("when")?.unwrap_or(d.when),
        what: fields.word("what")?.unwrap_or(d.what),
        high_mark,
        low_mark: fields.number_in("low-mark", 0..=99)?.map_or(low_mark, |n| n as u8),
        destage_depth: fields.number_in("destage-depth", 1..=1024)?.map_or(d.destage_depth, |n| n as u32),
        ..d
    };
    for (field, wrong) in [("of", check_members(&config)), ("strip", config.check_shape())] {
        if let Err(complaint) = wrong {
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
            fields.error(span, "\"pass-rate\": with 0 a rebuild would never end; name at least \"64KiB\"")
        );
    }
    if let Some(spare) = spares.iter().find(|spare| spare.text == MISSING) {
        return Err(fields.error(spare.span.clone(), "\"spares\": only members may be missing; leave it out"));
    }
    if config.journal_required && journal.is_none() {
        let span = fields.value_span("journal-required");
        return Err(fields.error(span, "\"journal-required\": it has no journal; name one with \"journal\""));
    }
    Ok(LayerKind::Raid(RaidSpec { of, spares, journal, hole_accepted, config }))
}

/// Checks the number of members against the level.
fn check_members(config: &RaidConfig) -> Result<(), ShapeError> {
    RaidConfig { strip_sectors: RaidConfig::default().strip_sectors, ..config.clone() }.check_shape()
}

/// The size of an array over members of these sizes.
pub(crate) fn sectors(config: &RaidConfig, members: impl Iterator<Item = u64>) -> u64 {
    let least = members.min().unwrap_or(0).saturating_sub(dcd_engine::raid::DATA_SECTOR);
    let shape = config.level.shape(config.present.len()).expect("it was looked at when it was read");
    Layout::new(shape, config.strip_sectors, least, config.unit).sectors()
}

#[cfg(test)]
mod tests {
    use crate::testing::{AsStated, RAID, parse};

    #[test]
    fn an_array_stands_on_its_members_and_a_journal() {
        let file = parse(RAID).unwrap();
        let (layer, raid) = file.arrays().next().expect("an array");
        assert_eq!(layer.kind.below_names(), ["a", "b", "d", "journal"]);
        assert_eq!(raid.config.present, [true, true, false, true]);
        assert_eq!((raid.config.strip_sectors, raid.config.journal), (128, true));
        assert_eq!(
            (raid.config.spares.len(), raid.config.calibrated, raid.config.pass_rate),
            (0, true, 10 << 20)
        );
        assert_eq!((raid.config.contiguity.as_ref(), raid.config.low_mark), (None, 9));
        let built = file.build(&mut AsStated).unwrap();
        assert_eq!(built.stack.layer_count(), 4);
        assert!(built.parts.place("array").is_none(), "it lies on several devices");
    }

    #[test]
    fn spares_come_behind_the_members_and_before_the_journal() {
        let text = RAID
            .replacen("\"missing\", \"d\"]", "\"d\"]\nspares = [\"s\"]\npass-rate = \"1MiB\"", 1)
            .replacen("level = \"raid6\"", "level = \"raid5\"\njournal-required = true", 1)
            .replacen("low-mark = 9", "[device.s]\nmemory = \"2MiB\"", 1);
        let file = parse(&text).unwrap();
        let (layer, raid) = file.arrays().next().expect("an array");
        assert_eq!(layer.kind.below_names(), ["a", "b", "d", "s", "journal"]);
        let config = &raid.config;
        assert_eq!((config.present.as_slice(), config.spares.len()), ([true; 3].as_slice(), 1));
        assert_eq!((config.pass_rate, config.calibrated, config.journal_required), (1 << 20, true, true));
    }

    #[test]
    fn mistakes_in_an_array_are_named() {
        for (old, new, complaint) in [
            ("low-mark = 9", "pass-rate = \"0\"", "would never end"),
            ("low-mark = 9", "spares = [\"missing\"]", "only members may be missing"),
            ("journal = \"journal\"", "journal-required = true", "it has no journal"),
            ("\"b\", \"missing\", ", "", "from 4 to 64 make an array"),
            ("strip = \"64KiB\"", "strip = \"1000\"", "\"strip\": a strip is a multiple of 4KiB"),
            ("level = \"raid6\"", "level = \"raid4\"", "level"),
            ("low-mark = 9", "low-mark = 10", "below \"high-mark\" (10)"),
            ("of = [\"a\"", "of = [\"x\"", "\"x\""),
        ] {
            assert!(RAID.contains(old), "the test replaces something");
            let error = parse(&RAID.replacen(old, new, 1)).expect_err(new).to_string();
            assert!(error.contains(complaint), "{new}: {error}");
        }
    }
}
