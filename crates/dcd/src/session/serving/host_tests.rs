//! The host, step by step, over fake layers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dcd_engine::log_cache::LogCacheStatistics;
use dcd_engine::raid::DevicesStatus;
use dcd_engine::{
    AnyStatus, Cx, ErrorKind, Event, Extent, Geometry, IoError, Layer, Lba, LogCacheState, LogCacheStatus,
    StackBuilder, Target,
};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;
use crate::messages::Priority;
use crate::session::record::{Attachment, AttachmentState, DiskRecord};
use crate::session::running::{Admitted, RunningCaches};
use crate::session::serving::host::{Cache, CacheKind, StackHost};
use crate::session::serving::status::state_word;

/// A fake log cache: it keeps the controls that it gets, and reports as many dirty bytes as the test says.
struct Told {
    controls: Rc<RefCell<Vec<Control>>>,
    dirty_bytes: Rc<RefCell<u64>>,
    lost_blocks: Rc<RefCell<usize>>,
    destaged_sectors: Rc<RefCell<u64>>,
    writes: Rc<Cell<WritesState>>,
}

impl Layer for Told {
    fn handle(&mut self, event: Event, _cx: &mut Cx) {
        if let Event::Control(control) = event {
            self.controls.borrow_mut().push(control);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry::plain(8)
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let statistics = LogCacheStatistics {
            destaged_sectors: *self.destaged_sectors.borrow(),
            ..LogCacheStatistics::default()
        };
        Box::new(LogCacheStatus {
            state: match self.writes.get() {
                WritesState::Through => LogCacheState::Clean,
                _ => LogCacheState::Stopping,
            },
            writes: self.writes.get(),
            dirty_bytes: *self.dirty_bytes.borrow(),
            dirty_data_bytes: *self.dirty_bytes.borrow(),
            lost_blocks: *self.lost_blocks.borrow(),
            statistics,
            epoch: 9,
            ..LogCacheStatus::default()
        })
    }
}

struct Bench {
    host: StackHost,
    stack: Stack,
    controls: Rc<RefCell<Vec<Control>>>,
    dirty_bytes: Rc<RefCell<u64>>,
    lost_blocks: Rc<RefCell<usize>>,
    destaged_sectors: Rc<RefCell<u64>>,
    writes: Rc<Cell<WritesState>>,
    dir: tempfile::TempDir,
}

const EXTENT: Extent = Extent::new(Lba(0), 8);
const CALLER: CallId = CallId { client: ClientId(4), number: 2 };

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), [0; 4096]).unwrap();
    let record = DiskRecord::open(&dir.path().join("data"), EXTENT).unwrap();
    let attached = Attachment {
        cache_uuid: "u".to_owned(),
        log: "log".into(),
        disk: 0,
        disk_uuid: None,
        discarded: false,
        zeroes_bytes: 0,
        first_sector: 0,
        sectors: 8,
        epoch: 1,
        generation: 0,
        elsewhere: false,
        state: AttachmentState::Clean,
        dirty_bytes: Some(0),
        stale_legs: Vec::new(),
        log_bytes: 1 << 20,
    };
    record.update(|_| attached).unwrap();
    let (controls, dirty_bytes) = (Rc::default(), Rc::new(RefCell::new(4096)));
    let mut builder = StackBuilder::new();
    let (lost_blocks, destaged_sectors) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(8)));
    let writes = Rc::new(Cell::new(WritesState::Back));
    let told = Told {
        controls: Rc::clone(&controls),
        dirty_bytes: Rc::clone(&dirty_bytes),
        lost_blocks: Rc::clone(&lost_blocks),
        destaged_sectors: Rc::clone(&destaged_sectors),
        writes: Rc::clone(&writes),
    };
    let Target::Layer(layer) = builder.layer("cache", Box::new(told), &[]) else { panic!("a layer") };
    let stack = builder.finish(Target::Layer(layer));
    let mut parts = Parts::default();
    parts.layers.insert("cache".to_owned(), layer);
    let cache = Cache { name: "cache".to_owned(), layer, kind: CacheKind::LogCache };
    let admitted = Admitted {
        disk: 0,
        layer: "cache".to_owned(),
        log: "log.img".into(),
        mirror: None,
        record: Some(record),
        unrecorded: None,
        cache: None,
    };
    let mut caches = RunningCaches::of([admitted]);
    caches.note_started(Nanos::ZERO, &stack).unwrap();
    let host = StackHost::new("cache", parts, vec![cache], caches);
    Bench { host, stack, controls, dirty_bytes, lost_blocks, destaged_sectors, writes, dir }
}

impl Bench {
    fn call(&mut self, verb: &str) {
        self.host.call(Nanos::from_secs(1), &mut self.stack, CALLER, &json!({ "verb": verb }));
    }

    fn report(&mut self, report: Report) {
        self.host.report(Nanos::from_secs(2), &mut self.stack, LayerIndex(0), report);
    }

    fn answer(&mut self) -> (Value, bool) {
        let answer = self.host.take_answer().expect("an answer");
        assert_eq!(answer.to, CALLER);
        (answer.body, answer.done)
    }

    fn recorded(&self) -> Attachment {
        let record = DiskRecord::open(&self.dir.path().join("data"), EXTENT).unwrap();
        record.load().unwrap().0.remove(0)
    }

    fn told(&self) -> Vec<Control> {
        std::mem::take(&mut *self.controls.borrow_mut())
    }
}

#[test]
fn a_flush_reports_progress_and_ends_when_all_is_home() {
    let mut bench = bench();
    bench.call("flush");
    assert_eq!(bench.told(), [Control::Drain]);
    bench.host.tick(Nanos::from_secs(1), &mut bench.stack);
    assert_eq!(bench.answer(), (json!({ "dirty_bytes": 4096, "written_bytes": 0 }), false));
    bench.host.tick(Nanos::from_secs(1), &mut bench.stack);
    assert!(bench.host.take_answer().is_none(), "not more often than it should");
    // Written, and dirty until it is durable.
    *bench.destaged_sectors.borrow_mut() += 4;
    bench.host.tick(Nanos::from_millis(1_500), &mut bench.stack);
    assert_eq!(bench.answer(), (json!({ "dirty_bytes": 4096, "written_bytes": 2048 }), false));
    *bench.dirty_bytes.borrow_mut() = 0;
    bench.report(Report::Drained);
    assert_eq!(bench.answer(), (json!({ "dirty_bytes": 0, "left": [] }), true));
    assert_eq!(bench.host.next_deadline(), Some(Nanos::from_secs(3)), "only the next look at the cache");
}

#[test]
fn lost_blocks_are_told_when_they_are_lost_and_nothing_is_good_before_they_are_written_again() {
    let mut bench = bench();
    for (lost_blocks, seconds, news) in [
        (0, 0, None),
        (2, 2, Some((Priority::Error, "log cache \"cache\": 2 blocks of 4 KiB lost"))),
        (2, 4, None),
        (0, 6, Some((Priority::Notice, "log cache \"cache\": good"))),
    ] {
        *bench.lost_blocks.borrow_mut() = lost_blocks;
        bench.host.tick(Nanos::from_secs(seconds), &mut bench.stack);
        let news = news.map(|(priority, text): (_, &str)| (priority, text.to_owned()));
        assert_eq!(bench.host.take_news(), news.into_iter().collect::<Vec<_>>());
    }
    let array = ArrayStatus { lost_blocks: 1, ..ArrayStatus::default() };
    assert_eq!(state_word(&array), "damaged");
}

#[test]
fn a_spare_that_is_being_filled_is_no_failed_device() {
    let failed = |rebuilding_member| {
        let member_names = ["a", "spare", "c"].map(|name| Some(name.to_owned())).into();
        let devices = DevicesStatus { member_names, ..DevicesStatus::default() };
        let failed_members = vec![1, 2];
        let array = ArrayStatus { failed_members, rebuilding_member, devices, ..ArrayStatus::default() };
        array.failed_devices().cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        (failed(None), failed(Some(1))),
        (vec!["spare".to_owned(), "c".to_owned()], vec!["c".to_owned()])
    );
}

#[test]
fn conditions_that_the_alert_rules_call_critical_are_errors_in_the_journal() {
    let legs = |standing| {
        let leg = |standing| LegStatus { standing: Some(standing), ..LegStatus::default() };
        let legs = vec![leg(LegState::Whole), leg(standing)];
        LayerCondition::of_mirror(MirrorStatus { legs, ..MirrorStatus::default() }).is_failure
    };
    assert_eq!([LegState::Whole, LegState::Filling, LegState::Failed].map(legs), [false, false, true]);
    let array = |failed: &[usize], rebuilding_member| {
        let failed_members = failed.to_vec();
        let array = ArrayStatus { failed_members, rebuilding_member, ..ArrayStatus::default() };
        LayerCondition::of_array(&array).is_failure
    };
    assert_eq!([array(&[], None), array(&[1], Some(1)), array(&[1], None)], [false, false, true]);
    let cache = |state, flush_at_risk_bytes, destage_failing| {
        let cache = LogCacheStatus {
            state,
            flush_at_risk_bytes,
            flush_error: (flush_at_risk_bytes > 0).then(|| IoError::new(ErrorKind::Medium)),
            destage_failing,
            ..LogCacheStatus::default()
        };
        LayerCondition::of_log_cache(&cache).is_failure
    };
    assert!(!cache(LogCacheState::Dirty, 0, false));
    assert!(cache(LogCacheState::LogFailed, 0, false));
    assert!(cache(LogCacheState::Dirty, 4096, false));
    assert!(cache(LogCacheState::Dirty, 0, true));
}

/// No write is acknowledged meanwhile, so the record must not wait for a restart.
#[test]
fn a_failure_of_the_log_that_cannot_be_recorded_is_recorded_as_soon_as_it_can_be() {
    let mut bench = bench();
    bench.host.tick(Nanos::ZERO, &mut bench.stack);
    let in_the_way = bench.dir.path().join("data.dcd.new");
    std::fs::create_dir(&in_the_way).unwrap();
    bench.report(Report::LogFailed);
    assert!(bench.host.take_troubles().concat().contains("nothing more is acknowledged until it can"));
    bench.host.tick(Nanos::from_secs(2), &mut bench.stack);
    assert_eq!((bench.told(), bench.host.take_troubles()), (vec![], vec![]));
    std::fs::remove_dir(&in_the_way).unwrap();
    bench.host.tick(Nanos::from_secs(4), &mut bench.stack);
    assert_eq!(bench.told(), [Control::LogFailureRecorded]);
    assert_eq!(bench.recorded().state, AttachmentState::Abandoned);
}

/// A stack file whose cache has a window, as it is in UTC.
fn with_window(bench: &mut Bench, window: &str) -> Rc<Cell<Timestamp>> {
    let text = format!(
        "export = \"cache\"\n[device.a]\nmemory = \"1MiB\"\n[device.b]\nmemory = \"1MiB\"\n[layer.cache]\nkind = \"log-cache\"\n\
         log = \"a\"\ndata = \"b\"\n{window}\n"
    );
    bench.host.file = Some(StackFile::parse(&text, std::path::Path::new("/etc/dcd/srv.toml")).unwrap());
    let now = Rc::new(Cell::new("2026-01-15T01:59:57Z".parse().unwrap()));
    bench.host.clock = LocalClock::fixed(TimeZone::UTC, Rc::clone(&now));
    now
}

impl Bench {
    fn ask(&mut self, verb: &str, args: Value) -> Value {
        let body = json!({ "verb": verb, "args": args });
        self.host.call(Nanos::from_secs(1), &mut self.stack, CALLER, &body);
        self.answer().0
    }

    fn tick(&mut self, seconds: u64) -> Vec<Control> {
        self.host.tick(Nanos::from_secs(seconds), &mut self.stack);
        self.told()
    }
}

#[test]
fn a_window_opens_and_closes_and_the_status_says_when() {
    let mut bench = bench();
    let now = with_window(&mut bench, "destage-window = [\"02:00-05:00\"]");
    assert_eq!(bench.tick(0), [Control::HoldDestage(true)]);
    assert_eq!(bench.tick(2), [], "it is told once");
    let held = &bench.ask("status", json!({}))["writeback"]["cache"];
    assert_eq!(
        *held,
        json!({ "held_by": "window", "until": "2026-01-15T02:00:00+00:00", "until_seconds": 3.0, "overridden": false })
    );
    now.set("2026-01-15T02:00:01Z".parse().unwrap());
    assert_eq!(bench.tick(4), [Control::HoldDestage(false)]);
    assert_eq!(bench.ask("status", json!({}))["writeback"]["cache"]["held_by"], json!(null));
    now.set("2026-01-15T05:00:01Z".parse().unwrap());
    assert_eq!(bench.tick(6), [Control::HoldDestage(true)]);
    // A window that is changed counts at once.
    let set = bench.ask("set", json!({ "changes": ["destage-window=[\"05:00-06:00\"]"] }));
    assert_eq!(set, json!({}));
    let told = bench.told();
    assert_eq!(told, [Control::HoldDestage(false)]);
    bench.ask("set", json!({ "changes": ["destage-window=Sat 00:00-24:00"] }));
    bench.ask("set", json!({ "changes": ["destage-window=[]"] }));
    assert_eq!(bench.told(), [Control::HoldDestage(true), Control::HoldDestage(false)]);
}

#[test]
fn write_back_is_paused_until_it_is_resumed_and_now_goes_on_in_the_background() {
    let mut bench = bench();
    with_window(&mut bench, "");
    assert_eq!(bench.tick(0), []);
    assert_eq!(bench.ask("writeback", json!({ "command": "pause" })), json!({ "dirty_bytes": 4096 }));
    assert_eq!(bench.told(), [Control::HoldDestage(true)]);
    assert_eq!(bench.ask("status", json!({}))["writeback"]["cache"]["held_by"], "pause");
    bench.ask("writeback", json!({ "command": "now" }));
    assert_eq!(bench.told(), [Control::Drain]);
    // Neither the caller's end nor that of another flush ends it.
    bench.host.client_gone(Nanos::ZERO, &mut bench.stack, CALLER.client);
    bench.call("flush");
    bench.host.client_gone(Nanos::ZERO, &mut bench.stack, CALLER.client);
    assert_eq!(bench.told(), []);
    bench.report(Report::Drained);
    assert_eq!(bench.ask("status", json!({}))["writeback"]["cache"]["held_by"], "pause", "the pause goes on");
    bench.ask("writeback", json!({ "command": "now" }));
    bench.ask("writeback", json!({ "command": "pause" }));
    assert_eq!(bench.told(), [Control::Drain, Control::DrainCancel], "a pause ends it");
    bench.ask("writeback", json!({ "command": "resume" }));
    assert_eq!(bench.told(), [Control::HoldDestage(false)]);
    let wrong = bench.ask("writeback", json!({ "command": "stop" }));
    assert!(wrong.to_string().contains("it has pause, resume and now"), "{wrong}");
}

#[test]
fn settings_reach_the_layer_all_or_none() {
    let mut bench = bench();
    with_window(&mut bench, "");
    let wrong = bench.ask("set", json!({ "changes": ["high-mark=80", "low-mark=90"] }));
    assert!(wrong.to_string().contains("must be below"), "{wrong}");
    assert_eq!(bench.told(), []);
    assert_eq!(bench.ask("set", json!({ "changes": ["high-mark=80", "low-mark=20"] })), json!({}));
    let told = bench.told();
    let [Control::Settings(settings)] = told.as_slice() else { panic!("{told:?}") };
    let LayerSettings::LogCache(config) = &**settings else { panic!("{settings:?}") };
    assert_eq!((config.high_mark, config.low_mark), (80, 20));
    let changed = "settings were changed: high-mark=80 low-mark=20".to_owned();
    assert_eq!(bench.host.take_news(), [(Priority::Notice, changed)]);
    assert!(
        bench
            .ask("settings", json!({}))
            .to_string()
            .contains("\"in_force\":\"80\",\"key\":\"cache.high-mark\"")
    );
}

/// A cache that writes through, as its record says.
fn through() -> Bench {
    let mut bench = bench();
    with_window(&mut bench, "");
    bench.ask("set", json!({ "changes": ["writes=through"] }));
    assert!(matches!(bench.told().as_slice(), [Control::Settings(_)]));
    assert_eq!(bench.recorded().state, AttachmentState::Dirty, "the cache has not said so yet");
    *bench.dirty_bytes.borrow_mut() = 0;
    bench.writes.set(WritesState::Through);
    bench.report(Report::WritesThrough);
    assert_eq!(bench.recorded().state, AttachmentState::Clean);
    bench
}

#[test]
fn rule_16_the_record_calls_the_disk_incomplete_before_writes_go_to_the_log_alone() {
    let mut bench = through();
    // The record cannot be written at first.
    let record = bench.dir.path().join("data.dcd");
    let before = std::fs::read(&record).unwrap();
    std::fs::write(&record, "gone").unwrap();
    assert_eq!(bench.ask("set", json!({ "changes": ["writes=back"] })), json!({}));
    assert_eq!(bench.told(), [], "writes go through");
    assert!(
        bench.host.take_news().iter().any(|(_, news)| news.contains("writes go through until its record"))
    );
    assert_eq!(bench.tick(100), []);
    std::fs::write(&record, before).unwrap();
    assert!(matches!(bench.tick(200).as_slice(), [Control::Settings(_)]));
    assert_eq!(bench.recorded().state, AttachmentState::Dirty);
}

#[test]
fn a_change_back_that_is_taken_back_leaves_a_record_that_says_so() {
    let mut bench = through();
    bench.ask("set", json!({ "changes": ["writes=back"] }));
    bench.ask("set", json!({ "changes": ["writes=through"] }));
    bench.told();
    // The layer in this test writes through all the time.
    bench.tick(100);
    assert_eq!(bench.recorded().state, AttachmentState::Clean);
}

#[test]
fn a_flush_whose_client_is_gone_is_cancelled() {
    let mut bench = bench();
    bench.call("flush");
    bench.host.client_gone(Nanos::ZERO, &mut bench.stack, ClientId(77));
    assert_eq!(bench.told(), [Control::Drain], "another client");
    bench.host.client_gone(Nanos::ZERO, &mut bench.stack, CALLER.client);
    assert_eq!(bench.told(), [Control::DrainCancel]);
    bench.report(Report::Drained);
    assert!(bench.host.take_answer().is_none());
}

#[test]
fn a_flush_that_fails_says_why() {
    let mut bench = bench();
    bench.call("flush");
    bench.report(Report::Failed(Unfinished::LostBlocks(3)));
    let (body, done) = bench.answer();
    assert!(done && body["error"].as_str().unwrap().contains(&Unfinished::LostBlocks(3).to_string()));
}

#[test]
fn the_record_follows_the_life_of_a_cache() {
    let mut bench = bench();
    let serving = bench.recorded();
    assert_eq!((serving.state, serving.epoch, serving.dirty_bytes), (AttachmentState::Dirty, 9, None));
    bench.host.stop(Nanos::ZERO, &mut bench.stack, false);
    assert_eq!(bench.told(), [Control::Stop]);
    assert!(!bench.host.is_stopped());
    bench.report(Report::Stopped);
    assert!(bench.host.is_stopped());
    assert_eq!((bench.recorded().state, bench.recorded().dirty_bytes), (AttachmentState::Dirty, Some(4096)));
}

#[test]
fn a_stop_with_nothing_dirty_is_clean() {
    let mut bench = bench();
    *bench.dirty_bytes.borrow_mut() = 0;
    bench.host.stop(Nanos::ZERO, &mut bench.stack, false);
    bench.report(Report::Stopped);
    assert_eq!(bench.recorded().state, AttachmentState::Clean);
    assert!(bench.host.take_troubles().is_empty());
}

#[test]
fn a_stop_that_fails_is_told_and_stays_dirty() {
    let mut bench = bench();
    bench.host.stop(Nanos::ZERO, &mut bench.stack, false);
    bench.report(Report::Failed(Unfinished::Members));
    assert!(bench.host.is_stopped());
    assert_eq!(bench.host.take_troubles().len(), 1);
    assert_eq!(bench.recorded().state, AttachmentState::Dirty);
}

#[test]
fn a_failed_log_is_recorded_before_the_layer_hears_of_it() {
    let mut bench = bench();
    bench.report(Report::LogFailed);
    assert_eq!(bench.told(), [Control::LogFailureRecorded]);
    assert_eq!(
        (bench.recorded().state, bench.recorded().dirty_bytes),
        (AttachmentState::Abandoned, Some(4096))
    );
    bench.host.stop(Nanos::ZERO, &mut bench.stack, false);
    bench.report(Report::Stopped);
    assert_eq!(
        (bench.recorded().state, bench.recorded().dirty_bytes),
        (AttachmentState::Abandoned, Some(4096)),
        "for ever"
    );
}

#[test]
fn what_a_failed_log_had_is_not_at_risk_any_more_once_it_is_home() {
    let mut bench = bench();
    bench.report(Report::LogFailed);
    *bench.dirty_bytes.borrow_mut() = 0;
    bench.host.stop(Nanos::ZERO, &mut bench.stack, false);
    bench.report(Report::Stopped);
    assert_eq!((bench.recorded().state, bench.recorded().dirty_bytes), (AttachmentState::Abandoned, Some(0)));
}

#[test]
fn a_failed_log_that_cannot_be_recorded_is_not_acknowledged() {
    let mut bench = bench();
    std::fs::write(bench.dir.path().join("data.dcd"), "gone").unwrap();
    bench.report(Report::LogFailed);
    assert!(bench.told().is_empty(), "the layer goes on waiting");
    assert!(bench.host.take_troubles()[0].contains("cannot be recorded"));
}

#[test]
fn an_unknown_call_is_refused() {
    let mut bench = bench();
    bench.call("explode");
    let (body, done) = bench.answer();
    assert!(done && body["error"].as_str().unwrap().contains("explode"));
    bench.call("status");
    let (body, _) = bench.answer();
    assert_eq!((&body["dirty_bytes"], &body["layers"]["cache"]["epoch"]), (&json!(4096), &json!(9)));
}

#[test]
fn an_array_is_told_and_its_answer_goes_to_the_caller() {
    let mut bench = bench();
    let tell = |bench: &mut Bench, args: Value| {
        let body = json!({ "verb": "array", "args": args });
        bench.host.call(Nanos::from_secs(1), &mut bench.stack, CALLER, &body);
    };
    let error = |bench: &mut Bench| bench.answer().0["error"].as_str().unwrap_or("").to_owned();
    tell(&mut bench, json!({ "command": "fail", "role": 1 }));
    assert!(error(&mut bench).contains("has no array"), "a log cache is none");
    bench.host.caches[0].kind = CacheKind::Array;
    for (args, why) in [
        (json!({ "command": "fail" }), "\"role\" is missing"),
        (json!({ "command": "grow" }), "no command \"grow\""),
        (json!({ "command": "rebuild", "layer": "disks" }), "there are: cache"),
    ] {
        tell(&mut bench, args);
        assert!(error(&mut bench).contains(why));
    }
    assert_eq!(bench.told(), []);
    tell(&mut bench, json!({ "command": "fail", "role": 1, "layer": "cache" }));
    tell(&mut bench, json!({ "command": "scrub", "repair": true }));
    let told = [ArrayCommand::Fail { role: 1 }, ArrayCommand::Scrub { repair: true }];
    assert_eq!(bench.told(), told.map(Control::Array));
    bench.report(Report::Array(Err(CommandError::Held(1))));
    let held = "commands to member 1 have not returned yet, or its failure is not recorded yet; try again";
    assert_eq!(error(&mut bench), held);
    bench.report(Report::Array(Ok(())));
    assert_eq!(bench.answer(), (json!({}), true));
    bench.host.stop(Nanos::from_secs(3), &mut bench.stack, false);
    tell(&mut bench, json!({ "command": "rebuild" }));
    assert!(error(&mut bench).contains("stopping"));
}

#[test]
fn what_a_layer_gives_notice_of_is_told_at_once_and_what_follows_is_told_together() {
    let mut bench = bench();
    bench.host.tick(Nanos::ZERO, &mut bench.stack);
    bench.host.take_news();
    *bench.lost_blocks.borrow_mut() = 1;
    bench.report(Report::Notice);
    assert_eq!(bench.host.take_news().len(), 1, "before the next look");
    for lost in 2..20 {
        *bench.lost_blocks.borrow_mut() = lost;
        bench.report(Report::Notice);
    }
    assert!(bench.host.take_news().is_empty());
    bench.host.tick(Nanos::from_secs(4), &mut bench.stack);
    assert_eq!(bench.host.take_news().len(), 1);
}
