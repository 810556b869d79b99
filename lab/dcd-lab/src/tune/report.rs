//! Writes the report of `dcd tune`: a table of the candidates that are worth their price, the recommendation with its reasons, how sure the
//! recommendation is, and what was assumed.

use std::fmt::Write;

use dcd_engine::log_cache::Promise;
use dcd_stack::HumanBytes;
use dcd_studies::Table;
use serde_json::{Value, json};

use super::candidates::{Medium, Setting};
use super::measure::{PARTS, SATURATED};
use super::search::{ALIKE, Found, Objective, Tried, speedups};
use crate::load::Workload;

/// A time in milliseconds, where there is one.
fn or_dash(ms: Option<f64>) -> String {
    ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"))
}

const YEAR_SECONDS: f64 = 365.0 * 86_400.0;
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
        let bytes = |blocks: u64| blocks * u64::from(workload.block_bytes);
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
        if others.is_empty() {
            return None;
        }
        let shown = others.len().min(EITHER_SHOWN);
        let mut text = format!("Either that, or: {}", others[..shown].join("; or "));
        if others.len() > shown {
            let _ = write!(text, "; or {} more", others.len() - shown);
        }
        let _ = write!(
            text,
            ". They are within {:.0} % of the best, or differ from it by no more than parts of the trace differ from each other; the \
             cheaper and simpler come first.",
            100.0 * ALIKE
        );
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
                    let one = if others == 1 { "setting" } else { "settings" };
                    words.push(format!("the same cache with {others} other {one}"))
                }
                first => words.push(first.words()),
            }
        }
        words
    }

    fn recommended(&self) -> &Tried {
        &self.found.tried[self.found.recommended]
    }

    /// Without a cache.
    fn plain(&self) -> &Tried {
        &self.found.tried[0]
    }

    /// The rows of the table, the cheapest first: no cache, with the drive's own write cache and without; the recommended one; and of
    /// each size of a medium the best that is better than everything smaller.
    pub fn rows(&self) -> Vec<&Tried> {
        let mut rows: Vec<&Tried> = std::iter::once(self.plain()).chain(&self.found.as_sold).collect();
        let caches = self.found.tried.iter().filter(|tried| tried.candidate.medium != Medium::None);
        for of_cost in caches.collect::<Vec<_>>().chunk_by(|a, b| a.candidate.cost() == b.candidate.cost()) {
            let recommended = of_cost.iter().find(|tried| tried.candidate == self.recommended().candidate);
            let best =
                of_cost.iter().min_by(|a, b| a.value.total_cmp(&b.value)).expect("a chunk is not empty");
            let medium = best.candidate.medium;
            let smaller = rows.iter().filter(|row| row.candidate.medium == medium).map(|row| row.value);
            // What is better by less than can be told apart is not worth a larger cache.
            if recommended.is_some()
                || best.value * (1.0 + self.within) < smaller.fold(f64::INFINITY, f64::min)
            {
                rows.push(recommended.unwrap_or(best));
            }
        }
        rows
    }

    /// The text for the terminal.
    pub fn text(&self) -> String {
        let mut text = self.heading() + "\n\n";
        let _ = writeln!(text, "{}{}", self.table().text(), self.legend());
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

    pub fn heading(&self) -> String {
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

    fn priced(&self) -> bool {
        self.found.tried.iter().any(|tried| tried.candidate.price_millionths > 0)
    }

    /// The table; the recommended row has a star.
    pub fn table(&self) -> Table {
        let prices = if self.priced() { "cost | saves/1 | " } else { "" };
        let columns = format!(
            " | cache | size | policy | {prices}mean ms | 95 % ms | reads ms | writes ms | writes | busy"
        );
        let mut table = Table::new("", &columns);
        for Tried { candidate, measured, value } in self.rows() {
            let mark = if *candidate == self.recommended().candidate { "*" } else { "" };
            let size = match candidate.medium {
                Medium::None => "-".to_owned(),
                _ => HumanBytes(candidate.bytes).to_string(),
            };
            let mut cells =
                vec![mark.to_owned(), candidate.medium.words().to_owned(), size, candidate.settings()];
            if self.priced() {
                let price = candidate.price();
                let saved = self.plain().value - value;
                cells.push(format!("{price:.4}"));
                cells.push(if price > 0.0 { self.objective.text(saved / price) } else { "-".to_owned() });
            }
            cells.extend([
                format!("{:.3}", measured.mean_ms),
                format!("{:.3}", measured.p95_ms),
                or_dash(measured.read_mean_ms),
                or_dash(measured.write_mean_ms),
                format!("{:.1} %", self.share(measured.disk_writes as f64, |plain| plain.disk_writes as f64)),
                format!("{:.1} %", self.share(measured.disk_busy_s, |plain| plain.disk_busy_s)),
            ]);
            table.row(cells);
        }
        table
    }

    /// Explains the columns.
    pub fn legend(&self) -> String {
        let mut text = String::from(
            "Writes at the disk and its busy time are percentages of those without a cache. Of each size the best policy, where it \
             is better than everything smaller.",
        );
        if self.found.as_sold.is_some() {
            text += " The drive's own write cache loses acknowledged writes at a power cut, so that row is never recommended.";
        }
        if self.priced() {
            let _ = write!(
                text,
                " The cost is that of the bytes of the cache, in the currency of the prices; saves/1 is what one unit of it saves of the {}.",
                self.objective.words()
            );
        }
        text
    }

    /// Percent of what it is without a cache.
    fn share(&self, ours: f64, of: impl Fn(&super::measure::Measured) -> f64) -> f64 {
        100.0 * ours / of(&self.plain().measured).max(f64::MIN_POSITIVE)
    }

    /// Why this one, and what it saves.
    pub fn reasons(&self) -> String {
        let objective = self.objective;
        let (ours, plain, best) = (self.recommended(), self.plain(), &self.found.tried[self.found.best]);
        let ratio = |value: f64| format!("{:.1} %", 100.0 * (value - 1.0));
        let mut text = format!("The {} is {}", objective.words(), objective.text(ours.value));
        let measured = &ours.measured;
        if ours.candidate.medium == Medium::None {
            text += ": none of the caches makes it smaller by more than what was asked for.";
        } else {
            let _ = write!(
                text,
                ", and {} without a cache, {:.1} times as much. The disk makes {:.0} % of the writes and is busy for {:.0} % of the \
                 time.",
                objective.text(plain.value),
                plain.value / ours.value,
                self.share(measured.disk_writes as f64, |plain| plain.disk_writes as f64),
                self.share(measured.disk_busy_s, |plain| plain.disk_busy_s)
            );
        }
        if ours.candidate.medium == Medium::Ssd {
            text += &self.wear(measured.log_bytes);
        }
        if best.candidate.cost() != ours.candidate.cost() {
            let _ = write!(
                text,
                " The best was {} with {}; this one is within {} of it and needs less.",
                best.candidate.words(),
                objective.text(best.value),
                ratio(ours.value / best.value)
            );
        }
        let cheaper = self.found.tried.iter().filter(|tried| {
            tried.candidate.cost() < ours.candidate.cost() && tried.candidate.medium != Medium::None
        });
        let next = cheaper.min_by(|a, b| a.value.total_cmp(&b.value));
        if let Some(next) = next.filter(|next| next.value > ours.value) {
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
                HumanBytes((size as u64).next_multiple_of(u64::from(self.workload.block_bytes)))
            );
        }
        text
    }

    /// Describes how much is written to an SSD in a year like the trace, and how long it endures that.
    fn wear(&self, log_bytes: u64) -> String {
        let a_year =
            log_bytes as f64 * YEAR_SECONDS / self.workload.span().as_secs_f64().max(f64::MIN_POSITIVE);
        let mut text = format!(" A year like that writes {} to the SSD", HumanBytes(a_year as u64));
        if let Some(endurance) = self.setting.endurance_bytes {
            let _ = write!(
                text,
                ": its {} last for {:.1} years",
                HumanBytes(endurance),
                endurance as f64 / a_year
            );
        }
        text + "."
    }

    /// Explains how sure the recommendation is.
    pub fn certainty(&self) -> String {
        let mut text = format!(
            "How sure: each of {} candidates was measured with the whole trace.",
            self.found.tried.len()
        );
        let (low, high) = self.speedups(self.recommended());
        let _ = write!(
            text,
            " In {PARTS} parts of it, of as many requests each, the recommended one is {low:.1} to {high:.1} times as fast as no cache."
        );
        let Some(verified) = &self.found.verified else { return text };
        let _ = write!(
            text,
            " Verified: of {}, the best is {}; the recommendation is {:.1} % worse.",
            verified.candidates, verified.best, verified.worse_percent
        );
        text
    }

    fn speedups(&self, tried: &Tried) -> (f64, f64) {
        speedups(&tried.measured.parts_ms, &self.plain().measured.parts_ms)
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
            format!(
                "the disk behaves like {}{}",
                self.setting.drive.description(),
                self.setting.drive.rotating().map_or("", |_| " with its write cache off")
            ),
            match &self.setting.ssd {
                None => "an SSD takes 80 us for an operation, however many it has (--ssd-drive names one)".to_owned(),
                Some((_, ssd)) => format!("an SSD behaves like {}", ssd.description()),
            },
            "another disk for a log is like the first; RAM takes no time".to_owned(),
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
        if self.recommended().candidate.medium != Medium::None && self.recommended().measured.saturated {
            all.push(
                "the recommended cache does not keep up: the disk has no rest, or clients wait for room again and again, so a longer trace \
                 would have longer times"
                    .to_owned(),
            );
        }
        let seconds = self.workload.span().as_secs_f64();
        if self.plain().measured.disk_busy_s > SATURATED * seconds {
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
                "times_as_fast_in_parts": self.speedups(tried),
                "measured": tried.measured,
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
            "reasons": self.reasons(),
            "certainty": self.certainty(),
            "assumptions": self.assumptions(),
            "as_sold": self.found.as_sold.as_ref().map(of),
            "verified": self.found.verified,
            "candidates": self.found.tried.iter().map(of).collect::<Vec<_>>(),
            "lru_absorbs": self.overwrites,
        })
    }
}
