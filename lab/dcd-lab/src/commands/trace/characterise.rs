//! `dcd trace summarise` and `dcd trace characterise`.

use dcd_engine::Nanos;
use dcd_trace::{Characteriser, Characteristics, Inputs, Options, inputs_of_trace};

use super::{each, opened, plots, report};
use crate::cli_trace::{Characterise, Summarise};
use crate::failure::Failure;

pub fn summarise(args: &Summarise) -> Result<(), Failure> {
    let mut trace = opened(&args.input, &args.reading)?;
    let options = Options { blocks_max: None, service: Nanos::ZERO };
    let figures = measure(&mut *trace.reader, options, args.reading.quiet)?;
    if args.json {
        print_json(&figures)
    } else {
        print!("{}", report::summary(trace.format.name, &figures))
    }
    Ok(())
}

pub fn characterise(args: &Characterise) -> Result<(), Failure> {
    let inputs = Inputs::new(inputs_of_trace(&args.input));
    args.plots.iter().try_for_each(|path| inputs.check(path))?;
    let mut trace = opened(&args.input, &args.reading)?;
    let options = Options { blocks_max: Some(args.blocks_max), service: args.service };
    let figures = measure(&mut *trace.reader, options, args.reading.quiet)?;
    if let Some(path) = &args.plots {
        let page = plots::page(&args.input.display().to_string(), &figures);
        inputs.write(path, page)?;
    }
    if args.json {
        print_json(&figures);
    } else {
        print!("{}", report::summary(trace.format.name, &figures));
        print!("{}", report::characteristics(&figures));
    }
    Ok(())
}

fn print_json(figures: &Characteristics) {
    println!("{}", serde_json::to_value(figures).expect("numbers and names are JSON"));
}

pub(super) fn measure(
    reader: &mut dyn dcd_trace::ReadTrace,
    options: Options,
    quiet: bool,
) -> Result<Characteristics, Failure> {
    let mut characteriser = Characteriser::new(options);
    each(reader, quiet, |record| {
        characteriser.add(record);
        Ok(())
    })?;
    Ok(characteriser.finish())
}
