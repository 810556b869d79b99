//! `dcd dump`: prints a log, row by row.

use std::io::{self, BufWriter, Write};

use dcd_engine::log_cache::offline::{DumpFilter, dump};

use crate::cli::Dump;
use crate::failure::Failure;
use crate::session::open::OpenedLog;

pub fn run(args: &Dump) -> Result<(), Failure> {
    let mut log = OpenedLog::open(&args.log)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = Ok(());
    let filter = DumpFilter { verify: true, ..DumpFilter::default() };
    let dumped = dump(&mut log.log, &filter, &mut |row| {
        if written.is_ok() {
            written = match args.json {
                true => {
                    serde_json::to_writer(&mut out, row).map_err(io::Error::from).and_then(|()| writeln!(out))
                }
                false => writeln!(out, "{row}"),
            };
        }
    });
    match written.and_then(|()| out.flush()) {
        // A pager that is closed early is no failure.
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => return Err(Failure::io("standard output", e)),
        _ => {}
    }
    dumped.map_err(Failure::from)
}
