//! The figures of a trace as text: the columns of Tables 3.1 and 4.5 of Biswas, Ramakrishnan and Towsley (1993), and more.

use std::fmt::Write;

use dcd_engine::Nanos;
use dcd_stack::HumanBytes;
use dcd_studies::Table;
use dcd_trace::{Characteristics, Distribution, Requests};

/// Reason why `write!` to a string cannot fail.
const STRING: &str = "a string takes everything";

pub fn summary(format: &str, figures: &Characteristics) -> String {
    let all = &figures.all;
    let mut text = String::new();
    let devices = figures.devices.len();
    writeln!(text, "format {format}, {devices} devices, {:.1} s", all.seconds).expect(STRING);
    requests(&mut text, "reads", &all.reads);
    requests(&mut text, "writes", &all.writes);
    if all.discards + all.flushes > 0 {
        writeln!(text, "{:<8} {:>11}\n{:<8} {:>11}", "discards", all.discards, "flushes", all.flushes)
            .expect(STRING);
    }
    if all.fua > 0 {
        writeln!(text, "{:<8} {:>11}   writes that are durable when answered", "FUA", all.fua).expect(STRING);
    }
    let rate = (all.reads.count + all.writes.count) as f64 / all.seconds.max(1e-9);
    let end = HumanBytes(all.lba_end * dcd_engine::SECTOR_BYTES);
    writeln!(text, "{rate:.2} a second; highest address {end}").expect(STRING);
    if all.out_of_order > 0 {
        writeln!(text, "{} are earlier than the one before them: convert with --sort", all.out_of_order)
            .expect(STRING);
    }
    text
}

fn requests(text: &mut String, name: &str, requests: &Requests) {
    let (count, bytes) = (requests.count, HumanBytes(requests.bytes));
    write!(text, "{name:<8} {count:>11}   {bytes:>9}").expect(STRING);
    let size = &requests.size_bytes;
    if count > 0 {
        let (mean, median) = (size.mean / 1024.0, size.median as f64 / 1024.0);
        write!(text, "   mean {mean:.2} KiB, median {median:.2} KiB").expect(STRING);
    }
    if let Some(response) = &requests.response_ns {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (median, p99) = (ms(response.median), ms(response.p99));
        let mean = response.mean / 1e6;
        write!(text, "   response mean {mean:.3} ms, median {median:.3} ms, p99 {p99:.3} ms").expect(STRING);
        if response.count < count {
            write!(text, " (of {}, the others are unknown)", response.count).expect(STRING);
        }
    }
    text.push('\n');
}

pub fn characteristics(figures: &Characteristics) -> String {
    let several = figures.devices.len() > 1;
    let mut requests =
        Table::new("Table 3.1", "device | reads | avg KiB | writes | avg KiB | % busy | % sequential");
    let mut overwrites = Table::new(
        "Table 4.5",
        "device | KiB written | % overwritten | interval mean | median (I/Os) | median (time) | read after write",
    );
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    for row in figures.devices.iter().chain(several.then_some(&figures.all)) {
        let name = row.device.map_or_else(|| "all".to_owned(), |id| id.to_string());
        let kib = |size: &Distribution| known(size, format!("{:.2}", size.mean / 1024.0));
        requests.row([
            name.clone(),
            row.reads.count.to_string(),
            kib(&row.reads.size_bytes),
            row.writes.count.to_string(),
            kib(&row.writes.size_bytes),
            percent(row.busy_share),
            percent(row.sequential_share),
        ]);
        let Some(blocks) = &row.blocks else { continue };
        let (ios, time) = (&blocks.overwrite_interval_ios, &blocks.overwrite_interval_ns);
        overwrites.row([
            name,
            (row.writes.bytes / 1024).to_string(),
            percent(blocks.overwrite_share),
            known(ios, format!("{:.1}", ios.mean)),
            known(ios, ios.median.to_string()),
            known(time, Nanos(time.median).to_string()),
            percent(blocks.read_after_write_share),
        ]);
    }
    let mut text = format!("\n{}\n{}", requests.text(), overwrites.text());
    rest(&mut text, figures);
    text
}

/// Replaces the figures of an empty distribution by a dash: it has no mean, not even zero.
fn known(of: &Distribution, text: String) -> String {
    if of.count == 0 { "-".to_owned() } else { text }
}

fn rest(text: &mut String, figures: &Characteristics) {
    let all = &figures.all;
    text.push('\n');
    if let Some(blocks) = &all.blocks {
        let (touched, read) = (HumanBytes(blocks.touched_bytes), HumanBytes(blocks.read_bytes));
        writeln!(
            text,
            "working set     {touched}: read {read}, written {}",
            HumanBytes(blocks.written_bytes)
        )
        .expect(STRING);
        writeln!(
            text,
            "overwrite bound {:.1} % of the written sectors overwrite an earlier write: the most that a cache can save\n\
             {:16}without putting writes together; {:.1} % of the written blocks are written again",
            100.0 * blocks.overwrite_share, "", 100.0 * blocks.rewritten_blocks_share
        )
        .expect(STRING);
        writeln!(text, "read again      {:.1} % of the read sectors", 100.0 * blocks.read_again_share)
            .expect(STRING);
    }
    if let Some([one, ten, twenty]) = figures.hottest.map(|shares| shares.map(|share| 100.0 * share)) {
        writeln!(
            text,
            "hottest blocks  1 % have {one:.1} % of the accesses, 10 % {ten:.1} %, 20 % {twenty:.1} %"
        )
        .expect(STRING);
    }
    let times = |d: &Distribution| {
        let [median, p90, max] = [d.median, d.p90, d.max].map(Nanos);
        known(d, format!("mean {}, median {median}, p90 {p90}, max {max}", Nanos(d.mean as u64)))
    };
    writeln!(text, "interarrival    {}", times(&all.interarrival_ns)).expect(STRING);
    writeln!(text, "idle periods    {}: {}", all.idle_ns.count, times(&all.idle_ns)).expect(STRING);
    assumptions(text, figures);
}

fn assumptions(text: &mut String, figures: &Characteristics) {
    if figures.all.response_unknown_share > 0.0 {
        writeln!(
            text,
            "busy and idle   {:.1} % of the requests have no response time and count as {}; see --service",
            100.0 * figures.all.response_unknown_share,
            Nanos(figures.assumed_service_ns)
        )
        .expect(STRING);
    }
    if figures.sampled_one_in > 1 {
        let one_in = figures.sampled_one_in;
        writeln!(text, "sampling        one block in {one_in} was followed: figures of blocks are estimates")
            .expect(STRING);
    }
}
