//! Changes to a stack file after it is read, for a start without missing devices.

use crate::fields::Located;
use crate::file::StackFile;
use crate::kinds::{LayerKind, MirrorSpec, RaidSpec};
use crate::write_hole;

impl StackFile {
    /// The arrays, with their names.
    fn arrays_mut(&mut self) -> impl Iterator<Item = (&str, &mut RaidSpec)> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.kind {
            LayerKind::Raid(raid) => Some((layer.name.as_str(), raid)),
            _ => None,
        })
    }

    /// The mirrored logs, with their names.
    fn mirrors_mut(&mut self) -> impl Iterator<Item = (&str, &mut MirrorSpec)> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.kind {
            LayerKind::Mirror(mirror) => Some((layer.name.as_str(), mirror)),
            _ => None,
        })
    }

    /// Takes missing legs out of a mirrored log. One leg stays in any case: the mirror's start then reports the error.
    pub fn leave_out_legs(&mut self, mirror: &str, names: &[String]) {
        let Some((_, mirror)) = self.mirrors_mut().find(|(name, _)| *name == mirror) else { return };
        let is_there = |leg: &Located| !names.contains(&leg.text);
        if mirror.of.iter().any(is_there) {
            mirror.of.retain(is_there);
        }
    }

    /// Takes members and spares out of an array, as if they were missing: "missing" stands in the places of the members.
    pub fn leave_out(&mut self, array: &str, names: &[String]) {
        let Some((_, raid)) = self.arrays_mut().find(|(name, _)| *name == array) else { return };
        let is_there = |device: &Located| !names.contains(&device.text);
        for (devices, places) in
            [(&mut raid.of, &mut raid.config.present), (&mut raid.spares, &mut raid.config.spares)]
        {
            let there = places.iter_mut().filter(|there| **there);
            there.zip(devices.iter()).for_each(|(there, device)| *there = is_there(device));
            devices.retain(is_there);
        }
    }

    /// Takes the journals of all arrays out of use, as `journal = "none"` does, but a log stays where it is. True if there was one.
    pub fn leave_out_journals(&mut self) -> bool {
        let mut had_one = false;
        for (_, raid) in self.arrays_mut() {
            had_one |= raid.journal.take().is_some();
            raid.hole_accepted = true;
            (raid.config.journal, raid.config.journal_implied) = (false, false);
            (raid.config.journal_given_up, raid.config.journal_required) = (true, false);
        }
        had_one
    }

    /// Keeps only these parts, and the devices and layers below them.
    pub fn keep_only(&mut self, parts: &[&str]) {
        let needed = self.needed_by(parts);
        self.devices.retain(|device| needed.contains(&device.name));
        self.layers.retain(|layer| needed.contains(&layer.name));
    }

    /// Returns the stack with these members in an array, in the order of their roles; none stands for a missing member. The array has no
    /// spares.
    pub fn with_members(&self, array: &str, members: &[Option<&str>]) -> StackFile {
        let mut file = self.clone();
        if let Some((_, raid)) = file.arrays_mut().find(|(name, _)| *name == array) {
            let known: Vec<Located> = raid.of.drain(..).chain(raid.spares.drain(..)).collect();
            let located = |name: &&str| known.iter().find(|known| known.text == **name).cloned();
            raid.of = members.iter().flatten().filter_map(located).collect();
            raid.config.present = members.iter().map(Option::is_some).collect();
            raid.config.spares.clear();
        }
        file
    }

    /// Returns the stack without a log cache: layers above the cache stand on its data disk.
    pub fn without_cache(&self, cache: &str) -> StackFile {
        let mut file = self.clone();
        let Some(LayerKind::LogCache { data, .. }) = self.layer(cache).map(|layer| &layer.kind) else {
            return file;
        };
        file.layers.retain(|layer| layer.name != cache);
        write_hole::open_again(&mut file.layers, cache);
        let belows = file.layers.iter_mut().flat_map(|layer| layer.kind.below_mut());
        for below in belows.filter(|below| below.text == cache) {
            below.text.clone_from(&data.text);
        }
        if file.export == cache {
            file.export.clone_from(&data.text);
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{DeviceIndex, Extent, Lba};

    use crate::testing::{AsStated, LOGICAL, parse};

    #[test]
    fn without_its_cache_a_stack_serves_the_data_disk() {
        let file = parse(LOGICAL).unwrap().without_cache("cache");
        assert_eq!(file.export, "data");
        assert_eq!(file.log_caches().count(), 0);
        let built = file.build(&mut AsStated).unwrap();
        assert_eq!(built.parts.layers.keys().collect::<Vec<_>>(), ["data"], "the log is not even opened");
        let rest = Extent::new(Lba(64 << 11), (2 << 20) - (64 << 11));
        assert_eq!(built.parts.place("data"), Some((DeviceIndex(0), rest)));
    }
}
