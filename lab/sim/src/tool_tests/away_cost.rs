//! Measures what clients pay for marking the tracts that a missing member lacks, beside the same array with all marked before.

use dcd_crash::{MemDisk, SimRng, VirtualDriver};
use dcd_engine::raid::offline::{create, mark_failed};
use dcd_engine::raid::{ArraySuperblock, DATA_SECTOR, Level, RaidConfig, RaidLayer};
use dcd_engine::{
    BlockDevice, Buf, Durability, Geometry, Io, LINE_BYTES, LINE_SECTORS, LayerIndex, Lba, Nanos, Pump,
    RequestId, Stack, StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig};

const MEMBERS: usize = 5;
/// All of the drive but a little.
const MEMBER_SECTORS: u64 = DATA_SECTOR + 500_000 * 256;
const JOURNAL_SECTORS: u64 = 1 << 18;
const TIME: Nanos = Nanos::from_secs(60);

/// A degraded array over modelled disks, whose member 0 is away.
fn degraded(all_marked: bool, journal: bool) -> (Stack, VirtualDriver<MemDisk>) {
    let config = RaidConfig {
        level: Level::Raid5,
        strip_sectors: 256,
        present: vec![true; MEMBERS],
        journal,
        cache_bytes: 64 << 20,
        ..RaidConfig::default()
    };
    let member = Geometry::plain(MEMBER_SECTORS);
    let mut disks: Vec<MemDisk> = (0..MEMBERS).map(|_| MemDisk::instant(member)).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        disks.iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
    create(&mut all, &config, *b"one member's out", true).expect("made");
    mark_failed(&mut all, 0).expect("the parity makes up for it");
    if all_marked {
        for disk in &mut disks[1..] {
            let (mut superblock, identity) = ArraySuperblock::read(disk).expect("a member");
            for tract in 0..superblock.missed_regions_max() {
                superblock.away.missed.insert(tract);
            }
            superblock.generation += 2;
            disk.run(superblock.write(identity)).status.expect("written");
        }
    }
    if journal {
        disks.push(MemDisk::instant(Geometry::plain(JOURNAL_SECTORS)));
    }
    let mut builder = StackBuilder::new();
    let drive = DiskConfig { drive: "cheetah-15k4".to_owned(), ..DiskConfig::default() };
    let mut modelled = |disk: &MemDisk| {
        let device = builder.device(BlockDevice::geometry(disk));
        builder.layer("disk", Box::new(Disk::new(&drive).expect("a drive that is there")), &[device])
    };
    let ports: Vec<Target> = disks.iter().map(&mut modelled).collect();
    let root = builder.layer("array", Box::new(RaidLayer::new(config)), &ports);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(disks);
    stack.activate(&mut driver).expect("active");
    (stack, driver)
}

/// Writes in a minute by clients that each write 4 KiB anywhere and wait for that, and updates of the superblocks.
fn writes(clients: u64, durability: Durability, all_marked: bool, journal: bool) -> (u64, u64) {
    let (mut stack, mut driver) = degraded(all_marked, journal);
    let mut rng = SimRng::new(7);
    let blocks = stack.geometry(stack.root()).sectors / LINE_SECTORS;
    let mut ask = |id: u64, driver: &mut VirtualDriver<MemDisk>, stack: &mut Stack| {
        let at = Lba(rng.below(blocks) * LINE_SECTORS);
        let io = Io::Write { at, buf: Buf::blank(LINE_BYTES as usize), durability };
        driver.request(stack, RequestId(id), io);
    };
    (0..clients).for_each(|id| ask(id, &mut driver, &mut stack));
    let (end, mut done) = (driver.now() + TIME, 0);
    while driver.now() < end {
        driver.step(&mut stack);
        while let Some((_, result)) = driver.take_reply() {
            result.status.expect("the parity makes up for it");
            done += 1;
            ask(clients + done, &mut driver, &mut stack);
        }
    }
    let array = LayerIndex(stack.layer_count() - 1);
    let updates = &stack.layer(array).status(driver.now()).to_json()["statistics"]["superblocks"];
    (done, updates.as_u64().expect("counted"))
}

#[test]
fn marks_for_a_member_that_is_away_cost_clients_little() {
    for (clients, durability, journal) in [
        (16, Durability::Volatile, true),
        (16, Durability::Volatile, false),
        (16, Durability::Durable, true),
        (1, Durability::Durable, true),
    ] {
        let (marking, updates) = writes(clients, durability, false, journal);
        let (marked, before) = writes(clients, durability, true, journal);
        let ratio = marking as f64 / marked as f64;
        let told = format!(
            "{clients} clients, {durability:?}, journal {journal}: {marking} writes and {updates} updates, beside {marked} and \
             {before} with all marked: {ratio:.3}"
        );
        println!("{told}");
        assert!(ratio > 0.9, "{told}");
    }
}
