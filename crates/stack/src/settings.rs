//! The settings of a stack, read from the text of its file, and changes of some of them. A changed text is checked as a file is: by
//! [`StackFile::parse`].

use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::error::suggestion;
use crate::file::StackFile;
use crate::kinds::LayerKind;
use crate::reference::{Change, FieldReference, fields_of_head, fields_of_kind};

/// A setting of a stack, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSetting {
    /// Table and field: `cache.high-mark`, `serve.nbd`.
    pub key: String,
    /// Value as it is written in the file; none if it is not set and has no default.
    pub value: Option<String>,
    pub change: Change,
}

/// Fields that no stack file has, as the log keeps them.
const IN_THE_LOG: [&str; 1] = ["segment-size"];

/// A table of a stack file.
struct Section {
    /// The tables that lead to it.
    path: Vec<String>,
    /// Prefix of its fields' keys; empty at the top.
    prefix: String,
    fields: &'static [FieldReference],
}

impl Section {
    fn key(&self, field: &str) -> String {
        if self.prefix.is_empty() { field.to_owned() } else { format!("{}.{field}", self.prefix) }
    }

    fn field(&self, name: &str) -> Option<&'static FieldReference> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The tables of a file whose fields the reference describes.
fn sections(doc: &DocumentMut) -> Vec<Section> {
    let top = Section { path: Vec::new(), prefix: String::new(), fields: fields_of_head("") };
    let serve =
        Section { path: vec!["serve".into()], prefix: "serve".into(), fields: fields_of_head("[serve]") };
    let mut sections = vec![top, serve];
    for table in ["device", "layer"] {
        let Some(named) = doc.get(table).and_then(Item::as_table_like) else { continue };
        for (name, item) in named.iter() {
            let kind = item.get("kind").and_then(Item::as_str);
            let fields = match table {
                "device" => fields_of_head("[device.NAME]"),
                _ => kind.map_or(&[] as &[_], fields_of_kind),
            };
            sections.push(Section { path: vec![table.into(), name.into()], prefix: name.into(), fields });
        }
    }
    sections
}

fn table<'a>(doc: &'a mut DocumentMut, path: &[String]) -> Option<&'a mut dyn TableLike> {
    let mut item = doc.as_item_mut();
    for name in path {
        item = item.get_mut(name)?;
    }
    item.as_table_like_mut()
}

/// A value as it was typed: as in the file, or a text without its quotes.
fn value(typed: &str) -> Value {
    let mut value = typed.parse().unwrap_or_else(|_| Value::from(typed));
    value.decor_mut().clear();
    value
}

impl StackFile {
    fn document(&self) -> Result<DocumentMut, String> {
        self.text().parse().map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Every setting of the stack, in the order of the reference. Empty for a stack that was not in a file.
    pub fn settings(&self) -> Vec<StackSetting> {
        let Ok(doc) = self.document() else { return Vec::new() };
        let mut settings = Vec::new();
        for section in sections(&doc) {
            let table = section.path.iter().try_fold(doc.as_item(), |item, name| item.get(name));
            for field in section.fields {
                let given = table.and_then(|table| table.get(field.name)?.as_value());
                let default = || field.has_default.then(|| field.example.to_owned());
                let value = given
                    .map(|value| value.clone().decorated("", "").to_string())
                    .or_else(|| self.derived(&section.prefix, field.name))
                    .or_else(default);
                settings.push(StackSetting { key: section.key(field.name), value, change: field.change });
            }
        }
        settings
    }

    /// The default of a field that depends on other fields.
    fn derived(&self, layer: &str, field: &str) -> Option<String> {
        let LayerKind::Raid(raid) = &self.layer(layer)?.kind else { return None };
        match field {
            "high-mark" => Some(raid.config.high_mark.to_string()),
            "low-mark" => Some(raid.config.low_mark.to_string()),
            _ => None,
        }
    }

    /// Returns the stack with some settings changed, each written `[TABLE.]FIELD=VALUE`, or none of them.
    ///
    /// # Errors
    /// In words, if one of them cannot be changed while the stack is served, or if no stack file can have it.
    pub fn changed(&self, changes: &[String]) -> Result<StackFile, String> {
        let mut doc = self.document()?;
        let sections = sections(&doc);
        let mut keys: Vec<String> = Vec::new();
        for change in changes {
            let (key, typed) = change
                .split_once('=')
                .map(|(key, typed)| (key.trim(), typed.trim()))
                .filter(|(key, typed)| !key.is_empty() && !typed.is_empty())
                .ok_or_else(|| format!("\"{change}\": write it like high-mark=80"))?;
            let (section, field) = self.find(&sections, key)?;
            let key = section.key(field.name);
            self.may_change(&key, field)?;
            if keys.contains(&key) {
                return Err(format!("\"{key}\" is set twice"));
            }
            let table = table(&mut doc, &section.path).expect("the table was found");
            let mut value = value(typed);
            match table.get_mut(field.name).and_then(Item::as_value_mut) {
                // The comment beside it stays.
                Some(old) => {
                    *value.decor_mut() = old.decor().clone();
                    *old = value;
                }
                None => _ = table.insert(field.name, Item::Value(value)),
            }
            keys.push(key);
        }
        StackFile::parse(&doc.to_string(), &self.path).map_err(|error| error.message)
    }

    /// Finds the settings that a word names: `FIELD` in any table, or `TABLE.FIELD`.
    ///
    /// # Errors
    /// In words, if there is none.
    pub fn named(&self, key: &str) -> Result<Vec<String>, String> {
        let sections = sections(&self.document()?);
        let found = candidates(&sections, key);
        match found.is_empty() {
            true => Err(self.unknown(&sections, key)),
            false => Ok(found.iter().map(|(section, field)| section.key(field.name)).collect()),
        }
    }

    fn find<'a>(
        &self,
        sections: &'a [Section],
        key: &str,
    ) -> Result<(&'a Section, &'static FieldReference), String> {
        match candidates(sections, key).as_slice() {
            [] => Err(self.unknown(sections, key)),
            [one] => Ok(*one),
            several => {
                let keys: Vec<String> = several.iter().map(|(at, field)| at.key(field.name)).collect();
                Err(format!("\"{key}\" may be {}: name one of them", keys.join(" or ")))
            }
        }
    }

    fn unknown(&self, sections: &[Section], key: &str) -> String {
        let path = self.path.display();
        if IN_THE_LOG.contains(&key) {
            return format!(
                "\"{key}\" is fixed in the log by \"dcd format\": make a log with another one by \"dcd format --replace\""
            );
        }
        let prefix = key.split_once('.').map(|(prefix, _)| prefix);
        let known: Vec<String> = sections
            .iter()
            .flat_map(|section| {
                section.fields.iter().map(move |field| match prefix {
                    Some(_) => section.key(field.name),
                    None => field.name.to_owned(),
                })
            })
            .collect();
        match suggestion(key, known.iter().map(String::as_str)) {
            Some(near) => format!("there is no setting \"{key}\" in {path}; did you mean \"{near}\"?"),
            None => format!("there is no setting \"{key}\" in {path}: \"dcd get {path}\" lists them"),
        }
    }

    fn may_change(&self, key: &str, field: &FieldReference) -> Result<(), String> {
        let path = self.path.display();
        match field.change {
            Change::Served => Ok(()),
            Change::Restart => Err(format!(
                "\"{key}\" changes at a start only: write it in {path}, and restart the server: \"dcd stop --for-restart {path}\", then \
                 \"dcd serve {path}\", or systemctl restart of its unit"
            )),
            Change::Fixed(why) => Err(format!("\"{key}\" cannot be set: {why}")),
        }
    }
}

/// The settings that a word may mean.
fn candidates<'a>(sections: &'a [Section], key: &str) -> Vec<(&'a Section, &'static FieldReference)> {
    let by = |section: &&Section, name: &str| section.field(name);
    let exact = key.rsplit_once('.').into_iter().flat_map(|(prefix, name)| {
        sections
            .iter()
            .filter(move |section| section.prefix == prefix)
            .filter_map(move |section| Some((section, by(&section, name)?)))
    });
    let plain = sections.iter().filter_map(|section| Some((section, by(&section, key)?)));
    exact.chain(plain).collect()
}

#[cfg(test)]
mod tests;
