//! An array below a log cache has its journal on the log's device, unless the file says otherwise: the log alone does not
//! close the write hole. A destage leaves a row between two versions when the power is cut, and a member that is
//! lost then takes blocks with it that were destaged long ago and are in no log.

use crate::device::DeclaredDevice;
use crate::fields::Located;
use crate::kinds::{LayerKind, LayerSpec, SliceSpec};
use crate::order::needed;

/// Size of the journal, at the beginning of the log's device: a hundred stripes of five members with strips of 128 KiB. It is equal
/// for all arrays, so that the log does not move when an array grows. An array with larger stripes reports an error.
pub const IMPLIED_JOURNAL_BYTES: u64 = 64 << 20;

/// The name of the added journal layer, which shows its array.
fn journal_of(array: &str) -> String {
    format!("{array}.journal")
}

fn log_of(cache: &str) -> String {
    format!("{cache}.log")
}

/// Adds a journal to each array below a log cache that has none.
pub(crate) fn close(devices: &[DeclaredDevice], layers: &mut Vec<LayerSpec>) {
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

/// The array at the bottom of the chain of layers from `name`, if it has no journal.
fn array_below(layers: &[LayerSpec], name: &str) -> Option<usize> {
    let mut name = name;
    // The bound ends the walk on a circle of layers, which is refused later.
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

fn add(layers: &mut Vec<LayerSpec>, cache: usize, array: usize) {
    let (journal, own_log) = (journal_of(&layers[array].name), log_of(&layers[cache].name));
    let span = layers[cache].span.clone();
    let LayerKind::LogCache { log, .. } = &mut layers[cache].kind else { unreachable!("it is one") };
    let of = std::mem::replace(log, Located { text: own_log.clone(), ..log.clone() });
    let LayerKind::Raid(raid) = &mut layers[array].kind else { unreachable!("it is one") };
    raid.journal = Some(Located { text: journal.clone(), span: span.clone() });
    (raid.config.journal, raid.config.journal_implied) = (true, true);
    for (name, first_bytes, size_bytes) in
        [(journal, 0, Some(IMPLIED_JOURNAL_BYTES)), (own_log, IMPLIED_JOURNAL_BYTES, None)]
    {
        let slice = SliceSpec { of: of.clone(), first_bytes, size_bytes, implied: true };
        layers.push(LayerSpec { name, kind: LayerKind::Slice(slice), span: span.clone() });
    }
}

/// Removes the journal that [`close`] added to the array below a cache: the log's device is missing.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{AsStated, RAID, parse};

    /// An array below a log cache, without a word of a journal.
    fn silent(journal: &str) -> String {
        RAID.replacen("[layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n", "", 1)
            .replacen("journal = \"journal\"", journal, 1)
            .replacen("memory = \"8MiB\"", "memory = \"80MiB\"", 1)
    }

    #[test]
    fn an_array_below_a_log_cache_has_its_journal_before_the_log() {
        let file = parse(&silent("")).unwrap();
        let (layer, raid) = file.arrays().next().expect("an array");
        assert_eq!(layer.kind.below_names(), ["a", "b", "d", "array.journal"]);
        assert!(raid.config.journal);
        let cache = file.log_caches().next().expect("a cache");
        assert_eq!(cache.kind.below_names(), ["cache.log", "array"]);
        let slices: Vec<_> = file
            .layers
            .iter()
            .filter_map(|layer| match &layer.kind {
                LayerKind::Slice(slice) => {
                    Some((layer.name.as_str(), slice.of.text.as_str(), slice.first_bytes, slice.size_bytes))
                }
                _ => None,
            })
            .collect();
        let journal = 64 << 20;
        assert!(slices.contains(&("array.journal", "log", 0, Some(journal))), "{slices:?}");
        assert!(slices.contains(&("cache.log", "log", journal, None)), "{slices:?}");

        let alone = file.without_cache("cache");
        let (layer, raid) = alone.arrays().next().expect("an array");
        assert_eq!(layer.kind.below_names(), ["a", "b", "d"]);
        assert!(!raid.config.journal && alone.export == "array");
        assert!(
            alone.layers.iter().all(|layer| !layer.name.contains('.')),
            "nothing of the log is asked for"
        );
    }

    #[test]
    fn an_array_has_no_journal_that_the_file_does_not_want_or_that_would_be_on_the_array() {
        let names = |text: &str| -> Vec<String> {
            let file = parse(text).unwrap();
            let layers: Vec<String> = file.layers.iter().map(|layer| layer.name.clone()).collect();
            assert!(!file.arrays().next().expect("an array").1.config.journal);
            layers
        };
        assert_eq!(names(&silent("journal = \"none\"")), ["log", "array", "cache"]);
        let on_a_member = silent("")
            .replacen("[device.ssd]\nmemory = \"80MiB\"\n", "", 1)
            .replacen("of = \"ssd\"\nfirst = \"4MiB\"", "of = \"d\"\nfirst = \"2MiB\"", 1)
            .replacen("\"missing\", \"d\"]", "\"missing\", \"rest\"]", 1);
        let on_a_member = on_a_member + "[layer.rest]\nkind = \"slice\"\nof = \"d\"\nsize = \"2MiB\"\n";
        assert_eq!(names(&on_a_member), ["log", "rest", "array", "cache"]);
    }

    #[test]
    fn a_log_that_is_too_small_for_the_journal_says_so() {
        let small = silent("").replacen("memory = \"80MiB\"", "memory = \"32MiB\"", 1);
        let Err(error) = parse(&small).unwrap().build(&mut AsStated) else { panic!("32 MiB are not enough") };
        assert!(error.to_string().contains("journal = \"none\""), "{error}");
    }
}
