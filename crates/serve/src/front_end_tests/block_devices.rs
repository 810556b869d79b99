//! Real block devices: loop devices over files. Needs root and loop devices; says so and passes where there are none.
//!
//! These tests start programs. Between its fork and its exec such a child holds the locks of its whole process, so no test that opens a file
//! again may be in the same process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dcd_engine::testing::conformance;
use dcd_engine::{BlockDevice, StackBuilder, StackDevice};
use dcd_io::{Device, DeviceError, DeviceSpec, Direct, Driver, FileDevice, FileSpec};

/// A loop device, taken away in the end.
struct Loop {
    device: PathBuf,
}

impl Loop {
    fn new(file: &Path, options: &[&str]) -> Option<Loop> {
        let done =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output().ok()?;
        if !done.status.success() {
            println!("skipped: no loop device: {}", String::from_utf8_lossy(&done.stderr).trim());
            return None;
        }
        Some(Loop { device: PathBuf::from(String::from_utf8(done.stdout).ok()?.trim()) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn backing(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("backing");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    path
}

fn conforms(options: &[&str], direct: Direct, block: u32) {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&backing(&dir), options) else { return };
    let spec = FileSpec { direct, ..FileSpec::new(&device.device) };
    let mut file = FileDevice::open(&spec).expect("open");
    println!("direct {}, {:?}", file.is_direct(), file.geometry());
    assert_eq!((file.geometry().sectors, file.geometry().logical_block_bytes), (32768, block));
    conformance(&mut file, 6);

    // The same device through the ring, its lock held all the time.
    let device = file.into_device();
    let mut driver = Driver::new().unwrap();
    let mut builder = StackBuilder::new();
    let root = builder.device(device.geometry());
    driver.add_device(device).unwrap();
    let mut stack = builder.finish(root);
    conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target: root }, 7);
    let error = Device::open(&DeviceSpec::File(spec)).err().expect("it is in use");
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
}

#[test]
fn block_devices_conform() {
    conforms(&[], Direct::Auto, 512);
    conforms(&[], Direct::Never, 512);
    conforms(&["--sector-size", "4096"], Direct::Auto, 4096);
}

#[test]
fn a_device_that_takes_no_writes_is_opened_for_reading_only() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&backing(&dir), &["--read-only"]) else { return };
    let spec = FileSpec::new(&device.device);
    let error = FileDevice::open(&spec).err().expect("it takes no writes");
    assert!(error.to_string().contains("it is read only"), "{error}");
    assert!(FileDevice::open(&FileSpec { read_only: true, ..spec }).is_ok());
}

#[test]
fn a_file_under_a_loop_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = backing(&dir);
    let Some(device) = Loop::new(&file, &[]) else { return };
    let error = FileDevice::open(&FileSpec::new(&file)).err().expect("a loop device stands on it");
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    let readers = FileSpec { read_only: true, ..FileSpec::new(&file) };
    // A program that another test starts has the descriptors of this process until it runs, and so the lock of the refused open.
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(error) = FileDevice::open(&readers) {
        assert!(Instant::now() < end, "looking does no harm: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(device);
}

#[test]
fn a_mounted_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&backing(&dir), &[]) else { return };
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device.device).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no mkfs.ext4");
        return;
    }
    let place = dir.path().join("mounted");
    std::fs::create_dir(&place).unwrap();
    let mounted = Command::new("mount").arg(&device.device).arg(&place).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: mounting is not allowed");
        return;
    }
    let error = FileDevice::open(&FileSpec::new(&device.device)).err();
    let _ = Command::new("umount").arg(&place).status();
    assert!(matches!(error, Some(DeviceError::Busy { .. })), "{error:?}");
}
