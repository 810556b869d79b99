//! Signals as events: SIGTERM, SIGHUP and SIGINT are held back from the process and read from a descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What somebody wants of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, or SIGHUP: the terminal is gone. Stop.
    Terminate,
    /// SIGINT: somebody pressed Ctrl-C.
    Interrupt,
}

/// The signals that have come since this was made. Without it, from the moment it is dropped, they end the process as usual.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Holds the signals back on this thread and on those that it starts from now on.
    ///
    /// # Errors
    /// Where the kernel gives no descriptor for them.
    pub fn new() -> io::Result<Signals> {
        // SAFETY: signal sets are plain data that `sigemptyset` makes valid; all pointers live for their calls.
        unsafe {
            let mut wanted: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut wanted);
            libc::sigaddset(&mut wanted, libc::SIGTERM);
            libc::sigaddset(&mut wanted, libc::SIGINT);
            // Whoever started the process with nohup wants it to go on; held back, the signal would not be ignored any more.
            if !is_ignored(libc::SIGHUP) {
                libc::sigaddset(&mut wanted, libc::SIGHUP);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &wanted, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { fd: OwnedFd::from_raw_fd(fd), before })
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The next signal that has come.
    pub fn take(&self) -> Option<Signal> {
        // SAFETY: plain data; the kernel writes at most its size.
        let (count, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            (libc::read(self.fd(), (&raw mut info).cast(), size), info)
        };
        match info.ssi_signo as i32 {
            _ if count <= 0 => None,
            libc::SIGINT => Some(Signal::Interrupt),
            _ => Some(Signal::Terminate),
        }
    }
}

/// Has a thread act when somebody wants the process to end. Threads that were started before may be interrupted instead.
///
/// # Errors
/// Where the kernel gives no descriptor for signals, or no thread.
pub fn on_interrupt(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = Signals::new()?;
    let wait = move || {
        let mut waited = libc::pollfd { fd: signals.fd(), events: libc::POLLIN, revents: 0 };
        while signals.take().is_none() {
            // SAFETY: one descriptor, which is open, and lives for the call.
            unsafe { libc::poll(&raw mut waited, 1, -1) };
        }
        act();
    };
    std::thread::Builder::new().name("dcd-signals".to_owned()).spawn(wait).map(|_| ())
}

/// Has a write past the limit on file sizes (`ulimit -f`) fail with EFBIG, as on a full device, where the signal would end the process.
pub fn ignore_file_size_signal() {
    // SAFETY: a plain system call; no handler of ours runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: plain data, which the kernel fills; no new action is given.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
