//! `dcd man`: manual pages. Section 1 has the program and each command, 5 stack files, 7 the guides of docs/.

mod guide;

use std::path::Path;

use clap_mangen::Man as Page;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use dcd_stack::Inputs;

use crate::cli::{Man, STATUS_FIELDS};
use crate::commands::Program;
use crate::failure::Failure;

/// A guide of docs/: its name without ".md", and its text.
pub type Guide = (&'static str, &'static str);

/// The guides for administrators, as manual pages of `dcd`.
pub const GUIDES: &[Guide] = &[
    ("administration", include_str!("../../../../../docs/administration.md")),
    ("arrays", include_str!("../../../../../docs/arrays.md")),
    ("clients", include_str!("../../../../../docs/clients.md")),
    ("failures", include_str!("../../../../../docs/failures.md")),
    ("monitoring", include_str!("../../../../../docs/monitoring.md")),
    ("remote", include_str!("../../../../../docs/remote.md")),
    ("promises", include_str!("../../../../../docs/promises.md")),
    ("runbook", include_str!("../../../../../docs/runbook.md")),
    ("several-disks", include_str!("../../../../../docs/several-disks.md")),
];

/// The guides that are manual pages of `dcd-lab`.
const LAB_GUIDES: [&str; 2] = ["drives", "traces"];

/// Guides that the pages of commands refer to, by the first word of the command.
const TOPICS: &[(&str, &str)] = &[
    ("array", "arrays"),
    ("attach", "clients"),
    ("check", "failures"),
    ("create", "promises"),
    ("detach", "failures"),
    ("doctor", "monitoring"),
    ("drive", "drives"),
    ("format", "promises"),
    ("metrics", "monitoring"),
    ("rescue", "failures"),
    ("serve", "remote"),
    ("serve", "runbook"),
    ("status", "monitoring"),
    ("status", "runbook"),
    ("stop", "clients"),
    ("top", "monitoring"),
    ("trace", "traces"),
    ("tune", "traces"),
    ("ublk", "clients"),
];

pub fn run(args: &Man, program: &Program) -> Result<(), Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
    let mut command = (program.command)().disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    let source = format!("{name} {}", command.get_version().unwrap_or_default());
    let pages = Pages { directory, name: &name, source: &source, guides: program.guides };
    pages.commands(&command)?;
    pages.write(&format!("{name}-stack.5"), &pages.stack_files().render())?;
    for (guide, text) in program.guides {
        pages.write(&format!("{name}-{guide}.7"), &guide::page(text, guide, &pages).render())?;
    }
    Ok(())
}

/// The pages of one program.
struct Pages<'a> {
    directory: &'a Path,
    name: &'a str,
    source: &'a str,
    guides: &'a [Guide],
}

impl Pages<'_> {
    fn write(&self, file: &str, text: &str) -> Result<(), Failure> {
        Ok(Inputs::default().write(&self.directory.join(file), text)?)
    }

    /// Writes the page of a command, and those of its subcommands.
    fn commands(&self, command: &clap::Command) -> Result<(), Failure> {
        let shown = || command.get_subcommands().filter(|part| !part.is_hide_set());
        shown().try_for_each(|part| self.commands(part))?;
        let page = Page::new(command.clone()).date(" ").source(self.source).manual(self.name);
        let mut text = Vec::new();
        let mut render = || {
            page.render_title(&mut text)?;
            page.render_name_section(&mut text)?;
            synopsis(command).to_writer(&mut text)?;
            page.render_description_section(&mut text)?;
            if command.get_arguments().any(|argument| !argument.is_hide_set()) {
                page.render_options_section(&mut text)?;
            }
            if shown().next().is_some() {
                page.render_subcommands_section(&mut text)?;
            }
            self.rest(command).to_writer(&mut text)
        };
        render().map_err(|e| Failure::io(self.directory.display(), e))?;
        self.write(&page.get_filename(), &String::from_utf8_lossy(&text))
    }

    /// The text after the options, and the pages to see.
    fn rest(&self, command: &clap::Command) -> Roff {
        let mut page = Roff::new();
        let help = command.get_after_long_help().or_else(|| command.get_after_help());
        let mut help = help.map(ToString::to_string).unwrap_or_default();
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        if name.strip_prefix(self.name) == Some("-status") {
            help = format!("{help}\n\n{STATUS_FIELDS}");
        }
        let mut has_notes = false;
        for paragraph in help.split("\n\n") {
            let (first, lines) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
            match first {
                "Examples:" => examples(page.control("SH", ["EXAMPLES"]), lines),
                "Exit codes:" => fields(page.control("SH", ["EXIT STATUS"]), lines),
                "" => {}
                _ => {
                    if !std::mem::replace(&mut has_notes, true) {
                        page.control("SH", ["NOTES"]);
                    }
                    if lines.starts_with(' ') {
                        fields(page.control("SS", [first.trim_end_matches(':')]), lines);
                    } else {
                        page.control("PP", []).text([roman(paragraph)]);
                    }
                }
            }
        }
        let words: Vec<&str> = name.strip_prefix(self.name).unwrap_or_default().split('-').collect();
        let is_program = words.len() < 2;
        let topics =
            |guide: &str| is_program || TOPICS.iter().any(|(of, topic)| of == &words[1] && topic == &guide);
        let guides = self.guides.iter().filter(|(guide, _)| topics(guide));
        let guides = guides.map(|(guide, _)| format!("{}-{guide}(7)", self.name));
        let program = (!is_program).then(|| format!("{}(1)", self.name));
        see_also(&mut page, program.into_iter().chain([format!("{}-stack(5)", self.name)]).chain(guides));
        page
    }

    /// The reference of stack files as a page.
    fn stack_files(&self) -> Roff {
        let name = format!("{}-stack", self.name);
        let mut page = Roff::new();
        page.control("TH", [name.as_str(), "5", " ", self.source, self.name]);
        page.control("SH", ["NAME"]).text([roman(format!("{name} - stack files of dcd"))]);
        page.control("SH", ["DESCRIPTION"]);
        for paragraph in dcd_stack::reference().split("\n\n") {
            match paragraph.lines().next() {
                Some(first) if first.contains(" = ") || first.starts_with('[') => {
                    fields(&mut page, paragraph);
                }
                _ => {
                    page.control("PP", []).text([roman(paragraph)]);
                }
            }
        }
        let guides = self.guides.iter().map(|(guide, _)| format!("{}-{guide}(7)", self.name));
        see_also(&mut page, [format!("{}(1)", self.name)].into_iter().chain(guides));
        page
    }
}

/// The usage of the command, which names the values that it needs.
fn synopsis(command: &clap::Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]).control("ad", ["l"]);
    page.text([roman(usage.trim_start_matches("Usage: "))]).control("ad", []);
    page
}

/// Fields and what they mean: the meaning begins after two spaces, and goes on in lines that are indented far.
fn fields(page: &mut Roff, lines: &str) {
    for line in lines.lines() {
        let (field, meaning) = match line.trim_start() {
            meaning if line.len() - meaning.len() > 10 => ("", meaning),
            field => field.split_once("  ").unwrap_or((field, "")),
        };
        if field.starts_with('[') {
            page.control("SS", [field]);
        } else if !field.is_empty() {
            page.control("TP", []).text([bold(field)]);
        }
        if !meaning.is_empty() {
            page.text([roman(meaning.trim_start())]);
        }
    }
}

/// Commands, below them their further lines, and indented most, what they do.
fn examples(page: &mut Roff, lines: &str) {
    let mut lines = lines.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("      ") {
            page.control("RS", ["4"]).text([roman(text)]).control("RE", []);
            continue;
        }
        let mut command = vec![line.trim_start()];
        let goes_on = |line: &&str| line.starts_with("    ") && !line.starts_with("      ");
        command.extend(std::iter::from_fn(|| lines.next_if(goes_on)));
        page.control("PP", []);
        unfilled(page, command, bold);
    }
}

/// Lines as they are, and as far to the left as 80 columns need. The next paragraph has its own indentation.
fn unfilled(page: &mut Roff, lines: Vec<&str>, style: impl Fn(String) -> Inline) {
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let indent = 80usize.saturating_sub(longest).min(7);
    page.control("nf", []).control("in", [format!("{indent}n").as_str()]);
    for line in lines {
        page.text([style(line.to_owned())]);
    }
    page.control("fi", []);
}

fn see_also(page: &mut Roff, pages: impl Iterator<Item = String>) {
    let mut text: Vec<Inline> = Vec::new();
    for named in pages {
        let (name, section) = named.split_at(named.find('(').unwrap_or(named.len()));
        if !text.is_empty() {
            text.push(roman(", "));
        }
        text.extend([bold(name), roman(section)]);
    }
    page.control("SH", ["SEE ALSO"]).text(text);
}
