//! Prints how late timers are: they pace modelled disks. Only gross lateness fails.

use std::time::Instant;

use dcd_engine::{ActivateError, Cx, Event, Geometry, Layer, Nanos, OpId, Port, Ports, RequestId};
use dcd_engine::{Lba, StackBuilder, StackDevice};
use dcd_io::{Device, DeviceSpec, Driver};

use super::common::{READ, Server, ToyFactory, header};

/// Answers reads after a while, like a modelled disk.
struct Paced {
    delay: Nanos,
    due: Option<(Nanos, dcd_engine::Request)>,
}

impl Layer for Paced {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.due = Some((cx.now + self.delay, request)),
            Event::Completed { op, result } => cx.reply(RequestId(op.0), result),
            Event::Wake => {
                let (due, request) = self.due.take().expect("woken for something");
                assert!(due <= cx.now, "woken {} too early", due.since(cx.now));
                cx.submit(Port(0), OpId(request.id.0), request.io);
            }
            Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.due.as_ref().map(|(due, _)| *due)
    }

    fn geometry(&self) -> Geometry {
        Geometry::plain(2048)
    }

    fn activate(&mut self, _below: &mut dyn Ports) -> Result<(), ActivateError> {
        Ok(())
    }
}

#[test]
fn timers_are_exact() {
    for delay in
        [Nanos::from_micros(50), Nanos::from_micros(200), Nanos::from_millis(1), Nanos::from_millis(8)]
    {
        let mut driver = Driver::new().unwrap();
        let device = Device::open(&DeviceSpec::Memory { bytes: 1 << 20 }).unwrap();
        let mut builder = StackBuilder::new();
        let disk = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let root = builder.layer("paced", Box::new(Paced { delay, due: None }), &[disk]);
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).unwrap();
        let mut device = StackDevice { stack: &mut stack, pump: &mut driver, target: root };
        let mut late: Vec<u64> = (0..100)
            .map(|_| {
                let start = Instant::now();
                dcd_engine::BlockDevice::read(&mut device, Lba(0), 512).expect("read");
                (start.elapsed().as_nanos() as u64).saturating_sub(delay.0)
            })
            .collect();
        late.sort_unstable();
        println!(
            "after {delay}: late by {} (median), {} (90 %), {} (most)",
            Nanos(late[50]),
            Nanos(late[90]),
            Nanos(late[99])
        );
        assert!(late[50] < 5_000_000, "late by milliseconds: something is broken");
    }
}

/// Measures timers through the run: a client's reads, each answered by a timer.
#[test]
fn timers_are_exact_for_clients() {
    let limit = Nanos::from_secs(10);
    let server = Server::start(ToyFactory::default(), limit, |builder, device| {
        builder.layer("paced", Box::new(Paced { delay: Nanos::from_millis(2), due: None }), &[device])
    });
    let mut client = server.client();
    let mut late: Vec<u64> = (0..100)
        .map(|_| {
            let start = Instant::now();
            client.send(&header(READ, 1, 0, 1));
            client.receive().expect("answer");
            (start.elapsed().as_nanos() as u64).saturating_sub(2_000_000)
        })
        .collect();
    late.sort_unstable();
    println!("a client's reads of 2 ms: late by {} (median), {} (90 %)", Nanos(late[50]), Nanos(late[90]));
    assert!(late[50] < 5_000_000, "late by milliseconds: something is broken");
}
