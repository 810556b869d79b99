//! Makes a mirror of devices.

use super::label::{
    COPY_SECTORS, FIRST_LABELS, LABEL_BYTES, LEGS_MAX, Label, Leg, LegState, content_sectors,
};
use crate::layer::BlockDevice;
use crate::{Buf, Durability, Io, IoError, LINE_SECTORS};

/// Reason why a mirror cannot be made. The numbers are places in the list of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorCreateError {
    #[error("a log has from 1 to {LEGS_MAX} legs")]
    Count,
    #[error("it has {0} sectors, which is too small for a leg")]
    TooSmall(u64),
    #[error("it is read only")]
    ReadOnly,
    #[error("{0}")]
    Io(IoError),
}

/// Makes legs of devices, each with an id: random numbers, not 0. Their content is lost: the caller has checked that it may be. A crash
/// in between leaves no mirror, or one that is refused. An error comes with the place of its device in the list.
pub fn create(
    devices: &mut [&mut dyn BlockDevice],
    uuid: [u8; 16],
    ids: &[u64],
) -> Result<Label, (usize, MirrorCreateError)> {
    assert_eq!(devices.len(), ids.len(), "each leg has an id");
    if !(1..=LEGS_MAX).contains(&devices.len()) {
        return Err((0, MirrorCreateError::Count));
    }
    let mut sectors = u64::MAX;
    for (index, device) in devices.iter().enumerate() {
        let geometry = device.geometry();
        let content = content_sectors(geometry.sectors);
        if content < LINE_SECTORS {
            return Err((index, MirrorCreateError::TooSmall(geometry.sectors)));
        }
        if geometry.read_only {
            return Err((index, MirrorCreateError::ReadOnly));
        }
        sectors = sectors.min(content);
    }
    let io = |index: usize| move |error: IoError| (index, MirrorCreateError::Io(error));
    for (index, device) in devices.iter_mut().enumerate() {
        for at in COPY_SECTORS {
            device.write(at, Buf::zeroed(LABEL_BYTES)).map_err(io(index))?;
        }
        device.flush().map_err(io(index))?;
    }
    let legs = ids.iter().map(|&id| Leg { id, standing: LegState::Whole }).collect();
    let mut label = Label { uuid, generation: 0, complete: 0, sectors, legs };
    // Twice, so that both copies are good.
    for generation in 1..=FIRST_LABELS {
        label.generation = generation;
        label.complete = generation - 1;
        for (index, (device, id)) in devices.iter_mut().zip(ids).enumerate() {
            let (at, buf) = label.encode(*id);
            let written = device.run(Io::Write { at, buf, durability: Durability::Durable });
            written.status.map_err(io(index))?;
        }
    }
    Ok(label)
}
