//! What each kind of layer reads from its fields, but for arrays (raid.rs).

use super::*;
use crate::testing::{AsStated, LOGICAL, RAID, parse};

const WRITE_CACHE: &str = r#"
export = "seen"
[device.a]
memory = "64MiB"
[device.b]
memory = "32MiB"
[layer.spindle]
kind = "fault"
of = "a"
[layer.cache]
kind = "write-cache"
of = ["spindle", "b"]
write-size = "2MiB"
what = "wow"
piggyback = "free"
unit = "cylinder"
[layer.seen]
kind = "trace"
of = "cache"
keep = 5
"#;

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
        assert!(error.contains("is no field any more: ") && error.contains(now), "{error}");
    }
    let error = parse(&RAID.replace("low-mark = 9", "unit = \"stripe\"")).unwrap_err().to_string();
    assert!(error.contains("\"unit\" is no field any more"), "{error}");
}

#[test]
fn a_modelled_disk_is_told_to_be_in_the_laboratory() {
    let text = "export = \"d\"\n[device.f]\nmemory = \"64MiB\"\n[layer.d]\nkind = \"disk\"\nof = \"f\"\n";
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(":5:8: layer \"d\"") && error.contains("use dcd-lab"), "{error}");
}

#[test]
fn a_write_cache_stands_on_several_disks() {
    let file = parse(WRITE_CACHE).unwrap();
    let LayerKind::WriteCache(cache) = &file.layer("cache").unwrap().kind else { panic!("a write cache") };
    assert_eq!((cache.config.write_bytes, cache.config.depth), (2 << 20, 1));
    assert_eq!(file.layer("seen").unwrap().kind.below_names(), ["cache"]);
    let built = file.build(&mut AsStated).unwrap();
    assert_eq!(built.stack.layer_count(), 3);
    assert_eq!(built.parts.place("seen"), None, "it lies on two devices");
}

#[test]
fn a_read_ahead_stands_between_a_cache_and_its_disk() {
    let text = WRITE_CACHE.replace("of = [\"spindle\", \"b\"]", "of = [\"ahead\", \"b\"]")
        + "[layer.ahead]\nkind = \"read-ahead\"\nof = \"spindle\"\nsize = \"64KiB\"\n";
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

#[test]
fn mistakes_in_a_write_cache_are_named() {
    for (wrong, complaint) in [
        ("block = 1024", "512 or 4096"),
        ("region = \"1000\"", "multiple of the block"),
        ("low-mark = 95", "below \"high-mark\" (95)"),
        ("dynamic-interval = 10", "single = true"),
        ("piggyback = \"some\"", "piggyback"),
        ("when = \"never\"", "when"),
    ] {
        let text = WRITE_CACHE.replace("piggyback = \"free\"", wrong);
        let error = parse(&text).expect_err(wrong).to_string();
        assert!(error.contains(complaint), "{wrong}: {error}");
    }
    let error =
        parse(&WRITE_CACHE.replace("of = [\"spindle\", \"b\"]", "")).expect_err("no disk").to_string();
    assert!(error.contains("\"of\" is missing"), "{error}");
}
