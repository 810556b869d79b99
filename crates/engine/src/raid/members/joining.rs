//! A device that is being made a spare, or that was a member and comes back.

use super::spare::Spare;
use crate::raid::superblock::{
    ArraySuperblock, ArraySuperblockError, COPY_SECTORS, MemberIdentity, SUPERBLOCK_BYTES,
};
use crate::{Buf, Durability, Io, IoError, IoResult};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The members' superblocks do not say yet which members have failed: the device may be one of those.
    Waiting,
    /// The device is being flushed. A killed server may have left the superblock that counts in the device's cache, and the next
    /// superblock overwrites the other copy.
    Flushing,
    /// The device's superblocks are being read.
    Reading,
    /// The device gets its former role as soon as possible, or becomes a spare.
    Known,
    /// The old superblocks are being wiped.
    Wiping,
    /// The device's own superblock is being written.
    Naming,
}

/// See the module's documentation.
pub(super) struct Joining {
    spare: Spare,
    step: Step,
    /// Commands that have not returned.
    left: usize,
    error: Option<IoError>,
    /// The copies of a superblock that were on it.
    copies: [Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError>; 2],
    /// The newer one of them.
    was: Option<(ArraySuperblock, MemberIdentity)>,
}

pub(super) enum JoinOutcome {
    GoesOn(Vec<Io>),
    Joined,
    Failed(IoError),
}

impl Joining {
    pub const fn new(spare: Spare) -> Joining {
        let copies = [Err(ArraySuperblockError::NoMagic), Err(ArraySuperblockError::NoMagic)];
        Joining { spare, step: Step::Waiting, left: 0, error: None, copies, was: None }
    }

    pub const fn spare(&self) -> &Spare {
        &self.spare
    }

    /// The device's superblock before the wipe.
    pub const fn was(&self) -> Option<&(ArraySuperblock, MemberIdentity)> {
        self.was.as_ref()
    }

    pub fn into_was(self) -> Option<(ArraySuperblock, MemberIdentity)> {
        self.was
    }

    /// The device waits until the members' superblocks say which members have failed.
    pub const fn waits(&self) -> bool {
        matches!(self.step, Step::Waiting | Step::Known)
    }

    /// True when nothing has been written to the device and no command is under way there.
    pub const fn is_untouched(&self) -> bool {
        self.left == 0 && !matches!(self.step, Step::Wiping | Step::Naming)
    }

    fn begin(&mut self, step: Step, commands: Vec<Io>) -> Vec<Io> {
        (self.step, self.left) = (step, commands.len());
        commands
    }

    /// The commands after a wait.
    pub fn go_on(&mut self) -> Vec<Io> {
        if self.step == Step::Waiting {
            return self.begin(Step::Flushing, vec![Io::Flush]);
        }
        self.was = None;
        let wipe = |at| {
            let buf = Buf::zeroed(SUPERBLOCK_BYTES);
            Io::Write { at, buf, durability: Durability::Durable }
        };
        self.begin(Step::Wiping, COPY_SECTORS.map(wipe).into())
    }

    /// A command has returned, the one of this number.
    pub fn returned(&mut self, number: usize, result: IoResult, recorded: &ArraySuperblock) -> JoinOutcome {
        self.left -= 1;
        if self.step == Step::Reading {
            self.copies[number] = match result.status {
                Ok(()) => ArraySuperblock::decode(result.buf.bytes(), number),
                Err(error) => Err(ArraySuperblockError::Io(error)),
            };
        } else {
            self.error = self.error.or(result.status.err());
        }
        if self.left > 0 {
            return JoinOutcome::GoesOn(Vec::new());
        }
        if let Some(error) = self.error {
            return JoinOutcome::Failed(error);
        }
        JoinOutcome::GoesOn(match self.step {
            Step::Flushing => {
                let read = |at| Io::Read { at, buf: Buf::zeroed(SUPERBLOCK_BYTES) };
                self.begin(Step::Reading, COPY_SECTORS.map(read).into())
            }
            Step::Reading => {
                (self.was, self.step) = (ArraySuperblock::newer(self.copies.clone()).ok(), Step::Known);
                Vec::new()
            }
            Step::Wiping => {
                // Over the copy that is not the one of this number.
                let identity = MemberIdentity { id: self.spare.id, role: None, copy: 1 - self.spare.copy };
                self.begin(Step::Naming, vec![recorded.write(identity)])
            }
            Step::Naming => return JoinOutcome::Joined,
            Step::Waiting | Step::Known => unreachable!("nothing is under way there"),
        })
    }
}
