//! A stack is activated and used while nobody is connected: the driver as a pump.

use dcd_engine::layers::slice::Slice;
use dcd_engine::testing::conformance;
use dcd_engine::{Extent, Lba, StackBuilder, StackDevice, Target};
use dcd_io::{Device, DeviceSpec, Direct, Driver, FileSpec};

/// The suite through the ring: on a disk (O_DIRECT and buffered), in memory (at once), and in RAM.
#[test]
fn stacks_over_devices_conform() {
    // A process that another test starts has the lock of a closed file for a moment: each device has its own.
    let [on_disk, again] = [(); 2].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = |dir: &tempfile::TempDir, direct| {
        let path = dir.path().join("disk");
        DeviceSpec::File(FileSpec { create: Some(16 << 20), direct, ..FileSpec::new(path) })
    };
    let specs = [
        file(&on_disk, Direct::Auto),
        file(&again, Direct::Never),
        file(&in_memory, Direct::Auto),
        DeviceSpec::Memory { bytes: 16 << 20 },
    ];
    for spec in specs {
        let mut driver = Driver::new().unwrap();
        let device = Device::open(&spec).unwrap();
        println!("{}: direct {}", device.name(), device.is_direct());
        let mut builder = StackBuilder::new();
        let disk = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let slice = Slice::new(Extent::new(Lba(2048), 8192));
        let root = builder.layer("slice", Box::new(slice), &[disk]);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).expect("the slice fits");
        conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target: root }, 4);
        conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target: disk }, 5);
        assert_eq!(stack.in_flight(), 0);
    }
}

#[test]
fn a_layer_that_does_not_fit_is_named() {
    let mut driver = Driver::new().unwrap();
    let device = Device::open(&DeviceSpec::Memory { bytes: 1 << 20 }).unwrap();
    let mut builder = StackBuilder::new();
    let disk: Target = builder.device(device.geometry());
    driver.add_device(device).unwrap();
    let root = builder.layer("half", Box::new(Slice::new(Extent::new(Lba(2000), 2000))), &[disk]);
    let error = builder.finish(root).activate(&mut driver).expect_err("too long");
    assert!(error.to_string().contains("half"), "{error}");
}
