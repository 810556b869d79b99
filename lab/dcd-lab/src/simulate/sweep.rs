//! The runs of a command: stack files, with other values in fields of them, and seeds.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use dcd_stack::StackFile;
use toml::{Table, Value};

use crate::failure::Failure;

/// More are a mistake.
const VARIANTS_MAX: usize = 1000;

/// A field of the stack file and its values: `layer.field=1,2,4`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    path: Vec<String>,
    values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let (path, values) = text.split_once('=').ok_or("write LAYER.FIELD=VALUE,VALUE")?;
        let list =
            |text: &str, by: char| text.split(by).map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let (mut path, values) = (list(path, '.'), list(values, ','));
        if path.len() < 2 || path.iter().chain(&values).any(String::is_empty) {
            return Err("write LAYER.FIELD=VALUE,VALUE".to_owned());
        }
        if !["layer", "device"].contains(&path[0].as_str()) {
            path.insert(0, "layer".to_owned());
        }
        Ok(Sweep { path, values })
    }
}

impl Sweep {
    /// Puts a value into the table of a stack file, which must have the layer.
    fn put(&self, stack: &mut Table, text: &str) -> Result<(), String> {
        let (field, tables) = self.path.split_last().expect("a path has two names");
        let mut table = stack;
        for name in tables {
            let inner = table.get_mut(name).and_then(Value::as_table_mut);
            table = inner.ok_or_else(|| {
                format!("--set {}: there is no [{}]", self.path.join("."), tables.join("."))
            })?;
        }
        // Anything but a number, a truth value or text in quotes is text.
        let value = format!("v = {text}").parse::<Table>().ok().and_then(|mut parsed| parsed.remove("v"));
        table.insert(field.clone(), value.unwrap_or_else(|| Value::String(text.to_owned())));
        Ok(())
    }
}

/// A stack file to be run.
pub struct Variant {
    /// The path, and what was set.
    pub name: String,
    pub file: StackFile,
}

/// Every stack file with every combination of the values.
pub fn variants(paths: &[PathBuf], sweeps: &[Sweep]) -> Result<Vec<Variant>, Failure> {
    let combinations: usize = sweeps.iter().map(|sweep| sweep.values.len()).product();
    if combinations.saturating_mul(paths.len()) > VARIANTS_MAX {
        return Err(Failure::Failed(format!(
            "these are more than {VARIANTS_MAX} runs: name fewer values with --set"
        )));
    }
    let mut all = Vec::new();
    for path in paths {
        let file = StackFile::load(path)?;
        if sweeps.is_empty() {
            all.push(Variant { name: path.display().to_string(), file });
            continue;
        }
        for number in 0..combinations {
            all.push(variant(path, file.text(), sweeps, number)?);
        }
    }
    Ok(all)
}

/// The last field changes first.
fn variant(path: &Path, text: &str, sweeps: &[Sweep], number: usize) -> Result<Variant, Failure> {
    let mut table: Table = text.parse().expect("it is a stack file");
    let mut name = path.display().to_string();
    let mut left = number;
    let mut chosen: Vec<(&Sweep, &str)> = Vec::new();
    for sweep in sweeps.iter().rev() {
        chosen.push((sweep, &sweep.values[left % sweep.values.len()]));
        left /= sweep.values.len();
    }
    for (sweep, value) in chosen.into_iter().rev() {
        sweep.put(&mut table, value).map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))?;
        name += &format!(" {}={value}", sweep.path[1..].join("."));
    }
    Ok(Variant { name, file: StackFile::parse(&toml::to_string(&table).expect("a table has text"), path)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_values_is_a_stack() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("s.toml");
        let text = "export = \"disk\"\n[device.medium]\nmemory = \"64MiB\"\n\
                    [layer.disk]\nkind = \"disk\"\nof = \"medium\"\ndrive = \"ra81\"\n";
        std::fs::write(&path, text).unwrap();
        dcd_model::register_kinds();
        let sweep = |text: &str| text.parse::<Sweep>().unwrap();
        let sets = [sweep("disk.drive=ra82,atlas-10k"), sweep("device.medium.memory = 32MiB,1GiB,2GiB")];
        let all = variants(std::slice::from_ref(&path), &sets).unwrap();
        let ends: Vec<&str> = all.iter().map(|v| v.name.split_once(' ').unwrap().1).collect();
        assert_eq!(ends.len(), 6);
        assert_eq!(ends[1], "disk.drive=ra82 medium.memory=1GiB");
        assert_eq!(ends[3], "disk.drive=atlas-10k medium.memory=32MiB");
        assert!(all[3].file.text().contains("\"atlas-10k\"") && all[3].file.text().contains("\"32MiB\""));
        let refused =
            |text: &str| variants(std::slice::from_ref(&path), &[sweep(text)]).err().unwrap().to_string();
        assert!(
            refused("cache.low-mark=5").contains("there is no [layer.cache]"),
            "{}",
            refused("cache.low-mark=5")
        );
        assert!(refused("disk.colour=5").contains("colour"), "{}", refused("disk.colour=5"));
        assert_eq!("disk".parse::<Sweep>(), Err("write LAYER.FIELD=VALUE,VALUE".to_owned()));
    }
}
