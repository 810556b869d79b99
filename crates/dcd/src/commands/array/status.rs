//! `dcd array status`: shows an array and its members on one screen, served or not.

use std::fmt::Write;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::raid::{ArrayState, ArrayStatus, Findings, PassName, PassStatus, Return, members_named};
use dcd_serve::control::ControlClient;
use dcd_stack::{DeclaredDevice, HumanBytes};
use serde::Serialize;

use crate::cli_array::ArrayStatus as Arguments;
use crate::control::server_of;
use crate::failure::{Failure, Health};
use crate::output::print_json;
use crate::session::choice::{ArrayChoice, place};
use crate::session::devices::Purpose;
use crate::session::members::{Devices, FoundMember, MemberContent, Standing};
use crate::session::record::{Refusal, uuid_text};
use crate::session::serving::checks::admit_plain_parts;
use crate::session::serving::status::{array_of_server, judge_array};

pub fn run(args: &Arguments) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    let report = match server_of(&choice.site)? {
        Some(client) => served(&choice, client)?,
        None => {
            let start = choice.try_start()?;
            let mut report = offline(&choice, &Devices::open(&choice, Purpose::Look)?, start);
            if let Err(Failure::Refused(refusal)) = admit_plain_parts(&choice.site) {
                report.array.advice.push(refusal.reason);
            }
            report
        }
    };
    if args.json {
        print_json(&report)?;
    } else {
        print!("{}", screen(&report));
    }
    let mut health = Health::default();
    judge_array(&choice.layer, &report.array, &mut health);
    health.verdict()
}

/// The state of an array, as the command shows it and prints it as JSON.
#[derive(Debug, Serialize)]
struct ArrayReport {
    served: bool,
    /// Reason that the array would not start.
    refusal: Option<String>,
    reshaped_percent: Option<f64>,
    stopped_cleanly: Option<bool>,
    devices: Vec<ArrayDevice>,
    #[serde(flatten)]
    array: ArrayStatus,
}

/// A device of the stack file, or of the server.
#[derive(Clone, Debug, Serialize)]
struct ArrayDevice {
    name: String,
    place: String,
    role: Option<usize>,
    state: String,
    /// True when the device is in the place of another member.
    misplaced: bool,
    generation: Option<u64>,
    read_errors: Option<u64>,
}

impl ArrayDevice {
    fn new(name: &str, place: String, role: Option<usize>, state: impl Into<String>) -> ArrayDevice {
        ArrayDevice {
            name: name.to_owned(),
            place,
            role,
            state: state.into(),
            misplaced: false,
            generation: None,
            read_errors: None,
        }
    }
}

/// Reports a running array. Its devices have the names that they had when the server opened them: the stack file may have others by now.
fn served(choice: &ArrayChoice, mut client: ControlClient) -> Result<ArrayReport, Failure> {
    let mut array = array_of_server(&mut client, &choice.layer)?;
    let served = ServedArray { choice, array: &array };
    let (devices, notes) = (served.devices(), served.notes());
    array.advice = notes;
    Ok(ArrayReport {
        served: true,
        refusal: None,
        reshaped_percent: None,
        stopped_cleanly: None,
        devices,
        array,
    })
}

/// A served array, and the stack file's view of it.
struct ServedArray<'a> {
    choice: &'a ArrayChoice,
    array: &'a ArrayStatus,
}

impl ServedArray<'_> {
    /// Returns the spare that has taken a role.
    fn holder(&self, role: usize) -> Option<usize> {
        self.array.devices.holders.get(role).copied().flatten()
    }

    /// Returns the name that the stack file has for a role.
    fn named(&self, role: usize) -> Option<&String> {
        self.choice.members.get(role)?.as_ref()
    }

    fn is_open(&self, name: &str) -> bool {
        self.array.devices.is_open(name)
    }

    fn events(&self, role: usize) -> Option<u64> {
        self.array.generations.get(role).copied().filter(|events| *events > 0)
    }

    fn read_errors(&self, role: usize) -> Option<u64> {
        self.array.devices.read_errors.get(role).copied()
    }

    fn working(&self, role: usize) -> String {
        match self.array.rebuilt_percent.filter(|_| self.array.rebuilding_member == Some(role)) {
            Some(percent) => format!("rebuilding {percent:.1} %"),
            None if self.array.has_failed(role) => "failed".to_owned(),
            None => "in use".to_owned(),
        }
    }

    fn devices(&self) -> Vec<ArrayDevice> {
        let devices = &self.array.devices;
        let members = devices.member_names.iter().enumerate();
        let members = members.map(|(role, open)| self.member(role, open.as_ref()));
        let spares = devices.spare_names.iter().enumerate();
        let spares = spares.filter_map(|(place, name)| self.spare(place, name.as_ref()?));
        let new = self.choice.spares.iter().filter(|name| !self.is_open(name)).map(|name| {
            let state = match self.choice.site.device(name).is_none_or(DeclaredDevice::is_there) {
                true => "new: \"dcd array add\" makes it a spare",
                false => "missing",
            };
            ArrayDevice::new(name, "spare".to_owned(), None, state)
        });
        members.chain(spares).chain(new).collect()
    }

    fn member(&self, role: usize, open: Option<&String>) -> ArrayDevice {
        let (named, holder) = (self.named(role), self.holder(role));
        let is_renamed = named.is_some() && named == open;
        let state = match (holder, open) {
            (Some(spare), _) if !is_renamed => format!("replaced by spare {spare}"),
            (_, Some(_)) => self.working(role),
            (_, None) if self.array.devices.joining_members.contains(&role) => {
                "being made a spare".to_owned()
            }
            (_, None) if named.is_some_and(|name| !self.choice.site.is_there(name)) => {
                "failed, and missing".to_owned()
            }
            (_, None) if named.is_some() => {
                "removed: \"dcd array add\" adds it again, or another device".to_owned()
            }
            (_, None) => "missing".to_owned(),
        };
        // Once a spare has the role, the stack file's name is shown, unless a device in another place is open under it.
        let shown = match holder {
            Some(_) => named.filter(|name| is_renamed || !self.is_open(name)),
            None => open.or(named),
        };
        // The counters belong to the spare that has the role, and are shown in its line.
        let is_its = holder.is_none() || is_renamed;
        ArrayDevice {
            generation: self.events(role).filter(|_| is_its),
            read_errors: self.read_errors(role).filter(|_| is_its),
            ..ArrayDevice::new(
                shown.map_or("missing", String::as_str),
                format!("member {role}"),
                Some(role),
                state,
            )
        }
    }

    /// Describes a spare; none if it is shown as the member that it has become.
    fn spare(&self, place: usize, name: &String) -> Option<ArrayDevice> {
        let devices = &self.array.devices;
        let role = (0..devices.member_names.len()).find(|role| self.holder(*role) == Some(place));
        if role.is_some_and(|role| self.named(role) == Some(name)) {
            return None;
        }
        let state = match role {
            Some(role) => self.working(role),
            None if devices.spares.contains(&place) => "spare".to_owned(),
            None if devices.joining.contains(&place) => "being made a spare".to_owned(),
            None => "not used".to_owned(),
        };
        Some(ArrayDevice {
            generation: role.and_then(|role| self.events(role)),
            read_errors: role.and_then(|role| self.read_errors(role)),
            ..ArrayDevice::new(name, format!("spare {place}"), role, state)
        })
    }

    /// Returns the array's advice, without what was already changed in the stack file.
    fn notes(&self) -> Vec<String> {
        let members = &self.array.devices.member_names;
        let is_done = |note: &str| {
            members.iter().enumerate().any(|(role, open)| {
                let named = self.named(role);
                named.is_some()
                    && named == open.as_ref()
                    && self
                        .holder(role)
                        .is_some_and(|spare| note.starts_with(&format!("spare {spare} is member {role} now")))
            })
        };
        let mut notes: Vec<String> =
            self.array.advice.iter().filter(|note| !is_done(note)).cloned().collect();
        let differs = members.iter().enumerate().any(|(role, open)| match (self.named(role), open) {
            (Some(named), Some(open)) => self.holder(role).is_none() && named != open,
            _ => false,
        });
        if differs {
            notes.push(
                "the stack file names other members than the server has: the server keeps the names that it started with until it is restarted"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Reports an array that is not served, from its superblocks. `start`: what a start would find, or why it would be refused.
fn offline(choice: &ArrayChoice, devices: &Devices, start: Result<ArrayStatus, Refusal>) -> ArrayReport {
    let of = &devices.newest;
    let stripes = of.member_sectors / of.strip_sectors;
    let state = state(devices, start.is_ok());
    let (found, refusal) = match start {
        Ok(found) => (found, None),
        Err(Refusal { reason, action }) => (ArrayStatus::default(), Some(format!("{reason}; {action}"))),
    };
    ArrayReport {
        served: false,
        refusal,
        reshaped_percent: of.reshape.map(|reshape| percent(reshape.sectors, of.member_sectors)),
        stopped_cleanly: Some(!of.active),
        devices: rows(choice, devices),
        array: ArrayStatus {
            state,
            uuid: uuid_text(of.uuid),
            level: of.level,
            members: of.members,
            strip_bytes: of.strip_sectors * SECTOR_BYTES,
            size_bytes: (of.members - of.level.parity()) as u64 * of.member_sectors * SECTOR_BYTES,
            generation: of.generation,
            journal: choice.journal.is_some(),
            regions_in_doubt: of.in_doubt.len(),
            regions: stripes.div_ceil(of.region_stripes),
            failed_members: (0..of.members).filter(|role| of.failed >> role & 1 == 1).collect(),
            rebuilding_member: of.rebuilding.map(|rebuild| rebuild.role),
            rebuilt_percent: of.rebuilding.map(|rebuild| percent(rebuild.sectors, of.member_sectors)),
            calibrated: of.calibration.is_some(),
            lost_blocks: of.lost.len(),
            away: of.away_status(),
            read_only: found.read_only,
            strides: found.strides,
            advice: found.advice,
            ..ArrayStatus::default()
        },
    }
}

/// The devices of an array that is not served, in the order of their places.
fn rows(choice: &ArrayChoice, devices: &Devices) -> Vec<ArrayDevice> {
    let missing = choice.members.iter().enumerate().filter(|(_, name)| name.is_none());
    let missing =
        missing.map(|(role, _)| ArrayDevice::new("missing", format!("member {role}"), Some(role), "missing"));
    let found = devices.found.iter().map(|found| row(choice, devices, found));
    let mut rows: Vec<ArrayDevice> = missing.chain(found).collect();
    rows.sort_by_key(|row| {
        let place = row.place.split_once(' ');
        place.map(|(kind, number)| (kind.to_owned(), number.parse::<u64>().ok()))
    });
    rows
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole as f64
}

/// Derives the state from the superblocks. `starts`: true if the array would start.
fn state(devices: &Devices, starts: bool) -> ArrayState {
    let of = &devices.newest;
    let lacking = (0..of.members).filter(|&role| of.failed >> role & 1 == 1 || !devices.has(role)).count();
    match lacking {
        _ if devices.apart().is_some() => ArrayState::Apart,
        _ if of.reshape.is_some() => ArrayState::Growing,
        more if more > of.level.parity() => ArrayState::Broken,
        _ if !starts => ArrayState::Refused,
        0 if !of.lost.is_empty() => ArrayState::Damaged,
        0 if of.in_doubt.is_empty() => ArrayState::Good,
        0 => ArrayState::InDoubt,
        _ if of.rebuilding.is_some() => ArrayState::Rebuilding,
        _ => ArrayState::Degraded,
    }
}

fn row(choice: &ArrayChoice, devices: &Devices, found: &FoundMember) -> ArrayDevice {
    let expected = choice.members.iter().position(|member| member.as_deref() == Some(&found.name));
    let wrong_place = |role: usize| expected.is_some_and(|expected| expected != role);
    let mut misplaced = false;
    let (role, state) = match (&found.content, devices.standing(found)) {
        (MemberContent::Unreadable(_), _) if !choice.site.is_there(&found.name) => {
            let failed = expected.is_some_and(|role| devices.newest.failed >> role & 1 == 1);
            let replaced = expected.is_some_and(|role| devices.has(role));
            let state = match (failed, replaced) {
                (_, true) => "replaced, and missing",
                (true, _) => "failed, and missing",
                _ => "missing",
            };
            (expected, state.to_owned())
        }
        (MemberContent::Unreadable(why), _) => (None, format!("unreadable: {why}")),
        (MemberContent::None(error), _) => (None, error.to_string()),
        (_, Some(Standing::InUse(role))) => {
            misplaced = wrong_place(role);
            (Some(role), if misplaced { "misplaced" } else { "in use" }.to_owned())
        }
        (_, Some(Standing::Outdated(role))) => {
            (Some(role), "out of date: it has older data, and the next start does not use it".to_owned())
        }
        (_, Some(Standing::Failed(role))) => (Some(role), "failed".to_owned()),
        (_, Some(Standing::Rebuilding(role, sectors))) => {
            (Some(role), format!("rebuilding {:.1} %", percent(sectors, devices.newest.member_sectors)))
        }
        (_, Some(Standing::Spare)) => (None, "spare".to_owned()),
        (_, Some(Standing::Stale)) => (None, "stale: another device has its role now".to_owned()),
        (_, Some(Standing::Foreign)) => (None, "foreign: a member of another array".to_owned()),
        (MemberContent::Of(..), None) => (None, "unknown".to_owned()),
    };
    let generation = found.superblock().map(|(superblock, _)| superblock.generation);
    ArrayDevice {
        misplaced,
        generation,
        ..ArrayDevice::new(&found.name, place(choice, &found.name), role, state)
    }
}

/// Describes the strides whose gaps are filled.
fn strides_line(array: &ArrayStatus) -> String {
    match (array.strides, array.calibrated) {
        (Some(strides), _) => {
            format!("Smax {} for reads, {} for writes", strides.read_max, strides.write_max)
        }
        (None, true) => "none are filled, although the stride benchmark's result is stored".to_owned(),
        (None, false) => "none are filled: not measured (\"dcd calibrate\")".to_owned(),
    }
}

/// Tells whether the parity is known to be right.
fn parity_text(report: &ArrayReport) -> String {
    let array = &report.array;
    let was_killed = report.stopped_cleanly == Some(false);
    match array.regions_in_doubt {
        0 if was_killed && !array.journal => {
            "may be out of sync: the array did not stop cleanly, and its journal is not named".to_owned()
        }
        0 if was_killed && report.refusal.is_some() => "not known, as the start is refused".to_owned(),
        0 if was_killed => "right once the next start writes the journal's last records again".to_owned(),
        0 if array.last_scrub.as_ref().is_some_and(Findings::are_left) => {
            "right except for what the scrub found".to_owned()
        }
        0 => "known to be right".to_owned(),
        some => format!("may be out of sync in {some} of {} regions", array.regions),
    }
}

/// Formats a device and its part in the array.
fn device_line(device: &ArrayDevice) -> String {
    let ArrayDevice { name, place, .. } = device;
    let events = device.generation.map(|events| format!(", event counter {events}")).unwrap_or_default();
    let state = match (device.misplaced, device.role) {
        (true, Some(role)) => format!("in the wrong place: it is member {role}"),
        (_, Some(role)) if *place != format!("member {role}") => {
            format!("{} as member {role}", device.state)
        }
        _ => device.state.clone(),
    };
    let errors = device.read_errors.filter(|errors| *errors > 0);
    let errors = errors.map(|errors| format!(", {errors} reads failed")).unwrap_or_default();
    format!("  {place:<10} {name:<16} {state}{events}{errors}")
}

/// Formats the report as one screen.
fn screen(report: &ArrayReport) -> String {
    let array = &report.array;
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:<8} {text}");
    };
    let served = if report.served { "served" } else { "not served" };
    let read_only = if array.read_only { ", read only" } else { "" };
    line("state", &format!("{}, {served}{read_only}", array.state.word()));
    let (strip, size) = (HumanBytes(array.strip_bytes), HumanBytes(array.size_bytes));
    line("array", &format!("{}, {} members, strips of {strip}, {size}", array.level.name(), array.members));
    line("uuid", &format!("{}, event counter {}", array.uuid, array.generation));
    let journal = match (array.journal, array.journal_failed) {
        (_, true) => "failed",
        (true, false) => "yes",
        (false, false) => "none",
    };
    line("parity", &format!("{}; journal: {journal}", parity_text(report)));
    if let Some(percent) = report.reshaped_percent {
        line("growing", &format!("{percent:.1} %: \"dcd array grow\" continues"));
    }
    match &report.refusal {
        Some(why) => line("start", &format!("refused: {why}")),
        None => line("strides", &strides_line(array)),
    }
    if let Some(text) = away_line(array) {
        line("away", &text);
    }
    if let Some(pass) = &array.pass {
        let by_regions = if array.away.returning { ", by regions" } else { "" };
        line("pass", &format!("{}{by_regions}", pass_line(pass)));
    }
    if let Some(last) = &array.last_return {
        line("returned", &return_line(last));
    }
    if let Some(findings) = &array.last_scrub {
        line("scrubbed", &findings_line(findings));
    }
    for device in &report.devices {
        let _ = writeln!(out, "{}", device_line(device));
    }
    for advice in &array.advice {
        let _ = writeln!(out, "note: {advice}");
    }
    out
}

/// Describes members that may come back, and how much they have missed.
fn away_line(array: &ArrayStatus) -> Option<String> {
    let away = &array.away;
    let waits = |role: &usize| Some(*role) != array.rebuilding_member;
    let members: Vec<usize> = away.members.iter().copied().filter(waits).collect();
    (!members.is_empty()).then(|| {
        format!(
            "{}: something was written in {} of {} regions since; \"dcd array add\" of the same device fills only these",
            members_named(&members),
            away.missed_regions,
            away.regions
        )
    })
}

/// Describes how much was filled of the last member that came back.
fn return_line(last: &Return) -> String {
    let (filled, all) = (HumanBytes(last.filled_bytes), HumanBytes(last.member_bytes));
    format!("member {}, by regions: {filled} of its {all} were filled", last.role)
}

/// Describes the progress of a rebuild, a resync or a scrub.
pub fn pass_line(pass: &PassStatus) -> String {
    let mut line = format!("{} {:.1} %", pass.kind.word(), pass.percent);
    if pass.paused {
        line += ", stopped";
    } else if let Some(speed) = pass.member_bytes_per_second.filter(|speed| *speed >= 1.0) {
        let seconds = (pass.member_bytes_left as f64 / speed).ceil() as u64;
        let _ = write!(line, ", {}/s of each member, about {seconds} s left", HumanBytes(speed as u64));
    }
    if matches!(pass.kind, PassName::Scrub | PassName::ScrubRepair) {
        let _ = write!(line, "; {}", findings_line(&pass.findings));
    }
    line
}

/// Describes the findings of a scrub.
pub fn findings_line(findings: &Findings) -> String {
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut line = format!(
        "{} that did not match, {}, {} repaired, {} lost",
        counted(findings.mismatches, "row"),
        counted(findings.unreadable, "unreadable block"),
        counted(findings.repaired, "block"),
        findings.lost
    );
    if findings.unlocated > 0 {
        let _ = write!(
            line,
            "; in {} the wrong block was not known: the data was taken as right, and the parity was written",
            counted(findings.unlocated, "row")
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use dcd_engine::raid::{AwayStatus, Level, StridesStatus};

    use super::*;

    fn report() -> ArrayReport {
        let findings = Findings { mismatches: 3, repaired: 2, unreadable: 1, lost: 0, unlocated: 1 };
        let pass = PassStatus {
            kind: PassName::Rebuild,
            role: Some(2),
            member_bytes: 20 << 20,
            paused: false,
            percent: 41.04,
            member_bytes_left: 10 << 20,
            member_bytes_per_second: Some(f64::from(5 << 20)),
            findings,
        };
        let array = ArrayStatus {
            state: ArrayState::Rebuilding,
            level: Level::Raid6,
            members: 4,
            strip_bytes: 131_072,
            size_bytes: 9 << 20,
            uuid: "u".to_owned(),
            generation: 12,
            regions_in_doubt: 2,
            regions: 9,
            journal: true,
            last_scrub: Some(findings),
            pass: Some(pass),
            calibrated: true,
            strides: Some(StridesStatus { read_max: 40, write_max: 12 }),
            away: AwayStatus { members: vec![0, 2], missed_regions: 3, regions: 9, returning: true },
            last_return: Some(Return { role: 3, filled_bytes: 1 << 20, member_bytes: 4 << 20 }),
            advice: vec!["swap them".to_owned()],
            ..ArrayStatus::default()
        };
        let device = |name: &str, place: &str, role, state: &str| {
            ArrayDevice::new(name, place.to_owned(), Some(role), state)
        };
        ArrayReport {
            served: true,
            refusal: None,
            reshaped_percent: None,
            stopped_cleanly: None,
            devices: vec![
                ArrayDevice {
                    generation: Some(12),
                    read_errors: Some(3),
                    ..device("b", "member 1", 1, "in use")
                },
                ArrayDevice {
                    misplaced: true,
                    read_errors: Some(0),
                    ..device("c", "member 2", 0, "misplaced")
                },
                device("e", "spare 0", 2, "rebuilding 41.0 %"),
            ],
            array,
        }
    }

    #[test]
    fn one_screen_says_it_all() {
        let screen = screen(&report());
        for line in [
            "state    rebuilding, served",
            "array    raid6, 4 members, strips of 128 KiB, 9 MiB",
            "parity   may be out of sync in 2 of 9 regions; journal: yes",
            "away     members 0 and 2: something was written in 3 of 9 regions since; \"dcd array add\" of the same device fills only these",
            "pass     rebuild 41.0 %, 5 MiB/s of each member, about 2 s left, by regions",
            "returned member 3, by regions: 1 MiB of its 4 MiB were filled",
            "strides  Smax 40 for reads, 12 for writes",
            "scrubbed 3 rows that did not match, 1 unreadable block, 2 blocks repaired, 0 lost; in 1 row the wrong block was not \
             known: the data was taken as right, and the parity was written",
            "  member 1   b                in use, event counter 12, 3 reads failed",
            "  member 2   c                in the wrong place: it is member 0",
            "  spare 0    e                rebuilding 41.0 % as member 2",
            "note: swap them",
        ] {
            assert!(screen.lines().any(|other| other == line), "{line}\nis not in\n{screen}");
        }
    }

    #[test]
    fn a_status_is_read_back_as_it_was_written() {
        let array = report().array;
        let json = serde_json::to_value(dcd_stack::LayerStatus::Raid(Box::new(array))).unwrap();
        let back: dcd_stack::LayerStatus = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(back.to_json(), json);
        assert_eq!(json["type"], "raid");
    }
}
