//! Keeps a server of block devices alive when memory is short.
//!
//! The kernel may need this process to write pages back before it can free memory. The process must then not wait for memory itself:
//! PR_SET_IO_FLUSHER tells the kernel, and locked memory is never swapped out to the disk it serves.

use std::io;

/// Measures that succeeded. None is needed to work correctly; without them a machine short of memory may hang.
#[derive(Debug)]
pub struct Protection {
    /// PR_SET_IO_FLUSHER, which needs CAP_SYS_RESOURCE.
    pub io_flusher: io::Result<()>,
    /// mlockall of what is touched from now on, which needs CAP_IPC_LOCK or a limit that is large enough.
    pub locked_memory: io::Result<()>,
    /// Timers that fire when they are due, not up to 50 us later.
    pub timer_slack: io::Result<()>,
}

/// Protects the process as far as it may; call it on the driver's thread before the stack is activated.
pub fn protect_process() -> Protection {
    // Of linux/prctl.h and bits/mman.h; the crate of constants lacks the first on some systems.
    const SET_IO_FLUSHER: libc::c_int = 57;
    const LOCK_ON_FAULT: libc::c_int = 4;
    // SAFETY: a plain system call.
    let io_flusher = outcome(unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) });
    let locked_memory = unlimited_locking().and_then(|()| {
        // Only what is touched: a sparse device in memory and large stacks of threads would cost their whole size.
        // SAFETY: a plain system call.
        outcome(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | LOCK_ON_FAULT) })
    });
    Protection { io_flusher, locked_memory, timer_slack: exact_timers() }
}

/// Lifts the limit on locked memory. With a limit in force, locking all memory would have allocations fail later.
fn unlimited_locking() -> io::Result<()> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    if capabilities.is_some_and(|set| set & CAP_IPC_LOCK != 0) {
        return Ok(());
    }
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limits live for the call.
    outcome(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) })
}

/// Has the kernel run this thread as soon as it has work (SCHED_RR, the lowest real-time priority), whatever else the machine does. What it
/// starts runs as usual. A thread that is always busy is stopped for a part of each second (`sched_rt_runtime_us`), so this is for servers
/// of spinning disks, which mostly wait.
///
/// # Errors
/// If the process lacks CAP_SYS_NICE.
pub fn run_promptly() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter lives for the call.
    outcome(unsafe {
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest)
    })
}

/// Asks the kernel to wake this thread when it is due and not up to 50 us later.
pub(crate) fn exact_timers() -> io::Result<()> {
    // SAFETY: a plain system call.
    outcome(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })
}

fn outcome(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
