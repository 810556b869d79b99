//! Leaves out missing devices before a start, at once or after waiting for them.

use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::session::devices::Purpose;
use crate::session::judge::judge;
use crate::session::site::Site;
use crate::session::survey::{Survey, lacks_disk, lacks_leg};

/// Polling interval for missing devices.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Takes missing devices of arrays and mirrored logs out of a stack file, if these can start without them and `parts` need them. Returns a
/// line for the administrator about each.
pub fn leave_out(site: &mut Site, parts: &[&str]) -> Result<Vec<String>, Failure> {
    let mut survey = Survey::default();
    survey.look_at_devices(site, parts)?;
    let plan = judge(site, &survey.seen, &site.asked)?;
    plan.prepare(site, parts);
    Ok(plan.told)
}

/// Waits for all devices of the stack, except those that are known to have failed, and then does what [`leave_out`] does. Members that are
/// still missing after `wait` may be left out, and so may data disks of a log with several.
pub fn leave_out_after(site: &mut Site, wait: Duration) -> Result<Vec<String>, Failure> {
    let until = Instant::now() + wait;
    let export = site.export.clone();
    loop {
        let mut left = site.clone();
        left.hold(Purpose::Change);
        let lacks_leg = lacks_leg(&left)?;
        match leave_out(&mut left, &[&export]) {
            Ok(told)
                if !lacks_leg
                    && !lacks_disk(&left)
                    && !left.devices.iter().any(|device| !device.is_there() && !device.is_made()) =>
            {
                left.release();
                *site = left;
                return Ok(told);
            }
            Err(failure @ Failure::Busy(_)) => return Err(failure),
            Ok(_) | Err(_) if Instant::now() >= until => {
                drop(left);
                (site.asked.degraded_members, site.asked.degraded_disks) = (true, true);
                return leave_out(site, &[&export]);
            }
            Ok(_) | Err(_) => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}
