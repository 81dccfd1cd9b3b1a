//! Costs as whole numbers, so that equal sums are equal.

use super::CostError;

/// Bits that the sum of all costs may fill.
const BITS: u32 = 50;

/// Costs in one unit, a power of two, chosen so that their sum is at most 2⁵¹.
///
/// Floating sums depend on their order, so two divisions of equal cost would seem to differ. A power of two changes no
/// digit: whole numbers come through exactly where the largest times their number is below 2⁵⁰, and so do halves and
/// quarters of smaller ones. Digits beyond that share of the largest are rounded.
pub(crate) fn units(costs: &[f64]) -> Result<Vec<u64>, CostError> {
    if let Some((segment, &cost)) = costs.iter().enumerate().find(|(_, cost)| !cost.is_finite() || **cost < 0.0) {
        return Err(CostError { segment, cost });
    }
    let largest = costs.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    // The exponent's bits alone: the largest power of two that is not above `largest`.
    let power = f64::from_bits(largest.to_bits() & f64::INFINITY.to_bits());
    let room = BITS - costs.len().next_power_of_two().ilog2().min(BITS);
    let scale = (1_u64 << room) as f64;
    Ok(costs.iter().map(|cost| (cost / power * scale).round() as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_keep_their_ratios() {
        let units = units(&[1.0, 2.0, 3.0, 0.0]).unwrap();
        assert_eq!([units[0] * 2, units[0] * 3, 0], [units[1], units[2], units[3]]);
    }

    #[test]
    fn the_largest_and_the_smallest_costs_have_units() {
        assert_eq!(units(&[f64::MAX, f64::MAX]).unwrap(), [1 << 50; 2]);
        assert_eq!(units(&[0.0; 3]).unwrap(), [0; 3]);
        assert_eq!(units(&[f64::MIN_POSITIVE / 2.0, f64::MIN_POSITIVE]).unwrap(), [1 << 48, 1 << 49]);
    }

    #[test]
    fn a_cost_that_cannot_be_compared_is_named() {
        for cost in [f64::INFINITY, -1.0] {
            assert_eq!(units(&[1.0, cost]), Err(CostError { segment: 1, cost }));
        }
        let text = units(&[f64::NAN]).unwrap_err().to_string();
        assert_eq!(text, "segment 0 costs NaN; a cost must be finite and at least 0");
    }
}
