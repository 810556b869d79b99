//! The wear of SSDs as they count it themselves: how much of their rated life is used, and the bytes written to them since they were made.
//! NVMe has both in its health log (page 0x02), SATA in its device statistics (log 0x04, pages 1 and 7).
//!
//! A device leads to whole disks by sysfs: a partition to its disk, md and device-mapper to the disks below. Disks that spin, virtual
//! disks, and disks behind USB bridges are not asked. All calls here may wait for a disk.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum depth of devices on devices.
const DEPTH_MAX: usize = 8;
/// Time that a SATA disk has for an answer. After it the kernel resets the link, under the log's own commands: an SSD that is busy for some
/// seconds must not come to that.
const ATA_TIMEOUT_MS: u32 = 120_000;
/// The kernel's own time for an administrative command of NVMe: after it the kernel resets the controller.
const NVME_TIMEOUT_MS: u32 = 0;
/// Size of each page that is read.
const PAGE: usize = 512;
/// NVMe counts what was written in units of a thousand sectors of 512 bytes.
const NVME_UNIT_BYTES: u128 = 512_000;

/// The wear of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskWear {
    /// Name in /dev.
    pub disk: String,
    /// Percent of the life for which the maker has rated it; may be above 100.
    pub used_percent: u8,
    /// Bytes written to it since it was made; none where it does not count them.
    pub written_bytes: Option<u64>,
}

/// A protocol by which a disk tells its wear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WearSource {
    Nvme,
    Ata,
}

/// Reads the wear of the disks below a block device. Disks that do not tell are left out.
pub(super) fn disks_wear(device: u64) -> Vec<DiskWear> {
    let disks = disks_below(&sys_entry(device));
    let wear = |(disk, source): (String, WearSource)| {
        let node = Path::new("/dev").join(&disk);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(node).ok()?;
        let (used_percent, written_bytes) = match source {
            WearSource::Nvme => nvme_wear(&nvme_health_log(&file).ok()?)?,
            WearSource::Ata => {
                let general = ata_statistics(&file, ATA_GENERAL).ok();
                ata_wear(&ata_statistics(&file, ATA_SOLID_STATE).ok()?, general.as_ref())?
            }
        };
        Some(DiskWear { disk, used_percent, written_bytes })
    };
    disks.into_iter().filter_map(wear).collect()
}

/// Returns the whole disks below an entry of sysfs that may tell their wear, each once.
fn disks_below(entry: &Path) -> Vec<(String, WearSource)> {
    let mut found = Vec::new();
    collect_disks(entry, DEPTH_MAX, &mut found);
    found
}

/// Returns the disk of a partition, and any other device itself.
fn whole_disk(entry: &Path) -> Option<PathBuf> {
    let entry = fs::canonicalize(entry).ok()?;
    match entry.join("partition").exists() {
        true => entry.parent().map(Path::to_owned),
        false => Some(entry),
    }
}

/// The devices that a device lies on.
fn slaves(whole: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(whole.join("slaves")).into_iter().flatten().flatten();
    below.map(|slave| slave.path()).collect()
}

fn word(whole: &Path, file: &str) -> String {
    fs::read_to_string(whole.join(file)).unwrap_or_default().trim().to_owned()
}

/// The way to ask an SSD; none for disks that spin, virtual disks, and disks behind bridges.
fn source_of(whole: &Path) -> Option<WearSource> {
    if word(whole, "queue/rotational") != "0" {
        return None;
    }
    let name = whole.file_name()?.to_str()?;
    match () {
        () if name.starts_with("nvme") => Some(WearSource::Nvme),
        // The kernel's own translation of SCSI to ATA. A USB bridge names the disk's maker, and may hang at an unknown command.
        () if word(whole, "device/vendor") == "ATA" => Some(WearSource::Ata),
        () => None,
    }
}

/// True for an SSD of this machine, or a partition of one. False in doubt: for devices on devices, virtual and remote disks, USB.
pub(super) fn is_plain_ssd(device: u64) -> bool {
    is_ssd_at(&sys_entry(device))
}

fn is_ssd_at(entry: &Path) -> bool {
    let Some(whole) = whole_disk(entry).filter(|whole| slaves(whole).is_empty()) else { return false };
    match source_of(&whole) {
        Some(WearSource::Nvme) => is_on_pcie(&whole),
        Some(WearSource::Ata) => true,
        None => false,
    }
}

/// True if all controllers of an NVMe disk are in this machine. A disk with several may be below a subsystem, which has no transport.
fn is_on_pcie(whole: &Path) -> bool {
    let device = whole.join("device");
    let own = word(&device, "transport");
    if !own.is_empty() {
        return own == "pcie";
    }
    let below = fs::read_dir(device).into_iter().flatten().flatten();
    let transports: Vec<String> = below
        .map(|entry| word(&entry.path(), "transport"))
        .filter(|transport| !transport.is_empty())
        .collect();
    !transports.is_empty() && transports.iter().all(|transport| transport == "pcie")
}

fn sys_entry(device: u64) -> PathBuf {
    let (major, minor) = (libc::major(device), libc::minor(device));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

fn collect_disks(entry: &Path, depth: usize, found: &mut Vec<(String, WearSource)>) {
    let Some(whole) = whole_disk(entry) else { return };
    let below = slaves(&whole);
    if !below.is_empty() {
        if depth > 0 {
            below.iter().for_each(|slave| collect_disks(slave, depth - 1, found));
        }
        return;
    }
    let Some(source) = source_of(&whole) else { return };
    let Some(name) = whole.file_name().and_then(|name| name.to_str()) else { return };
    if found.iter().all(|(other, _)| other != name) {
        found.push((name.to_owned(), source));
    }
}

/// Reads percentage and bytes from the health log of NVMe: byte 5, and the 16 bytes from byte 48 on. None if the page has nothing.
fn nvme_wear(page: &[u8; PAGE]) -> Option<(u8, Option<u64>)> {
    // The temperature is in kelvin: no disk is at zero.
    if page[1..3] == [0, 0] {
        return None;
    }
    let units = u128::from_le_bytes(page[48..64].try_into().expect("16 bytes"));
    Some((page[5], u64::try_from(units.saturating_mul(NVME_UNIT_BYTES)).ok()))
}

/// Pages of the device statistics.
const ATA_GENERAL: u8 = 0x01;
const ATA_SOLID_STATE: u8 = 0x07;

/// Reads percentage and bytes from two pages of ATA's device statistics; none without a percentage.
fn ata_wear(solid_state: &[u8; PAGE], general: Option<&[u8; PAGE]>) -> Option<(u8, Option<u64>)> {
    let used = ata_statistic(solid_state, ATA_SOLID_STATE, 8)? & 0xff;
    let sectors = general.and_then(|page| ata_statistic(page, ATA_GENERAL, 24));
    // Disks with larger logical sectors are not made as SSDs.
    Some((used as u8, sectors.and_then(|sectors| sectors.checked_mul(512))))
}

/// Returns a value of a page: the lower six bytes, if the upper two call it supported and valid.
fn ata_statistic(page: &[u8; PAGE], number: u8, at: usize) -> Option<u64> {
    const SUPPORTED_AND_VALID: u64 = 0xc0 << 56;
    const VALUE: u64 = (1 << 48) - 1;
    let word = u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    (page[2] == number && word & SUPPORTED_AND_VALID == SUPPORTED_AND_VALID).then_some(word & VALUE)
}

/// A command for an NVMe controller, from linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

fn nvme_health_log(disk: &File) -> io::Result<[u8; PAGE]> {
    const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xc048_4e41_u32 as libc::Ioctl;
    const GET_LOG_PAGE: u8 = 0x02;
    const HEALTH: u32 = 0x02;
    const _: () = assert!(size_of::<NvmeCommand>() == 0x48, "the size is part of the ioctl's number");
    let mut page = [0_u8; PAGE];
    let mut command = NvmeCommand {
        opcode: GET_LOG_PAGE,
        // All namespaces: the log of the controller.
        namespace: u32::MAX,
        address: page.as_mut_ptr() as u64,
        data_bytes: PAGE as u32,
        timeout_ms: NVME_TIMEOUT_MS,
        ..NvmeCommand::default()
    };
    // The number of double words, less one, is in the upper half.
    command.words_10_15[0] = HEALTH | (PAGE as u32 / 4 - 1) << 16;
    // SAFETY: the command only reads, into `page`, whose size it has; both live for the call.
    match unsafe { libc::ioctl(disk.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &mut command) } {
        0 => Ok(page),
        -1 => Err(io::Error::last_os_error()),
        status => Err(io::Error::other(format!("NVMe status {status:#x}"))),
    }
}

/// A command for a SCSI disk, from scsi/sg.h.
#[repr(C)]
struct SgCommand {
    interface: libc::c_int,
    direction: libc::c_int,
    command_bytes: u8,
    sense_bytes_max: u8,
    pieces: u16,
    data_bytes: u32,
    data: *mut u8,
    command: *const u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    id: libc::c_int,
    user: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_bytes: u8,
    host_status: u16,
    driver_status: u16,
    left_bytes: libc::c_int,
    duration_ms: u32,
    info: u32,
}

/// Reads a page of the device statistics: READ LOG EXT, which changes nothing, by ATA PASS-THROUGH (16). A disk without it refuses.
fn ata_statistics(disk: &File, number: u8) -> io::Result<[u8; PAGE]> {
    const SG_IO: libc::Ioctl = 0x2285;
    const FROM_DEVICE: libc::c_int = -3;
    const PASS_THROUGH_16: u8 = 0x85;
    const PIO_IN_48_BITS: u8 = 4 << 1 | 1;
    /// From the device, in blocks, as many as the sector count says.
    const ONE_WAY: u8 = 1 << 3 | 1 << 2 | 2;
    const READ_LOG_EXT: u8 = 0x2f;
    const DEVICE_STATISTICS: u8 = 0x04;
    let mut command = [0_u8; 16];
    (command[0], command[1], command[2]) = (PASS_THROUGH_16, PIO_IN_48_BITS, ONE_WAY);
    (command[6], command[8], command[10], command[14]) = (1, DEVICE_STATISTICS, number, READ_LOG_EXT);
    let (mut page, mut sense) = ([0_u8; PAGE], [0_u8; 32]);
    let mut sg = SgCommand {
        interface: libc::c_int::from(b'S'),
        direction: FROM_DEVICE,
        command_bytes: command.len() as u8,
        sense_bytes_max: sense.len() as u8,
        pieces: 0,
        data_bytes: PAGE as u32,
        data: page.as_mut_ptr(),
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: ATA_TIMEOUT_MS,
        flags: 0,
        id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_bytes: 0,
        host_status: 0,
        driver_status: 0,
        left_bytes: 0,
        duration_ms: 0,
        info: 0,
    };
    // SAFETY: the command only reads, into `page`; the sense goes to `sense`. The sizes are theirs, and all live for the call.
    if unsafe { libc::ioctl(disk.as_raw_fd(), SG_IO, &mut sg) } != 0 {
        return Err(io::Error::last_os_error());
    }
    match (sg.status, sg.host_status, sg.driver_status, sg.left_bytes) {
        (0, 0, 0, 0) => Ok(page),
        (status, ..) => Err(io::Error::other(format!("SCSI status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A health log as the NVMe specification lays it out.
    #[test]
    fn a_health_log_has_the_percentage_and_the_bytes_written() {
        let mut page = [0_u8; PAGE];
        assert_eq!(nvme_wear(&page), None, "nothing was read");
        page[1..3].copy_from_slice(&310_u16.to_le_bytes());
        (page[3], page[4], page[5]) = (100, 10, 7);
        page[32..48].copy_from_slice(&99_u128.to_le_bytes());
        page[48..64].copy_from_slice(&2_000_000_u128.to_le_bytes());
        assert_eq!(nvme_wear(&page), Some((7, Some(2_000_000 * 512_000))));
        page[5] = 255;
        page[48..64].copy_from_slice(&u128::MAX.to_le_bytes());
        assert_eq!(nvme_wear(&page), Some((255, None)), "more than a number holds is not known");
    }

    /// Pages as the ATA command set lays them out.
    #[test]
    fn device_statistics_count_only_if_the_disk_calls_them_valid() {
        let (mut solid_state, mut general) = ([0_u8; PAGE], [0_u8; PAGE]);
        (solid_state[0], solid_state[2], general[0], general[2]) = (1, 7, 1, 1);
        solid_state[8..16].copy_from_slice(&(0xc0 << 56 | 12_u64).to_le_bytes());
        general[24..32].copy_from_slice(&(0xc0 << 56 | 1000_u64).to_le_bytes());
        assert_eq!(ata_wear(&solid_state, Some(&general)), Some((12, Some(512_000))));
        assert_eq!(ata_wear(&solid_state, None), Some((12, None)));
        assert_eq!(ata_wear(&general, None), None, "another page");
        general[31] = 0x80;
        assert_eq!(ata_wear(&solid_state, Some(&general)), Some((12, None)), "supported, and not valid");
        solid_state[15] = 0x40;
        assert_eq!(ata_wear(&solid_state, None), None, "not supported");
    }

    #[test]
    fn partitions_and_devices_on_devices_lead_to_their_whole_disks() {
        let root = tempfile::tempdir().unwrap();
        let sys = |path: &str| root.path().join(path);
        let make = |path: &str, text: &str| {
            fs::create_dir_all(sys(path).parent().unwrap()).unwrap();
            fs::write(sys(path), text).unwrap();
        };
        for disk in ["nvme0n1", "nvme1n1"] {
            make(&format!("{disk}/queue/rotational"), "0\n");
            make(&format!("{disk}/{disk}p2/partition"), "2\n");
            fs::create_dir_all(sys(&format!("{disk}/slaves"))).unwrap();
        }
        for (disk, rotational, vendor) in
            [("sda", "0\n", "ATA     \n"), ("sdb", "1\n", "ATA     \n"), ("sdc", "0\n", "Samsung \n")]
        {
            make(&format!("{disk}/queue/rotational"), rotational);
            make(&format!("{disk}/device/vendor"), vendor);
        }
        make("vda/queue/rotational", "0\n");
        make("loop0/queue/rotational", "0\n");
        // A logical volume on an array of two partitions, of which one disk has both, and of a disk that spins.
        for (upper, below) in [
            ("md0", vec!["nvme0n1/nvme0n1p2", "nvme1n1/nvme1n1p2"]),
            ("dm-0", vec!["md0", "nvme1n1", "sda", "sdb"]),
        ] {
            fs::create_dir_all(sys(&format!("{upper}/slaves"))).unwrap();
            make(&format!("{upper}/queue/rotational"), "1\n");
            for disk in below {
                let name = Path::new(disk).file_name().unwrap();
                symlink(sys(disk), sys(&format!("{upper}/slaves")).join(name)).unwrap();
            }
        }
        let found = |entry: &str| {
            let mut found = disks_below(&sys(entry));
            found.sort_by(|one, other| one.0.cmp(&other.0));
            found
        };
        let nvme = |name: &str| (name.to_owned(), WearSource::Nvme);
        assert_eq!(found("nvme0n1/nvme0n1p2"), [nvme("nvme0n1")]);
        assert_eq!(found("md0"), [nvme("nvme0n1"), nvme("nvme1n1")]);
        let sda = ("sda".to_owned(), WearSource::Ata);
        assert_eq!(found("dm-0"), [nvme("nvme0n1"), nvme("nvme1n1"), sda]);
        for silent in ["sdb", "sdc", "vda", "loop0", "none"] {
            assert_eq!(found(silent), [], "{silent} says nothing");
        }
        // Only what lies on nothing else, in this machine, is plain.
        make("nvme0n1/device/transport", "pcie\n");
        make("nvme1n1/device/transport", "tcp\n");
        make("nvme2n1/queue/rotational", "0\n");
        make("nvme2n1/device/nvme2/transport", "pcie\n");
        make("nvme3n1/queue/rotational", "0\n");
        let plain = |entry: &str| is_ssd_at(&sys(entry));
        assert!(["nvme0n1", "nvme0n1/nvme0n1p2", "nvme2n1", "sda"].into_iter().all(plain));
        let others =
            ["nvme1n1", "nvme1n1/nvme1n1p2", "nvme3n1", "sdb", "sdc", "vda", "loop0", "md0", "dm-0", "none"];
        assert_eq!(others.into_iter().find(|entry| plain(entry)), None);
        // A device below itself ends all the same.
        fs::create_dir_all(sys("dm-9/slaves")).unwrap();
        symlink(sys("dm-9"), sys("dm-9/slaves/dm-9")).unwrap();
        assert_eq!(found("dm-9"), []);
    }

    #[test]
    fn a_file_refuses_both_commands() {
        let file = tempfile::tempfile().unwrap();
        assert!(nvme_health_log(&file).is_err() && ata_statistics(&file, ATA_SOLID_STATE).is_err());
    }
}
