//! A log with several data disks: `data` is a list of them. The place in the list is the number of a disk in the log. The cache is the
//! export. Its first disk is served as the only disk of a log is, so that others can be added without a change for its clients; each
//! other disk is served by the name of its part.

use std::path::Path;

use dcd_engine::log_cache::DISKS_MAX;
use toml_edit::{Array, DocumentMut, Value};

use crate::device::{DeclaredDevice, DeviceSource};
use crate::error::StackFileError;
use crate::fields::{Fields, Located};
use crate::file::StackFile;
use crate::kinds::{LayerKind, LayerSpec};

/// The word for a place in `data` that a disk has left.
const FREE: &str = "free";
/// Size of the RAM that stands in such a place: nothing is ever written there.
const FREE_BYTES: u64 = 4096;

/// The name of the device in a free place of a log.
fn free_place(cache: &str, place: usize) -> String {
    format!("{cache}.{FREE}{place}")
}

/// Puts RAM in each free place.
pub(crate) fn fill_free_places(layers: &mut [LayerSpec], devices: &mut Vec<DeclaredDevice>) {
    for LayerSpec { name: cache, kind, .. } in layers {
        let LayerKind::LogCache { others, .. } = kind else { continue };
        for (place, disk) in others.iter_mut().enumerate().filter(|(_, disk)| disk.text == FREE) {
            disk.text = free_place(cache, 1 + place);
            let (name, span) = (disk.text.clone(), disk.span.clone());
            let source = DeviceSource::Memory { size: FREE_BYTES };
            devices.push(DeclaredDevice { name, source, read_only: false, span });
        }
    }
}

/// Reads the first data disk, and the others.
pub(crate) fn read(fields: &mut Fields<'_>) -> Result<(Located, Vec<Located>), StackFileError> {
    if !fields.is_list("data") {
        return Ok((fields.required_text("data", "data")?, Vec::new()));
    }
    let mut disks = fields.texts("data")?;
    let span = fields.value_span("data");
    if !(1..=DISKS_MAX).contains(&disks.len()) {
        return Err(fields.error(span, format!("\"data\": a log has from 1 to {DISKS_MAX} data disks")));
    }
    if disks.last().is_some_and(|last| last.text == FREE) || disks[0].text == FREE {
        return Err(fields
            .error(span, "\"data\": \"free\" stands between disks; the first and the last place have one"));
    }
    let is_before = |(place, disk): &(usize, &Located)| {
        disk.text != FREE && disks[..*place].iter().any(|it| it.text == disk.text)
    };
    if let Some((_, twice)) = disks.iter().enumerate().find(is_before) {
        return Err(fields.error(twice.span.clone(), format!("\"data\": \"{}\" is named twice", twice.text)));
    }
    let others = disks.split_off(1);
    Ok((disks.swap_remove(0), others))
}

/// Refuses what a log with several data disks cannot have.
pub(crate) fn check(file: &StackFile) -> Result<(), StackFileError> {
    let several = |layer: &&LayerSpec| layer.kind.data_names().len() > 1;
    for cache in file.layers.iter().filter(several) {
        let error = |message: String| {
            Err(file.error(cache.span.clone(), format!("layer \"{}\": {message}", cache.name)))
        };
        if file.export != cache.name {
            return error(
                "a log with several data disks is the export itself: no layer stands on it".to_owned(),
            );
        }
        let on_several = |disk: &&&str| file.bottom_device(disk).is_none();
        if let Some(disk) = cache.kind.data_names().iter().find(on_several) {
            return error(format!(
                "\"{disk}\" does not lie on one device: the data disks of a log with several are devices, or parts of one"
            ));
        }
        if cache.kind.data_names()[1..].contains(&file.serve.nbd_name.as_str()) {
            return error(format!(
                "\"nbd-name\" is the export of the first disk, and \"{}\" is another one: choose another name",
                file.serve.nbd_name
            ));
        }
    }
    Ok(())
}

impl LayerKind {
    /// Names of the data disks of a log cache, in the order of the log.
    pub fn data_names(&self) -> Vec<&str> {
        match self {
            LayerKind::LogCache { data, others, .. } => {
                std::iter::once(data).chain(others).map(|disk| disk.text.as_str()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl StackFile {
    /// Names of the disks that are served, for people: the export, or the data disks of a log with several.
    pub fn served_disks(&self) -> Vec<&str> {
        let names = self.layer(&self.export).map_or(Vec::new(), |layer| layer.kind.data_names());
        if names.len() > 1 { names } else { vec![&self.export] }
    }

    /// The disks that clients get, by their numbers: no free places.
    pub fn disks(&self) -> Vec<(usize, &str)> {
        let all = self.served_disks().into_iter().enumerate();
        all.filter(|(_, name)| !self.is_free_place(name)).collect()
    }

    /// Leaves a data disk out of a start, and all others on its device: something that fails every command takes the place of the device.
    pub fn leave_out_disk(&mut self, disk: &str) {
        let Some(device) = self.bottom_device(disk).map(|device| device.name.clone()) else { return };
        for found in self.devices.iter_mut().filter(|found| found.name == device) {
            found.source = DeviceSource::Missing;
        }
    }

    /// True for a disk that was left out of a start.
    pub fn is_missing(&self, disk: &str) -> bool {
        self.bottom_device(disk).is_some_and(|device| device.source == DeviceSource::Missing)
    }

    /// Data disks of a log cache, as bits, that were left out of a start.
    pub(crate) fn missing_disks(&self, cache: &LayerKind) -> u64 {
        let names = cache.data_names().into_iter().enumerate();
        names.filter(|(_, disk)| self.is_missing(disk)).map(|(place, _)| 1 << place).sum()
    }

    /// The place in `data` that the next disk gets: one that is free, or the next one.
    pub fn next_disk(&self) -> usize {
        let names = self.served_disks();
        names.iter().position(|name| self.is_free_place(name)).unwrap_or(names.len())
    }

    /// True for the name in a place that no disk of the log has.
    pub fn is_free_place(&self, disk: &str) -> bool {
        let layer = self.layer(&self.export);
        let names = layer.map_or(Vec::new(), |layer| layer.kind.data_names());
        names
            .iter()
            .position(|name| *name == disk)
            .is_some_and(|place| disk == free_place(&self.export, place))
    }

    /// Returns the text of the file with one more data disk, at this place of the only log cache.
    ///
    /// # Errors
    /// In words, where the file cannot have it.
    pub fn with_disk(&self, place: usize, name: &str, path: &Path) -> Result<String, String> {
        let path = path.to_str().ok_or_else(|| format!("{}: not UTF-8", path.display()))?;
        if self.device(name).is_some() || self.layer(name).is_some() || name == FREE {
            return Err(format!("the name \"{name}\" is taken: choose another"));
        }
        self.edited(|document, data| {
            // Disks between them may be on their way into the file.
            while data.len() < place {
                data.push(FREE);
            }
            match data.get(place).map(Value::as_str) {
                Some(Some(FREE)) => _ = data.replace(place, name),
                None if place == data.len() => data.push(name),
                _ => return Err(format!("another disk is named in place {place} of \"data\"")),
            }
            document["device"][name] = toml_edit::table();
            document["device"][name]["path"] = toml_edit::value(path);
            Ok(())
        })
    }

    /// Returns the text of the file without a data disk of the only log cache. Its place is free, or goes if it is the last.
    ///
    /// # Errors
    /// In words, where the file cannot be without it.
    pub fn without_disk(&self, place: usize) -> Result<String, String> {
        self.edited(|document, data| {
            let gone = data.replace(place, FREE);
            while data.iter().last().and_then(toml_edit::Value::as_str) == Some(FREE) {
                data.remove(data.len() - 1);
            }
            if let (Some(name), Some(devices)) = (gone.as_str(), document["device"].as_table_like_mut()) {
                devices.remove(name);
            }
            Ok(())
        })
    }

    fn edited(
        &self,
        edit: impl FnOnce(&mut DocumentMut, &mut Array) -> Result<(), String>,
    ) -> Result<String, String> {
        let place = self.path.display();
        let mut document: DocumentMut = self.text().parse().map_err(|error| format!("{place}: {error}"))?;
        let of_cache = |document: &mut DocumentMut| {
            let item = document.get_mut("layer")?.get_mut(&self.export)?.get_mut("data")?;
            match item.as_value()? {
                Value::Array(data) => Some(data.clone()),
                Value::String(only) => Some(Array::from_iter([only.value().as_str()])),
                _ => None,
            }
        };
        let mut data = of_cache(&mut document).ok_or_else(|| {
            format!("{place}: its export \"{}\" is no log cache of data disks", self.export)
        })?;
        edit(&mut document, &mut data)?;
        document["layer"][&self.export]["data"] = toml_edit::value(data);
        let text = document.to_string();
        StackFile::parse(&text, &self.path).map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// True if several disks are served.
    pub fn serves_several(&self) -> bool {
        self.served_disks().len() > 1
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::testing::parse;

    const SEVERAL: &str = "export = \"cache\"\n[serve]\nnbd = \"unix:s\"\n[device.log]\nmemory = \"1MiB\"\n\
                           [device.home]\nmemory = \"1MiB\"\n[device.mail]\nmemory = \"2MiB\"\n\
                           [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = [\"home\", \"mail\"]\n";

    #[test]
    fn each_data_disk_of_a_log_is_served() {
        let file = parse(SEVERAL).unwrap();
        assert_eq!(file.served_disks(), ["home", "mail"]);
        assert_eq!(file.layer("cache").unwrap().kind.below_names(), ["log", "home", "mail"]);
        let one = parse(&SEVERAL.replace("[\"home\", \"mail\"]", "[\"home\"]")).unwrap();
        assert_eq!((one.served_disks(), one.serves_several()), (vec!["cache"], false));
    }

    #[test]
    fn disks_are_added_and_removed_in_the_text_and_the_others_keep_their_places() {
        let one = SEVERAL
            .replace("[\"home\", \"mail\"]", "\"home\" # the first")
            .replace("[device.mail]\nmemory = \"2MiB\"\n", "");
        let file = parse(&one).unwrap();
        let two = parse(&file.with_disk(1, "mail", Path::new("/dev/sdb")).unwrap()).unwrap();
        assert_eq!(two.served_disks(), ["home", "mail"]);
        assert_eq!(two.path_below("mail"), Some(Path::new("/dev/sdb")));
        let three = parse(&two.with_disk(2, "pool", Path::new("/dev/sdc")).unwrap()).unwrap();
        assert_eq!(
            three.with_disk(3, "mail", Path::new("/dev/sdd")).unwrap_err(),
            "the name \"mail\" is taken: choose another"
        );
        let gap = parse(&three.without_disk(1).unwrap()).unwrap();
        assert!(
            gap.text().contains("[\"home\", \"free\", \"pool\"]") && gap.device("mail").is_none(),
            "{}",
            gap.text()
        );
        assert_eq!(gap.served_disks(), ["home", "cache.free1", "pool"]);
        assert!(gap.is_free_place("cache.free1") && !gap.is_free_place("pool"));
        assert!(
            gap.with_disk(2, "new", Path::new("/dev/sdb"))
                .unwrap_err()
                .contains("another disk is named in place 2")
        );
        let again = parse(&gap.with_disk(1, "new", Path::new("/dev/sdb")).unwrap()).unwrap();
        assert_eq!(again.served_disks(), ["home", "new", "pool"]);
        let none = parse(&gap.without_disk(2).unwrap()).unwrap();
        assert_eq!((none.served_disks(), none.devices.len()), (vec!["cache"], 2));
        for wrong in ["[\"free\", \"mail\"]", "[\"home\", \"free\"]"] {
            let error = parse(&SEVERAL.replace("[\"home\", \"mail\"]", wrong)).unwrap_err().to_string();
            assert!(error.contains("\"free\" stands between disks"), "{error}");
        }
    }

    #[test]
    fn what_several_disks_cannot_have_is_refused_with_words() {
        let no_disk = SEVERAL.replace("[\"home\", \"mail\"]", "[]");
        let twice = SEVERAL.replace("\"mail\"]", "\"home\"]");
        let ordered = SEVERAL.to_owned() + "ordered-destage = true\n";
        let through = SEVERAL.to_owned() + "writes = \"through\"\n";
        let below = SEVERAL.replace("export = \"cache\"", "export = \"top\"")
            + "[layer.top]\nkind = \"trace\"\nof = \"cache\"\n";
        let many: Vec<String> = (0..65).map(|disk| format!("\"d{disk}\"")).collect();
        let many = SEVERAL.replace("\"home\", \"mail\"", &many.join(", "));
        let named = SEVERAL.replace("nbd = \"unix:s\"", "nbd = \"unix:s\"\nnbd-name = \"mail\"");
        let nested = SEVERAL.replace("\"mail\"]", "\"lower\"]")
            + "[device.log2]\nmemory = \"1MiB\"\n[layer.lower]\nkind = \"log-cache\"\nlog = \"log2\"\ndata = \"mail\"\n";
        for (text, words) in [
            (no_disk, "from 1 to 64 data disks"),
            (many, "from 1 to 64 data disks"),
            (twice, "\"home\" is named twice"),
            (ordered, "leave it out"),
            (through, "\"writes\" is for a log with one data disk"),
            (below, "is the export itself"),
            (named, "choose another name"),
            (nested, "does not lie on one device"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
