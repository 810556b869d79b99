//! The stride benchmark on a modelled drive.

use dcd_crash::{Latency, MemDisk, VirtualDriver};
use dcd_engine::raid::stride::{StrideBench, StridePass};
use dcd_engine::{Geometry, Io, Nanos, Pump, StackBuilder};
use dcd_model::{Disk, DiskConfig, Drive};

use crate::LabError;

/// Returns the time of each pass, one after the other, on a drive with its write cache off. The drive is as it is shipped:
/// its own order of service, its own read-ahead.
pub fn stride_times(drive: &Drive, passes: Vec<StridePass>) -> Result<Vec<Nanos>, LabError> {
    let count = passes.len();
    let geometry = Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
    let mut driver = VirtualDriver::new(vec![MemDisk::new(geometry, Latency::INSTANT, 1)]);
    let mut builder = StackBuilder::new();
    let device = builder.device(driver.geometries()[0]);
    let disk = Disk::with_drive(drive.clone(), &DiskConfig::default());
    let disk = builder.layer("disk", Box::new(disk), &[device]);
    let root = builder.layer("strides", Box::new(StrideBench::new(passes)), &[disk]);
    let mut stack = builder.finish(root);
    stack.activate(&mut driver).map_err(LabError::setup)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = driver.now();
        stack.run_blocking(&mut driver, root, Io::Flush).status.map_err(LabError::setup)?;
        times.push(driver.now().since(began));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dcd_engine::raid::contiguity::Strides;
    use dcd_engine::raid::stride::THRESHOLD;
    use dcd_engine::{Extent, Lba};
    use dcd_model::drive;

    /// A drive that misses the next block while it takes in commands is slow on small strides, and one that does not is not.
    #[test]
    fn a_drive_that_sets_out_for_nothing_while_it_takes_in_commands_misses_revolutions() {
        let text = drive::text("cheetah-15k4").unwrap();
        let smax = |drive: &Drive| {
            let span = Extent::new(Lba(0), 8 << 11);
            let strides = [1, 2, 4, 8, 16, 32];
            let passes = strides.map(|stride| StridePass::strided(true, span, stride)).to_vec();
            let times = stride_times(drive, passes).unwrap();
            let of = |time: &Nanos| time.as_secs_f64() / times[0].as_secs_f64();
            let curve: Vec<(u64, f64)> = strides.into_iter().zip(times.iter().map(of)).collect();
            Strides::from_curve(&curve, THRESHOLD)
        };
        assert_eq!(smax(&Drive::parse(text).unwrap()), Strides::up_to(16));
        let quick = text.replace("receive-ms = 0.1", "receive-ms = 0");
        assert_ne!(quick, text);
        assert_eq!(smax(&Drive::parse(&quick).unwrap()), Strides::up_to(1));
    }
}
