//! `dcd array status`: an array and its members, one screen, served or not.

use std::fmt::Write;
use std::ops::ControlFlow;

use dcd_engine::SECTOR_BYTES;
use dcd_serve::control::Client;
use dcd_stack::HumanBytes;
use serde_json::{Value, json};

use crate::attachment::uuid_text;
use crate::cli_array::ArrayStatus;
use crate::commands::array::devices::{Content, Devices, Found, Standing};
use crate::commands::array::{Choice, members_listed, place};
use crate::failure::Failure;
use crate::real::Purpose;

pub fn run(args: &ArrayStatus) -> Result<(), Failure> {
    let choice = Choice::load(&args.array)?;
    let status = match choice.server()? {
        Some(client) => served(&choice, client)?,
        None => {
            let start = choice.try_start()?;
            offline(&choice, &Devices::open(&choice, Purpose::Look)?, &start)
        }
    };
    if args.json {
        println!("{status}");
    } else {
        print!("{}", screen(&status));
    }
    Ok(())
}

const MISPLACED: &str = "misplaced";

/// What a running array says of itself, with the names of its devices.
fn served(choice: &Choice, mut client: Client) -> Result<Value, Failure> {
    let all = client.call("status", json!({}), |_| ControlFlow::Continue(()))?;
    let mut status = all["layers"][&choice.layer].clone();
    let failed =
        |role: usize| status["failed_members"].as_array().is_some_and(|all| all.contains(&json!(role)));
    let is_in =
        |list: &str, what: usize| status[list].as_array().is_some_and(|all| all.contains(&json!(what)));
    let holder = |role: usize| status["holders"][role].as_u64();
    let events = |role: usize| match status["generations"][role].as_u64() {
        Some(0) | None => Value::Null,
        Some(events) => json!(events),
    };
    let read_errors = |role: usize| status["read_errors"][role].clone();
    let rebuilt = |role: usize| {
        status["rebuilt_percent"].as_f64().filter(|_| status["rebuilding_member"] == json!(role))
    };
    let mut devices = Vec::new();
    for (role, name) in choice.members.iter().enumerate() {
        let state = match (name, holder(role), rebuilt(role)) {
            (None, None, _) => "missing".to_owned(),
            (_, Some(spare), _) => format!("replaced by spare {spare}"),
            (_, None, Some(percent)) => format!("rebuilding {percent:.1} %"),
            (_, None, None) if failed(role) => "failed".to_owned(),
            _ => "in use".to_owned(),
        };
        let is_closed = status["open_members"][role] == false;
        let state = match (name, state.as_str()) {
            (Some(_), "failed") if is_in("joining_members", role) => "being made a spare".to_owned(),
            (Some(_), "failed") if is_closed => {
                "removed: \"dcd array add\" takes it back, or another device".to_owned()
            }
            _ => state,
        };
        let name = name.as_deref().unwrap_or("missing");
        // Where a spare has the role, the counter is its.
        let counter = holder(role).map_or_else(|| events(role), |_| Value::Null);
        devices.push(json!({
            "name": name, "place": format!("member {role}"), "role": role, "state": state, "generation": counter,
            "read_errors": holder(role).map_or_else(|| read_errors(role), |_| Value::Null),
        }));
    }
    for (spare, name) in choice.spares.iter().enumerate() {
        let role = (0..choice.members.len()).find(|role| holder(*role) == Some(spare as u64));
        let is_new =
            status["spare_places"].as_array().is_some_and(|known| known.get(spare) != Some(&json!(true)));
        let state = match (role, role.and_then(rebuilt)) {
            (Some(_), Some(percent)) => format!("rebuilding {percent:.1} %"),
            (Some(role), None) if failed(role) => "failed".to_owned(),
            (Some(_), None) => "in use".to_owned(),
            (None, _) if is_in("spares", spare) => "spare".to_owned(),
            (None, _) if is_in("joining", spare) => "being made a spare".to_owned(),
            (None, _) if is_new => "new: \"dcd array add\" makes it a spare".to_owned(),
            (None, _) => "not used".to_owned(),
        };
        let counter = role.map_or(Value::Null, events);
        devices.push(json!({
            "name": name, "place": format!("spare {spare}"), "role": role, "state": state, "generation": counter,
            "read_errors": role.map_or(Value::Null, read_errors),
        }));
    }
    status["served"] = true.into();
    status["devices"] = devices.into();
    Ok(status)
}

/// The same from the superblocks of an array that is not served.
fn offline(choice: &Choice, devices: &Devices, start: &Result<Value, String>) -> Value {
    let of = &devices.newest;
    let stripes = of.member_sectors / of.strip_sectors;
    let mut rows: Vec<Value> = Vec::new();
    for (role, name) in choice.members.iter().enumerate() {
        if name.is_none() {
            rows.push(json!({ "name": "missing", "place": format!("member {role}"), "role": role, "state": "missing" }));
        }
    }
    rows.extend(devices.found.iter().map(|found| row(choice, devices, found)));
    rows.sort_by_key(|row| {
        row["place"]
            .as_str()
            .unwrap_or("")
            .split_once(' ')
            .map(|(kind, number)| (kind.to_owned(), number.parse::<u64>().ok()))
    });
    json!({
        "served": false,
        "state": state(devices, start.is_ok()),
        "refusal": start.as_ref().err(),
        "uuid": uuid_text(of.uuid),
        "level": of.level.name(),
        "members": of.members,
        "strip_bytes": of.strip_sectors * SECTOR_BYTES,
        "size_bytes": (of.members - of.level.parity()) as u64 * of.member_sectors * SECTOR_BYTES,
        "generation": of.generation,
        "stopped_cleanly": !of.active,
        "journal": choice.journal.is_some(),
        "regions_in_doubt": of.in_doubt.len(),
        "regions": stripes.div_ceil(of.region_stripes),
        "failed_members": (0..of.members).filter(|role| of.failed >> role & 1 == 1).collect::<Vec<_>>(),
        "rebuilding_member": of.rebuilding.map(|rebuild| rebuild.role),
        "rebuilt_percent": of.rebuilding.map(|rebuild| percent(rebuild.sectors, of.member_sectors)),
        "reshaped_percent": of.reshape.map(|reshape| percent(reshape.sectors, of.member_sectors)),
        "calibrated": of.calibration.is_some(),
        "strides": start.as_ref().map_or(&Value::Null, |start| &start["strides"]),
        "advice": start.as_ref().map_or(&Value::Null, |start| &start["advice"]),
        "away": of.away_status(),
        "devices": rows,
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole as f64
}

/// In one word, what the superblocks say, if the array would start.
fn state(devices: &Devices, starts: bool) -> &'static str {
    let of = &devices.newest;
    let there = |role: usize| {
        devices.found.iter().any(|found| match devices.standing(found) {
            Some(Standing::InUse(other) | Standing::Rebuilding(other, _)) => other == role,
            _ => false,
        })
    };
    let lacking = (0..of.members).filter(|&role| of.failed >> role & 1 == 1 || !there(role)).count();
    match lacking {
        _ if devices.apart().is_some() => "apart",
        _ if of.reshape.is_some() => "growing",
        more if more > of.level.parity() => "broken",
        _ if !starts => "refused",
        0 if of.in_doubt.is_empty() => "good",
        0 => "in doubt",
        _ if of.rebuilding.is_some() => "rebuilding",
        _ => "degraded",
    }
}

fn row(choice: &Choice, devices: &Devices, found: &Found) -> Value {
    let place = place(choice, &found.name);
    let expected = choice.members.iter().position(|member| member.as_deref() == Some(&found.name));
    let wrong_place = |role: usize| expected.is_some_and(|expected| expected != role);
    let (role, state) = match (&found.content, devices.standing(found)) {
        (Content::Unreadable(why), _) => (None, format!("unreadable: {why}")),
        (Content::None(error), _) => (None, error.to_string()),
        (_, Some(Standing::InUse(role))) if wrong_place(role) => (Some(role), MISPLACED.to_owned()),
        (_, Some(Standing::InUse(role))) => (Some(role), "in use".to_owned()),
        (_, Some(Standing::Outdated(role))) => (
            Some(role),
            "out of date: it has an older content, and the next start does not use it".to_owned(),
        ),
        (_, Some(Standing::Failed(role))) => (Some(role), "failed".to_owned()),
        (_, Some(Standing::Rebuilding(role, sectors))) => {
            (Some(role), format!("rebuilding {:.1} %", percent(sectors, devices.newest.member_sectors)))
        }
        (_, Some(Standing::Spare)) => (None, "spare".to_owned()),
        (_, Some(Standing::Stale)) => (None, "stale: another device has its role now".to_owned()),
        (_, Some(Standing::Foreign)) => (None, "foreign: a member of another array".to_owned()),
        (Content::Of(..), None) => (None, "unknown".to_owned()),
    };
    let generation = found.superblock().map(|(superblock, _)| superblock.generation);
    json!({ "name": found.name, "place": place, "role": role, "state": state, "generation": generation })
}

/// The strides that are filled.
fn strides_line(status: &Value) -> String {
    let strides = &status["strides"];
    match (strides["source"].as_str(), status["calibrated"] == true) {
        (Some(source), _) => {
            format!("Smax {} for reads, {} for writes ({source})", strides["read_max"], strides["write_max"])
        }
        (None, true) => "none are filled, although the stride benchmark's result is stored".to_owned(),
        (None, false) => "none are filled: not measured (\"dcd calibrate\")".to_owned(),
    }
}

/// One screen.
fn screen(status: &Value) -> String {
    let text = |field: &str| status[field].as_str().unwrap_or("?").to_owned();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let yes = |field: &str| status[field] == true;
    let mut out = String::new();
    let served = if yes("served") { "served" } else { "not served" };
    let _ = writeln!(out, "state    {}, {served}", text("state"));
    let _ = writeln!(
        out,
        "array    {}, {} members, strips of {}, {}",
        text("level"),
        number("members"),
        HumanBytes(number("strip_bytes")),
        HumanBytes(number("size_bytes"))
    );
    let _ = writeln!(out, "uuid     {}, event counter {}", text("uuid"), number("generation"));
    let parity = match number("regions_in_doubt") {
        0 => "known to be right".to_owned(),
        some => format!("in doubt in {some} of {} regions", number("regions")),
    };
    let journal = match (yes("journal"), yes("journal_failed")) {
        (_, true) => "failed",
        (true, false) => "yes",
        (false, false) => "none",
    };
    let _ = writeln!(out, "parity   {parity}; journal: {journal}");
    if let Some(percent) = status["reshaped_percent"].as_f64() {
        let _ = writeln!(out, "growing  {percent:.1} %: \"dcd array grow\" goes on");
    }
    if let Some(why) = status["refusal"].as_str() {
        let _ = writeln!(out, "start    refused: {why}");
    }
    let _ = writeln!(out, "strides  {}", strides_line(status));
    if let Some(line) = away_line(&status["away"]) {
        let _ = writeln!(out, "away     {line}");
    }
    if let Some(line) = pass_line(&status["pass"]) {
        let by_regions = if status["away"]["returning"] == true { ", by regions" } else { "" };
        let _ = writeln!(out, "pass     {line}{by_regions}");
    }
    if let Some(line) = return_line(&status["last_return"]) {
        let _ = writeln!(out, "returned {line}");
    }
    if let Some(line) = findings_line(&status["last_scrub"]) {
        let _ = writeln!(out, "scrubbed {line}");
    }
    for device in status["devices"].as_array().into_iter().flatten() {
        let events = device["generation"]
            .as_u64()
            .map(|events| format!(", event counter {events}"))
            .unwrap_or_default();
        let (place, name) = (device["place"].as_str().unwrap_or("?"), device["name"].as_str().unwrap_or("?"));
        let state = match (device["state"].as_str().unwrap_or("?"), device["role"].as_u64()) {
            (MISPLACED, Some(role)) => format!("in the wrong place: it is member {role}"),
            (state, Some(role)) if place != format!("member {role}") => format!("{state} as member {role}"),
            (state, _) => state.to_owned(),
        };
        let errors = device["read_errors"].as_u64().filter(|errors| *errors > 0);
        let errors = errors.map(|errors| format!(", {errors} reads failed")).unwrap_or_default();
        let _ = writeln!(out, "  {place:<10} {name:<16} {state}{events}{errors}");
    }
    for advice in status["advice"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(out, "note: {advice}");
    }
    out
}

/// Members that may come back, and what they have missed.
fn away_line(away: &Value) -> Option<String> {
    let members = members_listed(&away["members"])?;
    let (missed, most) = (away["missed_regions"].as_u64()?, away["regions"].as_u64()?);
    Some(format!(
        "{members}: something was written in {missed} of {most} regions since; \"dcd array add\" of that very device fills only these"
    ))
}

/// What was filled of the last member that came back.
pub fn return_line(last: &Value) -> Option<String> {
    let (role, bytes) = (last["role"].as_u64()?, |field: &str| HumanBytes(last[field].as_u64().unwrap_or(0)));
    let (filled, all) = (bytes("filled_bytes"), bytes("member_bytes"));
    Some(format!("member {role}, by regions: {filled} of its {all} were filled"))
}

/// How far a rebuild, a resync or a scrub is.
pub fn pass_line(pass: &Value) -> Option<String> {
    let kind = pass["kind"].as_str()?;
    let mut line = format!("{kind} {:.1} %", pass["percent"].as_f64().unwrap_or(0.0));
    let left = pass["member_bytes_left"].as_u64().unwrap_or(0);
    if pass["paused"] == true {
        line += ", stopped";
    } else if let Some(speed) = pass["member_bytes_per_second"].as_f64().filter(|speed| *speed >= 1.0) {
        let seconds = (left as f64 / speed).ceil() as u64;
        let _ = write!(line, ", {}/s of each member, about {seconds} s left", HumanBytes(speed as u64));
    }
    if let Some(findings) = findings_line(&pass["findings"]).filter(|_| kind.starts_with("scrub")) {
        let _ = write!(line, "; {findings}");
    }
    Some(line)
}

/// What a scrub has found.
pub fn findings_line(findings: &Value) -> Option<String> {
    let count = |what: &str| findings[what].as_u64();
    let (mismatches, repaired) = (count("mismatches")?, count("repaired")?);
    let (unreadable, lost) = (count("unreadable")?, count("lost")?);
    let mut line = format!(
        "{mismatches} rows that did not match, {unreadable} unreadable blocks, {repaired} blocks repaired, {lost} lost"
    );
    if let Some(rows) = count("unlocated").filter(|rows| *rows > 0) {
        let _ = write!(
            line,
            "; in {rows} rows nothing told which block was wrong: their data were taken for right, and their parity was written"
        );
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_screen_says_it_all() {
        let findings = json!({ "mismatches": 3, "repaired": 2, "unreadable": 1, "lost": 0, "unlocated": 1 });
        let status = json!({
            "served": true, "state": "rebuilding", "level": "raid6", "members": 4, "strip_bytes": 131_072, "size_bytes": 9 << 20,
            "uuid": "u", "generation": 12, "regions_in_doubt": 2, "regions": 9, "journal": true, "last_scrub": findings,
            "pass": { "kind": "rebuild", "percent": 41.04, "member_bytes_left": 10 << 20, "member_bytes_per_second": f64::from(5 << 20),
                      "findings": findings },
            "devices": [
                { "name": "b", "place": "member 1", "role": 1, "state": "in use", "generation": 12, "read_errors": 3 },
                { "name": "c", "place": "member 2", "role": 0, "state": MISPLACED, "read_errors": 0 },
                { "name": "e", "place": "spare 0", "role": 2, "state": "rebuilding 41.0 %" },
            ],
            "calibrated": true, "strides": { "read_max": 40, "write_max": 12, "source": "stride benchmark" },
            "away": { "members": [0, 2], "missed_regions": 3, "regions": 9, "returning": true },
            "last_return": { "role": 3, "filled_bytes": 1 << 20, "member_bytes": 4 << 20 },
            "advice": ["swap them"],
        });
        let screen = screen(&status);
        for line in [
            "state    rebuilding, served",
            "array    raid6, 4 members, strips of 128 KiB, 9 MiB",
            "parity   in doubt in 2 of 9 regions; journal: yes",
            "away     members 0 and 2: something was written in 3 of 9 regions since; \"dcd array add\" of that very device fills only these",
            "pass     rebuild 41.0 %, 5 MiB/s of each member, about 2 s left, by regions",
            "returned member 3, by regions: 1 MiB of its 4 MiB were filled",
            "strides  Smax 40 for reads, 12 for writes (stride benchmark)",
            "scrubbed 3 rows that did not match, 1 unreadable blocks, 2 blocks repaired, 0 lost; in 1 rows nothing told which block was \
             wrong: their data were taken for right, and their parity was written",
            "  member 1   b                in use, event counter 12, 3 reads failed",
            "  member 2   c                in the wrong place: it is member 0",
            "  spare 0    e                rebuilding 41.0 % as member 2",
            "note: swap them",
        ] {
            assert!(screen.lines().any(|other| other == line), "{line}\nis not in\n{screen}");
        }
        assert_eq!(pass_line(&Value::Null), None);
    }
}
