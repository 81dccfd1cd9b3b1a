//! The routing decision: which token goes to which expert. Plain numbers in, a plain value out.
//!
//! ```text
//! probabilities [tokens, E] ─┐
//! mask of real tokens ───────┤ route ─> Routing { assignments, sorted by expert, then token;
//! gate, capacity ────────────┘                    first choices and real tokens of every group; dropped }
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
    /// The other expert that takes this token, if there is one.
    pub partner: Option<usize>,
}

/// What one group contributes to the losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many of its tokens are real.
    pub tokens: usize,
    /// How many real tokens have each expert as first choice, before any is dropped.
    pub first_choices: Vec<usize>,
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
    let firsts: Vec<usize> = real.iter().map(|token| largest(row(*token), None)).collect();
    let mut first_choices = vec![0; rules.experts];
    firsts.iter().for_each(|expert| first_choices[*expert] += 1);
    routing.groups.push(Group { tokens: real.len(), first_choices });

    let capacity = rules.capacity.of_group(real.len(), rules.experts, rules.gate, rules.training);
    let mut taken = vec![0; rules.experts];
    // The position of a choice is the number of choices before it. Once it reaches the capacity, so does every
    // later one: counting the granted choices decides the same.
    let mut grant = |expert: usize| {
        let granted = taken[expert] < capacity;
        taken[expert] += usize::from(granted);
        routing.dropped += usize::from(!granted);
        granted.then_some(expert)
    };
    let first: Vec<Option<usize>> = firsts.iter().map(|expert| grant(*expert)).collect();
    let second: Vec<Option<usize>> = match rules.gate {
        Gate::Switch => vec![None; real.len()],
        Gate::Top2 => {
            let seconds = real.iter().zip(&firsts).map(|(token, first)| largest(row(*token), Some(*first)));
            seconds.map(grant).collect()
        }
    };
    for ((token, first), second) in real.iter().zip(first).zip(second) {
        let assign = |expert, partner| Assignment { expert, token: *token, partner };
        routing.assignments.extend(first.map(|expert| assign(expert, second)));
        routing.assignments.extend(second.map(|expert| assign(expert, first)));
    }
}

/// The index of the largest number, the lowest one of equals, leaving one out.
fn largest(row: &[f64], without: Option<usize>) -> usize {
    let mut candidates = (0..row.len()).filter(|index| Some(*index) != without);
    let start = candidates.next().expect("the gate asks for no more experts than there are: checked by `init`");
    candidates.fold(start, |best, index| {
        let greater = row[index] > row[best] || (row[best].is_nan() && !row[index].is_nan());
        if greater { index } else { best }
    })
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
