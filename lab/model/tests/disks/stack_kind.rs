//! Modelled disks in stack files.

use std::path::Path;

use dcd_engine::{DeviceIndex, Geometry};
use dcd_stack::{DeviceOpener, DeviceSpec, StackFile};

const DISK: &str = "export = \"disk\"\n[device.file]\nmemory = \"64MiB\"\n[layer.disk]\nkind = \"disk\"\n\
                    of = \"file\"\nqueue = \"fcfs\"\n";

struct Memory;

impl DeviceOpener for Memory {
    fn open(&mut self, _index: DeviceIndex, _device: &DeviceSpec) -> Result<Geometry, dcd_stack::OpenError> {
        Ok(Geometry::plain(1 << 17))
    }
}

fn layers(text: &str, origin: &Path) -> Result<usize, String> {
    dcd_model::register_disk();
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
fn the_reference_has_every_field_and_no_other() {
    let error = layers(&format!("{DISK}unheard = 1\n"), Path::new("s.toml"));
    let error = error.map(|_| ()).expect_err("a field that nobody reads, and no drive");
    assert!(error.contains("\"drive\" is missing"), "{error}");
    let text = format!("{DISK}drive = \"barracuda-1996\"\nunheard = 1\n");
    let error = layers(&text, Path::new("s.toml")).unwrap_err();
    let known: Vec<&str> = error.split_once("known here: ").expect(&error).1.split(", ").collect();
    let reference = dcd_stack::reference();
    let (_, disk) = reference.split_once("kind = \"disk\"").unwrap();
    let described: Vec<&str> = disk.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    for field in known.iter().filter(|field| **field != "kind") {
        assert!(described.contains(field), "\"{field}\" is not described");
    }
    for field in described {
        assert!(known.contains(&field), "\"{field}\" is described and does not exist");
    }
}
