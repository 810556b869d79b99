//! Clients that each wait for an answer before they send the next request: load for experiments without a file system.
//!
//! The sizes are the paper's (section 4.2.2, measured in the kernel during the 4-user remove): half of all requests are
//! of 8 KB, 15 % of 2 KB and 35 % of 1 KB. Each client works in a few neighbourhoods of the disk, as files of one
//! directory lie near each other, and comes back to blocks that it wrote before, as metadata is written again and again.

use std::collections::BTreeMap;

use dcd_crash::SimRng;
use dcd_engine::{Buf, Durability, Io, Lba, Nanos, RequestId, SECTOR_BYTES};

use crate::LabError;
use crate::rig::Rig;

const KIB_SECTORS: u64 = 1024 / SECTOR_BYTES;
/// Neighbourhoods of a client, and their size: the cylinder groups of the file system (16 MB).
const NEIGHBOURHOODS: u64 = 4;
const NEIGHBOURHOOD_SECTORS: u64 = (16 << 20) / SECTOR_BYTES;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub users: u64,
    /// Requests of each user.
    pub requests: u64,
    pub reads_percent: u64,
    /// Writes to a block that the user has written before.
    pub overwrites_percent: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ClientTimes {
    pub reads: Vec<Nanos>,
    pub writes: Vec<Nanos>,
    pub total: Nanos,
}

struct User {
    random: SimRng,
    homes: Vec<u64>,
    written: Vec<(Lba, usize)>,
    left: u64,
}

impl User {
    fn new(mut random: SimRng, load: &Load, sectors: u64) -> User {
        let places = sectors / NEIGHBOURHOOD_SECTORS;
        let homes = (0..NEIGHBOURHOODS).map(|_| random.below(places) * NEIGHBOURHOOD_SECTORS).collect();
        User { random, homes, written: Vec::new(), left: load.requests }
    }

    fn next(&mut self, load: &Load) -> Option<Io> {
        self.left = self.left.checked_sub(1)?;
        let home = self.random.pick(&self.homes);
        let kib = match self.random.below(100) {
            0..50 => 8,
            50..65 => 2,
            _ => 1,
        };
        let (at, len) = (Lba(home + self.random.below(NEIGHBOURHOOD_SECTORS / 16) * 16), kib * 1024);
        if self.random.below(100) < load.reads_percent {
            return Some(Io::Read { at, buf: Buf::blank(len) });
        }
        let again = self.random.below(100) < load.overwrites_percent && !self.written.is_empty();
        let (at, len) = if again {
            self.written[self.random.below(self.written.len() as u64) as usize]
        } else {
            let at = at + self.random.below((8 - kib as u64) + 1) * KIB_SECTORS;
            self.written.push((at, len));
            (at, len)
        };
        Some(Io::Write { at, buf: Buf::blank(len), durability: Durability::Volatile })
    }
}

/// Lets all clients work to their end.
pub(crate) fn work(rig: &mut Rig, load: &Load, seed: u64) -> Result<ClientTimes, LabError> {
    let mut random = SimRng::new(seed);
    let sectors = rig.sectors();
    let mut users: Vec<User> = (0..load.users).map(|_| User::new(random.fork(), load, sectors)).collect();
    let mut out: BTreeMap<RequestId, (usize, Nanos, bool)> = BTreeMap::new();
    let mut times = ClientTimes::default();
    let begin = rig.now();
    let mut ready: Vec<usize> = (0..users.len()).collect();
    loop {
        for user in std::mem::take(&mut ready) {
            if let Some(io) = users[user].next(load) {
                let writes = io.modifies();
                let now = rig.now();
                out.insert(rig.submit(io), (user, now, writes));
            }
        }
        if out.is_empty() {
            times.total = rig.now().since(begin);
            return Ok(times);
        }
        let id = rig.wait_reply()?;
        let (user, since, writes) = out.remove(&id).expect("it was sent");
        let took = rig.now().since(since);
        if writes {
            times.writes.push(took)
        } else {
            times.reads.push(took)
        }
        ready.push(user);
    }
}

/// The mean in milliseconds; not a number where there is nothing.
pub(crate) fn mean_ms(times: &[Nanos]) -> f64 {
    times.iter().map(|time| time.as_millis_f64()).sum::<f64>() / times.len() as f64
}
