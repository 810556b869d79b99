//! Finds what a part of a stack file stands on: arrays, caches, files and block devices.

use std::path::Path;

use dcd_engine::{Extent, Lba, SECTOR_BYTES};
use dcd_stack::{LayerKind, StackFile};

/// Returns the array that a part of a stack is, or of which it is one range.
pub fn array_below<'a>(file: &'a StackFile, part: &str) -> Option<&'a str> {
    let layer = file.layer(part)?;
    match (&layer.kind, layer.kind.below_names().as_slice()) {
        (LayerKind::Raid(_), _) => Some(&layer.name),
        (LayerKind::LogCache { .. }, _) => None,
        (kind, _) if kind.is_registered_cache() => None,
        (_, [below]) => array_below(file, below),
        _ => None,
    }
}

/// Returns the file or block device at the bottom of a part; below a cache, that of its data disk.
pub fn home_path<'a>(file: &'a StackFile, part: &'a str) -> Option<&'a Path> {
    match file.layer(part).map(|layer| &layer.kind) {
        Some(LayerKind::LogCache { data, .. }) => home_path(file, &data.text),
        Some(kind) => match kind.below_names().as_slice() {
            [below] => home_path(file, below),
            _ => None,
        },
        None => file.path_below(part),
    }
}

/// Returns the range that a part is of its array, mirror or device, which has this number of sectors.
pub fn range(file: &StackFile, part: &str, sectors: u64) -> Option<Extent> {
    let kind = match file.layer(part).map(|layer| &layer.kind) {
        None | Some(LayerKind::Raid(_) | LayerKind::Mirror(_)) => {
            return Some(Extent::new(Lba(0), sectors));
        }
        Some(kind) => kind,
    };
    let below = range(file, kind.below_names().first()?, sectors)?;
    let LayerKind::Slice(slice) = kind else { return Some(below) };
    let first = slice.first_bytes / SECTOR_BYTES;
    let rest = below.sectors.checked_sub(first)?;
    Some(Extent::new(below.start + first, slice.size_bytes.map_or(rest, |bytes| bytes / SECTOR_BYTES)))
}

/// True for a log cache, and for what has one below it.
pub fn stands_on_a_cache(file: &StackFile, part: &str) -> bool {
    caches_below(file, part) > 0
}

/// Maximum number of log caches on a way from a part to a device, itself included.
pub fn caches_below(file: &StackFile, part: &str) -> usize {
    let Some(layer) = file.layer(part) else { return 0 };
    let below = layer.kind.below_names().into_iter().map(|below| caches_below(file, below)).max();
    usize::from(matches!(layer.kind, LayerKind::LogCache { .. })) + below.unwrap_or(0)
}

/// True where a part lies on a device that is opened for reading only.
pub fn is_read_only(file: &StackFile, part: &str) -> bool {
    match (file.device(part), file.layer(part)) {
        (Some(device), _) => device.read_only,
        (None, Some(layer)) => layer.kind.below_names().into_iter().any(|below| is_read_only(file, below)),
        (None, None) => false,
    }
}
