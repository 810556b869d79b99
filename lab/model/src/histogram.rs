//! Counts of times in buckets that grow with the time: 32 for each power of two, so that a percentile is at most 3 % off.

use dcd_engine::Nanos;

const BUCKETS_PER_DOUBLING: u64 = 32;
const BUCKET_BITS: u32 = BUCKETS_PER_DOUBLING.trailing_zeros();
/// Enough for every u64.
const BUCKETS: usize = (64 - BUCKET_BITS as usize + 1) * BUCKETS_PER_DOUBLING as usize;

/// See the module's documentation. Takes 15 KiB, and adding to it allocates nothing.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    max: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0, max: Nanos::ZERO }
    }
}

impl Histogram {
    pub fn add(&mut self, time: Nanos) {
        self.counts[bucket(time.0)] += 1;
        self.count += 1;
        self.sum += u128::from(time.0);
        self.max = self.max.max(time);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> Nanos {
        self.max
    }

    /// Adds all that another one counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// The end of each bucket that something fell into, and how much did, the shortest time first.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(index, count)| (Nanos(bucket_end(index)).min(self.max), *count))
    }

    /// Exact, like the mean.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Exact, unlike the percentiles; zero where nothing was added.
    pub fn mean(&self) -> Nanos {
        Nanos((self.sum / u128::from(self.count.max(1))) as u64)
    }

    /// The time that a part (0 to 1) of all times does not exceed, rounded up to the end of its bucket.
    pub fn quantile(&self, part: f64) -> Nanos {
        let rank = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(bucket_end(index)).min(self.max);
            }
        }
        self.max
    }
}

/// Below 32 each value has its own bucket; above, the leading bit picks the group and the five bits after it the bucket.
const fn bucket(value: u64) -> usize {
    if value < BUCKETS_PER_DOUBLING {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - BUCKET_BITS;
    ((shift as u64 + 1) * BUCKETS_PER_DOUBLING + (value >> shift) - BUCKETS_PER_DOUBLING) as usize
}

const fn bucket_end(index: usize) -> u64 {
    let (group, place) = (index as u64 / BUCKETS_PER_DOUBLING, index as u64 % BUCKETS_PER_DOUBLING);
    if group == 0 {
        return place;
    }
    let shift = group - 1;
    ((BUCKETS_PER_DOUBLING + place) << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bucket_that_ends_at_most_a_32nd_above_it() {
        let mut last = 0;
        for exponent in 0..64 {
            for value in [1u64 << exponent, (1 << exponent) + (1 << exponent) / 3, (1 << exponent) - 1] {
                let end = bucket_end(bucket(value));
                assert!(end >= value && end - value <= value / 32, "{value} in a bucket up to {end}");
            }
            let index = bucket(1 << exponent);
            assert!(index > last || exponent == 0);
            last = index;
        }
        assert!(bucket(u64::MAX) < BUCKETS);
        assert_eq!(bucket_end(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_of_known_times() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (Nanos::ZERO, Nanos::ZERO));
        for micros in 1..=1000 {
            histogram.add(Nanos::from_micros(micros));
        }
        assert_eq!(histogram.mean(), Nanos(500_500));
        for (part, exact) in [(0.5, 500_000.0), (0.9, 900_000.0), (0.99, 990_000.0)] {
            let time = histogram.quantile(part).0 as f64;
            assert!(time >= exact && time <= exact * 1.04, "{part}: {time}");
        }
        assert_eq!(histogram.quantile(1.0), Nanos::from_millis(1));
        assert_eq!((histogram.count(), histogram.max()), (1000, Nanos::from_millis(1)));
    }
}
