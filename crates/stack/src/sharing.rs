//! Checks that parts of a stack do not overwrite each other. Slices that do not overlap may share a device or a layer. Two devices never
//! share a file.

use std::collections::BTreeMap;

use crate::device::DeclaredDevice;
use crate::error::{Source, StackFileError};
use crate::kinds::{LayerKind, LayerSpec};

/// Two layers may share what is below them only through slices: otherwise they would overwrite each other.
pub(crate) fn check(
    source: Source<'_>,
    devices: &[DeclaredDevice],
    layers: &[LayerSpec],
) -> Result<(), StackFileError> {
    let mut users: BTreeMap<&str, Vec<&LayerSpec>> = BTreeMap::new();
    for layer in layers {
        for below in layer.kind.below() {
            users.entry(below.text.as_str()).or_default().push(layer);
        }
    }
    for (below, layers) in users {
        let whole = layers.iter().find(|layer| !matches!(layer.kind, LayerKind::Slice(_)));
        if let (Some(whole), true) = (whole, layers.len() > 1) {
            let other = layers.iter().find(|layer| layer.name != whole.name).unwrap_or(whole);
            return Err(source.error(
                whole.span.clone(),
                format!(
                    "layer \"{}\": uses all of \"{below}\", which layer \"{}\" uses too; they would overwrite \
                     each other: give each its own slice",
                    whole.name, other.name
                ),
            ));
        }
        check_slices(source, below, &layers)?;
    }
    check_paths(source, devices)
}

fn check_slices(source: Source<'_>, below: &str, layers: &[&LayerSpec]) -> Result<(), StackFileError> {
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
            return Err(source.error(
                other.span.clone(),
                format!(
                    "layer \"{}\": overlaps layer \"{}\" on \"{below}\": change its \"first\", or the \"size\" of \"{}\"",
                    other.name, layer.name, layer.name
                ),
            ));
        }
    }
    Ok(())
}

fn check_paths(source: Source<'_>, devices: &[DeclaredDevice]) -> Result<(), StackFileError> {
    for (index, device) in devices.iter().enumerate() {
        let Some(path) = device.source.place() else { continue };
        let same = |other: &&DeclaredDevice| other.source.place() == Some(path);
        if let Some(other) = devices[..index].iter().find(same) {
            return Err(source.error(
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

#[cfg(test)]
mod tests {
    use crate::testing::parse;

    #[test]
    fn two_users_of_one_thing_need_slices() {
        let whole = "export = \"b\"\n[device.d]\nmemory = \"1MiB\"\n[device.e]\nmemory = \"1MiB\"\n\
                     [layer.a]\nkind = \"log-cache\"\nlog = \"d\"\ndata = \"e\"\n\
                     [layer.b]\nkind = \"log-cache\"\nlog = \"d\"\ndata = \"a\"\n";
        let error = parse(whole).unwrap_err().to_string();
        assert!(error.contains("all of \"d\"") && error.contains("its own slice"), "{error}");
        let same = whole.replace("log = \"d\"\ndata = \"a\"", "log = \"f\"\ndata = \"a\"")
            + "[device.f]\npath = \"x\"\n[device.g]\npath = \"./x\"\n";
        let same =
            same.replace("data = \"e\"", "data = \"g\"").replace("[device.e]\nmemory = \"1MiB\"\n", "");
        let error = parse(&same).unwrap_err().to_string();
        assert!(error.contains("is the same file as device \"f\""), "{error}");
    }
}
