//! The lookup table.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Int, Tensor};
use epl_core::{Axis, Context, Place};

use crate::embedding::{lookup, lookup_split};
use crate::placement::{self, REPLICATED};

/// Configuration to create an [`Embedding`] layer using the [init function](EmbeddingConfig::init).
#[derive(Config, Debug)]
pub struct EmbeddingConfig {
    /// The number of vectors.
    pub n_embedding: usize,
    /// The size of each vector.
    pub d_model: usize,
    /// How the vectors get their first values. Default: normal with mean 0 and deviation 1
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

/// Burn's `Embedding`, of which every rank of the tensor axis holds some vectors. A table of fewer than there are ranks is
/// whole on each.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_core::testing;
/// use epl_modules::nn::EmbeddingConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let embedding = EmbeddingConfig::new(8, 4).init(&epl.place().child("embedding"));
///     assert_eq!(embedding.weight.dims(), [4, 4]); // this rank's half of the vectors
///     let ids = Tensor::<2, Int>::from_ints([[0, 7, 3]], epl.place().device()); // any of all eight, on each rank
///     assert_eq!(embedding.forward(ids).dims(), [1, 3, 4]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`EmbeddingConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Embedding {
    /// This rank's rows of `[n_embedding, d_model]`
    pub weight: Param<Tensor<2>>,
    #[module(skip)]
    sizes: [usize; 2],
    #[module(skip)]
    is_cut: bool,
    #[module(skip)]
    context: Context,
}

impl EmbeddingConfig {
    /// Initializes a new [`Embedding`] layer.
    pub fn init(&self, place: &Place) -> Embedding {
        let place = &place.self_contained();
        let (sizes, context) = ([self.n_embedding, self.d_model], place.context());
        let is_cut = self.n_embedding >= context.tensor().size();
        let cuts: &[_] = if is_cut { &[(Axis::Tensor, 0)] } else { &[] };
        let weight = place.split_param(sizes, cuts, self.initializer.clone());
        Embedding { weight, sizes, is_cut, context: context.clone() }
    }
}

impl Embedding {
    /// Looks up the vectors of ids.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, seq_length]`, each below `n_embedding`
    /// - output: `[batch_size, seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// As [`SplitEmbedding::forward`](crate::SplitEmbedding::forward).
    pub fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        let [n_embedding, _] = self.sizes;
        if self.is_cut {
            return lookup_split(&self.weight, input, n_embedding, &self.context);
        }
        self.context.count_flops(Some(self.weight.id), 0.0);
        lookup(self.weight.val(), input)
    }
}

impl ModuleDisplay for Embedding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [n_embedding, d_model] = self.sizes;
        let placement = match self.is_cut {
            true => placement::split(self.context.tensor(), "row", n_embedding),
            false => REPLICATED.to_string(),
        };
        content
            .add("n_embedding", &n_embedding)
            .add("d_model", &d_model)
            .add("placement", placement.as_str())
            .optional()
    }
}
