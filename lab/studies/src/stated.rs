//! The paper's claims as an experiment's file has them: in what words, with which figure, and by which rule they are judged.
//! The code of the experiment gives what was measured.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::findings::{Claim, Verdict, figure, least, most};

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
    /// Sentence, table or figure that is judged, after its place.
    pub quote: String,
    /// Figure or words of the paper.
    paper: String,
    rule: Option<Rule>,
    /// Unit, which follows the figures.
    #[serde(default)]
    unit: String,
    /// Finding, if the claim is not one figure.
    ours: Option<String>,
    /// Why it differs, as far as it was found out.
    pub because: Option<String>,
    /// The parameter that was chosen by it.
    pub chose: Option<String>,
    /// Other claims from which it follows by arithmetic.
    pub follows: Option<String>,
}

/// The rule for all claims, as the document has it. [`Rule`] is the same in numbers.
pub(crate) const RULES: &str = "\
Every claim is judged by one of these rules; no claim has a range of its own.

| the paper gives | a claim holds if ours lies |
|---|---|
| a figure | within a quarter of it |
| a ratio | within a quarter of its difference from 1, so \"faster by 6 %\" accepts 1.045x to 1.075x |
| a share of a whole or a reduction, in percent | within a quarter of it, or of what is left of 100 if that is less |
| a range | in the range, its ends widened as above, by a tenth instead of a quarter |
| a bound (\"over\", \"under\", \"up to\", \"never\", \"less than 1/14\") | on its side |
| \"more\", \"less\", \"better\", \"effective\" | on that side by all of the difference's interval (95 %, Student's t) over five seeds |
| \"much\", \"greatly\", \"significantly\", \"very\", \"big\", \"bad\" | a quarter beyond it; a part of a whole, at least a quarter |
| \"slightly more\", \"marginally\" | as \"more\", and a tenth beyond it at most |
| \"the same\", \"similar\", \"close\", \"level\", \"stable\", \"small\", \"a slight difference\", \"does not vary much\", \"not significantly\" | within a twentieth of it |
| a gain in percent that is \"little\" or \"no\", a share that is \"negligible\"; a gain that is \"small\" | within a point of 0; 0 to 5 points |
| \"most\", \"mainly\"; \"virtually all\"; \"few\", \"a small portion\", \"useless\", \"eliminates\" | over 50 %; over 90 %; under 10 % |

All other figures are those of the first seed. Where more seeds were run, a claim has to hold with each of them. If it holds with some of
them only, noise decides, and it does not hold.

Where the sentence is about the figures of a table, each case is judged by its own figure. Where a sentence gives a range for several
disks and a table has the figure of each, each disk is judged by its own figure. Words are judged by the word. Some words are about figures
of the paper that their rule would refuse. There the range reaches to these figures, so the paper passes its own sentence.

One sentence of a paper is one claim. Where it speaks of several cases, each of them that was run has to hold: the tables have a row
for each case, and the totals count sentences. Three kinds of claims are listed and not counted: claims by which a parameter was chosen,
claims that follow from other figures by arithmetic, and cases that were not run. If it is in doubt whether a claim chose a parameter, it
counts as one that did. A case that is not counted cannot make a sentence hold, but if it was run and misses its range, the sentence is counted
and does not hold. What a paper only proposes is no claim.

Where a case was run and nothing happened of what the sentence is about, nothing was measured, and it does not hold. That is so where two
results that are compared are the same to the last digit, as those of two sizes of a cache that holds everything, and where the best and
the worst of the settings differ by less than a twentieth. Where the claim is that two results are equal, only the latter counts.

Baek and Park's percentages compare two figures in one way: the larger over the smaller is 1 plus the percentage. So \"260 % less\" is
3.6x, and \"degraded by 86 %\" 1.86x; no other reading gives a loss of more than 100 %. Their conclusion has other figures than the
sections: 180 % for the 2.3x of section IV-D, and 2.7 times for the 117 % of section IV-E. The sections are judged.";

/// Rule for "more" and "less" where five seeds take too long; names of experiments follow.
pub(crate) const ONE_SEED: &str = "\
Five seeds of these experiments take too long, so one is judged, and \"more\" and \"less\" hold from a twentieth on (of a gain in
percent, from a point on): ";

/// Share of a figure by which "more" and "less" must differ where one seed is judged.
const MARGIN: f64 = 0.05;

/// True if the first is more than the second, by the rule for one seed.
pub(crate) fn more(one: f64, other: f64) -> bool {
    one > other && one >= other * (1.0 + MARGIN)
}

/// Rules that make the range that is taken as holding. Words are about a base: 1 for ratios, 100 for percent of another, 0 for gains in percent.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    Figure(f64),
    Share(f64),
    Range(f64, f64),
    ShareRange(f64, f64),
    /// Two bounds.
    Between(f64, f64),
    AtLeast(f64),
    AtMost(f64),
    More(f64),
    Less(f64),
    MuchMore(f64),
    MuchLess(f64),
    SlightlyMore(f64),
    Same(f64),
    Little,
    Much,
    Most,
    NearlyAll,
    Few,
}

impl Rule {
    fn accepted(self, is_ratio: bool) -> (f64, f64) {
        let part = |base: f64, share: f64| if base == 0.0 { 100.0 * share } else { base * share };
        let least = |base: f64| if base == 0.0 { 1.0 } else { base * MARGIN };
        let size = |figure: f64| (figure - f64::from(u8::from(is_ratio))).abs();
        let smaller_part = |share: f64| share.min(100.0 - share);
        let around = |low: f64, high: f64, part: f64, of: &dyn Fn(f64) -> f64| {
            (low - part * of(low), high + part * of(high))
        };
        match self {
            Rule::Figure(figure) => around(figure, figure, 0.25, &size),
            Rule::Share(share) => around(share, share, 0.25, &smaller_part),
            Rule::Range(low, high) => around(low, high, 0.1, &size),
            Rule::ShareRange(low, high) => around(low, high, 0.1, &smaller_part),
            Rule::Between(low, high) => (low, high),
            Rule::AtLeast(least) => (least, f64::INFINITY),
            Rule::AtMost(most) => (f64::NEG_INFINITY, most),
            Rule::More(base) => (base + least(base), f64::INFINITY),
            Rule::Less(base) => (f64::NEG_INFINITY, base - least(base)),
            Rule::MuchMore(base) => (base + part(base, 0.25), f64::INFINITY),
            Rule::MuchLess(base) => (f64::NEG_INFINITY, base - part(base, 0.25)),
            Rule::SlightlyMore(base) => (base + least(base), base + part(base, 0.1)),
            Rule::Same(base) => around(base, base, MARGIN, &f64::abs),
            Rule::Little => (-1.0, 1.0),
            Rule::Much => (25.0, 100.0),
            Rule::Most => (50.0, 100.0),
            Rule::NearlyAll => (90.0, 100.0),
            Rule::Few => (0.0, 10.0),
        }
    }
}

/// A claim that still waits for what was measured.
pub(crate) struct Stated {
    text: &'static ClaimText,
    rule: Option<Rule>,
    words: Vec<(&'static str, String)>,
    /// Figures of the paper that the word is about, and that lie outside the word's range.
    reached: Vec<f64>,
}

impl Stated {
    pub fn new(text: &'static ClaimText) -> Stated {
        Stated { text, rule: text.rule, words: Vec::new(), reached: Vec::new() }
    }

    /// Makes the range reach to the paper's own figures.
    pub fn reaching(mut self, figures: &[f64]) -> Stated {
        let (low, high) = self.bounds();
        self.reached = figures.iter().copied().filter(|figure| !(low..=high).contains(figure)).collect();
        self
    }

    /// Puts a word in the place of its name in braces.
    pub fn with(mut self, name: &'static str, word: impl Word) -> Stated {
        self.words.push((name, word.word()));
        self
    }

    /// Sets the rule, and the paper's figure in the texts, where they depend on the case.
    pub fn of_paper(mut self, rule: Rule) -> Stated {
        self.rule = Some(rule);
        match rule {
            Rule::Figure(figure) | Rule::Share(figure) => self.with("paper", figure.to_string()),
            Rule::Range(low, high) | Rule::ShareRange(low, high) => {
                self.with("paper", format!("{low} to {high}"))
            }
            _ => self,
        }
    }

    /// A figure that should lie in the range.
    pub fn range(self, ours: f64) -> Claim {
        self.spread(&[ours])
    }

    /// The smallest and the largest of several figures, which should all lie in the range.
    pub fn spread(self, ours: &[f64]) -> Claim {
        let Stated { text, .. } = self;
        let bounds = self.bounds();
        let claim = Claim::spread(self.fill(&text.claim), self.fill(&text.paper), ours, bounds, &text.unit);
        let excess = match self.rule {
            _ if !self.reached.is_empty() => Vec::new(),
            Some(Rule::More(base) | Rule::SlightlyMore(base)) => {
                ours.iter().map(|ours| ours - base).collect()
            }
            Some(Rule::Less(base)) => ours.iter().map(|ours| base - ours).collect(),
            _ => Vec::new(),
        };
        let is_capped =
            matches!(self.rule, Some(Rule::SlightlyMore(_))) && ours.iter().any(|ours| *ours > bounds.1);
        self.finish(Claim { excess, is_capped, ..claim })
    }

    /// Ratios of results, which should all lie in the range. Where two results are the same to the last digit, nothing was
    /// measured.
    pub fn ratios(self, ours: &[f64]) -> Claim {
        let differ: Vec<f64> = ours.iter().copied().filter(|ratio| *ratio != 1.0).collect();
        self.measured(&differ, ours.len())
    }

    /// Figures of several sizes, which should all lie in the range. A figure that another size has to the last digit is one
    /// measurement with it.
    pub fn sizes(self, ours: &[f64]) -> Claim {
        let is_first = |at: &usize| !ours[..*at].contains(&ours[*at]);
        let differ: Vec<f64> = (0..ours.len()).filter(is_first).map(|at| ours[at]).collect();
        self.measured(&differ, ours.len())
    }

    /// Figures of those of all cases that measured something.
    fn measured(self, differ: &[f64], all: usize) -> Claim {
        if differ.is_empty() {
            return self.nothing("the results are the same to the last digit");
        }
        let (same, mut claim) = (all - differ.len(), self.spread(differ));
        if same > 0 {
            claim.ours += &format!("; the same to the last digit in {same} of {all} cases");
            if claim.holds() || claim.says_more() {
                let nothing = format!("nothing was measured in {same} of {all} cases");
                claim.verdict = Verdict::Differs(nothing);
                // Other seeds do not change that.
                claim.is_capped = true;
            }
        }
        claim
    }

    /// Figures of a table of the paper, each beside ours: each is judged by its own rule.
    pub fn each(mut self, rule: fn(f64) -> Rule, cells: &[(f64, f64)]) -> Claim {
        let Stated { text, .. } = self;
        let unit = &text.unit;
        let listed = |figures: &dyn Fn(&(f64, f64)) -> String| {
            cells.iter().map(figures).collect::<Vec<_>>().join(", ")
        };
        let papers = listed(&|(paper, _)| format!("{}{unit}", figure(*paper)));
        let ours = listed(&|(_, ours)| format!("{}{unit}", figure(*ours)));
        self = self.with("paper", papers);
        let judge =
            |&(paper, ours): &(f64, f64)| Claim::range("", "", ours, rule(paper).accepted(unit == "x"), unit);
        let accepted = listed(&|cell| judge(cell).accepted);
        let verdict = cells.iter().map(|cell| judge(cell).verdict).find(|verdict| *verdict != Verdict::Holds);
        let verdict = verdict.unwrap_or(Verdict::Holds);
        let claim = Claim::fact(self.fill(&text.claim), self.fill(&text.paper), ours, &accepted, true);
        self.finish(Claim { verdict, ..claim })
    }

    /// Pairs of figures; the first of each should be more than the second.
    pub fn more(self, pairs: impl IntoIterator<Item = (f64, f64)>) -> Claim {
        let pairs: Vec<(f64, f64)> = pairs.into_iter().collect();
        let excess = pairs.iter().map(|(one, other)| one - other).collect();
        let holds = pairs.iter().all(|(one, other)| more(*one, *other));
        Claim { excess, ..self.fact("more by a twentieth", holds) }
    }

    /// Something that is so or is not. `accepted` says what has to be so.
    pub fn fact(self, accepted: &str, holds: bool) -> Claim {
        let Stated { text, .. } = self;
        let ours = text.ours.as_ref().unwrap_or_else(|| panic!("{}: nothing says what is ours", text.claim));
        self.finish(Claim::fact(
            self.fill(&text.claim),
            self.fill(&text.paper),
            self.fill(ours),
            accepted,
            holds,
        ))
    }

    /// The case was run, and what the sentence is about did not happen.
    pub fn nothing(self, why: &str) -> Claim {
        self.without_figure(
            format!("nothing measured: {why}"),
            Verdict::Differs("nothing was measured".to_owned()),
        )
    }

    /// The paper's case is not among those that were run.
    pub fn not_run(self) -> Claim {
        self.without_figure("not run".to_owned(), Verdict::NotRun)
    }

    fn without_figure(self, ours: String, verdict: Verdict) -> Claim {
        let Stated { text, .. } = self;
        let claim = Claim::fact(self.fill(&text.claim), self.fill(&text.paper), ours, "–", false);
        self.finish(Claim { verdict, ..claim })
    }

    fn bounds(&self) -> (f64, f64) {
        let rule = self.rule.unwrap_or_else(|| panic!("{}: no rule is given", self.text.claim));
        let (low, high) = rule.accepted(self.text.unit == "x");
        (low.min(least(self.reached.iter().copied())), high.max(most(self.reached.iter().copied())))
    }

    fn finish(&self, mut claim: Claim) -> Claim {
        claim.quote = self.fill(&self.text.quote);
        if let Some(reason) = &self.text.because {
            claim = claim.because(self.fill(reason));
        }
        claim.chose.clone_from(&self.text.chose);
        claim.follows.clone_from(&self.text.follows);
        claim
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

    fn stated(text: &str) -> Stated {
        let text: ClaimText = toml::from_str(text).expect("it is a claim");
        Stated::new(Box::leak(Box::new(text)))
    }

    #[test]
    fn ranges_follow_from_what_the_paper_says() {
        let close = |rule: Rule, (low, high): (f64, f64)| {
            let accepted = rule.accepted(true);
            assert!(
                (accepted.0 - low).abs() < 1e-9 && (accepted.1 - high).abs() < 1e-9,
                "{rule:?}: {accepted:?}"
            );
        };
        close(Rule::Figure(3.0), (2.5, 3.5));
        close(Rule::Figure(1.1), (1.075, 1.125));
        assert_eq!(Rule::Figure(2.0).accepted(false), (1.5, 2.5));
        close(Rule::Share(40.0), (30.0, 50.0));
        close(Rule::Share(96.0), (95.0, 97.0));
        close(Rule::Range(2.0, 6.0), (1.9, 6.5));
        close(Rule::ShareRange(45.0, 99.0), (40.5, 99.1));
        close(Rule::Same(1.0), (0.95, 1.05));
        assert_eq!(Rule::Same(0.0).accepted(false), (0.0, 0.0), "a twentieth, and no points beside it");
        close(Rule::SlightlyMore(100.0), (105.0, 110.0));
        assert_eq!(Rule::More(1.0).accepted(true), (1.05, f64::INFINITY));
        assert_eq!(Rule::More(0.0).accepted(false).0, 1.0);
        assert_eq!(Rule::MuchLess(1.0).accepted(true), (f64::NEG_INFINITY, 0.75));
        assert!(more(1.06, 1.0) && !more(1.04, 1.0) && !more(0.0, 0.0));
    }

    #[test]
    fn each_figure_of_a_table_is_judged_by_its_own_range() {
        let text = "claim = 'c'\nquote = '1: \"q\"'\npaper = '{paper}'\nunit = ' %'\nfollows = 'two others'";
        let of = |cells: &[(f64, f64)]| stated(text).each(Rule::Share, cells);
        let holds = of(&[(40.0, 49.0), (96.0, 96.5)]);
        assert!(holds.holds() && holds.follows.is_some());
        assert_eq!((holds.paper.as_str(), holds.ours.as_str()), ("40.0 %, 96.0 %", "49.0 %, 96.5 %"));
        assert_eq!(holds.accepted, "30.0 % to 50.0 %, 95.0 % to 97.0 %");
        assert!(!of(&[(40.0, 49.0), (96.0, 90.0)]).holds());
    }

    #[test]
    fn a_range_reaches_to_the_papers_own_figures_and_no_further() {
        let text = "claim = 'c'\nquote = '1: \"q\"'\npaper = 'p'\nrule = { same = 1 }\nunit = 'x'";
        let holds = |own: &[f64], ours: f64| stated(text).reaching(own).range(ours).holds();
        assert!(!holds(&[], 0.9) && holds(&[0.88], 0.9) && !holds(&[0.88], 0.87) && !holds(&[0.88], 1.06));
        assert!(holds(&[1.0], 1.04) && !holds(&[1.0], 1.06), "a figure inside changes nothing");
        let more = text.replace("same", "more");
        assert!(stated(&more).reaching(&[0.98]).range(0.99).excess.is_empty(), "seeds ask for over 0");
    }

    #[test]
    fn results_that_are_the_same_to_the_last_digit_measure_nothing() {
        let text = "claim = 'c'\nquote = '1: \"q\"'\npaper = 'p'\nrule = { at-least = 1 }\nunit = 'x'";
        let of = |ours: &[f64]| stated(text).ratios(ours);
        assert!(of(&[1.1, 1.3]).holds());
        let in_part = of(&[1.1, 1.0, 1.3]);
        assert_eq!(in_part.verdict, Verdict::Differs("nothing was measured in 1 of 3 cases".to_owned()));
        assert_eq!(in_part.ours, "1.10x to 1.30x; the same to the last digit in 1 of 3 cases");
        assert!(of(&[1.0]).ours.starts_with("nothing measured: ") && !of(&[1.0]).holds());
        assert_eq!(of(&[0.9, 1.0]).verdict, Verdict::Differs("0.900x is below the range".to_owned()));
    }

    #[test]
    fn sizes_with_the_same_figure_are_one_measurement() {
        let text = "claim = 'c'\nquote = '1: \"q\"'\npaper = 'p'\nrule = { at-least = 17 }\nunit = ' %'";
        let of = |text: &str, ours: &[f64]| stated(text).sizes(ours);
        assert!(of(text, &[22.0, 18.0]).holds());
        let again = of(text, &[22.0, 18.0, 18.0, 18.0]);
        assert_eq!(again.verdict, Verdict::Differs("nothing was measured in 2 of 4 cases".to_owned()));
        assert_eq!(again.ours, "18.0 % to 22.0 %; the same to the last digit in 2 of 4 cases");
        let below = of(text, &[22.0, 14.0, 14.0]).verdict;
        assert_eq!(below, Verdict::Differs("14.0 % is below the range".to_owned()));
        let more = |figure: f64| of(&text.replace("at-least = 17", "more = 0"), &[figure, figure]);
        let mut first = more(0.5);
        first.judge_over_seeds(&[Some(&more(0.6)), Some(&more(0.7))]);
        assert!(!first.holds(), "other seeds do not make a case of it");
    }

    #[test]
    fn slightly_more_has_a_limit_that_seeds_do_not_lift() {
        let text = "claim = 'c'\nquote = '1: \"q\"'\npaper = 'p'\nrule = { slightly-more = 1 }\nunit = 'x'";
        let over_seeds = |ours: f64| {
            let (mut claim, other) = (stated(text).range(ours), stated(text).range(ours + 0.01));
            claim.judge_over_seeds(&[Some(&other), Some(&other)]);
            (claim.holds(), claim.accepted)
        };
        assert!(over_seeds(1.03).0 && !over_seeds(0.99).0 && !over_seeds(1.2).0);
        assert_eq!(over_seeds(1.03).1, "difference over 0, at most 1.10x");
    }

    #[test]
    fn words_and_figures_come_into_the_places_that_the_file_leaves_for_them() {
        let text = "claim = '{disk}: faster'\nquote = '2: \"faster\"'\npaper = '2x'\nrule = { at-least = 2 }\nunit = 'x'\nbecause = 'of {why}'";
        let claim = |ours| stated(text).with("disk", "ra81").with("why", 0.5).range(ours);
        assert_eq!(
            (claim(3.0).claim.as_str(), claim(3.0).accepted.as_str()),
            ("ra81: faster", "at least 2.00x")
        );
        assert_eq!(claim(1.0).reason.as_deref(), Some("of 0.500"));
        let fact = stated("claim = 'c'\nquote = '1: \"q\"'\npaper = 'p'\nours = '{n} of 3'")
            .with("n", 2u64)
            .fact("all", false);
        assert_eq!((fact.ours.as_str(), fact.verdict == Verdict::Holds), ("2 of 3", false));
    }
}
