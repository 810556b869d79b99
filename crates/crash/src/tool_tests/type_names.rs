//! A type's name has one meaning in the product, so that a reader need not look at the imports.

use std::collections::BTreeMap;
use std::path::Path;

use super::documented_tests::sources;

/// Each layer's parts act on an `Env` of that layer.
const ACCEPTED: [&str; 1] = ["Env"];

/// Tests name what they need for themselves. The arguments of a command are named after the command.
fn names_for_itself(path: &Path) -> bool {
    let path = path.to_str().unwrap();
    let file = path.rsplit('/').next().unwrap();
    ["/lab/", "tests/", "/examples/", "/fuzz/"].iter().any(|folder| path.contains(folder))
        || file.starts_with("cli")
        || file.starts_with("test")
        || file.contains("_test")
}

/// The name that a line gives to a type of a module.
fn name_of(line: &str) -> Option<&str> {
    let words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "in");
    let mut words = words.skip_while(|word| word.ends_with(')'));
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&words.next()?);
    let name = words.next()?.split(|next: char| !next.is_alphanumeric()).next()?;
    (is_type && !line.starts_with(' ')).then_some(name)
}

#[test]
fn no_name_of_a_type_is_given_twice() {
    assert_eq!(name_of("pub(super) struct Queue<T> {"), Some("Queue"));
    assert_eq!(
        (name_of("type Row = u8;"), name_of("    type Row;"), name_of("use x;")),
        (Some("Row"), None, None)
    );
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (path, text) in sources().iter().filter(|(path, _)| !names_for_itself(path)) {
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = name_of(line) {
                places.entry(name.into()).or_default().push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(places.len() > 800, "{} names of types", places.len());
    places.retain(|name, places| places.len() > 1 && !ACCEPTED.contains(&name.as_str()));
    assert!(places.is_empty(), "names of more than one type: {places:#?}");
}
