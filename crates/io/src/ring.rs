//! The io_uring: entries in, completions out, one system call for both.
//!
//! Each entry carries a [`Token`]; its last completion says that the kernel has let go of the entry's memory.

use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

/// Entries between two system calls; more are submitted in between.
const ENTRIES: u32 = 512;
/// Size of the completion queue: beyond it the kernel keeps completions back.
const COMPLETIONS: u32 = 4096;

/// Kernel threads that may wait for files and block devices at a time. The kernel's default is four per processor: a device that does
/// not answer could hold all of them, while another device waits for its flush.
const KERNEL_WORKERS_MAX: u32 = 512;

/// Purpose of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingPurpose {
    Device,
    Accept,
    Receive,
    Send,
    Bell,
    Workers,
    Signal,
    Alarm,
    Command,
    Cancel,
}

const KINDS: [RingPurpose; 10] = [
    RingPurpose::Device,
    RingPurpose::Accept,
    RingPurpose::Receive,
    RingPurpose::Send,
    RingPurpose::Bell,
    RingPurpose::Workers,
    RingPurpose::Signal,
    RingPurpose::Alarm,
    RingPurpose::Command,
    RingPurpose::Cancel,
];

/// Identifies an entry: its purpose, and the index of its device, connection or other user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: RingPurpose,
    pub index: usize,
}

impl Token {
    pub const fn new(kind: RingPurpose, index: usize) -> Token {
        Token { kind, index }
    }

    const fn pack(self) -> u64 {
        ((self.kind as u64) << 56) | self.index as u64
    }

    const fn unpack(packed: u64) -> Token {
        Token { kind: KINDS[(packed >> 56) as usize], index: (packed & ((1 << 56) - 1)) as usize }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub token: Token,
    /// A count, or a negative error number.
    pub result: i32,
    /// True if the entry stays active and will complete again.
    pub more: bool,
}

pub(crate) struct IoRing {
    ring: IoUring,
    /// Entries that the kernel has not let go of.
    in_flight: usize,
    /// System calls made.
    pub enters: u64,
}

impl IoRing {
    /// Must be called on the thread that uses it: the kernel then skips the work that several threads would need.
    pub fn new() -> io::Result<IoRing> {
        let modern = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES);
        // Kernels before 6.1 do not know all of these.
        let ring = modern.or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES))?;
        // Multishot polls came with Linux 5.13. No flag announces them, but resource tagging came with the same version.
        if !ring.params().is_feature_resource_tagging() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old"));
        }
        // Kernels before 5.15 do not support it. 0 leaves a limit unchanged.
        let _ = ring.submitter().register_iowq_max_workers(&mut [KERNEL_WORKERS_MAX, 0]);
        Ok(IoRing { ring, in_flight: 0, enters: 0 })
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// All memory that the entry names stays valid, in place and unused by others until its last completion.
    pub unsafe fn push(&mut self, entry: squeue::Entry, token: Token) {
        let entry = entry.user_data(token.pack());
        loop {
            // SAFETY: the caller vouches for the memory.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                self.in_flight += 1;
                return;
            }
            // It fails only where the ring itself is broken, and then nothing can be carried out any more.
            self.enter(0, Some(Duration::ZERO)).expect("the ring takes entries");
        }
    }

    /// Asks the kernel to end an entry early. The entry still completes.
    pub fn cancel(&mut self, token: Token) {
        let entry = opcode::AsyncCancel::new(token.pack()).build();
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry, Token::new(RingPurpose::Cancel, 0)) };
    }

    /// Submits what is queued, and waits for `want` completions, at most as long as the timeout says.
    pub fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.map(Timespec::from).unwrap_or_default();
        let mut args = SubmitArgs::new();
        if timeout.is_some() {
            args = args.timespec(&time);
        }
        let queued = self.ring.submission().len() as u32;
        let want = if timeout == Some(Duration::ZERO) { 0 } else { want as u32 };
        self.enters += 1;
        // Even without waiting: the kernel's deferred work is done only when completions are asked for.
        let flags = (EnterFlags::EXT_ARG | EnterFlags::GETEVENTS).bits();
        // SAFETY: the flags say that the argument is an extended one, and it and the time live for the call.
        let done = unsafe { self.ring.submitter().enter(queued, want, flags, Some(&args)) };
        match done {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // In this order: timeout; signal; completions must be taken first; memory is short for a moment.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes the completions that have come.
    pub fn take(&mut self, into: &mut impl Extend<Completion>) {
        let mut ended = 0;
        into.extend(self.ring.completion().map(|entry| {
            let more = cqueue::more(entry.flags());
            ended += usize::from(!more);
            Completion { token: Token::unpack(entry.user_data()), result: entry.result(), more }
        }));
        self.in_flight -= ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_kind_and_index() {
        for kind in KINDS {
            let token = Token::new(kind, 123_456);
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    #[test]
    fn more_entries_than_fit_all_complete() {
        let mut ring = IoRing::new().expect("a ring");
        for index in 0..3 * ENTRIES as usize {
            // SAFETY: the entry names no memory.
            unsafe { ring.push(opcode::Nop::new().build(), Token::new(RingPurpose::Cancel, index)) };
        }
        let mut seen = Vec::new();
        while ring.in_flight() > 0 {
            ring.enter(1, None).expect("enter");
            ring.take(&mut seen);
        }
        seen.sort_by_key(|completion: &Completion| completion.token.index);
        assert!(seen.iter().enumerate().all(|(at, completion)| completion.token.index == at));
        assert_eq!(seen.len(), 3 * ENTRIES as usize);
    }
}
