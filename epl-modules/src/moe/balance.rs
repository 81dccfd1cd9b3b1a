//! The two losses that keep routing healthy, each a product of a differentiable tensor and a constant one.
//!
//! For a group of n real tokens, with `density[e]` the share that expert e has of the choices that the gate counts:
//!
//! ```text
//! auxiliary = E · Σ_e density[e] · mean_t p[t, e] = Σ_t Σ_e p[t, e] · (E · density[e] / n)
//! z         = mean_t logsumexp(logits[t])²        = Σ_t log_sum[t]² · (1 / n)
//! ```
//!
//! The auxiliary loss is that of GShard and Switch Transformers: mean(density × proxy) × E². Its density counts
//! choices before any token is dropped. With [`Balance::Batch`](super::Balance) the same is taken over all tokens that are run
//! together, and all layers. The z loss is that of ST-MoE (Zoph et al., 2022).
//!
//! What depends on the decision is constant, so both are one multiplication and one sum on the device. They are
//! summed over groups; a group without real tokens adds nothing. Their weight, the number of groups, belongs to
//! the model.

use burn::tensor::{Tensor, TensorData};
use epl_comm::{ReduceOp, custom_vjp, unwind};
use epl_core::{Context, carry};

use super::mask::TokenMask;
use super::router::Routed;
use super::routing::Routing;
use crate::host::{self, HostFloat, Real, View, host_float};
use crate::invalid::refuse;

/// The losses of routers, each summed over groups: of one call, or of several layers.
///
/// One sequence is one group, so the weight of either is the number of sequences.
#[derive(Clone, Debug)]
pub struct RouterLosses {
    /// The load-balancing loss. Shape `[1]`; with [`Balance::Batch`](super::Balance::Batch) what
    /// [`over_batch`](Self::over_batch) makes it of: the sum over tokens of each expert's probability, and the choices of each.
    /// Shape `[2 * experts]`.
    pub auxiliary: Tensor<1>,
    /// The z loss. Shape `[1]`.
    pub z: Tensor<1>,
}

carry!(RouterLosses { auxiliary, z });

impl RouterLosses {
    /// The sum of two layers' losses, if they have any.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when one is balanced over sequences and the other over the batch, or they have other numbers of
    /// experts.
    pub fn add(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) if a.auxiliary.dims() != b.auxiliary.dims() => {
                let sizes = [a, b].map(|losses| losses.auxiliary.dims()[0]);
                refuse(format!(
                    "the losses of routers have {sizes:?} numbers; balance all layers alike, with as many experts"
                ))
            }
            (Some(a), Some(b)) => Some(Self { auxiliary: a.auxiliary + b.auxiliary, z: a.z + b.z }),
            (a, b) => a.or(b),
        }
    }

    /// The load-balancing loss over all tokens that the replicas run together, as a sum over this replica's tokens and layers,
    /// whose number is its weight. Collective over the replicas.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use epl_core::{Pass, testing};
    /// use epl_modules::{Balance, MoeConfig, nn::Initializer};
    ///
    /// # testing::run((2, 1, 1), |epl| {
    /// #     let context = epl.context();
    /// #     context.begin(Pass { step: 0, training: true, samples: [context.data().rank() as u64].into(), empty: false });
    /// let config = MoeConfig::new(8, 16, 4).with_balance(Balance::Batch);
    /// let moe = config.with_router_initializer(Some(Initializer::Zeros)).init(&epl.place().child("moe"));
    /// let (_, losses) = moe.forward(Tensor::ones([1, 6, 8], epl.place().device()), None).into_parts();
    /// assert_eq!(losses.auxiliary.dims(), [2 * 4]); // not yet a loss
    /// let loss = losses.over_batch(context); // of the six tokens here, by the choices of both replicas
    /// // This router finds all experts as likely: one a token, whatever was chosen.
    /// assert!((loss.into_scalar::<f32>() - 6.0).abs() < 1e-4);
    /// #     Ok(())
    /// # });
    /// ```
    ///
    /// # Shapes
    ///
    /// - output: `[1]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when layers are balanced over sequences, or a peer fails.
    pub fn over_batch(&self, context: &Context) -> Tensor<1> {
        if self.auxiliary.dims()[0] < 2 {
            refuse("the losses of routers are over sequences: make the layers with Balance::Batch".to_string());
        }
        let is_stand_in = context.is_stand_in();
        custom_vjp(
            (self.auxiliary.clone(),),
            |(auxiliary,)| {
                let experts = auxiliary.dims()[0] / 2;
                let chosen = auxiliary.clone().slice([experts..2 * experts]);
                // A stand-in counts for nothing.
                let chosen = if is_stand_in { chosen.zeros_like() } else { chosen };
                let chosen = over_replicas(chosen, context);
                let factors = chosen.clone() * experts as f64 / chosen.sum().clamp_min(1.0);
                ((auxiliary.slice([0..experts]) * factors.clone()).sum(), factors)
            },
            |factors, grad| (Some(Tensor::cat(vec![factors.clone() * grad, factors.zeros_like()], 0)),),
        )
    }

    /// The losses of one call.
    pub(super) fn new(routed: &Routed, auxiliary: Tensor<1>, mask: &TokenMask) -> Self {
        let (z, factors) = (routed.log_sum.clone().square(), z_factors(mask));
        let device = z.device().without_autodiff();
        let factors = Tensor::from_data(TensorData::new(factors, z.dims()), (&device, z.dtype()));
        Self { auxiliary, z: weighted_sum(z, factors) }
    }
}

/// The sum over the replicas. Collective where there are several.
pub(super) fn over_replicas(own: Tensor<1>, context: &Context) -> Tensor<1> {
    match context.data().size() {
        1 => own,
        _ => context.data().all_reduce(own, ReduceOp::Sum).unwrap_or_else(|error| unwind(error)),
    }
}

/// The load-balancing loss of each group, summed: `factors` are those of [`auxiliary`].
pub(super) fn of_groups(routed: &Routed, factors: Tensor<2>) -> Tensor<1> {
    weighted_sum(routed.probabilities.clone(), factors)
}

/// What [`RouterLosses::over_batch`] reads: `asked` are the choices of each expert.
pub(super) fn of_batch(routed: &Routed, asked: Tensor<1>, mask: &TokenMask) -> Tensor<1> {
    let is_real: Vec<f32> = mask.as_slice().iter().map(|real| f32::from(*real)).collect();
    let is_real = TensorData::new(is_real, [1, mask.as_slice().len()]);
    custom_vjp(
        (routed.probabilities.clone(),),
        |(probabilities,)| {
            let is_real = Tensor::<2>::from_data(is_real, (&probabilities.device(), probabilities.dtype()));
            let sums = is_real.clone().matmul(probabilities).flatten(0, 1);
            (Tensor::cat(vec![sums, asked], 0), is_real)
        },
        |is_real, grad| {
            let experts = grad.dims()[0] / 2;
            (Some(is_real.transpose() * grad.slice([0..experts]).unsqueeze_dim(0)),)
        },
    )
}

/// Σ x · factor as one node of the graph; in host memory the order of the additions depends on the sizes alone.
fn weighted_sum(x: Tensor<2>, factors: Tensor<2>) -> Tensor<1> {
    custom_vjp(
        (x,),
        move |(x,)| {
            let sum = match host_float(&x) {
                Some(HostFloat::Single) => sum_host::<f32>(x, factors.clone()),
                Some(HostFloat::Double) => sum_host::<f64>(x, factors.clone()),
                None => (x * factors.clone()).sum(),
            };
            (sum, factors)
        },
        |factors, grad| (Some(factors * grad.reshape([1, 1])),),
    )
}

fn sum_host<T: Real>(x: Tensor<2>, factors: Tensor<2>) -> Tensor<1> {
    let device = x.device();
    let sum = host::dot(View::<T>::new(x).slice(), View::<T>::new(factors).slice());
    host::tensor(vec![sum], [1], &device)
}

/// What each probability is multiplied by in the auxiliary loss, where they are: `[tokens, E]`.
pub(super) fn auxiliary(routing: &Routing, probabilities: &Tensor<2>) -> Tensor<2> {
    let (dims, device) = (probabilities.dims(), probabilities.device().without_autodiff());
    let factors = TensorData::new(auxiliary_factors(routing, dims[1]), dims);
    Tensor::from_data(factors, (&device, probabilities.dtype()))
}

/// How often each expert is asked, where the probabilities are: `[E]`.
pub(super) fn asked(routing: &Routing, probabilities: &Tensor<2>) -> Tensor<1> {
    let (experts, device) = (probabilities.dims()[1], probabilities.device().without_autodiff());
    let mut asked = vec![0.0; experts];
    for group in &routing.groups {
        asked.iter_mut().zip(&group.asked).for_each(|(sum, asked)| *sum += *asked as f64);
    }
    Tensor::from_data(TensorData::new(asked, [experts]), (&device, probabilities.dtype()))
}

/// The factors of [`auxiliary`] on the host.
pub(super) fn auxiliary_factors(routing: &Routing, experts: usize) -> Vec<f64> {
    let length = routing.mask.length();
    let mut factors = vec![0.0; routing.mask.as_slice().len() * experts];
    for (token, factors) in factors.chunks_exact_mut(experts).enumerate() {
        if !routing.mask.as_slice()[token] {
            continue;
        }
        let group = &routing.groups[token / length];
        let choices = group.asked.iter().sum::<usize>() as f64;
        for (factor, asked) in factors.iter_mut().zip(&group.asked) {
            *factor = experts as f64 * (*asked as f64 / choices) / group.tokens as f64;
        }
    }
    factors
}

/// What each squared log-sum is multiplied by in the z loss: `[tokens, 1]`.
fn z_factors(mask: &TokenMask) -> Vec<f64> {
    let (real, length) = (mask.real_tokens(), mask.length());
    let tokens = mask.as_slice().iter().enumerate();
    tokens.map(|(token, is_real)| if *is_real { 1.0 / real[token / length] as f64 } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::gate::{Capacity, Gate};
    use super::super::routing::{Rules, route};
    use super::*;

    const RULES: Rules = Rules { experts: 2, gate: Gate::Switch, capacity: Capacity::Fixed(1), training: true };

    #[test]
    fn factors_are_those_of_the_formula() {
        #[rustfmt::skip]
        let rows = [
            0.75, 0.25,  0.6, 0.4,  0.3, 0.7,  0.0, 0.0,
            0.1, 0.9,    0.0, 0.0,  0.0, 0.0,  0.0, 0.0,
            0.0, 0.0,    0.0, 0.0,  0.0, 0.0,  0.0, 0.0,
        ];
        let routing = route(&rows, &TokenMask::from_lengths(&[3, 1, 0], 4), &RULES);
        let factors = auxiliary_factors(&routing, 2);
        let (two, one) = (2.0 * (2.0 / 3.0) / 3.0, 2.0 * (1.0 / 3.0) / 3.0);
        assert_eq!(factors[..8], [two, one, two, one, two, one, 0.0, 0.0]);
        assert_eq!(factors[8..], [0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let third = 1.0 / 3.0;
        assert_eq!(z_factors(&routing.mask), [third, third, third, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);

        let loss: f64 = rows.iter().zip(&factors).map(|(p, factor)| p * factor).sum();
        // Per group: E · Σ density · mean probability.
        let first = 2.0 * ((2.0 / 3.0) * ((0.75 + 0.6 + 0.3) / 3.0) + (1.0 / 3.0) * ((0.25 + 0.4 + 0.7) / 3.0));
        assert!((loss - (first + 2.0 * 0.9)).abs() < 1e-12);
    }

    #[test]
    fn an_even_router_costs_one_a_group() {
        let rows = [0.5; 16];
        let rules = Rules { experts: 4, ..RULES };
        let rows: Vec<f64> = rows.iter().map(|p| p / 2.0).collect();
        let routing = route(&rows, &TokenMask::all(2, 2), &rules);
        let loss: f64 = rows.iter().zip(auxiliary_factors(&routing, 4)).map(|(p, factor)| p * factor).sum();
        assert!((loss - 2.0).abs() < 1e-12);
    }
}
