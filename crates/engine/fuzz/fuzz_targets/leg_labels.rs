//! Legs of a mirrored log whose labels have any numbers and right checksums: the mirror refuses them, or serves, and never panics.
//!
//! `cd crates/engine && cargo +nightly fuzz run leg_labels -- -max_total_time=60`

#![no_main]

use arbitrary::Arbitrary;
use dcd_engine::mirror::offline::create;
use dcd_engine::mirror::{CONTENT_SECTOR, Mirror, MirrorConfig};
use dcd_engine::{
    BlockDevice, Buf, Command, Cx, Durability, Event, Extent, Geometry, Io, IoResult, Layer, Lba, Nanos,
    Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use libfuzzer_sys::fuzz_target;

const LABEL_BYTES: usize = 4096;
const SECTORS: u64 = CONTENT_SECTOR + 64;

#[derive(Arbitrary, Debug)]
struct Forged {
    leg: bool,
    copy: bool,
    offset: u8,
    value: u64,
    bytes: u8,
}

#[derive(Arbitrary, Debug)]
struct Case {
    forged: Vec<Forged>,
    degraded: bool,
    writes: u8,
}

#[derive(Clone)]
struct Ram(Vec<u8>);

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        Geometry::plain(SECTORS)
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        if let Err(error) = self.geometry().validate(&io) {
            return IoResult::err(io.take_buf(), error);
        }
        let extent = io.extent().unwrap_or(Extent::new(Lba(0), 0));
        let place = extent.start.bytes() as usize..extent.end().bytes() as usize;
        match &mut io {
            Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(&self.0[place]),
            Io::Write { buf, .. } => self.0[place].copy_from_slice(buf.bytes()),
            _ => {}
        }
        IoResult::ok(io.take_buf())
    }
}

struct Legs([Ram; 2]);

impl Ports for Legs {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

fuzz_target!(|case: Case| {
    let blank = || Ram(vec![0; (SECTORS * SECTOR_BYTES) as usize]);
    let mut legs = Legs([blank(), blank()]);
    let [a, b] = &mut legs.0;
    create(&mut [a, b], [7; 16], &[1, 2]).expect("good devices become legs");
    for forged in case.forged.iter().take(32) {
        let at = usize::from(forged.copy) * LABEL_BYTES;
        let label = &mut legs.0[usize::from(forged.leg)].0[at..at + LABEL_BYTES];
        let len = usize::from(forged.bytes % 8) + 1;
        label[usize::from(forged.offset)..][..len].copy_from_slice(&forged.value.to_le_bytes()[..len]);
        label[12..16].fill(0);
        let crc = crc32c::crc32c(label);
        label[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let names = vec!["a".to_owned(), "b".to_owned()];
    let mut mirror = Mirror::new(MirrorConfig { names, degraded: case.degraded, ..MirrorConfig::default() });
    if mirror.activate(&mut legs).is_err() {
        return;
    }
    for id in 0..u64::from(case.writes % 8) {
        let io = Io::Write { at: Lba(id * 8), buf: Buf::zeroed(4096), durability: Durability::Volatile };
        let mut events = vec![Event::Request(Request { id: RequestId(id), disk: 0, io })];
        while let Some(event) = events.pop() {
            let mut cx = Cx::default();
            mirror.handle(event, cx.at(Nanos(id)));
            mirror.check();
            for command in cx.commands {
                if let Command::Submit { port, op, io } = command {
                    events.push(Event::Completed { op, result: legs.run(port, io) });
                }
            }
        }
    }
});
