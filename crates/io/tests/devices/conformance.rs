//! The suite for every device, on real files: in memory and on a disk, buffered and direct.

use std::path::Path;

use dcd_engine::testing::{conformance, conformance_read_only};
use dcd_engine::{BlockDevice, Buf, Durability, Io, Lba};
use dcd_io::{Device, DeviceError, DeviceSpec, Direct, FileDevice, FileSpec, MemoryDevice, reserve_space};

const SIZE: u64 = 16 << 20;

fn made(dir: &Path, direct: Direct) -> FileSpec {
    FileSpec { create: Some(SIZE), direct, ..FileSpec::new(dir.join("disk")) }
}

/// A directory on a disk (where the build is) and one in memory, if there is such a place.
fn places() -> Vec<tempfile::TempDir> {
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory beside the build");
    let in_memory = tempfile::tempdir_in("/dev/shm").ok();
    std::iter::once(on_disk).chain(in_memory).collect()
}

#[test]
fn memory_conforms() {
    let mut memory = MemoryDevice::new(SIZE);
    conformance(&mut memory, 1);
    assert!(memory.bytes_used() <= SIZE);
}

#[test]
fn files_conform_buffered_and_direct() {
    for dir in places() {
        for direct in [Direct::Never, Direct::Auto] {
            let mut file = FileDevice::open(&made(dir.path(), direct)).expect("open");
            println!("{}: direct {}, {:?}", file.name(), file.is_direct(), file.geometry());
            conformance(&mut file, 2);
        }
    }
}

#[test]
fn preallocated_files_conform() {
    for dir in places() {
        let spec = made(dir.path(), Direct::Auto);
        let mut device = FileDevice::open(&spec).expect("open");
        let bytes = std::fs::metadata(&spec.path).expect("made").len();
        reserve_space(&spec.path, 0..bytes).expect("there is space");
        conformance(&mut device, 3);
    }
}

#[test]
fn read_only_files_take_no_writes() {
    let dir = &places()[0];
    drop(FileDevice::open(&made(dir.path(), Direct::Auto)).expect("made"));
    let spec = FileSpec { read_only: true, ..FileSpec::new(dir.path().join("disk")) };
    let mut first = FileDevice::open(&spec).expect("open");
    conformance_read_only(&mut first);
    FileDevice::open(&spec).expect("readers share");
    let writer =
        FileDevice::open(&FileSpec::new(dir.path().join("disk"))).err().expect("a reader keeps writers out");
    assert!(matches!(writer, DeviceError::Busy { .. }));
}

#[test]
fn a_second_opening_is_refused_until_the_first_ends() {
    for dir in places() {
        let spec = made(dir.path(), Direct::Auto);
        let first = Device::open(&DeviceSpec::File(spec.clone())).expect("open");
        let error = FileDevice::open(&spec).err().expect("the second opening is refused");
        assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
        assert!(error.to_string().contains("Stop its user first"), "{error}");
        drop(first);
        FileDevice::open(&spec).expect("free again");
    }
}

#[test]
fn odd_addresses_are_written_direct() {
    let dir = &places()[0];
    let mut file = FileDevice::open(&made(dir.path(), Direct::Auto)).expect("open");
    let block = file.geometry().logical_block_bytes as usize;
    let mut all = Buf::copy_of(&vec![7; 4 * block]);
    all.bytes_mut()[block..2 * block].fill(9);
    all.share();
    let window = all.window(block, 2 * block);
    let status = file.run(Io::Write { at: Lba(0), buf: window, durability: Durability::Durable }).status;
    status.expect("a window that starts inside a page is written");
    let read = file.read(Lba(0), 2 * block).expect("read");
    assert_eq!((read.bytes()[0], read.bytes()[block]), (9, 7));
}

#[test]
fn an_existing_file_keeps_its_size() {
    let dir = &places()[0];
    drop(FileDevice::open(&made(dir.path(), Direct::Auto)).expect("made"));
    let other = FileSpec { create: Some(2 * SIZE), ..FileSpec::new(dir.path().join("disk")) };
    let error = FileDevice::open(&other).err().expect("another size is refused");
    assert!(error.to_string().contains("16777216 bytes"), "{error}");
}

#[test]
fn what_is_no_device_is_refused_with_advice() {
    let dir = &places()[0];
    let error = FileDevice::open(&FileSpec::new(dir.path())).err().expect("a directory");
    assert!(matches!(error, DeviceError::Unsuitable { .. }), "{error}");
    let error = FileDevice::open(&FileSpec::new(dir.path().join("none"))).err().expect("nothing there");
    assert!(matches!(error, DeviceError::NotFound { .. }), "{error}");
    std::fs::write(dir.path().join("tiny"), [0; 100]).expect("write");
    let error = FileDevice::open(&FileSpec::new(dir.path().join("tiny"))).err().expect("too small");
    assert!(matches!(error, DeviceError::Unsuitable { .. }), "{error}");
}
