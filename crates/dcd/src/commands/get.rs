//! `dcd get`: the settings of a stack, as they are in force and as the stack file has them.

use dcd_stack::StackFile;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::Get;
use crate::commands::set::stack_file;
use crate::control;
use crate::failure::Failure;
use crate::output::{no_json, print_json};

/// A setting, as JSON shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SettingReport {
    key: String,
    /// Value in force; none if the stack is not served.
    in_force: Option<String>,
    /// Value in the stack file.
    file: Option<String>,
    /// Time at which a change takes effect, in a word: served, restart or fixed.
    change: String,
}

pub fn run(args: &Get) -> Result<(), Failure> {
    let client = control::connect_if_served(&args.file)?;
    let is_served = client.is_some();
    let (path, reports) = match client {
        None => (args.file.clone(), None),
        Some(mut client) => {
            let path = stack_file(&args.file, &mut client)?;
            let answer = control::ask(&mut client, "settings", json!({}))?;
            (path, Some(serde_json::from_value(answer["settings"].clone()).map_err(no_json)?))
        }
    };
    let file = match StackFile::load(&path) {
        // The server runs with an earlier text of this file.
        Err(error) if is_served => {
            eprintln!("dcd: {error}");
            None
        }
        file => Some(file?),
    };
    let of_file = file.as_ref().map(StackFile::settings).unwrap_or_default();
    let listed = || {
        of_file.iter().map(|setting| SettingReport {
            key: setting.key.clone(),
            change: setting.change.word().to_owned(),
            ..SettingReport::default()
        })
    };
    let mut reports: Vec<SettingReport> = reports.unwrap_or_else(|| listed().collect());
    for report in &mut reports {
        let setting = of_file.iter().find(|setting| setting.key == report.key);
        report.file = setting.and_then(|setting| setting.value.clone());
    }
    let names = |report: &SettingReport, key: &str| {
        report.key == key || report.key.rsplit_once('.').is_some_and(|(_, field)| field == key)
    };
    if let Some(key) = args.keys.iter().find(|key| !reports.iter().any(|report| names(report, key))) {
        let unknown = file.and_then(|file| file.named(key).err());
        return Err(Failure::Failed(unknown.unwrap_or_else(|| format!("there is no setting \"{key}\""))));
    }
    reports.retain(|report| args.keys.is_empty() || args.keys.iter().any(|key| names(report, key)));
    if args.json {
        return print_json(&reports);
    }
    print!("{}", table(&reports, is_served));
    Ok(())
}

fn table(reports: &[SettingReport], is_served: bool) -> String {
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let row = |report: &SettingReport| {
        let value = if is_served { &report.in_force } else { &report.file };
        let differs = is_served && report.in_force != report.file;
        let file = if differs { shown(&report.file) } else { String::new() };
        [report.key.clone(), shown(value), file, report.change.clone()]
    };
    let head = ["SETTING", "VALUE", "FILE", "CHANGES"].map(str::to_owned);
    let rows: Vec<[String; 4]> = [head].into_iter().chain(reports.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (key, value, file) = (width(0), width(1), width(2));
    let line =
        |row: &[String; 4]| format!("{:<key$}  {:<value$}  {:<file$}  {}\n", row[0], row[1], row[2], row[3]);
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_the_file_is_shown_where_it_differs() {
        let setting = |key: &str, in_force: Option<&str>, file: Option<&str>, change: &str| SettingReport {
            key: key.to_owned(),
            in_force: in_force.map(str::to_owned),
            file: file.map(str::to_owned),
            change: String::from(change),
        };
        let reports = [
            setting("cache.high-mark", Some("80"), Some("75"), "served"),
            setting("cache.when", Some("\"idle\""), Some("\"idle\""), "served"),
            setting("serve.fuse", None, None, "restart"),
        ];
        assert_eq!(
            table(&reports, true),
            "SETTING          VALUE   FILE  CHANGES\n\
             cache.high-mark  80      75    served\n\
             cache.when       \"idle\"        served\n\
             serve.fuse       -             restart\n"
        );
        assert!(table(&reports, false).contains("cache.high-mark  75            served\n"));
    }
}
