//! `dcd top`: served stacks, live. A thread for each stack asks its server every second, so that a server that hangs delays neither the
//! others nor the keys.

mod history;
mod screen;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use dcd_serve::control::ControlClient;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;

use crate::cli::Top;
use crate::control;
use crate::failure::Failure;
use crate::session::serving::status::ServerStatus;
use history::History;

/// Polling interval of servers.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that a key waits for the screen.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Answer of a server, or the reason that there is none.
struct PolledStatus {
    stack: usize,
    asked: Instant,
    status: Result<ServerStatus, String>,
}

/// A stack on the screen.
struct ShownStack {
    name: String,
    history: History,
    /// Reason that the server cannot be asked at the moment.
    error: Option<String>,
}

/// Content of the screen.
#[derive(Default)]
struct TopView {
    stacks: Vec<ShownStack>,
    chosen: usize,
}

impl TopView {
    fn take(&mut self, answer: PolledStatus) {
        let stack = &mut self.stacks[answer.stack];
        match answer.status {
            Ok(status) => {
                stack.name = status.name();
                stack.error = None;
                stack.history.note(answer.asked, status);
            }
            Err(error) => stack.error = Some(error),
        }
    }

    /// Handles a key; false if it ends the program.
    fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> bool {
        let last = self.stacks.len().saturating_sub(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.chosen = (self.chosen + 1).min(last),
            _ => {}
        }
        true
    }
}

pub fn run(args: &Top) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::Failed("dcd top needs a terminal; dcd status prints the same once".to_owned()));
    }
    let stacks = stacks(&args.files)?;
    // Done before any thread is started, so that all threads block the signals.
    let told = dcd_io::on_interrupt(|| {
        ratatui::restore();
        // The end of the drawing thread would do this, but the program exits here.
        let _ = execute!(std::io::stdout(), Show);
        std::process::exit(1);
    });
    told.map_err(|error| Failure::io("signals", error))?;
    let (sender, answers) = channel();
    let mut view = TopView::default();
    for (stack, (name, client)) in stacks.into_iter().enumerate() {
        view.stacks.push(ShownStack { name: name.clone(), history: History::default(), error: None });
        let sender = sender.clone();
        let spawned = thread::Builder::new().name(name).spawn(move || watch(stack, client, &sender));
        spawned.map_err(|error| Failure::io("a thread for a stack", error))?;
    }
    let terminal = ratatui::try_init().map_err(|error| Failure::io("the terminal", error))?;
    let shown = show(terminal, view, &answers);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(|error| Failure::io("the terminal", error))
}

/// Connects to a server by its control socket, and again after the server was gone.
type Connect = Box<dyn Fn() -> Result<ControlClient, Failure> + Send>;

fn stacks(files: &[PathBuf]) -> Result<Vec<(String, Connect)>, Failure> {
    let sockets = control::sockets_of(files)?;
    if sockets.is_empty() {
        return Err(Failure::Failed(
            "no stack is served (looked for in /etc/dcd and /run/dcd): name others".to_owned(),
        ));
    }
    // The server of a stack file that was named is checked to be its own.
    let asked = if files.is_empty() { &sockets } else { files };
    let named = |(socket, asked): (&PathBuf, &PathBuf)| {
        let name = socket.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let asked = asked.clone();
        (name, Box::new(move || control::connect(&asked)) as Connect)
    };
    Ok(sockets.iter().zip(asked).map(named).collect())
}

/// Asks the server until the receiver is dropped.
fn watch(stack: usize, connect: Connect, answers: &Sender<PolledStatus>) {
    let mut client: Option<ControlClient> = None;
    loop {
        let asked = Instant::now();
        let connected = client.take().map_or_else(&connect, Ok);
        let status = connected.and_then(|mut connected| {
            let status = ServerStatus::ask(&mut connected)?;
            client = Some(connected);
            Ok(status)
        });
        let status = status.map_err(|failure| failure.to_string());
        if answers.send(PolledStatus { stack, asked, status }).is_err() {
            return;
        }
        thread::sleep(INTERVAL.saturating_sub(asked.elapsed()));
    }
}

fn show(
    mut terminal: DefaultTerminal,
    mut view: TopView,
    answers: &Receiver<PolledStatus>,
) -> std::io::Result<()> {
    let mut is_old = true;
    loop {
        for answer in answers.try_iter() {
            view.take(answer);
            is_old = true;
        }
        if std::mem::take(&mut is_old) {
            terminal.draw(|frame| screen::draw(frame, &view))?;
        }
        if event::poll(KEY_WAIT)? {
            // A key was pressed, or the terminal was resized.
            is_old = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && !view.key(key.code, key.modifiers)
            {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
#[path = "top_tests.rs"]
mod tests;
