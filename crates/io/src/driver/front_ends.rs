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

/// Step of a front-end that ends while the driver goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndStep {
    /// A task finds out whether it may.
    Asking,
    /// Ends once the others of its disk may.
    Ready,
    /// A task removes the device, and the kernel gives all commands back.
    Removing,
    Removed,
    /// The rest of the work is done on a thread, for this disk.
    Closing(usize),
}

pub(super) struct ServedFrontEnd {
    /// None while it is being called, and once it is closed.
    pub front_end: Option<Box<dyn FrontEnd>>,
    /// Time of the last request.
    pub heard: Nanos,
    /// Number of requests that are not answered.
    pub unanswered: usize,
    /// None unless it ends while the driver goes on.
    ends: Option<EndStep>,
    /// The task that removes its device, once all of its disk may end.
    removal: Option<Task>,
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
        self.front_ends.push(ServedFrontEnd {
            front_end: Some(front_end),
            heard,
            unanswered: 0,
            ends: None,
            removal: None,
        });
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

    /// Begins to end the front-ends of a disk; true if that is under way, and [`Host::front_ends_ended`] tells its end.
    pub(super) fn begin_end_of(&mut self, disk: usize) -> bool {
        let all = self.of_disk(disk);
        for index in &all {
            self.front_ends[*index].ends = Some(EndStep::Ready);
        }
        for index in &all {
            let unanswered = self.front_ends[*index].unanswered;
            let mut ending = None;
            self.with_front_end(*index, |front_end, _| ending = front_end.end(unanswered));
            if let Some(ending) = ending {
                self.end_step(*index, ending);
            }
        }
        self.remove_if_ready(disk);
        !all.is_empty()
    }

    /// The front-ends of a disk.
    fn of_disk(&self, disk: usize) -> Vec<usize> {
        let is_of = |served: &ServedFrontEnd| served.front_end.as_ref().is_some_and(|it| it.disk() == disk);
        (0..self.front_ends.len()).filter(|at| is_of(&self.front_ends[*at])).collect()
    }

    /// Ends the front-ends of a disk once all of them may end.
    fn remove_if_ready(&mut self, disk: usize) {
        let all = self.of_disk(disk);
        if all.is_empty() || all.iter().any(|index| self.front_ends[*index].ends != Some(EndStep::Ready)) {
            return;
        }
        // One that was not asked may still be in use.
        for index in
            all.iter().copied().filter(|index| self.front_ends[*index].removal.is_none()).collect::<Vec<_>>()
        {
            let mut ending = None;
            self.with_front_end(index, |front_end, _| ending = Some(front_end.withdraw()));
            match ending {
                Some(Ending::Remove(task)) => self.front_ends[index].removal = Some(task),
                other => return self.stay(disk, other),
            }
        }
        for index in all {
            let Some(task) = self.front_ends[index].removal.take() else { continue };
            self.run_end(index, EndStep::Removing, task);
        }
    }

    /// Goes on with all front-ends of a disk, of which one cannot end.
    fn stay(&mut self, disk: usize, ending: Option<Ending>) {
        let why = match ending {
            Some(Ending::Failed(why)) => why,
            _ => "it is in use".to_owned(),
        };
        for index in self.of_disk(disk) {
            (self.front_ends[index].ends, self.front_ends[index].removal) = (None, None);
            self.with_front_end(index, |front_end, actions| front_end.stay(actions));
        }
        self.ended_of.push((disk, Err(why)));
    }

    fn run_end(&mut self, index: usize, step: EndStep, task: Task) {
        self.front_ends[index].ends = Some(step);
        if let Err(error) = workers::run_task(&self.finished_by_workers, index, task) {
            self.end_task_ended(index, step, Err(error));
        }
    }

    /// Goes on with the end of a front-end.
    fn end_step(&mut self, index: usize, ending: Ending) {
        // Another one of the disk may have decided already that all stay.
        let served = &mut self.front_ends[index];
        let disk = served.front_end.as_ref().filter(|_| served.ends.is_some()).map(|it| it.disk());
        let Some(disk) = disk else { return };
        match ending {
            Ending::Ask(task) => self.run_end(index, EndStep::Asking, task),
            Ending::Remove(task) => {
                (served.ends, served.removal) = (Some(EndStep::Ready), Some(task));
                self.remove_if_ready(disk);
            }
            ending => self.stay(disk, Some(ending)),
        }
    }

    /// Takes the end of a front-end's task.
    pub(super) fn task_ended(&mut self, index: usize, ended: io::Result<()>) {
        match self.front_ends[index].ends {
            Some(EndStep::Closing(disk)) => {
                self.ended_of.push((disk, ended.map_err(|error| error.to_string())));
            }
            Some(step) => self.end_task_ended(index, step, ended),
            None => self.with_front_end(index, |front_end, _| front_end.task_ended(ended)),
        }
    }

    fn end_task_ended(&mut self, index: usize, step: EndStep, ended: io::Result<()>) {
        if step == EndStep::Removing && ended.is_ok() {
            self.front_ends[index].ends = Some(EndStep::Removed);
            return self.close_ended(index);
        }
        let mut ending = None;
        self.with_front_end(index, |it, actions| ending = Some(it.ended(ended, actions)));
        if let Some(ending) = ending {
            self.end_step(index, ending);
        }
    }

    /// Drops a front-end whose device is removed, once the kernel has given its commands back.
    fn close_ended(&mut self, index: usize) {
        let is_waiting = self.given.iter().any(|(_, command)| command.front_end == index);
        if self.front_ends[index].ends != Some(EndStep::Removed) || is_waiting {
            return;
        }
        if let Some(front_end) = self.front_ends[index].front_end.take() {
            let disk = front_end.disk();
            let close = front_end.close();
            self.front_ends[index].ends = Some(EndStep::Closing(disk));
            let task: Task = Box::new(move || close().map_err(io::Error::other));
            if let Err(error) = workers::run_task(&self.finished_by_workers, index, task) {
                self.ended_of.push((disk, Err(error.to_string())));
            }
        }
    }

    /// Tells the host of disks whose front-ends have all ended, or of one that stays.
    pub(super) fn tell_ended(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        for (disk, result) in std::mem::take(&mut self.ended_of) {
            let is_of =
                |served: &ServedFrontEnd| served.front_end.as_ref().is_some_and(|it| it.disk() == disk);
            if result.is_err() || !self.front_ends.iter().any(is_of) {
                host.front_ends_ended(disk, result, &mut Context { driver: self, stack });
            }
        }
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
        self.close_ended(front_end);
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
                let disk = self.front_ends[index].front_end.as_ref().map_or(0, |it| it.disk());
                host.front_end(disk, news, &mut Context { driver: self, stack });
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
                front_end.close()()?;
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
