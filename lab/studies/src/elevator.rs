//! The host's I/O scheduler above one disk, as Linux 2.6 had it: the anticipatory scheduler (Iyer and Druschel 2001; the
//! kernel's `as-iosched`, with its defaults). Requests wait in ascending order, neighbours are joined, and a number of
//! commands are at the drive at a time. All reads count as those of one process: it is one driver that sends them.
//!
//! | rule                | here                                                                                      |
//! |---------------------|-------------------------------------------------------------------------------------------|
//! | plugging            | what comes to an empty queue waits until all that comes at the same instant is there      |
//! | merging             | waiting requests of one kind that touch become one, up to 512 KiB                         |
//! | one-way elevator    | the next command is the one ahead of the last, or one behind it that is nearer by more    |
//! |                     | than half; after the last one, the first one                                              |
//! | expiry              | every 125 ms (reads) or 250 ms (writes) the oldest goes next, if it has waited as long    |
//! | batches             | reads go together and writes go together; a batch ends when nothing of it waits, or when  |
//! |                     | its time is over and the other kind waits; the drive is empty between two batches         |
//! | anticipation        | after the last read the drive is kept free for another one, so long, before writes go; not|
//! |                     | where the next read used to take longer to come (the mean of a decaying history)          |
//!
//! The kernel's counting of the writes of a batch is left out: it aims at the time that is used here.
//!
//! Studies of timing only: requests that carry bytes are not joined.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::{
    ActivateError, AnyStatus, Buf, Cx, Durability, Event, Extent, Geometry, Io, IoResult, Layer, Lba, Nanos,
    OpId, Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use serde_json::json;

const BELOW: Port = Port(0);
/// The longest request.
const JOINED_SECTORS_MAX: u64 = 1024;
/// Time that a batch goes on while the other kind waits: `read_batch_expire` and `write_batch_expire`.
const READ_BATCH: Nanos = Nanos::from_millis(500);
const WRITE_BATCH: Nanos = Nanos::from_millis(125);

/// Time that a request waits until it may go out of turn: `read_expire` and `write_expire`.
const EXPIRE: [Nanos; 2] = [Nanos::from_millis(125), Nanos::from_millis(250)];
/// Maximum distance behind the last command of a request that goes before those ahead.
const BACK_SECTORS_MAX: u64 = 1 << 20;
/// The longest time between two reads that counts.
const THINK_MAX: Nanos = Nanos::from_millis(20);

/// Requests that wait at one place: they lie one behind the other, the oldest since then.
struct Waiting {
    requests: Vec<Request>,
    extent: Extent,
    since: Nanos,
}

/// Time that the next read took to come after the last had ended: each weighs an eighth of what came before it together.
#[derive(Default)]
struct Think {
    samples: f64,
    total_ms: f64,
}

impl Think {
    fn add(&mut self, time: Nanos) {
        self.samples = (7.0 * self.samples + 1.0) / 8.0;
        self.total_ms = (7.0 * self.total_ms + time.min(THINK_MAX).as_millis_f64()) / 8.0;
    }

    /// True if a read is worth waiting for so long.
    fn is_within(&self, span: Nanos) -> bool {
        self.total_ms <= self.samples * span.as_millis_f64()
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Elevator {
    /// Commands at the drive at a time.
    depth: usize,
    /// Time that it waits for another read; none: it does not wait.
    anticipation: Nanos,
    /// Time at which the last read ended.
    last_read: Option<Nanos>,
    think: Think,
    /// Waiting requests by first sector: reads, and writes.
    queues: [BTreeMap<u64, Waiting>; 2],
    /// Flushes, and what cannot be sorted: they go when everything before them is over.
    apart: VecDeque<Request>,
    /// Commands at the drive.
    under_way: BTreeMap<OpId, Vec<(RequestId, usize)>>,
    next_op: u64,
    writes: bool,
    batch_ends: Nanos,
    /// The batch is over, and the next one begins when the drive is empty.
    turning: bool,
    /// Time of the last look for expired requests, of each kind.
    looked: [Nanos; 2],
    head: u64,
    plugged: Option<Nanos>,
    received: u64,
    sent: u64,
    geometry: Option<Geometry>,
}

impl Elevator {
    pub fn new(depth: usize, anticipation: Nanos) -> Elevator {
        Elevator { depth: depth.max(1), anticipation, batch_ends: READ_BATCH, ..Elevator::default() }
    }

    fn accept(&mut self, now: Nanos, request: Request) {
        self.received += 1;
        if self.is_empty() && self.under_way.is_empty() {
            self.plugged = Some(now);
        }
        if let (Io::Read { .. }, Some(ended)) = (&request.io, self.last_read) {
            let reads = !self.queues[0].is_empty() || (!self.writes && !self.under_way.is_empty());
            self.think.add(if reads { Nanos::ZERO } else { now.since(ended) });
        }
        self.sort(now, request);
    }

    fn sort(&mut self, now: Nanos, request: Request) {
        let extent = request.io.extent();
        let sorted = self.apart.is_empty() && matches!(request.io, Io::Read { .. } | Io::Write { .. });
        let Some(extent) = extent.filter(|_| sorted) else { return self.apart.push_back(request) };
        let queue = &mut self.queues[usize::from(request.io.modifies())];
        if queue.contains_key(&extent.start.0) {
            return self.apart.push_back(request);
        }
        join(queue, Waiting { requests: vec![request], extent, since: now });
    }

    fn is_empty(&self) -> bool {
        self.apart.is_empty() && self.queues.iter().all(BTreeMap::is_empty)
    }

    /// Sends what may go to the drive now.
    fn dispatch(&mut self, cx: &mut Cx) {
        while self.plugged.is_none() && self.under_way.len() < self.depth {
            let waits = [!self.queues[0].is_empty(), !self.queues[1].is_empty()];
            if waits == [false; 2] {
                if self.under_way.is_empty()
                    && let Some(request) = self.apart.pop_front()
                {
                    self.send(vec![request], cx);
                }
                return;
            }
            let (this, other) = (usize::from(self.writes), usize::from(!self.writes));
            let expired = waits[0] && waits[1] && cx.now >= self.batch_ends;
            if self.turning || !waits[this] || expired {
                if !self.under_way.is_empty() {
                    self.turning = true;
                    return;
                }
                if !self.turning && !expired && cx.now < self.waits_until() {
                    return;
                }
                self.turning = false;
                if waits[other] {
                    self.turn(cx.now);
                    continue;
                }
            }
            if !waits[other] {
                self.batch_ends = cx.now + self.batch();
            }
            let start = self.next_start(cx.now);
            self.go(start, cx);
        }
    }

    const fn batch(&self) -> Nanos {
        if self.writes { WRITE_BATCH } else { READ_BATCH }
    }

    /// Until when the drive is kept free for another read.
    fn waits_until(&self) -> Nanos {
        match self.last_read {
            Some(ended) if !self.writes && self.think.is_within(self.anticipation) => {
                ended + self.anticipation
            }
            _ => Nanos::ZERO,
        }
    }

    /// Begins a batch of the other kind; one of reads begins with the oldest.
    fn turn(&mut self, now: Nanos) {
        self.writes = !self.writes;
        self.batch_ends = now + self.batch();
        if !self.writes {
            self.looked[0] = now;
            self.head = self.oldest().map_or(self.head, |(start, _)| start);
        }
    }

    /// Returns the start of the oldest run of the kind whose turn it is, and since when it waits.
    fn oldest(&self) -> Option<(u64, Nanos)> {
        let queue = &self.queues[usize::from(self.writes)];
        queue.iter().map(|(start, waiting)| (*start, waiting.since)).min_by_key(|(_, since)| *since)
    }

    /// Returns the start of the next command of the kind whose turn it is.
    fn next_start(&mut self, now: Nanos) -> u64 {
        let kind = usize::from(self.writes);
        if now.since(self.looked[kind]) >= EXPIRE[kind] {
            self.looked[kind] = now;
            let expired = self.oldest().filter(|(_, since)| now.since(*since) > EXPIRE[kind]);
            if let Some((start, _)) = expired {
                return start;
            }
        }
        let queue = &self.queues[kind];
        let key = |(start, _): (&u64, &Waiting)| *start;
        let behind = queue.range(..self.head).next_back().map(key);
        let behind = behind.filter(|start| self.head - start <= BACK_SECTORS_MAX);
        let ahead = queue.range(self.head..).next().map(key);
        match (ahead, behind) {
            (Some(ahead), Some(behind)) if 2 * (self.head - behind) < ahead - self.head => behind,
            (Some(ahead), _) => ahead,
            (None, Some(behind)) => behind,
            (None, None) => *queue.first_key_value().expect("something of the kind waits").0,
        }
    }

    fn go(&mut self, start: u64, cx: &mut Cx) {
        let waiting = self.queues[usize::from(self.writes)].remove(&start).expect("it was found");
        self.head = waiting.extent.end().0;
        self.send(waiting.requests, cx);
    }

    fn send(&mut self, mut requests: Vec<Request>, cx: &mut Cx) {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.sent += 1;
        let bytes = |request: &Request| {
            request.io.extent().map_or(0, |extent| (extent.sectors * SECTOR_BYTES) as usize)
        };
        self.under_way.insert(op, requests.iter().map(|request| (request.id, bytes(request))).collect());
        if requests.len() == 1 {
            return cx.submit(BELOW, op, requests.remove(0).io);
        }
        let at = requests[0].io.extent().map_or(Lba(0), |extent| extent.start);
        let buf = Buf::blank(requests.iter().map(bytes).sum());
        let durable =
            |request: &Request| matches!(request.io, Io::Write { durability: Durability::Durable, .. });
        let durability =
            if requests.iter().any(durable) { Durability::Durable } else { Durability::Volatile };
        let io = match requests[0].io {
            Io::Read { .. } => Io::Read { at, buf },
            _ => Io::Write { at, buf, durability },
        };
        cx.submit(BELOW, op, io);
    }

    fn completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        let ended = self.under_way.remove(&op).expect("a command ends once");
        if !self.writes {
            self.last_read = Some(cx.now);
        }
        if self.under_way.is_empty() {
            // What came behind a flush has its turn now.
            std::mem::take(&mut self.apart).into_iter().for_each(|request| self.sort(cx.now, request));
        }
        if let [(id, _)] = ended[..] {
            return cx.reply(id, result);
        }
        for (id, bytes) in ended {
            cx.reply(id, IoResult { buf: Buf::blank(bytes), status: result.status });
        }
    }
}

fn is_blank(waiting: &Waiting) -> bool {
    waiting.requests.iter().all(|request| match &request.io {
        Io::Read { buf, .. } | Io::Write { buf, .. } => buf.is_blank(),
        _ => false,
    })
}

/// Puts a request into its queue, joined with those that it touches.
fn join(queue: &mut BTreeMap<u64, Waiting>, mut waiting: Waiting) {
    let fits = |a: &Waiting, b: &Waiting| {
        a.extent.end() == b.extent.start
            && a.extent.sectors + b.extent.sectors <= JOINED_SECTORS_MAX
            && is_blank(a)
            && is_blank(b)
    };
    let before = queue.range(..waiting.extent.start.0).next_back();
    if let Some(start) = before.filter(|(_, before)| fits(before, &waiting)).map(|(start, _)| *start) {
        let mut before = queue.remove(&start).expect("it was found");
        before.extent.sectors += waiting.extent.sectors;
        before.since = before.since.min(waiting.since);
        before.requests.append(&mut waiting.requests);
        waiting = before;
    }
    if let Some(after) = queue.get(&waiting.extent.end().0)
        && fits(&waiting, after)
    {
        let mut after = queue.remove(&waiting.extent.end().0).expect("it was found");
        waiting.extent.sectors += after.extent.sectors;
        waiting.since = waiting.since.min(after.since);
        waiting.requests.append(&mut after.requests);
    }
    queue.insert(waiting.extent.start.0, waiting);
}

impl Layer for Elevator {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.accept(cx.now, request),
            Event::Completed { op, result } => self.completed(op, result, cx),
            Event::Wake => self.plugged = None,
            Event::Control(_) => {}
        }
        self.dispatch(cx);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let waits = self.under_way.is_empty() && !self.writes && !self.queues[1].is_empty();
        self.plugged.or(waits.then(|| self.waits_until()))
    }

    fn has_work(&self, _now: Nanos) -> bool {
        !self.is_empty()
    }

    fn check(&self) {
        self.check_progress(Nanos::ZERO, !self.under_way.is_empty());
        assert!(self.under_way.len() <= self.depth);
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = Some(below.geometry(BELOW));
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(json!({ "received": self.received, "sent": self.sent }))
    }
}

#[cfg(test)]
#[path = "elevator_tests.rs"]
mod tests;
