//! Two programs, run in turn.

use std::time::{Duration, Instant};

use crate::quartiles::quartiles;

const WARM_UP: usize = 3;

/// What each of two programs took, pair by pair.
pub struct Pairs(Vec<[Duration; 2]>);

/// Alternates the two programs, so many times after a warm-up.
pub fn alternate(pairs: usize, mut ours: impl FnMut(), mut plain: impl FnMut()) -> Pairs {
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    Pairs((0..WARM_UP + pairs).map(|_| [time(&mut ours), time(&mut plain)]).skip(WARM_UP).collect())
}

impl Pairs {
    /// Prints the median of the pairs' ratios, the first program's time ÷ the other's, with quartiles, and both medians.
    pub fn print(&self, what: &str) {
        let [low, median, high] = quartiles(self.0.iter().map(|[a, b]| a.as_secs_f64() / b.as_secs_f64()).collect());
        let [ours, plain] =
            [0, 1].map(|at| quartiles(self.0.iter().map(|pair| pair[at].as_secs_f64() * 1e3).collect())[1]);
        let pairs = self.0.len();
        println!(
            "{what}: {median:.3} (quartiles {low:.3}-{high:.3}, {pairs} pairs), {ours:.1} ms against {plain:.1} ms"
        );
    }
}
