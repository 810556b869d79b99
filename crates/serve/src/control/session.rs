//! The server's side of a control connection, sans-IO.
//!
//! A malformed line is answered with an error, and the connection continues. A line that is too long ends the connection.

use std::collections::BTreeMap;

use dcd_engine::IoResult;
use dcd_io::{Actions, ControlCall, FrontEnd, OutputPiece, SessionFactory};
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest line that is read: arguments are names and numbers.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Calls of one connection that are not answered; the command line makes one at a time.
pub const CALLS_MAX: usize = 16;

/// A line of a client.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientLine {
    #[serde(default)]
    id: Value,
    verb: String,
    args: Option<serde_json::Map<String, Value>>,
}

#[derive(Debug, Default)]
pub struct ControlSession {
    partial: Vec<u8>,
    /// The ids of the calls that are not answered, by token.
    calls: BTreeMap<u64, Value>,
    next_token: u64,
    ended: bool,
}

/// Makes the sessions of the control socket.
#[derive(Debug, Default)]
pub struct ControlFactory;

impl SessionFactory for ControlFactory {
    fn connect(&mut self) -> Box<dyn FrontEnd> {
        Box::new(ControlSession::default())
    }

    fn refusal(&self, clients_max: usize) -> Vec<u8> {
        let error = format!(
            "the server has {clients_max} other control connections, and takes no more: try again when some have ended"
        );
        format!("{}\n", json!({ "error": error })).into_bytes()
    }
}

impl FrontEnd for ControlSession {
    fn receive(&mut self, bytes: &[u8], actions: &mut Actions) {
        let mut rest = bytes;
        while !self.ended {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.keep(rest, actions);
                return;
            };
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.partial.is_empty() && line.len() <= LINE_BYTES_MAX {
                self.line(line, actions);
            } else {
                self.keep(line, actions);
                let line = std::mem::take(&mut self.partial);
                if !self.ended {
                    self.line(&line, actions);
                }
            }
        }
    }

    fn reply(&mut self, _token: u64, _result: IoResult, _actions: &mut Actions) {
        unreachable!("a control connection makes no requests");
    }

    fn call_reply(&mut self, token: u64, body: Value, done: bool, actions: &mut Actions) {
        if !done {
            let id = self.calls.get(&token).expect("a call is answered until it is done");
            return say(actions, id, "progress", body);
        }
        let id = self.calls.remove(&token).expect("a call is done once");
        match as_error(&body) {
            Some(text) => say(actions, &id, "error", text),
            None => say(actions, &id, "result", body),
        }
    }
}

impl ControlSession {
    fn keep(&mut self, part: &[u8], actions: &mut Actions) {
        if self.partial.len() + part.len() > LINE_BYTES_MAX {
            let text = format!("a line has at most {LINE_BYTES_MAX} bytes");
            say(actions, &Value::Null, "error", text.into());
            self.partial = Vec::new();
            self.ended = true;
            actions.close = true;
            return;
        }
        self.partial.extend_from_slice(part);
    }

    fn line(&mut self, line: &[u8], actions: &mut Actions) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let ClientLine { id, verb, args } = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => {
                let text =
                    format!("not a call ({error}); send {{\"verb\": \"status\"}} or the like, on one line");
                return say(actions, &Value::Null, "error", text.into());
            }
        };
        if self.calls.len() >= CALLS_MAX {
            let text = format!("{CALLS_MAX} calls are not answered yet; wait for one of them");
            return say(actions, &id, "error", text.into());
        }
        let token = self.next_token;
        self.next_token += 1;
        self.calls.insert(token, id);
        actions
            .calls
            .push(ControlCall { token, body: json!({ "verb": verb, "args": args.unwrap_or_default() }) });
    }
}

/// The text of a body that [`super::error`] has made.
fn as_error(body: &Value) -> Option<Value> {
    let object = body.as_object()?;
    let text = object.get("error")?;
    (object.len() == 1 && text.is_string()).then(|| text.clone())
}

fn say(actions: &mut Actions, id: &Value, what: &str, value: Value) {
    let mut line = json!({ "id": id, what: value }).to_string().into_bytes();
    line.push(b'\n');
    actions.send.push(OutputPiece::Bytes(line));
}

#[cfg(test)]
mod tests {

    use super::*;

    fn lines(actions: &Actions) -> Vec<Value> {
        let mut bytes = Vec::new();
        for piece in &actions.send {
            match piece {
                OutputPiece::Bytes(part) => bytes.extend_from_slice(part),
                OutputPiece::Buf(_) => panic!("control connections send text"),
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_call_comes_back_with_progress_and_its_own_id() {
        let mut session = ControlSession::default();
        let mut actions = Actions::default();
        for byte in b"{\"id\": \"x\", \"verb\": \"flush\", \"args\": {\"a\": 1}}\n\n" {
            session.receive(&[*byte], &mut actions);
        }
        assert_eq!(actions.calls.len(), 1);
        assert_eq!(actions.calls[0].body, json!({ "verb": "flush", "args": { "a": 1 } }));
        let token = actions.calls[0].token;
        session.call_reply(token, json!({ "dirty_bytes": 4096 }), false, &mut actions);
        session.call_reply(token, json!({ "dirty_bytes": 0 }), true, &mut actions);
        assert_eq!(
            lines(&actions),
            [
                json!({ "id": "x", "progress": { "dirty_bytes": 4096 } }),
                json!({ "id": "x", "result": { "dirty_bytes": 0 } })
            ]
        );
        assert!(!actions.close);
    }

    #[test]
    fn calls_are_answered_in_any_order_and_failures_say_so() {
        let mut session = ControlSession::default();
        let mut actions = Actions::default();
        session
            .receive(b"{\"id\":1,\"verb\":\"a\",\"args\":null}\n{\"id\":2,\"verb\":\"b\"}\n", &mut actions);
        assert_eq!(actions.calls[0].body, json!({ "verb": "a", "args": {} }));
        let tokens: Vec<u64> = actions.calls.iter().map(|call| call.token).collect();
        session.call_reply(tokens[1], super::super::error("no such verb"), true, &mut actions);
        session.call_reply(tokens[0], json!({ "error": "a field", "of": "many" }), true, &mut actions);
        assert_eq!(
            lines(&actions),
            [
                json!({ "id": 2, "error": "no such verb" }),
                json!({ "id": 1, "result": { "error": "a field", "of": "many" } })
            ]
        );
    }

    #[test]
    fn a_malformed_line_costs_only_itself() {
        for bad in [&b"{"[..], b"[]", b"{\"verb\": 3}", b"{\"verb\":\"a\",\"more\":1}", b"\xff\xfe", b"\0"] {
            let mut session = ControlSession::default();
            let mut actions = Actions::default();
            session.receive(&[bad, b"\n{\"verb\":\"status\"}\n"].concat(), &mut actions);
            assert!(lines(&actions)[0]["error"].as_str().unwrap().contains("not a call"), "{bad:?}");
            assert_eq!((actions.calls.len(), actions.close), (1, false), "{bad:?}");
        }
    }

    #[test]
    fn a_line_without_an_end_ends_the_connection() {
        let mut session = ControlSession::default();
        let mut actions = Actions::default();
        for _ in 0..=LINE_BYTES_MAX / 1000 {
            session.receive(&[b' '; 1000], &mut actions);
            assert!(session.partial.len() <= LINE_BYTES_MAX);
        }
        assert!(actions.close && lines(&actions)[0]["error"].as_str().unwrap().contains("at most"));
        session.receive(b"\n{\"verb\":\"status\"}\n", &mut actions);
        assert!(actions.calls.is_empty(), "nothing is taken after the end");
    }

    #[test]
    fn unanswered_calls_are_bounded() {
        let mut session = ControlSession::default();
        let mut actions = Actions::default();
        for _ in 0..CALLS_MAX + 1 {
            session.receive(b"{\"verb\":\"status\"}\n", &mut actions);
        }
        assert_eq!((actions.calls.len(), lines(&actions).len()), (CALLS_MAX, 1));
        session.call_reply(actions.calls[0].token, Value::Null, true, &mut actions);
        session.receive(b"{\"verb\":\"status\"}\n", &mut actions);
        assert_eq!(actions.calls.len(), CALLS_MAX + 1);
    }

    /// A change of a line that is a call.
    #[derive(Debug, bolero::TypeGenerator)]
    enum Damage {
        Insert(u8, Vec<u8>),
        Odd(u8, u8),
        Part(u8, u8),
        Drop(u8),
        Byte(u16, u8),
        Cut(u16),
    }

    /// The tokens of a call, and what is odd in one.
    const PARTS: [&str; 18] = [
        "{",
        "\"id\"",
        ":",
        "7",
        ",",
        "\"verb\"",
        ":",
        "\"set\"",
        ",",
        "\"args\"",
        ":",
        "{",
        "\"layer\"",
        ":",
        "[1e9, -0, null, \"\\u00e9\"]",
        "}",
        "}",
        "\n",
    ];
    const ODD: [&str; 8] =
        ["1e999", "\"\\ud800\"", "\"\\u0000\"", "-", "null", "\"verb\": \"x\",", "[[[[[[[[", "\u{feff}"];

    fn damaged(damages: &[Damage]) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = PARTS.map(|part| part.as_bytes().to_vec()).into();
        for damage in damages {
            let at = |place: u8| usize::from(place) % PARTS.len();
            match damage {
                Damage::Insert(place, bytes) => parts[at(*place)].extend_from_slice(bytes),
                Damage::Odd(place, odd) => {
                    parts[at(*place)] = ODD[usize::from(*odd) % ODD.len()].into();
                }
                Damage::Part(place, other) => parts[at(*place)] = PARTS[at(*other)].into(),
                Damage::Drop(place) => parts[at(*place)].clear(),
                Damage::Byte(..) | Damage::Cut(_) => {}
            }
        }
        let mut line = parts.concat();
        for damage in damages {
            let len = line.len().max(1);
            match *damage {
                Damage::Byte(at, byte) if !line.is_empty() => line[usize::from(at) % len] = byte,
                Damage::Cut(at) => line.truncate(usize::from(at) % len),
                _ => {}
            }
        }
        line
    }

    /// Calls that are damaged, and arrive in pieces: `cargo bolero test -p dcd-serve any_lines_are_calls_or_errors`.
    #[test]
    fn any_lines_are_calls_or_errors() {
        type Lines = Vec<(Vec<Damage>, bool)>;
        bolero::check!().with_type().for_each(|(lines, piece): &(Lines, u8)| {
            let mut session = ControlSession::default();
            let mut actions = Actions::default();
            let bytes = lines.iter().flat_map(|(damages, whole)| match whole {
                true => damaged(&[]),
                false => damaged(&damages[..damages.len() % 6]),
            });
            for chunk in bytes.collect::<Vec<u8>>().chunks(usize::from(*piece) + 1) {
                session.receive(chunk, &mut actions);
                assert!(session.partial.len() <= LINE_BYTES_MAX && session.calls.len() <= CALLS_MAX);
            }
            assert!(super::tests::lines(&actions).iter().all(|line| line["error"].is_string()));
            for call in std::mem::take(&mut actions.calls) {
                assert!(call.body["verb"].is_string() && call.body["args"].is_object(), "{:?}", call.body);
                session.call_reply(call.token, Value::Null, true, &mut actions);
            }
            assert!(session.calls.is_empty(), "each call is answered");
        });
    }
}
