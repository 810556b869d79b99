//! Tells an administrator the first things to know: the state of a stack in a word, and what to do now.

use dcd_engine::log_cache::DataDiskStatus;
use dcd_engine::mirror::{LegState, LegStatus, MirrorStatus};
use dcd_engine::raid::{ArrayState, ArrayStatus, Findings, members_named};
use dcd_engine::{LogCacheState, LogCacheStatus};
use dcd_stack::{HumanBytes, LayerStatus, RECORD};

use crate::failure::Health;
use crate::session::absent::restart;
use crate::session::serving::status::{
    DeviceState, DeviceStatus, FLUSH_ADVICE, MISSING_LEG, ServerStatus, SilentDevice, accepted_damage,
    destage_trouble, flush_trouble, judge_array, leg_name, legs_text, lost_text,
};
use crate::session::serving::watch::shared_text;

/// Seconds of the last minute: shorter bursts that slow clients down are no reason to act.
const THROTTLED_LONG: f64 = 30.0;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Verdict {
    pub state: &'static str,
    /// Empty where nothing is to be done.
    pub actions: Vec<String>,
    pub health: Health,
}

impl Verdict {
    pub fn of(status: &ServerStatus) -> Verdict {
        let mut verdict = Verdict::default();
        for (name, layer) in &status.layers {
            match layer {
                LayerStatus::LogCache(cache) => verdict.log_cache(name, cache, status),
                LayerStatus::Raid(array) => verdict.array(name, array),
                LayerStatus::Mirror(mirror) => verdict.mirror(name, mirror, status),
                _ => {}
            }
        }
        status.devices.iter().for_each(|device| verdict.device(device, status));
        verdict.state = verdict.word(status);
        if status.dirty_bytes > 0 {
            let silent = status.devices.iter().filter(|device| device.state == DeviceState::NotAnswering);
            silent.for_each(|device| verdict.held_up(device, &status.devices_not_answering));
        }
        if let Some(LayerStatus::Trace(trace)) = status.layers.get(RECORD)
            && let Some(error) = trace.file.as_ref().and_then(|file| file.error.as_ref())
        {
            verdict.act(format!(
                "the recording has ended: {error}; make space, and restart the server to record again"
            ));
        }
        verdict
    }

    /// Returns the word for the worst condition that holds.
    fn word(&self, status: &ServerStatus) -> &'static str {
        let holds_back = |device: &DeviceStatus| device.state == DeviceState::NotAnswering;
        if self.health.is_damaged() {
            "damaged"
        } else if self.health.is_degraded() {
            "degraded"
        } else if status.devices.iter().any(holds_back) {
            DeviceState::NotAnswering.word()
        } else if status.stopping {
            "stopping"
        } else if status.dirty_bytes > 0 {
            "dirty"
        } else if status.layers.values().any(|layer| layer.dirty_bytes().is_some()) {
            "clean"
        } else {
            "serving"
        }
    }

    fn act(&mut self, what: String) {
        if !self.actions.contains(&what) {
            self.actions.push(what);
        }
    }

    fn log_cache(&mut self, name: &str, cache: &LogCacheStatus, status: &ServerStatus) {
        let cache_named = format!("log cache \"{name}\"");
        if let Some(lost) = lost_text(cache.lost_blocks) {
            self.health.damaged(format!("{cache_named}: {lost}"));
            self.act(format!(
                "{cache_named}: write the lost blocks again, from a backup: reading them fails"
            ));
        }
        if let Some(damage) = accepted_damage(cache) {
            self.health.damaged(format!("{cache_named}: {damage}"));
            self.act("check the file system on this device: damage was accepted at the start".to_owned());
        }
        if cache.state == LogCacheState::LogFailed {
            self.health.degraded(format!("{cache_named}: the log device failed"));
            let missing: Vec<&DataDiskStatus> = cache.disks.iter().filter(|disk| disk.missing).collect();
            match missing.as_slice() {
                [] if cache.dirty_bytes == 0 && cache.lost_blocks == 0 => self.act(format!(
                    "{cache_named}: nothing is lost, and writes go to the data disk now. To have a cache again, name a new log in a copy of \
                     the stack file: dcd stop OLD; dcd format NEW; dcd serve NEW"
                )),
                [] => self.act(format!(
                    "{cache_named}: writes go to the data disk now. To replace the log, name the new one in a copy of the stack file: dcd \
                     stop OLD; dcd rescue --list OLD (shows what only the old log has); copy the data disk; dcd rescue \
                     --over-newer-data OLD (writes that back, also over newer data); dcd format NEW; dcd serve NEW"
                )),
                missing => {
                    for name in missing.iter().filter_map(|disk| disk.name.as_deref()) {
                        self.act(format!(
                            "{cache_named}: writes go to the data disks now, and only the old log has what it has for \"{name}\": keep that log. \
                             Reconnect \"{name}\"; dcd stop {stack}; dcd rescue {stack} --disk {name} (writes that back, and changes nothing \
                             else). Then name a new log in a copy of the stack file: dcd format NEW; dcd serve NEW. No --force is needed",
                            stack = status.argument()
                        ));
                    }
                }
            }
        }
        if let Some(trouble) = destage_trouble(cache) {
            self.health.degraded(format!("{cache_named}: {trouble}"));
            // A dead log keeps its dirty data from the data disk, which may be good.
            if cache.state != LogCacheState::LogFailed {
                self.act(format!(
                    "{cache_named}: repair or replace the data disk (see dmesg for its errors); dirty data stays in the log"
                ));
            }
        }
        for disk in cache.disks.iter().filter(|disk| disk.missing) {
            let disk_named = disk.name.as_deref().unwrap_or("a data disk");
            self.health.degraded(format!(
                "{cache_named}: data disk \"{disk_named}\" is missing, and is not served; {} for it are in the log",
                HumanBytes(disk.dirty_bytes)
            ));
            // No start is possible with a log that has failed.
            if cache.state == LogCacheState::LogFailed {
                continue;
            }
            self.act(format!(
                "{cache_named}: reconnect data disk \"{disk_named}\", and start the server again ({}): nothing is lost",
                restart(&status.argument(), status.image.is_some())
            ));
        }
        let trend = status.trends.get(name).filter(|_| cache.over_high_mark);
        if trend.is_some_and(|trend| trend.throttled_seconds >= THROTTLED_LONG) {
            self.act(format!(
                "{cache_named}: clients write more than the data disk takes, and wait for it. If that goes on, make a larger log (man \
                 dcd-runbook, section DcdLogFull)"
            ));
        }
        if let Some(trouble) = flush_trouble(cache) {
            self.health.degraded(format!("{cache_named}: {trouble}: {FLUSH_ADVICE}"));
            self.act(format!("{cache_named}: {FLUSH_ADVICE} (dcd status --json has flush_at_risk)"));
        }
    }

    fn mirror(&mut self, name: &str, mirror: &MirrorStatus, status: &ServerStatus) {
        if mirror.failed {
            self.health.degraded(format!("log \"{name}\": no leg can be written"));
        } else if !mirror.is_good() {
            self.health.degraded(format!("log \"{name}\": {}", legs_text(mirror)));
        }
        if let Some(leg) = mirror.legs.iter().find(|leg| leg.standing == Some(LegState::Failed)) {
            let stack = status.argument();
            let old = leg.name.as_deref().unwrap_or("NAME");
            self.act(format!(
                "log \"{name}\": if {} works again, take it back: dcd log add {stack} {old} (fills it). If not, name a new device in its place \
                 in \"log\" in the stack file: dcd log add {stack} NEW; or go on without it: dcd log remove {stack} {}",
                leg_name(leg),
                leg.name.as_deref().unwrap_or(MISSING_LEG)
            ));
        }
    }

    fn array(&mut self, name: &str, array: &ArrayStatus) {
        judge_array(name, array, &mut self.health);
        array.advice.iter().for_each(|advice| self.act(format!("array \"{name}\": {advice}")));
        if array.state == ArrayState::Degraded && array.pass.is_none() && !array.failed_members.is_empty() {
            let members = members_named(&array.failed_members);
            let open = array
                .failed_members
                .iter()
                .filter_map(|role| array.devices.member_names.get(*role)?.as_ref());
            let open: Vec<String> = open.map(|device| format!("device \"{device}\"")).collect();
            let open = if open.is_empty() { String::new() } else { format!(" ({})", open.join(", ")) };
            self.act(format!(
                "array \"{name}\": replace {members}{open}: dcd array add makes a new device a spare"
            ));
        }
        if array.last_scrub.as_ref().is_some_and(Findings::are_left) {
            self.act(format!("array \"{name}\": repair what the last scrub found: dcd array scrub --repair"));
        }
    }

    /// Reports a device that does not answer while data is dirty as degraded. No data is known to be lost, and the state has its own word.
    fn held_up(&mut self, device: &DeviceStatus, silent: &[SilentDevice]) {
        let owed = silent.iter().find(|owed| owed.path == device.path);
        let span = owed.map_or(String::new(), |owed| format!(" for {:.0} s", owed.seconds));
        self.health.degraded(format!(
            "device \"{}\" has not answered{span}, and dirty data cannot be written back",
            device.name()
        ));
    }

    fn removed(&mut self, device: &DeviceStatus, status: &ServerStatus) {
        let (name, path) = (device.name(), &device.path);
        let why = device.removed.as_deref().unwrap_or("it was deleted or moved");
        self.health.degraded(format!("device \"{name}\" ({path}): {why}; it works until the server ends"));
        let stack = status.argument();
        let action = match device.holds_log {
            true if is_spared(device, status) => format!(
                "move its file back if it was moved. Else name a new device in its place in \"log\" in the stack file: dcd log add {stack} NEW; \
                 dcd log remove {stack} {name}"
            ),
            true => format!(
                "move its file back if it was moved. Else write everything back before the server ends: dcd flush {stack}; unmount what is on \
                 the device; dcd stop {stack} writes the rest back. Then dcd detach {stack}, and make a new log: dcd format"
            ),
            false => format!(
                "move its file back if it was moved. Else what is on it is lost when the server ends: copy it to another disk first, from the \
                 device that is served (or, after dcd flush {stack}, from the open file in /proc/PID/fd of the server); an array can fill a \
                 spare instead (dcd array add)"
            ),
        };
        self.act(format!("device \"{name}\", {why}: {action}"));
    }

    fn device(&mut self, device: &DeviceStatus, status: &ServerStatus) {
        let DeviceStatus { path, state, failed_reads, failed_writes, failed_flushes, .. } = device;
        let name = device.name();
        if let Some(node) = &device.loop_device {
            self.act(format!("device \"{name}\" ({path}): {}", shared_text(node)));
        }
        match state {
            DeviceState::Ok | DeviceState::Failed => {}
            DeviceState::Removed => self.removed(device, status),
            DeviceState::NotAnswering if device.connection.is_some() => self.act(format!(
                "look at the server of device \"{name}\" ({path}), and at the network: {}",
                device.connection.as_deref().unwrap_or_default()
            )),
            DeviceState::NotAnswering => self.act(format!(
                "look at device \"{name}\" ({path}), which does not answer, and at the kernel's messages (dmesg)"
            )),
            DeviceState::Errors if device.lacks_space(status) => self.act(format!(
                "make space below device \"{name}\" ({path}), which failed {} operations: no space left on device. Dirty data is then \
                 written back, and this advice ends",
                device.failed_no_space
            )),
            // There is space again.
            DeviceState::Errors if device.failed_no_space == failed_reads + failed_writes + failed_flushes => {}
            DeviceState::Errors => {
                let place = match device.connection {
                    Some(_) => "the messages of its server",
                    None => "dmesg, smartctl",
                };
                self.act(format!(
                    "look at device \"{name}\" ({path}), which failed {failed_reads} reads, {failed_writes} writes and \
                     {failed_flushes} flushes ({place}); dcd status --reset restarts the counts"
                ));
            }
        }
    }
}

/// True for a leg beside a whole one whose file has not been removed.
fn is_spared(device: &DeviceStatus, status: &ServerStatus) -> bool {
    let name = |leg: &LegStatus| leg.name.as_deref().unwrap_or_default().to_owned();
    let has_file = |leg: &LegStatus| {
        let is_removed = |other: &DeviceStatus| other.name() == name(leg) && other.removed.is_some();
        !status.devices.iter().any(is_removed)
    };
    let mut logs = status.layers.values().filter_map(LayerStatus::mirror);
    logs.any(|log| {
        let is_whole = |leg: &&LegStatus| leg.standing == Some(LegState::Whole);
        log.legs.iter().any(|leg| name(leg) == device.name())
            && log.legs.iter().filter(is_whole).any(|leg| name(leg) != device.name() && has_file(leg))
    })
}

#[cfg(test)]
mod tests {
    use dcd_engine::mirror::LegStatus;
    use dcd_engine::raid::{DevicesStatus, PassStatus};

    use super::*;
    use crate::failure::Failure;
    use crate::session::serving::trend::Trend;

    fn device(state: DeviceState) -> DeviceStatus {
        DeviceStatus {
            device: Some("data".to_owned()),
            path: "/dev/sdb".to_owned(),
            state,
            failed_reads: 2,
            ..DeviceStatus::default()
        }
    }

    fn of(layers: impl IntoIterator<Item = LayerStatus>, devices: Vec<DeviceStatus>) -> Verdict {
        let layers = layers.into_iter().enumerate().map(|(i, layer)| (format!("layer{i}"), layer)).collect();
        let mut status = ServerStatus { layers, devices, ..ServerStatus::default() };
        status.dirty_bytes = status.layers.values().filter_map(LayerStatus::dirty_bytes).sum();
        Verdict::of(&status)
    }

    #[test]
    fn a_log_that_slows_its_clients_for_long_is_an_action_and_no_failure() {
        let told = |over_high_mark, throttled_seconds| {
            let cache = LogCacheStatus { dirty_bytes: 4096, over_high_mark, ..LogCacheStatus::default() };
            let mut status = ServerStatus { dirty_bytes: 4096, ..ServerStatus::default() };
            status.layers.insert("cache".to_owned(), LayerStatus::LogCache(Box::new(cache)));
            let trend = Trend { throttled_seconds, ..Trend::default() };
            status.trends.insert("cache".to_owned(), trend);
            let verdict = Verdict::of(&status);
            assert_eq!((verdict.state, verdict.health.is_degraded()), ("dirty", false));
            verdict.actions.join("; ")
        };
        assert!(told(true, 60.0).contains("clients write more than the data disk takes"));
        assert_eq!([told(true, 29.0), told(false, 60.0)].concat(), "");
    }

    #[test]
    fn nothing_is_to_be_done_where_nothing_is_wrong() {
        let cache = LogCacheStatus::default();
        let dirty = LogCacheStatus { dirty_bytes: 4096, ..LogCacheStatus::default() };
        for (layers, state) in [
            (vec![], "serving"),
            (vec![LayerStatus::LogCache(Box::new(cache))], "clean"),
            (vec![LayerStatus::LogCache(Box::new(dirty))], "dirty"),
        ] {
            let verdict = of(layers, vec![device(DeviceState::Ok)]);
            assert_eq!((verdict.state, verdict.actions), (state, Vec::new()));
        }
        let stopping = ServerStatus { stopping: true, dirty_bytes: 1, ..ServerStatus::default() };
        assert_eq!(Verdict::of(&stopping).state, "stopping");
    }

    #[test]
    fn whatever_is_wrong_has_something_to_do() {
        let failed = LogCacheStatus { state: LogCacheState::LogFailed, ..LogCacheStatus::default() };
        let holding = LogCacheStatus { dirty_bytes: 4096, ..failed.clone() };
        let torn = LogCacheStatus { lost_blocks: 1, ..failed.clone() };
        let lost = LogCacheStatus { lost_blocks: 1, ..LogCacheStatus::default() };
        let accepted =
            LogCacheStatus { accepted_damage: vec!["records".to_owned()], ..LogCacheStatus::default() };
        let stuck = LogCacheStatus { destage_failing: true, ..LogCacheStatus::default() };
        for (cache, state, action) in [
            (failed, "degraded", "nothing is lost"),
            (holding, "degraded", "dcd stop OLD; dcd rescue --list OLD"),
            (lost, "damaged", "write the lost blocks again"),
            (accepted, "damaged", "check the file system"),
            (stuck, "degraded", "repair or replace the data disk"),
        ] {
            let verdict = of([LayerStatus::LogCache(Box::new(cache))], Vec::new());
            assert_eq!(verdict.state, state);
            assert!(verdict.actions[0].contains(action), "{:?}", verdict.actions);
        }
        let actions = of([LayerStatus::LogCache(Box::new(torn))], Vec::new()).actions;
        assert!(!actions.iter().any(|action| action.contains("nothing is lost")), "{actions:?}");
        let dead = LogCacheStatus {
            state: LogCacheState::LogFailed,
            destage_failing: true,
            ..LogCacheStatus::default()
        };
        let actions = of([LayerStatus::LogCache(Box::new(dead))], Vec::new()).actions;
        assert!(!actions.iter().any(|action| action.contains("replace the data disk")), "{actions:?}");
        let without = LogCacheStatus {
            state: LogCacheState::LogFailed,
            disks: vec![DataDiskStatus {
                name: Some("mail".to_owned()),
                missing: true,
                ..DataDiskStatus::default()
            }],
            ..LogCacheStatus::default()
        };
        let actions = of([LayerStatus::LogCache(Box::new(without))], Vec::new()).actions;
        let leads_away =
            |action: &String| action.contains("--over-newer-data") || action.contains("for-restart");
        assert!(actions[0].contains("--disk mail") && !actions.iter().any(leads_away), "{actions:?}");
        let verdict = of([], vec![device(DeviceState::NotAnswering), device(DeviceState::Errors)]);
        assert_eq!(verdict.state, "not-answering");
        assert!(verdict.actions[0].contains("device \"data\" (/dev/sdb), which does not answer"));
        assert!(verdict.actions[1].contains("failed 2 reads, 0 writes"));
        assert!(verdict.health.verdict().is_ok(), "nothing is lost, and nothing degraded by that");
        let full = DeviceStatus { failed_no_space: 2, is_full: true, ..device(DeviceState::Errors) };
        let verdict = of([], vec![full.clone()]);
        assert!(
            verdict.actions[0].contains("make space below device \"data\" (/dev/sdb)"),
            "{:?}",
            verdict.actions
        );
        assert!(verdict.actions[0].contains("no space left on device"));
        let has_space = DeviceStatus { is_full: false, ..full };
        assert!(of([], vec![has_space.clone()]).actions.is_empty(), "the cause has passed");
        let stuck = LogCacheStatus { destage_failing: true, ..LogCacheStatus::default() };
        let actions = of([LayerStatus::LogCache(Box::new(stuck))], vec![has_space.clone()]).actions;
        assert!(actions.iter().any(|action| action.contains("make space")), "{actions:?}");
        let worse = DeviceStatus { failed_writes: 1, ..has_space };
        assert!(of([], vec![worse]).actions[0].contains("look at device"));
    }

    #[test]
    fn a_failed_leg_is_taken_back_before_it_is_replaced() {
        let failed = LegStatus {
            name: Some("b".to_owned()),
            standing: Some(LegState::Failed),
            ..LegStatus::default()
        };
        for (leg, back) in
            [(failed.clone(), "log add  b (fills it)"), (LegStatus { name: None, ..failed }, "NAME (fills")]
        {
            let mirror = MirrorStatus { legs: vec![leg], ..MirrorStatus::default() };
            let action = of([LayerStatus::Mirror(Box::new(mirror))], Vec::new()).actions.remove(0);
            let (back, new) = (action.find(back), action.find("name a new device"));
            assert!(back.is_some() && back < new && action.contains("dcd log remove"), "{action}");
        }
    }

    #[test]
    fn a_deleted_leg_is_replaced_beside_clients_unless_it_is_the_last() {
        let leg = |name: &str| LegStatus {
            name: Some(name.to_owned()),
            standing: Some(LegState::Whole),
            ..LegStatus::default()
        };
        let removed = |name: &str| DeviceStatus {
            device: Some(name.to_owned()),
            removed: Some("its file was deleted or moved".to_owned()),
            holds_log: true,
            ..device(DeviceState::Removed)
        };
        let log = || {
            let mirror = MirrorStatus { legs: vec![leg("a"), leg("b")], ..MirrorStatus::default() };
            [LayerStatus::Mirror(Box::new(mirror))]
        };
        let action = of(log(), vec![removed("b")]).actions.remove(0);
        assert!(
            action.contains("dcd log add  NEW; dcd log remove  b") && !action.contains("detach"),
            "{action}"
        );
        let actions = of(log(), vec![removed("a"), removed("b")]).actions;
        assert!(actions.iter().all(|action| action.contains("dcd detach")), "{actions:?}");
    }

    #[test]
    fn dirty_data_that_a_silent_device_holds_up_decides_the_exit_code() {
        let verdict = |dirty_bytes| {
            let silent = SilentDevice {
                device: Some("data".to_owned()),
                path: "/dev/sdb".to_owned(),
                operations: 1,
                seconds: 17.0,
            };
            Verdict::of(&ServerStatus {
                dirty_bytes,
                devices: vec![device(DeviceState::NotAnswering)],
                devices_not_answering: vec![silent],
                ..ServerStatus::default()
            })
        };
        assert!(verdict(0).health.verdict().is_ok(), "nothing waits");
        let dirty = verdict(4096);
        assert_eq!(dirty.state, "not-answering");
        let Err(Failure::Degraded(why)) = dirty.health.verdict() else { panic!("exit code 5") };
        assert!(why.contains("device \"data\" has not answered for 17 s"), "{why}");
    }

    #[test]
    fn a_member_is_replaced_unless_that_goes_on_already() {
        let degraded = ArrayStatus {
            state: ArrayState::Degraded,
            failed_members: vec![2],
            advice: vec!["spare 0 is missing".to_owned()],
            ..ArrayStatus::default()
        };
        let rebuilding = ArrayStatus {
            state: ArrayState::Rebuilding,
            pass: Some(PassStatus {
                kind: dcd_engine::raid::PassName::Rebuild,
                role: Some(2),
                member_bytes: 0,
                paused: false,
                percent: 0.0,
                member_bytes_left: 0,
                member_bytes_per_second: None,
                findings: Findings::default(),
            }),
            advice: Vec::new(),
            ..degraded.clone()
        };
        let named = degraded.clone();
        let verdict = of([LayerStatus::Raid(Box::new(degraded))], Vec::new());
        assert_eq!(verdict.state, "degraded");
        assert!(verdict.actions[0].contains("spare 0 is missing"));
        assert!(verdict.actions[1].contains("replace member 2: dcd array add"), "{:?}", verdict.actions);
        let devices = DevicesStatus {
            member_names: ["a", "b", "c"].map(|name| Some(name.to_owned())).into(),
            ..DevicesStatus::default()
        };
        let named = ArrayStatus { devices, ..named };
        let verdict = of([LayerStatus::Raid(Box::new(named))], Vec::new());
        assert!(
            verdict.actions[1].contains("replace member 2 (device \"c\"): dcd array add"),
            "{:?}",
            verdict.actions
        );
        let verdict = of([LayerStatus::Raid(Box::new(rebuilding))], Vec::new());
        assert_eq!((verdict.state, verdict.actions), ("degraded", Vec::new()));
    }
}
