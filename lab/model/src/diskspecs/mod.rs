//! Drive files from DiskSim's parameter files (`disksim_disk` with its `dm_disk`, layout and mechanics of kind g1).
//!
//! What its fields mean is stated in the definitions that come with DiskSim 4.0 (`disk.modspec`, `layout_g1.modspec`,
//! `layout_g1_zone.modspec`, `mech_g1.modspec`). What this model does not have is told, never dropped in silence.

mod convert;
mod layout;
mod seek;
mod syntax;

use syntax::{SpecBlock, Value};

/// Why a file gives no drive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("line {line}: {problem}; it does not look like a parameter file of DiskSim")]
    Syntax { line: usize, problem: String },
    #[error("block {block} (line {line}), \"{field}\": {problem}")]
    Field { block: String, line: usize, field: String, problem: String },
    #[error("{0}")]
    Missing(String),
    #[error("the drive that it describes is refused: {0}")]
    Drive(#[from] crate::DriveError),
}

impl ImportError {
    fn syntax(line: usize, problem: impl Into<String>) -> ImportError {
        ImportError::Syntax { line, problem: problem.into() }
    }
}

/// A drive file, and what of the source is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    pub text: String,
    pub notes: Vec<String>,
}

/// Reads a parameter file. `source` is its name, `include` reads a file that it names, `bus_mb_per_s` is the rate of the bus
/// where the files have none.
///
/// # Errors
/// Where the files cannot be read, or describe what no drive file can.
pub fn import(
    text: &str,
    source: &str,
    include: &dyn Fn(&str) -> Result<String, String>,
    bus_mb_per_s: Option<f64>,
) -> Result<Imported, ImportError> {
    let blocks = syntax::parse(text, include)?;
    convert::convert(&blocks, source, include, bus_mb_per_s)
}

/// The fields of a block, and which of them were looked at.
struct Fields<'a> {
    block: &'a SpecBlock,
    used: std::collections::BTreeSet<&'a str>,
}

impl<'a> Fields<'a> {
    fn new(block: &'a SpecBlock) -> Fields<'a> {
        Fields { block, used: std::collections::BTreeSet::new() }
    }

    fn wrong(&self, field: &str, problem: impl Into<String>) -> ImportError {
        ImportError::Field {
            block: format!("{} {}", self.block.kind, self.block.name).trim().to_owned(),
            line: self.block.line,
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    fn value(&mut self, field: &str) -> Option<&'a Value> {
        let (name, value) = self.block.items.iter().find(|(name, _)| name == field)?;
        self.used.insert(name);
        Some(value)
    }

    fn text(&mut self, field: &str) -> Result<Option<&'a str>, ImportError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "it is no single value")),
        }
    }

    fn number_of(&self, field: &str, value: &Value) -> Result<f64, ImportError> {
        match value {
            Value::Text(text) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(number),
                _ => Err(self.wrong(field, format!("\"{text}\" is no number"))),
            },
            _ => Err(self.wrong(field, "it is no number")),
        }
    }

    fn number(&mut self, field: &str) -> Result<Option<f64>, ImportError> {
        match self.value(field) {
            None => Ok(None),
            Some(value) => self.number_of(field, value).map(Some),
        }
    }

    fn required(&mut self, field: &str) -> Result<f64, ImportError> {
        self.number(field)?.ok_or_else(|| self.wrong(field, "it is missing"))
    }

    /// A whole number from 0 on, up to what drives have.
    fn count(&mut self, field: &str) -> Result<u32, ImportError> {
        let number = self.required(field)?;
        if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
            return Ok(number as u32);
        }
        Err(self.wrong(field, format!("{number} is no whole number from 0 on")))
    }

    fn is_set(&mut self, field: &str) -> Result<bool, ImportError> {
        Ok(self.number(field)?.unwrap_or(0.0) != 0.0)
    }

    fn list(&mut self, field: &str) -> Result<Vec<f64>, ImportError> {
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::List(list)) => list.iter().map(|value| self.number_of(field, value)).collect(),
            Some(_) => Err(self.wrong(field, "it is no list")),
        }
    }

    fn block(&mut self, field: &str) -> Result<&'a SpecBlock, ImportError> {
        match self.value(field) {
            Some(Value::Block(block)) => Ok(block),
            Some(_) => Err(self.wrong(field, "it is no block")),
            None => Err(self.wrong(field, "it is missing")),
        }
    }

    /// The fields that were not read, with their values.
    fn rest(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let items = self.block.items.iter().map(|(name, value)| (name.as_str(), value));
        items.filter(|(name, _)| !self.used.contains(name))
    }
}
