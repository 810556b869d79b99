//! Checks what the kernel offers, and looks for its known defects.

use dcd_io::DriverError;
use dcd_serve::ublk::{RunningKernel, available, features, flag_names, missing_flags};

use crate::session::system::{DEVICES_ARE_HIDDEN, hides_devices};

use super::{Finding, Machine, Severity};

/// A version of Linux: major and minor.
type Version = (u32, u32);

/// A known defect of ublk in the versions from `from` on, and before `before`. Seen in reports of its users (2025 and 2026), or
/// here.
struct Known {
    from: Version,
    before: Version,
    /// Word in /proc/version that names the distribution; none for all kernels.
    of: Option<&'static str>,
    found: &'static str,
    action: &'static str,
    level: Severity,
}

const KNOWN: [Known; 5] = [
    Known {
        from: (6, 17),
        before: (6, 18),
        of: Some("Ubuntu"),
        found: "Ubuntu's 6.17 oopses when a device is added, and never answers",
        action: "serve by NBD or FUSE, or take another kernel",
        level: Severity::Bad,
    },
    Known {
        from: (6, 7),
        before: (6, 8),
        of: None,
        found: "6.7 may oops when a device is recovered after its server was killed",
        action: "take another kernel, or serve by NBD or FUSE",
        level: Severity::Bad,
    },
    Known {
        from: (6, 0),
        before: (6, 19),
        of: None,
        found: "before 6.19 a start looks for partitions through the device itself: a server that is killed at that moment leaves tasks \
                that hang",
        action: "nothing, unless that happens: then restart the machine",
        level: Severity::Note,
    },
    Known {
        from: (6, 0),
        before: (6, 16),
        of: None,
        found: "before 6.16 a request that comes just as a server ends may be lost in the kernel: then no next server can take over its device",
        action: "nothing, unless that happens: then restart the machine; what was answered is in the log",
        level: Severity::Note,
    },
    Known {
        from: (6, 3),
        before: (6, 15),
        of: None,
        found: "the limit ublks_max counts the devices of all users, before 6.15",
        action: "raise it where devices cannot be added (/sys/module/ublk_drv/parameters/ublks_max)",
        level: Severity::Note,
    },
];

/// Examines the kernel. `wants_ublk`: a stack is served by ublk. `wants_device`: clients need a block device of this machine.
pub fn findings(machine: &Machine, wants_ublk: bool, wants_device: bool) -> Vec<Finding> {
    let release = machine.release();
    let mut findings = vec![io_uring(&release)];
    let ublk = ublk(machine, wants_ublk);
    let modules = [
        module(machine, "nbd", "/dev/nbd0", "block devices by the kernel's NBD client"),
        module(machine, "fuse", "/dev/fuse", "an image file by FUSE"),
        module(machine, "loop", "/dev/loop-control", "a block device over that file"),
    ];
    let is_there = |finding: &Finding| finding.level == Severity::Ok;
    let ways = is_there(&ublk) || is_there(&modules[0]) || (is_there(&modules[1]) && is_there(&modules[2]));
    if is_there(&ublk) || wants_ublk {
        findings.extend(known(machine, &release, wants_ublk));
    }
    findings.push(ublk);
    findings.extend(modules);
    if !ways {
        let image = if machine.exists("/dev/fuse") { "fuse (an image file), " } else { "" };
        let found = format!(
            "no block device can be made here: neither ublk, nor nbd, nor FUSE with loop is available. These front-ends remain: {image}nbd (for \
             clients in user space, and on other machines), vhost-user (for virtual machines)"
        );
        let level = if wants_device { Severity::Bad } else { Severity::Note };
        findings.push(
            Finding::new(level, "front-ends", found)
                .with("load one of these modules if a block device is needed"),
        );
    }
    if hides_devices(&machine.root) {
        findings
            .push(Finding::new(Severity::Note, "disks", "/sys/dev/block is empty").with(DEVICES_ARE_HIDDEN));
    }
    let protection = dcd_io::protect_process();
    findings.push(protected("IO_FLUSHER", "CAP_SYS_RESOURCE", protection.io_flusher));
    findings.push(protected(
        "locked memory",
        "CAP_IPC_LOCK or LimitMEMLOCK=infinity",
        protection.locked_memory,
    ));
    findings
}

fn io_uring(release: &str) -> Finding {
    match dcd_io::Driver::new() {
        Ok(_) => Finding::new(Severity::Ok, "io_uring", format!("works (Linux {release})")),
        Err(DriverError::Setup(error)) => {
            let action = dcd_io::way_to_io_uring(&error);
            Finding::new(Severity::Bad, "io_uring", format!("{error} (Linux {release})")).with(action)
        }
        Err(error) => Finding::new(Severity::Bad, "io_uring", error.to_string()),
    }
}

fn ublk(machine: &Machine, wanted: bool) -> Finding {
    let missing = if wanted { Severity::Bad } else { Severity::Note };
    if !machine.exists("/dev/ublk-control") {
        return absent(machine, "ublk_drv", "ublk", missing);
    }
    if let Err(error) = available() {
        return Finding::new(missing, "ublk", error.to_string());
    }
    match features(&RunningKernel) {
        Ok(flags) if missing_flags(flags).is_empty() => Finding::new(
            Severity::Ok,
            "ublk",
            format!("devices outlive their server; {}", flag_names(flags).join(", ")),
        ),
        Ok(flags) => {
            let lacks = missing_flags(flags).join(", ");
            Finding::new(
                Severity::Note,
                "ublk",
                format!("without {lacks}: a restart of the server ends the device"),
            )
            .with("take a newer kernel, or unmount before a restart")
        }
        // Kernels before 6.5 do not report their flags.
        Err(error) => {
            Finding::new(Severity::Ok, "ublk", format!("available; its flags are not known ({error})"))
        }
    }
}

/// Looks for a module by its node in /dev.
fn module(machine: &Machine, name: &str, node: &str, gives: &str) -> Finding {
    match machine.exists(node) {
        true => Finding::new(Severity::Ok, name, format!("{node}: {gives}")),
        false => absent(machine, name, name, Severity::Note),
    }
}

fn absent(machine: &Machine, module: &str, about: &str, level: Severity) -> Finding {
    let release = machine.release();
    match is_installed(machine, module) {
        true => Finding::new(level, about, format!("the module {module} is not loaded"))
            .with(format!("modprobe {module}")),
        false => {
            let package = match is_ubuntu(machine) {
                true => format!("install linux-modules-extra-{release}"),
                false => {
                    "install the package with the rest of the kernel's modules, if the distribution has one"
                        .to_owned()
                }
            };
            Finding::new(level, about, format!("{module} is not available in kernel {release}"))
                .with(format!("{package}, or use a kernel with this module (ublk_drv: Linux 6.4)"))
        }
    }
}

/// True on Ubuntu, and on what is made of it, which have its packages.
fn is_ubuntu(machine: &Machine) -> bool {
    let about = machine.text("/etc/os-release");
    let values = about.lines().filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")));
    values.flat_map(|value| value.trim_matches('"').split_whitespace()).any(|word| word == "ubuntu")
}

fn is_installed(machine: &Machine, module: &str) -> bool {
    let modules = format!("/lib/modules/{}", machine.release());
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        let list = machine.text(&format!("{modules}/{list}"));
        list.lines().any(|line| {
            let path = line.split(':').next().unwrap_or("");
            let file = path.rsplit('/').next().unwrap_or("");
            file.split('.').next() == Some(module) && file.contains(".ko")
        })
    })
}

fn known(machine: &Machine, release: &str, wanted: bool) -> Vec<Finding> {
    let Some(version) = version(release) else { return Vec::new() };
    let whose = machine.text("/proc/version");
    let applies = |known: &&Known| {
        (known.from..known.before).contains(&version) && known.of.is_none_or(|word| whose.contains(word))
    };
    let finding = |known: &Known| {
        let level = if wanted { known.level } else { Severity::Note };
        Finding::new(level, "ublk", known.found).with(known.action)
    };
    KNOWN.iter().filter(applies).map(finding).collect()
}

fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn protected(what: &str, needs: &str, done: std::io::Result<()>) -> Finding {
    match done {
        Ok(()) => Finding::new(Severity::Ok, what, "available"),
        Err(error) => {
            let found = format!("{error}: when memory is short, a server without it may hang");
            Finding::new(Severity::Note, what, found).with(format!("serve as root with {needs}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::Made;
    use super::*;

    fn made(release: &str, version: &str) -> Made {
        Made::new(&[("/proc/sys/kernel/osrelease", release), ("/proc/version", version)])
    }

    #[test]
    fn what_is_known_of_a_kernel_is_told_of_that_one_only() {
        let told = |release: &str, version: &str, wanted| {
            let found = known(&made(release, version).machine, release, wanted);
            found.iter().map(|finding| (finding.level, finding.found.clone())).collect::<Vec<_>>()
        };
        assert!(told("5.10.0-28-amd64", "Linux", true).is_empty());
        assert!(told("6.19.1", "Linux", true).is_empty());
        assert!(told("nonsense", "Linux", true).is_empty());
        let may_lose =
            |release| told(release, "Linux", true).iter().any(|(_, found)| found.contains("may be lost"));
        assert!(may_lose("6.12.117+deb12-amd64") && !may_lose("6.16.0"));
        let on_6_7 = told("6.7.12-amd64", "Linux (Debian)", true);
        assert!(on_6_7.iter().any(|(level, found)| *level == Severity::Bad && found.contains("recovered")));
        assert!(!told("6.8.0", "Linux", true).iter().any(|(_, found)| found.contains("recovered")));
        let ubuntu = told("6.17.0-5-generic", "Linux (Ubuntu 6.17.0)", true);
        assert!(
            ubuntu.iter().any(|(level, found)| *level == Severity::Bad && found.contains("oopses")),
            "{ubuntu:?}"
        );
        assert!(!told("6.17.0", "Linux", true).iter().any(|(_, found)| found.contains("oopses")));
        assert!(
            told("6.7.12", "Linux", false).iter().all(|(level, _)| *level == Severity::Note),
            "nobody uses it"
        );
    }

    #[test]
    fn a_module_that_is_not_loaded_is_told_from_one_that_there_is_not() {
        let made = made("6.12.1", "Linux");
        made.write(
            "/lib/modules/6.12.1/modules.dep",
            "kernel/drivers/block/nbd.ko.xz:\nkernel/drivers/block/ublk_drv.ko: kernel/x.ko\n",
        );
        made.write("/lib/modules/6.12.1/modules.builtin", "kernel/drivers/block/loop.ko\n");
        let of = |name: &str, node: &str| module(&made.machine, name, node, "something");
        assert_eq!(of("nbd", "/dev/nbd0").action.unwrap(), "modprobe nbd");
        assert_eq!(of("loop", "/dev/loop-control").action.unwrap(), "modprobe loop");
        assert!(of("fuse", "/dev/fuse").found.contains("is not available in kernel"));
        made.write("/dev/fuse", "");
        assert_eq!(of("fuse", "/dev/fuse").level, Severity::Ok);
        assert_eq!(ublk(&made.machine, false).level, Severity::Note);
        let wanted = ublk(&made.machine, true);
        assert_eq!((wanted.level, wanted.action.as_deref()), (Severity::Bad, Some("modprobe ublk_drv")));
    }

    #[test]
    fn a_package_is_named_where_it_exists() {
        let advice = |about: &str| {
            let made = made("6.12.1", "Linux");
            made.write("/etc/os-release", about);
            module(&made.machine, "nbd", "/dev/nbd0", "something").action.unwrap()
        };
        let package = "linux-modules-extra-6.12.1";
        for ubuntu in ["ID=ubuntu\n", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"] {
            assert!(advice(ubuntu).contains(package), "{ubuntu}");
        }
        for other in ["ID=debian\nHOME_URL=\"https://ubuntu\"\n", "ID=\"rocky\"\nID_LIKE=\"rhel\"\n", ""] {
            assert!(!advice(other).contains("extra"), "{}", advice(other));
        }
    }

    #[test]
    fn a_machine_without_any_way_to_a_block_device_is_bad() {
        let made = made("6.12.1", "Linux");
        let bad = |made: &Made| {
            let all = findings(&made.machine, false, true);
            all.iter().any(|finding| finding.about == "front-ends" && finding.level == Severity::Bad)
        };
        assert!(bad(&made));
        made.write("/dev/fuse", "");
        assert!(bad(&made), "there is no loop");
        let without = findings(&made.machine, false, false);
        assert!(
            without.iter().all(|finding| finding.about != "front-ends" || finding.level == Severity::Note)
        );
        let told = without.iter().find(|finding| finding.about == "front-ends").unwrap();
        assert!(told.found.contains("remain: fuse (an image file), nbd"), "{}", told.found);
        made.write("/dev/loop-control", "");
        assert!(!bad(&made));
    }

    #[test]
    fn a_container_that_hides_the_disks_is_told_of() {
        let made = made("6.12.1", "Linux");
        let is_told = || findings(&made.machine, false, true).iter().any(|finding| finding.about == "disks");
        assert!(!is_told(), "there is no /sys");
        fs::create_dir_all(made.machine.path("/sys/dev/block")).unwrap();
        assert!(is_told());
        made.write("/sys/dev/block/8:0", "");
        assert!(!is_told());
    }
}
