//! Front-ends without a connection: those that ring a bell (FUSE), and those whose requests come as ends of commands in the ring (ublk).
//!
//! The kernel keeps a command until a client has a request for its slot, and the answer goes out with the next command of that slot. So a
//! request costs one entry, and no copy here. Each command has one buffer, which is the kernel's while it has the command.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dcd_engine::{Buf, IoResult, Nanos, Stack};
use io_uring::{opcode, types};

use super::{AnswerTo, Context, Driver, Host};
use crate::front_end::{Ending, FrontEnd, KernelCommand, Task};
use crate::ring::{RingPurpose, Token};
use crate::{Actions, workers};

/// Maximum time for the end of a front-end: its task is bounded itself.
const END_MAX: Duration = Duration::from_secs(40);
/// Interval of checks whether the ending task is complete.
const END_INTERVAL: Duration = Duration::from_millis(5);

pub(super) struct ServedFrontEnd {
    /// None while it is being called, and once it is closed.
    pub front_end: Option<Box<dyn FrontEnd>>,
    /// Time of the last request.
    pub heard: Nanos,
    /// Number of requests that are not answered.
    pub unanswered: usize,
}

/// A command that the kernel has.
pub(super) struct CommandInKernel {
    front_end: usize,
    slot: usize,
    buf: Buf,
}

impl Driver {
    /// Adds a front-end. Its first commands are submitted together, by one system call. The host is told of its news.
    ///
    /// # Errors
    /// If the ring fails, the front-end fails after its first commands, or there is no thread for its task.
    pub fn add_front_end(&mut self, front_end: Box<dyn FrontEnd>) -> io::Result<()> {
        let index = self.front_ends.len();
        let heard = self.elapsed();
        self.front_ends.push(ServedFrontEnd { front_end: Some(front_end), heard, unanswered: 0 });
        self.watch(index);
        let mut task = Ok(None);
        self.with_front_end(index, |front_end, actions| front_end.start(actions));
        self.ring.enter(0, Some(Duration::ZERO))?;
        self.with_front_end(index, |front_end, _| task = front_end.begun());
        task?.map_or(Ok(()), |task| workers::run_task(&self.finished_by_workers, index, task))
    }

    /// Returns the status of each front-end that has one, with its disk.
    pub fn front_end_statuses(&self) -> Vec<(usize, serde_json::Value)> {
        let front_ends = self.front_ends.iter().filter_map(|served| served.front_end.as_ref());
        front_ends.filter_map(|it| Some((it.disk(), it.status()?))).collect()
    }

    /// Makes the ring report when a front-end rings its bell, if it has one.
    pub(super) fn watch(&mut self, index: usize) {
        let Some(bell) = self.front_ends[index].front_end.as_ref().and_then(|it| it.bell()) else { return };
        let entry =
            opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Bell, index)) };
    }

    /// Calls a front-end, and carries out what it wants.
    pub(super) fn with_front_end(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut dyn FrontEnd, &mut Actions),
    ) {
        let Some(mut front_end) = self.front_ends[index].front_end.take() else { return };
        let mut actions = self.spare_actions.pop().unwrap_or_default();
        call(front_end.as_mut(), &mut actions);
        actions.commands.drain(..).for_each(|command| self.push_command(index, command));
        let held = self.stopping.is_some() && front_end.condition().holds_requests;
        let disk = front_end.disk();
        let served = &mut self.front_ends[index];
        served.front_end = Some(front_end);
        served.unanswered += actions.requests.len();
        if !actions.requests.is_empty() {
            served.heard = self.now;
        }
        for (token, io) in actions.requests.drain(..).filter(|_| !held) {
            self.request(AnswerTo::FrontEnd { index, token }, disk, io);
        }
        self.spare_actions.push(actions);
    }

    fn push_command(&mut self, front_end: usize, command: KernelCommand) {
        let KernelCommand { fd, slot, op, head, mut buf, bytes } = command;
        assert!(buf.has_room(bytes), "the kernel may fill the buffer of a command");
        let mut body = [0; 16];
        body[..8].copy_from_slice(&head);
        body[8..].copy_from_slice(&(buf.bytes_mut().as_mut_ptr() as u64).to_ne_bytes());
        let entry = opcode::UringCmd16::new(types::Fd(fd), op).cmd(body).build();
        let index = self.given.insert(CommandInKernel { front_end, slot, buf });
        // SAFETY: the buffer lies on the heap, is owned (it has room), and stays in `given` until the command has ended (or for ever: see
        // the driver's `Drop`). `given` is the driver's, and not the front-end's, so it stays where a call of the front-end panics. The
        // kernel was told how large the buffer is.
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Command, index)) };
    }

    pub(super) fn command_completed(&mut self, index: usize, result: i32) {
        let CommandInKernel { front_end, slot, buf } = self.given.remove(index);
        self.with_front_end(front_end, |front_end, actions| front_end.completed(slot, result, buf, actions));
    }

    pub(super) fn answer_front_end(&mut self, index: usize, token: u64, result: IoResult) {
        self.front_ends[index].unanswered -= 1;
        self.with_front_end(index, |front_end, actions| front_end.reply(token, result, actions));
    }

    /// Passes news of the front-ends to the host.
    pub(super) fn tell_news(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        for index in 0..self.front_ends.len() {
            let front_end = self.front_ends[index].front_end.as_mut();
            if let Some(news) = front_end.and_then(|front_end| front_end.take_news()) {
                host.front_end(news, &mut Context { driver: self, stack });
            }
        }
    }

    /// Ends the front-ends after the run: removes their devices, or leaves them for the next server. Returns a text about a device that was
    /// left, and why.
    ///
    /// # Errors
    /// In words, where a device could not be taken away.
    pub fn end_front_ends(&mut self) -> Result<Option<String>, String> {
        let ended: Vec<_> = (0..self.front_ends.len()).map(|index| self.end_front_end(index)).collect();
        let left: Vec<_> = ended.into_iter().collect::<Result<_, _>>()?;
        Ok(left.into_iter().flatten().next())
    }

    fn end_front_end(&mut self, index: usize) -> Result<Option<String>, String> {
        let unanswered = self.front_ends[index].unanswered;
        let mut ending = None;
        self.with_front_end(index, |front_end, _| ending = front_end.end(unanswered));
        while let Some(now) = ending.take() {
            let (task, removes) = match now {
                Ending::Leave(why) => return Ok(Some(why)),
                Ending::Failed(why) => return Err(why),
                Ending::Ask(task) => (task, false),
                Ending::Remove(task) => (task, true),
            };
            let result = self.run_to_end(task, removes);
            if !removes || result.is_err() {
                self.with_front_end(index, |it, actions| ending = Some(it.ended(result, actions)));
            } else if !self.given.is_empty() {
                return Err("the kernel does not give back the commands of a removed device".to_owned());
            } else if let Some(front_end) = self.front_ends[index].front_end.take() {
                front_end.close()?;
            }
        }
        Ok(None)
    }

    /// Serves the ring while a task runs; with `drains`, until the kernel has also given all commands back.
    fn run_to_end(&mut self, task: Task, drains: bool) -> io::Result<()> {
        let (ended, end) = mpsc::sync_channel(1);
        let run = move || {
            // Nobody waits any more where this fails.
            let _ = ended.send(task());
        };
        thread::Builder::new().name("dcd-control".to_owned()).spawn(run)?;
        let until = Instant::now() + END_MAX;
        let mut done: Option<io::Result<()>> = None;
        while Instant::now() < until {
            done = done.or_else(|| end.try_recv().ok());
            match &done {
                Some(Ok(())) if !drains || self.given.is_empty() => break,
                Some(Err(_)) => break,
                _ => {}
            }
            self.ring.enter(1, Some(END_INTERVAL))?;
            let mut completions = std::mem::take(&mut self.completions);
            self.ring.take(&mut completions);
            for completion in completions.drain(..) {
                if completion.token.kind == RingPurpose::Command {
                    self.command_completed(completion.token.index, completion.result);
                }
            }
            self.completions = completions;
        }
        done.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}
