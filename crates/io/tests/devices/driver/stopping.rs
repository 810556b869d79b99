//! Stopping: requests in flight end, new ones are refused, layers stop from the top down, and time limits hold.

use dcd_engine::layers::slice::Slice;
use dcd_engine::{
    ActivateError, Control, Cx, Event, Extent, Geometry, Layer, Lba, Nanos, OpId, Port, Ports, Report,
    RequestId, Unfinished,
};
use dcd_io::StopOutcome;

use super::common::{CALL, Heard, READ, Server, ToyFactory, header};

/// Passes requests on after a delay, and stops as it is told to.
pub struct Slow {
    delay: Nanos,
    stop: Stop,
    waiting: std::collections::VecDeque<(Nanos, dcd_engine::Request)>,
    stopping_until: Option<Nanos>,
    below: Option<Geometry>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Stop {
    After(Nanos),
    Fails,
    Never,
}

impl Slow {
    pub fn new(delay: Nanos, stop: Stop) -> Box<Slow> {
        Box::new(Slow { delay, stop, waiting: Default::default(), stopping_until: None, below: None })
    }
}

impl Layer for Slow {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.waiting.push_back((cx.now + self.delay, request)),
            Event::Completed { op, result } => cx.reply(RequestId(op.0), result),
            Event::Control(Control::Stop) => {
                assert!(self.waiting.is_empty(), "requests end before layers stop");
                match self.stop {
                    Stop::After(delay) => self.stopping_until = Some(cx.now + delay),
                    Stop::Fails => cx.report(Report::Failed(Unfinished::LogFailed(3))),
                    Stop::Never => self.stopping_until = Some(Nanos::MAX),
                }
            }
            Event::Control(_) => {}
            Event::Wake => {
                while self.waiting.front().is_some_and(|(due, _)| *due <= cx.now) {
                    let (_, request) = self.waiting.pop_front().unwrap();
                    cx.submit(Port(0), OpId(request.id.0), request.io);
                }
                if self.stopping_until.is_some_and(|due| due <= cx.now) {
                    self.stopping_until = None;
                    cx.report(Report::Stopped);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let next = self.waiting.front().map(|(due, _)| *due);
        [next, self.stopping_until].into_iter().flatten().min()
    }

    fn geometry(&self) -> Geometry {
        self.below.unwrap()
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.below = Some(below.geometry(Port(0)));
        Ok(())
    }
}

/// Takes 300 ms for a request, and 100 ms to stop.
fn slow_server(factory: ToyFactory) -> Server {
    Server::start(factory, Nanos::from_secs(10), |builder, device| {
        let stop = Stop::After(Nanos::from_millis(100));
        let slow = builder.layer("slow", Slow::new(Nanos::from_millis(300), stop), &[device]);
        builder.layer("slice", Box::new(Slice::new(Extent::new(Lba(0), 1024))), &[slow])
    })
}

#[test]
fn requests_in_flight_end_and_later_ones_are_refused() {
    let server = slow_server(ToyFactory::default());
    let mut client = server.client();
    client.send(&header(READ, 8, 0, 1));
    std::thread::sleep(std::time::Duration::from_millis(100));
    client.send(&header(CALL, 0, 0, 0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.send(&header(READ, 8, 0, 3));
    let refused = client.receive().expect("the refusal comes first");
    assert_eq!((refused.id, refused.status), (3, 1));
    let early = client.receive().expect("what was in flight ends");
    assert_eq!((early.id, early.status), (1, 0));
    assert_eq!(client.receive().expect("the answer to the stop").at, 9);
    assert!(client.receive().is_none(), "the server has gone");
    assert_eq!(server.next(), Heard::Call(0));
    assert_eq!(server.next(), Heard::Quiesced);
    assert_eq!(server.next(), Heard::Report(Report::Stopped));
    assert_eq!(server.next(), Heard::Stopped(StopOutcome::default()));
    assert!(server.join().is_clean());
}

#[test]
fn a_session_that_holds_requests_gets_no_refusals() {
    let server = slow_server(ToyFactory { holds_requests: true, ..ToyFactory::default() });
    let mut client = server.client();
    client.send(&header(READ, 8, 0, 1));
    std::thread::sleep(std::time::Duration::from_millis(100));
    client.send(&header(CALL, 0, 0, 0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.send(&header(READ, 8, 0, 3));
    let early = client.receive().expect("what was in flight ends");
    assert_eq!((early.id, early.status), (1, 0));
    assert_eq!(client.receive().expect("the answer to the stop").at, 9);
    assert!(client.receive().is_none(), "the last request is for the next server");
    assert!(server.join().is_clean());
}

#[test]
fn a_layer_that_cannot_stop_is_reported() {
    let server = Server::start(ToyFactory::default(), Nanos::from_secs(10), |builder, device| {
        builder.layer("log", Slow::new(Nanos::ZERO, Stop::Fails), &[device])
    });
    let outcome = server.stop();
    assert!(!outcome.is_clean() && !outcome.timed_out);
    assert_eq!(outcome.failures, [format!("layer \"log\": {}", Unfinished::LogFailed(3))]);
}

#[test]
fn a_stop_that_takes_too_long_is_given_up() {
    let server = Server::start(ToyFactory::default(), Nanos::from_millis(300), |builder, device| {
        builder.layer("log", Slow::new(Nanos::ZERO, Stop::Never), &[device])
    });
    let start = std::time::Instant::now();
    let outcome = server.stop();
    assert!(outcome.timed_out && !outcome.is_clean());
    let took = start.elapsed();
    assert!(took.as_millis() >= 300 && took.as_secs() < 5, "{took:?}");
}

#[test]
fn clients_that_do_not_read_do_not_hold_up_a_stop() {
    let server = Server::start(ToyFactory::default(), Nanos::from_secs(10), |_, device| device);
    let mut greedy = server.client();
    let many: Vec<u8> = (0..100).flat_map(|n| header(READ, 255, 0, 2 * n + 1)).collect();
    greedy.send(&many);
    let start = std::time::Instant::now();
    assert!(server.stop().is_clean());
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn sigterm_stops() {
    let server = Server::start(ToyFactory::default(), Nanos::from_secs(10), |_, device| device);
    let mut client = server.client();
    client.send(&header(READ, 1, 0, 1));
    assert_eq!(client.receive().expect("answer").data.len(), 512);
    // To the server's thread alone: the tests around it live in the same process.
    let thread = server.thread_id;
    // SAFETY: a plain system call; the thread lives until it is joined.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGTERM) };
    assert_eq!(sent, 0);
    assert_eq!(server.next(), Heard::Signal(dcd_io::Signal::Terminate));
    assert!(client.receive().is_none());
    assert!(server.join().is_clean());
}
