//! Finds where tracks begin and how long they are: along a track the angle grows evenly, and from one to the next it jumps by the
//! skew.

use super::{MeasureError, Probe};

/// Places at which the length of a track is looked at first. Zones that are shorter than the distance may be missed.
const PLACES: u64 = 64;
/// A border is found to a track, or to this part of the disk.
const BORDER_PART: u64 = 100_000;
/// More heads than any drive has.
const TRACKS_MAX: usize = 70;
/// A twentieth of a track is shorter.
const FEW_MAX: u64 = 4096;
/// A jump is larger than this, in blocks: a slipped block is no new track. It is also longer than what a computer adds to
/// the time of a read, in ns.
const JUMP_BLOCKS: f64 = 1.4;
const JUMP_NANOS: f64 = 50e3;
/// The part of a revolution from which the length of a track can be guessed.
const GUESSED_FROM: std::ops::Range<f64> = 0.03..0.5;
/// Tracks that are counted for a length: one may have a slipped block, or spares.
const COUNTED: usize = 3;

/// Tracks of one length.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    pub start: u64,
    pub end: u64,
    pub sectors_per_track: u64,
    pub track_skew: u64,
    pub cylinder_skew: u64,
}

impl Zone {
    pub fn sectors(&self) -> u64 {
        self.end - self.start
    }
}

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub heads: u32,
    pub zones: Vec<Zone>,
}

impl Layout {
    fn cylinder_sectors(&self, zone: &Zone) -> u64 {
        u64::from(self.heads) * zone.sectors_per_track
    }

    /// Whole ones.
    pub fn cylinders(&self) -> u64 {
        self.zones.iter().map(|zone| zone.sectors() / self.cylinder_sectors(zone)).sum()
    }

    /// The zone and the first sector of a cylinder.
    pub fn cylinder(&self, cylinder: u64) -> (&Zone, u64) {
        let mut left = cylinder;
        for zone in &self.zones {
            let here = zone.sectors() / self.cylinder_sectors(zone);
            if left < here {
                return (zone, zone.start + left * self.cylinder_sectors(zone));
            }
            left -= here;
        }
        let last = &self.zones[self.zones.len() - 1];
        (last, last.start)
    }
}

/// The begin of a track: its first block, and by how many sectors the angle jumps there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub at: u64,
    skew: u64,
}

/// From -0.5 to 0.5.
fn around_zero(angle: f64) -> f64 {
    angle - angle.round()
}

/// Revolutions a sector at a place, from blocks that follow it, at first close together. A jump makes a difference larger,
/// never smaller.
fn slope(probe: &mut Probe<'_>, at: u64) -> Result<Option<f64>, MeasureError> {
    let mut few = 4 * probe.unit;
    let between = |a: f64, b: f64| (b - a).rem_euclid(1.0);
    while few < FEW_MAX {
        let angles = [probe.angle(at)?, probe.angle(at + few)?, probe.angle(at + 2 * few)?];
        let turned = between(angles[0], angles[1]).min(between(angles[1], angles[2]));
        if GUESSED_FROM.contains(&turned) {
            return Ok(Some(turned / few as f64));
        }
        few *= 2;
    }
    Ok(None)
}

/// The least angle that is a jump.
fn jump(probe: &Probe<'_>, slope: f64) -> f64 {
    (JUMP_BLOCKS * slope * probe.unit as f64).max(JUMP_NANOS / probe.revolution)
}

/// The first track that begins behind `from`.
pub(super) fn next_begin(probe: &mut Probe<'_>, from: u64) -> Result<Begin, MeasureError> {
    let unit = probe.unit;
    let unclear =
        |what: &str| MeasureError::Unclear(format!("no track could be told at sector {from}: {what}"));
    let guessed = slope(probe, from)?;
    let mut slope = guessed.ok_or_else(|| {
        unclear("the blocks there do not follow each other in the order of their addresses")
    })?;
    let first = probe.angle(from)?;
    // Longer and longer steps find the end of the track, and make the slope exact.
    let (mut good, mut step) = (0, 4 * unit);
    let off = |angle: f64, distance: u64, slope: f64| around_zero(angle - first - distance as f64 * slope);
    let mut bad = loop {
        let distance = good + step;
        if distance as f64 * slope > 2.5 {
            return Err(unclear("the angle does not jump within two revolutions (its tracks have no skew)"));
        }
        let angle = probe.angle(from + distance)?;
        let error = off(angle, distance, slope);
        if error.abs() > jump(probe, slope) {
            break distance;
        }
        slope += error / distance as f64;
        good = distance;
        step = (step * 2).min((0.25 / slope) as u64 / unit * unit).max(unit);
    };
    while bad - good > unit {
        let middle = good + (bad - good) / 2 / unit * unit;
        let angle = probe.angle(from + middle)?;
        let error = off(angle, middle, slope);
        match error.abs() > jump(probe, slope) {
            true => bad = middle,
            false => {
                // The longer, the more exact.
                if middle as f64 * slope > 0.2 {
                    slope += error / middle as f64;
                }
                good = middle;
            }
        }
    }
    let jumped = off(probe.angle(from + bad)?, bad, slope).rem_euclid(1.0);
    Ok(Begin { at: from + bad, skew: (jumped / slope).round() as u64 })
}

/// The sectors of the tracks behind a place.
fn track_sectors(probe: &mut Probe<'_>, from: u64) -> Result<u64, MeasureError> {
    let mut begin = next_begin(probe, from)?.at;
    let mut longest = 0;
    for _ in 0..COUNTED {
        let next = next_begin(probe, begin)?.at;
        longest = longest.max(next - begin);
        begin = next;
    }
    Ok(longest)
}

pub(super) fn layout(probe: &mut Probe<'_>, notes: &mut Vec<String>) -> Result<Layout, MeasureError> {
    // A place too near the end has no whole track behind it.
    let last = probe.sectors - probe.sectors / 500;
    let place = |n: u64| last / PLACES * n;
    let mut found: Vec<(u64, u64)> = Vec::new();
    for n in 0..=PLACES {
        probe.progress("zones", n as f64 / (2 * PLACES) as f64);
        let at = place(n) / probe.unit * probe.unit;
        found.push((at, track_sectors(probe, at)?));
    }
    let mut zones = vec![(0, found[0].1)];
    for (n, pair) in found.windows(2).enumerate() {
        probe.progress("zones", 0.5 + n as f64 / (2 * PLACES) as f64);
        border(probe, pair[0], pair[1], &mut zones)?;
    }
    let ends = zones.iter().skip(1).map(|zone| zone.0).chain([probe.sectors]);
    let bounds: Vec<(u64, u64, u64)> =
        zones.iter().zip(ends).map(|(zone, end)| (zone.0, end, zone.1)).collect();
    let heads = match skews(probe, bounds[0])? {
        Skews::Counted { heads, .. } => heads,
        Skews::Even(_) => {
            notes.push(
                "the heads: the skews from head to head and from cylinder to cylinder are equal. Each track is a cylinder here, \
                 and distances are in tracks"
                    .to_owned(),
            );
            1
        }
    };
    let mut zones: Vec<Zone> = Vec::with_capacity(bounds.len());
    for bound in bounds {
        probe.progress("skews", zones.len() as f64 / found.len() as f64);
        let (start, end, sectors_per_track) = bound;
        let (track_skew, cylinder_skew) = match skews(probe, bound)? {
            Skews::Counted { heads: of, track, cylinder } if of == heads => (track, cylinder),
            Skews::Even(skew) | Skews::Counted { track: skew, .. } => {
                if heads > 1 {
                    notes.push(format!("the heads of the zone from sector {start} on"));
                }
                (skew, skew)
            }
        };
        zones.push(Zone { start, end, sectors_per_track, track_skew, cylinder_skew });
    }
    Ok(Layout { heads, zones })
}

/// Adds the zones that begin between two places: where the length of the tracks changes.
fn border(
    probe: &mut Probe<'_>,
    low: (u64, u64),
    high: (u64, u64),
    zones: &mut Vec<(u64, u64)>,
) -> Result<(), MeasureError> {
    if low.1 == high.1 {
        return Ok(());
    }
    if high.0 - low.0 <= low.1.max(high.1).max(probe.sectors / BORDER_PART) {
        // The track behind the lower place is as long as before.
        let begin = next_begin(probe, low.0)?.at;
        if zones.last().is_some_and(|zone| zone.1 != high.1 && zone.0 < begin) {
            zones.push((begin, high.1));
        }
        return Ok(());
    }
    let at = low.0 + (high.0 - low.0) / 2 / probe.unit * probe.unit;
    let middle = (at, track_sectors(probe, at)?);
    border(probe, low, middle, zones)?;
    border(probe, middle, high, zones)
}

/// In a row of tracks each so many jumps are different: as many as there are heads.
enum Skews {
    Counted {
        heads: u32,
        track: u64,
        cylinder: u64,
    },
    /// All are equal, or no rule is seen: the median.
    Even(u64),
}

fn skews(probe: &mut Probe<'_>, (start, end, per_track): (u64, u64, u64)) -> Result<Skews, MeasureError> {
    let mut begin = next_begin(probe, start + (end - start) / 3 / probe.unit * probe.unit)?;
    let mut jumps = vec![begin.skew];
    while jumps.len() < TRACKS_MAX && begin.at + 2 * per_track < end {
        if let Some((heads, track, cylinder)) = rule(&jumps, per_track) {
            return Ok(Skews::Counted { heads, track, cylinder });
        }
        begin = next_begin(probe, begin.at)?;
        jumps.push(begin.skew);
    }
    jumps.sort_unstable();
    Ok(Skews::Even(jumps[jumps.len() / 2]))
}

/// A row of jumps in which three of a kind are equally far apart, and those between them are of another.
fn rule(jumps: &[u64], per_track: u64) -> Option<(u32, u64, u64)> {
    let near = |a: u64, b: u64| a.abs_diff(b) <= (per_track / 80).max(1);
    let mut sorted = jumps.to_vec();
    sorted.sort_unstable();
    let track = sorted[sorted.len() / 2];
    let others: Vec<usize> = (0..jumps.len()).filter(|&n| !near(jumps[n], track)).collect();
    // Some cylinders end with spares: their jump is of a third kind.
    others.windows(3).find_map(|three| {
        let [a, b, c] = [three[0], three[1], three[2]];
        let even = b - a == c - b && b - a > 1 && near(jumps[a], jumps[b]) && near(jumps[b], jumps[c]);
        // With two heads one kind is as frequent as the other, and the arm takes longer.
        let swapped = b - a == 2 && jumps[b] < track;
        let (track, cylinder) = if swapped { (jumps[b], track) } else { (track, jumps[b]) };
        even.then_some(((b - a) as u32, track, cylinder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_counted_by_the_jumps_that_are_different() {
        assert_eq!(rule(&[63, 63, 113, 63, 64, 63, 113, 63, 63, 63, 113], 300), Some((4, 63, 113)));
        assert_eq!(rule(&[63, 63, 113, 63, 63, 63, 113], 300), None, "twice may be chance");
        assert_eq!(rule(&[63, 63, 113, 63, 113, 63, 63, 63, 113], 300), None, "no rule");
        assert_eq!(
            rule(&[37, 140, 37, 52, 37, 52, 37, 52], 186),
            Some((2, 37, 52)),
            "spares before the first"
        );
        assert_eq!(rule(&[63; 20], 300), None);
    }
}
