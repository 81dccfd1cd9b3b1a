//! The linear layer.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::Tensor;
use epl_comm::{Copied, Split, sliced};
use epl_core::{Axis, Context, Place};

use crate::invalid::check_last_dim;
use crate::linear::{
    LinearCut, Parameters, Weight, affine_each, columns_each, count_affine, default_initializer, rows,
};
use crate::placement::{self, REPLICATED};

/// Configuration to create a [`Linear`] layer using the [init function](LinearConfig::init).
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// How the weight lies in memory and in records: `[d_input, d_output]`, or transposed. Default: row
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

/// Burn's `Linear`, of which every rank of the tensor axis holds some columns.
///
/// `O = I W + b`. Inputs and outputs are whole: outputs of columns are gathered. A layer of fewer columns than there are ranks
/// is whole on each.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::LinearConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let linear = LinearConfig::new(8, 6).init(&epl.place().child("linear"));
///     assert_eq!(linear.weight.dims(), [8, 3]); // this rank's half of the columns
///     let hidden = linear.forward(Tensor::<3>::ones([2, 5, 8], epl.place().device()));
///     assert_eq!(hidden.dims(), [2, 5, 6]); // of all: an all-gather
///     let score = LinearConfig::new(6, 1).init(&epl.place().child("score")); // one column: whole on both
///     assert_eq!((score.weight.dims(), score.forward(hidden).dims()), ([6, 1], [2, 5, 1]));
///     Ok(())
/// });
/// ```
///
/// Should be created with [`LinearConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// This rank's slice of `[d_input, d_output]`; with [`LinearLayout::Col`] of `[d_output, d_input]`, as Burn's records have it
    pub weight: Param<Tensor<2>>,
    /// This rank's slice of `[d_output]`
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    layout: LinearLayout,
    #[module(skip)]
    sizes: [usize; 2],
    #[module(skip)]
    cut: Option<LinearCut>,
    #[module(skip)]
    context: Context,
}

impl LinearConfig {
    /// Initializes a new [`Linear`] layer.
    pub fn init(&self, place: &Place) -> Linear {
        self.init_cut(LinearCut::Column, &place.self_contained())
    }

    /// A layer of which this dim is cut, if there is enough of it for all ranks.
    pub(super) fn init_cut(&self, cut: LinearCut, place: &Place) -> Linear {
        let size = if cut == LinearCut::Column { self.d_output } else { self.d_input };
        self.init_with(Some(cut).filter(|_| size >= place.context().tensor().size()), place)
    }

    /// A layer that is whole on every rank.
    pub(super) fn init_whole(&self, place: &Place) -> Linear {
        self.init_with(None, place)
    }

    fn init_with(&self, cut: Option<LinearCut>, place: &Place) -> Linear {
        let sizes = [self.d_input, self.d_output];
        // Burn's fans of a transposed weight are those of its shape.
        let (shape, dims) = match self.layout {
            LinearLayout::Row => (sizes, [0, 1]),
            LinearLayout::Col => ([self.d_output, self.d_input], [1, 0]),
        };
        let (of_weight, of_bias) = match cut {
            Some(LinearCut::Column) => (vec![(Axis::Tensor, dims[1])], vec![(Axis::Tensor, 0)]),
            Some(LinearCut::Row) => (vec![(Axis::Tensor, dims[0])], Vec::new()),
            None => (Vec::new(), Vec::new()),
        };
        let fans = (self.d_input, self.d_output);
        let bias = || place.split_param_with_fans([self.d_output], &of_bias, self.initializer.clone(), fans);
        Linear {
            weight: place.split_param(shape, &of_weight, self.initializer.clone()),
            bias: self.bias.then(bias),
            layout: self.layout,
            sizes,
            cut,
            context: place.context().clone(),
        }
    }
}

impl Linear {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_input]`
    /// - output: `[..., d_output]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another, or a peer fails.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let group = self.context.tensor();
        match self.cut {
            Some(LinearCut::Column) => self.columns(epl_comm::copied(input, group)).all_gather(),
            Some(LinearCut::Row) => {
                check_last_dim("linear layer", ("d_input", self.sizes[0]), input.dims());
                self.rows(sliced(input, D - 1, group))
            }
            None => {
                let [output] = Self::whole_each([self], input);
                output
            }
        }
    }

    /// Looks at the dims of what a layer that is whole multiplies, and tells the operations.
    pub(super) fn check_and_count<const D: usize>(&self, input: [usize; D]) {
        check_last_dim("linear layer", ("d_input", self.sizes[0]), input);
        count_affine(&self.context, self.weight.id, input, self.sizes[1]);
    }

    /// The weight as it lies, and the bias.
    pub(super) fn parameters(&self) -> Parameters {
        let weight = match self.layout {
            LinearLayout::Row => Weight::Row(self.weight.val()),
            LinearLayout::Col => Weight::Col(self.weight.val()),
        };
        Parameters { id: self.weight.id, weight, bias: self.bias.as_ref().map(Param::val) }
    }

    /// The outputs of up to three layers of one input that are whole.
    pub(super) fn whole_each<const D: usize, const N: usize>(layers: [&Self; N], input: Tensor<D>) -> [Tensor<D>; N] {
        layers.iter().for_each(|layer| layer.check_and_count(input.dims()));
        let parameters = |layer: &Self| {
            let Parameters { weight, bias, .. } = layer.parameters();
            (weight, bias)
        };
        affine_each(input, layers.map(parameters))
    }

    /// The columns of this rank, of a layer that is cut so.
    pub(super) fn columns<const D: usize>(&self, input: Copied<D>) -> Split<D> {
        let [output] = Self::columns_each([self], input);
        output
    }

    /// The same of up to three layers of one input.
    pub(super) fn columns_each<const D: usize, const N: usize>(layers: [&Self; N], input: Copied<D>) -> [Split<D>; N] {
        columns_each(input.into(), layers.map(|layer| (layer.parameters(), layer.sizes, &layer.context)))
    }

    /// The sum over the rows of all ranks, of a layer that is cut so.
    pub(super) fn rows<const D: usize>(&self, input: Split<D>) -> Tensor<D> {
        rows(input, self.parameters(), self.sizes, &self.context)
    }

    /// Which dim is cut, if one is.
    pub(super) fn cut(&self) -> Option<LinearCut> {
        self.cut
    }

    /// `d_input` and `d_output`, over all ranks.
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.sizes
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Where its parameters are.
    pub(super) fn placement(&self) -> String {
        let [d_input, d_output] = self.sizes;
        match self.cut {
            Some(LinearCut::Column) => placement::split(self.context.tensor(), "column", d_output),
            Some(LinearCut::Row) => placement::split(self.context.tensor(), "row", d_input),
            None => REPLICATED.to_string(),
        }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.sizes;
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.bias.is_some())
            .add("placement", self.placement().as_str())
            .optional()
    }
}
