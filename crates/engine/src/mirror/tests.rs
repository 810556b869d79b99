//! The mirror over devices in RAM, driven step by step: tests hold back operations and break legs.

use super::offline::create;
use super::*;
use crate::layer::{ArrayCommand, Command, IoKind, Request, RequestId, Seat};
use crate::log_cache::testing::Ram;
use crate::{Buf, ErrorKind, Extent, IoError, Lba, SECTOR_BYTES};

const SECTORS: u64 = CONTENT_SECTOR + 4096;

struct Legs(Vec<Ram>);

impl Ports for Legs {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

struct Rig {
    mirror: Mirror,
    legs: Legs,
    /// Operations of these legs, of this kind, are held back.
    hold: Option<(usize, IoKind)>,
    held: Vec<(Port, OpId, Io)>,
    replies: Vec<(u64, IoResult)>,
    reports: Vec<Report>,
    next: u64,
    now: Nanos,
}

fn config(legs: usize, degraded: bool) -> MirrorConfig {
    let names = (0..legs).map(|leg| format!("leg{leg}")).collect();
    MirrorConfig { names, degraded, ..MirrorConfig::default() }
}

impl Rig {
    fn new(count: usize) -> Rig {
        let mut legs: Vec<Ram> = (0..count).map(|_| Ram::new(SECTORS)).collect();
        let ids: Vec<u64> = (1..=count as u64).collect();
        let mut devices: Vec<&mut dyn BlockDevice> =
            legs.iter_mut().map(|leg| leg as &mut dyn BlockDevice).collect();
        create(&mut devices, *b"legs of the test", &ids).unwrap();
        Rig::start(legs, false).unwrap()
    }

    fn start(legs: Vec<Ram>, degraded: bool) -> Result<Rig, ActivateError> {
        let mut legs = Legs(legs);
        let mut mirror = Mirror::new(config(legs.0.len(), degraded));
        mirror.activate(&mut legs)?;
        let (held, replies, reports) = (Vec::new(), Vec::new(), Vec::new());
        let mut rig = Rig { mirror, legs, hold: None, held, replies, reports, next: 0, now: Nanos::ZERO };
        rig.settle(Vec::new());
        Ok(rig)
    }

    fn event(&mut self, event: Event) {
        self.settle(vec![event]);
    }

    /// Carries out all that is not held back. The clock goes nowhere but to what the mirror waits for.
    fn settle(&mut self, mut events: Vec<Event>) {
        loop {
            if let (true, Some(due)) = (events.is_empty(), self.mirror.next_deadline()) {
                self.now = self.now.max(due);
                events.push(Event::Wake);
            }
            let Some(event) = events.pop() else { break };
            let mut cx = Cx::default();
            self.mirror.handle(event, cx.at(self.now));
            self.mirror.check();
            for command in cx.commands {
                match command {
                    Command::Submit { port, op, io } => {
                        if self.hold == Some((port.0, io.kind())) {
                            self.held.push((port, op, io));
                        } else {
                            let result = self.legs.run(port, io);
                            events.push(Event::Completed { op, result });
                        }
                    }
                    Command::Reply { id, result } => self.replies.push((id.0, result)),
                    Command::Report(report) => self.reports.push(report),
                }
            }
        }
        self.mirror.check_progress(self.now, !self.held.is_empty());
    }

    fn let_go(&mut self) {
        self.hold = None;
        for (port, op, io) in std::mem::take(&mut self.held) {
            let result = self.legs.run(port, io);
            self.event(Event::Completed { op, result });
        }
    }

    fn send(&mut self, io: Io) -> u64 {
        self.next += 1;
        self.event(Event::Request(Request { id: RequestId(self.next), disk: 0, io }));
        self.next
    }

    fn write(&mut self, at: u64, byte: u8) -> u64 {
        let buf = Buf::copy_of(&[byte; 4096]);
        self.send(Io::Write { at: Lba(at), buf, durability: Durability::Volatile })
    }

    fn status(&self, id: u64) -> Option<Result<(), IoError>> {
        self.replies.iter().find(|(other, _)| *other == id).map(|(_, result)| result.status)
    }

    fn read(&mut self, at: u64) -> u8 {
        let id = self.send(Io::Read { at: Lba(at), buf: Buf::zeroed(4096) });
        let (_, result) = self.replies.iter().find(|(other, _)| *other == id).expect("it is answered");
        assert_eq!(result.status, Ok(()));
        result.buf.bytes()[0]
    }

    fn on_leg(&self, leg: usize, at: u64) -> u8 {
        self.legs.0[leg].bytes[((CONTENT_SECTOR + at) * SECTOR_BYTES) as usize]
    }

    fn standings(&self) -> Vec<Option<LegState>> {
        let status = self.mirror.status(self.now);
        status.get::<MirrorStatus>().unwrap().legs.iter().map(|leg| leg.standing).collect()
    }

    fn break_leg(&mut self, leg: usize) {
        self.legs.0[leg].unwritable.extend(0..SECTORS);
        self.legs.0[leg].unreadable.extend(0..SECTORS);
    }
}

const WHOLE: Option<LegState> = Some(LegState::Whole);
const FAILED: Option<LegState> = Some(LegState::Failed);

#[test]
fn a_write_is_answered_when_all_legs_have_it() {
    let mut rig = Rig::new(2);
    rig.hold = Some((1, IoKind::Write));
    let id = rig.write(8, 7);
    assert_eq!((rig.on_leg(0, 8), rig.status(id)), (7, None));
    rig.let_go();
    assert_eq!((rig.on_leg(1, 8), rig.status(id)), (7, Some(Ok(()))));
}

#[test]
fn nothing_is_answered_before_the_labels_name_the_leg_that_missed_it() {
    let mut rig = Rig::new(2);
    rig.break_leg(1);
    // The label goes the same way as the write, so the write goes first.
    rig.hold = Some((1, IoKind::Write));
    let id = rig.write(8, 7);
    rig.hold = Some((0, IoKind::Write));
    let (port, op, io) = rig.held.pop().unwrap();
    let result = rig.legs.run(port, io);
    rig.event(Event::Completed { op, result });
    assert_eq!(rig.standings(), [WHOLE, FAILED]);
    assert_eq!(rig.status(id), None, "a start with leg 1 alone would not know of it");
    rig.let_go();
    assert_eq!(rig.status(id), Some(Ok(())));
    assert!(rig.reports.contains(&Report::Notice));
    let (label, _) = Label::read(&mut rig.legs.0[0]).unwrap();
    assert_eq!(label.standing(2), Some(LegState::Failed));
}

#[test]
fn a_leg_that_comes_back_is_filled_and_counts_only_then() {
    let mut rig = Rig::new(2);
    rig.break_leg(1);
    let id = rig.write(8, 7);
    assert_eq!(rig.status(id), Some(Ok(())));
    let mut legs = rig.legs.0;
    legs[1].unwritable.clear();
    legs[1].unreadable.clear();
    // Alone it is refused, as it has less than was acknowledged; by what it says itself it would be good.
    let mut rig = Rig::start(legs, false).unwrap();
    assert_eq!((rig.on_leg(1, 8), rig.standings()), (7, vec![WHOLE, WHOLE]));
    let alone = vec![rig.legs.0.remove(1)];
    let mut rig = Rig::start(alone, true).unwrap();
    assert_eq!(rig.read(8), 7);
}

#[test]
fn what_one_leg_cannot_read_another_answers_and_it_is_mended() {
    let mut rig = Rig::new(2);
    rig.write(64, 9);
    rig.legs.0[0].unreadable.insert(CONTENT_SECTOR + 64);
    rig.legs.0[1].unreadable.insert(CONTENT_SECTOR + 128);
    for _ in 0..2 {
        assert_eq!((rig.read(64), rig.read(128)), (9, 0));
    }
    let status = rig.mirror.status(rig.now);
    let counts = status.get::<MirrorStatus>().unwrap().statistics;
    assert!(counts.reads_elsewhere >= 1 && counts.mended >= 1, "{counts:?}");
    assert_eq!(rig.standings(), [WHOLE, WHOLE]);
}

/// The other leg may have anything where this one can read: a repair of the whole place overwrote the only good copy.
#[test]
fn a_repair_writes_only_the_blocks_that_its_leg_cannot_read() {
    let mut rig = Rig::new(2);
    rig.write(64, 9);
    let at = |lba: u64| CONTENT_SECTOR + lba;
    rig.legs.0[1].bytes[(at(65) * SECTOR_BYTES) as usize..][..SECTOR_BYTES as usize].fill(3);
    rig.legs.0[0].unreadable.insert(at(66));
    assert_eq!(rig.read(64), 9);
    let status = rig.mirror.status(rig.now);
    assert_eq!(status.get::<MirrorStatus>().unwrap().statistics.mended, 1);
    assert!((64..72).all(|lba| rig.on_leg(0, lba) == 9));
}

/// The new leg got zeroes for a whole piece with an unreadable block, and counted as whole.
#[test]
fn a_leg_is_filled_with_every_block_that_some_leg_can_read() {
    let mut rig = Rig::new(2);
    rig.write(64, 9);
    rig.break_leg(1);
    rig.write(80, 9);
    let mut legs = rig.legs.0;
    legs[1].unwritable.clear();
    legs[1].unreadable.clear();
    legs[1].bytes[((CONTENT_SECTOR + 64) * SECTOR_BYTES) as usize..][..8 * SECTOR_BYTES as usize].fill(3);
    legs[0].unreadable.insert(CONTENT_SECTOR + 66);
    let rig = Rig::start(legs, false).unwrap();
    assert_eq!(rig.standings(), [WHOLE, WHOLE]);
    let filled: Vec<u8> = (64..72).map(|lba| rig.on_leg(1, lba)).collect();
    assert_eq!(filled, [9, 9, 0, 9, 9, 9, 9, 9]);
}

/// No leg can read the first place any more when it is to be mended. The second one is mended without another event.
#[test]
fn every_place_that_waits_is_mended() {
    let mut rig = Rig::new(2);
    rig.write(64, 9);
    let at = |lba: u64| CONTENT_SECTOR + lba;
    rig.legs.0[0].unreadable.extend([at(64), at(72)]);
    rig.legs.0[1].unreadable.insert(at(64));
    let copier = &mut rig.mirror.core.as_mut().expect("active").copier;
    [64, 72].into_iter().for_each(|lba| copier.mend(1, Extent::new(Lba(lba), 8)));
    rig.write(128, 1);
    let status = rig.mirror.status(rig.now);
    assert_eq!(status.get::<MirrorStatus>().unwrap().statistics.mended, 1);
}

#[test]
fn each_copy_can_be_asked_for() {
    let mut rig = Rig::new(2);
    rig.write(64, 9);
    rig.legs.0[1].bytes[((CONTENT_SECTOR + 64) * SECTOR_BYTES) as usize] = 5;
    let mut copy = |copy| {
        let id = rig.send(Io::ReadCopy { at: Lba(64), buf: Buf::zeroed(4096), copy });
        rig.replies.iter().find(|(other, _)| *other == id).unwrap().1.buf.bytes()[0]
    };
    assert_eq!((copy(0), copy(1)), (9, 5));
}

#[test]
fn the_last_leg_tells_its_errors_and_stays() {
    let mut rig = Rig::new(2);
    rig.break_leg(0);
    let first = rig.write(8, 1);
    assert_eq!(rig.status(first), Some(Ok(())));
    rig.break_leg(1);
    let second = rig.write(8, 2);
    assert!(rig.status(second).unwrap().is_err());
    assert_eq!(rig.standings(), [FAILED, WHOLE]);
}

#[test]
fn a_leg_is_added_and_another_taken_out_beside_clients() {
    let mut rig = Rig::new(1);
    rig.write(8, 3);
    rig.legs.0.push(Ram::new(SECTORS));
    let geometry = rig.legs.0[1].geometry();
    let add = ArrayCommand::Add { port: Port(1), geometry, seat: Seat::Spare(0), id: 77 };
    let last = ArrayCommand::Remove { port: Port(0) };
    rig.event(Event::Control(Control::Array(last)));
    assert!(matches!(rig.reports.pop(), Some(Report::Array(Err(crate::CommandError::LastLeg)))));
    rig.hold = Some((1, IoKind::Flush));
    rig.event(Event::Control(Control::Array(add)));
    assert_eq!(rig.standings(), [WHOLE, Some(LegState::Filling)], "it is not flushed yet");
    rig.let_go();
    assert_eq!(rig.standings(), [WHOLE, WHOLE]);
    rig.event(Event::Control(Control::Array(last)));
    assert_eq!(rig.reports.last(), Some(&Report::Array(Ok(()))));
    assert_eq!(rig.standings(), [WHOLE]);
    assert_eq!(Label::read(&mut rig.legs.0[0]), Err(LabelError::None), "it is no leg wherever it goes");
    assert_eq!(rig.read(8), 3);
}

/// Whoever closes a device in order to name another one may be refused afterwards: the log must not look whole then.
#[test]
fn a_failed_leg_whose_device_is_closed_is_still_known_as_failed() {
    let mut rig = Rig::new(2);
    let close = |port| Event::Control(Control::Array(ArrayCommand::Close { port: Port(port) }));
    rig.event(close(1));
    assert!(matches!(rig.reports.pop(), Some(Report::Array(Err(crate::CommandError::LegInUse)))));
    rig.break_leg(1);
    rig.write(8, 3);
    assert_eq!(rig.standings(), [WHOLE, FAILED]);
    rig.event(close(1));
    assert_eq!(rig.reports.pop(), Some(Report::Array(Ok(()))));
    let status = rig.mirror.status(rig.now);
    let status = status.get::<MirrorStatus>().unwrap();
    assert_eq!((rig.standings(), status.legs[1].port), (vec![WHOLE, FAILED], None));
    assert!(!status.is_good());
    rig.legs.0.push(Ram::new(SECTORS));
    let geometry = rig.legs.0[2].geometry();
    let add = ArrayCommand::Add { port: Port(2), geometry, seat: Seat::Spare(0), id: 77 };
    rig.event(Event::Control(Control::Array(add)));
    assert_eq!(rig.standings(), [WHOLE, WHOLE], "the failed one is forgotten");
}

/// Two legs are missing, and one of them is replaced: the other one is still known as failed.
#[test]
fn an_added_leg_takes_the_places_of_as_many_failed_legs_as_the_log_has_too_many() {
    for (legs, standings) in [
        (3, vec![WHOLE, FAILED, WHOLE]),
        (2, vec![WHOLE, WHOLE]),
        // An earlier program does not say how many.
        (0, vec![WHOLE, WHOLE]),
        (4, vec![WHOLE, FAILED, FAILED, WHOLE]),
    ] {
        let mut rig = Rig::new(3);
        for leg in [1, 2] {
            rig.break_leg(leg);
            rig.write(8, 3);
            rig.event(Event::Control(Control::Array(ArrayCommand::Close { port: Port(leg) })));
        }
        assert_eq!(rig.standings(), [WHOLE, FAILED, FAILED]);
        rig.legs.0.push(Ram::new(SECTORS));
        let geometry = rig.legs.0[3].geometry();
        let add = ArrayCommand::Add { port: Port(3), geometry, seat: Seat::Spare(legs), id: 77 };
        rig.event(Event::Control(Control::Array(add)));
        assert_eq!(rig.standings(), standings, "{legs}");
    }
}

/// The device of the leg never comes back, and another leg was added: the log stays degraded until it is told.
#[test]
fn a_failed_leg_whose_device_is_missing_is_forgotten_when_told() {
    let mut rig = Rig::new(2);
    let forget = || Event::Control(Control::Array(ArrayCommand::Forget));
    rig.break_leg(1);
    rig.write(8, 3);
    rig.event(forget());
    let no_leg = Some(Report::Array(Err(crate::CommandError::NoLeg)));
    assert_eq!((rig.reports.pop(), rig.standings()), (no_leg, vec![WHOLE, FAILED]), "its device is open");
    rig.event(Event::Control(Control::Array(ArrayCommand::Close { port: Port(1) })));
    rig.event(forget());
    assert_eq!((rig.reports.pop(), rig.standings()), (Some(Report::Array(Ok(()))), vec![WHOLE]));
    let mut legs = rig.legs.0;
    let label = Label::read(&mut legs[0]).unwrap().0;
    assert_eq!(label.legs.len(), 1, "the next start knows of one leg");
}

/// The labels of the legs that stay cannot say that one has left.
#[test]
fn a_leg_that_cannot_be_taken_out_keeps_nobody_waiting() {
    let mut rig = Rig::new(2);
    rig.legs.0[1].unwritable.extend(0..CONTENT_SECTOR);
    for _ in 0..2 {
        rig.event(Event::Control(Control::Array(ArrayCommand::Remove { port: Port(0) })));
        assert!(matches!(rig.reports.pop(), Some(Report::Array(Err(_)))), "{:?}", rig.reports);
    }
}

#[test]
fn overlapping_writes_leave_the_legs_alike() {
    let mut rig = Rig::new(2);
    rig.hold = Some((1, IoKind::Write));
    let (first, second) = (rig.write(8, 1), rig.write(12, 2));
    assert_eq!((rig.on_leg(0, 8), rig.on_leg(0, 12)), (1, 1), "the second waits for the first");
    rig.let_go();
    assert_eq!((rig.status(first), rig.status(second)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!((rig.on_leg(0, 12), rig.on_leg(1, 12)), (2, 2));
}

#[test]
fn nothing_is_written_where_a_place_is_being_copied() {
    let mut rig = Rig::new(1);
    rig.write(8, 3);
    rig.legs.0.push(Ram::new(SECTORS));
    let geometry = rig.legs.0[1].geometry();
    rig.hold = Some((0, IoKind::Read));
    rig.event(Event::Control(Control::Array(ArrayCommand::Add {
        port: Port(1),
        geometry,
        seat: Seat::Spare(0),
        id: 77,
    })));
    let id = rig.write(8, 4);
    assert_eq!((rig.status(id), rig.on_leg(0, 8)), (None, 3), "what was read may not go over it");
    rig.let_go();
    assert_eq!((rig.status(id), rig.on_leg(0, 8), rig.on_leg(1, 8)), (Some(Ok(())), 4, 4));
    let extent = Extent::new(Lba(0), 8);
    assert!(!rig.mirror.core().copier.holds(extent));
}

fn ssd() -> Ram {
    Ram { discards: Discards::Advisory, ssd: true, ..Ram::new(SECTORS) }
}

/// Discards go to no leg that could lose space by them, and so to none.
#[test]
fn a_leg_that_is_no_plain_ssd_ends_the_discards_of_all() {
    let discard = || Io::Discard { extent: Extent::new(Lba(0), 8) };
    let unsupported = Some(Err(ErrorKind::Unsupported));
    let kind = |rig: &Rig, id| rig.status(id).map(|status| status.map_err(|error| error.kind));
    // From the start, whichever leg it is.
    for other in 0..2 {
        let mut rig = Rig::new(2);
        rig.write(0, 3);
        let mut legs = rig.legs.0;
        for (leg, disk) in legs.iter_mut().enumerate() {
            (disk.discards, disk.ssd) = (Discards::Zero, leg != other);
        }
        let rig = Rig::start(legs, false).unwrap();
        assert!(!rig.mirror.geometry().ssd, "leg {other} is a file");
    }
    // Added while a discard waits.
    let mut rig = Rig::new(1);
    (rig.legs.0[0].discards, rig.legs.0[0].ssd) = (Discards::Advisory, true);
    let mut rig = Rig::start(rig.legs.0, false).unwrap();
    assert!(rig.mirror.geometry().ssd);
    let done = rig.send(discard());
    assert_eq!(kind(&rig, done), Some(Ok(())));
    rig.hold = Some((0, IoKind::Write));
    rig.write(0, 3);
    rig.hold = None;
    let waits = rig.send(discard());
    rig.legs.0.push(Ram { ssd: false, ..ssd() });
    let (geometry, seat) = (rig.legs.0[1].geometry(), Seat::Spare(0));
    rig.event(Event::Control(Control::Array(ArrayCommand::Add { port: Port(1), geometry, seat, id: 77 })));
    rig.let_go();
    let later = rig.send(discard());
    assert_eq!([kind(&rig, waits), kind(&rig, later)], [unsupported, unsupported]);
    assert_eq!((rig.standings(), rig.on_leg(0, 0), rig.on_leg(1, 0)), (vec![WHOLE, WHOLE], 3, 3));
}

/// The layer above learns of it, and stops.
#[test]
fn a_leg_that_fails_a_discard_misses_nothing_and_the_error_is_told() {
    let mut rig = Rig::new(2);
    rig.legs.0.iter_mut().for_each(|leg| (leg.discards, leg.ssd) = (Discards::Advisory, true));
    let mut rig = Rig::start(rig.legs.0, false).unwrap();
    rig.legs.0[1].unwritable.insert(CONTENT_SECTOR);
    let id = rig.send(Io::Discard { extent: Extent::new(Lba(0), 8) });
    assert_eq!(rig.status(id).unwrap().unwrap_err().kind, ErrorKind::Medium);
    assert_eq!(rig.standings(), [WHOLE, WHOLE]);
}

impl Rig {
    fn write_copy(&mut self, at: u64, byte: u8, copy: u8) -> u64 {
        let buf = Buf::copy_of(&[byte; 4096]);
        self.send(Io::WriteCopy { at: Lba(at), buf, durability: Durability::Volatile, copy })
    }
}

#[test]
fn what_is_written_to_one_copy_reaches_no_other_leg_that_is_whole() {
    let mut rig = Rig::new(3);
    rig.write(8, 1);
    let id = rig.write_copy(8, 2, 1);
    assert_eq!((rig.status(id), [0, 1, 2].map(|leg| rig.on_leg(leg, 8))), (Some(Ok(())), [1, 2, 1]));
    // A leg that is filled may have it from there.
    rig.hold = Some((2, IoKind::Flush));
    rig.event(Event::Control(Control::DistrustCopy(2)));
    let id = rig.write_copy(8, 3, 1);
    assert_eq!((rig.status(id), [0, 1, 2].map(|leg| rig.on_leg(leg, 8))), (Some(Ok(())), [1, 3, 3]));
}

#[test]
fn the_number_of_a_copy_stays_with_its_leg_and_goes_to_no_leg_that_has_another() {
    let mut rig = Rig::new(2);
    rig.break_leg(0);
    rig.write(8, 1);
    assert_eq!(rig.standings(), [FAILED, WHOLE]);
    let id = rig.write_copy(8, 9, 0);
    assert_eq!((rig.status(id), rig.on_leg(1, 8)), (Some(Ok(())), 1), "it was meant for the one that failed");
    rig.write_copy(8, 2, 1);
    assert_eq!(rig.on_leg(1, 8), 2);
}

#[test]
fn a_leg_that_lost_what_was_durable_is_named_before_the_next_answer_and_filled() {
    let mut rig = Rig::new(2);
    rig.write(8, 1);
    rig.hold = Some((0, IoKind::Write));
    rig.event(Event::Control(Control::DistrustCopy(1)));
    let id = rig.send(Io::Flush);
    assert_eq!(rig.status(id), None, "leg 1 alone would still be believed");
    rig.legs.0[1].bytes[((CONTENT_SECTOR + 8) * SECTOR_BYTES) as usize] = 0;
    rig.let_go();
    assert_eq!(rig.status(id), Some(Ok(())));
    assert_eq!((rig.on_leg(1, 8), rig.standings()), (1, vec![WHOLE, WHOLE]));
    let status = rig.mirror.status(rig.now);
    let mirror = status.get::<MirrorStatus>().unwrap();
    assert_eq!((mirror.statistics.legs_distrusted, mirror.legs[1].lost_writes), (1, true));
    // The last one has the most, whatever it lacks.
    rig.break_leg(0);
    rig.write(8, 2);
    rig.event(Event::Control(Control::DistrustCopy(1)));
    assert_eq!(rig.standings(), [FAILED, WHOLE]);
}

/// Writes into a label, and seals it again.
fn forge(leg: &mut Ram, copy: usize, offset: usize, value: &[u8]) {
    let label = &mut leg.bytes[copy * label::LABEL_BYTES..][..label::LABEL_BYTES];
    label[offset..offset + value.len()].copy_from_slice(value);
    label[12..16].fill(0);
    let crc = crc32c::crc32c(label);
    label[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn labels_with_good_checksums_and_bad_numbers_are_refused_or_served_and_never_panic() {
    const NUMBERS: [u64; 10] = [0, 1, 2, 3, 8, 9, 1 << 54, 1 << 62, u64::MAX - 1, u64::MAX];
    let fields = [8, 10, 16, 32, 40, 48, 56, 64, 72, 80, 128, 129];
    let both: Vec<(usize, u64)> =
        fields.iter().flat_map(|field| NUMBERS.map(|number| (*field, number))).collect();
    for (index, (field, number)) in both.iter().enumerate() {
        // With another field of the same label, and of the other leg's.
        for (other, another) in
            [both[index], both[(index * 7 + 3) % both.len()], both[(index * 31) % both.len()]]
        {
            for legs in [[0, 0], [0, 1], [1, 1]] {
                let mut rig = Rig::new(2);
                for (leg, offset, value) in [(legs[0], *field, *number), (legs[1], other, another)] {
                    let width = if offset < 16 {
                        2
                    } else if offset >= 128 {
                        1
                    } else {
                        8
                    };
                    for copy in 0..2 {
                        forge(&mut rig.legs.0[leg], copy, offset, &value.to_le_bytes()[..width]);
                    }
                }
                let Ok(mut rig) = Rig::start(rig.legs.0, true) else { continue };
                rig.write(8, 1);
                rig.send(Io::Flush);
                rig.event(Event::Control(Control::DistrustCopy(1)));
                rig.event(Event::Control(Control::Array(ArrayCommand::Remove { port: Port(0) })));
                rig.write(8, 2);
            }
        }
    }
}
