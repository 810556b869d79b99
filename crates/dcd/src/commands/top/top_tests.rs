//! The screen at 80 by 24, the keys, and the graphs.

use dcd_engine::LogCacheStatus;
use dcd_stack::{LayerStatus, MeterStatus, RecentTimes, ResponseTimes};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::session::serving::status::{DeviceState, DeviceStatus};
use crate::session::serving::trend::Trend;

fn status(second: u64) -> ServerStatus {
    let cache = LogCacheStatus {
        // Discards, too, which are not shown: most disks do them at once.
        dirty_bytes: (second << 20) + (3 << 40),
        dirty_data_bytes: second << 20,
        used_bytes: 25 << 20,
        size_bytes: 100 << 20,
        ..LogCacheStatus::default()
    };
    let write = ResponseTimes {
        count: 10 * second,
        bytes: (second * second) << 20,
        recent: RecentTimes { count: 600, bytes: 600 << 12, p50_ms: 0.25, p99_ms: 1.5 },
        ..ResponseTimes::default()
    };
    let device = |name: &str, state| DeviceStatus {
        device: Some(name.to_owned()),
        path: format!("/dev/{name}"),
        state,
        failed_writes: 3,
        ..DeviceStatus::default()
    };
    let trend = Trend { clean_in_seconds: Some(90.0), full_in_seconds: Some(600.0), ..Trend::default() };
    ServerStatus {
        stack: "/etc/dcd/disk.toml".into(),
        dirty_bytes: (second << 20) + (3 << 40),
        requests: MeterStatus { write, recent_seconds: 60.0, ..MeterStatus::default() },
        layers: [("cache".to_owned(), LayerStatus::LogCache(Box::new(cache)))].into(),
        devices: vec![device("nvme0n1p3", DeviceState::Ok), device("sdb", DeviceState::Errors)],
        trends: [("cache".to_owned(), trend)].into(),
        ..ServerStatus::default()
    }
}

fn view(stacks: usize) -> TopView {
    let stack = |number| ShownStack { name: format!("s{number}"), history: History::default(), error: None };
    TopView { stacks: (0..stacks).map(stack).collect(), chosen: 0 }
}

fn drawn(view: &TopView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn fed(stacks: usize) -> TopView {
    let mut view = view(stacks);
    let began = Instant::now();
    for second in 0..100 {
        let asked = began + Duration::from_secs(second);
        view.take(PolledStatus { stack: 0, asked, status: Ok(status(second)) });
    }
    view
}

#[test]
fn a_stack_is_shown_whole_at_80_by_24() {
    let rows = drawn(&fed(1), 80, 24);
    let text = rows.join("\n");
    for part in [
        "dcd top    q: quit",
        "STACK          STATE         DIRTY      LOG   REQ/S    READ         WRITTEN",
        "disk           dirty         99 MiB     25 %  10       0 B/s        197 MiB/s",
        "action: look at device \"sdb\" (/dev/sdb), which failed 0 reads, 3 writes",
        "cache: clean in 90 s, log full in 10 min",
        "last minute    per second   p50          p99",
        "writes         10.0         0.25 ms      1.50 ms",
        "reads          0.0          -            -",
        "nvme0n1p3      /dev/nvme0n1p3",
        "sdb            /dev/sdb",
        "0/3/0",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(text.contains('\u{2588}'), "the graph of what is written reaches its top:\n{text}");
}

#[test]
fn a_narrow_screen_leaves_columns_out_and_a_high_one_is_used() {
    let mut view = fed(1);
    let mut failing = status(1);
    failing.devices.push(DeviceStatus { device: Some("x".repeat(90)), ..failing.devices[1].clone() });
    failing.devices[0].removed = Some("its file was deleted or moved".to_owned());
    failing.devices[0].state = DeviceState::Removed;
    view.take(PolledStatus {
        stack: 0,
        asked: Instant::now() + Duration::from_secs(200),
        status: Ok(failing),
    });
    let rows = drawn(&view, 60, 24);
    let text = rows.join("\n");
    for part in [
        "STACK                STATE",
        "disk                 degraded",
        "DEVICE         PATH",
        "sdb            /dev/sdb",
        "last minute",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("WRITTEN"), "{text}");
    let rows = drawn(&fed(1), 200, 60);
    let used = rows.iter().rposition(|row| !row.is_empty()).unwrap();
    assert!(used >= 56, "{used} lines are used:\n{}", rows.join("\n"));
    let many = drawn(&fed(20), 80, 90);
    assert!(many.iter().any(|row| row.starts_with("s19 ")), "{}", many.join("\n"));
}

#[test]
fn any_size_and_any_number_of_stacks_is_drawn() {
    for stacks in [0, 1, 2, 6, 40] {
        let mut view = fed(stacks.max(1));
        if stacks == 0 {
            view.stacks.clear();
        }
        for chosen in [0, stacks.saturating_sub(1)] {
            view.chosen = chosen;
            for (width, height) in [(80, 24), (1, 1), (20, 5), (300, 100), (80, 10)] {
                let rows = drawn(&view, width, height);
                let is_shown = rows.iter().any(|row| row.starts_with(&format!("s{chosen} ")));
                assert!(height < 24 || stacks < 2 || chosen == 0 || is_shown, "the chosen one is in view");
            }
        }
    }
}

#[test]
fn a_server_that_cannot_be_asked_says_so_and_comes_back() {
    let mut view = fed(2);
    view.take(PolledStatus {
        stack: 0,
        asked: Instant::now(),
        status: Err("nobody listens on x".to_owned()),
    });
    let text = drawn(&view, 80, 24).join("\n");
    assert!(text.contains("nobody listens on x") && text.contains("disk           ?"), "{text}");
    view.take(PolledStatus {
        stack: 0,
        asked: Instant::now() + Duration::from_secs(200),
        status: Ok(status(1)),
    });
    let text = drawn(&view, 80, 24).join("\n");
    assert!(!text.contains("nobody listens") && text.contains("dirty"), "{text}");
}

#[test]
fn of_a_long_path_the_end_is_shown() {
    let mut view = fed(1);
    let mut long = status(1);
    long.devices[0].path = format!("/{}/data.img", "directory".repeat(9));
    view.take(PolledStatus { stack: 0, asked: Instant::now() + Duration::from_secs(200), status: Ok(long) });
    let text = drawn(&view, 80, 24).join("\n");
    assert!(text.contains("data.img ok") || text.contains("data.img  ok"), "{text}");
    drawn(&view, 10, 24);
}

#[test]
fn keys_choose_and_quit() {
    let mut view = view(2);
    for (code, chosen) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::Char('j'), 1),
        (KeyCode::Char('k'), 0),
        (KeyCode::Char('x'), 0),
    ] {
        assert!(view.key(code, KeyModifiers::NONE));
        assert_eq!(view.chosen, chosen);
    }
    assert!(!view.key(KeyCode::Char('q'), KeyModifiers::NONE));
    assert!(!view.key(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(view.key(KeyCode::Char('c'), KeyModifiers::NONE));
}

#[test]
fn rates_are_those_between_two_answers() {
    let view = fed(1);
    let history = &view.stacks[0].history;
    assert_eq!(history.newest().write_bytes_per_second, f64::from((99 * 99 - 98 * 98) << 20));
    assert_eq!(history.newest().requests_per_second, 10.0);
    let graph = history.graph(3, |point| point.dirty_bytes as f64);
    assert_eq!(graph, [97 << 20, 98 << 20, 99 << 20]);
    // A server that was started again counts from zero.
    let mut view = view;
    view.take(PolledStatus {
        stack: 0,
        asked: Instant::now() + Duration::from_secs(300),
        status: Ok(status(1)),
    });
    assert!(view.stacks[0].history.newest().write_bytes_per_second >= 0.0);
}
