//! Surveys of devices in RAM, and of devices that are missing.

use dcd_engine::log_cache::format::{LogState, SUPERBLOCK_SECTORS};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::mirror::offline::create;
use dcd_engine::{Buf, Lba};
use dcd_io::MemoryDevice;
use dcd_stack::StackFile;

use super::*;

const DATA: &str = "[device.data]\nmemory = \"1MiB\"\n";

/// A log in RAM, of which these blocks were overwritten.
fn log(overwritten: &[Lba]) -> MemoryDevice {
    let mut log = MemoryDevice::new(16 << 20);
    let options = FormatOptions::new([7; 16], [8; 16]);
    format(&mut log, &mut MemoryDevice::new(1 << 20), &options).unwrap();
    overwritten.iter().for_each(|at| log.write(*at, Buf::copy_of(&[0x5a; 4096])).unwrap());
    log
}

fn leg() -> MemoryDevice {
    let mut leg = MemoryDevice::new(16 << 20);
    create(&mut [&mut leg], [3; 16], &[1]).unwrap();
    leg
}

#[test]
fn a_look_at_a_log_tells_whole_torn_and_missing_ones_apart() {
    let [first, second] = SUPERBLOCK_SECTORS;
    for (case, mut device, expected) in [
        ("blank", MemoryDevice::new(16 << 20), "missing"),
        ("whole", log(&[]), "whole"),
        ("the first copy torn", log(&[first]), "torn"),
        ("the second copy torn", log(&[second]), "torn"),
        ("both copies torn", log(&[first, second]), "missing"),
        ("a leg", leg(), "refused"),
    ] {
        let looked = look_at(&mut device, None);
        let seen = match &looked {
            Ok((LogSeen::Missing(_), None)) => "missing",
            Ok((LogSeen::Present { torn: false, state: LogState::Stopped, .. }, Some(_))) => "whole",
            Ok((LogSeen::Present { torn: true, .. }, Some(_))) => "torn",
            Err(Failure::Refused(_)) => "refused",
            _ => "otherwise",
        };
        assert_eq!(seen, expected, "{case}");
    }
}

#[test]
fn a_survey_notes_what_is_missing_and_what_has_no_log() {
    let surveyed = |text: &str| {
        let site = Site::from(StackFile::parse(text, Path::new("/no such folder/disk.toml")).unwrap());
        let (mut survey, export) = (Survey::default(), site.export.clone());
        let looked = survey.look_at(&site, &[&export], Purpose::Look);
        let looked = looked.and_then(|()| survey.look_at_plain(&site, &export));
        (survey.seen, looked.err().map(|failure| failure.to_string()))
    };
    let cache = format!("export = \"cache\"\n{DATA}[layer.cache]\nkind = \"log-cache\"\ndata = \"data\"\n");

    let (seen, failure) = surveyed(&format!("export = \"data\"\n{DATA}"));
    assert!(failure.is_none() && seen.plain.is_empty() && seen.caches.is_empty(), "{failure:?}");

    let (seen, failure) = surveyed(&format!("{cache}log = \"l\"\n[device.l]\nmemory = \"16MiB\"\n"));
    assert_eq!((failure, seen.caches.len()), (None, 1));
    assert!(matches!(
        &seen.caches["cache"][0],
        CacheSeen { log: LogSeen::Missing(_), superblock: None, record: None, missing: None }
    ));

    let legs = "log = [\"a\", \"b\"]\n[device.a]\npath = \"a\"\n[device.b]\nmemory = \"16MiB\"\n";
    let (seen, failure) = surveyed(&format!("{cache}{legs}"));
    let mirror = &seen.mirrors["cache.legs"];
    assert_eq!(mirror.absent, ["a"]);
    assert!(mirror.labels.len() == 1 && mirror.labels[0].1.is_err() && failure.is_some(), "{failure:?}");

    let members: String =
        ["d0", "d1", "d2"].map(|name| format!("[device.{name}]\npath = \"{name}\"\n")).concat();
    let raid = "[layer.raid]\nkind = \"raid\"\nlevel = \"raid5\"\nof = [\"d0\", \"d1\", \"d2\"]\n";
    let (seen, _) = surveyed(&format!("export = \"raid\"\n{members}{raid}"));
    let ArraySeen { absent, devices } = &seen.arrays["raid"];
    assert!(absent.len() == 3 && devices.is_none(), "{absent:?}");
}
