//! The numbers and structures of ublk's interface (linux/ublk_cmd.h), as Linux has them since 6.4: everything in the byte order of the
//! machine. Names follow the header, so that a reader can hold the two side by side.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The device that takes control commands.
pub const CONTROL_DEVICE: &str = "/dev/ublk-control";

// Control commands are encoded as ioctls of the type 'u' over a command of 32 bytes.
const READ: u32 = 2 << 30;
const READ_WRITE: u32 = 3 << 30;

const fn control(direction: u32, number: u32) -> u32 {
    direction | (size_of::<CtrlCmd>() as u32) << 16 | (b'u' as u32) << 8 | number
}

pub const GET_DEV_INFO: u32 = control(READ, 0x02);
pub const ADD_DEV: u32 = control(READ_WRITE, 0x04);
pub const DEL_DEV: u32 = control(READ_WRITE, 0x05);
pub const START_DEV: u32 = control(READ_WRITE, 0x06);
pub const STOP_DEV: u32 = control(READ_WRITE, 0x07);
pub const SET_PARAMS: u32 = control(READ_WRITE, 0x08);
pub const GET_PARAMS: u32 = control(READ, 0x09);
pub const START_USER_RECOVERY: u32 = control(READ_WRITE, 0x10);
pub const END_USER_RECOVERY: u32 = control(READ_WRITE, 0x11);
/// The flags that the kernel knows, since Linux 6.5.
pub const GET_FEATURES: u32 = control(READ, 0x13);
/// Deletes a device as DEL_DEV, without waiting until its users close it.
pub const DEL_DEV_ASYNC: u32 = control(READ, 0x14);
/// Changes the size of a served device, since Linux 6.16; the command's word is the size in sectors.
pub const UPDATE_SIZE: u32 = control(READ_WRITE, 0x15);

const fn io(number: u32) -> u32 {
    READ_WRITE | (size_of::<IoCmd>() as u32) << 16 | (b'u' as u32) << 8 | number
}

pub const FETCH_REQ: u32 = io(0x20);
pub const COMMIT_AND_FETCH_REQ: u32 = io(0x21);

/// Result of a command whose device is removed, or left by its server: -ENODEV.
pub const RES_ABORT: i32 = -19;

pub const F_USER_RECOVERY: u64 = 1 << 3;
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// All flags that have a name, for people.
pub const FLAGS: [(u64, &str); 20] = [
    (1 << 0, "zero-copy"),
    (1 << 1, "complete-in-task"),
    (1 << 2, "need-get-data"),
    (F_USER_RECOVERY, "recovery"),
    (F_USER_RECOVERY_REISSUE, "reissue"),
    (1 << 5, "unprivileged"),
    (F_CMD_IOCTL_ENCODE, "ioctl-encode"),
    (1 << 7, "user-copy"),
    (1 << 8, "zoned"),
    (1 << 9, "recovery-fail-io"),
    (F_UPDATE_SIZE, "update-size"),
    (1 << 11, "auto-buf-reg"),
    (1 << 12, "quiesce"),
    (1 << 13, "per-io-daemon"),
    (1 << 14, "buf-reg-off-daemon"),
    (1 << 15, "batch-io"),
    (1 << 16, "integrity"),
    (1 << 17, "safe-stop"),
    (1 << 18, "no-auto-part-scan"),
    (1 << 19, "shmem-zero-copy"),
];

pub const STATE_DEAD: u16 = 0;
pub const STATE_LIVE: u16 = 1;
pub const STATE_QUIESCED: u16 = 2;
pub const STATE_FAIL_IO: u16 = 3;

pub const OP_READ: u8 = 0;
pub const OP_WRITE: u8 = 1;
pub const OP_FLUSH: u8 = 2;
pub const OP_DISCARD: u8 = 3;
pub const OP_WRITE_ZEROES: u8 = 5;

pub const IO_F_FUA: u32 = 1 << 13;
pub const IO_F_NOUNMAP: u32 = 1 << 15;

pub const ATTR_READ_ONLY: u32 = 1 << 0;
pub const ATTR_ROTATIONAL: u32 = 1 << 1;
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub const ATTR_FUA: u32 = 1 << 3;

pub const PARAM_TYPE_BASIC: u32 = 1 << 0;
pub const PARAM_TYPE_DISCARD: u32 = 1 << 1;

/// Number that asks the kernel for any free number.
pub const ANY_NUMBER: u32 = u32::MAX;
/// Queue number of a command that is for no queue.
pub const NO_QUEUE: u16 = u16::MAX;
/// Maximum depth of a queue.
const DEPTH_MAX: usize = 4096;

/// `ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CtrlCmd {
    pub dev_id: u32,
    pub queue_id: u16,
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub dev_path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

/// `ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DevInfo {
    pub nr_hw_queues: u16,
    pub queue_depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub max_io_buf_bytes: u32,
    pub dev_id: u32,
    pub ublksrv_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// Word that the kernel stores for the server: the owner's mark.
    pub ublksrv_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved1: u64,
    pub reserved2: u64,
}

/// `ublksrv_io_desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoDesc {
    pub op_flags: u32,
    pub nr_sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}

/// `ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoCmd {
    pub q_id: u16,
    pub tag: u16,
    pub result: i32,
    pub addr: u64,
}

/// `ublk_params` up to what is used here: the kernel takes as much as `len` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Params {
    pub len: u32,
    pub types: u32,
    pub basic: ParamBasic,
    pub discard: ParamDiscard,
    pub pad: u32,
}

/// `ublk_param_basic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ParamBasic {
    pub attrs: u32,
    pub logical_bs_shift: u8,
    pub physical_bs_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub dev_sectors: u64,
    pub virt_boundary_mask: u64,
}

/// `ublk_param_discard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ParamDiscard {
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved0: u16,
}

/// The place of a queue's descriptors in the file of the device: each has room for the largest depth, in whole pages.
pub const fn descriptors_at(queue: usize, page_bytes: usize) -> usize {
    queue * (DEPTH_MAX * size_of::<IoDesc>()).next_multiple_of(page_bytes)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As `ublk_max_cmd_buf_size()` of the kernel.
    #[test]
    fn descriptors_of_each_queue_begin_at_a_page() {
        assert_eq!([0, 1, 2].map(|queue| descriptors_at(queue, 4096)), [0, 98_304, 196_608]);
        assert_eq!([0, 1, 2].map(|queue| descriptors_at(queue, 65536)), [0, 131_072, 262_144]);
    }

    // Values of a C compiler; fields added after Linux 6.1 are counted by hand.
    #[test]
    fn structures_have_the_sizes_and_places_of_the_interface() {
        assert_eq!(size_of::<CtrlCmd>(), 32);
        assert_eq!(
            (offset_of!(CtrlCmd, len), offset_of!(CtrlCmd, addr), offset_of!(CtrlCmd, data)),
            (6, 8, 16)
        );
        assert_eq!(offset_of!(CtrlCmd, dev_path_len), 24);
        assert_eq!(size_of::<DevInfo>(), 64);
        assert_eq!((offset_of!(DevInfo, max_io_buf_bytes), offset_of!(DevInfo, ublksrv_pid)), (8, 16));
        assert_eq!((offset_of!(DevInfo, flags), offset_of!(DevInfo, ublksrv_flags)), (24, 32));
        assert_eq!(offset_of!(DevInfo, owner_uid), 40);
        assert_eq!(
            (size_of::<IoDesc>(), offset_of!(IoDesc, start_sector), offset_of!(IoDesc, addr)),
            (24, 8, 16)
        );
        assert_eq!((size_of::<IoCmd>(), offset_of!(IoCmd, result), offset_of!(IoCmd, addr)), (16, 4, 8));
        assert_eq!((offset_of!(Params, basic), offset_of!(Params, discard)), (8, 40));
        assert_eq!((size_of::<ParamBasic>(), offset_of!(ParamBasic, max_sectors)), (32, 8));
        assert_eq!(offset_of!(ParamBasic, dev_sectors), 16);
        assert_eq!((size_of::<ParamDiscard>(), offset_of!(ParamDiscard, max_discard_segments)), (20, 16));
    }

    #[test]
    fn commands_have_the_numbers_of_the_interface() {
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(DEL_DEV_ASYNC, 0x8020_7514);
        assert_eq!(END_USER_RECOVERY, 0xc020_7511);
        assert_eq!((FETCH_REQ, COMMIT_AND_FETCH_REQ), (0xc010_7520, 0xc010_7521));
    }
}
