//! A modelled array behind one of the paper's three caches.

use dcd_crash::{VirtualDriver, mix};
use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::WhenPolicy;
use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::layers::slice::Slice;
use dcd_engine::raid::contiguity::{Contiguity, Strides};
use dcd_engine::raid::{CacheMemory, CacheUnit, Level, MEMBERS_MAX, RaidConfig, RaidLayer, create};
use dcd_engine::{BlockDevice, Extent, Lba, Nanos, SECTOR_BYTES, Stack, StackBuilder, Target};
use dcd_model::ffs::{CpuCosts, FfsConfig, Placement};
use dcd_model::{Disk, DiskConfig, ReadAhead as DiskReadAhead};
use dcd_sim::workloads::{self, Aged, Aging, Measured, RunError, Workload};

use crate::elevator::Elevator;
use crate::params::drive_of;
use crate::rig::{Medium, Rig};
use crate::{LabError, Sample, Settings};

/// Cache between the host and the members (Baek and Park, section IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// A cache of parity block groups, as Linux md has.
    Pbgc,
    /// A stripe cache.
    Sc,
    /// A stripe cache with the contiguity transform.
    MscCt,
}

impl Scheme {
    pub const ALL: [Scheme; 3] = [Scheme::Pbgc, Scheme::Sc, Scheme::MscCt];

    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Pbgc => "PBGC",
            Scheme::Sc => "SC",
            Scheme::MscCt => "MSC-CT",
        }
    }
}

/// An array of disks of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ArraySetup {
    pub drive: String,
    pub level: Level,
    /// The first member has failed.
    pub degraded: bool,
    /// Commands that a member gets to know at a time; the others wait in the host's elevator.
    pub queue_depth: usize,
    /// Time that the elevator waits for another read after one, before writes go.
    pub anticipation: Nanos,
    /// The members read on behind a read.
    pub read_ahead: bool,
    pub members: usize,
    pub strip: u64,
    /// Strips that are prefetched at a time, with a stripe cache.
    pub prefetch: u64,
    pub cache: u64,
    /// Stripes destaged at a time, with strips of 128 KiB; with others as much of each member.
    pub depth: u32,
    /// Parity block groups destaged at a time.
    pub rows: u32,
    /// Smax for reads and for writes, of MSC-CT.
    pub fill: (u64, u64),
    /// Bytes of the array for each bit of the write-intent bitmap.
    pub region: u64,
}

/// Results of programs on an array.
pub(crate) struct Ran {
    pub measured: Measured,
    /// Time that destaging the rest took afterwards.
    pub destaging: Nanos,
}

impl Ran {
    fn count(&self, name: &str) -> f64 {
        let of = |phase: &workloads::LoadPhase| {
            let status = phase.layers.iter().find(|(layer, _)| layer == "array");
            status.and_then(|(_, status)| status["statistics"][name].as_u64()).unwrap_or(0)
        };
        self.measured.phases.iter().map(of).sum::<u64>() as f64
    }

    /// Commands to members for destages.
    pub fn commands(&self) -> f64 {
        self.count("destage_reads") + self.count("destage_writes")
    }

    pub fn blocks_per_command(&self) -> f64 {
        (self.count("destage_read_blocks") + self.count("destage_written_blocks")) / self.commands().max(1.0)
    }
}

/// The file system and its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSetup {
    /// Bytes of the array that the file system has.
    pub used: u64,
    pub page_cache: u64,
    /// Factor by which all this is smaller than the paper's. So are the journal, and the times after which something is written.
    pub scale: u64,
}

/// Journal that mke2fs gives a file system of 10 GB (from 1 GB on).
const JOURNAL: u64 = 32 << 20;

/// The paper's host (section IV-A) under ext3: two processors of 3 GHz, blocks of 4 KiB, groups of 128 MiB, data=ordered.
fn host(setup: &HostSetup, read_ahead: u64) -> FfsConfig {
    let scale = setup.scale.max(1);
    FfsConfig {
        block_bytes: 4096,
        cluster_bytes: 128 << 10,
        group_bytes: 128 << 20,
        reserve_percent: 5,
        placement: Placement::Ext3,
        synchronous_metadata: false,
        journal_bytes: (JOURNAL / scale).next_multiple_of(4096) as u32,
        read_ahead_bytes: u32::try_from(read_ahead).ok(),
        buffer_cache_bytes: setup.page_cache,
        inodes_in_memory: 1 << 16,
        names_in_memory: 1 << 16,
        // Between commits of the journal.
        update_interval: Nanos(Nanos::from_secs(5).0 / scale),
        // Estimates: 1 us a call, 1 GB/s of copying.
        cpu: CpuCosts {
            system_call: Nanos::from_micros(1),
            copy_per_kib: Nanos::from_micros(1),
            name_change: Nanos::from_micros(10),
            directory_block: Nanos::from_micros(1),
            block_request: Nanos::from_micros(5),
            cached_write: None,
        },
        ..FfsConfig::default()
    }
}

/// Linux 2.6 reads so far ahead where a device does not ask for more.
const HOST_READ_AHEAD: u64 = 128 << 10;
/// The strips to which `depth` refers.
const DEPTH_STRIP: u64 = 128 << 10;

/// Several runs, each with another seed: what all of them moved over the time that all of them took, and the means of the
/// rest. (The mean of the rates would be that of the fastest run where a load just begins not to fit.)
pub(crate) fn rate_of_runs(
    runs: u64,
    seed: u64,
    mut measure: impl FnMut(u64) -> Result<Sample, LabError>,
) -> Result<Sample, LabError> {
    let mut mean = Sample::mean(runs, |run| measure(mix(seed, run)))?;
    let seconds_per_mb = mean.numbers.remove(SECONDS_PER_MB).expect("each run moves something");
    mean.set("mb_per_s", 1.0 / seconds_per_mb);
    Ok(mean)
}

/// Number that a run measures for [`rate_of_runs`].
pub(crate) const SECONDS_PER_MB: &str = "s_per_mb";

impl ArraySetup {
    pub fn read(settings: &Settings) -> Result<ArraySetup, LabError> {
        let members = settings.number("members")?;
        if !(3..=MEMBERS_MAX).contains(&members) {
            let problem = format!("an array has from 3 to {MEMBERS_MAX} members");
            return Err(LabError::BadValue { key: "members".to_owned(), problem });
        }
        Ok(ArraySetup {
            drive: settings.drive("drive")?.to_owned(),
            level: Level::Raid5,
            degraded: false,
            queue_depth: settings.number("queue-depth")?,
            anticipation: settings.span("anticipation")?,
            read_ahead: settings.flag("read-ahead")?,
            members,
            strip: settings.bytes("strip")?,
            prefetch: settings.number::<u64>("prefetch")?.max(1),
            cache: settings.ram("cache")?,
            depth: settings.number("depth")?,
            rows: settings.number("rows")?,
            fill: (settings.number("fill-reads")?, settings.number("fill-writes")?),
            region: settings.bytes("region")?,
        })
    }

    pub const fn stripe_bytes(&self) -> u64 {
        self.strip * (self.members - self.level.parity()) as u64
    }

    /// As much of the members with any strip.
    fn stripes_at_a_time(&self) -> u32 {
        let stripes = u64::from(self.depth) * DEPTH_STRIP / self.strip.max(1);
        u32::try_from(stripes.max(1)).unwrap_or(u32::MAX)
    }

    /// Returns the bytes that the host reads ahead of a reader of a file: two stripes with md, which asks for that, and otherwise the
    /// 128 KiB of Linux 2.6.
    fn host_read_ahead(&self, scheme: Scheme) -> u64 {
        match scheme {
            Scheme::Pbgc => (2 * self.stripe_bytes()).max(HOST_READ_AHEAD),
            Scheme::Sc | Scheme::MscCt => HOST_READ_AHEAD,
        }
    }

    const fn is_present(&self, role: usize) -> bool {
        !self.degraded || role > 0
    }

    fn config(&self, scheme: Scheme) -> RaidConfig {
        let strides = Contiguity { read: Strides::up_to(self.fill.0), write: Strides::up_to(self.fill.1) };
        RaidConfig {
            level: self.level,
            strip_sectors: self.strip / dcd_engine::SECTOR_BYTES,
            present: (0..self.members).map(|role| self.is_present(role)).collect(),
            cache_bytes: self.cache,
            // "We adopted the latter allocation scheme" (section III-G3): memory of the stripe size.
            memory: CacheMemory::Unit,
            unit: if scheme == Scheme::Pbgc { CacheUnit::ParityBlockGroup } else { CacheUnit::Stripe },
            contiguity: (scheme == Scheme::MscCt).then_some(strides),
            region_bytes: self.region,
            // "The non-volatile storage."
            non_volatile: true,
            when: WhenPolicy::HighLow,
            what: WhatPolicy::LeastRecentlyWritten,
            high_mark: 95,
            low_mark: 85,
            destage_depth: match scheme {
                Scheme::Pbgc => self.rows,
                Scheme::Sc | Scheme::MscCt => self.stripes_at_a_time(),
            },
            ..RaidConfig::default()
        }
    }

    /// A new array whose parity is right, started.
    pub fn build(&self, scheme: Scheme) -> Result<Rig, LabError> {
        self.build_part(scheme, None)
    }

    /// Builds a new array whose parity is right, started; only its first `used` bytes are used.
    fn build_part(&self, scheme: Scheme, used: Option<u64>) -> Result<Rig, LabError> {
        let drive = drive_of(&self.drive)?;
        let config = self.config(scheme);
        let present = (0..self.members).filter(|role| self.is_present(*role));
        let mut members: Vec<Medium> = present.map(|role| Medium::of(&drive, role as u64)).collect();
        let there = members.iter_mut().map(|member| Some(member.device() as &mut dyn BlockDevice));
        let mut disks: Vec<Option<&mut dyn BlockDevice>> =
            self.degraded.then_some(None).into_iter().chain(there).collect();
        create(&mut disks, &config, *b"the lab's array.", true).map_err(LabError::setup)?;
        let mut driver = VirtualDriver::new(members);
        let mut builder = StackBuilder::new();
        let mut ports = Vec::new();
        for (index, geometry) in driver.geometries().into_iter().enumerate() {
            let device = builder.device(geometry);
            let read_ahead = (!self.read_ahead).then_some(DiskReadAhead::None);
            let config = DiskConfig { read_ahead, ..DiskConfig::default() };
            let disk = Disk::with_drive(drive.clone(), &config);
            let disk = builder.layer(&format!("disk{index}"), Box::new(disk), &[device]);
            let elevator = Box::new(Elevator::new(self.queue_depth, self.anticipation));
            ports.push(builder.layer(&format!("elevator{index}"), elevator, &[disk]));
        }
        let root = builder.layer("array", Box::new(RaidLayer::new(config)), &ports);
        let Target::Layer(array) = root else { unreachable!("a layer was added") };
        // "The MSC driver, which includes a stripe prefetching scheme" (section III-G).
        let root = match scheme {
            Scheme::Pbgc => root,
            Scheme::Sc | Scheme::MscCt => {
                let bytes = (self.prefetch * self.strip).next_multiple_of(ReadAheadConfig::UNIT_BYTES);
                let config = ReadAheadConfig { bytes, ..ReadAheadConfig::default() };
                builder.layer("prefetching", Box::new(ReadAhead::new(config)), &[root])
            }
        };
        let root = match used {
            Some(bytes) => {
                let part = Extent::new(Lba(0), bytes / SECTOR_BYTES);
                builder.layer("part", Box::new(Slice::new(part)), &[root])
            }
            None => root,
        };
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).map_err(LabError::setup)?;
        Ok(Rig::new(stack, driver, Some(array)))
    }

    /// Runs programs in a new file system on a new array.
    pub fn run(
        &self,
        scheme: Scheme,
        setup: &HostSetup,
        workload: &Workload,
        seed: u64,
    ) -> Result<Ran, LabError> {
        let ffs = host(setup, self.host_read_ahead(scheme));
        self.run_with(scheme, setup, |stack, driver| workloads::run(stack, driver, &ffs, workload, seed))
    }

    /// The file system of [`ArraySetup::run`] with a stripe cache, after it has aged.
    pub fn age(&self, setup: &HostSetup, aging: &Aging, seed: u64) -> Result<Aged, LabError> {
        let ffs = host(setup, self.host_read_ahead(Scheme::Sc));
        let sectors = setup.used / SECTOR_BYTES;
        aging.age(&ffs, sectors, seed).map_err(LabError::setup)
    }

    /// Runs what is measured in an aged file system on a new array.
    pub fn run_aged(&self, scheme: Scheme, setup: &HostSetup, aged: &Aged) -> Result<Ran, LabError> {
        self.run_with(scheme, setup, |stack, driver| aged.run(stack, driver))
    }

    fn run_with(
        &self,
        scheme: Scheme,
        setup: &HostSetup,
        run: impl FnOnce(&mut Stack, &mut VirtualDriver<Medium>) -> Result<Measured, RunError>,
    ) -> Result<Ran, LabError> {
        let mut rig = self.build_part(scheme, Some(setup.used))?;
        let measured = run(&mut rig.stack, &mut rig.driver).map_err(LabError::setup)?;
        let destaging = rig.drain();
        Ok(Ran { measured, destaging })
    }
}

#[cfg(test)]
mod tests {
    use dcd_crash::SimRng;

    use super::{SECONDS_PER_MB, rate_of_runs};
    use crate::Sample;
    use crate::experiments::find;

    #[test]
    fn the_rate_of_runs_is_what_all_moved_over_all_their_time() {
        let mut seconds = [1.0, 3.0].into_iter();
        let mut seeds = Vec::new();
        let runs = rate_of_runs(2, 7, |seed| {
            seeds.push(seed);
            let seconds = seconds.next().unwrap();
            let mut sample = Sample::default();
            sample.set(SECONDS_PER_MB, seconds);
            sample.set("blocks", 10.0 * seconds);
            Ok(sample)
        });
        let numbers = runs.unwrap().numbers;
        assert_eq!((numbers["mb_per_s"], numbers["blocks"], numbers.len()), (0.5, 20.0, 2));
        assert!(seeds[0] != seeds[1]);
    }

    /// Rows that begin until one of five members has 128 requests, where each asks the member with its dirty block and the one with
    /// its parity.
    fn rows_until_a_queue_is_full(random: &mut SimRng) -> u32 {
        let mut queues = [0; 5];
        for rows in 0.. {
            let parity = random.below(5) as usize;
            let data = (parity + 1 + random.below(4) as usize) % 5;
            if queues[parity].max(queues[data]) == 128 {
                return rows;
            }
            queues[parity] += 1;
            queues[data] += 1;
        }
        unreachable!("queues fill up")
    }

    #[test]
    fn md_begins_rows_until_the_first_queue_is_full() {
        let mut random = SimRng::new(1);
        let rounds = 4000;
        let sum: u32 = (0..rounds).map(|_| rows_until_a_queue_is_full(&mut random)).sum();
        let mean = f64::from(sum) / f64::from(rounds);
        let params = find("ct-random").expect("it is there").params;
        let rows = params.iter().find(|param| param.key == "rows").expect("it is shared");
        let rows: f64 = rows.default.parse().expect("a number");
        assert!((mean - rows).abs() < 2.0, "{mean}");
    }
}
