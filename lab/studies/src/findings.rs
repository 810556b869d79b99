//! Concludes from a run: tables, plots, and the paper's claims with a verdict on each.
//!
//! A claim *holds* when our figure lies in the range that is printed beside it. One rule for all claims makes the range from
//! the paper's figure or words (`stated`). Totals count the paper's sentences: each of a sentence's cases that was run has to hold.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

use crate::Plot;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// `columns` has ` | ` between them.
    pub fn new(title: impl Into<String>, columns: &str) -> Table {
        let columns = columns.split(" | ").map(str::to_owned).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// # Panics
    /// Where the row has another width than the table.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "a row of \"{}\" is as wide as the table", self.title);
        self.rows.push(row);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Holds,
    /// Outside the range; in which way, in words.
    Differs(String),
    /// The paper's case was not run.
    NotRun,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The paper's sentence, in our words.
    pub claim: String,
    /// Sentence, table or figure that is judged, and its place.
    #[serde(default)]
    pub quote: String,
    pub paper: String,
    pub ours: String,
    /// Range that is taken as holding, in words.
    pub accepted: String,
    pub verdict: Verdict,
    /// Why it differs, as far as it was found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The parameter that was chosen by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chose: Option<String>,
    /// Other claims from which it follows by arithmetic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// Differences, one of each case, that must be over 0, where the paper says "more" or "less".
    #[serde(skip)]
    pub(crate) excess: Vec<f64>,
    /// True if it is more than the rule allows, whatever other seeds give.
    #[serde(skip)]
    pub(crate) is_capped: bool,
}

impl Claim {
    /// A figure that should lie in a range; either end may be infinite. `unit` follows the number.
    pub fn range(
        claim: impl Into<String>,
        paper: impl Into<String>,
        ours: f64,
        accepted: (f64, f64),
        unit: &str,
    ) -> Claim {
        let (low, high) = accepted;
        let show = |value: f64| format!("{}{unit}", figure(value));
        let accepted = match (low.is_finite(), high.is_finite()) {
            (true, true) => format!("{} to {}", show(low), show(high)),
            (true, false) => format!("at least {}", show(low)),
            _ => format!("at most {}", show(high)),
        };
        let verdict = if !ours.is_finite() {
            Verdict::Differs("nothing was measured".to_owned())
        } else if ours < low {
            Verdict::Differs(format!("{}{unit} is below the range", apart(ours, low)))
        } else if ours > high {
            Verdict::Differs(format!("{}{unit} is above the range", apart(ours, high)))
        } else {
            Verdict::Holds
        };
        Claim {
            claim: claim.into(),
            quote: String::new(),
            paper: paper.into(),
            ours: show(ours),
            accepted,
            verdict,
            reason: None,
            chose: None,
            follows: None,
            excess: Vec::new(),
            is_capped: false,
        }
    }

    /// The smallest and the largest of several figures, which should all lie in a range.
    pub fn spread(
        claim: impl Into<String>,
        paper: impl Into<String>,
        ours: &[f64],
        accepted: (f64, f64),
        unit: &str,
    ) -> Claim {
        let (smallest, largest) = (least(ours.iter().copied()), most(ours.iter().copied()));
        let (claim, paper) = (claim.into(), paper.into());
        let low = Claim::range(claim.clone(), paper.clone(), smallest, accepted, unit);
        let high = Claim::range(claim, paper, largest, accepted, unit);
        let ours =
            if low.ours == high.ours { low.ours.clone() } else { format!("{} to {}", low.ours, high.ours) };
        let verdict = if low.verdict == Verdict::Holds { high.verdict } else { low.verdict };
        Claim { ours, verdict, ..low }
    }

    /// Something that is so or is not. `accepted` says what has to be so.
    pub fn fact(
        claim: impl Into<String>,
        paper: impl Into<String>,
        ours: impl Into<String>,
        accepted: &str,
        holds: bool,
    ) -> Claim {
        let verdict = if holds { Verdict::Holds } else { Verdict::Differs("it is not so".to_owned()) };
        Claim {
            claim: claim.into(),
            quote: String::new(),
            paper: paper.into(),
            ours: ours.into(),
            accepted: accepted.to_owned(),
            verdict,
            reason: None,
            chose: None,
            follows: None,
            excess: Vec::new(),
            is_capped: false,
        }
    }

    /// Judges "more" and "less" again, with the same claim of other seeds: the interval of each difference leaves out 0.
    pub(crate) fn judge_over_seeds(&mut self, others: &[Option<&Claim>]) {
        let of = |claim: Option<&Claim>, case| {
            claim.and_then(|claim| claim.excess.get(case).copied()).unwrap_or(f64::NAN)
        };
        let each = (0..self.excess.len()).map(|case| {
            let own = std::iter::once(self.excess[case]);
            let all: Vec<f64> = own.chain(others.iter().map(|other| of(*other, case))).collect();
            let (mean, half) = dcd_sim::interval(&all);
            (mean - half, mean + half)
        });
        let lowest = |ends: &(f64, f64)| if ends.0.is_nan() { f64::NEG_INFINITY } else { ends.0 };
        let Some(worst) = each.min_by(|one, other| lowest(one).total_cmp(&lowest(other))) else { return };
        let seeds = others.len() + 1;
        self.ours += &format!("; difference over {seeds} seeds: {} to {}", figure(worst.0), figure(worst.1));
        let most = self.accepted.split_once(" to ").map(|(_, most)| format!(", at most {most}"));
        self.accepted = format!("difference over 0{}", most.unwrap_or_default());
        self.verdict = match worst {
            _ if self.is_capped => return,
            (low, _) if low > 0.0 => Verdict::Holds,
            (_, high) if high < 0.0 => Verdict::Differs("the difference is under 0".to_owned()),
            _ => Verdict::Differs("the difference may be 0".to_owned()),
        };
    }

    /// Judges a figure again, with the same claim of other seeds: it has to hold with each of them.
    pub(crate) fn judge_noise(&mut self, others: &[Option<&Claim>]) {
        if self.verdict == Verdict::NotRun {
            return;
        }
        let seeds = others.len() + 1;
        let held = others.iter().flatten().filter(|other| other.holds()).count() + usize::from(self.holds());
        self.verdict = match &self.verdict {
            Verdict::Holds if held < seeds => {
                Verdict::Differs(format!("noise decides: it is inside with {held} of {seeds} seeds"))
            }
            Verdict::Differs(how) if held > 0 => {
                Verdict::Differs(format!("{how}; noise decides: it is inside with {held} of {seeds} seeds"))
            }
            _ => return,
        };
    }

    /// Gives the reason why it differs; kept only where it does.
    pub fn because(mut self, reason: impl Into<String>) -> Claim {
        if !self.holds() {
            self.reason = Some(reason.into());
        }
        self
    }

    /// A parameter was chosen by it.
    pub fn choosing(mut self, parameter: impl Into<String>) -> Claim {
        self.chose = Some(parameter.into());
        self
    }

    /// Why the totals leave it out.
    pub fn uncounted(&self) -> Option<String> {
        let chose = self.chose.as_ref().map(|parameter| format!("it chose {parameter}"));
        chose.or_else(|| self.follows.as_ref().map(|others| format!("it follows from {others}")))
    }

    /// True if the paper says "more" or "less".
    pub(crate) fn says_more(&self) -> bool {
        !self.excess.is_empty()
    }

    pub fn holds(&self) -> bool {
        self.verdict == Verdict::Holds
    }
}

/// A figure with as many digits as tell it from a bound.
fn apart(value: f64, bound: f64) -> String {
    let digits = |digits: usize| [value, bound].map(|value| format!("{value:.digits$}"));
    let rounded = std::iter::once([value, bound].map(figure)).chain((3..9).map(digits));
    rounded.into_iter().find(|[value, bound]| value != bound).map_or(value.to_string(), |[value, _]| value)
}

/// Totals of one experiment or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sentences of the paper all of whose cases hold that were run.
    pub holding: usize,
    pub sentences: usize,
    pub cases_holding: usize,
    pub cases: usize,
    /// Cases that are not counted.
    pub chose: usize,
    /// Cases that chose a parameter and lie outside their range all the same.
    pub missed: usize,
    pub follow: usize,
    pub not_run: usize,
}

impl Count {
    /// Claims with the same quote are cases of one sentence.
    pub fn of(claims: &[Claim]) -> Count {
        let mut count = Count::default();
        let mut sentences: BTreeMap<&str, SentenceCases> = BTreeMap::new();
        for claim in claims {
            let sentence = sentences.entry(&claim.quote).or_default();
            // A case that is not counted says nothing where it holds, and much where it does not.
            sentence.misses |= matches!(claim.verdict, Verdict::Differs(_));
            if claim.chose.is_some() {
                count.chose += 1;
                count.missed += usize::from(matches!(claim.verdict, Verdict::Differs(_)));
            } else if claim.follows.is_some() {
                count.follow += 1;
            } else {
                sentence.is_counted = true;
                if claim.verdict == Verdict::NotRun {
                    count.not_run += 1;
                    sentence.is_incomplete = true;
                    continue;
                }
                count.cases += 1;
                count.cases_holding += usize::from(claim.holds());
            }
        }
        // A miss is enough. Without one, what was not run may be what does not hold.
        let judged = || sentences.values().filter(|s| s.misses || (s.is_counted && !s.is_incomplete));
        count.sentences = judged().count();
        count.holding = judged().filter(|sentence| !sentence.misses).count();
        count
    }
}

/// Cases of one sentence, together.
#[derive(Default)]
struct SentenceCases {
    /// True if a case is counted.
    is_counted: bool,
    /// True if a case does not hold, counted or not.
    misses: bool,
    /// True if a case that would be counted was not run.
    is_incomplete: bool,
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Count>>(counts: I) -> Count {
        counts.fold(Count::default(), |sum, count| Count {
            holding: sum.holding + count.holding,
            sentences: sum.sentences + count.sentences,
            cases_holding: sum.cases_holding + count.cases_holding,
            cases: sum.cases + count.cases,
            chose: sum.chose + count.chose,
            missed: sum.missed + count.missed,
            follow: sum.follow + count.follow,
            not_run: sum.not_run + count.not_run,
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count { holding, sentences, cases_holding, cases, .. } = self;
        write!(f, "{holding} of {sentences} sentences hold; case by case {cases_holding} of {cases}")?;
        let chose = format!("chose a parameter ({} of them do not hold all the same)", self.missed);
        let uncounted = [
            (self.chose, chose.as_str()),
            (self.follow, "follow from others"),
            (self.not_run, "were not run"),
        ];
        let named = uncounted.iter().filter(|(cases, _)| *cases > 0);
        let named: Vec<String> = named.map(|(cases, why)| format!("{cases} {why}")).collect();
        if named.is_empty() { Ok(()) } else { write!(f, "; not counted: {}", named.join(", ")) }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    pub claims: Vec<Claim>,
}

/// The smallest of some figures; infinite where there are none.
pub(crate) fn least(figures: impl IntoIterator<Item = f64>) -> f64 {
    figures.into_iter().fold(f64::INFINITY, f64::min)
}

/// The largest of some figures; infinite, and negative, where there are none.
pub(crate) fn most(figures: impl IntoIterator<Item = f64>) -> f64 {
    figures.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

/// A number for people: three figures, no needless zeroes.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if !value.is_finite() => "-".to_owned(),
        m if m >= 100.0 => format!("{value:.0}"),
        m if m >= 10.0 => format!("{value:.1}"),
        m if m >= 1.0 => format!("{value:.2}"),
        m if m >= 0.0005 => format!("{value:.3}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_holds_inside_its_range_and_says_by_how_much_it_does_not() {
        let claim = |ours| Claim::range("faster", "2 to 6", ours, (2.0, 6.0), "x").because("a reason");
        assert_eq!(claim(2.0).verdict, Verdict::Holds);
        assert_eq!(claim(2.0).reason, None);
        assert_eq!(claim(7.5).verdict, Verdict::Differs("7.50x is above the range".to_owned()));
        assert_eq!(claim(0.5).verdict, Verdict::Differs("0.500x is below the range".to_owned()));
        assert_eq!(claim(6.0012).verdict, Verdict::Differs("6.001x is above the range".to_owned()));
        assert_eq!(claim(0.5).reason.as_deref(), Some("a reason"));
        assert!(!claim(f64::NAN).holds(), "no figure proves nothing");
        assert!(Claim::range("c", "p", 9.0, (2.0, f64::INFINITY), "x").holds());
    }

    #[test]
    fn more_holds_if_the_interval_over_seeds_leaves_out_0() {
        let of = |excess: &[f64]| Claim {
            excess: excess.to_vec(),
            ..Claim::fact("more", "more", "2 against 1", "more", excess[0] > 0.0)
        };
        let verdict = |seeds: [&[f64]; 3]| {
            let [mut first, second, third] = seeds.map(of);
            first.judge_over_seeds(&[Some(&second), Some(&third)]);
            first
        };
        let holds = verdict([&[1.0, 9.0], &[1.1, 8.0], &[0.9, 7.0]]);
        assert_eq!((holds.verdict == Verdict::Holds, holds.accepted.as_str()), (true, "difference over 0"));
        assert_eq!(holds.ours, "2 against 1; difference over 3 seeds: 0.752 to 1.25");
        assert!(!verdict([&[1.0, 9.0], &[1.1, -3.0], &[0.9, 7.0]]).holds(), "each case has to hold");
        assert!(!verdict([&[1.0], &[1.1], &[f64::NAN]]).holds(), "no figure proves nothing");
    }

    #[test]
    fn a_figure_has_to_hold_with_each_seed_that_was_run() {
        let of = |ours| Claim::range("faster", "2 to 6", ours, (2.0, 6.0), "x");
        let verdict = |seeds: [f64; 3]| {
            let [mut first, second, third] = seeds.map(of);
            first.judge_noise(&[Some(&second), Some(&third)]);
            match first.verdict {
                Verdict::Differs(how) => how,
                _ => "holds".to_owned(),
            }
        };
        assert_eq!(verdict([2.0, 3.0, 4.0]), "holds");
        assert_eq!(verdict([2.0, 1.0, 4.0]), "noise decides: it is inside with 2 of 3 seeds");
        let below = "1.00x is below the range";
        assert_eq!(verdict([1.0, 1.0, 1.5]), below);
        let noise = "noise decides: it is inside with 2 of 3 seeds";
        assert_eq!(verdict([1.0, 2.0, 4.0]), format!("{below}; {noise}"));
        let mut not_run = Claim { verdict: Verdict::NotRun, ..of(1.0) };
        not_run.judge_noise(&[Some(&of(3.0))]);
        assert_eq!(not_run.verdict, Verdict::NotRun);
    }

    #[test]
    fn a_sentence_is_counted_once_and_holds_if_all_its_cases_do() {
        let claim = |quote: &str, holds| Claim {
            quote: quote.to_owned(),
            ..Claim::fact("one", "so", "so", "so", holds)
        };
        let not_run = |quote| Claim { verdict: Verdict::NotRun, ..claim(quote, false) };
        let claims = [
            claim("both", true),
            claim("both", true),
            claim("one of two", true),
            claim("one of two", false),
            claim("one of two", false).choosing("the queue"),
            claim("one that chose", true),
            claim("one that chose", false).choosing("the queue"),
            claim("one that follows", true),
            Claim { follows: Some("both".to_owned()), ..claim("one that follows", false) },
            Claim { follows: Some("both".to_owned()), ..claim("follows, and misses", false) },
            claim("chose, and misses", false).choosing("the queue"),
            Claim { follows: Some("both".to_owned()), ..claim("follows, and is inside", true) },
            claim("in part", true),
            not_run("in part"),
            claim("in part, and wrong", false),
            not_run("in part, and wrong"),
        ];
        let count = Count::of(&claims);
        let expected = Count {
            holding: 1,
            sentences: 7,
            cases_holding: 6,
            cases: 8,
            chose: 3,
            missed: 3,
            follow: 3,
            not_run: 2,
        };
        assert_eq!(count, expected);
        assert_eq!(
            [count, count].into_iter().sum::<Count>().to_string(),
            "2 of 14 sentences hold; case by case 12 of 16; not counted: 6 chose a parameter (6 of them do not hold all the same), 6 follow from others, 4 were not run"
        );
        assert_eq!(Count::of(&claims[..2]).to_string(), "1 of 1 sentences hold; case by case 2 of 2");
    }

    #[test]
    fn a_spread_holds_only_if_both_ends_do() {
        let spread = |ours: &[f64]| Claim::spread("c", "p", ours, (2.0, 6.0), "x");
        assert!(spread(&[2.0, 5.0]).holds());
        assert!(!spread(&[1.0, 5.0]).holds());
        assert!(!spread(&[3.0, 7.0]).holds());
        assert!(!spread(&[]).holds(), "nothing measured is not a success");
        assert_eq!(spread(&[2.0, 5.0]).ours, "2.00x to 5.00x");
    }
}
