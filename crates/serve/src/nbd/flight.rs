//! The requests of one connection that the engine has not answered: a slab whose index is the token.

/// What is remembered of a request until its answer.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub cookie: u64,
    /// The length of its payload or of the data it reads.
    pub bytes: usize,
    pub kind: Kind,
}

/// How its answer is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    /// A trim that has to be durable: the engine's discard is not, so a flush follows it under the same token.
    TrimThenFlush,
    Zeroes {
        fast: bool,
    },
}

#[derive(Debug, Default)]
pub struct Flight {
    places: Vec<Option<Pending>>,
    free: Vec<usize>,
    bytes: usize,
}

impl Flight {
    pub fn insert(&mut self, pending: Pending) -> u64 {
        self.bytes += pending.bytes;
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(pending);
                place as u64
            }
            None => {
                self.places.push(Some(pending));
                self.places.len() as u64 - 1
            }
        }
    }

    pub fn get_mut(&mut self, token: u64) -> &mut Pending {
        self.places[token as usize].as_mut().expect("a request is answered once")
    }

    pub fn remove(&mut self, token: u64) -> Pending {
        let pending = self.places[token as usize].take().expect("a request is answered once");
        self.bytes -= pending.bytes;
        self.free.push(token as usize);
        pending
    }

    pub fn requests(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
