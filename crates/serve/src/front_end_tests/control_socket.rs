//! The control session and its client over a real socket.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use dcd_io::{Actions, FrontEnd, OutputPiece};
use dcd_serve::control::{self, ClientError, ControlClient, ControlSession};
use serde_json::{Value, json};

/// Serves one client at a time, with a host that knows three verbs.
fn serve() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| carry(stream.unwrap())));
    (directory, socket)
}

fn carry(mut stream: UnixStream) {
    let (mut session, mut actions) = (ControlSession::default(), Actions::default());
    let mut bytes = [0; 7];
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        session.receive(&bytes[..read], &mut actions);
        for call in std::mem::take(&mut actions.calls) {
            host(&mut session, call.token, &call.body, &mut actions);
        }
        for piece in actions.send.drain(..) {
            let OutputPiece::Bytes(bytes) = piece else { panic!("control connections send text") };
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
        if actions.close {
            return;
        }
    }
}

fn host(session: &mut ControlSession, token: u64, body: &Value, actions: &mut Actions) {
    match body["verb"].as_str() {
        Some("echo") => session.call_reply(token, body["args"].clone(), true, actions),
        Some("flush") => {
            for left in (1..4).rev() {
                session.call_reply(token, json!({ "dirty_bytes": left }), false, actions);
            }
            session.call_reply(token, Value::Null, true, actions);
        }
        _ => session.call_reply(token, control::error("no such verb"), true, actions),
    }
}

fn never(_: &Value) -> ControlFlow<()> {
    panic!("no progress here")
}

#[test]
fn calls_progress_and_refusals() {
    let (_directory, socket) = serve();
    let mut client = ControlClient::connect(&socket).unwrap();
    let args = json!({ "text": "line\nbreak \u{1f600}" });
    assert_eq!(client.call("echo", args.clone(), never).unwrap(), args);
    let mut seen = Vec::new();
    let result = client.call("flush", json!({}), |progress| {
        seen.push(progress["dirty_bytes"].as_u64().unwrap());
        ControlFlow::Continue(())
    });
    assert_eq!((result.unwrap(), seen), (Value::Null, vec![3, 2, 1]));
    let refused = client.call("dance", json!({}), never).unwrap_err();
    assert!(matches!(refused, ClientError::Refused(text) if text == "no such verb"));
    let unreadable = client.call("echo", json!([1]), never).unwrap_err();
    assert!(matches!(unreadable, ClientError::Refused(text) if text.contains("not a call")));
    assert_eq!(client.call("echo", json!({}), never).unwrap(), json!({}), "the connection goes on");
}

#[test]
fn a_call_can_be_given_up() {
    let (_directory, socket) = serve();
    let mut client = ControlClient::connect(&socket).unwrap();
    let result = client.call("flush", json!({}), |_| ControlFlow::Break(()));
    assert!(matches!(result, Err(ClientError::GivenUp)));
    drop(client);
    let mut other = ControlClient::connect(&socket).unwrap();
    assert_eq!(other.call("echo", json!({ "a": 1 }), never).unwrap(), json!({ "a": 1 }));
}
