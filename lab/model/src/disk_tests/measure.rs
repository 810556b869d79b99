//! Modelled drives that are measured as real ones: what comes out is what their drive files say.

use dcd_engine::{Lba, Nanos};
use dcd_model::extract::{MeasureError, Measurement, ModelledReads, Reads, measure};
use dcd_model::{Drive, Zone, drive};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::disk_tests::common::random;

/// Adds a random time, up to `most`, to the end of each read, as a computer does.
struct Jitter {
    reads: ModelledReads,
    random: ChaCha8Rng,
    most: u64,
}

impl Reads for Jitter {
    fn sectors(&self) -> u64 {
        self.reads.sectors()
    }
    fn unit(&self) -> u64 {
        self.reads.unit()
    }
    fn read(&mut self, at: Lba, sectors: u64) -> Result<(Nanos, Nanos), String> {
        let (begin, _) = self.reads.read(at, sectors)?;
        self.reads.pause(Nanos(self.random.random_range(0..=self.most)));
        Ok((begin, self.reads.now()))
    }
    fn pause(&mut self, time: Nanos) {
        self.reads.pause(time);
    }
    fn progress(&mut self, _what: &str, _done: f64) {}
}

fn measured(name: &str, jitter: Nanos) -> (Drive, Drive, Measurement) {
    let truth = drive::builtin(name).unwrap();
    let mut reads = Jitter { reads: ModelledReads::new(truth.clone()), random: random(7), most: jitter.0 };
    let measurement = measure(&mut reads, "measured", "a test").unwrap_or_else(|e| panic!("{name}: {e}"));
    println!("{name}, jitter {jitter:?}: {} reads\n{}", measurement.reads, measurement.text);
    (truth, Drive::parse(&measurement.text).expect("it is a drive file"), measurement)
}

/// The zones, those of tracks of one length taken together: length, first sector.
fn lengths(drive: &Drive) -> Vec<(u32, u64)> {
    let mut lengths: Vec<(u32, u64)> =
        drive.zones().iter().map(|zone: &Zone| (zone.sectors_per_track, zone.first_lba.0)).collect();
    lengths.dedup_by_key(|zone| zone.0);
    lengths
}

fn same_mechanics(truth: &Drive, found: &Drive) {
    let off = |a: Nanos, b: Nanos| (a.as_millis_f64() - b.as_millis_f64()).abs();
    assert!(off(truth.revolution(), found.revolution()) < 0.002, "{:?}", found.revolution());
    assert_eq!((found.heads(), found.sectors()), (truth.heads(), truth.sectors()));
    let (zones, found_zones) = (lengths(truth), lengths(found));
    let of = |zones: &[(u32, u64)]| zones.iter().map(|zone| zone.0).collect::<Vec<_>>();
    assert_eq!(of(&zones), of(&found_zones));
    for (zone, found_zone) in zones.iter().zip(&found_zones) {
        let cylinder = u64::from(truth.heads() * zone.0);
        assert!(zone.1.abs_diff(found_zone.1) <= cylinder, "{zone:?} {found_zone:?}");
    }
    // Spares and cylinders without data are not counted.
    assert!(
        (truth.cylinders() * 9 / 10..=truth.cylinders()).contains(&found.cylinders()),
        "{}",
        found.cylinders()
    );
}

#[test]
fn the_atlas_10k_is_found_out_by_reading_it() {
    for jitter in [Nanos::ZERO, Nanos::from_micros(10)] {
        let (truth, found, measurement) = measured("atlas-10k", jitter);
        same_mechanics(&truth, &found);
        // The blocks that come just in time are found to a hundredth of a revolution or two.
        for cylinders in [1, 2, 3, 5, 9, 100, 1000, 2500, 6000, 9000] {
            let (is, was) = (found.seek(cylinders).as_millis_f64(), truth.seek(cylinders).as_millis_f64());
            assert!((is - was).abs() < 0.35 + was * 0.03, "{cylinders} cylinders: {is} ms and not {was}");
        }
        assert!((found.mean_seek().as_millis_f64() / truth.mean_seek().as_millis_f64() - 1.0).abs() < 0.03);
        assert!((found.head_switch().as_millis_f64() - 0.176).abs() < 0.1, "{:?}", found.head_switch());
        assert_eq!(found.segments().0, 10);
        assert!(found.segments().1.abs_diff(374) < 8, "{:?}", found.segments());
        let table = found_table(&measurement);
        let cache = &table["cache"];
        assert_eq!(cache["read-ahead"].as_str(), Some("next-track"));
        assert_eq!(cache["zero-latency-reads"].as_bool(), Some(true));
        assert_eq!(cache["keep-passing-sectors"].as_bool(), Some(true));
        let zone = table["zones"][0].as_array().unwrap().iter().filter_map(toml::Value::as_integer);
        for (is, was) in zone.skip(1).zip([334, 63, 113]) {
            assert!((is - was).abs() <= jitter.0 as i64 / 5_000, "{is} and not {was}");
        }
    }
}

fn found_table(measurement: &Measurement) -> toml::Table {
    measurement.text.parse().expect("it is TOML")
}

#[test]
fn a_drive_without_tricks_is_told_from_one_with_them() {
    let (truth, found, measurement) = measured("barracuda-st32171w", Nanos::from_micros(5));
    same_mechanics(&truth, &found);
    // The overhead of a read is in the times of the arm.
    for cylinders in [1, 9, 100, 1000, 4000] {
        let (is, was) =
            (found.seek(cylinders).as_millis_f64(), truth.seek(cylinders).as_millis_f64() + 0.613);
        assert!((is - was).abs() < 0.35 + was * 0.03, "{cylinders} cylinders: {is} ms and not {was}");
    }
    assert!((found.head_switch().as_millis_f64() - 1.271 - 0.613).abs() < 0.1, "{:?}", found.head_switch());
    let cache = &found_table(&measurement)["cache"];
    assert_eq!((found.segments().0, cache["read-ahead"].as_str()), (3, Some("segment")));
    assert!(found.segments().1.abs_diff(281) < 8, "{:?}", found.segments());
    assert!(
        cache.get("zero-latency-reads").is_none() && cache.get("keep-passing-sectors").is_none(),
        "{cache}"
    );
}

#[test]
fn a_drive_without_a_buffer_has_none() {
    let (truth, found, measurement) = measured("ra81", Nanos::ZERO);
    same_mechanics(&truth, &found);
    assert!(found_table(&measurement).get("cache").is_none());
    assert!(measurement.notes.iter().any(|note| note.starts_with("a buffer")), "{:?}", measurement.notes);
}

/// Reads that take as long wherever they are.
struct Solid(Nanos, u64);

impl Reads for Solid {
    fn sectors(&self) -> u64 {
        1 << 21
    }
    fn unit(&self) -> u64 {
        8
    }
    fn read(&mut self, _at: Lba, _sectors: u64) -> Result<(Nanos, Nanos), String> {
        let begin = self.0;
        self.1 = self.1.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 = begin + Nanos(80_000 + (self.1 >> 48));
        Ok((begin, self.0))
    }
    fn pause(&mut self, time: Nanos) {
        self.0 += time;
    }
    fn progress(&mut self, _what: &str, _done: f64) {}
}

#[test]
fn what_does_not_turn_is_refused() {
    let refused = measure(&mut Solid(Nanos::ZERO, 1), "x", "x").unwrap_err();
    println!("{refused}");
    assert!(
        matches!(refused, MeasureError::NoRotation(_)) && refused.to_string().contains("it does not turn")
    );
}

/// The skews do not tell head from cylinder: each track is taken for a cylinder, and seeks are as long as before.
#[test]
fn heads_that_cannot_be_counted_are_one() {
    let (truth, found, measurement) = measured("cheetah-15k4", Nanos::ZERO);
    assert_eq!((found.heads(), found.sectors()), (1, truth.sectors()));
    assert!(measurement.notes.iter().any(|note| note.starts_with("the heads")), "{:?}", measurement.notes);
    let of = |drive: &Drive| lengths(drive).iter().map(|zone| zone.0).collect::<Vec<_>>();
    assert_eq!(of(&truth), of(&found));
    for cylinders in [100, 1000, 10_000] {
        let is = found.seek(cylinders * truth.heads()).as_millis_f64();
        let was = truth.seek(cylinders).as_millis_f64()
            + truth.command_overhead(dcd_model::Access::Read).as_millis_f64();
        assert!((is - was).abs() < 0.2 + was * 0.03, "{cylinders} cylinders: {is} ms and not {was}");
    }
}
