//! A guide as a manual page: the Markdown that the guides use, in the language of man(7).

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::Pages;

/// The page of a guide.
pub fn page(text: &str, guide: &str, pages: &Pages<'_>) -> Roff {
    let mut page = Roff::new();
    let name = format!("{}-{guide}", pages.name);
    page.control("TH", [name.as_str(), "7", " ", pages.source, pages.name]);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let inner = line.trim_start();
        let is_indented = inner.len() < line.len();
        if inner.is_empty() || inner.starts_with("|-") {
            continue;
        }
        if let Some(heading) = line.strip_prefix("# ") {
            let about = format!("{name} - {}", heading.to_lowercase());
            page.control("SH", ["NAME"]).text([roman(about)]).control("SH", ["DESCRIPTION"]);
        } else if let Some(heading) = line.strip_prefix("## ") {
            page.control("SH", [heading.replace('`', "").as_str()]);
        } else if let Some(heading) = line.strip_prefix("### ") {
            page.control("SS", [heading.replace('`', "").as_str()]);
        } else if inner.starts_with("```") {
            let code = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
            let code = code.map(|code| code.get(line.len() - inner.len()..).unwrap_or_default()).collect();
            page.control(if is_indented { "IP" } else { "PP" }, []);
            super::unfilled(&mut page, code, roman);
        } else if let Some(row) = inner.strip_prefix('|') {
            let mut cells = row.trim_end_matches('|').split(" | ").map(str::trim);
            let first = inline(cells.next().unwrap_or_default(), pages);
            page.control("TP", []).text(if first.is_empty() { vec![roman("-")] } else { first });
            let others = inline(&cells.collect::<Vec<_>>().join("; "), pages);
            if !others.is_empty() {
                page.text(others);
            }
        } else {
            let first = match item(inner) {
                Some((mark, text)) => {
                    page.control("IP", [mark, "3"]);
                    text
                }
                None => {
                    page.control(if is_indented { "IP" } else { "PP" }, []);
                    inner
                }
            };
            let mut paragraph = first.to_owned();
            while let Some(line) = lines.next_if(|line| goes_on(line)) {
                paragraph.push('\n');
                paragraph.push_str(line.trim_start());
            }
            page.text(inline(&paragraph, pages));
        }
    }
    let program = [format!("{}(1)", pages.name), format!("{}-stack(5)", pages.name)];
    let others = pages.guides.iter().filter(|(other, _)| *other != guide);
    let others = others.map(|(other, _)| format!("{}-{other}(7)", pages.name));
    super::see_also(&mut page, program.into_iter().chain(others));
    page
}

/// The mark and the text of an item of a list.
fn item(line: &str) -> Option<(&str, &str)> {
    if let Some(text) = line.strip_prefix("- ") {
        return Some(("\\(bu", text));
    }
    let (number, text) = line.split_once(". ")?;
    // A sentence may end with a number at the end of a line; no list of a guide has ten items.
    matches!(number.as_bytes(), [b'0'..=b'9']).then_some((&line[..2], text))
}

/// True for a line that belongs to the paragraph before it.
fn goes_on(line: &str) -> bool {
    let inner = line.trim_start();
    !inner.is_empty() && !inner.starts_with("```") && !inner.starts_with(['#', '|']) && item(inner).is_none()
}

/// Code, bold and italic text, and links. Code is printed bold. A link to a guide names its page.
fn inline(text: &str, pages: &Pages<'_>) -> Vec<Inline> {
    let mut parts = Vec::new();
    let (mut rest, mut plain) = (text, String::new());
    while let Some(start) = rest.find(['`', '*', '[']) {
        let (before, marked) = rest.split_at(start);
        plain.push_str(before);
        let found = ["`", "**", "*"].iter().find_map(|mark| {
            let (inner, after) = marked.strip_prefix(mark)?.split_once(mark)?;
            let is_marked = !inner.is_empty() && !inner.starts_with(' ');
            is_marked.then(|| (if *mark == "*" { italic(bare(inner)) } else { bold(bare(inner)) }, after))
        });
        if let Some((part, after)) = found {
            parts.extend([roman(std::mem::take(&mut plain)), part]);
            rest = after;
        } else if let Some((text, target, after)) = link(marked) {
            plain.push_str(&linked(text, target, pages));
            rest = after;
        } else {
            plain.push_str(&marked[..1]);
            rest = &marked[1..];
        }
    }
    plain.push_str(rest);
    parts.push(roman(plain));
    parts.retain(|part| !matches!(part, Inline::Roman(text) if text.is_empty()));
    parts
}

/// Text without the marks of code.
fn bare(text: &str) -> String {
    text.replace('`', "")
}

fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (text, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    (!text.contains(']')).then_some((text, target, after))
}

fn linked(text: &str, target: &str, pages: &Pages<'_>) -> String {
    let text = bare(text);
    let file = target.split('#').next().unwrap_or_default();
    let name = file.strip_suffix(".md").unwrap_or_default();
    let is_of = |guides: &[super::Guide]| guides.iter().any(|(guide, _)| *guide == name);
    let program = if is_of(pages.guides) {
        pages.name
    } else if is_of(super::GUIDES) {
        "dcd"
    } else if super::LAB_GUIDES.contains(&name) {
        "dcd-lab"
    } else {
        // The place of the documents that have no page.
        return if text == file { format!("share/doc/dcd/docs/{file}") } else { text };
    };
    let page = format!("{program}-{name}(7)");
    if text == file { page } else { format!("{text} ({page})") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn of(text: &str) -> String {
        let guides = &[("clients", "")];
        let pages = Pages { directory: Path::new(""), name: "dcd", source: "dcd 1", guides };
        page(text, "arrays", &pages).to_roff()
    }

    #[test]
    fn a_guide_becomes_a_page() {
        let text = "# Arrays\n\nFor *you*: run\n`dcd stop`.\n\n## `x` and y\n\n- **One** thing,\n  again\n\n  more\n\n1. Two:\n\n   ```\n   \
                    .a \\ b\n   ```\n\nSee [clients.md](clients.md#x), [stops](clients.md), [figures](benchmarks.md), [safety.md](safety.md) and [traces.md](traces.md).\n\n\
                    | file | |\n|---|---|\n| `a` | b |\n";
        let expected = ".TH dcd-arrays 7 \" \" \"dcd 1\" dcd\n.SH NAME\ndcd\\-arrays \\- arrays\n.SH DESCRIPTION\n.PP\nFor \\fIyou\\fR: run\n\
                        \\fBdcd stop\\fR.\n.SH \"x and y\"\n.IP \\(bu 3\n\\fBOne\\fR thing,\nagain\n.IP\nmore\n.IP 1. 3\nTwo:\n.IP\n.nf\n.in 7n\n\\&\
                        .a \\\\ b\n.fi\n.PP\nSee dcd\\-clients(7), stops (dcd\\-clients(7)), figures, share/doc/dcd/docs/safety.md and dcd\\-lab\\-traces(7).\n.TP\nfile\n.TP\n\\fBa\\fR\nb\n\
                        .SH \"SEE ALSO\"\n\\fBdcd\\fR(1), \\fBdcd\\-stack\\fR(5), \\fBdcd\\-clients\\fR(7)\n";
        assert_eq!(of(text), expected);
    }
}
