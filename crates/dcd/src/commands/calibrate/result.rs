//! Formats the result of the stride benchmark: as text, and as JSON, which can be read back.

use std::fmt;
use std::path::Path;

use dcd_engine::raid::contiguity::{Contiguity, Strides};
use dcd_engine::raid::stride::{BLOCK_BYTES, Curve, THRESHOLD};
use dcd_stack::HumanBytes;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Result for reads, or for writes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    contiguous_bytes_per_second: f64,
    curve: Curve,
    max: u64,
    except: Vec<(u64, u64)>,
}

impl Measured {
    pub fn new(contiguous_bytes_per_second: f64, curve: Curve) -> Measured {
        let Strides { max, except } = Strides::from_curve(&curve, THRESHOLD);
        Measured { contiguous_bytes_per_second, curve, max, except }
    }

    fn strides(&self) -> Strides {
        Strides { max: self.max, except: self.except.clone() }
    }
}

/// A result, as `--json` prints it and `--from` reads it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationResult {
    pub device: String,
    pub block_bytes: u64,
    pub span_bytes: u64,
    pub threshold: f64,
    pub read: Measured,
    pub write: Option<Measured>,
}

impl CalibrationResult {
    pub fn load(path: &Path) -> Result<CalibrationResult, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::io(path.display(), e))?;
        let wrong = |why: &dyn fmt::Display| {
            let path = path.display();
            Failure::Failed(format!(
                "{path}: {why}; name a file with what \"dcd calibrate DEVICE --json\" has printed"
            ))
        };
        let found: CalibrationResult = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
        if (found.block_bytes, found.threshold) != (BLOCK_BYTES, THRESHOLD) {
            return Err(wrong(&format!(
                "its blocks must be of {BLOCK_BYTES} bytes, its threshold {THRESHOLD}"
            )));
        }
        for measured in std::iter::once(&found.read).chain(&found.write) {
            let rises = measured.curve.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !rises || measured.strides() != Strides::from_curve(&measured.curve, THRESHOLD) {
                return Err(wrong(&"\"max\" and \"except\" do not follow from its curve"));
            }
        }
        Ok(found)
    }

    /// Returns the rules that follow from it. If writes were not measured, their `stored` rules stay; without any, no gap is filled.
    pub fn contiguity(&self, stored: Option<&Contiguity>) -> Contiguity {
        let stored = || stored.map_or_else(Strides::default, |stored| stored.write.clone());
        let write = self.write.as_ref().map_or_else(stored, Measured::strides);
        Contiguity { read: self.read.strides(), write }
    }
}

impl fmt::Display for CalibrationResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = HumanBytes(self.span_bytes);
        writeln!(
            f,
            "{}: blocks of 4 KiB over spans of {span}; times relative to the contiguous pass\n",
            self.device
        )?;
        writeln!(f, "stride    read   write")?;
        for (index, (stride, read)) in self.read.curve.iter().enumerate() {
            let write = self.write.as_ref().and_then(|write| write.curve.get(index));
            let write = write.map_or("-".to_owned(), |(_, times)| format!("{times:.2}"));
            writeln!(f, "{stride:>6} {read:>7.2} {write:>7}")?;
        }
        writeln!(f)?;
        line(f, "reads", &self.read)?;
        match &self.write {
            Some(write) => line(f, "writes", write),
            None => {
                writeln!(f, "writes: not measured; --write-range names a range that may be overwritten")
            }
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, what: &str, measured: &Measured) -> fmt::Result {
    let ranges: Vec<String> =
        measured.except.iter().map(|(first, last)| format!("{first} to {last}")).collect();
    let except = if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") };
    let rate = measured.contiguous_bytes_per_second / 1e6;
    writeln!(
        f,
        "{what}: {rate:.1} MB/s contiguous; gaps below {} blocks are filled (Smax), except {except}",
        measured.max
    )
}
