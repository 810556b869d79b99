//! `dcd top` in a terminal of its own (script makes it): it shows a served stack, and leaves the terminal as it was.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Place, Server, dcd, expect, tool};

/// Starts it in a terminal of 80 by 24. The terminal's settings are written down before and after.
fn start(place: &Place) -> Server {
    let inner = format!(
        "stty rows 24 cols 80; stty -g > before; sh -c 'echo $$ > pid; exec {} top stack.toml'; echo $? > code; stty -g > after",
        dcd().get_program().to_str().unwrap()
    );
    let child = Command::new("script")
        .args(["-qefc", &inner, "/dev/null"])
        .current_dir(place.dir.path())
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Server { child }
}

/// Reads until the terminal got `wanted`.
fn read_until(child: &mut Child, seen: &mut Vec<u8>, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let out = child.stdout.as_mut().unwrap();
    while !String::from_utf8_lossy(seen).contains(wanted) {
        assert!(Instant::now() < deadline, "no {wanted:?} in {:?}", String::from_utf8_lossy(seen));
        let mut part = [0; 4096];
        let count = out.read(&mut part).unwrap();
        assert!(count > 0, "it ended: {:?}", String::from_utf8_lossy(seen));
        seen.extend_from_slice(&part[..count]);
    }
}

#[test]
fn the_terminal_is_as_it_was_however_it_ends() {
    if tool("dcd top in a terminal", "script").is_none() {
        return;
    }
    let place = Place::new();
    place.format();
    let server = place.serve();
    for (end, code) in [("q", "0"), ("TERM", "1")] {
        let mut running = start(&place);
        let child = &mut running.child;
        let mut seen = Vec::new();
        // Only what has changed is drawn, so words that stand apart come apart.
        read_until(child, &mut seen, "clean");
        read_until(child, &mut seen, "data.img");
        match end {
            "q" => child.stdin.as_mut().unwrap().write_all(b"q").unwrap(),
            signal => {
                let process = fs::read_to_string(place.path("pid")).unwrap();
                let sent =
                    Command::new("kill").args([&format!("-{signal}"), process.trim()]).status().unwrap();
                assert!(sent.success());
            }
        }
        read_until(child, &mut seen, "\u{1b}[?1049l");
        child.stdout.as_mut().unwrap().read_to_end(&mut seen).unwrap();
        child.wait().unwrap();
        let text = String::from_utf8_lossy(&seen);
        assert!(text.contains("\u{1b}[?1049h"), "it has a screen of its own");
        assert!(text.rfind("\u{1b}[?25h") > text.rfind("\u{1b}[?25l"), "the cursor is there again: {text:?}");
        let file = |name: &str| fs::read_to_string(place.path(name)).unwrap();
        assert_eq!(file("before"), file("after"), "after {end}");
        assert_eq!(file("code").trim(), code, "after {end}");
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    expect(&dcd().args(["top", "x.toml"]).output().unwrap(), 1, "dcd top needs a terminal; dcd status");
}
