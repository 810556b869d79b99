//! What a stack file says, read and checked: names resolved, layers in the order in which they are built.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcd_engine::LINE_BYTES;
use dcd_engine::log_cache::table::LookupTable;
use dcd_engine::log_cache::{Promise, Reads};
use dcd_nbd::{Server, Uri, UriError};
use toml::de::DeTable;

use crate::error::{Source, StackFileError, suggestion};
use crate::fields::{Fields, Located};
use crate::kinds::{LayerKind, LayerSpec, MirrorSpec, RaidSpec, read_layer};

/// Where the sectors of a device are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// A file or a block device. `size`: create a missing file with this many bytes.
    Path { path: PathBuf, size: Option<u64> },
    /// An export of an NBD server.
    Remote(RemoteSource),
    /// RAM of this many bytes; its content ends with the process.
    Memory { size: u64 },
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSource {
    /// The URI with whole paths: it stands for the device where others have a path.
    pub text: PathBuf,
    pub uri: Uri,
    /// What the server has not answered for this long fails; none: it waits for ever.
    pub timeout: Option<Duration>,
}

impl RemoteSource {
    /// `dir`: where relative paths of the URI begin.
    fn of(mut uri: Uri, dir: &Path) -> RemoteSource {
        for file in [uri.server.socket_mut(), uri.certificates.as_mut()].into_iter().flatten() {
            let whole = dir.join(&*file);
            *file = std::path::absolute(&whole).unwrap_or(whole);
        }
        RemoteSource { text: uri.to_string().into(), uri, timeout: None }
    }
}

impl DeviceSource {
    /// What a path names: a file, a block device, or by a URI an export.
    ///
    /// # Errors
    /// What is wrong with the URI.
    pub fn of(path: &Path) -> Result<DeviceSource, UriError> {
        match path.to_str().filter(|text| Uri::is_meant(text)) {
            Some(text) => Ok(DeviceSource::Remote(RemoteSource::of(Uri::parse(text)?, Path::new("")))),
            None => Ok(DeviceSource::Path { path: path.to_owned(), size: None }),
        }
    }

    /// What a path that was typed names, wherever it is read: a relative one is completed.
    ///
    /// # Errors
    /// What is wrong with the URI, or that there is no current directory.
    pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
        let source = DeviceSource::of(path).map_err(std::io::Error::other)?;
        Ok(source.absolute_place()?.unwrap_or_default())
    }

    /// The path, or the URI; none for RAM.
    pub fn place(&self) -> Option<&Path> {
        match self {
            DeviceSource::Path { path, .. } => Some(path),
            DeviceSource::Remote(remote) => Some(&remote.text),
            DeviceSource::Memory { .. } => None,
        }
    }

    /// The same, wherever it is read: a relative path is completed.
    ///
    /// # Errors
    /// Where there is no current directory.
    pub fn absolute_place(&self) -> std::io::Result<Option<PathBuf>> {
        match self {
            DeviceSource::Path { path, .. } => std::path::absolute(path).map(Some),
            DeviceSource::Remote(remote) => Ok(Some(remote.text.clone())),
            DeviceSource::Memory { .. } => Ok(None),
        }
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    pub name: String,
    pub source: DeviceSource,
    pub read_only: bool,
    pub(crate) span: Range<usize>,
}

impl DeviceSpec {
    /// Whether its file or block device exists, and has a medium; of an export, whether its server takes a connection.
    pub fn is_there(&self) -> bool {
        match &self.source {
            DeviceSource::Path { path, .. } => path.exists() && !is_without_medium(path),
            DeviceSource::Remote(remote) => is_reachable(&remote.uri.server),
            DeviceSource::Memory { .. } => true,
        }
    }

    /// Whether it is a file that some commands make where it is not there.
    pub const fn is_made(&self) -> bool {
        matches!(self.source, DeviceSource::Path { size: Some(_), .. })
    }
}

fn is_reachable(server: &Server) -> bool {
    match server {
        Server::Unix(path) => UnixStream::connect(path).is_ok(),
        Server::Tcp { host, port } => {
            let mut addresses = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
            addresses.any(|address| TcpStream::connect_timeout(&address, REACHED_WITHIN).is_ok())
        }
    }
}

/// The node of a loop device without a file, or of a drive without a disk, stays. What cannot be opened for another reason is there.
fn is_without_medium(path: &Path) -> bool {
    let is_block = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block
        && match std::fs::File::open(path) {
            Ok(mut device) => {
                std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0)).is_ok_and(|size| size == 0)
            }
            Err(error) => GONE.contains(&error.raw_os_error().unwrap_or(0)),
        }
}

/// How long it is waited for a server that may be gone.
const REACHED_WITHIN: Duration = Duration::from_secs(1);

/// EIO, ENXIO, ENODEV and ENOMEDIUM of Linux.
const GONE: [i32; 4] = [5, 6, 19, 123];

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The number of a ublk device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkNumber {
    /// The device that the stack has had, or else one with a free number.
    Any,
    Is(u32),
}

/// ublk numbers devices by the minors of one major.
const UBLK_NUMBER_MAX: u64 = (1 << 20) - 1;

/// The front-ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serve {
    pub nbd: Vec<Address>,
    /// The name of the NBD export; clients that ask for no name get it too.
    pub nbd_name: String,
    /// The directory of the certificates that the TCP addresses among them are served with.
    pub nbd_tls: Option<PathBuf>,
    /// NBD clients may outlive the server: what it answers does too.
    pub nbd_recovery: bool,
    /// A directory on which one image file appears.
    pub fuse: Option<PathBuf>,
    /// A block device of the kernel, /dev/ublkbN.
    pub ublk: Option<UblkNumber>,
    /// It outlives its server.
    pub ublk_recovery: bool,
    /// The control socket, for `dcd status`, `dcd flush` and `dcd detach`.
    pub control: Option<PathBuf>,
    /// Where a monitoring system fetches metrics.
    pub metrics: Option<Address>,
}

/// What a file that is no stack file is answered with.
const EXPLAINED: &str = "a stack file is TOML, and \"dcd stack-file\" describes every field";

/// A stack file. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct StackFile {
    pub path: PathBuf,
    text: String,
    pub devices: Vec<DeviceSpec>,
    /// Bottom first: each stands on layers before it.
    pub layers: Vec<LayerSpec>,
    /// The device or layer that is served.
    pub export: String,
    pub serve: Serve,
}

impl StackFile {
    /// Reads a file and parses it.
    pub fn load(path: &Path) -> Result<StackFile, StackFileError> {
        let text = std::fs::read_to_string(path).map_err(|e| StackFileError {
            file: path.to_owned(),
            position: None,
            message: match e.kind() {
                std::io::ErrorKind::InvalidData => {
                    format!("it is not text, and so no stack file; {EXPLAINED}")
                }
                _ => format!("cannot be read: {e}"),
            },
        })?;
        StackFile::parse(&text, path)
    }

    /// Parses the text of a stack file; relative paths in it are relative to the directory of `origin`, which is empty for a text
    /// that is in no file.
    pub fn parse(text: &str, origin: &Path) -> Result<StackFile, StackFileError> {
        let source = Source { file: origin, text };
        let table = DeTable::parse(text)
            .map_err(|e| source.error(e.span().unwrap_or(0..0), format!("{}; {EXPLAINED}", e.message())))?;
        let dir = origin.parent().unwrap_or(Path::new("")).to_owned();
        let mut fields = Fields::new(source, String::new(), 0..0, table.get_ref());
        let export = fields.required_text("export", "cache")?;
        let mut devices = Vec::new();
        for (name, table) in fields.tables("device")? {
            devices.push(read_device(name, table, &dir)?);
        }
        let mut layers = Vec::new();
        for (name, table) in fields.tables("layer")? {
            layers.extend(read_layer(name, table, &dir)?);
        }
        crate::write_hole::close(&devices, &mut layers);
        let serve = match fields.table("serve")? {
            Some(table) => read_serve(table, &dir)?,
            None => Serve::default(),
        };
        fields.finish()?;
        let layers = Names::new(source, &devices, &layers)?.order(&export, &devices, layers)?;
        let file = StackFile {
            path: origin.to_owned(),
            text: text.to_owned(),
            devices,
            layers,
            export: export.text,
            serve,
        };
        file.check_sharing()?;
        Ok(file)
    }

    /// A stack of one device and nothing else.
    ///
    /// # Errors
    /// What is wrong with a URI.
    pub fn of_device(path: &Path, read_only: bool) -> Result<StackFile, UriError> {
        let source = DeviceSource::of(path)?;
        let device = DeviceSpec { name: "device".to_owned(), source, read_only, span: 0..0 };
        Ok(StackFile {
            path: PathBuf::new(),
            text: String::new(),
            export: device.name.clone(),
            devices: vec![device],
            layers: Vec::new(),
            serve: Serve::default(),
        })
    }

    pub fn device(&self, name: &str) -> Option<&DeviceSpec> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub fn layer(&self, name: &str) -> Option<&LayerSpec> {
        self.layers.iter().find(|layer| layer.name == name)
    }

    /// The log caches, bottom first.
    pub fn log_caches(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().filter(|layer| matches!(layer.kind, LayerKind::LogCache { .. }))
    }

    /// The arrays, bottom first.
    pub fn arrays(&self) -> impl Iterator<Item = (&LayerSpec, &RaidSpec)> {
        self.layers.iter().filter_map(|layer| match &layer.kind {
            LayerKind::Raid(raid) => Some((layer, raid)),
            _ => None,
        })
    }

    /// The mirrored logs, with their legs.
    pub fn mirrors(&self) -> impl Iterator<Item = (&LayerSpec, &MirrorSpec)> {
        self.layers.iter().filter_map(|layer| match &layer.kind {
            LayerKind::Mirror(mirror) => Some((layer, mirror)),
            _ => None,
        })
    }

    fn mirrors_mut(&mut self) -> impl Iterator<Item = &mut MirrorSpec> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.kind {
            LayerKind::Mirror(mirror) => Some(mirror),
            _ => None,
        })
    }

    /// The mirror that a log is, or lies on.
    pub fn mirror_below(&self, part: &str) -> Option<&LayerSpec> {
        let layer = self.layer(part)?;
        match (&layer.kind, layer.kind.below().as_slice()) {
            (LayerKind::Mirror(_), _) => Some(layer),
            (LayerKind::LogCache { .. }, _) => None,
            (_, [below]) => self.mirror_below(&below.text),
            _ => None,
        }
    }

    /// Lets mirrored logs start although legs are missing that are not known to have failed.
    pub fn degrade_mirrors(&mut self) {
        self.mirrors_mut().for_each(|mirror| mirror.degraded = true);
    }

    /// The device at the bottom of a chain of layers that each have one thing below them; none where it branches.
    pub fn bottom_device(&self, name: &str) -> Option<&DeviceSpec> {
        if let Some(device) = self.device(name) {
            return Some(device);
        }
        match self.layer(name)?.kind.below().as_slice() {
            [below] => self.bottom_device(&below.text),
            _ => None,
        }
    }

    /// The file, block device or export whose data a part of the stack serves: below a log cache its data disk. None for RAM, and for an array, which
    /// knows its members itself.
    pub fn data_path(&self, part: &str) -> Option<&Path> {
        match (self.device(part).map(|device| &device.source), self.layer(part).map(|layer| &layer.kind)) {
            (Some(source), _) => source.place(),
            (None, Some(LayerKind::LogCache { data, .. })) => self.data_path(&data.text),
            (None, Some(kind)) => match kind.below().as_slice() {
                [below] => self.data_path(&below.text),
                _ => None,
            },
            _ => None,
        }
    }

    /// The file, block device or export that a part of the stack lies on; none for RAM, and for what lies on several.
    pub fn path_below(&self, part: &str) -> Option<&Path> {
        self.bottom_device(part)?.source.place()
    }

    /// The RAM that the stack will take when it is served, as far as the file says: caches, buffers, and disks in RAM.
    pub fn memory_bytes(&self) -> u64 {
        let devices = self.devices.iter().map(|device| match device.source {
            DeviceSource::Memory { size } => size,
            DeviceSource::Path { .. } | DeviceSource::Remote(_) => 0,
        });
        devices.fold(self.layers_memory_bytes(), u64::saturating_add)
    }

    /// The same of its layers alone.
    pub fn layers_memory_bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| match &layer.kind {
            LayerKind::LogCache { log, config, .. } => {
                // As much again for reading the log.
                let buffers = 2 * config.destage_memory as u128;
                let lines = u128::from(self.stated_bytes(&log.text)) / u128::from(LINE_BYTES);
                let ghosts = if config.reads == Reads::Keep { lines } else { 0 };
                let table = lines * u128::from(LookupTable::LINE_RAM_BYTES) + ghosts;
                u64::try_from(buffers + table).unwrap_or(u64::MAX)
            }
            LayerKind::WriteCache(cache) => cache.config.write_bytes.saturating_add(cache.config.read_bytes),
            LayerKind::Raid(raid) => raid.config.cache_bytes.saturating_add(raid.config.pass_bytes),
            _ => 0,
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

    /// Lets every log cache start although acknowledged records of its log are damaged, and every array although its parity is
    /// in doubt and members are missing.
    pub fn accept_damage(&mut self) {
        for layer in &mut self.layers {
            match &mut layer.kind {
                LayerKind::LogCache { config, .. } => config.accept_damage = true,
                LayerKind::Raid(raid) => raid.config.accept_damage = true,
                _ => {}
            }
        }
    }

    /// Lets every log cache start although another machine has served its log last, and has not stopped it.
    pub fn take_over(&mut self) {
        for layer in &mut self.layers {
            if let LayerKind::LogCache { config, .. } = &mut layer.kind {
                config.take_over = true;
            }
        }
    }

    /// Has every log cache take over what its data disk has grown by.
    pub fn grow(&mut self) {
        for layer in &mut self.layers {
            if let LayerKind::LogCache { config, .. } = &mut layer.kind {
                config.grow = true;
            }
        }
    }

    pub fn grows(&self) -> bool {
        self.log_caches()
            .any(|layer| matches!(&layer.kind, LayerKind::LogCache { config, .. } if config.grow))
    }

    /// The layers that declare their RAM non-volatile, bottom first: they answer a flush from it.
    pub fn non_volatile_layers(&self) -> Vec<&str> {
        let declares = |layer: &&LayerSpec| match &layer.kind {
            LayerKind::WriteCache(cache) => cache.config.non_volatile,
            LayerKind::Raid(raid) => raid.config.non_volatile,
            _ => false,
        };
        self.layers.iter().filter(declares).map(|layer| layer.name.as_str()).collect()
    }

    /// Has log caches keep what they answer although the server may be killed.
    pub fn outlive_server(&mut self) {
        for layer in &mut self.layers {
            if let LayerKind::LogCache { config, .. } = &mut layer.kind {
                config.outlives_server = true;
            }
        }
    }

    /// Nothing that is answered is lost when the server is killed: no layer answers from its memory.
    pub fn keeps_answered(&self) -> bool {
        self.layers.iter().all(|layer| match &layer.kind {
            LayerKind::LogCache { config, .. } => match config.promise {
                Promise::Flush => config.outlives_server,
                Promise::Always => true,
                Promise::Ordered => false,
            },
            LayerKind::WriteCache(_) | LayerKind::Raid(_) | LayerKind::Registered { .. } => false,
            LayerKind::Slice(_)
            | LayerKind::Fault { .. }
            | LayerKind::ReadAhead { .. }
            | LayerKind::Mirror(_)
            | LayerKind::Trace(_) => true,
        })
    }

    /// Takes all RAM for volatile, whatever the layers declare: for a process that relies on flushes.
    pub fn without_non_volatile(&mut self) {
        for layer in &mut self.layers {
            match &mut layer.kind {
                LayerKind::WriteCache(cache) => cache.config.non_volatile = false,
                LayerKind::Raid(raid) => raid.config.non_volatile = false,
                _ => {}
            }
        }
    }

    /// Lets no array begin a resync or a rebuild, and has no leg filled: for what is only looked at.
    pub fn without_passes(&mut self) {
        self.mirrors_mut().for_each(|mirror| mirror.only_looks = true);
        for layer in &mut self.layers {
            if let LayerKind::Raid(raid) = &mut layer.kind {
                raid.config.pass_rate = 0;
            }
        }
    }

    /// Whether every file and block device is there that a part stands on. An array below it says itself what it can start without, and
    /// so does a log cache of its log.
    pub fn is_there(&self, part: &str) -> bool {
        if let Some(device) = self.device(part) {
            return device.is_there();
        }
        match self.layer(part).map(|layer| &layer.kind) {
            None | Some(LayerKind::Raid(_) | LayerKind::Mirror(_)) => true,
            Some(LayerKind::LogCache { data, .. }) => self.is_there(&data.text),
            Some(kind) => kind.below().iter().all(|below| self.is_there(&below.text)),
        }
    }

    /// Takes legs out of a mirrored log that are not there. One stays in any case: its start says what is wrong.
    pub fn leave_out_legs(&mut self, mirror: &str, names: &[&str]) {
        for layer in self.layers.iter_mut().filter(|layer| layer.name == mirror) {
            if let LayerKind::Mirror(mirror) = &mut layer.kind
                && mirror.of.iter().any(|leg| !names.contains(&leg.text.as_str()))
            {
                mirror.of.retain(|leg| !names.contains(&leg.text.as_str()));
            }
        }
    }

    /// Takes members and spares out of an array, as if they were not there: "missing" stands in the places of the members.
    pub fn leave_out(&mut self, array: &str, names: &[&str]) {
        for layer in self.layers.iter_mut().filter(|layer| layer.name == array) {
            let LayerKind::Raid(raid) = &mut layer.kind else { continue };
            for (devices, places) in
                [(&mut raid.of, &mut raid.config.present), (&mut raid.spares, &mut raid.config.spares)]
            {
                let there = places.iter_mut().filter(|there| **there);
                there
                    .zip(devices.iter())
                    .for_each(|(there, device)| *there = !names.contains(&device.text.as_str()));
                devices.retain(|device| !names.contains(&device.text.as_str()));
            }
        }
    }

    /// Forgets all devices and layers that some parts do not stand on.
    pub fn keep_only(&mut self, parts: &[&str]) {
        let needed = self.needed_by(parts);
        self.devices.retain(|device| needed.contains(&device.name));
        self.layers.retain(|layer| needed.contains(&layer.name));
    }

    /// The same stack with these members in an array, in the order of their roles, none where one is missing; and without spares.
    pub fn with_members(&self, array: &str, members: &[Option<&str>]) -> StackFile {
        let mut file = self.clone();
        for layer in file.layers.iter_mut().filter(|layer| layer.name == array) {
            let LayerKind::Raid(raid) = &mut layer.kind else { continue };
            let known: Vec<Located> = raid.of.drain(..).chain(raid.spares.drain(..)).collect();
            let located = |name: &&str| known.iter().find(|known| known.text == **name).cloned();
            raid.of = members.iter().flatten().filter_map(located).collect();
            raid.config.present = members.iter().map(Option::is_some).collect();
            raid.config.spares.clear();
        }
        file
    }

    /// The same stack without a log cache: what stood on the cache stands on its data disk.
    pub fn without_cache(&self, cache: &str) -> StackFile {
        let mut file = self.clone();
        let Some(LayerKind::LogCache { data, .. }) = self.layer(cache).map(|layer| &layer.kind) else {
            return file;
        };
        file.layers.retain(|layer| layer.name != cache);
        crate::write_hole::open_again(&mut file.layers, cache);
        let belows = file.layers.iter_mut().flat_map(|layer| layer.kind.below_mut());
        for below in belows.filter(|below| below.text == cache) {
            below.text.clone_from(&data.text);
        }
        if file.export == cache {
            file.export.clone_from(&data.text);
        }
        file
    }

    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) -> StackFileError {
        Source { file: &self.path, text: &self.text }.error(span, message)
    }

    /// Two layers may share what is below them only through slices: otherwise they would overwrite each other.
    fn check_sharing(&self) -> Result<(), StackFileError> {
        let mut users: BTreeMap<&str, Vec<&LayerSpec>> = BTreeMap::new();
        for layer in &self.layers {
            for below in layer.kind.below() {
                users.entry(below.text.as_str()).or_default().push(layer);
            }
        }
        for (below, layers) in users {
            let whole = layers.iter().find(|layer| !matches!(layer.kind, LayerKind::Slice(_)));
            if let (Some(whole), true) = (whole, layers.len() > 1) {
                let other = layers.iter().find(|layer| layer.name != whole.name).unwrap_or(whole);
                return Err(self.error(
                    whole.span.clone(),
                    format!(
                        "layer \"{}\": uses all of \"{below}\", which layer \"{}\" uses too; they would overwrite \
                         each other: give each its own slice",
                        whole.name, other.name
                    ),
                ));
            }
            self.check_slices(below, &layers)?;
        }
        self.check_paths()
    }

    fn check_slices(&self, below: &str, layers: &[&LayerSpec]) -> Result<(), StackFileError> {
        let mut slices: Vec<_> = layers
            .iter()
            .filter_map(|layer| match &layer.kind {
                LayerKind::Slice(slice) => Some((slice.first_bytes, slice.size_bytes, layer)),
                _ => None,
            })
            .collect();
        slices.sort_by_key(|(first, ..)| *first);
        for pair in slices.windows(2) {
            let ((first, size, layer), (next, _, other)) = (&pair[0], &pair[1]);
            if size.is_none_or(|size| first + size > *next) {
                return Err(self.error(
                    other.span.clone(),
                    format!(
                        "layer \"{}\": overlaps layer \"{}\" on \"{below}\": let it start at the end of the other",
                        other.name, layer.name
                    ),
                ));
            }
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), StackFileError> {
        for (index, device) in self.devices.iter().enumerate() {
            let Some(path) = device.source.place() else { continue };
            let same = |other: &&DeviceSpec| other.source.place() == Some(path);
            if let Some(other) = self.devices[..index].iter().find(same) {
                return Err(self.error(
                    device.span.clone(),
                    format!(
                        "device \"{}\": is the same file as device \"{}\": correct one of the paths; if it is meant to be both, describe it once \
                             and use slices of it",
                        device.name, other.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn read_device(name: Located, mut fields: Fields<'_>, dir: &Path) -> Result<DeviceSpec, StackFileError> {
    let path = fields.text("path")?;
    let memory = fields.size("memory")?;
    let size = fields.size("size")?;
    let read_only = fields.flag("read-only")?.unwrap_or(false);
    let timeout = fields.duration("timeout")?.map(|timeout| Duration::from_nanos(timeout.0));
    for field in ["memory", "size"] {
        if fields.has(field) {
            let bytes = if field == "memory" { memory } else { size };
            if bytes.is_some_and(|bytes| bytes == 0 || bytes % 4096 != 0) {
                let span = fields.value_span(field);
                return Err(
                    fields.error(span, format!("\"{field}\" must be a multiple of 4096 bytes, and not 0"))
                );
            }
        }
    }
    let remote = path.as_ref().is_some_and(|path| Uri::is_meant(&path.text));
    if timeout.is_some() && !remote {
        let span = fields.value_span("timeout");
        return Err(fields.error(
            span,
            "\"timeout\" belongs to the URI of an NBD server: the kernel decides it for other devices",
        ));
    }
    let source = match (path, memory) {
        (Some(_), None) if remote && size.is_some() => {
            return Err(
                fields.error_here("an NBD server decides itself how large its export is: take \"size\" out")
            );
        }
        (Some(path), None) if remote => {
            let uri = Uri::parse(&path.text)
                .map_err(|why| fields.error(path.span.clone(), format!("\"path\": {why}")))?;
            DeviceSource::Remote(RemoteSource { timeout, ..RemoteSource::of(uri, dir) })
        }
        (Some(path), None) => DeviceSource::Path { path: dir.join(path.text), size },
        (None, Some(_)) if size.is_some() => {
            return Err(
                fields.error_here("\"size\" belongs to \"path\": the size of RAM is given by \"memory\"")
            );
        }
        (None, Some(size)) => DeviceSource::Memory { size },
        (Some(_), Some(_)) => return Err(fields.error_here("has both \"path\" and \"memory\": keep one")),
        (None, None) => {
            return Err(fields.error_here("says not where it is: add path = \"FILE\" or memory = \"64MiB\""));
        }
    };
    fields.finish()?;
    Ok(DeviceSpec { name: name.text, source, read_only, span: name.span })
}

fn read_serve(mut fields: Fields<'_>, dir: &Path) -> Result<Serve, StackFileError> {
    let addresses = fields.texts("nbd")?;
    let nbd_tls = fields.text("nbd-tls")?.map(|path| dir.join(path.text));
    let remote = fields.flag("nbd-allow-remote")?.unwrap_or(nbd_tls.is_some());
    let mut nbd = Vec::new();
    for address in addresses {
        let parsed = match parse_address(&address.text, dir) {
            Ok(Address::Tcp(address)) if !address.ip().is_loopback() && !remote => {
                Err(AddressError::Remote(address))
            }
            parsed => parsed,
        };
        nbd.push(parsed.map_err(|why| fields.error(address.span, format!("\"nbd\": {why}")))?);
    }
    let nbd_name = fields.text("nbd-name")?.map_or(String::new(), |name| name.text);
    let nbd_recovery = fields.flag("nbd-recovery")?.unwrap_or(false);
    if nbd_recovery && nbd.is_empty() {
        let span = fields.value_span("nbd-recovery");
        return Err(fields.error(span, "\"nbd-recovery\" belongs to \"nbd\", which is not there"));
    }
    let fuse = fields.text("fuse")?.map(|path| dir.join(path.text));
    let ublk = if fields.is_number("ublk") {
        let number = fields.number_in("ublk", 0..=UBLK_NUMBER_MAX)?;
        number.and_then(|number| u32::try_from(number).ok()).map(UblkNumber::Is)
    } else {
        match fields.flag("ublk") {
            Ok(wanted) => wanted.unwrap_or(false).then_some(UblkNumber::Any),
            Err(_) => {
                let span = fields.value_span("ublk");
                return Err(fields.error(span, "\"ublk\" must be true, false, or the number of the device"));
            }
        }
    };
    let ublk_recovery = fields.flag("ublk-recovery")?.unwrap_or(true);
    let control = fields.text("control")?.map(|path| dir.join(path.text));
    let metrics = match fields.text("metrics")? {
        Some(address) => Some(
            read_metrics(&address.text, dir)
                .map_err(|why| fields.error(address.span, format!("\"metrics\": {why}")))?,
        ),
        None => None,
    };
    if nbd_tls.is_some() && !nbd.iter().any(|address| matches!(address, Address::Tcp(_))) {
        let span = fields.value_span("nbd-tls");
        return Err(fields.error(span, "\"nbd-tls\" belongs to a tcp: address of \"nbd\", and there is none"));
    }
    fields.finish()?;
    Ok(Serve { nbd, nbd_name, nbd_tls, nbd_recovery, fuse, ublk, ublk_recovery, control, metrics })
}

fn read_metrics(text: &str, dir: &Path) -> Result<Address, AddressError> {
    match parse_address(text, dir)? {
        Address::Tcp(address) if !address.ip().is_loopback() => Err(AddressError::RemoteMetrics(address)),
        address => Ok(address),
    }
}

/// Something that is no address to serve on.
#[derive(Debug, thiserror::Error)]
enum AddressError {
    #[error("there is no path behind unix:, like \"unix:disk.sock\"")]
    NoPath,
    #[error("\"{0}\" must start with unix: or tcp:, like \"unix:disk.sock\"")]
    Kind(String),
    #[error("\"{0}\" is not ADDRESS:PORT, like \"tcp:127.0.0.1:10809\"")]
    NoPort(String),
    #[error(
        "{0} can be reached from other hosts, and there is neither encryption nor a password: name certificates with nbd-tls = \"DIR\", use \
         a unix socket through ssh, or accept that with nbd-allow-remote = true"
    )]
    Remote(SocketAddr),
    #[error(
        "{0} can be reached from other hosts, and there is neither encryption nor a password: use tcp:PORT, which is the loopback address, and \
         let an agent or a proxy on this host pass the metrics on"
    )]
    RemoteMetrics(SocketAddr),
}

/// `unix:PATH`, `tcp:ADDRESS:PORT`, or `tcp:PORT` for loopback.
fn parse_address(text: &str, dir: &Path) -> Result<Address, AddressError> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(AddressError::NoPath);
        }
        return Ok(Address::Unix(dir.join(path)));
    }
    let Some(address) = text.strip_prefix("tcp:") else {
        return Err(AddressError::Kind(text.to_owned()));
    };
    let address = match address.parse::<u16>() {
        Ok(port) => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port),
        Err(_) => address.parse().map_err(|_| AddressError::NoPort(address.to_owned()))?,
    };
    Ok(Address::Tcp(address))
}

/// The names in a file, each once, and what stands on what.
struct Names<'a> {
    source: Source<'a>,
    /// Every name, with the place of the layer in the list; none for a device.
    names: BTreeMap<String, Option<usize>>,
}

impl<'a> Names<'a> {
    fn new(
        source: Source<'a>,
        devices: &[DeviceSpec],
        layers: &[LayerSpec],
    ) -> Result<Names<'a>, StackFileError> {
        let mut names = BTreeMap::new();
        let all = devices.iter().map(|device| (&device.name, &device.span, None));
        let all = all.chain(layers.iter().enumerate().map(|(i, layer)| (&layer.name, &layer.span, Some(i))));
        for (name, span, place) in all {
            if names.insert(name.clone(), place).is_some() {
                return Err(
                    source.error(span.clone(), format!("the name \"{name}\" is taken: choose another"))
                );
            }
        }
        Ok(Names { source, names })
    }

    /// The layers below `export`, bottom first.
    fn order(
        &self,
        export: &Located,
        devices: &[DeviceSpec],
        layers: Vec<LayerSpec>,
    ) -> Result<Vec<LayerSpec>, StackFileError> {
        let mut order =
            Order { names: self, layers: &layers, state: vec![State::New; layers.len()], done: vec![] };
        order.visit(export, &mut Vec::new())?;
        let done = order.done;
        let unused = (0..layers.len()).find(|index| !done.contains(index)).map(|index| &layers[index]);
        if let Some(layer) = unused {
            let message = format!("layer \"{}\": nothing stands on it: use it or remove it", layer.name);
            return Err(self.source.error(layer.span.clone(), message));
        }
        let used = |device: &DeviceSpec| {
            export.text == device.name
                || layers.iter().any(|layer| layer.kind.below().iter().any(|below| below.text == device.name))
        };
        if let Some(device) = devices.iter().find(|device| !used(device)) {
            let message = format!("device \"{}\": no layer uses it: use it or remove it", device.name);
            return Err(self.source.error(device.span.clone(), message));
        }
        let mut layers: Vec<Option<LayerSpec>> = layers.into_iter().map(Some).collect();
        Ok(done.into_iter().filter_map(|index| layers[index].take()).collect())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Open,
    Done,
}

/// A walk down from the export: the bottom comes out first, and a cycle is seen.
struct Order<'a> {
    names: &'a Names<'a>,
    layers: &'a [LayerSpec],
    state: Vec<State>,
    done: Vec<usize>,
}

impl<'a> Order<'a> {
    fn visit(&mut self, name: &Located, path: &mut Vec<&'a str>) -> Result<(), StackFileError> {
        let error = |message: String| self.names.source.error(name.span.clone(), message);
        let Some(place) = self.names.names.get(&name.text) else {
            let known = self.names.names.keys().map(String::as_str);
            let advice = match suggestion(&name.text, known.clone()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if self.names.names.is_empty() => "the file has no devices and no layers".to_owned(),
                None => format!("known are: {}", known.collect::<Vec<_>>().join(", ")),
            };
            return Err(error(format!("no device or layer has the name \"{}\"; {advice}", name.text)));
        };
        let Some(index) = *place else { return Ok(()) };
        let layer = &self.layers[index];
        match self.state[index] {
            State::Done => return Ok(()),
            State::Open => {
                path.push(&layer.name);
                let cycle = path.iter().skip_while(|step| **step != layer.name).copied().collect::<Vec<_>>();
                return Err(error(format!(
                    "the layers stand on each other in a circle: {}",
                    cycle.join(" on ")
                )));
            }
            State::New => {}
        }
        self.state[index] = State::Open;
        path.push(&layer.name);
        for below in layer.kind.below() {
            self.visit(below, path)?;
        }
        path.pop();
        self.state[index] = State::Done;
        self.done.push(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
