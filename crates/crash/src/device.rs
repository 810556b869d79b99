//! Defines the devices of the virtual driver, their latencies, and a device without bytes for timing studies.

use dcd_engine::{Geometry, Io, IoResult, Nanos};

use crate::SimRng;

/// An operation that a device has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The device's name for it.
    pub token: u32,
    /// End of the operation.
    pub done: Nanos,
}

/// A device in virtual time: accepts an operation, returns the time of its end, and ends it then.
pub trait SimDevice {
    fn geometry(&self) -> Geometry;

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket;

    /// Ends an operation; called once for each ticket, at the time it named.
    fn finish(&mut self, now: Nanos, token: u32) -> IoResult;
}

impl<D: SimDevice + ?Sized> SimDevice for Box<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        (**self).submit(now, io)
    }

    fn finish(&mut self, now: Nanos, token: u32) -> IoResult {
        (**self).finish(now, token)
    }
}

/// Time that operations take. With any but a fixed time, completions come out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    Fixed(Nanos),
    Uniform {
        min: Nanos,
        max: Nanos,
    },
    /// Mostly uniform; `slow_per_mille` of a thousand take `slow`.
    Tailed {
        min: Nanos,
        max: Nanos,
        slow: Nanos,
        slow_per_mille: u64,
    },
}

impl Latency {
    pub const INSTANT: Latency = Latency::Fixed(Nanos::ZERO);

    pub fn draw(self, rng: &mut SimRng) -> Nanos {
        match self {
            Latency::Fixed(span) => span,
            Latency::Uniform { min, max } => Nanos(rng.range(min.0, max.0)),
            Latency::Tailed { slow, slow_per_mille, .. } if rng.chance(slow_per_mille) => slow,
            Latency::Tailed { min, max, .. } => Nanos(rng.range(min.0, max.0)),
        }
    }
}

/// Operations in flight: a slab whose free places are reused, so that a long run allocates nothing.
#[derive(Debug)]
pub struct Flights<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Flights { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Flights<T> {
    pub fn insert(&mut self, flight: T) -> u32 {
        match self.free.pop() {
            Some(token) => {
                self.places[token as usize] = Some(flight);
                token
            }
            None => {
                self.places.push(Some(flight));
                (self.places.len() - 1) as u32
            }
        }
    }

    pub fn remove(&mut self, token: u32) -> T {
        self.free.push(token);
        self.places[token as usize].take().expect("an operation ends once")
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

/// A device that takes time and holds no bytes: a read leaves its buffer unchanged.
#[derive(Debug)]
pub struct BlankDisk {
    geometry: Geometry,
    latency: Latency,
    rng: SimRng,
    flights: Flights<Io>,
}

impl BlankDisk {
    pub fn new(geometry: Geometry, latency: Latency, seed: u64) -> BlankDisk {
        BlankDisk { geometry, latency, rng: SimRng::new(seed), flights: Flights::default() }
    }
}

impl SimDevice for BlankDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let done = now + self.latency.draw(&mut self.rng);
        Ticket { token: self.flights.insert(io), done }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        IoResult::ok(self.flights.remove(token).take_buf())
    }
}
