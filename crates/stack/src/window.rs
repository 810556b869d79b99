//! Times of the week at which dirty data is written back: the field `destage-window`.

use std::fmt;
use std::str::FromStr;

/// The days of the week, as they are written.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u16 = 24 * 60;
/// Windows of one cache, at most: the server looks at all of them every two seconds.
pub(crate) const WINDOWS_MAX: usize = 64;

/// A span of the local time of some days. One that ends before it begins goes on after midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestageWindow {
    /// The days on which it begins; the first is Monday.
    days: [bool; 7],
    /// Minutes of the day.
    from: u16,
    until: u16,
}

impl DestageWindow {
    /// True if it is open at a minute of a day of the week; the first day, 0, is Monday.
    pub fn contains(&self, day: usize, minute: u16) -> bool {
        let begins_on = |day: usize| self.days[day % 7];
        match self.from < self.until {
            true => begins_on(day) && (self.from..self.until).contains(&minute),
            false => begins_on(day) && minute >= self.from || begins_on(day + 6) && minute < self.until,
        }
    }

    /// Minutes of a day at which it opens or closes.
    pub fn edges(&self) -> [u16; 2] {
        [self.from, self.until % DAY_MINUTES]
    }
}

/// A malformed window, with a correct example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no window ({why}): write it like \"02:00-05:00\", \"Sat 00:00-24:00\" or \"Mon-Fri 22:00-06:00\""
)]
pub struct WindowError {
    text: String,
    why: &'static str,
}

impl FromStr for DestageWindow {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<DestageWindow, WindowError> {
        parse(text.trim()).map_err(|why| WindowError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<DestageWindow, &'static str> {
    let (days, span) = match text.rsplit_once(' ') {
        Some((days, span)) => (parse_days(days)?, span),
        None => ([true; 7], text),
    };
    let (from, until) = span.split_once('-').ok_or("a span of time is missing")?;
    let (from, until) = (parse_time(from)?, parse_time(until)?);
    if from == DAY_MINUTES {
        return Err("it begins at 24:00, which is 00:00 of the next day");
    }
    if from == until {
        return Err("it would never open; a whole day is 00:00-24:00");
    }
    Ok(DestageWindow { days, from, until })
}

/// `Mon`, `Mon-Fri`, `Sat,Sun`.
fn parse_days(text: &str) -> Result<[bool; 7], &'static str> {
    let day = |name: &str| {
        DAYS.iter()
            .position(|day| day.eq_ignore_ascii_case(name.trim()))
            .ok_or("days are Mon, Tue, Wed, Thu, Fri, Sat, Sun")
    };
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // Sat-Mon goes over the end of the week.
        (0..=(last + 7 - first) % 7).for_each(|after| days[(first + after) % 7] = true);
    }
    Ok(days)
}

/// `02:00`, in minutes of the day.
fn parse_time(text: &str) -> Result<u16, &'static str> {
    let wrong = "a time is not between 00:00 and 24:00";
    let (hours, minutes) = text.split_once(':').ok_or(wrong)?;
    let number = |digits: &str| match digits.len() {
        2 if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse::<u16>().map_err(|_| wrong),
        _ => Err(wrong),
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let time = hours * 60 + minutes;
    if minutes < 60 && time <= DAY_MINUTES { Ok(time) } else { Err(wrong) }
}

impl fmt::Display for DestageWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        if self.days != [true; 7] {
            let days = DAYS.iter().zip(self.days).filter(|(_, is)| *is).map(|(day, _)| *day);
            write!(f, "{} ", days.collect::<Vec<_>>().join(","))?;
        }
        write!(f, "{}-{}", time(self.from), time(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(text: &str) -> DestageWindow {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn windows_are_open_from_their_first_to_before_their_last_minute() {
        let night = window("02:00-05:00");
        for (minute, is_open) in [(119, false), (120, true), (299, true), (300, false)] {
            assert_eq!(night.contains(3, minute), is_open, "{minute}");
        }
        let saturday = window("Sat 00:00-24:00");
        assert!(saturday.contains(5, 0) && saturday.contains(5, 1439));
        assert!(!saturday.contains(4, 1439) && !saturday.contains(6, 0));
        let nights = window("Mon-Fri 22:00-06:00");
        assert!(nights.contains(4, 1320) && nights.contains(5, 359), "the night of Friday ends on Saturday");
        assert!(!nights.contains(5, 360) && !nights.contains(5, 1320));
        assert!(
            !nights.contains(0, 100) && nights.contains(0, 1320),
            "the night before Monday is that of Sunday"
        );
        assert!(window("Sun 22:00-06:00").contains(0, 0), "over the end of the week");
        assert!(window("22:00-00:00").contains(6, 1439) && !window("22:00-00:00").contains(0, 0));
    }

    #[test]
    fn windows_are_written_as_they_are_read() {
        for (text, told) in [
            ("02:00-05:00", "02:00-05:00"),
            ("sat 00:00-24:00", "Sat 00:00-24:00"),
            ("Sat-Mon 01:00-02:00", "Mon,Sat,Sun 01:00-02:00"),
            ("Mon, Wed 23:30-00:30", "Mon,Wed 23:30-00:30"),
        ] {
            assert_eq!(window(text).to_string(), told);
            assert_eq!(window(told), window(text));
        }
    }

    #[test]
    fn wrong_windows_say_what_is_wrong() {
        for (text, why) in [
            ("", "a span of time is missing"),
            ("02:00", "a span of time is missing"),
            ("Sat", "a span of time is missing"),
            ("2:00-05:00", "a time is not between"),
            ("02:00-25:00", "a time is not between"),
            ("02:60-05:00", "a time is not between"),
            ("02:00-24:01", "a time is not between"),
            ("02:00:00-05:00", "a time is not between"),
            ("24:00-05:00", "it begins at 24:00"),
            ("02:00-02:00", "it would never open"),
            ("Samstag 02:00-05:00", "days are Mon"),
            ("Mon-Fry 02:00-05:00", "days are Mon"),
            ("Mon- 02:00-05:00", "days are Mon"),
        ] {
            let error = text.parse::<DestageWindow>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("\"02:00-05:00\""), "{error}");
        }
    }
}
