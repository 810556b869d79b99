//! Shares one processor: programs that want it wait in a line, and release it after a quantum if others wait.

use std::collections::VecDeque;

use dcd_engine::Nanos;

use super::op::ProcessId;

#[derive(Clone, Copy, Debug)]
struct Burst {
    /// None for the kernel's own work.
    who: Option<ProcessId>,
    left: Nanos,
}

pub(crate) struct Cpu {
    line: VecDeque<Burst>,
    running: Option<(Burst, Nanos)>,
    quantum: Nanos,
    busy: Nanos,
}

impl Cpu {
    pub fn new(quantum: Nanos) -> Cpu {
        Cpu { line: VecDeque::new(), running: None, quantum, busy: Nanos::ZERO }
    }

    /// Time spent so far, bursts under way not counted.
    pub fn busy(&self) -> Nanos {
        self.busy
    }

    pub fn deadline(&self) -> Option<Nanos> {
        self.running.map(|(_, end)| end)
    }

    pub fn want(&mut self, now: Nanos, who: ProcessId, time: Nanos) {
        self.line.push_back(Burst { who: Some(who), left: time });
        self.start(now);
    }

    /// The kernel comes first.
    pub fn kernel(&mut self, now: Nanos, time: Nanos) {
        self.line.push_front(Burst { who: None, left: time });
        self.start(now);
    }

    fn start(&mut self, now: Nanos) {
        if self.running.is_none()
            && let Some(mut burst) = self.line.pop_front()
        {
            let slice = burst.left.min(self.quantum);
            burst.left = burst.left.since(slice);
            self.busy += slice;
            self.running = Some((burst, now + slice));
        }
    }

    /// Ends a slice that is over by `now`; gives the process whose burst is over with it. Call it until it gives none.
    pub fn end(&mut self, now: Nanos) -> Option<ProcessId> {
        while let Some((burst, _)) = self.running.take_if(|(_, end)| *end <= now) {
            if burst.left > Nanos::ZERO {
                self.line.push_back(burst);
            }
            self.start(now);
            if burst.left == Nanos::ZERO && burst.who.is_some() {
                return burst.who;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_share_the_processor_by_quanta() {
        let mut cpu = Cpu::new(Nanos(10));
        cpu.want(Nanos(0), ProcessId(1), Nanos(25));
        cpu.want(Nanos(0), ProcessId(2), Nanos(5));
        let mut ended = Vec::new();
        while let Some(now) = cpu.deadline() {
            ended.extend(cpu.end(now).map(|process| (now.0, process.0)));
        }
        // 1 runs to 10, 2 to 15, 1 to 25 and to 30.
        assert_eq!(ended, [(15, 2), (30, 1)]);
        assert_eq!(cpu.busy(), Nanos(30));
    }
}
