//! Every field of a drive file, as docs/drive-file.md has them. A test holds the document against the reader.

const DOCUMENT: &str = include_str!("../../../docs/drive-file.md");

/// The tables of all fields, in Markdown: the document below its head.
pub fn fields() -> &'static str {
    let begin = DOCUMENT.find("Times are").expect("the tables begin so");
    &DOCUMENT[begin..]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The fields that the reader knows in a section: it lists them where one is unknown.
    fn known(begin: &str, section: &str) -> BTreeSet<String> {
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let error =
            crate::AnyDrive::parse(&format!("{begin}{header}no-such-field = 1\n")).unwrap_err().to_string();
        let (_, list) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{section}: {error}"));
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_reference_has_the_fields_that_the_reader_knows() {
        let (rotating, solid) = fields().split_once("## Without heads").expect("both kinds");
        has_all_fields(rotating, "", 8);
        has_all_fields(solid, "read-ms = 1\n", 2);
    }

    fn has_all_fields(text: &str, begin: &str, count: usize) {
        let mut sections: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut section = "";
        for line in text.lines() {
            if let Some((name, _)) = line.strip_prefix("`[").and_then(|line| line.split_once("]`: ")) {
                section = name;
            } else if let Some((field, _)) = line.strip_prefix("| `").and_then(|line| line.split_once('`')) {
                assert!(
                    sections.entry(section).or_default().insert(field.to_owned()),
                    "{field} is there twice"
                );
            }
        }
        let names: Vec<String> = sections.keys().map(|name| (*name).to_owned()).collect();
        let outer = names.into_iter().filter(|name| !name.is_empty() && !name.contains(['.', '[']));
        sections.get_mut("").unwrap().extend(outer);
        assert_eq!(sections.len(), count);
        for (section, fields) in sections {
            assert_eq!(fields, known(begin, section), "[{section}]");
        }
    }
}
