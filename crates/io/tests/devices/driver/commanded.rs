//! A front-end in the ring: its commands, its requests, and what becomes of both at the end. The null device ends every command at once.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use dcd_engine::{Buf, Durability, Io, IoResult, Lba, Nanos, StackBuilder};
use dcd_io::{
    Actions, CallId, Closing, Context, Device, DeviceSpec, Driver, Ending, FrontEnd, FrontEndCondition,
    FrontEndNews, Host, KernelCommand, Lookup, Peer, Task, UnknownPeer,
};

const BYTES: usize = 8192;
const SLOTS: usize = 3;

/// Events that the front-end has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    answered: usize,
    unanswered_at_end: Option<usize>,
    closed: bool,
    stayed: u64,
    refused_by_kernel: bool,
}

struct Front {
    file: File,
    seen: Arc<Mutex<Seen>>,
    /// Requests that are still to come; then the front-end has no more commands.
    left: usize,
    news: Option<FrontEndNews>,
}

impl Front {
    fn command(&self, slot: usize, actions: &mut Actions) {
        actions.commands.push(KernelCommand {
            fd: self.file.as_raw_fd(),
            slot,
            op: 1,
            head: [0; 8],
            buf: Buf::zeroed(BYTES),
            bytes: BYTES,
        });
    }
}

impl FrontEnd for Front {
    fn start(&mut self, actions: &mut Actions) {
        (0..SLOTS).for_each(|slot| self.command(slot, actions));
    }

    fn begun(&mut self) -> io::Result<Option<Task>> {
        Ok(Some(Box::new(|| Ok(()))))
    }

    fn task_ended(&mut self, ended: io::Result<()>) {
        ended.unwrap();
        self.news = Some(FrontEndNews::Ready { place: "here".to_owned(), but: None });
    }

    fn take_news(&mut self) -> Option<FrontEndNews> {
        self.news.take()
    }

    fn completed(&mut self, slot: usize, result: i32, mut buf: Buf, actions: &mut Actions) {
        if result < 0 {
            self.seen.lock().unwrap().refused_by_kernel = true;
            self.news = Some(FrontEndNews::Failed("no commands".to_owned()));
        } else if self.left > 0 {
            self.left -= 1;
            buf.set_len(512);
            let io = Io::Write { at: Lba(slot as u64), buf, durability: Durability::Volatile };
            actions.requests.push((slot as u64, io));
        }
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        result.status.unwrap();
        self.seen.lock().unwrap().answered += 1;
        self.command(token as usize, actions);
    }

    fn condition(&self) -> FrontEndCondition {
        let all =
            FrontEndCondition { is_established: true, has_device: true, ..FrontEndCondition::default() };
        FrontEndCondition { holds_requests: true, outlives_server: true, ..all }
    }

    fn user(&self) -> Option<Lookup> {
        Some(Box::new(|| Some("somebody".to_owned())))
    }

    fn end(&mut self, unanswered: usize) -> Option<Ending> {
        self.seen.lock().unwrap().unanswered_at_end = Some(unanswered);
        let held = unanswered > 0;
        Some(if held { Ending::Leave("held".to_owned()) } else { Ending::Ask(Box::new(|| Ok(()))) })
    }

    fn ended(&mut self, result: io::Result<()>, _actions: &mut Actions) -> Ending {
        result.unwrap();
        Ending::Remove(Box::new(|| Ok(())))
    }

    fn stay(&mut self, _actions: &mut Actions) {
        self.seen.lock().unwrap().stayed += 1;
    }

    fn close(self: Box<Self>) -> Closing {
        Box::new(move || {
            self.seen.lock().unwrap().closed = true;
            Ok(())
        })
    }
}

/// Time in which a thousand requests are answered, also under a sanitizer.
const SETTLED_MS: u64 = 500;

/// Stops some time after the front-end is there.
struct StopLater(Option<Nanos>);

impl Host for StopLater {
    fn call(&mut self, _call: CallId, _body: serde_json::Value, _context: &mut Context<'_>) {}

    fn front_end(&mut self, _disk: usize, _news: FrontEndNews, context: &mut Context<'_>) {
        let peers: Vec<Peer> = context.peers().into_iter().filter_map(UnknownPeer::look_up).collect();
        assert!(peers.len() == 1 && peers.iter().all(|peer| peer.waits && peer.who == "somebody"));
        self.0 = Some(context.now() + Nanos::from_millis(SETTLED_MS));
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.0
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        self.0 = None;
        context.stop(Nanos::from_secs(5));
    }
}

/// Ends the front-end some time after it is there, and stops the driver once that is done.
#[derive(Default)]
struct EndLater {
    at: Option<Nanos>,
    ended: Option<Result<(), String>>,
}

impl Host for EndLater {
    fn call(&mut self, _call: CallId, _body: serde_json::Value, _context: &mut Context<'_>) {}

    fn front_end(&mut self, _disk: usize, _news: FrontEndNews, context: &mut Context<'_>) {
        self.at = Some(context.now() + Nanos::from_millis(SETTLED_MS));
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.at
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        if self.at.take().is_some() {
            assert!(!context.end_front_ends_of(1), "another disk has none");
            assert!(context.end_front_ends_of(0));
        }
    }

    fn front_ends_ended(&mut self, disk: usize, result: Result<(), String>, context: &mut Context<'_>) {
        assert_eq!(disk, 0);
        self.ended = Some(result);
        context.stop(Nanos::from_secs(5));
    }
}

/// Serves that many requests, and ends. None where the kernel takes no commands for the null device.
fn serve(requests: usize) -> Option<(Seen, Result<Option<String>, String>)> {
    serve_with(requests, &mut StopLater(None))
}

fn serve_with(requests: usize, host: &mut dyn Host) -> Option<(Seen, Result<Option<String>, String>)> {
    let (mut seen, ended) = serve_all(&[requests], host)?;
    Some((seen.remove(0), ended))
}

/// Result of [`Driver::end_front_ends`].
type EndedAll = Result<Option<String>, String>;

/// Serves with several front-ends of one disk.
fn serve_all(requests: &[usize], host: &mut dyn Host) -> Option<(Vec<Seen>, EndedAll)> {
    let mut driver = Driver::new().unwrap();
    let device = Device::open(&DeviceSpec::Memory { bytes: 1 << 20 }).unwrap();
    let mut builder = StackBuilder::new();
    let root = builder.device(device.geometry());
    driver.add_device(device).unwrap();
    let mut stack = builder.finish(root);
    stack.activate(&mut driver).unwrap();
    let all: Vec<Arc<Mutex<Seen>>> = requests.iter().map(|_| Arc::default()).collect();
    for (seen, left) in all.iter().zip(requests) {
        let file = File::options().read(true).write(true).open("/dev/null").unwrap();
        let front = Front { file, seen: Arc::clone(seen), left: *left, news: None };
        driver.add_front_end(Box::new(front)).unwrap();
    }
    assert!(driver.run(&mut stack, host).unwrap().is_clean());
    let ended = driver.end_front_ends();
    drop(driver);
    let seen: Vec<Seen> = all.iter().map(|seen| std::mem::take(&mut *seen.lock().unwrap())).collect();
    if seen.iter().any(|seen| seen.refused_by_kernel) {
        let _ =
            writeln!(io::stderr(), "SKIPPED: commands in the ring: this kernel has none for the null device");
        return None;
    }
    Some((seen, ended))
}

#[test]
fn a_front_end_whose_requests_are_answered_is_removed() {
    let Some((seen, ended)) = serve(1000) else { return };
    assert_eq!(ended, Ok(None));
    let expected = Seen { answered: 1000, unanswered_at_end: Some(0), closed: true, ..Seen::default() };
    assert_eq!(seen, expected);
}

#[test]
fn a_front_end_ends_while_the_driver_goes_on() {
    let mut host = EndLater::default();
    let Some((seen, ended)) = serve_with(1000, &mut host) else { return };
    assert_eq!((host.ended, ended), (Some(Ok(())), Ok(None)));
    assert!(seen.closed && seen.answered == 1000, "{seen:?}");
    let mut host = EndLater::default();
    let Some((seen, _)) = serve_with(usize::MAX, &mut host) else { return };
    // Requests of it are always in flight.
    assert_eq!((host.ended, seen.closed), (Some(Err("it is in use".to_owned())), false));
}

#[test]
fn all_front_ends_of_a_disk_stay_where_one_is_in_use() {
    let mut host = EndLater::default();
    let Some((seen, _)) = serve_all(&[1000, usize::MAX], &mut host) else { return };
    assert_eq!(host.ended, Some(Err("it is in use".to_owned())));
    assert_eq!(seen[0].stayed, 1, "{seen:?}");
}

#[test]
fn requests_that_come_while_the_driver_stops_are_held_and_the_device_is_left() {
    let Some((seen, ended)) = serve(usize::MAX) else { return };
    assert_eq!(ended, Ok(Some("held".to_owned())));
    assert_eq!((seen.unanswered_at_end, seen.closed), (Some(SLOTS), false));
    assert!(seen.answered > 0);
}
