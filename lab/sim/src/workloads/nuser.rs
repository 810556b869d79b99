//! N users untar, copy and remove a tree of sources, each their own (Nightingale et al. 1999, section 4.1).
//!
//! Between the phases the file system is mounted anew, so that the next one begins with cold caches, as in the paper; or
//! it is not, for the paper's warm runs.
//!
//! What the programs need of the processor beside their system calls is not known for the paper's machine. Its two parts for
//! each file are fitted to the ends of the range that the paper gives (see `FILE_CPU` and `MADE_CPU`), the
//! same for any number of users and any disk.

use dcd_engine::Nanos;
use dcd_model::ffs::Op;

use super::host::{Host, Program};
use super::steps::{Step, Steps, copy_file, write_file};
use super::tree::Tree;
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng};

/// tar reads and writes records of 20 blocks.
const TAR_RECORD: u64 = 20 * 512;
/// A header for each file and directory.
const TAR_HEADER: u64 = 512;
/// cp reads and writes what the file system calls its best size: a block.
const COPY_BYTES: u64 = 8 << 10;
/// A command comes up to this later, so that each run has it at another time of the update daemon and the spindle.
const TYPING: Nanos = Nanos::from_secs(5);
const ARCHIVE: &str = "/archive.tar";

/// Starting a program (lmbench has some 20 ms for fork and exec on the machine of the paper).
const START_CPU: Nanos = Nanos::from_millis(20);
/// Time that a program computes for each file: names and checks. With the kernel's costs of a change of names and of a block
/// request (`CpuCosts::ULTRA_1`) fitted so that the remove computes 3 % of its time on the plain disk, the paper's least.
const FILE_CPU: Nanos = Nanos::from_micros(50);
/// Additional cost of a file that is made over one that is removed, in the kernel and in calls that are not among those of
/// the file system here: headers, pages, times, modes and owners. Fitted so that the untar of 4 users computes half of
/// its time with the paper's cache, the paper's most.
const MADE_CPU: Nanos = Nanos::from_micros(2050);

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NUser {
    pub users: u32,
    /// Mount anew between phases.
    pub cold: bool,
    /// Time between phases: unmounting, mounting, and typing the next command.
    pub pause: Nanos,
}

impl Default for NUser {
    fn default() -> Self {
        NUser { users: 4, cold: true, pause: Nanos::from_secs(5) }
    }
}

impl NUser {
    /// The phases "untar", "copy" and "remove".
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let tree = Tree::apache();
        let mut rng = SimRng::new(seed);
        let headers = (tree.files() + tree.directories.len()) as u64 * TAR_HEADER;
        host.set_up_file(ARCHIVE, tree.bytes() + headers)?;
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
        write: fn(&Tree, u32) -> Vec<Step>,
    ) -> Result<(), RunError> {
        let between = if self.cold { Op::Remount } else { Op::Sync };
        let time = self.pause + Nanos(rng.below(TYPING.0));
        host.script(vec![between, Op::Think { time }])?;
        let program = |user| Steps::new(write(tree, user).into_iter());
        let mut users: Vec<_> = (0..self.users).map(program).collect();
        let mut programs: Vec<&mut dyn Program> =
            users.iter_mut().map(|user| user as &mut dyn Program).collect();
        host.phase(name, &mut programs)
    }
}

fn compute(time: Nanos) -> Step {
    Step::Plain(Op::Compute { time })
}

/// `tar xf /archive.tar` in the user's directory.
fn untar(tree: &Tree, user: u32) -> Vec<Step> {
    /// Beside the file that is written.
    const ARCHIVE_SLOT: usize = 1;
    let (mut needed, mut read) = (0, 0);
    let mut read_archive = |steps: &mut Vec<Step>, bytes: u64| {
        needed += bytes;
        while read < needed {
            steps.push(Step::Read { slot: ARCHIVE_SLOT, offset: read, bytes: TAR_RECORD });
            read += TAR_RECORD;
        }
    };
    let mut steps = vec![compute(START_CPU), Step::open(ARCHIVE_SLOT, ARCHIVE.to_owned())];
    for directory in &tree.directories {
        let path = format!("/user{user}/tree{}", directory.path);
        read_archive(&mut steps, TAR_HEADER);
        steps.push(Step::Plain(Op::Mkdir { path: path.clone() }));
        for file in &directory.files {
            read_archive(&mut steps, TAR_HEADER + file.bytes);
            steps.push(compute(FILE_CPU + MADE_CPU));
            steps.extend(write_file(format!("{path}/{}", file.name), file.bytes, TAR_RECORD));
        }
    }
    steps.push(Step::Close { slot: ARCHIVE_SLOT });
    steps
}

/// `cp -r tree copy`.
fn copy(tree: &Tree, user: u32) -> Vec<Step> {
    let mut steps = vec![compute(START_CPU)];
    let mut below = vec![0];
    while let Some(index) = below.pop() {
        let directory = &tree.directories[index];
        let from = format!("/user{user}/tree{}", directory.path);
        let to = format!("/user{user}/copy{}", directory.path);
        steps.push(Step::Plain(Op::Stat { path: from.clone() }));
        steps.push(Step::Plain(Op::Mkdir { path: to.clone() }));
        steps.push(Step::Plain(Op::Readdir { path: from.clone() }));
        for file in &directory.files {
            let (from, to) = (format!("{from}/{}", file.name), format!("{to}/{}", file.name));
            steps.push(compute(FILE_CPU + MADE_CPU));
            steps.push(Step::Plain(Op::Stat { path: from.clone() }));
            steps.extend(copy_file(from, to, file.bytes, COPY_BYTES));
        }
        below.extend(&directory.directories);
    }
    steps
}

/// `rm -r tree`.
fn remove(tree: &Tree, user: u32) -> Vec<Step> {
    let mut steps = vec![compute(START_CPU)];
    remove_directory(tree, user, 0, &mut steps);
    steps
}

fn remove_directory(tree: &Tree, user: u32, index: usize, steps: &mut Vec<Step>) {
    let directory = &tree.directories[index];
    let path = format!("/user{user}/tree{}", directory.path);
    steps.push(Step::Plain(Op::Stat { path: path.clone() }));
    steps.push(Step::Plain(Op::Readdir { path: path.clone() }));
    for file in &directory.files {
        steps.push(compute(FILE_CPU));
        let path = format!("{path}/{}", file.name);
        steps.push(Step::Plain(Op::Stat { path: path.clone() }));
        steps.push(Step::Plain(Op::Unlink { path }));
    }
    for inner in &directory.directories {
        remove_directory(tree, user, *inner, steps);
    }
    steps.push(Step::Plain(Op::Rmdir { path }));
}
