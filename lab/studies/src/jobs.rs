//! Work that is done on several cores, with progress.

use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// As many threads as were asked for, or as there are cores.
pub fn jobs(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}

/// Does `count` pieces of work, one after another on each thread; the results are in order. After a failure no more are begun.
pub fn in_parallel<T: Send, E: Send>(
    jobs: usize,
    count: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    each_in_parallel(jobs, (0..count).collect(), work)
}

/// Does pieces of work in parallel that can be done once.
pub fn each_in_parallel<W: Send, T: Send, E: Send>(
    jobs: usize,
    all: Vec<W>,
    work: impl Fn(W) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let threads = jobs.clamp(1, all.len().max(1));
    let one_at_a_time = "no work panics with the lock";
    let queue = Mutex::new(all.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let next = || queue.lock().expect(one_at_a_time).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, piece)) = next() {
                    let result = work(piece);
                    if result.is_err() {
                        queue.lock().expect(one_at_a_time).by_ref().for_each(drop);
                    }
                    done.lock().expect(one_at_a_time).push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread is left");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A bar on a terminal; its length is to be set.
pub fn progress(quiet: bool, what: &str) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    let style =
        ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what}, {{elapsed}}  {{msg}}"));
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
