//! A bell between threads: an eventfd, which a ring or a poll can listen to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// See the module's documentation.
pub struct Bell(OwnedFd);

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Bell {
    /// # Errors
    /// If the process may open no more files.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: a plain system call, whose descriptor is ours.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(bell) }))
    }

    /// Descriptor that is readable from the first ring until the bell is silenced.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes that live for the call. It fails only when the counter is full, and then the bell rings.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    pub fn silence(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes that live for the call. It fails where the bell is silent, which does no harm.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}
