//! An NBD connection over TLS: the session below sees what was decrypted, and what it sends is encrypted.
//!
//! It begins in the clear, as the protocol has it: the client asks for TLS by an option, and nothing else is granted before.

use std::io::{Read, Write};
use std::sync::Arc;

use dcd_engine::{Buf, IoResult};
use dcd_io::{Actions, Piece, Session};
use rustls::{ServerConfig, ServerConnection};

use super::session::NbdSession;

/// See the module's documentation.
pub(super) struct TlsSession {
    inner: NbdSession,
    config: Arc<ServerConfig>,
    /// None before the client has asked for it.
    tls: Option<ServerConnection>,
    /// The client has broken TLS: nothing is listened to any more.
    ended: bool,
}

impl TlsSession {
    /// `inner` must grant nothing without TLS.
    pub fn new(inner: NbdSession, config: Arc<ServerConfig>) -> TlsSession {
        TlsSession { inner, config, tls: None, ended: false }
    }

    /// Has the session below do something, and encrypts what it sends.
    fn with_inner(&mut self, actions: &mut Actions, call: impl FnOnce(&mut NbdSession, &mut Actions)) {
        let Some(tls) = &mut self.tls else { return call(&mut self.inner, actions) };
        let mut plain = Actions::default();
        call(&mut self.inner, &mut plain);
        while !plain.send.is_empty() {
            for piece in std::mem::take(&mut plain.send) {
                let bytes = match &piece {
                    Piece::Bytes(bytes) => bytes,
                    Piece::Buf(buf) => buf.bytes(),
                };
                tls.writer().write_all(bytes).expect("its buffer has no limit");
                if let Piece::Buf(buf) = piece {
                    // It is copied, and may be used again.
                    self.inner.sent(buf, &mut plain);
                }
            }
        }
        if plain.close {
            tls.send_close_notify();
        }
        actions.requests.append(&mut plain.requests);
        actions.close |= plain.close;
        push_out(tls, actions);
    }

    /// Begins TLS if the client has just asked for that.
    fn begin(&mut self, actions: &mut Actions) {
        if !self.inner.begin_tls() {
            return;
        }
        match ServerConnection::new(Arc::clone(&self.config)) {
            Ok(mut tls) => {
                tls.set_buffer_limit(None);
                self.tls = Some(tls);
            }
            Err(_) => actions.close = true,
        }
    }
}

/// Sends what TLS has to send.
fn push_out(tls: &mut ServerConnection, actions: &mut Actions) {
    let mut out = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut out).expect("a vector takes everything");
    }
    if !out.is_empty() {
        actions.send.push(Piece::Bytes(out));
    }
}

impl Session for TlsSession {
    fn start(&mut self, actions: &mut Actions) {
        self.inner.start(actions);
    }

    fn receive(&mut self, mut bytes: &[u8], actions: &mut Actions) {
        if self.tls.is_none() {
            self.inner.receive(bytes, actions);
            return self.begin(actions);
        }
        while !bytes.is_empty() && !self.ended {
            let tls = self.tls.as_mut().expect("looked at above");
            let taken = tls.read_tls(&mut bytes);
            match taken
                .map_err(|e| rustls::Error::General(e.to_string()))
                .and_then(|_| tls.process_new_packets())
            {
                Ok(state) => {
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    tls.reader().read_exact(&mut plain).expect("so much is there");
                    push_out(tls, actions);
                    self.with_inner(actions, |inner, actions| inner.receive(&plain, actions));
                }
                Err(_) => {
                    // The client is told why.
                    push_out(tls, actions);
                    self.ended = true;
                    actions.close = true;
                }
            }
        }
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        self.with_inner(actions, |inner, actions| inner.reply(token, result, actions));
    }

    /// Before TLS has begun; later buffers are copied.
    fn sent(&mut self, buf: Buf, actions: &mut Actions) {
        self.with_inner(actions, |inner, actions| inner.sent(buf, actions));
    }

    fn is_saturated(&self) -> bool {
        self.inner.is_saturated()
    }

    fn is_mid_request(&self) -> bool {
        self.inner.is_mid_request()
    }

    fn is_established(&self) -> bool {
        self.inner.is_established()
    }

    fn has_device(&self) -> bool {
        self.inner.has_device()
    }

    fn holds_requests(&self) -> bool {
        self.inner.holds_requests()
    }

    fn outlives_server(&self) -> bool {
        self.inner.outlives_server()
    }
}
