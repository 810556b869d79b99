//! Measures how fast a spare is filled on modelled disks, and how fast one of them is read or written from end to end in
//! pieces of the same size; and the same for a scrub.
//!
//! `cargo run --release -p dcd-sim --example rebuild_speed [DRIVE] [MEMBERS] [GiB of each member]`

use std::error::Error;

use dcd_crash::{DriverProgress, MemDisk, VirtualDriver};
use dcd_engine::raid::offline::make_spare;
use dcd_engine::raid::{Level, RaidConfig, RaidLayer, create};
use dcd_engine::{
    ArrayCommand, BlockDevice, Buf, Control, Durability, Geometry, Io, LayerIndex, Lba, Nanos, Pump,
    RequestId, SECTOR_BYTES, Stack, StackBuilder,
};
use dcd_model::{Disk, DiskConfig, Drive, WriteCache, drive};

/// Windows of a pass, and requests of the plain runs, that are under way together.
const DEPTH: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("cheetah-15k4", String::as_str);
    let members = arguments.get(1).map_or(Ok(5), |members| members.parse::<usize>())?;
    let gib = arguments.get(2).map_or(Ok(8), |gib| gib.parse::<u64>())?;
    let drive = drive::builtin(name)?;
    let sectors = drive.sectors().min((gib << 30) / SECTOR_BYTES);
    println!("{name}, {members} members, {gib} GiB of each");
    for write_cache in [WriteCache::Off, WriteCache::On] {
        let setup = Setup { drive: &drive, members, sectors, write_cache };
        println!("write cache {write_cache:?}:");
        let (read, write) = (setup.plain(false)?, setup.plain(true)?);
        println!("  one member   read {read:.1} MB/s, written {write:.1} MB/s");
        for level in [Level::Raid5, Level::Raid6] {
            let (rebuild, scrub) = setup.passes(level)?;
            let (least, filled) = (read.min(write), rebuild / read.min(write));
            println!("  {level:?} rebuild {rebuild:.1} MB/s of each member: {filled:.3} of {least:.1}");
            println!("  {level:?} scrub   {scrub:.1} MB/s of each member: {:.3} of {read:.1}", scrub / read);
        }
    }
    Ok(())
}

struct Setup<'a> {
    drive: &'a Drive,
    members: usize,
    sectors: u64,
    write_cache: WriteCache,
}

impl Setup<'_> {
    fn device(&self) -> MemDisk {
        MemDisk::instant(Geometry { volatile_cache: false, ..Geometry::plain(self.sectors) })
    }

    fn disk(&self) -> Box<Disk> {
        let config =
            DiskConfig { queue_depth: Some(32), write_cache: self.write_cache, ..DiskConfig::default() };
        Box::new(Disk::with_drive(self.drive.clone(), &config))
    }

    /// Returns the sectors that a window of a pass has of each member.
    fn piece_sectors(&self) -> u64 {
        let strip = RaidConfig::default().strip_sectors;
        let share = RaidConfig::default().pass_bytes / (DEPTH * self.members as u64) / SECTOR_BYTES;
        (share / strip).max(1) * strip
    }

    /// MB/s of one disk that is read or written in ascending order.
    fn plain(&self, writes: bool) -> Result<f64, Box<dyn Error>> {
        let mut driver = VirtualDriver::new(vec![self.device()]);
        let mut builder = StackBuilder::new();
        let device = builder.device(driver.geometries()[0]);
        let root = builder.layer("disk", self.disk(), &[device]);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver)?;
        let (piece, mut next, mut done) = (self.piece_sectors(), 0, 0);
        let pieces = self.sectors / piece;
        while done < pieces {
            while next < pieces && next < done + DEPTH {
                let (at, buf) = (Lba(next * piece), Buf::blank((piece * SECTOR_BYTES) as usize));
                let io = match writes {
                    true => Io::Write { at, buf, durability: Durability::Volatile },
                    false => Io::Read { at, buf },
                };
                driver.request(&mut stack, RequestId(next), io);
                next += 1;
            }
            driver.step(&mut stack);
            while driver.take_reply().is_some() {
                done += 1;
            }
        }
        Ok(rate(pieces * piece, driver.now()))
    }

    /// MB/s of each member while the last one is rebuilt on a spare, and in a scrub afterwards.
    fn passes(&self, level: Level) -> Result<(f64, f64), Box<dyn Error>> {
        let mut present = vec![true; self.members];
        present[self.members - 1] = false;
        let config = RaidConfig { level, present, spares: vec![true], ..RaidConfig::default() };
        let mut devices: Vec<MemDisk> = (0..self.members).map(|_| self.device()).collect();
        let (spare, all) = devices.split_last_mut().ok_or("an array has members")?;
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            all.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
        all.push(None);
        let made = create(&mut all, &config, *b"rebuilt for time", true)?;
        make_spare(spare, &made, 7)?;
        let mut driver = VirtualDriver::new(devices);
        let mut builder = StackBuilder::new();
        let mut ports = Vec::new();
        for (index, geometry) in driver.geometries().into_iter().enumerate() {
            let device = builder.device(geometry);
            ports.push(builder.layer(&format!("disk{index}"), self.disk(), &[device]));
        }
        let root = builder.layer("array", Box::new(RaidLayer::new(config)), &ports);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver)?;
        let array = LayerIndex(stack.layer_count() - 1);
        // A blank buffer says that this is a study of timing.
        driver.request(&mut stack, RequestId(0), Io::Read { at: Lba(0), buf: Buf::blank(4096) });
        let rebuild = run(&mut driver, &mut stack, array, &made)?;
        driver.control(&mut stack, array, Control::Array(ArrayCommand::Scrub { repair: false }));
        Ok((rebuild, run(&mut driver, &mut stack, array, &made)?))
    }
}

/// Lets a pass come to its end.
fn run(
    driver: &mut VirtualDriver<MemDisk>,
    stack: &mut Stack,
    array: LayerIndex,
    made: &dcd_engine::raid::ArraySuperblock,
) -> Result<f64, Box<dyn Error>> {
    let began = driver.now();
    loop {
        for _ in 0..200 {
            if driver.step(stack) == DriverProgress::Idle {
                break;
            }
        }
        let status = stack.layer(array).status(driver.now()).to_json();
        if status["state"] == "good" && status["pass"].is_null() {
            return Ok(rate(made.member_sectors, Nanos(driver.now().0 - began.0)));
        }
        if status["state"] == "broken" {
            return Err(format!("the array broke: {status}").into());
        }
    }
}

fn rate(sectors: u64, took: Nanos) -> f64 {
    (sectors * SECTOR_BYTES) as f64 / 1e6 / took.as_secs_f64()
}
