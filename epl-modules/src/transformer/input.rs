//! What a layer reads, and what it may not see.

use burn::tensor::{Bool, Device, Tensor};

use crate::attention::{AttentionInput, Windows};
use crate::invalid::refuse;
use crate::linear::Operand;
use crate::moe::TokenMask;

/// The input of [`TransformerLayer`](super::TransformerLayer).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::{TransformerInput, TransformerLayerConfig};
///
/// testing::run((1, 1, 1), |epl| {
///     // A layer of a decoder: it attends to its own positions up to each, and to three of an encoder.
///     let config = TransformerLayerConfig::new(16, 4, 64).with_cross_attention(true);
///     let layer = config.init(&epl.place().child("layer"));
///     let [hidden, memory] = [5, 3].map(|positions| Tensor::<3>::ones([2, positions, 16], epl.place().device()));
///     let output = layer.forward(TransformerInput::new(hidden).causal().with_memory(memory, None));
///     assert_eq!(output.hidden.dims(), [2, 5, 16]);
///     Ok(())
/// });
/// ```
#[derive(Clone, Debug)]
pub struct TransformerInput {
    /// `[batch_size, positions, d_model]`
    pub(super) hidden: Tensor<3>,
    pub(super) own: OwnPositions,
    pub(super) memory: Option<Memory>,
    /// Which tokens are real, where experts are chosen.
    pub(super) tokens: Option<TokenMask>,
}

/// What a layer sees of its own positions.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnPositions {
    pub(super) padding: Option<Tensor<2, Bool>>,
    causal: bool,
    bias: Option<Tensor<4>>,
    pub(super) windows: Option<Windows>,
}

/// What a layer with cross-attention attends to.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    states: Operand<3>,
    padding: Option<Tensor<2, Bool>>,
}

impl TransformerInput {
    /// Every position sees every position of the same sequence.
    ///
    /// # Shapes
    ///
    /// - hidden: `[batch_size, positions, d_model]`
    pub fn new(hidden: Tensor<3>) -> Self {
        Self { hidden, own: OwnPositions::default(), memory: None, tokens: None }
    }

    /// The positions of the layer's own sequence that are padding (with a cache: the cached ones too): no position
    /// attends to them.
    ///
    /// # Shapes
    ///
    /// - padding: `[batch_size, positions]`, true at padding
    #[must_use]
    pub fn with_padding(mut self, padding: Tensor<2, Bool>) -> Self {
        self.own.padding = Some(padding);
        self
    }

    /// A position does not attend to later ones: see [`AttentionInput::causal`].
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.own.causal = true;
        self
    }

    /// A bias that is added to the scores of this rank's heads in self-attention: see [`AttentionInput::with_bias`].
    ///
    /// # Shapes
    ///
    /// - bias: `[1 or batch_size, local heads, positions, keys]`
    #[must_use]
    pub fn with_bias(mut self, bias: Tensor<4>) -> Self {
        self.own.bias = Some(bias);
        self
    }

    /// A position attends to those of its window alone; the bias is that of a window's pairs, or of those of each of them. Padding
    /// and a cache are of whole sequences, and go with no windows.
    #[must_use]
    pub fn in_windows(mut self, windows: Windows) -> Self {
        self.own.windows = Some(windows);
        self
    }

    /// What cross-attention attends to, and where it is padding. A memory that many layers attend to is best
    /// [copied](epl_comm::copied) once, so that its gradient is reduced once.
    ///
    /// # Shapes
    ///
    /// - memory: `[batch_size, keys, d_model]`
    /// - padding: `[batch_size, keys]`, true at padding
    #[must_use]
    pub fn with_memory(mut self, memory: impl Into<Operand<3>>, padding: Option<Tensor<2, Bool>>) -> Self {
        self.memory = Some(Memory { states: memory.into(), padding });
        self
    }

    /// Which of the positions are real tokens, on the host: what experts are chosen for. A layer without experts does
    /// not need it. Without it, a layer with experts waits for the device to read the padding; where there is none
    /// either, all positions are real.
    #[must_use]
    pub fn with_tokens(mut self, tokens: TokenMask) -> Self {
        self.tokens = Some(tokens);
        self
    }
}

impl OwnPositions {
    /// The input of self-attention.
    pub(super) fn attend_from(self, states: Tensor<3>) -> AttentionInput {
        let device = states.device();
        let mut input = match &self.windows {
            Some(windows) => AttentionInput::self_attention(windows.apart(states)).in_windows(windows.count()),
            None => AttentionInput::self_attention(states),
        };
        if let Some(padding) = self.padding {
            input = input.with_padding(padding);
        }
        if let Some(bias) = masked(self.bias, self.windows.as_ref(), &device) {
            input = input.with_bias(bias);
        }
        if self.causal { input.causal() } else { input }
    }
}

/// The bias in windows, of which those that are shifted bring positions together that do not see each other.
fn masked(bias: Option<Tensor<4>>, windows: Option<&Windows>, device: &Device) -> Option<Tensor<4>> {
    let Some((mask, windows)) = windows.and_then(|windows| Some((windows.mask(device)?, windows))) else { return bias };
    let Some(bias) = bias else { return Some(mask) };
    let found = bias.dims()[0];
    if found != windows.count() {
        refuse(format!(
            "a bias of {found} windows for {} that are shifted, in which positions of opposite sides meet; give one for each window, \
             as `WindowBias` does, with `Windows::mask` added",
            windows.count()
        ));
    }
    Some(bias)
}

impl Memory {
    /// The input of cross-attention.
    pub(super) fn attend_from(self, states: Tensor<3>) -> AttentionInput {
        let input = AttentionInput::cross_attention(states, self.states);
        match self.padding {
            Some(padding) => input.with_padding(padding),
            None => input,
        }
    }
}

/// The tokens that experts are chosen for, by what the input says of them.
pub(super) fn routed_tokens(
    tokens: Option<TokenMask>,
    padding: Option<Tensor<2, Bool>>,
    [batch_size, positions]: [usize; 2],
) -> TokenMask {
    match (tokens, padding) {
        (Some(tokens), _) => tokens,
        (None, Some(padding)) if padding.dims() == [batch_size, positions] => TokenMask::from_padding(padding),
        (None, Some(padding)) => refuse(format!(
            "a layer with experts got {positions} positions of {batch_size} sequences and a padding of {:?}, which does \
             not tell which of them are real: say it by `with_tokens`",
            padding.dims()
        )),
        (None, None) => TokenMask::all(batch_size, positions),
    }
}
