//! `dcd mark`: marks the content of a served disk, for backups of what changes from then on.

use dcd_stack::HumanBytes;
use serde_json::{Value, json};

use crate::cli::Mark;
use crate::commands::status::columns;
use crate::control;
use crate::failure::Failure;

pub fn run(args: &Mark) -> Result<(), Failure> {
    let command = match (args.list, args.drop) {
        (true, _) => "list",
        (false, Some(_)) => "drop",
        (false, None) => "make",
    };
    let mut client = control::connect(&args.file)?;
    let asked = json!({ "command": command, "disk": args.disk, "mark": args.drop });
    let answer = control::ask(&mut client, "mark", asked)?;
    if args.json {
        println!("{}", if args.list { &answer["marks"] } else { &answer });
    } else if args.list {
        let marks: Vec<[String; 4]> = answer["marks"].as_array().into_iter().flatten().map(row).collect();
        print!("{}", columns(["MARK", "STATE", "CHANGED", "MADE"], &marks));
    } else if args.drop.is_none() {
        println!("{}", answer["mark"]);
    }
    Ok(())
}

fn row(mark: &Value) -> [String; 4] {
    let number = mark["mark"].to_string();
    match (mark["lost"].as_str(), mark["changed_bytes"].as_u64()) {
        (Some(reason), _) => [number, "lost".to_owned(), "?".to_owned(), reason.to_owned()],
        (None, bytes) => {
            let changed = HumanBytes(bytes.unwrap_or(0)).to_string();
            [number, "good".to_owned(), changed, mark["made"].as_str().unwrap_or("?").to_owned()]
        }
    }
}
