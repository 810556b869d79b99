//! Drives from DiskSim's parameter files: one that was invented, and the two that were measured where they are at hand.

// A test that reads files is its own program.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use dcd_engine::{Lba, Nanos};
use dcd_model::diskspecs::{ImportError, Imported, import};
use dcd_model::{Access, Drive};

use crate::disk_tests::validation::{demerit, trace};

const DISK: &str = include_str!("fixtures/invented.diskspecs");
const MODEL: &str = include_str!("fixtures/invented.model");

fn invented(disk: &str, model: &str) -> Result<Imported, ImportError> {
    let include = |name: &str| match name {
        "invented.model" => Ok(model.to_owned()),
        _ => Err("it is missing".to_owned()),
    };
    import(disk, "invented.diskspecs", &include, None)
}

#[test]
fn every_number_comes_out_as_it_went_in() {
    let imported = invented(DISK, MODEL).expect("it is right");
    let drive = Drive::parse(&imported.text).expect("it is a drive file");
    assert_eq!((drive.name(), drive.heads(), drive.sectors()), ("invented-4", 4, 33_000));
    assert_eq!(drive.revolution(), Nanos::from_millis(10));
    let zones: Vec<_> =
        drive.zones().iter().map(|z| (z.first_cylinder, z.cylinders, z.sectors_per_track)).collect();
    assert_eq!(zones, [(0, 200, 30), (202, 100, 25)]);
    // The first 60 sectors have no address: two tracks.
    let first = drive.locate(Lba(0));
    assert_eq!((first.cylinder, first.head, first.sector), (0, 2, 0));
    // Track 17 of the addresses was slipped over: the 19th with the two that are reserved, on the fifth cylinder, which is
    // even. The heads of the sixth go down.
    let (before, after) = (drive.locate(Lba(17 * 30 - 1)), drive.locate(Lba(17 * 30)));
    assert_eq!((before.cylinder, before.head), (4, 2));
    assert_eq!((after.cylinder, after.head), (5, 3));
    // 8 spare tracks of 800: the second zone follows, and its sector 7 is at the index.
    let second = Lba(200 * 4 * 30 - 8 * 30 - 60);
    assert_eq!(drive.zones()[1].first_lba, second);
    assert!((drive.track_at(second).start_angle - 7.0 / 25.0).abs() < 1e-6);
    let seek = |cylinders| drive.seek(cylinders).as_millis_f64();
    for (cylinders, ms) in [(1, 2.0), (10, 2.9), (25, 5.5), (99, 7.975), (100, 8.0), (309, 10.09)] {
        assert!((seek(cylinders) - ms).abs() < 0.001, "{cylinders}: {}", seek(cylinders));
    }
    assert!((seek(64) - 7.0).abs() < 0.01, "between two points: {}", seek(64));
    assert_eq!(drive.write_settle(), -250_000);
    // Twice (0.1 + 0.4).
    assert_eq!(drive.command_overhead(Access::Read), Nanos::from_millis(1));
    assert_eq!((drive.segments(), drive.write_buffer_sectors()), ((4, 128), 0));
    assert_eq!(drive.bus_time(10), Nanos::from_micros(512));
    for line in [
        "high-water-mark = 0.75",
        "preparation-ms = 0.04",
        "read-disconnect-ms = [0.06, 0.08]",
        "reselect-ms = 0.3",
        "reselect-again-ms = 0.24",
        "write-disconnect-ms = 0.32",
        "read-completion-ms = 0.1",
        "write-completion-ms = 0.12",
        "write-positioning-min-ms = 1.2",
        "command-ms = 1.3",
        "disconnect-ms = 0.09",
        "pause-ms = 0.8",
        "second-disconnect-ms = 0.26",
        "seek-delay-ms = 0.5",
        "separate-write-segments = true",
        "buffered-sectors = 10",
        "resume-on-hit = true",
        "read-ahead-sectors = 64",
        "serpentine = true",
        "gap-cylinders = 2",
        "write-segments = 1",
    ] {
        assert!(imported.text.lines().any(|l| l == line), "{line}:\n{}", imported.text);
    }
}

/// DiskSim has three ways to read ahead, and looks at "over requested" in one of them.
#[test]
fn reading_ahead_is_as_far_as_disksim_does_it() {
    let has = |from: &str, to: &str, line: &str, keeps: bool| {
        assert!(DISK.contains(from), "{from}");
        let text = invented(&DISK.replace(from, to), MODEL).expect("it is right").text;
        assert!(text.lines().any(|l| l == line), "{to}: {text}");
        assert_eq!(text.contains("keep-requested = true"), keeps, "{to}: {text}");
    };
    let most = "Maximum read-ahead (blks) = 64";
    has(most, most, "read-ahead-sectors = 64", false);
    has(most, "Maximum read-ahead (blks) = 0", "read-ahead-sectors = 128", true);
    let kind = "Buffer continuous read = 3";
    has(kind, "Buffer continuous read = 4", "read-ahead-sectors = 60", false);
}

#[test]
fn what_is_not_modelled_is_told_in_the_file_too() {
    let imported = invented(DISK, MODEL).expect("it is right");
    for note in [
        "\"Allow almost read hits\" is 1",
        "\"Low (write) water mark\" is 0.5",
        "\"Warp factor\" = 9: the field is unknown",
    ] {
        assert!(imported.notes.iter().any(|told| told.contains(note)), "{note}: {:?}", imported.notes);
        assert!(imported.text.contains(note), "{note}");
    }
    assert_eq!(imported.notes.len(), 3, "{:?}", imported.notes);
    let tame = DISK
        .replace("Warp factor = 9", "")
        .replace("Low (write) water mark = 0.5", "Low (write) water mark = 0");
    let tame = tame.replace("Allow almost read hits = 1", "Allow almost read hits = 0");
    assert_eq!(invented(&tame, MODEL).expect("it is right").notes, Vec::<String>::new());
}

#[test]
fn what_is_wrong_is_told_with_its_block_and_field() {
    let says = |disk: &str, model: &str| invented(disk, model).expect_err("it is wrong").to_string();
    let disk = |from: &str, to: &str| says(&DISK.replace(from, to), MODEL);
    let model = |from: &str, to: &str| says(DISK, &MODEL.replace(from, to));
    for (said, expected) in [
        (
            disk("Segment size (in blks) = 128,", ""),
            "block disksim_disk INVENTED_4 (line 2), \"Segment size (in blks)\": it is missing",
        ),
        (disk("= 128", "= many"), "\"many\" is no number"),
        (disk("transfer time = 0.0512", "transfer time = 0"), "give the rate with --bus"),
        (disk("reqsize = 1", "reqsize = 0"), "\"High (read) water mark\": it is a part of a segment"),
        (disk("invented.model", "other.model"), "the file \"other.model\" that it names: it is missing"),
        (model("scheme used = 1", "scheme used = 5"), "\"Sparing scheme used\": 5 (spares at the front"),
        (model("dm_layout_g1 {", "dm_layout_g4 {"), "dm_layout_g4 is not read, only dm_layout_g1"),
        (model("hplplus10", "extracted"), "\"Full seek curve\": it is missing"),
        (model("= 202", "= 150"), "the zone from cylinder 150 on begins before the end of another"),
        (model("Number of spares = 8", "Number of spares = 1"), "slipped-tracks"),
        (model("Blocks per track = 25", "Blocks per track = 0"), "the drive that it describes is refused"),
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The files that DiskSim publishes give drives as good as its own model, within a fifth.
#[test]
fn published_drives_answer_as_the_real_ones() {
    let Some(home) = std::env::var_os("DCD_TRACES").map(std::path::PathBuf::from) else {
        return eprintln!("SKIPPED: DCD_TRACES does not name a directory with measured traces");
    };
    // With the rate of the bus, where it is not in these files, and the write cache.
    for (name, disksim, bus, delays) in [
        ("atlas10k", 0.268, None, true),
        ("barracuda", 0.348, None, true),
        ("atlas_III", 0.378, None, true),
        ("hp_c2247a", 0.090, Some(3.024), false),
    ] {
        let include =
            |file: &str| std::fs::read_to_string(home.join("drives").join(file)).map_err(|e| e.to_string());
        let beside = |folder: &str| format!("{folder}{name}.trace.gz");
        let at = ["", "drives/"].map(beside).into_iter().find(|path| home.join(path).exists());
        let (Ok(text), Some(at)) = (include(&format!("{name}.diskspecs")), at) else {
            eprintln!("SKIPPED: DCD_TRACES has no drives/{name}.diskspecs with its trace");
            continue;
        };
        let trace = trace(&at).expect("DCD_TRACES is set");
        let imported = import(&text, name, &include, bus).expect("DiskSim's file is read");
        let drive = Drive::parse(&imported.text).expect("it is a drive file");
        assert!(demerit(&drive, &trace, delays) <= 1.2 * disksim, "{:?}", imported.notes);
    }
}
