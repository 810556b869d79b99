//! Recognises the content of a device by its signatures, and tells a blank device from one with content that no signature names, so that
//! nothing of value is overwritten by mistake.

use std::borrow::Cow;

use dcd_engine::{BlockDevice, IoError, Lba, SECTOR_BYTES};

/// A signature: its place from the start of the device, its bytes, and what it belongs to.
struct Signature {
    at: usize,
    bytes: &'static [u8],
    what: &'static str,
}

const fn signature(at: usize, bytes: &'static [u8], what: &'static str) -> Signature {
    Signature { at, bytes, what }
}

/// Sorted by how far they are trusted: an MBR mark is found on FAT file systems too, so it comes last. A leg has its log after the label.
const SIGNATURES: [Signature; 34] = [
    signature(0, b"DCDLEGS\0", "a leg of a mirrored dcd log"),
    signature(4096, b"DCDLEGS\0", "a leg of a mirrored dcd log"),
    signature(0, b"DCDCACHE", "the log of a dcd cache"),
    signature(8192, b"DCDCACHE", "the log of a dcd cache"),
    signature(0, b"DCDBEGUN", "the log of a dcd cache whose format was cut off"),
    signature(8192, b"DCDBEGUN", "the log of a dcd cache whose format was cut off"),
    signature(0, b"DCDRAID\0", "a member of a dcd array"),
    signature(4096, b"DCDRAID\0", "a member of a dcd array"),
    signature(0, b"DCDRJRNL", "the journal of a dcd array"),
    signature(1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    signature(0, b"XFSB", "an XFS file system"),
    signature(65600, b"_BHRfS_M", "a Btrfs file system"),
    signature(1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    signature(3, b"NTFS    ", "an NTFS file system"),
    signature(3, b"EXFAT   ", "an exFAT file system"),
    signature(54, b"FAT1", "a FAT file system"),
    signature(82, b"FAT32", "a FAT file system"),
    signature(32769, b"CD001", "an ISO 9660 file system"),
    signature(0, b"hsqs", "a SquashFS file system"),
    signature(4086, b"SWAPSPACE2", "swap space"),
    signature(0, b"LUKS\xba\xbe", "a LUKS volume"),
    signature(512, b"LABELONE", "an LVM physical volume"),
    signature(0, b"LABELONE", "an LVM physical volume"),
    signature(0, b"\xfc\x4e\x2b\xa9", "a member of an md array"),
    signature(4096, b"\xfc\x4e\x2b\xa9", "a member of an md array"),
    signature(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    signature(0, b"\x21\x93\x48\x23", "a dm-writecache device"),
    signature(0, b"\x74\x73\x42\x57", "a dm-writeboost device"),
    signature(131072, b"\x0c\xb1\xba\x00", "a ZFS pool"),
    signature(512, b"EFI PART", "a GPT partition table"),
    signature(4096, b"EFI PART", "a GPT partition table"),
    signature(0, b"QFI\xfb", "a qcow2 image"),
    signature(510, b"\x55\xaa", "a partition table"),
    signature(0, b"DCDLEFT\0", "a leg that was removed from a mirrored dcd log"),
];

/// Bytes at each end of a device that must be blank; between them, samples must be.
const END_BYTES: u64 = 1 << 20;
/// Size and number of the samples: few enough for a spinning disk to read them within a second.
const SAMPLE_BYTES: u64 = 4096;
const SAMPLES: u64 = 64;

/// Names the content of a device; none for a device that is blank where it was read.
pub fn probe(device: &mut dyn BlockDevice) -> Result<Option<Cow<'static, str>>, IoError> {
    let size = device.geometry().sectors * SECTOR_BYTES;
    let start = device.read(Lba(0), size.min(END_BYTES) as usize)?;
    if let Some(what) = recognise(start.bytes()) {
        return Ok(Some(what.into()));
    }
    for (at, bytes) in read_places(size) {
        let read = device.read(Lba(at / SECTOR_BYTES), bytes as usize)?;
        if let Some(first) = first_content(read.bytes()) {
            return Ok(Some(format!("content that dcd does not know (at byte {})", at + first).into()));
        }
    }
    Ok(None)
}

/// Bytes of a log before its first record, and of a superblock there.
const LOG_BEGINS: usize = 16 << 10;
const SUPERBLOCK: usize = 4096;

/// Names what was made over the beginning of an old log of dcd; none if nothing was. A superblock that is still there has other bytes.
pub fn foreign(device: &mut dyn BlockDevice) -> Result<Option<&'static str>, IoError> {
    let size = device.geometry().sectors * SECTOR_BYTES;
    let start = device.read(Lba(0), size.min(LOG_BEGINS as u64) as usize)?;
    let start = start.bytes();
    let is_ours = |at: usize| {
        let page = &start[at / (2 * SUPERBLOCK) * 2 * SUPERBLOCK..];
        at % (2 * SUPERBLOCK) < SUPERBLOCK && page.starts_with(b"DCD")
    };
    let mut found = SIGNATURES.iter().filter(|signature| {
        start.get(signature.at..).is_some_and(|bytes| bytes.starts_with(signature.bytes))
            && !signature.bytes.starts_with(b"DCD")
            && !is_ours(signature.at)
    });
    Ok(found.next().map(|signature| signature.what))
}

/// True if the beginning of a device has a signature that is not of dcd.
pub fn holds_foreign(device: &mut dyn BlockDevice) -> Result<bool, IoError> {
    let size = device.geometry().sectors * SECTOR_BYTES;
    let start = device.read(Lba(0), size.min(END_BYTES) as usize)?;
    Ok(all_in(start.bytes()).any(|signature| !signature.bytes.starts_with(b"DCD")))
}

/// Returns the places that are read for content without a signature: the whole device where it is small, else its ends and samples between.
fn read_places(size: u64) -> Vec<(u64, u64)> {
    let middle = size.saturating_sub(2 * END_BYTES);
    if middle <= SAMPLES * SAMPLE_BYTES {
        return (0..size).step_by(END_BYTES as usize).map(|at| (at, END_BYTES.min(size - at))).collect();
    }
    let sample = |number: u64| {
        let at = END_BYTES + middle / SAMPLES * number;
        (at / SAMPLE_BYTES * SAMPLE_BYTES, SAMPLE_BYTES)
    };
    let ends = [(0, END_BYTES), (size - END_BYTES, END_BYTES)];
    ends.into_iter().chain((0..SAMPLES).map(sample)).collect()
}

/// Returns the place of the first content. Blank sectors are all zeroes, or all ones: some flash returns ones after a discard.
fn first_content(bytes: &[u8]) -> Option<u64> {
    let sectors = bytes.chunks(SECTOR_BYTES as usize).enumerate();
    let mut content = sectors
        .filter(|(_, sector)| !matches!(sector[0], 0 | 0xff) || sector.iter().any(|byte| *byte != sector[0]));
    let (number, sector) = content.next()?;
    let blank = if sector[0] == 0xff { 0xff } else { 0 };
    let within = sector.iter().position(|byte| *byte != blank).unwrap_or(0);
    Some(number as u64 * SECTOR_BYTES + within as u64)
}

fn recognise(start: &[u8]) -> Option<&'static str> {
    all_in(start).next().map(|signature| signature.what)
}

fn all_in(start: &[u8]) -> impl Iterator<Item = &'static Signature> {
    SIGNATURES.iter().filter(|s| start.get(s.at..).is_some_and(|bytes| bytes.starts_with(s.bytes)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use dcd_io::MemoryDevice;

    use super::*;

    /// Bytes at the start of a device that hold every signature.
    const PROBED_BYTES: u64 = 132 << 10;

    fn with_byte(size: u64, at: u64) -> MemoryDevice {
        let mut device = MemoryDevice::new(size);
        let mut sector = dcd_engine::Buf::zeroed(SECTOR_BYTES as usize);
        sector.bytes_mut()[(at % SECTOR_BYTES) as usize] = b'x';
        device.write(Lba(at / SECTOR_BYTES), sector).unwrap();
        device
    }

    #[test]
    fn what_was_made_over_an_old_log_is_seen_and_the_log_alone_is_not() {
        let seen = |marks: &[(usize, &[u8])]| {
            let mut device = MemoryDevice::new(1 << 20);
            let mut start = dcd_engine::Buf::zeroed(LOG_BEGINS);
            for (at, bytes) in marks {
                start.bytes_mut()[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            device.write(Lba(0), start).unwrap();
            foreign(&mut device).unwrap()
        };
        let at = |at: usize| (at, &b"DCDCACHE"[..]);
        let (log, copy) = (at(0), at(8192));
        // A superblock's sums may look like a partition table.
        assert_eq!(seen(&[log, copy, (510, b"\x55\xaa")]), None);
        // An md array leaves the first sectors, and a volume group the second superblock.
        assert_eq!(seen(&[log, copy, (4096, b"\xfc\x4e\x2b\xa9")]), Some("a member of an md array"));
        assert_eq!(seen(&[copy, (512, b"LABELONE")]), Some("an LVM physical volume"));
        assert_eq!(seen(&[copy, (4086, b"SWAPSPACE2")]), Some("swap space"));
    }

    #[test]
    fn content_without_a_signature_is_seen_at_both_ends_and_between() {
        for size in [512, 3 << 20, 64 << 20, (64 << 20) + 512] {
            assert_eq!(probe(&mut MemoryDevice::new(size)).unwrap(), None, "{size}");
            let sample = (1 << 20) + (size.saturating_sub(2 << 20) / SAMPLES * 7) / 4096 * 4096;
            for at in [0, 511, (1 << 20) - 1, sample + 4095, size.saturating_sub(1 << 20), size - 1] {
                if at < size {
                    let seen = probe(&mut with_byte(size, at)).unwrap().unwrap();
                    assert_eq!(seen, format!("content that dcd does not know (at byte {at})"), "{size}");
                }
            }
        }
        assert_eq!(first_content(&[[0xff; 512], [0; 512]].concat()), None);
        assert_eq!(first_content(&[[0; 512], [7; 512]].concat()), Some(512));
    }

    #[test]
    fn every_signature_is_within_what_is_read_and_is_found() {
        for signature in &SIGNATURES {
            let mut start = vec![0; PROBED_BYTES as usize];
            start[signature.at..signature.at + signature.bytes.len()].copy_from_slice(signature.bytes);
            assert_eq!(recognise(&start), Some(signature.what));
        }
        assert_eq!(recognise(&[0; 4096]), None);
        assert_eq!(recognise(&[]), None);
    }

    #[test]
    fn real_tools_make_what_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let tools = [
            ("mkfs.ext4", vec!["-q", "-F"], "an ext2, ext3 or ext4 file system"),
            ("mkswap", vec!["-q"], "swap space"),
        ];
        for (tool, arguments, what) in tools {
            std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
            let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            match Command::new(tool).env("PATH", path).args(arguments).arg(&image).output() {
                Ok(output) => {
                    assert!(output.status.success(), "{output:?}");
                    let start = std::fs::read(&image).unwrap();
                    assert_eq!(recognise(&start[..PROBED_BYTES as usize]), Some(what));
                }
                Err(e) => {
                    let _ = writeln!(std::io::stderr(), "SKIPPED: probe of {tool}: {e}");
                }
            }
        }
    }
}
