//! The host's I/O scheduler above one disk, as Linux 2.6 had it (the anticipatory scheduler): requests wait in ascending
//! order, neighbours are joined, and few commands are at the drive at a time.
//!
//! | rule                | here                                                                                      |
//! |---------------------|-------------------------------------------------------------------------------------------|
//! | plugging            | what comes to an empty queue waits until all that comes at the same instant is there      |
//! | merging             | waiting requests of one kind that touch become one, up to 512 KiB                         |
//! | one-way elevator    | the next command is the one behind the last; after the last one, the first one            |
//! | batches             | reads go together and writes go together; a batch ends when nothing of it waits, or when  |
//! |                     | its time is over and the other kind waits; the drive is empty between two batches         |
//! | anticipation        | after the last read the drive is kept free for another one, so long, before writes go     |
//!
//! Studies of timing only: requests that carry bytes are not joined.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::{
    ActivateError, Buf, Durability, Event, Extent, Geometry, Io, IoResult, Layer, Lba, Nanos, OpId, Outbox,
    Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use serde_json::{Value, json};

const BELOW: Port = Port(0);
/// The longest request.
const JOINED_SECTORS_MAX: u64 = 1024;
/// How long a batch goes on while the other kind waits: `read_batch_expire` and `write_batch_expire`.
const READ_BATCH: Nanos = Nanos::from_millis(500);
const WRITE_BATCH: Nanos = Nanos::from_millis(125);

/// What waits at one place: requests that lie one behind the other.
struct Waiting {
    requests: Vec<Request>,
    extent: Extent,
}

/// See the module's documentation.
pub(crate) struct Elevator {
    /// Commands at the drive at a time.
    depth: usize,
    /// How long it waits for another read; none: it does not.
    anticipation: Nanos,
    /// Until then it waits for one.
    waits_until: Nanos,
    /// What waits, by its first sector: reads, and writes.
    queues: [BTreeMap<u64, Waiting>; 2],
    /// Flushes, and what cannot be sorted: they go when everything before them is over.
    apart: VecDeque<Request>,
    /// What is at the drive.
    under_way: BTreeMap<OpId, Vec<(RequestId, usize)>>,
    next_op: u64,
    writes: bool,
    batch_ends: Nanos,
    head: u64,
    plugged: Option<Nanos>,
    received: u64,
    sent: u64,
    geometry: Option<Geometry>,
}

impl Elevator {
    pub fn new(depth: usize, anticipation: Nanos) -> Elevator {
        Elevator {
            depth: depth.max(1),
            anticipation,
            waits_until: Nanos::ZERO,
            queues: [BTreeMap::new(), BTreeMap::new()],
            apart: VecDeque::new(),
            under_way: BTreeMap::new(),
            next_op: 0,
            writes: false,
            batch_ends: READ_BATCH,
            head: 0,
            plugged: None,
            received: 0,
            sent: 0,
            geometry: None,
        }
    }

    fn accept(&mut self, now: Nanos, request: Request) {
        self.received += 1;
        if self.is_empty() && self.under_way.is_empty() {
            self.plugged = Some(now);
        }
        self.sort(request);
    }

    fn sort(&mut self, request: Request) {
        let extent = request.io.extent();
        let sorted = self.apart.is_empty() && matches!(request.io, Io::Read { .. } | Io::Write { .. });
        let Some(extent) = extent.filter(|_| sorted) else { return self.apart.push_back(request) };
        let queue = &mut self.queues[usize::from(request.io.modifies())];
        if queue.contains_key(&extent.start.0) {
            return self.apart.push_back(request);
        }
        join(queue, Waiting { requests: vec![request], extent });
    }

    fn is_empty(&self) -> bool {
        self.apart.is_empty() && self.queues.iter().all(BTreeMap::is_empty)
    }

    /// Sends what may go to the drive now.
    fn dispatch(&mut self, now: Nanos, out: &mut Outbox) {
        while self.plugged.is_none() && self.under_way.len() < self.depth {
            let waits = [!self.queues[0].is_empty(), !self.queues[1].is_empty()];
            if waits == [false; 2] {
                if self.under_way.is_empty()
                    && let Some(request) = self.apart.pop_front()
                {
                    self.send(vec![request], out);
                }
                return;
            }
            let (this, other) = (usize::from(self.writes), usize::from(!self.writes));
            if !waits[this] || (waits[other] && now >= self.batch_ends) {
                let expired = waits[this];
                if !self.under_way.is_empty() || (!self.writes && !expired && now < self.waits_until) {
                    return;
                }
                self.writes = !self.writes;
            }
            if !waits[this] || !waits[other] || now >= self.batch_ends {
                self.batch_ends = now + if self.writes { WRITE_BATCH } else { READ_BATCH };
            }
            let queue = &mut self.queues[usize::from(self.writes)];
            let next = queue.range(self.head..).next().or_else(|| queue.first_key_value());
            let Some(start) = next.map(|(start, _)| *start) else { continue };
            let waiting = queue.remove(&start).expect("it was found");
            self.head = waiting.extent.end().0;
            self.send(waiting.requests, out);
        }
    }

    fn send(&mut self, mut requests: Vec<Request>, out: &mut Outbox) {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.sent += 1;
        let bytes = |request: &Request| {
            request.io.extent().map_or(0, |extent| (extent.sectors * SECTOR_BYTES) as usize)
        };
        self.under_way.insert(op, requests.iter().map(|request| (request.id, bytes(request))).collect());
        if requests.len() == 1 {
            return out.submit(BELOW, op, requests.remove(0).io);
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
        out.submit(BELOW, op, io);
    }

    fn completed(&mut self, now: Nanos, op: OpId, result: IoResult, out: &mut Outbox) {
        if !self.writes {
            self.waits_until = now + self.anticipation;
        }
        let ended = self.under_way.remove(&op).expect("a command ends once");
        if self.under_way.is_empty() {
            // What came behind a flush has its turn now.
            std::mem::take(&mut self.apart).into_iter().for_each(|request| self.sort(request));
        }
        if let [(id, _)] = ended[..] {
            return out.reply(id, result);
        }
        for (id, bytes) in ended {
            out.reply(id, IoResult { buf: Buf::blank(bytes), status: result.status });
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
        before.requests.append(&mut waiting.requests);
        waiting = before;
    }
    if let Some(after) = queue.get(&waiting.extent.end().0)
        && fits(&waiting, after)
    {
        let mut after = queue.remove(&waiting.extent.end().0).expect("it was found");
        waiting.extent.sectors += after.extent.sectors;
        waiting.requests.append(&mut after.requests);
    }
    queue.insert(waiting.extent.start.0, waiting);
}

impl Layer for Elevator {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => self.accept(now, request),
            Event::Completed { op, result } => self.completed(now, op, result, out),
            Event::Wake => self.plugged = None,
            Event::Control(_) => {}
        }
        self.dispatch(now, out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let waits = self.under_way.is_empty() && !self.writes && !self.queues[1].is_empty();
        self.plugged.or(waits.then_some(self.waits_until))
    }

    fn check(&self) {
        let idle = self.under_way.is_empty() && self.next_deadline().is_none();
        assert!(!idle || self.is_empty(), "requests wait, and the drive has nothing to do");
        assert!(self.under_way.len() <= self.depth);
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = Some(below.geometry(BELOW));
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Value {
        json!({ "received": self.received, "sent": self.sent })
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::Command;

    use super::*;

    fn request(id: u64, writes: bool, at: u64) -> Event {
        let (at, buf) = (Lba(at), Buf::blank(4096));
        let io = match writes {
            true => Io::Write { at, buf, durability: Durability::Durable },
            false => Io::Read { at, buf },
        };
        Event::Request(Request { id: RequestId(id), io })
    }

    /// What was sent: whether it writes, its first sector, its sectors.
    fn sent(out: &mut Outbox) -> Vec<(OpId, bool, u64, u64)> {
        let submitted = |command| match command {
            Command::Submit { op, io, .. } => {
                let extent = io.extent().unwrap();
                Some((op, io.modifies(), extent.start.0, extent.sectors))
            }
            _ => None,
        };
        out.commands.drain(..).filter_map(submitted).collect()
    }

    fn end(elevator: &mut Elevator, now: u64, op: OpId, bytes: usize, out: &mut Outbox) -> Vec<u64> {
        let result = IoResult::ok(Buf::blank(bytes));
        elevator.handle(Nanos::from_millis(now), Event::Completed { op, result }, out);
        elevator.check();
        let replied = |command: &Command| match command {
            Command::Reply { id, result } => {
                assert_eq!(result.buf.len(), 4096);
                Some(id.0)
            }
            _ => None,
        };
        out.commands.iter().filter_map(replied).collect()
    }

    #[test]
    fn neighbours_are_joined_and_the_rest_goes_up_one_at_a_time() {
        let (mut elevator, mut out) = (Elevator::new(1, Nanos::ZERO), Outbox::default());
        for (id, at) in [(1, 80), (2, 8), (3, 16), (4, 0), (5, 40)] {
            elevator.handle(Nanos::ZERO, request(id, true, at), &mut out);
        }
        assert!(out.commands.is_empty(), "all of one instant is gathered first");
        elevator.handle(Nanos::ZERO, Event::Wake, &mut out);
        let first = sent(&mut out);
        assert_eq!(first, [(OpId(0), true, 0, 24)]);
        assert_eq!(end(&mut elevator, 1, OpId(0), 3 * 4096, &mut out), [4, 2, 3]);
        assert_eq!(sent(&mut out), [(OpId(1), true, 40, 8)]);
        elevator.handle(Nanos::from_millis(1), request(6, true, 24), &mut out);
        end(&mut elevator, 2, OpId(1), 4096, &mut out);
        assert_eq!(sent(&mut out), [(OpId(2), true, 80, 8)], "on the way up");
        end(&mut elevator, 3, OpId(2), 4096, &mut out);
        assert_eq!(sent(&mut out), [(OpId(3), true, 24, 8)], "and again from the first one");
    }

    #[test]
    fn reads_and_writes_take_turns_and_the_drive_is_empty_between_them() {
        let (mut elevator, mut out) = (Elevator::new(2, Nanos::ZERO), Outbox::default());
        for (id, writes, at) in [(1, false, 0), (2, false, 100), (3, true, 50), (4, false, 200)] {
            elevator.handle(Nanos::ZERO, request(id, writes, at), &mut out);
        }
        elevator.handle(Nanos::ZERO, Event::Wake, &mut out);
        let kinds = |sent: Vec<(OpId, bool, u64, u64)>| sent.iter().map(|s| (s.1, s.2)).collect::<Vec<_>>();
        assert_eq!(kinds(sent(&mut out)), [(false, 0), (false, 100)]);
        let late = READ_BATCH.0 / 1_000_000 + 1;
        end(&mut elevator, late, OpId(0), 4096, &mut out);
        assert_eq!(kinds(sent(&mut out)), [], "the batch is over, but a read is still at the drive");
        end(&mut elevator, late, OpId(1), 4096, &mut out);
        assert_eq!(kinds(sent(&mut out)), [(true, 50)]);
        end(&mut elevator, late, OpId(2), 4096, &mut out);
        assert_eq!(kinds(sent(&mut out)), [(false, 200)]);
    }

    #[test]
    fn after_a_read_writes_wait_for_another_one() {
        let (mut elevator, mut out) = (Elevator::new(1, Nanos::from_millis(6)), Outbox::default());
        elevator.handle(Nanos::ZERO, request(1, false, 0), &mut out);
        elevator.handle(Nanos::ZERO, request(2, true, 100), &mut out);
        elevator.handle(Nanos::ZERO, Event::Wake, &mut out);
        sent(&mut out);
        end(&mut elevator, 2, OpId(0), 4096, &mut out);
        assert_eq!(sent(&mut out), [], "another read may come");
        assert_eq!(elevator.next_deadline(), Some(Nanos::from_millis(8)));
        elevator.handle(Nanos::from_millis(5), request(3, false, 50), &mut out);
        assert_eq!(sent(&mut out), [(OpId(1), false, 50, 8)], "and did");
        end(&mut elevator, 7, OpId(1), 4096, &mut out);
        sent(&mut out);
        elevator.handle(Nanos::from_millis(13), Event::Wake, &mut out);
        assert_eq!(sent(&mut out), [(OpId(2), true, 100, 8)]);
        end(&mut elevator, 15, OpId(2), 4096, &mut out);
        assert_eq!(elevator.next_deadline(), None);
    }

    #[test]
    fn a_flush_goes_after_what_came_before_it_and_before_what_came_after() {
        let (mut elevator, mut out) = (Elevator::new(4, Nanos::ZERO), Outbox::default());
        elevator.handle(Nanos::ZERO, request(1, true, 0), &mut out);
        let flush = Request { id: RequestId(2), io: Io::Flush };
        elevator.handle(Nanos::ZERO, Event::Request(flush), &mut out);
        elevator.handle(Nanos::ZERO, request(3, true, 8), &mut out);
        elevator.handle(Nanos::ZERO, Event::Wake, &mut out);
        assert_eq!(sent(&mut out), [(OpId(0), true, 0, 8)]);
        end(&mut elevator, 1, OpId(0), 4096, &mut out);
        assert!(matches!(out.commands.last(), Some(Command::Submit { io: Io::Flush, .. })));
        out.commands.clear();
        let result = IoResult::ok(Buf::none());
        elevator.handle(Nanos::from_millis(2), Event::Completed { op: OpId(1), result }, &mut out);
        assert_eq!(sent(&mut out), [(OpId(2), true, 8, 8)]);
    }
}
