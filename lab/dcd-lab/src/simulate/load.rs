//! Provides the load of a stack: the requests of a trace, or generated ones.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::HumanBytes;

use super::run::Watched;
use crate::failure::Failure;
use crate::generated::{Clients, GeneratedClients, Generator, LoadFile, Step, open_loop};
use crate::load::{Request, Workload};
use crate::virtual_run::VirtualRun;

/// Order in which the requests of a trace come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Replay {
    /// At their times.
    Open,
    /// Each its recorded time after the answer to the last request that was answered before it.
    Thinking,
    /// A fixed number in flight, without pauses.
    Depth(usize),
}

pub enum Load {
    Trace { name: String, workload: Workload, replay: Replay, time_scale: f64 },
    Generated { name: String, file: LoadFile, requests: u64 },
}

impl Load {
    pub fn requests(&self) -> u64 {
        match self {
            Load::Trace { workload, .. } => workload.requests.len() as u64,
            Load::Generated { requests, .. } => *requests,
        }
    }

    pub fn notes(&self) -> &[String] {
        match self {
            Load::Trace { workload, .. } => &workload.notes,
            Load::Generated { .. } => &[],
        }
    }

    /// True for the writes of a trace of which none has to be durable.
    pub fn makes_nothing_durable(&self) -> bool {
        matches!(self, Load::Trace { workload, .. } if workload.writes > 0 && workload.flushes == 0)
    }

    pub fn words(&self, seed: u64) -> String {
        match self {
            Load::Trace { name, workload, replay, time_scale } => {
                let mut words = format!(
                    "{name}: {} requests in {:.0} s, {:.0} % of them writes",
                    workload.requests.len(),
                    workload.span().as_secs_f64(),
                    100.0 * workload.writes as f64 / workload.requests.len() as f64
                );
                words += &match replay {
                    Replay::Open => String::new(),
                    Replay::Thinking => ", each after an answer".to_owned(),
                    Replay::Depth(depth) => format!(", {depth} in flight"),
                };
                if *time_scale != 1.0 {
                    words += &format!(", times {time_scale} as long");
                }
                words
            }
            Load::Generated { name, file, requests } => {
                let from = match (file.rate, file.clients) {
                    (Some(rate), _) => format!("at {rate} a second"),
                    (None, 1) => "of one client".to_owned(),
                    (None, clients) => format!("of {clients} clients"),
                };
                format!("{name}: {requests} requests {from}, seed {seed}")
            }
        }
    }

    /// Lets a stack answer all of it.
    pub fn run(
        &self,
        stack: &str,
        seed: u64,
        run: &mut VirtualRun,
        watched: &mut Watched<'_>,
    ) -> Result<(), Failure> {
        let named = |error: String| Failure::Failed(format!("{stack}: {error}"));
        let sectors = run.geometry().sectors;
        match self {
            Load::Trace { workload, replay, time_scale, .. } => {
                if workload.end > sectors {
                    return Err(named(format!(
                        "the export has {}, and the trace reaches to {}: name a larger device, or shrink the trace (dcd trace \
                         scale --space)",
                        HumanBytes(sectors.saturating_mul(SECTOR_BYTES)),
                        HumanBytes(workload.end * SECTOR_BYTES)
                    )));
                }
                let requests = &workload.requests;
                match replay {
                    Replay::Open => {
                        let scaled = |request: &Request| Request { at: scale(request.at, *time_scale), ..*request };
                        run.replay(requests.iter().map(scaled), watched)
                    }
                    Replay::Thinking => {
                        let after = answered_before(requests).map_err(named)?;
                        run.run(&mut Thinking { requests, after, time_scale: *time_scale }, watched)
                    }
                    Replay::Depth(depth) => run.run(&mut InOrder { requests, next: 0, depth: *depth }, watched),
                }
            }
            Load::Generated { file, requests, .. } => {
                let generator = Generator::new(file, sectors, seed).map_err(named)?;
                match file.rate {
                    Some(rate) => run.replay(open_loop(generator, rate, *requests, seed), watched),
                    None => run.run(&mut GeneratedClients::new(generator, *requests), watched),
                }
            }
        }
        .map_err(|error| named(error.to_string()))
    }
}

fn scale(time: Nanos, by: f64) -> Nanos {
    if by == 1.0 { time } else { Nanos((time.0 as f64 * by) as u64) }
}

/// For each request of a trace, the last one that was answered before it came. They never go back.
fn answered_before(requests: &[Request]) -> Result<Vec<Option<u32>>, String> {
    let mut running = BinaryHeap::new();
    let mut last = None;
    let mut found = Vec::with_capacity(requests.len());
    for (request, number) in requests.iter().zip(0..) {
        if request.took == 0 {
            return Err(format!(
                "request {} of the trace has no response time, so what it waited for is unknown: name how many are in flight \
                 with --depth",
                number + 1
            ));
        }
        while let Some(&Reverse((end, other))) = running.peek()
            && end <= request.at.0
        {
            last = Some(other);
            running.pop();
        }
        found.push(last);
        running.push(Reverse((request.at.0.saturating_add(request.took), number)));
    }
    Ok(found)
}

/// Requests of a trace, each some time after an answer.
struct Thinking<'a> {
    requests: &'a [Request],
    after: Vec<Option<u32>>,
    time_scale: f64,
}

impl Clients for Thinking<'_> {
    fn after(&mut self, answered: Option<usize>, next: &mut VecDeque<Step>) {
        let wanted = answered.map(|number| number as u32);
        let from = match answered {
            None => Nanos::ZERO,
            Some(number) => Nanos(self.requests[number].at.0 + self.requests[number].took),
        };
        // A later request never follows an answer that came earlier.
        let ends = |number: Option<u32>| {
            number.map(|n| (self.requests[n as usize].at.0 + self.requests[n as usize].took, n))
        };
        let first = self.after.partition_point(|other| ends(*other) < ends(wanted));
        let followers = self.after[first..].iter().take_while(|other| **other == wanted).count();
        next.extend((first..first + followers).map(|tag| {
            let request = self.requests[tag];
            Step { pause: scale(request.at.since(from), self.time_scale), request, tag }
        }));
    }
}

/// Requests of a trace in their order, so many in flight.
struct InOrder<'a> {
    requests: &'a [Request],
    next: usize,
    depth: usize,
}

impl Clients for InOrder<'_> {
    fn after(&mut self, answered: Option<usize>, next: &mut VecDeque<Step>) {
        let more = if answered.is_none() { self.depth } else { 1 };
        let end = (self.next + more).min(self.requests.len());
        let step = |tag: usize| Step { pause: Nanos::ZERO, request: self.requests[tag], tag };
        next.extend((self.next..end).map(step));
        self.next = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrival and response time in ms.
    fn trace(times: &[(u64, u64)]) -> Vec<Request> {
        let request = |&(at, took): &(u64, u64)| Request {
            at: Nanos::from_millis(at),
            start: 0,
            sectors: 8,
            writes: true,
            fua: false,
            took: took * 1_000_000,
        };
        times.iter().map(request).collect()
    }

    #[test]
    fn a_request_follows_the_last_answer_before_it() {
        let requests = trace(&[(0, 5), (1, 2), (4, 10), (6, 1), (20, 1), (20, 1)]);
        let after = answered_before(&requests).unwrap();
        assert_eq!(after, [None, None, Some(1), Some(0), Some(2), Some(2)]);
        let mut clients = Thinking { requests: &requests, after, time_scale: 0.5 };
        let mut sent = |answered: Option<usize>| {
            let mut next = VecDeque::new();
            clients.after(answered, &mut next);
            next.iter().map(|step| (step.tag, step.pause.0 / 1000)).collect::<Vec<_>>()
        };
        assert_eq!(sent(None), [(0, 0), (1, 500)]);
        assert_eq!(sent(Some(1)), [(2, 500)]);
        assert_eq!(sent(Some(0)), [(3, 500)]);
        assert_eq!(sent(Some(2)), [(4, 3000), (5, 3000)]);
        assert_eq!(sent(Some(3)), []);
        assert!(answered_before(&trace(&[(0, 1), (2, 0)])).unwrap_err().contains("request 2 of the trace"));
    }

    #[test]
    fn a_depth_keeps_so_many_in_flight() {
        let requests = trace(&[(0, 1); 4]);
        let mut clients = InOrder { requests: &requests, next: 0, depth: 3 };
        let mut next = VecDeque::new();
        clients.after(None, &mut next);
        assert_eq!(next.len(), 3);
        clients.after(Some(2), &mut next);
        clients.after(Some(0), &mut next);
        assert_eq!(next.iter().map(|step| step.tag).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
