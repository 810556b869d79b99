//! A data disk that somebody uses without its cache, as an administrator might by mistake: the next start refuses it, whatever was in
//! the log, and however the server ended. Without such a mistake it starts.
//!
//! The file systems are real ones, mounted through the cache by FUSE and a loop device, and on the data disk itself by another.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Place, Server, expect, tool};

struct FileSystem {
    name: &'static str,
    size: &'static str,
    /// Offset of the file system on the disk.
    offset: &'static str,
    make: &'static str,
    options: &'static str,
    check: &'static str,
}

const FILE_SYSTEMS: [FileSystem; 4] = [
    FileSystem {
        name: "ext4",
        size: "64M",
        offset: "0",
        make: "mkfs.ext4 -q -b 1024",
        options: "rw",
        check: "e2fsck -fy $L || [ $? = 1 ]",
    },
    FileSystem {
        name: "ext4",
        size: "96M",
        // Nothing of a partition is in the first MiB.
        offset: "1048576",
        make: "echo 1MiB, | sfdisk -q data.img; mkfs.ext4 -q -b 4096 -E nodiscard",
        options: "rw",
        check: "e2fsck -fy $L || [ $? = 1 ]",
    },
    FileSystem {
        name: "xfs",
        size: "300M",
        offset: "0",
        make: "mkfs.xfs -q",
        options: "nouuid",
        check: "xfs_repair -L $L",
    },
    FileSystem {
        name: "btrfs",
        size: "128M",
        offset: "0",
        make: "mkfs.btrfs -q",
        options: "rw",
        check: "btrfs rescue zero-log $L; mount $L m; touch m/checked; umount m",
    },
];

const TOOLS: [&str; 8] =
    ["losetup", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "pvcreate", "sfdisk", "wipefs", "fusermount3"];

/// Changes to the data disk, which is $D as a whole, and its file system, $L.
const MISTAKES: [(&str, &str); 7] = [
    ("mounted", "mount -o $O $L m; echo mistake > m/mistake; umount m"),
    ("mounted read only", "mount -o ro,$O $L m; umount m"),
    ("checked", "CHECK"),
    ("mkfs", "mkfs.ext4 -q -F $D"),
    ("pvcreate", "pvcreate -q -ff -y --config 'devices { use_devicesfile = 0 }' $D"),
    ("partitioned", "echo 2MiB,8MiB | sfdisk -q --force --wipe always $D"),
    ("wipefs", "wipefs -q -a $D"),
];

/// States in which the cache was left: the steps after its first writes, and whether SIGTERM ended it.
const ENDS: [(&str, &str, bool); 3] = [
    ("nothing dirty, stopped", "flush", true),
    ("little dirty, killed", "flush, write", false),
    ("much dirty, stopped", "", true),
];

struct Disk {
    place: Place,
    file_system: &'static FileSystem,
}

impl Disk {
    fn sh(&self, script: &str) -> Output {
        let FileSystem { offset, options, .. } = self.file_system;
        let script = format!("O={options} F={offset}\n{script}");
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let mut command = Command::new("sh");
        command.args(["-ec", &script]).env("PATH", path).current_dir(self.place.dir.path());
        command.output().unwrap()
    }

    fn must(&self, script: &str) {
        expect(&self.sh(script), 0, "");
    }

    /// A script with the file system of a disk in $L and the disk in $D.
    fn with(file: &str, script: &str) -> String {
        format!(
            "L=$(losetup --direct-io=on -o $F -f --show {file}); D=$L\n\
             [ $F = 0 ] || D=$(losetup --direct-io=on -f --show {file})\n\
             trap 'umount -q m || true; losetup -d $L; [ $D = $L ] || losetup -d $D' EXIT\n\
             ! command -v btrfs > /dev/null || btrfs -q device scan --forget || true\n{script}"
        )
    }

    fn new(file_system: &'static FileSystem) -> Disk {
        let disk = Disk { place: Place::new(), file_system };
        let FileSystem { size, make, .. } = file_system;
        let (before, make) = make.rsplit_once("; ").unwrap_or(("true", make));
        disk.must(&format!("mkdir m mnt; rm data.img; truncate -s {size} data.img; {before}"));
        disk.must(&Disk::with("data.img", &format!("{make} $L; mount -o $O $L m; for n in 1 2 3 4 5 6 7 8; do head -c 100000 /dev/urandom > m/old$n; done; umount m")));
        disk.place.write_stack("when = \"high-low\"\n");
        let text = std::fs::read_to_string(disk.place.stack()).unwrap();
        std::fs::write(disk.place.stack(), text.replace("[serve]", "[serve]\nfuse = \"mnt\"")).unwrap();
        disk.place.format();
        disk
    }

    fn write_through_the_cache(&self, name: &str) {
        let script = format!("mount -o $O $L m; head -c 300000 /dev/urandom > m/{name}; umount m");
        self.must(&Disk::with("mnt/disk.img", &script));
    }

    /// Uses it through the cache, and ends as told.
    fn use_it(&self, flush: &str, is_stopped: bool) {
        let server = self.place.serve();
        self.write_through_the_cache("precious");
        if flush.contains("flush") {
            expect(&self.place.run("flush", &[]), 0, "");
        }
        if flush.contains("write") {
            self.write_through_the_cache("more");
        }
        if is_stopped {
            expect(&server.stop(), 0, "");
        } else {
            server.kill();
        }
        self.must("fusermount3 -uz mnt 2> /dev/null || true");
    }

    fn copies(&self, from: &str, to: &str) {
        let copy = |name: &str| format!("cp --sparse=always {from}{name} {to}{name}");
        self.must(&["log.img", "data.img", "data.img.dcd"].map(copy).join("\n"));
    }

    /// Starts a server and stops it at once; fails where the start refuses the disk.
    fn starts(&self) -> Result<(), Output> {
        let started = Server::start(&self.place, &[]);
        let started = started.map(|server| expect(&server.stop(), 0, ""));
        self.must("fusermount3 -uz mnt 2> /dev/null || true");
        started
    }
}

fn is_missing(test: &str) -> bool {
    if TOOLS.iter().any(|name| tool(test, name).is_none()) {
        return true;
    }
    let script = "test $(id -u) = 0 && test -w /dev/fuse && losetup -f";
    let may = Command::new("sh").args(["-ec", script]).output().unwrap().status.success();
    if !may {
        crate::common::skip(&format!("{test}: needs root, FUSE and loop devices"));
    }
    !may
}

fn knows(name: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.trim() == name) || Path::new("/sys/module").join(name).exists()
}

#[test]
fn rule_11_a_disk_that_is_used_behind_its_cache_is_refused() {
    let test = "a disk behind its cache";
    if is_missing(test) {
        return;
    }
    for file_system in &FILE_SYSTEMS {
        if !knows(file_system.name) {
            crate::common::skip(&format!("{test}: the kernel does not know {}", file_system.name));
            continue;
        }
        let disk = Disk::new(file_system);
        disk.copies("", "first-");
        for (end, flush, is_stopped) in ENDS {
            disk.copies("first-", "");
            disk.use_it(flush, is_stopped);
            disk.copies("", "left-");
            let name = format!("{} at {}, {end}", file_system.name, file_system.offset);
            if let Err(output) = disk.starts() {
                panic!("{name}, untouched: {output:?}");
            }
            for (mistake, script) in MISTAKES {
                disk.copies("left-", "");
                let script = script.replace("CHECK", file_system.check);
                disk.must(&Disk::with("data.img", &script));
                // A journal that has nothing to replay leaves the disk as it is.
                let is_changed = !disk.sh("cmp -s data.img left-data.img").status.success();
                assert!(is_changed || mistake == "mounted read only", "{name}, {mistake}: nothing changed");
                match disk.starts() {
                    Ok(()) => assert!(!is_changed, "{name}, {mistake}: it was not noticed"),
                    Err(output) => {
                        assert!(is_changed, "{name}, {mistake}: refused for nothing: {output:?}");
                        expect(&output, 3, "the data disk was changed without this cache");
                    }
                }
            }
        }
    }
}

/// With nothing in the log there is a way on that loses nothing, and the refusal names it.
#[test]
fn a_changed_disk_whose_log_is_empty_may_be_taken_as_it_is() {
    let place = Place::new();
    place.format();
    let mut changed = place.bare();
    changed[4096..8192].fill(7);
    std::fs::write(place.path("data.img"), &changed).unwrap();
    let refused = Server::start(&place, &[]).err().expect("it was changed");
    expect(&refused, 3, "the log holds no data that the disk lacks, and \"dcd rescue\" accepts");
    expect(&refused, 3, "An older copy of the disk lacks what was written since: use the original");
    expect(&place.run("rescue", &["--list"]), 4, "\"dcd rescue\" accepts it as it is now");
    expect(&place.run("rescue", &[]), 0, "");
    let server = place.serve();
    assert_eq!(place.nbd().read(4096, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
    assert!(place.bare() == changed, "nothing was written to it");
}
