//! Messages for the people who run a program: on standard error; a server also writes one line to standard output.
//!
//! A command writes them itself. A server hands them to a queue, and one thread writes them: if their reader stops reading, a full pipe
//! blocks that thread alone. The queue is bounded. A message that finds it full is dropped, and the number of dropped messages is written
//! as soon as there is space.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use crate::events::{self, EventFile};

/// Maximum size of the messages that wait, in bytes: some thousands of lines.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Small, as a server locks its memory, and that includes the stacks of threads.
const STACK_BYTES: usize = 256 << 10;
/// Maximum wait at the end of a program for messages that are not written.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The priorities of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Error = 3,
    Warning = 4,
    Notice = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputStream {
    Output,
    Error,
}

/// Messages that are not written yet.
struct Messages {
    /// Makes the text that tells of lost messages.
    line: fn(Priority, &str) -> String,
    queue: Mutex<MessageQueue>,
    changed: Condvar,
}

struct MessageQueue {
    /// True while a thread writes the messages.
    is_on: bool,
    waiting: VecDeque<(OutputStream, String)>,
    bytes: usize,
    /// Number of messages that found the queue full and are not reported yet.
    lost: u64,
    /// True while the thread writes a message that it has taken out.
    writing: bool,
}

static MESSAGES: Messages = Messages::new(error_line);
/// Messages as lines of the file of events. Its disk may hang: nothing else waits for it.
static EVENTS: Messages = Messages::new(event_line);

/// Starts a thread that writes all messages from now on.
///
/// # Errors
/// If no thread can be started.
pub fn begin() -> io::Result<()> {
    thread::Builder::new().name("dcd-messages".to_owned()).stack_size(STACK_BYTES).spawn(|| {
        dcd_io::hold_signals_back();
        // The first write to each stream opens its descriptor.
        write(OutputStream::Error, "");
        write(OutputStream::Output, "");
        loop {
            MESSAGES.write_next(write);
        }
    })?;
    MESSAGES.lock().is_on = true;
    Ok(())
}

/// Starts a thread that appends all messages from now on to a file of events. A file that cannot be written is told of once; a user who may
/// not write there has no events.
///
/// # Errors
/// If no thread can be started.
pub fn keep(file: EventFile) -> io::Result<()> {
    let mut told = false;
    let mut append = move |text: &str| {
        if let Err(error) = file.append(text)
            && !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
            && !std::mem::replace(&mut told, true)
        {
            let path = file.path().display();
            let text = format!("dcd: {path}: events are not kept: {error}\n");
            MESSAGES.put(OutputStream::Error, error_line(Priority::Warning, &text));
        }
    };
    thread::Builder::new().name("dcd-events".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        dcd_io::hold_signals_back();
        loop {
            EVENTS.write_next(|_, text| append(text));
        }
    })?;
    EVENTS.lock().is_on = true;
    Ok(())
}

/// Writes a message to standard error, even if nobody reads it.
pub fn tell(priority: Priority, text: fmt::Arguments<'_>) {
    let text = text.to_string();
    note(priority, &text);
    MESSAGES.put(OutputStream::Error, error_line(priority, &text));
}

/// Writes a message of a server to standard output.
pub fn say(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    note(Priority::Notice, &text);
    MESSAGES.put(OutputStream::Output, text);
}

/// Keeps an event that nobody is told of.
pub fn note(priority: Priority, text: &str) {
    if EVENTS.lock().is_on {
        EVENTS.put(OutputStream::Error, event_line(priority, text));
    }
}

/// Waits until all messages are written, for a limited time.
pub fn finish() {
    MESSAGES.finish(END_PATIENCE);
    EVENTS.finish(END_PATIENCE);
}

/// Makes a panic of any thread end the process immediately, as a crash would: nothing runs on with a state that a panic left half changed.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tell(Priority::Error, format_args!("dcd: thread {name}: {panic}\n"));
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            tell(Priority::Error, format_args!("{trace}\n"));
        }
        finish();
        std::process::abort();
    }));
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Priority::Error => "error",
            Priority::Warning => "warning",
            Priority::Notice => "notice",
        })
    }
}

impl Messages {
    const fn new(line: fn(Priority, &str) -> String) -> Messages {
        let waiting = VecDeque::new();
        let queue = MessageQueue { is_on: false, waiting, bytes: 0, lost: 0, writing: false };
        Messages { line, queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, MessageQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, stream: OutputStream, text: String) {
        let mut queue = self.lock();
        if !queue.is_on {
            drop(queue);
            return write(stream, &text);
        }
        if queue.bytes + text.len() > QUEUE_BYTES_MAX {
            queue.lost += 1;
            return;
        }
        // The lost messages are reported before this one.
        queue.tell_lost(self.line);
        queue.put(stream, text);
        drop(queue);
        self.changed.notify_all();
    }

    /// Waits for a message, and writes it.
    fn write_next(&self, write: impl FnOnce(OutputStream, &str)) {
        let nothing = |queue: &mut MessageQueue| queue.waiting.is_empty() && queue.lost == 0;
        let waited = self.changed.wait_while(self.lock(), nothing);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.waiting.is_empty() {
            queue.tell_lost(self.line);
        }
        let Some((stream, text)) = queue.waiting.pop_front() else { return };
        queue.bytes -= text.len();
        queue.writing = true;
        drop(queue);
        write(stream, &text);
        self.lock().writing = false;
        self.changed.notify_all();
    }

    fn finish(&self, patience: Duration) {
        let unwritten =
            |queue: &mut MessageQueue| !queue.waiting.is_empty() || queue.writing || queue.lost > 0;
        // Messages that are not written by then are lost.
        let _ = self.changed.wait_timeout_while(self.lock(), patience, unwritten);
    }
}

impl MessageQueue {
    fn put(&mut self, stream: OutputStream, text: String) {
        self.bytes += text.len();
        self.waiting.push_back((stream, text));
    }

    fn tell_lost(&mut self, line: fn(Priority, &str) -> String) {
        let text = match std::mem::take(&mut self.lost) {
            0 => return,
            1 => "dcd: a message is lost here: they were not read in time\n".to_owned(),
            lost => format!("dcd: {lost} messages are lost here: they were not read in time\n"),
        };
        self.put(OutputStream::Error, line(Priority::Warning, &text));
    }
}

/// Writes without the locks of the standard library, for which the end of a program would wait. Ignores a reader that is gone.
fn write(stream: OutputStream, text: &str) {
    static OUTPUT: OnceLock<Option<File>> = OnceLock::new();
    static ERROR: OnceLock<Option<File>> = OnceLock::new();
    let file = |fd: io::Result<OwnedFd>| fd.ok().map(File::from);
    let file = match stream {
        OutputStream::Output => OUTPUT.get_or_init(|| file(io::stdout().as_fd().try_clone_to_owned())),
        OutputStream::Error => ERROR.get_or_init(|| file(io::stderr().as_fd().try_clone_to_owned())),
    };
    if let Some(mut file) = file.as_ref() {
        let _ = file.write_all(text.as_bytes());
    }
}

/// A text for standard error.
fn error_line(priority: Priority, text: &str) -> String {
    lines(is_journal().then_some(priority), text)
}

/// A text for the file of events.
fn event_line(priority: Priority, text: &str) -> String {
    events::lines(Timestamp::now(), priority, text)
}

/// A text with its priority before each line, as the journal wants it (sd-daemon(3)).
fn lines(priority: Option<Priority>, text: &str) -> String {
    let Some(priority) = priority else { return text.to_owned() };
    let mut told = String::new();
    for line in text.split_inclusive('\n') {
        let _ = write!(told, "<{}>{line}", priority as u8);
    }
    told
}

/// True where standard error is the journal's: systemd says which file that is (systemd.exec(5)).
fn is_journal() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let here =
            file.and_then(|file| file.metadata()).map(|about| format!("{}:{}", about.dev(), about.ino()));
        let told = std::env::var("JOURNAL_STREAM");
        here.is_ok_and(|here| told.is_ok_and(|told| told == here))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn queued() -> Messages {
        let messages = Messages::new(error_line);
        messages.lock().is_on = true;
        messages
    }

    fn next(messages: &Messages) -> (OutputStream, String) {
        let mut written = None;
        messages.write_next(|stream, text| written = Some((stream, text.to_owned())));
        written.unwrap()
    }

    #[test]
    fn messages_come_in_order_and_those_that_found_no_room_are_counted() {
        let messages = queued();
        messages.put(OutputStream::Output, "ready\n".to_owned());
        let long = "x".repeat(QUEUE_BYTES_MAX / 2);
        for _ in 0..4 {
            messages.put(OutputStream::Error, long.clone());
        }
        assert_eq!(next(&messages), (OutputStream::Output, "ready\n".to_owned()));
        assert_eq!(next(&messages).1, long);
        messages.put(OutputStream::Error, "after\n".to_owned());
        let lost = "dcd: 3 messages are lost here: they were not read in time\n";
        assert_eq!([next(&messages).1, next(&messages).1], [lost, "after\n"]);
        // No message follows this one, and the loss is reported all the same.
        messages.put(OutputStream::Error, "x".repeat(QUEUE_BYTES_MAX + 1));
        assert_eq!(next(&messages).1, "dcd: a message is lost here: they were not read in time\n");
        assert_eq!(messages.lock().bytes, 0);
    }

    #[test]
    fn a_reader_that_reads_no_more_holds_up_neither_a_message_nor_the_end() {
        let messages: &'static Messages = Box::leak(Box::new(queued()));
        let (reads, pipe) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        messages.put(OutputStream::Error, "one\n".to_owned());
        thread::spawn(move || {
            messages.write_next(|_, text| {
                begins.send(text.to_owned()).unwrap();
                let _ = pipe.recv();
            });
        });
        assert_eq!(begun.recv().unwrap(), "one\n");
        messages.finish(Duration::from_millis(10));
        messages.put(OutputStream::Error, "two\n".to_owned());
        drop(reads);
        assert_eq!(next(messages).1, "two\n");
        messages.finish(Duration::from_secs(60));
    }

    #[test]
    fn each_line_has_its_priority_in_the_journal_alone() {
        assert_eq!(lines(None, "dcd: a\n  b\n"), "dcd: a\n  b\n");
        assert_eq!(lines(Some(Priority::Error), "dcd: a\n  b\n"), "<3>dcd: a\n<3>  b\n");
    }
}
