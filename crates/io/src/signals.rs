//! Signals as events: they are held back from the process and read from a descriptor.

use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Interval of checks whether a command has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time for a command to end after SIGTERM, before SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: stop. For a command also SIGHUP: the terminal was closed.
    Terminate,
    /// SIGINT: the user pressed Ctrl-C.
    Interrupt,
}

/// Signals that a server must survive and ignores, such as SIGHUP, which asks some programs to reload their settings.
const MEANINGLESS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];

/// Receiver of signals since it was made. Once it is dropped, signals end the process as usual.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
    /// Signals that a server drops.
    dropped: &'static [libc::c_int],
}

impl Signals {
    /// Holds SIGTERM, SIGINT and SIGHUP back on this thread and on those that it starts from now on.
    ///
    /// # Errors
    /// Where the kernel gives no descriptor for them.
    pub fn of_command() -> io::Result<Signals> {
        // With nohup, SIGHUP is ignored and must stay so. Holding it back would deliver it here.
        let hang_up = [libc::SIGHUP];
        let wanted = if is_ignored(libc::SIGHUP) { &[] } else { hang_up.as_slice() };
        Signals::new(wanted, &[])
    }

    /// Holds back SIGTERM and SIGINT for a server, on this thread and on those that it starts from now on. Also holds back and drops
    /// the signals that a server ignores. Threads that were started earlier have to hold all of them back by themselves.
    ///
    /// # Errors
    /// As for [`Signals::of_command`].
    pub fn of_server() -> io::Result<Signals> {
        Signals::new(&MEANINGLESS, &MEANINGLESS)
    }

    fn new(more: &[libc::c_int], dropped: &'static [libc::c_int]) -> io::Result<Signals> {
        // SAFETY: signal sets are plain data that `sigemptyset` makes valid; all pointers live for their calls.
        unsafe {
            let mut wanted: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut wanted);
            for signal in [libc::SIGTERM, libc::SIGINT].iter().chain(more) {
                libc::sigaddset(&mut wanted, *signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &wanted, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { fd: OwnedFd::from_raw_fd(fd), before, dropped })
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The next signal that has come.
    pub fn take(&self) -> Option<Signal> {
        loop {
            // SAFETY: plain data; the kernel writes at most its size.
            let (count, info) = unsafe {
                let mut info: libc::signalfd_siginfo = std::mem::zeroed();
                let size = size_of::<libc::signalfd_siginfo>();
                (libc::read(self.fd(), (&raw mut info).cast(), size), info)
            };
            match info.ssi_signo as i32 {
                _ if count <= 0 => return None,
                signal if self.dropped.contains(&signal) => {}
                libc::SIGINT => return Some(Signal::Interrupt),
                _ => return Some(Signal::Terminate),
            }
        }
    }
}

/// Leaves all signals to other threads: a thread that was started before [`Signals`] were taken would get them in their place.
pub fn hold_signals_back() {
    // SAFETY: the set is plain data that `sigfillset` makes valid, and lives for the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Runs a command to its end. If a signal asks this process to end meanwhile, the command and its child processes are ended, and the
/// result is none.
///
/// # Errors
/// Those of the system.
pub fn run_unless_interrupted(command: &mut Command) -> io::Result<Option<ExitStatus>> {
    let signals = Signals::of_command()?;
    // A terminal signals only its foreground group, and gives input to no other group.
    let has_group = !io::stdin().is_terminal();
    if has_group {
        command.process_group(0);
    }
    // SAFETY: the set is plain data that `sigemptyset` makes valid; both calls may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            match libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        });
    }
    let mut child = command.spawn()?;
    let process = child.id() as libc::pid_t;
    let mut kill_at = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(kill_at.is_none().then_some(status));
        }
        let signal = match kill_at {
            None if signals.take().is_some() => {
                kill_at = Some(Instant::now() + KILL_PATIENCE);
                libc::SIGTERM
            }
            Some(at) if Instant::now() >= at => libc::SIGKILL,
            _ => {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
        };
        // SAFETY: a plain system call. The process is not waited for yet, so the number is its own.
        unsafe { libc::kill(if has_group { -process } else { process }, signal) };
    }
}

/// Makes a thread call `act` when a signal asks the process to end. Threads that were started earlier may get the signal instead.
///
/// # Errors
/// Where the kernel gives no descriptor for signals, or no thread.
pub fn on_interrupt(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = Signals::of_command()?;
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

/// Makes a write past the limit on file sizes (`ulimit -f`) fail with EFBIG, as on a full device; by default a signal ends the process.
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
        // A second request to stop that arrived meanwhile must not kill a server that has just stopped.
        while !self.dropped.is_empty() && self.take().is_some() {}
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
