//! The routing decision: which token goes to which expert. Plain numbers in, a plain value out.
//!
//! ```text
//! probabilities [tokens, E] ─┐
//! mask of real tokens ───────┤ route ─> Routing { assignments, sorted by expert, then token;
//! gate, capacity ────────────┘                    choices and real tokens of every group; dropped }
//! ```
//!
//! A group is one sequence. Capacity, positions and dropping never look across its border, so neither the cut of
//! the batch over replicas and micro-batches nor the padded length can change which tokens are dropped.
//!
//! The decision is a value: kept, it can be replayed when a segment is computed again, so that recomputation
//! cannot send a token elsewhere.

use super::gate::{Capacity, Gate};
use super::mask::TokenMask;

/// How tokens are routed.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How many experts there are: E.
    pub experts: usize,
    /// How many of them a token asks for.
    pub gate: Gate,
    /// How many tokens of a group an expert takes.
    pub capacity: Capacity,
    /// Whether the capacity is that of training.
    pub training: bool,
}

/// A token that an expert takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The expert.
    pub expert: usize,
    /// The token, counted through the whole batch.
    pub token: usize,
}

/// What one group contributes to the losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many of its tokens are real.
    pub tokens: usize,
    /// How many of the choices that the load-balancing loss counts each expert is, before any is dropped.
    pub asked: Vec<usize>,
}

/// Which token goes to which expert, in one call of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// What the experts take, sorted by expert, then by token.
    pub assignments: Vec<Assignment>,
    /// One entry a group.
    pub groups: Vec<Group>,
    /// The tokens that were routed.
    pub mask: TokenMask,
    /// How many choices were not granted because their expert was full.
    pub dropped: usize,
}

impl Routing {
    /// How many tokens each of `experts` takes.
    pub fn counts(&self, experts: usize) -> Vec<usize> {
        let mut counts = vec![0; experts];
        self.assignments.iter().for_each(|assignment| counts[assignment.expert] += 1);
        counts
    }
}

/// Decides where every real token goes.
///
/// `probabilities` has one row of `rules.experts` numbers for every token of `mask`. Of equal probabilities the
/// lower expert wins; one that is not a number never wins over one that is.
///
/// ```
/// use epl_modules::moe::routing::{Rules, route};
/// use epl_modules::moe::{Capacity, Gate, TokenMask};
///
/// // Two sequences of two tokens; the last token is padding.
/// let probabilities = [0.9, 0.1, 0.7, 0.3, 0.2, 0.8, 0.5, 0.5];
/// let mask = TokenMask::from_lengths(&[2, 1], 2);
/// let rules = Rules { experts: 2, gate: Gate::Switch, capacity: Capacity::Fixed(1), training: true };
/// let routing = route(&probabilities, &mask, &rules);
/// assert_eq!(routing.counts(2), [1, 1]);
/// assert_eq!(routing.dropped, 1); // the second token of the first sequence
/// ```
///
/// # Panics
///
/// When there is not one row for every token, or there are fewer experts than the gate asks for.
pub fn route(probabilities: &[f64], mask: &TokenMask, rules: &Rules) -> Routing {
    let tokens = mask.as_slice().len();
    assert_eq!(probabilities.len(), tokens * rules.experts, "one row of probabilities for every token of the mask");
    let mut routing = Routing { assignments: Vec::new(), groups: Vec::new(), mask: mask.clone(), dropped: 0 };
    for group in 0..mask.groups() {
        let first = group * mask.length();
        let real: Vec<usize> = (first..first + mask.length()).filter(|token| mask.as_slice()[*token]).collect();
        route_group(probabilities, &real, rules, &mut routing);
    }
    routing.assignments.sort_unstable_by_key(|assignment| (assignment.expert, assignment.token));
    routing
}

/// Routes the real tokens of one group.
fn route_group(probabilities: &[f64], real: &[usize], rules: &Rules, routing: &mut Routing) {
    let row = |token: usize| &probabilities[token * rules.experts..][..rules.experts];
    let capacity = rules.capacity.of_group(real.len(), rules.experts, rules.gate, rules.training);
    let mut chosen: Vec<Vec<usize>> = vec![Vec::with_capacity(rules.gate.choices()); real.len()];
    let (mut asked, mut taken) = (vec![0; rules.experts], vec![0; rules.experts]);
    for choice in 0..rules.gate.choices() {
        for (token, chosen) in real.iter().zip(&mut chosen) {
            let expert = largest(row(*token), chosen);
            chosen.push(expert);
            asked[expert] += usize::from(choice < rules.gate.balanced());
            // The position of a choice is the number of choices before it. Once it reaches the capacity, so does every
            // later one: counting the granted choices decides the same.
            if taken[expert] < capacity {
                taken[expert] += 1;
                routing.assignments.push(Assignment { expert, token: *token });
            } else {
                routing.dropped += 1;
            }
        }
    }
    routing.groups.push(Group { tokens: real.len(), asked });
}

/// The index of the largest number, the lowest one of equals, leaving some out.
fn largest(row: &[f64], without: &[usize]) -> usize {
    let mut candidates = (0..row.len()).filter(|index| !without.contains(index));
    let start = candidates.next().expect("the gate asks for no more experts than there are: checked by `init`");
    candidates.fold(start, |best, index| {
        let greater = row[index] > row[best] || (row[best].is_nan() && !row[index].is_nan());
        if greater { index } else { best }
    })
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
