//! Everything that can be seen of a stack and asked of its start, and the verdict.

use dcd_engine::log_cache::format::LogState;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::mirror::{Label, LabelError, Leg, LegState};
use dcd_engine::raid::{ArraySuperblock, RaidConfig, create};
use dcd_engine::{BlockDevice, Extent, Lba};
use dcd_io::MemoryDevice;

use super::*;
use crate::session::members::{FoundMember, MemberContent};
use crate::session::record::{Attachments, LegsSeen, StaleLeg, Teller, told_as, uuid_text};

const THIS: u64 = 7;
const OTHER: u64 = 9;
const EXTENT: Extent = Extent::new(Lba(0), 2048);

const CACHE: &str = "export = \"cache\"\n[device.a]\npath = \"a\"\n[device.b]\npath = \"b\"\n[device.data]\npath = \"data\"\n\
                     [layer.cache]\nkind = \"log-cache\"\nlog = [\"a\", \"b\"]\ndata = \"data\"\n";
const ARRAY: &str = "export = \"raid\"\n[device.d0]\npath = \"d0\"\n[device.d1]\npath = \"d1\"\n[device.d2]\npath = \"d2\"\n\
                     [device.d3]\npath = \"d3\"\n[layer.raid]\nkind = \"raid\"\nlevel = \"raid5\"\n\
                     of = [\"d0\", \"d1\", \"d2\"]\nspares = [\"d3\"]\n";
const PLAIN: &str = "export = \"data\"\n[device.data]\npath = \"data\"\n";

fn file(text: &str) -> StackFile {
    StackFile::parse(text, Path::new("/stacks/disk.toml")).unwrap()
}

fn superblock(state: LogState, machine: u64) -> LogSuperblock {
    let options = FormatOptions::new([7; 16], [8; 16]);
    let made = format(&mut MemoryDevice::new(16 << 20), &mut MemoryDevice::new(1 << 20), &options).unwrap();
    LogSuperblock { state, machine, epoch: 5, ..made }
}

fn uuid() -> String {
    uuid_text([7; 16])
}

fn attachment(state: AttachmentState) -> Attachment {
    let (cache_uuid, log) = (uuid(), "/disks/log".into());
    let (first_sector, sectors) = (EXTENT.start.0, EXTENT.sectors);
    let (epoch, dirty_bytes, stale_legs, log_bytes) = (5, None, Vec::new(), 8 << 20);
    Attachment {
        cache_uuid,
        log,
        disk: 0,
        disk_uuid: None,
        discarded: false,
        zeroes_bytes: 0,
        first_sector,
        sectors,
        epoch,
        generation: 0,
        elsewhere: false,
        state,
        dirty_bytes,
        stale_legs,
        log_bytes,
    }
}

fn record(all: Vec<Attachment>) -> RecordSeen {
    RecordSeen {
        all: Attachments(all),
        extent: EXTENT,
        told: None,
        teller: Teller::Mark,
        retired: false,
        stack: None,
        has_place: None,
        original: None,
    }
}

/// A log on legs 1 and 2, of which these are whole.
fn present(state: LogState, epoch: u64, whole: &[u64]) -> LogSeen {
    let legs = LegsSeen { whole: whole.to_vec(), generation: 4 };
    LogSeen::Present { uuid: uuid(), epoch, generation: 9, state, torn: false, legs }
}

fn missing() -> LogSeen {
    LogSeen::Missing("no superblock".to_owned())
}

fn cache(log: LogSeen, machine: u64, record: Option<RecordSeen>) -> SeenStack {
    let found = match &log {
        LogSeen::Present { state, .. } => Some(superblock(*state, machine)),
        LogSeen::Missing(_) => None,
    };
    let caches =
        [("cache".to_owned(), vec![CacheSeen { log, superblock: found, record, missing: None }])].into();
    SeenStack { machine: THIS, caches, ..SeenStack::default() }
}

fn running(record: RecordSeen) -> SeenStack {
    cache(present(LogState::Stopped, 5, &[1, 2]), THIS, Some(record))
}

/// The label of a leg, by which the legs 1 and 2 have these standings.
fn label(own: u64, generation: u64, standings: [LegState; 2]) -> FoundLabel {
    let legs = standings.into_iter().zip(1..).map(|(standing, id)| Leg { id, standing }).collect();
    Ok((Label { uuid: [3; 16], generation, complete: generation - 1, sectors: 100, legs }, own))
}

fn mirror(labels: Vec<(&str, FoundLabel)>, cache: SeenStack) -> SeenStack {
    let is_there = |leg: &&str| !labels.iter().any(|(name, _)| name == leg);
    let absent = ["a", "b"].into_iter().filter(is_there).map(str::to_owned).collect();
    let labels = labels.into_iter().map(|(name, found)| (name.to_owned(), found)).collect();
    SeenStack { mirrors: [("cache.legs".to_owned(), MirrorSeen { absent, labels })].into(), ..cache }
}

/// An array of three members and a spare, without the devices `absent`, and with these failed roles.
fn array(absent: &[&str], failed: u64) -> SeenStack {
    let mut devices: Vec<MemoryDevice> = (0..3).map(|_| MemoryDevice::new(64 << 20)).collect();
    let mut members: Vec<Option<&mut dyn BlockDevice>> =
        devices.iter_mut().map(|device| Some(device as &mut dyn BlockDevice)).collect();
    let config = RaidConfig { present: vec![true; 3], spares: vec![true], ..RaidConfig::default() };
    let newest = ArraySuperblock { failed, ..create(&mut members, &config, [5; 16], true).unwrap() };
    let found = ["d0", "d1", "d2"].into_iter().zip(&mut devices).map(|(name, device)| {
        let content = match ArraySuperblock::read(device) {
            _ if absent.contains(&name) => MemberContent::Unreadable("no such file".to_owned()),
            Ok((_, identity)) => MemberContent::Of(Box::new(newest.clone()), identity),
            Err(error) => MemberContent::None(error),
        };
        FoundMember { name: name.to_owned(), device: None, content }
    });
    let devices = Devices { found: found.collect(), newest: newest.clone(), parts: Default::default() };
    let absent = absent.iter().map(|name| (*name).to_owned()).collect();
    let arrays = [("raid".to_owned(), ArraySeen { absent, devices: Some(devices) })].into();
    SeenStack { machine: THIS, arrays, ..SeenStack::default() }
}

fn plain(record: Option<RecordSeen>, log_of: Option<&str>) -> SeenStack {
    let log_of = log_of.map(str::to_owned);
    SeenStack {
        machine: THIS,
        plain: vec![PlainSeen { part: "data".to_owned(), record, log_of }],
        ..SeenStack::default()
    }
}

/// A part of the reason of the refusal; "" if the stack starts.
type Verdict = fn(&Asked) -> &'static str;

const STARTS: Verdict = |_| "";

fn rows() -> Vec<(&'static str, &'static str, SeenStack, Verdict)> {
    use AttachmentState::{Abandoned, Clean, Dirty};
    use LegState::{Failed, Whole};
    let known = || record(vec![attachment(Dirty)]);
    let stale = || {
        let stale_legs = vec![StaleLeg { id: 1, generation: 4 }];
        record(vec![Attachment { stale_legs, ..attachment(Dirty) }])
    };
    let another = Attachment { cache_uuid: uuid_text([1; 16]), ..attachment(Dirty) };
    let newer = Attachment { epoch: 6, ..attachment(Dirty) };
    let told = |told: Vec<u64>| RecordSeen { told: Some(told), ..record(Vec::new()) };
    let own = told_as(&uuid()).unwrap();
    let whole = |own| label(own, 4, [Whole, Whole]);
    let unless_legs: Verdict = |asked| if asked.degraded_legs { "" } else { "does not say that it failed" };
    let unless_members: Verdict =
        |asked| if asked.degraded_members { "" } else { "the superblocks do not say that it failed" };
    let unless_taken: Verdict = |asked| if asked.take_over { "" } else { "machine" };
    vec![
        // Record and log.
        ("dirty", CACHE, running(known()), STARTS),
        ("clean", CACHE, running(record(vec![attachment(Clean)])), STARTS),
        ("no record", CACHE, running(record(Vec::new())), STARTS),
        ("data disk in RAM", CACHE, cache(present(LogState::Stopped, 5, &[]), THIS, None), STARTS),
        ("no record, and the disk names the cache", CACHE, running(told(vec![own])), STARTS),
        ("no record, and the disk names none", CACHE, running(told(Vec::new())), |_| "no cache is attached"),
        (
            "no record, and the disk names another",
            CACHE,
            running(told(vec![1])),
            |_| "another cache is attached",
        ),
        (
            "no record, and the cache is retired",
            CACHE,
            running(RecordSeen { retired: true, ..record(Vec::new()) }),
            |_| "was detached or discarded",
        ),
        ("record of another cache", CACHE, running(record(vec![another])), |_| "another cache is attached"),
        ("failed log", CACHE, running(record(vec![attachment(Abandoned)])), |_| "written without the log"),
        ("old copy", CACHE, running(record(vec![newer])), |_| "is an old copy"),
        (
            "detached",
            CACHE,
            cache(present(LogState::Detached, 5, &[]), THIS, Some(known())),
            |_| "was detached",
        ),
        (
            "discarded",
            CACHE,
            cache(present(LogState::GivenUp, 5, &[]), THIS, Some(known())),
            |_| "written without",
        ),
        (
            "discarded, no record",
            CACHE,
            cache(present(LogState::GivenUp, 5, &[]), THIS, Some(record(Vec::new()))),
            |_| "written without",
        ),
        ("blank log", CACHE, cache(missing(), THIS, Some(known())), |_| "the log is missing"),
        ("blank log, no record", CACHE, cache(missing(), THIS, Some(record(vec![]))), |_| "there is no log"),
        (
            "blank log, the disk names it",
            CACHE,
            cache(missing(), THIS, Some(told(vec![own]))),
            |_| "not known how",
        ),
        ("blank log, data disk in RAM", CACHE, cache(missing(), THIS, None), |_| "there is no log"),
        ("killed here", CACHE, cache(present(LogState::Active, 5, &[]), THIS, Some(known())), STARTS),
        (
            "served elsewhere",
            CACHE,
            cache(present(LogState::Active, 5, &[]), OTHER, Some(known())),
            unless_taken,
        ),
        ("stopped elsewhere", CACHE, cache(present(LogState::Stopped, 5, &[]), OTHER, Some(known())), STARTS),
        (
            "served elsewhere, old copy here",
            CACHE,
            cache(present(LogState::Active, 4, &[]), OTHER, Some(known())),
            |asked| if asked.take_over { "is an old copy" } else { "machine" },
        ),
        // Legs.
        ("both legs", CACHE, mirror(vec![("a", whole(1)), ("b", whole(2))], running(known())), STARTS),
        ("a leg is missing", CACHE, mirror(vec![("a", whole(1))], running(known())), unless_legs),
        (
            "the missing leg has failed",
            CACHE,
            mirror(vec![("a", label(1, 4, [Whole, Failed]))], running(known())),
            STARTS,
        ),
        (
            "a blank leg",
            CACHE,
            mirror(vec![("a", whole(1)), ("b", Err(LabelError::None))], running(known())),
            unless_legs,
        ),
        (
            "blank legs",
            CACHE,
            mirror(vec![("a", Err(LabelError::None)), ("b", Err(LabelError::None))], running(known())),
            |_| "is a leg of a mirrored log",
        ),
        (
            "a stale leg alone, and the record knows",
            CACHE,
            mirror(vec![("a", whole(1))], cache(present(LogState::Stopped, 5, &[1]), THIS, Some(stale()))),
            |_| "lacks acknowledged writes",
        ),
        (
            "a stale leg and a whole one",
            CACHE,
            mirror(
                vec![("a", label(1, 4, [Whole, Whole])), ("b", label(2, 6, [Failed, Whole]))],
                cache(present(LogState::Stopped, 5, &[2]), THIS, Some(stale())),
            ),
            STARTS,
        ),
        (
            "legs that were used without each other",
            CACHE,
            mirror(
                vec![("a", label(1, 6, [Whole, Failed])), ("b", label(2, 6, [Failed, Whole]))],
                running(known()),
            ),
            |_| "were used without each other",
        ),
        (
            "a leg is missing, and another machine serves the other",
            CACHE,
            mirror(vec![("a", whole(1))], cache(present(LogState::Active, 5, &[1]), OTHER, Some(known()))),
            |asked| match (asked.take_over, asked.degraded_legs) {
                (false, _) => "machine",
                (true, false) => "does not say that it failed",
                (true, true) => "",
            },
        ),
        // Arrays.
        ("a spare is missing", ARRAY, array(&["d3"], 0), STARTS),
        ("a member is missing", ARRAY, array(&["d1"], 0), unless_members),
        ("the missing member has failed", ARRAY, array(&["d1"], 0b10), STARTS),
        ("a member is missing, another one has failed", ARRAY, array(&["d1"], 0b1), unless_members),
        ("no superblock", ARRAY, unreadable(), STARTS),
        // Disks without a cache.
        ("plain", PLAIN, plain(Some(record(Vec::new())), None), STARTS),
        ("plain, read only or in RAM", PLAIN, plain(None, None), STARTS),
        ("plain, with a cache", PLAIN, plain(Some(known()), None), |_| "serves the disk without it"),
        ("plain, the cache discarded", PLAIN, plain(Some(record(vec![attachment(Abandoned)])), None), STARTS),
        ("plain, the disk names a cache", PLAIN, plain(Some(told(vec![1])), None), |_| "record is not here"),
        (
            "a log as a disk",
            PLAIN,
            plain(Some(record(Vec::new())), Some("the log of the cache c")),
            |_| "is the log of the cache c",
        ),
    ]
}

fn unreadable() -> SeenStack {
    let seen = ArraySeen { absent: vec!["d1".to_owned(), "d3".to_owned()], devices: None };
    SeenStack { arrays: [("raid".to_owned(), seen)].into(), ..SeenStack::default() }
}

/// Every combination of what a command can ask that a verdict may depend on.
fn all_asked() -> impl Iterator<Item = Asked> {
    (0..16).map(|bits: u32| Asked {
        accept_damage: bits & 1 != 0,
        take_over: bits & 2 != 0,
        degraded_members: bits & 4 != 0,
        degraded_legs: bits & 8 != 0,
        ..Asked::default()
    })
}

#[test]
fn everything_that_is_seen_and_asked_has_its_verdict() {
    for (case, text, seen, verdict) in rows() {
        for asked in all_asked() {
            let judged = judge(&file(text), &seen, &asked);
            match (judged, verdict(&asked)) {
                (Ok(_), "") => {}
                (Err(refusal), reason) if !reason.is_empty() => {
                    assert!(refusal.reason.contains(reason), "{case}, {asked:?}: {refusal}");
                }
                (judged, reason) => {
                    panic!("{case}, {asked:?}: {:?} in place of \"{reason}\"", judged.err());
                }
            }
        }
    }
}

#[test]
fn a_rescue_is_refused_as_a_start_is_and_newer_data_is_overwritten_on_purpose_only() {
    let rescued = |seen: &SeenStack, force: bool| {
        let mut choice = CacheChoice::of(file(CACHE), None).unwrap();
        choice.site.asked.take_over = force;
        judge_rescue(&choice, &seen.caches["cache"][0], THIS, force).err()
    };
    let of_cache = rows().into_iter().filter(|row| row.1 == CACHE && row.2.mirrors.is_empty());
    for (case, _, seen, verdict) in of_cache {
        let (reason, refusal) = (verdict(&Asked::default()), rescued(&seen, false));
        assert_eq!(refusal.is_none(), reason.is_empty(), "{case}: {refusal:?}");
        assert!(refusal.is_none_or(|refusal| refusal.reason.contains(reason)), "{case}");
        let is_another = ["record of another cache", "no record, and the disk names another"].contains(&case);
        let forced = rescued(&seen, true);
        assert_eq!(forced.is_some(), is_another || case.starts_with("blank log"), "{case}: {forced:?}");
    }
}

#[test]
fn a_plan_leaves_out_what_is_missing_and_notes_a_missing_record() {
    let degraded = Asked { degraded_members: true, degraded_legs: true, ..Asked::default() };
    let planned = |text: &str, seen: &SeenStack| {
        let mut site = Site::from(file(text));
        let plan = judge(&site, seen, &degraded).unwrap();
        let export = site.export.clone();
        plan.prepare(&mut site, &[&export]);
        (site, plan.told)
    };
    let (site, told) = planned(ARRAY, &array(&["d1"], 0));
    assert_eq!(site.layer("raid").unwrap().kind.below_names(), ["d0", "d2", "d3"]);
    assert!(site.device("d1").is_none() && told.len() == 1, "{told:?}");
    let (site, told) = planned(ARRAY, &unreadable());
    assert_eq!((site.layer("raid").unwrap().kind.below_names(), told.len()), (vec!["d0", "d1", "d2"], 0));
    let whole = label(1, 4, [LegState::Whole; 2]);
    let (site, told) = planned(CACHE, &mirror(vec![("a", whole)], running(record(Vec::new()))));
    assert_eq!(site.layer("cache.legs").unwrap().kind.below_names(), ["a"]);
    assert!(told.len() == 1 && told[0].contains("leg \"b\""), "{told:?}");
    assert_eq!(site.asked.doubt_kept, ["cache"]);
}

#[test]
fn the_first_refused_cache_in_the_stack_file_is_named() {
    let text = "export = \"raid\"\n[layer.raid]\nkind = \"raid\"\nlevel = \"raid5\"\nof = [\"two\", \"one\", \"three\"]\n".to_owned();
    let cache_of = |name: &str| {
        format!(
            "[device.l{name}]\npath = \"l{name}\"\n[device.d{name}]\npath = \"d{name}\"\n\
             [layer.{name}]\nkind = \"log-cache\"\nlog = \"l{name}\"\ndata = \"d{name}\"\n"
        )
    };
    let text = text + &["one", "two", "three"].map(cache_of).concat();
    let seen = |name: &str| {
        let record = Some(record(Vec::new()));
        (name.to_owned(), vec![CacheSeen { log: missing(), superblock: None, record, missing: None }])
    };
    let seen = SeenStack { caches: ["one", "two"].map(seen).into(), ..SeenStack::default() };
    let refusal = judge(&file(&text), &seen, &Asked::default()).err().unwrap();
    assert!(refusal.reason.starts_with("log cache \"one\": there is no log"), "{refusal}");
}
