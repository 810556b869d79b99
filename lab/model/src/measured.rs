//! Compares a drive with measurements of a real one: the same requests, and how far apart the response times are.
//!
//! The *demerit figure* (Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994) is the
//! root mean square of the horizontal distance between the two distributions of response times. It is taken here at steps
//! of 0.0001 of the distribution.

use dcd_engine::{Extent, Nanos};
use dcd_stack::{Record, RecordOp};

use crate::controller::{Access, Controller, Served};
use crate::drive::Drive;

/// Steps in which the two distributions are compared.
const STEPS: u32 = 10_000;

/// A request to a real drive that had one request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub write: bool,
    pub extent: Extent,
    pub response: Nanos,
    /// From the answer to the next request.
    pub think: Nanos,
}

/// Why a trace says nothing about a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMeasured {
    #[error("the trace has no requests")]
    Empty,
    #[error(
        "request {0} has no response time: name a trace of a format that has them (\"dcd trace formats\"), taken of the real drive"
    )]
    NoResponse(usize),
    #[error(
        "request {0} was sent before the one before it was answered: record a trace with one request in flight, as the two \
         distributions cannot be compared otherwise"
    )]
    Overlaps(usize),
    #[error("request {request} is a {}: only reads and writes can be replayed (\"dcd trace cut --only read,write\")", .op.name())]
    Other { request: usize, op: RecordOp },
    #[error("request {0} is to another device than the first: choose one (\"dcd trace cut --device\")")]
    Devices(usize),
    #[error(
        "request {request} ends at sector {end}, and the drive has {sectors} sectors: it was not taken of this drive"
    )]
    PastEnd { request: usize, end: u64, sectors: u64 },
}

/// The requests of a trace, which must have been one after the other. They are counted from 1.
///
/// # Errors
/// At the first that does not fit.
pub fn closed_loop(trace: &[Record]) -> Result<Vec<Measured>, NotMeasured> {
    let device = trace.first().ok_or(NotMeasured::Empty)?.device;
    let mut measured: Vec<Measured> = Vec::with_capacity(trace.len());
    let mut answered = Nanos::ZERO;
    for (record, request) in trace.iter().zip(1..) {
        if record.device != device {
            return Err(NotMeasured::Devices(request));
        }
        let write = match record.op {
            RecordOp::Read => false,
            RecordOp::Write => true,
            op => return Err(NotMeasured::Other { request, op }),
        };
        let response = record.response.ok_or(NotMeasured::NoResponse(request))?;
        if let Some(last) = measured.last_mut() {
            if record.at < answered {
                return Err(NotMeasured::Overlaps(request));
            }
            last.think = record.at.since(answered);
        }
        answered = record.at.saturating_add(response);
        measured.push(Measured { write, extent: record.extent, response, think: Nanos::ZERO });
    }
    Ok(measured)
}

/// Response times of the model for measured requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    pub responses: Vec<Nanos>,
    pub seek: Nanos,
    pub rotation: Nanos,
    pub transfer: Nanos,
    pub reads: usize,
    /// Reads that needed nothing from the medium.
    pub read_hits: usize,
}

/// The mean of some times in milliseconds; 0 of none.
pub fn mean_ms(times: &[Nanos]) -> f64 {
    times.iter().map(|time| time.as_millis_f64()).sum::<f64>() / times.len().max(1) as f64
}

/// Serves measured requests, each sent the measured think time after the answer to the one before it. With
/// `write_cache`, writes may be answered before they are on the medium.
///
/// # Errors
/// At the first request that is past the end of the drive.
pub fn replay(drive: &Drive, trace: &[Measured], write_cache: bool) -> Result<Replay, NotMeasured> {
    let sectors = drive.sectors();
    if let Some(index) = trace.iter().position(|request| request.extent.end().0 > sectors) {
        let end = trace[index].extent.end().0;
        return Err(NotMeasured::PastEnd { request: index + 1, end, sectors });
    }
    let mut controller = Controller::new(drive.clone());
    let none = Nanos::ZERO;
    let mut replay = Replay {
        responses: Vec::with_capacity(trace.len()),
        seek: none,
        rotation: none,
        transfer: none,
        reads: 0,
        read_hits: 0,
    };
    let (mut now, mut idle_since) = (none, none);
    for request in trace {
        controller.rest(idle_since, now, false);
        while controller.take_destaged(now).is_some() {}
        let access = match (request.write, write_cache) {
            (false, _) => Access::Read,
            (true, true) => Access::WriteBehind,
            (true, false) => Access::Write,
        };
        let service = controller.serve(now, now, access, request.extent);
        replay.responses.push(service.end.since(now));
        replay.seek += service.seek;
        replay.rotation += service.rotation;
        replay.transfer += service.transfer;
        replay.reads += usize::from(!request.write);
        replay.read_hits += usize::from(!request.write && service.served == Served::Cache);
        idle_since = service.end;
        now = service.end + request.think;
    }
    Ok(replay)
}

/// Some times in ascending order, in milliseconds.
pub fn sorted_ms(times: &[Nanos]) -> Vec<f64> {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_millis_f64()).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The demerit figure in milliseconds.
///
/// # Panics
/// Where one of the two is empty.
pub fn demerit_ms(one: &[Nanos], other: &[Nanos]) -> f64 {
    let (one, other) = (sorted_ms(one), sorted_ms(other));
    let squares = (0..=STEPS).map(|step| {
        let part = f64::from(step) / f64::from(STEPS);
        (quantile(&one, part) - quantile(&other, part)).powi(2)
    });
    (squares.sum::<f64>() / f64::from(STEPS + 1)).sqrt()
}

/// The value below which a part of the sorted values lies, with straight lines between them.
///
/// # Panics
/// Where there are none.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use dcd_engine::Lba;
    use dcd_stack::DeviceId;

    use super::*;

    #[test]
    fn the_demerit_of_a_shifted_distribution_is_the_shift() {
        let times: Vec<Nanos> = (0..1000).map(|n| Nanos(n * n * 1000)).collect();
        let later: Vec<Nanos> = times.iter().rev().map(|time| *time + Nanos::from_millis(2)).collect();
        assert!(demerit_ms(&times, &times) < 1e-12);
        assert!((demerit_ms(&times, &later) - 2.0).abs() < 1e-9);
    }

    fn read(at: u64, response: Option<u64>) -> Record {
        let record = Record::new(Nanos(at), DeviceId(0), RecordOp::Read, 8, 8).expect("it is a request");
        record.answered_after(response.map(Nanos))
    }

    #[test]
    fn the_time_between_an_answer_and_the_next_request_is_think_time() {
        let measured = closed_loop(&[read(100, Some(30)), read(170, Some(5)), read(175, Some(1))]);
        let thinks: Vec<Nanos> = measured.expect("one in flight").iter().map(|m| m.think).collect();
        assert_eq!(thinks, [Nanos(40), Nanos(0), Nanos(0)]);
    }

    #[test]
    fn a_trace_that_says_nothing_of_a_drive_is_refused() {
        assert_eq!(closed_loop(&[]), Err(NotMeasured::Empty));
        assert_eq!(closed_loop(&[read(0, Some(5)), read(9, None)]), Err(NotMeasured::NoResponse(2)));
        assert_eq!(closed_loop(&[read(0, Some(50)), read(9, Some(1))]), Err(NotMeasured::Overlaps(2)));
        let flush = Record::flush(Nanos(0), DeviceId(0)).answered_after(Some(Nanos(1)));
        assert_eq!(closed_loop(&[flush]), Err(NotMeasured::Other { request: 1, op: RecordOp::Flush }));
        let other = Record { device: DeviceId(1), ..read(9, Some(1)) };
        assert_eq!(closed_loop(&[read(0, Some(1)), other]), Err(NotMeasured::Devices(2)));
        let drive = crate::drive::builtin("ra81").expect("a built-in drive");
        let far = Measured {
            extent: Extent::new(Lba(drive.sectors() - 4), 8),
            ..closed_loop(&[read(0, Some(1))]).unwrap()[0]
        };
        assert!(matches!(replay(&drive, &[far], false), Err(NotMeasured::PastEnd { request: 1, .. })));
    }
}
