//! How replicas of unequal speed divide the rows of a batch.

/// How many rows of a batch each replica runs, so that the last one of them is done as early as possible, where so many rows take
/// `fixed + per_row · rows` at speed 1. Each has `least` rows, if there are as many, as stand-ins for them would take as long.
///
/// Rows are handed out below the time in which whole rows would come out even, as to vessels that are filled with water; what is left
/// goes to whoever is done first with one more.
pub(super) fn divide(batch: usize, speeds: &[f64], (fixed, per_row): (f64, f64), least: usize) -> Vec<usize> {
    let least = least.min(batch / speeds.len()) as f64;
    let done = |rows: f64, speed: f64| (fixed + per_row * rows) / speed;
    let within = |seconds: f64, speed: f64| ((seconds * speed - fixed) / per_row).max(least);
    let all = |seconds: f64| speeds.iter().map(|speed| within(seconds, *speed)).sum::<f64>();
    let (mut low, mut high) = (0.0, speeds.iter().map(|speed| done(batch as f64, *speed)).fold(0.0, f64::max));
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = (low + high) / 2.0;
        if all(middle) < batch as f64 { low = middle } else { high = middle }
    }
    let mut rows: Vec<usize> = speeds.iter().map(|speed| within(low, *speed) as usize).collect();
    for _ in rows.iter().sum::<usize>()..batch {
        let next = |replica: &usize| done(rows[*replica] as f64 + 1.0, speeds[*replica]);
        let first = (0..rows.len()).min_by(|one, other| next(one).total_cmp(&next(other)));
        first.into_iter().for_each(|replica| rows[replica] += 1);
    }
    rows
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// What rows take, or stand-ins for as many.
    fn done(rows: usize, speed: f64, (fixed, per_row): (f64, f64), stand_ins: usize) -> f64 {
        (fixed + per_row * rows.max(stand_ins) as f64) / speed
    }

    /// The least time of all ways to divide rows.
    fn shortest(batch: usize, speeds: &[f64], seconds: (f64, f64), stand_ins: usize) -> f64 {
        let Some((first, others)) = speeds.split_first() else { return if batch == 0 { 0.0 } else { f64::INFINITY } };
        let with = |rows: usize| {
            done(rows, *first, seconds, stand_ins).max(shortest(batch - rows, others, seconds, stand_ins))
        };
        (0..=batch).map(with).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn no_other_division_is_done_earlier() {
        assert_eq!(divide(12, &[2.0, 2.0, 1.0, 1.0], (0.0, 1.0), 1), [4, 4, 2, 2]);
        assert_eq!(divide(9, &[1.0, 1.0], (0.0, 1.0), 1).iter().sum::<usize>(), 9);
        // The slow one would be done with two rows after the other is with all.
        assert_eq!(divide(4, &[8.0, 1.0], (1.0, 1.0), 1), [3, 1]);
        assert_eq!(divide(1, &[1.0, 8.0], (1.0, 1.0), 4), [0, 1]);
        let mut numbers = ChaCha8Rng::seed_from_u64(5);
        for _ in 0..300 {
            let batch = numbers.random_range(1..14);
            let speeds: Vec<f64> = (0..numbers.random_range(1..4)).map(|_| numbers.random_range(0.3..4.0)).collect();
            let seconds = (numbers.random_range(0.0..2.0), numbers.random_range(0.2..2.0));
            let stand_ins = numbers.random_range(1..4);
            let rows = divide(batch, &speeds, seconds, stand_ins);
            assert_eq!(rows.iter().sum::<usize>(), batch);
            let took = rows.iter().zip(&speeds).map(|(rows, speed)| done(*rows, *speed, seconds, stand_ins));
            let (took, best) = (took.fold(0.0, f64::max), shortest(batch, &speeds, seconds, stand_ins));
            assert!(took <= best * (1.0 + 1e-9), "{batch} {speeds:?} {seconds:?}: {rows:?} in {took}, not {best}");
        }
    }
}
