//! Legs of a mirrored log whose labels have forged fields and right checksums: the mirror refuses them, or serves, and never panics.

use bolero::TypeGenerator;
use dcd_engine::mirror::offline::create;
use dcd_engine::mirror::{CONTENT_SECTOR, Mirror, MirrorConfig};
use dcd_engine::{
    Buf, Command, Cx, Durability, Event, Io, Layer, Lba, Nanos, Ports, Request, RequestId, SECTOR_BYTES,
};

use crate::array::{Members, Memory};
use crate::forged::{Forged, forge, sign};

const LABEL_BYTES: usize = 4096;
/// The part of a label that has fields.
const FIELDS_BYTES: usize = 256;
const SECTORS: u64 = CONTENT_SECTOR + 64;

#[derive(Debug, TypeGenerator)]
struct Case {
    /// Changes of each of the two copies on each leg.
    labels: [[Vec<Forged>; 2]; 2],
    degraded: bool,
    #[generator(0..8_u8)]
    writes: u8,
}

#[test]
fn forged_labels_of_legs_never_panic() {
    bolero::check!().with_type().for_each(|case: &Case| {
        let blank = || Memory(vec![0; (SECTORS * SECTOR_BYTES) as usize]);
        let mut legs = Members(vec![blank(), blank()]);
        let [a, b] = &mut legs.0[..] else { unreachable!("two legs") };
        create(&mut [a, b], [7; 16], &[1, 2]).expect("good devices become legs");
        for (leg, labels) in legs.0.iter_mut().zip(&case.labels) {
            for (label, forged) in leg.0.chunks_exact_mut(LABEL_BYTES).zip(labels) {
                forge(&mut label[..FIELDS_BYTES], 0, &forged[..forged.len() % 4]);
                sign(label, 12);
            }
        }
        let names = vec!["a".to_owned(), "b".to_owned()];
        let config = MirrorConfig { names, degraded: case.degraded, ..MirrorConfig::default() };
        let mut mirror = Mirror::new(config);
        if mirror.activate(&mut legs).is_err() {
            return;
        }
        for id in 0..u64::from(case.writes) {
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
}
