//! `dcd array status`: an array and its members, one screen, served or not.

use std::fmt::Write;

use dcd_engine::SECTOR_BYTES;
use dcd_serve::control::Client;
use dcd_stack::{DeviceSpec, HumanBytes};
use serde_json::{Value, json};

use crate::cli_array::ArrayStatus;
use crate::control::{ask, lists, notes};
use crate::failure::{Failure, Health};
use crate::session::choice::{ArrayChoice, place};
use crate::session::devices::Purpose;
use crate::session::members::{Content, Devices, Found, Standing, members_listed};
use crate::session::record::uuid_text;
use crate::session::serving::admit::admit_bare_array;

pub fn run(args: &ArrayStatus) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    let status = match choice.server()? {
        Some(client) => served(&choice, client)?,
        None => {
            let start = choice.try_start()?;
            let mut status = offline(&choice, &Devices::open(&choice, Purpose::Look)?, &start);
            if let Err(Failure::Refused(refusal)) = admit_bare_array(&choice.file, &choice.file.export) {
                let advice = status["advice"].as_array().into_iter().flatten().cloned();
                status["advice"] = advice.chain([refusal.reason.into()]).collect();
            }
            status
        }
    };
    if args.json {
        println!("{status}");
    } else {
        print!("{}", screen(&status));
    }
    let mut health = Health::default();
    judge(&choice.layer, &status, &mut health);
    health.verdict()
}

/// What is wrong with an array, by its status.
pub fn judge(name: &str, status: &Value, health: &mut Health) {
    let state = status["state"].as_str().unwrap_or("unknown");
    let without = members_listed(&status["failed_members"]);
    let without = without.map(|members| format!(", without {members}")).unwrap_or_default();
    let lost = lost_blocks(status);
    if lost > 0 {
        let blocks = if lost == 1 { "block" } else { "blocks" };
        health.damaged(format!("array \"{name}\": {lost} {blocks} of 4 KiB lost"));
    }
    if findings_are_left(&status["last_scrub"]) {
        health.damaged(format!("array \"{name}\": the last scrub found damage that was not repaired"));
    }
    if status["journal_failed"] == true {
        health.degraded(format!("array \"{name}\": its journal has failed"));
    }
    match state {
        "good" | "damaged" => {}
        "broken" | "apart" | "refused" | "unknown" => {
            health.damaged(format!("array \"{name}\": {state}{without}"));
        }
        _ => health.degraded(format!("array \"{name}\": {state}{without}")),
    }
}

/// Blocks that can neither be read nor computed.
fn lost_blocks(status: &Value) -> u64 {
    ["lost_blocks", "unreadable_blocks"].iter().filter_map(|field| status[field].as_u64()).sum()
}

const MISPLACED: &str = "misplaced";

/// What a running array says of itself. Its devices have the names that they had when the server opened them: the stack file may have
/// others by now.
fn served(choice: &ArrayChoice, mut client: Client) -> Result<Value, Failure> {
    let all = ask(&mut client, "status", json!({}))?;
    let mut status = all["layers"][&choice.layer].clone();
    let names = |list: &str| -> Vec<Option<String>> {
        let names = status[list].as_array().into_iter().flatten();
        names.map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let (members, spares) = (names("member_names"), names("spare_names"));
    let served = Served { choice, status: &status, members, spares };
    let (devices, notes) = (served.devices(), served.notes());
    status["served"] = true.into();
    status["devices"] = devices.into();
    status["advice"] = notes.into();
    Ok(status)
}

/// A served array, beside what the stack file says of it.
struct Served<'a> {
    choice: &'a ArrayChoice,
    status: &'a Value,
    /// As the server opened them.
    members: Vec<Option<String>>,
    spares: Vec<Option<String>>,
}

impl Served<'_> {
    /// The spare that has a role.
    fn holder(&self, role: usize) -> Option<usize> {
        self.status["holders"][role].as_u64().map(|spare| spare as usize)
    }

    /// The name that the stack file has in the place of a role.
    fn named(&self, role: usize) -> Option<&String> {
        self.choice.members.get(role)?.as_ref()
    }

    fn is_open(&self, name: &String) -> bool {
        self.members.iter().chain(&self.spares).flatten().any(|open| open == name)
    }

    fn events(&self, role: usize) -> Option<u64> {
        self.status["generations"][role].as_u64().filter(|events| *events > 0)
    }

    fn working(&self, role: usize) -> String {
        let rebuilds = self.status["rebuilding_member"] == json!(role);
        match self.status["rebuilt_percent"].as_f64().filter(|_| rebuilds) {
            Some(percent) => format!("rebuilding {percent:.1} %"),
            None if lists(self.status, "failed_members", role) => "failed".to_owned(),
            None => "in use".to_owned(),
        }
    }

    fn devices(&self) -> Vec<Value> {
        let members = self.members.iter().enumerate().map(|(role, open)| self.member(role, open.as_ref()));
        let spares = self.spares.iter().enumerate();
        let spares = spares.filter_map(|(place, name)| self.spare(place, name.as_ref()?));
        let new = self.choice.spares.iter().filter(|name| !self.is_open(name)).map(|name| {
            let state = match self.choice.file.device(name).is_none_or(DeviceSpec::is_there) {
                true => "new: \"dcd array add\" makes it a spare",
                false => "not there",
            };
            json!({ "name": name, "place": "spare", "state": state })
        });
        members.chain(spares).chain(new).collect()
    }

    fn member(&self, role: usize, open: Option<&String>) -> Value {
        let (named, holder) = (self.named(role), self.holder(role));
        let is_renamed = named.is_some() && named == open;
        let state = match (holder, open) {
            (Some(spare), _) if !is_renamed => format!("replaced by spare {spare}"),
            (_, Some(_)) => self.working(role),
            (_, None) if lists(self.status, "joining_members", role) => "being made a spare".to_owned(),
            (_, None) if named.is_some_and(|name| !self.choice.file.is_there(name)) => {
                "failed, and not there".to_owned()
            }
            (_, None) if named.is_some() => {
                "removed: \"dcd array add\" takes it back, or another device".to_owned()
            }
            (_, None) => "missing".to_owned(),
        };
        // No device has the name of the one that was there first.
        let shown = match holder {
            Some(_) => named.filter(|name| is_renamed || !self.is_open(name)),
            None => open.or(named),
        };
        // The counters are those of the spare that has the role.
        let is_its = holder.is_none() || is_renamed;
        json!({
            "name": shown.map_or("missing", String::as_str), "place": format!("member {role}"), "role": role, "state": state,
            "generation": self.events(role).filter(|_| is_its),
            "read_errors": self.status["read_errors"][role].as_u64().filter(|_| is_its),
        })
    }

    /// None where it is shown as the member that it has become.
    fn spare(&self, place: usize, name: &String) -> Option<Value> {
        let role = (0..self.members.len()).find(|role| self.holder(*role) == Some(place));
        if role.is_some_and(|role| self.named(role) == Some(name)) {
            return None;
        }
        let state = match role {
            Some(role) => self.working(role),
            None if lists(self.status, "spares", place) => "spare".to_owned(),
            None if lists(self.status, "joining", place) => "being made a spare".to_owned(),
            None => "not used".to_owned(),
        };
        Some(json!({
            "name": name, "place": format!("spare {place}"), "role": role, "state": state,
            "generation": role.and_then(|role| self.events(role)),
            "read_errors": role.and_then(|role| self.status["read_errors"][role].as_u64()),
        }))
    }

    /// The array's advice, without what the stack file says already.
    fn notes(&self) -> Vec<String> {
        let roles = 0..self.members.len();
        let open = |role: usize| self.members[role].as_ref();
        let is_done = |note: &str| {
            roles.clone().any(|role| {
                let named = self.named(role);
                named.is_some()
                    && named == open(role)
                    && self
                        .holder(role)
                        .is_some_and(|spare| note.starts_with(&format!("spare {spare} is member {role} now")))
            })
        };
        let mut notes: Vec<String> =
            notes(self.status).filter(|note| !is_done(note)).map(str::to_owned).collect();
        let differs = roles.clone().any(|role| match (self.named(role), open(role)) {
            (Some(named), Some(open)) => self.holder(role).is_none() && named != open,
            _ => false,
        });
        if differs {
            notes.push(
                "the stack file names other members than the server has: the server keeps the names of its start until it is started again"
                    .to_owned(),
            );
        }
        notes
    }
}

/// The same from the superblocks of an array that is not served.
fn offline(choice: &ArrayChoice, devices: &Devices, start: &Result<Value, String>) -> Value {
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
        "read_only": start.as_ref().map_or(&Value::Null, |start| &start["read_only"]),
        "strides": start.as_ref().map_or(&Value::Null, |start| &start["strides"]),
        "advice": start.as_ref().map_or(&Value::Null, |start| &start["advice"]),
        "lost_blocks": of.lost.len(),
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
    let lacking = (0..of.members).filter(|&role| of.failed >> role & 1 == 1 || !devices.has(role)).count();
    match lacking {
        _ if devices.apart().is_some() => "apart",
        _ if of.reshape.is_some() => "growing",
        more if more > of.level.parity() => "broken",
        _ if !starts => "refused",
        0 if !of.lost.is_empty() => "damaged",
        0 if of.in_doubt.is_empty() => "good",
        0 => "in doubt",
        _ if of.rebuilding.is_some() => "rebuilding",
        _ => "degraded",
    }
}

fn row(choice: &ArrayChoice, devices: &Devices, found: &Found) -> Value {
    let place = place(choice, &found.name);
    let expected = choice.role_of(&found.name);
    let wrong_place = |role: usize| expected.is_some_and(|expected| expected != role);
    let (role, state) = match (&found.content, devices.standing(found)) {
        (Content::Unreadable(_), _) if !choice.file.is_there(&found.name) => {
            let failed = expected.is_some_and(|role| devices.newest.failed >> role & 1 == 1);
            let replaced = expected.is_some_and(|role| devices.has(role));
            let state = match (failed, replaced) {
                (_, true) => "replaced, and not there",
                (true, _) => "failed, and not there",
                _ => "not there",
            };
            (expected, state.to_owned())
        }
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

/// How far the parity is known to be right.
fn parity_text(status: &Value) -> String {
    let has_journal = status["journal"] == true;
    match status["regions_in_doubt"].as_u64().unwrap_or(0) {
        0 if status["stopped_cleanly"] == false && !has_journal => {
            "in doubt: it did not stop cleanly, and its journal is not named".to_owned()
        }
        0 if status["stopped_cleanly"] == false && !status["refusal"].is_null() => {
            "not known, as the start is refused".to_owned()
        }
        0 if status["stopped_cleanly"] == false => {
            "right where the journal's last records are written again".to_owned()
        }
        0 if findings_are_left(&status["last_scrub"]) => "right but for what the scrub found".to_owned(),
        0 => "known to be right".to_owned(),
        some => format!("in doubt in {some} of {} regions", status["regions"]),
    }
}

/// A device, and what it is to the array.
fn device_line(device: &Value) -> String {
    let events =
        device["generation"].as_u64().map(|events| format!(", event counter {events}")).unwrap_or_default();
    let (place, name) = (device["place"].as_str().unwrap_or("?"), device["name"].as_str().unwrap_or("?"));
    let state = match (device["state"].as_str().unwrap_or("?"), device["role"].as_u64()) {
        (MISPLACED, Some(role)) => format!("in the wrong place: it is member {role}"),
        (state, Some(role)) if place != format!("member {role}") => format!("{state} as member {role}"),
        (state, _) => state.to_owned(),
    };
    let errors = device["read_errors"].as_u64().filter(|errors| *errors > 0);
    let errors = errors.map(|errors| format!(", {errors} reads failed")).unwrap_or_default();
    format!("  {place:<10} {name:<16} {state}{events}{errors}")
}

/// One screen.
fn screen(status: &Value) -> String {
    let text = |field: &str| status[field].as_str().unwrap_or("?").to_owned();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let yes = |field: &str| status[field] == true;
    let mut out = String::new();
    let served = if yes("served") { "served" } else { "not served" };
    let read_only = if yes("read_only") { ", read only" } else { "" };
    let _ = writeln!(out, "state    {}, {served}{read_only}", text("state"));
    let _ = writeln!(
        out,
        "array    {}, {} members, strips of {}, {}",
        text("level"),
        number("members"),
        HumanBytes(number("strip_bytes")),
        HumanBytes(number("size_bytes"))
    );
    let _ = writeln!(out, "uuid     {}, event counter {}", text("uuid"), number("generation"));
    let parity = parity_text(status);
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
    if status["refusal"].is_null() {
        let _ = writeln!(out, "strides  {}", strides_line(status));
    }
    if let Some(line) = away_line(status) {
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
        let _ = writeln!(out, "{}", device_line(device));
    }
    for advice in notes(status) {
        let _ = writeln!(out, "note: {advice}");
    }
    out
}

/// Members that may come back, and what they have missed.
fn away_line(status: &Value) -> Option<String> {
    let away = &status["away"];
    let waits = |role: &&Value| **role != status["rebuilding_member"];
    let members: Value = away["members"].as_array()?.iter().filter(waits).cloned().collect();
    let members = members_listed(&members)?;
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

/// A scrub has found something that it did not repair.
pub fn findings_are_left(findings: &Value) -> bool {
    let count = |what: &str| findings[what].as_u64().unwrap_or(0);
    count("lost") > 0 || count("mismatches") + count("unreadable") > count("repaired")
}

/// What a scrub has found.
pub fn findings_line(findings: &Value) -> Option<String> {
    let count = |what: &str| findings[what].as_u64();
    let (mismatches, repaired) = (count("mismatches")?, count("repaired")?);
    let (unreadable, lost) = (count("unreadable")?, count("lost")?);
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut line = format!(
        "{} that did not match, {}, {} repaired, {lost} lost",
        counted(mismatches, "row"),
        counted(unreadable, "unreadable block"),
        counted(repaired, "block")
    );
    if let Some(rows) = count("unlocated").filter(|rows| *rows > 0) {
        let _ = write!(
            line,
            "; in {} nothing told which block was wrong: their data were taken for right, and their parity was written",
            counted(rows, "row")
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
            "scrubbed 3 rows that did not match, 1 unreadable block, 2 blocks repaired, 0 lost; in 1 row nothing told which block was \
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
