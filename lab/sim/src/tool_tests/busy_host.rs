//! A log on a modelled disk below a busy host: the head is found and followed all the same.
//!
//! The host delays requests and notices their ends late, as was measured with two busy loops for each processor and a writer that flushes
//! a file (`busy-host.txt`, by the example `host_noise`).

use std::collections::BTreeMap;

use dcd_crash::SimRng;
use dcd_engine::{
    ActivateError, Cx, Event, Geometry, Io, IoResult, Layer, Nanos, OpId, Port, Ports, RequestId,
};

const NOISE: &str = include_str!("busy-host.txt");

enum Late {
    Down(OpId, Io),
    Up(RequestId, IoResult),
}

/// A layer that delays what goes down and what comes back.
pub(super) struct BusyHost {
    /// By how much, in microseconds.
    noise: Vec<(u64, u64)>,
    at: usize,
    rng: SimRng,
    late: BTreeMap<(Nanos, u64), Late>,
    count: u64,
    geometry: Option<Geometry>,
}

impl BusyHost {
    pub fn new(seed: u64) -> BusyHost {
        let pair = |line: &str| {
            let (sent, noticed) = line.split_once(' ').expect("two numbers");
            (sent.parse().expect("a number"), noticed.parse().expect("a number"))
        };
        let noise: Vec<(u64, u64)> = NOISE.lines().map(pair).collect();
        let mut rng = SimRng::new(seed);
        let at = rng.below(noise.len() as u64) as usize;
        BusyHost { noise, at, rng, late: BTreeMap::new(), count: 0, geometry: None }
    }

    fn delay(&mut self, now: Nanos, micros: u64, late: Late) {
        self.count += 1;
        self.late.insert((now + Nanos::from_micros(micros), self.count), late);
    }
}

impl Layer for BusyHost {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => {
                // Bursts are kept: a few requests in a row have the delays that were measured in a row.
                self.at = match self.rng.chance(125) {
                    true => self.rng.below(self.noise.len() as u64) as usize,
                    false => (self.at + 1) % self.noise.len(),
                };
                self.delay(cx.now, self.noise[self.at].0, Late::Down(OpId(request.id.0), request.io));
            }
            Event::Completed { op, result } => {
                self.delay(cx.now, self.noise[self.at].1, Late::Up(RequestId(op.0), result));
            }
            Event::Wake | Event::Control(_) => {}
        }
        while let Some(first) = self.late.first_entry().filter(|first| first.key().0 <= cx.now) {
            match first.remove() {
                Late::Down(op, io) => cx.submit(Port(0), op, io),
                Late::Up(id, result) => cx.reply(id, result),
            }
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.late.first_key_value().map(|((due, _), _)| *due)
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("active")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = Some(below.geometry(Port(0)));
        Ok(())
    }
}
