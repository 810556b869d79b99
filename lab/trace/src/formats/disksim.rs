//! DiskSim ASCII: `time_ms device block blocks flags` between white space; blocks of 512 bytes, flags in hexadecimal with
//! bit 0 set for a read. MQSim and SSDsim have the same columns with the time as a whole number of nanoseconds.

use dcd_engine::Nanos;

use super::table::{DISKSIM_SET, MQSIM_SET, Rows, open, row};
use crate::format::{Format, Head, Likeness};
use crate::text::{Lines, TextWriter};

const MILLISECOND_NS: u64 = 1_000_000;

pub const FORMAT: Format = Format {
    recognise: |head| match unit(head) {
        Some(Unit::Nanoseconds) => Likeness::NONE,
        _ => head.requests(Rows::of(&DISKSIM_SET)),
    },
    ..row!("disksim", "DiskSim ASCII", DISKSIM_SET, 1, false)
};

pub const MQSIM: Format = Format {
    recognise: |head| match unit(head) {
        Some(Unit::Milliseconds) => Likeness::NONE,
        _ => head.requests(Rows::of(&MQSIM_SET)),
    },
    guess: Some(
        "its times are whole numbers, and were taken for nanoseconds; --from disksim takes them for milliseconds",
    ),
    ..row!("mqsim", "the same with whole nanoseconds, as MQSim and SSDsim have it", MQSIM_SET, 1, false)
};

/// Requests do not come so far apart: 15 minutes.
const GAP_MAX_NS: u64 = 900_000_000_000;
/// Nor so close together.
const GAP_MIN_NS: u64 = 100;

#[derive(PartialEq, Eq)]
enum Unit {
    Milliseconds,
    Nanoseconds,
}

/// The unit of the times, if they tell: by a decimal point, or as the other unit would be absurd.
fn unit(head: &Head<'_>) -> Option<Unit> {
    let lines = head.lines();
    let mut columns = Rows::of(&DISKSIM_SET);
    let times: Vec<&str> = lines
        .iter()
        .filter(|line| columns.parse(line).is_ok())
        .filter_map(|line| line.split_ascii_whitespace().next())
        .collect();
    let whole: Result<Vec<u64>, _> = times.iter().map(|time| time.parse::<u64>()).collect();
    let Ok(whole) = whole else { return Some(Unit::Milliseconds) };
    let gaps = whole.len().checked_sub(1).filter(|&gaps| gaps > 0)? as u64;
    let gap = whole.iter().max()?.abs_diff(*whole.iter().min()?) / gaps;
    if gap.saturating_mul(MILLISECOND_NS) > GAP_MAX_NS {
        return Some(Unit::Nanoseconds);
    }
    (gap < GAP_MIN_NS).then_some(Unit::Milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read_text, written};
    use dcd_engine::{Extent, Lba};
    use dcd_stack::RecordOp;

    #[test]
    fn lines_with_tabs_and_with_blanks() {
        let records = read_text(&FORMAT, "13.191135\t30\t0\t5\t1\n17.829285 20 576560 6 0\n").unwrap();
        assert_eq!(
            (records[0].at, records[0].device.0, records[0].op),
            (Nanos(13_191_135), 30, RecordOp::Read)
        );
        assert_eq!((records[1].extent, records[1].op), (Extent::new(Lba(576_560), 6), RecordOp::Write));
        assert_eq!(written(&FORMAT, &records[1..]), b"17.829285 20 576560 6 0\n");
        assert_eq!(written(&MQSIM, &records[1..]), b"17829285 20 576560 6 0\n");
        assert_eq!(read_text(&MQSIM, "17829285 20 576560 6 0\n").unwrap(), records[1..]);
    }

    #[test]
    fn whole_numbers_are_the_unit_that_is_possible_or_are_asked_for() {
        let recognised = |text: &str| crate::recognise("test", text.as_bytes()).map(|format| format.name);
        assert_eq!(recognised("0.5 0 0 8 1\n17 0 8 8 0\n").unwrap(), "disksim");
        assert_eq!(recognised("1000000 0 0 8 1\n9000000 0 8 8 0\n").unwrap(), "mqsim");
        assert_eq!(recognised("4 0 0 8 1\n17 0 8 8 0\n").unwrap(), "disksim");
        let error = recognised("1000 0 0 8 1\n9000 0 8 8 0\n").unwrap_err().to_string();
        assert!(error.contains("--from disksim or --from mqsim"), "{error}");
    }
}
