//! A sample of a workload by address, for caches that are smaller in the same measure (SHARDS: Waldspurger, Park, Garthwaite
//! and Ahmad, FAST 2015). What lies together stays together, as caches destage it together: the disk is cut into units,
//! and a unit is taken with all its requests or not at all.
//!
//! Few units are hot and many are cold, so chance would often take the wrong ones. They are put in order of heat instead, and
//! of each group of neighbours one is taken: the sample has hot and cold units in the workload's proportion.

use std::collections::BTreeMap;

use crate::load::Request;

/// Larger than a track of today, and a cylinder of the disks of 1993.
const UNIT_SECTORS: u64 = 4096;

/// Samples about one request in 2^`bits`: all requests of one unit in so many. Flushes belong to no unit; one in so many is taken.
pub fn sample(requests: &[Request], bits: u32) -> Vec<Request> {
    let parts = 1usize << bits;
    let mut heat: BTreeMap<u64, u64> = BTreeMap::new();
    let data = || requests.iter().filter(|request| request.sectors > 0);
    data().for_each(|request| *heat.entry(request.start / UNIT_SECTORS).or_default() += 1);
    let mut units: Vec<(u64, u64)> = heat.into_iter().map(|(unit, heat)| (heat, unit)).collect();
    units.sort_unstable_by(|a, b| b.cmp(a));
    let wanted = data().count() as u64 / parts as u64;
    // Of the first group each could be taken, of the next the one opposite to it: the fairest of these samples.
    let taken = |first: usize| {
        let groups = units.chunks(parts).enumerate();
        groups.filter_map(move |(number, group)| {
            let place = if number % 2 == 0 { first } else { parts - 1 - first };
            group.get(place)
        })
    };
    let error = |first: &usize| taken(*first).map(|unit| unit.0).sum::<u64>().abs_diff(wanted);
    let fairest = (0..parts).min_by_key(error).expect("there is a part");
    let mut kept: Vec<u64> = taken(fairest).map(|unit| unit.1).collect();
    kept.sort_unstable();
    let mut flushes = 0usize;
    let mut keeps = |request: &Request| {
        if request.sectors == 0 {
            flushes += 1;
            return flushes.is_multiple_of(parts);
        }
        kept.binary_search(&(request.start / UNIT_SECTORS)).is_ok()
    };
    requests.iter().filter(|request| keeps(request)).copied().collect()
}

#[cfg(test)]
mod tests {
    use dcd_engine::Nanos;

    use super::*;

    #[test]
    fn a_sample_takes_whole_units_and_hot_ones_in_proportion() {
        // Unit u has 1000 / (u + 1) requests: a tenth of them all are in the first one.
        let mut requests = Vec::new();
        for unit in 0..1000u64 {
            let request = |i| Request {
                at: Nanos(i),
                start: unit * UNIT_SECTORS + i % 100 * 8,
                sectors: 8,
                writes: true,
                fua: false,
            };
            requests.extend((0..1000 / (unit + 1)).map(request));
        }
        let sampled = sample(&requests, 3);
        let share = sampled.len() as f64 / requests.len() as f64;
        assert!((0.11..0.14).contains(&share), "{share}");
        let units = |of: &[Request]| {
            let mut units: Vec<u64> = of.iter().map(|request| request.start / UNIT_SECTORS).collect();
            units.dedup();
            units
        };
        for unit in units(&sampled) {
            let of = |all: &[Request]| all.iter().filter(|r| r.start / UNIT_SECTORS == unit).count();
            assert_eq!(of(&sampled), of(&requests));
        }
        assert!((120..=130).contains(&units(&sampled).len()));
        assert_eq!(sample(&requests, 0), requests);
    }
}
