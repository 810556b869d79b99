//! Devices in memory; an array of three of them with a journal.

use dcd_engine::raid::offline::create;
use dcd_engine::raid::{Level, RaidConfig, RaidLayer};
use dcd_engine::{BlockDevice, Buf, ErrorKind, Geometry, Io, IoError, IoResult, Layer, Port, Ports};

/// Four stripes of 16 KiB on each member behind what comes before the data, and a journal of 4 MiB.
const MEMBER_BYTES: usize = (2048 + 4 * 32) * 512;
const JOURNAL_BYTES: usize = 4 << 20;

pub struct Memory(pub Vec<u8>);

impl BlockDevice for Memory {
    fn geometry(&self) -> Geometry {
        Geometry::plain(self.0.len() as u64 / 512)
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        let Some(extent) = io.extent() else { return IoResult::ok(Buf::none()) };
        let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
        if range.end > self.0.len() {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::OutOfRange));
        }
        match &mut io {
            Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(&self.0[range]),
            Io::Write { buf, .. } => self.0[range].copy_from_slice(buf.bytes()),
            _ => self.0[range].fill(0),
        }
        IoResult::ok(io.take_buf())
    }
}

/// The members, then the journal.
pub struct Members(pub Vec<Memory>);

impl Ports for Members {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

fn config() -> RaidConfig {
    let (strip_sectors, present) = (32, vec![true; 3]);
    RaidConfig { level: Level::Raid5, strip_sectors, present, journal: true, ..RaidConfig::default() }
}

pub fn made() -> Members {
    let mut members: Vec<Memory> = (0..3).map(|_| Memory(vec![0; MEMBER_BYTES])).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    create(&mut all, &config(), *b"an array to fuzz", true).expect("made");
    members.push(Memory(vec![0; JOURNAL_BYTES]));
    Members(members)
}

/// Starts the array: it must not panic.
pub fn start(mut members: Members) {
    let _ = RaidLayer::new(config()).activate(&mut members);
}
