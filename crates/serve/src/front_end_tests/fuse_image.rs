//! The image in a real mount, used by real programs and by a loop device with a file system.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::front_end_tests::common::{Disk, SourceDriver, pattern, run_ok, skip, tool};
use dcd_engine::ErrorKind;
use dcd_io::{Actions, Ending, FrontEnd as _};
use dcd_serve::fuse::{FuseError, FuseImage, FuseOptions};
use rustix::fs::FallocateFlags;

const IMAGE_BYTES: usize = 64 << 20;

/// A mounted disk in memory.
struct Mounted {
    disk: Arc<Disk>,
    image: PathBuf,
    /// Before the directory, which can only be removed when nothing is mounted there any more.
    driver: SourceDriver,
    directory: tempfile::TempDir,
}

/// Mounts, or says why it cannot.
fn mount(logical_block_bytes: u32, options: &FuseOptions) -> Option<Mounted> {
    mount_disk(logical_block_bytes, true, options)
}

fn mount_disk(logical_block_bytes: u32, volatile_cache: bool, options: &FuseOptions) -> Option<Mounted> {
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        skip("/dev/fuse cannot be opened");
        return None;
    }
    let disk = Disk::new(IMAGE_BYTES);
    let directory = tempfile::tempdir().unwrap();
    let geometry = dcd_engine::Geometry { volatile_cache, ..disk.geometry(logical_block_bytes) };
    let source = FuseImage::mount(directory.path(), geometry, options).unwrap();
    let image = source.image().to_owned();
    let driver = SourceDriver::start(&disk, source);
    Some(Mounted { disk, image, driver, directory })
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn is_mounted(path: &Path) -> bool {
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    list.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn one_file_of_the_devices_size() {
    let Some(mut mounted) = mount(512, &FuseOptions::default()) else { return };
    let names: Vec<_> =
        std::fs::read_dir(mounted.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.img"]);
    assert_eq!(std::fs::metadata(&mounted.image).unwrap().len(), IMAGE_BYTES as u64);
    assert!(File::open(mounted.directory.path().join("other")).is_err());
    assert!(File::create(mounted.directory.path().join("new")).is_err());
    assert!(open(&mounted.image).set_len(4096).is_err(), "the size is the device's");
    assert!(open(&mounted.image).set_len(IMAGE_BYTES as u64).is_ok());
    mounted.driver.stop();
    assert!(!is_mounted(mounted.directory.path()), "unmounted when the driver stops");
    assert_eq!(std::fs::read_dir(mounted.directory.path()).unwrap().count(), 0);
}

#[test]
fn any_range_can_be_read_and_written() {
    for block in [512, 4096] {
        let Some(mounted) = mount(block, &FuseOptions::default()) else { return };
        let file = open(&mounted.image);
        let mut expected = pattern(1, 3 << 20);
        file.write_all_at(&expected, 0).unwrap();
        for (offset, len) in
            [(0, 1), (511, 2), (4095, 1), (4096, 4097), (100, 100_000), (1 << 20, 1 << 20), (777, 2 << 20)]
        {
            let data = pattern(offset as u64 + 7, len);
            file.write_all_at(&data, offset as u64).unwrap();
            expected[offset..offset + len].copy_from_slice(&data);
            let mut seen = vec![0; len];
            file.read_exact_at(&mut seen, offset as u64).unwrap();
            assert!(seen == data, "{len} bytes at {offset}, blocks of {block}");
        }
        assert!(mounted.disk.bytes.lock().unwrap()[..expected.len()] == expected, "blocks of {block}");
        // At the end: short, then nothing, then no space.
        let end = IMAGE_BYTES as u64;
        assert_eq!(file.write_at(&[1; 1000], end - 10).unwrap(), 10);
        assert_eq!(file.read_at(&mut [0; 1000], end - 10).unwrap(), 10);
        assert_eq!(file.read_at(&mut [0; 1000], end).unwrap(), 0);
        assert_eq!(file.write_at(&[1; 1000], end).unwrap_err().raw_os_error(), Some(28));
    }
}

#[test]
fn unaligned_writers_side_by_side_lose_nothing() {
    let Some(mounted) = mount(4096, &FuseOptions::default()) else { return };
    // Eight threads, each with its own bytes in blocks that all of them share.
    std::thread::scope(|scope| {
        for writer in 0..8u64 {
            let file = open(&mounted.image);
            scope.spawn(move || {
                for round in 0..200 {
                    file.write_all_at(&[writer as u8 + 1; 100], round * 800 + writer * 100).unwrap();
                }
            });
        }
    });
    let bytes = mounted.disk.bytes.lock().unwrap();
    for (at, byte) in bytes[..160_000].iter().enumerate() {
        assert_eq!(usize::from(*byte), at % 800 / 100 + 1, "byte {at}");
    }
}

#[test]
fn fio_verifies_ranges_of_any_length() {
    let Some(mounted) = mount(4096, &FuseOptions::default()) else { return };
    let Some(fio) = tool("fio") else { return };
    let target = format!("--filename={}", mounted.image.display());
    for engine in [&["--ioengine=psync"][..], &["--ioengine=libaio", "--iodepth=16"]] {
        let arguments = [
            "--name=any",
            &target,
            "--rw=randwrite",
            "--bsrange=64-40000",
            "--bs_unaligned",
            "--size=8m",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--do_verify=1",
            "--fsync=50",
        ];
        run_ok(&fio, &[&arguments[..], engine].concat());
    }
}

#[test]
fn many_requests_are_in_flight_at_once() {
    let Some(mounted) = mount(512, &FuseOptions::default()) else { return };
    let batch = || mounted.disk.batch_max.swap(0, Ordering::Relaxed);
    mounted.disk.slow.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for writer in 0..32 {
            let file = open(&mounted.image);
            scope.spawn(move || {
                for round in 0..4 {
                    file.write_all_at(&[1; 4096], (round * 32 + writer) * 4096).unwrap();
                }
            });
        }
    });
    assert!(batch() >= 24, "one file, 32 writers");
    // What a loop device does: one submitter, asynchronous direct I/O.
    let Some(fio) = tool("fio") else { return };
    let target = format!("--filename={}", mounted.image.display());
    for direction in ["--rw=randwrite", "--rw=randread"] {
        batch();
        let arguments = ["--name=depth", &target, direction, "--bs=4k", "--io_size=2m", "--direct=1"];
        run_ok(&fio, &[&arguments[..], &["--ioengine=libaio", "--iodepth=32"]].concat());
        assert!(batch() >= 24, "{direction} at depth 32");
    }
}

#[test]
fn syncs_flush_and_synchronous_writes_are_durable() {
    let Some(mounted) = mount(512, &FuseOptions::default()) else { return };
    let file = open(&mounted.image);
    file.write_all_at(&[1; 4096], 0).unwrap();
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&mounted.disk.flushes), count(&mounted.disk.durable)), (0, 0));
    file.sync_data().unwrap();
    assert_eq!(count(&mounted.disk.flushes), 1);
    let synchronous = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::DSYNC.bits() as i32)
        .open(&mounted.image);
    synchronous.unwrap().write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(count(&mounted.disk.durable), 1);
}

#[test]
fn a_disk_whose_answers_are_durable_is_not_flushed() {
    let Some(mounted) = mount_disk(512, false, &FuseOptions::default()) else { return };
    let file = open(&mounted.image);
    for _ in 0..2 {
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
    }
    assert_eq!(mounted.disk.flushes.load(Ordering::Relaxed), 0);
}

#[test]
fn holes_and_zeroes_of_any_range() {
    let Some(mounted) = mount(4096, &FuseOptions::default()) else { return };
    let file = open(&mounted.image);
    let mut expected = pattern(3, 1 << 20);
    file.write_all_at(&expected, 0).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    for (mode, offset, len) in [
        (FallocateFlags::PUNCH_HOLE | keep, 4096, 8192),
        (FallocateFlags::ZERO_RANGE | keep, 100_000, 50_000),
        (FallocateFlags::PUNCH_HOLE | keep, 200_001, 3),
        (FallocateFlags::ZERO_RANGE, 300_000, 5000),
    ] {
        rustix::fs::fallocate(&file, mode, offset as u64, len as u64).unwrap();
        expected[offset..offset + len].fill(0);
    }
    assert!(mounted.disk.bytes.lock().unwrap()[..expected.len()] == expected);
    assert_eq!(mounted.disk.discards.load(Ordering::Relaxed), 1);
    assert_eq!(mounted.disk.zeroes.load(Ordering::Relaxed), 1, "the last one has no whole block");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096).unwrap();
    assert!(rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).is_err());
    // A hole beyond the end is clipped to the file.
    let end = IMAGE_BYTES as u64;
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, end - 4096, 1 << 30).unwrap();
}

#[test]
fn errors_reach_the_program() {
    let Some(mounted) = mount(512, &FuseOptions::default()) else { return };
    let file = open(&mounted.image);
    for (kind, errno) in
        [(ErrorKind::Medium, 5), (ErrorKind::Lost, 5), (ErrorKind::NoSpace, 28), (ErrorKind::Shutdown, 108)]
    {
        *mounted.disk.failing.lock().unwrap() = Some(kind);
        assert_eq!(file.write_at(&[1; 512], 0).unwrap_err().raw_os_error(), Some(errno), "{kind:?}");
        assert_eq!(file.write_at(&[1; 10], 0).unwrap_err().raw_os_error(), Some(errno), "{kind:?}");
        assert_eq!(file.read_at(&mut [1; 512], 0).unwrap_err().raw_os_error(), Some(errno), "{kind:?}");
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(errno), "{kind:?}");
    }
    *mounted.disk.failing.lock().unwrap() = None;
    file.write_all_at(&[1; 512], 0).unwrap();
}

#[test]
fn a_read_only_image_cannot_be_written() {
    let options = FuseOptions { read_only: true, image_name: "ro".to_owned(), ..FuseOptions::default() };
    let Some(mounted) = mount(512, &options) else { return };
    assert!(mounted.image.ends_with("ro"));
    assert!(OpenOptions::new().write(true).open(&mounted.image).is_err());
    File::open(&mounted.image).unwrap().read_exact_at(&mut [0; 512], 0).unwrap();
}

#[test]
fn an_image_whose_removal_was_called_off_is_served() {
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return skip("/dev/fuse cannot be opened");
    }
    let disk = Disk::new(IMAGE_BYTES);
    let directory = tempfile::tempdir().unwrap();
    let mut source = FuseImage::mount(directory.path(), disk.geometry(512), &FuseOptions::default()).unwrap();
    assert!(matches!(source.withdraw(), Ending::Remove(_)));
    source.stay(&mut Actions::default());
    let image = source.image().to_owned();
    let _driver = SourceDriver::start(&disk, source);
    open(&image).write_all_at(&[1; 512], 0).unwrap();
}

#[test]
fn a_directory_in_use_is_refused_and_names_are_checked() {
    let Some(mounted) = mount(512, &FuseOptions::default()) else { return };
    let geometry = mounted.disk.geometry(512);
    let again = FuseImage::mount(mounted.directory.path(), geometry, &FuseOptions::default());
    assert!(matches!(again.err(), Some(FuseError::Occupied { .. })));
    let nowhere = mounted.directory.path().with_extension("missing");
    let missing = FuseImage::mount(&nowhere, geometry, &FuseOptions::default());
    assert!(matches!(missing.err(), Some(FuseError::NotADirectory { .. })));
    for name in ["", "..", "a/b"] {
        let options = FuseOptions { image_name: name.to_owned(), ..FuseOptions::default() };
        let named = FuseImage::mount(&nowhere, geometry, &options);
        assert!(matches!(named.err(), Some(FuseError::Name(_))), "{name:?}");
    }
}

/// A loop device over the image; taken off when it is dropped.
struct Loop {
    device: String,
}

impl Loop {
    fn attach(image: &Path) -> Option<Loop> {
        let losetup = tool("losetup")?;
        let output = crate::front_end_tests::common::run(
            &losetup,
            &["--direct-io=on", "-f", "--show", image.to_str().unwrap()],
        );
        if !output.status.success() {
            skip(&format!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return None;
        }
        Some(Loop { device: String::from_utf8(output.stdout).unwrap().trim().to_owned() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        crate::front_end_tests::common::run(Path::new("/usr/sbin/losetup"), &["-d", &self.device]);
    }
}

#[test]
fn a_file_system_on_a_loop_device() {
    for volatile_cache in [true, false] {
        file_system_on_a_loop_device(volatile_cache);
    }
}

fn file_system_on_a_loop_device(volatile_cache: bool) {
    let Some(mut mounted) = mount_disk(512, volatile_cache, &FuseOptions::default()) else { return };
    let (Some(mkfs), Some(e2fsck), Some(fstrim), Some(fio)) =
        (tool("mkfs.ext4"), tool("e2fsck"), tool("fstrim"), tool("fio"))
    else {
        return;
    };
    let (mount_tool, umount_tool) = (Path::new("/usr/bin/mount"), Path::new("/usr/bin/umount"));
    {
        let Some(device) = Loop::attach(&mounted.image) else { return };
        let direct = run_ok(Path::new("/usr/sbin/losetup"), &["-n", "-O", "DIO", &device.device]);
        assert_eq!(direct.trim(), "1", "direct I/O took");
        run_ok(&mkfs, &["-q", "-F", &device.device]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        run_ok(mount_tool, &[&device.device, path]);
        let target = format!("--directory={path}");
        let verified = crate::front_end_tests::common::run(
            &fio,
            &[
                "--name=verify",
                &target,
                "--rw=randwrite",
                "--bs=4k",
                "--size=8m",
                "--verify=crc32c",
                "--direct=1",
                "--ioengine=libaio",
                "--iodepth=16",
                "--fsync=64",
                "--verify_state_save=0",
            ],
        );
        let trimmed = crate::front_end_tests::common::run(&fstrim, &["-v", path]);
        run_ok(umount_tool, &[path]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        assert!(trimmed.status.success(), "{}", String::from_utf8_lossy(&trimmed.stderr));
        run_ok(&e2fsck, &["-fn", &device.device]);
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(count(&mounted.disk.flushes) > 0, volatile_cache);
    assert!(count(&mounted.disk.discards) > 0);
    mounted.driver.stop();
    // What lies on the device is the file system, whoever reads it.
    let plain = mounted.directory.path().join("plain");
    std::fs::write(&plain, &*mounted.disk.bytes.lock().unwrap()).unwrap();
    run_ok(&e2fsck, &["-fn", plain.to_str().unwrap()]);
}

const CHILD_DIRECTORY: &str = "DCD_TEST_MOUNT_AND_WAIT";

/// The child of the next test: mounts, serves nothing, and waits to be killed.
#[test]
#[ignore = "started by a_mount_that_a_killed_server_left_is_taken_away"]
fn a_server_that_is_killed() {
    let directory = std::env::var(CHILD_DIRECTORY).expect("its parent says where");
    let disk = Disk::new(1 << 20);
    let image = FuseImage::mount(Path::new(&directory), disk.geometry(512), &FuseOptions::default());
    let _image = image.unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Waits up to ten seconds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what} within ten seconds");
}

#[test]
fn a_mount_that_a_killed_server_left_is_taken_away() {
    if mount(512, &FuseOptions::default()).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "front_end_tests::fuse_image::a_server_that_is_killed"])
        .env(CHILD_DIRECTORY, directory.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the child mounts", || is_mounted(directory.path()));
    let disk = Disk::new(1 << 20);
    let again = || FuseImage::mount(directory.path(), disk.geometry(512), &FuseOptions::default());
    assert!(matches!(again().err(), Some(FuseError::Occupied { .. })), "it is still served");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_mounted(directory.path()));
    let error = std::fs::read_dir(directory.path()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "nobody answers for it");

    let image = again().unwrap();
    let path = image.image().to_owned();
    let mut driver = SourceDriver::start(&disk, image);
    open(&path).write_all_at(&[5; 4096], 0).unwrap();
    driver.stop();
    assert_eq!(disk.bytes.lock().unwrap()[..4096], [5; 4096]);
    assert!(!is_mounted(directory.path()));
}

#[test]
fn what_others_have_mounted_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    if !crate::front_end_tests::common::run(Path::new("/usr/bin/mount"), &["-t", "tmpfs", "none", path])
        .status
        .success()
    {
        return skip("no right to mount");
    }
    let error =
        FuseImage::mount(directory.path(), Disk::new(1 << 20).geometry(512), &FuseOptions::default()).err();
    let left = is_mounted(directory.path());
    run_ok(Path::new("/usr/bin/umount"), &[path]);
    assert!(left && matches!(error, Some(FuseError::Occupied { kind, .. }) if kind == "tmpfs"));
}

#[test]
fn a_server_stops_although_the_image_is_in_use() {
    let Some(mut mounted) = mount(512, &FuseOptions::default()) else { return };
    let file = open(&mounted.image);
    file.write_all_at(&[1; 512], 0).unwrap();
    mounted.driver.stop();
    assert!(!is_mounted(mounted.directory.path()));
    assert!(file.write_at(&[1; 512], 0).is_err(), "an error, and no wait for ever");
    assert!(file.sync_all().is_err());
}
