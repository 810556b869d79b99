//! Asks the SSDs below the log how much of their life is used, on a thread of its own: a disk that hangs holds up this thread alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::thread;

use dcd_engine::{DeviceIndex, Nanos};
use dcd_io::{DiskWear, OpenedPlace};
use serde::{Deserialize, Serialize};

/// Interval of the questions. An SSD changes its percentage once in days, and a SATA disk pauses for an answer.
const INTERVAL: Nanos = Nanos::from_secs(600);
/// Time over which the rate of writes is taken, or less after the start.
const DAY: Nanos = Nanos::from_secs(86_400);
/// Minimum time of a rate from which years are told: in an hour of restores or fills, an SSD seems to last for days.
const SPAN_MIN: Nanos = Nanos::from_secs(6 * 3600);
/// Intervals without an answer after which what is known is too old to be told.
const INTERVALS_MAX: u64 = 3;
const YEAR_DAYS: f64 = 365.25;

/// The wear of an SSD below a device, by its own count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SsdStatus {
    /// Name in /dev.
    pub disk: String,
    /// Percent of the life for which its maker has rated it; may be above 100.
    pub used_percent: u8,
    /// All bytes written to it since it was made, by this server and by others; none where it does not count them.
    pub written_bytes: Option<u64>,
    /// Bytes written to it in a day, at the rate of the last day or since the start; none until it is known.
    pub bytes_per_day: Option<f64>,
    /// Years until all of its life is used, at that rate; none where it is not known.
    pub years_left: Option<f64>,
}

/// An SSD, and its answers of the last day.
#[derive(Debug)]
struct SsdHistory {
    newest: DiskWear,
    /// Times, and the bytes written by then; the oldest first.
    written: VecDeque<(Nanos, u64)>,
}

impl SsdHistory {
    fn note(&mut self, now: Nanos, wear: DiskWear) {
        if let Some(bytes) = wear.written_bytes {
            while self.written.get(1).is_some_and(|(at, _)| *at + DAY <= now) {
                self.written.pop_front();
            }
            self.written.push_back((now, bytes));
        }
        self.newest = wear;
    }

    /// Time over which writes were counted.
    fn span(&self) -> Nanos {
        let ends = self.written.front().zip(self.written.back());
        ends.map_or(Nanos::ZERO, |((first, _), (last, _))| last.since(*first))
    }

    fn bytes_per_day(&self) -> Option<f64> {
        let ((_, first), (_, last)) = (self.written.front()?, self.written.back()?);
        let days = self.span().as_secs_f64() / DAY.as_secs_f64();
        (days > 0.0).then(|| last.saturating_sub(*first) as f64 / days)
    }

    /// The years that are left, if each percent takes as many bytes as those before have taken.
    fn years_left(&self) -> Option<f64> {
        let DiskWear { used_percent, written_bytes, .. } = self.newest;
        let left = 100_u8.saturating_sub(used_percent);
        if left == 0 {
            return Some(0.0);
        }
        let per_day = self.bytes_per_day().filter(|bytes| *bytes > 0.0 && self.span() >= SPAN_MIN)?;
        let per_percent = written_bytes.filter(|_| used_percent > 0)? as f64 / f64::from(used_percent);
        Some(f64::from(left) * per_percent / per_day / YEAR_DAYS)
    }

    fn status(&self) -> SsdStatus {
        let DiskWear { disk, used_percent, written_bytes } = self.newest.clone();
        SsdStatus {
            disk,
            used_percent,
            written_bytes,
            bytes_per_day: self.bytes_per_day(),
            years_left: self.years_left(),
        }
    }
}

/// Devices, and what the thread looks at or has found for each.
type PerDevice<T> = Vec<(DeviceIndex, T)>;

/// Ends of the channels to the thread and from it.
type AskingThread = (mpsc::Sender<PerDevice<OpenedPlace>>, mpsc::Receiver<PerDevice<Vec<DiskWear>>>);

/// See the module's documentation.
#[derive(Default)]
pub struct WearWatch {
    /// The thread, once there is one; none where it cannot be started.
    thread: Option<AskingThread>,
    /// True while the thread asks.
    asks: bool,
    asked: Option<Nanos>,
    answered: Nanos,
    ssds: BTreeMap<DeviceIndex, Vec<SsdHistory>>,
}

impl WearWatch {
    /// Has the thread ask, when it is time. `logs`: devices that hold logs.
    pub fn look(&mut self, now: Nanos, logs: impl FnOnce() -> PerDevice<OpenedPlace>) {
        self.take(now);
        if self.asks && now > self.answered + Nanos(INTERVAL.0 * INTERVALS_MAX) {
            self.ssds.clear();
        }
        if self.asks || self.asked.is_some_and(|asked| now < asked + INTERVAL) {
            return;
        }
        let (ask, _) = self.thread.get_or_insert_with(|| start_asking(OpenedPlace::wear));
        self.asks = ask.send(logs()).is_ok();
        self.asked = Some(now);
    }

    /// Takes what the thread has found.
    pub fn take(&mut self, now: Nanos) {
        let found = self.thread.as_ref().and_then(|(_, found)| found.try_recv().ok());
        if let Some(found) = found {
            self.asks = false;
            self.answered = now;
            self.found(now, found);
        }
    }

    fn found(&mut self, now: Nanos, found: PerDevice<Vec<DiskWear>>) {
        let mut before = std::mem::take(&mut self.ssds);
        for (device, disks) in found {
            let mut known = before.remove(&device).unwrap_or_default();
            let histories = disks.into_iter().map(|wear| {
                let place = known.iter().position(|ssd| ssd.newest.disk == wear.disk);
                let mut ssd = match place {
                    Some(place) => known.swap_remove(place),
                    None => SsdHistory { newest: wear.clone(), written: VecDeque::new() },
                };
                ssd.note(now, wear);
                ssd
            });
            self.ssds.insert(device, histories.collect());
        }
    }

    /// The SSDs below a device, as they have answered last; empty where none tells.
    pub fn of(&self, device: DeviceIndex) -> Vec<SsdStatus> {
        self.ssds.get(&device).into_iter().flatten().map(SsdHistory::status).collect()
    }
}

fn start_asking(wear: fn(&OpenedPlace) -> Vec<DiskWear>) -> AskingThread {
    let (ask, asked) = mpsc::channel::<PerDevice<OpenedPlace>>();
    let (tell, found) = mpsc::channel();
    let look = move || {
        for places in asked {
            let found = places.iter().map(|(device, place)| (*device, wear(place))).collect();
            if tell.send(found).is_err() {
                return;
            }
        }
    };
    // Without the thread, nothing is known of the wear.
    let _ = thread::Builder::new().name("dcd-wear".to_owned()).spawn(look);
    (ask, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: DeviceIndex = DeviceIndex(3);
    const GB: u64 = 1_000_000_000;

    fn hours(hours: u64) -> Nanos {
        Nanos::from_secs(hours * 3600)
    }

    fn answer(used_percent: u8, written_bytes: Option<u64>) -> PerDevice<Vec<DiskWear>> {
        vec![(LOG, vec![DiskWear { disk: "nvme0n1".to_owned(), used_percent, written_bytes }])]
    }

    #[test]
    fn years_left_follow_from_the_bytes_that_a_percent_takes_and_the_last_day() {
        let mut watch = WearWatch::default();
        assert_eq!(watch.of(LOG), []);
        watch.found(hours(1), answer(2, Some(200_000 * GB)));
        let first = watch.of(LOG).remove(0);
        assert_eq!(
            (first.used_percent, first.bytes_per_day, first.years_left),
            (2, None, None),
            "one answer"
        );
        watch.found(hours(2), answer(2, Some(200_500 * GB)));
        let early = watch.of(LOG).remove(0);
        assert!(early.bytes_per_day.is_some() && early.years_left.is_none(), "an hour says little of years");
        // 10 GB an hour. The first answers are older than a day at the end.
        (3..=40).for_each(|hour| watch.found(hours(hour), answer(2, Some((200_000 + 10 * hour) * GB))));
        let last = watch.of(LOG).remove(0);
        assert_eq!(last.bytes_per_day.map(f64::round), Some(240.0 * GB as f64));
        let years = 98.0 * (200_400.0 / 2.0) / 240.0 / YEAR_DAYS;
        assert_eq!(last.years_left.map(f64::round), Some(years.round()));
        let kept = &watch.ssds[&LOG][0].written;
        assert!(kept.len() <= 26, "answers of a day: {}", kept.len());
    }

    #[test]
    fn years_are_not_known_without_a_percent_without_bytes_and_without_writes() {
        for (percent, written, later) in
            [(0, Some(500 * GB), Some(600 * GB)), (5, None, None), (5, Some(500 * GB), Some(500 * GB))]
        {
            let mut watch = WearWatch::default();
            watch.found(hours(0), answer(percent, written));
            watch.found(hours(7), answer(percent, later));
            assert_eq!(watch.of(LOG)[0].years_left, None, "{percent} % {written:?} {later:?}");
        }
        let mut watch = WearWatch::default();
        watch.found(hours(0), answer(103, None));
        assert_eq!(watch.of(LOG)[0].years_left, Some(0.0), "all of it is used");
        watch.found(hours(1), Vec::new());
        assert_eq!(watch.of(LOG), [], "the device is gone");
    }

    /// The thread that asks hangs with its disk. Nobody waits for it, and it is not asked again.
    #[test]
    fn a_disk_that_hangs_holds_up_the_thread_alone() {
        let hangs: fn(&OpenedPlace) -> Vec<DiskWear> = |_| loop {
            thread::park();
        };
        let mut watch = WearWatch { thread: Some(start_asking(hangs)), ..WearWatch::default() };
        watch.found(hours(0), answer(5, None));
        let mut asked = 0;
        let file = tempfile::NamedTempFile::new().unwrap();
        let spec = dcd_io::DeviceSpec::File(dcd_io::FileSpec {
            create: Some(1 << 20),
            ..dcd_io::FileSpec::new(file.path())
        });
        let device = dcd_io::Device::open(&spec).unwrap();
        for hour in 0..5 {
            assert_eq!(watch.of(LOG).len(), usize::from(hour < 2), "what it said before is forgotten");
            watch.look(hours(hour), || {
                asked += 1;
                vec![(LOG, device.place().unwrap().clone())]
            });
        }
        assert_eq!((asked, watch.of(LOG)), (1, Vec::new()));
    }
}
