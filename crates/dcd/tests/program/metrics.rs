//! Metrics: by the command and by HTTP.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::{Place, Server, dcd, expect, skip};

/// A place whose server tells its metrics at `address`.
fn place(address: &str) -> Place {
    let place = Place::new();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("[serve]\n", &format!("[serve]\nmetrics = \"{address}\"\n")))
        .unwrap();
    place.format();
    place
}

fn scrape(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: dcd\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server closes");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_owned()
}

/// The samples that another program finds in the text format of Prometheus.
fn samples_of(text: &str) -> Option<usize> {
    let reader = "import sys\n\
                  from prometheus_client.parser import text_string_to_metric_families as read\n\
                  families = list(read(sys.stdin.read()))\n\
                  assert all(f.type != 'unknown' and f.documentation for f in families)\n\
                  print(sum(len(f.samples) for f in families))";
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", reader])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    python.stdin.take()?.write_all(text.as_bytes()).ok()?;
    String::from_utf8(python.wait_with_output().ok()?.stdout).ok()?.trim().parse().ok()
}

#[test]
fn a_scrape_and_the_command_tell_what_clients_did() {
    let place = place("unix:metrics.sock");
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..3 {
        nbd.write(block * 4096, &[1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    let scraped = scrape(UnixStream::connect(place.path("metrics.sock")).unwrap());
    let printed = place.run("metrics", &[]);
    let version = dcd().arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap().trim().replace("dcd ", "");
    let status = place.run("status", &["--json"]).stdout;
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&status).unwrap()["version"], *version);
    expect(&printed, 0, "# EOF");
    let has = Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).output();
    if has.is_ok_and(|output| output.status.success()) {
        let samples = scraped.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples_of(&scraped), Some(samples), "{scraped}");
    } else {
        skip("another program reads a scrape: python3-prometheus-client is not installed");
    }
    for text in [scraped.as_str(), &String::from_utf8_lossy(&printed.stdout)] {
        for line in [
            "dcd_request_bytes_total{stack=\"stack\",operation=\"write\"} 12288\n",
            "dcd_request_duration_seconds_count{stack=\"stack\",operation=\"flush\"} 1\n",
            "dcd_device_errors_total{stack=\"stack\",device=\"log\",operation=\"write\"} 0\n",
            "dcd_device_in_flight{stack=\"stack\",device=\"log\"} ",
            "dcd_dirty_data_bytes{stack=\"stack\",layer=\"cache\"} ",
            &format!("dcd_build_info{{stack=\"stack\",version=\"{version}\"}} 1\n"),
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
    let of_log = |name: &str| {
        let begun = format!("dcd_device_{name}{{stack=\"stack\",device=\"log\",operation=\"write\"}} ");
        let value = scraped.lines().find_map(|line| line.strip_prefix(&begun)).expect("it is told");
        value.parse::<f64>().unwrap()
    };
    assert!(of_log("operations_total") >= 1.0 && of_log("operation_bytes_total") >= 12288.0, "{scraped}");
    // A client that says nothing keeps nobody waiting, and none of them keeps the server from stopping.
    let _silent = UnixStream::connect(place.path("metrics.sock")).unwrap();
    scrape(UnixStream::connect(place.path("metrics.sock")).unwrap());
    nbd.disconnect().unwrap();
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
}

#[test]
fn status_prints_what_the_devices_did_in_each_interval() {
    let place = place("unix:metrics.sock");
    let server = place.serve();
    expect(&place.run("status", &["--every", "1ms"]), 1, "--every: an interval is 100ms or more");
    let mut watching = place.dcd();
    watching.arg("status").arg(place.stack()).args(["--every", "100ms"]).stdout(Stdio::piped());
    let mut watching = watching.spawn().unwrap();
    let mut nbd = place.nbd();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let (mut of_log, mut seen) = (false, Vec::new());
    while seen.len() < 1000 {
        nbd.write(4096, &[1; 4096]).unwrap();
        nbd.flush().unwrap();
        let line = lines.next().expect("it goes on").unwrap();
        // A device's name is on its first line.
        of_log = line.contains(" log ") || of_log && line.starts_with("     ");
        let words: Vec<&str> = line.split_whitespace().collect();
        let write = words.iter().position(|word| *word == "write");
        if write.is_some_and(|at| of_log && words[at + 1].parse::<f64>().is_ok_and(|rate| rate > 0.0)) {
            break;
        }
        seen.push(line);
    }
    // It ends with its reader.
    drop(lines);
    assert!(watching.wait().unwrap().success());
    assert!(seen.len() < 1000, "no write to the log is shown: {seen:?}");
    nbd.disconnect().unwrap();
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
}

#[test]
fn a_loopback_port_is_served_and_other_hosts_are_not() {
    let place = place("tcp:0");
    let mut child = dcd().arg("serve").arg(place.stack()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut byte = [0];
    while !said.ends_with('\n') && child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 {
        said.push(char::from(byte[0]));
    }
    let server = Server { child };
    let port = said.split("metrics tcp:127.0.0.1:").nth(1).expect("it says where").split(',').next().unwrap();
    let text = scrape(TcpStream::connect(("127.0.0.1", port.trim().parse().unwrap())).unwrap());
    assert!(text.contains("dcd_stack_info{stack=\"stack\",export=\"cache\"} 1\n"), "{text}");
    expect(&server.stop(), 0, "");
    let remote = fs::read_to_string(place.stack()).unwrap().replace("tcp:0", "tcp:0.0.0.0:9850");
    fs::write(place.stack(), remote).unwrap();
    let refused = Server::start(&place, &[]).err().expect("it is refused");
    expect(&refused, 1, "\"metrics\": 0.0.0.0:9850 can be reached from other hosts");
}

#[test]
fn prometheus_takes_the_rules() {
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");
    for args in [["check", "rules", "dcd.rules.yml"], ["test", "rules", "dcd.rules.test.yml"]] {
        let Ok(output) = Command::new("promtool").args(args).current_dir(packaging).output() else {
            return skip("prometheus takes the rules: promtool (package prometheus) is not installed");
        };
        expect(&output, 0, "SUCCESS");
    }
}
