use super::*;
use crate::ublk::RunningKernel;

const BYTES: u32 = 64 << 10;

fn device() -> UblkDevice {
    device_with(u::F_USER_RECOVERY | u::F_USER_RECOVERY_REISSUE, Outlives::Durable)
}

fn device_with(flags: u64, outlives: Outlives) -> UblkDevice {
    let info = u::DevInfo {
        nr_hw_queues: 2,
        queue_depth: 4,
        max_io_buf_bytes: BYTES,
        dev_id: 4_000_000,
        flags,
        ..u::DevInfo::default()
    };
    let file = File::open("/dev/null").unwrap();
    let claimed = Claimed { info, recovered: false, grown_to: None };
    let mut device = UblkDevice::new(Arc::new(RunningKernel), claimed, Geometry::plain(2048), file, outlives);
    device.phase = DevicePhase::Live;
    device
}

fn asked(op: u8, flags: u32, start_sector: u64, nr_sectors: u32) -> u::IoDesc {
    u::IoDesc { op_flags: u32::from(op) | flags, nr_sectors, start_sector, addr: 0 }
}

/// The request that one of the kernel becomes, or the answer that it gets at once.
fn become_request(device: &mut UblkDevice, asked: u::IoDesc) -> Result<(u64, Io), i32> {
    let mut actions = Actions::default();
    device.request(5, asked, Buf::zeroed(BYTES as usize), &mut actions);
    match actions.requests.pop() {
        Some(request) => Ok(request),
        None => Err(answer(&actions.commands[0])),
    }
}

/// The answer in a command.
fn answer(command: &KernelCommand) -> i32 {
    assert_eq!(command.op, u::COMMIT_AND_FETCH_REQ);
    assert_eq!(command.head[..4], [1, 0, 1, 0], "slot 5 is tag 1 of queue 1");
    assert!(command.buf.has_room(BYTES as usize) && command.buf.len() == BYTES as usize);
    i32::from_ne_bytes(command.head[4..].try_into().unwrap())
}

#[test]
fn the_first_commands_are_one_for_each_tag_of_each_queue() {
    let mut actions = Actions::default();
    device().start(&mut actions);
    let heads: Vec<[u8; 4]> = actions.commands.iter().map(|c| c.head[..4].try_into().unwrap()).collect();
    assert_eq!(heads.len(), 8);
    assert_eq!((heads[0], heads[3], heads[4], heads[7]), ([0; 4], [0, 0, 3, 0], [1, 0, 0, 0], [1, 0, 3, 0]));
    assert!(actions.commands.iter().enumerate().all(|(slot, c)| c.slot == slot && c.op == u::FETCH_REQ));
}

#[test]
fn requests_of_the_kernel_become_requests_of_the_stack() {
    let mut device = device_with(0, Outlives::No);
    let (token, io) = become_request(&mut device, asked(u::OP_READ, 0, 8, 16)).unwrap();
    assert!(token == 5 && matches!(io, Io::Read { at: Lba(8), buf } if buf.len() == 8192));
    let io = become_request(&mut device, asked(u::OP_WRITE, u::IO_F_FUA, 8, 1)).unwrap().1;
    assert!(matches!(io, Io::Write { durability: Durability::Durable, buf, .. } if buf.len() == 512));
    let io = become_request(&mut device, asked(u::OP_FLUSH, 0, 0, 0)).unwrap().1;
    assert!(matches!(io, Io::Flush));
    let io = become_request(&mut device, asked(u::OP_WRITE_ZEROES, u::IO_F_NOUNMAP, 0, 8)).unwrap().1;
    assert!(matches!(io, Io::WriteZeroes { unmap: false, durability: Durability::Volatile, .. }));
    device.geometry.discards = dcd_engine::Discards::Advisory;
    let io = become_request(&mut device, asked(u::OP_DISCARD, 0, 0, 8)).unwrap().1;
    assert!(matches!(io, Io::Discard { .. }));
}

#[test]
fn every_write_to_a_device_that_outlives_its_server_does_so_too() {
    for (flags, outlives, expected) in [
        (0, Outlives::Durable, Durability::Volatile),
        (u::F_USER_RECOVERY, Outlives::Durable, Durability::Durable),
        // Made by an earlier server.
        (u::F_USER_RECOVERY, Outlives::No, Durability::Durable),
        (u::F_USER_RECOVERY, Outlives::Answered, Durability::Volatile),
    ] {
        let mut device = device_with(flags, outlives);
        let io = become_request(&mut device, asked(u::OP_WRITE, 0, 8, 1)).unwrap().1;
        assert!(matches!(io, Io::Write { durability, .. } if durability == expected));
        let io = become_request(&mut device, asked(u::OP_WRITE_ZEROES, 0, 8, 1)).unwrap().1;
        assert!(matches!(io, Io::WriteZeroes { durability, .. } if durability == expected));
    }
}

#[test]
fn what_cannot_be_done_is_answered_at_once() {
    let mut device = device();
    for (asked, error) in [
        (asked(u::OP_WRITE, 0, 2047, 2), Errno::INVAL),
        (asked(u::OP_READ, 0, 0, BYTES / 512 + 1), Errno::INVAL),
        (asked(u::OP_DISCARD, 0, 0, 8), Errno::OPNOTSUPP),
        (asked(4, 0, 0, 8), Errno::OPNOTSUPP),
        (asked(u::OP_READ, 0, 0, 0), Errno::INVAL),
        (asked(u::OP_READ, 0, u64::MAX, 1), Errno::INVAL),
    ] {
        assert_eq!(become_request(&mut device, asked).unwrap_err(), -error.raw_os_error(), "{asked:?}");
    }
}

#[test]
fn an_answer_has_what_was_read_even_where_the_stack_keeps_the_buffer() {
    let mut device = device();
    for shared in [false, true] {
        let (token, io) = become_request(&mut device, asked(u::OP_READ, 0, 0, 1)).unwrap();
        let mut buf = io.take_buf();
        buf.bytes_mut().fill(7);
        let mut kept = Buf::none();
        if shared {
            buf.share();
            kept = buf.window(0, 512);
        }
        let mut actions = Actions::default();
        device.reply(token, IoResult::ok(buf), &mut actions);
        assert_eq!(answer(&actions.commands[0]), 512);
        assert!(actions.commands[0].buf.bytes()[..512].iter().all(|byte| *byte == 7));
        drop(kept);
    }
    for op in [u::OP_WRITE, u::OP_FLUSH] {
        let (token, io) = become_request(&mut device, asked(op, 0, 0, u32::from(op == u::OP_WRITE))).unwrap();
        let mut actions = Actions::default();
        device.reply(token, IoResult::err(io.take_buf(), IoError::new(ErrorKind::NoSpace)), &mut actions);
        assert_eq!(answer(&actions.commands[0]), -Errno::NOSPC.raw_os_error());
    }
}

#[test]
fn a_device_with_requests_that_wait_is_left_and_one_that_nobody_has_is_removed() {
    assert!(
        matches!(device().end(1), Some(Ending::Leave(why)) if why.contains("\"dcd ublk remove 4000000\""))
    );
    let mut starting = device();
    (starting.phase, starting.claimed.recovered) = (DevicePhase::Starting, true);
    assert!(matches!(starting.end(0), Some(Ending::Leave(_))), "somebody may have it mounted");
    assert!(matches!(device().end(0), Some(Ending::Ask(_))));
}

#[test]
fn a_request_that_races_with_the_end_waits_until_it_is_known_whether_somebody_has_the_device() {
    let late = |device: &mut UblkDevice, answer: io::Result<()>| {
        let mut actions = Actions::default();
        assert!(matches!(device.end(0), Some(Ending::Ask(_))));
        device.completed(5, 0, Buf::zeroed(BYTES as usize), &mut actions);
        assert!(actions.commands.is_empty() && actions.requests.is_empty(), "it waits");
        let ending = device.ended(answer, &mut actions);
        (ending, actions.commands)
    };
    let (ending, answers) = late(&mut device(), Err(io::Error::other("/dev/x, mounted on /mnt")));
    assert!(matches!(ending, Ending::Leave(why) if why.contains("mounted on /mnt")));
    assert!(answers.is_empty(), "the next server gets the request");
    let (ending, answers) = late(&mut device(), Ok(()));
    assert!(matches!(ending, Ending::Remove(_)));
    assert_eq!(answer(&answers[0]), -Errno::IO.raw_os_error());
}

/// A disk that cannot be removed from a server goes on.
#[test]
fn a_device_that_stays_is_served_again() {
    let mut device = device();
    let mut actions = Actions::default();
    assert!(matches!(device.end(0), Some(Ending::Ask(_))));
    let ending = device.ended(Err(io::Error::other("/dev/x, mounted on /mnt")), &mut actions);
    assert!(matches!(ending, Ending::Leave(_)));
    device.stay(&mut actions);
    assert_eq!(device.phase, DevicePhase::Live);
    assert!(become_request(&mut device, asked(u::OP_READ, 0, 8, 16)).is_ok());
}

#[test]
fn a_device_that_somebody_removes_is_told_once() {
    let mut device = device();
    let mut actions = Actions::default();
    for slot in 0..2 {
        device.completed(slot, u::RES_ABORT, Buf::zeroed(BYTES as usize), &mut actions);
    }
    assert!(
        matches!(device.take_news(), Some(FrontEndNews::Failed(why)) if why.contains("removed by another program"))
    );
    assert_eq!(device.take_news(), None);
    assert!(actions.commands.is_empty());
}
