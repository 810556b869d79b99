//! The rigs of the log cache, with a layer in the cache's place that only passes on: what is wrong then is wrong in the rig.

use dcd_engine::log_cache::offline::check;
use dcd_engine::{ActivateError, Event, Io, IoResult, OpId, Outbox, Port, Ports, RequestId};

use super::*;
use crate::stamp::look;
use crate::{ExploreConfig, Seen, VirtualDriver, explore};

/// Passes everything on to the data.
struct Through(Option<Geometry>);

impl Layer for Through {
    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => out.submit(Port(1), OpId(request.id.0), request.io),
            Event::Completed { op, result } => out.reply(RequestId(op.0), result),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.0.expect("active")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.0 = Some(below.geometry(Port(1)));
        Ok(())
    }
}

fn rig(seed: u64) -> Rig {
    let make: MakeCache = Rc::new(|_| Box::new(Through(None)));
    let rig = cache_rig(seed, Promise::Flush, None, &make);
    // Only a cache keeps the order of overlapping requests.
    Rig { overlaps: false, ..rig }
}

#[test]
fn a_rig_without_a_cache_is_a_plain_disk() {
    let explored = explore(&ExploreConfig::new(2, 2000), &rig, &mut |_| {});
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
    assert_eq!(explored.counts.states, 2000);
}

#[test]
fn logs_are_formatted_and_data_is_where_it_should_be() {
    let mut logical = 0;
    for seed in 0..40 {
        let mut rig = rig(seed);
        if let [log, data] = &mut rig.disks[..] {
            let report = check(log, Some(data), &mut |_| {}).expect("checked");
            assert!(report.is_ok(), "{:?}", report.problems);
        } else {
            logical += 1;
        }
        let mut driver = VirtualDriver::new(std::mem::take(&mut rig.disks));
        for build in [&rig.build, rig.build_after_log_failure.as_ref().expect("it can do without")] {
            let mut stack = build(&driver.geometries());
            stack.activate(&mut driver).expect("active");
            let root = stack.root();
            assert_eq!(stack.geometry(root).sectors, DATA_SECTORS);
            let buf = dcd_engine::Buf::zeroed((DATA_SECTORS * SECTOR_BYTES) as usize);
            let IoResult { buf, status } =
                stack.run_blocking(&mut driver, root, Io::Read { at: Lba(0), buf });
            status.expect("read");
            for (index, sector) in buf.bytes().chunks_exact(SECTOR_BYTES as usize).enumerate() {
                assert_eq!(look(sector, Lba(index as u64), seed), Seen::Value(rig.base[index]));
            }
        }
    }
    assert!((1..20).contains(&logical), "some of the rigs have one disk: {logical}");
}
