//! Orders the layers from the bottom. Checks that every name is defined once, nothing stands on itself, and no layer is unused.

use std::collections::BTreeMap;

use crate::device::DeclaredDevice;
use crate::error::{Source, StackFileError, suggestion};
use crate::fields::Located;
use crate::kinds::LayerSpec;

/// The layers below `export`, bottom first.
pub(crate) fn bottom_first(
    source: Source<'_>,
    export: &Located,
    devices: &[DeclaredDevice],
    layers: Vec<LayerSpec>,
) -> Result<Vec<LayerSpec>, StackFileError> {
    let names = places(source, devices, &layers)?;
    let mut order = Order {
        source,
        names: &names,
        layers: &layers,
        state: vec![VisitState::New; layers.len()],
        done: vec![],
    };
    order.visit(export, &mut Vec::new())?;
    let done = order.done;
    let unused = (0..layers.len()).find(|index| !done.contains(index)).map(|index| &layers[index]);
    if let Some(layer) = unused {
        let message = format!("layer \"{}\": nothing stands on it: use it or remove it", layer.name);
        return Err(source.error(layer.span.clone(), message));
    }
    let mut layers: Vec<Option<LayerSpec>> = layers.into_iter().map(Some).collect();
    Ok(done.into_iter().filter_map(|index| layers[index].take()).collect())
}

/// Everything that `name` stands on, itself included; also where layers stand on each other in a circle.
pub(crate) fn needed<'a>(layers: &'a [LayerSpec], name: &'a str) -> Vec<&'a str> {
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

/// Every name, with the place of the layer in the list; none for a device.
type Places<'a> = BTreeMap<&'a str, Option<usize>>;

fn places<'a>(
    source: Source<'_>,
    devices: &'a [DeclaredDevice],
    layers: &'a [LayerSpec],
) -> Result<Places<'a>, StackFileError> {
    let mut names = BTreeMap::new();
    let all = devices.iter().map(|device| (&device.name, &device.span, None));
    let all = all.chain(layers.iter().enumerate().map(|(i, layer)| (&layer.name, &layer.span, Some(i))));
    for (name, span, place) in all {
        if names.insert(name.as_str(), place).is_some() {
            return Err(source.error(span.clone(), format!("the name \"{name}\" is taken: choose another")));
        }
    }
    Ok(names)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    New,
    Open,
    Done,
}

/// A walk down from the export: yields the bottom first, and finds cycles.
struct Order<'a> {
    source: Source<'a>,
    names: &'a Places<'a>,
    layers: &'a [LayerSpec],
    state: Vec<VisitState>,
    done: Vec<usize>,
}

impl<'a> Order<'a> {
    fn visit(&mut self, name: &Located, path: &mut Vec<&'a str>) -> Result<(), StackFileError> {
        let error = |message: String| self.source.error(name.span.clone(), message);
        let Some(place) = self.names.get(name.text.as_str()) else {
            let known = self.names.keys().copied();
            let advice = match suggestion(&name.text, known.clone()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if self.names.is_empty() => "the file has no devices and no layers".to_owned(),
                None => format!("known are: {}", known.collect::<Vec<_>>().join(", ")),
            };
            return Err(error(format!("no device or layer has the name \"{}\"; {advice}", name.text)));
        };
        let Some(index) = *place else { return Ok(()) };
        let layer = &self.layers[index];
        match self.state[index] {
            VisitState::Done => return Ok(()),
            VisitState::Open => {
                path.push(&layer.name);
                let cycle = path.iter().skip_while(|step| **step != layer.name).copied().collect::<Vec<_>>();
                return Err(error(format!(
                    "the layers stand on each other in a circle: {}",
                    cycle.join(" on ")
                )));
            }
            VisitState::New => {}
        }
        self.state[index] = VisitState::Open;
        path.push(&layer.name);
        for below in layer.kind.below() {
            self.visit(below, path)?;
        }
        path.pop();
        self.state[index] = VisitState::Done;
        self.done.push(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{LOGICAL, parse};

    #[test]
    fn layers_come_bottom_first_in_whatever_order_they_are_written() {
        let (head, tail) = LOGICAL.split_once("[layer.log]").unwrap();
        let (slices, cache) = tail.split_once("[layer.cache]").unwrap();
        let text = format!("{head}[layer.cache]{cache}\n[layer.log]{slices}");
        let names: Vec<String> = parse(&text).unwrap().layers.into_iter().map(|layer| layer.name).collect();
        assert_eq!(names, ["log", "data", "cache"]);
    }
}
