//! Devices for the programs that measure logs: one that costs no memory for zeroes, and drives with room enough.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use dcd_crash::{SimDevice, Ticket};
use dcd_engine::{BlockDevice, Geometry, Io, IoResult, Nanos, SECTOR_BYTES};
use dcd_model::{Drive, drive};

/// A disk of today and one of the paper's time.
pub const DRIVES: [&str; 2] = ["nearline-2018", "barracuda-1996"];

const SECTOR: usize = SECTOR_BYTES as usize;

/// A device that keeps only sectors which are not all zero.
#[derive(Clone)]
pub struct Sparse {
    pub geometry: Geometry,
    sectors: BTreeMap<u64, Box<[u8; SECTOR]>>,
    pub reads: u64,
    pub bytes_read: u64,
}

impl Sparse {
    fn carry_out(&mut self, mut io: Io) -> IoResult {
        match &mut io {
            Io::Read { at, buf } | Io::ReadCopy { at, buf, .. } => {
                self.reads += 1;
                self.bytes_read += buf.len() as u64;
                let sectors = buf.len() as u64 / SECTOR_BYTES;
                let wanted = if buf.is_blank() { 0 } else { sectors };
                // It may have been used before.
                buf.zero(0, (wanted * SECTOR_BYTES) as usize);
                for (lba, bytes) in self.sectors.range(at.0..at.0 + wanted) {
                    let from = (lba - at.0) as usize * SECTOR;
                    buf.bytes_mut()[from..from + SECTOR].copy_from_slice(&bytes[..]);
                }
            }
            Io::Write { at, buf, .. } | Io::WriteCopy { at, buf, .. } => {
                for (index, bytes) in buf.bytes().chunks_exact(SECTOR).enumerate() {
                    let lba = at.0 + index as u64;
                    if bytes.iter().all(|&byte| byte == 0) {
                        self.sectors.remove(&lba);
                    } else {
                        self.sectors.insert(lba, Box::new(bytes.try_into().expect("a whole sector")));
                    }
                }
            }
            Io::Flush => {}
            Io::Discard { .. } | Io::WriteZeroes { .. } => unreachable!("a log is written with data"),
        }
        IoResult::ok(io.take_buf())
    }
}

/// Handles on one [`Sparse`]: the log outlives the stack that filled it.
#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Sparse>>);

impl Shared {
    /// Another device with the same content.
    pub fn copy(&self) -> Shared {
        Shared(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    pub fn new(geometry: Geometry) -> Shared {
        let sparse = Sparse { geometry, sectors: BTreeMap::new(), reads: 0, bytes_read: 0 };
        Shared(Rc::new(RefCell::new(sparse)))
    }
}

impl BlockDevice for Shared {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        self.0.borrow_mut().carry_out(io)
    }
}

/// The device in virtual time: every operation takes the same.
pub struct Timed {
    device: Shared,
    latency: Nanos,
    open: BTreeMap<u32, IoResult>,
    next: u32,
}

impl Timed {
    pub fn new(device: &Shared, latency: Nanos) -> Timed {
        Timed { device: device.clone(), latency, open: BTreeMap::new(), next: 0 }
    }
}

impl SimDevice for Timed {
    fn geometry(&self) -> Geometry {
        self.device.0.borrow().geometry
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let result = self.device.run(io);
        self.next = self.next.wrapping_add(1);
        self.open.insert(self.next, result);
        Ticket { token: self.next, done: now + self.latency }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        self.open.remove(&token).expect("an operation ends once")
    }
}

/// A drive of this kind with room for so many bytes: the real one has fewer cylinders, and reads them as fast.
pub fn drive_for(name: &str, bytes: u64) -> (Drive, &'static str) {
    let drive = drive::builtin(name).expect("a built-in drive");
    if drive.sectors() * SECTOR_BYTES >= bytes {
        return (drive, "");
    }
    let text = drive::text(name).expect("a built-in drive");
    let mut file: toml::Table = text.parse().expect("a drive file");
    let times = bytes.div_ceil(drive.sectors() * SECTOR_BYTES) as i64;
    let zones = file.get_mut("zones").and_then(toml::Value::as_array_mut).expect("a drive has zones");
    for zone in zones {
        let zone = zone.as_array_mut().expect("a zone is a list");
        let cylinders = zone[0].as_integer().expect("a number of cylinders");
        zone[0] = toml::Value::Integer(cylinders * times);
    }
    (Drive::parse(&file.to_string()).expect("a drive file"), ", with more cylinders")
}

/// The first sectors of a device, to be formatted.
pub struct Front {
    pub device: Shared,
    pub sectors: u64,
}

impl BlockDevice for Front {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: self.sectors, ..BlockDevice::geometry(&self.device) }
    }

    fn run(&mut self, io: Io) -> IoResult {
        self.device.run(io)
    }
}

/// A data disk that holds zeroes, while a log is formatted for it.
pub struct StandIn {
    pub sectors: u64,
}

impl BlockDevice for StandIn {
    fn geometry(&self) -> Geometry {
        Geometry::plain(self.sectors)
    }

    fn run(&mut self, io: Io) -> IoResult {
        IoResult::ok(io.take_buf())
    }
}
