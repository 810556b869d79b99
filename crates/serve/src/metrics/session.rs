//! Serves an HTTP connection, sans-IO. Understands as much of HTTP as a scrape needs: a head, no body.

use dcd_engine::IoResult;
use dcd_io::{Actions, ControlCall, FrontEnd, FrontEndCondition, OutputPiece, SessionFactory};
use serde_json::{Value, json};

/// The longest head of a request that is read; that of a scrape has some 300 bytes.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The only call that a connection makes.
const TOKEN: u64 = 0;
const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The text format of Prometheus, for a client that does not ask for OpenMetrics.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An HTTP connection.
#[derive(Debug, Default)]
pub struct MetricsSession {
    head: Vec<u8>,
    /// True if the request has arrived or was refused: nothing more is read.
    asked: bool,
    /// True if the client wants only the head of the answer.
    head_only: bool,
    /// True if the client accepts OpenMetrics.
    openmetrics: bool,
}

/// Makes the sessions of the metrics' socket.
#[derive(Debug, Default)]
pub struct MetricsFactory;

impl SessionFactory for MetricsFactory {
    fn connect(&mut self) -> Box<dyn FrontEnd> {
        Box::new(MetricsSession::default())
    }
}

impl FrontEnd for MetricsSession {
    fn receive(&mut self, bytes: &[u8], actions: &mut Actions) {
        if self.asked {
            return;
        }
        let searched = self.head.len().saturating_sub(END.len() - 1);
        let room = REQUEST_BYTES_MAX - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let ends = self.head[searched..].windows(END.len()).any(|part| part == END);
        if ends {
            self.request(actions);
        } else if self.head.len() == REQUEST_BYTES_MAX {
            let text = format!("the request is too long: it may have at most {REQUEST_BYTES_MAX} bytes\n");
            self.answer("431 Request Header Fields Too Large", TEXT, &text, actions);
        }
    }

    fn reply(&mut self, _token: u64, _result: IoResult, _actions: &mut Actions) {
        unreachable!("a scrape makes no requests of the stack");
    }

    fn call_reply(&mut self, _token: u64, body: Value, done: bool, actions: &mut Actions) {
        match body {
            _ if !done => {}
            Value::String(text) if self.openmetrics => self.answer("200 OK", OPENMETRICS, &text, actions),
            Value::String(text) => self.answer("200 OK", PROMETHEUS, &prometheus(&text), actions),
            other => self.answer("503 Service Unavailable", TEXT, &format!("{other}\n"), actions),
        }
    }

    fn condition(&self) -> FrontEndCondition {
        FrontEndCondition {
            is_established: self.asked,
            is_saturated: self.asked,
            ..FrontEndCondition::default()
        }
    }
}

/// OpenMetrics in the text format of Prometheus: there a counter is named as its samples are, what OpenMetrics calls an info is a gauge,
/// and units and the end have no lines.
fn prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    // The help of a family comes before its type.
    let mut help = "";
    for line in openmetrics.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), ..) => help = line,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                let about = help.splitn(4, ' ').nth(3).unwrap_or_default();
                text.push_str(&format!("# HELP {name}{suffix} {about}\n# TYPE {name}{suffix} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// True if OpenMetrics is accepted, and no other format before it: by the weights, and by the order where they are equal.
fn prefers_openmetrics<'a>(accepted: impl Iterator<Item = &'a str>) -> bool {
    let mut best = (0.0, false);
    for range in accepted {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        // A weight that cannot be read is no reason to refuse.
        let weight = weight.map_or(1.0, |weight| weight.trim().parse().unwrap_or(1.0));
        if weight > best.0 {
            best = (weight, kind.eq_ignore_ascii_case("application/openmetrics-text"));
        }
    }
    best.1
}

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

impl MetricsSession {
    fn request(&mut self, actions: &mut Actions) {
        let head = String::from_utf8_lossy(&self.head).into_owned();
        let mut words = head.lines().next().unwrap_or("").split(' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let path = target.map(|target| target.split('?').next().unwrap_or(""));
        self.head_only = method == Some("HEAD");
        let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let accepted = fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
        self.openmetrics = prefers_openmetrics(accepted.flat_map(|(_, kinds)| kinds.split(',')));
        match (method, path, version) {
            (_, _, None) => self.answer("400 Bad Request", TEXT, "this is not an HTTP request\n", actions),
            (Some("GET" | "HEAD"), Some("/metrics"), _) => {
                self.asked = true;
                actions.calls.push(ControlCall { token: TOKEN, body: json!({ "verb": "metrics" }) });
            }
            (Some("GET" | "HEAD"), ..) => {
                self.answer("404 Not Found", TEXT, "metrics of dcd are at /metrics\n", actions);
            }
            _ => self.answer(
                "405 Method Not Allowed",
                TEXT,
                "metrics can only be read: GET /metrics\n",
                actions,
            ),
        }
    }

    /// Answers and closes.
    fn answer(&mut self, status: &str, kind: &str, text: &str, actions: &mut Actions) {
        self.asked = true;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            text.len()
        );
        if !self.head_only {
            answer.push_str(text);
        }
        actions.send.push(OutputPiece::Bytes(answer.into_bytes()));
        actions.close = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the answer to `request`, which comes in pieces of `piece` bytes; the host answers with `body`.
    fn told(request: &[u8], piece: usize, body: &Value) -> String {
        let mut session = MetricsSession::default();
        let mut actions = Actions::default();
        for part in request.chunks(piece) {
            session.receive(part, &mut actions);
        }
        assert!(session.head.len() <= REQUEST_BYTES_MAX && actions.calls.len() <= 1);
        assert_eq!(session.condition().is_established, session.asked);
        for call in actions.calls.drain(..).collect::<Vec<_>>() {
            assert_eq!(call.body, json!({ "verb": "metrics" }));
            assert!(!actions.close, "it waits for the host");
            session.call_reply(call.token, json!("progress"), false, &mut actions);
            session.call_reply(call.token, body.clone(), true, &mut actions);
        }
        assert_eq!(actions.close, !actions.send.is_empty(), "one answer, and the end");
        let pieces = actions.send.into_iter().map(|piece| match piece {
            OutputPiece::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
            OutputPiece::Buf(_) => panic!("a scrape gets text"),
        });
        pieces.collect()
    }

    #[test]
    fn a_scrape_gets_what_the_host_says_however_it_arrives() {
        let request =
            b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n";
        for piece in [1, 3, 4, 1000] {
            let told = told(request, piece, &json!("a 1\n# EOF\n"));
            assert!(
                told.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text;"),
                "{told}"
            );
            assert!(told.contains("\r\nContent-Length: 10\r\n"), "{told}");
            assert!(told.ends_with("\r\nConnection: close\r\n\r\na 1\n# EOF\n"), "{told}");
        }
        let head = told(b"HEAD /metrics HTTP/1.0\r\n\r\n", 1000, &json!("a 1\n# EOF\n"));
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn a_client_that_does_not_ask_for_openmetrics_gets_the_text_format_of_prometheus() {
        let openmetrics = "# HELP a_bytes Written.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{disk=\"x y\"} 1\n\
                           # HELP b Size.\n# TYPE b gauge\nb 2\n# HELP c About.\n# TYPE c info\nc_info 1\n# EOF\n";
        let told = told(b"GET /metrics HTTP/1.1\r\nAccept: text/plain\r\n\r\n", 99, &json!(openmetrics));
        assert!(told.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{told}");
        let text = "# HELP a_bytes_total Written.\n# TYPE a_bytes_total counter\na_bytes_total{disk=\"x y\"} 1\n\
                    # HELP b Size.\n# TYPE b gauge\nb 2\n# HELP c_info About.\n# TYPE c_info gauge\nc_info 1\n";
        assert!(told.ends_with(&format!("\r\n\r\n{text}")), "{told}");
    }

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        let (open, plain) = ("application/openmetrics-text", "text/plain");
        for (accept, is_open) in [
            (
                format!(
                    "{open};version=1.0.0;q=0.6,{open};version=0.0.1;q=0.5,{plain};version=0.0.4;q=0.4,*/*;q=0.1"
                ),
                true,
            ),
            (format!("{plain},{open};q=0.5"), false),
            (format!("{open};q=0,{plain}"), false),
            (format!("{open};q=0"), false),
            (format!("{plain};q=0.5, {open}; version=1.0.0; q=0.9"), true),
            (format!("{open},{plain}"), true),
            (format!("{plain},{open}"), false),
            (format!("*/*;q=0.1,{}", open.to_uppercase()), true),
            (format!("{plain};q=0.1\r\naccept: {open}"), true),
            ("application/openmetrics-text2".to_owned(), false),
            (format!("{plain};q=0.5,{open};q=many"), true),
            ("*/*".to_owned(), false),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n");
            let told = told(request.as_bytes(), 99, &json!("a 1\n# EOF\n"));
            assert_eq!(told.contains("Content-Type: application/openmetrics-text;"), is_open, "{accept}");
        }
    }

    #[test]
    fn anything_else_gets_an_answer_that_says_what_to_ask() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("{\"verb\": \"stop\"}\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
        ] {
            let told = told(request.as_bytes(), 7, &Value::Null);
            assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {told}");
        }
        let failed = told(b"GET /metrics HTTP/1.1\r\n\r\n", 99, &json!({ "error": "no" }));
        assert!(failed.starts_with("HTTP/1.1 503 ") && failed.contains("no"), "{failed}");
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 2 * REQUEST_BYTES_MAX]].concat();
        assert!(told(&long, 1000, &Value::Null).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn nothing_is_taken_after_the_request() {
        let mut session = MetricsSession::default();
        let mut actions = Actions::default();
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        session.receive(request, &mut actions);
        session.receive(request, &mut actions);
        assert!(session.condition().is_saturated);
        assert_eq!(actions.calls.len(), 1);
    }

    proptest! {
        #[test]
        fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..20_000), piece in 1usize..5000) {
            told(&bytes, piece, &Value::Null);
        }
    }
}
