//! Recognises the content of a device by its signatures, so that nothing of value is overwritten by mistake.

use dcd_engine::{BlockDevice, IoError, Lba, SECTOR_BYTES};

/// Number of bytes that are read from the start of a device: enough for every signature below.
const PROBED_BYTES: u64 = 132 << 10;

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
const SIGNATURES: [Signature; 31] = [
    signature(0, b"DCDLEGS\0", "a leg of a mirrored dcd log"),
    signature(4096, b"DCDLEGS\0", "a leg of a mirrored dcd log"),
    signature(0, b"DCDCACHE", "the log of a dcd cache"),
    signature(8192, b"DCDCACHE", "the log of a dcd cache"),
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
];

/// Names the content of a device by its start; none where nothing is recognised.
pub fn probe(device: &mut dyn BlockDevice) -> Result<Option<&'static str>, IoError> {
    let bytes = (device.geometry().sectors * SECTOR_BYTES).min(PROBED_BYTES) as usize;
    let start = device.read(Lba(0), bytes)?;
    Ok(recognise(start.bytes()))
}

fn recognise(start: &[u8]) -> Option<&'static str> {
    let found = |s: &&Signature| start.get(s.at..s.at + s.bytes.len()).is_some_and(|bytes| bytes == s.bytes);
    SIGNATURES.iter().find(found).map(|signature| signature.what)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

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
