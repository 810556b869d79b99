//! Clients of a file server, as DBench plays them (Tridgell; Baek and Park, section IV-C): "a large portion of its writes
//! form sequential or bulky accesses".
//!
//! What DBench's list of calls holds is not stated in the paper; this one has its shape. Each client works in a directory
//! of its own: it makes files and writes them from start to end in the pieces that a client of a file server sends, reads
//! files that it has written, and removes the older ones.

use dcd_model::ffs::Op;

use super::host::{Host, Program};
use super::steps::{Step, Steps, read_file, write_file};
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng};

/// Bytes that a client sends at a time.
const PIECE: u64 = 32 << 10;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DBench {
    pub clients: u32,
    /// Files that each client makes.
    pub files: u32,
    /// Files that a client keeps: so many lie there before it begins.
    pub kept: u32,
    /// Their mean size: half as many bytes to half as many more, evenly.
    pub mean_bytes: u64,
}

struct Client {
    random: SimRng,
    directory: u32,
    load: DBench,
    left: u32,
    next: u32,
    kept: Vec<(u32, u64)>,
}

impl Client {
    fn path(&self, number: u32) -> String {
        format!("/clients/client{}/file{number}", self.directory)
    }

    /// A number and a size for another file.
    fn draw(&mut self) -> (u32, u64) {
        let mean = self.load.mean_bytes;
        let bytes = self.random.range(mean / 2, mean * 3 / 2).max(1);
        self.next += 1;
        self.kept.push((self.next, bytes));
        (self.next, bytes)
    }

    /// A file is made, one is read, and one goes.
    fn round(&mut self) -> Option<Vec<Step>> {
        self.left = self.left.checked_sub(1)?;
        let (number, bytes) = self.draw();
        let mut steps: Vec<Step> = write_file(self.path(number), bytes, PIECE).collect();
        let (number, bytes) = self.random.pick(&self.kept);
        steps.extend(read_file(self.path(number), bytes, PIECE));
        let index = self.random.below(self.kept.len() as u64) as usize;
        let (gone, _) = self.kept.swap_remove(index);
        steps.push(Step::Plain(Op::Unlink { path: self.path(gone) }));
        Some(steps)
    }
}

impl DBench {
    /// The phase "clients".
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let mut random = SimRng::new(seed);
        host.set_up(Op::Mkdir { path: "/clients".to_owned() })?;
        for client in 0..self.clients {
            host.set_up(Op::Mkdir { path: format!("/clients/client{client}") })?;
        }
        let client = |directory| Client {
            random: random.fork(),
            directory,
            load: *self,
            left: self.files,
            next: 0,
            kept: Vec::new(),
        };
        let mut clients: Vec<Client> = (0..self.clients).map(client).collect();
        for _ in 0..self.kept {
            for client in &mut clients {
                let (number, bytes) = client.draw();
                host.set_up_file(&client.path(number), bytes)?;
            }
        }
        let steps = |mut client: Client| Steps::new(std::iter::from_fn(move || client.round()).flatten());
        let mut clients: Vec<_> = clients.into_iter().map(steps).collect();
        let mut programs: Vec<&mut dyn Program> =
            clients.iter_mut().map(|client| client as &mut dyn Program).collect();
        host.phase("clients", &mut programs)?;
        Ok(host.take_measured())
    }
}
