//! Intervals of a mean.

/// Student's t for an interval of 95 %, by the degrees of freedom from one on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The mean of independent values, and how far the true mean is from it at most, in 95 of 100 cases.
///
/// # Panics
/// With less than two values.
pub fn interval(values: &[f64]) -> (f64, f64) {
    assert!(values.len() > 1, "one value says nothing of the others");
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let freedom = values.len() - 1;
    // Above the table: the first terms of the expansion around the normal distribution.
    let student = STUDENT.get(freedom - 1).copied().unwrap_or(1.96 + 2.4 / freedom as f64);
    (mean, student * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_follows_from_the_count() {
        let (mean, half) = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((mean, half) == (3.0, 2.776 * 0.5_f64.sqrt()), "{half}");
        let many: Vec<f64> = (0..101).map(f64::from).collect();
        // t of 100 degrees is 1.984.
        let (mean, half) = interval(&many);
        assert!((mean - 50.0).abs() < 1e-9 && (half / 2.915_476 - 1.984).abs() < 0.001, "{half}");
    }
}
