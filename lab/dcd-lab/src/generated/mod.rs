//! Generated load: requests that follow from a load file and a seed.
//!
//! | module | what |
//! |---|---|
//! | `load_file` | the file: which requests, how many at a time |
//! | `fio` | job files of fio, as far as they say the same |

mod fio;
mod load_file;

use std::collections::VecDeque;

use dcd_crash::{SimRng, mix};
use dcd_engine::Nanos;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Zipf};

pub use load_file::{LoadFile, Places};

use crate::load::Request;

/// Requests of a load file on a device of a given size, the same for the same seed. They have no times.
pub struct Generator {
    file: LoadFile,
    random: SimRng,
    /// Ranks of places; from a stream of its own, as the library draws as often as it likes.
    ranks: Option<(Zipf<f64>, ChaCha8Rng)>,
    /// Sectors that the load uses.
    space: u64,
    /// Sectors of the smallest request: the unit of places for `zipf`.
    unit: u64,
    /// Place of the next sequential request.
    position: u64,
    /// Writes since the last flush.
    writes: u64,
}

impl Generator {
    /// # Errors
    /// Fails if the device is smaller than what the load needs.
    pub fn new(file: &LoadFile, sectors: u64, seed: u64) -> Result<Generator, String> {
        let space = file.space_on(sectors)?;
        let unit = file.smallest();
        let ranks = match file.places {
            Places::Zipf(theta) => {
                let zipf = Zipf::new((space / unit) as f64, theta).map_err(|e| format!("zipf: {e}"))?;
                Some((zipf, ChaCha8Rng::seed_from_u64(seed)))
            }
            _ => None,
        };
        let random = SimRng::new(seed);
        Ok(Generator { file: file.clone(), random, ranks, space, unit, position: 0, writes: 0 })
    }

    pub fn request(&mut self) -> Request {
        let none = Request { at: Nanos::ZERO, start: 0, sectors: 0, writes: false, fua: false, took: 0 };
        if self.file.flush_every > 0 && self.writes == self.file.flush_every {
            self.writes = 0;
            return none;
        }
        let reads = self.happens(self.file.reads);
        let sectors = self.sectors();
        let start = self.place(sectors);
        // Drawn for each write, so that the share of FUA does not change the places.
        let fua = !reads && self.random.unit() < self.file.fua;
        self.writes += u64::from(!reads);
        Request { start, sectors: sectors as u32, writes: !reads, fua, ..none }
    }

    /// Draws nothing for what is certain.
    fn happens(&mut self, share: f64) -> bool {
        share >= 1.0 || (share > 0.0 && self.random.unit() < share)
    }

    fn sectors(&mut self) -> u64 {
        let sizes = &self.file.sizes;
        if let [(sectors, _)] = sizes[..] {
            return sectors;
        }
        let mut left = self.random.unit() * sizes.iter().map(|size| size.1).sum::<f64>();
        let chosen = sizes.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        chosen.unwrap_or(&sizes[0]).0
    }

    /// Places are multiples of the request's size.
    fn place(&mut self, sectors: u64) -> u64 {
        match self.file.places {
            Places::Uniform => self.random.below(self.space / sectors) * sectors,
            Places::Sequential => {
                if self.position + sectors > self.space {
                    self.position = 0;
                }
                self.position += sectors;
                self.position - sectors
            }
            Places::Zipf(_) => {
                let (zipf, random) = self.ranks.as_mut().expect("made with the generator");
                let rank = zipf.sample(random) as u64;
                // Frequent places are anywhere; two ranks may have one place.
                let place = mix(rank, 0) % (self.space / self.unit) * self.unit;
                place.min(self.space - sectors) / sectors * sectors
            }
            Places::Hot { part, share } => {
                let hot = ((self.space as f64 * part) as u64).clamp(sectors, self.space);
                let cold = self.space - hot;
                match self.happens(share) || cold < sectors {
                    true => self.random.below(hot / sectors) * sectors,
                    false => hot + self.random.below(cold / sectors) * sectors,
                }
            }
        }
    }
}

/// A request that a client sends `pause` after an answer, or after the beginning.
pub struct Step {
    pub pause: Nanos,
    pub request: Request,
    /// For the next call of [`Clients::after`].
    pub tag: usize,
}

/// Clients that wait for answers.
pub trait Clients {
    /// Appends the requests that follow the answer to a step with this tag; those at the beginning if there is none.
    fn after(&mut self, answered: Option<usize>, next: &mut VecDeque<Step>);
}

/// Clients that each send a request after each answer.
pub struct GeneratedClients {
    generator: Generator,
    left: u64,
    /// Requests that each client has sent.
    sent: Vec<u64>,
}

impl GeneratedClients {
    pub fn new(generator: Generator, requests: u64) -> GeneratedClients {
        let sent = vec![0; generator.file.clients];
        GeneratedClients { generator, left: requests, sent }
    }
}

impl Clients for GeneratedClients {
    fn after(&mut self, answered: Option<usize>, next: &mut VecDeque<Step>) {
        for tag in answered.map_or(0..self.sent.len(), |client| client..client + 1) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            self.sent[tag] += 1;
            let file = &self.generator.file;
            let thinks = self.sent[tag].is_multiple_of(file.think_every);
            let pause = if thinks { file.think } else { Nanos::ZERO };
            next.push_back(Step { pause, request: self.generator.request(), tag });
        }
    }
}

/// Requests at random times (Poisson), however long the answers take.
pub fn open_loop(
    mut generator: Generator,
    rate: f64,
    requests: u64,
    seed: u64,
) -> impl Iterator<Item = Request> {
    let mut random = SimRng::new(mix(seed, 1));
    let mut at = 0.0;
    (0..requests).map(move |_| {
        at += random.exponential() / rate;
        Request { at: Nanos((at * 1e9) as u64), ..generator.request() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(text: &str, sectors: u64, count: usize) -> Vec<Request> {
        let file = LoadFile::parse(text).unwrap();
        let mut generator = Generator::new(&file, sectors, 7).unwrap();
        (0..count).map(|_| generator.request()).collect()
    }

    fn share(requests: &[Request], of: impl Fn(&Request) -> bool) -> f64 {
        requests.iter().filter(|request| of(request)).count() as f64 / requests.len() as f64
    }

    #[test]
    fn shares_and_sizes_are_those_of_the_file() {
        let text = "size = [[\"4KiB\", 60], [\"64KiB\", 40]]\nreads = 0.7\nfua = 0.5\n";
        let requests = generated(text, 1 << 16, 20_000);
        for (wanted, got) in [
            (0.7, share(&requests, |r| !r.writes)),
            (0.4, share(&requests, |r| r.sectors == 128)),
            (0.15, share(&requests, |r| r.fua)),
        ] {
            assert!((wanted - got).abs() < 0.015, "{wanted}: {got}");
        }
        assert!(requests.iter().all(|r| r.start.is_multiple_of(u64::from(r.sectors)) && r.end() <= 1 << 16));
        let flushed = generated("size = \"4KiB\"\nflush-every = 3\n", 1 << 16, 8);
        assert_eq!(flushed.iter().map(|r| r.sectors).collect::<Vec<_>>(), [8, 8, 8, 0, 8, 8, 8, 0]);
    }

    #[test]
    fn places_are_as_the_file_says() {
        let starts = |places: &str| {
            let text = format!("size = \"4KiB\"\nspace = \"4MiB\"\nplaces = {places}\n");
            generated(&text, 1 << 20, 20_000)
        };
        let all = [
            starts("\"uniform\""),
            starts("{ zipf = 1.2 }"),
            starts("{ hot = { part = 0.1, share = 0.9 } }"),
        ];
        assert!(all.iter().flatten().all(|r| r.end() <= 8192));
        // Of 1024 places, the most frequent: a thousandth, and 1 / (1 + 2^-1.2 + 3^-1.2 + ...) = 0.26.
        let most = |requests: &[Request]| {
            let mut counts = std::collections::HashMap::new();
            requests.iter().for_each(|r| *counts.entry(r.start).or_insert(0) += 1);
            f64::from(counts.into_values().max().unwrap()) / requests.len() as f64
        };
        assert!(most(&all[0]) < 0.003, "{}", most(&all[0]));
        assert!((0.22..0.32).contains(&most(&all[1])), "{}", most(&all[1]));
        let hot = share(&all[2], |r| r.start < 819);
        assert!((hot - 0.9).abs() < 0.01, "{hot}");
        let sequential = starts("\"sequential\"");
        assert!(sequential.windows(2).all(|two| two[1].start == (two[0].start + 8) % 8192));
    }

    #[test]
    fn the_clients_send_as_many_as_were_asked_for_and_think() {
        let file =
            LoadFile::parse("clients = 3\nsize = \"4KiB\"\nthink = \"2ms\"\nthink-every = 2\n").unwrap();
        let mut clients = GeneratedClients::new(Generator::new(&file, 1 << 16, 1).unwrap(), 6);
        let mut next = VecDeque::new();
        clients.after(None, &mut next);
        assert_eq!(
            next.iter().map(|step| (step.tag, step.pause.0)).collect::<Vec<_>>(),
            [(0, 0), (1, 0), (2, 0)]
        );
        next.clear();
        for answered in [1, 1, 0, 0] {
            clients.after(Some(answered), &mut next);
        }
        assert_eq!(
            next.iter().map(|step| (step.tag, step.pause.0)).collect::<Vec<_>>(),
            [(1, 2_000_000), (1, 0), (0, 2_000_000)]
        );
    }

    #[test]
    fn an_open_loop_has_its_rate() {
        let file = LoadFile::parse("size = \"4KiB\"\nrate = 200\n").unwrap();
        let requests: Vec<Request> =
            open_loop(Generator::new(&file, 1 << 16, 1).unwrap(), 200.0, 10_000, 1).collect();
        let seconds = requests.last().unwrap().at.as_secs_f64();
        assert!((48.5..51.5).contains(&seconds), "{seconds}");
        assert!(requests.is_sorted_by_key(|request| request.at));
    }
}
