//! Stages between a reader and a writer: cut, scale, put in order, merge. Each is a reader
//! itself, and holds a bounded number of records.

use std::collections::{BTreeMap, BTreeSet};

use dcd_engine::Nanos;

use crate::error::TraceError;
use crate::format::ReadTrace;
use dcd_stack::{DeviceId, Record, RecordOp};

type Source = Box<dyn ReadTrace>;

/// Part of a trace. Times count from its first record.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    pub from: Nanos,
    pub to: Option<Nanos>,
    /// Empty: all.
    pub devices: BTreeSet<DeviceId>,
    pub ops: Vec<RecordOp>,
    pub sectors_max: Option<u64>,
    pub count: Option<u64>,
}

/// Keeps what a [`Cut`] says.
pub struct Cutter {
    source: Source,
    cut: Cut,
    first: Option<Nanos>,
    kept: u64,
}

impl Cutter {
    pub const fn new(source: Source, cut: Cut) -> Cutter {
        Cutter { source, cut, first: None, kept: 0 }
    }

    fn keeps(&self, since: Nanos, record: &Record) -> bool {
        let Cut { from, to, devices, ops, sectors_max, .. } = &self.cut;
        since >= *from
            && to.is_none_or(|to| since < to)
            && (devices.is_empty() || devices.contains(&record.device))
            && (ops.is_empty() || ops.contains(&record.op))
            && sectors_max.is_none_or(|max| record.extent.sectors <= max)
    }
}

impl ReadTrace for Cutter {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while self.cut.count.is_none_or(|count| self.kept < count) {
            let Some(record) = self.source.next_record()? else { return Ok(None) };
            let since = record.at.since(*self.first.get_or_insert(record.at));
            if self.keeps(since, &record) {
                self.kept += 1;
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn note(&self) -> Option<String> {
        self.source.note()
    }
}

/// Stretches times since the first record and addresses. Sizes and response times stay.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub time: f64,
    pub space: f64,
    /// Let the trace begin at time zero.
    pub from_zero: bool,
}

pub struct Scaler {
    source: Source,
    scale: Scale,
    first: Option<Nanos>,
}

impl Scaler {
    pub const fn new(source: Source, scale: Scale) -> Scaler {
        Scaler { source, scale, first: None }
    }

    fn scaled(&mut self, record: Record) -> Result<Record, TraceError> {
        let first = *self.first.get_or_insert(record.at);
        let stretch =
            |value: u64, factor: f64| if factor == 1.0 { value } else { (value as f64 * factor) as u64 };
        let origin = if self.scale.from_zero { Nanos::ZERO } else { first };
        let at = origin.saturating_add(Nanos(stretch(record.at.since(first).0, self.scale.time)));
        if record.op == RecordOp::Flush {
            return Ok(Record { at, ..record });
        }
        let start = stretch(record.extent.start.0, self.scale.space);
        let scaled = Record::new(at, record.device, record.op, start, record.extent.sectors);
        scaled
            .map(|r| r.answered_after(record.response).with_fua(record.fua))
            .map_err(|e| TraceError::Other(e.into()))
    }
}

impl ReadTrace for Scaler {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        match self.source.next_record()? {
            Some(record) => self.scaled(record).map(Some),
            None => Ok(None),
        }
    }

    fn note(&self) -> Option<String> {
        self.source.note()
    }
}

/// Joins traces by time. Each may be out of order by as many records as the window holds. With one trace, it puts that
/// in order.
pub struct Merge {
    sources: Vec<(Source, usize)>,
    window: usize,
    /// Records by their time and then their number, each with its source.
    held: BTreeMap<(Nanos, u64), (usize, Record)>,
    number: u64,
    given: Nanos,
    begun: bool,
    /// Sources whose next records are wanted.
    lacking: Vec<usize>,
}

impl Merge {
    pub fn new(sources: Vec<Source>, window: usize) -> Merge {
        let sources: Vec<(Source, usize)> = sources.into_iter().map(|source| (source, 0)).collect();
        Merge {
            lacking: (0..sources.len()).collect(),
            sources,
            window: window.max(1),
            held: BTreeMap::new(),
            number: 0,
            given: Nanos::ZERO,
            begun: false,
        }
    }

    fn fill(&mut self) -> Result<(), TraceError> {
        while let Some(&index) = self.lacking.last() {
            let (source, count) = &mut self.sources[index];
            while *count < self.window {
                let Some(record) = source.next_record()? else { break };
                *count += 1;
                self.number += 1;
                self.held.insert((record.at, self.number), (index, record));
            }
            self.lacking.pop();
        }
        Ok(())
    }
}

impl ReadTrace for Merge {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        self.fill()?;
        let Some(((at, _), (source, record))) = self.held.pop_first() else { return Ok(None) };
        if self.begun && at < self.given {
            let late = self.given.since(at);
            return Err(TraceError::Other(format!(
                "input {}: a record comes {late} too late for the order of times; give a larger --window (now {})",
                source + 1,
                self.window
            )));
        }
        self.begun = true;
        self.given = at;
        self.sources[source].1 -= 1;
        self.lacking.push(source);
        Ok(Some(record))
    }

    fn note(&self) -> Option<String> {
        let notes: Vec<String> = self.sources.iter().filter_map(|(source, _)| source.note()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_records, read_reader};

    struct Given(std::vec::IntoIter<Record>);

    impl ReadTrace for Given {
        fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
            Ok(self.0.next())
        }
    }

    fn given(records: &[Record]) -> Source {
        Box::new(Given(Vec::from(records).into_iter()))
    }

    #[test]
    fn a_merge_is_in_the_order_of_times() {
        let records = any_records(1_000, true);
        let (odd, even): (Vec<_>, Vec<_>) = records.iter().enumerate().partition(|(i, _)| i % 3 == 0);
        let part = |part: Vec<(usize, &Record)>| given(&part.iter().map(|&(_, &r)| r).collect::<Vec<_>>());
        assert_eq!(read_reader(&mut Merge::new(vec![part(odd), part(even)], 1)).unwrap(), records);
        let mut swapped = records.clone();
        swapped.swap(10, 14);
        assert_eq!(read_reader(&mut Merge::new(vec![given(&swapped)], 8)).unwrap(), records);
        let error = read_reader(&mut Merge::new(vec![given(&swapped)], 2)).unwrap_err().to_string();
        assert!(error.contains("--window"), "{error}");
    }

    #[test]
    fn a_cut_keeps_what_it_says() {
        let records = any_records(1_000, true);
        let first = records[0].at;
        let cut = Cut {
            from: Nanos::from_secs(100),
            to: Some(Nanos::from_secs(2_000)),
            devices: BTreeSet::from([DeviceId(1)]),
            ops: vec![RecordOp::Write, RecordOp::Flush],
            ..Cut::default()
        };
        let kept = read_reader(&mut Cutter::new(given(&records), cut.clone())).unwrap();
        assert!(kept.len() > 20);
        for r in &records {
            let t = r.at.since(first);
            let wanted = r.device.0 == 1
                && matches!(r.op, RecordOp::Write | RecordOp::Flush)
                && (Nanos::from_secs(100)..Nanos::from_secs(2_000)).contains(&t);
            assert_eq!(kept.contains(r), wanted);
        }
        let counted = read_reader(&mut Cutter::new(given(&records), Cut { count: Some(7), ..cut })).unwrap();
        assert_eq!(counted[..], kept[..7]);
    }

    #[test]
    fn a_scale_stretches_from_the_first_record() {
        let records = any_records(50, true);
        let scale = Scale { time: 0.5, space: 2.0, from_zero: true };
        let scaled = read_reader(&mut Scaler::new(given(&records), scale)).unwrap();
        assert_eq!(scaled[0].at, Nanos::ZERO);
        for (s, r) in scaled.iter().zip(&records) {
            assert_eq!(s.at.0, r.at.since(records[0].at).0 / 2);
            assert_eq!((s.extent.start.0, s.extent.sectors), (r.extent.start.0 * 2, r.extent.sectors));
        }
    }
}
