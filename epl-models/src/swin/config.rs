//! The shape of a Swin transformer.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::{Error, Result};
use epl_modules::{Activation, NormOrder, TransformerLayerConfig, WindowBiasConfig, Windows};
use serde::{Deserialize, Serialize};

/// Which of the two a Swin transformer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwinVersion {
    /// Norms before the parts, a number for each distance in a window.
    V1,
    /// Norms behind the parts, scores by cosines, biases of distances by a network, so that images and windows may grow.
    V2,
}

/// The shape of a Swin transformer. The defaults are those of Hugging Face: Swin-T for images of 224×224 pixels.
///
/// ```
/// use epl_models::{SwinConfig, SwinVersion};
/// assert_eq!(SwinConfig::preset("tiny", 1000)?, SwinConfig::new(1000).with_drop_path(0.2));
/// let config = SwinConfig::preset("v2-base", 1000)?;
/// assert_eq!((config.version, config.features(), config.grids()[3]), (SwinVersion::V2, 1024, 8));
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *Swin Transformer: Hierarchical Vision Transformer using Shifted Windows*, Liu et al., 2021; *Swin Transformer V2: Scaling Up
/// Capacity and Resolution*, Liu et al., 2022.
#[derive(Config, Debug, PartialEq)]
pub struct SwinConfig {
    /// The number of classes.
    pub classes: usize,
    /// Which of the two it is.
    #[config(default = "SwinVersion::V1")]
    pub version: SwinVersion,
    /// The height and width of an image, in pixels.
    #[config(default = 224)]
    pub image_size: usize,
    /// The height and width of a patch, in pixels; it divides that of an image.
    #[config(default = 4)]
    pub patch_size: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub channels: usize,
    /// The width of the hidden states of the first stage; that of each further one is twice as large.
    #[config(default = 96)]
    pub embedding_size: usize,
    /// The blocks of each stage.
    #[config(default = "vec![2, 2, 6, 2]")]
    pub depths: Vec<usize>,
    /// The attention heads of each stage.
    #[config(default = "vec![3, 6, 12, 24]")]
    pub heads: Vec<usize>,
    /// The positions of a side of a window; in a stage that has fewer, those.
    #[config(default = 7)]
    pub window: usize,
    /// Of V2, the sides of the windows of each stage that the biases have learned, 0 for those of `window`; empty for that of all.
    #[config(default = "Vec::new()")]
    pub pretrained_windows: Vec<usize>,
    /// The width inside the feed-forward part, by that of the hidden states.
    #[config(default = 4.0)]
    pub mlp_ratio: f64,
    /// Whether patches have learned positions, besides those in windows.
    #[config(default = false)]
    pub absolute_positions: bool,
    /// The function inside the feed-forward part.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Probability with which embeddings and the output of every part are dropped.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Probability with which attention weights are dropped.
    #[config(default = 0.0)]
    pub attention_dropout: f64,
    /// Probability with which an image goes without a part of the last block; those of earlier blocks rise from 0 evenly.
    #[config(default = 0.1)]
    pub drop_path: f64,
    /// Added to the variance inside the norms of the blocks, and the last one.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The deviation of the weights' first values; biases start at zero.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// Of V2: whether each block begins as the identity, its norms' scales at zero, as the authors' program has it; `transformers`
    /// begins with scales of one.
    #[config(default = true)]
    pub identity_blocks: bool,
    /// The share of a label that is spread over all classes in training.
    #[config(default = 0.0)]
    pub label_smoothing: f64,
}

/// The names that [`SwinConfig::preset`] knows.
const PRESETS: [(&str, fn(usize) -> SwinConfig); 10] = [
    ("shapes", SwinConfig::shapes),
    ("tiny", |classes| SwinConfig::of(classes, 96, [6, 3]).with_drop_path(0.2)),
    ("small", |classes| SwinConfig::of(classes, 96, [18, 3]).with_drop_path(0.3)),
    ("base", |classes| SwinConfig::of(classes, 128, [18, 4]).with_drop_path(0.5)),
    ("large", |classes| SwinConfig::of(classes, 192, [18, 6]).with_drop_path(0.2)),
    ("v2-tiny", |classes| SwinConfig::of(classes, 96, [6, 3]).with_drop_path(0.2).of_v2()),
    ("v2-small", |classes| SwinConfig::of(classes, 96, [18, 3]).with_drop_path(0.3).of_v2()),
    ("v2-base", |classes| SwinConfig::of(classes, 128, [18, 4]).with_drop_path(0.5).of_v2()),
    ("v2-large", |classes| SwinConfig::of(classes, 192, [18, 6]).with_drop_path(0.2).of_v2()),
    ("v2-shapes", |classes| SwinConfig::shapes(classes).with_version(SwinVersion::V2)),
];

impl SwinConfig {
    /// Two stages of two blocks, of 32 and 64, for images of 32×32 pixels in patches of 2×2 and windows of 4×4: for trials.
    pub fn shapes(classes: usize) -> Self {
        let shape = Self::new(classes).with_image_size(32).with_patch_size(2).with_window(4).with_embedding_size(32);
        shape.with_depths(vec![2, 2]).with_heads(vec![2, 4]).with_drop_path(0.0)
    }

    /// Of four stages with so many blocks in the third, and so many heads in the first.
    fn of(classes: usize, embedding_size: usize, [blocks, heads]: [usize; 2]) -> Self {
        let shape = Self::new(classes).with_embedding_size(embedding_size);
        shape.with_depths(vec![2, 2, blocks, 2]).with_heads([1, 2, 4, 8].map(|times| times * heads).to_vec())
    }

    /// As its authors have published V2: for images of 256×256 pixels, in windows of 8×8.
    fn of_v2(self) -> Self {
        self.with_version(SwinVersion::V2).with_image_size(256).with_window(8)
    }

    /// The names that [`preset`](Self::preset) knows.
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A known shape, by name.
    ///
    /// # Errors
    ///
    /// For another name, with those that there are.
    pub fn preset(name: &str, classes: usize) -> Result<Self> {
        let known = PRESETS.iter().find(|(known, _)| *known == name);
        let unknown = || Error::invalid(format!("there is no Swin `{name}`; there are {}", Self::presets().join(", ")));
        known.map(|(_, config)| config(classes)).ok_or_else(unknown)
    }

    /// The positions along a side of the grid of each stage.
    pub fn grids(&self) -> Vec<usize> {
        let first = self.image_size / self.patch_size;
        (0..self.depths.len()).scan(first, |grid, _| Some(core::mem::replace(grid, grid.div_ceil(2)))).collect()
    }

    /// The width of the hidden states of a stage.
    pub fn width(&self, stage: usize) -> usize {
        self.embedding_size << stage
    }

    /// The features of an image: the width of the last stage.
    pub fn features(&self) -> usize {
        self.width(self.depths.len().saturating_sub(1))
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("Swin: {message}")));
        let counts = [
            ("classes", self.classes),
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("channels", self.channels),
            ("embedding_size", self.embedding_size),
            ("window", self.window),
        ];
        let depths = self.depths.iter().map(|depth| ("depths", *depth));
        let heads = self.heads.iter().map(|heads| ("heads", *heads));
        if let Some((name, _)) = counts.into_iter().chain(depths).chain(heads).find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is or has 0; it should be at least 1"));
        }
        let (heads, depths) = (self.heads.len(), self.depths.len());
        if heads != depths || depths == 0 || depths > 16 {
            return invalid(format!(
                "{depths} depths and {heads} numbers of heads; give one of each for every stage, of which there are 1 to 16"
            ));
        }
        if !self.image_size.is_multiple_of(self.patch_size) {
            let (image, patch) = (self.image_size, self.patch_size);
            return invalid(format!("`image_size` {image} is no multiple of `patch_size` {patch}"));
        }
        let uneven = |stage: &usize| !self.width(*stage).is_multiple_of(self.heads[*stage]);
        if let Some(stage) = (0..depths).find(uneven) {
            let (width, heads) = (self.width(stage), self.heads[stage]);
            return invalid(format!("the width {width} of stage {stage} is no multiple of its {heads} heads"));
        }
        if !(self.mlp_ratio * self.embedding_size as f64).is_normal() || self.d_ff(0) == 0 {
            return invalid(format!("`mlp_ratio` is {}; it should leave a width of at least 1", self.mlp_ratio));
        }
        self.validate_windows()?;
        let shares = [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("drop_path", self.drop_path),
            ("label_smoothing", self.label_smoothing),
        ];
        match shares.iter().find(|(_, share)| !(0.0..1.0).contains(share)) {
            Some((name, share)) => invalid(format!("`{name}` is {share}; it should be at least 0 and below 1")),
            None => Ok(()),
        }
    }

    fn validate_windows(&self) -> Result<()> {
        let (windows, stages) = (self.pretrained_windows.len(), self.depths.len());
        let learned = self.pretrained_windows.iter().any(|side| *side > 0);
        let message = match self.version {
            _ if windows != 0 && windows != stages => {
                format!("`pretrained_windows` has {windows} sides, for {stages} stages; give one for each, or none")
            }
            SwinVersion::V1 if learned => {
                "`pretrained_windows` are for V2, whose biases go over to other windows; leave them out".to_string()
            }
            SwinVersion::V2 if self.pretrained_windows.contains(&1) => {
                "`pretrained_windows` has 1, a window without distances; give 2 at least, or 0".to_string()
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("Swin: {message}")))
    }

    /// How weights start.
    pub(crate) fn initializer(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.deviation }
    }

    fn d_ff(&self, stage: usize) -> usize {
        (self.mlp_ratio * self.width(stage) as f64) as usize
    }

    /// A block of a stage, of all blocks so far that of number `index`.
    pub(crate) fn layer(&self, stage: usize, index: usize) -> TransformerLayerConfig {
        let (is_v2, last) = (self.version == SwinVersion::V2, self.depths.iter().sum::<usize>().max(2) - 1);
        TransformerLayerConfig::new(self.width(stage), self.heads[stage], self.d_ff(stage))
            .with_norm_order(if is_v2 { NormOrder::PostResidual } else { NormOrder::Pre })
            .with_epsilon(self.epsilon)
            .with_activation(self.activation)
            .with_cosine(is_v2)
            .with_score_bias(true)
            .with_key_bias(is_v2.then_some(false))
            .with_dropout(self.dropout)
            .with_attention_dropout(self.attention_dropout)
            .with_drop_path(self.drop_path * index as f64 / last as f64)
            .with_initializer(Some(self.initializer()))
            .with_bias_initializer(Some(Initializer::Zeros))
            .with_output_norm_initializer((is_v2 && self.identity_blocks).then_some(Initializer::Zeros))
    }

    /// The windows of a block of a stage: every second block's are shifted by half of one.
    pub(crate) fn windows(&self, stage: usize, block: usize) -> Windows {
        let grid = self.grids()[stage];
        // V2 halves odd grids downwards where it bounds its windows, as `transformers` does.
        let bound = match self.version {
            SwinVersion::V1 => grid,
            SwinVersion::V2 => (self.grids()[0] >> stage).max(1),
        };
        let (side, is_shifted) = (self.window.min(bound), block % 2 == 1 && bound > self.window);
        Windows::new([grid; 2], side, if is_shifted { side / 2 } else { 0 })
    }

    /// The bias of pairs in windows of so many positions a side.
    pub(crate) fn bias(&self, stage: usize, side: usize) -> WindowBiasConfig {
        let learned = self.pretrained_windows.get(stage).copied().filter(|side| *side > 0);
        WindowBiasConfig::new(self.heads[stage], side)
            .with_continuous(self.version == SwinVersion::V2)
            .with_pretrained_side(learned)
            .with_initializer(self.initializer())
            .with_network_initializer(self.initializer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::export::parameter_count;

    /// The numbers of parameters that timm counts for 1,000 classes.
    #[test]
    fn published_sizes_have_as_many_parameters_as_published() {
        for (name, expected) in
            [("tiny", 28_288_354), ("small", 49_606_258), ("base", 87_768_224), ("v2-tiny", 28_347_154)]
        {
            let config = SwinConfig::preset(name, 1000).unwrap();
            assert_eq!(parameter_count(|place| config.init(place)), expected, "{name}");
        }
    }

    #[test]
    fn every_preset_is_possible_and_an_unknown_name_lists_them() {
        for name in SwinConfig::presets() {
            assert!(SwinConfig::preset(name, 7).unwrap().validate().is_ok(), "{name}");
        }
        let message = SwinConfig::preset("huge", 7).unwrap_err().to_string();
        assert!(message.contains("no Swin `huge`; there are shapes, tiny"), "{message}");
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: SwinConfig| config.validate().unwrap_err().to_string();
        let swin = SwinConfig::new(5);
        assert!(message(swin.clone().with_depths(vec![2, 0, 6, 2])).contains("`depths` is or has 0"));
        assert!(message(swin.clone().with_heads(vec![3])).contains("4 depths and 1 numbers of heads"));
        assert!(message(swin.clone().with_heads(vec![3, 6, 12, 25])).contains("width 768 of stage 3"));
        assert!(message(swin.clone().with_patch_size(5)).contains("`image_size` 224 is no multiple of `patch_size` 5"));
        assert!(message(swin.clone().with_mlp_ratio(0.0)).contains("`mlp_ratio` is 0"));
        assert!(message(swin.clone().with_drop_path(1.0)).contains("`drop_path` is 1"));
        let learned = swin.with_pretrained_windows(vec![8, 8, 8, 1]);
        assert!(message(learned.clone()).contains("are for V2"));
        assert!(message(learned.clone().with_version(SwinVersion::V2)).contains("has 1, a window without distances"));
        assert!(message(learned.with_depths(vec![2; 3]).with_heads(vec![3; 3])).contains("4 sides, for 3 stages"));
    }
}
