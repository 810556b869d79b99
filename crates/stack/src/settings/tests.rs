//! The table of fields, the reader and the engine agree; changes keep the text, and are refused as a file is.

use super::*;
use crate::reference::field_names;
use crate::testing::{RAID, parse};

/// A layer of a kind at the end of a file, with no field that has a default.
fn bare(kind: &str) -> String {
    let below = match kind {
        "log-cache" => "log = \"a\"\ndata = \"b\"\n",
        "raid" => "of = [\"a\", \"b\", \"c\"]\n",
        _ => "of = \"a\"\n",
    };
    let devices: String =
        ["a", "b", "c"].map(|name| format!("[device.{name}]\nmemory = \"8MiB\"\n")).concat();
    format!("export = \"x\"\n{devices}[layer.x]\nkind = \"{kind}\"\n{below}")
}

fn kind_of(text: &str) -> LayerKind {
    let file = parse(text).unwrap();
    file.layer("x").unwrap().kind.clone()
}

const KINDS: [&str; 6] = ["log-cache", "raid", "read-ahead", "slice", "fault", "trace"];

#[test]
fn a_default_in_the_reference_is_that_of_the_reader() {
    let mut defaults = 0;
    for kind in KINDS {
        let without = format!("{:?}", kind_of(&bare(kind)));
        for field in fields_of_kind(kind).iter().filter(|field| field.has_default) {
            let text = bare(kind) + &format!("{} = {}\n", field.name, field.example);
            assert_eq!(format!("{:?}", kind_of(&text)), without, "{kind}: {}", field.name);
            defaults += 1;
        }
    }
    assert!(defaults > 30, "{defaults}");
}

/// Another value for each field that can change while the stack is served, and for some that cannot.
const OTHERS: [(&str, &str, &str); 24] = [
    ("log-cache", "delay-max", "\"1s\""),
    ("log-cache", "bypass", "0"),
    ("log-cache", "writes", "\"through\""),
    ("log-cache", "when", "\"asap\""),
    ("log-cache", "what", "\"least-valid-first\""),
    ("log-cache", "high-mark", "80"),
    ("log-cache", "low-mark", "20"),
    ("log-cache", "share", "30"),
    ("log-cache", "idle-empty", "\"2s\""),
    ("log-cache", "destage-depth", "4"),
    ("log-cache", "destage-rate", "\"20MiB\""),
    ("log-cache", "destage-window", "[\"02:00-05:00\"]"),
    ("log-cache", "discard-freed", "false"),
    ("log-cache", "wear-budget", "\"50GB/day\""),
    ("log-cache", "promise", "\"always\""),
    ("log-cache", "reads", "\"keep\""),
    ("log-cache", "ordered-destage", "true"),
    ("raid", "pass-rate", "\"1MiB\""),
    ("raid", "when", "\"high-low\""),
    ("raid", "what", "\"c-scan\""),
    ("raid", "high-mark", "20"),
    ("raid", "low-mark", "3"),
    ("raid", "destage-depth", "8"),
    ("raid", "cache-size", "\"1MiB\""),
];

/// Returns the settings of a running layer after a change of its file, and those of the file.
fn running_and_said(before: &LayerKind, after: &LayerKind) -> (String, String) {
    match (before, after) {
        (LayerKind::LogCache { config, .. }, LayerKind::LogCache { config: to, windows, .. }) => {
            let mut running = config.clone();
            running.change(to);
            // The host has no other windows than those of the file.
            (format!("{running:?} {windows:?}"), format!("{to:?} {windows:?}"))
        }
        (LayerKind::Raid(raid), LayerKind::Raid(to)) => {
            let mut running = raid.config.clone();
            running.change(&to.config);
            (format!("{running:?}"), format!("{:?}", to.config))
        }
        _ => panic!("neither has changed its kind"),
    }
}

#[test]
fn a_running_layer_takes_the_fields_that_the_reference_calls_served_and_no_others() {
    for kind in KINDS {
        let before = kind_of(&bare(kind));
        for field in fields_of_kind(kind) {
            let other = OTHERS.iter().find(|(of, name, _)| (*of, *name) == (kind, field.name));
            let Some((_, _, value)) = other else {
                assert!(field.change != Change::Served, "{kind}: give {} another value here", field.name);
                continue;
            };
            let after = kind_of(&(bare(kind) + &format!("{} = {value}\n", field.name)));
            let (running, said) = running_and_said(&before, &after);
            assert_ne!(
                said,
                format!("{:?}", running_and_said(&before, &before).1),
                "{} changes nothing",
                field.name
            );
            assert_eq!(running == said, field.change == Change::Served, "{kind}: {}", field.name);
        }
    }
}

fn changed(text: &str, changes: &[&str]) -> Result<StackFile, String> {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    parse(text).unwrap().changed(&changes)
}

#[test]
fn a_change_keeps_comments_and_the_order_of_fields() {
    let text = bare("log-cache") + "# marks\nhigh-mark = 70 # as measured\n\n# the end\n";
    let file = changed(&text, &["high-mark = 80", "bypass=128KiB", "x.when=asap", "low-mark=10"]).unwrap();
    let expected = text
        .replace("high-mark = 70 #", "high-mark = 80 #")
        .replace("# as measured\n", "# as measured\nbypass = \"128KiB\"\nwhen = \"asap\"\nlow-mark = 10\n");
    assert_eq!(file.text(), expected);
    let LayerKind::LogCache { config, .. } = &file.layer("x").unwrap().kind else { panic!("a log cache") };
    assert_eq!((config.high_mark, config.low_mark, config.bypass_bytes), (80, 10, 128 << 10));
    let inline = bare("log-cache").replace(
        "[layer.x]\nkind = \"log-cache\"\nlog = \"a\"\ndata = \"b\"\n",
        "[layer]\nx = { kind = \"log-cache\", log = \"a\", data = \"b\" } # one line\n",
    );
    let file = changed(&inline, &["high-mark=80"]).unwrap();
    let line = "data = \"b\" , high-mark = 80 } # one line";
    assert!(file.text().contains(line), "{}", file.text());
}

#[test]
fn wrong_changes_are_refused_as_a_whole_with_the_reason() {
    let text = bare("log-cache");
    for (changes, why) in [
        (vec!["high-mark"], "write it like high-mark=80"),
        (vec!["high-mark="], "write it like high-mark=80"),
        (vec!["=80"], "write it like high-mark=80"),
        (vec!["highmark=80"], "no setting \"highmark\" in /stacks/disk.toml; did you mean \"high-mark\"?"),
        (vec!["y.high-mark=80"], "did you mean \"x.high-mark\"?"),
        (vec!["colour=red"], "lists them"),
        (vec!["kind=raid"], "no setting \"kind\""),
        (vec!["high-mark=101"], "\"high-mark\" is 101: it must be from 1 to 100"),
        (vec!["high-mark=80%"], "\"high-mark\" must be a whole number"),
        (vec!["high-mark=80\nlow-mark = 1"], "\"high-mark\" must be a whole number"),
        (vec!["high-mark=40"], "\"low-mark\" (50) must be below \"high-mark\" (40)"),
        (vec!["bypass=64 parsecs"], "like \"64MiB\""),
        (vec!["idle-empty=5"], "like \"500ms\""),
        (vec!["when=sometimes"], "`high-low`"),
        (vec!["destage-depth=0"], "from 1 to 1024"),
        (
            vec!["destage-window=02:00-02:00"],
            "\"destage-window\": \"02:00-02:00\" is no window (it would never open",
        ),
        (vec!["destage-window=[2]"], "must be text in quotes, or a list of texts"),
        (vec!["destage-rate=fast"], "like \"64MiB\""),
        (vec!["wear-budget=50GB"], "is not a size for each day: write it like \"50GB/day\""),
        (vec!["wear-budget=5"], "write it like \"50GB/day\""),
        (vec!["wear-budget=50/day"], "is 50 bytes a day: the least is 64 MiB a day. Write the unit"),
        (vec!["wear-budget=5XB/day"], "the unit is not known"),
        (vec!["destage-rate=20"], "is 20 bytes a second: the least is 64 KiB a second"),
        (vec!["destage-rate=63KiB"], "Write the unit, like \"20MiB\""),
        (vec!["bypass=64"], "\"bypass\" is 64 bytes: the least is 512 B"),
        (vec!["promise=always"], "\"x.promise\" changes at a start only: write it in /stacks/disk.toml"),
        (vec!["data=c"], "cannot be set: a log is made for its data disks"),
        (vec!["segment-size=1MiB"], "fixed in the log by \"dcd format\""),
        (vec!["memory=1MiB"], "may be a.memory or b.memory or c.memory"),
        (vec!["a.memory=1MiB"], "\"a.memory\" changes at a start only"),
        (vec!["high-mark=80", "x.high-mark=90"], "\"x.high-mark\" is set twice"),
        (vec!["bypass=0", "low-mark=90"], "\"low-mark\" (90) must be below"),
    ] {
        let error = changed(&text, &changes).expect_err(why);
        assert!(error.contains(why), "{changes:?}: {error}");
    }
    let error = changed(RAID, &["high-mark=80"]).unwrap_err();
    assert!(error.contains("may be array.high-mark or cache.high-mark"), "{error}");
    let error = changed(RAID, &["level=raid5"]).unwrap_err();
    assert!(error.contains("\"array.level\" cannot be set: \"dcd array create\" has fixed it"), "{error}");
    assert!(changed(RAID, &["array.high-mark=80", "cache.high-mark=90"]).is_ok());
    assert!(changed(RAID, &["pass-rate=20"]).unwrap_err().contains("is 20 bytes a second"));
    changed(RAID, &["destage-rate=64KiB"]).unwrap();
    changed(RAID, &["pass-rate=64KiB"]).unwrap();
}

#[test]
fn settings_have_the_value_of_the_file_or_the_default() {
    let text = RAID.replacen("low-mark = 9\n", "", 1);
    let settings = parse(&text).unwrap().settings();
    let value = |key: &str| {
        settings.iter().find(|setting| setting.key == key).expect(key).value.clone().unwrap_or_default()
    };
    assert_eq!(value("array.level"), "\"raid6\"");
    assert_eq!(value("cache.high-mark"), "75");
    assert_eq!(value("array.high-mark"), "10");
    assert_eq!(value("array.low-mark"), "5", "it follows from high-mark");
    assert_eq!(value("export"), "\"cache\"");
    assert_eq!((value("serve.ublk"), value("serve.fuse")), ("false".to_owned(), String::new()));
    assert_eq!(
        parse(&text).unwrap().named("low-mark"),
        Ok(vec!["array.low-mark".to_owned(), "cache.low-mark".to_owned()])
    );
    assert!(field_names(|change| change == Change::Served).contains(&"high-mark"));
}
