//! Writes the report of `dcd tune`: a table of the candidates that are worth their price, the recommendation with its reasons, how sure the
//! recommendation is, and what was assumed.

use std::fmt::Write;

use dcd_engine::log_cache::Promise;
use dcd_stack::HumanBytes;
use serde_json::{Value, json};

use super::candidates::{Candidate, Medium, Setting};
use super::measure::SATURATED;
use super::search::{ALIKE, Found, Objective, Tried};
use crate::load::{DISTANCE_BLOCK_BYTES, Workload};

/// A time in milliseconds, where there is one.
fn or_dash(ms: Option<f64>) -> String {
    ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"))
}

/// Maximum number of equally good candidates that are named.
const EITHER_SHOWN: usize = 5;

/// Everything that is told.
pub struct Report<'a> {
    pub trace: String,
    pub setting: &'a Setting,
    pub workload: &'a Workload,
    pub objective: Objective,
    pub within: f64,
    pub found: &'a Found,
    /// (bytes of cache, share of the writes that LRU absorbs), from one pass over the trace.
    pub overwrites: Vec<(f64, f64)>,
    pub written_bytes: u64,
}

impl<'a> Report<'a> {
    pub fn new(
        trace: String,
        setting: &'a Setting,
        workload: &'a Workload,
        (objective, within): (Objective, f64),
        found: &'a Found,
    ) -> Report<'a> {
        let overwrites = workload.overwrites();
        let bytes = |blocks: u64| blocks * DISTANCE_BLOCK_BYTES;
        Report {
            trace,
            setting,
            workload,
            objective,
            within,
            found,
            overwrites: overwrites
                .curve()
                .into_iter()
                .map(|(blocks, share)| (bytes(blocks) as f64, share))
                .collect(),
            written_bytes: bytes(overwrites.footprint()),
        }
    }

    pub fn recommended_words(&self) -> String {
        self.recommended().candidate.words()
    }

    /// Names the candidates that the trace cannot tell from the recommendation; none if there are no such candidates.
    pub fn either(&self) -> Option<String> {
        let others: Vec<String> = self.either_words();
        if others.is_empty() && self.found.either_guessed == 0 {
            return None;
        }
        let mut text = String::new();
        if !others.is_empty() {
            let shown = others.len().min(EITHER_SHOWN);
            text = format!("Either that, or: {}", others[..shown].join("; or "));
            if others.len() > shown {
                let _ = write!(text, "; or {} more", others.len() - shown);
            }
            let _ = write!(
                text,
                ". They are within {:.0} % of the best, or differ from it by no more than parts of the trace differ from each other; the \
                 cheaper and simpler come first.",
                100.0 * ALIKE
            );
        }
        if self.found.either_guessed > 0 {
            let space = if text.is_empty() { "" } else { " " };
            let _ = write!(
                text,
                "{space}The interval of {} guesses overlaps with the best, too.",
                self.found.either_guessed
            );
        }
        Some(text)
    }

    /// Names the simplest settings of each cache; of the recommended one, how many other settings there are.
    fn either_words(&self) -> Vec<String> {
        let found = self.found;
        let candidate = |index: &usize| &found.tried[*index].candidate;
        let own = self.recommended().candidate.cost();
        let mut words: Vec<String> = Vec::new();
        for alike in found.either.chunk_by(|a, b| candidate(a).cost() == candidate(b).cost()) {
            let others = alike.len() - usize::from(alike.contains(&found.recommended));
            match candidate(&alike[0]) {
                _ if others == 0 => {}
                first if first.cost() == own => {
                    words.push(format!("the same cache with {others} other settings"))
                }
                first => words.push(first.words()),
            }
        }
        words
    }

    fn recommended(&self) -> &Tried {
        &self.found.tried[self.found.recommended]
    }

    /// Without a cache. It is always run in full, as the only one of its medium.
    fn plain(&self) -> &Tried {
        &self.found.tried[0]
    }

    /// The candidates that are better than everything cheaper of the same medium, the cheapest first.
    pub fn front(&self) -> Vec<&Tried> {
        let mut front: Vec<&Tried> = Vec::new();
        for tried in self.found.tried.iter().filter(|tried| tried.value.is_finite()) {
            let rivals = front.iter().position(|other| other.candidate.cost() == tried.candidate.cost());
            let cheaper = front.iter().filter(|other| {
                other.candidate.medium == tried.candidate.medium
                    && other.candidate.bytes < tried.candidate.bytes
            });
            let best = cheaper.map(|other| other.value).fold(f64::INFINITY, f64::min);
            // What is better by less than can be told apart is not worth a larger cache.
            if tried.value * (1.0 + self.within) >= best && tried.candidate.medium != Medium::None {
                continue;
            }
            match rivals {
                Some(at) if front[at].value > tried.value => front[at] = tried,
                Some(_) => {}
                None => front.push(tried),
            }
        }
        front
    }

    /// The text for the terminal.
    pub fn text(&self) -> String {
        let mut text = self.heading() + "\n\n";
        text += &self.table();
        let _ = write!(text, "\nRecommended: {}\n", self.recommended().candidate.words());
        if let Some(either) = self.either() {
            let _ = writeln!(text, "{either}");
        }
        for paragraph in [self.reasons(), self.certainty()] {
            let _ = write!(text, "\n{paragraph}\n");
        }
        text += "\nAssumed:\n";
        for assumption in self.assumptions() {
            let _ = writeln!(text, "- {assumption}");
        }
        text
    }

    fn heading(&self) -> String {
        let Workload { requests, writes, .. } = self.workload;
        let seconds = self.workload.span().as_secs_f64();
        format!(
            "{}: {} requests in {seconds:.0} s, {:.0} % of them writes, to {} in all; on the drive {}.\n\
             {} candidates, by {}.",
            self.trace,
            requests.len(),
            100.0 * *writes as f64 / requests.len() as f64,
            HumanBytes(self.written_bytes),
            self.setting.drive.name(),
            self.found.tried.len(),
            self.objective.words()
        )
    }

    /// The columns of numbers, and how wide they are.
    fn columns(&self) -> Vec<(&'static str, usize)> {
        let mut columns = Vec::new();
        if self.priced() {
            columns.extend([("cost", 9), ("saves/1", 12)]);
        }
        columns.extend([
            ("mean ms", 10),
            ("95 % ms", 10),
            ("reads ms", 10),
            ("writes ms", 10),
            ("writes", 8),
            ("busy", 8),
        ]);
        columns
    }

    fn priced(&self) -> bool {
        self.found.tried.iter().any(|tried| tried.candidate.price_millionths > 0)
    }

    /// Returns the columns of a row: its price and the figures that are known in full; or its price and a guess.
    fn numbers(&self, tried: &Tried) -> (Vec<String>, Option<String>) {
        let mut numbers = Vec::new();
        if self.priced() {
            let price = tried.candidate.price();
            let saved = self.plain().value - tried.value;
            numbers.push(format!("{price:.4}"));
            numbers.push(if price > 0.0 { self.objective.text(saved / price) } else { "-".to_owned() });
        }
        let Some(full) = &tried.full else { return (numbers, Some(self.guess(tried))) };
        numbers.extend([
            format!("{:.3}", full.mean_ms),
            format!("{:.3}", full.p95_ms),
            or_dash(full.read_mean_ms),
            or_dash(full.write_mean_ms),
            format!("{:.1} %", self.share(full.disk_writes as f64, |plain| plain.disk_writes as f64)),
            format!("{:.1} %", self.share(full.disk_busy_s, |plain| plain.disk_busy_s)),
        ]);
        (numbers, None)
    }

    /// Explains the columns.
    fn legend(&self) -> String {
        let mut text = String::from(
            "Writes at the disk and its busy time are percentages of those without a cache. Of each size the best policy, where it \
             is better than everything smaller.",
        );
        if self.priced() {
            let _ = write!(
                text,
                " The cost is that of the bytes of the cache, in the currency of the prices; saves/1 is what one unit of it saves of the {}.",
                self.objective.words()
            );
        }
        text
    }

    fn table(&self) -> String {
        let mut text = format!("  {:<22} {:>8}  {:<38}", "cache", "size", "policy");
        let columns = self.columns();
        for (name, width) in &columns {
            let _ = write!(text, " {name:>width$}");
        }
        text.push('\n');
        for tried in self.front() {
            let Candidate { medium, bytes, .. } = tried.candidate;
            let mark = if tried.candidate == self.recommended().candidate { '*' } else { ' ' };
            let size = if medium == Medium::None { "-".to_owned() } else { HumanBytes(bytes).to_string() };
            let _ =
                write!(text, "{mark} {:<22} {size:>8}  {:<38}", medium.words(), tried.candidate.settings());
            let (numbers, guess) = self.numbers(tried);
            for (number, (_, width)) in numbers.iter().zip(&columns) {
                let _ = write!(text, " {number:>width$}");
            }
            let _ = writeln!(text, "{}", guess.map_or(String::new(), |guess| format!(" {guess}")));
        }
        text + &self.legend() + "\n"
    }

    /// The table as HTML. Numbers stay on one line; on a narrow screen the table is scrolled.
    pub fn html_table(&self) -> String {
        let mut html = String::from("<div class=\"table\"><table>\n<tr><th>cache<th>size<th>policy");
        let columns = self.columns();
        for (name, _) in &columns {
            let _ = write!(html, "<th class=\"number\">{name}");
        }
        html += "</tr>\n";
        for tried in self.front() {
            let Candidate { medium, bytes, .. } = tried.candidate;
            let size = if medium == Medium::None { "-".to_owned() } else { HumanBytes(bytes).to_string() };
            let settings = tried.candidate.settings();
            let _ = write!(html, "<tr><td>{}<td class=\"number\">{size}<td>{settings}", medium.words());
            let (numbers, guess) = self.numbers(tried);
            for number in &numbers {
                let _ = write!(html, "<td class=\"number\">{number}");
            }
            if let Some(guess) = guess {
                let _ = write!(html, "<td colspan=\"{}\">{guess}", columns.len() - numbers.len());
            }
            html += "</tr>\n";
        }
        let _ = writeln!(html, "</table></div>\n<p>{}</p>", self.legend());
        html
    }

    /// Formats a value that is guessed, as a guess.
    pub fn guess(&self, tried: &Tried) -> String {
        match tried.interval {
            Some((low, high)) => {
                let [low, high] = [low, high].map(|value| self.objective.text(value));
                format!("guess: {}, between {low} and {high}", self.objective.text(tried.value))
            }
            None => "not known: the sample saturated it, so nothing was scaled up".to_owned(),
        }
    }

    /// Percent of what it is without a cache.
    fn share(&self, ours: f64, of: impl Fn(&super::measure::Measured) -> f64) -> f64 {
        100.0 * ours / of(self.plain_measured()).max(f64::MIN_POSITIVE)
    }

    fn plain_measured(&self) -> &super::measure::Measured {
        self.plain().full.as_ref().expect("no cache is run in full")
    }

    /// Why this one, and what it saves.
    pub fn reasons(&self) -> String {
        let objective = self.objective;
        let (ours, plain, best) = (self.recommended(), self.plain(), &self.found.tried[self.found.best]);
        let ratio = |value: f64| format!("{:.1} %", 100.0 * (value - 1.0));
        let mut text = format!("The {} is {}", objective.words(), objective.text(ours.value));
        let measured = ours.full.as_ref().expect("what is recommended was run in full");
        if ours.candidate.medium == Medium::None {
            text += ": none of the caches makes it smaller by more than what was asked for.";
        } else {
            let _ = write!(
                text,
                ", without a cache {}: {:.1} times as much. The disk makes {:.0} % of the writes and is busy for {:.0} % of the \
                 time.",
                objective.text(plain.value),
                plain.value / ours.value,
                self.share(measured.disk_writes as f64, |plain| plain.disk_writes as f64),
                self.share(measured.disk_busy_s, |plain| plain.disk_busy_s)
            );
        }
        if best.candidate != ours.candidate {
            let _ = write!(
                text,
                " The best was {} with {}; this one is within {} of it and needs less.",
                best.candidate.words(),
                objective.text(best.value),
                ratio(ours.value / best.value)
            );
        }
        let cheaper = self.front().into_iter().filter(|tried| {
            tried.candidate.cost() < ours.candidate.cost() && tried.candidate.medium != Medium::None
        });
        if let Some(next) = cheaper.min_by(|a, b| a.value.total_cmp(&b.value)) {
            let _ = write!(
                text,
                " The best of those that need less, {}, is {} worse.",
                next.candidate.words(),
                ratio(next.value / ours.value)
            );
        }
        if let Some((_, most)) = self.overwrites.last() {
            let size =
                self.overwrites.iter().find(|(_, share)| *share >= 0.9 * most).map_or(0.0, |point| point.0);
            let _ = write!(
                text,
                " Of the written blocks {:.0} % overwrite an earlier write; an LRU cache of {} would absorb nine tenths of those.",
                100.0 * most,
                HumanBytes((size as u64).next_multiple_of(DISTANCE_BLOCK_BYTES))
            );
        }
        text
    }

    /// Explains how sure the recommendation is.
    pub fn certainty(&self) -> String {
        let found = self.found;
        let run = found.runs;
        let text = match found.sample {
            None => format!("How sure: every one of the {run} candidates was run with the whole trace."),
            Some(requests) => {
                let doubts: Vec<String> = found
                    .doubts
                    .iter()
                    .map(|(medium, doubt)| format!("{} {:.0} %", medium.words(), 100.0 * doubt))
                    .collect();
                let mut text = format!(
                    "How sure: all candidates were run with a sample of {requests} requests (one unit of the disk in {}, with \
                     caches smaller by as much), and {run} of {} with the whole trace.",
                    found.sampled_one_in,
                    found.tried.len()
                );
                let unknown = found.tried.iter().filter(|tried| !tried.value.is_finite()).count();
                if let Some(factor) = found.misled_by {
                    let _ = write!(
                        text,
                        " The sample was off by a factor of {factor:.1} for one of those: requests come in bursts, and with fewer of them \
                         they wait less. So nothing is guessed from it."
                    );
                    if unknown > 0 {
                        let _ = write!(
                            text,
                            " The other {unknown} looked worse with the sample, and more is not known of them: raise --full-max to be surer."
                        );
                    }
                    return text + &self.verification();
                }
                if unknown > 0 {
                    let _ = write!(
                        text,
                        " The sample saturated {unknown} that were not run with the whole trace: nothing is known of them."
                    );
                }
                text += &match found.left_open {
                    0 => format!(
                        " Another one can be better by more than {} % only if the sample is wrong about it by more than it was \
                         about those ({}).",
                        100.0 * self.within,
                        doubts.join(", ")
                    ),
                    left => format!(
                        " {left} more could be better, or cheaper and as good, as far as the sample can tell, and were not run: raise --full-max to be \
                         surer."
                    ),
                };
                text
            }
        };
        text + &self.verification()
    }

    /// The outcome of --verify.
    fn verification(&self) -> String {
        let Some(verified) = &self.found.verified else { return String::new() };
        let mut text = format!(
            " Verified: of the whole grid, run in full, the best is {}; the recommendation is {:.1} % worse.",
            verified.best, verified.worse_percent
        );
        if verified.guesses > 0 {
            let _ = write!(
                text,
                " Of {} guesses from the sample {} were right within their interval; the worst was off by {:.0} %.",
                verified.guesses, verified.intervals_held, verified.guess_off_percent_max
            );
        }
        text
    }

    /// Lists the assumptions.
    pub fn assumptions(&self) -> Vec<String> {
        let promise = match (self.setting.promise, self.workload.flushes) {
            (Promise::Always, 0) => {
                "a log makes each write durable before it answers, as the trace has no flushes and no FUA"
            }
            (Promise::Always, _) => "a log makes each write durable before it answers",
            (Promise::Flush | Promise::Ordered, _) => "a log makes writes durable when the trace flushes",
        };
        let mut all = vec![
            "requests come when the trace says, however long those before them take".to_owned(),
            format!("the disk behaves like {} with its write cache off", self.setting.drive.description()),
            "an SSD takes 80 us for an operation, however many it has, another disk for a log is like the first; RAM takes no time".to_owned(),
            promise.to_owned(),
            "caches are empty at first, and what they hold at the end is destaged and counted".to_owned(),
            match self.priced() {
                true => "the cheaper is what costs less for its bytes; of equals, nothing to buy, then another disk, an SSD, NVRAM",
                false => "nothing to buy is cheaper than another disk, another disk than an SSD; then the smaller is cheaper",
            }
            .to_owned(),
        ];
        if self.found.tried.iter().any(|tried| tried.candidate.medium == Medium::Nvram) {
            all.push(
                "NVRAM survives a power cut and the server's end: the server's own RAM does not, and dcd-lab serves RAM as NVRAM only \
                 with --i-have-nvram"
                    .to_owned(),
            );
        }
        let seconds = self.workload.span().as_secs_f64();
        if self.plain_measured().disk_busy_s > SATURATED * seconds {
            all.push(
                "without a cache the drive is busy all the time and requests pile up: the trace comes from a faster disk, and response \
                 times say little (--drive, or dcd trace scale --time)"
                    .to_owned(),
            );
        }
        all.extend(self.workload.notes.iter().cloned());
        all
    }

    /// Everything, for programs.
    pub fn json(&self) -> Value {
        let of = |tried: &Tried| {
            json!({
                "medium": tried.candidate.medium,
                "bytes": tried.candidate.bytes,
                "price": tried.candidate.price(),
                "policy": tried.candidate.settings(),
                "value": tried.value,
                "interval": tried.interval,
                "in_full": tried.full,
                "sampled": tried.sampled,
            })
        };
        json!({
            "trace": self.trace,
            "drive": self.setting.drive.name(),
            "objective": self.objective,
            "requests": self.workload.requests.len(),
            "seconds": self.workload.span().as_secs_f64(),
            "written_bytes": self.written_bytes,
            "plain": of(self.plain()),
            "recommended": of(self.recommended()),
            "best": of(&self.found.tried[self.found.best]),
            "either": self.found.either.iter().map(|&index| of(&self.found.tried[index])).collect::<Vec<_>>(),
            "either_guessed": self.found.either_guessed,
            "reasons": self.reasons(),
            "certainty": self.certainty(),
            "assumptions": self.assumptions(),
            "sample_requests": self.found.sample,
            "left_open": self.found.left_open,
            "verified": self.found.verified,
            "candidates": self.found.tried.iter().map(of).collect::<Vec<_>>(),
            "lru_absorbs": self.overwrites,
        })
    }
}
