//! The paper's claims as an experiment's file has them: in what words, with which figure, and what is taken as holding. The
//! code of the experiment gives what was measured.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::findings::{Claim, figure};

/// Claims and tables of the paper, by the names in the experiment's file.
#[derive(Debug)]
pub(crate) struct Paper {
    pub claims: BTreeMap<String, ClaimText>,
    pub tables: BTreeMap<String, toml::Value>,
}

/// A claim; its texts may have words in braces, which stand for what is known later.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimText {
    /// The paper's sentence, in our words.
    claim: String,
    /// Figure or words of the paper.
    paper: String,
    /// From and to; either end may be infinite.
    accepted: Option<(f64, f64)>,
    /// Unit, which follows the figures.
    #[serde(default)]
    unit: String,
    /// Finding, if the claim is a fact.
    ours: Option<String>,
    /// Why it differs, as far as it was found out.
    pub because: Option<String>,
    /// The parameter that was chosen by it.
    chose: Option<String>,
}

/// A claim that still waits for what was measured.
pub(crate) struct Stated {
    text: &'static ClaimText,
    accepted: Option<(f64, f64)>,
    has_reason: bool,
    words: Vec<(&'static str, String)>,
}

impl Stated {
    pub fn new(text: &'static ClaimText) -> Stated {
        Stated { text, accepted: text.accepted, has_reason: true, words: Vec::new() }
    }

    /// Puts a word in the place of its name in braces.
    pub fn with(mut self, name: &'static str, word: impl Word) -> Stated {
        self.words.push((name, word.word()));
        self
    }

    /// Sets the range that is taken as holding, where it depends on the case.
    pub fn accepting(mut self, from: f64, to: f64) -> Stated {
        self.accepted = Some((from, to));
        self
    }

    /// Leaves the file's reason out where it is none.
    pub fn reason_if(mut self, applies: bool) -> Stated {
        self.has_reason = applies;
        self
    }

    /// A figure that should lie in the range.
    pub fn range(self, ours: f64) -> Claim {
        let Stated { text, .. } = self;
        self.finish(Claim::range(
            self.fill(&text.claim),
            self.fill(&text.paper),
            ours,
            self.bounds(),
            &text.unit,
        ))
    }

    /// The smallest and the largest of several figures, which should all lie in the range.
    pub fn spread(self, ours: &[f64]) -> Claim {
        let Stated { text, .. } = self;
        self.finish(Claim::spread(
            self.fill(&text.claim),
            self.fill(&text.paper),
            ours,
            self.bounds(),
            &text.unit,
        ))
    }

    /// Something that is so or is not.
    pub fn fact(self, holds: bool) -> Claim {
        let Stated { text, .. } = self;
        let ours = text.ours.as_ref().unwrap_or_else(|| panic!("{}: nothing says what is ours", text.claim));
        self.finish(Claim::fact(self.fill(&text.claim), self.fill(&text.paper), self.fill(ours), holds))
    }

    fn bounds(&self) -> (f64, f64) {
        self.accepted.unwrap_or_else(|| panic!("{}: nothing is accepted", self.text.claim))
    }

    fn finish(&self, mut claim: Claim) -> Claim {
        if let Some(reason) = self.text.because.as_ref().filter(|_| self.has_reason) {
            claim = claim.because(self.fill(reason));
        }
        match &self.text.chose {
            Some(parameter) => claim.choosing(parameter),
            None => claim,
        }
    }

    fn fill(&self, text: &str) -> String {
        let fill = |text: String, (name, word): &(&str, String)| text.replace(&format!("{{{name}}}"), word);
        let text = self.words.iter().fold(text.to_owned(), fill);
        assert!(!text.contains('{'), "a word is missing in: {text}");
        text
    }
}

/// Values that may stand in the words of a claim.
pub(crate) trait Word {
    fn word(&self) -> String;
}

impl Word for f64 {
    fn word(&self) -> String {
        figure(*self)
    }
}

/// A dash where there is no figure.
impl Word for Option<f64> {
    fn word(&self) -> String {
        self.map_or("–".to_owned(), figure)
    }
}

macro_rules! words_as_they_are {
    ($($word:ty),*) => {$(
        impl Word for $word {
            fn word(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

words_as_they_are!(&str, String, u8, u32, u64, usize);

/// The cells of a row of a table.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { [$($crate::stated::Word::word(&$cell)),*] };
}
pub(crate) use cells;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    fn stated(text: &str) -> Stated {
        let text: ClaimText = toml::from_str(text).expect("it is a claim");
        Stated::new(Box::leak(Box::new(text)))
    }

    #[test]
    fn words_and_figures_come_into_the_places_that_the_file_leaves_for_them() {
        let text =
            "claim = '{disk}: faster'\npaper = '2x'\naccepted = [2, inf]\nunit = 'x'\nbecause = 'of {why}'";
        let claim = |ours| stated(text).with("disk", "ra81").with("why", 0.5).range(ours);
        assert_eq!(
            (claim(3.0).claim.as_str(), claim(3.0).accepted.as_str()),
            ("ra81: faster", "at least 2.00x")
        );
        assert_eq!(claim(1.0).reason.as_deref(), Some("of 0.500"));
        let fact = stated("claim = 'c'\npaper = 'p'\nours = '{n} of 3'").with("n", 2u64).fact(false);
        assert_eq!((fact.ours.as_str(), fact.verdict == Verdict::Holds), ("2 of 3", false));
    }
}
