//! What can be wrong with a division into stages.

/// A segment's cost that cannot be compared with the others.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("segment {segment} costs {cost}; a cost must be finite and at least 0")]
pub struct CostError {
    /// Its index in the chain.
    pub segment: usize,
    /// Its cost.
    pub cost: f64,
}

/// A chain and a number of stages that do not fit together, with both numbers and the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A size of zero.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// The size's name.
        what: &'static str,
    },
    /// A stage would have no segment.
    #[error(
        "{segments} segments cannot fill {stages} stages × {chunks} chunks = {parts} parts; \
         use at most {segments} parts, or cut the model into at least {parts} segments"
    )]
    TooFewSegments {
        /// Segments of the chain.
        segments: usize,
        /// Stages asked for.
        stages: usize,
        /// Parts of each stage.
        chunks: usize,
        /// Their product.
        parts: usize,
    },
    /// More parts than a number holds.
    #[error("{stages} stages × {chunks} chunks are too many parts to count; use fewer chunks")]
    TooManyParts {
        /// Stages asked for.
        stages: usize,
        /// Parts of each stage.
        chunks: usize,
    },
    /// One list is longer than the other.
    #[error("{costs} segments have a cost, but {kinds} have a kind; give one of each for every segment")]
    KindsDisagree {
        /// Costs given.
        costs: usize,
        /// Kinds given.
        kinds: usize,
    },
    /// A cost that cannot be compared.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// EPL's weights are too large to add.
    #[error("{weights} weights sum to more than {}; give them in a larger unit", u64::MAX)]
    WeightsTooLarge {
        /// Weights given.
        weights: usize,
    },
    /// A stage would have no layer.
    #[error("{layers} layers cannot fill {stages} stages; use at most {layers} stages, or at least {stages} layers")]
    TooFewLayers {
        /// Layers given.
        layers: usize,
        /// Stages asked for.
        stages: usize,
    },
    /// A stage that does not exist.
    #[error("layer {layer} is on stage {stage}, but {stages} stages end at stage {last}; name a stage from 0 to {last}", last = stages - 1)]
    StageBeyond {
        /// The layer.
        layer: usize,
        /// Its stage.
        stage: usize,
        /// Stages that exist.
        stages: usize,
    },
    /// The first layer is not on the first stage.
    #[error("layer 0 is on stage {stage}; it must be on stage 0, the first")]
    StartsLater {
        /// Its stage.
        stage: usize,
    },
    /// The stages go back.
    #[error(
        "layer {layer} is on stage {stage}, after stage {before} of the layer before it; \
         stages cannot decrease: put it on stage {before} or later"
    )]
    GoesBack {
        /// The layer.
        layer: usize,
        /// Its stage.
        stage: usize,
        /// The stage of the layer before it.
        before: usize,
    },
    /// A stage in the middle has no layer.
    #[error(
        "layer {layer} is on stage {stage}, and the layer before it on stage {before}: \
         stage {} has no layer; put layer {layer} on stage {before} or {}", before + 1, before + 1
    )]
    LeavesOut {
        /// The layer.
        layer: usize,
        /// Its stage.
        stage: usize,
        /// The stage of the layer before it.
        before: usize,
    },
    /// The last stages have no layer.
    #[error(
        "layer {layer}, the last, is on stage {stage} of {stages} stages: stage {} has no layer; \
         spread the layers up to stage {}, or use {} stages", stage + 1, stages - 1, stage + 1
    )]
    EndsEarly {
        /// The last layer.
        layer: usize,
        /// Its stage.
        stage: usize,
        /// Stages that exist.
        stages: usize,
    },
    /// A layer that does not exist.
    #[error(
        "layer index {layer} is not one of {layers} layers; use 0 to {}, or -1 for the last stage, \
         or set pipeline_num_layers higher", layers - 1
    )]
    LayerBeyond {
        /// The index given.
        layer: isize,
        /// Layers that exist.
        layers: usize,
    },
}
