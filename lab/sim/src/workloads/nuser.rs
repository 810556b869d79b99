//! N users untar, copy and remove a tree of sources, each their own (Nightingale et al. 1999, section 4.1).
//!
//! Between the phases the file system is mounted anew, so that the next one begins with cold caches, as in the paper; or
//! it is not, for the paper's warm runs.
//!
//! What the programs need of the processor beside their system calls is not known for the paper's machine. Its two parts for
//! each file are fitted to the ends of the range that the paper gives (see [`NUser::file_cpu`] and [`NUser::made_cpu`]), the
//! same for any number of users and any disk.

use dcd_engine::Nanos;
use dcd_model::ffs::{Done, Ino, Op};

use super::host::{Host, Program};
use super::tree::Tree;
use super::{Measured, RunError};
use crate::{SimDevice, SimRng};

/// tar reads and writes records of 20 blocks.
const TAR_RECORD: u64 = 20 * 512;
/// A header for each file and directory.
const TAR_HEADER: u64 = 512;
/// cp reads and writes what the file system calls its best size: a block.
const COPY_BYTES: u64 = 8 << 10;
/// A command comes up to this later, so that each run has it at another time of the update daemon and the spindle.
const TYPING: Nanos = Nanos::from_secs(5);
const ARCHIVE: &str = "/archive.tar";

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NUser {
    pub users: u32,
    /// Mount anew between phases.
    pub cold: bool,
    /// The archive is read from the same file system; else it is in memory.
    pub archive_on_disk: bool,
    /// Starting a program (lmbench has some 20 ms for fork and exec on the machine of the paper).
    pub start_cpu: Nanos,
    /// What a program computes for each file: names and checks. With the kernel's costs of a change of names and of a block
    /// request (`CpuCosts::ULTRA_1`) fitted so that the remove computes 3 % of its time on the plain disk, the paper's least.
    pub file_cpu: Nanos,
    /// What a file that is made costs more than one that is removed, in the kernel and in calls that are not among those of
    /// the file system here: headers, pages, times, modes and owners. Fitted so that the untar of 4 users computes half of
    /// its time with the paper's cache, the paper's most.
    pub made_cpu: Nanos,
    /// Time between phases: unmounting, mounting, and typing the next command.
    pub pause: Nanos,
}

impl Default for NUser {
    fn default() -> Self {
        NUser {
            users: 4,
            cold: true,
            archive_on_disk: true,
            start_cpu: Nanos::from_millis(20),
            file_cpu: Nanos::from_micros(50),
            made_cpu: Nanos::from_micros(2050),
            pause: Nanos::from_secs(5),
        }
    }
}

impl NUser {
    /// The phases "untar", "copy" and "remove".
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let tree = Tree::apache();
        let mut rng = SimRng::new(seed);
        if self.archive_on_disk {
            let headers = (tree.files() + tree.directories.len()) as u64 * TAR_HEADER;
            host.set_up_file(ARCHIVE, tree.bytes() + headers)?;
        }
        for user in 0..self.users {
            host.set_up(Op::Mkdir { path: format!("/user{user}") })?;
        }
        self.phase(host, "untar", &tree, &mut rng, untar)?;
        self.phase(host, "copy", &tree, &mut rng, copy)?;
        self.phase(host, "remove", &tree, &mut rng, remove)?;
        Ok(host.take_measured())
    }

    fn phase<D: SimDevice>(
        &self,
        host: &mut Host<D>,
        name: &'static str,
        tree: &Tree,
        rng: &mut SimRng,
        write: fn(&NUser, &Tree, u32) -> Vec<Call>,
    ) -> Result<(), RunError> {
        let between = if self.cold { Op::Remount } else { Op::Sync };
        let time = self.pause + Nanos(rng.below(TYPING.0));
        host.script(vec![between, Op::Think { time }])?;
        let mut users: Vec<User> = (0..self.users).map(|user| User::new(write(self, tree, user))).collect();
        let mut programs: Vec<&mut dyn Program> = users.iter_mut().map(|user| user as _).collect();
        host.phase(name, &mut programs)
    }
}

/// A call of a script; files that are open have a number in it.
enum Call {
    Plain(Op),
    Open { file: usize, op: Op },
    Read { file: usize, offset: u64, bytes: u64 },
    Write { file: usize, offset: u64, bytes: u64 },
    Close { file: usize },
}

/// One user's program, as a script.
struct User {
    calls: std::vec::IntoIter<Call>,
    files: [Ino; 2],
    opening: Option<usize>,
}

impl User {
    fn new(calls: Vec<Call>) -> User {
        User { calls: calls.into_iter(), files: [Ino::ROOT; 2], opening: None }
    }
}

impl Program for User {
    fn next(&mut self, last: Done) -> Option<Op> {
        if let (Some(file), Done::Opened(ino)) = (self.opening.take(), last) {
            self.files[file] = ino;
        }
        Some(match self.calls.next()? {
            Call::Plain(op) => op,
            Call::Open { file, op } => {
                self.opening = Some(file);
                op
            }
            Call::Read { file, offset, bytes } => Op::Read { file: self.files[file], offset, bytes },
            Call::Write { file, offset, bytes } => Op::Write { file: self.files[file], offset, bytes },
            Call::Close { file } => Op::Close { file: self.files[file] },
        })
    }
}

/// The pieces in which so many bytes are moved.
fn pieces(bytes: u64, piece: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.div_ceil(piece)).map(move |n| (n * piece, piece.min(bytes - n * piece)))
}

fn compute(time: Nanos) -> impl Iterator<Item = Call> {
    (time > Nanos::ZERO).then_some(Call::Plain(Op::Compute { time })).into_iter()
}

/// `tar xf /archive.tar` in the user's directory.
fn untar(nuser: &NUser, tree: &Tree, user: u32) -> Vec<Call> {
    const OUT: usize = 0;
    const ARCHIVE_FILE: usize = 1;
    let mut calls: Vec<Call> = compute(nuser.start_cpu).collect();
    let (mut needed, mut read) = (0, 0);
    let mut read_archive = |calls: &mut Vec<Call>, bytes: u64| {
        needed += bytes;
        while nuser.archive_on_disk && read < needed {
            calls.push(Call::Read { file: ARCHIVE_FILE, offset: read, bytes: TAR_RECORD });
            read += TAR_RECORD;
        }
    };
    if nuser.archive_on_disk {
        calls.push(Call::Open { file: ARCHIVE_FILE, op: Op::Open { path: ARCHIVE.to_owned() } });
    }
    for directory in &tree.directories {
        let path = format!("/user{user}/tree{}", directory.path);
        read_archive(&mut calls, TAR_HEADER);
        calls.push(Call::Plain(Op::Mkdir { path: path.clone() }));
        for file in &directory.files {
            read_archive(&mut calls, TAR_HEADER + file.bytes);
            calls.extend(compute(nuser.file_cpu + nuser.made_cpu));
            let path = format!("{path}/{}", file.name);
            calls.push(Call::Open { file: OUT, op: Op::Create { path } });
            let writes = pieces(file.bytes, TAR_RECORD);
            calls.extend(writes.map(|(offset, bytes)| Call::Write { file: OUT, offset, bytes }));
            calls.push(Call::Close { file: OUT });
        }
    }
    if nuser.archive_on_disk {
        calls.push(Call::Close { file: ARCHIVE_FILE });
    }
    calls
}

/// `cp -r tree copy`.
fn copy(nuser: &NUser, tree: &Tree, user: u32) -> Vec<Call> {
    let mut calls: Vec<Call> = compute(nuser.start_cpu).collect();
    let mut below = vec![0];
    while let Some(index) = below.pop() {
        let directory = &tree.directories[index];
        let from = format!("/user{user}/tree{}", directory.path);
        let to = format!("/user{user}/copy{}", directory.path);
        calls.push(Call::Plain(Op::Stat { path: from.clone() }));
        calls.push(Call::Plain(Op::Mkdir { path: to.clone() }));
        calls.push(Call::Plain(Op::Readdir { path: from.clone() }));
        for file in &directory.files {
            copy_file(
                nuser,
                format!("{from}/{}", file.name),
                format!("{to}/{}", file.name),
                file.bytes,
                &mut calls,
            );
        }
        below.extend(&directory.directories);
    }
    calls
}

fn copy_file(nuser: &NUser, from: String, to: String, bytes: u64, calls: &mut Vec<Call>) {
    const IN: usize = 0;
    const OUT: usize = 1;
    calls.extend(compute(nuser.file_cpu + nuser.made_cpu));
    calls.push(Call::Plain(Op::Stat { path: from.clone() }));
    calls.push(Call::Open { file: IN, op: Op::Open { path: from } });
    calls.push(Call::Open { file: OUT, op: Op::Create { path: to } });
    for (offset, bytes) in pieces(bytes, COPY_BYTES) {
        calls.push(Call::Read { file: IN, offset, bytes });
        calls.push(Call::Write { file: OUT, offset, bytes });
    }
    calls.push(Call::Close { file: IN });
    calls.push(Call::Close { file: OUT });
}

/// `rm -r tree`.
fn remove(nuser: &NUser, tree: &Tree, user: u32) -> Vec<Call> {
    let mut calls: Vec<Call> = compute(nuser.start_cpu).collect();
    remove_directory(nuser, tree, user, 0, &mut calls);
    calls
}

fn remove_directory(nuser: &NUser, tree: &Tree, user: u32, index: usize, calls: &mut Vec<Call>) {
    let directory = &tree.directories[index];
    let path = format!("/user{user}/tree{}", directory.path);
    calls.push(Call::Plain(Op::Stat { path: path.clone() }));
    calls.push(Call::Plain(Op::Readdir { path: path.clone() }));
    for file in &directory.files {
        calls.extend(compute(nuser.file_cpu));
        let path = format!("{path}/{}", file.name);
        calls.push(Call::Plain(Op::Stat { path: path.clone() }));
        calls.push(Call::Plain(Op::Unlink { path }));
    }
    for inner in &directory.directories {
        remove_directory(nuser, tree, user, *inner, calls);
    }
    calls.push(Call::Plain(Op::Rmdir { path }));
}
