//! A stack file as a whole: reads and checks it, and tells which part stands on which.

use std::ops::Range;
use std::path::{Path, PathBuf};

use dcd_engine::log_cache::Promise;
use dcd_nbd::UriError;
use toml::de::DeTable;

use crate::asked::Asked;
use crate::device::{self, DeclaredDevice, DeviceSource};
use crate::error::{Source, StackFileError};
use crate::fields::Fields;
use crate::kinds::{LayerKind, LayerSpec, MirrorSpec, RaidSpec, read_layer};
use crate::registry::Role;
use crate::serve::{self, ServeSettings};
use crate::{order, several, sharing, write_hole};

/// Explanation for a file that is no stack file.
const EXPLAINED: &str = "a stack file is TOML, and \"dcd stack-file\" describes every field";

/// A stack file. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct StackFile {
    pub path: PathBuf,
    text: String,
    /// The devices that layers use.
    pub devices: Vec<DeclaredDevice>,
    /// Names of devices that no layer uses: a leg that was taken out of a log may still be described.
    pub unused_devices: Vec<String>,
    /// Bottom first: each stands on layers before it.
    pub layers: Vec<LayerSpec>,
    /// The device or layer that is served.
    pub export: String,
    pub serve: ServeSettings,
}

impl StackFile {
    /// Reads a file and parses it.
    pub fn load(path: &Path) -> Result<StackFile, StackFileError> {
        let text = std::fs::read_to_string(path).map_err(|e| StackFileError {
            file: path.to_owned(),
            position: None,
            message: match e.kind() {
                std::io::ErrorKind::InvalidData => {
                    format!("it is not text, so it is not a stack file; {EXPLAINED}")
                }
                _ => format!("cannot be read: {e}"),
            },
        })?;
        StackFile::parse(&text, path)
    }

    /// Reads only the control socket, so that a file with a mistake elsewhere still leads to its server. None if the file names no
    /// control socket, or is not TOML.
    pub fn control_of(path: &Path) -> Option<PathBuf> {
        let table: toml::Table = std::fs::read_to_string(path).ok()?.parse().ok()?;
        let control = table.get("serve")?.get("control")?.as_str()?;
        Some(path.parent()?.join(control))
    }

    /// Parses the text of a stack file; relative paths in it are relative to the directory of `origin`, which is empty for a text
    /// that is in no file.
    pub fn parse(text: &str, origin: &Path) -> Result<StackFile, StackFileError> {
        let source = Source { file: origin, text };
        let table = DeTable::parse(text).map_err(|e| {
            let span = e.span().unwrap_or(0..0);
            match source.without_quotes(span.start) {
                Some(quoted) => source.error(span, format!("text must be in quotes: {quoted}")),
                None => source.error(span, format!("{}; {EXPLAINED}", e.message())),
            }
        })?;
        let dir = origin.parent().unwrap_or(Path::new("")).to_owned();
        let mut fields = Fields::new(source, String::new(), 0..0, table.get_ref());
        let export = fields.required_text("export", "cache")?;
        let mut devices = Vec::new();
        for (name, table) in fields.tables("device")? {
            devices.push(device::read(name, table, &dir)?);
        }
        let mut layers = Vec::new();
        for (name, table) in fields.tables("layer")? {
            layers.extend(read_layer(name, table, &dir)?);
        }
        write_hole::close(&devices, &mut layers);
        several::fill_free_places(&mut layers, &mut devices);
        let serve = match fields.table("serve")? {
            Some(table) => serve::read(table, &dir)?,
            None => ServeSettings::default(),
        };
        fields.finish()?;
        let layers = order::bottom_first(source, &export, &devices, layers)?;
        let used = order::needed(&layers, &export.text);
        let (devices, unused): (Vec<_>, Vec<_>) =
            devices.into_iter().partition(|device| used.contains(&device.name.as_str()));
        sharing::check(source, &devices, &layers)?;
        let file = StackFile {
            path: origin.to_owned(),
            text: text.to_owned(),
            devices,
            unused_devices: unused.into_iter().map(|device| device.name).collect(),
            layers,
            export: export.text,
            serve,
        };
        several::check(&file)?;
        Ok(file)
    }

    /// Makes a stack of a single device.
    ///
    /// # Errors
    /// What is wrong with a URI.
    pub fn of_device(path: &Path, read_only: bool) -> Result<StackFile, UriError> {
        let source = DeviceSource::of(path)?;
        let device = DeclaredDevice { name: "device".to_owned(), source, read_only, span: 0..0 };
        Ok(StackFile {
            path: PathBuf::new(),
            text: String::new(),
            export: device.name.clone(),
            devices: vec![device],
            unused_devices: Vec::new(),
            layers: Vec::new(),
            serve: ServeSettings::default(),
        })
    }

    /// The text that was parsed; empty for a stack that was in no file.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn device(&self, name: &str) -> Option<&DeclaredDevice> {
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

    /// The mirror that a log is, or that is below it.
    pub fn mirror_below(&self, part: &str) -> Option<&LayerSpec> {
        let layer = self.layer(part)?;
        match (&layer.kind, layer.kind.below().as_slice()) {
            (LayerKind::Mirror(_), _) => Some(layer),
            (LayerKind::LogCache { .. }, _) => None,
            (_, [below]) => self.mirror_below(&below.text),
            _ => None,
        }
    }

    /// The names of everything that some parts stand on, themselves included.
    pub fn needed_by(&self, parts: &[&str]) -> Vec<String> {
        parts.iter().flat_map(|part| order::needed(&self.layers, part)).map(str::to_owned).collect()
    }

    /// Devices that hold logs of caches, or legs of them, and no data of the disks. The journal of an array may be there, too.
    pub fn log_devices(&self) -> Vec<&DeclaredDevice> {
        let caches = || self.layers.iter().filter(|layer| matches!(layer.kind, LayerKind::LogCache { .. }));
        let mut data = Vec::new();
        self.data_below(&self.export, &mut data);
        caches().for_each(|cache| self.data_below(&cache.name, &mut data));
        let mut below_logs = Vec::new();
        for cache in caches() {
            if let LayerKind::LogCache { log, .. } = &cache.kind {
                below_logs.extend(order::needed(&self.layers, &log.text));
            }
        }
        let holds_log =
            |device: &&DeclaredDevice| below_logs.contains(&&*device.name) && !data.contains(&&*device.name);
        self.devices.iter().filter(holds_log).collect()
    }

    fn data_below<'a>(&'a self, name: &'a str, found: &mut Vec<&'a str>) {
        if found.contains(&name) {
            return;
        }
        found.push(name);
        let below = match self.layer(name).map(|layer| &layer.kind) {
            Some(kind @ LayerKind::LogCache { .. }) => kind.data_names(),
            Some(LayerKind::Slice(slice)) if slice.implied => Vec::new(),
            Some(kind) => kind.below_names(),
            None => Vec::new(),
        };
        below.into_iter().for_each(|below| self.data_below(below, found));
    }

    /// The device at the bottom of a chain of layers that each have one thing below them; none where it branches.
    pub fn bottom_device(&self, name: &str) -> Option<&DeclaredDevice> {
        if let Some(device) = self.device(name) {
            return Some(device);
        }
        match self.layer(name)?.kind.below().as_slice() {
            [below] => self.bottom_device(&below.text),
            _ => None,
        }
    }

    /// The file, block device or export whose data a part of the stack serves; for a log cache, its data disk. None for RAM, and
    /// for an array, which knows its members itself.
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

    /// The layers that declare their RAM non-volatile, bottom first: they answer a flush once the data is in it.
    pub fn non_volatile_layers(&self) -> Vec<&str> {
        let declares = |layer: &&LayerSpec| match &layer.kind {
            LayerKind::Raid(raid) => raid.config.non_volatile,
            kind => matches!(kind.role(), Some(Role::Cache { non_volatile: true, .. })),
        };
        self.layers.iter().filter(declares).map(|layer| layer.name.as_str()).collect()
    }

    /// True if no layer answers from memory of its own: then answered writes survive a kill of the server.
    pub fn keeps_answered(&self, asked: &Asked) -> bool {
        self.layers.iter().all(|layer| match &layer.kind {
            LayerKind::LogCache { config, .. } => match config.promise {
                Promise::Flush | Promise::Ordered => asked.outlive_server,
                Promise::Always => true,
            },
            LayerKind::Raid(_) | LayerKind::Registered { .. } => false,
            LayerKind::Slice(_)
            | LayerKind::Fault { .. }
            | LayerKind::ReadAhead { .. }
            | LayerKind::Mirror(_)
            | LayerKind::Trace(_) => true,
        })
    }

    /// True if all files and block devices below a part exist. An array decides itself which members it can start without, and a log cache
    /// decides about its log.
    pub fn is_there(&self, part: &str) -> bool {
        if let Some(device) = self.device(part) {
            return device.is_there();
        }
        match self.layer(part).map(|layer| &layer.kind) {
            None | Some(LayerKind::Raid(_) | LayerKind::Mirror(_)) => true,
            Some(kind @ LayerKind::LogCache { .. }) => {
                kind.data_names().into_iter().all(|disk| self.is_there(disk))
            }
            Some(kind) => kind.below().iter().all(|below| self.is_there(&below.text)),
        }
    }

    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) -> StackFileError {
        Source { file: &self.path, text: &self.text }.error(span, message)
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::Nanos;

    use super::*;
    use crate::Address;
    use crate::testing::{LOGICAL, parse};

    #[test]
    fn a_logical_dcd_is_read_whole() {
        let file = parse(LOGICAL).unwrap();
        assert_eq!(file.export, "cache");
        assert_eq!(file.serve.nbd, [Address::Unix("/stacks/disk.sock".into())]);
        assert_eq!(file.serve.control.as_deref(), Some(Path::new("/run/disk.control")));
        let source = DeviceSource::Path { path: "/stacks/disk.img".into(), size: Some(1 << 30) };
        assert_eq!(file.device("file").unwrap().source, source);
        let names: Vec<&str> = file.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["log", "data", "cache"], "the bottom comes first");
        let LayerKind::LogCache { config, .. } = &file.layer("cache").unwrap().kind else {
            panic!("a log cache")
        };
        assert_eq!(config.promise, Promise::Ordered);
        assert_eq!(config.delay_max, Nanos::from_millis(250));
        assert_eq!(config.bypass_bytes, 0);
        assert_eq!(config.contiguity, None);
        assert_eq!(config.high_mark, 75, "what is not said is the default");
        assert_eq!(file.bottom_device("data").unwrap().name, "file");
        assert!(file.bottom_device("cache").is_none(), "a cache stands on two things");
    }

    #[test]
    fn a_device_that_no_layer_uses_is_left_out() {
        let text = LOGICAL.replace("[device.file]", "[device.spare]\nmemory = \"1MiB\"\n[device.file]");
        let file = StackFile::parse(&text, Path::new("/stacks/disk.toml")).unwrap();
        assert_eq!(file.unused_devices, ["spare"]);
        assert!(file.device("spare").is_none() && file.device("file").is_some());
    }

    #[test]
    fn a_mistake_elsewhere_does_not_hide_the_control_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.toml");
        std::fs::write(&path, "export = \"cash\"\n[serve]\ncontrol = \"disk.control\"\n").unwrap();
        assert!(StackFile::load(&path).is_err());
        assert_eq!(StackFile::control_of(&path), Some(dir.path().join("disk.control")));
        std::fs::write(&path, "export = cash\n").unwrap();
        assert_eq!(StackFile::control_of(&path), None);
    }

    #[test]
    fn every_mistake_is_named_with_its_place_and_a_way_out() {
        // What is replaced, by what, the text that the error points at, and a part of the advice.
        let cases = [
            ("promise = \"ordered\"", "promis = \"ordered\"", "promis ", "did you mean \"promise\"?"),
            ("promise = \"ordered\"", "promise = \"sometimes\"", "\"sometimes", "`ordered`"),
            ("delay-max = \"250ms\"", "delay-max = \"250\"", "\"250\"", "unit is missing"),
            ("delay-max = \"250ms\"", "delay-max = 250", "250", "like \"500ms\""),
            ("size = \"64MiB\"", "size = \"64 parsecs\"", "\"64 parsecs", "like \"64MiB\""),
            ("size = \"64MiB\"", "size = \"1000\"", "\"1000", "multiple of 4096"),
            ("size = \"64MiB\"", "size = 0", "0\n\n[layer.data]", "leave it out"),
            ("size = \"64MiB\"", "size = \"65MiB\"", "data]", "overlaps layer \"log\""),
            ("size = \"64MiB\"", "", "data]", "change its \"first\", or the \"size\" of \"log\""),
            ("kind = \"log-cache\"", "kind = \"logcache\"", "\"logcache", "did you mean \"log-cache\"?"),
            ("data = \"data\"", "data = \"date\"", "\"date", "did you mean \"data\"?"),
            ("data = \"data\"", "data = \"cache\"", "\"cache\"\npromise", "in a circle: cache on cache"),
            ("data = \"data\"", "data = \"log\"", "data]", "nothing stands on it"),
            ("data = \"data\"", "", "cache]", "\"data\" is missing"),
            ("data = \"data\"", "data = 7", "7", "text in quotes"),
            ("data = \"data\"", "data = \"data\"\nhigh-mark = 101", "101", "from 1 to 100"),
            ("data = \"data\"", "data = \"data\"\nlow-mark = 90", "90", "below \"high-mark\""),
            ("data = \"data\"", "data = \"data\"\nordered-destage = \"yes\"", "\"yes", "true or false"),
            ("export = \"cache\"", "export = \"cash\"", "\"cash", "did you mean \"cache\"?"),
            ("export = \"cache\"", "", "\n", "\"export\" is missing"),
            ("[device.file]", "[device.cache]", "cache]\nkind", "the name \"cache\" is taken"),
            (
                "promise = \"ordered\"",
                "promise = ordered",
                "ordered",
                "text must be in quotes: promise = \"ordered\"",
            ),
            (
                "promise = \"ordered\"",
                "promise = flsh # why",
                "flsh",
                "text must be in quotes: promise = \"flsh\"",
            ),
            ("path = \"disk.img\"", "", "file]", "has neither"),
            ("path = \"disk.img\"", "path = \"a\"\nmemory = \"1MiB\"", "file]", "keep one"),
            ("size = \"1GiB\"", "size = \"1000\"", "\"1000", "multiple of 4096"),
            ("nbd = \"unix:disk.sock\"", "nbd = \"disk.sock\"", "\"disk.sock", "unix: or tcp:"),
            ("nbd = \"unix:disk.sock\"", "nbd = \"unix:\"", "\"unix:\"", "no path after unix:"),
            ("nbd = \"unix:disk.sock\"", "nbd = \"tcp:0.0.0.0:10809\"", "\"tcp", "nbd-allow-remote"),
            (
                "nbd = \"unix:disk.sock\"",
                "metrics = \"tcp:0.0.0.0:9850\"",
                "\"tcp",
                "use tcp:PORT, which is the loopback",
            ),
            ("nbd = \"unix:disk.sock\"", "metrics = \"9850\"", "\"9850", "must start with unix: or tcp:"),
            (
                "nbd = \"unix:disk.sock\"",
                "nbd = \"unix:disk.sock\"\nnbd-tls-clients = \"anyone\"",
                "\"anyone",
                "belongs to \"nbd-tls\"",
            ),
            (
                "nbd = \"unix:disk.sock\"",
                "nbd = \"tcp:1\"\nnbd-tls = \"t\"\nnbd-tls-clients = \"all\"",
                "\"all",
                "anyone",
            ),
            ("nbd = \"unix:disk.sock\"", "nbd = [\"unix:a\", 7]", "7", "text in quotes"),
            ("[serve]", "[serves]", "serves", "did you mean \"serve\"?"),
            ("export = \"cache\"", "export = \"cache", "\n\n[serve]", "string"),
        ];
        for (old, new, place, advice) in cases {
            assert!(LOGICAL.contains(old), "the test replaces something");
            let text = LOGICAL.replacen(old, new, 1);
            let before = &text[..text.find(place).expect(place)];
            let (line, column) = (
                before.matches('\n').count() + 1,
                before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1,
            );
            let error = parse(&text).expect_err(new).to_string();
            assert!(
                error.starts_with(&format!("/stacks/disk.toml:{line}:{column}: ")),
                "{new}: {line}:{column}: {error}"
            );
            assert!(error.contains(advice), "{new}: {error}");
        }
    }
}
