//! DiskSim's ways to state a seek curve, as points.

use super::{Fields, ImportError};

/// Up to here each distance has a point of its own; above they grow by a twentieth.
const EACH_MAX: u32 = 40;

/// Distances and times in ms, from one cylinder to the full stroke.
pub(super) fn curve(
    mechanics: &mut Fields<'_>,
    cylinders: u32,
    include: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Vec<(u32, f64)>, ImportError> {
    let kind = mechanics.text("Seek type")?.unwrap_or("").to_owned();
    let full = cylinders.saturating_sub(1).max(1);
    match kind.as_str() {
        "extracted" => extracted(mechanics, include),
        "constant" => Ok(vec![(1, mechanics.required("Constant seek time")?)]),
        "linear" => {
            let [one, mean, all] = three(mechanics)?;
            let mut points = vec![(1, one), (cylinders / 3, mean), (full, all)];
            points.dedup_by(|next, last| next.0 <= last.0);
            Ok(points)
        }
        "curve" => {
            let [one, mean, all] = three(mechanics)?;
            // Lee and Katz 1993: a sqrt(d - 1) + b (d - 1) + c, through the three times.
            let n = f64::from(cylinders);
            let a = (15.0 * mean - 10.0 * one - 5.0 * all) / (3.0 * n.sqrt());
            let b = (7.0 * one + 8.0 * all - 15.0 * mean) / (3.0 * n);
            Ok(sampled(full, &[], |d| a * (d - 1.0).sqrt() + b * (d - 1.0) + one))
        }
        "hpl" => hpl(mechanics, full, &[]),
        "hplplus10" => {
            let first = mechanics.list("First ten seek times")?;
            if first.len() != 10 {
                return Err(mechanics.wrong("First ten seek times", format!("there are {}", first.len())));
            }
            hpl(mechanics, full, &first)
        }
        other => Err(mechanics.wrong("Seek type", format!("\"{other}\" is unknown"))),
    }
}

fn three(mechanics: &mut Fields<'_>) -> Result<[f64; 3], ImportError> {
    Ok([
        mechanics.required("Single cylinder seek time")?,
        mechanics.required("Average seek time")?,
        mechanics.required("Full strobe seek time")?,
    ])
}

/// Ruemmler and Wilkes 1994: below `V1` cylinders `V2 + V3 sqrt(d)`, from there on `V4 + V5 d`; `V6`, where it is not below
/// zero, is the time for one cylinder.
fn hpl(mechanics: &mut Fields<'_>, full: u32, first: &[f64]) -> Result<Vec<(u32, f64)>, ImportError> {
    const FIELD: &str = "HPL seek equation values";
    let values = mechanics.list(FIELD)?;
    let [v1, v2, v3, v4, v5, v6] = values[..] else {
        return Err(mechanics.wrong(FIELD, format!("there are {} values and not six", values.len())));
    };
    let time = |d: f64| if d < v1 { v2 + v3 * d.sqrt() } else { v4 + v5 * d };
    let mut points = sampled(full, &[v1 as u32], time);
    if v6 >= 0.0 {
        points[0].1 = v6;
    }
    for (point, time) in points.iter_mut().zip(first) {
        point.1 = *time;
    }
    Ok(points)
}

/// Points of a formula; around `breaks` it has corners.
fn sampled(full: u32, breaks: &[u32], time: impl Fn(f64) -> f64) -> Vec<(u32, f64)> {
    let mut distances: Vec<u32> = (1..=EACH_MAX.min(full)).collect();
    while let Some(last) = distances.last().copied().filter(|&last| last < full) {
        distances.push((last + last / 20).min(full));
    }
    distances
        .extend(breaks.iter().flat_map(|&at| [at.saturating_sub(1), at]).filter(|at| (1..full).contains(at)));
    distances.sort_unstable();
    distances.dedup();
    distances.into_iter().map(|d| (d, (time(f64::from(d)) * 1e6).round() / 1e6)).collect()
}

/// The lines `distance, ms` of the file that has the measured points.
fn extracted(
    mechanics: &mut Fields<'_>,
    include: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Vec<(u32, f64)>, ImportError> {
    const FIELD: &str = "Full seek curve";
    let name = mechanics.text(FIELD)?.ok_or_else(|| mechanics.wrong(FIELD, "it is missing"))?;
    let text = include(name).map_err(|why| mechanics.wrong(FIELD, format!("the file \"{name}\": {why}")))?;
    let mut points = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || !line.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let point =
            line.split_once(',').and_then(|(d, ms)| Some((d.trim().parse().ok()?, ms.trim().parse().ok()?)));
        points.push(point.ok_or_else(|| {
            mechanics.wrong(
                FIELD,
                format!("the file \"{name}\", line {number}: \"{line}\" is no \"distance, ms\""),
            )
        })?);
    }
    if points.is_empty() {
        return Err(mechanics.wrong(FIELD, format!("the file \"{name}\" has no line \"distance, ms\"")));
    }
    points.sort_unstable_by_key(|point: &(u32, f64)| point.0);
    points.dedup_by_key(|point| point.0);
    if points[0].0 != 1 {
        let one = mechanics.required("Single cylinder seek time")?;
        points.insert(0, (1, one));
    }
    Ok(points)
}
