//! A cache whose data disk is an array, or a slice of one: the array is refused to everybody else while its newest blocks are in
//! the log, as a disk is.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::array::good;
use crate::common::{Place, Server, dcd, expect};

const MEMBERS: &str = "\"a\", \"b\", \"c\", \"d\"";
const CACHE: &str = "[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"home\"\nwhen = \"when-full\"\n\
                     high-mark = 100\n";

/// Place of the cache's log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    OfItsOwn,
    /// On the first 8 MiB of the array.
    OnTheArray,
}

impl Log {
    fn layers(self) -> &'static str {
        match self {
            Log::OfItsOwn => "[device.log]\npath = \"ssd.img\"\nsize = \"8MiB\"\n",
            Log::OnTheArray => "[layer.log]\nkind = \"slice\"\nof = \"array\"\nsize = \"8MiB\"\n",
        }
    }

    fn home(self) -> &'static str {
        match self {
            Log::OfItsOwn => "[layer.home]\nkind = \"slice\"\nof = \"array\"\n",
            Log::OnTheArray => "[layer.home]\nkind = \"slice\"\nof = \"array\"\nfirst = \"8MiB\"\n",
        }
    }
}

/// A stack file over an array; the layers above it are `more`.
fn write_stack(place: &Place, export: &str, members: &str, more: &str) {
    let mut text = format!(
        "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
         [layer.array]\nkind = \"raid\"\nof = [{members}]\nstrip = \"64KiB\"\njournal = \"none\"\n"
    );
    for member in ["a", "b", "c", "d"].iter().filter(|name| members.contains(&format!("\"{name}\""))) {
        text += &format!("[device.{member}]\npath = \"{member}.img\"\nsize = \"8MiB\"\n");
    }
    fs::write(place.stack(), text + more).unwrap();
}

fn with_cache(place: &Place, log: Log) {
    write_stack(place, "cache", MEMBERS, &[log.layers(), log.home(), CACHE].concat());
}

/// Sixteen blocks are in the log, and not in the array.
fn dirty(log: Log) -> Place {
    let place = Place::new();
    with_cache(&place, log);
    expect(&dcd().args(["array", "create"]).arg(place.stack()).output().unwrap(), 0, "over 4 members");
    write_dirty(&place);
    place
}

/// Makes the cache, and writes blocks that stay in its log.
fn write_dirty(place: &Place) {
    place.format();
    assert_eq!(records(place).len(), 1, "it is made with the cache");
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        nbd.write(i * 65536, &[0xd1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

/// Changes the text of the stack file.
fn edit(place: &Place, from: &str, to: &str) {
    let text = fs::read_to_string(place.stack()).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(place.stack(), text.replace(from, to)).unwrap();
}

/// Serves the stack, and reads the blocks of [`write_dirty`].
fn holds_all(place: &Place) {
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        assert_eq!(nbd.read(i * 65536, 4096).unwrap(), [0xd1; 4096], "block {i}");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

fn records(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "dcd")).collect()
}

fn members(place: &Place) -> Vec<Vec<u8>> {
    ["a", "b", "c", "d"].map(|name| fs::read(place.path(&format!("{name}.img"))).unwrap()).into()
}

fn refused(place: &Place, more: &[&str], said: &str) {
    let before = members(place);
    match Server::start(place, more) {
        Ok(_) => panic!("it was served: {said}"),
        Err(output) => expect(&output, 3, said),
    }
    assert!(members(place) == before, "a refusal changes nothing");
}

/// All that was written is there, and comes home.
fn served_whole(place: &Place, log: Log) {
    with_cache(place, log);
    holds_all(place);
}

/// The array has its journal where it has one by itself below a cache: where the device of the log begins.
fn made_with_a_journal(place: &Place) {
    with_cache(place, Log::OfItsOwn);
    let text = fs::read_to_string(place.stack()).unwrap().replace("journal = \"none\"\n", "");
    fs::write(place.stack(), text.replace("ssd.img\"\nsize = \"8MiB\"", "ssd.img\"\nsize = \"96MiB\""))
        .unwrap();
    expect(&array(place, &["create"]), 0, "over 4 members");
}

const ATTACHED: &str = "is attached to this disk, and this stack serves the disk without it";

#[test]
fn an_array_is_not_served_without_the_cache_that_has_its_newest_blocks() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = dirty(log);
        write_stack(&place, "array", MEMBERS, "");
        refused(&place, &[], ATTACHED);
        let status = array(&place, &["status"]);
        // Its parity may be computed by now, or not.
        assert!(String::from_utf8_lossy(&status.stdout).contains(ATTACHED));
        write_stack(&place, "home", MEMBERS, log.home());
        refused(&place, &[], ATTACHED);
        // A part of it, through something else, with its members in another place and one away.
        fs::rename(place.path("c.img"), place.path("elsewhere")).unwrap();
        let part = "[layer.part]\nkind = \"slice\"\nof = \"array\"\nfirst = \"12MiB\"\nsize = \"4MiB\"\n\
                    [layer.seen]\nkind = \"trace\"\nof = \"part\"\n";
        write_stack(&place, "seen", "\"a\", \"b\", \"missing\", \"d\"", part);
        match Server::start(&place, &[]) {
            Ok(_) => panic!("it was served"),
            Err(output) => expect(&output, 3, ATTACHED),
        }
        fs::rename(place.path("elsewhere"), place.path("c.img")).unwrap();
        served_whole(&place, log);
    }
}

#[test]
fn an_array_with_a_cache_gets_no_other() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = dirty(log);
        let other = "[device.log]\npath = \"other.img\"\nsize = \"8MiB\"\n";
        write_stack(&place, "cache", MEMBERS, &[other, log.home(), CACHE].concat());
        expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
        // A log that was made of another disk.
        let another = Place::new();
        another.format();
        fs::copy(another.path("log.img"), place.path("other.img")).unwrap();
        refused(&place, &[], "another cache is attached to the data disk");
        // Its sectors are no place for another cache's log.
        fs::write(place.path("disk.img"), vec![7; 16 << 20]).unwrap();
        let on_it = "[device.disk]\npath = \"disk.img\"\n\
                     [layer.cache]\nkind = \"log-cache\"\nlog = \"array\"\ndata = \"disk\"\n";
        write_stack(&place, "cache", MEMBERS, on_it);
        expect(&place.run("format", &[]), 3, "is the data disk of the cache");
        served_whole(&place, log);
    }
}

#[test]
fn the_cache_of_an_array_is_given_up_on_purpose_only_and_then_for_ever() {
    let place = dirty(Log::OfItsOwn);
    fs::rename(place.path("ssd.img"), place.path("elsewhere")).unwrap();
    refused(&place, &[], "64 KiB of acknowledged writes would be lost");
    refused(&place, &["--without-cache"], "64 KiB of acknowledged writes would be lost");
    expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
    fs::rename(place.path("elsewhere"), place.path("ssd.img")).unwrap();
    refused(&place, &[], "never use this log again");
    write_stack(&place, "array", MEMBERS, "");
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn a_detached_array_is_a_plain_one() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = dirty(log);
        let record = records(&place).remove(0);
        let kept = fs::read(&record).unwrap();
        expect(&place.run("detach", &[]), 0, "64 KiB was written back");
        assert!(records(&place).is_empty());
        // A record from before is as that of an array that lacks the data.
        fs::write(&record, kept).unwrap();
        expect(&place.run("detach", &[]), 3, "says that this disk lacks");
        expect(&place.run("detach", &["--force"]), 0, "detached");
        assert!(records(&place).is_empty());
        write_stack(&place, "home", MEMBERS, log.home());
        let server = place.serve();
        assert_eq!(place.nbd().read(65536, 4096).unwrap(), [0xd1; 4096]);
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn a_cache_on_an_array_that_has_no_record_yet_gets_one_when_it_is_served() {
    let place = dirty(Log::OfItsOwn);
    fs::remove_file(records(&place).remove(0)).unwrap();
    served_whole(&place, Log::OfItsOwn);
    assert_eq!(records(&place).len(), 1);
    write_stack(&place, "array", MEMBERS, "");
    refused(&place, &[], ATTACHED);
}

const TOLD: &str = "as its members say; its attachment record is not here";

fn lose_records(place: &Place) {
    for record in records(place) {
        fs::remove_file(record).unwrap();
    }
}

#[test]
fn members_tell_of_a_cache_of_which_the_record_is_lost() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = dirty(log);
        lose_records(&place);
        write_stack(&place, "array", MEMBERS, "");
        refused(&place, &[], TOLD);
        expect(&array(&place, &["assemble"]), 3, TOLD);
        expect(&array(&place, &["grow"]), 3, TOLD);
        let devices = ["a.img", "b.img", "c.img", "d.img"].map(|name| place.path(name));
        let assembled = dcd().args(["array", "assemble"]).args(devices).output().unwrap();
        expect(&assembled, 0, "is attached to this array, or to a part of it: name the cache here");
        write_stack(&place, "home", MEMBERS, log.home());
        refused(&place, &[], TOLD);
        let other = "[device.log]\npath = \"other.img\"\nsize = \"8MiB\"\n";
        write_stack(&place, "cache", MEMBERS, &[other, log.home(), CACHE].concat());
        expect(&place.run("format", &[]), 3, TOLD);
        fs::write(place.path("disk.img"), vec![7; 16 << 20]).unwrap();
        let on_it = "[device.disk]\npath = \"disk.img\"\n\
                     [layer.cache]\nkind = \"log-cache\"\nlog = \"array\"\ndata = \"disk\"\n";
        write_stack(&place, "cache", MEMBERS, on_it);
        expect(&place.run("format", &[]), 3, TOLD);
        assert!(records(&place).is_empty());
        served_whole(&place, log);
        assert_eq!(records(&place).len(), 1);
    }
}

#[test]
fn a_cache_that_members_tell_of_is_given_up_on_purpose_only() {
    let place = dirty(Log::OfItsOwn);
    lose_records(&place);
    let log = fs::read(place.path("ssd.img")).unwrap();
    fs::remove_file(place.path("ssd.img")).unwrap();
    refused(&place, &[], TOLD);
    refused(&place, &["--without-cache"], TOLD);
    expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
    lose_records(&place);
    // Its log is found again, when the array has gone on without it.
    fs::write(place.path("ssd.img"), log).unwrap();
    no_longer_used(&place, "no cache is attached to this array, as its members say");
    write_stack(&place, "array", MEMBERS, "");
    expect(&place.serve().stop(), 0, "");
    with_cache(&place, Log::OfItsOwn);
    expect(&place.run("format", &["--force"]), 0, "stays in place");
    expect(&place.serve().stop(), 0, "");
}

/// Checks that no command writes back what the log of the stack file has.
fn no_longer_used(place: &Place, said: &str) {
    refused(place, &[], said);
    let before = members(place);
    for command in ["detach", "rescue"] {
        expect(&place.run(command, &[]), 3, said);
    }
    assert!(members(place) == before && records(place).is_empty(), "a refusal changes nothing");
}

#[test]
fn members_tell_which_log_belongs_to_them() {
    let place = dirty(Log::OfItsOwn);
    fs::rename(place.path("ssd.img"), place.path("old.img")).unwrap();
    expect(&place.run("format", &["--force"]), 0, "stays in place");
    lose_records(&place);
    fs::rename(place.path("ssd.img"), place.path("new.img")).unwrap();
    fs::rename(place.path("old.img"), place.path("ssd.img")).unwrap();
    let said = "another cache is attached to this array, as its members say";
    no_longer_used(&place, said);
    expect(&place.run("rescue", &["--force"]), 3, said);
    fs::rename(place.path("new.img"), place.path("ssd.img")).unwrap();
    expect(&place.serve().stop(), 0, "");
}

/// 8 MiB of the array, with a cache or without.
fn part_of_array(place: &Place, log: Option<&str>, first: &str) {
    let home =
        format!("[layer.home]\nkind = \"slice\"\nof = \"array\"\nfirst = \"{first}\"\nsize = \"8MiB\"\n");
    match log {
        Some(log) => {
            let log = format!("[device.log]\npath = \"{log}\"\nsize = \"8MiB\"\n");
            write_stack(place, "cache", MEMBERS, &[&log, &home, CACHE].concat());
        }
        None => write_stack(place, "home", MEMBERS, &home),
    }
}

#[test]
fn members_tell_of_two_caches_on_two_parts() {
    let place = Place::new();
    part_of_array(&place, Some("one.img"), "0");
    expect(&array(&place, &["create"]), 0, "over 4 members");
    place.format();
    part_of_array(&place, Some("two.img"), "8MiB");
    place.format();
    lose_records(&place);
    for (log, first) in [("one.img", "0"), ("one.img", "0"), ("two.img", "8MiB")] {
        // The record that the first has made has nothing of the second.
        part_of_array(&place, Some(log), first);
        expect(&place.serve().stop(), 0, "");
        part_of_array(&place, None, "8MiB");
        refused(&place, &[], if log == "one.img" { TOLD } else { ATTACHED });
    }
    // Each is told of alone, too.
    part_of_array(&place, Some("one.img"), "0");
    expect(&place.run("detach", &[]), 0, "detached");
    part_of_array(&place, None, "0");
    expect(&place.serve().stop(), 0, "");
    lose_records(&place);
    part_of_array(&place, None, "8MiB");
    refused(&place, &[], TOLD);
    part_of_array(&place, Some("two.img"), "8MiB");
    expect(&place.run("detach", &[]), 0, "detached");
    part_of_array(&place, None, "8MiB");
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn members_tell_of_every_cache_there_can_be() {
    let place = Place::new();
    let parts = [("one.img", "0"), ("two.img", "4MiB"), ("three.img", "8MiB"), ("four.img", "12MiB")];
    let part = |(log, first): (&str, &str)| {
        part_of_array(&place, Some(log), first);
        let text = fs::read_to_string(place.stack()).unwrap();
        let home = format!("first = \"{first}\"\nsize = ");
        fs::write(place.stack(), text.replace(&format!("{home}\"8MiB\""), &format!("{home}\"4MiB\"")))
            .unwrap();
    };
    part(parts[0]);
    expect(&array(&place, &["create"]), 0, "over 4 members");
    place.format();
    part(parts[1]);
    place.format();
    part(parts[2]);
    place.format();
    part(parts[3]);
    expect(&place.run("format", &["--force"]), 3, "other parts of this array have 3 caches already");
    // A log that was there before any of them.
    fs::write(place.path("old.img"), fs::read(place.path("one.img")).unwrap()).unwrap();
    part(parts[0]);
    expect(&place.run("detach", &[]), 0, "detached");
    part(parts[3]);
    place.format();
    lose_records(&place);
    part(("old.img", "0"));
    refused(&place, &[], "another cache is attached to this array, as its members say");
    part(parts[3]);
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn a_start_has_the_members_tell_of_a_cache_that_a_killed_format_had_recorded() {
    let place = Place::new();
    with_cache(&place, Log::OfItsOwn);
    expect(&array(&place, &["create"]), 0, "over 4 members");
    let before = members(&place);
    place.format();
    for (name, content) in ["a", "b", "c", "d"].iter().zip(before) {
        fs::write(place.path(&format!("{name}.img")), content).unwrap();
    }
    expect(&place.serve().stop(), 0, "");
    lose_records(&place);
    write_stack(&place, "array", MEMBERS, "");
    refused(&place, &[], TOLD);
}

#[test]
fn a_log_is_made_over_what_is_on_its_device_if_that_is_wanted() {
    let place = Place::new();
    made_with_a_journal(&place);
    let mut ssd = fs::read(place.path("ssd.img")).unwrap();
    ssd[..4096].fill(b'x');
    fs::write(place.path("ssd.img"), ssd).unwrap();
    expect(&place.run("format", &[]), 3, "there is something else where its journal should be");
    expect(&place.run("format", &["--force"]), 0, "has its journal, held other data and was overwritten");
    expect(&place.serve().stop(), 0, "");
    // What is a journal stays one.
    expect(&place.run("format", &["--force"]), 0, "the array's journal takes the first 64 MiB of");
}

/// An array of Linux, and Btrfs, leave zeroes in the first 4 KiB of their device.
#[test]
fn a_journal_is_not_begun_over_what_is_behind_the_header_of_its_place() {
    for at in [4096, 65600, 40 << 20] {
        let place = Place::new();
        made_with_a_journal(&place);
        let mut ssd = fs::read(place.path("ssd.img")).unwrap();
        ssd[at..(at + (1 << 20))].fill(b'x');
        fs::write(place.path("ssd.img"), &ssd).unwrap();
        expect(&place.run("format", &[]), 3, "where array \"array\" is to have its journal, has content");
        assert!(fs::read(place.path("ssd.img")).unwrap() == ssd, "a refusal changes nothing");
        expect(&place.run("format", &["--force"]), 0, "the array's journal takes the first 64 MiB of");
        let server = place.serve();
        let mut nbd = place.nbd();
        for i in 0..64u64 {
            nbd.write(i * 65536, &[0xd1; 4096]).unwrap();
        }
        nbd.flush().unwrap();
        expect(&server.stop(), 0, "");
        // Its own records are no reason, and those behind a header that was cleared are none.
        expect(&place.run("detach", &[]), 0, "was written back");
        place.format();
        expect(&place.run("detach", &[]), 0, "detached");
        let mut ssd = fs::read(place.path("ssd.img")).unwrap();
        assert!(ssd[..4096].iter().any(|byte| *byte != 0), "the journal is in use");
        ssd[..4096].fill(0);
        fs::write(place.path("ssd.img"), ssd).unwrap();
        place.format();
    }
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

/// The device is the right one, and its beginning was overwritten: the log behind it is whole.
#[test]
fn a_log_behind_a_journal_that_was_overwritten_is_written_back_without_the_journal() {
    let place = Place::new();
    made_with_a_journal(&place);
    write_dirty(&place);
    let mut ssd = fs::read(place.path("ssd.img")).unwrap();
    ssd[..2_000_000].fill(b'x');
    fs::write(place.path("ssd.img"), &ssd).unwrap();
    refused(&place, &[], "64 KiB of acknowledged writes, as its record says");
    let start = said(&Server::start(&place, &[]).err().expect("it is refused"));
    assert!(start.contains("dcd rescue") && !start.contains("--force"), "{start}");
    let format = place.run("format", &[]);
    expect(&format, 3, "64 KiB of acknowledged writes would be lost");
    expect(&format, 3, "there is something else where its journal should be");
    expect(&place.run("check", &[]), 0, "journal is not used");
    expect(&place.run("rescue", &["--list"]), 0, "64 KiB");
    assert!(fs::read(place.path("ssd.img")).unwrap() == ssd, "nothing was changed");
    expect(&place.run("rescue", &[]), 0, "written back");
    // The blocks behind the first four KiB are no records, and stay.
    let mut ssd = fs::read(place.path("ssd.img")).unwrap();
    ssd[..4096].fill(0);
    fs::write(place.path("ssd.img"), ssd).unwrap();
    holds_all(&place);
}

/// The journal is in a slice behind the log. Each command of the advice is run as it stands.
#[test]
fn a_foreign_journal_in_a_slice_is_named_by_its_place_and_a_degraded_array_is_not_written_to_without() {
    let place = Place::new();
    with_cache(&place, Log::OfItsOwn);
    edit(&place, "journal = \"none\"", "journal = \"j\"");
    let slices = "[layer.log]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"24MiB\"\n\
                  [layer.j]\nkind = \"slice\"\nof = \"ssd\"\nfirst = \"32MiB\"\n";
    edit(
        &place,
        Log::OfItsOwn.layers(),
        &format!("[device.ssd]\npath = \"ssd.img\"\nsize = \"96MiB\"\n{slices}"),
    );
    expect(&array(&place, &["create"]), 0, "over 4 members");
    write_dirty(&place);
    for is_degraded in [false, true] {
        if is_degraded {
            let server = place.serve();
            good(&place);
            expect(&server.stop(), 0, "");
            expect(&array(&place, &["fail", "c"]), 0, "member 2 is no longer used");
        }
        let mut ssd = fs::read(place.path("ssd.img")).unwrap();
        ssd[32 << 20..33 << 20].fill(b'x');
        fs::write(place.path("ssd.img"), &ssd).unwrap();
        let start = Server::start(&place, &[]).err().expect("it is refused");
        expect(&start, 3, "ssd.img from byte 33554432 on has content that dcd does not know");
        expect(&start, 3, "the log of \"cache\" on the same device is whole; \"dcd rescue --list");
        let said = said(&start);
        assert_eq!(said.contains("writes that back"), !is_degraded, "{said}");
        if is_degraded {
            expect(&place.run("rescue", &[]), 3, "there is something else where its journal should be");
            assert!(fs::read(place.path("ssd.img")).unwrap() == ssd, "nothing was changed");
        }
        let dd = said.split_once("(dd ").and_then(|(_, rest)| rest.split_once(')')).expect("a command").0;
        assert!(
            std::process::Command::new("sh").args(["-c", &format!("dd {dd}")]).status().unwrap().success()
        );
        holds_all(&place);
    }
    expect(&place.run("rescue", &[]), 0, "written back");
}

#[test]
fn another_caches_log_where_a_journal_should_be_is_told_with_what_it_has() {
    let other = crate::refusals::dirty();
    let legs = ["[\"log\", \"log2\"]", "\"log\""];
    for is_leg in [false, true] {
        let place = Place::new();
        made_with_a_journal(&place);
        if is_leg {
            edit(&place, "log = \"log\"", &format!("log = {}", legs[0]));
            let device = "[device.log2]\npath = \"other.img\"\nsize = \"96MiB\"\n";
            edit(&place, "[layer.home]", &format!("{device}[layer.home]"));
            fs::remove_file(place.path("ssd.img")).unwrap();
        }
        if is_leg {
            // The journal lies on the legs: they are made with it.
            expect(&array(&place, &["create", "--force"]), 0, "over 4 members");
        }
        write_dirty(&place);
        if is_leg {
            edit(&place, legs[0], legs[1]);
        } else {
            let log = fs::read(other.path("log.img")).unwrap();
            fs::write(place.path("ssd.img"), log).unwrap();
            fs::File::options().write(true).open(place.path("ssd.img")).unwrap().set_len(96 << 20).unwrap();
        }
        let before = fs::read(place.path("ssd.img")).unwrap();
        let start = Server::start(&place, &[]).err().expect("it is refused");
        expect(&start, 3, if is_leg { "is a leg of a mirrored dcd log" } else { "has the log of the cache" });
        expect(&start, 3, "64 KiB of acknowledged writes would be lost");
        assert!(!said(&start).contains("zeroes"), "{}", said(&start));
        let format = place.run("format", &[]);
        expect(&format, 3, "64 KiB of acknowledged writes would be lost");
        expect(&format, 3, "with 64 KiB that are not written back");
        expect(&format, 3, "another cache or array needs it");
        assert!(fs::read(place.path("ssd.img")).unwrap() == before, "nothing was changed");
    }
}

#[test]
fn a_log_that_an_edit_of_the_stack_file_moves_is_found_where_it_was() {
    let place = Place::new();
    made_with_a_journal(&place);
    write_dirty(&place);
    let strip = "strip = \"64KiB\"\n";
    let none = "strip = \"64KiB\"\njournal = \"none\"\n";
    edit(&place, strip, none);
    refused(&place, &[], "64 MiB behind the beginning of");
    refused(&place, &[], "It has 64 KiB of acknowledged writes");
    edit(&place, "log = \"log\"", "log = \"log-place\"");
    let slice = "[layer.log-place]\nkind = \"slice\"\nof = \"log\"\nfirst = \"64MiB\"\n";
    edit(&place, "[layer.home]", &format!("{slice}[layer.home]"));
    holds_all(&place);

    // The other way round.
    let place = dirty(Log::OfItsOwn);
    fs::File::options().write(true).open(place.path("ssd.img")).unwrap().set_len(96 << 20).unwrap();
    edit(&place, "size = \"8MiB\"\n[layer.home]", "size = \"96MiB\"\n[layer.home]");
    edit(&place, "journal = \"none\"\n", "");
    refused(&place, &[], "at the beginning of");
    edit(&place, strip, none);
    holds_all(&place);
}

#[test]
fn members_tell_of_no_cache_any_more_when_it_is_detached() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = dirty(log);
        expect(&place.run("rescue", &[]), 0, "written back");
        let before = members(&place);
        expect(&place.run("detach", &[]), 0, "detached");
        assert!(members(&place) != before);
        if log == Log::OfItsOwn {
            // Killed before they did: the next one has them forget.
            for (name, content) in ["a", "b", "c", "d"].iter().zip(before) {
                fs::write(place.path(&format!("{name}.img")), content).unwrap();
            }
            lose_records(&place);
            write_stack(&place, "array", MEMBERS, "");
            refused(&place, &[], TOLD);
            with_cache(&place, log);
            expect(&place.run("detach", &[]), 0, "detached");
        }
        write_stack(&place, "array", MEMBERS, "");
        expect(&place.serve().stop(), 0, "");
    }
}

#[test]
fn an_array_does_not_grow_below_a_cache() {
    let place = dirty(Log::OfItsOwn);
    write_stack(&place, "array", MEMBERS, "");
    expect(&array(&place, &["assemble"]), 3, ATTACHED);
    let grow = || dcd().args(["array", "grow"]).arg(place.stack()).output().unwrap();
    expect(&grow(), 3, "is attached to it");
    with_cache(&place, Log::OfItsOwn);
    expect(&place.run("detach", &[]), 0, "");
    write_stack(&place, "array", MEMBERS, "");
    // On a slow machine its parity is known to be right by now, and then there is nothing to gain.
    let grown = grow();
    assert!(!String::from_utf8_lossy(&grown.stderr).contains("attached"), "{grown:?}");
}

#[test]
fn detaching_stops_an_array_as_cleanly_as_a_server_does() {
    for log in [Log::OfItsOwn, Log::OnTheArray] {
        let place = Place::new();
        with_cache(&place, log);
        expect(&array(&place, &["create"]), 0, "over 4 members");
        place.format();
        let server = place.serve();
        good(&place);
        let mut nbd = place.nbd();
        for i in 0..16u64 {
            nbd.write(i * 65536, &[0xd1; 4096]).unwrap();
        }
        nbd.disconnect().unwrap();
        expect(&server.stop(), 0, "");
        expect(&place.run("detach", &[]), 0, "was written back");
        expect(&array(&place, &["status"]), 0, "known to be right");
        place.format();
        expect(&array(&place, &["status"]), 0, "known to be right");
    }
}

/// The data disk is elsewhere, so the array has no record of its own.
#[test]
fn a_log_on_a_slice_of_an_array_is_not_served_as_a_disk() {
    for (first, at) in [("8MiB", "12MiB"), ("0", "0")] {
        let place = Place::new();
        fs::write(place.path("disk.img"), vec![7; 16 << 20]).unwrap();
        let slice = |at: &str| {
            format!("[layer.log]\nkind = \"slice\"\nof = \"array\"\nfirst = \"{at}\"\nsize = \"4MiB\"\n")
        };
        let cache = "[device.home]\npath = \"disk.img\"\n".to_owned() + CACHE;
        write_stack(&place, "cache", MEMBERS, &[slice(first).as_str(), &cache].concat());
        expect(&dcd().args(["array", "create"]).arg(place.stack()).output().unwrap(), 0, "over 4 members");
        place.format();
        let server = place.serve();
        let mut nbd = place.nbd();
        nbd.write(65536, &[0xd1; 4096]).unwrap();
        nbd.flush().unwrap();
        nbd.disconnect().unwrap();
        server.kill();
        let is_log = "is the log of the cache";
        let seen = "[layer.seen]\nkind = \"trace\"\nof = \"log\"\n";
        write_stack(&place, "log", MEMBERS, &slice(first));
        refused(&place, &[], is_log);
        write_stack(&place, "seen", MEMBERS, &[slice(first).as_str(), seen].concat());
        refused(&place, &[], is_log);
        if first == "0" {
            write_stack(&place, "array", MEMBERS, "");
            refused(&place, &[], is_log);
        } else {
            write_stack(&place, "log", MEMBERS, &slice(at));
            expect(&place.serve().stop(), 0, "");
        }
        write_stack(&place, "cache", MEMBERS, &[slice(first).as_str(), &cache].concat());
        let server = place.serve();
        assert_eq!(place.nbd().read(65536, 4096).unwrap(), [0xd1; 4096]);
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn nor_is_one_on_a_slice_of_a_disk() {
    let place = Place::new();
    fs::write(place.path("disk.img"), vec![7; 16 << 20]).unwrap();
    fs::write(place.path("shared.img"), [vec![7; 4 << 20], vec![0; 4 << 20], vec![7; 8 << 20]].concat())
        .unwrap();
    let shared = "[device.shared]\npath = \"shared.img\"\n[layer.log]\nkind = \"slice\"\nof = \"shared\"\n\
                  first = \"4MiB\"\nsize = \"4MiB\"\n";
    let head = |export: &str| format!("export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\n");
    let home = "[device.home]\npath = \"disk.img\"\n";
    fs::write(place.stack(), [&head("cache"), shared, home, CACHE].concat()).unwrap();
    place.format();
    fs::write(place.stack(), [&head("log"), shared].concat()).unwrap();
    match Server::start(&place, &[]) {
        Ok(_) => panic!("it was served"),
        Err(output) => expect(&output, 3, "is the log of the cache"),
    }
}

const INNER: [&str; 3] = ["a", "b", "c"];

/// An array on three disks that have a cache each; what is above it is `more`.
fn write_stack_on_caches(place: &Place, export: &str, more: &str) {
    let mut text = format!(
        "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
         [layer.array]\nkind = \"raid\"\nof = {INNER:?}\nstrip = \"64KiB\"\njournal = \"none\"\n"
    );
    for member in INNER {
        text += &format!(
            "[device.{member}-log]\npath = \"{member}-log.img\"\nsize = \"8MiB\"\n\
             [device.{member}-disk]\npath = \"{member}.img\"\nsize = \"8MiB\"\n\
             [layer.{member}]\nkind = \"log-cache\"\nlog = \"{member}-log\"\ndata = \"{member}-disk\"\nidle-empty = \"3600s\"\n"
        );
    }
    fs::write(place.stack(), text + more).unwrap();
}

#[test]
fn an_array_on_caches_is_not_served_without_the_cache_above_it() {
    let place = Place::new();
    let upper = [Log::OfItsOwn.layers(), Log::OfItsOwn.home(), CACHE].concat();
    write_stack_on_caches(&place, "cache", &upper);
    for inner in INNER {
        expect(&place.run("format", &["--layer", inner]), 0, "of data");
    }
    expect(&dcd().args(["array", "create"]).arg(place.stack()).output().unwrap(), 0, "over 3 members");
    expect(&place.run("format", &["--layer", "cache"]), 0, "of data");
    let has_record = || records(&place).iter().any(|path| path.to_str().unwrap().contains("/array-"));
    assert!(has_record(), "it is made with the cache");
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(65536, &[0xd1; 4096]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    let check = |export: &str, more: &str, flags: &[&str], said: &str| {
        write_stack_on_caches(&place, export, more);
        match Server::start(&place, flags) {
            Ok(_) => panic!("it was served: {said}"),
            Err(output) => expect(&output, 3, said),
        }
    };
    check("array", "", &[], ATTACHED);
    check("home", Log::OfItsOwn.home(), &[], ATTACHED);
    // What is below it has to be there, and is not given up on the way.
    fs::rename(place.path("b-log.img"), place.path("elsewhere")).unwrap();
    check("cache", &upper, &[], "the log is missing");
    check("array", "", &[], "the log is missing");
    fs::rename(place.path("elsewhere"), place.path("b-log.img")).unwrap();
    let other = "[device.log]\npath = \"other.img\"\nsize = \"8MiB\"\n";
    write_stack_on_caches(&place, "cache", &[other, Log::OfItsOwn.home(), CACHE].concat());
    let second = place.run("format", &["--layer", "cache"]);
    expect(&second, 3, "a cache is attached to the data disk already");
    write_stack_on_caches(&place, "cache", &upper);
    let server = place.serve();
    assert_eq!(place.nbd().read(65536, 4096).unwrap(), [0xd1; 4096]);
    expect(&server.stop(), 0, "");
    // The array's superblocks are in the logs below it: without all caches there is none, and none is given up.
    fs::rename(place.path("ssd.img"), place.path("elsewhere")).unwrap();
    assert_eq!(Server::start(&place, &["--without-cache", "--force"]).err().unwrap().status.code(), Some(3));
    fs::rename(place.path("elsewhere"), place.path("ssd.img")).unwrap();
    expect(&place.serve().stop(), 0, "");
    // One of them alone is.
    fs::rename(place.path("ssd.img"), place.path("elsewhere")).unwrap();
    check("cache", &upper, &[], "dcd format --layer cache --force");
    expect(&place.run("format", &["--layer", "cache", "--force"]), 0, "of data");
    expect(&place.serve().stop(), 0, "");
    expect(&place.run("detach", &["--layer", "cache"]), 0, "detached");
    write_stack_on_caches(&place, "array", "");
    expect(&place.serve().stop(), 0, "");
}

/// An array on three disks that have a cache each, all of it stopped, and everything at home.
fn clean_on_caches() -> Place {
    let place = Place::new();
    write_stack_on_caches(&place, "array", "");
    for inner in INNER {
        expect(&place.run("format", &["--layer", inner]), 0, "of data");
    }
    expect(&array(&place, &["create"]), 0, "over 3 members");
    let server = place.serve();
    let is_good = || {
        let output = array(&place, &["status", "--json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["state"] == "good"
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_good() {
        assert!(Instant::now() < deadline, "the parity is not computed");
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&server.stop(), 0, "");
    bring_home(&place);
    place
}

fn bring_home(place: &Place) {
    for inner in INNER {
        expect(&place.run("rescue", &["--layer", inner]), 0, "written back");
        assert_eq!(state(place, inner), "clean");
    }
}

fn array(place: &Place, args: &[&str]) -> std::process::Output {
    let (command, more) = args.split_first().unwrap();
    dcd().args(["array", command]).arg(place.stack()).args(more).output().unwrap()
}

const INNER_DISKS: &str = "\"a\", \"b\", \"c\"";

/// Writes to the array through the caches below it, whose logs keep the blocks.
fn write_on_caches(place: &Place, byte: u8) {
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        nbd.write(i * 65536, &[byte; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

fn has_on_caches(place: &Place, byte: u8) {
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        assert_eq!(nbd.read(i * 65536, 4096).unwrap(), [byte; 4096], "block {i}");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn no_command_changes_an_array_on_disks_whose_caches_its_stack_leaves_out() {
    let place = clean_on_caches();
    write_on_caches(&place, 0xe1);
    fs::write(place.path("d.img"), vec![0; 8 << 20]).unwrap();
    let before = members(&place);
    let unchanged = |output: &std::process::Output| {
        expect(output, 3, ATTACHED);
        assert!(members(&place) == before, "a refusal changes nothing");
    };
    write_stack(&place, "array", MEMBERS, "");
    unchanged(&array(&place, &["grow"]));
    write_stack(&place, "array", INNER_DISKS, "[device.d]\npath = \"d.img\"\n");
    let commands: [&[&str]; 4] = [&["fail", "c"], &["rebuild"], &["scrub", "--repair"], &["assemble"]];
    commands.iter().for_each(|command| unchanged(&array(&place, command)));
    assert!(said(&array(&place, &["status"])).contains(ATTACHED));
    edit(&place, "journal = \"none\"", "journal = \"none\"\nspares = [\"d\"]");
    unchanged(&array(&place, &["add", "d"]));
    write_stack_on_caches(&place, "array", "");
    has_on_caches(&place, 0xe1);
    // A cache above it does not speak for those below.
    let upper = [Log::OfItsOwn.layers(), Log::OfItsOwn.home(), CACHE].concat();
    write_stack_on_caches(&place, "cache", &upper);
    expect(&place.run("format", &["--layer", "cache"]), 0, "of data");
    bring_home(&place);
    write_on_caches(&place, 0xe2);
    let before = members(&place);
    write_stack(&place, "cache", INNER_DISKS, &upper);
    refused(&place, &[], ATTACHED);
    for command in ["detach", "rescue"] {
        expect(&place.run(command, &[]), 3, ATTACHED);
    }
    assert!(said(&array(&place, &["status"])).contains(ATTACHED));
    expect(&array(&place, &["assemble"]), 3, ATTACHED);
    assert!(members(&place) == before, "a refusal changes nothing");
    write_stack_on_caches(&place, "cache", &upper);
    has_on_caches(&place, 0xe2);
}

#[test]
fn nor_one_with_such_a_spare_or_journal() {
    let place = Place::new();
    let more =
        "[device.s]\npath = \"s.img\"\nsize = \"8MiB\"\n[device.j]\npath = \"j.img\"\nsize = \"16MiB\"\n";
    write_stack(&place, "array", INNER_DISKS, more);
    edit(&place, "journal = \"none\"", "journal = \"j\"\nspares = [\"s\"]");
    expect(&array(&place, &["create"]), 0, "over 3 members");
    for device in ["s", "j"] {
        let other = place.path("other.toml");
        let text = format!(
            "export = \"cache\"\n[device.log]\npath = \"{device}-log.img\"\nsize = \"8MiB\"\n\
             [device.disk]\npath = \"{device}.img\"\n\
             [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disk\"\n"
        );
        fs::write(&other, text).unwrap();
        let of_other = |command: &str| place.dcd().arg(command).arg(&other).output().unwrap();
        expect(&of_other("format"), 0, "of data");
        expect(&array(&place, &["scrub"]), 3, ATTACHED);
        expect(&of_other("detach"), 0, "detached");
        expect(&array(&place, &["scrub"]), 0, "");
    }
}

/// Returns the state in the record of a member's disk.
fn state(place: &Place, inner: &str) -> String {
    let text = fs::read_to_string(place.path(&format!("{inner}.img.dcd"))).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["attachments"][0]["state"].as_str().unwrap().to_owned()
}

/// A member's disk is not given up without a word.
fn needs_its_cache(place: &Place, inner: &str) {
    let alone = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.log]\npath = \"{inner}-log.img\"\n\
         [device.disk]\npath = \"{inner}.img\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disk\"\n"
    );
    fs::write(place.stack(), alone).unwrap();
    match Server::start(place, &["--without-cache"]) {
        Ok(_) => panic!("it was served"),
        Err(output) => expect(&output, 3, "the data disk is incomplete without its cache"),
    }
    write_stack_on_caches(place, "array", "");
}

#[test]
fn a_command_that_changes_an_array_on_caches_says_that_their_disks_are_incomplete() {
    let place = clean_on_caches();
    expect(&array(&place, &["fail", "c"]), 0, "no longer used");
    assert_eq!([state(&place, "a"), state(&place, "b")], ["dirty", "dirty"]);
    needs_its_cache(&place, "a");
    bring_home(&place);
    expect(&array(&place, &["add", "c"]), 0, "is member 2 now");
    assert_eq!(INNER.map(|inner| state(&place, inner)), ["dirty"; 3]);
    bring_home(&place);
    expect(&array(&place, &["rebuild"]), 0, "all members are complete");
    assert_eq!(INNER.map(|inner| state(&place, inner)), ["dirty"; 3]);
    needs_its_cache(&place, "c");
    bring_home(&place);
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn a_command_that_only_looks_at_an_array_on_caches_leaves_their_disks_complete() {
    let place = clean_on_caches();
    expect(&array(&place, &["status"]), 0, "");
    expect(&array(&place, &["assemble"]), 0, "it would start");
    assert_eq!(INNER.map(|inner| state(&place, inner)), ["clean"; 3]);
    // Without their caches the disks are no members, and doctor says what a start would.
    write_stack(&place, "array", &MEMBERS[..13], "");
    expect(&Server::start(&place, &[]).err().expect("it was served"), 3, "is attached to this disk");
    expect(&place.run("doctor", &[]), 1, "is attached to this disk");
    write_stack_on_caches(&place, "array", "");
    // The log of one is another's: nothing of it is believed.
    fs::rename(place.path("b-log.img"), place.path("elsewhere")).unwrap();
    fs::copy(place.path("a-log.img"), place.path("b-log.img")).unwrap();
    expect(&array(&place, &["status"]), 4, "another cache is attached to the data disk");
    fs::rename(place.path("elsewhere"), place.path("b-log.img")).unwrap();
    expect(&place.serve().stop(), 0, "");
}

/// The array's journal must repair first, in RAM, what a crash has left.
#[test]
fn a_cache_on_a_degraded_array_with_a_journal_is_looked_at_after_a_crash() {
    let place = Place::new();
    made_with_a_journal(&place);
    place.format();
    let server = place.serve();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !String::from_utf8_lossy(&array(&place, &["status"]).stdout).starts_with("state    good") {
        assert!(Instant::now() < deadline, "the parity is not computed");
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&array(&place, &["fail", "b"]), 0, "no longer used");
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        nbd.write(i * 65536, &[i as u8; 4096]).unwrap();
    }
    // Large enough to bypass the log, but not where one of the blocks lies that tell this disk from others.
    nbd.write(2 << 20, &vec![0xe1; 2 << 20]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    let all = || (members(&place), fs::read(place.path("ssd.img")).unwrap(), records(&place));
    let before = all();
    expect(&array(&place, &["assemble"]), 0, "it would start, without member 1");
    expect(&place.run("check", &[]), 0, "no problems");
    expect(&place.run("dump", &[]), 0, "");
    expect(&place.run("rescue", &["--list"]), 0, "of data, 0 B of zeroes and discards");
    assert!(all() == before, "to look changes nothing");
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        assert_eq!(nbd.read(i * 65536, 4096).unwrap(), [i as u8; 4096], "block {i}");
    }
    assert!(nbd.read(2 << 20, 2 << 20).unwrap() == vec![0xe1; 2 << 20]);
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}
