//! Sizes and spans of time as people write them: `64MiB`, `1.5G`, `500ms`.
//!
//! `K`, `M`, `G`, `T` and `KiB` … `TiB` are powers of 1024, as administrators of block devices expect; `KB` … `TB` are
//! powers of 1000. A bare number is bytes.

use std::fmt;

use dcd_engine::Nanos;

/// Error for a malformed size or span of time, with a correct example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

const SIZES: [(&str, u64); 14] = [
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("", 1),
];

const SPANS: [(&str, u64); 5] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)];

/// Bytes from text like `64MiB`.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse(text, &SIZES)
        .map_err(|why| UnitError(format!("\"{text}\" is not a size ({why}): write it like \"64MiB\"")))
}

/// Bytes in a day from text like `50GB/day`, or 0.
pub fn parse_daily(text: &str) -> Result<u64, UnitError> {
    match text.trim().strip_suffix("/day") {
        Some(size) => parse_size(size),
        None if text.trim() == "0" => Ok(0),
        None => Err(UnitError(format!("\"{text}\" is not a size for each day: write it like \"50GB/day\""))),
    }
}

/// A span of time from text like `500ms`.
pub fn parse_duration(text: &str) -> Result<Nanos, UnitError> {
    parse(text, &SPANS).map(Nanos).map_err(|why| {
        UnitError(format!("\"{text}\" is not a span of time ({why}): write it like \"500ms\" or \"1s\""))
    })
}

/// `digits[.digits] unit`, exactly: no float arithmetic, so that no size is off by a few bytes.
fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, &'static str> {
    let text = text.trim();
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or(if unit.is_empty() { "a unit is missing" } else { "the unit is not known" })?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.contains('.') {
        return Err("the number is malformed");
    }
    let whole: u64 = whole.parse().map_err(|_| "the number is too large")?;
    let mut value = whole.checked_mul(factor).ok_or("the number is too large")?;
    if !fraction.is_empty() {
        let scale = 10u128.checked_pow(fraction.len() as u32).ok_or("the number has too many digits")?;
        let digits: u128 = fraction.parse().map_err(|_| "the number has too many digits")?;
        let scaled = digits.checked_mul(u128::from(factor)).ok_or("the number has too many digits")?;
        if scaled % scale != 0 {
            return Err("it is not a whole number of the smallest unit");
        }
        value = value.checked_add((scaled / scale) as u64).ok_or("the number is too large")?;
    }
    Ok(value)
}

/// Bytes for people: `64 MiB`, `1.5 GiB`, `512 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let text = match units.iter().find(|(_, size)| self.0 >= *size) {
            None => format!("{} B", self.0),
            Some((unit, size)) if self.0.is_multiple_of(*size) => format!("{} {unit}", self.0 / size),
            Some((unit, size)) => format!("{:.1} {unit}", self.0 as f64 / *size as f64),
        };
        f.pad(&text)
    }
}

/// Text as it may stand in a stack file, with its quotes.
pub fn toml_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("64MiB", 64 << 20),
            ("64M", 64 << 20),
            ("64 mib", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2TB", 2_000_000_000_000),
            ("4KB", 4000),
            ("0.5K", 512),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_say_what_is_wrong() {
        for text in ["", "MiB", "64MiBs", "-1", "1.", ".5M", "1.2.3M", "99999999999T", "0.3B", "500ms", "1e3"]
        {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains("64MiB"), "{error}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Nanos::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Nanos::from_millis(1500)));
        assert_eq!(parse_duration("2min"), Ok(Nanos::from_secs(120)));
        assert!(parse_duration("500").unwrap_err().to_string().contains("unit is missing"));
        assert!(parse_duration("64MiB").is_err());
    }

    #[test]
    fn bytes_read_well() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (64 << 20, "64 MiB"), (3 << 29, "1.5 GiB"), (2 << 40, "2 TiB")];
        for (bytes, text) in cases {
            assert_eq!(HumanBytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn any_path_can_stand_in_a_stack_file() {
        let path = "/a \"b\"\\c\n\t\u{7f}ü";
        let table: toml::Table = format!("path = {}", toml_text(path)).parse().unwrap();
        assert_eq!(table["path"].as_str(), Some(path));
    }
}
