//! Parameters of an experiment: a name, a default and a sentence each; and the values of one run.

use std::collections::BTreeMap;
use std::str::FromStr;

use dcd_engine::Nanos;
use dcd_stack::{parse_duration, parse_size};

use crate::LabError;

/// A parameter as an experiment declares it.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub key: &'static str,
    pub default: &'static str,
    pub about: &'static str,
}

/// What the user asked for on the command line: `KEY=VALUE`, in order.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<(String, String)>);

impl Overrides {
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Overrides, LabError> {
        let mut overrides = Vec::new();
        for text in texts {
            match text.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    overrides.push((key.trim().to_owned(), value.trim().to_owned()));
                }
                _ => return Err(LabError::NotAnAssignment(text.to_owned())),
            }
        }
        Ok(Overrides(overrides))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }
}

/// The values of one run: the defaults with the user's words over them, and the seed.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    values: BTreeMap<&'static str, String>,
    changed: Vec<&'static str>,
}

impl Settings {
    /// The settings of an experiment; overrides that it does not know are left alone (see [`check_keys`]).
    pub(crate) fn new(params: &'static [Param], overrides: &Overrides, seed: u64) -> Settings {
        let mut values: BTreeMap<_, _> = params.iter().map(|p| (p.key, p.default.to_owned())).collect();
        let mut changed = Vec::new();
        for (key, value) in &overrides.0 {
            if let Some(param) = params.iter().find(|param| param.key == key) {
                values.insert(param.key, value.clone());
                changed.push(param.key);
            }
        }
        Settings { seed, values, changed }
    }

    /// The values that are not the defaults.
    pub(crate) fn changed(&self) -> BTreeMap<String, String> {
        self.changed.iter().map(|key| ((*key).to_owned(), self.values[key].clone())).collect()
    }

    /// The value as text.
    ///
    /// # Panics
    /// Where the experiment has not declared the parameter: a mistake in the experiment.
    pub fn text(&self, key: &str) -> &str {
        self.values.get(key).unwrap_or_else(|| panic!("parameter {key} is not declared"))
    }

    pub fn number<T: FromStr>(&self, key: &str) -> Result<T, LabError> {
        parse_number(key, self.text(key))
    }

    /// A number of times, or of parts: at least 1.
    pub fn count<T: FromStr + Default + PartialEq>(&self, key: &str) -> Result<T, LabError> {
        let number = self.number(key)?;
        if number == T::default() { Err(bad(key, "it must be at least 1".to_owned())) } else { Ok(number) }
    }

    /// Numbers with commas between them.
    pub fn numbers<T: FromStr>(&self, key: &str) -> Result<Vec<T>, LabError> {
        self.text(key).split(',').map(|text| parse_number(key, text)).collect()
    }

    /// Bytes, written like `64MiB`.
    pub fn bytes(&self, key: &str) -> Result<u64, LabError> {
        parse_size(self.text(key)).map_err(|e| bad(key, e.to_string()))
    }

    /// Sizes with commas between them.
    pub fn sizes(&self, key: &str) -> Result<Vec<u64>, LabError> {
        let sizes = self.text(key).split(',').map(parse_size);
        sizes.collect::<Result<_, _>>().map_err(|e| bad(key, e.to_string()))
    }

    pub fn span(&self, key: &str) -> Result<Nanos, LabError> {
        parse_duration(self.text(key)).map_err(|e| bad(key, e.to_string()))
    }

    pub fn flag(&self, key: &str) -> Result<bool, LabError> {
        self.choice(key, &[("yes", true), ("no", false)])
    }

    /// One of some words.
    pub fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, LabError> {
        let text = self.text(key);
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            bad(key, format!("\"{text}\" is none of {}", known.join(", ")))
        })
    }

    /// Several of some words, with commas between them.
    pub fn choices<'a>(&'a self, key: &str, known: &[&str]) -> Result<Vec<&'a str>, LabError> {
        let texts: Vec<&str> = self.text(key).split(',').map(str::trim).collect();
        match texts.iter().find(|text| !known.contains(text)) {
            Some(text) => Err(bad(key, format!("\"{text}\" is none of {}", known.join(", ")))),
            None => Ok(texts),
        }
    }
}

fn parse_number<T: FromStr>(key: &str, text: &str) -> Result<T, LabError> {
    text.trim().parse().map_err(|_| bad(key, format!("\"{text}\" is not a number that fits here")))
}

fn bad(key: &str, problem: String) -> LabError {
    LabError::BadValue { key: key.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: &[Param] = &[
        Param { key: "users", default: "1,4,16", about: "" },
        Param { key: "cache", default: "64MiB", about: "" },
        Param { key: "lock", default: "yes", about: "" },
    ];

    #[test]
    fn what_the_user_says_replaces_the_default_and_is_remembered() {
        let overrides = Overrides::parse(["cache = 256MiB", "users=2"]).unwrap();
        let settings = Settings::new(PARAMS, &overrides, 1);
        assert_eq!(settings.bytes("cache").unwrap(), 256 << 20);
        assert_eq!(settings.numbers::<u32>("users").unwrap(), [2]);
        assert!(settings.flag("lock").unwrap());
        assert_eq!(settings.changed().len(), 2);
    }

    #[test]
    fn a_bad_value_is_refused_with_what_would_be_good() {
        let overrides = Overrides::parse(["lock=maybe", "users=many", "cache=64"]).unwrap();
        let settings = Settings::new(PARAMS, &overrides, 1);
        assert!(settings.flag("lock").unwrap_err().to_string().contains("none of yes, no"));
        assert!(settings.numbers::<u32>("users").is_err());
        assert_eq!(settings.bytes("cache").unwrap(), 64);
        assert_eq!(settings.count::<u64>("cache").unwrap(), 64);
        let settings = Settings::new(PARAMS, &Overrides::parse(["cache=0"]).unwrap(), 1);
        assert!(settings.count::<u64>("cache").unwrap_err().to_string().contains("at least 1"));
        assert!(matches!(Overrides::parse(["cache"]), Err(LabError::NotAnAssignment(_))));
    }
}
