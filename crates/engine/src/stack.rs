//! A stack: layers over devices, joined by ports. It only passes messages; it has no clock and does no I/O either.
//!
//! Each operation that enters a layer gets a key from one slab, and the key remembers the receiver of the answer: the world outside,
//! a layer above, or a waiting caller ([`run_blocking`](Stack::run_blocking)). Layers may share a device below
//! (two slices of one disk), so the shape is a graph without cycles, built from the bottom up.
//!
//! A flush of a shared disk that fails may take with it what others have written there, and the next flush succeeds all the same. So
//! each of them that has volatile writes hears of it: its next flush fails, too.

use std::collections::VecDeque;

use crate::layer::{
    ActivateError, BlockDevice, Command, Control, Cx, Durability, Event, Geometry, Io, IoError, IoResult,
    Layer, MapPart, MapSource, OpId, Port, Ports, Report, Request, RequestId, SectorState,
};
use crate::slab::Slab;
use crate::{Extent, Lba, Nanos};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerIndex(pub usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub usize);

/// A layer or device that a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Layer(LayerIndex),
    /// A disk of a layer that has several. (The layer itself is its disk 0.)
    Disk(LayerIndex, usize),
    Device(DeviceIndex),
}

/// Reason for refusing to start a stack: an error of one of its layers.
#[derive(Debug, thiserror::Error)]
#[error("layer \"{layer}\": {error}")]
pub struct StartError {
    pub layer: String,
    pub error: ActivateError,
}

/// Source of the state of sectors of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackMap {
    Known(SectorState),
    /// The holes of this device, from this sector on. The state at the time of the call is what counts: what was written before is there.
    Device(DeviceIndex, Lba),
}

/// Names an operation that a device is carrying out; give it back to [`Stack::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// A request of a stack to its driver.
#[derive(Debug)]
pub enum Output {
    Device { device: DeviceIndex, tag: Tag, io: Io },
    Reply { id: RequestId, result: IoResult },
    Report { layer: LayerIndex, report: Report },
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    Outside(RequestId),
    Layer(LayerIndex, OpId, Passage),
    /// An operation of [`Stack::run_all_blocking`], by its index.
    Waiting(usize),
}

/// The part of an operation in the [`PortUse`] of this port.
#[derive(Clone, Copy, Debug)]
enum Passage {
    /// A write, a discard or zeroes that a flush has to cover.
    Volatile(u16),
    Flush(u16),
    Other,
}

impl Passage {
    const fn of(port: Port, io: &Io) -> Passage {
        let port = port.0 as u16;
        match io {
            Io::Flush => Passage::Flush(port),
            Io::Discard { .. } => Passage::Volatile(port),
            Io::Write { durability, .. }
            | Io::WriteCopy { durability, .. }
            | Io::WriteZeroes { durability, .. } => match durability {
                Durability::Volatile => Passage::Volatile(port),
                Durability::Durable => Passage::Other,
            },
            Io::Read { .. } | Io::ReadCopy { .. } => Passage::Other,
        }
    }
}

/// A port: where it leads to, and whether something was written there that is not durable.
struct PortUse {
    target: Target,
    /// A write has ended that no flush was sent after.
    is_unflushed: bool,
    /// Flushes in flight.
    flushes: usize,
    /// Another user's flush of the disk failed, and took volatile writes of this one with it.
    lost: Option<IoError>,
}

impl PortUse {
    const fn new(target: Target) -> PortUse {
        PortUse { target, is_unflushed: false, flushes: 0, lost: None }
    }
}

struct Node {
    name: String,
    /// Taken out only while the layer is being activated.
    layer: Option<Box<dyn Layer>>,
    ports: Vec<PortUse>,
}

/// Puts a stack together from the bottom up.
#[derive(Default)]
pub struct StackBuilder {
    nodes: Vec<Node>,
    devices: Vec<Geometry>,
}

impl StackBuilder {
    pub fn new() -> StackBuilder {
        StackBuilder::default()
    }

    pub fn device(&mut self, geometry: Geometry) -> Target {
        self.devices.push(geometry);
        Target::Device(DeviceIndex(self.devices.len() - 1))
    }

    /// Adds a layer over layers and devices that were added before it.
    pub fn layer(&mut self, name: &str, layer: Box<dyn Layer>, ports: &[Target]) -> Target {
        for port in ports {
            let known = match port {
                Target::Layer(index) | Target::Disk(index, _) => index.0 < self.nodes.len(),
                Target::Device(index) => index.0 < self.devices.len(),
            };
            assert!(known, "a layer stands on what was built before it");
        }
        let uses = ports.iter().map(|target| PortUse::new(*target)).collect();
        self.nodes.push(Node { name: name.to_owned(), layer: Some(layer), ports: uses });
        Target::Layer(LayerIndex(self.nodes.len() - 1))
    }

    pub fn finish(self, root: Target) -> Stack {
        Stack {
            nodes: self.nodes,
            devices: self.devices,
            root,
            origins: Slab::default(),
            queue: VecDeque::new(),
            cx: Cx::default(),
            outputs: Vec::new(),
            waited: Vec::new(),
            checks: false,
        }
    }
}

/// Layers over devices. See the module's documentation.
pub struct Stack {
    nodes: Vec<Node>,
    devices: Vec<Geometry>,
    root: Target,
    origins: Slab<Origin>,
    queue: VecDeque<(LayerIndex, Event)>,
    cx: Cx,
    outputs: Vec<Output>,
    /// The results of [`Stack::run_all_blocking`], as far as they have come.
    waited: Vec<Option<IoResult>>,
    checks: bool,
}

/// Carries a stack's outputs out while a caller waits: implemented by the drivers.
pub trait Pump {
    fn now(&self) -> Nanos;

    /// Carries out the stack's outputs, waits until at least one operation ends or a deadline comes, and tells the stack.
    fn pump(&mut self, stack: &mut Stack);
}

impl Stack {
    /// Runs [`Layer::check`] after every event from now on.
    pub fn enable_checks(&mut self) {
        self.checks = true;
    }

    /// Adds a device while the stack runs; the driver must know it by the index that comes back.
    pub fn add_device(&mut self, geometry: Geometry) -> DeviceIndex {
        self.devices.push(geometry);
        DeviceIndex(self.devices.len() - 1)
    }

    /// Gives a layer one more port, which leads to a device. The layer does not use the port before it is told to.
    pub fn add_port(&mut self, layer: LayerIndex, device: DeviceIndex) -> Port {
        assert!(device.0 < self.devices.len(), "a port leads to what is there");
        let ports = &mut self.nodes[layer.0].ports;
        ports.push(PortUse::new(Target::Device(device)));
        Port(ports.len() - 1)
    }

    /// Leads a port of a layer to a device: the next port, or one that is not in use.
    pub fn connect(&mut self, layer: LayerIndex, port: Port, device: DeviceIndex) {
        assert!(device.0 < self.devices.len(), "a port leads to what is there");
        let ports = &mut self.nodes[layer.0].ports;
        let port_use = PortUse::new(Target::Device(device));
        match ports.get_mut(port.0) {
            Some(known) => *known = port_use,
            None => ports.push(port_use),
        }
        assert!(port.0 < ports.len(), "ports follow each other");
    }

    /// Tells the layers that stand on each disk of a layer that one of its disks has come, or its place has become free.
    pub fn disk_changed(&mut self, layer: LayerIndex, disk: usize) {
        let geometry = self.layer(layer).disk_geometry(disk);
        // Over one disk as over a layer, over several as over each of them.
        let stands = |node: &Node| match node.ports.first().map(|port| port.target) {
            Some(Target::Layer(below) | Target::Disk(below, 0)) => below == layer,
            _ => false,
        };
        let above: Vec<usize> =
            (layer.0 + 1..self.nodes.len()).filter(|above| stands(&self.nodes[*above])).collect();
        for above in above {
            let node = &mut self.nodes[above];
            if disk == node.ports.len() {
                node.ports.push(PortUse::new(Target::Disk(layer, disk)));
            }
            node.layer.as_mut().expect("only an activating layer is away").take_disk(disk, geometry);
            self.disk_changed(LayerIndex(above), disk);
        }
    }

    /// The only layer that uses a device, and its port; none if no port or several ports lead to the device.
    pub fn only_user(&self, device: DeviceIndex) -> Option<(LayerIndex, Port)> {
        let ports = |layer: usize| {
            (0..self.nodes[layer].ports.len()).map(move |port| (LayerIndex(layer), Port(port)))
        };
        let all = (0..self.nodes.len()).flat_map(ports);
        let mut users = all.filter(|(layer, port)| self.below(*layer, *port) == Target::Device(device));
        let user = users.next()?;
        users.next().is_none().then_some(user)
    }

    /// The layer or device that a port of a layer leads to.
    pub fn below(&self, layer: LayerIndex, port: Port) -> Target {
        self.nodes[layer.0].ports[port.0].target
    }

    pub fn root(&self) -> Target {
        self.root
    }

    /// Number of disks that the root is.
    pub fn disks(&self) -> usize {
        match self.root {
            Target::Layer(index) => self.layer(index).disks(),
            Target::Disk(..) | Target::Device(_) => 1,
        }
    }

    /// A disk of the root.
    pub const fn disk(&self, disk: usize) -> Target {
        match (self.root, disk) {
            (Target::Layer(index), 1..) => Target::Disk(index, disk),
            _ => self.root,
        }
    }

    pub fn layer_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn layer_name(&self, layer: LayerIndex) -> &str {
        &self.nodes[layer.0].name
    }

    pub fn layer(&self, layer: LayerIndex) -> &dyn Layer {
        self.nodes[layer.0].layer.as_deref().expect("only an activating layer is away")
    }

    /// The layers, top last: the order in which they were built.
    pub fn layers(&self) -> impl Iterator<Item = (LayerIndex, &str)> {
        self.nodes.iter().enumerate().map(|(index, node)| (LayerIndex(index), node.name.as_str()))
    }

    pub fn geometry(&self, target: Target) -> Geometry {
        match target {
            Target::Layer(index) => self.layer(index).geometry(),
            Target::Disk(index, disk) => self.layer(index).disk_geometry(disk),
            Target::Device(index) => self.devices[index.0],
        }
    }

    /// Describes the first sectors of an extent of a disk of the root: their number, and what they hold. See [`Layer::map`].
    pub fn map(&self, disk: usize, extent: Extent) -> (u64, StackMap) {
        let (mut target, mut extent) = (self.disk(disk), extent);
        loop {
            let (layer, disk) = match target {
                Target::Layer(index) => (index, 0),
                Target::Disk(index, disk) => (index, disk),
                Target::Device(device) if self.devices[device.0].holes => {
                    return (extent.sectors, StackMap::Device(device, extent.start));
                }
                Target::Device(_) => return (extent.sectors, StackMap::Known(SectorState::Data)),
            };
            let MapPart { sectors, source } = self.layer(layer).disk_map(disk, extent);
            match source {
                MapSource::Known(state) => return (sectors, StackMap::Known(state)),
                MapSource::Below(port, at) => {
                    (target, extent) = (self.below(layer, port), Extent::new(at, sectors));
                }
            }
        }
    }

    /// Passes a request from outside to the root.
    pub fn request(&mut self, now: Nanos, request: Request) {
        self.enter(self.disk(request.disk), Origin::Outside(request.id), request.io);
        self.settle(now);
    }

    /// Passes a request from outside to a part of the stack.
    pub fn request_at(&mut self, now: Nanos, target: Target, id: RequestId, io: Io) {
        self.enter(target, Origin::Outside(id), io);
        self.settle(now);
    }

    /// Notes that a device has ended an operation.
    pub fn complete(&mut self, now: Nanos, tag: Tag, result: IoResult) {
        self.answer(tag.0, result);
        self.settle(now);
    }

    pub fn control(&mut self, now: Nanos, layer: LayerIndex, control: Control) {
        self.queue.push_back((layer, Event::Control(control)));
        self.settle(now);
    }

    /// Wakes every layer whose deadline has come.
    pub fn wake(&mut self, now: Nanos) {
        for index in 0..self.nodes.len() {
            let due = self.nodes[index].layer.as_ref().and_then(|layer| layer.next_deadline());
            if due.is_some_and(|due| due <= now) {
                self.queue.push_back((LayerIndex(index), Event::Wake));
            }
        }
        self.settle(now);
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        self.nodes.iter().filter_map(|node| node.layer.as_ref()?.next_deadline()).min()
    }

    /// Takes what the driver has to carry out, in order, into `outputs`, which must be empty.
    pub fn take_outputs(&mut self, outputs: &mut Vec<Output>) {
        debug_assert!(outputs.is_empty());
        std::mem::swap(&mut self.outputs, outputs);
    }

    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Checks [`Layer::check_progress`] for every layer, if checks are enabled: for a driver in virtual time, before its clock moves on.
    pub fn check_progress(&self, now: Nanos) {
        for (index, node) in self.nodes.iter().enumerate().filter(|_| self.checks) {
            let is_own = |origin: &Origin| matches!(origin, Origin::Layer(layer, ..) if layer.0 == index);
            node.layer.iter().for_each(|layer| layer.check_progress(now, self.origins.iter().any(is_own)));
        }
    }

    /// Operations that entered and are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.origins.len()
    }

    /// Sends one operation to any part of the stack and waits for its end.
    pub fn run_blocking(&mut self, pump: &mut dyn Pump, target: Target, io: Io) -> IoResult {
        let Some(result) = self.run_all_blocking(pump, target, vec![io]).pop() else {
            unreachable!("an operation has a result")
        };
        result
    }

    /// Sends operations to one part of the stack at once, and waits for the end of all; returns their results in their order.
    pub fn run_all_blocking(&mut self, pump: &mut dyn Pump, target: Target, ios: Vec<Io>) -> Vec<IoResult> {
        assert!(self.waited.is_empty(), "one caller waits at a time");
        self.waited.resize_with(ios.len(), || None);
        for (index, io) in ios.into_iter().enumerate() {
            self.enter(target, Origin::Waiting(index), io);
        }
        self.settle(pump.now());
        while self.waited.iter().any(Option::is_none) {
            pump.pump(self);
        }
        self.waited.drain(..).flatten().collect()
    }

    /// Activates every layer from the bottom up.
    pub fn activate(&mut self, pump: &mut dyn Pump) -> Result<(), StartError> {
        for index in 0..self.nodes.len() {
            let mut layer = self.nodes[index].layer.take().expect("a layer is activated once at a time");
            let mut below = StackPorts { stack: self, pump, layer: index };
            let result = layer.activate(&mut below);
            self.nodes[index].layer = Some(layer);
            result.map_err(|error| StartError { layer: self.nodes[index].name.clone(), error })?;
        }
        Ok(())
    }

    fn enter(&mut self, target: Target, origin: Origin, mut io: Io) {
        if let Io::ReadCopy { at, buf, .. } = &mut io
            && self.geometry(target).copies == 1
        {
            io = Io::Read { at: *at, buf: std::mem::take(buf) };
        }
        if let Io::WriteCopy { at, buf, durability, .. } = &mut io
            && self.geometry(target).copies == 1
        {
            io = Io::Write { at: *at, buf: std::mem::take(buf), durability: *durability };
        }
        let key = self.origins.insert(origin);
        let (layer, disk) = match target {
            Target::Layer(layer) => (layer, 0),
            Target::Disk(layer, disk) => (layer, disk),
            Target::Device(device) => {
                return self.outputs.push(Output::Device { device, tag: Tag(key), io });
            }
        };
        self.queue.push_back((layer, Event::Request(Request { id: RequestId(key), disk, io })));
    }

    fn answer(&mut self, key: u64, result: IoResult) {
        match self.origins.remove(key) {
            Origin::Outside(id) => self.outputs.push(Output::Reply { id, result }),
            Origin::Layer(layer, op, passage) => {
                let result = self.passed(layer, passage, result);
                self.queue.push_back((layer, Event::Completed { op, result }));
            }
            Origin::Waiting(index) => self.waited[index] = Some(result),
        }
    }

    /// Notes the end of an operation of a layer, and returns its result, which is an error if another user's flush has failed.
    fn passed(&mut self, layer: LayerIndex, passage: Passage, mut result: IoResult) -> IoResult {
        let (Passage::Volatile(port) | Passage::Flush(port)) = passage else { return result };
        let own = &mut self.nodes[layer.0].ports[usize::from(port)];
        if let Passage::Volatile(_) = passage {
            own.is_unflushed = true;
            return result;
        }
        own.flushes -= 1;
        match (result.status, own.lost.take()) {
            (Err(error), _) => self.flush_failed(layer, usize::from(port), error),
            (Ok(()), Some(error)) => result.status = Err(error),
            (Ok(()), None) => {}
        }
        result
    }

    /// Notes for each other user of the disk that its volatile writes may be lost.
    fn flush_failed(&mut self, layer: LayerIndex, port: usize, error: IoError) {
        let failed = self.nodes[layer.0].ports[port].target;
        for (index, node) in self.nodes.iter_mut().enumerate() {
            for (at, port_use) in node.ports.iter_mut().enumerate() {
                let is_other = (index, at) != (layer.0, port);
                if is_other
                    && (port_use.is_unflushed || port_use.flushes > 0)
                    && share_a_disk(&self.devices, failed, port_use.target)
                {
                    port_use.lost = Some(error);
                }
            }
        }
    }

    /// Passes messages between the layers until none is left.
    fn settle(&mut self, now: Nanos) {
        while let Some((index, event)) = self.queue.pop_front() {
            let mut cx = std::mem::take(&mut self.cx);
            let layer = self.nodes[index.0].layer.as_mut().expect("an activating layer gets no events");
            layer.handle(event, cx.at(now));
            if self.checks {
                layer.check();
            }
            for command in cx.commands.drain(..) {
                match command {
                    Command::Submit { port, op, io } => {
                        let passage = Passage::of(port, &io);
                        let port_use = &mut self.nodes[index.0].ports[port.0];
                        if let Passage::Flush(_) = passage {
                            port_use.is_unflushed = false;
                            port_use.flushes += 1;
                        }
                        let target = port_use.target;
                        self.enter(target, Origin::Layer(index, op, passage), io);
                    }
                    Command::Reply { id, result } => self.answer(id.0, result),
                    Command::Report(report) => self.outputs.push(Output::Report { layer: index, report }),
                }
            }
            self.cx = cx;
        }
    }
}

fn share_a_disk(devices: &[Geometry], one: Target, other: Target) -> bool {
    let disk = |target: Target| match target {
        Target::Device(index) => devices[index.0].disk,
        Target::Layer(_) | Target::Disk(..) => None,
    };
    one == other || disk(one).is_some() && disk(one) == disk(other)
}

/// The ports of the layer that is being activated.
struct StackPorts<'a> {
    stack: &'a mut Stack,
    pump: &'a mut dyn Pump,
    layer: usize,
}

impl Ports for StackPorts<'_> {
    fn geometry(&self, port: Port) -> Geometry {
        self.stack.geometry(self.stack.below(LayerIndex(self.layer), port))
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        let target = self.stack.below(LayerIndex(self.layer), port);
        self.stack.run_blocking(self.pump, target, io)
    }

    fn run_all(&mut self, port: Port, ios: Vec<Io>) -> Vec<IoResult> {
        let target = self.stack.below(LayerIndex(self.layer), port);
        self.stack.run_all_blocking(self.pump, target, ios)
    }

    fn distrust_copy(&mut self, port: Port, copy: u8) {
        let mut target = self.stack.below(LayerIndex(self.layer), port);
        while let Target::Layer(layer) | Target::Disk(layer, _) = target {
            match self.stack.layer(layer).copies_from() {
                Some(port) => target = self.stack.below(layer, port),
                None => return self.stack.control(self.pump.now(), layer, Control::DistrustCopy(copy)),
            }
        }
    }
}

/// A layer or device of a stack, as a synchronous device.
pub struct StackDevice<'a> {
    pub stack: &'a mut Stack,
    pub pump: &'a mut dyn Pump,
    pub target: Target,
}

impl BlockDevice for StackDevice<'_> {
    fn geometry(&self) -> Geometry {
        self.stack.geometry(self.target)
    }

    fn run(&mut self, io: Io) -> IoResult {
        self.stack.run_blocking(self.pump, self.target, io)
    }

    fn run_all(&mut self, ios: Vec<Io>) -> Vec<IoResult> {
        self.stack.run_all_blocking(self.pump, self.target, ios)
    }

    fn now(&self) -> Option<Nanos> {
        Some(self.pump.now())
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
