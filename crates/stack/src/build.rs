//! Joins the layers of a stack file over devices that the caller opens.

use std::collections::BTreeMap;
use std::path::Path;

use dcd_engine::layers::fault::Fault;
use dcd_engine::layers::read_ahead::ReadAhead;
use dcd_engine::layers::slice::Slice;
use dcd_engine::layers::trace::Trace;
use dcd_engine::log_cache::{LogCache, LogCacheConfig, MemoryPlace};
use dcd_engine::mirror::{self, Mirror, MirrorConfig};
use dcd_engine::raid::RaidLayer;
use dcd_engine::{
    DeviceIndex, Extent, Geometry, Layer, LayerIndex, Lba, SECTOR_BYTES, Stack, StackBuilder, Target,
};

use crate::asked::Asked;
use crate::device::{DeclaredDevice, DeviceSource};
use crate::error::StackFileError;
use crate::file::StackFile;
use crate::kinds::{LayerKind, LayerSpec, SliceSpec, TraceSpec};
use crate::meter::Meter;
use crate::output::Inputs;
use crate::registry::{Below, RegisteredLayer};
use crate::trace_file::{Form, Overrun, Recording, TraceRecorder};

/// Why a device cannot be opened; the text says what to do.
pub type OpenError = Box<dyn std::error::Error + Send + Sync>;

/// Opens devices: the real driver opens files and block devices, the virtual one makes simulated ones.
pub trait DeviceOpener {
    /// Opens (or makes) a device that the stack will know by `index`.
    fn open(&mut self, index: DeviceIndex, device: &DeclaredDevice) -> Result<Geometry, OpenError>;

    /// Options of the start.
    fn asked(&self) -> Asked {
        Asked::default()
    }

    /// Place of memory that outlives the process, for the answered writes of one log cache.
    fn memory(&self) -> Option<Box<dyn MemoryPlace>> {
        None
    }
}

/// A stack, and the parts of it that its file names.
pub struct Built {
    pub stack: Stack,
    pub parts: Parts,
    /// Recording of the clients' requests: see [`ForClients::record`].
    pub recording: Option<Recording>,
}

/// Settings of a stack that is built for clients.
#[derive(Clone, Copy, Debug)]
pub struct ForClients<'a> {
    /// A file that gets every request of the clients, in the compact format.
    pub record: Option<&'a Path>,
    /// Behaviour of trace files that cannot keep up.
    pub overrun: Overrun,
}

/// Devices and layers of a built stack, by their names in the stack file.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    pub devices: BTreeMap<String, DeviceIndex>,
    pub layers: BTreeMap<String, LayerIndex>,
    places: BTreeMap<String, (DeviceIndex, Extent)>,
}

impl Parts {
    /// A device or a layer by its name.
    pub fn target(&self, name: &str) -> Option<Target> {
        let device = self.devices.get(name).copied().map(Target::Device);
        device.or_else(|| self.layers.get(name).copied().map(Target::Layer))
    }

    /// The sectors that a part of the stack takes on its device; none for a part that lies on several devices.
    pub fn place(&self, name: &str) -> Option<(DeviceIndex, Extent)> {
        self.places.get(name).copied()
    }
}

/// The name of the layer that measures response times. No layer of a file can have it, as it is no bare key.
pub const METER: &str = "(meter)";
/// The name of the layer that records the clients' requests. No layer of a file can have it either.
pub const RECORD: &str = "(record)";

/// A part of the stack that is built, with its size where that is known before activation.
#[derive(Clone, Copy)]
struct BuiltPart {
    target: Target,
    sectors: u64,
    place: Option<(DeviceIndex, Extent)>,
}

/// Returns the place of a layer's sectors, if that is one range of one device.
fn place(kind: &LayerKind, below: &[BuiltPart], sectors: u64) -> Option<(DeviceIndex, Extent)> {
    let first = match kind {
        LayerKind::LogCache { .. } | LayerKind::Raid(_) | LayerKind::Mirror(_) => return None,
        kind if kind.is_registered_cache() => return None,
        LayerKind::Registered { .. }
        | LayerKind::Fault { .. }
        | LayerKind::ReadAhead { .. }
        | LayerKind::Trace(_) => 0,
        LayerKind::Slice(slice) => slice.first_bytes / SECTOR_BYTES,
    };
    let (device, extent) = below[0].place?;
    Some((device, Extent::new(extent.start + first, sectors)))
}

impl StackFile {
    /// Opens the devices and joins the layers. The stack is not active yet: the driver does that.
    pub fn build(&self, opener: &mut dyn DeviceOpener) -> Result<Built, StackFileError> {
        self.build_parts(&[&self.export], opener)
    }

    /// Builds as [`StackFile::build`], for clients: with a [`Meter`] on top, under the name [`METER`], and with the files of
    /// its traces, which the other builds leave alone.
    pub fn build_metered(
        &self,
        clients: ForClients<'_>,
        opener: &mut dyn DeviceOpener,
    ) -> Result<Built, StackFileError> {
        self.join(&[&self.export], Some(clients), opener)
    }

    /// Builds only some parts of the stack, with the devices and layers below them. The first part is the root.
    ///
    /// # Panics
    /// On names that the file does not have.
    pub fn build_parts(
        &self,
        parts_wanted: &[&str],
        opener: &mut dyn DeviceOpener,
    ) -> Result<Built, StackFileError> {
        self.join(parts_wanted, None, opener)
    }

    fn join(
        &self,
        parts_wanted: &[&str],
        clients: Option<ForClients<'_>>,
        opener: &mut dyn DeviceOpener,
    ) -> Result<Built, StackFileError> {
        let (needed, asked) = (self.needed_by(parts_wanted), opener.asked());
        let mut builder = StackBuilder::new();
        let mut parts: BTreeMap<&str, BuiltPart> = BTreeMap::new();
        let mut devices = BTreeMap::new();
        let mut layers = BTreeMap::new();
        for device in self.devices.iter().filter(|device| needed.contains(&device.name)) {
            let index = DeviceIndex(devices.len());
            // The text begins with the path. Without a stack file, the device has no other name to add.
            let error = |why: OpenError| match self.path.as_os_str().is_empty() {
                true => self.error(device.span.clone(), why.to_string()),
                false => self.error(device.span.clone(), format!("device \"{}\": {why}", device.name)),
            };
            let geometry = opener.open(index, device).map_err(error)?;
            let target = builder.device(geometry);
            let place = Some((index, Extent::new(Lba(0), geometry.sectors)));
            parts.insert(&device.name, BuiltPart { target, sectors: geometry.sectors, place });
            devices.insert(device.name.clone(), index);
        }
        for spec in self.layers.iter().filter(|layer| needed.contains(&layer.name)) {
            let below: Vec<BuiltPart> =
                spec.kind.below().iter().map(|name| parts[name.text.as_str()]).collect();
            let (layer, sectors) = match &spec.kind {
                // The log is port 0, the data disk port 1: the cache has the data disk's size.
                LayerKind::LogCache { config, others, .. } => {
                    let missing = self.missing_disks(&spec.kind);
                    let config = LogCacheConfig { missing, ..asked.of_log_cache(&spec.name, config) };
                    let cache = match opener.memory() {
                        Some(memory) => LogCache::with_memory(config, memory),
                        None => LogCache::new(config),
                    };
                    (Box::new(cache.of_disks(1 + others.len())) as Box<dyn Layer>, below[1].sectors)
                }
                _ => self.make(spec, &below, clients, &asked)?,
            };
            let ports: Vec<Target> = below.iter().map(|part| part.target).collect();
            let target = builder.layer(&spec.name, layer, &ports);
            let place = place(&spec.kind, &below, sectors);
            parts.insert(&spec.name, BuiltPart { target, sectors, place });
            if let Target::Layer(index) = target {
                layers.insert(spec.name.clone(), index);
            }
        }
        let mut root = parts[parts_wanted[0]].target;
        let disks = self.served_disks().len();
        let mut recording = None;
        let mut top = |name: &str, layer: Box<dyn Layer>| {
            let below: Vec<Target> = match root {
                Target::Layer(index) if disks > 1 => {
                    (0..disks).map(|disk| Target::Disk(index, disk)).collect()
                }
                root => vec![root],
            };
            root = builder.layer(name, layer, &below);
            if let Target::Layer(index) = root {
                layers.insert(name.to_owned(), index);
            }
        };
        if let Some(clients) = clients {
            if let Some(path) = clients.record {
                let recorder = TraceRecorder::create(path, Form::Compact, clients.overrun, &self.inputs());
                let recorder = recorder.map_err(|why| self.error(0..0, format!("--record {why}")))?;
                recording = Some(recorder.recording());
                top(RECORD, Box::new(Trace::with_sink(0, Box::new(recorder))));
            }
            top(METER, Box::new(Meter::of_disks(disks)));
        }
        let places =
            parts.iter().filter_map(|(name, part)| Some(((*name).to_owned(), part.place?))).collect();
        Ok(Built { stack: builder.finish(root), parts: Parts { devices, layers, places }, recording })
    }

    /// Files that no recording may overwrite: the stack file, and every device.
    fn inputs(&self) -> Inputs {
        let devices = self.devices.iter().filter_map(|device| match &device.source {
            DeviceSource::Path { path, .. } => Some(path),
            DeviceSource::Remote(_) | DeviceSource::Memory { .. } | DeviceSource::Missing => None,
        });
        Inputs::new(devices.chain([&self.path]))
    }

    /// Makes one layer; returns it with its size in sectors.
    fn make(
        &self,
        spec: &LayerSpec,
        below: &[BuiltPart],
        clients: Option<ForClients<'_>>,
        asked: &Asked,
    ) -> Result<(Box<dyn Layer>, u64), StackFileError> {
        match &spec.kind {
            LayerKind::Slice(slice) => self.make_slice(spec, slice, below[0].sectors),
            LayerKind::Registered { of, layer } => {
                let below = of
                    .iter()
                    .zip(below)
                    .map(|(of, part)| Below { sectors: part.sectors, layer: self.registered(&of.text) });
                let volatile = layer.without_non_volatile().filter(|_| asked.volatile);
                Ok(volatile.as_ref().unwrap_or(layer).make(&below.collect::<Vec<_>>()))
            }
            LayerKind::Fault { plan, .. } => Ok((Box::new(Fault::new(*plan)), below[0].sectors)),
            LayerKind::ReadAhead { config, .. } => Ok((Box::new(ReadAhead::new(*config)), below[0].sectors)),
            LayerKind::Trace(trace) => Ok((self.make_trace(spec, trace, clients)?, below[0].sectors)),
            // The members are the first ports, then the spares, and the journal is the last.
            LayerKind::Raid(raid) => {
                let members = below.iter().take(raid.of.len()).map(|part| part.sectors);
                let sectors = crate::raid::sectors(&raid.config, members);
                Ok((Box::new(RaidLayer::new(asked.of_array(&raid.config))), sectors))
            }
            LayerKind::Mirror(mirror) => {
                let names = mirror.of.iter().map(|leg| leg.text.clone()).collect();
                let (degraded, only_looks) = (asked.degraded_legs, asked.only_looks);
                let config = MirrorConfig { names, degraded, only_looks, ..MirrorConfig::default() };
                let least = below.iter().map(|part| part.sectors).min().unwrap_or(0);
                Ok((Box::new(Mirror::new(config)), mirror::content_sectors(least)))
            }
            LayerKind::LogCache { .. } => unreachable!("who joins the layers makes it"),
        }
    }

    fn make_slice(
        &self,
        spec: &LayerSpec,
        slice: &SliceSpec,
        below_sectors: u64,
    ) -> Result<(Box<dyn Layer>, u64), StackFileError> {
        let first = slice.first_bytes / SECTOR_BYTES;
        let rest = below_sectors.saturating_sub(first);
        let sectors = slice.size_bytes.map_or(rest, |bytes| bytes / SECTOR_BYTES);
        if sectors == 0 || sectors > rest {
            let below = crate::HumanBytes(below_sectors * SECTOR_BYTES);
            let end = crate::HumanBytes((first + sectors.max(1)) * SECTOR_BYTES);
            let advice = if slice.implied {
                "the log has the array's journal before it: make it larger, or say journal = \"none\" in the array and keep the \
                 write hole"
            } else {
                "make it smaller"
            };
            return Err(self.error(
                spec.span.clone(),
                format!(
                    "layer \"{}\": needs {end} of \"{}\", which has {below}: {advice}",
                    spec.name, slice.of.text
                ),
            ));
        }
        Ok((Box::new(Slice::new(Extent::new(Lba(first), sectors))), sectors))
    }

    fn registered(&self, name: &str) -> Option<&dyn RegisteredLayer> {
        match &self.layer(name)?.kind {
            LayerKind::Registered { layer, .. } => Some(&**layer),
            _ => None,
        }
    }

    fn make_trace(
        &self,
        spec: &LayerSpec,
        trace: &TraceSpec,
        clients: Option<ForClients<'_>>,
    ) -> Result<Box<dyn Layer>, StackFileError> {
        let (Some((name, path)), Some(clients)) = (&trace.file, clients) else {
            return Ok(Box::new(Trace::new(trace.kept_max)));
        };
        let recorder = TraceRecorder::create(path, Form::JsonLines, clients.overrun, &self.inputs())
            .map_err(|why| {
                self.error(name.span.clone(), format!("layer \"{}\": \"file\": {why}", spec.name))
            })?;
        Ok(Box::new(Trace::with_sink(trace.kept_max, Box::new(recorder))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LOGICAL, parse};

    /// Devices of one size, and the order in which they were opened.
    struct Sizes(u64, Vec<String>);

    impl DeviceOpener for Sizes {
        fn open(&mut self, index: DeviceIndex, device: &DeclaredDevice) -> Result<Geometry, OpenError> {
            assert_eq!(index.0, self.1.len());
            self.1.push(device.name.clone());
            if self.0 == 0 {
                return Err("no such file: create it, or add a size".into());
            }
            Ok(Geometry::plain(self.0))
        }
    }

    #[test]
    fn slices_are_built_within_their_device() {
        let text =
            LOGICAL.split("[layer.data]").next().unwrap().replace("export = \"cache\"", "export = \"log\"");
        let file = parse(&text).unwrap();
        let mut opener = Sizes(1 << 20, Vec::new());
        let built = file.build(&mut opener).unwrap();
        assert_eq!(opener.1, ["file"]);
        assert_eq!(built.parts.target("log"), Some(built.stack.root()));
        assert_eq!(built.parts.place("log"), Some((DeviceIndex(0), Extent::new(Lba(0), 64 << 11))));
        assert!(built.parts.target("nothing").is_none());
        let error = file.build(&mut Sizes(8, Vec::new())).err().unwrap().to_string();
        assert!(error.contains("make it smaller"), "{error}");
        let error = file.build(&mut Sizes(0, Vec::new())).err().unwrap().to_string();
        assert!(error.starts_with("/stacks/disk.toml:8:9: device \"file\": no such file"), "{error}");
    }
}
