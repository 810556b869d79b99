//! What a stack file may say, and how each mistake is named.

use std::path::Path;

use dcd_engine::log_cache::Promise;
use dcd_engine::{DeviceIndex, Extent, Geometry, Lba, Nanos};

use super::*;
use crate::{DeviceOpener, LayerKind};

const LOGICAL: &str = r#"
export = "cache"

[serve]
nbd = "unix:disk.sock"
control = "/run/disk.control"

[device.file]
path = "disk.img"
size = "1GiB"

[layer.log]
kind = "slice"
of = "file"
size = "64MiB"

[layer.data]
kind = "slice"
of = "file"
first = "64MiB"

[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
promise = "ordered"
delay-max = "250ms"
bypass = 0
"#;

fn parse(text: &str) -> Result<StackFile, StackFileError> {
    StackFile::parse(text, Path::new("/stacks/disk.toml"))
}

#[test]
fn a_logical_dcd_is_read_whole() {
    let file = parse(LOGICAL).unwrap();
    assert_eq!(file.export, "cache");
    assert_eq!(file.serve.nbd, [Address::Unix("/stacks/disk.sock".into())]);
    assert_eq!(file.serve.control.as_deref(), Some(Path::new("/run/disk.control")));
    let source = DeviceSource::Path { path: "/stacks/disk.img".into(), size: Some(1 << 30) };
    assert_eq!(file.device("file").unwrap().source, source);
    let names: Vec<&str> = file.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["log", "data", "cache"], "the bottom comes first");
    let LayerKind::LogCache { config, .. } = &file.layer("cache").unwrap().kind else {
        panic!("a log cache")
    };
    assert_eq!(config.promise, Promise::Ordered);
    assert_eq!(config.delay_max, Nanos::from_millis(250));
    assert_eq!(config.bypass_bytes, 0);
    assert_eq!(config.contiguity, None);
    assert_eq!(config.high_mark, 75, "what is not said is the default");
    assert_eq!(file.bottom_device("data").unwrap().name, "file");
    assert!(file.bottom_device("cache").is_none(), "a cache stands on two things");
}

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
fn layers_come_bottom_first_in_whatever_order_they_are_written() {
    let (head, tail) = LOGICAL.split_once("[layer.log]").unwrap();
    let (slices, cache) = tail.split_once("[layer.cache]").unwrap();
    let text = format!("{head}[layer.cache]{cache}\n[layer.log]{slices}");
    let names: Vec<String> = parse(&text).unwrap().layers.into_iter().map(|layer| layer.name).collect();
    assert_eq!(names, ["log", "data", "cache"]);
}

#[test]
fn every_mistake_is_named_with_its_place_and_a_way_out() {
    // What is replaced, by what, the text that the error points at, and a part of the advice.
    let cases = [
        ("promise = \"ordered\"", "promis = \"ordered\"", "promis ", "did you mean \"promise\"?"),
        ("promise = \"ordered\"", "promise = \"sometimes\"", "\"sometimes", "`ordered`"),
        ("delay-max = \"250ms\"", "delay-max = \"250\"", "\"250\"", "unit is missing"),
        ("delay-max = \"250ms\"", "delay-max = 250", "250", "like \"500ms\""),
        ("size = \"64MiB\"", "size = \"64 parsecs\"", "\"64 parsecs", "like \"64MiB\""),
        ("size = \"64MiB\"", "size = \"1000\"", "\"1000", "multiple of 4096"),
        ("size = \"64MiB\"", "size = 0", "0\n\n[layer.data]", "leave it out"),
        ("size = \"64MiB\"", "size = \"65MiB\"", "data]", "overlaps layer \"log\""),
        ("size = \"64MiB\"", "", "data]", "overlaps layer \"log\""),
        ("kind = \"log-cache\"", "kind = \"logcache\"", "\"logcache", "did you mean \"log-cache\"?"),
        ("data = \"data\"", "data = \"date\"", "\"date", "did you mean \"data\"?"),
        ("data = \"data\"", "data = \"cache\"", "\"cache\"\npromise", "in a circle: cache on cache"),
        ("data = \"data\"", "data = \"log\"", "data]", "nothing stands on it"),
        ("data = \"data\"", "", "cache]", "\"data\" is missing"),
        ("data = \"data\"", "data = 7", "7", "text in quotes"),
        ("data = \"data\"", "data = \"data\"\nhigh-mark = 101", "101", "from 1 to 100"),
        ("data = \"data\"", "data = \"data\"\nlow-mark = 90", "90", "below \"high-mark\""),
        ("data = \"data\"", "data = \"data\"\nordered-destage = \"yes\"", "\"yes", "true or false"),
        ("export = \"cache\"", "export = \"cash\"", "\"cash", "did you mean \"cache\"?"),
        ("export = \"cache\"", "", "\n", "\"export\" is missing"),
        ("[device.file]", "[device.cache]", "cache]\nkind", "the name \"cache\" is taken"),
        ("[device.file]", "[device.spare]\nmemory = \"1MiB\"\n[device.file]", "spare", "no layer uses it"),
        ("path = \"disk.img\"", "", "file]", "says not where it is"),
        ("path = \"disk.img\"", "path = \"a\"\nmemory = \"1MiB\"", "file]", "keep one"),
        ("size = \"1GiB\"", "size = \"1000\"", "\"1000", "multiple of 4096"),
        ("nbd = \"unix:disk.sock\"", "nbd = \"disk.sock\"", "\"disk.sock", "unix: or tcp:"),
        ("nbd = \"unix:disk.sock\"", "nbd = \"unix:\"", "\"unix:\"", "no path behind unix:"),
        ("nbd = \"unix:disk.sock\"", "nbd = \"tcp:0.0.0.0:10809\"", "\"tcp", "nbd-allow-remote"),
        (
            "nbd = \"unix:disk.sock\"",
            "metrics = \"tcp:0.0.0.0:9850\"",
            "\"tcp",
            "use tcp:PORT, which is the loopback",
        ),
        ("nbd = \"unix:disk.sock\"", "metrics = \"9850\"", "\"9850", "must start with unix: or tcp:"),
        ("nbd = \"unix:disk.sock\"", "nbd = [\"unix:a\", 7]", "7", "text in quotes"),
        ("[serve]", "[serves]", "serves", "did you mean \"serve\"?"),
        ("export = \"cache\"", "export = \"cache", "\n\n[serve]", "string"),
    ];
    for (old, new, place, advice) in cases {
        assert!(LOGICAL.contains(old), "the test replaces something");
        let text = LOGICAL.replacen(old, new, 1);
        let before = &text[..text.find(place).expect(place)];
        let (line, column) =
            (before.matches('\n').count() + 1, before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1);
        let error = parse(&text).expect_err(new).to_string();
        assert!(
            error.starts_with(&format!("/stacks/disk.toml:{line}:{column}: ")),
            "{new}: {line}:{column}: {error}"
        );
        assert!(error.contains(advice), "{new}: {error}");
    }
}

#[test]
fn two_users_of_one_thing_need_slices() {
    let whole = "export = \"b\"\n[device.d]\nmemory = \"1MiB\"\n[device.e]\nmemory = \"1MiB\"\n\
                 [layer.a]\nkind = \"log-cache\"\nlog = \"d\"\ndata = \"e\"\n\
                 [layer.b]\nkind = \"log-cache\"\nlog = \"d\"\ndata = \"a\"\n";
    let error = parse(whole).unwrap_err().to_string();
    assert!(error.contains("all of \"d\"") && error.contains("its own slice"), "{error}");
    let same = whole.replace("log = \"d\"\ndata = \"a\"", "log = \"f\"\ndata = \"a\"")
        + "[device.f]\npath = \"x\"\n[device.g]\npath = \"./x\"\n";
    let same = same.replace("data = \"e\"", "data = \"g\"").replace("[device.e]\nmemory = \"1MiB\"\n", "");
    let error = parse(&same).unwrap_err().to_string();
    assert!(error.contains("is the same file as device \"f\""), "{error}");
}

#[test]
fn tcp_is_loopback_unless_spelled_out() {
    let file = parse(&LOGICAL.replace("unix:disk.sock", "tcp:10809")).unwrap();
    assert_eq!(file.serve.nbd[0].to_string(), "tcp:127.0.0.1:10809");
    let metrics = |address: &str| {
        let text = LOGICAL.replace("nbd = \"unix:disk.sock\"", &format!("metrics = \"{address}\""));
        parse(&text).unwrap().serve.metrics.unwrap().to_string()
    };
    assert_eq!(metrics("tcp:9850"), "tcp:127.0.0.1:9850");
    assert_eq!(metrics("tcp:[::1]:9850"), "tcp:[::1]:9850");
    assert_eq!(metrics("unix:m.sock"), "unix:/stacks/m.sock");
    let remote = LOGICAL.replace("nbd = \"unix:disk.sock\"", "nbd = \"tcp:[::]:1\"\nnbd-allow-remote = true");
    assert_eq!(parse(&remote).unwrap().serve.nbd[0].to_string(), "tcp:[::]:1");
}

/// Devices of one size, and the order in which they were opened.
struct Sizes(u64, Vec<String>);

impl DeviceOpener for Sizes {
    fn open(&mut self, index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, crate::OpenError> {
        assert_eq!(index.0, self.1.len());
        self.1.push(device.name.clone());
        if self.0 == 0 {
            return Err("no such file: create it, or add a size".into());
        }
        Ok(Geometry::plain(self.0))
    }
}

#[test]
fn slices_are_built_within_their_device() {
    let text =
        LOGICAL.split("[layer.data]").next().unwrap().replace("export = \"cache\"", "export = \"log\"");
    let file = parse(&text).unwrap();
    let mut opener = Sizes(1 << 20, Vec::new());
    let built = file.build(&mut opener).unwrap();
    assert_eq!(opener.1, ["file"]);
    assert_eq!(built.parts.target("log"), Some(built.stack.root()));
    assert_eq!(built.parts.place("log"), Some((DeviceIndex(0), Extent::new(Lba(0), 64 << 11))));
    assert!(built.parts.target("nothing").is_none());
    let error = file.build(&mut Sizes(8, Vec::new())).err().unwrap().to_string();
    assert!(error.contains("make it smaller"), "{error}");
    let error = file.build(&mut Sizes(0, Vec::new())).err().unwrap().to_string();
    assert!(error.starts_with("/stacks/disk.toml:8:9: device \"file\": no such file"), "{error}");
}

#[test]
fn without_its_cache_a_stack_serves_the_data_disk() {
    let file = parse(LOGICAL).unwrap().without_cache("cache");
    assert_eq!(file.export, "data");
    assert_eq!(file.log_caches().count(), 0);
    let mut opener = Sizes(1 << 20, Vec::new());
    let built = file.build(&mut opener).unwrap();
    assert_eq!(built.parts.layers.keys().collect::<Vec<_>>(), ["data"], "the log is not even opened");
    let rest = Extent::new(Lba(64 << 11), (1 << 20) - (64 << 11));
    assert_eq!(built.parts.place("data"), Some((DeviceIndex(0), rest)));
}

#[test]
fn a_modelled_disk_is_told_to_be_in_the_laboratory() {
    let text = "export = \"d\"\n[device.f]\nmemory = \"64MiB\"\n[layer.d]\nkind = \"disk\"\nof = \"f\"\n";
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(":5:8: layer \"d\"") && error.contains("use dcd-lab"), "{error}");
}

/// The fields that a table may have, from the error about one that it may not have.
fn known_fields(text: &str) -> Vec<String> {
    let error = parse(text).expect_err(text).to_string();
    let known = error.split_once("known here: ").expect(&error).1;
    known.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_reference_has_every_field_and_no_other() {
    let layer = |kind: &str| {
        format!(
            "export = \"x\"\n[device.d]\nmemory = \"1MiB\"\n[layer.x]\nkind = \"{kind}\"\nof = \"d\"\nlog = \"d\"\n\
             data = \"d\"\nunheard = 1\n"
        )
    };
    // Every kind refuses the fields of the others, so only those that it has are given to it.
    let only = |kind: &str, fields: &[&str]| {
        let text = layer(kind);
        let kept = text.lines().filter(|line| {
            let name = line.split(' ').next().unwrap_or("");
            !["of", "log", "data"].contains(&name) || fields.contains(&name)
        });
        kept.collect::<Vec<_>>().join("\n")
    };
    let mut known = vec!["export".to_owned()];
    known.extend(known_fields("export = \"x\"\n[serve]\nunheard = 1\n"));
    known.extend(known_fields("export = \"x\"\n[device.d]\nmemory = \"1MiB\"\nunheard = 1\n"));
    known.extend(known_fields(&only("log-cache", &["log", "data"])));
    known.extend(known_fields(&only("slice", &["of"])));
    known.extend(known_fields(&only("fault", &["of"])));
    known.extend(known_fields(&only("trace", &["of"])));
    known.extend(known_fields(&only("read-ahead", &["of"])));
    known.extend(known_fields(&only("write-cache", &["of"])));
    known.extend(known_fields(
        &only("raid", &["of"]).replace("of = \"d\"", "of = [\"d\", \"missing\", \"missing\"]"),
    ));
    let described: Vec<&str> =
        crate::reference::REFERENCE.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    for field in &known {
        assert!(described.contains(&field.as_str()), "\"{field}\" is not described");
    }
    for field in described {
        assert!(known.iter().any(|known| known == field), "\"{field}\" is described and does not exist");
    }
}

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
fn a_write_cache_stands_on_several_disks() {
    let file = parse(WRITE_CACHE).unwrap();
    let LayerKind::WriteCache(cache) = &file.layer("cache").unwrap().kind else { panic!("a write cache") };
    assert_eq!((cache.config.write_bytes, cache.config.depth), (2 << 20, 1));
    assert_eq!(file.layer("seen").unwrap().kind.below_names(), ["cache"]);
    struct Memory;
    impl DeviceOpener for Memory {
        fn open(&mut self, _index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, crate::OpenError> {
            Ok(Geometry::plain(if device.name == "a" { 131_072 } else { 65_536 }))
        }
    }
    let built = file.build(&mut Memory).unwrap();
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

const RAID: &str = r#"
export = "cache"
[device.a]
memory = "2MiB"
[device.b]
memory = "2MiB"
[device.d]
memory = "3MiB"
[device.ssd]
memory = "8MiB"
[layer.journal]
kind = "slice"
of = "ssd"
size = "4MiB"
[layer.log]
kind = "slice"
of = "ssd"
first = "4MiB"
[layer.array]
kind = "raid"
level = "raid6"
of = ["a", "b", "missing", "d"]
strip = "64KiB"
journal = "journal"
low-mark = 9
[layer.cache]
kind = "log-cache"
log = "log"
data = "array"
"#;

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
    struct Memory;
    impl DeviceOpener for Memory {
        fn open(&mut self, _index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, crate::OpenError> {
            let DeviceSource::Memory { size } = device.source else { panic!("RAM") };
            Ok(Geometry::plain(size / 512))
        }
    }
    let built = file.build(&mut Memory).unwrap();
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

/// The stack above without a word of a journal.
fn silent(journal: &str) -> String {
    RAID.replacen("[layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n", "", 1)
        .replacen("journal = \"journal\"", journal, 1)
        .replacen("memory = \"8MiB\"", "memory = \"80MiB\"", 1)
}

#[test]
fn an_array_below_a_log_cache_has_its_journal_before_the_log() {
    let file = parse(&silent("")).unwrap();
    let (layer, raid) = file.arrays().next().expect("an array");
    assert_eq!(layer.kind.below_names(), ["a", "b", "d", "array.journal"]);
    assert!(raid.config.journal);
    let cache = file.log_caches().next().expect("a cache");
    assert_eq!(cache.kind.below_names(), ["cache.log", "array"]);
    let slices: Vec<_> = file
        .layers
        .iter()
        .filter_map(|layer| match &layer.kind {
            LayerKind::Slice(slice) => {
                Some((layer.name.as_str(), slice.of.text.as_str(), slice.first_bytes, slice.size_bytes))
            }
            _ => None,
        })
        .collect();
    let journal = 64 << 20;
    assert!(slices.contains(&("array.journal", "log", 0, Some(journal))), "{slices:?}");
    assert!(slices.contains(&("cache.log", "log", journal, None)), "{slices:?}");

    let alone = file.without_cache("cache");
    let (layer, raid) = alone.arrays().next().expect("an array");
    assert_eq!(layer.kind.below_names(), ["a", "b", "d"]);
    assert!(!raid.config.journal && alone.export == "array");
    assert!(alone.layers.iter().all(|layer| !layer.name.contains('.')), "nothing of the log is asked for");
}

#[test]
fn an_array_has_no_journal_that_the_file_does_not_want_or_that_would_be_on_the_array() {
    let names = |text: &str| -> Vec<String> {
        let file = parse(text).unwrap();
        let layers: Vec<String> = file.layers.iter().map(|layer| layer.name.clone()).collect();
        assert!(!file.arrays().next().expect("an array").1.config.journal);
        layers
    };
    assert_eq!(names(&silent("journal = \"none\"")), ["log", "array", "cache"]);
    let on_a_member = silent("")
        .replacen("[device.ssd]\nmemory = \"80MiB\"\n", "", 1)
        .replacen("of = \"ssd\"\nfirst = \"4MiB\"", "of = \"d\"\nfirst = \"2MiB\"", 1)
        .replacen("\"missing\", \"d\"]", "\"missing\", \"rest\"]", 1);
    let on_a_member = on_a_member + "[layer.rest]\nkind = \"slice\"\nof = \"d\"\nsize = \"2MiB\"\n";
    assert_eq!(names(&on_a_member), ["log", "rest", "array", "cache"]);
}

#[test]
fn a_log_that_is_too_small_for_the_journal_says_so() {
    struct Memory;
    impl DeviceOpener for Memory {
        fn open(&mut self, _index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, crate::OpenError> {
            let DeviceSource::Memory { size } = device.source else { panic!("RAM") };
            Ok(Geometry::plain(size / 512))
        }
    }
    let small = silent("").replacen("memory = \"80MiB\"", "memory = \"32MiB\"", 1);
    let Err(error) = parse(&small).unwrap().build(&mut Memory) else { panic!("32 MiB are not enough") };
    assert!(error.to_string().contains("journal = \"none\""), "{error}");
}
