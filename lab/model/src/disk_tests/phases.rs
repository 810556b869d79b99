//! Tests the costs of a bus that is given up between the phases of a command, and the segments of reads and of writes.

use dcd_engine::{Extent, Lba, Nanos};
use dcd_model::{Access, Controller, Drive, Served};

use crate::disk_tests::common::ROUND;

fn with(more: &str) -> Controller {
    Controller::new(Drive::parse(&format!("{ROUND}{more}")).expect("the drive of the tests is right"))
}

fn took(more: &str, access: Access) -> f64 {
    let at = Nanos::from_millis(3);
    with(more).serve(at, at, access, Extent::new(Lba(4_000), 8)).end.since(at).as_millis_f64()
}

fn close(is: f64, expected: f64) {
    assert!((is - expected).abs() < 1e-5, "{is} ms and not {expected} ms");
}

/// A sector of the drive passes in 0.1 ms, and takes 0.01 ms on the bus.
#[test]
fn a_read_waits_for_the_bus_from_the_water_mark_on() {
    let plain = took("", Access::Read);
    // The first sector has passed; taking the bus again takes less than the seven others need.
    let phases = "[bus-phases]\nreselect-ms = 0.4\npreparation-ms = 0.1\nread-completion-ms = 0.2\n";
    close(took(phases, Access::Read), plain + 0.2);
    // All eight have passed; then the bus is taken, and moves eight sectors, of which one was counted.
    close(took(&format!("{phases}high-water-mark = 1.0\n"), Access::Read), plain + 0.4 + 0.1 + 0.07 + 0.2);
    // Four have passed; what is left of 0.4 ms of the medium hides that much of it.
    close(
        took(&format!("{phases}high-water-mark = 0.5\n"), Access::Read),
        plain - 0.01 - 0.4 + 0.5 + 0.08 + 0.2,
    );
    // A part of a sector is none: 2.8 of 8 are two, as 2 are.
    let at = |mark: f64| took(&format!("{phases}high-water-mark = {mark}\n"), Access::Read);
    close(at(0.35), at(0.25));
    // Giving up the bus is over before the arm is there, or else it counts.
    close(took("[bus-phases]\nread-disconnect-ms = [0.5, 100.0]\n", Access::Read), plain);
    assert!(took("[bus-phases]\nread-disconnect-ms = [100.0, 0.5]\n", Access::Read) > 100.0);
}

#[test]
fn a_write_takes_the_bus_again_when_it_is_on_the_medium() {
    let plain = took("", Access::Write);
    let phases = "[bus-phases]\nreselect-ms = 0.4\nwrite-completion-ms = 0.2\nwrite-disconnect-ms = 0.3\n";
    close(took(phases, Access::Write), plain + 0.6);
    let early = "[bus-phases.early-disconnect]\ncommand-ms = 0.3\ndisconnect-ms = 0.1\npause-ms = 0.1\n\
                 second-disconnect-ms = 0.1\nseek-delay-ms = 0.0\n";
    // The command costs as much as before, and the arm moves longer than all else takes.
    close(took(early, Access::Write), plain);
    close(took(&format!("[bus-phases]\nreselect-again-ms = 0.7\n{early}"), Access::Write), plain + 0.7);
    // A revolution is lost where the data comes too late.
    let late = early.replace("pause-ms = 0.1", "pause-ms = 9.0");
    close(took(&late, Access::Write), plain + 10.0);
    // It is lost more often where more of the data has to come first.
    let lost = |more: &str| {
        let pauses =
            (0..200).map(|n| early.replace("pause-ms = 0.1", &format!("pause-ms = {}", 0.05 * f64::from(n))));
        pauses.filter(|early| took(&format!("{early}{more}"), Access::Write) > plain + 5.0).count()
    };
    assert!((lost("") + 1..lost("") + 3).contains(&lost("buffered-sectors = 10\n")), "{}", lost(""));
    assert!(took("[bus-phases]\nwrite-positioning-min-ms = 100.0\n", Access::Write) > 100.0);
}

#[test]
fn a_write_settles_earlier_than_a_read_where_the_drive_says_so() {
    // Both overheads are 0.3 ms, so that only the settling differs; positions are too far apart for it to cost a revolution.
    let drive = |settle: &str| {
        ROUND.replace("write-settle-ms = 0.3", settle).replace("read = [0.2, 0.2]", "read = [0.3, 0.3]")
    };
    let on_track = |settle: &str| {
        let drive = Drive::parse(&drive(settle)).expect("the drive of the tests is right");
        let service =
            Controller::new(drive).serve(Nanos::ZERO, Nanos::ZERO, Access::Write, Extent::new(Lba(4_000), 8));
        service.seek.as_millis_f64()
    };
    close(on_track("write-settle-ms = -0.5"), on_track("write-settle-ms = 0.0") - 0.5);
    let error = Drive::parse(&drive("write-settle-ms = -5000")).expect_err("no drive settles so");
    assert!(error.to_string().contains("write-settle-ms"), "{error}");
}

fn served(controller: &mut Controller, at_ms: u64, access: Access, lba: u64, sectors: u64) -> Served {
    let at = Nanos::from_millis(at_ms);
    controller.serve(at, at, access, Extent::new(Lba(lba), sectors)).served
}

#[test]
fn a_ring_replaces_what_was_asked_for_or_ends_before_it() {
    for (more, first_again) in [("", Served::Medium), ("keep-requested = true\n", Served::Cache)] {
        let mut controller = with(more);
        assert_eq!(served(&mut controller, 0, Access::Read, 200, 40), Served::Medium);
        // Half a second later the heads have read all that they may.
        assert_eq!(served(&mut controller, 500, Access::Read, 244, 8), Served::Cache, "{more}");
        assert_eq!(served(&mut controller, 600, Access::Read, 200, 8), first_again, "{more}");
    }
}

#[test]
fn segments_of_writes_are_kept_apart() {
    for (more, written_again) in [("", Served::Medium), ("separate-write-segments = true\n", Served::Cache)] {
        let mut controller = with(&format!("keep-requested = true\n{more}"));
        served(&mut controller, 0, Access::Read, 200, 8);
        served(&mut controller, 100, Access::Write, 9_000, 8);
        assert_eq!(served(&mut controller, 200, Access::Read, 200, 8), Served::Cache, "{more}");
        // Another read takes the least recently used segment, or that of the reads.
        served(&mut controller, 300, Access::Read, 12_000, 8);
        assert_eq!(served(&mut controller, 400, Access::Read, 9_000, 8), written_again, "{more}");
    }
}
