//! An NBD connection over TLS: decrypts input for the session below, and encrypts its output.
//!
//! The connection begins in the clear, as the protocol requires. The client asks for TLS by an option; before, all else is refused.

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::sync::Arc;

use dcd_engine::{Buf, IoResult};
use dcd_io::{Actions, FrontEnd, FrontEndCondition, FrontEndNews, MappedRun, OutputPiece};
use rustls::{ServerConfig, ServerConnection};

use super::session::NbdSession;

/// Maximum of encrypted bytes that are not sent yet. Further output stays unencrypted, in memory that the session below counts.
const SEALED_BYTES_MAX: usize = 1 << 20;
/// Pieces that are encrypted together.
const VECTORS_MAX: usize = 64;

/// See the module's documentation.
pub(super) struct TlsSession {
    inner: NbdSession,
    config: Arc<ServerConfig>,
    /// None before the client has asked for it.
    tls: Option<ServerConnection>,
    /// Output of the session below that is not, or not fully, encrypted.
    plain: VecDeque<OutputPiece>,
    /// Bytes of the first piece that are encrypted.
    skip: usize,
    /// Lengths of encrypted messages that are not sent yet. An empty buffer follows each: the driver returns it once the message is sent.
    sealed: VecDeque<usize>,
    sealed_bytes: usize,
    /// True if the session below wants no more input.
    closing: bool,
    /// True once the client has violated TLS, or was told of the end: further input is ignored.
    ended: bool,
    /// Why its handshake has failed.
    trouble: Option<String>,
}

impl TlsSession {
    /// `inner` must refuse all but STARTTLS without TLS.
    pub fn new(inner: NbdSession, config: Arc<ServerConfig>) -> TlsSession {
        TlsSession {
            inner,
            config,
            tls: None,
            plain: VecDeque::new(),
            skip: 0,
            sealed: VecDeque::new(),
            sealed_bytes: 0,
            closing: false,
            ended: false,
            trouble: None,
        }
    }

    /// Calls the session below, and encrypts its output.
    fn with_inner(&mut self, actions: &mut Actions, call: impl FnOnce(&mut NbdSession, &mut Actions)) {
        if self.tls.is_none() {
            return call(&mut self.inner, actions);
        }
        self.call_inner(actions, call);
        self.seal(actions);
    }

    /// Calls the session below, and queues its output.
    fn call_inner(&mut self, actions: &mut Actions, call: impl FnOnce(&mut NbdSession, &mut Actions)) {
        let mut plain = Actions::default();
        call(&mut self.inner, &mut plain);
        self.plain.extend(plain.send);
        actions.requests.append(&mut plain.requests);
        actions.maps.append(&mut plain.maps);
        self.closing |= plain.close;
    }

    /// Encrypts queued output of the session below, as far as the client takes it.
    fn seal(&mut self, actions: &mut Actions) {
        while self.sealed_bytes < SEALED_BYTES_MAX && !self.plain.is_empty() {
            let tls = self.tls.as_mut().expect("what is sent before TLS is not encrypted");
            let mut skip = self.skip;
            let slices = self.plain.iter().take(VECTORS_MAX);
            let slices: Vec<IoSlice<'_>> =
                slices.map(|piece| IoSlice::new(&bytes_of(piece)[std::mem::take(&mut skip)..])).collect();
            self.skip += tls.writer().write_vectored(&slices).expect("it writes to memory");
            let message = drain(tls);
            self.sealed_bytes += message.len();
            self.sealed.push_back(message.len());
            actions.send.extend([OutputPiece::Bytes(message), OutputPiece::Buf(Buf::none())]);
            while let Some(len) = self.plain.front().map(|piece| bytes_of(piece).len())
                && len <= self.skip
            {
                self.skip -= len;
                if let Some(OutputPiece::Buf(buf)) = self.plain.pop_front() {
                    self.call_inner(actions, |inner, actions| inner.sent(buf, actions));
                }
            }
        }
        if self.closing && self.plain.is_empty() && !self.ended {
            self.end(actions);
        }
    }

    fn end(&mut self, actions: &mut Actions) {
        self.ended = true;
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            push_out(tls, actions);
        }
        actions.close = true;
    }

    /// Begins TLS if the client has just asked for that.
    fn begin(&mut self, actions: &mut Actions) {
        if !self.inner.begin_tls() {
            return;
        }
        match ServerConnection::new(Arc::clone(&self.config)) {
            Ok(tls) => self.tls = Some(tls),
            Err(_) => actions.close = true,
        }
    }

    /// Ends a connection whose client violates TLS, or whose certificate is not trusted.
    fn fail(&mut self, error: &rustls::Error, actions: &mut Actions) {
        let tls = self.tls.as_mut().expect("it has just been read from");
        if tls.is_handshaking() {
            self.trouble = Some(format!("its TLS handshake has failed: {}", dcd_io::tls::explained(error)));
        }
        // The client is told why.
        push_out(tls, actions);
        self.ended = true;
        actions.close = true;
    }
}

fn bytes_of(piece: &OutputPiece) -> &[u8] {
    match piece {
        OutputPiece::Bytes(bytes) => bytes,
        OutputPiece::Buf(buf) => buf.bytes(),
    }
}

/// Takes the bytes that TLS has to send.
fn drain(tls: &mut ServerConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut out).expect("a vector takes everything");
    }
    out
}

/// Sends TLS's own messages.
fn push_out(tls: &mut ServerConnection, actions: &mut Actions) {
    let out = drain(tls);
    if !out.is_empty() {
        actions.send.push(OutputPiece::Bytes(out));
    }
}

impl FrontEnd for TlsSession {
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
            let taken = tls.read_tls(&mut bytes).map_err(|e| rustls::Error::General(e.to_string()));
            match taken.and_then(|_| tls.process_new_packets()) {
                Ok(state) => {
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    tls.reader().read_exact(&mut plain).expect("so much is there");
                    push_out(tls, actions);
                    self.with_inner(actions, |inner, actions| inner.receive(&plain, actions));
                }
                Err(error) => self.fail(&error, actions),
            }
        }
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        self.with_inner(actions, |inner, actions| inner.reply(token, result, actions));
    }

    fn mapped(&mut self, token: u64, runs: &[MappedRun], actions: &mut Actions) {
        self.with_inner(actions, |inner, actions| inner.mapped(token, runs, actions));
    }

    /// An encrypted message has gone out.
    fn sent(&mut self, _end: Buf, actions: &mut Actions) {
        let bytes = self.sealed.pop_front().expect("each message is followed by one empty buffer");
        self.sealed_bytes -= bytes;
        self.seal(actions);
    }

    fn disk(&self) -> usize {
        self.inner.disk()
    }

    fn condition(&self) -> FrontEndCondition {
        let inner = self.inner.condition();
        FrontEndCondition { is_saturated: inner.is_saturated || !self.plain.is_empty(), ..inner }
    }

    fn go_on(&mut self, actions: &mut Actions) -> bool {
        let mut goes_on = false;
        self.with_inner(actions, |inner, actions| goes_on = inner.go_on(actions));
        goes_on
    }

    fn client_gone(&mut self) {
        self.plain.clear();
        self.inner.client_gone();
    }

    fn take_news(&mut self) -> Option<FrontEndNews> {
        self.trouble.take().map(FrontEndNews::Failed)
    }
}
