//! Reads the fields of a TOML table, each once, and refuses unknown ones.

use std::ops::Range;

use dcd_engine::{Nanos, SECTOR_BYTES};
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Source, StackFileError, suggestion};
use crate::units::{HumanBytes, UnitError, parse_daily, parse_duration, parse_size};

/// Minimum of a rate: less is a unit that was forgotten.
const RATE_MIN: u64 = 64 << 10;
/// Minimum of bytes in a day, likewise.
const DAILY_MIN: u64 = 64 << 20;

/// Text with its place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub text: String,
    pub(crate) span: Range<usize>,
}

/// A table that is being read. `what` names the table in errors: `layer "cache"`.
pub struct Fields<'a> {
    source: Source<'a>,
    what: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
    /// The names that have been asked for: what the table may hold.
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(
        source: Source<'a>,
        what: String,
        span: Range<usize>,
        table: &'a DeTable<'a>,
    ) -> Fields<'a> {
        Fields { source, what, span, table, known: Vec::new() }
    }

    pub fn error(&self, span: Range<usize>, message: impl std::fmt::Display) -> StackFileError {
        let what = &self.what;
        let message = if what.is_empty() { message.to_string() } else { format!("{what}: {message}") };
        self.source.error(span, message)
    }

    /// An error about the table as a whole.
    pub fn error_here(&self, message: impl std::fmt::Display) -> StackFileError {
        self.error(self.span.clone(), message)
    }

    fn take(&mut self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(name);
        self.table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(_, value)| value)
    }

    pub fn has(&self, name: &str) -> bool {
        self.table.iter().any(|(key, _)| key.get_ref().as_ref() == name)
    }

    pub fn text(&mut self, name: &'static str) -> Result<Option<Located>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(Located { text: text.to_string(), span: value.span() })),
            _ => Err(self.error(value.span(), format!("\"{name}\" must be text in quotes"))),
        }
    }

    pub fn required_text(&mut self, name: &'static str, example: &str) -> Result<Located, StackFileError> {
        self.text(name)?
            .ok_or_else(|| self.error_here(format!("\"{name}\" is missing: add {name} = \"{example}\"")))
    }

    pub(crate) fn is_list(&self, name: &str) -> bool {
        let mut named = self.table.iter().filter(|(key, _)| key.get_ref().as_ref() == name);
        named.next().is_some_and(|(_, value)| matches!(value.get_ref(), DeValue::Array(_)))
    }

    /// Reads a text or a list of texts.
    pub fn texts(&mut self, name: &'static str) -> Result<Vec<Located>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        let values: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(values) => values.iter().collect(),
            _ => vec![value],
        };
        let text =
            |value: &Spanned<DeValue<'_>>| match value.get_ref() {
                DeValue::String(text) => Ok(Located { text: text.to_string(), span: value.span() }),
                _ => Err(self
                    .error(value.span(), format!("\"{name}\" must be text in quotes, or a list of texts"))),
            };
        values.into_iter().map(text).collect()
    }

    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Boolean(flag) => Ok(Some(*flag)),
            _ => Err(self.error(value.span(), format!("\"{name}\" must be true or false"))),
        }
    }

    pub fn number(&mut self, name: &'static str) -> Result<Option<u64>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        number
            .map(Some)
            .ok_or_else(|| self.error(value.span(), format!("\"{name}\" must be a whole number, 0 or more")))
    }

    pub fn number_in(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, StackFileError> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        if !range.contains(&number) {
            let (low, high) = range.into_inner();
            let span = self.value_span(name);
            return Err(self.error(span, format!("\"{name}\" is {number}: it must be from {low} to {high}")));
        }
        Ok(Some(number))
    }

    /// Bytes: `"64MiB"`, or a bare number of bytes. Less than a sector is a unit that was forgotten.
    pub fn size(&mut self, name: &'static str) -> Result<Option<u64>, StackFileError> {
        self.size_from(name, SECTOR_BYTES, "")
    }

    /// Bytes in a second; 0 is no limit.
    pub fn rate(&mut self, name: &'static str) -> Result<Option<u64>, StackFileError> {
        self.size_from(name, RATE_MIN, " a second")
    }

    /// Bytes in a day: `"50GB/day"`; 0 is no limit.
    pub fn daily(&mut self, name: &'static str) -> Result<Option<u64>, StackFileError> {
        const EXAMPLE: &str = "50GB/day";
        if self.is_number(name) {
            return match self.number(name)? {
                Some(0) | None => Ok(Some(0)),
                Some(_) => {
                    Err(self.error(self.value_span(name), format!("\"{name}\": write it like \"{EXAMPLE}\"")))
                }
            };
        }
        match self.unit(name, EXAMPLE, parse_daily)? {
            Some(size) if (1..DAILY_MIN).contains(&size) => {
                let least = HumanBytes(DAILY_MIN);
                let why = format!(
                    "\"{name}\" is {size} bytes a day: the least is {least} a day. Write the unit, like \"{EXAMPLE}\""
                );
                Err(self.error(self.value_span(name), why))
            }
            size => Ok(size),
        }
    }

    fn size_from(
        &mut self,
        name: &'static str,
        least: u64,
        each: &str,
    ) -> Result<Option<u64>, StackFileError> {
        let size = match self.is_number(name) {
            true => self.number(name)?,
            false => self.unit(name, "64MiB", parse_size)?,
        };
        match size.filter(|size| (1..least).contains(size)) {
            None => Ok(size),
            Some(size) => {
                let span = self.value_span(name);
                let least = HumanBytes(least);
                let why = format!(
                    "\"{name}\" is {size} bytes{each}: the least is {least}{each}. Write the unit, like \"20MiB\""
                );
                Err(self.error(span, why))
            }
        }
    }

    pub fn duration(&mut self, name: &'static str) -> Result<Option<Nanos>, StackFileError> {
        self.unit(name, "500ms", parse_duration)
    }

    /// A word of an enum that serde knows; the error lists the words.
    pub fn word<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, StackFileError> {
        let Some(located) = self.text(name)? else { return Ok(None) };
        let deserializer = StrDeserializer::<serde::de::value::Error>::new(&located.text);
        T::deserialize(deserializer)
            .map(Some)
            .map_err(|e| self.error(located.span, format!("\"{name}\": {e}")))
    }

    fn unit<T>(
        &mut self,
        name: &'static str,
        example: &str,
        parse: fn(&str) -> Result<T, UnitError>,
    ) -> Result<Option<T>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let DeValue::String(text) = value.get_ref() else {
            return Err(
                self.error(value.span(), format!("\"{name}\" must be text with a unit, like \"{example}\""))
            );
        };
        parse(text).map(Some).map_err(|e| self.error(value.span(), format!("\"{name}\": {e}")))
    }

    pub(crate) fn is_number(&self, name: &str) -> bool {
        let value = self.table.iter().find(|(key, _)| key.get_ref().as_ref() == name);
        value.is_some_and(|(_, value)| matches!(value.get_ref(), DeValue::Integer(_)))
    }

    /// Returns the place of a field's value, or of the whole table if the field is missing.
    pub fn value_span(&self, name: &str) -> Range<usize> {
        let value = self.table.iter().find(|(key, _)| key.get_ref().as_ref() == name);
        value.map_or(self.span.clone(), |(_, value)| value.span())
    }

    /// A table of tables, `[name.X]`: X and the fields of each, in the order of the file.
    pub fn tables(&mut self, name: &'static str) -> Result<Vec<(Located, Fields<'a>)>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.error(value.span(), format!("\"{name}\" must be tables: [{name}.NAME]")));
        };
        let mut tables = Vec::new();
        for (key, value) in table.iter() {
            let key = Located { text: key.get_ref().to_string(), span: key.span() };
            let DeValue::Table(fields) = value.get_ref() else {
                return Err(self.error(key.span, format!("[{name}.{}] must be a table", key.text)));
            };
            let what = format!("{name} \"{}\"", key.text);
            let fields = Fields::new(self.source, what, key.span.clone(), fields);
            tables.push((key, fields));
        }
        tables.sort_by_key(|(key, _)| key.span.start);
        Ok(tables)
    }

    /// Reads a table, `[name]`.
    pub fn table(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, StackFileError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(table) => {
                Ok(Some(Fields::new(self.source, format!("[{name}]"), value.span(), table)))
            }
            _ => Err(self.error(value.span(), format!("\"{name}\" must be a table: [{name}]"))),
        }
    }

    /// Refuses fields that were in earlier versions; each with what to do now.
    pub(crate) fn refuse_removed(&self, removed: &[(&str, &str)]) -> Result<(), StackFileError> {
        match removed.iter().find(|(name, _)| self.has(name)) {
            Some((name, now)) => {
                let message = format!("\"{name}\" is no longer a field: {now}");
                Err(self.error(self.value_span(name), message))
            }
            None => Ok(()),
        }
    }

    /// Refuses every field that was not read.
    pub fn finish(self) -> Result<(), StackFileError> {
        let unknown = self.table.iter().filter(|(key, _)| !self.known.contains(&key.get_ref().as_ref()));
        let Some((key, _)) = unknown.min_by_key(|(key, _)| key.span().start) else { return Ok(()) };
        let word: &str = key.get_ref();
        let advice = match suggestion(word, self.known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("known here: {}", self.known.join(", ")),
        };
        Err(self.error(key.span(), format!("unknown field \"{word}\"; {advice}")))
    }
}
