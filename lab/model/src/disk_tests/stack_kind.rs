//! Modelled disks in stack files.

use std::path::Path;

use dcd_engine::{DeviceIndex, Geometry};
use dcd_stack::{DeclaredDevice, DeviceOpener, LayerKind, Role, StackFile};

const DISK: &str = "export = \"disk\"\n[device.file]\nmemory = \"64MiB\"\n[layer.disk]\nkind = \"disk\"\n\
                    of = \"file\"\nqueue = \"fcfs\"\n";

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

struct Memory;

impl DeviceOpener for Memory {
    fn open(
        &mut self,
        _index: DeviceIndex,
        _device: &DeclaredDevice,
    ) -> Result<Geometry, dcd_stack::OpenError> {
        Ok(Geometry::plain(1 << 17))
    }
}

fn layers(text: &str, origin: &Path) -> Result<usize, String> {
    dcd_model::register_kinds();
    let file = StackFile::parse(text, origin).map_err(|error| error.to_string())?;
    file.build(&mut Memory).map(|built| built.parts.layers.len()).map_err(|error| error.to_string())
}

#[test]
fn a_disk_has_a_drive_from_the_program_or_from_a_file() {
    let named = |drive: &str| format!("{DISK}drive = \"{drive}\"\n");
    assert_eq!(layers(&named("barracuda-1996"), Path::new("s.toml")), Ok(1));
    let error = layers(&named("floppy"), Path::new("s.toml")).unwrap_err();
    assert!(error.starts_with("s.toml:8:9: layer \"disk\"") && error.contains("barracuda-1996"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("my.toml"), "rpm = \"fast\"").unwrap();
    let error = layers(&named("my.toml"), &dir.path().join("s.toml")).unwrap_err();
    assert!(error.contains("not a drive file"), "{error}");
}

#[test]
fn a_write_cache_and_a_log_cache_stand_on_modelled_disks() {
    let text = format!(
        "{}drive = \"barracuda-1996\"\n[device.log]\nmemory = \"64MiB\"\n[layer.ram]\nkind = \"write-cache\"\nof = \"disk\"\n\
         unit = \"cylinder\"\npiggyback = \"free\"\n[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"ram\"\n",
        DISK.replace("export = \"disk\"", "export = \"cache\"")
    );
    assert_eq!(layers(&text, Path::new("s.toml")), Ok(3));
}

#[test]
fn a_write_cache_stands_on_several_disks() {
    dcd_model::register_kinds();
    let file = StackFile::parse(WRITE_CACHE, Path::new("s.toml")).unwrap();
    assert_eq!(file.layer("cache").unwrap().kind.below_names(), ["spindle", "b"]);
    let role = Role::Cache { memory_bytes: 4 << 20, non_volatile: false };
    assert_eq!(file.layer("cache").unwrap().kind.role(), Some(role));
    let built = file.build(&mut Memory).unwrap();
    assert_eq!(built.stack.layer_count(), 3);
    assert_eq!(built.parts.place("seen"), None, "it lies on two devices");
}

#[test]
fn ram_that_is_declared_non_volatile_can_be_taken_for_volatile() {
    dcd_model::register_kinds();
    let text = WRITE_CACHE.replace("write-size", "non-volatile = true\nwrite-size");
    let file = StackFile::parse(&text, Path::new("s.toml")).unwrap();
    assert_eq!(file.non_volatile_layers(), ["cache"]);
    let LayerKind::Registered { layer, .. } = &file.layer("cache").unwrap().kind else {
        panic!("registered")
    };
    let volatile = layer.without_non_volatile().unwrap().role();
    assert!(matches!(volatile, Role::Cache { non_volatile: false, .. }));
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
        let error = layers(&text, Path::new("s.toml")).expect_err(wrong);
        assert!(error.contains(complaint), "{wrong}: {error}");
    }
    let text = WRITE_CACHE.replace("of = [\"spindle\", \"b\"]", "");
    let error = layers(&text, Path::new("s.toml")).expect_err("no disk");
    assert!(error.contains("\"of\" is missing"), "{error}");
}

#[test]
fn the_reference_has_every_field_and_no_other() {
    let error = layers(&format!("{DISK}unheard = 1\n"), Path::new("s.toml"));
    let error = error.map(|_| ()).expect_err("a field that nobody reads, and no drive");
    assert!(error.contains("\"drive\" is missing"), "{error}");
    is_described("disk", &format!("{DISK}drive = \"barracuda-1996\"\nunheard = 1\n"));
    is_described("write-cache", &WRITE_CACHE.replace("unit = ", "unheard = 1\nunit = "));
}

/// Checks the reference of a kind against the fields that its reader knows: the text has one too many.
fn is_described(kind: &str, text: &str) {
    let error = layers(text, Path::new("s.toml")).unwrap_err();
    let known: Vec<&str> = error.split_once("known here: ").expect(&error).1.split(", ").collect();
    let reference = dcd_stack::reference();
    let (_, of_kind) = reference.split_once(&format!("kind = \"{kind}\"")).unwrap();
    let of_kind = of_kind.split("[layer.NAME]").next().unwrap();
    let described: Vec<&str> = of_kind.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    for field in known.iter().filter(|field| **field != "kind") {
        assert!(described.contains(field), "\"{field}\" is not described");
    }
    for field in described {
        assert!(known.contains(&field), "\"{field}\" is described and does not exist");
    }
}

#[test]
fn a_drive_without_heads_has_only_a_size() {
    let origin = Path::new("disk.toml");
    let text = format!("{}drive = \"ssd-plp-2017\"\n", DISK.replace("queue = \"fcfs\"\n", ""));
    assert_eq!(layers(&text, origin), Ok(1));
    for option in ["queue = \"fcfs\"", "write-cache = \"on\"", "segments = 4", "bus = \"80MB\""] {
        let error = layers(&format!("{text}{option}\n"), origin).unwrap_err();
        assert!(
            error.contains("the drive \"ssd-plp-2017\" does not rotate, and has no such option"),
            "{error}"
        );
    }
    assert_eq!(layers(&format!("{text}size = \"32MiB\"\n"), origin), Ok(1));
}
