//! `dcd events`: what the servers of a stack have told.

use jiff::tz::TimeZone;

use crate::cli::Events;
use crate::events::{EventFile, in_zone};
use crate::failure::Failure;

pub fn run(args: &Events) -> Result<(), Failure> {
    let file = EventFile::of(&args.file);
    let all = file
        .read()
        .map_err(|error| Failure::io(format!("the events in {}", file.path().display()), error))?;
    if all.is_empty() {
        eprintln!(
            "dcd: {}: there are no events in {}: no server of this stack has run with this state directory, or it may not \
             write there",
            args.file.display(),
            file.path().display()
        );
    }
    let zone = TimeZone::system();
    let first = args.lines.map_or(0, |lines| all.lines().count().saturating_sub(lines));
    all.lines().skip(first).for_each(|line| println!("{}", in_zone(line, &zone)));
    Ok(())
}
