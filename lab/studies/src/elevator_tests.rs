use dcd_engine::Command;

use super::*;

fn request(id: u64, writes: bool, at: u64) -> Event {
    let (at, buf) = (Lba(at), Buf::blank(4096));
    let io = match writes {
        true => Io::Write { at, buf, durability: Durability::Durable },
        false => Io::Read { at, buf },
    };
    Event::Request(Request { id: RequestId(id), disk: 0, io })
}

/// Takes what was sent: the operation, true for a write, the first sector, the number of sectors.
fn sent(cx: &mut Cx) -> Vec<(OpId, bool, u64, u64)> {
    let submitted = |command| match command {
        Command::Submit { op, io, .. } => {
            let extent = io.extent().unwrap();
            Some((op, io.modifies(), extent.start.0, extent.sectors))
        }
        _ => None,
    };
    cx.commands.drain(..).filter_map(submitted).collect()
}

fn end(elevator: &mut Elevator, now: u64, op: OpId, bytes: usize, cx: &mut Cx) -> Vec<u64> {
    let result = IoResult::ok(Buf::blank(bytes));
    elevator.handle(Event::Completed { op, result }, cx.at(Nanos::from_millis(now)));
    elevator.check();
    let replied = |command: &Command| match command {
        Command::Reply { id, result } => {
            assert_eq!(result.buf.len(), 4096);
            Some(id.0)
        }
        _ => None,
    };
    cx.commands.iter().filter_map(replied).collect()
}

#[test]
fn neighbours_are_joined_and_the_rest_goes_up_one_at_a_time() {
    let (mut elevator, mut cx) = (Elevator::new(1, Nanos::ZERO), Cx::default());
    for (id, at) in [(1, 80), (2, 8), (3, 16), (4, 0), (5, 40)] {
        elevator.handle(request(id, true, at), cx.at(Nanos::ZERO));
    }
    assert!(cx.commands.is_empty(), "all of one instant is gathered first");
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    let first = sent(&mut cx);
    assert_eq!(first, [(OpId(0), true, 0, 24)]);
    assert_eq!(end(&mut elevator, 1, OpId(0), 3 * 4096, &mut cx), [4, 2, 3]);
    assert_eq!(sent(&mut cx), [(OpId(1), true, 40, 8)]);
    elevator.handle(request(6, true, 24), cx.at(Nanos::from_millis(1)));
    end(&mut elevator, 2, OpId(1), 4096, &mut cx);
    assert_eq!(sent(&mut cx), [(OpId(2), true, 80, 8)], "on the way up");
    end(&mut elevator, 3, OpId(2), 4096, &mut cx);
    assert_eq!(sent(&mut cx), [(OpId(3), true, 24, 8)], "and again from the first one");
}

#[test]
fn reads_and_writes_take_turns_and_the_drive_is_empty_between_them() {
    let (mut elevator, mut cx) = (Elevator::new(2, Nanos::ZERO), Cx::default());
    for (id, writes, at) in [(1, false, 0), (2, false, 100), (3, true, 50), (4, false, 200)] {
        elevator.handle(request(id, writes, at), cx.at(Nanos::ZERO));
    }
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    let kinds = |sent: Vec<(OpId, bool, u64, u64)>| sent.iter().map(|s| (s.1, s.2)).collect::<Vec<_>>();
    assert_eq!(kinds(sent(&mut cx)), [(false, 0), (false, 100)]);
    let late = READ_BATCH.0 / 1_000_000 + 1;
    end(&mut elevator, late, OpId(0), 4096, &mut cx);
    assert_eq!(kinds(sent(&mut cx)), [], "the batch is over, but a read is still at the drive");
    end(&mut elevator, late, OpId(1), 4096, &mut cx);
    assert_eq!(kinds(sent(&mut cx)), [(true, 50)]);
    end(&mut elevator, late, OpId(2), 4096, &mut cx);
    assert_eq!(kinds(sent(&mut cx)), [(false, 200)]);
}

#[test]
fn after_a_read_writes_wait_for_another_one() {
    let (mut elevator, mut cx) = (Elevator::new(1, Nanos::from_millis(6)), Cx::default());
    elevator.handle(request(1, false, 0), cx.at(Nanos::ZERO));
    elevator.handle(request(2, true, 100), cx.at(Nanos::ZERO));
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    sent(&mut cx);
    end(&mut elevator, 2, OpId(0), 4096, &mut cx);
    assert_eq!(sent(&mut cx), [], "another read may come");
    assert_eq!(elevator.next_deadline(), Some(Nanos::from_millis(8)));
    elevator.handle(request(3, false, 50), cx.at(Nanos::from_millis(5)));
    assert_eq!(sent(&mut cx), [(OpId(1), false, 50, 8)], "and did");
    end(&mut elevator, 7, OpId(1), 4096, &mut cx);
    sent(&mut cx);
    elevator.handle(Event::Wake, cx.at(Nanos::from_millis(13)));
    assert_eq!(sent(&mut cx), [(OpId(2), true, 100, 8)]);
    end(&mut elevator, 15, OpId(2), 4096, &mut cx);
    assert_eq!(elevator.next_deadline(), None);
}

#[test]
fn a_flush_goes_after_what_came_before_it_and_before_what_came_after() {
    let (mut elevator, mut cx) = (Elevator::new(4, Nanos::ZERO), Cx::default());
    elevator.handle(request(1, true, 0), cx.at(Nanos::ZERO));
    let flush = Request { id: RequestId(2), disk: 0, io: Io::Flush };
    elevator.handle(Event::Request(flush), cx.at(Nanos::ZERO));
    elevator.handle(request(3, true, 8), cx.at(Nanos::ZERO));
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    assert_eq!(sent(&mut cx), [(OpId(0), true, 0, 8)]);
    end(&mut elevator, 1, OpId(0), 4096, &mut cx);
    assert!(matches!(cx.commands.last(), Some(Command::Submit { io: Io::Flush, .. })));
    cx.commands.clear();
    let result = IoResult::ok(Buf::none());
    elevator.handle(Event::Completed { op: OpId(1), result }, cx.at(Nanos::from_millis(2)));
    assert_eq!(sent(&mut cx), [(OpId(2), true, 8, 8)]);
}

#[test]
fn what_has_waited_too_long_goes_out_of_turn() {
    let (mut elevator, mut cx) = (Elevator::new(1, Nanos::ZERO), Cx::default());
    let at = |ms, event| (Nanos::from_millis(ms), event);
    let arrivals = [(0, 1, 1000), (0, 2, 500), (1, 3, 2000), (100, 4, 3000), (120, 5, 4000)];
    let mut arrivals = arrivals.map(|(ms, id, place)| at(ms, request(id, false, place))).into_iter();
    let next = arrivals.by_ref().take(2).collect::<Vec<_>>();
    next.into_iter().for_each(|(now, event)| elevator.handle(event, cx.at(now)));
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    assert_eq!(sent(&mut cx)[0].2, 500);
    arrivals.for_each(|(now, event)| elevator.handle(event, cx.at(now)));
    elevator.handle(request(6, false, 508), cx.at(Nanos::from_millis(121)));
    end(&mut elevator, 122, OpId(0), 4096, &mut cx);
    assert_eq!(sent(&mut cx)[0].2, 508, "it is not 125 ms yet");
    end(&mut elevator, 128, OpId(1), 4096, &mut cx);
    assert_eq!(sent(&mut cx)[0].2, 1000, "the oldest, which also comes next");
    elevator.handle(request(7, false, 1008), cx.at(Nanos::from_millis(129)));
    end(&mut elevator, 254, OpId(2), 4096, &mut cx);
    assert_eq!(sent(&mut cx)[0].2, 2000, "it waits for 253 ms, and 1008 would have been nearer");
}

#[test]
fn a_command_a_little_behind_the_last_goes_before_one_far_ahead() {
    let (mut elevator, mut cx) = (Elevator::new(1, Nanos::ZERO), Cx::default());
    elevator.handle(request(1, false, 10_000), cx.at(Nanos::ZERO));
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    sent(&mut cx);
    for (id, place) in [(2, 9_900), (3, 10_300), (4, 9_000)] {
        elevator.handle(request(id, false, place), cx.at(Nanos::ZERO));
    }
    let order = (0..3).map(|op| {
        end(&mut elevator, op + 1, OpId(op), 4096, &mut cx);
        sent(&mut cx)[0].2
    });
    assert_eq!(order.collect::<Vec<_>>(), [9_900, 10_300, 9_000]);
}

#[test]
fn nobody_waits_for_a_reader_that_thinks_for_long() {
    let (mut elevator, mut cx) = (Elevator::new(1, Nanos::from_millis(6)), Cx::default());
    let mut now = 0;
    let mut anticipates = Vec::new();
    for round in 0..4 {
        elevator.handle(request(round, false, round * 100), cx.at(Nanos::from_millis(now)));
        elevator.handle(Event::Wake, cx.at(Nanos::from_millis(now)));
        let op = sent(&mut cx)[0].0;
        elevator.handle(request(10 + round, true, 50), cx.at(Nanos::from_millis(now)));
        end(&mut elevator, now + 1, op, 4096, &mut cx);
        anticipates.push(sent(&mut cx).is_empty());
        elevator.handle(Event::Wake, cx.at(Nanos::from_millis(now + 7)));
        let op = OpId(2 * round + 1);
        end(&mut elevator, now + 8, op, 4096, &mut cx);
        sent(&mut cx);
        now += 15;
    }
    assert_eq!(anticipates, [true, false, false, false], "it comes back after 14 ms each time");
}

#[test]
fn a_batch_that_ran_out_is_over_when_the_drive_is_empty() {
    let (mut elevator, mut cx) = (Elevator::new(4, Nanos::from_millis(6)), Cx::default());
    for (id, writes, place) in [(1, false, 0), (2, false, 100), (3, true, 50)] {
        elevator.handle(request(id, writes, place), cx.at(Nanos::ZERO));
    }
    elevator.handle(Event::Wake, cx.at(Nanos::ZERO));
    assert_eq!(sent(&mut cx).len(), 2);
    end(&mut elevator, 1, OpId(0), 4096, &mut cx);
    elevator.handle(request(4, false, 200), cx.at(Nanos::from_millis(2)));
    assert_eq!(sent(&mut cx), [], "a read that comes late waits for the next batch");
    end(&mut elevator, 3, OpId(1), 4096, &mut cx);
    assert_eq!(sent(&mut cx), [(OpId(2), true, 50, 8)], "reads were at the drive: none is waited for");
}
