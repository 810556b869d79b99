//! An array below a log cache has its journal on the log's device, unless the file says otherwise: the log alone does not
//! close the write hole. A destage leaves a row between two versions when the power is cut, and a member that is
//! lost then takes blocks with it that were destaged long ago and are in no log.

use crate::fields::Located;
use crate::file::DeviceSpec;
use crate::kinds::{LayerKind, LayerSpec, SliceSpec};

/// The journal, at the beginning of what the log is on. The same for all arrays, so that the log stays where it is when an
/// array grows: a hundred stripes of five members with strips of 128 KiB. An array with stripes too large for it says so.
const JOURNAL_BYTES: u64 = 64 << 20;

/// The layers that are added have names that show where they belong.
fn journal_of(array: &str) -> String {
    format!("{array}.journal")
}

fn log_of(cache: &str) -> String {
    format!("{cache}.log")
}

/// Gives each array without a journal that stands below a log cache one.
pub(crate) fn close(devices: &[DeviceSpec], layers: &mut Vec<LayerSpec>) {
    for cache in 0..layers.len() {
        let LayerKind::LogCache { log, data, .. } = &layers[cache].kind else { continue };
        let Some(array) = array_below(layers, &data.text) else { continue };
        let below_array = needed(layers, &layers[array].name);
        let own_device = needed(layers, &log.text)
            .iter()
            .all(|name| !devices.iter().any(|device| device.name == *name) || !below_array.contains(name));
        if own_device {
            add(layers, cache, array);
        }
    }
}

/// The array without a journal that the chain of layers from `name` down ends in.
fn array_below(layers: &[LayerSpec], name: &str) -> Option<usize> {
    let mut name = name;
    // A file's layers may stand on each other in a circle, which is found out later.
    for _ in 0..layers.len() {
        let index = layers.iter().position(|layer| layer.name == name)?;
        match &layers[index].kind {
            LayerKind::Raid(raid) => return (raid.journal.is_none() && !raid.hole_accepted).then_some(index),
            kind => match kind.below().as_slice() {
                [below] => name = &below.text,
                _ => return None,
            },
        }
    }
    None
}

/// Everything that `name` stands on, itself included.
fn needed<'a>(layers: &'a [LayerSpec], name: &'a str) -> Vec<&'a str> {
    let mut found = vec![name];
    let mut at = 0;
    while let Some(name) = found.get(at) {
        let layer = layers.iter().find(|layer| layer.name == *name);
        for below in layer.iter().flat_map(|layer| layer.kind.below()) {
            if !found.contains(&below.text.as_str()) {
                found.push(&below.text);
            }
        }
        at += 1;
    }
    found
}

fn add(layers: &mut Vec<LayerSpec>, cache: usize, array: usize) {
    let (journal, own_log) = (journal_of(&layers[array].name), log_of(&layers[cache].name));
    let span = layers[cache].span.clone();
    let LayerKind::LogCache { log, .. } = &mut layers[cache].kind else { unreachable!("it is one") };
    let of = std::mem::replace(log, Located { text: own_log.clone(), ..log.clone() });
    let LayerKind::Raid(raid) = &mut layers[array].kind else { unreachable!("it is one") };
    raid.journal = Some(Located { text: journal.clone(), span: span.clone() });
    (raid.config.journal, raid.config.journal_implied) = (true, true);
    for (name, first_bytes, size_bytes) in [(journal, 0, Some(JOURNAL_BYTES)), (own_log, JOURNAL_BYTES, None)]
    {
        let slice = SliceSpec { of: of.clone(), first_bytes, size_bytes, implied: true };
        layers.push(LayerSpec { name, kind: LayerKind::Slice(slice), span: span.clone() });
    }
}

/// Takes the journal away again that [`close`] gave the array below a cache: the log's device is gone.
pub(crate) fn open_again(layers: &mut Vec<LayerSpec>, cache: &str) {
    let log = log_of(cache);
    let implied = |layer: &&LayerSpec| matches!(&layer.kind, LayerKind::Slice(slice) if slice.implied);
    let Some(of) = layers.iter().filter(implied).find(|layer| layer.name == log).and_then(of) else { return };
    let gone: Vec<String> = layers
        .iter()
        .filter(implied)
        .filter(|layer| self::of(layer).is_some_and(|other| other == of))
        .map(|layer| layer.name.clone())
        .collect();
    for layer in layers.iter_mut() {
        if let LayerKind::Raid(raid) = &mut layer.kind
            && raid.journal.as_ref().is_some_and(|journal| gone.contains(&journal.text))
        {
            raid.journal = None;
            (raid.config.journal, raid.config.journal_implied) = (false, false);
        }
    }
    layers.retain(|layer| !gone.contains(&layer.name));
}

fn of(layer: &LayerSpec) -> Option<String> {
    match &layer.kind {
        LayerKind::Slice(slice) => Some(slice.of.text.clone()),
        _ => None,
    }
}
