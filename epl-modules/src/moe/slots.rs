//! The routing decision on a device: every expert has a fixed room, so that the host need not know who takes it.
//!
//! ```text
//! rows of expert e:   group 0         group 1     ...       each group as many rows as its capacity, filled from the first
//!                     t3 t5 t8  ·     t11 t12               · stays empty: a row of zeros
//! ```
//!
//! The rules are those of [`routing`](super::routing), whose [`route`](super::routing::route) is the reference. Capacities
//! come from the mask, which the host knows; who is chosen, and which place it gets, are indices that are computed where the
//! probabilities are. The rows travel and are multiplied with the empty ones among them, as in GShard (Lepikhin et al., 2020).

use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use epl_core::model::precision::in_wide;

use super::balance;
use super::gate::Gate;
use super::listed::least;
use super::mask::TokenMask;
use super::moving::{moved, numbers, or_zeros};
use super::routing::{Routing, Rules};

/// Which token goes to which expert, in one call of one layer, as indices on a device.
#[derive(Clone, Debug)]
pub struct Slots {
    /// The tokens that were routed.
    pub(super) mask: TokenMask,
    /// The rows of each expert, empty ones among them.
    pub(super) counts: Vec<usize>,
    /// What each probability is multiplied by in the auxiliary loss. Shape `[tokens, experts]`.
    pub(super) auxiliary: Tensor<2>,
    /// How often each expert is asked, of the choices that the load-balancing loss counts. Shape `[experts]`.
    pub(super) asked: Tensor<1>,
    /// The token of each row, the number of tokens where it is empty. Shape `[rows]`.
    tokens: Tensor<1, Int>,
    choices: Vec<Choice>,
    gate: Gate,
}

/// One of the choices of every token: the first, the second, and so on.
#[derive(Clone, Debug)]
struct Choice {
    /// The expert. Shape `[tokens, 1]`.
    expert: Tensor<2, Int>,
    /// Whether it takes the token. Shape `[tokens, 1]`.
    is_taken: Tensor<2, Bool>,
    /// The row of each token, the number of rows where it has none. Shape `[tokens]`.
    rows: Tensor<1, Int>,
    /// The token of each row, the number of tokens where it is empty or of the other choice. Shape `[rows]`.
    tokens: Tensor<1, Int>,
}

/// What is counted of a decision.
pub(super) struct Tally {
    /// What each expert takes. Shape `[experts]`.
    pub taken: Tensor<1>,
    /// The choices that found their expert full. Shape `[1]`.
    pub dropped: Tensor<1>,
}

impl Slots {
    /// So many rows for each choice of a real token pay: beyond, the empty ones cost more than a wait.
    const ROOM: usize = 2;
    /// So many rows pay whatever the tokens: a device multiplies them while the host would wait for it.
    const FEW: usize = 4096;

    /// Whether the experts' room is so small that it pays to fill it with zeros.
    pub(super) fn pay(mask: &TokenMask, rules: &Rules) -> bool {
        let real = mask.real_tokens();
        let rows = heights(&real, rules).iter().sum::<usize>().saturating_mul(rules.experts);
        rows <= (Self::ROOM * rules.gate.choices() * real.iter().sum::<usize>()).max(Self::FEW)
    }

    /// Decides by these probabilities, of shape `[tokens, experts]`, without a graph.
    pub(super) fn new(probabilities: Tensor<2>, mask: TokenMask, rules: &Rules) -> (Self, Tally) {
        let room = Room::new(&mask, rules, &probabilities.device());
        let scores = probabilities.clone().mask_fill(probabilities.clone().is_nan(), f64::NEG_INFINITY);
        let (mut choices, mut chosen, mut asked) = (Vec::with_capacity(rules.gate.choices()), None, Vec::new());
        for _ in 0..rules.gate.choices() {
            let (expert, asks) = room.choose(scores.clone(), chosen.clone());
            let is_expert = room.is_expert(&expert);
            chosen = Some(chosen.map_or(is_expert.clone(), |chosen: Tensor<2, Bool>| chosen.bool_or(is_expert)));
            // Later choices take the places that earlier ones leave.
            choices.push(room.place(expert, asks.clone(), &asked));
            asked.push(asks);
        }
        let of_choice = |choice: &Choice| {
            let taken = room.is_expert(&choice.expert).bool_and(room.wide(&choice.is_taken));
            taken.float().cast(probabilities.dtype())
        };
        let taken = choices.iter().map(of_choice).reduce(|sum, next| sum + next).expect("one choice at least");
        let real: usize = room.real.iter().sum();
        let taken = taken.sum_dim(0).reshape([rules.experts]);
        let tally = Tally { dropped: taken.clone().sum().neg() + (rules.gate.choices() * real) as f64, taken };
        let counted = |asks: &Tensor<2, Bool>| asks.clone().float().cast(probabilities.dtype());
        let asked = asked.iter().take(rules.gate.balanced()).map(counted).reduce(|sum, next| sum + next);
        let asked = asked.expect("one choice at least");
        let slots = Self {
            counts: vec![room.height; rules.experts],
            auxiliary: room.auxiliary(asked.clone(), rules.gate),
            asked: asked.sum_dim(0).reshape([rules.experts]),
            gate: rules.gate,
            tokens: choices.iter().map(|choice| choice.tokens.clone()).reduce(Tensor::min_pair).expect("as above"),
            choices,
            mask,
        };
        (slots, tally)
    }

    /// A decision of the host, without empty rows.
    pub(super) fn listed(routing: &Routing, gate: Gate, probabilities: &Tensor<2>) -> Self {
        let ([tokens, experts], rows) = (probabilities.dims(), routing.assignments.len());
        let device = &probabilities.device().without_autodiff();
        let empty = (vec![0; tokens], vec![false; tokens], vec![rows; tokens], vec![tokens; rows]);
        let mut lists = vec![empty; gate.choices()];
        for (row, one) in routing.assignments.iter().enumerate() {
            let free = lists.iter_mut().find(|(_, is_taken, ..)| !is_taken[one.token]);
            let (experts, is_taken, rows, tokens) = free.expect("a token has as many experts as choices at most");
            (experts[one.token], is_taken[one.token], rows[one.token], tokens[row]) =
                (one.expert, true, row, one.token);
        }
        let choice = |(experts, is_taken, rows, of_rows): (Vec<usize>, Vec<bool>, _, _)| Choice {
            expert: numbers(experts, device).unsqueeze_dim(1),
            is_taken: Tensor::<1, Bool>::from_data(TensorData::new(is_taken, [tokens]), device).unsqueeze_dim(1),
            rows: numbers(rows, device),
            tokens: numbers(of_rows, device),
        };
        Self {
            mask: routing.mask.clone(),
            counts: routing.counts(experts),
            auxiliary: balance::auxiliary(routing, probabilities),
            asked: balance::asked(routing, probabilities),
            gate,
            tokens: numbers(routing.assignments.iter().map(|one| one.token).collect(), device),
            choices: lists.into_iter().map(choice).collect(),
        }
    }

    /// The tokens that the experts take, and zeros in the empty rows. Differentiable.
    ///
    /// # Shapes
    ///
    /// - x: `[tokens, d_model]`
    /// - output: `[rows, d_model]`
    pub(super) fn rows_of(&self, x: Tensor<2>) -> Tensor<2> {
        moved(x, self.tokens.clone(), self.choices.iter().map(|choice| choice.rows.clone()).collect())
    }

    /// A number of every token and expert, in the order of the rows; zero for the empty ones.
    ///
    /// # Shapes
    ///
    /// - of_tokens: `[tokens, experts]`
    /// - output: `[rows]`
    pub(super) fn numbers_of(&self, of_tokens: Tensor<2, Int>) -> Tensor<1, Int> {
        let ([tokens, experts], device) = (of_tokens.dims(), of_tokens.device());
        let of_row = self.counts.iter().enumerate().flat_map(|(expert, count)| std::iter::repeat_n(expert, *count));
        let place = self.tokens.clone() * experts as i64 + numbers(of_row.collect(), &device);
        let place = place.clamp_max((tokens * experts) as i64);
        or_zeros(of_tokens.flatten(0, 1), place)
    }

    /// Adds each row, times its weight, to the row of its token, in f32 at least. Differentiable in both.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows, d_model]`
    /// - probabilities: `[tokens, experts]`
    /// - output: `[tokens, d_model]`
    pub(super) fn combine(&self, rows: Tensor<2>, probabilities: Tensor<2>) -> Tensor<2> {
        in_wide(rows, |rows| {
            let weights = self.weights(probabilities.cast(rows.dtype()));
            let of = |choice: &Choice| moved(rows.clone(), choice.rows.clone(), vec![choice.tokens.clone()]);
            let sums = self.choices.iter().zip(weights).map(|(choice, weight)| of(choice) * weight);
            sums.reduce(|sum, next| sum + next).expect("one choice at least")
        })
    }

    /// The weight of each choice of each token, as [`weights`](super::listed::weights) has it. Shape `[tokens, 1]` each.
    fn weights(&self, probabilities: Tensor<2>) -> Vec<Tensor<2>> {
        // What is not taken weighs nothing, also where its probability is no number.
        let own = |choice: &Choice| {
            let own = probabilities.clone().gather(1, choice.expert.clone());
            own.mask_fill(choice.is_taken.clone().bool_not(), 0.0)
        };
        let weights: Vec<Tensor<2>> = self.choices.iter().map(own).collect();
        if !self.gate.renormalises() {
            return weights;
        }
        let count = |choice: &Choice| choice.is_taken.clone().int();
        let count = self.choices.iter().map(count).reduce(|sum, next| sum + next).expect("one choice at least");
        let total = weights.iter().cloned().reduce(|sum, next| sum + next).expect("as above");
        // As there: equal shares where one takes the token, or nothing can be divided by the sum.
        let is_small = total.clone().detach().lower_elem(least(total.dtype()));
        let is_equal = count.clone().lower_elem(2).bool_or(is_small);
        let equal = count.clamp_min(1).float().cast(total.dtype()).recip();
        let equal = if total.is_autodiff() { Tensor::from_inner(equal) } else { equal };
        let total = total.mask_fill(is_equal.clone(), 1.0);
        let share = |(choice, weight): (&Choice, Tensor<2>)| {
            let is_equal = choice.is_taken.clone().bool_and(is_equal.clone());
            (weight / total.clone()).mask_where(is_equal, equal.clone())
        };
        self.choices.iter().zip(weights).map(share).collect()
    }
}

/// The room of the experts, and the choices of a batch.
struct Room {
    groups: usize,
    length: usize,
    experts: usize,
    /// The rows of an expert.
    height: usize,
    /// The most that an expert has for one group.
    highest: usize,
    /// The number of each expert. Shape `[1, experts]`.
    numbers: Tensor<2, Int>,
    /// Shape `[tokens, 1]`.
    is_real: Tensor<2, Bool>,
    /// How many tokens of its group an expert takes. Shape `[tokens, 1]`.
    limits: Tensor<2, Int>,
    /// The first row of its group among those of an expert. Shape `[tokens, 1]`.
    starts: Tensor<2, Int>,
    /// Of all rows, the place in a table `[groups, experts * highest + 1]`. Shape `[rows]`.
    places: Tensor<1, Int>,
    /// How many real tokens each group has.
    real: Vec<usize>,
}

impl Room {
    fn new(mask: &TokenMask, rules: &Rules, device: &Device) -> Self {
        let (groups, length, experts) = (mask.groups(), mask.length(), rules.experts);
        let real = mask.real_tokens();
        let heights = heights(&real, rules);
        let (height, highest) = (heights.iter().sum(), heights.iter().copied().max().unwrap_or(0));
        let starts = heights.iter().scan(0, |next, height| Some(std::mem::replace(next, *next + height)));
        let of_tokens = |of_groups: Vec<usize>| {
            let each = of_groups.into_iter().flat_map(|number| std::iter::repeat_n(number, length)).collect();
            numbers(each, device).unsqueeze_dim(1)
        };
        let of_expert = |expert: usize| {
            let of_group = move |(group, height): (usize, &usize)| {
                let first = group * (experts * highest + 1) + expert * highest;
                first..first + height
            };
            heights.iter().enumerate().flat_map(of_group)
        };
        let is_real = TensorData::new(mask.as_slice().to_vec(), [groups * length, 1]);
        Self {
            limits: of_tokens(heights.clone()),
            starts: of_tokens(starts.collect()),
            places: numbers((0..experts).flat_map(of_expert).collect(), device),
            numbers: numbers((0..experts).collect(), device).unsqueeze_dim(0),
            is_real: Tensor::from_data(is_real, device),
            real,
            groups,
            length,
            experts,
            height,
            highest,
        }
    }

    fn tokens(&self) -> usize {
        self.groups * self.length
    }

    /// A truth of each token, for all experts.
    fn wide(&self, of_tokens: &Tensor<2, Bool>) -> Tensor<2, Bool> {
        of_tokens.clone().expand([self.tokens(), self.experts])
    }

    /// Whether each expert is that of the token. Shape `[tokens, experts]`.
    fn is_expert(&self, expert: &Tensor<2, Int>) -> Tensor<2, Bool> {
        let shape = [self.tokens(), self.experts];
        self.numbers.clone().expand(shape).equal(expert.clone().expand(shape))
    }

    /// The expert of the largest score, the lowest one of equals, leaving some out; and which expert each real token asks.
    fn choose(&self, scores: Tensor<2>, without: Option<Tensor<2, Bool>>) -> (Tensor<2, Int>, Tensor<2, Bool>) {
        let shape = scores.dims();
        let scores = match &without {
            Some(without) => scores.mask_fill(without.clone(), f64::NEG_INFINITY),
            None => scores,
        };
        let largest = scores.clone().max_dim(1).expand(shape);
        let is_largest = match without {
            Some(without) => scores.equal(largest).bool_and(without.bool_not()),
            None => scores.equal(largest),
        };
        let numbers = self.numbers.clone().expand(shape);
        let expert = numbers.mask_fill(is_largest.bool_not(), self.experts as i64 - 1).min_dim(1);
        let asked = self.is_expert(&expert).bool_and(self.wide(&self.is_real));
        (expert, asked)
    }

    /// Gives each token that asks an expert its place, behind those of its group that have `asked` before.
    fn place(&self, expert: Tensor<2, Int>, asks: Tensor<2, Bool>, asked: &[Tensor<2, Bool>]) -> Choice {
        let Self { groups, length, experts, highest, .. } = *self;
        let in_groups = |asks: Tensor<2, Bool>| asks.int().reshape([groups, length, experts]);
        let asks = in_groups(asks);
        let mut before = prefix_sums(asks.clone()) - asks.clone();
        for asked in asked {
            before = before + in_groups(asked.clone()).sum_dim(1).expand([groups, length, experts]);
        }
        // Choices that were not granted count as well: an expert that is full stays full.
        let position = (before * asks).sum_dim(2).reshape([self.tokens(), 1]);
        let is_taken = position.clone().lower(self.limits.clone()).bool_and(self.is_real.clone());
        let is_dropped = is_taken.clone().bool_not();
        let row = expert.clone() * self.height as i64 + self.starts.clone() + position.clone();
        let rows = row.mask_fill(is_dropped.clone(), (self.height * experts) as i64);
        let place = expert.clone() * highest as i64 + position;
        let place = place.mask_fill(is_dropped, (experts * highest) as i64).reshape([groups, length]);
        // From one on, as zero is an empty place; who is dropped meets in the last column, which nobody reads.
        let named = numbers((1..=self.tokens()).collect(), &place.device()).reshape([groups, length]);
        let table = Tensor::<2, Int>::zeros([groups, experts * highest + 1], (&place.device(), named.dtype()));
        let table = table.scatter(1, place, named, IndexingUpdateOp::Add).flatten::<1>(0, 1);
        let tokens = table.select(0, self.places.clone()) - 1;
        let is_empty = tokens.clone().lower_elem(0);
        let tokens = tokens.mask_fill(is_empty, self.tokens() as i64);
        Choice { expert, is_taken, rows: rows.flatten(0, 1), tokens }
    }

    /// Experts · density ÷ real tokens of the group, for each of its real tokens. `asked` counts who asks: `[tokens, experts]`.
    fn auxiliary(&self, asked: Tensor<2>, gate: Gate) -> Tensor<2> {
        let Self { groups, length, experts, .. } = *self;
        let (device, dtype) = (asked.device(), asked.dtype());
        let a_choice = |real: &usize| match real {
            0 => 0.0,
            real => experts as f64 / (gate.balanced() * real * real) as f64,
        };
        let a_choice: Vec<f64> = self.real.iter().map(a_choice).collect();
        let a_choice = Tensor::<3>::from_data(TensorData::new(a_choice, [groups, 1, 1]), (&device, dtype));
        let asked = asked.reshape([groups, length, experts]).sum_dim(1);
        let factors = (asked * a_choice).expand([groups, length, experts]).reshape([self.tokens(), experts]);
        factors.mask_fill(self.wide(&self.is_real).bool_not(), 0.0)
    }
}

/// The sums along dim 1 up to each element, in blocks: on a device each sum reads all elements before it.
fn prefix_sums(x: Tensor<3, Int>) -> Tensor<3, Int> {
    const BLOCK: usize = 64;
    let [groups, length, width] = x.dims();
    if length <= BLOCK {
        return x.cumsum(1);
    }
    let blocks = length.div_ceil(BLOCK);
    let padding = Tensor::zeros([groups, blocks * BLOCK - length, width], (&x.device(), x.dtype()));
    let x = Tensor::cat(vec![x, padding], 1).reshape([groups, blocks, BLOCK, width]);
    let of_blocks = x.clone().sum_dim(2);
    let before = of_blocks.clone().cumsum(1) - of_blocks;
    let sums = x.cumsum(2) + before.expand([groups, blocks, BLOCK, width]);
    sums.reshape([groups, blocks * BLOCK, width]).narrow(1, 0, length)
}

/// The rows that an expert has for each group, of which these are the real tokens: no more than those, and one at least in all.
fn heights(real: &[usize], rules: &Rules) -> Vec<usize> {
    let capacity = |real: &usize| rules.capacity.of_group(*real, rules.experts, rules.gate, rules.training).min(*real);
    let mut heights: Vec<usize> = real.iter().map(capacity).collect();
    if heights.iter().all(|height| *height == 0) {
        heights.iter_mut().take(1).for_each(|height| *height = 1);
    }
    heights
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
