//! DiskSim "validate": `R|W WORD block blocks response_us think_us`, the measurements of a real drive with one request
//! outstanding. A request is issued `think_us` of the line before it after the completion of that line's request; so the
//! times of arrival follow from what was measured. Read only.

use dcd_engine::Nanos;

use crate::format::Format;
use crate::text::{Lines, TextReader, blank};
use dcd_stack::{DeviceId, Record, RecordOp};

const MICROSECOND_NS: u64 = 1_000;

pub const FORMAT: Format = Format {
    name: "validate",
    about: "DiskSim \"validate\": measured response and think times, closed loop (read only)",
    recognise: |head| head.requests(Validate::default()),
    read: |input| Ok(Box::new(TextReader::new(input, Validate::default()))),
    write: None,
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: false,
    has_fua: false,
    guess: None,
};

#[derive(Default)]
struct Validate {
    /// Time at which the next request is issued.
    next: Nanos,
}

impl Lines for Validate {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = blank(line);
        let op = match fields.text("direction")? {
            "R" => RecordOp::Read,
            "W" => RecordOp::Write,
            other => return Err(format!("the direction is neither R nor W: {other:?}")),
        };
        match fields.text("hit or miss")? {
            // The last two of a write whose drive gave up the bus so many times.
            "Hit" | "Miss" | "Doub" | "Trip" => {}
            other => return Err(format!("none of Hit, Miss, Doub and Trip: {other:?}")),
        }
        let (start, sectors) = (fields.number("block number")?, fields.number("count of blocks")?);
        let response = fields.decimal("response time", MICROSECOND_NS)?;
        let think = fields.decimal("think time", MICROSECOND_NS)?;
        fields.end()?;
        let record = Record::new(self.next, DeviceId(0), op, start, sectors)?.answered_after(Some(response));
        self.next = self.next.saturating_add(response).saturating_add(think);
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_text;

    #[test]
    fn a_request_follows_the_one_before_by_response_and_think_time() {
        let text = "W Hit    4583176   4    663.00000  45422.00000\nR Miss 4583180 4 607.00000 34200.00000\n";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!((records[0].at, records[0].response), (Nanos(0), Some(Nanos::from_micros(663))));
        assert_eq!((records[1].at, records[1].op), (Nanos::from_micros(663 + 45_422), RecordOp::Read));
        let twice = read_text(&FORMAT, "W Doub  197410    31     28204.180     31220.570\n").unwrap();
        assert_eq!((twice[0].op, twice[0].extent.sectors), (RecordOp::Write, 31));
        assert!(read_text(&FORMAT, "W Maybe 1 1 1 1\n").is_err());
    }
}
