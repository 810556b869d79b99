//! The client's side: blocking, for the command line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

/// The longest answer that is read: a status of very many layers is far below it.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum time for a server to accept a caller, and to send the first answer or progress of a call that it answers immediately.
const FIRST_ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Verb that is answered only once the members of an array have recorded a change, which may take long on slow disks.
const ARRAY: &str = "array";

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("not served: no server on {path}")]
    NotServed { path: PathBuf },
    #[error("control socket {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("the server closed {path} before it answered; its own messages say why")]
    Closed { path: PathBuf },
    #[error("{path} sent a malformed answer ({detail}): check that it is a control socket of dcd")]
    Malformed { path: PathBuf, detail: String },
    #[error(
        "{path}: the server has said nothing for {seconds} s: its process is stopped (\"kill -CONT\" lets it go on), or hangs"
    )]
    Silent { path: PathBuf, seconds: u64 },
    #[error("{0}")]
    Refused(String),
    #[error("the call was abandoned")]
    GivenUp,
}

/// A connection to a server's control socket.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    next_id: u64,
    patience: Duration,
}

impl ControlClient {
    /// Returns the process of the server, if the kernel tells.
    pub fn server_process(&self) -> Option<i32> {
        let peer = rustix::net::sockopt::socket_peercred(self.stream.get_ref()).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    pub fn connect(path: &Path) -> Result<ControlClient, ClientError> {
        ControlClient::connect_within(path, FIRST_ANSWER_PATIENCE)
    }

    fn connect_within(path: &Path, patience: Duration) -> Result<ControlClient, ClientError> {
        let stream = connected(path, patience).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotServed { path: path.to_owned() }
            }
            // The queue of waiting callers is full, and the server accepts none.
            io::ErrorKind::WouldBlock => {
                ClientError::Silent { path: path.to_owned(), seconds: patience.as_secs() }
            }
            _ => ClientError::Io { path: path.to_owned(), source },
        })?;
        Ok(ControlClient { path: path.to_owned(), stream: BufReader::new(stream), next_id: 1, patience })
    }

    /// Makes a call and waits for its end. `progress` gets the server's reports until then. If it breaks, the call is abandoned,
    /// and the caller must drop the connection, which tells the server.
    pub fn call(
        &mut self,
        verb: &str,
        args: Value,
        mut progress: impl FnMut(&Value) -> ControlFlow<()>,
    ) -> Result<Value, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        let mut line = json!({ "id": id, "verb": verb, "args": args }).to_string();
        line.push('\n');
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // The server has closed the connection, but may have sent the reason before.
            Err(error) if is_closed(&error) => {}
            written => written.map_err(|source| self.io(source))?,
        }
        self.wait_at_most((verb != ARRAY).then_some(self.patience))?;
        loop {
            let mut answer = self.answer()?;
            self.wait_at_most(None)?;
            let object = answer.as_object_mut().ok_or_else(|| self.malformed("not an object"))?;
            if let Some(text) = object.get("error") {
                // An error without an id is the answer to a line that the server could not read.
                return Err(ClientError::Refused(text.as_str().unwrap_or("unknown error").to_owned()));
            }
            if object.get("id") != Some(&json!(id)) {
                return Err(self.malformed("the answer to another call"));
            }
            if let Some(result) = object.remove("result") {
                return Ok(result);
            }
            let seen = object.get("progress").ok_or_else(|| self.malformed("neither result nor progress"))?;
            if progress(seen).is_break() {
                return Err(ClientError::GivenUp);
            }
        }
    }

    /// Waits until the server has closed the connection: it does so when it ends.
    pub fn wait_for_end(&mut self) -> Result<(), ClientError> {
        self.wait_at_most(None)?;
        match io::copy(&mut self.stream, &mut io::sink()) {
            Err(source) if source.kind() != io::ErrorKind::ConnectionReset => Err(self.io(source)),
            _ => Ok(()),
        }
    }

    fn wait_at_most(&self, patience: Option<Duration>) -> Result<(), ClientError> {
        self.stream.get_ref().set_read_timeout(patience).map_err(|source| self.io(source))
    }

    fn answer(&mut self) -> Result<Value, ClientError> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|source| match is_closed(&source) {
            true => ClientError::Closed { path: self.path.clone() },
            false => self.io(source),
        })?;
        if line.is_empty() {
            return Err(ClientError::Closed { path: self.path.clone() });
        }
        serde_json::from_slice(&line).map_err(|error| self.malformed(&error.to_string()))
    }

    fn io(&self, source: io::Error) -> ClientError {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Silent { path: self.path.clone(), seconds: self.patience.as_secs() }
            }
            _ => ClientError::Io { path: self.path.clone(), source },
        }
    }

    fn malformed(&self, detail: &str) -> ClientError {
        ClientError::Malformed { path: self.path.clone(), detail: detail.to_owned() }
    }
}

/// Connects a socket that waits at most for `patience`, for the server's other callers and for space to send.
fn connected(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Answers one line of one client with `answer`, and returns what the client said.
    fn serve_once(path: &Path, answer: &'static str) -> thread::JoinHandle<String> {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            line
        })
    }

    fn call_answered(answer: &'static str) -> (Result<Value, ClientError>, Vec<Value>, Value) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let server = serve_once(&path, answer);
        let mut seen = Vec::new();
        let result = ControlClient::connect(&path).unwrap().call("flush", json!({ "a": 1 }), |value| {
            seen.push(value.clone());
            ControlFlow::Continue(())
        });
        (result, seen, serde_json::from_str(&server.join().unwrap()).unwrap())
    }

    #[test]
    fn a_call_returns_its_result_after_its_progress() {
        let (result, seen, said) =
            call_answered("{\"id\":1,\"progress\":7}\n{\"id\":1,\"result\":{\"b\":2}}\n");
        assert_eq!(result.unwrap(), json!({ "b": 2 }));
        assert_eq!(seen, [json!(7)]);
        assert_eq!(said, json!({ "id": 1, "verb": "flush", "args": { "a": 1 } }));
    }

    #[test]
    fn a_silent_server_is_waited_for_only_until_it_says_something() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let connect = || ControlClient {
            patience: Duration::from_millis(50),
            ..ControlClient::connect(&path).unwrap()
        };
        // The kernel lets it in, and nobody reads.
        let status = connect().call("status", json!({}), |_| ControlFlow::Continue(()));
        assert!(matches!(status, Err(ClientError::Silent { .. })), "{status:?}");
        drop(listener.accept().unwrap());
        // Progress at once, and the end much later; and a call to an array, which has none.
        for (verb, first) in [("flush", "{\"id\":1,\"progress\":1}\n"), ("array", "")] {
            let mut client = connect();
            let (mut stream, _) = listener.accept().unwrap();
            let server = thread::spawn(move || {
                stream.write_all(first.as_bytes()).unwrap();
                thread::sleep(Duration::from_millis(200));
                stream.write_all(b"{\"id\":1,\"result\":2}\n").unwrap();
            });
            assert_eq!(client.call(verb, json!({}), |_| ControlFlow::Continue(())).unwrap(), 2, "{verb}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_server_that_lets_nobody_in_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        let late = ControlClient::connect_within(&path, Duration::from_millis(50));
        assert!(matches!(late, Err(ClientError::Silent { .. })), "{late:?}");
    }

    #[test]
    fn a_server_that_turns_a_client_away_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        for words in ["{\"error\":\"too many\"}\n", ""] {
            let mut client = ControlClient::connect(&path).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(words.as_bytes()).unwrap();
            drop(stream);
            match client.call("status", json!({}), |_| ControlFlow::Continue(())) {
                Err(ClientError::Refused(why)) => assert_eq!(why, "too many"),
                Err(ClientError::Closed { .. }) => assert_eq!(words, ""),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn failures_are_told_apart() {
        let error = |answer| call_answered(answer).0.unwrap_err();
        assert!(matches!(error("{\"id\":1,\"error\":\"no\"}\n"), ClientError::Refused(text) if text == "no"));
        assert!(matches!(error(""), ClientError::Closed { .. }));
        assert!(matches!(error("{\"id\":1,\"progress\":1}\n"), ClientError::Closed { .. }));
        assert!(matches!(error("{\"id\":2,\"result\":1}\n"), ClientError::Malformed { .. }));
        assert!(matches!(error("NBDMAGIC\n"), ClientError::Malformed { .. }));
        let nowhere = ControlClient::connect(Path::new("/nonexistent/control.sock")).unwrap_err();
        assert!(matches!(nowhere, ClientError::NotServed { .. }));
    }
}
