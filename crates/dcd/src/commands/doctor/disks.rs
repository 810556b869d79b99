//! Finds disks that are not what they seem: an unflushed write cache, a USB bridge, a wrong rotational flag, shingled tracks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dcd_stack::{DeviceSource, StackFile};

use super::{Finding, Machine, Severity, read};
use crate::control::stack_name;
use crate::session::system::{disks, number};

/// Examines the disks below the devices of a stack. A disk that carries several devices is reported once.
pub fn findings(machine: &Machine, file: &StackFile) -> Vec<Finding> {
    let mut used: BTreeMap<PathBuf, Vec<&str>> = BTreeMap::new();
    let mut findings = Vec::new();
    for device in &file.devices {
        let DeviceSource::Path { path, .. } = &device.source else { continue };
        if let Some(finding) = unstable_name(&device.name, path) {
            findings.push(finding);
        }
        for disk in number(path).map(|number| disks(&machine.root, number)).unwrap_or_default() {
            used.entry(disk).or_default().push(&device.name);
        }
    }
    findings.extend(no_name(file));
    let stack = file.path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for (disk, devices) in used {
        let name = disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let about = format!("{stack}: {}", devices.join(", "));
        let checks = [
            empty(&about, &name, &disk),
            unflushed_cache(&about, &name, &disk),
            usb(&about, &name, &disk),
            wrong_kind(&about, &name, &disk),
            shingled(&about, &name, &disk),
        ];
        let mut found: Vec<Finding> = checks.into_iter().flatten().collect();
        if found.is_empty() {
            found.push(Finding::new(
                Severity::Ok,
                about,
                format!("{name}: this kind of disk, with its settings, suits its use"),
            ));
        }
        findings.extend(found);
    }
    findings
}

/// Finds a name that may change: the kernel numbers disks in the order in which they answer.
fn unstable_name(device: &str, path: &Path) -> Option<Finding> {
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    let unstable = ["sd", "nvme", "vd", "xvd", "mmcblk"].iter().any(|kind| name.starts_with(kind));
    unstable.then(|| {
        let found = format!("{} may name another disk after the next boot", path.display());
        Finding::new(Severity::Note, device, found).with("name it by /dev/disk/by-id in the stack file")
    })
}

/// Finds a ublk device without a name in /dev/dcd, although its stack file is in /etc/dcd.
fn no_name(file: &StackFile) -> Option<Finding> {
    let stack = file.path.file_stem()?.to_string_lossy().into_owned();
    let wants = file.serve.ublk.is_some() && file.path.starts_with("/etc/dcd");
    (wants && stack_name(&file.path).is_none()).then(|| {
        let found = format!("its ublk device has no name in /dev/dcd: {} has other characters than letters, digits, \"_\" and \".\"", file.path.display());
        Finding::new(Severity::Note, stack, found).with("stop the server, and rename the file")
    })
}

/// Finds a disk without any sector: its medium is gone, or a loop device's file was cut off.
fn empty(about: &str, name: &str, disk: &Path) -> Option<Finding> {
    (read(&disk.join("size")) == "0").then(|| {
        let found = format!("{name} has a size of 0: nothing can be read from it, or written");
        Finding::new(Severity::Bad, about, found).with("bring its medium or its file back, or replace it")
    })
}

/// Finds a write cache that the kernel does not know of: it sends no flushes to that disk.
fn unflushed_cache(about: &str, name: &str, disk: &Path) -> Option<Finding> {
    let kernel = read(&disk.join("queue/write_cache"));
    let units = fs::read_dir(disk.join("device/scsi_disk")).into_iter().flatten().flatten();
    let has_cache =
        units.map(|unit| read(&unit.path().join("cache_type"))).any(|kind| kind.starts_with("write back"));
    (kernel == "write through" && has_cache).then(|| {
        let found = format!("{name} has its write cache on, but the kernel sends it no flushes: a power cut loses flushed data");
        let action = format!("echo 'write back' > /sys/block/{name}/queue/write_cache, or turn the cache off (hdparm -W0 /dev/{name})");
        Finding::new(Severity::Bad, about, found).with(action)
    })
}

fn usb(about: &str, name: &str, disk: &Path) -> Option<Finding> {
    disk.components().any(|part| part.as_os_str().to_str().is_some_and(|part| part.starts_with("usb"))).then(|| {
        let found = format!("{name} is behind USB: some bridges answer flushes without carrying them out, and drop out under load");
        Finding::new(Severity::Note, about, found).with("do not trust it with data that must survive a power cut, unless you have tested that")
    })
}

/// Finds a shingled disk, which rewrites its tracks in bands: a rotational disk with TRIM, which others do not have, or a host-aware one.
fn shingled(about: &str, name: &str, disk: &Path) -> Option<Finding> {
    let trims = read(&disk.join("queue/discard_max_bytes")).parse().is_ok_and(|bytes: u64| bytes > 0);
    let says_so = read(&disk.join("queue/zoned")) == "host-aware";
    ((rotates(disk) == Some(true) && trims) || says_so).then(|| {
        let found = format!("{name} is shingled (a rotational disk with TRIM): once its own cache is full, scattered writes become very slow");
        Finding::new(Severity::Note, about, found)
            .with("expect slow destaging; a conventional disk (CMR) has no such limit")
    })
}

/// Returns the disk's own report of its rotation. Its VPD page B1h (SBC) has a 16-bit number: 1 is a disk that does not rotate, and
/// numbers from 0401h on are revolutions per minute.
fn rotates(disk: &Path) -> Option<bool> {
    let page = fs::read(disk.join("device/vpd_pgb1")).unwrap_or_default();
    match page.get(4..6).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))? {
        1 => Some(false),
        0x0401..=0xfffe => Some(true),
        _ => None,
    }
}

/// Compares the disk's own report with the kernel's flag.
fn wrong_kind(about: &str, name: &str, disk: &Path) -> Option<Finding> {
    let rotational = match read(&disk.join("queue/rotational")).as_str() {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let rotates = rotates(disk).or_else(|| name.starts_with("nvme").then_some(false));
    rotates.filter(|rotates| *rotates != rotational).map(|rotates| {
        let (is, flag) = if rotates { ("rotates", 1) } else { ("does not rotate", 0) };
        let found = format!(
            "{name} {is}, but the kernel says otherwise, and the log is laid out for what the kernel says"
        );
        Finding::new(Severity::Bad, about, found)
            .with(format!("echo {flag} > /sys/block/{name}/queue/rotational, by a udev rule"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Made;
    use super::*;

    const DISK: &str = "/sys/devices/pci0/ata1/host0/target0/block/sdb";

    fn disk(made: &Made) -> PathBuf {
        made.machine.path(DISK)
    }

    #[test]
    fn a_cache_that_is_not_flushed_is_found() {
        let made = Made::new(&[]);
        made.write(&format!("{DISK}/queue/write_cache"), "write through\n");
        made.write(&format!("{DISK}/device/scsi_disk/0:0:0:0/cache_type"), "write back\n");
        let found = unflushed_cache("s: data", "sdb", &disk(&made)).unwrap();
        assert_eq!(found.level, Severity::Bad);
        assert!(found.action.unwrap().contains("/sys/block/sdb/queue/write_cache"));
        made.write(&format!("{DISK}/queue/write_cache"), "write back\n");
        assert_eq!(unflushed_cache("s: data", "sdb", &disk(&made)), None);
        made.write(&format!("{DISK}/queue/write_cache"), "write through\n");
        made.write(&format!("{DISK}/device/scsi_disk/0:0:0:0/cache_type"), "write through\n");
        assert_eq!(unflushed_cache("s: data", "sdb", &disk(&made)), None);
    }

    #[test]
    fn a_disk_without_sectors_is_found() {
        let made = Made::new(&[]);
        for (size, is_empty) in [("0\n", true), ("2048\n", false)] {
            made.write(&format!("{DISK}/size"), size);
            let found = empty("s: log", "sdb", &disk(&made));
            assert_eq!(found.is_some_and(|found| found.level == Severity::Bad), is_empty);
        }
    }

    #[test]
    fn the_disks_own_word_goes_before_the_kernels_flag() {
        let made = Made::new(&[]);
        let wrong = |flag: &str, speed: [u8; 2]| {
            made.write(&format!("{DISK}/queue/rotational"), flag);
            made.write(&format!("{DISK}/device/vpd_pgb1"), [0, 0xb1, 0, 60, speed[0], speed[1], 0, 0]);
            wrong_kind("s: data", "sdb", &disk(&made)).map(|found| found.action.unwrap())
        };
        assert_eq!(wrong("1", [0x1c, 0x20]), None, "7200 a minute");
        assert_eq!(wrong("0", [0, 1]), None);
        assert_eq!(wrong("0", [0, 0]), None, "it does not say");
        assert!(wrong("0", [0x1c, 0x20]).unwrap().starts_with("echo 1 > /sys/block/sdb/queue/rotational"));
        assert!(wrong("1", [0, 1]).unwrap().starts_with("echo 0 >"));
        made.write("/sys/devices/x/nvme0n1/queue/rotational", "1");
        assert!(wrong_kind("s", "nvme0n1", &made.machine.path("/sys/devices/x/nvme0n1")).is_some());
    }

    #[test]
    fn a_rotational_disk_with_trim_is_shingled() {
        let made = Made::new(&[]);
        let is_shingled = |speed: [u8; 2], trims: &str, zoned: &str| {
            made.write(&format!("{DISK}/device/vpd_pgb1"), [0, 0xb1, 0, 60, speed[0], speed[1], 0, 0]);
            made.write(&format!("{DISK}/queue/discard_max_bytes"), trims);
            made.write(&format!("{DISK}/queue/zoned"), zoned);
            shingled("s: data", "sdb", &disk(&made)).is_some_and(|found| found.found.contains("shingled"))
        };
        assert!(is_shingled([0x15, 0x18], "2147450880\n", "none\n"));
        assert!(is_shingled([0x15, 0x18], "0\n", "host-aware\n"));
        assert!(!is_shingled([0x15, 0x18], "0\n", "none\n"), "a conventional disk");
        assert!(!is_shingled([0, 1], "2147450880\n", "none\n"), "an SSD");
        assert!(!is_shingled([0, 0], "2147450880\n", "none\n"), "the disk of a virtual machine does not say");
    }

    #[test]
    fn partitions_and_mapped_devices_lead_to_their_disks() {
        let usb_disk = "/sys/devices/pci0/usb2/2-1/host1/block/sdc";
        let made = Made::new(&[
            (&format!("{DISK}/sdb1/partition"), "1"),
            (&format!("{DISK}/queue/rotational"), "1"),
            (&format!("{usb_disk}/queue/rotational"), "1"),
            ("/sys/devices/virtual/block/dm-0/dm/name", "x"),
        ]);
        made.link("/sys/devices/virtual/block/dm-0/slaves/sdb1", &format!("{DISK}/sdb1"));
        made.link("/sys/devices/virtual/block/dm-0/slaves/sdc", usb_disk);
        made.link("/sys/dev/block/253:3", "/sys/devices/virtual/block/dm-0");
        made.link("/sys/dev/block/8:17", &format!("{DISK}/sdb1"));
        let names = |number| {
            let below = disks(&made.machine.root, number);
            below
                .iter()
                .map(|disk| disk.file_name().unwrap().to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(8 << 8 | 17), ["sdb"]);
        assert_eq!(names(253 << 8 | 3), ["sdb", "sdc"]);
        assert!(names(7).is_empty());
        let below = disks(&made.machine.root, 253 << 8 | 3);
        assert_eq!(usb("s: data", "sdb", &below[0]), None);
        assert_eq!(usb("s: data", "sdc", &below[1]).unwrap().level, Severity::Note);
    }

    #[test]
    fn names_that_may_change_are_told() {
        for (path, told) in [
            ("/dev/sdb", true),
            ("/dev/nvme0n1p3", true),
            ("/dev/disk/by-id/ata-X", false),
            ("/dev/mapper/vg-x", false),
            ("/srv/sd.img", false),
        ] {
            assert_eq!(unstable_name("data", Path::new(path)).is_some(), told, "{path}");
        }
    }
}
