//! Describes a synthetic trace of one device in TOML.

use serde::{Deserialize, Serialize};

use super::spread::Spread;
use crate::error::TraceError;
use crate::figures::Figures;
use dcd_stack::{DeviceId, LBA_END_MAX};

/// The calibrated presets: name and description.
pub const PRESETS: &[(&str, &str)] = &[
    ("off-day", include_str!("../../presets/off-day.toml")),
    ("air-rsv", include_str!("../../presets/air-rsv.toml")),
    ("sci-off", include_str!("../../presets/sci-off.toml")),
];

/// Reads, or writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    pub count: u64,
    pub size_bytes: Spread,
}

/// Coming back to blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reuse {
    /// Share of the sectors read or written.
    pub share: f64,
    /// Interval since the earlier access, in requests to the device.
    pub interval_ios: Spread,
}

/// Places of new data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Space {
    /// Addresses lie below this.
    pub bytes: u64,
    /// Requests begin, and are so large, in multiples of this.
    #[serde(default = "sector")]
    pub align_bytes: u64,
    /// Some parts of a disk are busier than others. Such a part is so large; reads and writes share the busy ones.
    pub region_bytes: u64,
    /// The n-th busiest region gets a share of n^-skew of the new data (Zipf); 0: all the same.
    pub skew: f64,
    /// This share of new data goes to the region of the new data before it, whether that was read or written.
    #[serde(default)]
    pub stay: f64,
    /// This share of new data is put right behind the newest data of its region, the rest anywhere in it.
    pub together: f64,
}

const fn sector() -> u64 {
    dcd_engine::SECTOR_BYTES
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// From the first to the last.
    pub seconds: f64,
    /// This share of requests comes in bursts, the rest alone. Idle periods between them are exponential.
    #[serde(default = "one")]
    pub burst_share: f64,
    /// A burst has so many on average (geometric); 1: each request on its own.
    #[serde(default = "one")]
    pub burst_requests: f64,
    /// Within a burst they are so far apart on average (exponential).
    #[serde(default)]
    pub within_ms: f64,
    /// The distribution of all times between requests, in nanoseconds, instead of bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps_ns: Option<Spread>,
    /// Assumed time of a request, for the busy share of characteristics.
    #[serde(default)]
    pub service_ms: f64,
}

const fn one() -> f64 {
    1.0
}

/// A trace of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub name: String,
    /// Trace that it stands for, and assumptions.
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub device: u32,
    pub reads: Kind,
    pub writes: Kind,
    #[serde(default)]
    pub flushes: u64,
    /// Share of requests that begin where the one before ended.
    pub sequential_share: f64,
    pub overwrite: Reuse,
    pub read_after_write: Reuse,
    pub read_again: Reuse,
    pub space: Space,
    pub arrivals: Arrivals,
}

impl Description {
    /// Returns the preset of that name, of [`PRESETS`].
    pub fn preset(name: &str) -> Result<Description, TraceError> {
        let Some((name, text)) = PRESETS.iter().find(|preset| preset.0 == name) else {
            let known: Vec<&str> = PRESETS.iter().map(|preset| preset.0).collect();
            return Err(TraceError::Other(format!(
                "there is no preset {name:?}; there are {}",
                known.join(", ")
            )));
        };
        Description::parse(name, text)
    }

    /// A description in TOML; `file` is for messages.
    pub fn parse(file: &str, text: &str) -> Result<Description, TraceError> {
        let wrong = |what: String| TraceError::Unreadable { file: file.to_owned(), what };
        let description: Description = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        description.check().map_err(wrong)?;
        Ok(description)
    }

    /// As TOML, to be changed by hand and read again.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers and names are TOML")
    }

    /// Describes what was measured of a device.
    pub fn like(name: &str, figures: &Figures, service_ms: f64) -> Result<Description, TraceError> {
        let Some(blocks) = &figures.blocks else {
            return Err(TraceError::Other("the figures of blocks are needed to be like a trace".to_owned()));
        };
        let kind =
            |r: &crate::figures::Requests| Kind { count: r.count, size_bytes: Spread::like(&r.size_bytes) };
        let reuse = |share, interval| Reuse { share, interval_ios: Spread::like(interval) };
        let bytes = (figures.lba_end * sector()).max(1 << 20);
        let description = Description {
            name: name.to_owned(),
            about: "measured of a trace; how new data is spread over regions is assumed".to_owned(),
            device: figures.device.unwrap_or(0),
            reads: kind(&figures.reads),
            writes: kind(&figures.writes),
            flushes: figures.flushes,
            sequential_share: figures.sequential_share,
            overwrite: reuse(blocks.overwrite_share, &blocks.overwrite_interval_ios),
            read_after_write: reuse(blocks.read_after_write_share, &blocks.read_after_write_interval_ios),
            read_again: reuse(blocks.read_again_share, &blocks.read_again_interval_ios),
            space: Space {
                bytes,
                align_bytes: figures.align_sectors.max(1) * sector(),
                region_bytes: (bytes / 1024).next_multiple_of(256 << 10),
                skew: 0.8,
                stay: 0.0,
                together: 0.5,
            },
            arrivals: Arrivals {
                seconds: figures.seconds,
                burst_share: 1.0,
                burst_requests: 1.0,
                within_ms: 0.0,
                gaps_ns: Some(Spread::like(&figures.interarrival_ns)),
                service_ms,
            },
        };
        description.check().map_err(TraceError::Other)?;
        Ok(description)
    }

    pub const fn device_id(&self) -> DeviceId {
        DeviceId(self.device)
    }

    /// Refuses what cannot be made.
    pub fn check(&self) -> Result<(), String> {
        let shares = [
            ("sequential_share", self.sequential_share),
            ("overwrite.share", self.overwrite.share),
            ("read_after_write.share", self.read_after_write.share),
            ("read_again.share", self.read_again.share),
            ("space.stay", self.space.stay),
            ("space.together", self.space.together),
            ("arrivals.burst_share", self.arrivals.burst_share),
        ];
        if let Some((name, _)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return Err(format!("{name} is a share, from 0 to 1"));
        }
        self.reads.size_bytes.check("reads.size_bytes")?;
        self.writes.size_bytes.check("writes.size_bytes")?;
        self.overwrite.interval_ios.check("overwrite.interval_ios")?;
        self.read_after_write.interval_ios.check("read_after_write.interval_ios")?;
        self.read_again.interval_ios.check("read_again.interval_ios")?;
        let Space { bytes, align_bytes, region_bytes, skew, .. } = self.space;
        if align_bytes == 0 || !align_bytes.is_multiple_of(sector()) {
            return Err(format!("space.align_bytes is a multiple of {}", sector()));
        }
        if bytes < 2 * align_bytes || bytes / sector() > LBA_END_MAX {
            return Err("space.bytes: no device is so large or so small".to_owned());
        }
        if region_bytes < align_bytes || !(0.0..=10.0).contains(&skew) {
            return Err(
                "space: a region is no smaller than align_bytes, and the skew is from 0 to 10".to_owned()
            );
        }
        let Arrivals { seconds, burst_requests, within_ms, service_ms, .. } = self.arrivals;
        let times = [seconds, within_ms, service_ms];
        if !times.iter().all(|t| t.is_finite() && *t >= 0.0)
            || burst_requests.is_nan()
            || burst_requests < 1.0
        {
            return Err("arrivals: times are zero or more, and a burst has one request or more".to_owned());
        }
        Ok(())
    }
}
