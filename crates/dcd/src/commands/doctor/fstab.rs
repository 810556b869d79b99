//! Finds lines of /etc/fstab that would not mount the device of a stack, or may mount another one.

use std::path::Path;

use super::{Finding, Machine, Severity};
use crate::session::system::SYSTEM;

const FSTAB: &str = "/etc/fstab";

pub fn findings(machine: &Machine) -> Vec<Finding> {
    machine.text(FSTAB).lines().filter_map(|line| finding(machine, line)).collect()
}

/// Checks a line; none if it is right, or about something else.
fn finding(machine: &Machine, line: &str) -> Option<Finding> {
    let mut fields = line.split_whitespace();
    let (source, mount) = (fields.next()?, fields.next()?);
    let options = fields.nth(1).unwrap_or_default();
    let device = device(machine, source)?;
    let name = device.strip_prefix("/dev/dcd/");
    if name.is_none() && !device.starts_with("/dev/ublkb") {
        return None;
    }
    let about =
        |level, found: String| Some(Finding::new(level, FSTAB, format!("{mount} is on {source}: {found}")));
    if SYSTEM.contains(&mount) {
        let found = "dcd is started from there, and cannot serve it before that: this machine will not boot"
            .to_owned();
        return about(Severity::Bad, found).map(|found| {
            found.with("mount it from a disk without a cache; put the cache before a disk of data")
        });
    }
    if let Some(option) = options.split(',').find(|option| option.starts_with("x-systemd.requires=dcd@")) {
        let found = format!(
            "with {option} a server that is restarted after a crash waits for an unmount, which waits for the server"
        );
        return about(Severity::Bad, found).map(|found| {
            found.with(format!("take {option} out: the mount waits for its server without it"))
        });
    }
    let Some(name) = name else {
        let found = "this number may be that of another stack at the next start".to_owned();
        return about(Severity::Note, found).map(|found| found.with("name it by /dev/dcd/NAME"));
    };
    // A partition's name begins with its disk's name.
    let stack = name.split_once("-part").map_or(name, |(disk, _)| disk);
    let file = format!("/etc/dcd/{stack}.toml");
    if machine.exists(&file) {
        return None;
    }
    about(Severity::Bad, format!("there is no {file}, whose server would make that device"))
        .map(|found| found.with("correct the name, or take the line out"))
}

/// Returns the device of a line. A UUID, a label or a link is resolved, so its device must be present.
fn device(machine: &Machine, source: &str) -> Option<String> {
    if source.starts_with("/dev/dcd/") || source.starts_with("/dev/ublkb") {
        return Some(source.to_owned());
    }
    let link = match source.split_once('=') {
        Some((by @ ("UUID" | "LABEL" | "PARTUUID" | "PARTLABEL"), value)) => {
            format!("/dev/disk/by-{}/{}", by.to_lowercase(), value.trim_matches('"'))
        }
        _ => source.to_owned(),
    };
    let node = std::fs::canonicalize(machine.path(&link)).ok()?;
    let node = node.strip_prefix(std::fs::canonicalize(&machine.root).ok()?).ok()?;
    Some(Path::new("/").join(node).to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Made;
    use super::*;

    #[test]
    fn what_cannot_come_from_a_stack_is_told() {
        let made = Made::new(&[
            ("/etc/dcd/disk.toml", ""),
            ("/dev/ublkb3", ""),
            ("/dev/sda1", ""),
            (
                FSTAB,
                "# /dev/dcd/x / ext4\n\n/dev/dcd/disk /srv ext4 nofail 0 2\n/dev/dcd/disk-part1 /home ext4 nofail 0 2\n\
                 UUID=12 / ext4 defaults 0 1\nUUID=34 /opt ext4 defaults 0 2\n/dev/dcd/gone /a ext4\n/dev/dcd/disk /usr ext4\n\
                 /dev/dcd/disk /opt ext4 x-systemd.requires=dcd@disk.service,nofail 0 2\ntmpfs /tmp tmpfs\nLABEL=none /b ext4\n",
            ),
        ]);
        made.link("/dev/disk/by-uuid/12", "/dev/ublkb3");
        made.link("/dev/disk/by-uuid/34", "/dev/sda1");
        let told: Vec<String> = findings(&made.machine)
            .into_iter()
            .map(|finding| format!("{} {}", finding.level.word(), finding.found))
            .collect();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].starts_with("BAD / is on UUID=12: dcd is started from there"), "{told:?}");
        assert!(
            told[1].starts_with("BAD /a is on /dev/dcd/gone: there is no /etc/dcd/gone.toml"),
            "{told:?}"
        );
        assert!(told[2].starts_with("BAD /usr is on /dev/dcd/disk"), "{told:?}");
        assert!(
            told[3].starts_with("BAD /opt is on /dev/dcd/disk: with x-systemd.requires=dcd@"),
            "{told:?}"
        );
        made.write(FSTAB, "/dev/ublkb0 /srv ext4\n");
        assert_eq!(findings(&made.machine)[0].level, Severity::Note);
    }
}
