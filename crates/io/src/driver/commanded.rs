//! The front-end whose requests come as ends of commands in the ring (ublk): the kernel keeps a command until a client has a request for
//! its slot, and the answer goes out with the next command of that slot. So a request costs one entry, and no copy here.
//!
//! Each command has one buffer, which is the kernel's while it has the command.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dcd_engine::{IoResult, Nanos, Stack};
use io_uring::{opcode, types};

use super::{Context, Driver, Host, Origin};
use crate::ring::{Kind, Token};
use crate::session::{Command, CommandSource, Ending, Task};
use crate::{Actions, workers};

/// Maximum time for the end of a front-end: its task is bounded itself.
const END_MAX: Duration = Duration::from_secs(40);
/// Interval of checks whether the ending task is complete.
const END_INTERVAL: Duration = Duration::from_millis(5);

pub(super) struct Commanded {
    pub source: Box<dyn CommandSource>,
    /// Time of the last request.
    pub heard: Nanos,
    /// Number of requests that are not answered.
    pub unanswered: usize,
}

impl Driver {
    /// Adds the front-end in the ring. Its first commands are submitted together, by one system call. The host is told when it is ready.
    ///
    /// # Errors
    /// If the ring fails, the front-end fails after its first commands, or there is no thread for its task.
    ///
    /// # Panics
    /// If there is one already.
    pub fn add_command_source(&mut self, source: Box<dyn CommandSource>) -> io::Result<()> {
        assert!(self.commanded.is_none(), "a driver has one such front-end");
        let heard = self.elapsed();
        self.commanded = Some(Commanded { source, heard, unanswered: 0 });
        self.with_commanded(|source, actions| source.begin(actions));
        self.ring.enter(0, Some(Duration::ZERO))?;
        let task = self.commanded.as_mut().expect("just added").source.begun()?;
        workers::run_task(&self.finished_by_workers, task)
    }

    /// Returns the status of the front-end in the ring.
    pub fn command_source_status(&self) -> Option<serde_json::Value> {
        self.commanded.as_ref().map(|commanded| commanded.source.status())
    }

    fn with_commanded(&mut self, call: impl FnOnce(&mut dyn CommandSource, &mut Actions)) {
        let Some(mut commanded) = self.commanded.take() else { return };
        let mut actions = self.spare_actions.pop().unwrap_or_default();
        call(commanded.source.as_mut(), &mut actions);
        for command in actions.commands.drain(..) {
            self.push_command(commanded.source.as_ref(), command);
        }
        if !actions.requests.is_empty() {
            commanded.heard = self.now;
        }
        for (token, io) in actions.requests.drain(..) {
            if self.stopping.is_some() {
                commanded.source.hold(token, io);
            } else {
                commanded.unanswered += 1;
                self.request(Origin::Commanded { token }, io);
            }
        }
        self.commanded = Some(commanded);
        self.spare_actions.push(actions);
    }

    /// Commands that the kernel has.
    pub(super) fn commands_in_flight(&self) -> usize {
        self.given.iter().flatten().count()
    }

    fn push_command(&mut self, source: &dyn CommandSource, command: Command) {
        let Command { slot, op, head, mut buf } = command;
        assert!(buf.has_room(source.buffer_bytes()), "the kernel may fill the buffer of a command");
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&head);
        bytes[8..].copy_from_slice(&(buf.bytes_mut().as_mut_ptr() as u64).to_ne_bytes());
        let entry = opcode::UringCmd16::new(types::Fd(source.fd()), op).cmd(bytes).build();
        if self.given.len() <= slot {
            self.given.resize_with(slot + 1, || None);
        }
        let before = self.given[slot].replace(buf);
        assert!(before.is_none(), "a slot has one command at a time");
        // SAFETY: the buffer lies on the heap, is owned (it has room), and stays in `given` until the command has ended (or for ever: see
        // the driver's `Drop`). `given` is the driver's, and not the front-end's, so it stays where a call of the front-end panics. The
        // kernel was told how large the buffer is.
        unsafe { self.ring.push(entry, Token::new(Kind::Command, slot)) };
    }

    pub(super) fn command_completed(&mut self, slot: usize, result: i32) {
        let buf = self.given[slot].take().expect("a command ends once");
        self.with_commanded(|source, actions| source.completed(slot, result, buf, actions));
    }

    pub(super) fn answer_command(&mut self, token: u64, result: IoResult) {
        if let Some(commanded) = &mut self.commanded {
            commanded.unanswered -= 1;
        }
        self.with_commanded(|source, actions| source.reply(token, result, actions));
    }

    /// Passes news of the front-end to the host.
    pub(super) fn tell_of_commanded(
        &mut self,
        stack: &mut Stack,
        host: &mut dyn Host,
        task: Option<io::Result<()>>,
    ) {
        let Some(commanded) = &mut self.commanded else { return };
        if let Some(ended) = task {
            commanded.source.task_ended(ended);
        }
        if let Some(news) = commanded.source.take_news() {
            host.front_end(news, &mut Context { driver: self, stack });
        }
    }

    /// Ends the front-end in the ring after the run: removes its device, or leaves it for the next server. Returns a text about a device
    /// that was left, and why.
    ///
    /// # Errors
    /// In words, where the device could not be taken away.
    pub fn end_command_source(&mut self) -> Result<Option<String>, String> {
        let Some(commanded) = &mut self.commanded else { return Ok(None) };
        let mut ending = commanded.source.end(commanded.unanswered);
        let task = loop {
            match ending {
                Ending::Leave(why) => return Ok(Some(why)),
                Ending::Remove(task) => break task,
                Ending::Ask(task) => {
                    let answer = self.run_to_end(task, false);
                    ending = Ending::Leave(String::new());
                    self.with_commanded(|source, actions| ending = source.asked(answer, actions));
                }
            }
        };
        match self.run_to_end(task, true) {
            Ok(()) => {}
            Err(error) => {
                let commanded = self.commanded.as_ref().expect("it stays until it is removed");
                return commanded.source.not_removed(&error).map(Some);
            }
        }
        if self.commands_in_flight() > 0 {
            return Err("the kernel does not give back the commands of a removed device".to_owned());
        }
        let commanded = self.commanded.take().expect("it stays until it is removed");
        commanded.source.close().map(|()| None)
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
                Some(Ok(())) if !drains || self.commands_in_flight() == 0 => break,
                Some(Err(_)) => break,
                _ => {}
            }
            self.ring.enter(1, Some(END_INTERVAL))?;
            let mut completions = std::mem::take(&mut self.completions);
            self.ring.take(&mut completions);
            for completion in completions.drain(..) {
                if completion.token.kind == Kind::Command {
                    self.command_completed(completion.token.index, completion.result);
                }
            }
            self.completions = completions;
        }
        done.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Leaks the buffers that the kernel still has at the end of the driver.
    pub(super) fn forget_commands(&mut self) {
        self.given.drain(..).for_each(std::mem::forget);
    }
}
