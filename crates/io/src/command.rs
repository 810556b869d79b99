//! Commands to drivers of the kernel: those that control a device, and the memory in which a driver describes requests.
//!
//! A control command may wait for other programs, and with some kernels it never returns. So each command has its own thread and ring,
//! and its caller waits for a limited time. A command that does not return keeps its thread and its memory.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Offset of the data's address in a control command.
const ADDRESS_AT: usize = 8;

#[derive(Debug)]
pub struct ControlCommand {
    /// The file of the driver.
    pub device: PathBuf,
    pub op: u32,
    /// The command; the address of `data` is put into it.
    pub bytes: [u8; 32],
    /// The kernel reads it, writes it, or both.
    pub data: Vec<u8>,
}

impl ControlCommand {
    /// Runs the command on a thread of its own. Returns the data as the kernel left it.
    ///
    /// # Errors
    /// TimedOut if the command has not returned in time; errors of the kernel, the device's opening, the ring or the thread.
    pub fn run(self, patience: Duration) -> io::Result<Vec<u8>> {
        let (ended, end) = mpsc::sync_channel(1);
        let run = move || {
            // This fails only if the caller no longer waits.
            let _ = ended.send(self.run_here());
        };
        thread::Builder::new().name("dcd-control".to_owned()).spawn(run)?;
        end.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn run_here(mut self) -> io::Result<Vec<u8>> {
        let device = OpenOptions::new().read(true).write(true).open(&self.device)?;
        let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(1)?;
        let mut command = [0; 80];
        command[..self.bytes.len()].copy_from_slice(&self.bytes);
        let address = if self.data.is_empty() { 0 } else { self.data.as_mut_ptr() as u64 };
        command[ADDRESS_AT..ADDRESS_AT + 8].copy_from_slice(&address.to_ne_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), self.op).cmd(command).build();
        // SAFETY: the data lies on the heap, and this thread keeps it until the command has completed: it waits without a bound.
        unsafe { ring.submission().push(&entry) }.expect("the ring is empty");
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may still use the memory of the command.
                Err(error) => {
                    std::mem::forget(self.data);
                    return Err(error);
                }
            }
            let completion = ring.completion().next().map(|entry| entry.result());
            if let Some(result) = completion {
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(self.data) };
            }
        }
    }
}

/// Memory of a driver, mapped to be read. The kernel changes it.
#[derive(Debug)]
pub struct KernelMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and nothing else in here refers to a thread.
unsafe impl Send for KernelMemory {}

impl KernelMemory {
    /// # Errors
    /// Those of mmap.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<KernelMemory> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), offset)
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(start_of) if start != libc::MAP_FAILED => Ok(KernelMemory { start: start_of, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies some of the bytes. The copy is valid only if the kernel does not change them meanwhile.
    ///
    /// # Panics
    /// Outside the memory, and where `at` is not a multiple of 8.
    pub fn words<const N: usize>(&self, at: usize) -> [u64; N] {
        assert!(
            at.is_multiple_of(8) && at + 8 * N <= self.len,
            "the bytes are inside the memory, and aligned"
        );
        // SAFETY: inside the mapping and aligned, as mappings begin at a page; volatile, as the kernel writes there, too.
        std::array::from_fn(|word| unsafe {
            self.start.as_ptr().add(at).cast::<u64>().add(word).read_volatile()
        })
    }
}

impl Drop for KernelMemory {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn command(device: &str) -> ControlCommand {
        ControlCommand { device: device.into(), op: 1, bytes: [0; 32], data: vec![0; 8] }
    }

    #[test]
    fn a_command_to_what_takes_none_is_an_error_of_the_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = command(file.path().to_str().unwrap()).run(Duration::from_secs(10)).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let error = command("/nowhere").run(Duration::from_secs(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn memory_is_read_in_words() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = KernelMemory::map(file.as_fd(), 0, 4096).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &7u64.to_ne_bytes(), 16).unwrap();
        assert_eq!(memory.words::<2>(8), [0, 7]);
        assert!(KernelMemory::map(file.as_fd(), 1, 4096).is_err(), "an offset is a multiple of a page");
    }
}
