//! Records what happened last to each sector, in runs of neighbours with one history. So a request costs as many steps as there are runs
//! where it goes, however many sectors it has. A run is split where a request begins or ends, so there are at most two more after
//! each.
//!
//! With more runs than allowed, only a part of the disk is followed: units, chosen by a hash of their address, half as many each
//! time (SHARDS samples so; Waldspurger et al., FAST 2015).

use std::collections::BTreeMap;

use dcd_engine::Nanos;

use dcd_stack::DeviceId;

/// Unit of a sample, in sectors: 64 KiB, more than most requests have, and small beside what a trace touches that has to be sampled.
const UNIT_SECTORS: u64 = 128;
/// Fewer runs say nothing.
const RUNS_MIN: usize = 64;
/// Maximum sampling: it leaves few units of a device of 2^54 sectors.
const SAMPLING_BITS_MAX: u32 = 40;

/// The last accesses to a sector. Numbers of requests count from 1; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryBlock {
    pub written: u64,
    pub written_at: Nanos,
    pub read: u64,
    pub touches: u32,
    pub rewritten: bool,
}

#[derive(Clone, Copy, Debug)]
struct HistoryRun {
    end: u64,
    block: HistoryBlock,
}

/// The histories of the sectors that are followed.
pub struct Histories {
    runs: BTreeMap<(DeviceId, u64), HistoryRun>,
    runs_max: usize,
    /// A unit is followed when so many of the first bits of its hash are zero.
    sampling_bits: u32,
}

/// The finaliser of SplitMix64.
const fn hash(device: DeviceId, unit: u64) -> u64 {
    let mut x = unit ^ (device.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const fn is_followed(device: DeviceId, unit: u64, sampling_bits: u32) -> bool {
    sampling_bits == 0 || hash(device, unit) >> (64 - sampling_bits) == 0
}

/// The parts of a range that are followed.
fn followed(device: DeviceId, start: u64, end: u64, sampling_bits: u32) -> impl Iterator<Item = (u64, u64)> {
    let units = if sampling_bits == 0 { 0..1 } else { start / UNIT_SECTORS..end.div_ceil(UNIT_SECTORS) };
    units.filter(move |&unit| is_followed(device, unit, sampling_bits)).map(move |unit| match sampling_bits {
        0 => (start, end),
        _ => (start.max(unit * UNIT_SECTORS), end.min((unit + 1) * UNIT_SECTORS)),
    })
}

impl Histories {
    pub fn new(runs_max: usize) -> Histories {
        Histories { runs: BTreeMap::new(), runs_max: runs_max.max(RUNS_MIN), sampling_bits: 0 }
    }

    /// Returns n where one sector in n is followed.
    pub const fn one_in(&self) -> u64 {
        1 << self.sampling_bits
    }

    /// The histories, each with its count of sectors.
    pub fn all(&self) -> impl Iterator<Item = (&HistoryBlock, u64)> {
        self.runs.iter().map(|(&(_, start), run)| (&run.block, run.end - start))
    }

    /// A request for sectors: each history there becomes `after` of it. `saw` is told the history before, for how many sectors,
    /// and for how many sectors each of them stands.
    pub fn touch(
        &mut self,
        device: DeviceId,
        (start, end): (u64, u64),
        after: impl Fn(&HistoryBlock) -> HistoryBlock,
        mut saw: impl FnMut(&HistoryBlock, u64),
    ) {
        let mut at = start;
        // The sample may be halved on the way: what follows is taken from the smaller one.
        while let Some((from, to)) = followed(device, at, end, self.sampling_bits).next() {
            let weight = self.one_in();
            self.touch_part(device, from, to, &after, &mut |block, sectors| saw(block, sectors * weight));
            at = to;
            if at == end {
                break;
            }
            if self.runs.len() > self.runs_max {
                self.thin();
            }
        }
        if self.runs.len() > self.runs_max {
            self.thin();
        }
    }

    fn touch_part(
        &mut self,
        device: DeviceId,
        start: u64,
        end: u64,
        after: &impl Fn(&HistoryBlock) -> HistoryBlock,
        saw: &mut impl FnMut(&HistoryBlock, u64),
    ) {
        // What most requests are: for the same sectors as one before.
        if let Some(run) = self.runs.get_mut(&(device, start))
            && run.end == end
        {
            saw(&run.block, end - start);
            run.block = after(&run.block);
            return;
        }
        self.split(device, start);
        self.split(device, end);
        let there: Vec<(u64, HistoryRun)> =
            self.runs.range((device, start)..(device, end)).map(|(&(_, at), &run)| (at, run)).collect();
        let mut pieces: Vec<(u64, HistoryRun)> = Vec::with_capacity(2 * there.len() + 1);
        let mut put = |from: u64, to: u64, before: &HistoryBlock| {
            if from == to {
                return;
            }
            saw(before, to - from);
            let block = after(before);
            match pieces.last_mut() {
                Some((_, last)) if last.block == block => last.end = to,
                _ => pieces.push((from, HistoryRun { end: to, block })),
            }
        };
        let mut at = start;
        for (from, run) in &there {
            put(at, *from, &HistoryBlock::default());
            put(*from, run.end, &run.block);
            at = run.end;
        }
        put(at, end, &HistoryBlock::default());
        for (from, _) in there {
            self.runs.remove(&(device, from));
        }
        self.runs.extend(pieces.into_iter().map(|(from, run)| ((device, from), run)));
    }

    /// Lets a run end, and another begin, at `place` where one goes across.
    fn split(&mut self, device: DeviceId, place: u64) {
        if let Some((_, run)) = self.runs.range_mut((device, 0)..(device, place)).next_back()
            && run.end > place
        {
            let rest = *run;
            run.end = place;
            self.runs.insert((device, place), rest);
        }
    }

    /// Follows half as much, until there is room. One run may become many, as units are not neighbours.
    fn thin(&mut self) {
        while self.sampling_bits < SAMPLING_BITS_MAX {
            self.sampling_bits += 1;
            let bits = self.sampling_bits;
            let parts = self.runs.iter().flat_map(|(&(device, start), &run)| {
                let part = move |(from, to)| ((device, from), HistoryRun { end: to, block: run.block });
                followed(device, start, run.end, bits).map(part)
            });
            // Half of what is allowed, so that there is room for what comes.
            let kept: BTreeMap<_, _> = parts.take(self.runs_max / 2 + 1).collect();
            if kept.len() <= self.runs_max / 2 {
                self.runs = kept;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: DeviceId = DeviceId(0);

    fn written(at: u64) -> impl Fn(&HistoryBlock) -> HistoryBlock {
        move |before| HistoryBlock { written: at, touches: before.touches + 1, ..*before }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        /// Beside a table with a row for each sector.
        #[test]
        fn runs_are_what_sectors_are(requests in prop::collection::vec((0..2u32, 0..300u64, 1..200u64), 1..60)) {
            let mut histories = Histories::new(1 << 20);
            let mut sectors = vec![[HistoryBlock::default(); 512]; 2];
            for (number, &(device, start, length)) in requests.iter().enumerate() {
                let after = written(number as u64 + 1);
                let mut seen = BTreeMap::new();
                let saw = |block: &HistoryBlock, count| *seen.entry((block.written, block.touches)).or_insert(0) += count;
                histories.touch(DeviceId(device), (start, start + length), &after, saw);
                let mut expected = BTreeMap::new();
                for sector in &mut sectors[device as usize][start as usize..(start + length) as usize] {
                    *expected.entry((sector.written, sector.touches)).or_insert(0) += 1;
                    *sector = after(sector);
                }
                prop_assert_eq!(seen, expected);
            }
            let touched = sectors.iter().flatten().filter(|sector| sector.touches > 0).count() as u64;
            prop_assert_eq!(histories.all().map(|(_, count)| count).sum::<u64>(), touched);
        }
    }

    #[test]
    fn the_steps_follow_requests_and_not_sectors() {
        let mut histories = Histories::new(1 << 20);
        let mut steps = 0;
        // 206 requests that zero 2 TiB each, again and again.
        for number in 0..206 {
            let start = number % 7 * (1 << 20);
            histories.touch(DISK, (start, start + (1 << 32)), written(number + 1), |_, _| steps += 1);
        }
        assert!(
            histories.runs.len() <= 2 * 206 && steps < 206 * 20,
            "{} runs, {steps} steps",
            histories.runs.len()
        );
    }

    #[test]
    fn one_request_of_terabytes_in_a_sample_keeps_the_bound() {
        let mut histories = Histories::new(1000);
        for number in 0..5_000 {
            histories.touch(DISK, (number * 1000, number * 1000 + 8), written(1), |_, _| {});
            assert!(histories.runs.len() <= 1001);
        }
        assert!(histories.one_in() > 1);
        let mut weight = 0;
        histories.touch(DISK, (0, 1 << 30), written(2), |_, sectors| weight += sectors);
        assert!(histories.runs.len() <= 1001, "{}", histories.runs.len());
        let share = weight as f64 / f64::from(1 << 30);
        assert!((0.8..1.2).contains(&share), "{share}");
    }

    #[test]
    fn no_limit_is_too_small() {
        let mut histories = Histories::new(0);
        for number in 0..10_000 {
            histories.touch(DISK, (number * 7, number * 7 + 3), written(1), |_, _| {});
        }
        assert!(histories.runs.len() <= RUNS_MIN + 1);
    }
}
