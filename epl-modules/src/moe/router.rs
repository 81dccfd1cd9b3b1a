//! The router: a linear map from a token to one number an expert.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::{DType, Tensor, TensorData};
use epl_comm::unwind;
use epl_core::model::precision::widen;
use epl_core::offload::is_host;
use epl_core::{Context, Place};

use super::config::MoeConfig;
use crate::host;
use crate::invalid::{check_last_dim, refuse};
use crate::linear::{affine, count_affine};
use crate::placement::REPLICATED;
use crate::random::{Noise, Row, uniforms_on_device};

/// Scores every expert for every token, in at least 32 bits: the "selective precision" of Switch Transformers.
///
/// The weights are whole on every rank, without bias.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::MoeConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let router = MoeConfig::new(8, 16, 4).init(&epl.place().child("moe")).router;
///     let routed = router.forward(Tensor::ones([2, 3, 8], epl.place().device())); // six tokens
///     assert_eq!((routed.probabilities.dims(), routed.log_sum.dims()), ([6, 4], [6, 1]));
///     assert!((routed.probabilities.sum().into_scalar::<f32>() - 6.0).abs() < 1e-4); // of each token one
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Router {
    /// Shape `[d_model, experts]`.
    pub weight: Param<Tensor<2>>,
    /// The width of the tokens.
    pub d_model: usize,
    /// How many experts there are, over all ranks.
    pub experts: usize,
    /// While training, the input is multiplied by noise in `[1 - jitter, 1 + jitter)`, rounded to f32; a device draws what the host
    /// does but for its last digits.
    pub jitter: f64,
    #[module(skip)]
    key: u64,
    #[module(skip)]
    context: Context,
}

/// What the router says about every token of a batch, row after row.
#[derive(Clone, Debug)]
pub struct Routed {
    /// The probability of each expert. Shape `[batch * seq, experts]`.
    pub probabilities: Tensor<2>,
    /// The logarithm of the sum of the exponentials of the logits. Shape `[batch * seq, 1]`.
    pub log_sum: Tensor<2>,
}

impl Routed {
    /// The probabilities of the first of the ranks that run these rows, without a graph. Collective.
    ///
    /// Whole weights give the same numbers on every rank; should they ever differ by one bit, two ranks would send
    /// one token to different experts and add what does not belong together.
    pub(super) fn agree(&self, context: &Context) -> Tensor<2> {
        context.same_rows().broadcast(self.probabilities.clone().inner(), 0).unwrap_or_else(|error| unwind(error))
    }
}

impl Router {
    pub(super) fn new(config: &MoeConfig, place: &Place) -> Self {
        let normal = || MoeConfig::fan_in_normal(config.d_model);
        let initializer = config.router_initializer.clone().unwrap_or_else(normal);
        Self {
            weight: place.full_precision(place.param([config.d_model, config.experts], initializer)),
            d_model: config.d_model,
            experts: config.experts,
            jitter: config.jitter,
            key: place.layer_key("router"),
            context: place.context().clone(),
        }
    }

    /// Scores every expert.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - probabilities: `[batch * seq, experts]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the tokens have another width.
    pub fn forward(&self, x: Tensor<3>) -> Routed {
        check_last_dim("router", ("d_model", self.d_model), x.dims());
        let [batch, length, width] = x.dims();
        count_affine(&self.context, self.weight.id, x.dims(), self.experts);
        let x = self.shake(widen(x));
        let weight = self.weight.val().cast(x.dtype());
        let logits = affine(x.reshape([batch * length, width]), weight, None);
        // The softmax does not change when a constant is taken off, so the largest one needs no gradient.
        let largest = logits.clone().detach().max_dim(1);
        let exponentials = (logits - largest.clone()).exp();
        let sum = exponentials.clone().sum_dim(1);
        Routed { probabilities: exponentials / sum.clone(), log_sum: sum.log() + largest }
    }

    /// Multiplies what the router reads, and only that, by noise in `[1 - jitter, 1 + jitter)` while training.
    fn shake(&self, x: Tensor<3>) -> Tensor<3> {
        if self.jitter == 0.0 || !self.context.is_training() {
            return x;
        }
        let shape = x.dims();
        let samples = self.context.samples();
        if samples.len() != shape[0] {
            refuse(format!("the router got {} sequences, but the micro-batch has {} samples", shape[0], samples.len()));
        }
        let noise = Noise::next_call(&self.context, self.key);
        let rows = rows_of(noise, &samples, shape[1]);
        let (range, device) = (2.0 * self.jitter, x.device());
        let factors = if is_host(&device) {
            let values = jitter_factors(&rows, shape[2], self.jitter);
            Tensor::from_data(TensorData::new(values, shape), (&device, x.dtype()))
        } else {
            let names = TensorData::new(rows.iter().map(|row| row.to_number()).collect::<Vec<_>>(), [rows.len()]);
            let names = Tensor::from_data(names, (&device, DType::I64));
            let factors = uniforms_on_device(names, 0, shape[2]) * range + (1.0 - self.jitter);
            factors.cast(x.dtype()).reshape(shape)
        };
        x * factors
    }
}

impl ModuleDisplay for Router {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("experts", &self.experts)
            .add("jitter", &self.jitter)
            .add("placement", REPLICATED)
            .optional()
    }
}

/// A row of random numbers a token: they belong to the sample and the position, never to the rank.
fn rows_of(noise: Noise, samples: &[u64], length: usize) -> Vec<Row> {
    samples.iter().flat_map(|sample| (0..length).map(|token| noise.sample(*sample).at(token))).collect()
}

/// One factor an element of these rows.
fn jitter_factors(rows: &[Row], width: usize, jitter: f64) -> Vec<f32> {
    let factor = |uniform: f64| (1.0 - jitter + 2.0 * jitter * uniform) as f32;
    host::new_blocks(rows.len() * width, width, |row, factors| {
        factors.iter_mut().enumerate().for_each(|(element, value)| *value = factor(rows[row].uniform(element)));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_belongs_to_the_sample_and_stays_in_its_range() {
        let noise = Noise::new(1, 2, 3, 0);
        let jitter_factors = |noise, samples: &[u64], length, width| {
            super::jitter_factors(&rows_of(noise, samples, length), width, 0.25)
        };
        let whole = jitter_factors(noise, &[7, 8], 3, 5);
        assert!(whole.iter().all(|factor| (0.75..=1.25).contains(factor)));
        assert!(whole.iter().any(|factor| *factor < 0.9) && whole.iter().any(|factor| *factor > 1.1));
        // Sample 8 alone, padded further.
        let alone = jitter_factors(noise, &[8], 6, 5);
        assert_eq!(whole[15..], alone[..15]);
        assert_ne!(whole, jitter_factors(Noise::new(1, 3, 3, 0), &[7, 8], 3, 5));
    }
}
