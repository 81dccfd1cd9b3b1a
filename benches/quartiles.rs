//! What the benches say of many measurements.

/// The lower quartile, the median, the upper quartile.
pub fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// The median, and the quartiles around it.
pub fn show([low, median, high]: [f64; 3]) -> String {
    format!("{median:.2} ({low:.2} to {high:.2})")
}
