//! Finds units that cannot be right, in the first rows of a text whose units are taken for granted: seconds since 1970 read as
//! microseconds, bytes read as sectors, and the reverse.

use dcd_engine::SECTOR_BYTES;

use super::table::{Column, Raw, Role, SECOND_NS, described};

/// Fewer rows say nothing about places.
const ROWS_MIN: usize = 8;
/// Seconds since 1970 of 2001 to 2039.
const UNIX_SECONDS: std::ops::Range<u64> = 1_000_000_000..2_200_000_000;
/// Units of time between two rows, on average, below which times that look like Unix times are those.
const GAP_UNITS: u64 = 100;
const YEAR_NS: u64 = 365 * 24 * 3600 * SECOND_NS;
/// No disk, volume or array is as large: an exabyte.
const DISK_BYTES_MAX: u64 = 1 << 60;
/// Requests are seldom larger, and never all of them.
const LARGE_BYTES: u64 = 2 << 20;

/// Err: what is wrong, and the columns as they should be named.
pub fn check(columns: &[Column], rows: &[Raw]) -> Result<(), String> {
    if let Some((what, wrong, right)) = times(columns, rows).or_else(|| places(columns, rows)) {
        let mended = |&(ref name, role): &Column| (name.clone(), if role == wrong { right } else { role });
        let mut mended: Vec<Column> = columns.iter().map(mended).collect();
        // If a place is in another unit, so is a length that has the same unit.
        if let (Role::Start(from), Role::Start(to)) = (wrong, right) {
            let lengths = mended.iter_mut().filter(|(_, role)| *role == Role::Length(from));
            lengths.for_each(|(_, role)| *role = Role::Length(to));
        }
        let (now, then) = (described(columns), described(&mended));
        return Err(format!(
            "{what}. Name the columns with their units: --columns {then}. If the units are right as they are: --columns {now}"
        ));
    }
    Ok(())
}

/// The reason, the role of a column, and the one that it should have.
type Wrong = (String, Role, Role);

fn times(columns: &[Column], rows: &[Raw]) -> Option<Wrong> {
    let (role, unit) = columns.iter().find_map(|&(_, role)| match role {
        Role::At(unit) | Role::End(unit) => Some((role, unit)),
        _ => None,
    })?;
    let of = |unit| if matches!(role, Role::At(_)) { Role::At(unit) } else { Role::End(unit) };
    let (first, last) =
        (rows.iter().map(|row| row.stamp().0).min()?, rows.iter().map(|row| row.stamp().0).max()?);
    let gaps = (rows.len() as u64).checked_sub(1).filter(|&gaps| gaps > 0)?;
    // The unit of times that count from 1970, and come as close together as requests do.
    let close = (last - first) / unit / gaps < GAP_UNITS;
    for (name, then) in [("seconds", SECOND_NS), ("milliseconds", 1_000_000), ("microseconds", 1_000)] {
        let units = SECOND_NS / then;
        let since_1970 = |ns: u64| UNIX_SECONDS.contains(&(ns / unit / units));
        if then > unit && close && since_1970(first) && since_1970(last) {
            let what = format!(
                "its times are {} to {}, read in units of {unit} ns: they look like {name} since 1970",
                first / unit,
                last / unit
            );
            return Some((what, role, of(then)));
        }
    }
    if last - first > 100 * YEAR_NS {
        let what = format!("its first {} lines span {} years", rows.len(), (last - first) / YEAR_NS);
        return Some((what, role, of((unit / 1000).max(1))));
    }
    // More than one in a nanosecond, of a clock that is finer than milliseconds.
    if unit < 1_000_000 && rows.len() >= 1000 && last - first < gaps {
        let what = format!("its first {} lines are within {} ns", rows.len(), last - first);
        return Some((what, role, of(unit * 1000)));
    }
    None
}

fn places(columns: &[Column], rows: &[Raw]) -> Option<Wrong> {
    let unit = |wanted: fn(Role) -> Option<u64>| columns.iter().find_map(|&(_, role)| wanted(role));
    let start = unit(|role| if let Role::Start(unit) = role { Some(unit) } else { None })?;
    let length = unit(|role| if let Role::Length(unit) = role { Some(unit) } else { None })?;
    let ranges: Vec<(u64, u64)> = rows.iter().filter_map(Raw::range).filter(|range| range.1 > 0).collect();
    if ranges.len() < ROWS_MIN {
        return None;
    }
    let all = |is: &dyn Fn(&(u64, u64)) -> bool| ranges.iter().all(is);
    let whole = SECTOR_BYTES * start;
    let varied = ranges.iter().any(|range| range.0 != ranges[0].0);
    let of_two_lengths = ranges.iter().any(|range| range.1 != ranges[0].1);
    if start == SECTOR_BYTES {
        let large = all(&|&(_, length)| length % whole == 0);
        // Large requests one after another are all multiples, too.
        let bytes = all(&|&(start, _)| start % whole == 0)
            && match length == SECTOR_BYTES {
                true => large && (of_two_lengths || all(&|&(_, length)| length >= LARGE_BYTES)),
                false => !large && varied,
            };
        let end = ranges.iter().map(|&(start, length)| start.saturating_add(length)).max()?;
        if bytes || end > DISK_BYTES_MAX {
            let why = if bytes { "they are all multiples of 512" } else { "they reach past an exabyte" };
            let what =
                format!("its places are read as sectors of 512 bytes, and {why}: they look like bytes");
            return Some((what, Role::Start(start), Role::Start(1)));
        }
    }
    if start == 1 && length == 1 && all(&|&(_, length)| length < SECTOR_BYTES) {
        let what = "its lengths are read as bytes, and all are less than a sector: they look like sectors"
            .to_owned();
        return Some((what, Role::Start(1), Role::Start(SECTOR_BYTES)));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::table::{ALIBABA, CSV, MSR, SPC, TENCENT};
    use crate::format::Format;
    use crate::testing::read_text;

    fn refused(format: &Format, text: &str) -> String {
        read_text(format, text).unwrap_err().to_string()
    }

    fn lines(count: u64, line: impl Fn(u64) -> String) -> String {
        (0..count).map(line).collect()
    }

    #[test]
    fn seconds_since_1970_are_no_fine_times() {
        let msr = "Timestamp,Type,Offset,Size\n1583020800,Read,4096,4096\n1583020861,Write,8192,4096\n";
        let said = refused(&CSV, msr);
        assert!(said.contains("they look like seconds since 1970"), "{said}");
        assert!(said.contains("--columns time:s,op,offset:bytes,size:bytes."), "{said}");
        assert!(said.contains("--columns time:100ns,op,offset:bytes,size:bytes"), "{said}");
        let alibaba = lines(20, |n| format!("3,R,{},4096,{}\n", n * 4096, 1_583_020_800 + n / 4));
        assert!(refused(&ALIBABA, &alibaba).contains("--columns device,op,offset:bytes,size:bytes,time:s"));
        let millis = lines(20, |n| format!("3,R,{},4096,{}\n", n * 4096, 1_583_020_800_000 + n));
        assert!(refused(&ALIBABA, &millis).contains("milliseconds since 1970"));
        let right = lines(20, |n| format!("3,R,{},4096,{}\n", n * 4096, 1_583_020_800_000_000 + n));
        assert_eq!(read_text(&ALIBABA, &right).unwrap().len(), 20);
        // Half an hour after its beginning.
        let own = lines(20, |n| format!("3,R,{},4096,{}\n", n * 4096, 1_800_000_000 + n * 2000));
        assert_eq!(read_text(&ALIBABA, &own).unwrap().len(), 20);
        let centuries = lines(9, |n| format!("{},hm,0,Read,{},4096,7\n", n * (1 << 54), n * 4096));
        assert!(refused(&MSR, &centuries).contains("years"));
        let no_clock = lines(1500, |n| format!("3,R,{},4096,5\n", n * 4096));
        assert!(refused(&ALIBABA, &no_clock).contains("within 0 ns"));
    }

    #[test]
    fn bytes_are_no_sectors() {
        let tencent =
            lines(20, |n| format!("{},{},{},1,7\n", 1_538_323_200 + n, n * 12_288, 4096 << (n % 3)));
        let said = refused(&TENCENT, &tencent);
        assert!(said.contains("they look like bytes"), "{said}");
        assert!(said.contains("--columns time:s,offset:bytes,size:bytes,op:0=read,device."), "{said}");
        let sequential = lines(20, |n| format!("{},{},2048,1,7\n", 1_538_323_200 + n, n * 2048));
        assert_eq!(read_text(&TENCENT, &sequential).unwrap().len(), 20);
        let spc = lines(20, |n| format!("0,{},4096,w,{n}.5\n", n * 12_288));
        assert!(refused(&SPC, &spc).contains("--columns device,offset:bytes,size:bytes,op,time:s"));
        let large = lines(20, |n| format!("0,{},262144,w,{n}.5\n", n * 512));
        assert_eq!(read_text(&SPC, &large).unwrap().len(), 20);
        let far = lines(20, |n| format!("0,{},512,w,{n}.5\n", (1u64 << 52) + n));
        assert!(refused(&SPC, &far).contains("an exabyte"));
    }

    #[test]
    fn sectors_are_no_bytes() {
        let text = lines(20, |n| format!("3,R,{},8,{}\n", n * 8, n * 1000));
        let said = refused(&ALIBABA, &text);
        assert!(said.contains("--columns device,op,offset:sectors,size:sectors,time:us."), "{said}");
    }
}
