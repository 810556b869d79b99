//! A slab: values under small numbers that are used again. Holds operations in flight.

/// See the module's documentation.
pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u64 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(value);
            return u64::from(place);
        }
        self.places.push(Some(value));
        self.places.len() as u64 - 1
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// If there is no value under `key`: each operation in flight ends once.
    pub fn remove(&mut self, key: u64) -> T {
        let value = self.places[key as usize].take().expect("what is in flight ends once");
        self.free.push(key as u32);
        value
    }

    pub fn get_mut(&mut self, key: u64) -> &mut T {
        self.places[key as usize].as_mut().expect("it is in flight")
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}
