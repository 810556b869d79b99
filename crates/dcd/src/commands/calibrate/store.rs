//! Stores the result in the superblocks of an array, or of a log.

use std::path::Path;

use dcd_engine::log_cache::offline;
use dcd_engine::raid::contiguity::Contiguity;
use dcd_stack::StackFile;

use super::result::CalibrationResult;
use crate::cli_array::ArrayArgs;
use crate::commands::array::store_calibration;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::open::open_log;

/// A layer that fills gaps on the disks below it.
pub enum GapLayer {
    Array(ArrayArgs),
    Log(Box<CacheChoice>),
}

impl GapLayer {
    /// Chooses the layer that is named, or the only array, or the only log cache. A log cache over an array does not count: the
    /// array fills the gaps of its members.
    pub fn choose(path: &Path, layer: Option<&str>) -> Result<GapLayer, Failure> {
        let file = StackFile::load(path)?;
        let arrays: Vec<&str> = file.arrays().map(|(layer, _)| layer.name.as_str()).collect();
        let caches: Vec<&str> = file.log_caches().map(|layer| layer.name.as_str()).collect();
        let over_array =
            |cache: &str| CacheChoice::of(file.clone(), Some(cache)).is_ok_and(|c| c.is_over_array());
        let caches_of_disks = caches.iter().filter(|cache| !over_array(cache));
        let all: Vec<&str> = arrays.iter().chain(caches_of_disks).copied().collect();
        let path = path.display();
        let unnamed = if arrays.is_empty() { all.as_slice() } else { arrays.as_slice() };
        let name = match (layer, unnamed) {
            (Some(name), _) if all.contains(&name) => name,
            (Some(name), _) if caches.contains(&name) => {
                return Err(Failure::refused(
                    format!(
                        "the data disk of \"{name}\" is an array, which fills the gaps of its members itself"
                    ),
                    format!("store it there: --layer {}", arrays.join(" or --layer ")),
                ));
            }
            (None, [only]) => only,
            (None, []) => {
                return Err(Failure::Failed(format!(
                    "{path}: there is no layer in it that fills gaps: no raid, and no log-cache"
                )));
            }
            (wanted, _) => {
                let wrong = wanted.map_or("several layers fill gaps".to_owned(), |wanted| {
                    format!("no layer called \"{wanted}\" fills gaps")
                });
                return Err(Failure::Failed(format!(
                    "{path}: {wrong}; choose with --layer: {}",
                    all.join(", ")
                )));
            }
        };
        if arrays.contains(&name) {
            return Ok(GapLayer::Array(ArrayArgs { file: file.path.clone(), layer: Some(name.to_owned()) }));
        }
        let name = name.to_owned();
        let choice = CacheChoice::of(file, Some(&name))?;
        choice.refuse_several("a result belongs to one disk", "leave it out: no gaps are filled then")?;
        Ok(GapLayer::Log(Box::new(choice)))
    }

    /// Stores the result; returns a message for the user.
    pub fn store(&self, found: &CalibrationResult) -> Result<String, Failure> {
        let kept = |stored: &Contiguity| match found.write {
            None if stored.write.max > 1 => "; writes were not measured: their stored result is kept",
            _ => "",
        };
        match self {
            GapLayer::Array(array) => {
                let stored = store_calibration(array, |stored| found.contiguity(stored))?;
                Ok(format!("stored in the array: its next start uses it{}", kept(&stored)))
            }
            GapLayer::Log(choice) => {
                let name = &choice.layer;
                if choice.site.bottom_device(&choice.log).is_none() {
                    return Err(Failure::refused(
                        format!(
                            "the log of \"{name}\" is not on one device, and exists only while it is served"
                        ),
                        "put the log on a device or a part of one; or store the result in an array below the cache: --layer",
                    ));
                }
                let mut log = open_log(choice, Purpose::Change)?;
                let before = offline::read_superblock(&mut log)?.calibration;
                let stored = found.contiguity(before.as_ref());
                offline::store_calibration(&mut log, &stored)?;
                Ok(match stored.write.max {
                    0 | 1 => format!(
                        "stored in the log of \"{name}\": it fills no gaps, as that does not make writes of this disk faster, or writes were not \
                         measured"
                    ),
                    _ => format!("stored in the log of \"{name}\": its next start uses it{}", kept(&stored)),
                })
            }
        }
    }
}
