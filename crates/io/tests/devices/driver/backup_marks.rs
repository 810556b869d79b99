//! Changes by clients, as backup marks note them.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dcd_engine::{Nanos, StackBuilder};
use dcd_io::backup_marks::{BackupMarks, DiskMarks, GRAIN_SECTORS, MarkPeriod};
use dcd_io::{CallId, Context, Device, DeviceSpec, Driver, FileSpec, Host, SocketRights};
use serde_json::Value;

use super::common::{CALL, Client, READ, ToyFactory, header};
use super::stopping::{Slow, Stop};

/// A call ends the run.
struct Ends;

impl Host for Ends {
    fn call(&mut self, _call: CallId, _body: Value, context: &mut Context<'_>) {
        context.end();
    }
}

#[test]
fn a_request_under_way_while_a_mark_is_made_belongs_to_the_time_after_it() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (path, marks) = (dir.path().to_owned(), BackupMarks::default());
    let sectors = (32 << 20) / 512;
    marks.change(|all| all.insert(0, DiskMarks::new(sectors)));
    let make = |mark| {
        let period = MarkPeriod::new(mark, 0, sectors).unwrap();
        marks.change(|all| all.get_mut(&0).unwrap().periods.push(period));
    };
    let bits = || {
        let of = |own: &DiskMarks| own.periods.iter().map(|period| period.grains[0]).collect::<Vec<_>>();
        marks.of(0, of).unwrap()
    };
    let (kept, (tell, told)) = (marks.clone(), mpsc::channel());
    let run = thread::spawn(move || {
        let mut driver = Driver::new().unwrap();
        let mut builder = StackBuilder::new();
        let spec = FileSpec { create: Some(32 << 20), ..FileSpec::new(path.join("disk")) };
        let device = Device::open(&DeviceSpec::File(spec)).unwrap();
        let target = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let root = builder.layer("slow", Slow::new(Nanos::from_millis(500), Stop::Never), &[target]);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).unwrap();
        driver.keep_marks(kept);
        driver
            .listen_unix(&path.join("run/socket"), SocketRights::OWNER, Box::new(ToyFactory::default()))
            .unwrap();
        tell.send(()).unwrap();
        driver.run(&mut stack, &mut Ends).unwrap();
    });
    told.recv().unwrap();
    let mut client = Client::connect(&dir.path().join("run/socket"));
    let grain = GRAIN_SECTORS as u32;
    client.write(0, 1, 1, 2);
    assert_eq!(client.receive().unwrap().id, 2);
    make(1);
    client.write(grain, 1, 1, 4);
    assert_eq!(client.receive().unwrap().id, 4);
    assert_eq!(bits(), [0b10], "it was noted before the answer");
    client.write(2 * grain, 1, 1, 6);
    client.send(&header(READ, 1, 3 * grain, 7));
    thread::sleep(Duration::from_millis(100));
    make(2);
    assert_eq!(bits(), [0b10, 0], "the write is still under way");
    assert_eq!([6, 7], [client.receive().unwrap().id, client.receive().unwrap().id]);
    assert_eq!(bits(), [0b10, 0b100]);
    client.send(&header(CALL, 0, 0, 0));
    run.join().unwrap();
}
