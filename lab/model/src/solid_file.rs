//! The files of devices without heads: a `[[limit]]` for each rate, every number with its source in a comment.

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::parse_size;
use serde::Deserialize;

use crate::drive::DriveError;
use crate::drive_file::{between, check_queue_depth, time, wrong};
use crate::solid::{Limit, Limited, Solid};

const CHANNELS_MAX: u64 = 4096;
const LIMITS_MAX: u64 = 64;
const AMPLIFICATION_MAX: f64 = 1000.0;
const SIZE_MAX: u64 = 1 << 60;
const RATE_MAX: f64 = 1e9;
/// An empty bucket is full after at most a year.
const BURST_SECONDS_MAX: f64 = 366.0 * 86_400.0;
const GIB: f64 = (1u64 << 30) as f64;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct SolidFile {
    name: String,
    description: String,
    size: String,
    queue_depth: usize,
    read_ms: f64,
    write_ms: f64,
    flush_ms: f64,
    volatile: Option<String>,
    #[serde(default = "one_channel")]
    channels: usize,
    #[serde(default)]
    program_ms: f64,
    #[serde(default = "program_size")]
    program_size: String,
    #[serde(default = "one")]
    write_amplification: f64,
    endurance: Option<String>,
    #[serde(default)]
    limit: Vec<LimitFile>,
}

/// A rate: so much a second, and more for each GiB of the size, within two bounds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct LimitFile {
    #[serde(default)]
    of: Limited,
    iops: Option<f64>,
    mb_per_s: Option<f64>,
    #[serde(default)]
    per_gib: f64,
    #[serde(default)]
    min: f64,
    max: Option<f64>,
    #[serde(default)]
    burst: f64,
    operation_size: Option<String>,
}

const fn one() -> f64 {
    1.0
}

const fn one_channel() -> usize {
    1
}

fn program_size() -> String {
    "16KiB".to_owned()
}

fn sectors(field: &str, text: &str) -> Result<u64, DriveError> {
    let bytes =
        parse_size(text).map_err(|why| wrong(field, why.to_string(), "quote a number and its unit"))?;
    between(field, bytes, SECTOR_BYTES, SIZE_MAX)?;
    Ok(bytes / SECTOR_BYTES)
}

fn real(field: &str, value: f64, min: f64, max: f64) -> Result<f64, DriveError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(wrong(field, format!("the value is {value}"), format!("write {min} to {max}")))
}

impl SolidFile {
    pub fn into_solid(self) -> Result<Solid, DriveError> {
        let size = sectors("size", &self.size)?;
        check_queue_depth(self.queue_depth)?;
        between("channels", self.channels as u64, 1, CHANNELS_MAX)?;
        between("limit, number of sections", self.limit.len() as u64, 0, LIMITS_MAX)?;
        let gib = (size * SECTOR_BYTES) as f64 / GIB;
        let amplification = real("write-amplification", self.write_amplification, 1.0, AMPLIFICATION_MAX)?;
        let limits = self.limit.iter().enumerate().map(|(index, limit)| limit.read(index, gib));
        Ok(Solid {
            sectors: size,
            queue_depth: self.queue_depth,
            read: time("read-ms", self.read_ms)?,
            write: time("write-ms", self.write_ms)?,
            flush: time("flush-ms", self.flush_ms)?,
            channels: self.channels,
            program: time("program-ms", self.program_ms)?,
            program_sectors: sectors("program-size", &self.program_size)?,
            amplification: (amplification * 1e3).round() as u64,
            volatile_sectors: self.volatile.map_or(Ok(0), |text| sectors("volatile", &text))?,
            limits: limits.collect::<Result<_, _>>()?,
            endurance_bytes: self
                .endurance
                .map(|text| Ok(sectors("endurance", &text)? * SECTOR_BYTES))
                .transpose()?,
            name: self.name,
            description: self.description,
        })
    }
}

impl LimitFile {
    fn read(&self, index: usize, gib: f64) -> Result<Limit, DriveError> {
        let field = |name: &str| format!("limit[{index}], {name}");
        let (base, unit) = match (self.iops, self.mb_per_s) {
            (Some(iops), None) => (iops, 1.0),
            // A limit counts sectors.
            (None, Some(mb_per_s)) => (mb_per_s, 1e6 / SECTOR_BYTES as f64),
            _ => {
                let problem = "it has both or neither of `iops` and `mb-per-s`";
                return Err(wrong(field("iops"), problem, "write one of them"));
            }
        };
        let given = base + real(&field("per-gib"), self.per_gib, 0.0, RATE_MAX)? * gib;
        let rate = given.min(self.max.unwrap_or(RATE_MAX)).max(self.min);
        let rate = real(&field("rate a second"), rate, 1e-3, RATE_MAX)?;
        let burst = real(&field("burst"), self.burst, 0.0, rate * BURST_SECONDS_MAX)?;
        let operation = self.operation_size.as_deref().map(|text| sectors(&field("operation-size"), text));
        if self.iops.is_none() && operation.is_some() {
            let problem = "bytes are counted";
            return Err(wrong(field("operation-size"), problem, "leave it out, or limit `iops`"));
        }
        Ok(Limit {
            of: self.of,
            picos: (1e12 / (rate * unit)).round() as u64,
            operation_sectors: match self.iops {
                Some(_) => Some(operation.transpose()?.unwrap_or(SIZE_MAX)),
                None => None,
            },
            burst: Nanos((burst / rate * 1e9).round() as u64),
        })
    }
}
