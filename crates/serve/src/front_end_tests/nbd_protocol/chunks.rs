//! Structured replies, extended headers, and the status of blocks.

use dcd_engine::{ErrorKind, Extent, IoError, Lba};
use dcd_io::backup_marks::{BackupMarks, DiskMarks, LostMark, MarkPeriod};
use dcd_serve::nbd::{ReplyForm, STATUS_RUNS_MAX};

use super::*;

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const FORMS: [ReplyForm; 2] = [ReplyForm::Structured, ReplyForm::Extended];
/// Cookie of requests that are sent one at a time.
const COOKIE: u64 = 0x0102_0304_0506_0708;

/// A chunk of a reply.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplyChunk {
    pub kind: u16,
    pub cookie: u64,
    pub payload: Vec<u8>,
}

impl ReplyChunk {
    /// The error number; none if the request succeeded.
    pub fn error(&self) -> Option<u32> {
        (self.kind & 1 << 15 != 0).then(|| p::u32_at(&self.payload, 0))
    }
}

/// The chunks in `bytes`, which are one reply or several of one chunk. A simple reply is a chunk too.
pub fn parse(form: ReplyForm, mut bytes: &[u8]) -> Vec<ReplyChunk> {
    let mut chunks = Vec::new();
    while !bytes.is_empty() {
        if p::u32_at(bytes, 0) == p::SIMPLE_REPLY_MAGIC {
            assert_eq!(form, ReplyForm::Structured);
            assert_eq!(p::u32_at(bytes, 4), 0, "errors are chunks");
            chunks.push(ReplyChunk { kind: p::REPLY_NONE, cookie: p::u64_at(bytes, 8), payload: Vec::new() });
            bytes = &bytes[16..];
            continue;
        }
        let (magic, header, length) = match form {
            ReplyForm::Extended => (p::EXTENDED_REPLY_MAGIC, 32, p::u64_at(bytes, 24) as usize),
            _ => (p::STRUCTURED_REPLY_MAGIC, 20, p::u32_at(bytes, 16) as usize),
        };
        // Only the statuses of several contexts are several chunks.
        let is_status = [p::REPLY_BLOCK_STATUS, p::REPLY_BLOCK_STATUS_EXT].contains(&p::u16_at(bytes, 6));
        let flags = if is_status && bytes.len() > header + length { 0 } else { p::REPLY_FLAG_DONE };
        assert_eq!((p::u32_at(bytes, 0), p::u16_at(bytes, 4)), (magic, flags));
        let payload = bytes[header..header + length].to_vec();
        chunks.push(ReplyChunk { kind: p::u16_at(bytes, 6), cookie: p::u64_at(bytes, 8), payload });
        bytes = &bytes[header + length..];
    }
    chunks
}

pub fn extended(flags: u16, command: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = p::EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// The data of an option about contexts.
pub fn queries(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let string = |text: &[u8]| [&(text.len() as u32).to_be_bytes()[..], text].concat();
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let all = queries.iter().map(|query| string(query));
    [string(name), count].into_iter().chain(all).collect::<Vec<_>>().concat()
}

fn negotiating(form: ReplyForm) -> Peer {
    let mut peer = Peer::single();
    peer.give(&3u32.to_be_bytes());
    agree(&mut peer, form);
    peer
}

fn agree(peer: &mut Peer, form: ReplyForm) {
    let number = match form {
        ReplyForm::Simple => return,
        ReplyForm::Structured => p::OPT_STRUCTURED_REPLY,
        ReplyForm::Extended => p::OPT_EXTENDED_HEADERS,
    };
    peer.give(&option(number, &[]));
    assert_eq!(kinds(&peer.take()), [p::REP_ACK]);
}

/// A connection in the transmission phase. `context`: with that of holes, if the form allows that.
pub fn transmitting(form: ReplyForm, exports: NbdExports, context: bool) -> Peer {
    let mut peer = Peer::connect(exports);
    peer.give(&3u32.to_be_bytes());
    agree(&mut peer, form);
    if context && form != ReplyForm::Simple {
        peer.give(&option(p::OPT_SET_META_CONTEXT, &queries(b"disk", &[b"base:allocation"])));
        assert_eq!(kinds(&peer.take()), [p::REP_META_CONTEXT, p::REP_ACK]);
    }
    peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
    assert!(peer.session.condition().is_established);
    peer.take();
    peer
}

fn writable(form: ReplyForm) -> Peer {
    transmitting(form, NbdExports::single("disk", geometry(), false), true)
}

impl Peer {
    /// Sends a request without a payload, lets it finish, and returns its reply.
    pub fn ask_chunk(
        &mut self,
        form: ReplyForm,
        flags: u16,
        command: u16,
        offset: u64,
        length: u64,
    ) -> ReplyChunk {
        match form {
            ReplyForm::Extended => self.give(&extended(flags, command, COOKIE, offset, length)),
            _ => self.give(&request(flags, command, COOKIE, offset, length as u32)),
        }
        self.finish();
        self.only_chunk(form)
    }

    fn only_chunk(&mut self, form: ReplyForm) -> ReplyChunk {
        let mut chunks = parse(form, &self.take());
        assert!(!self.closed && chunks.len() == 1, "{chunks:?}");
        chunks.remove(0)
    }
}

#[test]
fn a_form_of_replies_is_agreed_on_once_and_may_be_extended() {
    let (structured, extended) = (p::OPT_STRUCTURED_REPLY, p::OPT_EXTENDED_HEADERS);
    let (ack, invalid, instead) = (p::REP_ACK, p::REP_ERR_INVALID, p::REP_ERR_EXT_HEADER_REQD);
    for (options, answers) in [
        (vec![structured, structured], vec![ack, invalid]),
        (vec![structured, extended, extended], vec![ack, ack, invalid]),
        (vec![extended, structured], vec![ack, instead]),
    ] {
        let mut peer = negotiating(ReplyForm::Simple);
        options.iter().for_each(|number| peer.give(&option(*number, &[])));
        assert_eq!(kinds(&peer.take()), answers);
    }
    let mut peer = negotiating(ReplyForm::Simple);
    peer.give(&[option(structured, b"x"), option(extended, b"x")].concat());
    assert_eq!(kinds(&peer.take()), [invalid, invalid]);
    peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
    peer.take();
    assert_eq!(peer.ask(0, p::CMD_READ, 0, 512, &[]).0, 0, "what was refused is not in force");
}

#[test]
fn unfragmented_reads_are_offered_with_structured_replies() {
    let exports = NbdExports::single("disk", geometry(), false);
    let flags = |form| exports.find("").unwrap().flags(form) & p::TFLAG_SEND_DF;
    assert_eq!(flags(ReplyForm::Simple), 0);
    for form in FORMS {
        assert_ne!(flags(form), 0);
        assert_eq!(writable(form).ask_chunk(form, p::CMD_FLAG_DF, p::CMD_READ, 0, 512).error(), None);
    }
}

#[test]
fn contexts_are_listed_and_selected() {
    let context = |id: u32| [&id.to_be_bytes()[..], b"base:allocation"].concat();
    for form in FORMS {
        for (number, asked, found) in [
            (p::OPT_LIST_META_CONTEXT, vec![], Some(0)),
            (p::OPT_LIST_META_CONTEXT, vec![&b"base:"[..]], Some(0)),
            (p::OPT_LIST_META_CONTEXT, vec![b"x:", b"base:allocation", b"base:allocation"], Some(0)),
            (p::OPT_LIST_META_CONTEXT, vec![b"base:other", b"qemu:dirty-bitmap:a", b"", b"base"], None),
            (p::OPT_SET_META_CONTEXT, vec![], None),
            (p::OPT_SET_META_CONTEXT, vec![b"base:"], None),
            (p::OPT_SET_META_CONTEXT, vec![b"base:allocation", b"base:allocation"], Some(1)),
            (p::OPT_SET_META_CONTEXT, vec![b"base:allocation2", b"\xff"], None),
        ] {
            let mut peer = negotiating(form);
            peer.give(&option(number, &queries(b"disk", &asked)));
            let replies = option_replies(&peer.take());
            let mut expected: Vec<_> =
                found.map(|id| (number, p::REP_META_CONTEXT, context(id))).into_iter().collect();
            expected.push((number, p::REP_ACK, vec![]));
            assert_eq!(replies, expected, "{asked:?}");
        }
        let mut peer = negotiating(form);
        peer.give(&option(p::OPT_SET_META_CONTEXT, &queries(b"other", &[b"base:allocation"])));
        assert_eq!(kinds(&peer.take()), [p::REP_ERR_UNKNOWN]);
    }
    let mut peer = negotiating(ReplyForm::Simple);
    peer.give(&option(p::OPT_SET_META_CONTEXT, &queries(b"disk", &[b"base:allocation"])));
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID], "structured replies come first");
}

/// A selection counts for its export, and until the next one, also where that fails.
#[test]
fn a_status_needs_the_context_of_this_export() {
    let set = |name: &[u8]| option(p::OPT_SET_META_CONTEXT, &queries(name, &[b"base:allocation"]));
    let none = option(p::OPT_SET_META_CONTEXT, &queries(b"disk", &[]));
    let list = option(p::OPT_LIST_META_CONTEXT, &queries(b"disk", &[]));
    for (options, tells) in [
        (vec![set(b"disk")], true),
        (vec![set(b"")], true),
        (vec![set(b"disk"), list.clone()], true),
        (vec![list], false),
        (vec![set(b"view")], false),
        (vec![set(b"disk"), none], false),
        (vec![set(b"disk"), set(b"nowhere")], false),
    ] {
        let exports = NbdExports::single("disk", geometry(), false);
        exports.add("view", geometry(), true, "");
        let mut peer = Peer::connect(exports);
        peer.give(&3u32.to_be_bytes());
        agree(&mut peer, ReplyForm::Structured);
        options.iter().for_each(|bytes| peer.give(bytes));
        peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
        peer.take();
        let reply = peer.ask_chunk(ReplyForm::Structured, 0, p::CMD_BLOCK_STATUS, 0, 4096);
        assert_eq!(reply.error(), (!tells).then_some(EINVAL));
    }
}

#[test]
fn reads_are_chunks_with_their_place_and_zeroes_are_not_sent() {
    for form in FORMS {
        let mut peer = writable(form);
        peer.disk[8192..12288].fill(7);
        let place = 8192u64.to_be_bytes();
        let chunk = |kind, payload| ReplyChunk { kind, cookie: COOKIE, payload };
        let reply = peer.ask_chunk(form, 0, p::CMD_READ, 8192, 4096);
        assert_eq!(reply, chunk(p::REPLY_OFFSET_DATA, [&place[..], &[7; 4096]].concat()));
        peer.disk[8192..12287].fill(0);
        assert_eq!(peer.ask_chunk(form, 0, p::CMD_READ, 8192, 4096).kind, p::REPLY_OFFSET_DATA);
        peer.disk[12287] = 0;
        let reply = peer.ask_chunk(form, 0, p::CMD_READ, 8192, 4096);
        assert_eq!(reply, chunk(p::REPLY_OFFSET_HOLE, [&place[..], &4096u32.to_be_bytes()].concat()));
        assert_eq!(peer.ask_chunk(form, 0, p::CMD_READ, 512, 0), chunk(p::REPLY_NONE, vec![]));
    }
}

#[test]
fn an_error_of_a_read_has_its_place_and_its_words() {
    let error = |peer: &mut Peer, form, cause: IoError| {
        match form {
            ReplyForm::Extended => peer.give(&extended(0, p::CMD_READ, COOKIE, 4096, 4096)),
            _ => peer.give(&request(0, p::CMD_READ, COOKIE, 4096, 4096)),
        }
        let (token, io) = peer.requests.remove(0);
        peer.reply(token, IoResult::err(io.take_buf(), cause));
        peer.only_chunk(form)
    };
    for form in FORMS {
        let mut peer = writable(form);
        for (lba, place) in [(10, 10 * 512), (0, 4096), (100, 8191)] {
            let cause = IoError::at(ErrorKind::Medium, Extent::new(Lba(lba), 8));
            let reply = error(&mut peer, form, cause);
            let words = cause.to_string();
            let length = usize::from(p::u16_at(&reply.payload, 4));
            assert_eq!((reply.kind, reply.error()), (p::REPLY_ERROR_OFFSET, Some(EIO)));
            assert_eq!(&reply.payload[6..6 + length], words.as_bytes());
            assert_eq!(reply.payload[6 + length..], u64::to_be_bytes(place), "within the request");
        }
        let reply = error(&mut peer, form, IoError::new(ErrorKind::Lost));
        assert_eq!((reply.kind, reply.error()), (p::REPLY_ERROR, Some(EIO)));
        // One that does not reach the stack.
        let reply = peer.ask_chunk(form, 0, p::CMD_READ, 1, 512);
        assert_eq!((reply.kind, reply.error()), (p::REPLY_ERROR, Some(EINVAL)));
        let reply = peer.ask_chunk(form, 0, p::CMD_TRIM, DISK_BYTES as u64, 512);
        assert_eq!((reply.kind, reply.error()), (p::REPLY_ERROR, Some(EINVAL)));
    }
}

#[test]
fn requests_with_extended_headers_have_long_lengths() {
    let form = ReplyForm::Extended;
    let huge = Geometry { sectors: 1 << 34, ..geometry() };
    let mut peer = transmitting(form, NbdExports::single("disk", huge, false), true);
    for command in [p::CMD_TRIM, p::CMD_WRITE_ZEROES] {
        peer.give(&extended(0, command, 9, 4096, 1 << 40));
        let (token, io) = peer.requests.remove(0);
        assert_eq!(io.extent(), Some(Extent::new(Lba(8), 1 << 31)));
        peer.reply(token, IoResult::ok(no_buf()));
        assert_eq!(
            parse(form, &peer.take()),
            [ReplyChunk { kind: p::REPLY_NONE, cookie: 9, payload: vec![] }]
        );
    }
    // The reply says where, too.
    peer.give(&extended(0, p::CMD_FLUSH, 9, 0, 0));
    peer.finish();
    assert_eq!(peer.take()[..8], [&p::EXTENDED_REPLY_MAGIC.to_be_bytes()[..], &[0, 1, 0, 0]].concat());
    peer.give(&extended(0, p::CMD_BLOCK_STATUS, 9, 1 << 20, 1 << 40));
    let call = peer.maps.remove(0);
    assert_eq!((call.extent, call.runs_max), (Extent::new(Lba(1 << 11), 1 << 31), STATUS_RUNS_MAX));
    // A compact request is none of this connection.
    peer.give(&request(0, p::CMD_FLUSH, 1, 0, 0));
    peer.give(&[0; 4]);
    assert!(peer.closed);
}

#[test]
fn writes_with_extended_headers_have_their_payload() {
    let form = ReplyForm::Extended;
    let mut peer = writable(form);
    // Clients have to set the flag; one that does not has a payload all the same.
    for (flags, value) in
        [(p::CMD_FLAG_PAYLOAD_LEN, 1), (p::CMD_FLAG_PAYLOAD_LEN | p::CMD_FLAG_FUA, 2), (0, 3)]
    {
        peer.give(&extended(flags, p::CMD_WRITE, 9, 512, 1024));
        peer.give(&[value; 1024]);
        peer.finish();
        assert_eq!(
            parse(form, &peer.take()),
            [ReplyChunk { kind: p::REPLY_NONE, cookie: 9, payload: vec![] }]
        );
        assert_eq!(peer.disk[512..1536], [value; 1024]);
    }
    assert_eq!(peer.log, ["write 1+2", "write 1+2 durable", "write 1+2"]);
}

/// The runs of a status: bytes and flags.
fn runs(form: ReplyForm, reply: &ReplyChunk) -> Vec<(u64, u64)> {
    assert!(reply.cookie == COOKIE && p::u32_at(&reply.payload, 0) > 0);
    match form {
        ReplyForm::Extended => {
            assert_eq!(reply.kind, p::REPLY_BLOCK_STATUS_EXT);
            let (runs, count) = (&reply.payload[8..], p::u32_at(&reply.payload, 4) as usize);
            assert_eq!(runs.len(), count * 16);
            runs.chunks(16).map(|run| (p::u64_at(run, 0), p::u64_at(run, 8))).collect()
        }
        _ => {
            assert_eq!(reply.kind, p::REPLY_BLOCK_STATUS);
            let runs = reply.payload[4..].chunks(8);
            runs.map(|run| (u64::from(p::u32_at(run, 0)), u64::from(p::u32_at(run, 4)))).collect()
        }
    }
}

#[test]
fn a_status_tells_holes_and_data() {
    for form in FORMS {
        let mut peer = writable(form);
        peer.disk[8192..12288].fill(7);
        let status = |peer: &mut Peer, flags, offset, length| {
            let reply = peer.ask_chunk(form, flags, p::CMD_BLOCK_STATUS, offset, length);
            runs(form, &reply)
        };
        let end = DISK_BYTES as u64;
        assert_eq!(status(&mut peer, 0, 0, end), [(8192, 3), (4096, 0), (end - 12288, 3)]);
        assert_eq!(status(&mut peer, 0, 8192, 4096), [(4096, 0)]);
        assert_eq!(status(&mut peer, p::CMD_FLAG_REQ_ONE, 0, end), [(8192, 3)]);
        assert_eq!(status(&mut peer, 0, 1024, 512), [(512, 3)]);
        for sector in (0..DISK_BYTES).step_by(1024) {
            peer.disk[sector] = 1;
        }
        assert_eq!(status(&mut peer, 0, 0, end).len(), STATUS_RUNS_MAX, "of 2048");
        assert_eq!(peer.log, [""; 0], "nothing is read");
    }
}

#[test]
fn zeroes_with_space_are_no_hole() {
    let mut peer = writable(ReplyForm::Structured);
    peer.give(&request(0, p::CMD_BLOCK_STATUS, COOKIE, 0, 4096));
    let call = peer.maps.remove(0);
    let mut actions = Actions::default();
    let state = dcd_engine::SectorState::Zeroes;
    peer.session.mapped(call.token, &[dcd_io::MappedRun { sectors: 8, state }], &mut actions);
    peer.absorb(actions);
    let reply = peer.only_chunk(ReplyForm::Structured);
    assert_eq!(runs(ReplyForm::Structured, &reply), [(4096, 2)]);
}

#[test]
fn a_disconnect_waits_for_a_status() {
    let mut peer = writable(ReplyForm::Structured);
    peer.give(&[request(0, p::CMD_BLOCK_STATUS, 1, 0, 512), request(0, p::CMD_DISC, 2, 0, 0)].concat());
    assert!(!peer.closed);
    peer.finish();
    assert!(peer.closed && peer.take().len() == 20 + 4 + 8);
}

/// Marks 1 and 3 of a disk; a client has changed the grains 2 and 3 in between, and 7 after both. Mark 2 is lost.
fn marked(sectors: u64) -> BackupMarks {
    let period = |mark, changed: u64| {
        let mut period = MarkPeriod::new(mark, 0, sectors).unwrap();
        period.grains[0] = changed;
        period
    };
    let periods = vec![period(1, 0b1100), period(3, 1 << 7)];
    let lost = vec![LostMark { mark: 2, reason: "moonlight".to_owned() }];
    let marks = BackupMarks::default();
    marks.change(|all| all.insert(0, DiskMarks { sectors, periods, lost }));
    marks
}

const GRAIN: u64 = 65536;

#[test]
fn contexts_of_marks_are_listed_and_selected_and_a_lost_mark_is_refused_with_its_reason() {
    let exports = || NbdExports::single("disk", geometry(), false).with_marks(marked(2048));
    let (list, set) = (p::OPT_LIST_META_CONTEXT, p::OPT_SET_META_CONTEXT);
    let ask = |number, asked: &[&[u8]]| {
        let mut peer = Peer::connect(exports());
        peer.give(&3u32.to_be_bytes());
        agree(&mut peer, ReplyForm::Structured);
        peer.give(&option(number, &queries(b"disk", asked)));
        let words = |(_, kind, data): (u32, u32, Vec<u8>)| {
            let id = data.first_chunk::<4>().map_or(0, |id| u32::from_be_bytes(*id));
            let words = if kind == p::REP_META_CONTEXT { &data[4..] } else { &data };
            format!(
                "{} {}",
                if kind == p::REP_META_CONTEXT { id } else { 99 },
                String::from_utf8_lossy(words)
            )
        };
        option_replies(&peer.take()).into_iter().map(words).collect::<Vec<_>>().join("|")
    };
    let (first, third) = ("dcd:changed-since=1", "dcd:changed-since=3");
    assert_eq!(ask(list, &[]), format!("0 base:allocation|0 {first}|0 {third}|99 "));
    assert_eq!(ask(list, &[b"dcd:"]), format!("0 {first}|0 {third}|99 "));
    assert_eq!(ask(set, &[b"dcd:", b"dcd:changed-since=4", b"dcd:changed-since=01"]), "99 ");
    let unknown = "99 the disk has no such mark, or has lost it: make a full backup";
    assert_eq!(ask(set, &[b"dcd:changed-since=4"]), unknown);
    assert_eq!(ask(set, &[third.as_bytes()]), format!("1 {third}|99 "));
    let both = ask(set, &[third.as_bytes(), b"base:allocation"]);
    assert_eq!(both, format!("1 base:allocation|2 {third}|99 "));
    let lost = ask(set, &[b"dcd:changed-since=2"]);
    assert_eq!(lost, "99 this mark is lost (moonlight): make a full backup");
    let other = ask(set, &[b"base:allocation", b"dcd:changed-since=2"]);
    assert_eq!(other, "1 base:allocation|99 ", "a lost mark costs no other context");
}

/// The runs of each chunk in a reply, by the number of its context.
fn runs_by_context(
    form: ReplyForm,
    peer: &mut Peer,
    offset: u64,
    length: u64,
) -> Vec<(u32, Vec<(u64, u64)>)> {
    match form {
        ReplyForm::Extended => peer.give(&extended(0, p::CMD_BLOCK_STATUS, COOKIE, offset, length)),
        _ => peer.give(&request(0, p::CMD_BLOCK_STATUS, COOKIE, offset, length as u32)),
    }
    peer.finish();
    let chunks = parse(form, &peer.take());
    chunks.iter().map(|chunk| (p::u32_at(&chunk.payload, 0), runs(form, chunk))).collect()
}

fn marked_peer(form: ReplyForm, marks: &BackupMarks, geometry: Geometry, contexts: &[&[u8]]) -> Peer {
    let exports = NbdExports::single("disk", geometry, false).with_marks(marks.clone());
    let mut peer = Peer::connect(exports);
    peer.give(&3u32.to_be_bytes());
    agree(&mut peer, form);
    peer.give(&option(p::OPT_SET_META_CONTEXT, &queries(b"disk", contexts)));
    assert_eq!(kinds(&peer.take()).len(), contexts.len() + 1);
    peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
    peer.take();
    peer
}

#[test]
fn a_status_tells_changes_since_marks_beside_holes_and_all_since_a_dropped_mark() {
    let end = DISK_BYTES as u64;
    for form in [ReplyForm::Structured, ReplyForm::Extended] {
        let marks = marked(2048);
        let contexts: [&[u8]; 3] = [b"dcd:changed-since=3", b"base:allocation", b"dcd:changed-since=1"];
        let mut peer = marked_peer(form, &marks, geometry(), &contexts);
        let of_first = vec![(2 * GRAIN, 0), (2 * GRAIN, 1), (3 * GRAIN, 0), (GRAIN, 1), (end - 8 * GRAIN, 0)];
        let of_third = vec![(7 * GRAIN, 0), (GRAIN, 1), (end - 8 * GRAIN, 0)];
        let all = runs_by_context(form, &mut peer, 0, end);
        assert_eq!(all, [(1, vec![(end, 3)]), (2, of_first), (3, of_third)]);
        let mut peer = marked_peer(form, &marks, geometry(), &[b"dcd:changed-since=1"]);
        assert_eq!(runs_by_context(form, &mut peer, GRAIN, 2048 + GRAIN), [(1, vec![(GRAIN, 0), (2048, 1)])]);
        marks.change(|disks| disks.get_mut(&0).unwrap().forget(1));
        assert_eq!(runs_by_context(form, &mut peer, 0, end), [(1, vec![(end, 1)])]);
        marks.change(std::collections::BTreeMap::clear);
        assert_eq!(runs_by_context(form, &mut peer, 0, end), [(1, vec![(end, 1)])]);
        let marks = self::marked(2048);
        let mut other = marked_peer(form, &marks, geometry(), &[b"dcd:changed-since=3"]);
        assert_eq!(runs_by_context(form, &mut other, 7 * GRAIN, 512), [(1, vec![(512, 1)])]);
    }
}
