//! Names a device that a command waits for, as one that does not answer holds up a start without a word.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Wait after which a device is named.
const SILENT_MAX: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A device that a thread waits for, in words.
struct WaitedFor {
    thread: ThreadId,
    device: String,
    since: Instant,
}

static WAITED: Mutex<Vec<WaitedFor>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

fn all() -> MutexGuard<'static, Vec<WaitedFor>> {
    WAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works on a device. If that takes long, a line names the device.
pub fn on<T>(device: &str, work: impl FnOnce() -> T) -> T {
    // Without the thread nothing is told, and the work is done all the same.
    WATCH.call_once(|| drop(thread::Builder::new().name("dcd-waits".to_owned()).spawn(watch)));
    let thread = thread::current().id();
    all().push(WaitedFor { thread, device: device.to_owned(), since: Instant::now() });
    let done = work();
    all().retain(|waited| waited.thread != thread);
    done
}

fn watch() {
    dcd_io::hold_signals_back();
    let mut told = BTreeSet::new();
    loop {
        thread::sleep(LOOK_INTERVAL);
        let long: Vec<String> = all()
            .iter()
            .filter(|waited| waited.since.elapsed() >= SILENT_MAX)
            .map(|waited| waited.device.clone())
            .collect();
        for device in long {
            if told.insert(device.clone()) {
                warnln!("dcd: waiting for {device}, which has not answered for {} s", SILENT_MAX.as_secs());
            }
        }
    }
}
