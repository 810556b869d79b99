//! Chooses the log cache or the array of a stack file that a command is about.

use std::path::{Path, PathBuf};

use dcd_engine::Extent;
use dcd_engine::log_cache::format::LogSuperblock;
use dcd_stack::{LayerKind, StackFile};

use crate::cli_array::ArrayArgs;
use crate::failure::Failure;
use crate::session::below::{array_below, stands_on_a_cache};
use crate::session::devices::Purpose;
use crate::session::record::{Attachment, AttachmentState, uuid_text};
use crate::session::site::Site;

/// Chooses the wanted layer among those of one kind, or the only one. `none`: the message if there are none.
fn choose(
    file: &StackFile,
    names: Vec<&str>,
    wanted: Option<&str>,
    none: &str,
    [one, several]: [&str; 2],
) -> Result<String, Failure> {
    let listed = names.join(", ");
    let why = match (wanted, names.as_slice()) {
        (_, []) => none.to_owned(),
        (None, [only]) => return Ok((*only).to_owned()),
        (None, _) => format!("it has several {several}; choose with --layer: {listed}"),
        (Some(wanted), _) if names.contains(&wanted) => return Ok(wanted.to_owned()),
        (Some(wanted), _) => format!("no {one} is called \"{wanted}\"; it has {listed}"),
    };
    Err(Failure::Failed(format!("{}: {why}", file.path.display())))
}

/// A log cache of a stack file, and one of its data disks.
#[derive(Clone)]
pub struct CacheChoice {
    pub site: Site,
    pub layer: String,
    pub log: String,
    pub data: String,
    /// Number of that data disk in the log.
    pub disk: usize,
    /// Names of all data disks, in the order of the log.
    all: Vec<String>,
}

impl CacheChoice {
    /// The log cache called `layer`, or the only one.
    pub fn load(path: &Path, layer: Option<&str>) -> Result<CacheChoice, Failure> {
        CacheChoice::of(Site::load(path)?, layer)
    }

    pub fn of(site: impl Into<Site>, layer: Option<&str>) -> Result<CacheChoice, Failure> {
        let site = site.into();
        let names = site.log_caches().map(|layer| layer.name.as_str()).collect();
        let hint = match site.arrays().next() {
            Some(_) => "; \"dcd array status\", \"assemble\" and \"scrub\" look at an array",
            None => "",
        };
        let none = format!("there is no log-cache layer in it{hint}");
        let name = choose(&site, names, layer, &none, ["log cache", "log caches"])?;
        let kind = &site.layer(&name).expect("it is one of the file's").kind;
        let LayerKind::LogCache { log, data, .. } = kind else { unreachable!("log_caches gives log caches") };
        let (log, data) = (log.text.clone(), data.text.clone());
        let all = kind.data_names().into_iter().map(str::to_owned).collect();
        Ok(CacheChoice { site, layer: name, log, data, disk: 0, all })
    }

    /// Returns the choice of each data disk, in the order of the log.
    pub fn of_disks(&self) -> Vec<CacheChoice> {
        let of_disk =
            |(disk, data): (usize, &String)| CacheChoice { data: data.clone(), disk, ..self.clone() };
        self.all.iter().enumerate().map(of_disk).collect()
    }

    /// Names of all data disks, in the order of the log.
    pub fn disks(&self) -> &[String] {
        &self.all
    }

    /// Refuses what is for a log with one data disk. `instead`: what to do.
    pub fn refuse_several(&self, what: &str, instead: &str) -> Result<(), Failure> {
        match self.all.len() {
            1 => Ok(()),
            many => Err(Failure::refused(
                format!("the log of \"{}\" has {many} data disks, and {what}", self.layer),
                format!("{instead}. Nothing was changed"),
            )),
        }
    }

    /// Returns the choice with devices that stay open and locked: see [`Site::hold`].
    pub fn holding(&self, purpose: Purpose) -> CacheChoice {
        let mut choice = self.clone();
        choice.site.hold(purpose);
        choice
    }

    /// True if the log or the data disk is on another log cache, and cannot be read without serving that one. An array on a cache
    /// can: its superblocks are read without changing anything.
    pub fn stands_on_a_cache(&self) -> bool {
        stands_on_a_cache(&self.site, &self.log)
            || (stands_on_a_cache(&self.site, &self.data) && array_below(&self.site, &self.data).is_none())
    }

    /// True where the data disk is an array, or lies on one.
    pub fn is_over_array(&self) -> bool {
        let mut names = vec![self.data.as_str()];
        while let Some(name) = names.pop() {
            let Some(layer) = self.site.layer(name) else { continue };
            if matches!(layer.kind, LayerKind::Raid(_)) {
                return true;
            }
            names.extend(layer.kind.below_names());
        }
        false
    }

    /// The log is on legs.
    pub fn is_mirrored(&self) -> bool {
        self.site.mirror_below(&self.log).is_some()
    }

    /// The legs of the log; none if it is on one device.
    pub fn legs(&self) -> Vec<&str> {
        self.site.mirror_below(&self.log).map_or_else(Vec::new, |mirror| mirror.kind.below_names())
    }

    /// As [`CacheChoice::log_name`], but absolute: for readers in another directory.
    pub fn log_place(&self) -> PathBuf {
        self.log_path(|part| self.site.bottom_device(part)?.source.absolute_place().ok()?)
    }

    /// The log's path, or its name in quotes if it has no path: for messages.
    pub fn log_name(&self) -> PathBuf {
        self.log_path(|part| self.site.path_below(part).map(Path::to_owned))
    }

    /// The attachment of this cache to a part of a disk, as the superblock describes it.
    pub fn attachment(
        &self,
        extent: Extent,
        superblock: &LogSuperblock,
        state: AttachmentState,
    ) -> Attachment {
        Attachment {
            cache_uuid: uuid_text(superblock.cache_uuid),
            log: self.log_place(),
            disk: self.disk,
            disk_uuid: self.disk_uuid(superblock),
            first_sector: extent.start.0,
            sectors: extent.sectors,
            epoch: superblock.epoch,
            generation: superblock.generation,
            state,
            dirty_bytes: Some(0),
            discarded: false,
            zeroes_bytes: 0,
            stale_legs: Vec::new(),
            log_bytes: u64::from(superblock.segments) * u64::from(superblock.segment_bytes),
            elsewhere: false,
        }
    }

    /// The UUID of the data disk in the log; none for the first, and for one that the log does not have.
    fn disk_uuid(&self, superblock: &LogSuperblock) -> Option<String> {
        let is_there = (1..superblock.space().count()).contains(&self.disk);
        is_there.then(|| uuid_text(superblock.uuid_of(self.disk)))
    }

    /// Joins the paths of all legs, where the log has legs.
    fn log_path(&self, path: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
        let place = |part: &str| path(part).unwrap_or_else(|| PathBuf::from(format!("\"{part}\"")));
        match self.legs().as_slice() {
            [] => place(&self.log),
            legs => {
                let places: Vec<String> = legs.iter().map(|leg| place(leg).display().to_string()).collect();
                places.join(" and ").into()
            }
        }
    }
}

/// An array of a stack file.
pub struct ArrayChoice {
    pub site: Site,
    pub layer: String,
    pub config: dcd_engine::raid::RaidConfig,
    /// The members' names in the order of their roles; none where one is missing.
    pub members: Vec<Option<String>>,
    pub spares: Vec<String>,
    pub journal: Option<String>,
}

impl ArrayChoice {
    /// The array that is named, or the only one.
    pub fn load(args: &ArrayArgs) -> Result<ArrayChoice, Failure> {
        let site = Site::load(&args.file)?;
        let names = site.arrays().map(|(layer, _)| layer.name.as_str()).collect();
        let none = "there is no raid layer in it";
        let layer = choose(&site, names, args.layer.as_deref(), none, ["array", "arrays"])?;
        Ok(ArrayChoice::of(site, layer))
    }

    pub fn of(site: impl Into<Site>, layer: String) -> ArrayChoice {
        let site = site.into();
        let spec = site.layer(&layer).expect("it is one of the file's");
        let LayerKind::Raid(raid) = &spec.kind else { unreachable!("arrays gives arrays") };
        let config = raid.config.clone();
        let mut names = spec.kind.below_names().into_iter().map(str::to_owned);
        let members: Vec<Option<String>> =
            config.present.iter().map(|present| if *present { names.next() } else { None }).collect();
        let spares: Vec<String> =
            names.by_ref().take(config.spares.iter().filter(|there| **there).count()).collect();
        let journal = names.next();
        ArrayChoice { site, layer, config, members, spares, journal }
    }

    /// Returns the role in whose place the stack file names a device.
    pub fn role_of(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| member.as_deref() == Some(name))
    }

    /// Names of all devices that the stack file names, the members first.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().flatten().chain(&self.spares).map(String::as_str).collect()
    }

    /// The journal, if it lies on the same device or layer as a log.
    pub fn journal_beside(&self, log: &str) -> Option<&str> {
        let of = |part: &str| self.site.layer(part).map(|layer| layer.kind.below_names());
        self.journal.as_deref().filter(|journal| of(journal).is_some_and(|below| of(log) == Some(below)))
    }
}

/// Names the role of a device for messages.
pub fn place(choice: &ArrayChoice, name: &str) -> String {
    match (choice.role_of(name), choice.spares.iter().position(|spare| spare == name)) {
        (Some(role), _) => format!("member {role}"),
        (None, Some(spare)) => format!("spare {spare}"),
        (None, None) => "no device of the array".to_owned(),
    }
}
