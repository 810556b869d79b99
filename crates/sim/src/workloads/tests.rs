//! Whole workloads on small stacks.

use dcd_engine::{Geometry, Nanos, Stack, StackBuilder};
use dcd_model::ffs::{FfsConfig, OpKind, RequestClass};
use dcd_model::{Disk, DiskConfig};

use super::{Measured, NUser, Workload, run};
use crate::{BlankDisk, Latency, VirtualDriver};

const MIB: u64 = 1 << 20;

/// The disk of 1996, plain.
fn barracuda(bytes: u64) -> (Stack, VirtualDriver<BlankDisk>) {
    let geometry = Geometry::plain(bytes / 512);
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let disk = Disk::new(&DiskConfig::default()).expect("a drive that is always there");
    let root = builder.layer("disk", Box::new(disk), &[device]);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, 1)]);
    stack.activate(&mut driver).expect("active");
    (stack, driver)
}

fn on_barracuda(bytes: u64, ffs: &FfsConfig, workload: &Workload, seed: u64) -> Measured {
    let (mut stack, mut driver) = barracuda(bytes);
    run(&mut stack, &mut driver, ffs, workload, seed).expect("it runs to its end")
}

#[test]
fn untar_copy_and_remove_write_what_ffs_writes() {
    let nuser = NUser { users: 1, ..NUser::default() };
    let measured = on_barracuda(512 * MIB, &FfsConfig::ultra_1(), &Workload::NUser(nuser), 1);
    let count =
        |phase: &str, class| measured.phase(phase).files.as_ref().unwrap().class(class).response.count();
    // Two for each file; five for each directory; more where a directory got another fragment.
    let sync = count("untar", RequestClass::SyncMetadata);
    assert!((508 * 2 + 31 * 5..508 * 2 + 31 * 5 + 100).contains(&sync), "{sync}");
    // The directory entry and the inode, of files and directories.
    assert_eq!(count("remove", RequestClass::SyncMetadata), (508 + 31) * 2);
    assert_eq!(count("copy", RequestClass::SyncMetadata), sync);
    let files = measured.phase("remove").files.as_ref().unwrap();
    assert_eq!(files.op(OpKind::Unlink).count(), 508);
    assert!(measured.phase("untar").elapsed > Nanos::from_secs(5));
}
