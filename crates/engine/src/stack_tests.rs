//! Operations that are waited for, and a failed flush of a disk with several users.

use std::sync::{Arc, Mutex};

use super::*;
use crate::Buf;
use crate::layer::ErrorKind;
use crate::layers::fault::{Fault, FaultPlan};
use crate::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use crate::layers::slice::Slice;
use crate::layers::trace::Trace;

const MEDIUM: IoError = IoError::new(ErrorKind::Medium);

/// ScriptedDevices whose operations succeed, or all fail.
struct ScriptedDevices {
    fail: bool,
}

impl Pump for ScriptedDevices {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }

    fn pump(&mut self, stack: &mut Stack) {
        let mut outputs = Vec::new();
        stack.take_outputs(&mut outputs);
        for output in outputs {
            let Output::Device { tag, io, .. } = output else { panic!("nobody outside waits") };
            let status = if self.fail { Err(MEDIUM) } else { Ok(()) };
            stack.complete(Nanos::ZERO, tag, IoResult { buf: io.take_buf(), status });
        }
    }
}

/// A log and data: slices of one device, or each of its own device on one of these disks.
fn log_and_data(disks: Option<[u64; 2]>) -> (Stack, [Target; 2]) {
    let mut builder = StackBuilder::new();
    let device = |disk| Geometry { disk, ..Geometry::plain(64) };
    let below = match disks {
        None => [builder.device(device(None)); 2],
        Some(disks) => disks.map(|disk| builder.device(device(Some(disk)))),
    };
    let starts = [("log", 0, below[0]), ("data", 32, below[1])];
    let parts = starts.map(|(name, start, below)| {
        builder.layer(name, Box::new(Slice::new(Extent::new(Lba(start), 32))), &[below])
    });
    let mut stack = builder.finish(parts[1]);
    stack.activate(&mut ScriptedDevices { fail: false }).unwrap();
    (stack, parts)
}

fn run(stack: &mut Stack, target: Target, io: Io, fail: bool) -> Result<(), IoError> {
    stack.run_blocking(&mut ScriptedDevices { fail }, target, io).status
}

fn write(durability: Durability) -> Io {
    Io::Write { at: Lba(0), buf: Buf::zeroed(512), durability }
}

/// Ends of the data's next two flushes, after a write to it and a failed flush of the log.
fn flushes_of_data(disks: Option<[u64; 2]>, durability: Durability) -> [Result<(), IoError>; 2] {
    let (mut stack, [log, data]) = log_and_data(disks);
    run(&mut stack, data, write(durability), false).unwrap();
    run(&mut stack, log, write(Durability::Volatile), false).unwrap();
    assert_eq!(run(&mut stack, log, Io::Flush, true), Err(MEDIUM));
    assert_eq!(run(&mut stack, log, Io::Flush, false), Ok(()), "it has been told");
    [(); 2].map(|()| run(&mut stack, data, Io::Flush, false))
}

#[test]
fn a_failed_flush_of_a_shared_disk_is_told_once_to_each_that_has_volatile_writes() {
    for one_disk in [None, Some([8, 8])] {
        assert_eq!(flushes_of_data(one_disk, Durability::Volatile), [Err(MEDIUM), Ok(())]);
        assert_eq!(flushes_of_data(one_disk, Durability::Durable), [Ok(()), Ok(())]);
    }
    assert_eq!(flushes_of_data(Some([8, 16]), Durability::Volatile), [Ok(()), Ok(())], "two disks");
}

#[test]
fn a_failed_flush_of_a_shared_disk_counts_for_flushes_in_flight() {
    let (mut stack, [log, data]) = log_and_data(None);
    run(&mut stack, data, write(Durability::Volatile), false).unwrap();
    stack.request(Nanos::ZERO, Request { id: RequestId(1), disk: 0, io: Io::Flush });
    let mut outputs = Vec::new();
    stack.take_outputs(&mut outputs);
    let Some(Output::Device { tag, .. }) = outputs.pop() else { panic!("the flush is sent") };
    assert_eq!(run(&mut stack, log, Io::Flush, true), Err(MEDIUM));
    stack.complete(Nanos::ZERO, tag, IoResult::ok(Buf::none()));
    stack.take_outputs(&mut outputs);
    let Some(Output::Reply { result, .. }) = outputs.pop() else { panic!("the flush is answered") };
    assert_eq!(result.status, Err(MEDIUM));
}

/// Devices that take all that is sent before they carry out anything, the last first.
struct LastFirst {
    most: usize,
}

impl Pump for LastFirst {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }

    fn pump(&mut self, stack: &mut Stack) {
        let mut outputs = Vec::new();
        stack.take_outputs(&mut outputs);
        self.most = self.most.max(outputs.len());
        for output in outputs.into_iter().rev() {
            let Output::Device { tag, io, .. } = output else { panic!("nobody outside waits") };
            let first = io.extent().map_or(0, |extent| extent.start.0);
            let mut buf = io.take_buf();
            buf.bytes_mut().fill(first as u8);
            stack.complete(Nanos::ZERO, tag, IoResult::ok(buf));
        }
    }
}

#[test]
fn operations_that_are_waited_for_together_are_carried_out_side_by_side() {
    let (mut stack, [log, _]) = log_and_data(None);
    let mut pump = LastFirst { most: 0 };
    let read = |at| Io::Read { at: Lba(at), buf: Buf::zeroed(512) };
    let results = stack.run_all_blocking(&mut pump, log, (0..8).map(read).collect());
    assert_eq!(pump.most, 8);
    let first: Vec<u8> = results.iter().map(|result| result.buf.bytes()[0]).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7], "in the order that they were given in");
    assert!(stack.run_all_blocking(&mut pump, log, Vec::new()).is_empty());
}

/// A layer with two copies, which notes those that are not believed any more.
struct TwoCopies(Arc<Mutex<Vec<u8>>>);

impl Layer for TwoCopies {
    fn handle(&mut self, event: Event, _cx: &mut Cx) {
        if let Event::Control(Control::DistrustCopy(copy)) = event {
            self.0.lock().unwrap().push(copy);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry { copies: 2, ..Geometry::plain(64) }
    }
}

/// A layer that finds at its start that a copy of what is below has lost something.
struct CopyDoubter;

impl Layer for CopyDoubter {
    fn handle(&mut self, _event: Event, _cx: &mut Cx) {}

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry::plain(64)
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        assert_eq!(below.geometry(Port(0)).copies, 2);
        below.distrust_copy(Port(0), 1);
        Ok(())
    }
}

#[test]
fn the_layer_that_has_the_copies_hears_of_a_bad_one_through_all_that_lies_between() {
    type MakeLayer = fn() -> Option<Box<dyn Layer>>;
    let between: [MakeLayer; 5] = [
        || None,
        || Some(Box::new(Slice::new(Extent::new(Lba(0), 16)))),
        || Some(Box::new(Fault::new(FaultPlan::default()))),
        || Some(Box::new(ReadAhead::new(ReadAheadConfig::default()))),
        || Some(Box::new(Trace::new(0))),
    ];
    for (one, other) in (0..between.len()).flat_map(|one| (0..between.len()).map(move |other| (one, other))) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut builder = StackBuilder::new();
        let mut top = builder.layer("copies", Box::new(TwoCopies(Arc::clone(&told))), &[]);
        for layer in [between[one](), between[other]()].into_iter().flatten() {
            top = builder.layer("between", layer, &[top]);
        }
        let root = builder.layer("judge", Box::new(CopyDoubter), &[top]);
        builder.finish(root).activate(&mut ScriptedDevices { fail: false }).unwrap();
        assert_eq!(*told.lock().unwrap(), [1], "{one}, {other}");
    }
}
