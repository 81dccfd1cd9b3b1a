//! Parameter groups: some parameters, by their paths, are updated otherwise than the rest, or not at all.

use serde::Serialize;

use super::group_settings::GroupSettings;
use super::optimizers::OptimizerConfig;
use super::variant::Variant;
use crate::error::Result;
use crate::json::json;
use crate::memory::OptimizerState;

/// An optimizer, and what of it is another for some parameters. It goes wherever an optimizer's configuration goes.
///
/// A group is the parameters that one of its patterns covers: names joined by dots, of which `*` is any one name and `**` any
/// number of them, none included; a pattern covers the path that it spells and all below it, so that nothing (`""`) and `**`
/// are the whole model. Of several groups that a parameter is in, **the last one that says a setting decides it**; what none
/// says is the optimizer's. The options `optimizer.frozen`, `optimizer.rate_factor` and `optimizer.weight_decay` are groups
/// behind those of the program.
///
/// ```
/// use burn::optim::AdamWConfig;
/// use epl_core::optim::ParamGroups;
///
/// let optimizer = ParamGroups::new(AdamWConfig::new().with_weight_decay(0.01))
///     .group(["**.bias", "**.norm"], |group| group.with_weight_decay(0.0))
///     .group(["embeddings"], |group| group.with_rate_factor(0.1))
///     .group(["encoder.layers.0", "encoder.layers.1"], |group| group.with_frozen(true));
/// # let _ = optimizer;
/// ```
///
/// A pattern that covers no parameter is an error before the first step; so are groups whose own settings would keep other
/// state of a parameter than the rest, as a checkpoint has the same of all. Checkpoints keep the groups with the optimizer's
/// settings.
#[derive(Clone, Debug, Serialize)]
pub struct ParamGroups<O> {
    optimizer: O,
    groups: Vec<ParamGroup<O>>,
}

/// What a group of [`ParamGroups`] says.
#[derive(Clone, Debug, Serialize)]
pub struct ParamGroup<O> {
    patterns: Vec<String>,
    rate_factor: Option<f64>,
    weight_decay: Option<f64>,
    frozen: Option<bool>,
    optimizer: Option<O>,
}

impl<O> ParamGroup<O> {
    /// The learning rate is multiplied by this.
    #[must_use]
    pub fn with_rate_factor(self, factor: f64) -> Self {
        Self { rate_factor: Some(factor), ..self }
    }

    /// Another weight decay than the optimizer's; 0: none.
    #[must_use]
    pub fn with_weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    /// Whether the parameters are left as they are: without gradient, without state. Their layers go on as in training: a Dropout
    /// draws, and running statistics of a BatchNorm move; `Module::freeze` where a layer is made stops these too. `false` takes back what a group before
    /// said; what a layer froze itself stays so.
    #[must_use]
    pub fn with_frozen(self, frozen: bool) -> Self {
        Self { frozen: Some(frozen), ..self }
    }

    /// Other settings of the optimizer, of which its weight decay is one.
    #[must_use]
    pub fn with_optimizer(self, optimizer: O) -> Self {
        Self { optimizer: Some(optimizer), ..self }
    }
}

impl<O: OptimizerConfig> ParamGroups<O> {
    /// One for all parameters alike.
    pub fn new(optimizer: O) -> Self {
        Self { optimizer, groups: Vec::new() }
    }

    /// With a group of the parameters that one of these patterns covers.
    #[must_use]
    pub fn group<P: Into<String>>(
        mut self,
        patterns: impl IntoIterator<Item = P>,
        say: impl FnOnce(ParamGroup<O>) -> ParamGroup<O>,
    ) -> Self {
        let patterns = patterns.into_iter().map(Into::into).collect();
        let group = ParamGroup { patterns, rate_factor: None, weight_decay: None, frozen: None, optimizer: None };
        self.groups.push(say(group));
        self
    }
}

impl<O: OptimizerConfig> OptimizerConfig for ParamGroups<O> {
    const NAME: &'static str = O::NAME;
    const ELEMENT_WISE: bool = O::ELEMENT_WISE;

    fn build(&self) -> impl burn::optim::Optimizer {
        self.optimizer.build()
    }

    fn state(&self) -> Result<OptimizerState> {
        self.optimizer.state()
    }

    fn groups(&self) -> Result<Vec<GroupSettings>> {
        // An optimizer that has groups itself has them first.
        let mut all = self.optimizer.groups()?;
        for ParamGroup { patterns, rate_factor, weight_decay, frozen, optimizer } in &self.groups {
            all.push(GroupSettings {
                patterns: patterns.clone(),
                rate_factor: *rate_factor,
                weight_decay: *weight_decay,
                frozen: *frozen,
                optimizer: optimizer.as_ref().map(|own| json("optimizer's settings", own)).transpose()?,
            });
        }
        Ok(all)
    }

    fn variant(&self, own: Option<usize>, weight_decay: Option<f64>) -> Result<Variant> {
        let before = self.optimizer.groups()?.len();
        let group = own.and_then(|number| self.groups.get(number.checked_sub(before)?));
        match group.and_then(|group| group.optimizer.as_ref()) {
            Some(optimizer) => optimizer.variant(None, weight_decay),
            None => self.optimizer.variant(own, weight_decay),
        }
    }
}
