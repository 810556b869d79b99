//! Measures the arm and the heads: the shortest time from the end of one read to the end of another, less what passes and
//! what the bus moves. Some reads find their block just as the heads come there, and these are the shortest.

use dcd_engine::Nanos;

use super::tracks::{self, Layout, Zone};
use super::{MeasureError, Probe};

/// Pairs of reads for a distance, and for the head switch, which is one number for all.
const PAIRS: usize = 200;
const HEAD_PAIRS: usize = 1000;
const HEAD_PLACES: usize = 40;
/// The distances of the curve: each this much longer than the one before.
const GROWTH: f64 = 1.35;
/// Maximum difference between two equal angles of a block.
const SAME_ANGLE: f64 = 0.03;

/// The time that the arm needs for distances from one cylinder to all of them.
pub(super) fn seek_curve(
    probe: &mut Probe<'_>,
    layout: &Layout,
    bus: Nanos,
) -> Result<Vec<(u32, Nanos)>, MeasureError> {
    let cylinders = layout.cylinders();
    // Of the longest distances there are so few pairs that the buffer has them.
    let longest = cylinders * 19 / 20;
    let mut distances = vec![1];
    while let Some(last) = distances.last().copied().filter(|&last| last < longest) {
        distances.push(((last as f64 * GROWTH).ceil() as u64).min(longest));
    }
    let mut curve = Vec::with_capacity(distances.len());
    let count = distances.len() as f64;
    for (index, distance) in distances.into_iter().enumerate() {
        probe.progress("seek curve", index as f64 / count);
        let time = shortest(probe, bus, PAIRS, |probe| {
            let low = 1 + probe.random(cylinders - distance - 2);
            // The same part of both cylinders, and at most a track more: never nearer than so many cylinders, wherever they
            // really begin.
            let part = probe.random(1 << 20);
            let block = |cylinder: u64| {
                let (zone, first) = layout.cylinder(cylinder);
                let offset = (u64::from(layout.heads) * zone.sectors_per_track * part) >> 20;
                (first + offset, zone.sectors_per_track)
            };
            let ((low, low_track), (high, high_track)) = (block(low), block(low + distance));
            match probe.random(2) {
                0 => (low, high + probe.random(high_track), high_track),
                _ => (high, low.saturating_sub(probe.random(low_track)), low_track),
            }
        })?;
        curve.push((distance as u32, time));
    }
    Ok(curve)
}

/// The time from one head to the next.
pub(super) fn head_switch(probe: &mut Probe<'_>, layout: &Layout, bus: Nanos) -> Result<Nanos, MeasureError> {
    if layout.heads < 2 {
        return Ok(Nanos::ZERO);
    }
    let zone: Zone = layout.zones[0].clone();
    let mut tracks = Vec::with_capacity(HEAD_PLACES);
    for place in 0..HEAD_PLACES {
        probe.progress("head switch", place as f64 / HEAD_PLACES as f64);
        let near = zone.start + probe.random(zone.sectors() * 9 / 10) / probe.unit * probe.unit;
        tracks.push(tracks::next_begin(probe, near)?.at);
    }
    let mut next = 0;
    shortest(probe, bus, HEAD_PAIRS, |probe| {
        // One place after another: a track is out of the buffer when its turn comes again.
        next = (next + 1) % HEAD_PLACES;
        // Not from its end, where reading ahead changes the head by itself.
        let x = tracks[next] + probe.random(zone.sectors_per_track / 2);
        let y = tracks[next] + zone.sectors_per_track + probe.random(zone.sectors_per_track);
        (x, y, zone.sectors_per_track)
    })
}

/// The shortest time between two reads, of pairs that `choose` chooses: two blocks, and the track length of the second.
fn shortest(
    probe: &mut Probe<'_>,
    bus: Nanos,
    pairs: usize,
    mut choose: impl FnMut(&mut Probe<'_>) -> (u64, u64, u64),
) -> Result<Nanos, MeasureError> {
    let mut least = f64::MAX;
    for _ in 0..pairs {
        let (x, y, per_track) = choose(probe);
        let before = probe.medium_read(x)?;
        let timed = probe.one(y)?;
        let block = probe.revolution / per_track as f64 * probe.unit as f64;
        let moved = (bus.0 * probe.unit) as f64;
        let time = timed.end.since(before.end).0 as f64 - block - moved;
        if time >= least {
            continue;
        }
        // A read from the buffer ends at any angle. The block is asked for again at once: no disk turns quite evenly.
        let angle = (timed.end.0 as f64 / probe.revolution).rem_euclid(1.0);
        let off = probe.angle(y)? - angle;
        if (off - off.round()).abs() < SAME_ANGLE {
            least = time;
        }
    }
    if least == f64::MAX {
        return Err(MeasureError::Unclear("no block is twice at the same angle".to_owned()));
    }
    // Blocks that come just in time are so rare.
    let early = least - probe.revolution / (pairs + 1) as f64;
    Ok(Nanos(early.clamp(0.0, 4e9) as u64))
}
