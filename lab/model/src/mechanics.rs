//! The moving parts: an arm that takes time to reach a track, and sectors that pass by as the platters turn.
//!
//! There is no state here. The rotation follows from the time, and the arm is an argument.

use dcd_engine::{Lba, Nanos};

use crate::geometry::{Geometry, Spot};
use crate::seek::SeekCurve;

/// The track on which the heads are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arm {
    pub cylinder: u32,
    pub head: u32,
}

impl From<&Spot> for Arm {
    fn from(spot: &Spot) -> Arm {
        Arm { cylinder: spot.cylinder, head: spot.head }
    }
}

/// In which way sectors pass under the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Read,
    /// Sectors of a track in whatever order they come (zero-latency reads).
    ReadAnyOrder,
    Write,
}

/// A transfer: what is wanted, and from when on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub access: Pass,
    pub arm: Arm,
    pub lba: Lba,
    /// The place of `lba`.
    pub spot: Spot,
    pub sectors: u64,
    pub at: Nanos,
    pub data_at: Nanos,
}

/// Times of a transfer: when its last sector had passed, and where the time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    /// Time at which the arm was on the first track.
    pub on_track: Nanos,
    /// Time at which the first sector had passed.
    pub first: Nanos,
    pub end: Nanos,
    /// Arm movements and head switches.
    pub seek: Nanos,
    pub rotation: Nanos,
    pub transfer: Nanos,
    /// Position of the heads at the end.
    pub arm: Arm,
}

impl Passage {
    /// This one and the one that followed it.
    pub fn then(self, next: &Passage) -> Passage {
        Passage {
            end: next.end,
            seek: self.seek + next.seek,
            rotation: self.rotation + next.rotation,
            transfer: self.transfer + next.transfer,
            arm: next.arm,
            ..self
        }
    }
}

/// Progress of the heads that read on until they are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadOn {
    pub sectors: u64,
    /// Time at which the last whole sector had passed; `arm` is its track.
    pub at: Nanos,
    pub arm: Arm,
    /// The track on which the heads are at the moment of stopping: the next one if they were on the way.
    pub stopped_on: Arm,
}

/// The times of the arm.
#[derive(Clone, Debug)]
pub(crate) struct Mechanics {
    pub geometry: Geometry,
    pub seek: SeekCurve,
    pub head_switch: u64,
    /// Nanoseconds that a write waits longer than a read after the arm has moved; below zero where it waits less.
    pub write_settle: i64,
    /// Nanoseconds that a write waits longer after a head switch or a move to the next cylinder.
    pub write_settle_track: i64,
}

impl Mechanics {
    /// The time until the heads can read or write on the track of `to`.
    pub fn approach(&self, from: Arm, to: &Spot, write: bool) -> u64 {
        let distance = from.cylinder.abs_diff(to.cylinder);
        let switches = from.head != to.head;
        let moved = match (distance, switches) {
            (0, false) => return 0,
            (0, true) => self.head_switch,
            (_, false) => self.seek.time(distance),
            (_, true) => self.seek.time(distance).max(self.head_switch),
        };
        match (write, distance) {
            (false, _) => moved,
            (true, 0 | 1) => moved.saturating_add_signed(self.write_settle_track),
            (true, _) => moved.saturating_add_signed(self.write_settle),
        }
    }

    /// Moves sectors; the heads are free to go there from `at` on, and the first sector is not passed before `data_at` (a
    /// write has to wait for its data).
    pub fn transfer(&self, wanted: &Wanted) -> Passage {
        let Wanted { access, arm, at, data_at, .. } = *wanted;
        let write = access == Pass::Write;
        let mut lba = wanted.lba;
        let mut spot = wanted.spot;
        let mut left = wanted.sectors;
        let mut seek = self.approach(arm, &spot, write);
        let on_track = Nanos(at.0 + seek);
        let mut now = on_track.max(data_at).0;
        // Waiting for data while the disk turns is rotation to whoever asks where the time went.
        let mut rotation = now - on_track.0;
        let mut transfer = 0;
        let mut first = None;
        loop {
            let count = left.min(u64::from(spot.run)) as u32;
            let wait = self.geometry.rotation_to(&spot, Nanos(now));
            let passing = self.passing(&spot, count);
            let sector = self.passing(&spot, 1);
            let whole = match access {
                Pass::ReadAnyOrder => (wait + passing).min(self.turn(&spot, wait)),
                Pass::Read | Pass::Write => wait + passing,
            };
            first.get_or_insert(Nanos(now + wait + sector));
            rotation += whole.saturating_sub(passing);
            transfer += passing;
            now += whole;
            left -= u64::from(count);
            if left == 0 {
                break;
            }
            lba = lba + u64::from(count);
            let next = self.geometry.locate(lba);
            let moving = self.approach(Arm::from(&spot), &next, write);
            seek += moving;
            now += moving;
            spot = next;
        }
        Passage {
            on_track,
            first: first.unwrap_or(Nanos(now)),
            end: Nanos(now),
            seek: Nanos(seek),
            rotation: Nanos(rotation),
            transfer: Nanos(transfer),
            arm: Arm::from(&spot),
        }
    }

    /// Reads on from `next`, from `at` on, at most `sectors`, until `until`.
    pub fn read_on(&self, arm: Arm, next: Lba, at: Nanos, sectors: u64, until: Nanos) -> ReadOn {
        let mut result = ReadOn { sectors: 0, at, arm, stopped_on: arm };
        let mut left = sectors.min(self.geometry.sectors().saturating_sub(next.0));
        if left == 0 || at >= until {
            return result;
        }
        loop {
            let spot = self.geometry.locate(next + result.sectors);
            let mut start = result.at.0 + self.approach(result.arm, &spot, false);
            result.stopped_on = Arm::from(&spot);
            start += self.geometry.rotation_to(&spot, Nanos(start));
            if start >= until.0 {
                return result;
            }
            let offset = self.geometry.offset(spot.sector, spot.sectors_per_track);
            let reach = self.geometry.sectors_within(offset + (until.0 - start), spot.sectors_per_track);
            let count = left.min(u64::from(spot.run)).min(u64::from(reach - spot.sector)) as u32;
            if count > 0 {
                result.sectors += u64::from(count);
                result.at = Nanos(start + self.passing(&spot, count));
                result.arm = Arm::from(&spot);
                left -= u64::from(count);
            }
            if left == 0 || count < spot.run {
                return result;
            }
        }
    }

    /// The time in which all sectors of a track pass, from the next whole one on, if the first one wanted comes after
    /// `wait`.
    fn turn(&self, spot: &Spot, wait: u64) -> u64 {
        let geometry = &self.geometry;
        let start = geometry.offset(spot.sector, spot.sectors_per_track);
        let here = (start + geometry.revolution() - wait) % geometry.revolution();
        let mut sector = geometry.sectors_within(here, spot.sectors_per_track);
        if geometry.offset(sector, spot.sectors_per_track) < here {
            sector += 1;
        }
        geometry.revolution() + geometry.offset(sector, spot.sectors_per_track) - here
    }

    /// The sectors of the track before `spot`, one behind the other, that pass whole before it does, from `now` on.
    pub fn passing_before(&self, spot: &Spot, now: Nanos) -> u32 {
        let wait = self.geometry.rotation_to(spot, now);
        let before = self.geometry.offset(spot.sector, spot.sectors_per_track);
        if wait >= before {
            return spot.sector;
        }
        let mut first = self.geometry.sectors_within(before - wait, spot.sectors_per_track);
        if self.geometry.offset(first, spot.sectors_per_track) < before - wait {
            first += 1;
        }
        spot.sector - first
    }

    /// The time in which `count` sectors of one track pass.
    pub fn passing(&self, spot: &Spot, count: u32) -> u64 {
        self.geometry.offset(spot.sector + count, spot.sectors_per_track)
            - self.geometry.offset(spot.sector, spot.sectors_per_track)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive;

    #[test]
    fn reading_on_in_pieces_gets_as_far_as_in_one_go() {
        for name in drive::rotating_names() {
            let mechanics = drive::builtin(name).expect("a built-in drive").mechanics;
            let mut piece = 7_919;
            for first in [0, 180, 4_000, 834_567] {
                let spot = mechanics.geometry.locate(Lba(first));
                let begin = Nanos(first * 1_000_003);
                let passed = mechanics.transfer(&Wanted {
                    access: Pass::Read,
                    arm: Arm::default(),
                    lba: Lba(first),
                    spot,
                    sectors: 1,
                    at: begin,
                    data_at: begin,
                });
                let (mut next, mut at, mut arm) = (Lba(first + 1), passed.end, passed.arm);
                let until = passed.end + Nanos::from_millis(60);
                let whole = mechanics.read_on(arm, next, at, 1 << 20, until);
                let mut now = passed.end;
                while now < until {
                    piece = piece * 48_271 % 2_147_483_647;
                    now = until.min(now + Nanos(piece % 3_000_000));
                    let some = mechanics.read_on(arm, next, at, 1 << 20, now);
                    (next, at, arm) = (next + some.sectors, some.at, some.arm);
                }
                assert!(whole.sectors > u64::from(spot.sectors_per_track), "{name}: {whole:?}");
                assert_eq!(
                    (next - Lba(first + 1), at, arm),
                    (whole.sectors, whole.at, whole.arm),
                    "{name}, {first}"
                );
            }
        }
    }

    #[test]
    fn reading_on_ends_at_the_end_of_the_drive() {
        let mechanics = drive::builtin("barracuda-1996").expect("a built-in drive").mechanics;
        let last = Lba(mechanics.geometry.sectors() - 5);
        let read = mechanics.read_on(Arm::default(), last, Nanos::ZERO, 1000, Nanos::from_secs(1));
        assert_eq!(read.sectors, 5);
    }
}
