//! The virtual driver: runs a stack in virtual time over simulated devices.
//!
//! One heap of events, ordered by time and then by the order in which they were scheduled; nothing else decides what
//! happens next. The same stack, devices and requests therefore give the same run, and the trace hash proves it: it takes
//! in every command and completion with its time, place, length and the checksum of its payload.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use dcd_engine::{
    Buf, Control, DeviceIndex, Geometry, Io, IoResult, LayerIndex, Nanos, Output, Pump, Report, Request,
    RequestId, Stack, Tag, Target,
};

use crate::SimDevice;

/// A layer that is woken this often without time moving on is stuck.
const WAKES_AT_ONE_INSTANT_MAX: u32 = 100_000;

#[derive(Clone, Copy, Debug)]
enum What {
    Device { device: u32, token: u32, tag: Tag },
    Alarm(u64),
}

#[derive(Clone, Copy, Debug)]
struct Due {
    time: Nanos,
    sequence: u64,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// Orders the earliest event as the greatest, as the heap returns the greatest first.
    fn cmp(&self, other: &Due) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

/// Result of a step of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverProgress {
    /// No event is scheduled: only a new request can make anything happen.
    Idle,
    /// A device, a deadline, or commands that were waiting to be carried out.
    Moved,
    /// The caller's alarm with this token.
    Alarm(u64),
}

/// Effects of a step on the devices; an observer gets it together with the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub now: Nanos,
    /// Events so far, this one included.
    pub events: u64,
    /// Writes, discards and zeroes that were submitted to devices in this step.
    pub writes: u32,
    pub flushes: u32,
    pub reads: u32,
}

/// Looks at the devices after every step: a crash explorer cuts the power here.
pub type Observer<D> = Box<dyn FnMut(&Moment, &[D])>;

/// Looks at the devices before the stack handles an event.
pub type ObserverBefore<D> = Box<dyn FnMut(Nanos, &[D])>;

/// See the module's documentation.
pub struct VirtualDriver<D = Box<dyn SimDevice>> {
    now: Nanos,
    sequence: u64,
    heap: BinaryHeap<Due>,
    devices: Vec<D>,
    outputs: Vec<Output>,
    replies: VecDeque<(RequestId, IoResult)>,
    reports: VecDeque<(LayerIndex, Report)>,
    /// Layers that wait until the caller has recorded the failure of their log.
    unrecorded: Vec<LayerIndex>,
    trace: TraceHash,
    moment: Moment,
    wakes_here: u32,
    observer: Option<Observer<D>>,
    observer_before: Option<ObserverBefore<D>>,
    story: Option<Vec<String>>,
}

impl<D: SimDevice> VirtualDriver<D> {
    /// The devices in the order of the stack's [`DeviceIndex`].
    pub fn new(devices: Vec<D>) -> VirtualDriver<D> {
        VirtualDriver {
            now: Nanos::ZERO,
            sequence: 0,
            heap: BinaryHeap::new(),
            devices,
            outputs: Vec::new(),
            replies: VecDeque::new(),
            reports: VecDeque::new(),
            unrecorded: Vec::new(),
            trace: TraceHash::new(),
            moment: Moment::default(),
            wakes_here: 0,
            observer: None,
            observer_before: None,
            story: None,
        }
    }

    pub fn geometries(&self) -> Vec<Geometry> {
        self.devices.iter().map(SimDevice::geometry).collect()
    }

    pub fn devices(&self) -> &[D] {
        &self.devices
    }

    pub fn devices_mut(&mut self) -> &mut [D] {
        &mut self.devices
    }

    pub fn into_devices(self) -> Vec<D> {
        self.devices
    }

    /// Calls `observer` after every step from now on.
    pub fn observe(&mut self, observer: Observer<D>) {
        self.observer = Some(observer);
    }

    /// Calls `observer` before each event that the stack handles.
    pub fn observe_before(&mut self, observer: ObserverBefore<D>) {
        self.observer_before = Some(observer);
    }

    fn before_event(&mut self) {
        if let Some(observer) = &mut self.observer_before {
            observer(self.now, &self.devices);
        }
    }

    /// Keeps a line of text for everything that happens from now on.
    pub fn tell_story(&mut self) {
        self.story = Some(Vec::new());
    }

    /// Adds a line to the story, if one is told.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>12}  {}", self.now.to_string(), line()));
        }
    }

    pub fn take_story(&mut self) -> Vec<String> {
        self.story.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Events carried out so far.
    pub const fn events(&self) -> u64 {
        self.moment.events
    }

    /// Returns a hash of the run: equal for two runs exactly if everything in them was equal.
    pub const fn trace_hash(&self) -> u64 {
        self.trace.hash
    }

    /// Leaves payloads out of the trace hash, as hashing them would dominate the cost of reading whole devices.
    pub const fn hash_no_payloads(&mut self) {
        self.trace.payloads = false;
    }

    /// Sends a request to the root of the stack, now.
    pub fn request(&mut self, stack: &mut Stack, id: RequestId, io: Io) {
        self.trace.operation(self.now, 1, id.0, &io);
        self.before_event();
        stack.request(self.now, Request { id, disk: 0, io });
    }

    /// Sends a request to a part of the stack, now.
    pub fn request_at(&mut self, stack: &mut Stack, target: Target, id: RequestId, io: Io) {
        self.trace.operation(self.now, 1, id.0, &io);
        self.before_event();
        stack.request_at(self.now, target, id, io);
    }

    pub fn control(&mut self, stack: &mut Stack, layer: LayerIndex, control: Control) {
        if control == Control::LogFailureRecorded {
            self.unrecorded.retain(|other| *other != layer);
        }
        self.before_event();
        stack.control(self.now, layer, control);
    }

    /// Makes [`VirtualDriver::step`] return `Alarm(token)` at a time.
    pub fn set_alarm(&mut self, at: Nanos, token: u64) {
        self.schedule(at, What::Alarm(token));
    }

    /// Returns the next answer to a request, in order of completion.
    pub fn take_reply(&mut self) -> Option<(RequestId, IoResult)> {
        self.replies.pop_front()
    }

    pub fn take_report(&mut self) -> Option<(LayerIndex, Report)> {
        self.reports.pop_front()
    }

    /// True when nothing is scheduled and nothing is to be carried out: only a new request can make anything happen.
    pub fn is_idle(&self, stack: &Stack) -> bool {
        self.heap.is_empty() && stack.next_deadline().is_none() && !stack.has_outputs()
    }

    /// Carries out the stack's commands. If none had an immediate effect, moves time to the next event.
    pub fn step(&mut self, stack: &mut Stack) -> DriverProgress {
        self.begin_moment();
        let answered = self.replies.len() + self.reports.len();
        self.carry_out(stack);
        let progress = if self.replies.len() + self.reports.len() > answered {
            DriverProgress::Moved
        } else {
            let progress = self.next_event(stack);
            self.carry_out(stack);
            progress
        };
        self.end_moment();
        progress
    }

    fn begin_moment(&mut self) {
        let events = self.moment.events;
        self.moment = Moment { events, ..Moment::default() };
    }

    fn end_moment(&mut self) {
        self.moment.now = self.now;
        if let Some(mut observer) = self.observer.take() {
            observer(&self.moment, &self.devices);
            self.observer = Some(observer);
        }
    }

    fn next_event(&mut self, stack: &mut Stack) -> DriverProgress {
        // The caller may have to act on a report first.
        if self.reports.is_empty() && self.unrecorded.is_empty() {
            stack.check_progress(self.now);
        }
        let due = self.heap.peek().map(|due| due.time);
        let deadline = stack.next_deadline();
        match (due, deadline) {
            (None, None) => return DriverProgress::Idle,
            (Some(due), deadline) if deadline.is_none_or(|deadline| due <= deadline.max(self.now)) => {}
            (_, deadline) => {
                self.wake(stack, deadline.expect("one of the two is there"));
                return DriverProgress::Moved;
            }
        }
        let due = self.heap.pop().expect("peeked");
        self.move_to(due.time);
        self.moment.events += 1;
        match due.what {
            What::Alarm(token) => DriverProgress::Alarm(token),
            What::Device { device, token, tag } => {
                let result = self.devices[device as usize].finish(self.now, token);
                self.trace.completion(self.now, device, tag, &result);
                let status = result.status;
                self.note(|| match status {
                    Ok(()) => format!("device {device} ends #{}", tag.0),
                    Err(error) => format!("device {device} ends #{}: {error}", tag.0),
                });
                self.before_event();
                stack.complete(self.now, tag, result);
                DriverProgress::Moved
            }
        }
    }

    fn wake(&mut self, stack: &mut Stack, deadline: Nanos) {
        self.move_to(deadline);
        self.moment.events += 1;
        self.wakes_here += 1;
        assert!(self.wakes_here < WAKES_AT_ONE_INSTANT_MAX, "a layer is woken at {} for ever", self.now);
        self.trace.word(self.now.0 ^ 3);
        self.before_event();
        stack.wake(self.now);
    }

    fn move_to(&mut self, time: Nanos) {
        if time > self.now {
            self.now = time;
            self.wakes_here = 0;
        }
    }

    fn carry_out(&mut self, stack: &mut Stack) {
        if !stack.has_outputs() {
            return;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        stack.take_outputs(&mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Device { device, tag, io } => self.submit(device, tag, io),
                Output::Reply { id, result } => {
                    self.trace.completion(self.now, u32::MAX, Tag(id.0), &result);
                    self.replies.push_back((id, result));
                }
                Output::Report { layer, report } => {
                    self.unrecorded.extend((report == Report::LogFailed).then_some(layer));
                    self.reports.push_back((layer, report));
                }
            }
        }
        self.outputs = outputs;
    }

    fn submit(&mut self, DeviceIndex(device): DeviceIndex, tag: Tag, io: Io) {
        self.trace.operation(self.now, 2 + device as u64, tag.0, &io);
        match &io {
            Io::Read { .. } => self.moment.reads += 1,
            Io::Flush => self.moment.flushes += 1,
            _ => self.moment.writes += 1,
        }
        self.note(|| format!("device {device} begins #{} {}", tag.0, describe(&io)));
        let ticket = self.devices[device].submit(self.now, io);
        self.schedule(ticket.done, What::Device { device: device as u32, token: ticket.token, tag });
    }

    fn schedule(&mut self, time: Nanos, what: What) {
        self.sequence += 1;
        self.heap.push(Due { time: time.max(self.now), sequence: self.sequence, what });
    }
}

impl<D: SimDevice> Pump for VirtualDriver<D> {
    fn now(&self) -> Nanos {
        self.now
    }

    fn pump(&mut self, stack: &mut Stack) {
        self.begin_moment();
        self.carry_out(stack);
        let progress = self.next_event(stack);
        self.carry_out(stack);
        self.end_moment();
        assert!(
            progress != DriverProgress::Idle,
            "somebody waits for an answer, and nothing is left that could bring it"
        );
    }
}

/// Describes an operation in words.
pub fn describe(io: &Io) -> String {
    let durable = match io {
        Io::Write { durability, .. } | Io::WriteZeroes { durability, .. } => {
            *durability == dcd_engine::Durability::Durable
        }
        _ => false,
    };
    let place = io.extent().map(|extent| format!(" {extent}")).unwrap_or_default();
    format!("{}{place}{}", io.name(), if durable { " FUA" } else { "" })
}

/// A running hash over everything that happens.
#[derive(Clone, Copy, Debug)]
struct TraceHash {
    hash: u64,
    payloads: bool,
}

impl TraceHash {
    const fn new() -> TraceHash {
        TraceHash { hash: 0x6463_6421, payloads: true }
    }

    fn word(&mut self, word: u64) {
        let hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = hash ^ (hash >> 29);
    }

    fn operation(&mut self, now: Nanos, place: u64, name: u64, io: &Io) {
        self.word(now.0);
        self.word(place << 48 ^ name);
        self.word(io.name().len() as u64 | u64::from(io.modifies()) << 32);
        if let Some(extent) = io.extent() {
            self.word(extent.start.0);
            self.word(extent.sectors);
        }
        if let Io::Write { buf, .. } = io {
            self.payload(buf);
        }
    }

    fn completion(&mut self, now: Nanos, place: u32, tag: Tag, result: &IoResult) {
        self.word(now.0);
        self.word(u64::from(place) << 32 ^ tag.0);
        self.word(u64::from(result.status.is_err()));
        self.payload(&result.buf);
    }

    fn payload(&mut self, buf: &Buf) {
        self.word(buf.len() as u64);
        if self.payloads && !buf.is_blank() {
            self.word(u64::from(crc32c::crc32c(buf.bytes())));
        }
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
