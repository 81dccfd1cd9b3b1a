//! Bounds from a price for kept bytes.
//!
//! Bytes and cost weighed together are one number, and the least of one number over all choices is easily found. It
//! bounds every choice that keeps within the limit: where even the least weight is above that of the limit and the
//! best known cost together, nothing better is to be found.
//!
//! ```text
//! cost │ g                g  cheapest, keeps too much     f  keeps little enough, dear
//!      │  \               The line through both is the price; while some choice lies below it,
//!      │   \ m            that one takes the place of g or of f.
//!      │    └──── f
//!      └───────┼──── kept
//!            limit
//! ```

use super::chain::CostChain;

/// How much a kept byte and a unit of cost weigh.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    byte: u128,
    cost: u128,
}

impl Price {
    /// Only bytes count.
    pub(super) const BYTES: Self = Self { byte: 1, cost: 0 };
    /// Only cost counts.
    const COST: Self = Self { byte: 0, cost: 1 };

    /// Bytes are below 2⁶⁴ and costs below 2⁵², so products of two stay below 2¹¹⁶.
    fn of(self, kept: u64, cost: u64) -> u128 {
        self.byte * u128::from(kept) + self.cost * u128::from(cost)
    }
}

/// The lightest choice for the segments from a boundary on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    weight: u128,
    pub(super) kept: u64,
    cost: u64,
}

/// The lightest choice from every boundary, 0 to n, with no run above `cap`.
pub(super) fn tails(chain: &CostChain, cap: u64, price: Price) -> Vec<Tail> {
    let mut tails = vec![Tail { weight: 0, kept: 0, cost: 0 }; chain.len() + 1];
    for start in (0..chain.len()).rev() {
        let ways = chain.steps(start, cap).map(|step| {
            let rest = tails[step.end];
            let weight = rest.weight + price.of(step.kept, step.cost);
            Tail { weight, kept: rest.kept + step.kept, cost: rest.cost + step.cost }
        });
        // Of equal weight the cheaper: a price of bytes alone would take anything.
        if let Some(lightest) = ways.min_by_key(|tail| (tail.weight, tail.cost, tail.kept)) {
            tails[start] = lightest;
        }
    }
    tails
}

/// Tells which beginnings of a choice may still end in one that keeps within the limit and costs no more than the best
/// that is known.
pub(super) struct Bound {
    /// The largest run, in bytes.
    pub(super) cap: u64,
    /// What may be kept.
    limit: u64,
    /// The fewest bytes from each boundary on.
    fewest: Vec<Tail>,
    price: Price,
    /// The least weight from each boundary on.
    lightest: Vec<Tail>,
    /// What a choice costs that keeps within the limit, not always the cheapest.
    pub(super) known: u64,
}

impl Bound {
    /// For runs of at most `cap` bytes beside `limit` kept bytes; none where every choice keeps more.
    pub(super) fn under(chain: &CostChain, cap: u64, limit: u64) -> Option<Self> {
        let fewest = tails(chain, cap, Price::BYTES);
        let mut fits = fewest[0];
        if fits.kept > limit {
            return None;
        }
        let mut price = Price::COST;
        let mut lightest = tails(chain, cap, price);
        let mut exceeds = lightest[0];
        if exceeds.kept <= limit {
            return Some(Self { cap, limit, fewest, price, lightest, known: exceeds.cost });
        }
        loop {
            // One keeps less and the other costs no more, so neither difference is below 0.
            price = Price { byte: u128::from(fits.cost - exceeds.cost), cost: u128::from(exceeds.kept - fits.kept) };
            lightest = tails(chain, cap, price);
            let middle = lightest[0];
            if middle.weight == price.of(fits.kept, fits.cost) {
                return Some(Self { cap, limit, fewest, price, lightest, known: fits.cost });
            }
            if middle.kept <= limit { fits = middle } else { exceeds = middle }
        }
    }

    /// What every choice costs at least.
    pub(super) fn floor(&self) -> u64 {
        let cost = self.lightest[0].weight.saturating_sub(self.price.of(self.limit, 0)).div_ceil(self.price.cost);
        // Never above `known`, whose weight is no less than the lightest and whose bytes are within the limit.
        cost as u64
    }

    /// Whether a choice that has kept and cost this much up to a boundary may still end no dearer than `best`.
    pub(super) fn allows(&self, boundary: usize, kept: u64, cost: u64, best: u64) -> bool {
        kept + self.fewest[boundary].kept <= self.limit
            && self.price.of(kept, cost) + self.lightest[boundary].weight <= self.price.of(self.limit, best)
    }
}
