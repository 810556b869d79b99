//! A front-end with a thread of its own: its bell, its requests, and its answers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::mpsc;

use dcd_engine::{Buf, Durability, Io, IoResult, Lba, Nanos, StackBuilder};
use dcd_io::{Actions, CallId, Context, Device, DeviceSpec, Driver, FrontEnd, Host, StopOutcome};

struct Front {
    bell: OwnedFd,
    requests: mpsc::Receiver<(u64, Io)>,
    answers: mpsc::Sender<(u64, IoResult)>,
}

impl FrontEnd for Front {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn rang(&mut self, actions: &mut Actions) {
        actions.requests.extend(self.requests.try_iter());
    }

    fn reply(&mut self, token: u64, result: IoResult, _actions: &mut Actions) {
        // The other end may have gone.
        let _ = self.answers.send((token, result));
    }
}

/// Stops when somebody has written at the alarm's time.
struct StopAt(Nanos);

impl Host for StopAt {
    fn call(&mut self, _call: CallId, _body: serde_json::Value, _context: &mut Context<'_>) {}

    fn next_deadline(&self) -> Option<Nanos> {
        Some(self.0)
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        self.0 = Nanos::MAX;
        context.stop(Nanos::from_secs(5));
    }
}

fn ring(bell: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes that live for the call.
    let written = unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
    assert_eq!(written, 8);
}

#[test]
fn a_source_is_served_each_time_it_rings() {
    // SAFETY: a plain system call whose descriptor is ours.
    let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    let bell_of_front = bell.try_clone().unwrap();
    let (send, requests) = mpsc::channel();
    let (answers, receive) = mpsc::channel();
    let server = std::thread::spawn(move || -> StopOutcome {
        let mut driver = Driver::new().unwrap();
        let device = Device::open(&DeviceSpec::Memory { bytes: 1 << 20 }).unwrap();
        let mut builder = StackBuilder::new();
        let root = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).unwrap();
        driver.add_front_end(Box::new(Front { bell: bell_of_front, requests, answers })).unwrap();
        driver.run(&mut stack, &mut StopAt(Nanos::from_secs(2))).unwrap()
    });
    // Nobody resets the bell's counter: each ring must be heard all the same.
    for round in 0..200u64 {
        let buf = Buf::copy_of(&[round as u8; 512]);
        send.send((2 * round, Io::Write { at: Lba(round), buf, durability: Durability::Volatile })).unwrap();
        ring(&bell);
        let (token, result) = receive.recv_timeout(std::time::Duration::from_secs(10)).expect("answered");
        assert_eq!((token, result.status), (2 * round, Ok(())));
    }
    send.send((1, Io::Read { at: Lba(199), buf: Buf::zeroed(512) })).unwrap();
    ring(&bell);
    let (token, result) = receive.recv_timeout(std::time::Duration::from_secs(10)).expect("answered");
    assert_eq!((token, result.buf.bytes()[511]), (1, 199));
    assert!(server.join().unwrap().is_clean());
}
