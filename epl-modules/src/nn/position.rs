//! Encodings of positions.

use core::ops::Deref;

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn as burns;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use crate::invalid::{check_last_dim, refuse};
use crate::placement::NOTHING;

/// Configuration to create a [`PositionalEncoding`] layer using the [init function](PositionalEncodingConfig::init).
#[derive(Config, Debug)]
pub struct PositionalEncodingConfig {
    /// The most positions of a sequence. Default: 5000
    #[config(default = "5_000")]
    pub max_sequence_size: usize,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The longest wave. Default: 10000
    #[config(default = "10_000")]
    pub max_timescale: usize,
}

/// Burn's `PositionalEncoding`: adds waves to the features, in f32 at least.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::PositionalEncodingConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let encoding = PositionalEncodingConfig::new(4).init(&epl.place().child("encoding"));
///     let waves = encoding.forward(Tensor::zeros([1, 3, 4], epl.place().device())).into_data().to_vec::<f32>().unwrap();
///     assert_eq!(waves[..4], [0.0, 1.0, 0.0, 1.0]); // position 0: sine and cosine in turn
///     assert!((waves[4] - 1_f32.sin()).abs() < 1e-6 && (waves[5] - 1_f32.cos()).abs() < 1e-6);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`PositionalEncodingConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct PositionalEncoding {
    /// The waves, `[1, max_sequence_size, d_model]`
    pub sinusoids: Tensor<3>,
    /// The most positions of a sequence.
    pub max_sequence_size: usize,
    /// The longest wave.
    pub max_timescale: usize,
    #[module(skip)]
    d_model: usize,
}

impl PositionalEncodingConfig {
    /// Initializes a new [`PositionalEncoding`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when `d_model` is odd, or the longest wave is shorter than the sequences.
    pub fn init(&self, place: &Place) -> PositionalEncoding {
        let Self { max_sequence_size, d_model, max_timescale } = *self;
        if !d_model.is_multiple_of(2) || max_timescale < max_sequence_size {
            refuse(format!(
                "{}: a positional encoding of d_model {d_model}, max_sequence_size {max_sequence_size} and max_timescale \
                 {max_timescale}: d_model must be even, and max_timescale at least max_sequence_size",
                place.path()
            ));
        }
        let waves = burns::generate_sinusoids(max_sequence_size, d_model, max_timescale, place.device());
        PositionalEncoding { sinusoids: waves.unsqueeze(), max_sequence_size, max_timescale, d_model }
    }
}

impl PositionalEncoding {
    /// Adds the waves of the positions.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, seq_length, d_model]`
    /// - output: `[batch_size, seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the sequence is too long, or its last dim is another.
    pub fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        check_last_dim("positional encoding", ("d_model", self.d_model), input.dims());
        let positions = input.dims()[1];
        if positions > self.max_sequence_size {
            refuse(format!(
                "a positional encoding of max_sequence_size {} got {positions} positions: give fewer, or make it with more",
                self.max_sequence_size
            ));
        }
        let waves = self.sinusoids.clone().narrow(1, 0, positions);
        in_wide(input, |input| {
            let dtype = input.dtype();
            input + waves.cast(dtype)
        })
    }
}

impl ModuleDisplay for PositionalEncoding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("max_sequence_size", &self.max_sequence_size)
            .add("max_timescale", &self.max_timescale)
            .add("placement", NOTHING)
            .optional()
    }
}

/// Configuration to create a [`RotaryEncoding`] layer using the [init function](RotaryEncodingConfig::init).
#[derive(Config, Debug)]
pub struct RotaryEncodingConfig {
    /// The most positions of a sequence.
    pub max_sequence_length: usize,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The base of the frequencies. Default: 10000
    #[config(default = "10000.0")]
    pub theta: f32,
}

/// Burn's `RotaryEncoding`, computed in f32 at least. It derefs to Burn's, for its fields.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::RotaryEncodingConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let encoding = RotaryEncodingConfig::new(16, 4).init(&epl.place().child("encoding"));
///     let queries = Tensor::<4>::ones([1, 2, 5, 4], epl.place().device()); // of two heads
///     let turned = encoding.forward(queries.clone());
///     assert_eq!(turned.dims(), [1, 2, 5, 4]);
///     // The last position alone, as with a cache.
///     let last = encoding.apply(queries.narrow(2, 4, 1), 4);
///     assert_eq!(last.into_data(), turned.narrow(2, 4, 1).into_data());
///     Ok(())
/// });
/// ```
///
/// Should be created with [`RotaryEncodingConfig`].
#[derive(Module, Debug)]
pub struct RotaryEncoding {
    burns: burns::RotaryEncoding,
}

impl RotaryEncodingConfig {
    /// Initializes a new [`RotaryEncoding`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when `d_model` is odd, or `theta` not positive.
    pub fn init(&self, place: &Place) -> RotaryEncoding {
        self.init_with_frequency_scaling(|frequencies| frequencies, place)
    }

    /// Initializes a new [`RotaryEncoding`] layer whose frequencies are changed by a function.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn init_with_frequency_scaling(
        &self,
        scaling: impl Fn(Tensor<1>) -> Tensor<1>,
        place: &Place,
    ) -> RotaryEncoding {
        if !self.d_model.is_multiple_of(2) || self.theta.is_nan() || self.theta <= 0.0 {
            refuse(format!(
                "{}: a rotary encoding of d_model {} and theta {}: d_model must be even, theta positive",
                place.path(),
                self.d_model,
                self.theta
            ));
        }
        let config = burns::RotaryEncodingConfig::new(self.max_sequence_length, self.d_model).with_theta(self.theta);
        RotaryEncoding { burns: config.init_with_frequency_scaling(scaling, place.device()) }
    }
}

impl RotaryEncoding {
    /// Rotates the features by the angles of their positions, from 0.
    ///
    /// # Shapes
    ///
    /// - x: `[..., seq_length, d_model]`
    /// - output: `[..., seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.apply(x, 0)
    }

    /// Rotates the features by the angles of their positions, of which `start` is the first.
    ///
    /// # Shapes
    ///
    /// - x: `[..., seq_length, d_model]`
    /// - output: `[..., seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there are fewer dims, the last one is another, or positions are out of range.
    pub fn apply<const D: usize>(&self, x: Tensor<D>, start: usize) -> Tensor<D> {
        let ([most, d_model, _], dims) = (self.burns.freq_complex.dims(), x.dims());
        check_last_dim("rotary encoding", ("d_model", d_model), dims);
        if D < 2 || start + dims[D - 2] > most {
            refuse(format!(
                "a rotary encoding of {most} positions got an input of {dims:?} from position {start}: give it [..., \
                 positions, {d_model}] within them, make it with more, or `shift` it"
            ));
        }
        in_wide(x, |x| self.burns.apply(x, start))
    }

    /// Moves the range of positions so that it begins at `start`, which only grows.
    ///
    /// # Panics
    ///
    /// As Burn's, when `start` is not beyond the last one.
    pub fn shift(&mut self, start: usize) {
        self.burns.shift(start);
    }

    /// Moves the range of positions back to 0.
    pub fn reset(&mut self) {
        self.burns.reset();
    }
}

impl Deref for RotaryEncoding {
    type Target = burns::RotaryEncoding;

    fn deref(&self) -> &Self::Target {
        &self.burns
    }
}
