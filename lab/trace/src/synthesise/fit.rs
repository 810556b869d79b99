//! Measures how well a synthetic trace has the figures of its description, and turns the description until it does.
//!
//! The generator does not give quite what it is asked for: an overwrite that is due past the end of the trace never
//! happens, one that is due while reads go on comes late. So the generator is asked for a little more or less, until what is
//! measured is what is wanted.

use serde::Serialize;

use super::description::Description;
use super::generate::Synthesiser;
use crate::characterise::{Characteriser, Options};
use crate::error::TraceError;
use crate::figures::Figures;

/// Turns at most; each costs the making and the measuring of the whole trace.
const TURNS: usize = 10;
/// A figure that is so near is met.
const NEAR: f64 = 0.02;
/// Maximum change of a knob in one turn, as a factor.
const TURN_MAX: f64 = 3.0;

/// A figure of a description.
#[derive(Clone, Debug, Serialize)]
pub struct Fitted {
    pub name: &'static str,
    pub wanted: f64,
    pub got: f64,
}

impl Fitted {
    /// Returns the deviation as a part of what is wanted; of a share, the difference.
    pub fn off(&self) -> f64 {
        match (self.name.ends_with("share"), self.wanted == 0.0) {
            (true, _) | (_, true) => (self.got - self.wanted).abs(),
            _ => (self.got / self.wanted - 1.0).abs(),
        }
    }
}

/// A figure: what a description says of it, what was measured, and the knob that moves it, if one does.
struct Aspect {
    name: &'static str,
    wanted: fn(&Description) -> Option<f64>,
    got: fn(&Figures) -> f64,
    knob: Option<fn(&mut Description) -> &mut f64>,
}

fn blocks(figures: &Figures) -> &crate::figures::Blocks {
    figures.blocks.as_ref().expect("blocks are measured to fit")
}

/// A figure by its place in a description, which is its knob, too; a count has none.
macro_rules! aspect {
    ($name:literal, count $($place:ident).+, $got:expr) => {
        Aspect { name: $name, wanted: |d| Some(d.$($place).+ as f64), got: $got, knob: None }
    };
    ($name:literal, median $($place:ident).+, $got:expr) => {
        Aspect {
            name: $name,
            wanted: |d| d.$($place).+,
            got: $got,
            knob: Some(|d| d.$($place).+.get_or_insert(1.0)),
        }
    };
    ($name:literal, $($place:ident).+, $got:expr) => {
        Aspect { name: $name, wanted: |d| Some(d.$($place).+), got: $got, knob: Some(|d| &mut d.$($place).+) }
    };
}

const ASPECTS: &[Aspect] = &[
    aspect!("reads", count reads.count, |f| f.reads.count as f64),
    aspect!("writes", count writes.count, |f| f.writes.count as f64),
    aspect!("mean read, bytes", reads.size_bytes.mean, |f| f.reads.size_bytes.mean),
    aspect!("mean write, bytes", writes.size_bytes.mean, |f| f.writes.size_bytes.mean),
    aspect!("overwrite share", overwrite.share, |f| blocks(f).overwrite_share),
    aspect!("overwrite interval, mean I/Os", overwrite.interval_ios.mean, |f| {
        blocks(f).overwrite_interval_ios.mean
    }),
    aspect!("overwrite interval, median I/Os", median overwrite.interval_ios.median, |f| {
        blocks(f).overwrite_interval_ios.median as f64
    }),
    aspect!("read-after-write share", read_after_write.share, |f| blocks(f).read_after_write_share),
    aspect!("read after write, mean I/Os", read_after_write.interval_ios.mean, |f| {
        blocks(f).read_after_write_interval_ios.mean
    }),
    aspect!("read after write, median I/Os", median read_after_write.interval_ios.median, |f| {
        blocks(f).read_after_write_interval_ios.median as f64
    }),
    aspect!("read-again share", read_again.share, |f| blocks(f).read_again_share),
    aspect!("read again, mean I/Os", read_again.interval_ios.mean, |f| {
        blocks(f).read_again_interval_ios.mean
    }),
    aspect!("read again, median I/Os", median read_again.interval_ios.median, |f| {
        blocks(f).read_again_interval_ios.median as f64
    }),
    aspect!("sequential share", sequential_share, |f| f.sequential_share),
    aspect!("seconds", arrivals.seconds, |f| f.seconds),
];

/// Wanted beside got.
pub fn compare(description: &Description, figures: &Figures) -> Vec<Fitted> {
    let fitted = |aspect: &Aspect| {
        let wanted = (aspect.wanted)(description)?;
        Some(Fitted { name: aspect.name, wanted, got: (aspect.got)(figures) })
    };
    ASPECTS.iter().filter_map(fitted).collect()
}

/// The figures of what the generator makes of a description.
fn measure(description: &Description, seed: u64) -> Result<Figures, TraceError> {
    let service = dcd_engine::Nanos((description.arrivals.service_ms * 1e6) as u64);
    let mut characteriser = Characteriser::new(Options { blocks_max: Some(Options::BLOCKS_MAX), service });
    Synthesiser::new(description, seed)?.for_each(|record| characteriser.add(&record));
    Ok(characteriser.finish().all)
}

/// Turns a knob once.
fn turned(knob: f64, fitted: &Fitted) -> f64 {
    if fitted.name.ends_with("share") {
        return (knob + fitted.wanted - fitted.got).clamp(0.0, 0.9999);
    }
    let factor = if fitted.got > 0.0 { fitted.wanted / fitted.got } else { TURN_MAX };
    (knob * factor.clamp(1.0 / TURN_MAX, TURN_MAX)).max(f64::MIN_POSITIVE)
}

/// A generator whose trace fits the description, and the fit.
pub fn fitted(description: &Description, seed: u64) -> Result<(Synthesiser, Vec<Fitted>), TraceError> {
    description.check().map_err(TraceError::Other)?;
    let mut asked = description.clone();
    let mut best: Option<(f64, Description, Vec<Fitted>)> = None;
    for _ in 0..TURNS {
        let fit = compare(description, &measure(&asked, seed)?);
        let worst = fit.iter().map(Fitted::off).fold(0.0, f64::max);
        let total: f64 = fit.iter().map(|fitted| fitted.off().min(1.0)).sum();
        if best.as_ref().is_none_or(|best| total < best.0) {
            best = Some((total, asked.clone(), fit.clone()));
        }
        if worst < NEAR {
            break;
        }
        for aspect in ASPECTS {
            let fitted = fit.iter().find(|fitted| fitted.name == aspect.name);
            if let (Some(knob), Some(fitted)) = (aspect.knob, fitted) {
                let knob = knob(&mut asked);
                *knob = turned(*knob, fitted);
            }
        }
    }
    let (_, asked, fit) = best.expect("there is at least one turn");
    Ok((Synthesiser::new(&asked, seed)?, fit))
}
