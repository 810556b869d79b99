//! Parameters of an experiment: a name, a default and a sentence each; and the values of one run.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use dcd_engine::Nanos;
use dcd_model::{Drive, drive};
use dcd_stack::{HumanBytes, parse_duration, parse_size};

use crate::LabError;
use crate::stated::{Paper, Stated};

static NO_PAPER: Paper = Paper { claims: BTreeMap::new(), tables: BTreeMap::new() };

/// A parameter as an experiment declares it.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub key: &'static str,
    pub default: &'static str,
    pub about: &'static str,
}

/// Parameters that the user set on the command line: `KEY=VALUE`, in order.
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
    pub(crate) paper: &'static Paper,
    values: BTreeMap<&'static str, String>,
    changed: Vec<&'static str>,
}

impl Settings {
    /// The settings of an experiment; overrides that it does not know are left alone (see `check_keys` of `run.rs`).
    pub(crate) fn new(params: &'static [Param], overrides: &Overrides, seed: u64) -> Settings {
        let mut values: BTreeMap<_, _> = params.iter().map(|p| (p.key, p.default.to_owned())).collect();
        let mut changed = Vec::new();
        for (key, value) in &overrides.0 {
            if let Some(param) = params.iter().find(|param| param.key == key) {
                values.insert(param.key, value.clone());
                changed.push(param.key);
            }
        }
        Settings { seed, paper: &NO_PAPER, values, changed }
    }

    /// Settings for an experiment whose file says this of the paper.
    pub(crate) fn of(self, paper: &'static Paper) -> Settings {
        Settings { paper, ..self }
    }

    /// Settings with a later seed, and otherwise the same.
    pub(crate) fn with_seed(&self, later: usize) -> Settings {
        Settings { seed: self.seed.wrapping_add(later as u64), ..self.clone() }
    }

    /// Settings with another value of a parameter, and otherwise the same.
    pub(crate) fn with_value(&self, key: &'static str, value: &str) -> Settings {
        let mut settings = self.clone();
        settings.values.insert(key, value.to_owned());
        settings
    }

    /// A claim of the experiment's file, to be held against what was measured.
    ///
    /// # Panics
    /// Where the file has no such claim: a mistake in the experiment.
    pub(crate) fn claim(&self, id: &str) -> Stated {
        let text = self.paper.claims.get(id);
        Stated::new(text.unwrap_or_else(|| panic!("the experiment's file has no claim {id}")))
    }

    /// A table of the paper.
    ///
    /// # Panics
    /// Where the file has no such table: a mistake in the experiment.
    pub(crate) fn paper<T: serde::de::DeserializeOwned>(&self, id: &str) -> T {
        let table = self.paper.tables.get(id).unwrap_or_else(|| panic!("the file has no table {id}"));
        table.clone().try_into().unwrap_or_else(|error| panic!("table {id}: {error}"))
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

    /// Words with commas between them.
    pub(crate) fn texts(&self, key: &str) -> impl Iterator<Item = &str> {
        self.text(key).split(',').map(str::trim)
    }

    pub fn number<T: Figure>(&self, key: &str) -> Result<T, LabError> {
        parse_number(key, self.text(key))
    }

    /// A number of times, or of parts: at least 1.
    pub fn count<T: Figure + Default>(&self, key: &str) -> Result<T, LabError> {
        at_least_one(key, self.number(key)?)
    }

    /// Users at once.
    pub fn users(&self) -> Result<u32, LabError> {
        at_most_users(self.count("users")?)
    }

    /// Numbers of users, with commas between them.
    pub fn numbers_of_users(&self) -> Result<Vec<u32>, LabError> {
        self.counts("users")?.into_iter().map(at_most_users).collect()
    }

    /// Percent: at most 100.
    pub fn percent(&self, key: &str) -> Result<u64, LabError> {
        match self.number(key)? {
            percent @ 0..=100 => Ok(percent),
            percent => Err(bad(key, format!("{percent} percent is more than all"))),
        }
    }

    /// Numbers with commas between them.
    pub fn numbers<T: Figure>(&self, key: &str) -> Result<Vec<T>, LabError> {
        let numbers = self.text(key).split(',').map(|text| parse_number(key, text));
        distinct(key, numbers.collect::<Result<_, _>>()?)
    }

    /// Numbers of times, or of parts, with commas between them: at least 1.
    pub fn counts<T: Figure + Default>(&self, key: &str) -> Result<Vec<T>, LabError> {
        self.numbers(key)?.into_iter().map(|number| at_least_one(key, number)).collect()
    }

    /// The name of a drive, or the path of a drive file, that there is; see `drive_of`.
    pub fn drive(&self, key: &str) -> Result<&str, LabError> {
        let text = self.text(key);
        drive_of(text).map(|_| text).map_err(|error| bad(key, error.to_string()))
    }

    /// Names and paths of drives, with commas between them.
    pub fn drives(&self, key: &str) -> Result<Vec<&str>, LabError> {
        let texts: Vec<&str> = self.texts(key).collect();
        let wrong = texts.iter().find_map(|text| drive_of(text).err());
        wrong.map_or_else(|| distinct(key, texts), |error| Err(bad(key, error.to_string())))
    }

    /// Bytes, written like `64MiB`.
    pub fn bytes(&self, key: &str) -> Result<u64, LabError> {
        parse_size(self.text(key)).map_err(|e| bad(key, e.to_string()))
    }

    /// Bytes that fit into 32 bits.
    pub fn bytes32(&self, key: &str) -> Result<u32, LabError> {
        u32::try_from(self.bytes(key)?).map_err(|_| bad(key, "must be less than 4 GiB".to_owned()))
    }

    /// Sizes with commas between them.
    pub fn sizes(&self, key: &str) -> Result<Vec<u64>, LabError> {
        let sizes = self.text(key).split(',').map(parse_size);
        distinct(key, sizes.collect::<Result<_, _>>().map_err(|e| bad(key, e.to_string()))?)
    }

    /// Bytes of a cache in RAM: what a model of it can keep track of.
    pub fn ram(&self, key: &str) -> Result<u64, LabError> {
        fits_ram(key, self.bytes(key)?)
    }

    /// Sizes of caches in RAM, with commas between them.
    pub fn rams(&self, key: &str) -> Result<Vec<u64>, LabError> {
        self.sizes(key)?.into_iter().map(|bytes| fits_ram(key, bytes)).collect()
    }

    pub fn span(&self, key: &str) -> Result<Nanos, LabError> {
        parse_duration(self.text(key)).map_err(|e| bad(key, e.to_string()))
    }

    pub fn flag(&self, key: &str) -> Result<bool, LabError> {
        self.choice(key, &[("yes", true), ("no", false)])
    }

    /// Value of one of some words.
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
        let texts: Vec<&str> = self.texts(key).collect();
        match texts.iter().find(|text| !known.contains(text)) {
            Some(text) => Err(bad(key, format!("\"{text}\" is none of {}", known.join(", ")))),
            None => distinct(key, texts),
        }
    }
}

/// A drive that comes with the program, or that of a drive file.
pub(crate) fn drive_of(name_or_path: &str) -> Result<Drive, LabError> {
    drive::open(name_or_path, Path::new(name_or_path)).map_err(LabError::setup)
}

/// The types of numbers that parameters have.
pub trait Figure: FromStr + PartialEq {
    /// Values that fit, in words.
    fn fits() -> String;

    fn is_sound(&self) -> bool {
        true
    }
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl Figure for $number {
            fn fits() -> String {
                format!("a whole number from 0 to {}", <$number>::MAX)
            }
        }
    )*};
}

whole_numbers!(u8, u32, u64, usize);

impl Figure for f64 {
    fn fits() -> String {
        "a number, and not below 0".to_owned()
    }

    fn is_sound(&self) -> bool {
        self.is_finite() && *self >= 0.0
    }
}

fn parse_number<T: Figure>(key: &str, text: &str) -> Result<T, LabError> {
    let number = text.trim().parse().ok().filter(T::is_sound);
    number.ok_or_else(|| bad(key, format!("\"{text}\" is not {}", T::fits())))
}

fn at_least_one<T: Figure + Default>(key: &str, number: T) -> Result<T, LabError> {
    if number == T::default() { Err(bad(key, "it must be at least 1".to_owned())) } else { Ok(number) }
}

/// A list in which nothing comes twice: each is measured once.
fn distinct<T: PartialEq>(key: &str, values: Vec<T>) -> Result<Vec<T>, LabError> {
    let is_again = |at: usize| values[..at].contains(&values[at]);
    match (0..values.len()).find(|at| is_again(*at)) {
        Some(at) => Err(bad(key, format!("number {} of the list is in it before", at + 1))),
        None => Ok(values),
    }
}

/// Maximum number of users at once: each has a tree of files.
const USERS_MAX: u32 = 10_000;

fn at_most_users(users: u32) -> Result<u32, LabError> {
    if users > USERS_MAX { Err(bad("users", format!("at most {USERS_MAX}"))) } else { Ok(users) }
}

/// Maximum RAM of a modelled cache.
const RAM_MAX: u64 = 16 << 30;

fn fits_ram(key: &str, bytes: u64) -> Result<u64, LabError> {
    match bytes {
        0..=RAM_MAX => Ok(bytes),
        _ => Err(bad(key, format!("{} is more than {}", HumanBytes(bytes), HumanBytes(RAM_MAX)))),
    }
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
        for (key, value, says) in [
            ("users", "1,nan", "\"nan\" is not a whole number from 0 to 4294967295"),
            ("users", "1,0", "at least 1"),
            ("users", "1,4,1", "number 3 of the list is in it before"),
        ] {
            let settings =
                Settings::new(PARAMS, &Overrides::parse([format!("{key}={value}").as_str()]).unwrap(), 1);
            let refused = settings.counts::<u32>(key).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        for value in ["nan", "-1", "inf"] {
            let settings =
                Settings::new(PARAMS, &Overrides::parse([format!("users={value}").as_str()]).unwrap(), 1);
            assert!(settings.number::<f64>("users").unwrap_err().to_string().contains("not below 0"));
        }
        let settings = Settings::new(PARAMS, &Overrides::parse(["cache=900TiB", "users=101"]).unwrap(), 1);
        assert!(settings.ram("cache").unwrap_err().to_string().contains("900 TiB is more than 16 GiB"));
        assert!(settings.percent("users").unwrap_err().to_string().contains("more than all"));
        let settings = Settings::new(PARAMS, &Overrides::parse(["cache=0"]).unwrap(), 1);
        assert!(settings.count::<u64>("cache").unwrap_err().to_string().contains("at least 1"));
        assert!(matches!(Overrides::parse(["cache"]), Err(LabError::NotAnAssignment(_))));
    }
}
