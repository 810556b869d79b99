//! `dcd tune`, as a user runs it: what it writes can be simulated, formatted and served.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{MIB, Place, dcd, expect, tool};

/// A trace in MSR's format: small writes to the same places again and again, and reads elsewhere.
fn trace(place: &Place) {
    let mut text = String::new();
    for i in 0..600u64 {
        let (kind, offset) = if i % 3 == 0 { ("Read", 4 << 20) } else { ("Write", 0) };
        let offset = offset + i * i % 97 * 8192;
        let time = 128_166_372_000_000_000 + i * 70_000;
        writeln!(text, "{time},host,0,{kind},{offset},4096,0").unwrap();
    }
    fs::write(place.path("trace.csv"), text).unwrap();
}

fn tune(place: &Place, more: &[&str]) -> Output {
    let mut command = dcd();
    command.arg("tune").arg("trace.csv").arg("--quiet").args(more).current_dir(place.dir.path());
    command.output().unwrap()
}

#[test]
fn what_is_recommended_can_be_simulated_formatted_and_served() {
    let place = Place::new();
    trace(&place);
    for medium in ["same-disk", "other-disk", "ssd", "ram"] {
        // Log and disk are to be made.
        for name in ["log.img", "disk.img", "disk.img.dcd"] {
            let _ = fs::remove_file(place.path(name));
        }
        let logs = "--log-sizes=16MiB";
        let promise = if medium == "ram" { "flush" } else { "always" };
        let flag = format!("--{medium}");
        let more = [&flag, "--out", "out", logs, "--promise", promise, "--verify", "--json"];
        let output = tune(&place, &more);
        expect(&output, 0, "");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["recommended"]["medium"], medium, "{result}");
        assert!(result["verified"]["worse_percent"].as_f64().unwrap() <= 2.0);
        let saved: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(place.path("out/tune.json")).unwrap()).unwrap();
        assert_eq!(saved, result);
        let page = fs::read_to_string(place.path("out/tune.html")).unwrap();
        assert!(page.matches("<svg").count() >= 3 && page.contains("Recommended: "));
        assert!(page.contains("Requests that stall"));
        for file in ["simulate.toml", "serve.toml"] {
            let path = place.path("out").join(file);
            let simulate = |path: &Path| {
                dcd().arg("simulate").arg(path).args(["--workload=mixed", "--requests=50"]).output().unwrap()
            };
            expect(&simulate(&path), 0, "trace hash");
        }
        let served = fs::read_to_string(place.path("out/serve.toml")).unwrap();
        assert!(!served.contains("non-volatile"), "{served}");
        serve(&place, medium != "ram");
        fs::remove_dir_all(place.path("out")).unwrap();
    }
}

#[test]
fn the_page_fits_a_small_window_and_a_telephone() {
    let place = Place::new();
    trace(&place);
    expect(&tune(&place, &["--out", "out", "--log-sizes=16MiB"]), 0, "");
    fits(&place, &place.path("out/tune.html"));
}

/// Checks that a page is no wider than a small window or a telephone, with the numbers of its tables on one line and letters of 10 pixels
/// in its pictures.
pub fn fits(place: &Place, file: &Path) {
    let Some(chromium) = tool("the width of a page", "chromium") else { return };
    let page = fs::read_to_string(file).unwrap();
    // The page tells how wide it is, and how high the highest cell with a number.
    let script = "<script>addEventListener('load',()=>{const e=document.documentElement,\
        all=s=>[...document.querySelectorAll(s)],n=all('td.number'),\
        shown=all('svg').filter(s=>s.getClientRects().length>0),\
        scale=s=>s.getBoundingClientRect().width/s.getAttribute('width'),\
        letters=s=>[...s.querySelectorAll('text')].map(t=>scale(s)*t.getAttribute('font-size'));\
        document.title=['wide',e.scrollWidth-e.clientWidth,\
        n.length>0&&n.every(c=>getComputedStyle(c).whiteSpace==='nowrap'),\
        shown.length>0&&shown.flatMap(letters).every(size=>size>=10)].join(' ')})</script></body>";
    fs::write(file, page.replace("</body>", script)).unwrap();
    for width in [1100, 390] {
        let output = Command::new(&chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .arg(format!("--user-data-dir={}", place.path("profile").display()))
            .arg(format!("--window-size={width},1200"))
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        assert!(dom.contains("<title>wide 0 true true</title>"), "{width}: {dom}");
    }
}

#[test]
fn disks_that_are_there_are_named_as_seen_from_the_stack_file() {
    let place = Place::new();
    trace(&place);
    fs::File::create(place.path("log.img")).unwrap().set_len(64 * MIB).unwrap();
    let places = ["--disk=data.img", "--log=log.img", "--ssd", "--log-sizes=16MiB", "--out=out"];
    expect(&tune(&place, &places), 0, "--log log.img, of 64 MiB: a log on an SSD, as");
    // As much of the log is used as was measured.
    let served = fs::read_to_string(place.path("out/serve.toml")).unwrap();
    assert!(served.contains("of = \"log-device\"\nsize = \"16MiB\""), "{served}");
    expect(&dcd().arg("format").arg(place.path("out/serve.toml")).output().unwrap(), 0, "16 MiB of data");
    // A place for the results that is none is told before the work.
    fs::remove_dir_all(place.path("out")).unwrap();
    fs::write(place.path("out"), "").unwrap();
    let output = tune(&place, &places);
    expect(&output, 1, "out: File exists");
    assert!(output.stdout.is_empty(), "nothing was run");
}

/// Serves what was recommended, and stops it.
fn serve(place: &Place, formats: bool) {
    // A log that keeps reads is refused where the machine that tests says that its disk spins.
    let served = fs::read_to_string(place.path("out/serve.toml")).unwrap();
    fs::write(place.stack(), served.replace("reads = \"keep\"\n", "")).unwrap();
    // Nothing makes the disk of a stack with no log but serving it.
    if formats {
        expect(&place.run("format", &[]), 0, "");
    }
    let server = place.serve();
    let mut nbd = crate::common::Nbd::connect(&place.path("disk.sock")).unwrap();
    nbd.write(4096, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    assert_eq!(nbd.read(4096, 4096).unwrap(), [7; 4096]);
    // What was flushed survives the end of the process.
    server.kill();
    if formats {
        expect(&place.run("detach", &["--quiet"]), 0, "");
    }
    assert_eq!(fs::read(place.path("disk.img")).unwrap()[4096..8192], [7; 4096]);
}

#[test]
fn a_log_that_is_named_leads_to_candidates_on_it() {
    let place = Place::new();
    trace(&place);
    let ssd = "/dev/nvme77n1p3";
    let output = tune(&place, &["--log", ssd, "--log-sizes", "16MiB,32MiB", "--out", "out", "--json"]);
    expect(&output, 0, "--log /dev/nvme77n1p3: a log on an SSD, as it is missing");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let media: Vec<&str> =
        result["candidates"].as_array().unwrap().iter().map(|c| c["medium"].as_str().unwrap()).collect();
    assert_eq!(media[0], "none");
    assert!(media.len() > 1 && media[1..].iter().all(|medium| *medium == "ssd"), "{media:?}");
    let served = fs::read_to_string(place.path("out/serve.toml")).unwrap();
    assert!(served.contains(&format!("path = \"{ssd}\"")) && !served.contains("non-volatile"), "{served}");
    // A log that is there is not taken for larger than it is.
    fs::File::create(place.path("log.img")).unwrap().set_len(20 * MIB).unwrap();
    let output = tune(&place, &["--log", "log.img", "--ssd", "--log-sizes", "16MiB,1GiB", "--json"]);
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut sizes: Vec<u64> =
        result["candidates"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).collect();
    sizes.dedup();
    assert_eq!(sizes, [0, 16 * MIB, 20 * MIB]);
}

#[test]
fn with_prices_the_table_has_what_a_cache_costs_and_saves() {
    let place = Place::new();
    trace(&place);
    let sizes = ["--log-sizes", "16MiB,64MiB", "--ram-sizes", "1MiB"];
    let output = tune(
        &place,
        &[&["--same-disk", "0.02", "--ssd", "0.10", "--nvram=5", "--out", "out", "--json"][..], &sizes]
            .concat(),
    );
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let price = |medium: &str, bytes: u64| {
        let all = result["candidates"].as_array().unwrap().iter();
        let mut of = all.filter(|one| one["medium"] == medium && one["bytes"] == bytes);
        of.next().unwrap_or_else(|| panic!("{medium}"))["price"].as_f64().unwrap()
    };
    let near = |price: f64, wanted: f64| assert!((price - wanted).abs() < 1e-6, "{price} for {wanted}");
    near(price("same-disk", 64 * MIB), 0.02 * 67.108_864e-3);
    near(price("ssd", 16 * MIB), 0.1 * 16.777_216e-3);
    near(price("nvram", MIB), 5.0 * 1.048_576e-3);
    let page = fs::read_to_string(place.path("out/tune.html")).unwrap();
    assert!(page.contains(">cost") && page.contains("saves/1") && page.contains("--i-have-nvram"), "{page}");
    // Of what is as good, the cheapest in money is recommended.
    let good = result["best"]["value"].as_f64().unwrap() * 1.02;
    let recommended = result["recommended"]["price"].as_f64().unwrap();
    for one in result["candidates"].as_array().unwrap() {
        assert!(
            one["value"].as_f64().unwrap() > good || one["price"].as_f64().unwrap() >= recommended,
            "{one}"
        );
    }
    // Without prices there is no such column.
    let output = tune(&place, &[&["--ssd"][..], &sizes].concat());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("saves/1"));
}

#[test]
fn large_writes_are_zeroes_and_do_not_cost_what_they_would_as_data() {
    let place = Place::new();
    let mut text = String::new();
    for i in 0..206u64 {
        let (offset, bytes) = if i < 200 { (i * 8192, 4096) } else { ((i - 200) * (3 << 30), 3u64 << 30) };
        writeln!(text, "{},host,0,Write,{offset},{bytes},0", 128_166_372_000_000_000 + i * 1_000_000)
            .unwrap();
    }
    fs::write(place.path("trace.csv"), text).unwrap();
    let output = tune(&place, &["--ssd", "--log-sizes", "16MiB"]);
    expect(&output, 0, "6 writes of more than 32 MiB, 18 GiB together, are zeroes");
    // There is no read whose time could be told.
    expect(&output, 0, " - ");
}

#[test]
fn what_covers_no_block_twice_is_no_overwrite() {
    let place = Place::new();
    let mut text = String::from("at_ns,device,op,lba,sectors\n");
    (0..400u64).for_each(|i| writeln!(text, "{},0,write,{},8", i * 1_000_000, 2 + 8 * i).unwrap());
    fs::write(place.path("trace.csv"), text).unwrap();
    let output = tune(&place, &["--ssd", "--log-sizes", "16MiB"]);
    expect(&output, 0, "Recommended: ");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("overwrite an earlier write"));
}

#[test]
fn a_simulation_without_a_modelled_disk_says_how_to_model_it() {
    let place = Place::new();
    let simulate = || {
        dcd().arg("simulate").arg(place.stack()).args(["--workload=mixed", "--requests=50"]).output().unwrap()
    };
    expect(
        &simulate(),
        0,
        "To model the disk \"data\", name \"modelled\" in its place in [layer.cache], and add:",
    );
    let text = fs::read_to_string(place.stack()).unwrap().replace("data = \"data\"", "data = \"modelled\"");
    let layer = "[layer.modelled]\nkind = \"disk\"\nof = \"data\"\ndrive = \"nearline-2018\"\n";
    let unmodelled = String::from_utf8(simulate().stderr).unwrap();
    assert!(unmodelled.contains(layer), "{unmodelled}");
    fs::write(place.stack(), text + layer).unwrap();
    let output = simulate();
    expect(&output, 0, "trace hash");
    assert!(output.stderr.is_empty());
}

#[test]
fn the_text_has_the_table_the_reasons_and_the_stack_file() {
    let place = Place::new();
    trace(&place);
    let output = tune(&place, &["--same-disk", "--ssd", "--log-sizes", "16MiB"]);
    for said in ["no cache", "Recommended: ", "How sure: ", "Assumed:", "always durable", "[layer.cache]"] {
        let said = if said == "always durable" { "makes each write durable before it answers" } else { said };
        expect(&output, 0, said);
    }
}

#[test]
fn what_cannot_be_tuned_is_refused_with_advice() {
    let place = Place::new();
    trace(&place);
    for (more, said) in [
        (&["--drive", "ra99"][..], "no drive is called"),
        (&["--device", "7"], "no device 7; it has 0"),
        (&["--log-sizes", "1KiB"], "at least 16 MiB"),
        (&["--ram-sizes", "1000001"], "multiples of 4096"),
        (&["--ram"], "cannot keep the promise \"always\""),
        (&["--same-disk", "--ssd", "--log", "/dev/nvme77n1"], "leave them out, or say what the log is on"),
        (&["--log", "log.img"], "it has 8 MiB, and a log needs at least 16 MiB"),
        (&["--same-disk", "--size-max", "8MiB"], "no room for a log of 16 MiB"),
    ] {
        expect(&tune(&place, more), 1, said);
    }
    // A size without room on the drive is left out.
    let small = tune(&place, &["--drive", "ra81", "--same-disk", "--log-sizes", "64MiB,1GiB", "--json"]);
    let result: serde_json::Value = serde_json::from_slice(&small.stdout).unwrap();
    let fits = |one: &serde_json::Value| one["bytes"].as_u64().unwrap() < 456 << 20;
    assert!(result["candidates"].as_array().unwrap().iter().all(fits), "{result}");
    expect(&tune(&place, &["--ssd", "trace.csv"]), 2, "the price of a gigabyte is a number");
    let far =
        "128166372000000000,host,0,Write,900000000000,4096,0\n128166372000000001,host,0,Write,0,512,0\n";
    fs::write(place.path("trace.csv"), far).unwrap();
    expect(&tune(&place, &["--drive", "ra81"]), 1, "take a larger one (nearline-2018");
    fs::write(place.path("trace.csv"), "128166372000000000,host,0,Read,0,4096,0\n").unwrap();
    expect(&tune(&place, &[]), 1, "no writes");
}

#[test]
fn the_disk_and_the_ssd_of_the_log_may_be_without_heads() {
    let place = Place::new();
    trace(&place);
    let log = ["--ssd", "--log-sizes", "16MiB", "--ssd-drive", "ssd-sata-2021", "--out", "out"];
    let output = tune(&place, &[&["--drive", "ebs-gp2"][..], &log].concat());
    for what in [
        "on the drive ebs-gp2",
        "an SSD behaves like Samsung 870 EVO",
        "the disk behaves like Amazon EBS gp2",
    ] {
        expect(&output, 0, what);
    }
    let simulated = fs::read_to_string(place.path("out/simulate.toml")).unwrap();
    assert!(simulated.contains("drive = \"ebs-gp2\""), "{simulated}");
    let output = tune(&place, &log);
    expect(&output, 0, " to the SSD: its 545.7 TiB last for ");
    let simulated = fs::read_to_string(place.path("out/simulate.toml")).unwrap();
    assert!(simulated.contains("of = \"ssd\"\ndrive = \"ssd-sata-2021\""), "{simulated}");
    let trace = ["--trace", "trace.csv", "out/simulate.toml"];
    expect(&dcd().arg("simulate").args(trace).current_dir(place.dir.path()).output().unwrap(), 0, "");
    expect(&tune(&place, &["--ssd-drive", "ssd-sata"]), 1, "no drive is called \"ssd-sata\": use one of");
}
