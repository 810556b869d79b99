use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use dcd_engine::Stripes;

use super::*;
use crate::ublk::{list, remove};

/// A kernel that keeps devices, and leaves out flags that it does not have.
#[derive(Default)]
struct Fake {
    devices: Mutex<BTreeMap<u32, Device>>,
    lacks: u64,
    /// Answers to START_USER_RECOVERY, one after the other; then it succeeds.
    recovery: Mutex<Vec<i32>>,
    asked: Mutex<Vec<u32>>,
    /// A device that does not answer.
    stuck: Option<u32>,
}

#[derive(Clone, Copy, Default)]
struct Device {
    info: u::DevInfo,
    params: u::Params,
}

fn errno(error: rustix::io::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

impl UblkKernel for Fake {
    fn control(&self, op: u32, command: u::CtrlCmd, mut data: Vec<u8>) -> io::Result<Vec<u8>> {
        self.asked.lock().unwrap().push(op);
        assert_eq!(usize::from(command.len), data.len());
        if op == u::GET_FEATURES {
            return Ok((!self.lacks).to_ne_bytes().to_vec());
        }
        let mut devices = self.devices.lock().unwrap();
        if op == u::ADD_DEV {
            let mut info: u::DevInfo = read(&data)?;
            assert_eq!(info.dev_id, command.dev_id);
            if info.dev_id == u::ANY_NUMBER {
                info.dev_id = (0..).find(|number| !devices.contains_key(number)).unwrap();
            }
            info.flags &= !self.lacks;
            devices.insert(info.dev_id, Device { info, ..Device::default() });
            return Ok(info.as_bytes().to_vec());
        }
        let number = command.dev_id;
        if self.stuck == Some(number) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let device = devices.get_mut(&number).ok_or_else(|| errno(rustix::io::Errno::NODEV))?;
        match op {
            u::GET_DEV_INFO => data = device.info.as_bytes().to_vec(),
            u::SET_PARAMS => device.params = read(&data)?,
            u::GET_PARAMS => data = device.params.as_bytes().to_vec(),
            u::START_USER_RECOVERY => {
                if let Some(error) = self.recovery.lock().unwrap().pop() {
                    return Err(io::Error::from_raw_os_error(error));
                }
            }
            u::START_DEV | u::END_USER_RECOVERY => {
                device.info.state = u::STATE_LIVE;
                device.info.ublksrv_pid = command.data as i32;
            }
            u::UPDATE_SIZE if self.lacks & u::F_UPDATE_SIZE == 0 && device.info.state == u::STATE_LIVE => {
                device.params.basic.dev_sectors = command.data;
            }
            u::STOP_DEV => device.info.state = u::STATE_DEAD,
            u::DEL_DEV | u::DEL_DEV_ASYNC => {
                devices.remove(&number);
            }
            _ => return Err(errno(rustix::io::Errno::OPNOTSUPP)),
        }
        Ok(data)
    }

    fn numbers(&self) -> Vec<u32> {
        self.devices.lock().unwrap().keys().copied().collect()
    }
}

impl Fake {
    fn set_state(&self, number: u32, state: u16) {
        self.devices.lock().unwrap().get_mut(&number).unwrap().info.state = state;
    }

    fn has_been_asked(&self, op: u32) -> bool {
        self.asked.lock().unwrap().contains(&op)
    }
}

fn owner(stack: &str) -> Owner {
    Owner::new(Path::new(stack), "cache", &[])
}

fn claimed(kernel: &Fake, wanted: Option<u32>, stack: &str) -> Result<Claimed, UblkError> {
    claim(kernel, wanted, &owner(stack), &Geometry::plain(2048), WANTED)
}

#[test]
fn a_kernel_that_lacks_flags_is_seen_in_what_it_returns() {
    let all = claimed(&Fake::default(), None, "/a.toml").unwrap();
    assert_eq!(missing(all.info.flags), Vec::<&str>::new());
    assert_eq!(flag_names(all.info.flags), ["recovery", "reissue", "ioctl-encode"]);
    let old = Fake { lacks: u::F_USER_RECOVERY | u::F_USER_RECOVERY_REISSUE, ..Fake::default() };
    assert_eq!(missing(claimed(&old, None, "/a.toml").unwrap().info.flags), ["recovery", "reissue"]);
}

#[test]
fn a_restart_takes_its_own_device_and_no_other() {
    let kernel = Fake::default();
    let first = claimed(&kernel, None, "/a.toml").unwrap();
    assert!(!first.recovered);
    start(&kernel, &first).unwrap();
    kernel.set_state(0, u::STATE_QUIESCED);
    // A stranger gets another one, and is refused this one.
    assert_eq!(claimed(&kernel, None, "/b.toml").unwrap().info.dev_id, 1);
    let refused = claimed(&kernel, Some(0), "/b.toml").unwrap_err().to_string();
    assert!(refused.contains("/dev/ublkb0 belongs to another stack of dcd"), "{refused}");
    assert!(!kernel.has_been_asked(u::START_USER_RECOVERY));
    let again = claimed(&kernel, None, "/a.toml").unwrap();
    assert!(again.recovered && again.info.dev_id == 0);
    start(&kernel, &again).unwrap();
    assert!(kernel.has_been_asked(u::END_USER_RECOVERY));
}

#[test]
fn a_device_that_never_started_is_made_anew_under_its_number() {
    let kernel = Fake::default();
    claimed(&kernel, Some(3), "/a.toml").unwrap();
    let again = claimed(&kernel, None, "/a.toml").unwrap();
    assert_eq!((again.info.dev_id, again.recovered), (3, false));
    assert!(kernel.has_been_asked(u::DEL_DEV));
}

#[test]
fn a_recovery_waits_for_the_last_server_and_goes_on_after_one_that_was_killed_in_it() {
    let kernel = Fake::default();
    start(&kernel, &claimed(&kernel, None, "/a.toml").unwrap()).unwrap();
    let (busy, invalid) = (rustix::io::Errno::BUSY.raw_os_error(), rustix::io::Errno::INVAL.raw_os_error());
    *kernel.recovery.lock().unwrap() = vec![busy, busy];
    assert!(claimed(&kernel, None, "/a.toml").unwrap().recovered);
    *kernel.recovery.lock().unwrap() = vec![invalid];
    assert!(
        claimed(&kernel, None, "/a.toml").is_err(),
        "a device that is served has not been left in a recovery"
    );
    kernel.set_state(0, u::STATE_QUIESCED);
    *kernel.recovery.lock().unwrap() = vec![invalid];
    assert!(claimed(&kernel, None, "/a.toml").unwrap().recovered);
}

#[test]
fn a_stack_that_is_smaller_or_has_other_blocks_does_not_get_the_device() {
    let kernel = Fake::default();
    start(&kernel, &claimed(&kernel, None, "/a.toml").unwrap()).unwrap();
    kernel.set_state(0, u::STATE_QUIESCED);
    let other_blocks = Geometry { logical_block_bytes: 4096, ..Geometry::plain(4096) };
    for (geometry, says) in [
        (Geometry::plain(1024), "has 1048576 bytes and the stack 524288"),
        (other_blocks, "has 1048576 bytes and the stack 2097152"),
    ] {
        let refused = claim(&kernel, None, &owner("/a.toml"), &geometry, WANTED).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    assert!(!kernel.has_been_asked(u::START_USER_RECOVERY), "nothing was begun");
}

#[test]
fn a_device_that_is_not_flushed_is_not_given_to_a_stack_that_needs_flushes() {
    let volatile = Geometry::plain(2048);
    let durable = Geometry { volatile_cache: false, ..volatile };
    for (made, again, is_taken) in
        [(durable, durable, true), (volatile, durable, true), (durable, volatile, false)]
    {
        let kernel = Fake::default();
        start(&kernel, &claim(&kernel, None, &owner("/a.toml"), &made, WANTED).unwrap()).unwrap();
        kernel.set_state(0, u::STATE_QUIESCED);
        match claim(&kernel, None, &owner("/a.toml"), &again, WANTED) {
            Ok(claimed) => assert!(is_taken && claimed.recovered),
            Err(error) => {
                assert!(!is_taken && error.to_string().contains("does not flush"), "{error}");
                assert!(!kernel.has_been_asked(u::START_USER_RECOVERY), "nothing was begun");
            }
        }
    }
}

#[test]
fn a_stack_that_has_grown_has_its_device_grow_where_the_kernel_can() {
    for (lacks, grows) in [(0, true), (u::F_UPDATE_SIZE, false)] {
        let kernel = Fake { lacks, ..Fake::default() };
        start(&kernel, &claimed(&kernel, None, "/a.toml").unwrap()).unwrap();
        kernel.set_state(0, u::STATE_QUIESCED);
        let again = claim(&kernel, None, &owner("/a.toml"), &Geometry::plain(4096), WANTED).unwrap();
        assert!(again.recovered);
        start(&kernel, &again).unwrap();
        let told = resize(&kernel, &again).map_err(|error| error.to_string());
        assert_eq!(kernel.has_been_asked(u::UPDATE_SIZE), grows);
        let sectors = kernel.devices.lock().unwrap()[&0].params.basic.dev_sectors;
        assert_eq!(sectors, if grows { 4096 } else { 2048 });
        match told {
            Ok(()) => assert!(grows),
            Err(why) => assert!(!grows && why.contains("/dev/ublkb0 keeps its size"), "{why}"),
        }
    }
}

#[test]
fn only_devices_of_dcd_without_a_server_are_removed_unless_forced() {
    let kernel = Fake::default();
    start(&kernel, &claimed(&kernel, Some(4_000_000), "/a.toml").unwrap()).unwrap();
    let number = 4_000_000;
    assert!(
        matches!(remove(&kernel, number, false), Err(UblkError::Kept { why, .. }) if why.contains("serves it"))
    );
    kernel.set_state(number, u::STATE_QUIESCED);
    let listed = list(&kernel).unwrap();
    assert_eq!((listed[0].state, listed[0].is_dcd, listed[0].process), ("waiting", true, None));
    remove(&kernel, number, false).unwrap();
    assert!(list(&kernel).unwrap().is_empty());
    let strange = u::DevInfo { dev_id: number, state: u::STATE_QUIESCED, ..u::DevInfo::default() };
    kernel.devices.lock().unwrap().insert(number, Device { info: strange, ..Device::default() });
    assert!(
        matches!(remove(&kernel, number, false), Err(UblkError::Kept { why, .. }) if why.contains("not dcd's"))
    );
    remove(&kernel, number, true).unwrap();
    assert!(matches!(remove(&kernel, number, true), Err(UblkError::None(_))));
}

#[test]
fn clients_are_told_the_limits_of_the_stack() {
    let geometry = Geometry {
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        rotational: true,
        discards: Discards::Advisory,
        fast_zeroes: true,
        stripes: Some(Stripes { sectors: 512, first: 0 }),
        ..Geometry::plain(10_000)
    };
    let told = parameters(&geometry, 512 << 10);
    let basic = told.basic;
    assert_eq!((basic.logical_bs_shift, basic.physical_bs_shift), (9, 12));
    assert_eq!((basic.io_min_shift, basic.io_opt_shift), (12, 18), "a block, and a stripe");
    assert_eq!((basic.max_sectors, basic.dev_sectors), (1024, 10_000));
    assert_eq!(basic.attrs, u::ATTR_ROTATIONAL | u::ATTR_VOLATILE_CACHE | u::ATTR_FUA);
    assert!(told.discard.max_discard_sectors > 0 && told.discard.max_discard_segments == 1);
    assert_eq!(told.discard.max_write_zeroes_sectors, FREE_SECTORS_MAX);
    let bare =
        parameters(&Geometry { logical_block_bytes: 4096, read_only: true, ..Geometry::plain(1001) }, 4096);
    let durable = parameters(&Geometry { volatile_cache: false, ..geometry }, 512 << 10);
    assert_eq!(durable.basic.attrs, u::ATTR_ROTATIONAL, "no flush and no FUA");
    assert_eq!(bare.basic.dev_sectors, 1000, "whole blocks");
    assert_eq!((bare.basic.logical_bs_shift, bare.basic.physical_bs_shift), (12, 12));
    assert_ne!(bare.basic.attrs & u::ATTR_READ_ONLY, 0);
    assert_eq!((bare.discard.max_discard_sectors, bare.discard.max_write_zeroes_sectors), (0, 0));
}

#[test]
fn the_kernels_flags_are_told_without_a_device() {
    let kernel = Fake { lacks: u::F_USER_RECOVERY_REISSUE, ..Fake::default() };
    assert_eq!(missing(features(&kernel).unwrap()), ["reissue"]);
    assert!(missing(features(&Fake::default()).unwrap()).is_empty());
}

#[test]
fn a_device_of_another_program_that_does_not_answer_keeps_no_stack_from_its_own() {
    let mut kernel = Fake::default();
    let foreign = claimed(&kernel, None, "/foreign.toml").unwrap().info.dev_id;
    let own = claimed(&kernel, None, "/a.toml").unwrap().info.dev_id;
    kernel.set_state(own, u::STATE_QUIESCED);
    kernel.stuck = Some(foreign);
    let claimed_again = claimed(&kernel, None, "/a.toml").unwrap();
    assert!(claimed_again.recovered && claimed_again.info.dev_id == own);
    assert!(!claimed(&kernel, None, "/b.toml").unwrap().recovered);
    let error = claimed(&kernel, Some(foreign), "/b.toml").unwrap_err();
    assert!(matches!(error, UblkError::NoAnswer { .. }), "it was asked for by its number: {error}");
}
