//! The handshake: fixed newstyle, options until one of them starts the transmission or ends the connection.
//!
//! Options are answered one by one from their header and their data. The caller does the framing, and bounds the length
//! before it keeps any data. An unknown option is answered with an error of the protocol, and the stream stays in step. Broken
//! framing ends the connection.

use dcd_io::backup_marks::{DiskMarks, LostMark};
use dcd_io::{Actions, OutputPiece};

use std::sync::Arc;

use super::exports::{Export, NbdExports, PAYLOAD_BYTES_MAX};
use super::protocol as p;
use super::replies::ReplyForm;

/// Number of the first metadata context that a client has selected; the others follow.
pub const CONTEXT_ID_FIRST: u32 = 1;

/// Result of an option.
#[derive(Debug)]
pub enum OptionOutcome {
    /// The next option.
    Continue,
    /// The next option, for a client that continues with the next server.
    GoesOn,
    /// TLS, and then the next option.
    BeginTls,
    /// The transmission phase on this export.
    Transmit(Export),
    /// The end of the connection, once all output is sent.
    Close,
}

/// The greeting, before the client has said anything.
pub fn greeting() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(18);
    bytes.extend_from_slice(&p::INIT_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&p::OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&(p::FLAG_FIXED_NEWSTYLE | p::FLAG_NO_ZEROES).to_be_bytes());
    bytes
}

/// Flags that the client has sent.
#[derive(Clone, Copy, Debug)]
pub struct ClientFlags {
    pub fixed_newstyle: bool,
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// Returns none if an unknown bit is set: the protocol then ends the connection.
    pub fn parse(bits: u32) -> Option<ClientFlags> {
        let known = p::FLAG_C_FIXED_NEWSTYLE | p::FLAG_C_NO_ZEROES;
        (bits & !known == 0).then_some(ClientFlags {
            fixed_newstyle: bits & p::FLAG_C_FIXED_NEWSTYLE != 0,
            no_zeroes: bits & p::FLAG_C_NO_ZEROES != 0,
        })
    }
}

/// State of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    No,
    /// TLS is required, and has not begun.
    Needed,
    Begun,
}

/// Agreements with the client for the transmission phase.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    pub form: ReplyForm,
    /// Name of the export for which the client has selected metadata contexts, and these.
    pub contexts: (String, Vec<MetaContext>),
}

impl Agreed {
    /// The metadata contexts that the client has selected for an export.
    pub fn contexts_of(&self, export: &str) -> &[MetaContext] {
        if self.contexts.0 == export { &self.contexts.1 } else { &[] }
    }
}

/// A metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaContext {
    /// Holes and zeroes.
    Allocation,
    /// Changes since the mark of this number.
    ChangedSince(u64),
}

impl MetaContext {
    fn name(self) -> String {
        match self {
            MetaContext::Allocation => p::BASE_ALLOCATION.to_owned(),
            MetaContext::ChangedSince(mark) => format!("{}{mark}", p::CHANGED_SINCE),
        }
    }
}

/// Answers one option.
pub fn answer(
    exports: &NbdExports,
    flags: ClientFlags,
    tls: Tls,
    agreed: &mut Agreed,
    option: u32,
    data: &[u8],
    actions: &mut Actions,
) -> OptionOutcome {
    let mut say =
        |kind, text: &[u8]| actions.send.push(OutputPiece::Bytes(p::option_reply(option, kind, text)));
    match option {
        p::OPT_EXPORT_NAME if tls == Tls::Needed => return OptionOutcome::Close,
        p::OPT_EXPORT_NAME => return export_name(exports, flags, agreed.form, data, actions),
        // A client of the old newstyle cannot read option replies.
        _ if !flags.fixed_newstyle => return OptionOutcome::Close,
        _ if tls == Tls::Needed && !matches!(option, p::OPT_ABORT | p::OPT_STARTTLS) => {
            say(p::REP_ERR_TLS_REQUIRED, b"this server wants TLS first");
        }
        p::OPT_ABORT => {
            say(p::REP_ACK, &[]);
            return OptionOutcome::Close;
        }
        p::OPT_LIST if data.is_empty() => {
            for export in exports.all() {
                say(p::REP_SERVER, &server_entry(&export));
            }
            say(p::REP_ACK, &[]);
        }
        p::OPT_LIST => say(p::REP_ERR_INVALID, b"LIST takes no data"),
        p::OPT_STARTTLS if !data.is_empty() => say(p::REP_ERR_INVALID, b"STARTTLS takes no data"),
        p::OPT_STARTTLS => match tls {
            Tls::No => {
                say(p::REP_ERR_UNSUP, b"this server has no TLS; use a unix socket, or a tunnel such as ssh")
            }
            Tls::Begun => say(p::REP_ERR_INVALID, b"TLS has begun already"),
            Tls::Needed => {
                say(p::REP_ACK, &[]);
                *agreed = Agreed::default();
                return OptionOutcome::BeginTls;
            }
        },
        p::OPT_GOES_ON if data.is_empty() => {
            say(p::REP_ACK, &[]);
            return OptionOutcome::GoesOn;
        }
        p::OPT_STRUCTURED_REPLY | p::OPT_EXTENDED_HEADERS => {
            let (kind, words) = agree_on_form(agreed, option, data);
            say(kind, words);
        }
        p::OPT_LIST_META_CONTEXT | p::OPT_SET_META_CONTEXT => {
            contexts(exports, agreed, option, data, &mut say)
        }
        p::OPT_INFO | p::OPT_GO => return info(exports, agreed.form, option, data, actions),
        _ => say(p::REP_ERR_UNSUP, b"unknown option"),
    }
    OptionOutcome::Continue
}

/// Answers EXPORT_NAME, the oldest way into the transmission phase. It has no error reply, so an unknown name ends the connection.
fn export_name(
    exports: &NbdExports,
    flags: ClientFlags,
    form: ReplyForm,
    name: &[u8],
    actions: &mut Actions,
) -> OptionOutcome {
    let Some(export) = std::str::from_utf8(name).ok().and_then(|name| exports.find(name)) else {
        return OptionOutcome::Close;
    };
    let mut reply = Vec::with_capacity(10 + p::EXPORT_NAME_PADDING_BYTES);
    reply.extend_from_slice(&export.bytes().to_be_bytes());
    reply.extend_from_slice(&export.flags(form).to_be_bytes());
    if !flags.no_zeroes {
        reply.resize(reply.len() + p::EXPORT_NAME_PADDING_BYTES, 0);
    }
    actions.send.push(OutputPiece::Bytes(reply));
    OptionOutcome::Transmit(Export::clone(&export))
}

fn server_entry(export: &Export) -> Vec<u8> {
    let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
    entry.extend_from_slice(export.name.as_bytes());
    entry.extend_from_slice(export.description.as_bytes());
    entry
}

/// Answers the options that change the form of replies. A form replaces a simpler one.
fn agree_on_form(agreed: &mut Agreed, option: u32, data: &[u8]) -> (u32, &'static [u8]) {
    let wanted = match option {
        p::OPT_STRUCTURED_REPLY => ReplyForm::Structured,
        _ => ReplyForm::Extended,
    };
    if !data.is_empty() {
        (p::REP_ERR_INVALID, b"this option takes no data")
    } else if agreed.form == wanted {
        (p::REP_ERR_INVALID, b"this has been agreed on already")
    } else if agreed.form > wanted {
        (p::REP_ERR_EXT_HEADER_REQD, b"extended headers have been agreed on already")
    } else {
        agreed.form = wanted;
        (p::REP_ACK, &[])
    }
}

/// The data of the options about metadata contexts: an export, and queries.
struct ContextQueries<'a> {
    name: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> ContextQueries<'a> {
    /// Returns none if the inner lengths do not add up to the length of the option.
    fn parse(data: &'a [u8]) -> Option<ContextQueries<'a>> {
        let (name, rest) = string(data)?;
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let mut queries = Vec::new();
        for _ in 0..u32::from_be_bytes(*count) {
            let (query, behind) = string(rest)?;
            queries.push(query);
            rest = behind;
        }
        rest.is_empty().then_some(ContextQueries { name, queries })
    }
}

/// A string after its length, and the rest.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Lists or selects contexts. A selection replaces the one before, also where it fails.
fn contexts(
    exports: &NbdExports,
    agreed: &mut Agreed,
    option: u32,
    data: &[u8],
    say: &mut impl FnMut(u32, &[u8]),
) {
    let lists = option == p::OPT_LIST_META_CONTEXT;
    if !lists {
        agreed.contexts = Default::default();
    }
    if agreed.form == ReplyForm::Simple {
        return say(p::REP_ERR_INVALID, b"structured replies, or extended headers, come first");
    }
    let Some(ContextQueries { name, queries }) = ContextQueries::parse(data) else {
        return say(p::REP_ERR_INVALID, b"the lengths in this option do not add up");
    };
    let export = match find(exports, name) {
        Ok(export) => export,
        Err((kind, words)) => return say(kind, words),
    };
    let asks = |words: &str| queries.contains(&words.as_bytes());
    let all = lists && queries.is_empty();
    let mut found = Vec::new();
    if all || asks(p::BASE_ALLOCATION) || lists && asks(p::BASE_ALL) {
        found.push(MetaContext::Allocation);
    }
    let known = |own: &DiskMarks| {
        (own.periods.iter().map(|period| period.mark).collect::<Vec<_>>(), own.lost.clone())
    };
    let (marks, lost) = exports.marks().of(export.disk, known).unwrap_or_default();
    let all = all || lists && asks(p::DCD_ALL);
    let is_asked_for = |context: &MetaContext| all || asks(&context.name());
    found.extend(marks.into_iter().map(MetaContext::ChangedSince).filter(is_asked_for));
    // A client that asks for nothing else is told why it cannot have a mark. Otherwise it would lose its other contexts.
    if let ([query], true) = (queries.as_slice(), found.is_empty())
        && query.starts_with(p::CHANGED_SINCE.as_bytes())
    {
        let is_it = |lost: &&LostMark| MetaContext::ChangedSince(lost.mark).name().as_bytes() == *query;
        let reason = match lost.iter().find(is_it) {
            Some(lost) => format!("this mark is lost ({})", lost.reason),
            None => "the disk has no such mark, or has lost it".to_owned(),
        };
        return say(p::REP_ERR_INVALID, format!("{reason}: make a full backup").as_bytes());
    }
    for (place, context) in found.iter().enumerate() {
        let id = if lists { 0 } else { CONTEXT_ID_FIRST + place as u32 };
        say(p::REP_META_CONTEXT, &[&id.to_be_bytes(), context.name().as_bytes()].concat());
    }
    if !lists && !found.is_empty() {
        agreed.contexts = (export.name.clone(), found);
    }
    say(p::REP_ACK, &[]);
}

/// Finds an export by the name that a client has sent, or says why not.
fn find(exports: &NbdExports, name: &[u8]) -> Result<Arc<Export>, (u32, &'static [u8])> {
    if name.len() > p::STRING_BYTES_MAX {
        return Err((p::REP_ERR_TOO_BIG, &b"an export name has at most 4096 bytes"[..]));
    }
    let name =
        std::str::from_utf8(name).map_err(|_| (p::REP_ERR_INVALID, &b"an export name is UTF-8"[..]))?;
    let unknown = &b"no export has this name; `nbdinfo --list` shows those that there are"[..];
    exports.find(name).ok_or((p::REP_ERR_UNKNOWN, unknown))
}

/// The data of INFO and GO: a name, and the kinds of information that the client would like.
struct InfoRequest<'a> {
    name: &'a [u8],
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Returns none if the inner lengths do not add up to the length of the option.
    fn parse(data: &'a [u8]) -> Option<InfoRequest<'a>> {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let (count, kinds) = rest.split_first_chunk::<2>()?;
        (kinds.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some(InfoRequest { name, kinds })
    }

    fn asks_for(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|bytes| p::u16_at(bytes, 0) == kind)
    }
}

fn info(
    exports: &NbdExports,
    form: ReplyForm,
    option: u32,
    data: &[u8],
    actions: &mut Actions,
) -> OptionOutcome {
    let mut say =
        |kind, data: &[u8]| actions.send.push(OutputPiece::Bytes(p::option_reply(option, kind, data)));
    let Some(request) = InfoRequest::parse(data) else {
        say(p::REP_ERR_INVALID, b"the lengths in this option do not add up");
        return OptionOutcome::Continue;
    };
    let export = match find(exports, request.name) {
        Ok(export) => export,
        Err((kind, words)) => {
            say(kind, words);
            return OptionOutcome::Continue;
        }
    };

    let mut item = |kind: u16, fields: &[&[u8]]| {
        let mut item = kind.to_be_bytes().to_vec();
        fields.iter().for_each(|field| item.extend_from_slice(field));
        say(p::REP_INFO, &item);
    };
    item(p::INFO_EXPORT, &[&export.bytes().to_be_bytes(), &export.flags(form).to_be_bytes()]);
    // Sent to every client: with these limits, a client can avoid requests that would be refused.
    item(
        p::INFO_BLOCK_SIZE,
        &[
            &export.block_bytes_min().to_be_bytes(),
            &export.block_bytes_preferred().to_be_bytes(),
            &PAYLOAD_BYTES_MAX.to_be_bytes(),
        ],
    );
    if request.asks_for(p::INFO_NAME) {
        item(p::INFO_NAME, &[export.name.as_bytes()]);
    }
    if request.asks_for(p::INFO_DESCRIPTION) && !export.description.is_empty() {
        item(p::INFO_DESCRIPTION, &[export.description.as_bytes()]);
    }
    if request.asks_for(p::INFO_DURABLE) && export.is_durable() {
        item(p::INFO_DURABLE, &[]);
    }
    say(p::REP_ACK, &[]);
    match option {
        p::OPT_GO => OptionOutcome::Transmit(Export::clone(&export)),
        _ => OptionOutcome::Continue,
    }
}
