//! The two losses that keep routing healthy, each a product of a differentiable tensor and a constant one.
//!
//! For a group of n real tokens, with `density[e]` the share of them whose first choice is expert e:
//!
//! ```text
//! auxiliary = E · Σ_e density[e] · mean_t p[t, e] = Σ_t Σ_e p[t, e] · (E · density[e] / n)
//! z         = mean_t logsumexp(logits[t])²        = Σ_t log_sum[t]² · (1 / n)
//! ```
//!
//! The auxiliary loss is that of GShard and Switch Transformers: mean(density × proxy) × E². Its density counts
//! first choices before any token is dropped. The z loss is that of ST-MoE (Zoph et al., 2022).
//!
//! What depends on the decision is constant, so both are one multiplication and one sum on the device. They are
//! summed over groups; a group without real tokens adds nothing. Their weight, the number of groups, belongs to
//! the model.

use burn::tensor::{Tensor, TensorData};
use epl_comm::custom_vjp;
use epl_core::carry;

use super::mask::TokenMask;
use super::router::Routed;
use super::routing::Routing;
use crate::host::{self, HostFloat, Real, View, host_float};

/// The losses of routers, each summed over groups: of one call, or of several layers.
///
/// One sequence is one group, so the weight of either is the number of sequences.
#[derive(Clone, Debug)]
pub struct RouterLosses {
    /// The load-balancing loss. Shape `[1]`.
    pub auxiliary: Tensor<1>,
    /// The z loss. Shape `[1]`.
    pub z: Tensor<1>,
}

carry!(RouterLosses { auxiliary, z });

impl RouterLosses {
    /// The sum of two layers' losses, if they have any.
    pub fn add(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(Self { auxiliary: a.auxiliary + b.auxiliary, z: a.z + b.z }),
            (a, b) => a.or(b),
        }
    }

    /// The losses of one call, where `auxiliary` is what each probability is multiplied by.
    pub(super) fn new(routed: &Routed, auxiliary: Tensor<2>, mask: &TokenMask) -> Self {
        let (z, factors) = (routed.log_sum.clone().square(), z_factors(mask));
        let factors = Tensor::from_data(TensorData::new(factors, z.dims()), (&auxiliary.device(), z.dtype()));
        Self { auxiliary: weighted_sum(routed.probabilities.clone(), auxiliary), z: weighted_sum(z, factors) }
    }
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

/// The same on the host.
pub(super) fn auxiliary_factors(routing: &Routing, experts: usize) -> Vec<f64> {
    let length = routing.mask.length();
    let mut factors = vec![0.0; routing.mask.as_slice().len() * experts];
    for (token, factors) in factors.chunks_exact_mut(experts).enumerate() {
        if !routing.mask.as_slice()[token] {
            continue;
        }
        let group = &routing.groups[token / length];
        let tokens = group.tokens as f64;
        for (factor, chosen) in factors.iter_mut().zip(&group.first_choices) {
            *factor = experts as f64 * (*chosen as f64 / tokens) / tokens;
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
