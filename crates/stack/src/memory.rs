//! Computes the RAM that a stack takes.

use dcd_engine::LINE_BYTES;
use dcd_engine::log_cache::table::LookupTable;
use dcd_engine::log_cache::{LogCacheConfig, Reads};

use crate::device::DeviceSource;
use crate::file::StackFile;
use crate::kinds::LayerKind;
use crate::registry::Role;

/// Maximum that the requests of a virtual machine hold: the front-end reads none while there are 64 MiB, and one has at most 32 MiB.
const MACHINE_BYTES: u64 = 96 << 20;

impl StackFile {
    /// The RAM that the stack will take when it is served, as far as the file tells: caches, buffers, disks in RAM, and requests of virtual
    /// machines.
    pub fn memory_bytes(&self) -> u64 {
        let devices = self.devices.iter().map(|device| match device.source {
            DeviceSource::Memory { size } => size,
            DeviceSource::Path { .. } | DeviceSource::Remote(_) | DeviceSource::Missing => 0,
        });
        let machines = self.serve.vhost_user.as_ref().map_or(0, |_| self.served_disks().len() as u64);
        let beside_devices = self.layers_memory_bytes().saturating_add(machines * MACHINE_BYTES);
        devices.fold(beside_devices, u64::saturating_add)
    }

    /// The RAM that the layers alone will take.
    pub fn layers_memory_bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| match &layer.kind {
            LayerKind::LogCache { log, config, .. } => {
                let reads = config.destage_depth as u128 * LogCacheConfig::READ_BYTES_MAX as u128;
                let buffers = config.destage_memory as u128 + reads;
                let lines = u128::from(self.stated_bytes(&log.text)) / u128::from(LINE_BYTES);
                let ghosts = if config.reads == Reads::Keep { lines } else { 0 };
                let table = lines * u128::from(LookupTable::LINE_RAM_BYTES) + ghosts;
                u64::try_from(buffers + table).unwrap_or(u64::MAX)
            }
            LayerKind::Raid(raid) => raid.config.cache_bytes.saturating_add(raid.config.pass_bytes),
            kind => match kind.role() {
                Some(Role::Cache { memory_bytes, .. }) => memory_bytes,
                _ => 0,
            },
        });
        layers.fold(0, u64::saturating_add)
    }

    /// The size of a part of the stack, where the file says it; else 0.
    fn stated_bytes(&self, part: &str) -> u64 {
        match (self.device(part).map(|device| &device.source), self.layer(part).map(|layer| &layer.kind)) {
            (Some(DeviceSource::Memory { size }), _) => *size,
            (Some(DeviceSource::Path { size, .. }), _) => size.unwrap_or(0),
            (None, Some(LayerKind::Slice(slice))) => slice.size_bytes.unwrap_or(0),
            (None, Some(LayerKind::Mirror(mirror))) => {
                mirror.of.iter().map(|leg| self.stated_bytes(&leg.text)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LOGICAL, parse};

    #[test]
    fn requests_of_virtual_machines_take_memory() {
        let machines = LOGICAL.replace("[serve]", "[serve]\nvhost-user = \"unix:vm.sock\"");
        let bytes = |text: &str| parse(text).unwrap().memory_bytes();
        assert_eq!(bytes(&machines), bytes(LOGICAL) + MACHINE_BYTES);
    }
}
