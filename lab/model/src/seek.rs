//! Times of the arm from cylinder to cylinder: a curve through measured points, straight lines between them.

use std::sync::Arc;

use dcd_engine::Nanos;

/// The curve. Its distances rise strictly; a distance of 0 takes no time.
#[derive(Clone, Debug)]
pub(crate) struct SeekCurve {
    distances: Vec<u32>,
    times: Vec<u64>,
    /// The time of each distance that the drive has, worked out once; shared by the copies of a drive.
    table: Arc<[u32]>,
}

impl SeekCurve {
    /// The points have been checked: distances start at 1 and rise, and no time is above what 32 bits of ns hold.
    pub fn new(cylinders: u32, points: impl IntoIterator<Item = (u32, Nanos)>) -> SeekCurve {
        let (distances, times) = points.into_iter().map(|(distance, time)| (distance, time.0)).unzip();
        let mut curve = SeekCurve { distances, times, table: Arc::from([]) };
        curve.table = (0..cylinders).map(|distance| curve.interpolate(distance) as u32).collect();
        curve
    }

    /// The time for a distance in cylinders.
    pub fn time(&self, distance: u32) -> u64 {
        match self.table.get(distance as usize) {
            Some(&time) => u64::from(time),
            None => self.interpolate(distance),
        }
    }

    /// Beyond the last point the last line goes on.
    fn interpolate(&self, distance: u32) -> u64 {
        if distance == 0 {
            return 0;
        }
        let count = self.distances.len();
        if count == 1 {
            return self.times[0];
        }
        let right = self.distances.partition_point(|&d| d < distance).clamp(1, count - 1);
        let (x0, x1) = (i128::from(self.distances[right - 1]), i128::from(self.distances[right]));
        let (y0, y1) = (i128::from(self.times[right - 1]), i128::from(self.times[right]));
        let time = y0 + (y1 - y0) * (i128::from(distance) - x0) / (x1 - x0);
        time.clamp(0, i128::from(u32::MAX)) as u64
    }

    /// The mean over all pairs of different cylinders, each as likely as any other: what data sheets call the average
    /// seek time. (HGST's state the weights in a formula: a distance of n occurs `cylinders - n` times.)
    pub fn mean(&self, cylinders: u32) -> u64 {
        if cylinders < 2 {
            return 0;
        }
        let mut sum: u128 = 0;
        let mut weights: u128 = 0;
        for distance in 1..cylinders {
            let weight = u128::from(cylinders - distance);
            sum += weight * u128::from(self.time(distance));
            weights += weight;
        }
        (sum / weights) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> SeekCurve {
        SeekCurve::new(12, points.iter().map(|&(distance, time)| (distance, Nanos(time))))
    }

    #[test]
    fn goes_through_its_points_and_straight_between_them() {
        let curve = curve(&[(1, 1_000), (10, 10_000), (20, 5_000)]);
        let times: Vec<u64> = [0, 1, 2, 10, 15, 20, 22].map(|d| curve.time(d)).to_vec();
        assert_eq!(times, [0, 1_000, 2_000, 10_000, 7_500, 5_000, 4_000]);
        assert_eq!(curve.time(1_000), 0, "a falling last line ends at zero");
    }

    #[test]
    fn the_mean_distance_is_a_third_of_the_stroke() {
        // With a time of 3 ns for each cylinder, the mean time is the mean distance times 3: (N + 1) / 3 exactly.
        let curve = curve(&[(1, 3), (1_000_000, 3_000_000)]);
        assert_eq!(curve.mean(8_999), 9_000);
    }
}
