//! Tests how each kind of layer reads its fields, except arrays (raid.rs).

use super::*;
use crate::testing::{LOGICAL, RAID, parse};

#[test]
fn a_log_cache_destages_as_the_file_says() {
    let more = "bypass = 0\nidle-empty = \"2s\"";
    let file = parse(&LOGICAL.replace("bypass = 0", more)).unwrap();
    let LayerKind::LogCache { config, .. } = &file.layer("cache").unwrap().kind else {
        panic!("a log cache")
    };
    assert_eq!((config.idle_empty, config.idle_full), (Nanos::from_secs(2), Nanos::from_millis(2)));
    assert!(config.follow_head, "as far as format has measured the log's disk");
    assert!(config.calibrated, "what is stored in the log counts");
}

#[test]
fn fields_of_earlier_versions_are_refused_with_what_to_do_now() {
    for (field, now) in [
        ("log-revolution = \"8ms\"", "\"dcd format\" measures"),
        ("log-track = \"256KiB\"", "\"dcd format\" measures"),
        ("spindle = \"8.33ms 256KiB\"", "\"dcd format\" measures"),
        ("fill-writes = 12", "dcd calibrate --store"),
        ("idle-full = \"1ms\"", "a thousandth of \"idle-empty\""),
        ("segment-buffers = 8", "leave it out"),
    ] {
        let error = parse(&LOGICAL.replace("bypass = 0", field)).expect_err(field).to_string();
        assert!(error.contains("is no longer a field: ") && error.contains(now), "{error}");
    }
    let error = parse(&RAID.replace("low-mark = 9", "unit = \"stripe\"")).unwrap_err().to_string();
    assert!(error.contains("\"unit\" is no longer a field"), "{error}");
}

#[test]
fn modelled_disks_and_write_caches_in_ram_are_told_to_be_in_the_laboratory() {
    for kind in ["disk", "write-cache"] {
        let text = format!(
            "export = \"d\"\n[device.f]\nmemory = \"64MiB\"\n[layer.d]\nkind = \"{kind}\"\nof = \"f\"\n"
        );
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(":5:8: layer \"d\"") && error.contains("use dcd-lab"), "{error}");
    }
}

#[test]
fn a_read_ahead_stands_between_a_cache_and_its_disk() {
    let text = LOGICAL.replace("data = \"data\"", "data = \"ahead\"")
        + "[layer.ahead]\nkind = \"read-ahead\"\nof = \"data\"\nsize = \"64KiB\"\n";
    let file = parse(&text).unwrap();
    let LayerKind::ReadAhead { config, .. } = &file.layer("ahead").unwrap().kind else {
        panic!("read-ahead")
    };
    assert_eq!((config.streams, config.bytes), (32, 64 << 10));
    for wrong in ["0", "20KiB", "1GiB"] {
        let error = parse(&text.replace("64KiB", wrong)).unwrap_err().to_string();
        assert!(error.contains("\"size\" must be a multiple of 16 KiB, up to 16 MiB"), "{error}");
    }
}
