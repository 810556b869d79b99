//! Profiles what passes at some place in a stack, as the paper's authors profiled their driver (sections 3.3 and 4.2.4): how requests
//! are aligned, whether they overlap, how many lines of the lookup table they take, and how long they take.

use std::collections::BTreeMap;

use dcd_engine::layers::filter::{Filter, SeenGeometry};
use dcd_engine::{AnyStatus, Cx, Extent, Io, IoResult, LINE_SECTORS, Lba, Nanos, OpId, Request, RequestId};
use serde_json::json;

/// 1 KB and 4 KB. (What is aligned to 8 KB is aligned to 4 KB.)
const SLOT_SECTORS: u64 = 2;
const ALIGNED_SECTORS: u64 = 8;
/// "Only one or two complete cache lines".
const FEW_LINES: u64 = 2;

/// Times within which what was written is written again.
const SOON: [Nanos; 2] = [Nanos::from_secs(30), Nanos::from_secs(1000)];

/// A layer that passes everything on as it is, and counts. Its statistics begin anew with each phase; what was written where
/// it remembers.
#[derive(Default)]
pub(crate) struct Profile {
    counts: Counts,
    /// Requests that were last written: the start of each, and its sectors.
    written: BTreeMap<u64, u64>,
    /// Time at which each slot was written last.
    written_at: BTreeMap<u64, Nanos>,
    writes_in_flight: BTreeMap<RequestId, Nanos>,
    seen: SeenGeometry,
}

#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    /// Start and length are multiples of 1 KB.
    by_slots: u64,
    /// Start and length are multiples of 4 KB: the paper's common cases are "aligned un-overlapped 4 or 8 KB requests".
    aligned: u64,
    /// A part of it, or it and more, was written by another request before.
    overlapping: u64,
    aligned_alone: u64,
    few_lines: u64,
    slots_written: u64,
    slots_overwritten: [u64; 2],
    longest_write: Nanos,
}

impl Profile {
    fn count(&mut self, writes: bool, extent: Extent) {
        let overlaps = self.overlaps(extent);
        let counts = &mut self.counts;
        counts.reads += u64::from(!writes);
        counts.writes += u64::from(writes);
        let multiple = |of: u64| extent.start.0.is_multiple_of(of) && extent.sectors.is_multiple_of(of);
        let aligned = multiple(ALIGNED_SECTORS);
        counts.by_slots += u64::from(multiple(SLOT_SECTORS));
        counts.aligned += u64::from(aligned);
        counts.overlapping += u64::from(overlaps);
        counts.aligned_alone += u64::from(aligned && !overlaps);
        counts.few_lines += u64::from(multiple(LINE_SECTORS) && extent.sectors <= FEW_LINES * LINE_SECTORS);
        if writes {
            self.note(extent);
        }
    }

    /// Counts the slots of a write, and those of them that were written a short time ago.
    fn count_slots(&mut self, extent: Extent, now: Nanos) {
        for slot in extent.start.0 / SLOT_SECTORS..extent.end().0.div_ceil(SLOT_SECTORS) {
            self.counts.slots_written += 1;
            let Some(before) = self.written_at.insert(slot, now) else { continue };
            for (count, soon) in self.counts.slots_overwritten.iter_mut().zip(SOON) {
                *count += u64::from(now.since(before) <= soon);
            }
        }
    }

    /// Returns the requests that last wrote something of a range.
    fn writers(&self, extent: Extent) -> impl Iterator<Item = Extent> {
        // What was written before the range may reach into it; as such requests do not overlap, only the last may.
        let before = self.written.range(..extent.start.0).next_back();
        let inside = self.written.range(extent.start.0..extent.end().0);
        let all = before.into_iter().chain(inside).map(|(start, sectors)| Extent::new(Lba(*start), *sectors));
        all.filter(move |other| other.end() > extent.start)
    }

    fn overlaps(&self, extent: Extent) -> bool {
        self.writers(extent).any(|other| other != extent)
    }

    fn note(&mut self, extent: Extent) {
        let old: Vec<Extent> = self.writers(extent).collect();
        for other in old {
            self.written.remove(&other.start.0);
        }
        self.written.insert(extent.start.0, extent.sectors);
    }
}

impl Filter for Profile {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        let writes = matches!(request.io, Io::Write { .. });
        if let Some(extent) = request.io.extent().filter(|_| writes || !request.io.modifies()) {
            self.count(writes, extent);
            if writes {
                self.count_slots(extent, cx.now);
            }
        }
        if writes {
            self.writes_in_flight.insert(request.id, cx.now);
        }
        cx.submit(Self::BELOW, OpId(request.id.0), request.io);
    }

    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        if let Some(begin) = self.writes_in_flight.remove(&id) {
            self.counts.longest_write = self.counts.longest_write.max(cx.now.since(begin));
        }
        cx.reply(id, result);
    }

    fn reset_statistics(&mut self, _now: Nanos) {
        self.counts = Counts::default();
    }

    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let Counts { reads, writes, by_slots, aligned, overlapping, aligned_alone, few_lines, .. } =
            self.counts;
        let Counts { slots_written, slots_overwritten: [overwritten_30s, overwritten_1000s], .. } =
            self.counts;
        Box::new(json!({
            "reads": reads,
            "writes": writes,
            "by_slots": by_slots,
            "aligned": aligned,
            "overlapping": overlapping,
            "aligned_alone": aligned_alone,
            "few_lines": few_lines,
            "slots_written": slots_written,
            "overwritten_30s": overwritten_30s,
            "overwritten_1000s": overwritten_1000s,
            "longest_write_ms": self.counts.longest_write.as_millis_f64(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Control, Durability, Event, Layer, SECTOR_BYTES};

    use super::*;

    fn send(layer: &mut Profile, id: u64, at: u64, sectors: u64, writes: bool) {
        let buf = Buf::blank((sectors * SECTOR_BYTES) as usize);
        let io = match writes {
            true => Io::Write { at: Lba(at), buf, durability: Durability::Volatile },
            false => Io::Read { at: Lba(at), buf },
        };
        let request = Event::Request(Request { id: RequestId(id), disk: 0, io });
        layer.handle(request, &mut Cx::default());
    }

    #[test]
    fn requests_are_counted_by_how_they_are_aligned() {
        let mut layer = Profile::default();
        // 8 KB at 8 KB, 1 KB at 1 KB, 512 bytes, 12 KB, 1 KB at 4 KB, and 4 KB read.
        for (id, (at, sectors)) in [(16, 16), (2, 2), (33, 1), (64, 24), (96, 2)].into_iter().enumerate() {
            send(&mut layer, id as u64, at, sectors, true);
        }
        send(&mut layer, 9, 8, 8, false);
        let status = layer.status(Nanos::ZERO).to_json();
        for (name, count) in [
            ("reads", 1),
            ("writes", 5),
            ("by_slots", 5),
            ("aligned", 3),
            ("few_lines", 2),
            ("overlapping", 0),
        ] {
            assert_eq!(status[name], count, "{name}");
        }
    }

    #[test]
    fn the_same_range_again_does_not_overlap_and_any_other_does() {
        let mut layer = Profile::default();
        for (id, (at, sectors)) in
            [(16, 16), (16, 16), (32, 16), (40, 2), (32, 16), (0, 16)].into_iter().enumerate()
        {
            send(&mut layer, id as u64, at, sectors, true);
        }
        // 1 KB inside of 8 KB, and the 8 KB over it again.
        assert_eq!(layer.counts.overlapping, 2);
        assert_eq!((layer.counts.slots_written, layer.counts.slots_overwritten), (41, [17, 17]));
        send(&mut layer, 9, 14, 4, false);
        assert_eq!(
            (layer.counts.overlapping, layer.counts.aligned_alone),
            (3, 4),
            "over the end of one and into the next"
        );
    }

    #[test]
    fn the_longest_write_is_kept_until_counting_begins_anew() {
        let mut layer = Profile::default();
        for (id, end) in [(1, 30), (2, 20)] {
            send(&mut layer, id, 0, 8, true);
            let result = IoResult::ok(Buf::blank(8 * 512));
            let completed = Event::Completed { op: OpId(id), result };
            layer.handle(completed, Cx::default().at(Nanos::from_millis(end)));
        }
        assert_eq!(layer.status(Nanos::ZERO).to_json()["longest_write_ms"], 30.0);
        layer.handle(Event::Control(Control::ResetStatistics), &mut Cx::default());
        assert_eq!(layer.status(Nanos::ZERO).to_json()["longest_write_ms"], 0.0);
    }
}
