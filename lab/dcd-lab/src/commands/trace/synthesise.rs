//! `dcd trace synthesise`: a trace with given characteristics, and how well it has them.

use std::path::Path;

use dcd_cli::messages::{self, Priority};
use dcd_studies::Table;
use dcd_trace::synthesise::{Description, Fitted, fitted};
use dcd_trace::{Characteristics, Inputs, Merge, Options, ReadTrace, inputs_of_trace};

use super::characterise::measure;
use super::{opened, output_format, write_all};
use crate::cli_trace::{Synthesise, SynthesiseOf};
use crate::failure::Failure;

/// Each device has a seed of its own; so many devices do not share one.
const SEEDS_A_TRACE: u64 = 1 << 16;

pub fn synthesise(args: &Synthesise) -> Result<(), Failure> {
    let descriptions = descriptions(args)?;
    if args.describe {
        return describe(&descriptions);
    }
    let output = args.output.as_deref().expect("the command line asks for one without --describe");
    let format = output_format(output, &args.writing)?;
    let mut sources: Vec<Box<dyn ReadTrace>> = Vec::new();
    let mut fits = Vec::new();
    for (index, description) in descriptions.iter().enumerate() {
        let seed = args.seed.wrapping_mul(SEEDS_A_TRACE).wrapping_add(index as u64);
        let (synthesiser, fit) = fitted(description, seed)?;
        sources.push(Box::new(synthesiser));
        fits.push((description, fit));
    }
    let like = args.of.like.iter().flat_map(|path| inputs_of_trace(path));
    let inputs = Inputs::new(like.chain(args.of.description.clone()));
    write_all(Box::new(Merge::new(sources, 1)), &inputs, output, format, args.reading.quiet)?;
    // A trace on standard output is not mixed with words.
    if args.json {
        let fits: Vec<_> = fits.iter().map(|(of, fit)| (&of.name, of.device, fit)).collect();
        eprintln!("{}", serde_json::to_value(fits).expect("numbers and names are JSON"));
    } else if !args.reading.quiet {
        fits.iter().for_each(|(description, fit)| {
            messages::tell(Priority::Notice, format_args!("{}", table(description, fit)))
        });
    }
    Ok(())
}

fn descriptions(args: &Synthesise) -> Result<Vec<Description>, Failure> {
    match &args.of {
        SynthesiseOf { preset: Some(name), .. } => Ok(vec![Description::preset(name)?]),
        SynthesiseOf { description: Some(path), .. } => {
            let text = std::fs::read_to_string(path).map_err(|e| Failure::io(path.display(), e))?;
            Ok(vec![Description::parse(&path.display().to_string(), &text)?])
        }
        SynthesiseOf { like: Some(path), .. } => {
            let mut trace = opened(path, &args.reading)?;
            let options = Options { blocks_max: Some(Options::BLOCKS_MAX), service: args.service };
            let measured = measure(&mut *trace.reader, options, args.reading.quiet)?;
            like(path, &measured, args)
        }
        _ => Err(Failure::Failed("name a preset, a trace or a description".to_owned())),
    }
}

fn like(path: &Path, measured: &Characteristics, args: &Synthesise) -> Result<Vec<Description>, Failure> {
    let name = path.display().to_string();
    let requests = |device: &&dcd_trace::Figures| device.reads.count + device.writes.count > 0;
    let devices = measured.devices.iter().filter(requests);
    let described = devices.map(|device| Description::like(&name, device, args.service.as_millis_f64()));
    let described: Vec<Description> = described.collect::<Result<_, _>>()?;
    if described.is_empty() {
        return Err(Failure::Failed(format!("{name}: there are no reads and writes to be like")));
    }
    Ok(described)
}

fn describe(descriptions: &[Description]) -> Result<(), Failure> {
    let [description] = descriptions else {
        return Err(Failure::Failed(format!(
            "a description is of one device, and the trace has {}: cut one out (dcd trace cut --device NUMBER)",
            descriptions.len()
        )));
    };
    print!("{}", description.to_toml());
    Ok(())
}

/// Wanted beside got.
fn table(description: &Description, fit: &[Fitted]) -> String {
    let title = format!("{}, device {}:", description.name, description.device);
    let mut table = Table::new(title, "figure | wanted | got");
    for Fitted { name, wanted, got } in fit {
        let shown = |figure: &f64| match name.ends_with("share") {
            true => format!("{:.1}%", figure * 100.0),
            false => format!("{figure:.1}"),
        };
        table.row([name.to_string(), shown(wanted), shown(got)]);
    }
    table.text()
}
