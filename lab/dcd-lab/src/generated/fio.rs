//! Job files of fio: one job, as far as a load file can say the same. Anything else is refused with its name and line.

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::{parse_duration, parse_size};

use super::load_file::{LoadFile, Places};

/// Options that say how fio reaches a real device, or what it prints.
const WITHOUT_EFFECT: [&str; 13] = [
    "name",
    "description",
    "ioengine",
    "direct",
    "filename",
    "directory",
    "group_reporting",
    "invalidate",
    "norandommap",
    "randrepeat",
    "buffered",
    "thread",
    "stonewall",
];

/// Sizes of fio: `k` and `kb` are 1024 bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.to_ascii_lowercase();
    let text = if text.ends_with("ib") { &text } else { text.trim_end_matches('b') };
    parse_size(text).map_err(|e| e.to_string())
}

fn sectors(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes if bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES) => Ok(bytes / SECTOR_BYTES),
        _ => Err(format!("\"{text}\" is no multiple of 512")),
    }
}

/// Times of fio: a plain number is microseconds.
fn time(text: &str) -> Result<Nanos, String> {
    let unit = if text.ends_with(|c: char| c.is_ascii_digit()) { "us" } else { "" };
    parse_duration(&format!("{text}{unit}")).map_err(|e| e.to_string())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no number that fits here"))
}

/// Values of the options so far.
#[derive(Default)]
struct Job {
    sizes: Vec<(u64, f64)>,
    /// Share of reads, and whether places are random.
    kind: Option<(Option<f64>, bool)>,
    mixed_reads: Option<f64>,
    zipf: Option<f64>,
    depth: Option<usize>,
    jobs: Option<usize>,
    space: Option<u64>,
    think: Nanos,
    think_every: Option<u64>,
    rate: Option<f64>,
    is_poisson: bool,
    flush_every: u64,
    requests: Option<u64>,
    seed: Option<u64>,
}

impl Job {
    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "rw" | "readwrite" => {
                self.kind = Some(match value {
                    "read" => (Some(1.0), false),
                    "write" => (Some(0.0), false),
                    "rw" | "readwrite" => (None, false),
                    "randread" => (Some(1.0), true),
                    "randwrite" => (Some(0.0), true),
                    "randrw" => (None, true),
                    _ => return Err(format!("\"{value}\" is not understood")),
                });
            }
            "bs" | "blocksize" => self.sizes = vec![(sectors(value)?, 1.0)],
            "bssplit" => {
                let part = |part: &str| {
                    let (size, percent) =
                        part.split_once('/').ok_or_else(|| format!("\"{part}\" has no percentage"))?;
                    Ok::<_, String>((sectors(size)?, number::<f64>(percent)?))
                };
                self.sizes = value.split(':').map(part).collect::<Result<_, _>>()?;
            }
            "rwmixread" => self.mixed_reads = Some(number::<f64>(value)? / 100.0),
            "rwmixwrite" => self.mixed_reads = Some(1.0 - number::<f64>(value)? / 100.0),
            "iodepth" => self.depth = Some(number(value)?),
            "numjobs" => self.jobs = Some(number(value)?),
            "size" => self.space = Some(bytes(value)?),
            "random_distribution" => {
                self.zipf = match value.split_once(':') {
                    Some(("zipf", theta)) => Some(number(theta)?),
                    None if value == "random" => None,
                    _ => return Err(format!("\"{value}\" is not understood")),
                };
            }
            "thinktime" => self.think = time(value)?,
            "thinktime_blocks" => self.think_every = Some(number(value)?),
            "rate_iops" => self.rate = Some(number(value)?),
            "rate_process" => self.is_poisson = value == "poisson",
            "fsync" | "fdatasync" => self.flush_every = number(value)?,
            "number_ios" => self.requests = Some(number(value)?),
            "randseed" => self.seed = Some(number(value)?),
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return Err("the option is not understood".to_owned()),
        }
        Ok(())
    }

    fn load(self) -> Result<LoadFile, String> {
        // As fio has it without these options.
        let (reads, random) = self.kind.unwrap_or((Some(1.0), false));
        let places = match (random, self.zipf) {
            (false, _) => Places::Sequential,
            (true, None) => Places::Uniform,
            (true, Some(theta)) => Places::Zipf(theta),
        };
        let clients = self.depth.unwrap_or(1).saturating_mul(self.jobs.unwrap_or(1));
        if self.think > Nanos::ZERO && self.depth.is_some_and(|depth| depth > 1) {
            return Err("thinktime: with iodepth above 1 it is not understood".to_owned());
        }
        if self.rate.is_some() && !self.is_poisson {
            return Err("rate_iops: only with rate_process=poisson is it understood".to_owned());
        }
        if self.rate.is_some() && self.jobs.is_some_and(|jobs| jobs > 1) {
            return Err("rate_iops: with numjobs above 1 it is not understood".to_owned());
        }
        Ok(LoadFile {
            // With a rate, requests come at their times.
            clients: if self.rate.is_some() { 1 } else { clients },
            sizes: if self.sizes.is_empty() { vec![(4096 / SECTOR_BYTES, 1.0)] } else { self.sizes },
            reads: reads.or(self.mixed_reads).unwrap_or(0.5),
            places,
            space: self.space,
            think: self.think,
            think_every: self.think_every.unwrap_or(1),
            rate: self.rate,
            flush_every: self.flush_every,
            fua: 0.0,
            requests: self.requests,
            seed: self.seed,
        })
    }
}

pub(super) fn parse(text: &str) -> Result<LoadFile, String> {
    let mut job = Job::default();
    let mut named = false;
    for (line, count) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if section != "global" && std::mem::replace(&mut named, true) {
                return Err(format!(
                    "line {count}, [{section}]: it is the second job, and one is understood"
                ));
            }
            continue;
        }
        // An option without a value is on.
        let (name, value) = line.split_once('=').unwrap_or((line, "1"));
        let (name, value) = (name.trim(), value.trim());
        job.option(name, value).map_err(|e| format!("line {count}, {name}: {e}"))?;
    }
    job.load()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_says_the_same_as_a_load_file() {
        let fio = "[global]\nioengine=libaio\ndirect=1\n[job]\nrw=randrw\nrwmixread=70\nbssplit=4k/60:64k/40\n\
                   iodepth=8\nsize=1g\nrandom_distribution=zipf:1.1\nfdatasync=16\n";
        let toml = "clients = 8\nsize = [[\"4KiB\", 60], [\"64KiB\", 40]]\nreads = 0.7\nspace = \"1GiB\"\n\
                    places = { zipf = 1.1 }\nflush-every = 16\n";
        assert_eq!(parse(fio).unwrap(), LoadFile::parse(toml).unwrap());
        let fio = "[job]\nrw=write\nbs=256k\nthinktime=500\nthinktime_blocks=64\nnumber_ios=9\n";
        let toml =
            "size = \"256KiB\"\nplaces = \"sequential\"\nthink = \"500us\"\nthink-every = 64\nrequests = 9\n";
        assert_eq!(parse(fio).unwrap(), LoadFile::parse(toml).unwrap());
        let open = parse("[a]\nrw=randread\nrate_iops=200\nrate_process=poisson\niodepth=32\n").unwrap();
        assert_eq!((open.rate, open.clients, open.reads), (Some(200.0), 1, 1.0));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name_and_line() {
        for (text, said) in [
            ("[job]\nrw=randwrite\nzonesize=4k\n", "line 3, zonesize: the option is not understood"),
            ("[job]\nrw=trim\n", "line 2, rw: \"trim\" is not understood"),
            ("[a]\nrw=read\n[b]\n", "line 3, [b]: it is the second job"),
            ("[a]\nbs=4k,64k\n", "line 2, bs: "),
            ("[a]\nbs=1000\n", "line 2, bs: \"1000\" is no multiple of 512"),
            ("[a]\nrandom_distribution=pareto:0.9\n", "line 2, random_distribution"),
            ("[a]\nrate_iops=5\n", "rate_iops: only with rate_process=poisson"),
            ("[a]\nthinktime=5\niodepth=4\n", "thinktime: with iodepth above 1"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(said), "{text}: {told}");
        }
    }
}
