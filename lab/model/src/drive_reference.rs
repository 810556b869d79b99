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
    fn known(section: &str) -> BTreeSet<String> {
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let error = crate::Drive::parse(&format!("{header}no-such-field = 1\n")).unwrap_err().to_string();
        let (_, list) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{section}: {error}"));
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_reference_has_the_fields_that_the_reader_knows() {
        let mut sections: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut section = "";
        for line in fields().lines() {
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
        let outer = names.into_iter().filter(|name| !name.is_empty() && !name.contains('.'));
        sections.get_mut("").unwrap().extend(outer);
        assert_eq!(sections.len(), 8);
        for (section, fields) in sections {
            assert_eq!(fields, known(section), "[{section}]");
        }
    }
}
