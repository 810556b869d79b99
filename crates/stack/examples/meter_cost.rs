//! Measures the cost of the meter on top of a served stack: ns of this thread for a request to pass it and come back. Compares it with a
//! layer that changes nothing.
//!
//! `cargo run --release -p dcd-stack --example meter_cost`

use std::time::Instant;

use dcd_engine::layers::filter::{Filter, SeenGeometry};
use dcd_engine::{Buf, Command, Cx, Event, Io, IoResult, Layer, Lba, Nanos, Request, RequestId};
use dcd_stack::Meter;

#[derive(Default)]
struct Nothing(SeenGeometry);

impl Filter for Nothing {
    fn seen(&self) -> &SeenGeometry {
        &self.0
    }
}

/// As many requests are under way.
const DEPTH: u64 = 32;
const ROUNDS: u64 = 20_000;

/// ns for each request. The clock of the requests goes on by 10 us with each, so that slots end, too.
fn cost(layer: &mut dyn Layer) -> f64 {
    let mut cx = Cx::default();
    let mut bufs: Vec<Buf> = (0..DEPTH).map(|_| Buf::zeroed(512)).collect();
    let began = Instant::now();
    for round in 0..ROUNDS {
        let at = |id: u64| Nanos::from_micros(10 * (round * DEPTH + id));
        for (id, buf) in bufs.drain(..).enumerate() {
            let request = Request { id: RequestId(id as u64), disk: 0, io: Io::Read { at: Lba(0), buf } };
            layer.handle(Event::Request(request), cx.at(at(id as u64)));
        }
        for command in std::mem::take(&mut cx.commands) {
            let Command::Submit { op, io, .. } = command else { panic!("it passes on") };
            let result = IoResult { buf: io.take_buf(), status: Ok(()) };
            layer.handle(Event::Completed { op, result }, cx.at(at(DEPTH + op.0)));
        }
        for command in std::mem::take(&mut cx.commands) {
            let Command::Reply { result, .. } = command else { panic!("it replies") };
            bufs.push(result.buf);
        }
    }
    began.elapsed().as_nanos() as f64 / (ROUNDS * DEPTH) as f64
}

fn main() {
    let mut rounds: Vec<(f64, f64)> =
        (0..15).map(|_| (cost(&mut Nothing::default()), cost(&mut Meter::default()))).collect();
    rounds.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    let (without, with) = rounds[rounds.len() / 2];
    println!("{without:.0} ns without a meter, {with:.0} ns with it: {:.0} ns for a request", with - without);
    let meter = Meter::default();
    let began = Instant::now();
    (0..1000).for_each(|second| drop(meter.status(Nanos::from_secs(second))));
    println!("{:.0} us for a status of an idle meter", began.elapsed().as_micros() as f64 / 1000.0);
}
