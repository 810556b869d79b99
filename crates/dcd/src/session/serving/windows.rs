//! The windows of `destage-window` in local time: which are open, and until when.

use dcd_stack::DestageWindow;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

/// The days that the next change is looked for: all windows open within a week.
const DAYS: i64 = 8;

/// Local time of the host. The time zone is that of the start, as a look at its file could wait for a disk.
pub struct LocalClock {
    zone: TimeZone,
    now: Box<dyn Fn() -> Timestamp>,
}

impl Default for LocalClock {
    fn default() -> LocalClock {
        LocalClock { zone: TimeZone::system(), now: Box::new(Timestamp::now) }
    }
}

impl LocalClock {
    #[cfg(test)]
    pub fn fixed(zone: TimeZone, now: std::rc::Rc<std::cell::Cell<Timestamp>>) -> LocalClock {
        LocalClock { zone, now: Box::new(move || now.get()) }
    }

    pub fn now(&self) -> ZonedDateTime {
        (self.now)().to_zoned_datetime(self.zone.clone())
    }
}

/// True if the clock of the host shows a time in one of the windows. Without windows it is always open.
pub fn is_open(windows: &[DestageWindow], now: &ZonedDateTime) -> bool {
    let day = now.weekday().to_monday_zero_offset() as usize;
    let minute = now.hour() as u16 * 60 + now.minute() as u16;
    windows.is_empty() || windows.iter().any(|window| window.contains(day, minute))
}

/// Returns when the windows open or close next; none if they never do.
pub fn next_change(windows: &[DestageWindow], now: &ZonedDateTime) -> Option<ZonedDateTime> {
    let is = is_open(windows, now);
    let zone = now.time_zone();
    let edges = || windows.iter().flat_map(DestageWindow::edges);
    let mut instants: Vec<Timestamp> = Vec::new();
    for after in 0..=DAYS {
        let Ok(day) = now.date().checked_add(after.days()) else { continue };
        for edge in edges() {
            let local = day.at((edge / 60) as i8, (edge % 60) as i8, 0, 0);
            // A clock that is set back shows the edge twice, and one that is set forward may not show it.
            let at = zone.to_ambiguous_timestamp(local);
            instants.extend(at.earlier().into_iter().chain(at.later()));
        }
    }
    let until = now.timestamp() + (DAYS * 24).hours();
    let changes = zone.following(now.timestamp()).map(|change| change.timestamp());
    instants.extend(changes.take_while(|at| *at <= until));
    instants.sort_unstable();
    let later = instants.into_iter().filter(|at| *at > now.timestamp());
    later.map(|at| at.to_zoned_datetime(zone.clone())).find(|at| is_open(windows, at) != is)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// New York: the clock skips 02:00 to 03:00 on 8 March 2026, and shows 01:00 to 02:00 twice on 1 November.
    const ZONE: &str = "EST5EDT,M3.2.0,M11.1.0";

    fn at(local: &str) -> ZonedDateTime {
        let zone = TimeZone::posix(ZONE).unwrap();
        local.parse::<jiff::civil::DateTime>().unwrap().to_zoned_datetime(zone).unwrap()
    }

    fn windows(texts: &[&str]) -> Vec<DestageWindow> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The local time of the next change, with its offset.
    fn next(texts: &[&str], now: &str) -> String {
        next_change(&windows(texts), &at(now))
            .map_or("never".to_owned(), |at| at.strftime("%a %H:%M %z").to_string())
    }

    #[test]
    fn windows_open_and_close_at_their_local_times() {
        let both = ["02:00-05:00", "Sat 00:00-24:00"];
        // A Thursday.
        assert!(!is_open(&windows(&both), &at("2026-01-15T01:59:59")));
        assert!(is_open(&windows(&both), &at("2026-01-15T02:00:00")));
        assert_eq!(next(&both, "2026-01-15T01:59:59"), "Thu 02:00 -0500");
        assert_eq!(next(&both, "2026-01-15T02:00:00"), "Thu 05:00 -0500");
        assert_eq!(next(&both, "2026-01-16T05:00:00"), "Sat 00:00 -0500");
        assert_eq!(next(&both, "2026-01-17T04:59:00"), "Sun 00:00 -0500", "the windows overlap");
        assert_eq!(next(&["Thu 10:00-11:00"], "2026-01-15T11:00:00"), "Thu 10:00 -0500", "in a week");
        assert_eq!(next(&["22:00-06:00"], "2026-01-15T23:00:00"), "Fri 06:00 -0500", "over midnight");
    }

    #[test]
    fn without_windows_and_with_all_of_the_week_nothing_ever_closes() {
        assert!(is_open(&[], &at("2026-01-15T12:00:00")));
        assert_eq!(next(&[], "2026-01-15T12:00:00"), "never");
        assert_eq!(next(&["00:00-24:00"], "2026-01-15T12:00:00"), "never");
        assert!(is_open(&windows(&["12:00-06:00", "06:00-12:00"]), &at("2026-01-15T06:00:00")));
    }

    #[test]
    fn a_window_is_open_while_the_clock_shows_its_times() {
        // The clock is set forward from 02:00 to 03:00.
        assert_eq!(next(&["02:30-05:00"], "2026-03-08T01:00:00"), "Sun 03:00 -0400");
        assert_eq!(next(&["02:30-05:00"], "2026-03-08T03:00:00"), "Sun 05:00 -0400");
        assert_eq!(
            next(&["02:10-02:50"], "2026-03-08T01:00:00"),
            "Mon 02:10 -0400",
            "no such time on that day"
        );
        assert_eq!(next(&["01:00-02:30"], "2026-03-08T01:30:00"), "Sun 03:00 -0400");
        // It is set back from 02:00 to 01:00.
        assert_eq!(next(&["01:30-04:00"], "2026-11-01T00:00:00"), "Sun 01:30 -0400");
        assert_eq!(next(&["01:30-04:00"], "2026-11-01T01:30:00"), "Sun 01:00 -0500", "it shows 01:00 again");
        let closed = at("2026-11-01T00:30:00") + 100.minutes();
        let opens = next_change(&windows(&["01:30-04:00"]), &closed).unwrap();
        assert_eq!(opens.strftime("%a %H:%M %z").to_string(), "Sun 01:30 -0500", "for the second time");
        let again = at("2026-11-01T00:30:00") + 120.minutes();
        assert_eq!(again.strftime("%H:%M %z").to_string(), "01:30 -0500");
        assert!(is_open(&windows(&["01:30-04:00"]), &again));
        let next = next_change(&windows(&["01:30-04:00"]), &again).unwrap();
        assert_eq!(next.strftime("%H:%M %z").to_string(), "04:00 -0500");
    }
}
