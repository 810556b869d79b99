//! Every pair of a record and a log, and the verdict on it.

use dcd_engine::Lba;

use super::super::StaleLeg;
use super::*;

const EXTENT: Extent = Extent::new(Lba(0), 2048);

pub fn attachment(state: AttachmentState, extent: Extent) -> Attachment {
    Attachment {
        disk: 0,
        disk_uuid: None,
        discarded: false,
        zeroes_bytes: 0,
        cache_uuid: "right".to_owned(),
        log: "/disks/log".into(),
        first_sector: extent.start.0,
        sectors: extent.sectors,
        epoch: 7,
        generation: 0,
        elsewhere: false,
        state,
        dirty_bytes: None,
        stale_legs: Vec::new(),
        log_bytes: 64 << 20,
    }
}

fn recorded(state: AttachmentState) -> Attachments {
    Attachments(vec![attachment(state, EXTENT)])
}

fn present(uuid: &str, epoch: u64) -> LogSeen {
    LogSeen::Present {
        uuid: uuid.to_owned(),
        epoch,
        generation: 9,
        state: LogState::Stopped,
        torn: false,
        legs: LegsSeen::default(),
    }
}

fn start(all: &Attachments, seen: &LogSeen) -> Result<StartGrounds, Refusal> {
    admit_start(all, EXTENT, Path::new("/disks/log"), seen)
}

#[test]
fn the_right_log_starts_clean_or_dirty_also_after_a_crash_before_the_record() {
    for state in [AttachmentState::Clean, AttachmentState::Dirty] {
        for epoch in [7, 8] {
            assert_eq!(start(&recorded(state), &present("right", epoch)), Ok(StartGrounds::Known));
        }
    }
}

#[test]
fn a_disk_from_another_host_starts_unrecorded() {
    assert_eq!(start(&Attachments::default(), &present("right", 1)), Ok(StartGrounds::Unrecorded));
}

#[test]
fn the_wrong_log_is_refused() {
    let refusal = start(&recorded(AttachmentState::Clean), &present("wrong", 9)).unwrap_err();
    assert!(refusal.reason.contains("right") && refusal.reason.contains("wrong"), "{refusal}");
}

#[test]
fn an_old_snapshot_of_the_log_is_refused() {
    let refusal = start(&recorded(AttachmentState::Dirty), &present("right", 6)).unwrap_err();
    assert!(refusal.reason.contains("is an old copy"), "{refusal}");
    let seen = LogSeen::Present {
        uuid: "right".to_owned(),
        epoch: 6,
        generation: 9,
        state: LogState::Stopped,
        torn: true,
        legs: LegsSeen::default(),
    };
    let refusal = start(&recorded(AttachmentState::Dirty), &seen).unwrap_err();
    assert!(
        refusal.action.contains("\"dcd rescue --over-newer-data --force\" writes back what it holds"),
        "{refusal}"
    );
}

#[test]
fn a_log_that_failed_is_refused_for_ever() {
    let refusal = start(&recorded(AttachmentState::Abandoned), &present("right", 99)).unwrap_err();
    assert!(refusal.action.contains("never use this log again"), "{refusal}");
}

#[test]
fn a_detached_log_is_refused() {
    let seen = LogSeen::Present {
        uuid: "right".to_owned(),
        epoch: 7,
        generation: 9,
        state: LogState::Detached,
        torn: false,
        legs: LegsSeen::default(),
    };
    for all in [Attachments::default(), recorded(AttachmentState::Clean)] {
        assert!(start(&all, &seen).unwrap_err().reason.contains("was detached"));
    }
}

#[test]
fn a_log_that_was_given_up_is_refused_whatever_the_record_says() {
    let seen = LogSeen::Present {
        uuid: "right".to_owned(),
        epoch: 7,
        generation: 9,
        state: LogState::GivenUp,
        torn: false,
        legs: LegsSeen::default(),
    };
    for all in [
        Attachments::default(),
        recorded(AttachmentState::Clean),
        recorded(AttachmentState::Dirty),
        recorded(AttachmentState::Abandoned),
    ] {
        assert!(start(&all, &seen).unwrap_err().action.contains("never use this log again"), "{all:?}");
    }
}

#[test]
fn a_missing_log_names_the_bytes_at_risk() {
    let gone = LogSeen::Missing("no such file".to_owned());
    let clean = start(&recorded(AttachmentState::Clean), &gone).unwrap_err();
    assert!(clean.action.contains("--without-cache") && !clean.action.contains("--force"), "{clean}");
    let dirty = start(&recorded(AttachmentState::Dirty), &gone).unwrap_err();
    assert!(dirty.action.contains("--force") && dirty.action.contains("up to 64 MiB"), "{dirty}");
    let mut known = recorded(AttachmentState::Dirty);
    known.0[0].dirty_bytes = Some(3 << 20);
    assert!(start(&known, &gone).unwrap_err().action.contains("3 MiB of acknowledged writes"));
    for (zeroes, said) in [
        (2 << 20, "1 MiB of acknowledged writes and 2 MiB of zeroes and discards would be lost"),
        (3 << 20, "--force\"; 3 MiB of zeroes and discards would be lost"),
    ] {
        known.0[0].zeroes_bytes = zeroes;
        let refusal = start(&known, &gone).unwrap_err();
        assert!(refusal.action.contains(said), "{refusal}");
    }
    assert!(start(&Attachments::default(), &gone).unwrap_err().action.contains("dcd format"));
}

#[test]
fn another_part_of_the_disk_may_overlap_nothing() {
    let all = recorded(AttachmentState::Clean);
    let shifted = Extent::new(Lba(1024), 2048);
    let refusal = admit_start(&all, shifted, Path::new("l"), &present("right", 7)).unwrap_err();
    assert!(refusal.reason.contains("overlaps"), "{refusal}");
    let shrunk = Extent::new(Lba(0), 2040);
    let refusal = admit_start(&all, shrunk, Path::new("l"), &present("right", 7)).unwrap_err();
    assert!(refusal.reason.contains("smaller: it has 1020 KiB"), "{refusal}");
    let beside = Extent::new(Lba(2048), 2048);
    assert_eq!(admit_start(&all, beside, Path::new("l"), &present("right", 7)), Ok(StartGrounds::Unrecorded));
}

#[test]
fn only_a_complete_disk_is_served_without_its_cache() {
    let cases = [
        (AttachmentState::Clean, true),
        (AttachmentState::Dirty, false),
        (AttachmentState::Abandoned, false),
    ];
    for (state, complete) in cases {
        assert_eq!(admit_without_cache(&recorded(state), EXTENT, false).is_ok(), complete, "{state:?}");
        assert!(admit_without_cache(&recorded(state), EXTENT, true).is_ok());
    }
    assert!(admit_without_cache(&Attachments::default(), EXTENT, false).is_ok());
}

#[test]
fn a_second_cache_is_refused_unless_the_first_has_nothing_to_say() {
    for state in [AttachmentState::Clean, AttachmentState::Dirty, AttachmentState::Abandoned] {
        let refusal = admit_attach(&recorded(state), EXTENT, false).unwrap_err();
        assert!(refusal.action.contains("--force"), "{refusal}");
        assert!(admit_attach(&recorded(state), EXTENT, true).is_ok());
    }
    let mut abandoned = recorded(AttachmentState::Abandoned);
    abandoned.0[0].dirty_bytes = Some(0);
    assert!(admit_attach(&abandoned, EXTENT, false).is_ok());
    assert!(admit_attach(&Attachments::default(), EXTENT, false).is_ok());
}

/// Covers every refusal of a disk whose log may have data that the disk lacks.
#[test]
fn every_refusal_names_the_way_out_that_loses_nothing_first() {
    let gone = LogSeen::Missing("no such file".to_owned());
    let seen = |epoch, state, torn| LogSeen::Present {
        uuid: "right".to_owned(),
        epoch,
        generation: 9,
        state,
        torn,
        legs: LegsSeen::default(),
    };
    let log = Path::new("/disks/log");
    let (dirty, failed) = (recorded(AttachmentState::Dirty), recorded(AttachmentState::Abandoned));
    let unknown = Attachments::default();
    let start = |all: &Attachments, seen: &LogSeen| admit_start(all, EXTENT, log, seen).map(|_| ());
    let shrunk = Extent::new(Lba(0), 2040);
    let shifted = Extent::new(Lba(1024), 2048);
    let lost = || Some("0123-...".to_owned());
    let (rescue, replace, original) =
        ("dcd rescue --list", "everything is written back", "use the original log");
    let cases: [(&str, Result<(), Refusal>, &str); 21] = [
        ("failed log", start(&failed, &seen(99, LogState::Active, false)), rescue),
        ("given up", start(&dirty, &seen(7, LogState::GivenUp, false)), rescue),
        ("given up, no record", start(&unknown, &seen(7, LogState::GivenUp, false)), rescue),
        ("missing log", start(&dirty, &gone), "bring the log back"),
        ("missing failed log", start(&failed, &gone), "bring the log back"),
        ("no log, no record", start(&unknown, &gone), "correct its path"),
        ("old copy", start(&dirty, &seen(6, LogState::Stopped, false)), original),
        (
            "superblock lost",
            start(&dirty, &seen(6, LogState::Stopped, true)),
            "copy the data disk; then \"dcd rescue --over-newer-data --force\" writes back",
        ),
        ("another cache", start(&dirty, &present("wrong", 9)), "name the right data disk"),
        (
            "smaller disk",
            admit_start(&dirty, shrunk, log, &present("right", 7)).map(|_| ()),
            "make it as large",
        ),
        (
            "smaller, failed",
            admit_start(&failed, shrunk, log, &present("right", 7)).map(|_| ()),
            "make it as large",
        ),
        (
            "overlap",
            admit_start(&dirty, shifted, log, &present("right", 7)).map(|_| ()),
            "give the stack file",
        ),
        ("without cache", admit_without_cache(&dirty, EXTENT, false), "serve it with the log"),
        ("without failed log", admit_without_cache(&failed, EXTENT, false), rescue),
        (
            "no record of an array",
            admit_without_record(lost(), Teller::Members, false, "Or add --force"),
            "serve it with that cache",
        ),
        ("array tells of none", admit_told(&[], Teller::Mark, log, "right"), rescue),
        (
            "array tells of another",
            admit_told(&[1], Teller::Members, log, "right"),
            "name the right data disk",
        ),
        ("retired", admit_not_retired(true, log, "right"), rescue),
        ("plain", admit_plain(&dirty, EXTENT), "serve the stack that has the cache"),
        ("attach", admit_attach(&dirty, EXTENT, false), replace),
        ("attach after a failure", admit_attach(&failed, EXTENT, false), rescue),
    ];
    let at = |text: &str, part: &str| text.find(part).unwrap_or(usize::MAX);
    for (case, verdict, way_out) in cases {
        let action = verdict.expect_err(case).action;
        let first = at(&action, way_out);
        assert!(first < usize::MAX, "{case}: {action}");
        for losing in
            ["--without-cache", "add --force", "\"dcd format", "never use this log", "would be lost"]
        {
            assert!(first < at(&action, losing), "{case}: {losing} comes first: {action}");
        }
    }
    let overwrite = admit_overwrite(&dirty, EXTENT, "x", false).unwrap_err().action;
    assert!(at(&overwrite, "choose another device") < at(&overwrite, "--force"), "{overwrite}");
}

#[test]
fn only_legs_that_missed_something_are_refused_by_that_reason_until_they_were_filled() {
    let stale = |ids: &[u64]| ids.iter().map(|id| StaleLeg { id: *id, generation: 9 }).collect::<Vec<_>>();
    let seen = |whole: &[u64], generation| LogSeen::Present {
        uuid: "right".to_owned(),
        epoch: 7,
        generation: 9,
        state: LogState::Stopped,
        torn: false,
        legs: LegsSeen { whole: whole.to_vec(), generation },
    };
    for (known, whole, generation, is_refused) in [
        (&[2][..], &[2][..], 9, true),
        (&[2], &[2], 4, true),
        // The leg was filled, and its label says so.
        (&[2], &[2], 10, false),
        // Another leg is present and has all writes.
        (&[2], &[1, 2], 9, false),
        (&[2, 3], &[2, 3], 9, true),
        (&[], &[2], 9, false),
        // A log on one device.
        (&[2], &[], 0, false),
    ] {
        let attachment =
            Attachment { stale_legs: stale(known), ..attachment(AttachmentState::Dirty, EXTENT) };
        let judged = start(&Attachments(vec![attachment]), &seen(whole, generation));
        let reason = judged.err().map(|refusal| refusal.reason);
        let is_named = reason.as_ref().is_some_and(|reason| reason.contains("lacks acknowledged writes"));
        assert_eq!(
            (reason.is_some(), is_named),
            (is_refused, is_refused),
            "{known:?} {whole:?} {generation}"
        );
    }
}
