//! Reads an experiment's sheet: a TOML file beside its code has its name, its place in the paper, how it is set up,
//! its parameters, and the paper's claims.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::experiment::{Conclude, Plan};
use crate::stated::{ClaimText, Paper};
use crate::{Experiment, Group, Param};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sheet {
    name: String,
    group: Group,
    source: String,
    title: String,
    about: String,
    seeds: Option<usize>,
    params: Vec<Entry>,
    #[serde(default)]
    paper: BTreeMap<String, toml::Value>,
    /// Reasons that several claims have: they name them.
    #[serde(default)]
    reasons: BTreeMap<String, String>,
    #[serde(default)]
    claims: BTreeMap<String, ClaimText>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Own(ParamText),
    /// `group.key` of the shared ones, or a whole `group` but for the keys that come before it.
    Shared(String),
}

#[derive(Clone, Deserialize)]
struct ParamText {
    key: String,
    default: String,
    about: String,
}

impl From<ParamText> for Param {
    fn from(text: ParamText) -> Param {
        Param { key: text.key.leak(), default: text.default.leak(), about: text.about.leak() }
    }
}

/// An experiment from its file. What it says lasts as long as the program.
///
/// # Panics
/// Where the file is wrong: it is a part of the program, and a test loads all of them.
pub(crate) fn load(text: &str, plan: Plan, conclude: Conclude) -> &'static Experiment {
    let mut sheet: Sheet = toml::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"));
    for reason in sheet.claims.values_mut().filter_map(|claim| claim.because.as_mut()) {
        if let Some(shared) = sheet.reasons.get(reason) {
            reason.clone_from(shared);
        }
    }
    Box::leak(Box::new(Experiment {
        name: sheet.name.leak(),
        group: sheet.group,
        source: sheet.source.leak(),
        title: sheet.title.leak(),
        about: sheet.about.leak(),
        params: params(sheet.params).leak(),
        seeds: sheet.seeds,
        paper: Box::leak(Box::new(Paper { claims: sheet.claims, tables: sheet.paper })),
        plan,
        conclude,
    }))
}

fn params(entries: Vec<Entry>) -> Vec<Param> {
    let shared: BTreeMap<String, Vec<ParamText>> = toml::from_str(include_str!("experiments/shared.toml"))
        .expect("the shared parameters are well-formed");
    let mut params: Vec<Param> = Vec::new();
    for entry in entries {
        let name = match entry {
            Entry::Own(own) => {
                params.push(own.into());
                continue;
            }
            Entry::Shared(name) => name,
        };
        let (group, key) =
            name.split_once('.').map_or((name.as_str(), None), |(group, key)| (group, Some(key)));
        for param in shared.get(group).unwrap_or_else(|| panic!("no group {group} of parameters is shared")) {
            let is_there = params.iter().any(|other| other.key == param.key);
            if key.map_or(!is_there, |key| key == param.key) {
                params.push(param.clone().into());
            }
        }
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_quotes_its_paper_after_the_place() {
        for experiment in crate::experiments::REGISTRY.iter() {
            for (id, claim) in &experiment.paper.claims {
                let (place, words) = claim.quote.split_once(": \"").unwrap_or_default();
                let is_place = place.starts_with(|c: char| c.is_ascii_digit() || "IV".contains(c))
                    || ["abstract", "Fig. ", "Table "].iter().any(|kind| place.starts_with(kind));
                let is_quoted = words.trim_end_matches(|c| c != '"').len() > 8;
                assert!(is_place && is_quoted, "{}, {id}: {:?}", experiment.name, claim.quote);
            }
        }
    }

    #[test]
    fn an_own_parameter_takes_the_place_of_the_groups() {
        let own = |key: &str, default: &str| {
            Entry::Own(ParamText { key: key.into(), default: default.into(), about: String::new() })
        };
        let params = params(vec![own("used", "1GiB"), own("cache", "51MiB"), Entry::Shared("array".into())]);
        assert_eq!(params.len(), 14);
        let of = |key: &str| -> Vec<&str> {
            params.iter().filter(|param| param.key == key).map(|param| param.default).collect()
        };
        assert_eq!(of("cache"), ["51MiB"]);
        assert!(params.iter().all(|param| of(param.key).len() == 1));
    }
}
