//! `dcd drive measure`: a drive file from the times of a disk's reads.

use std::path::Path;
use std::time::{Duration, Instant};

use dcd_engine::{BlockDevice, Buf, Io, Lba, Nanos, SECTOR_BYTES};
use dcd_io::{Direct, FileDevice, FileSpec};
use dcd_model::extract::{ModelledReads, Reads, measure};
use dcd_stack::Inputs;
use indicatif::ProgressBar;

use super::{load, write_out};
use crate::cli_drive::Measure;
use crate::failure::Failure;
use crate::jobs::progress;

pub fn run(args: &Measure) -> Result<(), Failure> {
    let inputs: Vec<_> = args.device.iter().cloned().chain(args.drive.iter().map(Into::into)).collect();
    // Before half an hour of work.
    args.out.iter().try_for_each(|out| Inputs::new(&inputs).check(out))?;
    let (what, mut reads): (String, Box<dyn Reads>) = match (&args.device, &args.drive) {
        (Some(path), _) => (path.display().to_string(), Box::new(Disk::open(path)?)),
        (None, Some(name)) => {
            (format!("the modelled drive {name}"), Box::new(ModelledReads::new(load(name)?)))
        }
        (None, None) => unreachable!("one of them is required"),
    };
    let name = inputs[0].file_stem().map_or("measured".into(), |name| name.to_string_lossy().into_owned());
    let bar = progress(args.quiet, "% of this part");
    bar.set_length(100);
    let mut shown = Shown { reads: &mut *reads, bar };
    let measured = measure(&mut shown, &format!("{name}-measured"), &format!("measured from {what}"));
    shown.bar.finish_and_clear();
    let measured = measured.map_err(|e| Failure::Failed(format!("{what}: {e}")))?;
    for note in &measured.notes {
        eprintln!("dcd-lab: not found out: {note}");
    }
    write_out(args.out.as_deref(), &measured.text, &inputs)
}

/// A real disk.
struct Disk {
    device: FileDevice,
    began: Instant,
}

impl Disk {
    fn open(path: &Path) -> Result<Disk, Failure> {
        let spec = FileSpec { read_only: true, direct: Direct::Always, ..FileSpec::new(path) };
        let device = FileDevice::open(&spec).map_err(|e| Failure::Failed(e.to_string()))?;
        Ok(Disk { device, began: Instant::now() })
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }
}

impl Reads for Disk {
    fn sectors(&self) -> u64 {
        self.device.geometry().sectors
    }

    fn unit(&self) -> u64 {
        u64::from(self.device.geometry().logical_block_bytes) / SECTOR_BYTES
    }

    fn read(&mut self, at: Lba, sectors: u64) -> Result<(Nanos, Nanos), String> {
        let buf = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
        let begin = self.now();
        let result = self.device.run(Io::Read { at, buf });
        let end = self.now();
        result.status.map_err(|e| e.to_string())?;
        Ok((begin, end))
    }

    fn pause(&mut self, time: Nanos) {
        std::thread::sleep(Duration::from_nanos(time.0));
    }

    fn progress(&mut self, _what: &str, _done: f64) {}
}

/// Reads of a disk that show their progress on a terminal.
struct Shown<'a> {
    reads: &'a mut dyn Reads,
    bar: ProgressBar,
}

impl Reads for Shown<'_> {
    fn sectors(&self) -> u64 {
        self.reads.sectors()
    }

    fn unit(&self) -> u64 {
        self.reads.unit()
    }

    fn read(&mut self, at: Lba, sectors: u64) -> Result<(Nanos, Nanos), String> {
        self.reads.read(at, sectors)
    }

    fn pause(&mut self, time: Nanos) {
        self.reads.pause(time);
    }

    fn progress(&mut self, what: &str, done: f64) {
        self.bar.set_position((100.0 * done) as u64);
        self.bar.set_message(what.to_owned());
    }
}
