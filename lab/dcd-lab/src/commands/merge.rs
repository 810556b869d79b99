//! `dcd-lab merge`: the results of several jobs or machines as one report.

use std::path::Path;

use dcd_trace::Inputs;

use crate::cli_tune::Merge;
use crate::failure::Failure;
use crate::tune::Fleet;

pub fn run(args: &Merge) -> Result<(), Failure> {
    let inputs = Inputs::new(&args.reports);
    args.html.iter().try_for_each(|html| inputs.check(html))?;
    let mut fleet = Fleet::default();
    for path in &args.reports {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| Failure::io(&name, e))?;
        let report = serde_json::from_str(&text).map_err(|e| no_report(path, &e.to_string()))?;
        fleet.add(&name, report).map_err(|why| no_report(path, &why))?;
    }
    if fleet.is_empty() {
        return Err(Failure::Failed("the reports have no trace that could be tuned".to_owned()));
    }
    match args.json {
        true => println!("{}", fleet.json()),
        false => print!("{}", fleet.text()),
    }
    if let Some(html) = &args.html {
        inputs.write(html, fleet.page())?;
    }
    Ok(())
}

fn no_report(path: &Path, why: &str) -> Failure {
    Failure::Failed(format!("{}: {why}: name a tune.json or report.json of dcd tune", path.display()))
}
