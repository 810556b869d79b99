//! Identifies a block device, whatever its number is: by names that its hardware, its partition table or device-mapper give it,
//! and by the UUID of its content. The numbers of disks change when one is added or removed.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of bytes that are read from the start of a device: enough for every UUID below.
const READ_BYTES: u64 = 66 << 10;
/// Maximum wait for the content of the machine's other devices: some have to spin up first, and some never answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);

/// Directories where the system describes its devices; tests have their own.
#[derive(Clone, Debug)]
pub struct System {
    /// The directories of links that udev makes.
    pub by: PathBuf,
    /// A directory for each device number.
    pub sysfs: PathBuf,
}

impl Default for System {
    fn default() -> System {
        System { by: "/dev/disk".into(), sysfs: "/sys/dev/block".into() }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskIdentity {
    /// The best name first.
    pub names: Vec<String>,
    /// The UUID of the file system, partition table or volume on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Names that another device of the system has, too: some USB bridges give one serial number to all disks.
    #[serde(skip)]
    pub(super) shared: Vec<String>,
}

/// Verdict on a disk that is present and a disk that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Same,
    Other,
    /// Undecided: the disks may be the same, and a command must be safe in both cases.
    Unclear,
}

impl DiskIdentity {
    pub fn of(device: &Path, number: u64, system: &System) -> DiskIdentity {
        let mut names = links(device, &system.by.join("by-id"), "");
        names.extend(links(device, &system.by.join("by-partuuid"), "partuuid-"));
        names.extend(told_by_kernel(&system.sysfs.join(number_text(number))));
        let names = ranked(names);
        let shared = shared(&names, number, system);
        DiskIdentity { names, content: content(device), shared }
    }

    /// Adds the names of links that udev is about to make.
    pub fn with_links(&self, links: &[PathBuf], system: &System) -> DiskIdentity {
        let name = |link: &PathBuf| {
            let (directory, name) = (link.parent()?, link.file_name()?.to_str()?);
            let by = |by: &str| directory == system.by.join(by);
            if by("by-id") {
                return Some(name.to_owned());
            }
            by("by-partuuid").then(|| format!("partuuid-{name}"))
        };
        let mut names = self.names.clone();
        names.extend(links.iter().filter_map(name));
        DiskIdentity { names: ranked(names), ..self.clone() }
    }

    /// True if a device with another number than this one has one of the names.
    pub fn is_named_elsewhere(&self, number: u64, system: &System) -> bool {
        !shared(&self.names, number, system).is_empty()
    }

    /// Names that no other device of the system has.
    pub fn own_names(&self) -> impl Iterator<Item = &String> {
        self.names.iter().filter(|name| !self.shared.contains(name))
    }

    /// Decides whether this disk, which is present, is a recorded one. Names and content have to agree: a disk with the same name and
    /// another content is another one, or it has got another file system since. Copies of a disk have its UUIDs, so content alone counts
    /// only where there are no names.
    pub fn matches(&self, recorded: &DiskIdentity) -> Match {
        let same_content =
            self.content.as_ref().zip(recorded.content.as_ref()).map(|(own, recorded)| own == recorded);
        if self.names.is_empty() || recorded.names.is_empty() {
            return if same_content == Some(true) { Match::Same } else { Match::Unclear };
        }
        let mut common = self.names.iter().filter(|name| recorded.names.contains(name)).peekable();
        if common.peek().is_none() {
            return Match::Other;
        }
        let is_its_own = common.any(|name| !self.shared.contains(name)) && !self.contradicts(recorded);
        match (is_its_own, same_content) {
            (true, Some(true) | None) => Match::Same,
            (false, Some(true)) if !self.contradicts(recorded) => Match::Same,
            (false, Some(false)) => Match::Other,
            _ => Match::Unclear,
        }
    }

    /// True if both have names of a kind of which a disk has only one, and these differ.
    fn contradicts(&self, recorded: &DiskIdentity) -> bool {
        let of = |identity: &DiskIdentity, kind: &str| -> Vec<String> {
            identity.names.iter().filter(|name| name.starts_with(kind)).cloned().collect()
        };
        UNIQUE.iter().any(|kind| {
            let (own, other) = (of(self, kind), of(recorded, kind));
            !own.is_empty() && !other.is_empty() && own.iter().all(|name| !other.contains(name))
        })
    }

    /// True if another device of the system has the content of this one. Devices that a server shows, and devices above or below this one,
    /// have the same content and do not count. A server's device is not even read: after its server has ended, it answers only when that
    /// server is started again, and this may be that start. False if the devices do not answer within a limit.
    pub fn is_elsewhere(&self, but: &Path, number: u64, system: &System) -> bool {
        let (Some(wanted), Ok(entries)) = (self.content.clone(), fs::read_dir(&system.sysfs)) else {
            return false;
        };
        let own = system.sysfs.join(number_text(number));
        let stacked: Vec<_> = ["holders", "slaves"]
            .iter()
            .filter_map(|of| fs::read_dir(own.join(of)).ok())
            .flat_map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()))
            .collect();
        let names = entries.flatten().filter_map(|entry| {
            let uevent = fs::read_to_string(entry.path().join("uevent")).ok()?;
            uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=").map(str::to_owned))
        });
        let devices = system.by.parent().unwrap_or(Path::new("/dev")).to_owned();
        let is_disk =
            |name: &String| !SERVED.iter().any(|served| name.starts_with(served)) && !stacked.contains(name);
        let others = names.filter(is_disk).map(|name| devices.join(name)).filter(|other| other != but);
        let others: Vec<PathBuf> = others.collect();
        let (found, answer) = mpsc::sync_channel(1);
        let look = move || {
            let _ = found.send(others.iter().any(|other| content(other).as_ref() == Some(&wanted)));
        };
        let started = thread::Builder::new().name("dcd-look".to_owned()).spawn(look);
        started.is_ok() && answer.recv_timeout(LOOK_PATIENCE).unwrap_or(false)
    }
}

/// Kinds of names of which a disk has only one.
const UNIQUE: [&str; 5] = ["wwn-", "nvme-eui.", "dm-uuid-", "md-uuid-", "partuuid-"];

/// Returns the names that the kernel gives to another device, too.
fn shared(names: &[String], number: u64, system: &System) -> Vec<String> {
    let own = number_text(number);
    let entries = fs::read_dir(&system.sysfs).into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_name() != own.as_str() && !names.is_empty());
    let told: Vec<String> = others.flat_map(|entry| told_by_kernel(&entry.path())).collect();
    names.iter().filter(|name| told.contains(name)).cloned().collect()
}

/// Prefixes of the names of devices that programs serve, dcd among them.
const SERVED: [&str; 2] = ["ublkb", "nbd"];

fn ranked(mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|name| (rank(name), name.clone()));
    names.dedup();
    names
}

/// Ranks names: those that are burnt into the drive come before those that depend on its connection.
fn rank(name: &str) -> usize {
    let order = ["wwn-", "nvme-eui.", "nvme-", "ata-", "scsi-", "dm-uuid-", "md-uuid-"];
    let late = ["partuuid-", "wwid-", "serial-"];
    let place = |prefixes: &[&str]| prefixes.iter().position(|prefix| name.starts_with(prefix));
    place(&order).or_else(|| place(&late).map(|late| order.len() + 1 + late)).unwrap_or(order.len())
}

fn links(device: &Path, directory: &Path, prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let leads_here =
        |entry: &fs::DirEntry| fs::canonicalize(entry.path()).is_ok_and(|target| target == device);
    let names = entries.flatten().filter(leads_here).filter_map(|entry| entry.file_name().into_string().ok());
    names.map(|name| format!("{prefix}{name}")).collect()
}

/// Reads names from sysfs, for machines without udev and for early boot.
fn told_by_kernel(device: &Path) -> Vec<String> {
    let attribute = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.:".contains(c) { c } else { '_' };
        Some(text.trim().chars().map(plain).collect::<String>()).filter(|text| !text.is_empty())
    };
    let named = |(prefix, of): (&str, &str)| attribute(device.join(of)).map(|text| format!("{prefix}{text}"));
    let mut names: Vec<String> =
        [("dm-uuid-", "dm/uuid"), ("md-uuid-", "md/uuid")].into_iter().filter_map(named).collect();
    let uevent = fs::read_to_string(device.join("uevent")).unwrap_or_default();
    names.extend(
        uevent.lines().find_map(|line| line.strip_prefix("PARTUUID=")).map(|id| format!("partuuid-{id}")),
    );
    // A partition lies below its disk, and is named after it.
    let (disk, part) = match attribute(device.join("partition")) {
        Some(number) => (device.join(".."), format!("-part{number}")),
        None => (device.to_owned(), String::new()),
    };
    for (prefix, of) in
        [("wwid-", "wwid"), ("wwid-", "device/wwid"), ("serial-", "serial"), ("serial-", "device/serial")]
    {
        names.extend(attribute(disk.join(of)).map(|text| format!("{prefix}{text}{part}")));
    }
    names
}

/// A signature, and the place of the UUID that goes with it.
struct UuidSignature {
    what: &'static str,
    at: usize,
    bytes: &'static [u8],
    uuid: std::ops::Range<usize>,
}

const fn mark(
    what: &'static str,
    at: usize,
    bytes: &'static [u8],
    uuid: std::ops::Range<usize>,
) -> UuidSignature {
    UuidSignature { what, at, bytes, uuid }
}

/// Sorted by how far they are trusted: an MBR mark is found on other content, too.
const MARKS: [UuidSignature; 10] = [
    mark("gpt", 512, b"EFI PART", 568..584),
    mark("gpt", 4096, b"EFI PART", 4152..4168),
    mark("ext", 1080, b"\x53\xef", 1128..1144),
    mark("xfs", 0, b"XFSB", 32..48),
    mark("btrfs", 65600, b"_BHRfS_M", 65568..65584),
    mark("luks", 0, b"LUKS\xba\xbe", 168..204),
    mark("lvm", 512, b"LABELONE", 544..576),
    mark("swap", 4086, b"SWAPSPACE2", 1036..1052),
    // Of the device, not of the array.
    mark("md", 4096, b"\xfc\x4e\x2b\xa9", 4264..4280),
    mark("mbr", 510, b"\x55\xaa", 440..444),
];

/// UUID of a device's content; none if no content is recognised.
fn content(device: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(device).ok()?.take(READ_BYTES).read_to_end(&mut start).ok()?;
    MARKS.iter().find_map(|mark| {
        let is_there = start.get(mark.at..mark.at + mark.bytes.len())? == mark.bytes;
        let uuid =
            start.get(mark.uuid.clone()).filter(|uuid| is_there && uuid.iter().any(|byte| *byte != 0))?;
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{}-{hex}", mark.what))
    })
}

impl System {
    /// Returns the node and the number of the device whose directory in sysfs this is; none without a node.
    pub fn node(&self, folder: &Path) -> Option<(PathBuf, u64)> {
        let node = self.by.with_file_name(folder.file_name()?);
        let text = fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        let number = packed(major.parse().ok()?, minor.parse().ok()?);
        node.exists().then_some((node, number))
    }
}

/// Major and minor, as the kernel packs them.
pub const fn numbers(device: u64) -> (u64, u64) {
    ((device >> 8) & 0xfff | (device >> 32) & !0xfff, device & 0xff | (device >> 12) & 0xffff_ff00)
}

const fn packed(major: u64, minor: u64) -> u64 {
    (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & !0xff) << 12
}

pub fn number_text(device: u64) -> String {
    let (major, minor) = numbers(device);
    format!("{major}:{minor}")
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A system with a directory of links and one of device numbers, and devices that are files.
    pub struct Fake {
        pub dir: tempfile::TempDir,
        pub system: System,
    }

    impl Fake {
        pub fn new() -> Fake {
            let dir = tempfile::tempdir().unwrap();
            let at = fs::canonicalize(dir.path()).unwrap();
            for name in ["dev/disk/by-id", "dev/disk/by-partuuid", "sys"] {
                fs::create_dir_all(at.join(name)).unwrap();
            }
            let system = System { by: at.join("dev/disk"), sysfs: at.join("sys") };
            Fake { dir, system }
        }

        pub fn device(&self, name: &str) -> PathBuf {
            self.system.by.with_file_name(name)
        }

        /// A disk with an ext4 file system of this UUID, or with nothing on it.
        pub fn disk(&self, name: &str, uuid: Option<u8>) {
            let mut start = vec![0; 4096];
            if let Some(uuid) = uuid {
                start[1080..1082].copy_from_slice(b"\x53\xef");
                start[1128..1144].fill(uuid);
            }
            fs::write(self.device(name), start).unwrap();
        }

        pub fn numbered(&self, number: u64, name: &str) {
            let at = self.system.sysfs.join(number_text(number));
            let _ = fs::remove_dir_all(&at);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("uevent"), format!("MAJOR=8\nDEVNAME={name}\n")).unwrap();
        }

        pub fn attribute(&self, number: u64, name: &str, text: &str) {
            let path = self.system.sysfs.join(number_text(number)).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        pub fn of(&self, name: &str, number: u64) -> DiskIdentity {
            DiskIdentity::of(&self.device(name), number, &self.system)
        }
    }

    const SDA: u64 = 8 << 8;
    const SDB: u64 = 8 << 8 | 16;

    #[test]
    fn what_is_burnt_in_comes_first_and_the_kernel_tells_where_udev_does_not() {
        let fake = Fake::new();
        fake.disk("sda", None);
        fake.numbered(SDA, "sda");
        assert_eq!(fake.of("sda", SDA), DiskIdentity::default());
        fake.attribute(SDA, "device/wwid", "t10.ATA  Disk 1");
        fake.attribute(SDA, "serial", "S 1");
        assert_eq!(fake.of("sda", SDA).names, ["wwid-t10.ATA__Disk_1", "serial-S_1"]);
        for (link, by) in
            [("usb-x", "by-id"), ("wwn-5", "by-id"), ("ata-1", "by-id"), ("9-01", "by-partuuid")]
        {
            symlink(fake.device("sda"), fake.system.by.join(by).join(link)).unwrap();
        }
        let names = fake.of("sda", SDA).names;
        assert_eq!(names[..5], ["wwn-5", "ata-1", "usb-x", "partuuid-9-01", "wwid-t10.ATA__Disk_1"]);
    }

    #[test]
    fn a_number_is_packed_as_the_kernel_does() {
        for (major, minor) in [(8, 0), (259, 1), (8, 4095), (4095, 255), (70_000, 1_000_000)] {
            assert_eq!(numbers(packed(major, minor)), (major, minor));
        }
        assert_eq!(packed(8, 1), SDA + 1);
    }

    #[test]
    fn a_partition_is_named_after_its_disk_and_a_volume_by_its_uuid() {
        let fake = Fake::new();
        let disk = fake.dir.path().join("devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("serial"), "S1\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        fs::write(disk.join("sda1/uevent"), "DEVNAME=sda1\nPARTUUID=6f-01\n").unwrap();
        symlink(disk.join("sda1"), fake.system.sysfs.join("8:1")).unwrap();
        assert_eq!(fake.of("sda1", SDA + 1).names, ["partuuid-6f-01", "serial-S1-part1"]);
        for (of, is) in [("dm", "dm-uuid-LVM-abc"), ("md", "md-uuid-LVM-abc")] {
            fake.numbered(SDB, "x");
            fake.attribute(SDB, &format!("{of}/uuid"), "LVM-abc");
            assert_eq!(fake.of("x", SDB).names, [is]);
        }
    }

    #[test]
    fn what_a_server_shows_of_a_disk_is_no_other_disk() {
        let fake = Fake::new();
        for (number, name, elsewhere) in
            [(SDA, "sda", false), (SDB, "ublkb0", false), (SDB, "nbd0p1", false), (SDB, "sdb", true)]
        {
            fake.disk(name, Some(7));
            fake.numbered(number, name);
            let seen = fake.of("sda", SDA).is_elsewhere(&fake.device("sda"), SDA, &fake.system);
            assert_eq!(seen, elsewhere, "{name}");
        }
    }

    #[test]
    fn what_stands_on_a_disk_is_no_other_disk() {
        let fake = Fake::new();
        for (number, name) in [(SDA, "sda"), (SDB, "dm-0")] {
            fake.disk(name, Some(7));
            fake.numbered(number, name);
        }
        let is_elsewhere = || fake.of("sda", SDA).is_elsewhere(&fake.device("sda"), SDA, &fake.system);
        assert!(is_elsewhere());
        fake.attribute(SDA, "holders/dm-0/x", "");
        assert!(!is_elsewhere());
    }

    #[test]
    fn names_and_content_decide_together_which_disk_it_is() {
        let identity = |names: &[&str], content: Option<&str>| DiskIdentity {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            content: content.map(str::to_owned),
            shared: Vec::new(),
        };
        let both = |names: &[&str], content| DiskIdentity {
            shared: names.iter().map(|name| (*name).to_owned()).collect(),
            ..identity(names, content)
        };
        use Match::{Other, Same, Unclear};
        for (present, recorded, verdict) in [
            (identity(&["a"], Some("x")), identity(&["a"], Some("x")), Same),
            (identity(&["a"], None), identity(&["a"], Some("x")), Same),
            // Another disk with this name, or another file system on this disk.
            (identity(&["a"], Some("y")), identity(&["a"], Some("x")), Unclear),
            // A copy.
            (identity(&["b"], Some("x")), identity(&["a"], Some("x")), Other),
            (identity(&[], Some("x")), identity(&["a"], Some("x")), Same),
            (identity(&[], Some("y")), identity(&["a"], Some("x")), Unclear),
            (identity(&[], None), identity(&[], Some("x")), Unclear),
            // Two present disks have this name: their content tells them apart.
            (both(&["a"], Some("x")), identity(&["a"], Some("x")), Same),
            (both(&["a"], Some("y")), identity(&["a"], Some("x")), Other),
            (both(&["a"], None), identity(&["a"], Some("x")), Unclear),
            // All names count together.
            (identity(&["wwn-1", "a"], Some("y")), identity(&["wwn-2", "a"], Some("x")), Other),
            (identity(&["wwn-1", "a"], None), identity(&["wwn-2", "a"], Some("x")), Unclear),
            (identity(&["partuuid-1", "a"], Some("x")), identity(&["partuuid-2", "a"], Some("x")), Unclear),
        ] {
            assert_eq!(present.matches(&recorded), verdict, "{present:?} {recorded:?}");
        }
    }

    #[test]
    fn a_name_that_another_device_has_is_known_as_shared() {
        let fake = Fake::new();
        for (number, name) in [(SDA, "sda"), (SDB, "sdb")] {
            fake.disk(name, None);
            fake.numbered(number, name);
            fake.attribute(number, "serial", "S1");
        }
        assert_eq!(fake.of("sda", SDA).shared, ["serial-S1"]);
        fake.attribute(SDB, "serial", "S2");
        assert!(fake.of("sda", SDA).shared.is_empty());
    }

    #[test]
    fn real_tools_leave_a_uuid_that_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        for (tool, arguments, what) in [
            ("mkfs.ext4", ["-q", "-F", "-U", "11111111-2222-3333-4444-555555555555"], "ext-"),
            ("mkswap", ["-q", "-p", "4096", "-U11111111-2222-3333-4444-555555555555"], "swap-"),
        ] {
            File::create(&image).unwrap().set_len(32 << 20).unwrap();
            let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            match std::process::Command::new(tool).env("PATH", path).args(arguments).arg(&image).output() {
                Ok(output) => {
                    assert!(output.status.success(), "{output:?}");
                    assert_eq!(content(&image), Some(format!("{what}11111111222233334444555555555555")));
                }
                Err(e) => {
                    use std::io::Write;
                    let _ = writeln!(std::io::stderr(), "SKIPPED: the UUID that {tool} makes: {e}");
                }
            }
        }
    }
}
