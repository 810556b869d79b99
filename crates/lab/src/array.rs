//! A modelled array behind one of the paper's three caches.

use dcd_engine::raid::contiguity::{Contiguity, Strides};
use dcd_engine::raid::{CacheMemory, CacheUnit, RaidConfig, RaidLayer, create};
use dcd_engine::{BlockDevice, LayerIndex, StackBuilder};
use dcd_model::{Disk, DiskConfig, drive};
use dcd_sim::VirtualDriver;

use crate::rig::{Medium, Rig};
use crate::{LabError, Param, Settings};

/// What stands between the host and the members (Baek and Park, section IV-A).
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

/// A RAID-5 of disks of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ArraySetup {
    pub drive: String,
    /// Commands that a member gets to know at a time.
    pub queue_depth: usize,
    pub members: usize,
    pub strip: u64,
    pub cache: u64,
    /// Stripes, or parity block groups, destaged at a time.
    pub depth: u32,
    /// Smax for reads and for writes, of MSC-CT.
    pub fill: (u64, u64),
}

const fn param(key: &'static str, default: &'static str, about: &'static str) -> Param {
    Param { key, default, about }
}

/// The parameters of [`ArraySetup`].
pub(crate) const DRIVE: Param = param("drive", "cheetah-15k4", "the members");
pub(crate) const QUEUE_DEPTH: Param =
    param("queue-depth", "32", "commands that a member gets to know at a time");
pub(crate) const MEMBERS: Param = param("members", "5", "how many");
pub(crate) const STRIP: Param = param("strip", "128KiB", "what a stripe has on each member");
pub(crate) const CACHE: Param = param("cache", "512MiB", "RAM for stripes");
pub(crate) const DEPTH: Param = param("depth", "32", "stripes (or parity block groups) destaged at a time");
pub(crate) const FILL_READS: Param = param("fill-reads", "6", "Smax for reads, as ct-stride finds it");
pub(crate) const FILL_WRITES: Param = param("fill-writes", "12", "Smax for writes, as ct-stride finds it");

impl ArraySetup {
    pub fn read(settings: &Settings) -> Result<ArraySetup, LabError> {
        let names: Vec<&str> = drive::names().collect();
        Ok(ArraySetup {
            drive: settings.choices("drive", &names)?[0].to_owned(),
            queue_depth: settings.number("queue-depth")?,
            members: settings.number("members")?,
            strip: settings.bytes("strip")?,
            cache: settings.bytes("cache")?,
            depth: settings.number("depth")?,
            fill: (settings.number("fill-reads")?, settings.number("fill-writes")?),
        })
    }

    fn config(&self, scheme: Scheme) -> RaidConfig {
        let strides = Contiguity { read: Strides::up_to(self.fill.0), write: Strides::up_to(self.fill.1) };
        RaidConfig {
            strip_sectors: self.strip / dcd_engine::SECTOR_BYTES,
            present: vec![true; self.members],
            cache_bytes: self.cache,
            // "We adopted the latter allocation scheme" (section III-G3): memory of the stripe size.
            memory: CacheMemory::Unit,
            unit: if scheme == Scheme::Pbgc { CacheUnit::ParityBlockGroup } else { CacheUnit::Stripe },
            contiguity: (scheme == Scheme::MscCt).then_some(strides),
            // "The non-volatile storage."
            non_volatile: true,
            destage_depth: self.depth,
            ..RaidConfig::default()
        }
    }

    /// A new array whose parity is right, started.
    pub fn build(&self, scheme: Scheme) -> Result<Rig, LabError> {
        let wrong = |error: &dyn std::fmt::Display| LabError::Setup(error.to_string());
        let drive = drive::builtin(&self.drive).map_err(|e| wrong(&e))?;
        let config = self.config(scheme);
        let mut members: Vec<Medium> =
            (0..self.members).map(|index| Medium::of(&drive, index as u64)).collect();
        let mut disks: Vec<Option<&mut dyn BlockDevice>> =
            members.iter_mut().map(|member| Some(member.device() as &mut dyn BlockDevice)).collect();
        create(&mut disks, &config, *b"the lab's array.", true).map_err(|e| wrong(&e))?;
        let mut driver = VirtualDriver::new(members);
        let mut builder = StackBuilder::new();
        let mut ports = Vec::new();
        for (index, geometry) in driver.geometries().into_iter().enumerate() {
            let device = builder.device(geometry);
            let config = DiskConfig { queue_depth: Some(self.queue_depth), ..DiskConfig::default() };
            let disk = Disk::with_drive(drive.clone(), &config);
            ports.push(builder.layer(&format!("disk{index}"), Box::new(disk), &[device]));
        }
        let root = builder.layer("array", Box::new(RaidLayer::new(config)), &ports);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).map_err(|e| wrong(&e))?;
        let array = LayerIndex(stack.layer_count() - 1);
        Ok(Rig::new(stack, driver, Some(array)))
    }
}
