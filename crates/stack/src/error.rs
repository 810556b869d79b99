//! Errors that name the file, the line, what is wrong, and what to do.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// An error in a stack file, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct StackFileError {
    /// Empty where the stack was not in a file: its places mean nothing then.
    pub file: PathBuf,
    /// Line and column, from 1; none where the whole file is meant.
    pub position: Option<(usize, usize)>,
    pub message: String,
}

impl std::fmt::Display for StackFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.file.display();
        if self.file.as_os_str().is_empty() {
            return f.write_str(&self.message);
        }
        match self.position {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {}", self.message),
            None => write!(f, "{file}: {}", self.message),
        }
    }
}

/// The text that errors point into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub file: &'a Path,
    pub text: &'a str,
}

impl Source<'_> {
    pub fn error(&self, span: Range<usize>, message: impl Into<String>) -> StackFileError {
        let before = &self.text[..span.start.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        StackFileError { file: self.file.to_owned(), position: Some((line, column)), message: message.into() }
    }
}

impl Source<'_> {
    /// The line at a place as it should be, where it gives a word without quotes as a value.
    pub fn without_quotes(&self, at: usize) -> Option<String> {
        let at = at.min(self.text.len());
        let begin = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        let (key, value) = self.text[begin..].lines().next()?.split_once('=')?;
        let value = value.split('#').next()?.trim();
        let is_word = value.starts_with(char::is_alphabetic)
            && value.chars().all(|c| c.is_alphanumeric() || "-_./:".contains(c))
            && !["true", "false", "inf", "nan"].contains(&value);
        is_word.then(|| format!("{} = \"{value}\"", key.trim()))
    }
}

/// The word of `known` that `word` most likely was meant to be, if any is near.
pub(crate) fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |distance: usize| distance <= 1 + word.chars().count() / 4;
    let rated = known.into_iter().map(|candidate| (edit_distance(word, candidate), candidate));
    rated.filter(|(distance, _)| near(*distance)).min().map(|(_, candidate)| candidate)
}

/// Returns how many characters have to be inserted, removed or replaced to turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_columns_from_one() {
        let source = Source { file: Path::new("s.toml"), text: "a = 1\nbb = 2\n" };
        assert_eq!(source.error(0..1, "x").to_string(), "s.toml:1:1: x");
        assert_eq!(source.error(11..12, "x").to_string(), "s.toml:2:6: x");
    }

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["promise", "delay-max", "log", "data"];
        assert_eq!(suggestion("promis", known), Some("promise"));
        assert_eq!(suggestion("delay_max", known), Some("delay-max"));
        assert_eq!(suggestion("colour", known), None);
    }
}
