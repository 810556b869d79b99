//! Values by small numbers that are used again: the tokens of requests in flight.

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(value);
                place
            }
            None => {
                self.places.push(Some(value));
                self.places.len() - 1
            }
        }
    }

    /// # Panics
    /// Like `remove`, where nothing has this number: an answer came twice.
    pub fn get_mut(&mut self, place: usize) -> &mut T {
        self.places[place].as_mut().expect("a token is known until its answer")
    }

    pub fn get(&self, place: usize) -> &T {
        self.places[place].as_ref().expect("a token is known until its answer")
    }

    pub fn remove(&mut self, place: usize) -> T {
        let value = self.places[place].take().expect("a token is answered once");
        self.free.push(place);
        value
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}
