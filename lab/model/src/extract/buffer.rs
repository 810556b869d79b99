//! The buffer: reads that come from it are short. What is still in it after other reads tells how it is divided.

use dcd_engine::Nanos;

use super::tracks::{self, Layout};
use super::{MeasureError, Probe};
use crate::cache::ReadAhead;

/// Reads of other places after which a block is looked for again, at most; and the longest run.
const SEGMENTS_MAX: u64 = 1024;
const RUN_MAX: u64 = 8192;
const SAMPLES: u64 = 15;
/// A read from the buffer takes a quarter longer than most of them, and so much that the computer adds; no more.
const ANSWER_NANOS: u64 = 50_000;
/// A read-ahead is over by then.
const REST: Nanos = Nanos::from_millis(400);

/// Reads from the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    /// Without the time on the bus.
    pub overhead: Nanos,
    /// Time of a sector on the bus.
    pub sector: Nanos,
    segments: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub hits: Hits,
    pub segments: u64,
    pub segment_sectors: u64,
    pub read_ahead: ReadAhead,
    pub read_ahead_sectors: u64,
    pub keeps_passing: bool,
    pub zero_latency: bool,
}

fn median(mut times: Vec<u64>) -> Nanos {
    times.sort_unstable();
    Nanos(times[times.len() / 2])
}

/// Measures the time of a read from the buffer, and counts the blocks of other places that it holds. None: the disk has no buffer.
pub(super) fn hits(probe: &mut Probe<'_>, notes: &mut Vec<String>) -> Result<Option<Hits>, MeasureError> {
    probe.progress("buffer", 0.0);
    let long = 8 * probe.unit;
    let (mut misses, mut short, mut longer) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let place = probe.anywhere().min(probe.sectors - long);
        misses.push(probe.read(place, long)?.took().0);
        longer.push(probe.read(place, long)?.took().0);
        short.push(probe.read(place, probe.unit)?.took().0);
    }
    let (miss, short, longer) = (median(misses), median(short), median(longer));
    if short.0 * 3 > miss.0 {
        notes.push("a buffer: a block that was just read takes as long as any other".to_owned());
        return Ok(None);
    }
    let sector = longer.since(short).0 / (long - probe.unit);
    let overhead = short.since(Nanos(sector * probe.unit));
    probe.hit_below = Nanos(short.0 + short.0 / 4 + ANSWER_NANOS);
    let segments = segments(probe)?;
    if segments > SEGMENTS_MAX {
        return Err(MeasureError::Unclear(format!(
            "a block is still in its buffer after {SEGMENTS_MAX} others were read, and its times say nothing of the medium: turn \
             the read-ahead of the disk off and measure again (hdparm -A 0 DEVICE, afterwards hdparm -A 1 DEVICE)"
        )));
    }
    probe.evict = segments;
    Ok(Some(Hits { overhead, sector: Nanos(sector), segments }))
}

/// The least number of other reads after which a block is gone.
fn segments(probe: &mut Probe<'_>) -> Result<u64, MeasureError> {
    let mut high = 1;
    while keeps(probe, high)? {
        if high > SEGMENTS_MAX {
            return Ok(high);
        }
        high *= 2;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if keeps(probe, middle)? { low = middle } else { high = middle }
    }
    Ok(high)
}

/// Two of three: one place may come too near to another.
fn keeps(probe: &mut Probe<'_>, others: u64) -> Result<bool, MeasureError> {
    let mut kept = 0;
    for _ in 0..3 {
        let place = probe.anywhere();
        probe.one(place)?;
        probe.forget(others)?;
        kept += u32::from(probe.is_hit_at(place)?);
    }
    Ok(kept >= 2)
}

/// The largest number below `limit` for which `holds`, which holds for all smaller ones; in units.
fn largest(
    probe: &mut Probe<'_>,
    limit: u64,
    mut holds: impl FnMut(&mut Probe<'_>, u64) -> Result<bool, MeasureError>,
) -> Result<u64, MeasureError> {
    let unit = probe.unit;
    let (mut low, mut high) = (0, limit / unit);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(probe, middle * unit)? { low = middle } else { high = middle }
    }
    Ok(low * unit)
}

pub(super) fn measure(
    probe: &mut Probe<'_>,
    layout: &Layout,
    hits: Hits,
    notes: &mut Vec<String>,
) -> Result<Buffer, MeasureError> {
    probe.progress("buffer", 0.3);
    let inner = probe.sectors - 2 * RUN_MAX;
    // The head may come to the block again just as soon as a buffer answers: at different places not after the same run.
    let segment_sectors = largest(probe, RUN_MAX, |probe, run| {
        let mut kept = 0;
        for _ in 0..3 {
            let place = probe.anywhere().min(inner);
            probe.read(place, run)?;
            kept += u32::from(probe.is_hit_at(place)?);
        }
        Ok(kept >= 2)
    })?
    .max(probe.unit);
    if segment_sectors + probe.unit >= RUN_MAX {
        notes.push(format!("how large a segment is: {RUN_MAX} sectors or more"));
    }
    probe.progress("buffer", 0.6);
    let (read_ahead, read_ahead_sectors) = read_ahead(probe, layout, segment_sectors)?;
    let mut passed = 0;
    for _ in 0..SAMPLES {
        let place = probe.anywhere().clamp(probe.unit, inner);
        probe.medium_read(place)?;
        passed += u64::from(probe.is_hit_at(place - probe.unit)?);
    }
    Ok(Buffer {
        hits,
        segments: hits.segments,
        segment_sectors,
        read_ahead,
        read_ahead_sectors,
        // The head comes to a track before it, more often than not.
        keeps_passing: passed > SAMPLES / 4,
        zero_latency: zero_latency(probe, layout)?,
    })
}

/// Measures how far an idle disk reads ahead.
fn read_ahead(
    probe: &mut Probe<'_>,
    layout: &Layout,
    segment_sectors: u64,
) -> Result<(ReadAhead, u64), MeasureError> {
    let zone = layout.zones[0].clone();
    let per_track = zone.sectors_per_track;
    // A block near the begin of a track, in its middle, near its end.
    let mut reaches = Vec::new();
    for part in [1, 2, 3] {
        let place = begin_somewhere(probe, &zone)? + per_track * part / 4 / probe.unit * probe.unit;
        reaches.push(largest(probe, RUN_MAX, |probe, distance| {
            probe.medium_read(place)?;
            probe.reads.pause(REST);
            probe.is_hit_at(place + distance)
        })?);
    }
    let (least, most) =
        (reaches.iter().min().copied().unwrap_or(0), reaches.iter().max().copied().unwrap_or(0));
    if most == 0 {
        return Ok((ReadAhead::None, 0));
    }
    if most - least <= per_track / 8 {
        return Ok((ReadAhead::Segment, most.min(segment_sectors)));
    }
    let stream = reads_next_track(probe, &zone)?;
    Ok((if stream { ReadAhead::NextTrack } else { ReadAhead::Track }, segment_sectors))
}

/// The begin of a track.
fn begin_somewhere(probe: &mut Probe<'_>, zone: &tracks::Zone) -> Result<u64, MeasureError> {
    let near = zone.start + probe.random(zone.sectors() * 9 / 10) / probe.unit * probe.unit;
    Ok(tracks::next_begin(probe, near)?.at)
}

/// A stream that has come to a second track: is the third in the buffer, too?
fn reads_next_track(probe: &mut Probe<'_>, zone: &tracks::Zone) -> Result<bool, MeasureError> {
    let per_track = zone.sectors_per_track;
    let piece = (per_track / 4).max(probe.unit) / probe.unit * probe.unit;
    let mut found = 0;
    for _ in 0..3 {
        let start = begin_somewhere(probe, zone)?;
        for n in 0..6 {
            probe.read(start + n * piece, piece)?;
        }
        probe.reads.pause(REST);
        let next = start + 2 * per_track + per_track / 16;
        found += u32::from(probe.is_hit_at(next / probe.unit * probe.unit)?);
    }
    Ok(found >= 2)
}

/// A read of a whole track ends wherever it began, where blocks are taken as they pass; else it ends at its last block.
fn zero_latency(probe: &mut Probe<'_>, layout: &Layout) -> Result<bool, MeasureError> {
    let zone = layout.zones[0].clone();
    let per_track = zone.sectors_per_track / probe.unit * probe.unit;
    let mut elsewhere = 0;
    for _ in 0..SAMPLES {
        let start = begin_somewhere(probe, &zone)?;
        let last = probe.angle(start + per_track - probe.unit)?;
        probe.forget(probe.evict)?;
        let end = probe.read(start, per_track)?.end;
        let angle = (end.0 as f64 / probe.revolution).rem_euclid(1.0);
        let off = (angle - last).rem_euclid(1.0);
        elsewhere += u64::from((0.1..0.9).contains(&off));
    }
    Ok(elsewhere > SAMPLES / 3)
}
