//! The kind "write-cache" of stack files: a write cache over one or more disks.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use dcd_engine::{Layer, SECTOR_BYTES};
use dcd_stack::{Below, Fields, RegisteredKind, RegisteredLayer, Role, StackFileError};

use super::{DiskMap, RegionUnit, Regions, WriteCache, WriteCacheConfig};
use crate::stack_kind::ModelledDisk;

pub const KIND: RegisteredKind =
    RegisteredKind { word: "write-cache", on_several: true, read, reference: REFERENCE };

/// A write cache as a file describes it.
#[derive(Clone, Debug)]
struct Spec {
    config: WriteCacheConfig,
    /// The unit that is destaged together on modelled disks.
    unit: RegionUnit,
    /// Bytes that are destaged together where tracks cannot be seen.
    region_bytes: u64,
}

impl RegisteredLayer for Spec {
    fn make(&self, below: &[Below<'_>]) -> (Box<dyn Layer>, u64) {
        let map = |part: &Below<'_>| {
            let disk = part.layer.and_then(|layer| (layer as &dyn Any).downcast_ref::<ModelledDisk>());
            disk.and_then(|disk| disk.map(self.unit)).unwrap_or_else(|| DiskMap {
                regions: Regions::uniform(part.sectors, self.region_bytes / SECTOR_BYTES),
                arm: None,
            })
        };
        let cache = WriteCache::new(self.config, below.iter().map(map).collect());
        (Box::new(cache), below.iter().map(|part| part.sectors).sum())
    }

    fn role(&self) -> Role {
        Role::Cache {
            memory_bytes: self.config.write_bytes.saturating_add(self.config.read_bytes),
            non_volatile: self.config.non_volatile,
        }
    }

    fn without_non_volatile(&self) -> Option<Arc<dyn RegisteredLayer>> {
        let config = WriteCacheConfig { non_volatile: false, ..self.config };
        self.config.non_volatile.then(|| Arc::new(Spec { config, ..self.clone() }) as _)
    }
}

fn read(fields: &mut Fields<'_>, _dir: &Path) -> Result<Arc<dyn RegisteredLayer>, StackFileError> {
    let d = WriteCacheConfig::default();
    let config = WriteCacheConfig {
        non_volatile: fields.flag("non-volatile")?.unwrap_or(d.non_volatile),
        block_bytes: fields.size("block")?.map_or(d.block_bytes, |bytes| bytes as u32),
        write_bytes: fields.size("write-size")?.unwrap_or(d.write_bytes),
        read_bytes: fields.size("read-size")?.unwrap_or(d.read_bytes),
        single: fields.flag("single")?.unwrap_or(d.single),
        partitioned: fields.flag("partitioned")?.unwrap_or(d.partitioned),
        on_write: fields.word("on-write")?.unwrap_or(d.on_write),
        when: fields.word("when")?.unwrap_or(d.when),
        what: fields.word("what")?.unwrap_or(d.what),
        how: fields.word("how")?.unwrap_or(d.how),
        high_mark: fields.number_in("high-mark", 1..=100)?.map_or(d.high_mark, |n| n as u8),
        low_mark: fields.number_in("low-mark", 0..=99)?.map_or(d.low_mark, |n| n as u8),
        dynamic_interval: fields.number("dynamic-interval")?.unwrap_or(d.dynamic_interval),
        piggyback: fields.word("piggyback")?.unwrap_or(d.piggyback),
        depth: fields.number_in("depth", 1..=1024)?.map_or(d.depth, |n| n as u32),
        idle_empty: fields.duration("idle-empty")?.unwrap_or(d.idle_empty),
        idle_full: fields.duration("idle-full")?.unwrap_or(d.idle_full),
    };
    let unit = fields.word("unit")?.unwrap_or_default();
    let region_bytes = fields.size("region")?.unwrap_or(1 << 20);
    for (field, wrong, advice) in [
        ("block", ![512, 4096].contains(&config.block_bytes), "it is 512 or 4096".to_owned()),
        (
            "region",
            region_bytes == 0 || !region_bytes.is_multiple_of(u64::from(config.block_bytes)),
            format!("it is a multiple of the block of {} bytes", config.block_bytes),
        ),
        (
            "low-mark",
            config.low_mark >= config.high_mark,
            format!("it must be below \"high-mark\" ({})", config.high_mark),
        ),
        (
            "dynamic-interval",
            config.dynamic_interval > 0 && !config.single,
            "marks that follow the share of writes are for one cache: set single = true".to_owned(),
        ),
    ] {
        if wrong {
            let span = fields.value_span(field);
            return Err(fields.error(span, format!("\"{field}\": {advice}")));
        }
    }
    Ok(Arc::new(Spec { config, unit, region_bytes }))
}

const REFERENCE: &str = r#"[layer.NAME]
kind = "write-cache"        a write cache and a read cache in RAM, as in a disk's controller
of = "NAME"                 the disk; or a list of disks, one after the other
write-size = "1MiB"         RAM for writes; 0: writes go through
read-size = "2MiB"          RAM for reads
non-volatile = false        true: a flush is answered from RAM, as in a controller with a
                            battery. To simulate one: the RAM of a server ends with its process,
                            and dcd-lab serve refuses it without --i-have-nvram. false: a flush
                            destages
single = false              one cache of write-size for reads and writes
partitioned = false         each disk has its own equal part
block = 512                 unit of the cache: 512 or 4096
unit = "track"              what is destaged together on a modelled disk: track, cylinder
region = "1MiB"             the same where tracks cannot be seen
when = "two-thresholds"     one-threshold, two-thresholds, asap, when-full, linear, idle,
                            high-low
what = "most-dirty"         most-dirty, least-recently-written, oldest-first, c-scan, clock,
                            wow, stow, last-write-first, least-valid-first
how = "sorted"              sorted: by LBA, neighbours merged; as-it-comes
high-mark = 95              percent that are dirty from which it is purged
low-mark = 40               percent at which purging ends
dynamic-interval = 0        single: the marks follow the share of writes, set anew after
                            so many requests
piggyback = "none"          dirty blocks that go along with a read: none, full (all of its
                            region), free (modelled disks: what passes before the read)
on-write = "write-purge"    the read cache on a write: write-purge, write-update,
                            write-allocate
depth = 1                   operations at each disk at a time
idle-empty = "1s"           for idle, as in a log cache
idle-full = "1ms"
"#;
