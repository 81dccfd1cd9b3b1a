//! A function through points.

use serde::{Deserialize, Serialize};

/// Straight between points, and beyond the outer ones as between the two next to them; before the first one at least in proportion to
/// it. More never takes less.
///
/// ```
/// # use epl_core::cost::Line;
/// let seconds = Line::through([(8.0, 4.0), (2.0, 1.0), (16.0, 12.0)]);
/// assert_eq!([1.0, 2.0, 5.0, 16.0, 24.0].map(|rows| seconds.at(rows)), [0.5, 1.0, 2.5, 12.0, 20.0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(f64, f64)>")]
pub struct Line(Vec<(f64, f64)>);

impl From<Vec<(f64, f64)>> for Line {
    fn from(points: Vec<(f64, f64)>) -> Self {
        Self::through(points)
    }
}

impl Line {
    /// Through these points, in any order. Through one: in proportion. Through none: 0.
    ///
    /// # Panics
    ///
    /// When a number is not finite.
    pub fn through(points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut points: Vec<(f64, f64)> = points.into_iter().collect();
        assert!(points.iter().all(|(x, y)| x.is_finite() && y.is_finite()), "{points:?} are no points of a line");
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points.dedup_by(|next, first| next.0 == first.0);
        let mut most = 0.0_f64;
        for (_, y) in &mut points {
            most = most.max(*y);
            *y = most;
        }
        Self(points)
    }

    /// Its value here, at least 0.
    pub fn at(&self, x: f64) -> f64 {
        let (from, to) = match &self.0[..] {
            [] => return 0.0,
            [(only, y)] if *only == 0.0 => return *y,
            [only] => ((0.0, 0.0), *only),
            points => {
                let next = points.partition_point(|point| point.0 < x).clamp(1, points.len() - 1);
                (points[next - 1], points[next])
            }
        };
        let straight = from.1 + (x - from.0) / (to.0 - from.0) * (to.1 - from.1);
        // A line that is steeper than in proportion would be at 0 for a number above 0.
        if x < from.0 { straight.max(from.1 * x / from.0).max(0.0) } else { straight }
    }

    /// The points.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_are_enough_and_more_never_takes_less() {
        assert_eq!(Line::default().at(5.0), 0.0);
        assert_eq!(Line::through([(4.0, 2.0)]).at(6.0), 3.0);
        assert_eq!(Line::through([(0.0, 2.0)]).at(6.0), 2.0);
        let noisy = Line::through([(1.0, 2.0), (2.0, 1.0), (3.0, 4.0)]);
        assert_eq!([0.0, 1.5, 2.0, 2.5].map(|x| noisy.at(x)), [2.0, 2.0, 2.0, 3.0]);
        // Half of two, where the straight line is below 0; and above that, where it is.
        assert_eq!(Line::through([(2.0, 1.0), (3.0, 3.0)]).at(1.0), 0.5);
        assert_eq!(Line::through([(2.0, 1.0), (3.0, 1.25)]).at(1.0), 0.75);
    }
}
